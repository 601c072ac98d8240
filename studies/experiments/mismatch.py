"""A bfloat16 sampler under a float32 learner: how large is the mismatch, what does it bias, which
correction helps?

First exactly, on a softmax whose sampler rounds its logits to bfloat16; then whole runs of a
transformer of fewer than 100,000 parameters, whose engine decodes in bfloat16.
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintain import Environment, Limits, Rollout, Task, reward
from quintain.console.screen import Screen
from quintain.interfaces.algorithm import Algorithm
from quintain.learning.algorithms import DR_GRPO
from quintain.learning.loss import weighted_loss
from quintain.learning.loss_inputs import LossInputs
from quintain.recipe.tables import Recipe
from quintain.registry.binding import bind
from quintain.store.run_folder import RunFolder
from quintain_starter.architecture import build_model, build_tokenizer
from quintain_view.compare.comparison import build_comparison, run_comparison
from quintain_view.compare.results import RecipeResult, recipe_results

from .common import Line, Panel, Report, generator, main

OFFSETS = (1.0, 4.0, 16.0, 64.0, 256.0)
"""What all logits have in common: it drops out of the policy, but not out of the rounding."""
ACTIONS, SPREAD = 64, 2.0
STEPS, RUNS = 40, 5
SIZES = {"hidden": 48, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 12, "intermediate": 96}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "no correction": {},
    "TIS, cap 2": {"correction": "tis"},
    "IcePop 0.5 to 5": {"correction": "icepop"},
    "TIS of answers, cap 5": {"correction": "tis_sequence"},
    "MIS of answers up to 3": {"correction": "mis"},
    "sequence mask k3 0.01": {"correction": "sequence_mask"},
    "TRM k3 0.05": {"correction": "trm"},
    "importance ratio": {"objective": "importance", "ratio_to": "mu"},
}
"""Changes to a plain policy gradient with a group mean."""

PLAIN = {"objective": "policy_gradient", "aggregation": "constant"}
BASE = DR_GRPO.replace(objective="policy_gradient", aggregation={"use": "constant", "length": 1})
VARIANTS: dict[str, Algorithm] = {
    name: bind(BASE, changes) for name, changes in CORRECTIONS.items()
}


@reward(range=(0, 1))
def picky(rollout: Rollout[Any, Any]) -> float:
    """1 where the reply has an e and no t."""
    return float("e" in rollout.reply and "t" not in rollout.reply)


class Picky(Environment[Task, Any]):
    """Say something with an e and without a t."""

    reward = picky
    limits = Limits(turns=1, tokens=8)

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="e") for i in range(1000))


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Bias of the expected update by where the logits lie; reward of whole runs with each
    correction.
    """
    bias = {
        name: [[_bias(algorithm, seed, offset) for offset in OFFSETS] for seed in seeds]
        for name, algorithm in VARIANTS.items()
    }
    gaps = [[_gap(seed, offset) for offset in OFFSETS] for seed in seeds]
    exact = Panel(
        title="|bias of the expected update| / |gradient|",
        xlabel="mean of the logits",
        lines=[Line(label=name, x=OFFSETS, values=values) for name, values in bias.items()],
        log_x=True,
    )
    apart = Panel(
        title="|log prox - log mu|, mean over the sampler's tokens",
        xlabel="mean of the logits",
        lines=[Line(label="logits rounded to bfloat16", x=OFFSETS, values=gaps)],
        log_x=True,
        log_y=True,
    )
    with tempfile.TemporaryDirectory(prefix="quintain-mismatch-") as place:
        recipe_results = _runs(Path(place), list(seeds)[:RUNS], quick)
        curves = [_curve(recipe_result) for recipe_result in recipe_results]
        names = [s.name for s in recipe_results]
        mismatch = [[_mismatch(r.folder) for r in s.runs] for s in recipe_results]
    learning = Panel(
        title="mean reward of training samples, by tenth of the run", xlabel="tenth", lines=curves
    )
    by_name = dict(zip(names, curves, strict=True))
    contrasts = {
        f"mean reward over the run, {name} less no correction": _over(
            by_name[name], by_name["no correction"]
        )
        for name in names
        if name != "no correction"
    }
    contrasts |= {f"bias at {OFFSETS[-1]:g}, {line.label}": line.at() for line in exact.lines}
    contrasts |= {
        f"|log theta - log mu|, mean over the run, {name}": values
        for name, values in zip(names, mismatch, strict=True)
    }
    parameters = sum(p.numel() for p in build_model(0, **SIZES).parameters())
    return Report(
        panels=[exact, apart, learning],
        contrasts=contrasts,
        settings={
            "actions": ACTIONS,
            "runs": RUNS,
            "steps": 3 if quick else STEPS,
            "model": SIZES,
            "parameters": parameters,
        },
    )


def _logits(seed: int, offset: float) -> tuple[Tensor, Tensor]:
    """Return the learner's and the sampler's."""
    logits = offset + SPREAD * torch.randn(
        ACTIONS, dtype=torch.float64, generator=generator(seed, 11)
    )
    return logits, logits.to(torch.bfloat16).double()


def _gap(seed: int, offset: float) -> float:
    theta, mu = (x.log_softmax(-1) for x in _logits(seed, offset))
    return float((mu.exp() * (theta - mu).abs()).sum())


def _bias(algorithm: Algorithm, seed: int, offset: float) -> float:
    """Distance of the expected update from the gradient of the learner's expected reward, exactly.

    All actions are there as samples that weigh as much as the sampler draws them; the baseline is
    the sampler's mean reward. Half of the actions, at random, earn 1.
    """
    theta, mu = _logits(seed, offset)
    rewards = (
        torch.rand(ACTIONS, dtype=torch.float64, generator=generator(seed, 12)) < 0.5
    ).double()
    parameter = theta.clone().requires_grad_()
    logp, mu_logp = parameter.log_softmax(-1), mu.log_softmax(-1)
    places = torch.arange(ACTIONS)
    terms = LossInputs(
        logp=logp,
        mu_logp=mu_logp,
        prox_logp=logp.detach(),
        advantage=rewards - (mu_logp.exp() * rewards).sum(),
        entropy=torch.zeros(ACTIONS, dtype=torch.float64),
        sample=places,
        group=torch.zeros_like(places),
        ratio_to=algorithm.ratio_to,
    )
    (update,) = torch.autograd.grad(-weighted_loss(algorithm, terms, mu_logp.exp()).loss, parameter)
    free = theta.clone().requires_grad_()
    (truth,) = torch.autograd.grad((free.softmax(-1) * rewards).sum(), free)
    return float((update - truth).norm() / truth.norm())


def _runs(place: Path, seeds: Sequence[int], quick: bool) -> list[RecipeResult]:
    """Whole runs by `quintain compare`: a float32 sampler, then a bfloat16 one with each
    correction.
    """
    logging.getLogger("quintain").setLevel(logging.ERROR)
    model = place / "model"
    build_model(0, **SIZES).save_pretrained(model)
    build_tokenizer().save_pretrained(model)
    recipe = Recipe.of(
        {
            "run": {"steps": 3 if quick else STEPS},
            "model": {"name": str(model), "device": "cpu", "dtype": "bfloat16"},
            "environments": [{"use": "studies.experiments.mismatch:Picky"}],
            "algorithm": {"use": "dr_grpo", "args": PLAIN},
            "sampling": {"max_tokens": 8},
            "batch": {"prompts": 8, "group_size": 8},
            "learner": {"lr": 3e-3, "warmup_steps": 2},
            "evaluation": {"every": 0, "test": {"tasks": 0}},
            "checkpoint": {"every": 0, "best": False},
            "rollouts": {"keep": "none"},
        }
    )
    chosen = list(CORRECTIONS.items())[: 1 if quick else None]
    named = [("float32 sampler", recipe.replace({"model.dtype": "float32"}))]
    named += [
        (n, recipe.replace({"algorithm.args": {**PLAIN, **changes}})) for n, changes in chosen
    ]
    comparison = build_comparison(
        [(n.replace("/", " "), r) for n, r in named], seeds=seeds, folder=place / "runs"
    )
    run_comparison(comparison, lambda: Screen(io.StringIO(), quiet=True))
    return recipe_results(comparison)


def _curve(recipe_result: RecipeResult) -> Line:
    """Mean reward in each tenth of the run."""
    rows = []
    for result in recipe_result.runs:
        rewards = [p["reward"] for p in result.rewards]
        tenth = max(1, len(rewards) // 10)
        rows.append(
            [
                sum(part) / len(part)
                for i in range(0, len(rewards), tenth)
                if (part := rewards[i : i + tenth])
            ]
        )
    return Line(label=recipe_result.name, x=list(range(1, len(rows[0]) + 1)), values=rows)


def _over(one: Line, other: Line) -> list[float]:
    return [
        sum(a) / len(a) - sum(b) / len(b) for a, b in zip(one.values, other.values, strict=True)
    ]


def _mismatch(folder: Path) -> float:
    means = [
        m["mismatch.mean"]
        for m in RunFolder(folder, lock=False).metrics()
        if m.get("mismatch.mean") is not None
    ]
    return sum(means) / len(means)


if __name__ == "__main__":
    main(study)
