"""The file of a timeline: what trace viewers need, and what comes back from it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import RunError, UsageError
from quintain_view.watch.trace import (
    Timed,
    lanes_of,
    path_of,
    public_form,
    read_trace,
    steps_of,
    write_trace,
)

from .kit import Spans


def small() -> Spans:
    spans = Spans()
    step = spans.add("step", 0, 3, step=1)
    rollouts = spans.add("rollouts", 0, 2, step)
    episode = spans.episode(0.1, 1.5, rollouts)
    spans.turn(0.2, 0.7, episode)
    spans.tool(0.7, 1.4, episode)
    spans.add("grade", 1.5, 1.8, None, reward="exact", rollouts=1)
    spans.add("update", 2, 3, step)
    return spans


def test_a_timeline_comes_back_from_its_file(tmp_path: Path) -> None:
    """Every span has its kind, times, parent and attributes again."""
    timeline = small().timeline()

    write_trace(path_of(tmp_path, 1), timeline)

    assert steps_of(tmp_path) == [1]
    back = read_trace(tmp_path, 1)
    assert back.run == "a"
    assert back.step == 1
    assert [(s.id, s.parent, s.kind, s.attributes) for s in back.spans] == [
        (s.id, s.parent, s.kind, s.attributes) for s in timeline.spans
    ]
    assert [s.began for s in back.spans] == pytest.approx([s.began for s in timeline.spans])
    assert back.whole.kind == "step"


def test_the_file_has_the_events_of_trace_viewers(tmp_path: Path) -> None:
    """Complete events in microseconds, with names of processes, as the Trace Event Format asks."""
    write_trace(path_of(tmp_path, 1), small().timeline())
    events = json.loads(path_of(tmp_path, 1).read_text())["traceEvents"]

    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    complete = [e for e in events if e["ph"] == "X"]
    assert names == {1: "run", 2: "episodes", 3: "grading", 4: "engine"}
    assert all(type(e[key]) is int for e in complete for key in ("ts", "dur", "pid", "tid"))
    turn = next(e for e in complete if e["cat"] == "turn")
    assert turn["name"] == "chat embedded"
    assert turn["dur"] == 500_000
    assert turn["pid"] == 2
    assert turn["args"]["gen_ai.usage.output_tokens"] == 4


def test_names_are_those_of_opentelemetry() -> None:
    """An episode is an agent that is invoked, a turn a chat, a tool call the execution of a tool."""
    found = {span.kind: public_form(span) for span in small().made}

    assert found["episode"][0] == "invoke_agent sums"
    assert found["episode"][1]["gen_ai.conversation.id"] == "sums/1/0"
    assert found["turn"][1]["gen_ai.operation.name"] == "chat"
    assert found["tool"] == (
        "execute_tool look",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "look",
            "gen_ai.tool.call.id": "c1",
            "quintain.tool.failed": False,
        },
    )
    assert found["grade"][1] == {"gen_ai.evaluation.name": "exact"}
    assert found["step"][0] == "step 1"


times = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)


@given(st.lists(times, max_size=30))
def test_spans_of_a_lane_lie_beside_or_inside_each_other(ends: list[list[int]]) -> None:
    """A viewer draws a lane as a stack, so two of its spans never overlap in part."""
    spans = Spans()
    for first, last in ends:
        around = next(
            (
                s
                for s in spans.made
                if s.kind == "episode"
                and s.began <= spans.began + first
                and s.ended >= spans.began + last
            ),
            None,
        )
        if around is None:
            spans.episode(first, last, None)
        else:
            spans.tool(first, last, around)

    by_lane: defaultdict[int, list[Timed]] = defaultdict(list)
    for span in spans.made:
        by_lane[lanes_of(spans.made)[span.id]].append(span)
    for lane in by_lane.values():
        for a in lane:
            for b in lane:
                apart = a.ended <= b.began or b.ended <= a.began
                inside = (a.began <= b.began and b.ended <= a.ended) or (
                    b.began <= a.began and a.ended <= b.ended
                )
                assert apart or inside


def test_a_step_without_a_timeline_is_refused(tmp_path: Path) -> None:
    """The message names the steps that have one, and a damaged file says what to do."""
    with pytest.raises(UsageError, match="it has none"):
        read_trace(tmp_path, 3)
    write_trace(path_of(tmp_path, 2), small().timeline(2))
    with pytest.raises(UsageError, match="it has 2 to 2"):
        read_trace(tmp_path, 3)
    path_of(tmp_path, 2).write_text('{"traceEvents": [{"ph": "X"}]}')
    with pytest.raises(RunError, match="is damaged"):
        read_trace(tmp_path, 2)
