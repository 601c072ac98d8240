"""Does an optimal token baseline with 4 samples do what a group mean needs 32 for? OTB against
group means.

Answers are walks through positions; the reward says whether the whole walk was right, so early
tokens are hard to credit. Noise and direction of the update are measured against the exact
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quintain_algorithms import OTB

from .common import Line, Panel, Report, differences, generator, main
from .tables import END, Played, World, learn, play

LENGTH, VOCAB, RIGHT, ENDING = 16, 4, 5, 0.05
GROUPS, STEPS, RATE = 4, 60, 0.1
DRAWS = 200
SPREADS = {"even": 0.5, "uneven": 2.0}
"""Standard deviation of the logits at the start: with an uneven policy some tokens are nearly
certain, others open.
"""
ALGORITHM = OTB.replace(aggregation={"use": "constant", "length": 1})
METHODS = {
    "optimal token, 4": (ALGORITHM, 4),
    "group mean, 4": (ALGORITHM.replace(advantage="group_mean"), 4),
    "no baseline, 4": (ALGORITHM.replace(advantage="raw"), 4),
    "optimal token, 32": (ALGORITHM, 32),
    "group mean, 32": (ALGORITHM.replace(advantage="group_mean"), 32),
}
"""Algorithm and group size. Leaving the sample itself out only scales the group mean, which nothing
here sees.
"""


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Noise of one update at the start, then training with equal numbers of prompts a step."""
    draws, steps = (5, 4) if quick else (DRAWS, STEPS)
    xs = list(range(0, steps + 1, 2))
    noise: dict[tuple[str, str], list[float]] = {
        (kind, name): [] for kind in SPREADS for name in METHODS
    }
    tilt: dict[tuple[str, str], list[float]] = {
        (kind, name): [] for kind in SPREADS for name in METHODS
    }
    curves: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for seed in seeds:
        for name, values in curves.items():
            for kind in SPREADS:
                spread, cosine = _noise(name, kind, seed, draws)
                noise[kind, name].append(spread)
                tilt[kind, name].append(cosine)
            values.append(_trained(name, seed, steps, xs))
    against = "prompts a step are equal"
    panels = [
        Panel(
            title="expected reward",
            xlabel=f"step ({against})",
            lines=[Line(label=n, x=xs, values=v) for n, v in curves.items()],
        ),
        Panel(
            title="expected reward",
            xlabel="samples",
            lines=[_by_samples(n, xs, v) for n, v in curves.items()],
        ),
    ]
    best, wide = panels[0].line("optimal token, 4"), panels[0].line("group mean, 32")
    return Report(
        panels=panels,
        contrasts={
            **{
                f"noise / signal of one group, {kind} policy: {n}": v
                for (kind, n), v in noise.items()
            },
            **{
                f"cosine of mean update and gradient, {kind} policy: {n}": v
                for (kind, n), v in tilt.items()
            },
            "reward half-way, optimal token 4 less group mean 32": differences(
                best, wide, len(xs) // 2
            ),
            "reward half-way, optimal token 4 less group mean 4": differences(
                best, panels[0].line("group mean, 4"), len(xs) // 2
            ),
            "reward half-way, optimal token 32 less group mean 32": differences(
                panels[0].line("optimal token, 32"), wide, len(xs) // 2
            ),
        },
        settings={
            "length": LENGTH,
            "vocabulary": VOCAB,
            "groups": GROUPS,
            "lr": RATE,
            "draws": draws,
        },
    )


def _by_samples(name: str, xs: Sequence[int], values: Sequence[Sequence[float]]) -> Line:
    """As far as the smaller groups came."""
    group_size = METHODS[name][1]
    count = max(1, len(xs) * 4 // group_size)
    return Line(
        label=name,
        x=[x * GROUPS * group_size for x in xs[:count]],
        values=[row[:count] for row in values],
    )


def _world() -> World:
    """State t is position t; token 0 ends the walk early, which is wrong."""
    following = torch.arange(1, LENGTH + 1).repeat_interleave(VOCAB).view(LENGTH, VOCAB).clone()
    following[-1] = END
    following[:, 0] = END
    return World(next=following, start=torch.zeros(1, dtype=torch.long), longest=LENGTH)


def _rewarded(played: Played) -> Played:
    """1 where the walk went to the end and at least `RIGHT` of its tokens are 1; so credit is
    spread.
    """
    full = (
        torch.bincount(played.owner, played.token.ne(0).double(), minlength=len(played.prompt))
        == LENGTH
    )
    ones = torch.bincount(played.owner, played.token.eq(1).double(), minlength=len(played.prompt))
    return played.scored((full & (ones >= RIGHT)).double().tolist())


def _start(seed: int, kind: str = "even") -> Tensor:
    logits = SPREADS[kind] * torch.randn(
        LENGTH, VOCAB, dtype=torch.float64, generator=generator(seed, 5)
    )
    logits[:, 0] = (
        logits[:, 1:].logsumexp(-1) + torch.tensor(ENDING / (1 - ENDING), dtype=torch.float64).log()
    )
    return logits


def _reward(logits: Tensor) -> Tensor:
    """Expected reward, by the recursion over positions and ones so far."""
    probs = logits.softmax(-1)
    chance = [torch.ones((), dtype=torch.float64)] + [torch.zeros((), dtype=torch.float64)] * RIGHT
    for p in probs:
        other = p[2:].sum()
        moved = [chance[0] * other]
        moved += [chance[k] * other + chance[k - 1] * p[1] for k in range(1, RIGHT)]
        moved.append(chance[RIGHT] * (other + p[1]) + chance[RIGHT - 1] * p[1])
        chance = moved
    return chance[RIGHT]


def _gradient(logits: Tensor) -> Tensor:
    parameter = logits.detach().clone().requires_grad_()
    return torch.autograd.grad(_reward(parameter), parameter)[0]


def _update(name: str, logits: Tensor, draw: torch.Generator) -> Tensor:
    """Return the step that one group asks for, as an estimate of the gradient of the expected
    reward.
    """
    algorithm, group_size = METHODS[name]
    parameter = logits.detach().clone().requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    learn(
        algorithm,
        lambda: parameter,
        optimizer,
        _rewarded(play(_world(), logits, [0], group_size, draw)),
        LENGTH,
    )
    return parameter.detach() - logits


def _noise(name: str, kind: str, seed: int, draws: int) -> tuple[float, float]:
    """Standard deviation of one group's update over the mean update's part along the exact
    gradient, and the cosine between mean update and gradient.

    Both are free of the update's scale, which baselines that hold the sample itself shrink.
    """
    logits = _start(seed, kind)
    truth = _gradient(logits)
    draw = generator(seed, 6)
    updates = torch.stack([_update(name, logits, draw) for _ in range(draws)])
    mean = updates.mean(0)
    variance = float((updates - mean).square().sum() / max(1, draws - 1))
    along = float((mean * truth).sum() / truth.norm())
    # without the noise of the mean itself
    length = max(0.0, float(mean.square().sum()) - variance / draws) ** 0.5
    return variance**0.5 / along, min(1.0, along / length) if length else 1.0


def _trained(name: str, seed: int, steps: int, xs: Sequence[int]) -> list[float]:
    algorithm, group_size = METHODS[name]
    logits = _start(seed).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=RATE)  # the scale of an update must not matter
    draw = generator(seed, 7)
    out = []
    for step in range(steps + 1):
        if step in xs:
            out.append(float(_reward(logits.detach())))
        played = _rewarded(play(_world(), logits.detach(), [0] * GROUPS, group_size, draw))
        learn(algorithm, lambda: logits, optimizer, played, LENGTH)
    return out


if __name__ == "__main__":
    main(study)
