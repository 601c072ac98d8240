"""What a step waited for: the chain of spans that decided when it ended, walked from its end to its
begin.

At each moment the chain has one span: the one that the step could not end without. Of spans that
run beside each other it is the one that ended last. While a turn is on the chain, three other things
may be what it waits for, and get its time:

- A reproducible engine waits for all episodes, so one episode's tool holds up the turns of all.
- A tool or a reward that is a plain function blocks the event loop, and with it every turn.
- A replica that is slower than the others, by the spans of the replicas.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from .trace import Timed, TimelineFile

__all__ = ["Resource", "StepWaits", "Wait", "resources_of", "waits_of"]

EPS = 1e-5
"""Seconds within which two ends are one."""
BLOCK_SLACK = 0.03
"""Seconds by which a span may begin before the event loop was seen to be blocked."""
SHORT = 1e-6
OF_EPISODES = {"episode", "turn", "replica", "tool", "score", "grade"}
"""Spans that are no phases of a step."""


class ChainPart(NamedTuple):
    """A part of the chain: from *began* to *ended* it was *label*, in *span*."""

    label: str
    began: float
    ended: float
    span: Timed


@dataclass(frozen=True, kw_only=True)
class Wait:
    """What a step waited for, in sum.

    Attributes:
        label: such as ``tool search``.
        seconds: on the chain.
        share: of the step.
        count: number of spans.
        longest: seconds of the longest part of one.
        example: where that was: the episode, as ``environment/group/sample``.
    """

    label: str
    seconds: float
    share: float
    count: int
    longest: float
    example: str


@dataclass(frozen=True, kw_only=True)
class Resource:
    """All spans of a tool, a reward, a replica or a rank in a step, on the chain or not.

    Attributes:
        unit: seconds per token for replicas that sampled, else the median seconds.
    """

    label: str
    count: int
    seconds: float
    median: float
    longest: float
    unit: float | None = None


@dataclass(frozen=True, kw_only=True)
class StepWaits:
    """The chain of a step.

    Attributes:
        seconds: of the step.
        waits: largest first; their seconds add up to those of the step.
        pieces: the chain itself, from the begin to the end of the step.
    """

    step: int
    seconds: float
    waits: Sequence[Wait]
    pieces: Sequence[ChainPart]


def waits_of(timeline: TimelineFile) -> StepWaits:
    """Return what the step of *timeline* waited for."""
    whole = timeline.whole
    pieces = _Chain(timeline).pieces()
    pieces.reverse()
    seconds: defaultdict[str, float] = defaultdict(float)
    spans: defaultdict[str, set[int]] = defaultdict(set)
    longest: dict[str, ChainPart] = {}
    for piece in pieces:
        seconds[piece.label] += piece.ended - piece.began
        spans[piece.label].add(piece.span.id)
        before = longest.get(piece.label)
        if before is None or piece.ended - piece.began > before.ended - before.began:
            longest[piece.label] = piece
    by_id = {span.id: span for span in timeline.spans}
    waits = [
        Wait(
            label=label,
            seconds=total,
            share=total / whole.seconds if whole.seconds else 0.0,
            count=len(spans[label]),
            longest=longest[label].ended - longest[label].began,
            example=episode_of(longest[label].span, by_id),
        )
        for label, total in sorted(seconds.items(), key=lambda item: -item[1])
    ]
    return StepWaits(step=timeline.step, seconds=whole.seconds, waits=waits, pieces=_joined(pieces))


def _joined(pieces: Sequence[ChainPart]) -> list[ChainPart]:
    joined: list[ChainPart] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and last.label == piece.label and last.span is piece.span:
            joined[-1] = last._replace(ended=piece.ended)
        else:
            joined.append(piece)
    return joined


def episode_of(span: Timed, by_id: Mapping[int, Timed]) -> str:
    """Return the episode that *span* belongs to, as ``environment/group/sample``; empty if none."""
    around: Timed | None = span
    while around is not None:
        if around.kind == "episode":
            a = around.attributes
            return f"{brief(a['environment'])}/{a['group']}/{a['sample']}"
        around = by_id.get(around.parent)
    return ""


class _Chain:
    """Walks one step backwards."""

    def __init__(self, timeline: TimelineFile) -> None:
        self._whole = timeline.whole
        self._children: defaultdict[int, list[Timed]] = defaultdict(list)
        self._by_id = {span.id: span for span in timeline.spans}
        for span in timeline.spans:
            if span.kind not in ("blocked", "engine waits") and span is not self._whole:
                self._children[self._parent_of(span)].append(span)
        self._work = sorted(self._work_beside_turns(timeline), key=lambda piece: piece.ended)
        self._work_ends = [piece.ended for piece in self._work]
        waits = [(s.began, s.ended) for s in timeline.spans if s.kind == "engine waits"]
        self._engine_waits = sorted(waits)
        self._blocking = _shortest(self._blocking_work(timeline))

    def pieces(self) -> list[ChainPart]:
        """Return the parts of the chain, the last first."""
        whole = self._whole
        return list(self._walk(whole, whole.began, whole.ended, ""))

    def _parent_of(self, span: Timed) -> int:
        """Return the id of what *span* is a part of: episodes without a parent, which began in an
        earlier step or beside the phases, are parts of the phases.
        """
        if span.parent:
            return span.parent
        return self._whole.id

    def _walk(self, node: Timed, began: float, ended: float, context: str) -> Iterator[ChainPart]:
        """Yield the chain inside *node* from *ended* back to *began*."""
        if node.kind == "turn" and not self._children[node.id]:
            yield from self._turn(node, began, ended, context)
            return
        if node.kind == "replica":
            yield from self._turn(node, began, ended, context)
            return
        parts = self._parts(node)
        ends = [span.ended for span in parts]
        inner = f"{context}{node.kind}: " if node.kind == "evaluation" else context
        at = ended
        while at > began + SHORT:
            place = bisect_right(ends, at + EPS)
            part = next(
                (p for p in reversed(parts[:place]) if p.began < at - SHORT and p.ended > began),
                None,
            )
            if part is None:
                break
            if part.ended < at - SHORT:
                yield from self._own(node, max(part.ended, began), at, inner)
            yield from self._walk(part, max(part.began, began), min(part.ended, at), inner)
            at = max(part.began, began)
        if at > began:
            yield from self._own(node, began, at, inner)

    def _parts(self, node: Timed) -> list[Timed]:
        """Return what *node* consists of, by its end. Episodes that no span holds run beside the
        phases, so a phase of rollouts has them all.
        """
        parts = list(self._children[node.id])
        if node is self._whole:  # a turn without an episode is of one that ends in a later step
            parts = [span for span in parts if span.kind not in OF_EPISODES]
        elif node.kind == "rollouts":
            beside = self._children[self._whole.id]
            parts += [span for span in beside if span.kind in ("episode", "score")]
        return sorted(parts, key=lambda span: span.ended)

    def _own(self, node: Timed, began: float, ended: float, context: str) -> Iterator[ChainPart]:
        """Yield the time of *node* itself, and give to what blocked the process what that took."""
        if node.kind in ("tool", "grade", "score", "episode"):
            yield from self._given(node, began, ended, context, self._blocked(began, ended))
        elif ended > began:
            yield ChainPart(context + label_of(node), began, ended, node)

    def _turn(self, node: Timed, began: float, ended: float, context: str) -> Iterator[ChainPart]:
        """Yield the time of a turn, and give to other work what the turn waited for."""
        taken = self._blocked(began, ended)
        for first, last in self._engine_waits:
            if last > began and first < ended:
                taken += self._absent(max(first, began), min(last, ended))
        yield from self._given(node, began, ended, context, taken)

    def _given(
        self, node: Timed, began: float, ended: float, context: str, taken: list[ChainPart]
    ) -> Iterator[ChainPart]:
        """Yield the time from *began* to *ended*, the last first: that of *taken*, then that of
        *node*.
        """
        at = ended
        for work in reversed(_apart(taken)):
            if work.ended < at:
                yield ChainPart(context + label_of(node), work.ended, at, node)
            yield work._replace(label=context + work.label)
            at = work.began
        if at > began:
            yield ChainPart(context + label_of(node), began, at, node)

    def _blocked(self, began: float, ended: float) -> list[ChainPart]:
        """Return what blocked the process from *began* to *ended*."""
        return [
            w._replace(began=max(w.began, began), ended=min(w.ended, ended))
            for w in self._blocking
            if w.ended > began and w.began < ended
        ]

    def _absent(self, began: float, ended: float) -> list[ChainPart]:
        """Return what the engine waited for from *began* to *ended*: the work that ended last, then
        what ended last before that began.
        """
        found: list[ChainPart] = []
        at = ended
        place = bisect_right(self._work_ends, ended + 2e-3) - 1
        while place >= 0 and at > began:
            work = self._work[place]
            if work.ended < began:
                break
            if work.began < at:
                first, last = max(work.began, began), min(work.ended, at)
                if last > first:
                    found.append(work._replace(began=first, ended=last))
                    at = first
            place -= 1
        return found

    def _work_beside_turns(self, timeline: TimelineFile) -> Iterator[ChainPart]:
        """Yield tools, rewards, and what episodes do outside of both and of turns."""
        for span in timeline.spans:
            if span.kind in ("tool", "grade"):
                yield ChainPart(label_of(span), span.began, span.ended, span)
            elif span.kind == "episode":
                at = span.began
                for child in sorted(self._children[span.id], key=lambda child: child.began):
                    if child.began > at + 1e-4:
                        yield ChainPart(label_of(span), at, child.began, span)
                    at = max(at, child.ended)
                if span.ended > at + 1e-4:
                    yield ChainPart(label_of(span), at, span.ended, span)

    def _blocking_work(self, timeline: TimelineFile) -> Iterator[ChainPart]:
        """Yield the work during which the event loop did nothing else."""
        blocked = sorted((s.began, s.ended) for s in timeline.spans if s.kind == "blocked")
        begins = [began for began, _ in blocked]
        for work in self._work:
            place = bisect_right(begins, work.began + BLOCK_SLACK) - 1
            if place >= 0 and work.ended <= blocked[place][1] + BLOCK_SLACK:
                yield work


def _shortest(parts: Iterable[ChainPart]) -> list[ChainPart]:
    """Return *parts* beside each other, in order: where several overlap, the shortest has the time.

    While one blocks the event loop, others may have begun that wait for it. They are longer.
    """
    parts = sorted(parts, key=lambda part: part.began)
    bounds = sorted({bound for part in parts for bound in (part.began, part.ended)})
    shortest: list[ChainPart] = []
    open_parts: list[tuple[float, int]] = []
    coming = 0
    for began, ended in pairwise(bounds):
        while coming < len(parts) and parts[coming].began <= began:
            heapq.heappush(open_parts, (parts[coming].ended - parts[coming].began, coming))
            coming += 1
        while open_parts and parts[open_parts[0][1]].ended <= began:
            heapq.heappop(open_parts)
        if open_parts:
            shortest.append(parts[open_parts[0][1]]._replace(began=began, ended=ended))
    return shortest


def _apart(parts: Iterable[ChainPart]) -> list[ChainPart]:
    """Return *parts* in order, each without what an earlier one covers."""
    apart: list[ChainPart] = []
    at = 0.0
    for part in sorted(parts, key=lambda part: (part.began, part.ended)):
        if part.ended > max(part.began, at):
            apart.append(part._replace(began=max(part.began, at)))
            at = part.ended
    return apart


def brief(environment: str) -> str:
    """Return the name of an *environment* without its file or module."""
    return environment.rpartition(":")[2].rpartition("/")[2]


def label_of(span: Timed) -> str:
    """Return what the time of *span* itself, outside of its parts, is called."""
    a = span.attributes
    match span.kind:
        case "episode":
            return f"environment {brief(a['environment'])}, outside of turns and tools"
        case "turn":
            return f"sampling ({a['engine']})" if "engine" in a else "sampling that failed"
        case "replica":
            return f"sampling on replica {a['replica']}"
        case "tool":
            return f"tool {a['tool']}"
        case "grade":
            return f"grading by {a['reward']}"
        case "score":
            return "grading, outside of rewards"
        case "drain":
            return f"replica {a['replica']} ends its turns before it takes weights"
        case "transfer":
            return f"weights to replica {a['replica']}"
        case "ranks":
            seconds: Mapping[Any, float] = a.get("seconds") or {}
            slowest = max(seconds, key=lambda rank: seconds[rank], default="")
            return f"ranks, {a['command']} (rank {slowest} was last)"
        case "rollouts":
            return "rollouts, outside of episodes"
        case "step":
            return "the step, outside of its phases"
        case "update":
            return "update of the policy"
        case "sync":
            return "weights to the engine"
        case "record":
            return "writing of metrics and rollouts"
    return span.kind


def resources_of(timeline: TimelineFile) -> list[Resource]:
    """Return every tool, reward and replica of the step, by the seconds of all of its spans."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    tokens: Counter[str] = Counter()
    by_id = {span.id: span for span in timeline.spans}
    for span in timeline.spans:
        if span.kind in ("tool", "grade", "replica", "turn", "transfer", "drain"):
            label = label_of(span)
            seconds[label].append(span.seconds)
            turn: Any = by_id.get(span.parent) if span.kind == "replica" else span
            tokens[label] += turn.attributes.get("tokens", 0) if turn is not None else 0
        elif span.kind == "ranks":
            for rank, taken in (span.attributes.get("seconds") or {}).items():
                seconds[f"rank {rank}, {span.attributes['command']}"].append(taken)
    return [
        Resource(
            label=label,
            count=len(each),
            seconds=sum(each),
            median=median(each),
            longest=max(each),
            unit=sum(each) / tokens[label] if tokens[label] else None,
        )
        for label, each in sorted(seconds.items(), key=lambda item: -sum(item[1]))
    ]
