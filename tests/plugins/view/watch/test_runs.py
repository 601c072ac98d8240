"""Whole runs of a tiny model: their timelines, planted waits that are named, and what steers them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.errors import UsageError
from quintain.interfaces import Steering
from quintain.rollouts import Span, record_spans
from quintain.store import RunFolder, steps_in
from quintain.store.checkpoint import latest
from quintain_view.watch import recorder
from quintain_view.watch.recorder import kept_steps
from quintain_view.watch.steering import OrderReader, SteeringOrder, give, repeated
from quintain_view.watch.trace import read_trace, steps_of
from quintain_view.watch.waits import Wait, waits_of

from .kit import SLOW, train

EVALUATED = "every = 1\ntasks = 2\ntest = { tasks = 0 }"


def looking(**fields: float) -> str:
    args = ", ".join(f"{name} = {value}" for name, value in fields.items())
    return f'use = "{SLOW}:Looking"\nargs = {{ {args} }}'


def caller(**args: Any) -> str:
    given = ", ".join(f"{name} = {json.dumps(value)}" for name, value in args.items())
    return f'[engine]\nuse = "{SLOW}:Caller"\nargs = {{ {given} }}'


PHASES = (
    "update of the policy",
    "weights to the engine",
    "writing of metrics and rollouts",
    "the step, outside of its phases",
)


def first_wait(folder: Path) -> Wait:
    """What step 2 waited for most, beside its update and its files, which take as long as the
    machine is busy.
    """
    waits = waits_of(read_trace(folder, 2)).waits
    return next(wait for wait in waits if wait.label not in PHASES)


def covered(folder: Path, kind: str, **attributes: Any) -> float:
    """Seconds of step 2 in which a span of *kind* was open."""
    spans = [
        span
        for span in read_trace(folder, 2).spans
        if span.kind == kind and attributes.items() <= span.attributes.items()
    ]
    seconds, at = 0.0, 0.0
    for span in sorted(spans, key=lambda span: span.began):
        seconds += max(0.0, span.ended - max(span.began, at))
        at = max(at, span.ended)
    return seconds


def is_most_of(seconds: float, whole: float) -> bool:
    """Whether a wait is at least half of what its spans covered, and no more than that: a busy
    machine may give a part of it to something else.
    """
    return whole / 2 <= seconds <= whole + 1e-3


# ---------------------------------------------------------------- what is recorded
def test_every_part_of_a_step_is_a_span(small_run: Callable[..., Path]) -> None:
    """Episodes, turns, tool calls, grading, update, weights, evaluation and checkpoint, each inside
    the one that it belongs to.
    """
    folder = train(
        small_run,
        looking(lookup=0.0),
        tables=caller(tool="lookup") + "\n[checkpoint]\nevery = 1",
        evaluation=EVALUATED,
    )

    assert steps_of(folder) == [0, 1, 2]
    spans = read_trace(folder, 1).spans
    by_id = {span.id: span for span in spans}
    inside = Counter(
        (span.kind, by_id[span.parent].kind if span.parent else "")
        for span in spans
        if span.kind not in ("blocked", "engine waits")
    )
    assert inside == {
        ("step", ""): 1,
        ("rollouts", "step"): 1,
        ("update", "step"): 1,
        ("sync", "step"): 1,
        ("evaluation", "step"): 1,
        ("record", "step"): 1,
        ("checkpoint", "step"): 1,
        ("episode", "rollouts"): 4,
        ("episode", "evaluation"): 2,
        ("turn", "episode"): 6,
        ("tool", "episode"): 6,
        ("score", "rollouts"): 6,
        ("score", "evaluation"): 4,
        ("grade", "score"): 6,
    }
    turn = next(span for span in spans if span.kind == "turn")
    assert turn.attributes["engine"] == "caller"
    assert turn.attributes["finish"] == "stop"
    before = Counter(span.kind for span in read_trace(folder, 0).spans)
    assert before["evaluation"] == 1
    assert before["episode"] == 2
    assert not (folder / "timeline" / "live.json").exists()


@pytest.mark.slow
def test_a_switched_off_timeline_writes_nothing(
    small_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`off` records no span; a number keeps the last ones."""
    monkeypatch.setenv("QUINTAIN_TIMELINE", "off")
    folder = train(small_run)
    assert not (folder / "timeline").exists()

    monkeypatch.setenv("QUINTAIN_TIMELINE", "2")
    assert main(["train", "recipe.toml", "--name", "b", "--quiet", "--steps", "3"]) == 0
    assert steps_of(folder.parent / "b") == [2, 3]


def test_large_timelines_leave_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the oldest files go, and the newest stays whatever its size."""
    made = recorder.TimelineRecorder(tmp_path, kept=10)

    def play() -> None:
        record_spans(made)
        for step in range(1, 6):
            with Span("step", step=step):
                pass

    Context().run(play)
    size = (tmp_path / "timeline" / "step-000005.json").stat().st_size
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]
    monkeypatch.setattr(recorder, "MOST_BYTES", int(3.5 * size))
    Context().run(play)
    assert steps_of(tmp_path) == [3, 4, 5]
    monkeypatch.setattr(recorder, "MOST_BYTES", 1)
    Context().run(play)
    assert steps_of(tmp_path) == [5]


def test_the_number_of_steps_is_read() -> None:
    """Empty is the default, `all` has no limit, and anything else is refused."""
    assert [kept_steps(text) for text in ("", "all", "off", "0", "7")] == [50, None, 0, 0, 7]
    with pytest.raises(UsageError, match="expected a number of steps, all or off"):
        kept_steps("-1")


@pytest.mark.more
def test_a_run_is_the_same_with_and_without_a_timeline(
    small_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording changes no bit of the weights."""
    folder = train(small_run, words=("--set", "checkpoint.every=1"))
    monkeypatch.setenv("QUINTAIN_TIMELINE", "off")
    words = ["--set", "checkpoint.every=1", "--name", "b", "--quiet"]
    assert main(["train", "recipe.toml", *words]) == 0

    weights = [
        steps_in(place / "checkpoints")[-1][1] / "model" / "model.safetensors"
        for place in (folder, folder.parent / "b")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_queue_has_ages(tmp_path: Path) -> None:
    """A complete group waits until a batch takes it; without such batches until the step ends."""
    made = recorder.TimelineRecorder(tmp_path, kept=1)
    live = tmp_path / "timeline" / "live.json"

    def queue() -> list[int]:
        made.write_live(time.monotonic())
        return [group for group, age in json.loads(live.read_text())["queue"] if age >= 0]

    def play() -> None:
        record_spans(made)
        with Span("step", step=1):
            for group in (1, 2):
                with Span("score", step=1, group=group):
                    pass
            assert queue() == [1, 2]
        assert queue() == []
        with Span("step", step=2):
            for group in (3, 4):
                with Span("score", step=1, group=group):
                    pass
            with Span("evaluation"), Span("score", step=1, group=5):
                pass
            with Span("batch", groups=[3]):
                pass
        assert queue() == [4]

    Context().run(play)


# ---------------------------------------------------------------- a walk of a slow step
def test_a_slow_tool_is_named(
    small_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says which tool the step waited for, how long, and in which episode."""
    folder = train(small_run, looking(lookup=1.0), tables=caller(tool="lookup"))

    first = first_wait(folder)
    assert first.label == "tool lookup"
    assert is_most_of(first.seconds, covered(folder, "tool"))
    assert main(["timeline", "a"]) == 0
    line = f"{first.share:6.1%}  tool lookup  (in {first.example})"
    assert line in capsys.readouterr().out
    assert first.example.startswith("Looking/")


@pytest.mark.slow
def test_a_tool_that_blocks_the_process_is_named(small_run: Callable[..., Path]) -> None:
    """Four calls of a plain function run one after the other, and hold up the turns of all."""
    folder = train(small_run, looking(count=0.3), tables=caller(tool="count", seconds=0.02))

    first = first_wait(folder)
    assert first.label == "tool count"
    assert first.count == 4
    assert is_most_of(first.seconds, covered(folder, "tool"))


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["judged", "counted"])
def test_a_slow_grader_is_named(small_run: Callable[..., Path], reward: str) -> None:
    """A reward that waits for a judge, and one that computes."""
    seconds = {"judged": 1.0, "counted": 0.25}[reward]
    scored = f'use("{SLOW}:{reward}")(seconds={seconds})'
    environment = f"{looking()}\nreward = '{scored}'"
    folder = train(small_run, environment, tables=caller())

    first = first_wait(folder)
    assert first.label == f"grading by {reward}"
    assert is_most_of(first.seconds, covered(folder, "grade", reward=reward))


@pytest.mark.slow
def test_a_slow_replica_is_named(
    small_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The replica that samples slowly, and the one that takes new weights slowly."""
    replicas = "[{ seconds = 0.01 }, { seconds = 1.0, load = 0.3 }]"
    pool = f'[engine]\nuse = "pool"\nargs = {{ engine = "{SLOW}:Caller", slots = 1, replicas = {replicas} }}'
    folder = train(small_run, looking(), tables=pool)

    first = first_wait(folder)
    assert first.label == "sampling on replica 1"
    assert is_most_of(first.seconds, covered(folder, "replica", replica=1))
    labels = {wait.label: wait.seconds for wait in waits_of(read_trace(folder, 2)).waits}
    assert is_most_of(labels["weights to replica 1"], covered(folder, "transfer", replica=1))
    assert main(["timeline", "a", "--json"]) == 0
    resources = json.loads(capsys.readouterr().out)["resources"]
    units = {r["label"]: r["unit"] for r in resources if r["unit"] is not None}
    assert units["sampling on replica 1"] > units["sampling on replica 0"]


@pytest.mark.slow
def test_a_slow_tool_in_another_process_is_named(small_run: Callable[..., Path]) -> None:
    """Episodes in processes of their own tell the run of their tools."""
    tables = caller(tool="lookup") + "\n[workers]\nepisodes = 1"
    folder = train(small_run, looking(lookup=1.0), tables=tables)

    first = first_wait(folder)
    assert first.label == "tool lookup"
    assert is_most_of(first.seconds, covered(folder, "tool"))
    spans = read_trace(folder, 2).spans
    by_id = {span.id: span for span in spans}
    calls = [span for span in spans if span.kind == "tool"]
    assert [by_id[call.parent].kind for call in calls] == ["episode"] * 4


@pytest.mark.slow
def test_every_rank_has_its_seconds(small_run: Callable[..., Path]) -> None:
    """The update of two ranks says how long each took, and which one was last."""
    folder = train(small_run, tables='[learner]\nuse = "fsdp"\nargs = { ranks = 2 }')

    spans = [span for span in read_trace(folder, 2).spans if span.kind == "ranks"]
    assert {tuple(sorted(span.attributes["seconds"])) for span in spans} == {("0", "1")}
    labels = [wait.label for wait in waits_of(read_trace(folder, 2)).waits]
    assert any(label.startswith("ranks, step (rank ") for label in labels)


@pytest.mark.slow
def test_code_of_an_environment_is_named_behind_a_reproducible_engine(
    small_run: Callable[..., Path],
) -> None:
    """The embedded engine stands still for episodes that are elsewhere; their work is named."""
    folder = train(small_run, looking(own=1.0))

    first = first_wait(folder)
    assert first.label == "environment Looking, outside of turns and tools"
    assert first.seconds >= 0.5  # half of what is planted


def test_a_timeline_goes_to_a_file_and_a_missing_step_is_refused(
    small_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--out` copies what a viewer opens; the longest step is found."""
    folder = train(small_run)

    assert main(["timeline", "a", "--slowest", "--out", "spans.json"]) == 0
    events = json.loads(Path("spans.json").read_text())["traceEvents"]
    seconds = {s: read_trace(folder, s).whole.seconds for s in steps_of(folder)}
    slowest = max(seconds, key=lambda step: seconds[step])
    assert f"step {slowest} " in " ".join(e["name"] + " " for e in events)
    assert main(["timeline", "a", "--step", "9"]) == 2
    assert "has no timeline of step 9; it has" in capsys.readouterr().err


# ---------------------------------------------------------------- steering
def test_orders_wait_for_their_step(tmp_path: Path) -> None:
    """What concerns step 3 is asked for when step 2 is complete; a pause and its end at once."""
    steering = Steering()
    orders = [
        SteeringOrder(action="evaluate", step=3),
        SteeringOrder(action="concurrency", value=2, step=2),
    ]
    reader = OrderReader(tmp_path, steering, 0, orders)

    reader.ended(0)
    assert steering == Steering()
    reader.ended(1)
    assert steering == Steering(concurrency=2)
    give(tmp_path, SteeringOrder(action="pause"))
    (tmp_path / "steering" / "0.json").write_text("no order")
    reader.read()
    assert steering.paused is True
    assert steering.evaluate is False
    give(tmp_path, SteeringOrder(action="resume"))
    give(tmp_path, SteeringOrder(action="stop"))
    reader.read()
    reader.ended(2)
    assert steering == Steering(concurrency=2, evaluate=True, stop="quintain steer")
    assert [file.name for file in (tmp_path / "steering").iterdir()] == ["0.json"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "jump"},
        {"action": "stop", "value": 1},
        {"action": "concurrency"},
        {"action": "max_staleness", "value": 0},
        {"action": "pause", "step": -1},
    ],
)
def test_an_order_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    """Unknown actions and numbers that are missing, superfluous or too small."""
    with pytest.raises(UsageError):
        SteeringOrder(**wrong)


def test_what_was_done_becomes_orders_again() -> None:
    """Settings hold from the next step on, a resumed run replaces what it did again, and pauses are
    left out.
    """
    records = [
        {"step": 2, "steering": {"concurrency": 4}},
        {"step": 5, "steering": {"checkpoint": True}},
        {"step": 3, "steering": {"evaluate": True}},
        {"step": 4, "steering": {"paused_seconds": 3.0}},
        {"step": 6, "steering": {"stop": "quintain steer"}},
    ]

    assert repeated(records) == [
        SteeringOrder(action="concurrency", value=4, step=3),
        SteeringOrder(action="evaluate", step=3),
        SteeringOrder(action="stop", step=6),
    ]


class Steered:
    """A hook plugin that asks for things in the steps of a table."""

    def __init__(self, asked: dict[int, dict[str, Any]]) -> None:
        self._asked = asked

    def quintain_on_run_start(self, event: Any) -> None:
        self._steering = event.steering
        self._ask(event.step)

    def quintain_on_step_end(self, event: Any) -> None:
        self._ask(event.step)

    def _ask(self, step: int) -> None:
        for name, value in self._asked.get(step, {}).items():
            setattr(self._steering, name, value)


@pytest.fixture
def steered(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, Any]], None]:
    """Let the run of the test be asked for something after a step."""

    def ask(asked: dict[int, dict[str, Any]]) -> None:
        plugin = Steered(asked)
        monkeypatch.setattr(recorder, "quintain_on_step_end", plugin.quintain_on_step_end, False)
        begin = recorder.quintain_on_run_start

        def both(event: Any) -> None:
            begin(event)
            plugin.quintain_on_run_start(event)

        monkeypatch.setattr(recorder, "quintain_on_run_start", both)

    return ask


def test_a_steered_run_does_what_it_is_asked_and_notes_it(
    small_run: Callable[..., Path], steered: Callable[[dict[int, Any]], None]
) -> None:
    """It evaluates and saves beside its plan, changes its concurrency, and finishes early."""
    steered({1: {"evaluate": True, "checkpoint": True, "concurrency": 1}, 2: {"stop": "enough"}})
    folder = train(small_run, steps=5, words=("--set", "evaluation.tasks=2"))

    run = RunFolder(folder, lock=False)
    assert [(r["step"], r["steering"]) for r in run.steering()] == [
        (1, {"concurrency": 1}),
        (2, {"checkpoint": True}),
        (2, {"evaluate": True}),
        (3, {"stop": "enough"}),
    ]
    assert [m["step"] for m in run.metrics() if "held_out.accuracy" in m] == [2]
    assert [step for step, _ in steps_in(run.checkpoints)] == [2, 3]
    summary = run.summary()
    assert summary is not None
    assert summary["steps"] == 3
    assert summary["stopped"] == "enough"
    assert len(run.processes()) == 1


@pytest.mark.slow
def test_another_run_repeats_what_was_done(
    small_run: Callable[..., Path],
    steered: Callable[[dict[int, Any]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same in the same steps, with the same weights."""
    steered({1: {"evaluate": True, "concurrency": 1}, 2: {"stop": "quintain steer"}})
    folder = train(small_run, steps=5, words=("--set", "evaluation.tasks=2"))
    steered({})
    monkeypatch.setenv("QUINTAIN_STEERING", "a")
    words = ["--name", "b", "--quiet", "--set", "evaluation.tasks=2"]
    assert main(["train", "recipe.toml", *words]) == 0

    done = [RunFolder(folder.parent / n, lock=False).steering() for n in ("a", "b")]
    first, second = ([(r["step"], r["steering"]) for r in one] for one in done)
    assert first == second != []
    weights = [
        steps_in(folder.parent / n / "checkpoints")[-1][1] / "model" / "model.safetensors"
        for n in ("a", "b")
    ]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.more
def test_a_changed_setting_survives_a_resume(
    small_run: Callable[..., Path], steered: Callable[[dict[int, Any]], None]
) -> None:
    """The checkpoint has the concurrency that was set."""
    steered({1: {"concurrency": 1}})
    folder = train(small_run, steps=2)

    checkpoint = latest(RunFolder(folder, lock=False))
    assert checkpoint is not None
    assert checkpoint.state["run"]["steered"] == {"concurrency": 1}


@pytest.mark.more
def test_replicas_are_added_while_a_run_trains(
    small_run: Callable[..., Path], steered: Callable[[dict[int, Any]], None]
) -> None:
    """The second one starts, takes the weights of now and is shown."""
    steered({1: {"replicas": 2}, 2: {"replicas": 9}})
    pool = '[engine]\nuse = "pool"\nargs = { count = 1, most = 2, backoff = 0 }'
    folder = train(small_run, steps=4, tables=pool)

    run = RunFolder(folder, lock=False)
    assert [(r["step"], r["steering"]) for r in run.steering()] == [(1, {"replicas": 2})]
    states = [json.loads(line) for line in (folder / "replicas.jsonl").read_text().splitlines()]
    assert [(s["replica"], s["state"]) for s in states] == [
        (0, "healthy"),
        (1, "dead"),
        (1, "restarting"),
        (1, "stale"),
        (1, "healthy"),
    ]
    assert states[1]["why"] == "added"


def test_a_setting_that_the_schedule_lacks_is_refused(
    small_run: Callable[..., Path],
    steered: Callable[[dict[int, Any]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A synchronous run has no staleness to change; it says so and goes on."""
    steered({1: {"max_staleness": 3}})
    folder = train(small_run, steps=2)

    assert RunFolder(folder, lock=False).steering() == []
    assert "max_staleness = 3 was asked for and is not set" in capsys.readouterr().err


@pytest.mark.slow
def test_the_staleness_of_an_overlapping_run_changes(
    small_run: Callable[..., Path], steered: Callable[[dict[int, Any]], None]
) -> None:
    """Metrics have a share for each staleness that is allowed, so they show the new one."""
    steered({2: {"max_staleness": 3, "concurrency": 2}})
    schedule = '[schedule]\nuse = "areal"\nargs = { max_staleness = 1 }'
    folder = train(small_run, steps=5, tables=schedule)

    run = RunFolder(folder, lock=False)
    assert [r["steering"] for r in run.steering()] == [{"max_staleness": 3, "concurrency": 2}]
    shares = {
        m["step"]: sum(name.startswith("staleness.share.") for name in m) for m in run.metrics()
    }
    assert shares[1] == 2
    assert shares[5] == 4


@pytest.mark.more
def test_the_command_steers_a_run_that_runs(
    small_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pause holds the run until it is resumed; `stop` finishes it; the list says what was done."""
    seen: list[int] = []

    def operate() -> None:
        folder = tmp_path / "runs" / "a"
        live = folder / "timeline" / "live.json"

        def is_paused() -> bool:
            return live.exists() and '"kind": "paused"' in live.read_text()

        while not (folder / "metrics.jsonl").exists():
            time.sleep(0.02)
        give(folder, SteeringOrder(action="pause"))
        while not is_paused():
            time.sleep(0.02)
        seen.append(RunFolder(folder, lock=False).metrics()[-1]["step"])
        give(folder, SteeringOrder(action="stop"))
        give(folder, SteeringOrder(action="resume"))

    thread = threading.Thread(target=operate, daemon=True)
    thread.start()
    folder = train(small_run, looking(own=0.1), steps=400)
    thread.join()

    done = RunFolder(folder, lock=False).steering()
    assert [list(r["steering"]) for r in done] == [["paused_seconds"], ["stop"]]
    assert RunFolder(folder, lock=False).metrics()[-1]["step"] == seen[0] + 1
    capsys.readouterr()
    assert main(["steer", "a"]) == 0
    assert "stop = quintain steer" in capsys.readouterr().out
    assert main(["steer", "a", "pause"]) == 2
    assert "does not run, so nothing takes orders" in capsys.readouterr().err
