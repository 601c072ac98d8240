"""What a run begins with where torch finds no GPU: precision, lengths and batch by a measurement of
this processor.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

from ..console.screen import rough
from ..errors import QuintainError
from ..models.paper import module_on_paper
from ..store.runs import model_named
from ..types.task import Task, messages_of
from .plan import RunPlan
from .precision import processor
from .resolve import EnvironmentSpec, is_model_source
from .tables import Recipe

SECONDS = 60.0
"""A step is planned to take no longer."""
LARGE = 20_000_000
"""Parameters from which a step on a CPU is worth an estimate."""
PROMPTS = (16, 8, 4, 2)
GROUP = 8
"""Samples of a task; of fewer, groups are too often all right or all wrong."""
MAX_TOKENS = range(16, 257)
"""Of a reply; the longest is for environments that show no reply."""
EXAMPLES = 32
USUAL_PROMPT = 96
"""Tokens of a prompt, at least: with the template, and where an environment shows none."""
TRAINING = 240.0
"""Seconds in which the steps are planned to be done, within the limits of `STEPS`: evaluations and
long replies take as much again.
"""
STEPS = range(10, 51)
DR_GRPO = "quintain/dr_grpo"
CHARACTERS = 3.0
"""Of a token, mostly more in English."""
UPDATE_SHARE, DECODING_SHARE = 0.7, 0.7
"""Of the rate of plain products, what updates and decoding reach: of 135 million parameters, two
threads, 64 samples of 8 prompts.
"""


def seconds_of_step(
    parameters: int,
    *,
    prompts: int,
    group: int,
    tokens: int,
    half: bool,
    prompt_tokens: int = USUAL_PROMPT,
) -> float:
    """Return the estimated seconds of a step here: a forward pass for each token that is decoded, and
    three for each token of the update, in which a group has its prompt once.

    Args:
        tokens: of a reply, on average.
        half: whether products are of half precision.
    """
    here = processor()
    gain = here.bfloat16 / here.float32 if half else 1.0
    decoded = prompts * group * tokens
    updated = decoded + prompts * prompt_tokens
    decoding = 2 * parameters * decoded / (DECODING_SHARE * here.decoding * gain)
    return decoding + 6 * parameters * updated / (UPDATE_SHARE * here.float32 * gain)


def remark_on_cpu(plan: RunPlan, parameters: int) -> str:
    """Return what a run without a GPU is told: the faster precision here, and the estimated seconds
    of a step whose replies are half as long as they may be.
    """
    here, rollouts = processor(), plan.rollouts
    faster, slower = ("bfloat16", "float32") if here.half else ("float32", "bfloat16")
    ratio = getattr(here, faster) / getattr(here, slower)
    is_half = plan.learner.precision == "bf16"
    keys = ""
    if here.half and not is_half:
        keys = ' (learner.precision = "bf16", model.dtype = "bfloat16")'
    seconds = seconds_of_step(
        parameters,
        prompts=rollouts.groups,
        group=rollouts.group_size,
        tokens=max(rollouts.max_tokens // 2, 1),
        half=is_half,
        prompt_tokens=max(map(prompt_length, plan.tasks.environments)),
    )
    return (
        f"no GPU: products of {faster} are {ratio:.1f} times as fast as of {slower} here{keys}, a "
        f"step is estimated at {rough(seconds)}, and {plan.stop.steps} steps at "
        f"{rough(seconds * plan.stop.steps)} without evaluations (stop.minutes bounds a run)"
    )


def changes_on_cpu(recipe: Recipe) -> list[str]:
    """Return what replaces the values of a GPU in *recipe*, as in ``--set``."""
    tokens = longest_reply(recipe)
    parameters = _parameters(recipe)
    half = processor().half
    prompt_tokens = max(map(prompt_length, map(EnvironmentSpec.of, recipe.environments)))
    for prompts in PROMPTS:
        seconds = seconds_of_step(
            parameters,
            prompts=prompts,
            group=GROUP,
            tokens=tokens // 2,
            half=half,
            prompt_tokens=prompt_tokens,
        )
        if seconds <= SECONDS:
            break
    steps = round(TRAINING / max(seconds, 1e-9))
    values: dict[str, Any] = {
        "run.steps": min(max(steps, STEPS.start), STEPS.stop - 1),
        "model.dtype": "bfloat16" if half else "float32",
        "learner.precision": "bf16" if half else "float32",
        "learner.checkpoint_activations": False,
        "learner.lr": 1e-5,
        "learner.warmup_steps": 0,
        "sampling.temperature": 1.0,
        "sampling.max_tokens": tokens,
        "batch.prompts": prompts,
        "batch.group_size": GROUP,
        "evaluation.every": 10,
        "evaluation.tasks": 4 * prompts,
        "evaluation.test.tasks": 8 * prompts,
    }
    if half and recipe.algorithm.use == DR_GRPO:
        values["algorithm.args.correction"] = "tis"  # the engine rounds more than the learner
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def longest_reply(recipe: Recipe) -> int:
    """Return the tokens that a reply of the environments needs: half as many again as in the longest
    demonstration of the first tasks, else four times the longest answer and 32; the most of
    `MAX_TOKENS` where an environment shows neither.
    """
    longest = max(map(_longest_of, recipe.environments))
    return min(max(longest, MAX_TOKENS.start), MAX_TOKENS.stop - 1)


def prompt_length(spec: EnvironmentSpec) -> int:
    """Return the estimated tokens of a prompt, by the mean of the first tasks; `USUAL_PROMPT` at least,
    also where it cannot be told without a service.
    """
    tasks = first_tasks(spec)
    characters = sum(len(message.content) for task in tasks for message in messages_of(task.prompt))
    return max(USUAL_PROMPT, round(characters / max(1, len(tasks)) / CHARACTERS))


def first_tasks(spec: EnvironmentSpec) -> list[Task]:
    """Return the first `EXAMPLES` tasks of an environment; none where it needs a service."""
    if spec.own_slots:
        return []
    try:
        return list(islice(spec.make({}).tasks("train"), EXAMPLES))
    except QuintainError:
        return []  # the checks of the recipe say what is wrong with it


def _longest_of(table: Any) -> int:
    unknown = MAX_TOKENS.stop
    try:
        spec = EnvironmentSpec.of(table)
        if spec.own_slots:  # its tasks need a service
            return unknown
        environment = spec.make({})
        shown = [d.reply for d in islice(environment.demonstrations("train"), EXAMPLES)]
        if shown:
            return round(1.5 * max(map(len, shown)) / CHARACTERS) + 8
        answers = [_answer(task) for task in islice(environment.tasks("train"), EXAMPLES)]
    except QuintainError:
        return unknown  # the checks of the recipe say what is wrong with it
    if not answers or None in answers:
        return unknown
    return round(4 * max(len(answer or "") for answer in answers) / CHARACTERS) + 32


def _answer(task: Any) -> str | None:
    return None if task.answer is None else str(task.answer)


def _parameters(recipe: Recipe) -> int:
    """Return the number of parameters of the model, by its configuration; 600 million where that
    cannot be had.
    """
    name = recipe.model.name
    try:
        named = model_named(name).path if is_model_source(name) else name
        module = module_on_paper(named, None)
    except QuintainError:
        module = None  # the checks of the recipe say that it cannot be had
    return 600_000_000 if module is None else sum(p.numel() for p in module.parameters())
