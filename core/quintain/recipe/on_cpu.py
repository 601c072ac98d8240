"""What a run begins with where torch finds no GPU: precision, lengths and batch by a measurement of
this processor.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any

from ..console.screen import rough
from ..errors import QuintainError
from ..models.paper import module_on_paper
from ..models.prefix_tree import LONG_START, common_length
from ..registry.lookup import current
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
TRAINING = 300.0
"""Seconds in which the steps are planned to be done, within the limits of `STEPS`. Evaluations come on
top, and replies longer than planned.
"""
STEPS = range(10, 51)
DR_GRPO = "quintain/dr_grpo"
MAXRL = "maxrl"
CHARACTERS = 3.0
"""Of a token, mostly more in English."""
MARKS = 15 * " "
"""In place of what a chat template puts around a message."""
UPDATE_SHARE, DECODING_SHARE = 0.7, 0.7
"""Of the rate of plain products, what passes over whole texts and decoding reach: of 135 million
parameters, two threads, 64 and 128 samples of 8 and 16 prompts.
"""


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """Estimated tokens of a prompt, on average, and how many of them it begins with as others do, which
    are computed once.
    """

    mean: int = USUAL_PROMPT
    shared: int = 0


def seconds_of_step(
    parameters: int,
    *,
    prompts: int,
    group: int,
    tokens: int,
    half: bool,
    prompt: PromptTokens = PromptTokens(),
) -> float:
    """Return the estimated seconds of a step here: a forward pass for each token that is decoded, one
    for each token of the prompts before that, and three for each token of the update, in which a
    group has its prompt once.

    Args:
        tokens: of a reply, on average.
        half: whether products are of half precision. Decoding gains nothing by it: it waits for
            memory, and for attention, which is no faster.
    """
    here = processor()
    gain = here.bfloat16 / here.float32 if half else 1.0
    decoded = prompts * group * tokens
    read = prompt.shared + prompts * (prompt.mean - prompt.shared)
    decoding = 2 * parameters * decoded / (DECODING_SHARE * here.decoding)
    passes = 2 * parameters * read + 6 * parameters * (read + decoded)
    return decoding + passes / (UPDATE_SHARE * here.float32 * gain)


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
        prompt=longest_prompt(plan.tasks.environments),
    )
    each = f"{seconds:.2g} s" if seconds < 90 else rough(seconds)
    return (
        f"no GPU: products of {faster} are {ratio:.1f} times as fast as of {slower} here{keys}, a "
        f"step is estimated at {each}, and {plan.stop.steps} steps at "
        f"{rough(seconds * plan.stop.steps)} without evaluations (stop.minutes bounds a run)"
    )


def changes_on_cpu(recipe: Recipe) -> list[str]:
    """Return what replaces the values of a GPU in *recipe*, as in ``--set``."""
    tokens = longest_reply(recipe)
    parameters = _parameters(recipe)
    half = processor().half
    specs = [EnvironmentSpec.of(table) for table in recipe.environments]
    prompt = longest_prompt(specs)
    for prompts in PROMPTS:
        seconds = seconds_of_step(
            parameters,
            prompts=prompts,
            group=GROUP,
            tokens=tokens // 2,
            half=half,
            prompt=prompt,
        )
        if seconds <= SECONDS:
            break
    steps = round(TRAINING / max(seconds, 1e-9))
    values: dict[str, Any] = {
        "run.steps": min(max(steps, STEPS.start), STEPS.stop - 1),
        "model.dtype": "bfloat16" if half else "float32",
        "learner.precision": "bf16" if half else "float32",
        "learner.checkpoint_activations": False,
        "learner.lr": 2e-5,
        "learner.warmup_steps": 0,
        "sampling.temperature": 1.0,
        "sampling.max_tokens": tokens,
        "batch.prompts": prompts,
        "batch.group_size": GROUP,
        "evaluation.every": 10,
        "evaluation.tasks": 4 * prompts,
        "evaluation.test.tasks": 8 * prompts,
    }
    if recipe.algorithm.use == DR_GRPO:
        if not recipe.algorithm.args and _suits_maxrl(specs):
            values["algorithm.use"] = MAXRL
        if half:
            values["algorithm.args.correction"] = "tis"  # the engine rounds more than the learner
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def longest_reply(recipe: Recipe) -> int:
    """Return the tokens that a reply of the environments needs: half as many again as in the longest
    demonstration of the first tasks, else four times the longest answer and 32; the most of
    `MAX_TOKENS` where an environment shows neither.
    """
    longest = max(map(_longest_of, recipe.environments))
    return min(max(longest, MAX_TOKENS.start), MAX_TOKENS.stop - 1)


def longest_prompt(specs: Sequence[EnvironmentSpec]) -> PromptTokens:
    """Return the tokens of the prompts of the environment that has the longest."""
    return max(map(prompt_tokens, specs), key=attrgetter("mean"))


def prompt_tokens(spec: EnvironmentSpec) -> PromptTokens:
    """Return the estimated tokens of the prompts of the first tasks, on average; `USUAL_PROMPT` at
    least, also where they cannot be told without a service.
    """
    texts = [
        "".join(message.content + MARKS for message in messages_of(task.prompt))
        for task in first_tasks(spec)
    ]
    mean = sum(map(len, texts)) / max(1, len(texts)) / CHARACTERS
    # In order a text has most in common with its neighbours, and no more than its length.
    alike = [common_length(a, b) for a, b in pairwise(sorted(texts))]
    shared = sum(n for n in alike if n >= LONG_START * CHARACTERS) / max(1, len(alike))
    return PromptTokens(mean=max(USUAL_PROMPT, round(mean)), shared=int(shared / CHARACTERS))


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
            return round(1.5 * max(map(_tokens_of, shown))) + 8
        answers = [_answer(task) for task in islice(environment.tasks("train"), EXAMPLES)]
    except QuintainError:
        return unknown  # the checks of the recipe say what is wrong with it
    if not answers or None in answers:
        return unknown
    return round(4 * max(_tokens_of(answer or "") for answer in answers)) + 32


def _tokens_of(text: str) -> float:
    """Return the estimated tokens of *text*: many tokenizers give each digit one."""
    digits = sum(map(str.isdigit, text))
    return digits + (len(text) - digits) / CHARACTERS


def _answer(task: Any) -> str | None:
    return None if task.answer is None else str(task.answer)


def _suits_maxrl(specs: Sequence[EnvironmentSpec]) -> bool:
    """Return whether `MAXRL` is installed and all rewards are declared to be 0 at least, as it needs
    them. Answers that are rarely right weigh more in it: with labels of a few classes, the policy
    does not settle on the commonest one.
    """
    try:
        current().load("algorithm", MAXRL)
    except QuintainError:
        return False
    rewards = [
        reward
        for spec in specs
        for reward in (
            spec.reward or spec.component.reward,
            spec.shaping or spec.component.shaping,
        )
        if reward is not None
    ]
    return all(reward.range and reward.range[0] >= 0 for reward in rewards)


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
