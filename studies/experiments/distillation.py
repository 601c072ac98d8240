"""Is a teacher ahead of the reward? Distillation on the policy's own samples, policy gradients and
supervised training on the teacher's samples, at equal tokens and at equal seconds.

The student is the default model of arithmetic, which omits carries. The teacher has twice its
layers and was trained here on sums with all carries. Seconds are CPU seconds of sampling, teacher
and update. A finished run is kept in ``runs/distillation``, so that an interrupted study continues;
delete the folder to run everything again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from quintain import Algorithm, Sampling
from quintain.console import Screen
from quintain.evaluation import evaluate
from quintain.learning import ALGORITHMS, Learner
from quintain.models import LoadedModel, load_model
from quintain.recipe import EnvironmentTable, ModelRequest, ModelSource, Recipe
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.run import embedded_engine
from quintain.store import save_model
from quintain_distill import GKD, OPD, ModelTeacher
from quintain_env_math import Arithmetic
from quintain_preference import SFT
from quintain_sft.sources import Selection, source_of
from quintain_sft.tuning import tune

from .common import ROOT, Line, Panel, Report, main

LEVELS, REWORDED = (1, 2, 3), 0.6
"""Of the tasks, as in the quickstart."""
RATE, WARMUP, LONGEST = 6e-5, 2, 48
LEAST_SEEDS = 2
"""Of a full study, instead of five: each seed trains a model for each arm."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a study: steps and when success is measured on how many tasks; tasks and answers of a
    step; examples that the teacher learns from.
    """

    steps: int = 12
    measured: tuple[int, ...] = (0, 2, 4, 8, 12)
    held_out: int = 128
    prompts: int = 32
    answers: int = 4
    examples: int = 5120


QUICK = Size(steps=1, measured=(0, 1), held_out=4, prompts=2, answers=2, examples=4)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to train.

    Attributes:
        imitates: the samples are the teacher's.
        temperature: of sampling.
    """

    algorithm: Algorithm
    imitates: bool = False
    temperature: float = 1.0
    rate: float = RATE


BASE: dict[str, Arm] = {
    "policy gradient": Arm(algorithm=ALGORITHMS["dr_grpo"]),
    "OPD": Arm(algorithm=OPD),
    "GKD": Arm(algorithm=GKD),
    "supervised": Arm(algorithm=SFT, imitates=True),
}
ARMS: dict[str, Arm] = {
    **BASE,
    **{f"{name}, rate x 5": replace(arm, rate=5 * RATE) for name, arm in BASE.items()},
    **{
        f"{name}, T 0.7": replace(BASE[name], temperature=0.7)
        for name in ("policy gradient", "OPD", "GKD")
    },
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One run at each measured step: sampled tokens and CPU seconds so far, and held-out success,
    greedy and sampled.
    """

    steps: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    greedy: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Held-out success by tokens and by CPU seconds for each arm; at the lower temperature for the
    first seed alone.
    """
    size = QUICK if quick else Size()
    arms = dict(islice(ARMS.items(), 4)) if quick else ARMS
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) if quick else ROOT / "runs" / "distillation"
        store.mkdir(parents=True, exist_ok=True)
        teacher = teacher_in(store, size)
        curves = {
            name: [
                trained(store, name, arm, teacher, seed, size)
                for seed in (seeds if arm.temperature == 1 else seeds[:1])
            ]
            for name, arm in arms.items()
        }
        quality = json.loads((store / "teacher.json").read_text())
    return Report(
        panels=panels_of(curves),
        contrasts=contrasts_of(curves),
        settings={
            "steps": size.steps,
            "samples": size.prompts * size.answers,
            "lr": RATE,
            "held_out_tasks": size.held_out,
            "teacher": quality,
        },
        notes=[f"the teacher: {quality}", *notes_of(curves)],
    )


def panels_of(curves: Mapping[str, Sequence[Curve]]) -> list[Panel]:
    """Success by tokens and by seconds, greedy and sampled, for each rate and temperature."""
    panels = []
    settings = dict.fromkeys(name.partition(", ")[2] for name in curves)
    for setting in settings:
        here = {
            method: runs
            for name, runs in curves.items()
            for method, _, own in [name.partition(", ")]
            if own == setting
        }
        for success in ("greedy", "sampled"):
            for by in ("tokens", "seconds"):
                lines = [
                    Line(
                        label=method,
                        x=[fmean(x) for x in zip(*(getattr(c, by) for c in runs), strict=True)],
                        values=[getattr(c, success) for c in runs],
                    )
                    for method, runs in here.items()
                ]
                xlabel = "tokens sampled" if by == "tokens" else "CPU seconds"
                title = f"{success} success{setting and ', '}{setting}"
                panels.append(Panel(title=title, xlabel=xlabel, lines=lines))
    return panels


def contrasts_of(curves: Mapping[str, Sequence[Curve]]) -> dict[str, list[float]]:
    """Each arm less the policy gradient of its rate, seed by seed: at the last step, and in the mean
    over the tokens and the CPU seconds that both took.
    """
    found = {}
    for name, runs in curves.items():
        method, comma, setting = name.partition(", ")
        first = f"policy gradient{comma}{setting}"
        if method == "policy gradient" or len(runs) < len(curves["policy gradient"]):
            continue
        pairs = list(zip(runs, curves[first], strict=True))
        for success in ("greedy", "sampled"):
            found[f"{name} less {first}: {success}, at the last step"] = [
                getattr(a, success)[-1] - getattr(b, success)[-1] for a, b in pairs
            ]
            for by in ("tokens", "seconds"):
                found[f"{name} less {first}: {success}, mean over {by}"] = [
                    mean_until(a, by, success, end) - mean_until(b, by, success, end)
                    for a, b in pairs
                    for end in [min(getattr(a, by)[-1], getattr(b, by)[-1])]
                ]
    return found


def mean_until(curve: Curve, by: str, success: str, end: float) -> float:
    """Return the mean of success, linear between the measured steps, from 0 to *end*."""
    x, y = np.array(getattr(curve, by), float), np.array(getattr(curve, success), float)
    places = np.linspace(0, end, 201)
    return float(np.interp(places, x, y).mean())


def notes_of(curves: Mapping[str, Sequence[Curve]]) -> list[str]:
    """Success of each run at its measured steps."""
    return [
        f"{name}, run {number}: steps {curve.steps}, tokens {curve.tokens[-1]:,}, CPU "
        f"{curve.seconds[-1]:.0f} s, greedy {[round(x, 3) for x in curve.greedy]}, sampled "
        f"{[round(x, 3) for x in curve.sampled]}"
        for name, runs in curves.items()
        for number, curve in enumerate(runs)
    ]


# ------------------------------------------------------------------------------------- the models
def student() -> LoadedModel:
    """Load the default model of arithmetic, which comes with quintain-starter."""
    recipe = Recipe.load("quickstart")
    return ModelSource.of(recipe).load(ModelRequest.of(recipe, Screen(quiet=True)))


def deeper(model: LoadedModel) -> LoadedModel:
    """Return a model with twice the layers that computes the same: every second one adds nothing
    yet.
    """
    from transformers import AutoModelForCausalLM

    config = type(model.module.config).from_dict(model.module.config.to_dict())
    config.num_hidden_layers *= 2
    config.layer_types = [*config.layer_types] * 2
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        grown = AutoModelForCausalLM.from_config(config)
        weights, old = grown.state_dict(), model.module.state_dict()
        for name, value in weights.items():
            found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
            layer, rest = (int(found[1]), found[2]) if found else (0, "")
            if not found:
                value.copy_(old[name])
            elif layer % 2 == 0:
                value.copy_(old[f"model.layers.{layer // 2}.{rest}"])
            elif rest in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                value.zero_()
        grown.generation_config = model.module.generation_config
        grown.save_pretrained(folder)
        model.tokenizer.hf.save_pretrained(folder)
        return load_model(folder, device="cpu")


def teacher_in(store: Path, size: Size) -> str:
    """Train the teacher on sums with all carries, unless *store* has it; measure it."""
    folder = store / "teacher"
    if not (store / "teacher.json").exists():
        model = deeper(student())
        table = EnvironmentTable(
            use="quintain-env-math/arithmetic",
            args={"slips": 0.0, "levels": list(LEVELS), "reworded": REWORDED},
        )
        examples = source_of(table, Selection(count=size.examples))
        learner, report = tune(model, examples, epochs=1, lr=3e-4)
        save_model(folder, learner, model.tokenizer, report.to_json())
        success = asyncio.run(measured_alone(load_model(folder, device="cpu"), size))
        quality = {"parameters": report.parameters, "updates": report.updates, **success}
        (store / "teacher.json").write_text(json.dumps(quality))
    return str(folder)


async def measured_alone(model: LoadedModel, size: Size) -> dict[str, float]:
    """Return held-out success of *model*, greedy and at both temperatures."""
    async with embedded_engine(model, slots=size.prompts * size.answers) as engine:
        return {f"success at {t:g}": await success_of(engine, t, size) for t in (0.0, 0.7, 1.0)}


# ---------------------------------------------------------------------------------------- a run
async def success_of(engine: Any, temperature: float, size: Size) -> float:
    """Return the share of held-out tasks that the model of *engine* solves."""
    found = await evaluate(
        Arithmetic(levels=LEVELS, reworded=REWORDED),
        engine,
        split="test",
        tasks=size.held_out,
        sampling=Sampling(temperature=temperature, max_tokens=LONGEST),
        seed=1,
    )
    return found.accuracy.value if found.accuracy else 0.0


def trained(store: Path, name: str, arm: Arm, teacher: str, seed: int, size: Size) -> Curve:
    """Train the student by *arm*; a run that *store* has is not repeated."""
    place = store / f"{re.sub('[^a-z0-9.]+', '-', name.lower())}-{seed}.json"
    if not place.exists():
        curve = asyncio.run(run(student(), arm, teacher, seed, size))
        unfinished = place.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(vars(curve)))
        unfinished.replace(place)
    return Curve(**json.loads(place.read_text()))


async def run(model: LoadedModel, arm: Arm, teacher: str, seed: int, size: Size) -> Curve:
    """Train *model* and measure it on the way; only sampling, teacher and update take time."""
    learner = Learner(model.module, arm.algorithm, lr=arm.rate, warmup_steps=WARMUP)
    environment = Arithmetic(levels=LEVELS, reworded=REWORDED, seed=seed)
    tasks = iter(environment.tasks("train"))
    slots = size.prompts * size.answers
    curve, spent, tokens = Curve(), 0.0, 0
    async with (
        embedded_engine(model, slots=slots) as engine,
        ModelTeacher(model=teacher, policy=model, learner=learner) as asked,
        embedded_engine(load_model(teacher, device="cpu"), slots=slots) as teaching,
    ):
        learner.serve({"teacher": asked})
        for step in range(size.steps + 1):
            if step in size.measured:
                curve.steps.append(step)
                curve.tokens.append(tokens)
                curve.seconds.append(spent)
                curve.greedy.append(await success_of(engine, 0.0, size))
                curve.sampled.append(await success_of(engine, arm.temperature, size))
            if step == size.steps:
                break
            began = time.process_time()
            requests = requests_of(environment, islice(tasks, size.prompts), size, step)
            groups = await run_groups(
                requests,
                RolloutContext(
                    engine=teaching if arm.imitates else engine,
                    sampling=Sampling(temperature=arm.temperature, max_tokens=LONGEST),
                    run_seed=seed,
                    step=step,
                ),
            )
            batch = learner.batch(groups, temperature=arm.temperature, max_tokens=LONGEST)
            prepared = learner.prepare(batch)
            advantages = await learner.compute_advantages(prepared)
            learner.step(prepared, advantages=advantages)
            await engine.update(learner.weights())
            spent += time.process_time() - began
            tokens += batch.tokens
    return curve


def requests_of(
    environment: Arithmetic, tasks: Iterator[Any], size: Size, step: int
) -> list[RolloutRequest]:
    """Return the groups of a step."""
    return [
        RolloutRequest(
            environment=environment,
            task=task,
            group_size=size.answers,
            name="arithmetic",
            index=step * size.prompts + number,
        )
        for number, task in enumerate(tasks)
    ]


if __name__ == "__main__":
    main(study)
