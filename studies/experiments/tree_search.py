"""Do process reward models and tree search help, as samplers and as ways to train? Against plain
sampling at equal sampled tokens, on ``arithmetic`` and ``countdown``.

A value model is trained on rollouts of the student. Searches with it answer held-out tasks, and it
trains the student: as reward, as credit, and by imitation of what a search finds.

A finished part is a file in ``runs/tree_search``, so that an interrupted study continues; delete
the folder to run everything again.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from quintain import Algorithm, Environment, Sampling, TokenEngine
from quintain.console import Screen
from quintain.engine import EmbeddedEngine
from quintain.evaluation import evaluate
from quintain.learning import ALGORITHMS, Learner
from quintain.models import LoadedModel, load_model
from quintain.recipe import EnvironmentTable, ModelRequest, ModelSource, Recipe
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.store import save_model
from quintain_algorithms.tree_search import (
    TREE_CREDIT,
    VALUE_STEPS,
    BeamEngine,
    MCTSEngine,
    TreeEngine,
    ValueModel,
    fit_value,
    rows_of,
)
from quintain_env_math import Arithmetic, Countdown
from quintain_offline.preference import RFT
from quintain_offline.reward_model import ProcessRewardModel, process_reward
from quintain_offline.sft.sources import Selection, source_of
from quintain_offline.sft.tuning import tune

from .common import ROOT, Line, Panel, Report, Study, main

LONGEST = 48
LEAST_SEEDS_OF = {"countdown": 3}
"""Of a part's page, where it is not five."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a study.

    Attributes:
        examples: demonstrations that the student of countdown learns from.
        valued: tasks whose rollouts train the value model, `answers` each.
        held_out: tasks of ``test`` that the searches answer.
        measured: tasks of ``test`` on which success of a run is measured.
        prompts, answers: tasks of a step, and samples of each.
        budget: sampled tokens of a run.
        searches: of the comparison without training, by name.
    """

    examples: int = 6144
    valued: int = 256
    held_out: int = 64
    measured: int = 64
    prompts: int = 16
    answers: int = 8
    budget: int = 24_000
    searches: Mapping[str, tuple[tuple[Any, ...], ...]] = field(
        default_factory=lambda: {
            "best of n": ((4,), (16,)),
            "beam": ((2, 2), (4, 4)),
            "MCTS": ((8,), (32,)),
        }
    )


QUICK = Size(
    examples=8,
    valued=8,
    held_out=2,
    measured=2,
    prompts=2,
    answers=4,
    budget=200,
    searches={"best of n": ((2,),), "beam": ((1, 2),), "MCTS": ((2,),)},
)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to train.

    Attributes:
        sampler: ``plain``, ``tree`` or ``mcts``.
        reward: ``outcome``, or ``process`` for the least value of a step in its place.
    """

    algorithm: Algorithm
    sampler: str = "plain"
    reward: str = "outcome"


ARMS: dict[str, Arm] = {
    "policy gradient": Arm(algorithm=ALGORITHMS["dr_grpo"]),
    "tree advantages": Arm(algorithm=TREE_CREDIT, sampler="tree"),
    "values as credit": Arm(algorithm=VALUE_STEPS),
    "values as reward": Arm(algorithm=ALGORITHMS["dr_grpo"], reward="process"),
    "imitation, plain": Arm(algorithm=RFT),
    "imitation, MCTS": Arm(algorithm=RFT, sampler="mcts"),
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """An environment, the learning rate of runs on it, and what is measured there.

    Attributes:
        size: of its part of the study.
        arms: ways to train.
        seeds: at most, whatever ``--seeds`` says; those of the page are what time allowed.
    """

    environment: Environment[Any, Any]
    rate: float = 1.5e-4
    size: Size = field(default_factory=Size)
    arms: Sequence[str] = tuple(ARMS)
    seeds: int = 5


EASY: dict[str, Any] = {"levels": (3,), "highest": 10, "targets": (5, 20)}
"""Countdown as a model of a million parameters can learn it: three numbers of at most 10."""
FIELDS: dict[str, Field] = {
    "arithmetic": Field(
        environment=Arithmetic(levels=(1, 2, 3), reworded=0.6),
        arms=("policy gradient", "tree advantages", "values as reward"),  # others: not run yet
    ),
    "countdown": Field(
        environment=Countdown(**EASY),
        rate=1e-4,
        # all tasks of test: there are no more
        size=Size(examples=20_000, budget=96_000, measured=130),
        seeds=3,  # more did not fit into the time
    ),
}


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Success of searches by tokens of a task, and of trained models by tokens of a run."""
    return study_of(["arithmetic"] if quick else [*FIELDS], seeds, quick)


def study_of(names: Sequence[str], seeds: Sequence[int], quick: bool) -> Report:
    """Return the report of the environments called *names*.

    Raises:
        UsageError: *quick* with ``countdown``, of which a tiny student solves nothing.
    """
    fields = {
        name: replace(FIELDS[name], size=QUICK, arms=tuple(ARMS)) if quick else FIELDS[name]
        for name in names
    }
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) if quick else ROOT / "runs" / "tree_search"
        answered: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in fields}
        trained: dict[str, dict[str, list[dict[str, list[float]]]]] = {
            name: {arm: [] for arm in place.arms} for name, place in fields.items()
        }
        for seed in seeds:  # outermost: a study that is stopped has whole seeds
            for name, place in fields.items():
                if seed >= place.seeds:
                    continue
                for label, found in search_results(store / name, place, seed).items():
                    answered[name].setdefault(label, []).append(found)
                for arm in place.arms:
                    trained[name][arm].append(run_results(store / name, place, arm, seed))
        values = {name: json.loads((store / name / "value.json").read_text()) for name in fields}
    return Report(
        panels=[*search_panels(answered), *run_panels(trained)],
        contrasts=contrasts_of(answered, trained),
        settings={
            "temperature": 1.0,
            "budget": {name: place.size.budget for name, place in fields.items()},
            "rate": {name: place.rate for name, place in fields.items()},
            "value models": values,
        },
        notes=[
            *(f"value model of {name}: {report}" for name, report in values.items()),
            *(
                f"{name}, {label}: tokens a task {fmean(f['tokens'] for f in found):.0f}, success "
                f"{[round(f['success'], 3) for f in found]}"
                for name, by_label in answered.items()
                for label, found in by_label.items()
            ),
            *(
                f"{name}, {arm}, run {number}: {curve}"
                for name, arms in trained.items()
                for arm, curves in arms.items()
                for number, curve in enumerate(curves)
            ),
        ],
    )


PARTS: Mapping[str, Study] = {name: partial(study_of, [name]) for name in FIELDS}
"""What ``--only`` runs."""


def search_panels(
    answered: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]],
) -> list[Panel]:
    """Success by tokens of a task, a line for each kind of search."""
    panels = []
    for name, by_label in answered.items():
        lines: dict[str, list[Sequence[Mapping[str, float]]]] = {}
        for label, found in by_label.items():
            lines.setdefault(label.partition(" (")[0], []).append(found)
        panels.append(
            Panel(
                title=f"{name}: answers to held-out tasks",
                xlabel="tokens of a task",
                log_x=True,
                lines=[
                    Line(
                        label=kind,
                        x=[fmean(f["tokens"] for f in found) for found in points],
                        values=[
                            list(row)
                            for row in zip(
                                *([f["success"] for f in found] for found in points), strict=True
                            )
                        ],
                    )
                    for kind, points in lines.items()
                ],
            )
        )
    return panels


def run_panels(
    trained: Mapping[str, Mapping[str, Sequence[Mapping[str, list[float]]]]],
) -> list[Panel]:
    """Held-out success, greedy and sampled, by tokens of a run."""
    return [
        Panel(
            title=f"{name}, training: {success}",
            xlabel="tokens sampled",
            lines=[
                Line(
                    label=arm,
                    x=[fmean(x) for x in zip(*(c["tokens"] for c in curves), strict=True)],
                    values=[c[success] for c in curves],
                )
                for arm, curves in arms.items()
            ],
        )
        for name, arms in trained.items()
        for success in ("greedy", "sampled")
    ]


def contrasts_of(
    answered: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]],
    trained: Mapping[str, Mapping[str, Sequence[Mapping[str, list[float]]]]],
) -> dict[str, list[float]]:
    """Each arm less the policy gradient half-way and at the end, and each search less the majority
    and the best of n that sample about as many tokens.
    """
    found = {}
    for name, arms in trained.items():
        for arm, curves in arms.items():
            if arm != "policy gradient":
                for success in ("greedy", "sampled"):
                    for place, when in ((1, "half-way"), (2, "at the end")):
                        found[f"{name}: {arm} less policy gradient, {success}, {when}"] = [
                            own[success][place] - first[success][place]
                            for own, first in zip(curves, arms["policy gradient"], strict=True)
                        ]
    for name, by_label in answered.items():
        for label, results in by_label.items():
            if not label.startswith(("best of", "beam", "MCTS")):
                continue
            for kind in ("majority", "best of"):
                if label.startswith(kind):
                    continue
                other = of_equal_tokens(by_label, kind, results)
                found[f"{name}: {label} less {other}"] = [
                    own["success"] - first["success"]
                    for own, first in zip(results, by_label[other], strict=True)
                ]
    return found


def of_equal_tokens(
    by_label: Mapping[str, Sequence[Mapping[str, float]]],
    kind: str,
    results: Sequence[Mapping[str, float]],
) -> str:
    """Return the label of *kind* whose tokens of a task are nearest to those of *results*."""
    tokens = {
        label: fmean(f["tokens"] for f in found)
        for label, found in by_label.items()
        if label.startswith(kind)
    }
    own = fmean(f["tokens"] for f in results)
    return min(tokens, key=lambda label: abs(math.log(tokens[label] / own)))


# ------------------------------------------------------------------------------------- the models
def student_in(store: Path, place: Field) -> str:
    """Return the folder of the student: the default model of arithmetic, which for countdown
    imitates worked solutions first.
    """
    folder = store / "student"
    if not folder.exists():
        recipe = Recipe.load("quickstart")
        model = ModelSource.of(recipe).load(ModelRequest.of(recipe, Screen(quiet=True)))
        if isinstance(place.environment, Countdown):
            args = {**EASY, "levels": [*EASY["levels"]], "targets": [*EASY["targets"]]}
            table = EnvironmentTable(use="quintain-env-math/countdown", args=args)
            examples = source_of(table, Selection(count=place.size.examples))
            learner, _ = tune(model, examples, epochs=1, lr=1e-3)
        else:
            learner = Learner(model.module)
        save_model(folder, learner, model.tokenizer, {})
    return str(folder)


def value_in(store: Path, place: Field) -> str:
    """Return the folder of the value model, trained on rollouts of the student."""
    folder = store / "value"
    if not (store / "value.json").exists():
        policy = student_in(store, place)
        model = load_model(policy, device="cpu")
        groups = asyncio.run(sampled_groups(model, place))
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        rows = rows_of(rollouts, model.tokenizer.stop_ids)
        report = fit_value(policy, rows, folder, epochs=2, lr=3e-4)
        tokens = sum(len(row.ids) - row.first for row in rows)
        write(store / "value.json", {**vars(report), "tokens": tokens})
    return str(folder)


async def sampled_groups(model: LoadedModel, place: Field) -> Sequence[Any]:
    """Return groups of the student on tasks that no run trains on."""
    async with EmbeddedEngine.sharing(
        model.module, model.tokenizer, slots=place.size.prompts * place.size.answers
    ) as engine:
        tasks = islice(place.environment.tasks("train"), place.size.valued)
        requests = requests_of(place, tasks, 0)
        return await run_groups(
            requests,
            RolloutContext(engine=engine, sampling=Sampling(max_tokens=LONGEST), run_seed=99),
        )


def requests_of(place: Field, tasks: Any, first: int) -> list[RolloutRequest]:
    """Return a group for each of *tasks*, numbered from *first*."""
    return [
        RolloutRequest(
            environment=place.environment,
            task=task,
            group_size=place.size.answers,
            name=type(place.environment).__name__,
            index=first + number,
        )
        for number, task in enumerate(tasks)
    ]


def write(place: Path, data: Mapping[str, Any]) -> None:
    """Write a file at once, so that one that is there is complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(data))
    unfinished.replace(place)


# --------------------------------------------------------------------------------- without training
def search_results(store: Path, place: Field, seed: int) -> dict[str, dict[str, float]]:
    """Return tokens of a task and success of each search of the student; those that *store* has are
    not repeated.
    """
    policy, value = student_in(store, place), value_in(store, place)
    ways = [("plain", ())] + [
        (kind, way) for kind, ways in place.size.searches.items() for way in ways
    ]
    found: dict[str, dict[str, float]] = {}
    for kind, way in ways:
        words = " ".join(map(str, (kind, *way, seed)))
        file = store / "search" / f"{words.replace(' ', '-')}.json"
        if not file.exists():
            model = load_model(policy, device="cpu")
            if kind == "plain":
                result = asyncio.run(plain_answers(model, place, seed))
            else:
                result = asyncio.run(searched(model, value, place, seed, kind, way))
            write(file, result)
        found |= json.loads(file.read_text())
    return found


async def plain_answers(model: LoadedModel, place: Field, seed: int) -> dict[str, dict[str, float]]:
    """Answer the held-out tasks greedily and by samples, and vote."""
    async with EmbeddedEngine.sharing(model.module, model.tokenizer, slots=128) as engine:
        greedy = await evaluated(engine, place, seed, temperature=0.0)
        counts = [n for (n,) in place.size.searches["best of n"]]
        plain = await evaluated(engine, place, seed, samples=max(counts))
    each = tokens_of(plain) / max(counts)
    found = {"greedy": {"tokens": tokens_of(greedy), "success": greedy.accuracy.value}}
    for n in (1, *counts):
        found[f"any of n, an upper bound ({n})"] = {
            "tokens": each * n,
            "success": plain.pass_at(n).value,
        }
    for n in counts:
        found[f"majority ({n})"] = {"tokens": each * n, "success": plain.cons_at(n).value}
    return found


async def searched(
    model: LoadedModel,
    value: str,
    place: Field,
    seed: int,
    kind: str,
    way: Sequence[int],
) -> dict[str, dict[str, float]]:
    """Answer the held-out tasks by one search."""
    if kind == "MCTS":
        engine = sharing(MCTSEngine, model, value=value, simulations=way[0])
    elif kind == "beam":
        engine = sharing(BeamEngine, model, value=value, width=way[0], branches=way[1])
    else:
        settings = {"width": 1, "branches": way[0], "by": "answer"}
        engine = sharing(BeamEngine, model, value=value, **settings)
    async with engine:
        result = await evaluated(engine, place, seed)
    name = f"{kind} ({' x '.join(map(str, way))})"
    tokens = engine.sampled_tokens / place.size.held_out
    return {name: {"tokens": tokens, "success": result.accuracy.value}}


def sharing(kind: Any, model: LoadedModel, **settings: Any) -> Any:
    """Return an engine of *kind* over a loaded model."""
    return kind.sharing(model.module, model.tokenizer, slots=128, **settings)


async def evaluated(
    engine: TokenEngine,
    place: Field,
    seed: int,
    *,
    temperature: float = 1.0,
    samples: int = 1,
    tasks: int | None = None,
) -> Any:
    """Evaluate on the held-out tasks, or on so many of them."""
    return await evaluate(
        place.environment,
        engine,
        split="test",
        tasks=tasks or place.size.held_out,
        samples=samples,
        sampling=Sampling(temperature=temperature, max_tokens=LONGEST),
        seed=seed,
    )


def tokens_of(evaluation: Any) -> float:
    """Return the mean number of tokens that were sampled for a task."""
    return fmean(
        sum(turn.tokens for rollout in group.rollouts for turn in rollout.turns)
        for group in evaluation.groups
    )


# ------------------------------------------------------------------------------------ with training
def run_results(store: Path, place: Field, arm: str, seed: int) -> dict[str, list[float]]:
    """Return tokens and held-out success of a run at its start, middle and end, from *store* if
    there.
    """
    file = store / f"{arm.replace(', ', '-').replace(' ', '-')}-{seed}.json"
    if not file.exists():
        policy = student_in(store, place)
        value = value_in(store, place)
        start = start_of(store, place)
        write(file, asyncio.run(run(policy, value, place, ARMS[arm], seed, start)))
    found: dict[str, list[float]] = json.loads(file.read_text())
    return found


def start_of(store: Path, place: Field) -> dict[str, float]:
    """Return held-out success of the student, which all runs begin with."""
    file = store / "start.json"
    if not file.exists():
        model = load_model(student_in(store, place), device="cpu")

        async def measured() -> dict[str, float]:
            async with EmbeddedEngine.sharing(model.module, model.tokenizer, slots=128) as engine:
                return await success_of(engine, place)

        write(file, asyncio.run(measured()))
    found: dict[str, float] = json.loads(file.read_text())
    return found


async def success_of(engine: TokenEngine, place: Field) -> dict[str, float]:
    """Return held-out success, greedy and sampled."""
    found = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        result = await evaluated(
            engine, place, 1, temperature=temperature, tasks=place.size.measured
        )
        found[name] = result.accuracy.value
    return found


async def run(
    policy: str,
    value: str,
    place: Field,
    arm: Arm,
    seed: int,
    start: Mapping[str, float],
) -> dict[str, list[float]]:
    """Train until the budget of sampled tokens is spent; *start* is the success before."""
    model = load_model(policy, device="cpu")
    learner = Learner(model.module, arm.algorithm, lr=place.rate, warmup_steps=2)
    rater = ProcessRewardModel(
        model=value, head="labels", separator="\n", split="\n", reduce="min", device="cpu"
    )
    plain = EmbeddedEngine.sharing(model.module, model.tokenizer, slots=128)
    depth = max(1, place.size.answers.bit_length() - 1)
    sampler: Any = {
        "plain": plain,
        "tree": sharing(TreeEngine, model, branches=2, depth=depth),
        "mcts": sharing(MCTSEngine, model, value=value, simulations=8),
    }[arm.sampler]
    trained = place
    if arm.reward == "process":
        trained = replace(place, environment=place.environment.overridden(reward=process_reward))
    curve: dict[str, list[float]] = {"tokens": [], "greedy": [], "sampled": [], "updates": []}
    spent, updates = 0, 0
    async with plain, sampler, rater, ValueModel(model=value, device="cpu") as values:
        learner.serve({"policy": sampler, "value": values})
        # No task of the value model; seeds train on different ones.
        first = place.size.valued + seed * 100 * place.size.prompts
        tasks = islice(place.environment.tasks("train"), first, None)
        marks = [0.0, place.size.budget / 2, place.size.budget]
        while marks:
            if spent >= marks[0]:
                marks.pop(0)
                curve["tokens"].append(spent)
                curve["updates"].append(updates)
                success = await success_of(plain, place) if updates else start
                curve["greedy"].append(success["greedy"])
                curve["sampled"].append(success["sampled"])
                continue
            before = getattr(sampler, "sampled_tokens", 0)
            groups = await run_groups(
                requests_of(
                    trained, islice(tasks, place.size.prompts), updates * place.size.prompts
                ),
                RolloutContext(
                    engine=sampler,
                    sampling=Sampling(max_tokens=LONGEST),
                    services={"process_reward_model": rater},
                    run_seed=seed,
                    step=updates,
                ),
            )
            batch = learner.batch(groups, temperature=1.0, max_tokens=LONGEST)
            prepared = learner.prepare(batch)
            advantages = await learner.compute_advantages(prepared)
            learner.step(prepared, advantages=advantages)
            for engine in {id(e): e for e in (plain, sampler)}.values():
                await engine.update(learner.weights())
            searched = getattr(sampler, "sampled_tokens", 0) - before
            spent += searched or batch.tokens
            updates += 1
    return curve


if __name__ == "__main__":
    main(study, parts=PARTS)
