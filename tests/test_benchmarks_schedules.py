"""`studies.benchmarks.schedules` on its simulated clock: whole runs, whose waits take no time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("no_curves")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command as a module, with batches that are computed quickly."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    import studies.benchmarks.schedules as command

    monkeypatch.setattr(command, "PROMPTS", 4)
    monkeypatch.setattr(command, "TOKENS", 3)
    return command


@pytest.fixture
def simulated(benchmark: Any) -> Any:
    import studies.benchmarks.simulated as module

    return module


def test_timers_fire_in_their_order_without_waiting(simulated: Any) -> None:
    fired: list[tuple[str, float]] = []

    async def after(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        await asyncio.gather(after("late", 3600), after("early", 60), after("middle", 600))

    with simulated.simulated(simulated.Costs()):
        asyncio.run(main())

    assert [name for name, _ in fired] == ["early", "middle", "late"]
    assert [at for _, at in fired] == pytest.approx([60, 600, 3600])


def test_computation_in_a_thread_takes_its_costs_while_the_loop_runs(simulated: Any) -> None:
    """While the learner computes for 5 s the loop continues: the sleep of 3 s ends first, both
    after 5 s.
    """

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        computed = loop.run_in_executor(None, lambda: clock.charge(5.0))
        await asyncio.sleep(3)
        slept = loop.time()
        await computed
        return slept, loop.time()

    with simulated.simulated(simulated.Costs()) as clock:
        assert asyncio.run(main()) == pytest.approx((3, 5))


def test_an_error_in_a_thread_arrives(simulated: Any) -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, fail)

    with simulated.simulated(simulated.Costs()), pytest.raises(ValueError, match="no"):
        asyncio.run(main())


@pytest.mark.slow
def test_two_runs_have_equal_metrics_and_wait_leaves_nothing_out(
    benchmark: Any, simulated: Any
) -> None:
    """Calls of up to 20 s next to updates of 0.05 s: the preset leaves slow groups out, `wait`
    waits for them.
    """
    from studies.benchmarks import shapes

    def run(schedule: str) -> list[dict[str, Any]]:
        records = benchmark.train(
            shapes.folder("0.1M"), schedule, 2.0, 8, "simulated", simulated.Costs()
        )
        measured = ("seconds.record", "grading.")  # by the real clock
        return [
            {k: v for k, v in r.items() if not k.startswith(measured)}
            for r in records
            if "seconds.update" in r
        ]

    drop, again, wait = run("areal, drop"), run("areal, drop"), run("areal")

    def left_out(records: list[dict[str, Any]]) -> int:
        return sum(r["groups.abandoned"] + r.get("groups.rejected.stale", 0) for r in records)

    assert drop == again
    assert left_out(drop) > 0 == left_out(wait)
    assert len(wait) == 8
    assert {4} == {r["groups"] for r in wait}
    assert max(r["staleness.max"] for r in wait) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("stale", ["retry", "wait"])
def test_places_of_ended_episodes_start_other_groups_unless_each_group_has_its_batch(
    benchmark: Any, simulated: Any, monkeypatch: pytest.MonkeyPatch, stale: str
) -> None:
    """One episode of every second group is slow: with `retry` more groups run than their count
    would allow, never more episodes, and they start in the order of their tasks; with `wait` each
    group keeps its place.
    """
    from studies.benchmarks import shapes

    begun: list[str] = []
    running: dict[str, int] = {}
    most = {"episodes": 0, "groups": 0}

    async def rollout(self: Any, task: Any, agent: Any) -> None:
        if task.prompt not in begun:
            begun.append(task.prompt)
        running[task.prompt] = running.get(task.prompt, 0) + 1
        slow = len(begun) % 2 == 0 and running[task.prompt] == benchmark.GROUP
        most["episodes"] = max(most["episodes"], sum(running.values()))
        most["groups"] = max(most["groups"], len(running))
        agent.user(task.prompt)
        await agent.turn()
        await asyncio.sleep(8 if slow else 1)
        running[task.prompt] -= 1
        if not running[task.prompt]:
            del running[task.prompt]

    monkeypatch.setattr(benchmark.Waiting, "rollout", rollout)
    changes = f'stale = "{stale}", max_staleness = 2'
    monkeypatch.setitem(benchmark.SCHEDULES, "tried", ("areal", 2, changes))
    folder = shapes.folder("0.1M")
    records = benchmark.train(folder, "tried", 1.0, 8, "simulated", simulated.Costs())

    groups = 3 * benchmark.PROMPTS
    assert most["episodes"] == groups * benchmark.GROUP
    assert (most["groups"] > groups) == (stale == "retry")
    assert [r["groups"] for r in records if "groups" in r] == [benchmark.PROMPTS] * 8


@pytest.mark.slow
def test_slow_episodes_that_are_left_out_cost_their_own_places_only(
    benchmark: Any, simulated: Any
) -> None:
    """One call in ten takes ten times as long: a step takes about the work of its calls divided by
    the places, where a count of groups made it 1.4 times as much.
    """
    from studies.benchmarks import shapes

    folder, costs = shapes.folder("0.1M"), simulated.Costs()
    figures = benchmark.measure(folder, "areal, drop", 5.0, 24, "simulated", costs)

    assert figures["left_out"] > 0.2
    assert figures["seconds.step"] < 1.2 * figures["best"]
