"""Runs whose episodes are played in processes of their own: the same metrics, rollouts and
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quintain.cli import main

from ....lanes import mostly_slow
from ....small_run import small_recipe
from ....tools import load_tool

EVALUATED = "every = 1\ntasks = 3\ntest = { tasks = 3 }"
ENVIRONMENTS = {
    "one turn": 'use = "arithmetic"',
    "tools": 'use = "tools"\nlimits = { turns = 3 }',
}


@pytest.mark.more
@pytest.mark.parametrize("name", mostly_slow(ENVIRONMENTS, ["one turn"]))
def test_a_run_is_the_same_in_processes(name: str, small_run: Callable[..., Path]) -> None:
    folder = small_run(
        small_recipe(ENVIRONMENTS[name], steps=2, evaluation=EVALUATED), context=1024
    )
    digests = load_tool("digests")
    for run, processes in (("one", 0), ("two", 2)):
        words = ["--set", f"workers.episodes={processes}", "--name", run, "-q"]
        assert main(["train", "recipe.toml", *words]) == 0
    one, two = folder / "runs/one", folder / "runs/two"
    assert [*digests.measured(two)] == [*digests.measured(one)]
    assert [*digests.sampled(two)] == [*digests.sampled(one)]
    assert digests.weights(two) == digests.weights(one)
    assert len([*digests.sampled(one)]) == 2 * 2 * 2


def test_the_dry_run_says_the_processes(
    small_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    small_run(small_recipe(ENVIRONMENTS["one turn"]))
    words = ["train", "recipe.toml", "--dry-run", "--set", "workers.episodes=3"]
    assert main(words) == 0
    assert "3 processes of their own play the episodes" in capsys.readouterr().err

    assert main([*words, "--set", "workers.args.recycled=3"]) == 2
    assert "[workers] has no argument 'recycled'" in capsys.readouterr().err
