"""The adaptive curriculum: orders, solved tasks, the difficulty filter; reproducible and
resumable.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.cli import main
from quintain.errors import NoTasksError, RunError, UsageError
from quintain.interfaces.curriculum import Pick
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.tasks import stream
from quintain.types.task import Task
from quintain_algorithms.curricula import AdaptiveCurriculum as Curriculum
from quintain_algorithms.curricula import adaptive, pool
from quintain_algorithms.curricula.pass_rates import (
    PassRate,
    count_rollouts,
    read_pass_rates,
    write_pass_rates,
)

from ....core.tasks.splits import Endless, Finite, Repeating
from ....lanes import examples


@pytest.fixture(autouse=True, scope="module")
def small_window() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "WINDOW", 64)
        patch.setattr(adaptive, "WINDOW", 64)
        patch.setattr(adaptive, "POOL", 256)
        patch.setattr(pool, "POOL", 256)
        yield


PLANS = {
    "shuffled": SamplingPlan(),
    "easy_to_hard": SamplingPlan(order="easy_to_hard"),
    "hard_first": SamplingPlan(order="hard_first"),
    "drop_solved": SamplingPlan(drop_solved=0.9),
    "level, drop": SamplingPlan(order="easy_to_hard", drop_solved=0.5),
    "failures, drop": SamplingPlan(order="hard_first", drop_solved=0.75),
}


def step(c: Curriculum, count: int, draw: Random) -> list[Pick]:
    """Picks whose tasks went somehow; easy levels better."""
    picks = c.pick(count)
    c.record(
        {
            p.index: (sum(draw.random() < 0.8 - (p.task.level or 0) / 20 for _ in range(4)), 4)
            for p in picks
        }
    )
    return picks


@pytest.mark.keeps("easy_to_hard")
@pytest.mark.parametrize("name", PLANS)
@given(st.integers(0, 40), st.integers(0, 40), st.booleans())
@examples(20)
def test_a_restored_state_picks_what_would_have_come(
    name: str, before: int, after: int, kept: bool
) -> None:
    """In every order, with or without a difficulty filter."""

    def make() -> Curriculum:
        return Curriculum(
            [Finite(size=7), Endless(), Repeating()],
            weights=[1, 2, 0.5],
            seed=3,
            plan=PLANS[name],
            horizon=90,
        )

    original, resumed = make(), make()
    if kept:
        original.keep([[t.id for t in tasks[::2]] for tasks in original.candidates()])
    draw = Random(1)
    for count in (before // 3, before - before // 3):
        step(original, count, draw)
    state = json.loads(json.dumps(original.state()))
    resumed.restore(state)
    assert resumed.state() == state
    assert resumed.filtered == kept
    drawn = draw.getstate()
    for count in (after // 2, after - after // 2):
        expected = step(original, count, draw)
        draw_again = Random()
        draw_again.setstate(drawn)
        assert step(resumed, count, draw_again) == expected
        drawn = draw_again.getstate()
    assert resumed.state() == original.state()


def test_a_state_taken_before_a_step_undoes_it() -> None:
    """What an interrupted step picked is picked again."""
    for plan in PLANS.values():
        c, other = (Curriculum([Finite(size=7)], seed=3, plan=plan) for _ in range(2))
        step(c, 9, Random(0))
        before = c.state()
        given_up = c.pick(5)
        other.restore(before)
        assert before == other.state() != c.state()
        assert given_up == other.pick(5)


def test_easy_to_hard_once_over_the_run() -> None:
    """As many tasks as the run tries are sorted together; a smaller split is gone through pass by
    pass.
    """
    c = Curriculum([Endless()], plan=SamplingPlan(order="easy_to_hard"), horizon=50)
    levels = [p.task.level for p in c.pick(50)]
    assert levels == sorted(levels)
    assert len(set(levels)) > 5
    again = [p.task.level for p in c.pick(50)]
    assert again == sorted(again)

    small = Curriculum(
        [Finite(size=12)], plan=SamplingPlan(order="easy_to_hard"), horizon=50, seed=1
    )
    first, second = small.pick(12), small.pick(12)
    for picks in (first, second):
        assert [p.task.level for p in picks] == sorted(p.task.level or 0 for p in picks)
        assert len({p.task.id for p in picks}) == 12
    assert [p.task for p in first] != [p.task for p in second]  # equal levels are shuffled


def test_no_levels_to_sort_by() -> None:
    """The error names environment and fix."""

    class Flat(Finite):
        def tasks(self, split: str) -> Iterable[Task]:
            return [Task(prompt="?")]

    with pytest.raises(
        UsageError, match=r"environment 'mine' has no level; give its tasks a `level`"
    ):
        Curriculum([Flat()], names=["mine"], plan=SamplingPlan(order="easy_to_hard")).pick(1)


def test_failures_are_drawn_in_proportion_to_how_often_they_fail() -> None:
    """Task i succeeds i times in 4; what was never tried counts as always failed."""
    c = Curriculum([Finite(size=5)], plan=SamplingPlan(order="hard_first"), seed=5)
    wins = {f"f{i}": i for i in range(5)}
    counts: Counter[str] = Counter()
    for _ in range(4000):
        (pick,) = c.pick(1)
        counts[str(pick.task.prompt)] += 1
        c.record({pick.index: (wins[str(pick.task.prompt)], 4)})
    assert counts["f4"] == 1  # solved always, so once is enough
    for i in range(4):
        share = (4 - i) / 10
        assert abs(counts[f"f{i}"] / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5


def test_what_is_under_way_is_drawn_again_only_where_nothing_else_is_left() -> None:
    """A step does not try one task twice, unless it tries more tasks than there are."""
    c = Curriculum([Finite(size=6)], plan=SamplingPlan(order="hard_first"))
    assert len({p.task.id for p in c.pick(6)}) == 6
    assert {p.task.id for p in c.pick(1)} < {t.id for t in Finite(size=6).tasks("train")}
    c.record(dict.fromkeys(range(7), (4, 4)))
    assert len({p.task.id for p in c.pick(6)}) == 6  # all are solved: evenly drawn, not stuck


def test_the_window_of_failures_moves_over_a_long_split() -> None:
    """As many draws as a window has tasks, then the next window: the whole split comes up."""
    c = Curriculum([Finite(size=600)], plan=SamplingPlan(order="hard_first"))
    seen = [{p.task.id for p in c.pick(n)} for n in (256, 256, 88)]
    assert [len(s) for s in seen] == [256, 256, 88]
    assert len(set.union(*seen)) == 600


@pytest.mark.parametrize("order", ["shuffled", "easy_to_hard", "hard_first"])
def test_dropped_tasks_are_not_drawn_until_all_are(order: Any) -> None:
    """Tasks that reached the rate are left alone; once all did, they come back, and it is told."""
    c = Curriculum(
        [Finite(size=6)],
        names=["mine"],
        plan=SamplingPlan(order=order, drop_solved=0.75),
        horizon=600,
    )
    easy = {t.id for t in list(Finite(size=6).tasks("train"))[:4]}

    def go(count: int, hard: int) -> list[str]:
        picks = [c.pick(1)[0] for _ in range(count)]
        c.record({p.index: (3, 4) if p.task.id in easy else (hard, 4) for p in picks})
        return [p.task.id for p in picks]

    go(24, hard=2)
    assert c.metrics() == {"curriculum.dropped": 4}
    assert easy.isdisjoint(go(40, hard=2))
    assert c.notices() == []
    go(400, hard=4)  # their rate over the run rises past 0.75
    assert c.metrics() == {"curriculum.dropped": 6}
    assert len(set(go(24, hard=0))) == 6
    (notice,) = c.notices()
    assert "all tasks of 'mine' in reach are dropped: they come back" in notice
    assert c.metrics() == {"curriculum.dropped": 4}
    assert c.notices() == []


def test_an_endless_split_that_repeats_itself_does_not_hang_when_all_is_dropped() -> None:
    """After very many dropped tasks in a row they come back."""
    c = Curriculum([Repeating()], plan=SamplingPlan(drop_solved=1.0))
    c.pick(9)
    c.record(dict.fromkeys(range(9), (1, 1)))
    assert c.metrics()["curriculum.dropped"] == 3
    assert c.pick(1)
    assert len(c.notices()) == 1


def test_failed_groups_say_nothing_about_a_task() -> None:
    """Without a valid sample there is no success rate."""
    c = Curriculum([Finite(size=3)], plan=SamplingPlan(drop_solved=0.5))
    c.pick(3)
    c.record({0: (0, 0), 1: (1, 1)})
    assert c.metrics() == {"curriculum.dropped": 1}


def test_a_difficulty_filter_leaves_only_what_it_keeps() -> None:
    """Candidates are the first of the shuffled split, as many as the run expects to try; the kept
    come pass by pass.
    """
    c = Curriculum([Finite(size=40), Endless()], weights=[1, 3], horizon=40)
    some, many = c.candidates()
    assert len(some) == 10
    assert len(many) == 30
    assert c.candidates() == [some, many]
    c.keep([[t.id for t in some[:3]], [t.id for t in many[:5]]])
    picks = c.pick(80)
    assert {t.id for t in some[:3]} == {p.task.id for p in picks if p.environment == 0}
    assert {t.id for t in many[:5]} == {p.task.id for p in picks if p.environment == 1}
    whole = Curriculum([Finite(size=7), Repeating()], horizon=10_000)
    assert [len(tasks) for tasks in whole.candidates()] == [7, 3]


def test_kept_tasks_that_are_gone_are_noticed() -> None:
    """A checkpoint whose tasks are not there any more cannot be resumed."""
    c = Curriculum([Finite(size=7)], names=["mine"])
    c.keep([[t.id for t in c.candidates()[0][:2]]])
    with pytest.raises(
        RunError, match="1 of the 2 tasks of 'mine' that the difficulty filter kept are missing"
    ):
        Curriculum([Finite(size=6)], names=["mine"]).restore(
            {**c.state(), "kept": [[Task(prompt="f0", level=0).id, Task(prompt="gone").id]]}
        )


def rate_file(folder: Path, tasks: Sequence[Task]) -> Path:
    """A file of pass rates in which the nth task was solved n times of 8, in two lines each."""
    rates = [
        PassRate(
            task=task.id,
            right=min(n, 8) // 2 if half else min(n, 8) - min(n, 8) // 2,
            tried=4,
            level=task.level,
        )
        for n, task in enumerate(tasks)
        for half in (True, False)
    ]
    path = folder / "rates.jsonl"
    path.write_bytes(write_pass_rates(rates))
    return path


class FakeRun:
    """What the filter asks of a run besides the curriculum."""

    def __init__(self, *names: str) -> None:
        self.notes: list[str] = []
        self.screen = SimpleNamespace(note=self.notes.append)
        self.plan = SimpleNamespace(tasks=SimpleNamespace(labels=names))


def test_a_file_of_pass_rates_filters_tasks_and_survives_a_checkpoint(tmp_path: Path) -> None:
    """Tasks out of range, and those without a rate, are never drawn; a resumed run does not need
    the file.
    """
    environment = Finite(size=12)
    tasks = list(environment.tasks("train"))
    plan = SamplingPlan(
        difficulty_file=str(rate_file(tmp_path, tasks[:10])), difficulty_range=(0.25, 0.75)
    )
    c, run = Curriculum([environment], seed=3, plan=plan), FakeRun("mine")
    assert asyncio.run(c.prepare(run)) == {}
    assert "5 of 10 tasks of 'mine' have a success rate from 0.25 to 0.75" in run.notes[0]
    expected = {task.id for task in tasks[2:7]}
    assert expected == {p.task.id for p in c.pick(20)}
    state = json.loads(json.dumps(c.state()))
    following = [p.task.id for p in c.pick(20)]
    Path(plan.difficulty_file).unlink()
    resumed = Curriculum([environment], seed=3, plan=plan)
    resumed.restore(state)
    assert following == [p.task.id for p in resumed.pick(20)]
    assert asyncio.run(resumed.prepare(run)) == {}  # asked again, it keeps what it has


def test_orders_begin_with_the_pass_rates(tmp_path: Path) -> None:
    """From easy to hard is by rate, whatever the levels; by failures, the never solved are drawn
    most.
    """
    environment = Finite(size=9)
    tasks = list(environment.tasks("train"))
    path = str(rate_file(tmp_path, tasks))
    easy = Curriculum(
        [environment], plan=SamplingPlan(difficulty_file=path, order="easy_to_hard"), horizon=9
    )
    asyncio.run(easy.prepare(FakeRun("mine")))
    assert [task.id for task in reversed(tasks)] == [p.task.id for p in easy.pick(9)]

    counts: Counter[str] = Counter()
    for seed in range(300):
        hard = Curriculum(
            [environment], plan=SamplingPlan(difficulty_file=path, order="hard_first"), seed=seed
        )
        asyncio.run(hard.prepare(FakeRun("mine")))
        counts[hard.pick(1)[0].task.id] += 1
    assert counts[tasks[8].id] == 0
    assert counts[tasks[0].id] > 2 * counts[tasks[6].id] > 0


def test_pass_rates_are_counted_from_rollouts(tmp_path: Path) -> None:
    """From JSON lines and Parquet of an evaluation alike; failed rollouts do not count, lines of
    one task add up.
    """
    for file in ("a.jsonl", "b.parquet"):
        command = [
            "eval",
            "arithmetic",
            "--engine",
            "@oracle",
            "--split",
            "train",
            "--tasks",
            "5",
            "--samples",
            "4",
        ]
        assert main([*command, "--out", str(tmp_path / file)]) == 0
    one, other = (count_rollouts([tmp_path / file]) for file in ("a.jsonl", "b.parquet"))
    assert one == other
    assert [(rate.right, rate.tried) for rate in one.values()] == [(4, 4)] * 5
    both = count_rollouts([tmp_path / "a.jsonl", tmp_path / "b.parquet"])
    assert {8} == {rate.tried for rate in both.values()}
    (tmp_path / "rates.jsonl").write_bytes(write_pass_rates(both.values()))
    assert both == read_pass_rates(tmp_path / "rates.jsonl")


@pytest.mark.more
def test_the_command_writes_what_the_plan_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pass-rates` says how many tasks are never and always solved, and its file is a valid
    plan.
    """
    for control in ("oracle", "nop"):
        out = str(tmp_path / f"{control}.jsonl")
        main(
            [
                "eval",
                "arithmetic",
                "--engine",
                f"@{control}",
                "--split",
                "train",
                "--tasks",
                "4",
                "--out",
                out,
            ]
        )
    capsys.readouterr()
    rollouts = [str(tmp_path / f"{control}.jsonl") for control in ("oracle", "nop")]
    assert main(["pass-rates", *rollouts, "--out", str(tmp_path / "rates.jsonl"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["all"]
    assert summary["tasks"] == 4
    assert summary["samples"] == 8
    assert summary["pass@1"] == 0.5
    assert summary["solved once"] == 1.0
    assert summary["by pass rate"]["33-66 %"] == 4
    assert main(["pass-rates", rollouts[1]]) == 0
    assert "4 never" in capsys.readouterr().out
    plan = f'algorithm.args.plan={{difficulty_file="{tmp_path}/rates.jsonl"}}'
    assert main(["train", "--set", plan, "--dry-run"]) == 0
    assert "difficulty_file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no pass rates"),
        ("{}\n", ":1: no pass rate"),
        ('{"task": "a", "right": 3, "tried": 2}\n', "right and tried do not fit"),
        ("nonsense\n", ":1: not JSON"),
    ],
)
def test_a_file_that_has_no_pass_rates_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Before the run; the error has the line and the command that writes one."""
    path = tmp_path / "rates.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        Curriculum.check(Task(prompt="?"), "mine", SamplingPlan(difficulty_file=str(path)))
    assert "quintain pass-rates ROLLOUTS" in str(caught.value)
    with pytest.raises(UsageError, match="cannot read"):
        read_pass_rates(tmp_path / "missing.jsonl")


def test_an_audit_leaves_out_tasks_that_are_not_sound(tmp_path: Path) -> None:
    """The last line of a task counts, and pass rates in the same file filter what is left. A task
    without a known solution stays.
    """
    tasks = list(Finite(size=5).tasks("train"))
    lines = [{"task": task.id, "sound": n != 1, "defects": {}} for n, task in enumerate(tasks)]
    lines += [{"task": tasks[0].id, "sound": False}, {"task": tasks[1].id, "sound": True}]
    lines += [{"task": tasks[2].id, "sound": None}, {"task": tasks[3].id, "right": 4, "tried": 4}]
    file = tmp_path / "audit.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def drawn(**plan: Any) -> set[str]:
        plan = {"difficulty_file": str(file), **plan}
        c = Curriculum([Finite(size=5)], names=["mine"], plan=SamplingPlan(**plan))
        asyncio.run(c.prepare(FakeRun("mine")))
        return {pick.task.id for pick in c.pick(12)}

    assert drawn() == {tasks[n].id for n in (1, 2, 3, 4)}
    assert drawn(difficulty_range=(0.0, 0.9)) == {tasks[n].id for n in (1, 2, 4)}
    assert drawn(order="hard_first") == {tasks[n].id for n in (1, 2, 3, 4)}
    file.write_text(json.dumps(lines[1]) + "\n")
    with pytest.raises(UsageError, match="finds a fault in each of its tasks"):
        read_pass_rates(file)


def test_rates_of_other_tasks_are_refused(tmp_path: Path) -> None:
    """The error says which split to measure."""
    plan = SamplingPlan(difficulty_file=str(rate_file(tmp_path, [Task(prompt="another")])))
    c = Curriculum([Finite(size=3)], names=["mine"], plan=plan)
    with pytest.raises(NoTasksError, match="quintain eval mine --split train"):
        asyncio.run(c.prepare(FakeRun("mine")))
