"""Faults of capture layers, planted into Quintain's own: each with the cases that have to find it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from studies.conformance import Capture, CaptureCase, ServeLayer, TruthEngine
from studies.conformance.tokenizer import MergingTokenizer
from studies.conformance.truth import truth_logp

from quintain import Message, Sampled, Sampling
from quintain.rollouts import Conversation
from quintain.types import TrainingSequence
from quintain_gateway import chat, endpoint, threads

TOKENIZER = MergingTokenizer()
END, END_OF_TEXT, PAD = (TOKENIZER.encode(text)[0] for text in TOKENIZER.SPECIAL[1:])
Sequences = list[TrainingSequence]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        finds: cases, each of which has to find it.
        column: in which it is found.
        sampled: what the layer makes of the context and the tokens of a turn.
        kept: what it makes of the sequences in the end.
        planted: what it does while an agent runs.
    """

    finds: tuple[str, ...]
    column: str
    sampled: Callable[[Sequence[int], Sampled], Sampled] | None = None
    kept: Callable[[Sequences], Sequences] = lambda sequences: sequences
    planted: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)


class FaultyEngine(TruthEngine):
    """A truth whose turns reach the layer with a fault; the log of *truth* stays right."""

    def __init__(
        self, truth: TruthEngine, fault: Callable[[Sequence[int], Sampled], Sampled]
    ) -> None:
        self.truth, self.fault = truth, fault
        self.tokenizer, self.context, self.version = truth.tokenizer, truth.context, truth.version

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        return self.fault(ids, await self.truth.sample(ids, sampling))


class FaultyLayer(ServeLayer):
    """Quintain's layer with one fault."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    async def capture(self, truth: TruthEngine, agent: Any, case: CaptureCase) -> Capture:
        fault = self.fault
        engine = FaultyEngine(truth, fault.sampled) if fault.sampled else truth
        with fault.planted():
            captured = await super().capture(engine, agent, case)
        return Capture(sequences=fault.kept(list(captured.sequences)))


def log_probs_at_temperature_1(context: Sequence[int], sampled: Sampled) -> Sampled:
    return replace(sampled, logps=truth_logp(context, sampled.ids, 1.0, sampled.versions))


def log_probs_of_the_next_token(context: Sequence[int], sampled: Sampled) -> Sampled:
    return replace(sampled, logps=(*sampled.logps[1:], 0.0))


def log_probs_in_half_precision(context: Sequence[int], sampled: Sampled) -> Sampled:
    return replace(sampled, logps=tuple(round(x * 256) / 256 for x in sampled.logps))


def version_of_the_end(context: Sequence[int], sampled: Sampled) -> Sampled:
    return replace(sampled, versions=sampled.versions[-1:] * len(sampled.ids))


def no_version(context: Sequence[int], sampled: Sampled) -> Sampled:
    return replace(sampled, versions=(0,) * len(sampled.ids))


def encoded_again(context: Sequence[int], sampled: Sampled) -> Sampled:
    ids = tuple(TOKENIZER.encode(TOKENIZER.decode(sampled.ids)))
    logps = (*sampled.logps, *(-1.0,) * len(ids))[: len(ids)]
    return replace(sampled, ids=ids, logps=logps, versions=sampled.versions[:1] * len(ids))


def end_dropped(context: Sequence[int], sampled: Sampled) -> Sampled:
    if sampled.ids[-1:] != (END,):
        return sampled
    columns = {name: getattr(sampled, name)[:-1] for name in ("ids", "logps", "versions")}
    return replace(sampled, **columns, finish="length", stop=None)


def clipped_to_the_vocabulary(context: Sequence[int], sampled: Sampled) -> Sampled:
    ids = tuple(min(i, TOKENIZER.vocab_size - 1) for i in sampled.ids)
    return replace(sampled, ids=ids)


def masks(change: Callable[[TrainingSequence], Sequence[bool]]) -> Callable[[Sequences], Sequences]:
    """Return what gives each sequence the mask that *change* makes of it."""
    return lambda sequences: [replace(s, mask=tuple(change(s))) for s in sequences]


def first_left_out(s: TrainingSequence) -> list[bool]:
    return [m and i > 0 and s.mask[i - 1] for i, m in enumerate(s.mask)]


def one_too_late(s: TrainingSequence) -> tuple[bool, ...]:
    return (False, *s.mask[:-1])


def template_end_trained(s: TrainingSequence) -> list[bool]:
    return [m or (i > 0 and s.mask[i - 1]) for i, m in enumerate(s.mask)]


def without(token: int) -> Callable[[TrainingSequence], list[bool]]:
    return lambda s: [m and i != token for m, i in zip(s.mask, s.ids, strict=True)]


def after_the_first_end(s: TrainingSequence) -> list[bool]:
    """Return a mask that ends each turn at its first end token."""
    mask: list[bool] = []
    ended = False
    for m, i in zip(s.mask, s.ids, strict=True):
        ended = ended and m
        mask.append(m and not ended)
        ended = ended or (m and i in (END, END_OF_TEXT))
    return mask


def by_role(s: TrainingSequence) -> list[bool]:
    """Return a mask of all that stands in turns of the assistant, whoever wrote it."""
    start, role = TOKENIZER.encode("<|im_start|>")[0], TOKENIZER.encode("assistant\n")
    mask: list[bool] = []
    inside = False
    for at, i in enumerate(s.ids):
        lead = list(s.ids[max(0, at - len(role)) : at])
        opens = lead == role and s.ids[max(0, at - len(role) - 1)] == start
        inside = (inside or opens) and i != start
        mask.append(inside)
        inside = inside and i != END
    return mask


def cut_at(length: int) -> Callable[[Sequences], Sequences]:
    columns = ("ids", "mask", "logps", "versions")
    return lambda sequences: [
        replace(s, sources=(), **{name: getattr(s, name)[:length] for name in columns})
        for s in sequences
    ]


def one_of_each_prompt(keep: int) -> Callable[[Sequences], Sequences]:
    """Return what keeps the first (0) or last (-1) of the sequences with one beginning."""

    def kept(sequences: Sequences) -> Sequences:
        by_prompt: dict[tuple[int, ...], Sequences] = {}
        for s in sequences:
            by_prompt.setdefault(s.ids[: s.mask.index(True)], []).append(s)
        return [group[keep] for group in by_prompt.values()]

    return kept


@contextmanager
def shared_turns_trained_again() -> Iterator[None]:
    """Train what a fork shares with the conversation that it was forked from."""
    fork = Conversation.fork

    def forked(self: Conversation, turns: int) -> Conversation:
        other = fork(self, turns)
        shared, own = len(other._recorder), other._recorder
        path = self._recorder.transcript().path(-1)
        own._sources[:] = bytes(path.sources[:shared])
        own._logps[:] = array("d", path.logps[:shared])
        own._versions[:] = array("i", path.versions[:shared])
        return other

    with patch.object(Conversation, "fork", forked):
        yield


@contextmanager
def matched_without(role: str) -> Iterator[None]:
    """Find conversations by all messages but those of *role*."""
    digest = threads._next

    def next_digest(before: bytes, message: Message) -> bytes:
        return before if message.role == role else digest(before, message)

    with patch.object(threads, "_next", next_digest):
        yield


@contextmanager
def matched_by_text_alone() -> Iterator[None]:
    """Find conversations by role and text, whatever the calls are."""
    digest = threads._next
    with patch.object(threads, "_next", lambda b, m: digest(b, replace(m, calls=()))):
        yield


@contextmanager
def replies_changed(change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Change every body of the chat API that clients read."""
    response = chat.response

    def changed(*args: Any) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(json.dumps(response(*args)))
        change(body)
        return body

    with patch.object(chat, "response", changed):
        yield


def without_text(body: dict[str, Any]) -> None:
    for choice in body["choices"]:
        if choice["message"].get("tool_calls"):
            choice["message"]["content"] = None


def always_stopped(body: dict[str, Any]) -> None:
    for choice in body["choices"]:
        choice["finish_reason"] = "stop"


def one_call(body: dict[str, Any]) -> None:
    for choice in body["choices"]:
        choice["message"]["tool_calls"] = choice["message"].get("tool_calls", [])[:1]


@contextmanager
def replies_of_others() -> Iterator[None]:
    """Answer requests that are in flight together with the reply to the one before."""
    answer, last = endpoint.Endpoint._answer, []

    async def swapped(self: Any, *asked: Any) -> Any:
        last.append(await answer(self, *asked))
        return last[-2] if len(last) > 1 else last[-1]

    with patch.object(endpoint.Endpoint, "_answer", swapped):
        yield


FAULTS: dict[str, Fault] = {
    "log-probs at temperature 1": Fault(
        finds=("log-probs-under-temperature", "log-probs-of-calls-under-temperature"),
        column="logps",
        sampled=log_probs_at_temperature_1,
    ),
    "log-probs of the next token": Fault(
        finds=("one-turn", "one-call"), column="logps", sampled=log_probs_of_the_next_token
    ),
    "log-probs in half precision": Fault(
        finds=("one-turn",), column="logps", sampled=log_probs_in_half_precision
    ),
    "the version of a turn's end for all of it": Fault(
        finds=("update-within-a-turn",), column="versions", sampled=version_of_the_end
    ),
    "no version": Fault(
        finds=("one-turn", "update-between-turns"), column="versions", sampled=no_version
    ),
    "replies encoded again": Fault(
        finds=(
            "another-tokenisation",
            "special-tokens-spelt-by-the-policy",
            "bytes-that-are-no-text",
        ),
        column="ids",
        sampled=encoded_again,
    ),
    "the end token not kept": Fault(
        finds=("one-turn", "empty-reply"), column="ids", sampled=end_dropped
    ),
    "ids clipped to the vocabulary": Fault(
        finds=("id-beyond-the-vocabulary", "ids-beyond-the-vocabulary-alone"),
        column="ids",
        sampled=clipped_to_the_vocabulary,
    ),
    "a mask that begins one token late": Fault(
        finds=("one-turn", "six-calls-in-a-row"), column="mask", kept=masks(first_left_out)
    ),
    "a mask that is one token late": Fault(
        finds=("one-turn", "three-turns"), column="mask", kept=masks(one_too_late)
    ),
    "the end that the template writes trains": Fault(
        finds=("no-end-token", "token-limit"), column="mask", kept=masks(template_end_trained)
    ),
    "the padding token never trains": Fault(
        finds=("padding-token-sampled",), column="mask", kept=masks(without(PAD))
    ),
    "a turn trains up to its first end token": Fault(
        finds=("end-token-inside",), column="mask", kept=masks(after_the_first_end)
    ),
    "all turns of the assistant train": Fault(
        finds=("edited-reply", "invented-turns", "fork-at-an-earlier-turn", "prefilled-reply"),
        column="mask",
        kept=masks(by_role),
    ),
    "a branch trains twice": Fault(
        finds=("one-turn", "compaction"), column="mask", kept=lambda kept: [*kept, kept[0]]
    ),
    "a fork trains what it shares": Fault(
        finds=("fork-at-an-earlier-turn", "retry-within-a-conversation"),
        column="mask",
        planted=shared_turns_trained_again,
    ),
    "the last branch alone": Fault(
        finds=("compaction", "nested-sub-agents", "several-replies"),
        column="ids",
        kept=lambda kept: kept[-1:],
    ),
    "sequences cut at 1,024 tokens": Fault(finds=("long-reply",), column="ids", kept=cut_at(1024)),
    "a retry replaces what was sampled first": Fault(
        finds=("retry-after-a-reply", "update-before-a-retry"),
        column="ids",
        kept=one_of_each_prompt(-1),
    ),
    "the first of several replies alone": Fault(
        finds=("several-replies", "several-replies-streamed", "sub-agents-with-one-prompt"),
        column="ids",
        kept=one_of_each_prompt(0),
    ),
    "conversations found without the system message": Fault(
        finds=("system-message-with-a-clock", "nested-sub-agents"),
        column="prompts",
        planted=lambda: matched_without("system"),
    ),
    "conversations found without results": Fault(
        finds=("results-cleared",), column="prompts", planted=lambda: matched_without("tool")
    ),
    "conversations found without calls": Fault(
        finds=("edited-call",), column="prompts", planted=matched_by_text_alone
    ),
    "the text beside a call is lost": Fault(
        finds=("six-calls-in-a-row",),
        column="replies",
        planted=lambda: replies_changed(without_text),
    ),
    "the second of two calls is lost": Fault(
        finds=("parallel-calls",), column="replies", planted=lambda: replies_changed(one_call)
    ),
    "a reply that was cut says that it ended": Fault(
        finds=("no-end-token", "token-limit"),
        column="replies",
        planted=lambda: replies_changed(always_stopped),
    ),
    "requests at once get each other's replies": Fault(
        finds=("thirty-requests-at-once", "two-requests-in-one-conversation"),
        column="prompts",
        planted=replies_of_others,
    ),
}
