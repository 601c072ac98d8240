"""Whole runs whose sampling overlaps the updates, in this process, on a tiny model."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import Interrupted, UsageError
from quintain.recipe.check import check_recipe
from quintain.recipe.tables import Recipe
from quintain.store.checkpoint import Checkpoint
from quintain.store.run_folder import RunFolder
from quintain.types.transcript import TokenSource

from ..core.models.tiny import save_tiny
from .test_run_plan import Killed, Watching, interrupt, kill, metrics, recipe, run, weights

pytestmark = pytest.mark.usefixtures("no_curves")

HERE = Path(__file__).parent
OWN = (
    "queue.",
    "idle.",
    "throughput.",
    "staleness.share",
    "staleness.mixed",
    "groups.retried",
    "groups.abandoned",
)
"""Metrics that only runs with an overlapping schedule have."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=256)


def scheduled(
    model: Path,
    schedule: Mapping[str, Any],
    plan: Mapping[str, Any] | None = None,
    kind: str = "",
    **changes: Any,
) -> Recipe:
    """A recipe of a schedule that overlaps with the arguments *schedule*, or of a synchronous one
    without any; *kind*: an environment of ``waiting.py``.
    """
    if kind:
        changes["environments"] = [
            {"use": f"{HERE}/waiting.py:{kind}", "args": changes.pop("args", {})}
        ]
    table: dict[str, Any] = {"use": "sync"}
    if schedule:
        table = {"use": "one_step_off", "args": {"max_staleness": 0, **schedule}}
    return recipe(model, plan or {}, **changes).replace({"schedule": table})


def shared(place: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if not k.startswith(OWN)} for record in metrics(place)]


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"resample": "active", "attempts": 3}, marks=pytest.mark.slow),
        pytest.param({"resample": "dynamic", "attempts": 3}, marks=pytest.mark.slow),
        {"resample": "active", "order": "hard_first", "drop_solved": 0.7},
    ],
)
def test_without_staleness_it_is_the_synchronous_run(
    model: Path, tmp_path: Path, plan: dict[str, Any]
) -> None:
    """The collector that runs ahead, the thread of the learner and the engine's own weights change
    no bit.
    """
    run(tmp_path / "sync", scheduled(model, {}, plan))
    run(tmp_path / "async", scheduled(model, {"in_flight_updates": True}, plan))

    assert any("idle.sampler" in record for record in metrics(tmp_path / "async"))
    drop = ("groups.rounds",)  # groups start one by one
    clean = [
        [{k: v for k, v in r.items() if k not in drop} for r in shared(tmp_path / n)]
        for n in ("sync", "async")
    ]
    assert clean[0] == clean[1]
    assert weights(tmp_path / "sync") == weights(tmp_path / "async")
    if not plan:
        page = HERE.parent.parent / "docs" / "health.md"
        (table,) = re.findall(
            r"^Runs with a \[schedule\].*?\n\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.M
        )
        names = {
            n
            for row in re.findall(r"^\| (`[^|]*) \|", table, re.M)
            for n in re.findall(r"`([^`]+)`", row)
        }
        written = {
            name
            for record in metrics(tmp_path / "async")
            for name in record
            if name.startswith(OWN)
        }
        # `metrics` leaves rates out; a reason for a rejection is written if there is one.
        assert written == names - {"throughput.tokens_per_second", "groups.rejected.stale"}


def tokens_behind(place: Path, steps: int) -> Counter[int]:
    """Sampled tokens of the stored rollouts of valid samples by the versions that they are behind
    their update.
    """
    behind: Counter[int] = Counter()
    folder = RunFolder(place, lock=False)
    for step in range(1, steps + 1):
        for row in folder.read_rollouts(step):
            columns = zip(row["token_versions"], row["token_sources"], strict=True)
            behind.update(
                step - 1 - version for version, source in columns if source == TokenSource.MODEL
            )
    return behind


@pytest.mark.more
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param({"max_staleness": 1}, marks=pytest.mark.slow),
        {"max_staleness": 2, "in_flight_updates": True},
        pytest.param(
            {"max_staleness": 3, "in_flight_updates": True, "recompute_kv": False},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_batch_has_an_older_token(model: Path, tmp_path: Path, schedule: dict[str, Any]) -> None:
    """Every update of a token comes at most `max_staleness` versions after its sampling; the
    metrics count the same.
    """
    place = tmp_path / "run"
    summary = run(
        place, scheduled(model, schedule, kind="TwoTurns", run__steps=8, algorithm__args={})
    )
    steps = metrics(place)[1:]
    limit = schedule["max_staleness"]

    assert summary["steps"] == 8
    sampling = summary["sampling"]
    assert {
        "idle.learner",
        "idle.sampler",
        "throughput.tokens_per_second",
        "groups.abandoned",
    } <= sampling.keys()
    assert pytest.approx(1) == sum(sampling[f"staleness.share.{k}"] for k in range(limit + 1))
    assert pytest.approx(sampling["staleness.mean"]) == sum(
        k * sampling[f"staleness.share.{k}"] for k in range(limit + 1)
    )
    # not by the learner's waits, which are next to nothing
    for step in RunFolder(place, lock=False).metrics()[1:]:
        assert step["tokens_per_second"] == step["throughput.tokens_per_second"]
    for step in steps:
        if "staleness.max" in step:
            assert 0 <= step["staleness.mean"] <= step["staleness.max"] <= limit
            assert pytest.approx(1) == sum(step[f"staleness.share.{k}"] for k in range(limit + 1))
    behind = tokens_behind(place, 8)
    rejected = sum(step.get("groups.rejected.stale", 0) for step in steps)
    assert max(behind) <= limit or rejected
    assert max(behind) > 0  # it did sample ahead


def groups_of(place: Path) -> list[int]:
    """The index of each group in the stored rollouts, step after step, once for each step that has
    it.
    """
    folder = RunFolder(place, lock=False)
    numbers = range(1, len(folder.metrics()))
    return [
        g for n in numbers for g in dict.fromkeys(row["group"] for row in folder.read_rollouts(n))
    ]


def last_state(place: Path) -> dict[str, Any]:
    return Checkpoint.open(sorted((place / "checkpoints").glob("step-*"))[-1]).state


def pending(state: Mapping[str, Any]) -> list[int]:
    queue = state["queue"]
    return [entry["index"] for part in ("groups", "prompts") for entry in queue.get(part, ())]


SCHEDULES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"max_staleness": 1}, {}, "TwoTurns"),
    ({"max_staleness": 2, "in_flight_updates": True}, {"resample": "active"}, "Failing"),
    ({"max_staleness": 3, "in_flight_updates": True, "stale": "retry"}, {}, "Failing"),
    ({"in_flight_updates": True}, {"resample": "active"}, "Failing"),
]


@pytest.mark.more
@pytest.mark.parametrize(
    "number, moments, way",
    [
        (0, [5, 17], kill),
        pytest.param(1, [29, 8], interrupt, marks=pytest.mark.slow),
        pytest.param(0, [5, 17], interrupt, marks=pytest.mark.slow),
        pytest.param(1, [29, 8], kill, marks=pytest.mark.slow),
        *(
            pytest.param(number, moments, way, marks=pytest.mark.slow)
            for number, moments in ((2, [2, 33, 14]), (3, [19, 40]), (1, [1, 2, 3, 50]))
            for way in (kill, interrupt)
        ),
    ],
)
def test_no_task_is_repeated_or_lost(
    model: Path, tmp_path: Path, number: int, moments: list[int], way: Any
) -> None:
    """A run that is killed or stopped after some rollouts, again and again: each drawn task is in
    exactly one batch, or in the queue of the last checkpoint.
    """
    schedule, plan, kind = SCHEDULES[number]
    changes: dict[str, Any] = {"evaluation__every": 0, "evaluation__test__tasks": 0}
    told = scheduled(model, schedule, plan, kind, checkpoint__every=1, **changes)
    place = tmp_path / "run"
    for attempt, moment in enumerate(moments):
        with pytest.raises((Killed, Interrupted)):
            run(place, None if attempt else told, Watching(moment, way))
        if (place / "checkpoints").exists():
            state = last_state(place)
            done = {g for g in groups_of(place) if g not in pending(state)}
            assert done | {*pending(state)} == {*range(state["curriculum"]["picked"])}
    assert run(place)["steps"] == 6

    state = last_state(place)
    groups = groups_of(place)
    abandoned = sum(record.get("groups.abandoned", 0) for record in metrics(place))
    assert len(groups) == len({*groups})
    assert not {*groups} & {*pending(state)}
    assert {*groups, *pending(state)} <= {*range(state["curriculum"]["picked"])}
    assert state["curriculum"]["picked"] == len(groups) + len(pending(state)) + abandoned


def test_a_stuck_episode_blocks_no_other(model: Path, tmp_path: Path) -> None:
    """With `stale = "drop"` an episode that never ends is abandoned once it is too old, counted, and
    the run ends without it.
    """
    changes: dict[str, Any] = {"evaluation__every": 0, "evaluation__test__tasks": 0}
    run(tmp_path / "sync", scheduled(model, {}, {}, "TwoTurns", run__steps=1, **changes))
    first = RunFolder(tmp_path / "sync", lock=False).read_rollouts(1)[0]["rollout"]
    args = {"stuck": int(json.loads(first)["task"]["prompt"].rpartition(" ")[2])}
    run(
        tmp_path / "run",
        scheduled(
            model, {"max_staleness": 1, "stale": "drop"}, {}, "TwoTurns", args=args, **changes
        ),
    )
    steps = metrics(tmp_path / "run")[1:]

    assert [step["groups"] for step in steps] == [4] * 6
    assert sum(step["groups.abandoned"] for step in steps) == 1


@pytest.mark.more
def test_what_is_sampled_again_counts_in_the_totals(
    model: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Budgets of runs are compared by these: every token that the engine sampled is in them."""
    sampled, sample = list[int](), EmbeddedEngine.sample

    async def counted(self: EmbeddedEngine, ids: Any, sampling: Any) -> Any:
        out = await sample(self, ids, sampling)
        sampled.append(len(out.ids))
        return out

    monkeypatch.setattr(EmbeddedEngine, "sample", counted)
    changes: dict[str, Any] = {"evaluation__every": 0, "evaluation__test__tasks": 0}
    # a group whose scores are equal would be rejected, and not sampled again
    changes["algorithm__args__group_filter"] = "minimum"
    told = scheduled(model, {"max_staleness": 1, "stale": "retry"}, {}, "Late", **changes)
    summary = run(tmp_path / "run", told)
    retried = sum(step["groups.retried"] for step in metrics(tmp_path / "run")[1:])

    assert retried
    assert summary["tokens"] == sum(sampled)
    assert summary["samples"] == len(sampled) / 2 == (6 * 4 + retried) * told.batch.group_size


@pytest.mark.more
def test_failures_are_masked(model: Path, tmp_path: Path) -> None:
    """A failed episode trains nothing and has no reward; groups of such episodes are rejected."""
    place = tmp_path / "run"
    changes: dict[str, Any] = {
        "evaluation__every": 0,
        "evaluation__test__tasks": 0,
        "batch__retries": 0,
    }
    run(
        place,
        scheduled(model, {"max_staleness": 1, "in_flight_updates": True}, {}, "Failing", **changes),
    )
    folder = RunFolder(place, lock=False)
    rows = [json.loads(row["rollout"]) for n in range(1, 7) for row in folder.read_rollouts(n)]

    failed = [row for row in rows if row["termination"]["kind"] == "environment_error"]
    assert failed
    assert all(row["outcome"] is None for row in failed)
    rejected = sum(
        step.get("groups.rejected.too_few_valid_samples", 0) for step in metrics(place)[1:]
    )
    assert rejected == len({row["group"] for row in failed})


@pytest.mark.parametrize(
    "args", [{"max_staleness": -1}, {"max_staleness": 1.5}, {"stale": "keep"}, {"lag": 1}]
)
def test_wrong_settings_are_refused(model: Path, args: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(args))):
        check_recipe(scheduled(model, args))
