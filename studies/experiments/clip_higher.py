"""Does a higher upper clip keep entropy up? DAPO's clip-higher against PPO's symmetric clip.

With several updates per batch a clip at 1 + high lets an answer of probability 0.01 gain 0.002 and
one of 0.5 gain 0.1: so rare right answers are said to be held down. Every prompt has its own logits
here, so that nothing else holds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quintain.learning.algorithms import DAPO

from .common import Line, Panel, Report, by_variant, differences, generator, main
from .tables import Pupil, learn, play

PROMPTS, ACTIONS, RIGHT, SHARPNESS = 16, 32, 4, 1.5
GROUP_SIZE, EPOCHS, STEPS, RATE = 16, 8, 40, 0.05
BASE = DAPO.replace(epochs=EPOCHS, group_filter="minimum", plan={"resample": "none"}, overlong=0.0)
VARIANTS = {
    "clip 0.2 / 0.2": BASE.replace(objective={"low": 0.2, "high": 0.2}),
    "clip 0.2 / 0.28 (DAPO)": BASE,
    "clip 0.2 / 0.5": BASE.replace(objective={"low": 0.2, "high": 0.5}),
    "clip 0.28 / 0.28": BASE.replace(objective={"low": 0.28, "high": 0.28}),
    "no clip": BASE.replace(objective="importance"),
}
LEVEL = 0.95


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Success, entropy, entropy among the right answers, and the share of tokens that the upper
    clip stops.
    """
    steps = 3 if quick else STEPS
    xs = list(range(steps + 1))
    titles = {
        "success": "success",
        "entropy": "entropy (nats)",
        "among": "entropy among the right answers (nats)",
        "clipped": "share of tokens clipped above, over the updates",
    }
    results = by_variant(VARIANTS, seeds, lambda name, seed: _trained(name, seed, steps))
    panels = {
        what: Panel(
            title=t,
            xlabel="step",
            lines=[Line(label=n, x=xs, values=v) for n, v in results[what].items()],
        )
        for what, t in titles.items()
    }
    base = "clip 0.2 / 0.2"
    contrasts: dict[str, list[float]] = {}
    level = min(LEVEL, min(max(row) for rows in results["success"].values() for row in rows))
    for name in list(VARIANTS)[1:]:
        for what in ("entropy", "among"):
            contrasts[f"{titles[what]} at step {steps}, {name} less {base}"] = differences(
                panels[what].line(name), panels[what].line(base)
            )
            contrasts[f"{titles[what]} at success {level:.2g}, {name} less {base}"] = [
                _at(results["success"][name][i], results[what][name][i], level)
                - _at(results["success"][base][i], results[what][base][i], level)
                for i in range(len(seeds))
            ]
    first = {
        name: [sum(row[1:11]) / len(row[1:11]) for row in rows]
        for name, rows in results["clipped"].items()
    }
    contrasts |= {
        f"share clipped above in the first ten steps, {name}": v for name, v in first.items()
    }
    settings = {
        "prompts": PROMPTS,
        "actions": ACTIONS,
        "right": RIGHT,
        "group_size": GROUP_SIZE,
        "epochs": EPOCHS,
    }
    return Report(
        panels=list(panels.values()),
        contrasts=contrasts,
        settings={**settings, "lr": RATE, "steps": steps},
    )


def _at(success: Sequence[float], values: Sequence[float], level: float) -> float:
    """Return what *values* were when *success* passed *level*, between steps by a straight line."""
    for i, s in enumerate(success):
        if s >= level:
            part = (level - success[i - 1]) / (s - success[i - 1]) if i else 1.0
            return values[i - 1] + part * (values[i] - values[i - 1]) if i else values[0]
    raise ValueError(f"success ends at {success[-1]}, below {level}")


def _beginner(seed: int) -> Pupil:
    """Logits of its own for each prompt."""
    draw = generator(seed, 78)
    logits = SHARPNESS * torch.randn(PROMPTS, ACTIONS, dtype=torch.float64, generator=draw)
    chosen = torch.rand(PROMPTS, ACTIONS, generator=draw).topk(RIGHT, dim=-1).indices
    right = torch.zeros(PROMPTS, ACTIONS, dtype=torch.bool).scatter_(1, chosen, True)
    alone = torch.eye(PROMPTS, dtype=torch.float64)
    return Pupil(
        train=alone,
        test=alone,
        right_train=right,
        right_test=right,
        weights=logits.requires_grad_(),
    )


@torch.no_grad()
def _among(pupil: Pupil) -> float:
    """Entropy of the answer, given that it is right; mean over prompts."""
    chance = pupil.table().softmax(-1) * pupil.right_train
    chance = chance / chance.sum(-1, keepdim=True)
    return float(-(chance * chance.clamp(min=1e-300).log()).sum(-1).mean())


def _trained(name: str, seed: int, steps: int) -> dict[str, list[float]]:
    pupil = _beginner(seed)
    optimizer = torch.optim.Adam([pupil.weights], lr=RATE)
    draw = generator(seed, 3)
    out: dict[str, list[float]] = {"success": [], "entropy": [], "among": [], "clipped": []}
    clipped = 0.0
    for _ in range(steps + 1):
        out["success"].append(pupil.passes(1))
        out["entropy"].append(pupil.entropy())
        out["among"].append(_among(pupil))
        out["clipped"].append(clipped)
        played = pupil.scored(
            play(pupil.world, pupil.table().detach(), list(range(PROMPTS)), GROUP_SIZE, draw)
        )
        clipped = learn(VARIANTS[name], pupil.table, optimizer, played, 1).get("clip.high", 0.0)
    return out


if __name__ == "__main__":
    main(study)
