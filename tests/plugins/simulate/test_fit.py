"""Costs and episodes of a real run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quintain.recipe import Recipe, RunPlan
from quintain.store import RunFolder
from quintain_simulate import Simulation, SimulationSetup
from quintain_simulate.fit import FIRST, setup_like

from ..view.watch.kit import SLOW, train


@pytest.mark.slow
def test_the_episodes_of_a_run_are_those_that_it_trained_on(
    small_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has its own turn, though ids repeat in every step, and none is of an evaluation."""
    folder = train(
        small_run,
        tables=f'[engine]\nuse = "{SLOW}:Caller"\nargs = {{ tool = "lookup" }}',
        steps=5,
        evaluation="every = 1\nsamples = 1\ntasks = 3\ntest = { tasks = 0 }",
    )
    episodes, tables = setup_like(["a"], "runs")
    run = RunFolder(folder, lock=False)
    trained = [row["tokens"] for step in range(FIRST + 1, 6) for row in run.read_rollouts(step)]
    assert [len(episode) for episode in episodes] == [1] * 3 * 4
    assert sorted(sum(turn.tokens for turn in episode) for episode in episodes) == sorted(trained)

    # What it measured of a learner is seconds of a sampled token, whatever a data sheet would say.
    plan = RunPlan.of(Recipe.load("recipe.toml", []))
    simulation = Simulation.of(
        plan, SimulationSetup.of({"model": "0.6b"} | tables), measured=episodes
    )
    base, token = tables["learner"]["base"], tables["learner"]["token"]
    assert token > 0
    for step in simulation.run(steps=3).steps:
        assert step.updated == pytest.approx(base + token * step.trained)
