"""How much does a staleness of 0, 1, 4 or 8 versions cost, and what do corrections give back?

The sampler draws from the weights of some steps ago, as in asynchronous training; log-probs of both
are exact, so that staleness is all that differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from quintain.learning.algorithms import DR_GRPO
from quintain_algorithms.corrections import icepop
from quintain_algorithms.objectives import cispo

from .common import Line, Panel, Report, differences, generator, main
from .tables import Pupil, learn, play

STALENESS = (0, 1, 4, 8)
PROMPTS, GROUP_SIZE, STEPS, RATES = 16, 8, 60, (0.03, 0.1)
BASE = DR_GRPO.replace(objective="policy_gradient", aggregation={"use": "constant", "length": 1})
VARIANTS = {
    "no correction": BASE,
    "importance ratio": BASE.replace(objective="importance", ratio_to="mu"),
    "TIS, cap 2": BASE.replace(correction="tis"),
    "CISPO, cap 5": BASE.replace(objective=cispo, ratio_to="mu"),
    "PPO clip 0.2 to mu": BASE.replace(objective="ppo_clip", ratio_to="mu"),
    "IcePop 0.5 to 5": BASE.replace(correction=icepop),
}


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Exact success on held-out prompts after training, by staleness; once at a modest and once at
    a bold learning rate.
    """
    steps = 3 if quick else STEPS
    panels = []
    contrasts: dict[str, list[float]] = {}
    for rate in RATES:
        results: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
        for seed in seeds:
            for name, values in results.items():
                values.append(
                    [_trained(name, seed, staleness, steps, rate) for staleness in STALENESS]
                )
        # Seeds differ in their tasks by more than any method does: what staleness 0 reached is
        # taken off, seed by seed.
        fresh = [row[0] for row in results["no correction"]]
        costs = {
            n: [[x - f for x in row] for row, f in zip(v, fresh, strict=True)]
            for n, v in results.items()
        }
        lines = [Line(label=name, x=STALENESS, values=values) for name, values in costs.items()]
        panel = Panel(
            title=f"mean success less that of staleness 0, lr {rate:g}",
            xlabel="staleness (versions)",
            lines=lines,
        )
        panels.append(panel)
        bare = panel.line("no correction")
        contrasts |= {
            f"lr {rate:g}: staleness {staleness} less staleness 0, no correction": bare.at(i)
            for i, staleness in enumerate(STALENESS)
            if staleness
        }
        contrasts |= {
            f"lr {rate:g}, staleness 8: {name} less no correction": differences(
                panel.line(name), bare
            )
            for name in list(VARIANTS)[1:]
        }
    return Report(
        panels=panels,
        contrasts=contrasts,
        settings={
            "prompts": PROMPTS,
            "group_size": GROUP_SIZE,
            "steps": steps,
            "lr": RATES,
            "staleness": STALENESS,
        },
    )


def _trained(name: str, seed: int, staleness: int, steps: int, rate: float) -> float:
    """Mean over the steps of exact success on held-out prompts."""
    pupil = Pupil.born(seed)
    optimizer = torch.optim.Adam([pupil.weights], lr=rate)
    draw = generator(seed, 8)
    versions: deque[torch.Tensor] = deque(maxlen=staleness + 1)
    total = 0.0
    for _ in range(steps):
        versions.append(pupil.table().detach().clone())
        prompts = torch.randperm(len(pupil.train), generator=draw)[:PROMPTS].tolist()
        played = pupil.scored(play(pupil.world, versions[0], prompts, GROUP_SIZE, draw))
        learn(VARIANTS[name], pupil.table, optimizer, played, 1)
        total += pupil.passes(1)
    return total / steps


if __name__ == "__main__":
    main(study)
