"""The monitor of over-optimisation: its numbers, its alert, its files, and a real run with a
resume.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain import Rollout, Service, need, reward
from quintain.cli.summary import held_out
from quintain.console import for_terminal
from quintain.errors import RecipeError, UsageError
from quintain.interfaces import (
    CheckpointSaved,
    EvaluationEnd,
    Event,
    RunEnd,
    RunStart,
    StepEnd,
    StepMeasured,
)
from quintain.interfaces.events import EVENTS
from quintain.recipe import Recipe
from quintain.run import Hooks, run_training
from quintain.store import RunFolder
from quintain.testing import rollout
from quintain_env_math.arithmetic import Problem
from quintain_offline.reward_model import OverOptimisation
from quintain_offline.reward_model.monitor import picture

from ....core.models.tiny import save_tiny, tiny_model
from .kit import in_loop, saved

GOLD = 'use("quintain_env_math.arithmetic:right_number")'


@reward
def asks(rollout: Rollout[Any, Any], *, yardstick: Any = need()) -> float:
    """A gold reward that needs a service."""
    return 3.0 if isinstance(yardstick, Service) else 0.0


ASKS = asks


def monitor(**settings: Any) -> OverOptimisation:
    return OverOptimisation(**{"gold": GOLD, "learner": None, **settings})


async def measure(
    watch: OverOptimisation, step: int, proxies: list[float | None], right: list[bool]
) -> None:
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

    assert row["proxy"] == pytest.approx(7 / 3)
    assert row["gold"] == pytest.approx(2 / 3)
    assert row["proxy_error"] == pytest.approx(
        math.sqrt(((1 - 7 / 3) ** 2 + (2 - 7 / 3) ** 2 + (4 - 7 / 3) ** 2) / 6)
    )
    assert row["rollouts"] == 3
    assert row["failed"] == 1
    assert not watch.close(1, "dev", "arithmetic")  # nothing was observed since


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
        assert "since step 10" in message
        assert "gold reward fell by 0.9" in message
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
            now, then = (
                m(input_ids=ids).logits[0, [1, 3]].double().log_softmax(-1) for m in (module, start)
            )
        expected = float((now.exp() * (now - then)).sum())
        assert watch._divergence(answer) == pytest.approx(expected, rel=1e-6)
        assert expected > 0.01
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
    missing = 'use("tests.plugins.offline.reward_model.test_monitor:ASKS")'
    with pytest.raises(RecipeError, match="settings of overoptimisation"):
        await monitor(gold=missing).__aenter__()
    async with monitor(gold=missing, services={"yardstick": {"use": "ngram"}}) as watch:
        await measure(watch, 0, [1.0], [True])
        assert watch.rows[0]["gold"] == 3


class Diary(Service):
    """A service of the gold reward that observes the run."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def quintain_on_run_start(self, event: Event) -> None:
        self.events.append(event)

    quintain_on_evaluation_end = quintain_on_step_measured = quintain_on_run_start
    quintain_on_step_end = quintain_on_checkpoint_saved = quintain_on_run_end = (
        quintain_on_run_start
    )


def test_services_of_the_gold_reward_observe_the_run(tmp_path: Path) -> None:
    """A judge that is the gold reward needs the steps as one that trains does."""
    here = "tests.plugins.offline.reward_model.test_monitor"
    events: list[Event] = [
        RunStart(run="r", folder=str(tmp_path), step=0, recipe={}),
        EvaluationEnd(step=0, environment="arithmetic", split="dev", metrics={}),
        StepMeasured(step=1, metrics={}, alerts={}),
        StepEnd(step=1, metrics={}),
        CheckpointSaved(step=1, path=str(tmp_path), best=True),
        RunEnd(folder=str(tmp_path), step=1, status="finished", error="", summary={}),
    ]

    async def observed() -> list[Event]:
        services = {"yardstick": {"use": f"{here}:Diary"}}
        async with monitor(gold=f'use("{here}:ASKS")', services=services) as watch:
            hooks = Hooks(strict=True)
            hooks.add_service(watch, "overoptimisation")
            for event in events:
                hooks.emit(event)
            diary: Diary = watch._services["yardstick"]
            return diary.events

    assert asyncio.run(observed()) == events
    assert {type(event) for event in events} == {*EVENTS}


def test_the_curve_is_drawn() -> None:
    pytest.importorskip(
        "quintain_view.viewer", reason="quintain-view is not installed (the extra `plot`)"
    )
    rows = [
        {
            "step": s,
            "proxy": s / 10,
            "proxy_error": 0.1,
            "gold": 1 - s / 20,
            "gold_error": 0.1,
            "kl": s / 5,
        }
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
reward = "learned_reward"
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
    recipe = Recipe.parse(
        RECIPE.format(steps=steps, policy=tmp_path / "policy", model=tmp_path / "rm")
    )
    opened = (
        RunFolder.open(folder) if folder.exists() else RunFolder.create(folder, recipe.to_toml())
    )
    with for_terminal(quiet=True) as screen, opened:
        run_training(recipe, opened, screen)
    return [
        json.loads(line) for line in (folder / "overoptimisation.jsonl").read_text().splitlines()
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_run_watches_its_own_evaluations_and_resumes(tmp_path: Path) -> None:
    """Rows at each evaluation and none from training samples; a run in two parts has the rows of
    one in a piece.
    """
    save_tiny(tmp_path / "policy", hidden=16, layers=1)
    saved(tmp_path / "rm", hidden=16, layers=1)
    whole = run(tmp_path / "whole", tmp_path, 2)
    first = run(tmp_path / "parts", tmp_path, 1)
    resumed = run(tmp_path / "parts", tmp_path, 2)

    assert [row["step"] for row in whole] == [0, 1, 2]
    assert all(
        row["split"] == "dev" and row["rollouts"] == 3 and row["failed"] == 0 for row in whole
    )
    assert whole[0]["kl"] == pytest.approx(0, abs=1e-9)
    assert whole[2]["kl"] > 0
    assert first == whole[:2]
    assert resumed == whole
    metrics = [
        json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    ]
    assert metrics[2]["held_out.reward"] == pytest.approx(whole[2]["proxy"])
    assert (tmp_path / "whole" / "overoptimisation.png").exists()


@pytest.mark.parametrize(
    "reward, line",
    [
        (
            "learned_reward",
            (
                "held-out reward",
                "-0.250 -> 1.500 (a scale of its own, on 20 test tasks; no success rate)",
            ),
        ),
        (
            "learned_reward - 0.1 * learned_reward",
            ("held-out reward", "-0.250 -> 1.500 (a scale of its own, on 20 test"),
        ),
        (
            'use("quintain_env_math.arithmetic:right_number")',
            ("held-out accuracy", "before -> after"),
        ),
    ],
)
def test_the_table_of_a_run_on_a_reward_model_shows_no_accuracy(
    reward: str, line: tuple[str, str]
) -> None:
    """An outcome of at least 1 is no success on the scale of a reward model; other rewards are
    shown as before.
    """
    recipe = f"[[environments]]\nuse = 'quintain-env-math/arithmetic'\nreward = {reward!r}\n"
    before, after = (
        {"accuracy": 0.5, "reward": value, "tasks": 20, "split": "test"} for value in (-0.25, 1.5)
    )
    (name, text), *_ = held_out(before, after, SimpleNamespace(recipe=lambda: recipe))  # type: ignore[arg-type]

    assert name == line[0]
    assert text.startswith(line[1])
