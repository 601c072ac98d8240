"""The monitor of over-optimisation: its numbers, its alert, its files, and a real run with a resume."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain import Rollout, Service, need, reward
from quintain.errors import RecipeError, UsageError
from quintain.testing import rollout
from quintain.training import Recipe, RunFolder, for_terminal, run_training
from quintain_env_math.arithmetic import Problem
from quintain_reward_model import OverOptimisation
from quintain_reward_model.monitor import picture, rank_correlation

from ..core.models import save_tiny, tiny_model
from .reward_model_kit import in_loop, saved

GOLD = 'use("quintain_env_math.arithmetic:right_number")'


@reward
def asks(rollout: Rollout[Any, Any], *, yardstick: Any = need()) -> float:
    """A gold reward that needs a service."""
    return 3.0 if isinstance(yardstick, Service) else 0.0


ASKS = asks


def monitor(**settings: Any) -> OverOptimisation:
    return OverOptimisation(**{"gold": GOLD, "learner": None, **settings})


async def measure(watch: OverOptimisation, step: int, proxies: list[float | None], right: list[bool]) -> None:
    """One evaluation of a task per proxy."""
    group = []
    for number, correct in enumerate(right):
        task = Problem(prompt=f"{number}+0=?", answer=str(number), a=number, b=0, operation="+")
        group.append(rollout(task, f"#### {number if correct else number + 1}"))
    await watch.observe(group, proxies)
    assert watch.close(step, "dev", "arithmetic")


@in_loop
async def test_a_row_has_the_means_of_both_rewards() -> None:
    async with monitor() as watch:
        await measure(watch, 0, [1.0, 2.0, None, 4.0], [True, False, True, True])
        (row,) = watch.rows

    assert row["proxy"] == pytest.approx(7 / 3) and row["gold"] == pytest.approx(2 / 3)
    assert row["proxy_error"] == pytest.approx(math.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 6))
    assert (row["rollouts"], row["failed"]) == (3, 1)
    assert not watch.close(1, "dev", "arithmetic")  # nothing was observed since


def test_rank_correlation_is_spearmans_with_mean_ranks() -> None:
    """1 - 6 sum d^2 / (n (n^2 - 1)) without ties; with ties Pearson's correlation of mean ranks."""
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert rank_correlation([1, 2, 3], [0, 0, 1]) == pytest.approx(1.5 / math.sqrt(2 * 1.5))
    assert rank_correlation([1, 2], [5, 5]) is None


@in_loop
async def test_the_alert_needs_a_rising_proxy_and_a_falling_gold_reward() -> None:
    right = [True] * 8 + [False] * 2
    async with monitor() as watch:
        await measure(watch, 0, [float(n % 3) for n in range(10)], right)
        assert watch.alert() == ""
        await measure(watch, 10, [n % 3 + 1.0 for n in range(10)], [True] * 9 + [False])
        assert watch.alert() == ""  # both rise
        await measure(watch, 20, [n % 3 + 0.5 for n in range(10)], [False] * 10)
        assert watch.alert() == ""  # both fall
        await measure(watch, 30, [n % 3 + 2.0 + 0.1 * (n % 2) for n in range(10)], [False] * 10)
        message = watch.alert()
        assert "since step 10" in message and "gold reward fell by 0.9" in message
        await measure(watch, 40, [n % 3 + 3.0 for n in range(10)], [True] * 8 + [False] * 2)
        assert watch.alert() == ""  # one task of ten is noise


@in_loop
async def test_the_divergence_is_that_of_the_whole_distributions() -> None:
    """KL(policy || start) summed over sampled tokens, against a plain computation in float64."""
    module = tiny_model(seed=0)
    learner = SimpleNamespace(module=module)
    sequence = SimpleNamespace(ids=(1, 2, 3, 4, 5), mask=(False, False, True, False, True))
    answer: Any = SimpleNamespace(transcripts={"": SimpleNamespace(sequences=lambda: [sequence])})
    async with monitor(kl=True, learner=learner) as watch:
        start = copy.deepcopy(module)
        assert watch._divergence(answer) == 0
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.1)
        ids = torch.tensor([sequence.ids])
        with torch.no_grad():
            now, then = (m(input_ids=ids).logits[0, [1, 3]].double().log_softmax(-1) for m in (module, start))
        expected = float((now.exp() * (now - then)).sum())
        assert watch._divergence(answer) == pytest.approx(expected, rel=1e-6) and expected > 0.01
        state = watch.state()
    async with monitor(kl=True, learner=learner) as resumed:
        assert resumed._divergence(answer) == 0
        resumed.restore(state)
        assert resumed._divergence(answer) == pytest.approx(expected, rel=1e-6)


@in_loop
async def test_settings_of_the_monitor_are_checked() -> None:
    with pytest.raises(UsageError, match="unknown reward"):
        monitor(gold="right_numbr_")
    with pytest.raises(UsageError, match="significance"):
        monitor(significance=-1)
    missing = 'use("tests.plugins.test_reward_model_monitor:ASKS")'
    with pytest.raises(RecipeError, match="settings of overoptimisation"):
        await monitor(gold=missing).__aenter__()
    async with monitor(gold=missing, services={"yardstick": {"use": "ngram"}}) as watch:
        await measure(watch, 0, [1.0], [True])
        assert watch.rows[0]["gold"] == 3


def test_the_curve_is_drawn() -> None:
    pytest.importorskip("quintain_viewer", reason="quintain-viewer is not installed (the extra `plot`)")
    rows = [
        {"step": s, "proxy": s / 10, "proxy_error": 0.1, "gold": 1 - s / 20, "gold_error": 0.1, "kl": s / 5}
        for s in (0, 10, 20)
    ]
    assert picture(rows, "gold").startswith(b"\x89PNG")


RECIPE = """
[run]
name = "watched"
steps = {steps}
[model]
name = "{policy}"
[[environments]]
use = "quintain-env-math/arithmetic"
args = {{ levels = [1] }}
reward = "reward_model"
[services.reward_model]
use = "reward_model"
args = {{ model = "{model}", device = "cpu" }}
[services.overoptimisation]
use = "overoptimisation"
args = {{ gold = 'use("quintain_env_math.arithmetic:right_number")', kl = true }}
[sampling]
max_tokens = 4
[batch]
prompts = 2
group_size = 2
[learner]
lr = 1e-3
[evaluation]
every = 1
tasks = 3
temperature = 1.0
test = {{ tasks = 0 }}
[checkpoint]
every = 1
"""


def run(folder: Path, tmp_path: Path, steps: int) -> list[dict[str, Any]]:
    recipe = Recipe.parse(RECIPE.format(steps=steps, policy=tmp_path / "policy", model=tmp_path / "rm"))
    opened = RunFolder.open(folder) if folder.exists() else RunFolder.create(folder, recipe.to_toml())
    with for_terminal(quiet=True) as screen, opened:
        run_training(recipe, opened, screen)
    return [json.loads(line) for line in (folder / "overoptimisation.jsonl").read_text().splitlines()]


def test_a_run_watches_its_own_evaluations_and_resumes(tmp_path: Path) -> None:
    """Rows at each evaluation and none from training samples; a run in two parts has the rows of one in a piece."""
    save_tiny(tmp_path / "policy", hidden=16, layers=1)
    saved(tmp_path / "rm", hidden=16, layers=1)
    whole = run(tmp_path / "whole", tmp_path, 2)
    first = run(tmp_path / "parts", tmp_path, 1)
    resumed = run(tmp_path / "parts", tmp_path, 2)

    assert [row["step"] for row in whole] == [0, 1, 2]
    assert all(row["split"] == "dev" and row["rollouts"] == 3 and row["failed"] == 0 for row in whole)
    assert whole[0]["kl"] == pytest.approx(0, abs=1e-9) and whole[2]["kl"] > 0
    assert first == whole[:2] and resumed == whole
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[2]["held_out.reward"] == pytest.approx(whole[2]["proxy"])
    assert (tmp_path / "whole" / "overoptimisation.png").exists()
