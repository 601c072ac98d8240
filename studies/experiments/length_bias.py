"""Does dividing each answer's loss by its length change lengths? GRPO's sequence mean against Dr.
GRPO's constant.

Whether an answer is right is a coin's doing here, and so nothing about its length pays: any drift
is the estimator's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from quintain.learning.algorithms import DR_GRPO

from .common import Line, Panel, Report, differences, generator, main
from .tables import END, World, learn, play

LONGEST, STOP = 64, 0.08
PROMPTS, GROUP_SIZE, STEPS, RATE = 8, 16, 200, 0.5
VARIANTS = {
    name: DR_GRPO.replace(objective="policy_gradient", aggregation=aggregation)
    for name, aggregation in {
        "sequence mean (GRPO)": "sequence",
        "constant (Dr. GRPO)": {"use": "constant", "length": 12},
        "token mean (DAPO)": "token",
        "prompt mean (ScaleRL)": "prompt",
    }.items()
}
"""The same advantage, R - mean(group), for all. 12 is about the mean length, so that all steps are
of like size.
"""


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Mean length of right and of wrong answers, and the share of wrong ones that hit the limit."""
    steps = 10 if quick else STEPS
    xs = list(range(0, steps + 1, 10))
    results: dict[str, dict[str, list[list[float]]]] = {
        what: {name: [] for name in VARIANTS} for what in ("wrong", "right", "gap")
    }
    for seed in seeds:
        for name in VARIANTS:
            wrong, right = _trained(name, seed, steps, xs)
            results["wrong"][name].append(wrong)
            results["right"][name].append(right)
            results["gap"][name].append([w - r for w, r in zip(wrong, right, strict=True)])
    titles = {
        "wrong": "expected length of wrong answers",
        "right": "expected length of right answers",
    }
    panels = [
        Panel(
            title=t,
            xlabel="step",
            lines=[Line(label=n, x=xs, values=v) for n, v in results[what].items()],
        )
        for what, t in titles.items()
    ]
    gaps = Panel(
        title="",
        xlabel="step",
        lines=[Line(label=n, x=xs, values=v) for n, v in results["gap"].items()],
    )
    constant = gaps.line("constant (Dr. GRPO)")
    others = [line for line in gaps.lines if line is not constant]
    return Report(
        panels=panels,
        contrasts={
            **{f"wrong - right, {line.label}": line.at() for line in gaps.lines},
            **{
                f"wrong - right, {line.label} less constant": differences(line, constant)
                for line in others
            },
        },
        settings={
            "prompts": PROMPTS,
            "group_size": GROUP_SIZE,
            "lr": RATE,
            "stop": STOP,
            "longest": LONGEST,
        },
        notes=[_prediction()],
    )


def _prediction() -> str:
    """Of a wrong answer with the advantage A, T geometric: the expected derivative by the stop
    logit, exactly.
    """
    inverse = STOP * math.log(1 / STOP) / (1 - STOP)  # E[1 / T]
    return (
        "expected derivative of the loss-weighted log-prob by a stop logit, over A: sequence mean "
        f"E[1/T] - s = {inverse - STOP:+.3f}, constant E[1 - s T] = 0 (geometric lengths, s = "
        f"{STOP}, no limit)"
    )


def _world() -> World:
    """States: 0 wrong, 1 right; token 0 goes on, token 1 stops. The coin is the prompt's number:
    even or odd.
    """
    return World(
        next=torch.tensor([[0, END], [1, END]]), start=torch.tensor([0, 1]), longest=LONGEST
    )


def _trained(
    name: str, seed: int, steps: int, xs: Sequence[int]
) -> tuple[list[float], list[float]]:
    algorithm, world = VARIANTS[name], _world()
    logits = torch.zeros(2, 2, dtype=torch.float64)
    logits[:, 1] = math.log(STOP / (1 - STOP))
    logits.requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=RATE)
    draw = generator(seed, 2)
    wrong, right = [], []
    for step in range(steps + 1):
        if step in xs:
            stop = logits.detach().softmax(-1)[:, 1].tolist()
            wrong.append(_length(stop[0]))
            right.append(_length(stop[1]))
        coins = torch.randint(0, 2, (PROMPTS * GROUP_SIZE,), generator=draw)
        played = play(world, logits.detach(), coins.tolist(), 1, draw)
        indices = torch.arange(PROMPTS).repeat_interleave(GROUP_SIZE)
        grouped = type(played)(
            **{**vars(played), "group": indices, "rewards": tuple(coins.double().tolist())}
        )
        learn(algorithm, lambda: logits, optimizer, grouped, LONGEST)
    return wrong, right


def _length(stop: float) -> float:
    """Expected length of an answer that stops with that chance at each token, up to the limit."""
    return (1 - (1 - stop) ** LONGEST) / stop


if __name__ == "__main__":
    main(study)
