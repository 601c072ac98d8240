"""Zero-variance groups: leave them in, filter them, or sample until the batch is full (DAPO's
dynamic sampling)?

Refilling makes every step a full batch of groups that teach something, and pays for it in samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quintain.learning.algorithms import DR_GRPO

from .common import Line, Panel, Report, generator, main
from .tables import Played, Pupil, accepted, joined, learn, play

PROMPTS, GROUP_SIZE, STEPS, RATE, ATTEMPTS = 16, 4, 120, 0.02, 10
GRID = 24
BASE = DR_GRPO.replace(objective="policy_gradient", aggregation={"use": "constant", "length": 1})
FILTER = BASE.replace(group_filter="varied")
METHODS = {
    "all groups": (BASE, False),
    "filtered": (FILTER, False),
    "dynamic sampling": (FILTER, True),
}
"""Algorithm, and whether rejected groups are replaced."""


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Exact success on held-out prompts by steps and by samples, for a weak and for a strong
    beginner.
    """
    steps = 6 if quick else STEPS
    panels: list[Panel] = []
    contrasts: dict[str, list[float]] = {}
    for skill, strength in ((0.35, "weak"), (0.8, "strong")):
        results = {name: [_trained(name, seed, skill, steps) for seed in seeds] for name in METHODS}
        xs = list(range(0, steps + 1, 2))
        by_step = [
            Line(label=n, x=xs, values=[[r[1][x] for x in xs] for r in runs])
            for n, runs in results.items()
        ]
        shared_samples = min(run[0][-1] for runs in results.values() for run in runs)
        grid = [shared_samples * i / GRID for i in range(GRID + 1)]
        by_sample = [
            Line(label=n, x=grid, values=[[_at(r, x) for x in grid] for r in runs])
            for n, runs in results.items()
        ]
        panels.append(Panel(title=f"success, {strength} beginner", xlabel="step", lines=by_step))
        panels.append(
            Panel(title=f"success, {strength} beginner", xlabel="samples", lines=by_sample)
        )
        for name in list(METHODS)[1:]:
            for axis, lines in (("steps", by_step), ("samples", by_sample)):
                one, other = (
                    next(line for line in lines if line.label == n) for n in (name, "all groups")
                )
                contrasts[
                    f"{strength}, equal {axis}, mean over training: {name} less all groups"
                ] = [
                    sum(a) / len(a) - sum(b) / len(b)
                    for a, b in zip(one.values, other.values, strict=True)
                ]
        contrasts[f"{strength}: samples a step of dynamic sampling, over those of all groups"] = [
            run[0][-1] / (steps * PROMPTS * GROUP_SIZE) for run in results["dynamic sampling"]
        ]
    return Report(
        panels=panels,
        contrasts=contrasts,
        settings={
            "prompts": PROMPTS,
            "group_size": GROUP_SIZE,
            "lr": RATE,
            "steps": steps,
            "attempts": ATTEMPTS,
        },
    )


def _at(run: tuple[list[int], list[float]], samples: float) -> float:
    """Success after that number of samples, between steps by a straight line."""
    used, success = run
    for i in range(1, len(used)):
        if used[i] >= samples:
            part = (samples - used[i - 1]) / max(1, used[i] - used[i - 1])
            return success[i - 1] + part * (success[i] - success[i - 1])
    return success[-1]


def _trained(name: str, seed: int, skill: float, steps: int) -> tuple[list[int], list[float]]:
    """Samples used and exact success on held-out prompts before each step and at the end."""
    algorithm, resample = METHODS[name]
    pupil = Pupil.born(seed, skill=skill)
    optimizer = torch.optim.Adam([pupil.weights], lr=RATE)
    draw = generator(seed, 9)
    samples, used, success = 0, [0], [pupil.passes(1)]
    for _ in range(steps):
        parts: list[Played] = []
        groups = 0
        for _ in range(ATTEMPTS if resample else 1):
            prompts = torch.randperm(len(pupil.train), generator=draw)[: PROMPTS - groups].tolist()
            played = pupil.scored(
                play(pupil.world, pupil.table().detach(), prompts, GROUP_SIZE, draw)
            )
            samples += len(played.rewards)
            if (accepted_part := accepted(algorithm, played)) is not None:
                parts.append(accepted_part)
                groups += len(accepted_part.groups())
            if groups >= PROMPTS:
                break
        if parts:
            learn(algorithm, pupil.table, optimizer, joined(parts), 1)
        used.append(samples)
        success.append(pupil.passes(1))
    return used, success


if __name__ == "__main__":
    main(study)
