"""A run that writes every metric there is: two environments with several turns, shaping, failures
and rejected groups; an algorithm whose pieces all tell something of themselves.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintain import Environment, Limits, Rollout, Task, advantage, objective, reward
from quintain.console.screen import Screen
from quintain.interfaces.algorithm import KL
from quintain.interfaces.pieces import optimizer_step
from quintain.interfaces.sampling_plan import SamplingPlan
from quintain.learning import ALGORITHMS, LossInputs
from quintain.learning.optimizer_step import OptimizerStep
from quintain.learning.pieces.advantages import Step
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import Record, RunFolder
from quintain.types.sampling import ThinkingBudget

from ..learning.learns import tiny_folder


@reward(range=(0, 1))
def even(rollout: Rollout[Any, Any]) -> float:
    return float(sum(map(ord, rollout.reply)) % 2 == 0)


@reward(range=(0, 1))
def early(rollout: Rollout[Any, Any]) -> float:
    return float(rollout.reply[:1] < "a")


@reward(range=(0, 1))
def as_asked(rollout: Rollout[Any, Any]) -> float:
    return float(sum(map(ord, rollout.reply)) % 2 == int(rollout.task.answer))


class Talk(Environment[Task, str]):
    """Two turns; now and then it breaks."""

    reward = 0.5 * even + 0.5 * early
    shaping = 0.1 * early
    limits = Limits(turns=2)

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}") for i in range(1000))

    async def rollout(self, task: Task, agent: Any) -> str:
        agent.user(task.prompt)
        agent.metric(luck=agent.rng.random())
        if agent.rng.random() < 0.2:
            raise RuntimeError("broken")
        async for turn in agent.turns():
            agent.user(turn.reply[:1] or "?")
        return "done"


class Word(Environment[Task, str]):
    """One turn; even or odd, as the task asks. Who always says the same is right about half of the
    tasks.
    """

    reward = as_asked
    limits = Limits(turns=1)

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer=str(i % 2)) for i in range(1000))


@advantage(name="everything_advantage")
def telling_advantage(step: Step) -> tuple[list[float], dict[str, float]]:
    return [reward - 0.5 for reward in step.rewards], {
        "shift": 0.5,
        "critic.explained_variance": 0.0,
        "critic.loss": 1.0,
    }


@objective(name="everything_objective")
def telling_objective(t: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = t.ratio()
    told = {"clip.low": ratio < 0.8, "clip.high": ratio > 1.2, "log_ratio": t.log_ratio()}
    return -ratio * t.advantage, told


@optimizer_step(name="everything_update")
def telling_update(step: OptimizerStep) -> dict[str, float]:
    """Plain gradient descent."""
    loss = step.backward()
    norms = [parameter.grad.norm() for parameter in step.parameters if parameter.grad is not None]
    with torch.no_grad():
        for parameter in step.parameters:
            parameter -= 1e-2 * parameter.grad
    return {
        "loss": loss,
        "grad_norm": float(torch.stack(norms).norm()),
        "rate": 1e-2,
        "natural.kl": 0.0,
    }


EVERYTHING = ALGORITHMS["grpo"].replace(
    name="everything",
    advantage=telling_advantage,
    objective=telling_objective,
    correction="tis",
    optimizer_step=telling_update,
    epochs=2,
    kl=KL(where="loss", estimator="k3", coefficient=0.01),
    plan=SamplingPlan(
        resample="dynamic",
        attempts=2,
        drop_solved=0.9,
        staleness=1,
        thinking_budget=ThinkingBudget(min_tokens=2, max_tokens=2, text=".", until="~"),
    ),
)


def settings(**changes: Any) -> Recipe:
    """The recipe, with *changes*: keys with ``__`` for the dot."""
    return Recipe.of(
        {
            "run": {"steps": 3},
            "model": {"name": str(tiny_folder()), "device": "cpu"},
            "environments": [{"use": f"{__name__}:Talk"}, {"use": f"{__name__}:Word"}],
            "algorithm": {"use": f"{__name__}:EVERYTHING"},
            "sampling": {"max_tokens": 4},
            "batch": {"prompts": 6, "group_size": 3, "min_group_size": 3, "retries": 0},
            "learner": {"lr": 1e-3},
            "evaluation": {
                "every": 2,
                "tasks": 6,
                "samples": 2,
                "temperature": 1.0,
                "test": {"tasks": 0},
            },
            "checkpoint": {"every": 0, "best": False},
            "rollouts": {"keep": "none"},
        }
    ).replace({key.replace("__", "."): value for key, value in changes.items()})


def played(place: Path, recipe: Recipe) -> tuple[list[Record], str, Mapping[str, Any]]:
    """The metrics of a run, what it showed, and its summary; where *place* holds one, it
    resumes.
    """
    screen = io.StringIO()
    with (
        RunFolder.open(place)
        if place.exists()
        else RunFolder.create(place, recipe.to_toml()) as folder
    ):
        summary = run_training(recipe, folder, Screen(screen))
        return folder.metrics(), screen.getvalue(), summary
