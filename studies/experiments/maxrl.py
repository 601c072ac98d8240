"""Does MaxRL buy pass@k? Advantage (R - mean) / mean against the group mean and GRPO's normalised
advantage.

MaxRL climbs a truncation of the log success rate, so a prompt that is hardly ever solved weighs as
much as it can.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quintain.learning.algorithms import DR_GRPO
from quintain_algorithms.advantages import maxrl

from .common import Line, Panel, Report, by_variant, differences, generator, main
from .tables import Pupil, learn, play

PROMPTS, GROUP_SIZE, STEPS, RATE = 16, 16, 200, 0.03
KS = (1, 2, 4, 8, 16, 32, 64, 128)
BASE = DR_GRPO.replace(objective="policy_gradient", aggregation={"use": "constant", "length": 1})
VARIANTS = {
    "R - mean (Dr. GRPO)": BASE,
    "(R - mean) / std (GRPO)": BASE.replace(advantage="group_norm"),
    "(R - mean) / mean (MaxRL)": BASE.replace(advantage=maxrl),
    "R / mean (MaxRL, success only)": BASE.replace(advantage=maxrl.configure(form="success")),
}


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Exact pass@k on training and held-out prompts after the same number of samples."""
    steps = 5 if quick else STEPS
    xs = list(range(0, steps + 1, 10 if not quick else 5))
    results = by_variant(VARIANTS, seeds, lambda name, seed: _trained(name, seed, steps, xs))
    before = Line(
        label="before", x=KS, values=next(iter(results.pop("start").values())), style="--"
    )
    panels = [
        Panel(
            title=f"pass@k on {where} prompts",
            xlabel="k",
            lines=[*(Line(label=n, x=KS, values=v) for n, v in results[key].items()), before],
            log_x=True,
        )
        for key, where in (("held out", "held-out"), ("train", "training"))
    ]
    panels += [
        Panel(
            title=title,
            xlabel="step",
            lines=[Line(label=n, x=xs, values=v) for n, v in results[key].items()],
        )
        for key, title in (
            ("pass@1", "pass@1 on held-out prompts"),
            ("log", "mean log success on training prompts"),
        )
    ]
    base = "R - mean (Dr. GRPO)"
    contrasts = {
        f"held-out pass@{KS[i]}, {name} less {base}": differences(
            panels[0].line(name), panels[0].line(base), i
        )
        for name in list(VARIANTS)[1:]
        for i in (0, KS.index(16), len(KS) - 1)
    }
    return Report(
        panels=panels,
        contrasts=contrasts,
        settings={"prompts": PROMPTS, "group_size": GROUP_SIZE, "lr": RATE, "steps": steps},
    )


def _trained(name: str, seed: int, steps: int, xs: Sequence[int]) -> dict[str, list[float]]:
    pupil = Pupil.born(seed, hidden=8)
    optimizer = torch.optim.Adam([pupil.weights], lr=RATE)
    draw = generator(seed, 4)
    out: dict[str, list[float]] = {"start": [pupil.passes(k) for k in KS], "pass@1": [], "log": []}
    for step in range(steps + 1):
        if step in xs:
            out["pass@1"].append(pupil.passes(1))
            out["log"].append(float(pupil.success(held_out=False).clamp(min=1e-30).log().mean()))
        prompts = torch.randperm(len(pupil.train), generator=draw)[:PROMPTS].tolist()
        played = pupil.scored(play(pupil.world, pupil.table(), prompts, GROUP_SIZE, draw))
        learn(VARIANTS[name], pupil.table, optimizer, played, 1)
    out["held out"] = [pupil.passes(k) for k in KS]
    out["train"] = [pupil.passes(k, held_out=False) for k in KS]
    return out


if __name__ == "__main__":
    main(study)
