"""An environment, two rewards and a service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quintain import Environment, Rollout, Service, Task, need, reward


class LogBook(Service):
    """Keeps lines.

    Args:
        limit: lines kept at most.
    """

    def __init__(self, limit: int = 100) -> None:
        self.limit = limit
        self.lines: list[str] = []


@reward(range=(0, 1))
def repeats(rollout: Rollout, *, times: int = 1) -> float:
    """1 where the reply holds the answer often enough.

    Args:
        times: how often.
    """
    return float(rollout.reply.count(str(rollout.task.answer)) >= times)


@reward
def format_tags(rollout: Rollout) -> float:
    """A namesake."""
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Word(Task):
    """One word."""

    word: str = ""


class Echo(Environment[Word, None]):
    """Say it again.

    Attributes:
        words: what is to be said.
        polite: whether to say please.
    """

    reward = repeats
    words: tuple[str, ...] = ("fox", "owl")
    polite: bool = True
    book: LogBook = need()

    def tasks(self, split: str) -> Iterable[Word]:
        """One task per word."""
        please = "Please say" if self.polite else "Say"
        yield from (Word(prompt=f"{please} {w}.", answer=w, word=w) for w in self.words)
