"""Finds the conversation that a request continues, so that its tokens are never encoded again.

Agents send the whole conversation with every request. A request that begins with the messages of a
thread up to the end of one of its turns, as the agent saw them, belongs to that thread: it
continues it if that turn is the last one, and forks it otherwise. Every other request begins a
thread of its own. Messages are compared by role, stripped content and calls (names and arguments);
reasoning and ids are not compared, because agents drop or renumber them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_

from quintain import Message

from .recent import Recent
from .request import Policy, PolicyConversation

Errors = Sequence[tuple[int, Message]]


@dataclass(eq=False)
class Thread:
    """One conversation of an agent.

    Attributes:
        turns: that the policy took.
        asked: digest of the messages up to a prompt that has no answer yet: it is being sampled,
            failed or was cancelled.
        errors: by the number of a turn, results of calls that no agent can answer, with their
            places among the results.
    """

    conversation: PolicyConversation
    name: str
    turns: int = 0
    asked: bytes = b""
    busy: bool = False
    digests: list[bytes] = field(default_factory=list)
    errors: dict[int, Errors] = field(default_factory=dict)


class Threads:
    """The threads of one episode.

    Attributes:
        count: of threads.
        rewritten: threads after the first that began with turns of an assistant which no thread
            has: the agent wrote its history again in other words, or left a part out.
        foreign: the same of the first thread: examples, or turns of another model.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # digest at the end of a turn -> thread, turns
        self._ends: dict[bytes, list[tuple[Thread, int]]] = {}
        self._asked: dict[bytes, list[Thread]] = {}
        self._digested = Recent(is_)
        self.count = self.rewritten = self.foreign = 0

    def take(self, messages: Sequence[Message]) -> Thread:
        """Return the thread of a request, which has all of *messages* and is busy until
        `release`.
        """
        digests = [b"", *self._digested.made(messages, _digests)]
        prompt = digests[-1]
        thread = next((t for t in self._asked.get(prompt, ()) if not t.busy), None)
        # else it is a request that is sent again: its messages are in the conversation
        if thread is None:
            thread, known = self._extended(digests)
            if not known and any(m.role == "assistant" for m in messages):
                self.rewritten += self.count > 1
                self.foreign += self.count == 1
            thread.conversation.add(
                _with_errors(messages[known:], thread.errors.get(thread.turns, ()))
            )
            thread.asked = prompt
            self._asked.setdefault(prompt, []).append(thread)
        thread.busy, thread.digests = True, digests
        return thread

    def answered(self, thread: Thread, reply: Message, errors: Errors = ()) -> None:
        """Record the turn that *thread* took, as the agent sees it; *errors* are read with the
        results that follow.
        """
        self._asked[thread.asked].remove(thread)
        thread.asked = b""
        thread.turns += 1
        thread.errors[thread.turns] = errors
        self._ends.setdefault(_next(thread.digests[-1], reply), []).append((thread, thread.turns))

    def release(self, thread: Thread) -> None:
        """End the use that `take` began."""
        thread.busy = False

    def _extended(self, digests: Sequence[bytes]) -> tuple[Thread, int]:
        """Return the thread for a prompt, and how many of its messages it has already."""
        for known in range(len(digests) - 1, 0, -1):
            candidates = self._ends.get(digests[known])
            if not candidates:
                continue
            idle = next(
                (t for t, turns in candidates if turns == t.turns and not t.busy and not t.asked),
                None,
            )
            if idle is not None:
                return idle, known
            thread, turns = candidates[0]
            name = self._name()
            return Thread(
                thread.conversation.fork(name, turns), name, turns, errors=dict(thread.errors)
            ), known
        name = self._name()
        return Thread(self._policy.conversation(name), name), 0

    def _name(self) -> str:
        self.count += 1
        return f"thread-{self.count}"


def _with_errors(messages: Sequence[Message], errors: Errors) -> Sequence[Message]:
    """Return *messages* with *errors* among the results that they begin with; without results
    nobody ran the calls.
    """
    results = next((i for i, m in enumerate(messages) if m.role != "tool"), len(messages))
    if not results:
        return messages
    added = [*messages]
    for place, error in errors:
        added.insert(min(place, results), error)
        results += 1
    return added


def _digests(known: Sequence[bytes], messages: Sequence[Message]) -> list[bytes]:
    """Return the digest of each beginning of a conversation that ends with one of *messages*, which
    follow those of the *known* ones.
    """
    digests = [known[-1] if known else b""]
    for m in messages:
        digests.append(_next(digests[-1], m))
    return digests[1:]


def _next(before: bytes, message: Message) -> bytes:
    text = f"{message.role}\n{message.content.strip()}"
    if message.calls:
        calls = [(c.name, c.error or dict(c.arguments)) for c in message.calls]
        text += f"\0{json.dumps(calls, sort_keys=True, default=str)}"
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), key=before, digest_size=16
    ).digest()
