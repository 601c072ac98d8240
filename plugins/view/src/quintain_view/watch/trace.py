"""The timeline of a step as a file: the JSON of trace viewers (``chrome://tracing``, Perfetto), which
is also what the commands here read.

Names and attributes are those of OpenTelemetry's conventions for generative AI where it has some
(https://opentelemetry.io/docs/specs/semconv/gen-ai/); the others begin with ``quintain.``.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain.errors import RunError, UsageError

__all__ = ["Timed", "TimelineFile", "path_of", "read_trace", "steps_of", "write_trace"]

FOLDER = "timeline"
"""In the folder of a run."""
RUN, EPISODES, GRADING, ENGINE = 1, 2, 3, 4
PROCESSES = {RUN: "run", EPISODES: "episodes", GRADING: "grading", ENGINE: "engine"}
ROOMS = {
    "episode": EPISODES,
    "turn": EPISODES,
    "tool": EPISODES,
    "replica": EPISODES,
    "score": GRADING,
    "grade": GRADING,
    "engine waits": ENGINE,
    "blocked": ENGINE,
    "drain": ENGINE,
    "transfer": ENGINE,
}
"""Where a viewer shows spans, by their kind; the others stand under the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A span that is over.

    Attributes:
        id: unique in its step, from 1.
        parent: the id of the span around it; 0 without one.
        kind: its name in the run, such as ``turn``.
        began, ended: seconds since 1970.
        attributes: plain values by name.
        error: name of the exception that ended it; empty without one.
    """

    id: int
    parent: int
    kind: str
    began: float
    ended: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


Written = Callable[[Timed], tuple[str, dict[str, Any]]]


def _episode(span: Timed) -> tuple[str, dict[str, Any]]:
    a = span.attributes
    return f"invoke_agent {a['environment']}", {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": a["environment"],
        "gen_ai.conversation.id": f"{a['environment']}/{a['group']}/{a['sample']}",
        "quintain.ended": str(a.get("ended", "")),
        "quintain.attempt": a["attempt"],
    }


def _turn(span: Timed) -> tuple[str, dict[str, Any]]:
    a = span.attributes
    return f"chat {a.get('engine', '')}".strip(), {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": a.get("engine", ""),
        "gen_ai.usage.output_tokens": a.get("tokens", 0),
        "gen_ai.response.finish_reasons": [a["finish"]] if "finish" in a else [],
        "quintain.player": a.get("player", ""),
    }


def _tool(span: Timed) -> tuple[str, dict[str, Any]]:
    a = span.attributes
    return f"execute_tool {a['tool']}", {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": a["tool"],
        "gen_ai.tool.call.id": a["call"],
        "quintain.tool.failed": a.get("failed", False),
    }


def _grade(span: Timed) -> tuple[str, dict[str, Any]]:
    reward = span.attributes["reward"]
    return f"grade {reward}", {"gen_ai.evaluation.name": reward}


def _other(span: Timed) -> tuple[str, dict[str, Any]]:
    name = span.kind
    if name == "step":
        name = f"step {span.attributes['step']}"
    if "replica" in span.attributes:
        name += f" {span.attributes['replica']}"
    return name, {f"quintain.{key}": value for key, value in span.attributes.items()}


NAMES: Mapping[str, Written] = {
    "episode": _episode,
    "turn": _turn,
    "tool": _tool,
    "grade": _grade,
}


def public_form(span: Timed) -> tuple[str, dict[str, Any]]:
    """Return the name and the attributes of *span* as OpenTelemetry has them."""
    name, attributes = NAMES.get(span.kind, _other)(span)
    if span.error:
        attributes["error.type"] = span.error
    return name, attributes


@dataclass(frozen=True, kw_only=True)
class TimelineFile:
    """The spans of one step.

    Attributes:
        run: name of the run.
        step: their step; 0 is what came before the first.
        spans: in the order of their begin.
    """

    run: str
    step: int
    spans: Sequence[Timed]

    @property
    def whole(self) -> Timed:
        """The span of the step itself; of what came before step 1, one over all spans.

        Raises:
            RunError: there is no span.
        """
        for span in self.spans:
            if span.kind == "step":
                return span
        if not self.spans:
            raise RunError(f"the timeline of step {self.step} of {self.run!r} has no spans")
        ended = max(span.ended for span in self.spans)
        return Timed(id=0, parent=0, kind="step", began=self.spans[0].began, ended=ended)


def path_of(folder: Path, step: int) -> Path:
    """Return the file of *step* of the run in *folder*."""
    return folder / FOLDER / f"step-{step:06d}.json"


def steps_of(folder: Path) -> list[int]:
    """Return the steps that have a timeline, in order."""
    files = (folder / FOLDER).glob("step-*.json")
    return sorted(int(path.stem.removeprefix("step-")) for path in files)


def write_whole(path: Path, text: str) -> None:
    """Write a file of the folder of timelines so that a reader finds all of it or none.

    It is not flushed to the disk, which takes longer than a small step: nothing needs it after a
    crash of the machine.
    """
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def write_trace(path: Path, timeline: TimelineFile) -> None:
    """Write the spans of a step to the file *path*."""
    events = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in PROCESSES.items()
    ]
    lanes = lanes_of(timeline.spans)
    for span in timeline.spans:
        name, attributes = public_form(span)
        events.append(
            {
                "ph": "X",
                "name": name,
                "cat": span.kind,
                "pid": ROOMS.get(span.kind, RUN),
                "tid": lanes[span.id],
                "ts": round(span.began * 1e6),
                "dur": max(0, round(span.seconds * 1e6)),
                "args": {
                    **attributes,
                    "id": span.id,
                    "parent": span.parent,
                    "own": dict(span.attributes),
                    "error": span.error,
                },
            }
        )
    text = _text(events)
    origin = {"run": timeline.run, "step": timeline.step, "sha256": _digest(text)}
    write_whole(path, f'{{"traceEvents":{text},"otherData":{_text(origin)}}}')


def read_trace(folder: Path, step: int) -> TimelineFile:
    """Return the timeline of *step* of the run in *folder*.

    Raises:
        UsageError: the step has none.
        RunError: the file is damaged.
    """
    path = path_of(folder, step)
    try:
        content = json.loads(path.read_bytes())
        events, origin = content["traceEvents"], content["otherData"]
        if origin.get("sha256", digest := _digest(_text(events))) != digest:
            raise ValueError("its SHA-256 is another one")
        spans = [
            Timed(
                id=event["args"]["id"],
                parent=event["args"]["parent"],
                kind=event["cat"],
                began=event["ts"] / 1e6,
                ended=(event["ts"] + event["dur"]) / 1e6,
                attributes=event["args"]["own"],
                error=event["args"]["error"],
            )
            for event in events
            if event["ph"] == "X"
        ]
        if origin["step"] != step:
            raise ValueError(f"it is of step {origin['step']}")
        return TimelineFile(run=origin["run"], step=step, spans=spans)
    except FileNotFoundError:
        known = steps_of(folder)
        which = f"it has {known[0]} to {known[-1]}" if known else "it has none"
        raise UsageError(
            f"run {folder.name!r} has no timeline of step {step}; {which} "
            "(QUINTAIN_TIMELINE says how many are kept)"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        raise RunError(f"{path} is damaged: {e!r}; remove it to see the others") from e


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def lanes_of(spans: Iterable[Timed]) -> dict[int, int]:
    """Return the lane of each span, by its id, from 1: on a lane of one kind of spans each lies
    inside another one or beside it, as viewers need it.

    A span takes the lane of its parent if it lies inside it and beside those that are there.
    """
    lanes: dict[int, int] = {}
    ends: dict[int, float] = {}  # of the last child of a parent on its lane
    spans_by_id: dict[int, Timed] = {}
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[float, int]]] = {}
    count: dict[int, int] = {}
    for span in sorted(spans, key=lambda span: (span.began, -span.ended)):
        room = ROOMS.get(span.kind, RUN)
        spans_by_id[span.id] = span
        parent = spans_by_id.get(span.parent)
        if (
            parent is not None
            and ROOMS.get(parent.kind, RUN) == room
            and span.ended <= parent.ended
            and span.began >= ends.get(parent.id, 0.0)
        ):
            lanes[span.id] = lanes[parent.id]
            ends[parent.id] = span.ended
            continue
        taken, idle = busy.setdefault(room, []), free.setdefault(room, [])
        while taken and taken[0][0] <= span.began:
            heapq.heappush(idle, heapq.heappop(taken)[1])
        if idle:
            lane = heapq.heappop(idle)
        else:
            lane = count[room] = count.get(room, 0) + 1
        lanes[span.id] = lane
        heapq.heappush(taken, (span.ended, lane))
    return lanes
