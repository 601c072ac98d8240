"""Right answers alone, wrong answers alone, or both? Rejection-sampling fine-tuning (RFT) against
RL.

Imitating right answers is said to sharpen the policy and to cost pass@k; pushing wrong answers down
alone is said to keep it (2506.01347).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quintain.interfaces.pieces import per_group
from quintain.learning.algorithms import DR_GRPO

from .common import Line, Panel, Report, by_variant, differences, generator, main
from .tables import Pupil, learn, play

PROMPTS, GROUP_SIZE, STEPS, RATE = 16, 16, 200, 0.03
KS = (1, 2, 4, 8, 16, 32, 64, 128)


@per_group(name="study_positives")
def positives(rewards: Sequence[float]) -> list[float]:
    """1 for a right answer: imitate it (RFT, expert iteration; PSR in 2506.01347)."""
    return [float(r > 0.5) for r in rewards]


@per_group(name="study_negatives")
def negatives(rewards: Sequence[float]) -> list[float]:
    """-1 for a wrong answer: push it down, say nothing of right ones (NSR in 2506.01347)."""
    return [-float(r <= 0.5) for r in rewards]


@per_group(name="study_signs")
def signs(rewards: Sequence[float]) -> list[float]:
    """+1 and -1, without a baseline."""
    return [1.0 if r > 0.5 else -1.0 for r in rewards]


@per_group(name="study_weighted")
def weighted(rewards: Sequence[float]) -> list[float]:
    """Both, right answers a tenth as strong (W-REINFORCE in 2506.01347)."""
    return [0.1 if r > 0.5 else -1.0 for r in rewards]


BASE = DR_GRPO.replace(objective="policy_gradient", aggregation={"use": "constant", "length": 1})
VARIANTS = {
    "both, R - mean": BASE,
    "right alone (RFT)": BASE.replace(advantage=positives),
    "wrong alone (NSR)": BASE.replace(advantage=negatives),
    "+1 / -1": BASE.replace(advantage=signs),
    "+0.1 / -1 (W-REINFORCE)": BASE.replace(advantage=weighted),
}


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Success, entropy and pass@k on held-out prompts."""
    steps = 5 if quick else STEPS
    xs = list(range(0, steps + 1, 10 if not quick else 5))
    results = by_variant(VARIANTS, seeds, lambda name, seed: _trained(name, seed, steps, xs))
    before = Line(
        label="before", x=KS, values=next(iter(results.pop("start").values())), style="--"
    )
    titles = {
        "success": "success on held-out prompts",
        "entropy": "entropy on held-out prompts (nats)",
    }
    panels = [
        Panel(
            title=t,
            xlabel="step",
            lines=[Line(label=n, x=xs, values=v) for n, v in results[key].items()],
        )
        for key, t in titles.items()
    ]
    passes = Panel(
        title="pass@k on held-out prompts after training",
        xlabel="k",
        lines=[*(Line(label=n, x=KS, values=v) for n, v in results["pass@k"].items()), before],
        log_x=True,
    )
    spread = Panel(
        title="share of the likeliest right action among right ones",
        xlabel="step",
        lines=[Line(label=n, x=xs, values=v) for n, v in results["largest"].items()],
    )
    both = "both, R - mean"
    contrasts = {
        f"held-out pass@{KS[i]}, {name} less {both}": differences(
            passes.line(name), passes.line(both), i
        )
        for name in list(VARIANTS)[1:]
        for i in (0, KS.index(16), len(KS) - 1)
    }
    early = len(xs) // 4
    for name in list(VARIANTS)[1:]:
        for what, panel, index in (
            (f"success at step {xs[early]}", panels[0], early),
            (f"entropy at step {xs[early]}", panels[1], early),
            ("entropy", panels[1], -1),
            ("share of the likeliest right action", spread, -1),
        ):
            contrasts[f"{what}, {name} less {both}"] = differences(
                panel.line(name), panel.line(both), index
            )
    return Report(
        panels=[*panels, passes, spread],
        contrasts=contrasts,
        settings={"prompts": PROMPTS, "group_size": GROUP_SIZE, "lr": RATE, "steps": steps},
    )


def _trained(name: str, seed: int, steps: int, xs: Sequence[int]) -> dict[str, list[float]]:
    pupil = Pupil.born(seed, hidden=8)
    optimizer = torch.optim.Adam([pupil.weights], lr=RATE)
    draw = generator(seed, 10)
    out: dict[str, list[float]] = {
        "start": [pupil.passes(k) for k in KS],
        "success": [],
        "entropy": [],
        "largest": [],
    }
    for step in range(steps + 1):
        if step in xs:
            out["success"].append(pupil.passes(1))
            out["entropy"].append(pupil.entropy())
            out["largest"].append(_largest(pupil))
        prompts = torch.randperm(len(pupil.train), generator=draw)[:PROMPTS].tolist()
        played = pupil.scored(play(pupil.world, pupil.table().detach(), prompts, GROUP_SIZE, draw))
        learn(VARIANTS[name], pupil.table, optimizer, played, 1)
    out["pass@k"] = [pupil.passes(k) for k in KS]
    return out


@torch.no_grad()
def _largest(pupil: Pupil) -> float:
    chance = (pupil.test @ pupil.weights).softmax(-1) * pupil.right_test
    return float((chance.amax(-1) / chance.sum(-1)).mean())


if __name__ == "__main__":
    main(study)
