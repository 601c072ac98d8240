"""Importance sampling repairs off-policy data: the lecture's cats and dogs.

"You prefer cats or dogs?" Cats earn 10, dogs 2. All data come from an old policy that says cats one
time in five.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quintain.learning.algorithms import REINFORCE
from quintain_algorithms.objectives import cispo

from .common import Line, Panel, Report, differences, generator, main
from .tables import Played, World, learn, play

OLD, NEW = (0.2, 0.8), (0.8, 0.2)
REWARDS = (10.0, 2.0)
GROUP, STEPS, RATE = 32, 300, 0.05
LENGTHS = (1, 2, 4, 8, 16)
SAMPLES = 256

RAW = REINFORCE.replace(advantage="raw", aggregation={"use": "constant", "length": 1})
VARIANTS = {
    "no correction": RAW,
    "importance ratio": RAW.replace(objective="importance", ratio_to="mu"),
    "truncated at 2 (TIS)": RAW.replace(correction="tis"),
    "capped at 5 (CISPO)": RAW.replace(objective=cispo, ratio_to="mu"),
    "PPO clip 0.2": RAW.replace(objective="ppo_clip", ratio_to="mu"),
    "no correction, batch mean": RAW.replace(advantage="batch_mean"),
}
"""Rows of one answer a sample; the ratio is always to the old policy, which never moves."""


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Learn from the old policy's answers alone, and estimate the new policy's reward from them."""
    steps = 4 if quick else STEPS
    xs = list(range(0, steps + 1, 2 if quick else 10))
    curves: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    for seed in seeds:
        for name, values in curves.items():
            values.append(_trained(name, seed, steps, xs))
    learning = Panel(
        title="P(cats) of the learner",
        xlabel="step",
        lines=[Line(label=name, x=xs, values=values) for name, values in curves.items()],
        marks={"where uncorrected data lead: 10 x 0.2 / 3.6": OLD[0] * REWARDS[0] / expected(OLD)},
    )
    errors, weights = _estimates(seeds)
    plain, repaired = learning.line("no correction"), learning.line("importance ratio")
    return Report(
        panels=[learning, errors, weights],
        contrasts={"P(cats): importance ratio - no correction": differences(repaired, plain)},
        settings={
            "group": GROUP,
            "steps": steps,
            "lr": RATE,
            "old": OLD,
            "new": NEW,
            "samples": SAMPLES,
        },
        notes=[
            f"expected reward of the old policy {expected(OLD):.2f}, of the new one "
            f"{expected(NEW):.2f}",
            f"direction of the expected update at P(cats) = {NEW[0]}: without correction "
            f"{_slope(False):+.3f}, with it {_slope(True):+.3f}, truth "
            f"{NEW[0] * NEW[1] * (REWARDS[0] - REWARDS[1]):+.3f}",
        ],
    )


def expected(policy: Sequence[float]) -> float:
    """Reward of a policy."""
    return sum(p * r for p, r in zip(policy, REWARDS, strict=True))


def _slope(corrected: bool) -> float:
    """Expected derivative by the logit of cats at NEW, from data of OLD: exact."""
    weights = [n / o if corrected else 1.0 for n, o in zip(NEW, OLD, strict=True)]
    return sum(
        o * w * r * ((y == 0) - NEW[0])
        for y, (o, w, r) in enumerate(zip(OLD, weights, REWARDS, strict=True))
    )


def _trained(name: str, seed: int, steps: int, xs: Sequence[int]) -> list[float]:
    logits = torch.tensor(OLD, dtype=torch.float64).log()[None].requires_grad_()
    old = logits.detach().clone()
    optimizer = torch.optim.SGD([logits], lr=RATE)
    draw = generator(seed, 1)
    results = []
    for step in range(steps + 1):
        if step in xs:
            results.append(float(logits.detach().softmax(-1)[0, 0]))
        played = _rewarded(play(World.bandit(1, 2), old, [0], GROUP, draw))
        learn(VARIANTS[name], lambda: logits, optimizer, played, 1)
    return results


def _rewarded(played: Played) -> Played:
    return played.scored([REWARDS[t] for t in played.token.tolist()])


def _estimates(seeds: Sequence[int]) -> tuple[Panel, Panel]:
    """Reward of the new policy from the old one's answers of T pets each, and how many samples the
    weights are worth.

    The reward of an answer is the mean of its pets', so the truth is the same for every T.
    """
    old, new = torch.tensor(OLD, dtype=torch.float64), torch.tensor(NEW, dtype=torch.float64)
    values: dict[str, list[list[float]]] = {
        "no correction": [],
        "whole answers": [],
        "whole answers, normalised": [],
    }
    share: list[list[float]] = []
    for seed in seeds:
        rows: dict[str, list[float]] = {name: [] for name in values}
        shares = []
        for length in LENGTHS:
            pets = (
                torch.rand(SAMPLES, length, dtype=torch.float64, generator=generator(seed, length))
                > OLD[0]
            ).long()
            reward = torch.tensor(REWARDS, dtype=torch.float64)[pets].mean(1)
            weight = (new[pets] / old[pets]).prod(1)
            rows["no correction"].append(float(reward.mean()))
            rows["whole answers"].append(float((weight * reward).mean()))
            rows["whole answers, normalised"].append(float((weight * reward).sum() / weight.sum()))
            shares.append(_worth(weight))
        for name, algorithm in rows.items():
            values[name].append(algorithm)
        share.append(shares)
    errors = Panel(
        title=f"estimated reward of the new policy, {SAMPLES} answers",
        xlabel="pets in an answer",
        lines=[Line(label=name, x=LENGTHS, values=v) for name, v in values.items()],
        log_x=True,
        marks={"truth": expected(NEW)},
    )
    worth = Panel(
        title="effective share of the samples",
        xlabel="pets in an answer",
        lines=[Line(label="(sum w)^2 / (N sum w^2)", x=LENGTHS, values=share)],
        log_x=True,
        log_y=True,
    )
    return errors, worth


def _worth(weight: Tensor) -> float:
    return float(weight.sum().square() / weight.square().sum() / len(weight))


if __name__ == "__main__":
    main(study)
