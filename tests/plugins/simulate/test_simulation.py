"""The simulated loop: closed forms, staleness, conservation, monotony, seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.recipe import Recipe, RunPlan
from quintain_simulate import Outcome, Simulation, SimulationSetup
from quintain_simulate.episodes import EpisodeStep
from quintain_simulate.simulation import StepRecord

RECIPE = """
run.steps = 10
model.name = "none"
algorithm.use = "dr_grpo"
sampling.max_tokens = 4096
batch = { prompts = 8, group_size = 4 }
[[environments]]
use = "quintain-env-math/arithmetic"
"""

COSTS = {
    "engine": {"overhead": 0.01, "slots": 64},
    "learner": {"base": 2.0, "transfer": 0.5},
    "episodes": {"prompt": 100, "reply": 500},
}


def simulated(
    schedule: str = "sync",
    steps: int = 10,
    recipe: str = "",
    measured: Sequence[Sequence[EpisodeStep]] = (),
    **tables: dict[str, Any],
) -> Outcome:
    """Return the outcome of a run whose setup is `COSTS` with *tables*."""
    text = RECIPE.replace(
        "[[environments]]", f'schedule.use = "{schedule}"\n{recipe}\n[[environments]]'
    )
    table = {name: COSTS.get(name, {}) | tables.get(name, {}) for name in COSTS | tables}
    plan, setup = RunPlan.of(Recipe.parse(text)), SimulationSetup.of(table)
    return Simulation.of(plan, setup, measured=measured).run(steps=steps)


def test_a_synchronous_step_with_fixed_lengths_is_exact() -> None:
    """500 steps of 10 ms, an update of 2 s and a transfer of 0.5 s; 32 rollouts of 500 tokens."""
    outcome = simulated()
    assert outcome.step_seconds == pytest.approx(5.0 + 2.0 + 0.5)
    assert outcome.tokens_per_second == pytest.approx(32 * 500 / 7.5)
    assert outcome.learner_idle == pytest.approx(1 - 2.0 / 7.5)
    assert outcome.staleness == {0: 1.0}


def test_replies_of_a_run_are_cut_where_the_recipe_cuts_them() -> None:
    """Two turns of 5,000 tokens, of which a turn may have 4,096."""
    outcome = simulated(measured=[[EpisodeStep(0, 5000, 0.0), EpisodeStep(10, 5000, 0.0)]])
    assert outcome.tokens_per_second * outcome.step_seconds == pytest.approx(32 * 2 * 4096)


def test_a_tool_that_waits_makes_a_synchronous_step_as_long() -> None:
    """Three turns with a wait of 20 s after each."""
    episodes = {"prompt": 0, "reply": 100, "turns": 3, "added": 0, "wait": 20}
    outcome = simulated(episodes=episodes)
    assert outcome.step_seconds == pytest.approx(3 * (1.0 + 20.0) + 2.5)


def test_the_slower_of_engine_and_learner_sets_the_pace() -> None:
    """With a schedule that overlaps, a step takes the longer part: the update and its transfer."""
    slow = simulated("areal", learner={"base": 30.0})
    assert slow.step_seconds == pytest.approx(30.5, rel=0.01)
    assert slow.learner_idle == pytest.approx(0.5 / 30.5, abs=0.01)
    # 64 slots of 500 tokens in 5 s: two batches in the time of a generation
    fast = simulated("areal", steps=40, learner={"base": 0.1, "transfer": 0.0})
    assert fast.step_seconds == pytest.approx(2.5, rel=0.05)


@pytest.mark.more
@pytest.mark.parametrize(
    ("schedule", "bound"), [("sync", 0), ("one_step_off", 1), ("areal", 4), ("pipeline", 8)]
)
def test_no_token_is_older_than_the_schedule_allows(schedule: str, bound: int) -> None:
    """Whatever the lengths, waits and failures."""
    outcome = simulated(
        schedule,
        steps=20,
        episodes={"reply": "lognormal:300,1", "wait": "exponential:5", "turns": "uniform:1,3"},
        cluster={"engines": 3},
        failures={"hours": 0.05, "restart": 20},
    )
    assert outcome.staleness.keys() == set(range(bound + 1))  # the schedule needs all of it
    assert sum(outcome.staleness.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("schedule", ["sync", "one_step_off", "areal"])
def test_every_sampled_token_is_in_one_rollout(schedule: str) -> None:
    """What the engines sampled is what the steps have, what was left out, and what still runs."""
    outcome = simulated(schedule, steps=12, episodes={"reply": "lognormal:300,1"})
    in_steps = sum(step.tokens + step.tokens_lost for step in outcome.counted)
    ahead = {"sync": 0, "one_step_off": 1, "areal": 4}[schedule]
    assert all(step.tokens == step.trained for step in outcome.steps)
    # The queue before the first and after the last step that counts differ by less than its size.
    most = (ahead + 1) * max(step.tokens for step in outcome.steps)
    assert abs(outcome.sampled - in_steps) <= (0 if schedule == "sync" else most)


@pytest.mark.more
def test_more_engines_are_never_slower_and_equal_ones_give_equal_figures() -> None:
    """Throughput grows with engines up to the learner; a pool and one engine of many agree."""
    lengths = {"reply": "lognormal:800,0.7", "prompt": 200}
    engine = {"sequence": 0.002, "prefill": 1e-4}
    speeds = [
        simulated(
            "areal", cluster={"engines": n}, episodes=lengths, engine=engine
        ).tokens_per_second
        for n in (1, 2, 4)
    ]
    assert speeds == sorted(speeds)
    pool, one = (
        simulated(
            "one_step_off",
            cluster={"engines": 4, "replicas": replicas},
            episodes=lengths,
            engine=engine,
        )
        for replicas in (4, 1)
    )
    assert pool.tokens_per_second == pytest.approx(one.tokens_per_second, rel=0.02)


def test_two_runs_of_a_seed_are_equal_and_of_two_seeds_differ() -> None:
    """Also with failures and waits."""
    tables: dict[str, Any] = {
        "episodes": {"reply": "lognormal:300,1", "wait": "exponential:5"},
        "cluster": {"engines": 2},
        "failures": {"hours": 0.1},
    }

    def figures(recipe: str = "") -> dict[str, Any]:
        found = simulated("areal", recipe=recipe, **tables).figures()
        del found["cpu_seconds"]
        return found

    assert figures() == figures()
    assert figures() != figures("run.seed = 7")


def test_lost_episodes_are_retried_and_left_out() -> None:
    """A share of lost rollouts that survives one retry is the square of it."""
    outcome = simulated(steps=60, episodes={"lost": 0.3})
    assert outcome.lost == pytest.approx(0.09, abs=0.03)
    assert all(step.trained < step.rollouts * 500 for step in outcome.steps if step.lost)


def test_lost_rollouts_are_a_share_of_all() -> None:
    """One of four in each of two steps, after one step that does not count."""
    step = StepRecord(
        waited=1.0, updated=1.0, synced=1.0, rollouts=4, tokens=40, trained=30, lost=1, dropped=0,
        tokens_lost=0, ages=Counter({0: 30}),
    )  # fmt: skip
    outcome = Outcome(
        steps=(step,) * 3, warm=1, seconds=9.0, busy=0.5, batch=2.0, sampled=120, preempted=0,
        failed=0,
    )  # fmt: skip
    assert outcome.lost == 0.25
    assert outcome.figures()["lost"] == 0.25


def test_shared_gpus_and_an_overlapping_schedule_are_refused() -> None:
    """Engines and learner cannot take turns and run at once."""
    with pytest.raises(UsageError, match="cluster.shared"):
        simulated("areal", cluster={"shared": True})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"cluster": {"gpus": 3}}, "cluster.gpus"),
        ({"episodes": {"reply": "normal:3"}}, "no distribution"),
        ({"model": "9000b"}, "no model of size"),
        ({"model": "8b", "cluster": {"gpu": "h1000"}}, "no GPU"),
        ({"model": "70b", "cluster": {"gpu": "h100"}}, "raise cluster.gpus_per_engine"),
    ],
)
def test_a_setup_that_cannot_be_simulated_says_what_to_change(
    table: dict[str, Any], message: str
) -> None:
    """Unknown keys, forms, models and GPUs, and weights that do not fit."""
    with pytest.raises(UsageError, match=message):
        Simulation.of(RunPlan.of(Recipe.parse(RECIPE)), SimulationSetup.of(table))
