"""What to change where no sample is right, and where "right" says nothing about the reward."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..console.screen import program_name
from ..interfaces.environment import Environment
from ..registry.discovery import short_name
from ..types.rollout import SUCCESS, reaches
from .plan import RunPlan
from .resolve import is_model_source


def labels(plan: RunPlan) -> dict[str, tuple[float, str]]:
    """Return what of *plan* rests on "an outcome of at least ...": by a name for people, the
    outcome that counts as right, and the setting that changes it.
    """
    found: dict[str, tuple[float, str]] = {}
    algorithm = plan.algorithm
    for piece in (
        algorithm.advantage,
        algorithm.objective,
        algorithm.correction,
        algorithm.aggregation,
        algorithm.group_filter,
    ):
        parameter = inspect.signature(piece.function).parameters.get("success")
        if parameter is not None:
            threshold = piece.args.get("success", parameter.default)
            key = f"algorithm.args.{piece.kind} = {{ success = ... }}"
            found[f"{piece.kind} {piece.name} of {algorithm.name}"] = (float(threshold), key)
    if plan.stop.accuracy is not None:
        found["stop.accuracy"] = (SUCCESS, "another limit of [stop]")
    sampling = algorithm.plan
    if sampling.drop_solved is not None:
        found["plan.drop_solved"] = (SUCCESS, 'plan.drop_solved = "none"')
    if sampling.difficulty_samples or sampling.difficulty_file:
        found["plan.difficulty_range"] = (SUCCESS, "plan.difficulty_samples = 0")
    if sampling.order == "hard_first":
        found['plan.order = "hard_first"'] = (SUCCESS, 'plan.order = "shuffled"')
    return found


def unreachable(plan: RunPlan, environments: Sequence[Environment[Any, Any]]) -> Iterator[str]:
    """Say where the range that a reward declares lies on one side of what counts as right."""
    for environment in environments:
        declared = environment.reward.range
        if declared is None:
            continue
        low, high = declared
        span = f"within {low:g} to {high:g}"
        if whose := _right(declared, SUCCESS):
            named = f"{type(environment).__name__}: its reward {environment.reward.name}"
            yield (
                f"environment {named} lies {span}, and a sample is right from {SUCCESS:g} on: "
                f"{whose} sample is, so the share of right samples says nothing and the reward tells"
            )
        for name, (limit, key) in labels(plan).items():
            if whose := _right(declared, limit):
                yield (
                    f"{name} rests on an outcome of at least {limit:g}, which {whose} sample of "
                    f"{type(environment).__name__} has (its reward lies {span}); set {key}"
                )


def _right(declared: tuple[float, float], limit: float) -> str:
    """Return ``no`` or ``every``, as of a reward in the range *declared* all samples are below
    *limit* or none is; else nothing.
    """
    low, high = declared
    if not reaches(high, limit):
        return "no"
    return "every" if reaches(low, limit) else ""


class Advice:
    """What a run says before and after its first step, once each.

    Args:
        environments: of *plan*.
    """

    def __init__(self, plan: RunPlan, environments: Sequence[Environment[Any, Any]]) -> None:
        self._plan = plan
        self._told = any(e.reward.range and not reaches(e.reward.range[1]) for e in environments)

    def before(self, *measured: Mapping[str, Any]) -> str:
        """Return a line where the evaluations before training found no right sample: greedy decoding
        and few tasks may find none where samples of a step do.
        """
        known = [found for found in measured if found.get("accuracy") is not None]
        if not known or any(found["accuracy"] > 0 for found in known):
            return ""
        if self._told:
            return ""
        samples = sum(found.get("tasks", 0) for found in known) * self._plan.evaluation.samples
        return (
            f"0 of {samples} held-out samples are right before training: step 1 shows whether samples "
            "of training are"
        )

    def after(self, metrics: Mapping[str, Any]) -> Iterator[str]:
        """Yield what the first step shows of its rewards."""
        success, varied = metrics.get("success"), metrics.get("reward.outcome.spread", 0.0) > 0
        if success == 0 and not varied:
            yield self._nothing_right(f"0 of {metrics.get('samples')} samples of step 1 are right")
        if success in (0, 1) and varied:
            whose = "every" if success else "no"
            for name, (limit, key) in labels(self._plan).items():
                yield (
                    f"{name} rests on an outcome of at least {limit:g}, and {whose} sample of step 1 "
                    f"has that although rewards differ; if it stays so, set {key}"
                )

    def _nothing_right(self, found: str) -> str:
        if self._told:
            return ""
        self._told = True
        task, name = shlex.quote(self._plan.tasks.labels[0]), self._plan.model.name
        program, model = program_name(), f" --model {shlex.quote(name)}"
        arguments = "".join(
            f" --arg {shlex.quote(f'{key}={value}')}"
            for key, value in self._plan.tasks.environments[0].args.items()
        )
        shown = (
            "model.start.args = { target = [0.4, 0.6] } extends the warm start"
            if is_model_source(name) and short_name(name) == "default"
            else f"{program} sft {task}{arguments}{model} --out warm, then train with --model warm"
        )
        return "\n".join(
            [
                f"{found}, and nothing is learned until one is. What helps, the first first:",
                f"  an easier level, or answered tasks in the prompt: {program} info {task} lists "
                "its arguments (--arg KEY=VALUE)",
                f"  demonstrations:  {shown}",
                f"  temperature:     {program} eval {task}{arguments}{model} --split train "
                "--samples 16 --temperature 0.7 shows whether any sample gets it right",
                "  partial credit:  a reward, or a shaping, for what is nearly right",
            ]
        )
