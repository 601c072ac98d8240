"""Questions, and what an episode leaves for the rewards."""

from __future__ import annotations

from dataclasses import dataclass

from quintain import Task


@dataclass(frozen=True)
class Hop:
    """One search that leads to the answer: a query that finds it, and the id of the passage to be
    found.
    """

    query: str
    passage: str


@dataclass(frozen=True, kw_only=True)
class SearchTask(Task):
    """A question about a corpus; its level is the number of hops.

    Attributes:
        answers: each of them is right; `answer` is the first.
        hops: in their order, the last one to a passage with the answer. Empty where they are not
            known.
    """

    answers: tuple[str, ...]
    hops: tuple[Hop, ...] = ()


@dataclass(frozen=True)
class Seen:
    """A passage as a tool showed it to the policy: its title and as much of its text as was
    shown.
    """

    id: str
    text: str


@dataclass(frozen=True)
class SearchResult:
    """What an episode found.

    Attributes:
        seen: the passages that the tools returned, in the order of their first appearance.
        calls: of tools that ran, those that ended in an error included.
        final: whether the last turn called no tool, so that its reply is the answer.
    """

    seen: tuple[Seen, ...] = ()
    calls: int = 0
    final: bool = True

    def passage(self, id: str) -> str | None:  # noqa: A002 - the word of the tools
        """Return all the text of the passage *id* that the policy saw; None if it never saw it."""
        texts = [s.text for s in self.seen if s.id == id]
        return "\n".join(texts) if texts else None
