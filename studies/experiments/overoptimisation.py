"""Does an ensemble with a penalty on its disagreement delay over-optimisation of a reward model?

Sums of two numbers: right or wrong is known (the gold reward), but the policy trains on the score
of reward models that learned from pairs of worked answers, some of them labelled wrong. Held-out
answers are scored by both.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from quintain.console import for_terminal
from quintain.recipe import ModelRequest, ModelSource, Recipe
from quintain.run import run_training
from quintain.store import RunFolder
from quintain.types import derived_seed
from quintain_env_math.arithmetic import MARK, Arithmetic
from quintain_offline.reward_model import (
    RewardTraining,
    TrainingSettings,
    new_scoring_model,
    split_by_prompt,
)
from quintain_offline.reward_model.pairs import read_pairs, write_rows

from .common import Line, Panel, Report, differences, main

LEAST_SEEDS = 1
"""Of a full study, instead of five: each seed trains two policies for 200 steps; the page says
which seed it shows.
"""
PAIRS, NOISE, MODELS, PENALTY = 800, 0.15, 3, 2.0
STEPS, EVERY = 200, 20
ARMS = {"one reward model": 1, f"{MODELS} models, mean - {PENALTY:g} std": MODELS}
NETWORK = {
    "hidden": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 4,
    "head_dim": 32,
    "intermediate": 128,
}
ENVIRONMENT = {"operations": "+", "levels": [2], "slips": 0.55}


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Proxy and gold reward of held-out answers by training step, and gold reward by KL
    divergence.
    """
    logging.getLogger("quintain").setLevel(logging.ERROR)
    steps, every = (1, 1) if quick else (STEPS, EVERY)
    curves: dict[str, list[list[dict[str, Any]]]] = {arm: [] for arm in ARMS}
    ranked = []
    with tempfile.TemporaryDirectory(prefix="quintain-overoptimisation-") as name:
        place = Path(name)
        start = warm_started(quick)
        for seed in seeds:
            models, accuracies = reward_models(start, place / str(seed), seed, quick)
            ranked += accuracies
            for number, (arm, count) in enumerate(ARMS.items()):
                folder = place / f"{seed}-{number}"
                curves[arm].append(
                    optimised(start, models[:count], folder, seed, steps, every, quick)
                )
    xs = [row["step"] for row in curves[next(iter(ARMS))][0]]
    panels = [
        Panel(
            title=title,
            xlabel="step",
            lines=[_line(arm, rows, xs, key) for arm, rows in curves.items()],
        )
        for title, key in {
            "gold: share of held-out sums right": "gold",
            "proxy, in spreads of its reference set": "proxy",
            "KL from the first policy, nats per answer": "kl",
        }.items()
    ]
    gold = panels[0]
    one, ensemble = gold.lines
    return Report(
        panels=panels,
        contrasts={
            "gold, ensemble less one model, at the end": differences(ensemble, one),
            **{f"gold, end less start, {line.label}": differences_in(line, -1,
            0) for line in gold.lines},
            **{f"gold, best less end, {line.label}": _fall(line) for line in gold.lines},
        },
        settings={
            "pairs": PAIRS, "wrong labels": NOISE, "models": MODELS, "penalty": PENALTY,
            "steps": steps,
            "rollouts per step": 128, "pairs ranked right": [round(a, 3) for a in ranked],
        },
    )  # fmt: skip


def _line(arm: str, runs: Sequence[Sequence[dict[str, Any]]], xs: Sequence[int], key: str) -> Line:
    return Line(label=arm, x=xs, values=[[float(row[key]) for row in rows] for rows in runs])


def differences_in(line: Line, a: int, b: int) -> list[float]:
    """Seed by seed, between two places of one curve."""
    return [x - y for x, y in zip(line.at(a), line.at(b), strict=True)]


def _fall(line: Line) -> list[float]:
    return [max(row) - row[-1] for row in line.values]


# ---------------------------------------------------------------------------------------- the parts


def recipe_of(changes: str) -> Recipe:
    """Return the recipe *changes* writes, which has the environment of this study."""
    return Recipe.parse(changes, source="studies.experiments.overoptimisation")


def warm_started(quick: bool) -> str:
    """Return the folder of the policy that all runs begin with: it adds columns and forgets most
    carries.

    Its greedy answers never carry, so that they stay below the target and the warm start takes all
    its updates.
    """
    recipe = recipe_of(
        f"""
        [model]
        name = "quintain-starter/default"
        [model.start.args]
        model = {_toml({**NETWORK, "initializer_range": 0.1})}
        lr = 4e-3
        batch = 16
        check_every = {1 if quick else 40}
        max_steps = {2 if quick else 2000}
        settle = {1 if quick else 5}
        tasks = {10 if quick else 100}
        target = {[0.0, 1.0] if quick else [0.64, 0.8]}
        [[environments]]
        use = "quintain-env-math/arithmetic"
        args = {_toml(ENVIRONMENT)}
        """
    )
    with for_terminal(quiet=True) as screen:
        return str(ModelSource.of(recipe).load(ModelRequest.of(recipe, screen)).path)


def _toml(args: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in args.items()) + " }"


def reward_models(
    start: str, folder: Path, seed: int, quick: bool
) -> tuple[list[str], list[float]]:
    """Train the reward models, each on pairs of its own; their folders, and their held-out
    accuracies.
    """
    folder.mkdir()
    folders, accuracies = [], []
    for number in range(2 if quick else MODELS):
        path = folder / f"pairs-{number}.jsonl"
        write_rows(
            path, islice(labelled(derived_seed(seed, "labels", number)), 12 if quick else PAIRS)
        )
        pairs, held_out = split_by_prompt(read_pairs(str(path)), 0.15, seed)
        settings = TrainingSettings(
            epochs=1 if quick else 4,
            lr=1e-3,
            batch=16,
            centering=0.01,
            seed=derived_seed(seed, "order", number) % 2**31,
        )
        model = new_scoring_model(start, seed=settings.seed, device="cpu")
        training = RewardTraining(model=model, pairs=pairs, held_out=held_out, settings=settings)
        report = training.run()
        training.save(folder / f"rm-{number}", report)
        folders.append(str(folder / f"rm-{number}"))
        accuracies.append(report.held_out.accuracy if report.held_out else 0.0)
    return folders, accuracies


def labelled(seed: int) -> Iterator[dict[str, Any]]:
    """Pairs of a right and a wrong worked answer to one sum; a share has the labels swapped."""
    rng = Random(seed)
    environment = Arithmetic(operations="+", levels=(2,), seed=rng.randrange(2**31))
    for task in environment.tasks("train"):
        wrong = next(
            answer
            for _ in count()
            if not (answer := worked(task.a, task.b, rng)).endswith(f" {task.answer}")
        )
        pair = [worked(task.a, task.b), wrong]
        if rng.random() < NOISE:
            pair.reverse()
        yield {"prompt": task.prompt, "chosen": pair[0], "rejected": pair[1]}


def worked(a: int, b: int, rng: Random | None = None) -> str:
    """Return the columns of a sum of two-digit numbers; with *rng* its carry is lost or invented,
    or one digit is another.
    """
    ones = a % 10 + b % 10
    carry_wrong = rng is not None and rng.random() < 0.75
    carry = 1 - ones // 10 if carry_wrong else ones // 10
    tens = a // 10 + b // 10 + carry
    lines = [f"{a % 10}+{b % 10}={ones}", f"{a // 10}+{b // 10}{'+1' if carry else ''}={tens}"]
    answer = "\n".join([*lines, f"{MARK} {10 * tens + ones % 10}"])
    if rng is None or carry_wrong:
        return answer
    position = rng.choice([i for i, character in enumerate(answer) if character.isdigit()])
    return answer[:position] + rng.choice("0123456789") + answer[position + 1 :]


def optimised(
    start: str, models: Sequence[str], folder: Path, seed: int, steps: int, every: int, quick: bool
) -> list[dict[str, Any]]:
    """Train the policy on the proxy alone; the rows of the monitor on the split ``dev``."""
    penalty = PENALTY if len(models) > 1 else 0.0
    recipe = recipe_of(
        f"""
        [run]
        steps = {steps}
        seed = {seed}
        [model]
        name = {json.dumps(start)}
        [[environments]]
        use = "quintain-env-math/arithmetic"
        args = {_toml(ENVIRONMENT)}
        reward = "learned_reward"
        [services.reward_model]
        use = "quintain-offline/reward_model"
        args = {{ models = {json.dumps(list(models))}, penalty = {penalty}, normalise = true, batch = 64 }}
        [services.monitor]
        use = "quintain-offline/overoptimisation"
        args = {{ gold = "use(\\"quintain_env_math.arithmetic:right_number\\")", kl = true }}
        [engine]
        args = {{ slots = 128 }}
        [sampling]
        temperature = 0.7
        max_tokens = 32
        [batch]
        prompts = {2 if quick else 16}
        group_size = {2 if quick else 8}
        [learner]
        lr = 5e-4
        [evaluation]
        every = {every}
        tasks = {2 if quick else 100}
        temperature = 0.7
        samples = {1 if quick else 2}
        test = {{ tasks = 0 }}
        [checkpoint]
        every = 0
        [rollouts]
        keep = "none"
        """
    )
    with (
        for_terminal(quiet=True) as screen,
        RunFolder.create(folder, recipe.to_toml()) as run_folder,
    ):
        run_training(recipe, run_folder, screen)
    rows = [
        json.loads(line) for line in (folder / "overoptimisation.jsonl").read_text().splitlines()
    ]
    return [row for row in rows if row["split"] == "dev"]


if __name__ == "__main__":
    main(study)
