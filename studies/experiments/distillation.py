"""Is a teacher ahead of the reward? Distillation on the policy's own samples, policy gradients and
supervised training on the teacher's samples, at equal tokens and at equal seconds, on ``arithmetic``,
``code`` and ``search``.

The student is the default model of each environment, which has the habits that its reward punishes.
The teacher has twice its layers and was trained here on demonstrations without them. Seconds are
CPU seconds of sampling, grading, teacher and update.

A finished run is a file in ``runs/distillation``, so that an interrupted study continues and further
seeds add to those that are there; delete the folder to run everything again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from quintain import Algorithm, Environment, Sampling
from quintain.console import Screen
from quintain.engine import EmbeddedEngine
from quintain.evaluation import evaluate
from quintain.learning import ALGORITHMS, Learner
from quintain.models import LoadedModel, load_model
from quintain.recipe import (
    EnvironmentSpec,
    EnvironmentTable,
    ModelRequest,
    ModelSource,
    Recipe,
    opened_environments,
)
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.store import save_model
from quintain_offline.distill import GKD, OPD, ModelTeacher
from quintain_offline.preference import SFT
from quintain_offline.sft.sources import Selection, source_of
from quintain_offline.sft.tuning import tune

from .common import ROOT, Line, Panel, Report, Study, main

WARMUP = 2
TEMPERATURE = 1.0
"""Of sampling; held-out success is measured greedily and at this."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """An environment to learn, and how much of it.

    Attributes:
        recipe: the bundled recipe whose environment, services and default model these are.
        right: fields of the environment whose demonstrations have no mistakes.
        rate, teacher_rate: learning rates of the student, half of the pair that each method has,
            and of the teacher.
        examples: that the teacher learns from.
        prompts, answers: tasks of a step, and samples of each.
        measured: the steps at which success is measured, the last one last.
        held_out: tasks of ``test`` on which it is measured.
        seeds, base_seeds: at most, whatever ``--seeds`` says, of the arms at the higher rate and of
            those at the recipe's; those of the page are what time allowed.
    """

    recipe: str
    right: Mapping[str, Any]
    rate: float
    teacher_rate: float = 3e-4
    examples: int = 5120
    prompts: int = 16
    answers: int = 8
    measured: tuple[int, ...] = (0, 2, 4, 8, 12)
    held_out: int = 100
    seeds: int = 5
    base_seeds: int = 5

    def has(self, arm: str, seed: int) -> bool:
        """Whether the study runs *arm* with *seed*."""
        return seed < (self.seeds if ARMS[arm].faster > 1 else self.base_seeds)

    @property
    def settings(self) -> Recipe:
        """The bundled recipe, parsed."""
        return Recipe.load(self.recipe)


COURSES: dict[str, Course] = {
    "arithmetic": Course(
        recipe="quickstart", right={"slips": 0.0}, rate=6e-5, prompts=32, answers=4
    ),
    "search": Course(
        recipe="search",
        right={"slips": (0.0, 0.0)},
        rate=3e-4,
    ),
    "code": Course(
        recipe="code",
        right={"slips": 0.0},
        rate=2e-4,
        teacher_rate=1e-3,
        examples=15360,
        seeds=1,
        base_seeds=5,
    ),
}
QUICK: dict[str, Any] = {
    "examples": 4,
    "prompts": 2,
    "answers": 2,
    "measured": (0, 1),
    "held_out": 4,
}
FASTER = 5
"""Each method has two learning rates, that of the recipe and this many times it."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to train.

    Attributes:
        imitates: the samples are the teacher's.
        faster: the learning rate is a multiple of the course's.
    """

    algorithm: Algorithm
    imitates: bool = False
    faster: int = 1


BASE: dict[str, Arm] = {
    "policy gradient": Arm(algorithm=ALGORITHMS["dr_grpo"]),
    "OPD": Arm(algorithm=OPD),
    "GKD": Arm(algorithm=GKD),
    "supervised": Arm(algorithm=SFT, imitates=True),
}
ARMS: dict[str, Arm] = {
    **BASE,
    **{f"{name}, rate x {FASTER}": replace(arm, faster=FASTER) for name, arm in BASE.items()},
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


Curves = Mapping[str, Mapping[str, Sequence[Curve]]]
"""Runs, one for each seed, by course and arm."""


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Held-out success by tokens and by CPU seconds for each course and arm."""
    return study_of(["arithmetic"] if quick else [*COURSES], seeds, quick)


def study_of(names: Sequence[str], seeds: Sequence[int], quick: bool) -> Report:
    """Return the report of the courses called *names*."""
    courses = {name: replace(COURSES[name], **QUICK) if quick else COURSES[name] for name in names}
    arms = BASE if quick else ARMS
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) if quick else ROOT / "runs" / "distillation"
        curves: dict[str, dict[str, list[Curve]]] = {
            course: {arm: [] for arm in arms} for course in courses
        }
        for seed in seeds:  # outermost: a study that is stopped has whole seeds
            for name, course in courses.items():
                for arm in arms:
                    if course.has(arm, seed):
                        curves[name][arm].append(trained(store / name, course, arm, seed))
        teachers = {
            name: json.loads((store / name / "teacher.json").read_text()) for name in courses
        }
    return Report(
        panels=panels_of(curves),
        contrasts=contrasts_of(curves),
        settings={
            "temperature": TEMPERATURE,
            "yardstick": "held-out success on tasks of test, greedy and at the temperature",
            "faster": FASTER,
            "courses": {
                name: {
                    "rate": course.rate,
                    "samples": course.prompts * course.answers,
                    "held_out_tasks": course.held_out,
                    "seeds": {arm: len(runs) for arm, runs in curves[name].items()},
                    "teacher": teachers[name],
                }
                for name, course in courses.items()
            },
        },
        notes=[
            *(f"the teacher of {name}: {quality}" for name, quality in teachers.items()),
            *notes_of(curves),
        ],
    )


PARTS: Mapping[str, Study] = {name: partial(study_of, [name]) for name in COURSES}
"""What ``--only`` runs."""


def panels_of(curves: Curves) -> list[Panel]:
    """Success by tokens and by seconds, greedy and sampled, for each course; the higher rate is
    dashed.
    """
    panels = []
    for course, arms in curves.items():
        for success in ("greedy", "sampled"):
            for by in ("tokens", "seconds"):
                lines = [
                    Line(
                        label=arm,
                        x=[fmean(x) for x in zip(*(getattr(c, by) for c in runs), strict=True)],
                        values=[getattr(c, success) for c in runs],
                        style="--" if "," in arm else "-",
                    )
                    for arm, runs in arms.items()
                ]
                xlabel = "tokens sampled" if by == "tokens" else "CPU seconds"
                panels.append(Panel(title=f"{course}: {success}", xlabel=xlabel, lines=lines))
    return panels


def contrasts_of(curves: Curves) -> dict[str, list[float]]:
    """Each arm less the policy gradient of its rate and that of the recipe's rate, seed by seed: at
    the last step, and in the mean over the tokens and the CPU seconds that both took.
    """
    found = {}
    for course, arms in curves.items():
        for name, runs in arms.items():
            _, comma, rate = name.partition(",")
            for first in dict.fromkeys((f"policy gradient{comma}{rate}", "policy gradient")):
                if name == first:
                    continue
                found |= contrasts_between(f"{course}: {name} less {first}", runs, arms[first])
    return found


def contrasts_between(
    what: str, runs: Sequence[Curve], others: Sequence[Curve]
) -> dict[str, list[float]]:
    """Return differences between two arms, one value for each seed that both have."""
    found = {}
    pairs = list(zip(runs, others, strict=False))  # both begin at seed 0
    for success in ("greedy", "sampled"):
        found[f"{what}: {success}, at the last step"] = [
            getattr(a, success)[-1] - getattr(b, success)[-1] for a, b in pairs
        ]
        for by in ("tokens", "seconds"):
            found[f"{what}: {success}, mean over {by}"] = [
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


def notes_of(curves: Curves) -> list[str]:
    """Success of each run at its measured steps."""
    return [
        f"{course}, {arm}, run {number}: steps {curve.steps}, tokens {curve.tokens[-1]:,}, CPU "
        f"{curve.seconds[-1]:.0f} s, greedy {[round(x, 3) for x in curve.greedy]}, sampled "
        f"{[round(x, 3) for x in curve.sampled]}"
        for course, arms in curves.items()
        for arm, runs in arms.items()
        for number, curve in enumerate(runs)
    ]


# ------------------------------------------------------------------------------------- the models
def student_in(store: Path, course: Course) -> LoadedModel:
    """Load the default model of a course, which *store* keeps: a later version may train another
    one.
    """
    folder = store / "student"
    if not folder.exists():
        recipe = course.settings
        model = ModelSource.of(recipe).load(ModelRequest.of(recipe, Screen(quiet=True)))
        save_model(folder, Learner(model.module), model.tokenizer, {})
    return load_model(folder, device="cpu")


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


def teacher_in(store: Path, course: Course) -> str:
    """Train the teacher on demonstrations without mistakes, unless *store* has it; measure it and
    the student.
    """
    folder = store / "teacher"
    if not (store / "teacher.json").exists():
        store.mkdir(parents=True, exist_ok=True)
        began = asyncio.run(measured_alone(student_in(store, course), course))
        model = deeper(student_in(store, course))
        (table,) = course.settings.environments
        examples = source_of(
            EnvironmentTable(use=table.use, args={**table.args, **course.right}),
            Selection(count=course.examples),
            services=course.settings.services,
        )
        learner, report = tune(model, examples, epochs=1, lr=course.teacher_rate)
        save_model(folder, learner, model.tokenizer, report.to_json())
        write(
            store / "teacher.json",
            {
                "parameters": report.parameters,
                "updates": report.updates,
                "success": asyncio.run(measured_alone(load_model(folder, device="cpu"), course)),
                "student": began,
            },
        )
    return str(folder)


def write(place: Path, data: Mapping[str, Any]) -> None:
    """Write a file at once, so that one that is there is complete."""
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(data))
    unfinished.replace(place)


async def measured_alone(model: LoadedModel, course: Course) -> dict[str, float]:
    """Return held-out success of *model*, greedy and sampled."""
    specs = [EnvironmentSpec.of(table) for table in course.settings.environments]
    async with (
        opened_environments(specs, course.settings.services) as ((environment,), services),
        EmbeddedEngine.sharing(
            model.module, model.tokenizer, slots=course.prompts * course.answers
        ) as engine,
    ):
        return await success_of(environment, services, engine, course)


# ---------------------------------------------------------------------------------------- a run
async def success_of(
    environment: Environment[Any, Any], services: Mapping[str, Any], engine: Any, course: Course
) -> dict[str, float]:
    """Return the share of held-out tasks that the model of *engine* solves, greedy and sampled."""
    longest = course.settings.sampling.max_tokens
    found = {}
    for name, temperature in (("greedy", 0.0), ("sampled", TEMPERATURE)):
        result = await evaluate(
            environment,
            engine,
            split="test",
            tasks=course.held_out,
            sampling=Sampling(temperature=temperature, max_tokens=longest),
            seed=1,
            services=services,
        )
        found[name] = result.accuracy.value if result.accuracy else 0.0
    return found


def trained(store: Path, course: Course, arm: str, seed: int) -> Curve:
    """Train the student by *arm*; a run that *store* has is not repeated."""
    place = store / f"{re.sub('[^a-z0-9.]+', '-', arm.lower())}-{seed}.json"
    if not place.exists():
        teacher = teacher_in(store, course)
        start = json.loads((store / "teacher.json").read_text())["student"]
        model = student_in(store, course)
        curve = asyncio.run(run(model, course, ARMS[arm], teacher, start, seed))
        write(place, vars(curve))
    return Curve(**json.loads(place.read_text()))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the graders that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


async def run(
    model: LoadedModel,
    course: Course,
    arm: Arm,
    teacher: str,
    start: Mapping[str, float],
    seed: int,
) -> Curve:
    """Train *model* and measure it on the way; only sampling, grading, teacher and update take
    time. *start* is its success before.
    """
    longest = course.settings.sampling.max_tokens
    learner = Learner(model.module, arm.algorithm, lr=arm.faster * course.rate, warmup_steps=WARMUP)
    specs = [EnvironmentSpec.of(table) for table in course.settings.environments]
    slots, last = course.prompts * course.answers, course.measured[-1]
    curve, spent, tokens = Curve(), 0.0, 0
    async with (
        opened_environments(specs, course.settings.services) as ((environment,), services),
        EmbeddedEngine.sharing(model.module, model.tokenizer, slots=slots) as engine,
        ModelTeacher(model=teacher, policy=model, learner=learner) as asked,
        EmbeddedEngine(str(teacher), device="cpu", slots=slots) as teaching,
    ):
        learner.serve({"teacher": asked})
        # Seeds train on different tasks.
        tasks = islice(environment.tasks("train"), seed * last * course.prompts, None)
        for step in range(last + 1):
            if step in course.measured:
                curve.steps.append(step)
                curve.tokens.append(tokens)
                curve.seconds.append(spent)
                found = await success_of(environment, services, engine, course) if step else start
                curve.greedy.append(found["greedy"])
                curve.sampled.append(found["sampled"])
            if step == last:
                break
            began = cpu_seconds()
            requests = [
                RolloutRequest(
                    environment=environment,
                    task=task,
                    group_size=course.answers,
                    name=specs[0].name,
                    index=step * course.prompts + number,
                )
                for number, task in enumerate(islice(tasks, course.prompts))
            ]
            groups = await run_groups(
                requests,
                RolloutContext(
                    engine=teaching if arm.imitates else engine,
                    sampling=Sampling(temperature=TEMPERATURE, max_tokens=longest),
                    services=services,
                    run_seed=seed,
                    step=step,
                ),
            )
            batch = learner.batch(groups, temperature=TEMPERATURE, max_tokens=longest)
            prepared = learner.prepare(batch)
            advantages = await learner.compute_advantages(prepared)
            learner.step(prepared, advantages=advantages)
            await engine.update(learner.weights())
            spent += cpu_seconds() - began
            tokens += batch.tokens
    return curve


if __name__ == "__main__":
    main(study, parts=PARTS)
