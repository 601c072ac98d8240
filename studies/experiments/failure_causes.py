"""What becomes of a failed rollout: 40 ways to fail, and what each treatment does to the gradient.

A softmax policy takes two actions on an easy and on a hard task. It fails with a probability that
depends on what it did. The true gradient is that of what an author means: where the policy caused
the failure, its score is 0; where it cannot have caused it, its reward is that without the failure.
The expected update of each treatment is exact. Advantages and weights are those of
`quintain.learning`, on batches of one group for each task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import factorial, prod
from typing import Any

import torch
from torch import Tensor

from quintain.learning import Batch, Sample, Step
from quintain.learning.algorithms import DR_GRPO
from quintain.types.rollout import Termination, TerminationKind

from .common import Line, Panel, Report, generator, main

GROUP_SIZES, STEPS, RATE, SPREAD = (2, 4), 100, 4.0, 0.5
ACTIONS = ("answer", "think", "call", "garble")
ANSWER, THINK, CALL, GARBLE = range(4)
TASKS = ("easy", "hard")
PAIRS = tuple(product(range(4), repeat=2))
"""The 16 episodes of a task: first and second action."""
STATES = 2 * (1 + 4)
"""Of each task, its beginning and what follows each first action."""
ALGORITHM = DR_GRPO.replace(
    objective="policy_gradient", aggregation={"use": "constant", "length": 2}
)
BASELINES = {"leave_one_out": ALGORITHM.replace(advantage="leave_one_out"), "dr_grpo": ALGORITHM}


@dataclass(frozen=True)
class Episode:
    """What a failure may depend on: the task, two actions, and whether they are right."""

    hard: bool
    first: int
    second: int

    @property
    def right(self) -> bool:
        """It ends with an answer, which a hard task has only after a thought or a call."""
        prepared = self.first in (THINK, CALL) or (self.first == ANSWER and not self.hard)
        return self.second == ANSWER and prepared

    @property
    def calls(self) -> int:
        return (self.first == CALL) + (self.second == CALL)

    @property
    def thoughts(self) -> int:
        return (self.first == THINK) + (self.second == THINK)

    @property
    def garbled(self) -> int:
        return (self.first == GARBLE) + (self.second == GARBLE)


EPISODES = [[Episode(bool(task), *pair) for pair in PAIRS] for task in range(2)]
Chance = Callable[[Episode], float]


def never(e: Episode) -> float:
    return 0.0


@dataclass(frozen=True)
class Mode:
    """A way to fail.

    Attributes:
        kind: how the product ends such an episode unless told otherwise.
        policy: probability that the policy makes an episode fail.
        others: that something else does.
        repeats: whether the same text fails again.
        scored: for failures that two can have caused: whether the product takes one as the
            policy's, by the episode.
    """

    name: str
    family: str
    kind: TerminationKind
    policy: Chance = never
    others: Chance = never
    repeats: bool = True
    scored: Callable[[Episode], bool] | None = None

    @property
    def cause(self) -> str:
        """Who causes it: the policy, others, or both."""
        sources = [self.policy is not never, self.others is not never]
        return "both" if all(sources) else "policy" if sources[0] else "others"

    def taken_as_policys(self, e: Episode) -> bool:
        """Whether the product scores such a failure."""
        return self.scored(e) if self.scored else not Termination(self.kind).ours


K = TerminationKind
LATE, FAULT, CUT = K.POLICY_TIMEOUT, K.POLICY_FAULT, K.TRUNCATED
ERROR, GRADER, DOWN, TIMEOUT = (
    K.ENVIRONMENT_ERROR,
    K.REWARD_ERROR,
    K.INFRASTRUCTURE_ERROR,
    K.TIMEOUT,
)
MODES = (
    Mode("endless loop of calls", "loop", LATE, lambda e: float(e.calls == 2)),
    Mode("rare endless loop", "loop", LATE, lambda e: 0.05 * (e.calls > 0)),
    Mode("loop of calls, limit on turns", "loop", CUT, lambda e: float(e.calls == 2)),
    Mode("slow tool chosen", "slow", LATE, lambda e: 0.5 * (e.calls > 0)),
    Mode("slow program at the end", "slow", LATE, lambda e: 0.8 * (e.second == CALL)),
    Mode("sleeps after its work", "slow", LATE, lambda e: float(e.second == CALL)),
    Mode("stalls only when losing", "losing", LATE, lambda e: float(e.calls > 0 and not e.right)),
    Mode("stops talking when losing", "losing", LATE, lambda e: 0.9 * (e.second == THINK)),
    Mode("exits when losing", "losing", FAULT, lambda e: 0.5 * (e.first == THINK and not e.right)),
    Mode("stalls on hard tasks", "losing", LATE, lambda e: 0.7 * (e.hard and e.calls > 0)),
    Mode("over-long output", "length", CUT, lambda e: float(e.thoughts == 2)),
    Mode(
        "tool results fill the context", "length", CUT, lambda e: 0.7 * (e.calls + e.thoughts == 2)
    ),
    Mode("agent crashes on its text", "text", FAULT, lambda e: float(e.garbled > 0)),
    Mode("unreadable calls", "text", FAULT, lambda e: float(e.garbled == 2)),
    Mode("tool that does not exist", "text", FAULT, lambda e: 0.6 * (e.first == GARBLE)),
    Mode("forbidden tool", "text", FAULT, lambda e: float(e.first == GARBLE)),
    Mode("its program fills the memory", "box", FAULT, lambda e: 0.4 * (e.first == CALL)),
    Mode(
        "its program forks for ever",
        "box",
        FAULT,
        lambda e: float((e.first, e.second) == (CALL, GARBLE)),
    ),
    Mode(
        "its program fills the disk",
        "box",
        FAULT,
        lambda e: 0.8 * ((e.first, e.second) == (CALL, THINK)),
    ),
    Mode(
        "answer that breaks the grader",
        "grader",
        GRADER,
        lambda e: float(e.garbled > 0 and not e.right),
    ),
    Mode(
        "answer that takes for ever to grade", "grader", DOWN, lambda e: 0.5 * (e.second == THINK)
    ),
    Mode("random crash, 10 %", "environment", ERROR, others=lambda e: 0.1, repeats=False),
    Mode("random crash, 40 %", "environment", ERROR, others=lambda e: 0.4, repeats=False),
    Mode("crash on half of the hard tasks", "environment", ERROR, others=lambda e: 0.5 * e.hard),
    Mode("crash on most hard tasks", "environment", ERROR, others=lambda e: 0.9 * e.hard),
    Mode("slow reset of easy tasks", "environment", TIMEOUT, others=lambda e: 0.3 * (not e.hard)),
    Mode("bug in a tool", "environment", ERROR, others=lambda e: 0.3 * (e.calls > 0)),
    Mode(
        "grader crashes on long answers", "grader", GRADER, others=lambda e: 0.5 * (e.thoughts > 0)
    ),
    Mode("grader crashes on right answers", "grader", GRADER, others=lambda e: 0.2 * e.right),
    Mode("grader crashes on wrong answers", "grader", GRADER, others=lambda e: 0.3 * (not e.right)),
    Mode("engine lost", "engine", DOWN, others=lambda e: 0.1, repeats=False),
    Mode(
        "engine lost, by length",
        "engine",
        DOWN,
        others=lambda e: 0.1 + 0.2 * e.thoughts,
        repeats=False,
    ),
    Mode("engine lost, by task", "engine", DOWN, others=lambda e: 0.3 * e.hard, repeats=False),
    Mode("engine out of memory", "engine", DOWN, others=lambda e: 0.4 * (e.thoughts == 2)),
    Mode(
        "slow engine, by length",
        "engine",
        TIMEOUT,
        others=lambda e: 0.3 * e.thoughts,
        repeats=False,
    ),
    Mode("host of the sandbox lost", "service", DOWN, others=lambda e: 0.2, repeats=False),
    Mode("judge refuses: too many requests", "service", DOWN, others=lambda e: 0.3, repeats=False),
    Mode(
        "network cut in a call",
        "service",
        DOWN,
        others=lambda e: 0.3 * (e.calls > 0),
        repeats=False,
    ),
    Mode(
        "time limit of both",
        "shared",
        TIMEOUT,
        lambda e: 0.4 * e.calls,
        lambda e: 0.3 * e.thoughts,
        repeats=False,
        scored=lambda e: e.calls > e.thoughts,
    ),
    Mode(
        "agent program hangs after a turn",
        "shared",
        LATE,
        lambda e: 0.5 * (e.calls > 0),
        lambda e: 0.1,
        repeats=False,
        scored=lambda e: True,
    ),
)
"""Forty ways to fail, with the termination that the product gives to each."""

WRONG, RIGHT, FAILED = range(3)
TREATMENTS = {
    "score 0": "absent",
    "drop the rollout": "absent",
    "drop the group": "spoils",
    "retry, same seed": "absent",
    "retry, new seed": "absent",
    "keep in the baseline": "masked",
    "by cause": "absent",
}
"""What a failed rollout is to its group in the end: absent, the end of the group, or a reward of 0
whose tokens do not train.
"""


def per_episode(chance: Callable[[Episode], float]) -> Tensor:
    """Values of all episodes, [2, 16]."""
    return torch.tensor([[float(chance(e)) for e in row] for row in EPISODES], dtype=torch.float64)


REWARD = per_episode(lambda e: e.right)


@dataclass(frozen=True)
class Chances:
    """Probabilities of a mode by episode, [2, 16] each.

    Attributes:
        failed: of a failure; policys: of one by the policy; scored: 1 where the product scores it.
    """

    failed: Tensor
    policys: Tensor
    scored: Tensor

    @classmethod
    @cache
    def of(cls, mode: Mode | None) -> Chances:
        """Return those of *mode*; of no failures without one."""
        if mode is None:
            return cls(*torch.zeros(3, 2, 16, dtype=torch.float64))
        policys, others = per_episode(mode.policy), per_episode(mode.others)
        failed = 1 - (1 - policys) * (1 - others)
        return cls(failed, policys, per_episode(mode.taken_as_policys))


def means(mode: Mode | None) -> Tensor:
    """Return the reward that the author means, [2, 16]."""
    return REWARD * (1 - Chances.of(mode).policys)


def outcomes(mode: Mode | None, treatment: str, probs: Tensor) -> Tensor:
    """Return the probability that a place of a group ends with an episode as wrong, right or
    failed, [B, 2, 16, 3], from those of the episodes, *probs*, [B, 2, 16].
    """
    chances = Chances.of(mode)
    f, again = chances.failed, bool(mode and mode.repeats)
    zero = torch.zeros_like(f)
    scale = torch.ones_like(probs)
    if treatment == "score 0":
        zero, lost = f, zero
    elif treatment == "retry, same seed":
        lost = f if again else f * f
    elif treatment == "retry, new seed":
        scale = 1 + (probs * f).sum(-1, keepdim=True)
        lost = f
    elif treatment == "by cause":
        ours = 1 - chances.scored
        retried = mode is not None and mode.kind is not GRADER and not again
        lost = f * ours * (f * ours if retried else 1)
        zero = f * chances.scored * (1 + (f * ours if retried else 0))
    else:
        lost = f
    valid = 1 - lost - zero
    if treatment == "retry, new seed":
        valid, lost = 1 - f, f
    places = probs[..., None] * torch.stack([valid * (1 - REWARD) + zero, valid * REWARD, lost], -1)
    if treatment == "retry, new seed":
        places = torch.cat(
            [places[..., :2] * scale[..., None], places[..., 2:] * (scale - 1)[..., None]], -1
        )
    return places


def compositions(size: int) -> list[tuple[int, int, int]]:
    """Numbers of wrong, right and failed rollouts of a group of *size*."""
    return [(a, b, size - a - b) for a in range(size + 1) for b in range(size + 1 - a)]


@cache
def coefficients(baseline: str, failed: str, size: int) -> Tensor:
    """Return advantage times weight of the loss for a wrong, a right and a failed rollout of each
    of the two groups of a batch, [C, C, 2, 3], by the compositions of the groups.

    They come from the advantage and the aggregation of the algorithm. Absent ones have 0.
    """
    every = compositions(size)
    table = torch.zeros(len(every), len(every), 2, 3, dtype=torch.float64)
    for (i, one), (j, other) in product(enumerate(every), repeat=2):
        table[i, j] = torch.tensor(_coefficients(baseline, failed, (one, other)))
    return table


def _coefficients(
    baseline: str, failed: str, groups: Sequence[tuple[int, int, int]]
) -> list[list[float]]:
    members: list[tuple[int, int]] = []  # group and outcome of each sample
    for number, counts in enumerate(groups):
        if failed == "spoils" and counts[FAILED]:
            continue
        kept = (WRONG, RIGHT, FAILED) if failed == "masked" else (WRONG, RIGHT)
        members += [(number, outcome) for outcome in kept for _ in range(counts[outcome])]
    totals = [[0.0] * 3 for _ in groups]
    for (number, outcome), value in zip(members, updates(baseline, members), strict=True):
        if outcome != FAILED:
            totals[number][outcome] = value
    return totals


def updates(baseline: str, members: Sequence[tuple[int, int]]) -> list[float]:
    """Return advantage times weight of each sample of a batch, by its group and outcome."""
    if not members:
        return []
    algorithm = BASELINES[baseline]
    samples = tuple(
        Sample(sequences=(), outcome=float(outcome == RIGHT), group=number)
        for number, outcome in members
    )
    batch = Batch(samples=samples, max_tokens=2)
    step = Step(batch=batch, rewards=tuple(s.total for s in samples))
    values, weights = algorithm.advantage(step), algorithm.aggregation(batch)
    return [float(a) * c for a, c in zip(values, weights, strict=True)]


def score_functions(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities of the episodes, [B, 2, 16], and the gradients of their log-probs
    with respect to *logits*, [B, 2, 16, STATES, 4].
    """
    probs = logits.softmax(-1)
    chosen = torch.zeros(2, 16, STATES, 4, dtype=torch.float64)
    for task, (number, (first, second)) in product(range(2), enumerate(PAIRS)):
        chosen[task, number, 5 * task, first] = 1
        chosen[task, number, 5 * task + 1 + first, second] = 1
    visited = chosen.sum(-1, keepdim=True)
    logp = (chosen * probs.log()[:, None, None]).sum((-1, -2))
    return logp.exp(), chosen - visited * probs[:, None, None]


def true_gradient(mode: Mode | None, logits: Tensor) -> Tensor:
    """Return the gradient of the mean over both tasks of what the author means, [B, STATES, 4]."""
    probs, scores = score_functions(logits)
    return torch.einsum("bte,te,btesa->bsa", probs, means(mode), scores) / 2


def expected_update(
    mode: Mode | None, treatment: str, logits: Tensor, baseline: str, size: int
) -> Tensor:
    """Return the exact expectation of the update over all batches of one group of *size* for each
    task, [B, STATES, 4].
    """
    probs, scores = score_functions(logits)
    places = outcomes(mode, treatment, probs)
    gradient = torch.einsum("bteo,btesa->btosa", places, scores)
    mass = places.sum(2)  # [B, 2, 3]
    table = coefficients(baseline, TREATMENTS[treatment], size)
    counts = torch.tensor(compositions(size))
    whole = chance(mass, counts, size)  # [B, 2, C]
    # an outcome of one place, times the chance of the rest of its group, [B, 2, 3, C]
    rest = counts - torch.eye(3, dtype=torch.long)[:, None]  # [3, C, 3]
    parts = torch.stack([size * chance(mass, one, size - 1) for one in rest], 2)
    easy = torch.einsum("boc,bd,cdo->bo", parts[:, 0], whole[:, 1], table[:, :, 0])
    hard = torch.einsum("bod,bc,cdo->bo", parts[:, 1], whole[:, 0], table[:, :, 1])
    return torch.einsum("bto,btosa->bsa", torch.stack([easy, hard], 1), gradient)


def chance(mass: Tensor, counts: Tensor, size: int) -> Tensor:
    """Return the probability of each composition *counts*, [C, 3], of *size* places whose outcomes
    have the probabilities *mass*, [B, 2, 3]; 0 for one with a negative count. [B, 2, C]
    """
    ways = [factorial(size) / prod(factorial(max(0, n)) for n in row) for row in counts.tolist()]
    possible = (counts >= 0).all(-1)
    powers = (mass[:, :, None] ** counts.clamp(min=0)).prod(-1)
    return powers * torch.tensor(ways, dtype=torch.float64) * possible


@cache
def factor(baseline: str, size: int) -> float:
    """Return the expected update over the gradient where nothing fails: the estimator's scale."""
    logits = beginners([0])
    update = expected_update(None, "score 0", logits, baseline, size)
    gradient = true_gradient(None, logits)
    return float((update * gradient).sum() / gradient.square().sum())


def beginners(seeds: Sequence[int]) -> Tensor:
    """Return one policy for each seed, [B, STATES, 4]: all actions are likely."""
    usual = torch.tensor([0.5, 0.0, 0.0, -1.0], dtype=torch.float64)
    drawn = [
        torch.randn(STATES, 4, dtype=torch.float64, generator=generator(seed, 23)) for seed in seeds
    ]
    return usual + SPREAD * torch.stack(drawn)


@dataclass(frozen=True, kw_only=True)
class Bias:
    """An expected update beside the true gradient, one value per seed.

    Attributes:
        relative: length of their difference, over that of the gradient; the estimator's scale is
            taken out.
        cosine: between them.
        flips: share of the logits that move the wrong way, among those with at least a hundredth of
            the largest gradient.
    """

    relative: Tensor
    cosine: Tensor
    flips: Tensor


def bias(mode: Mode, treatment: str, logits: Tensor, baseline: str, size: int) -> Bias:
    """Compare the expected update with the true gradient."""
    gradient = true_gradient(mode, logits).flatten(1)
    update = expected_update(mode, treatment, logits, baseline, size).flatten(1)
    update = update / factor(baseline, size)
    norm = gradient.norm(dim=1)
    counted = gradient.abs() > 0.01 * gradient.abs().max(1, keepdim=True).values
    flipped = (gradient * update < 0) & counted
    return Bias(
        relative=(update - gradient).norm(dim=1) / norm,
        cosine=(gradient * update).sum(1) / (norm * update.norm(dim=1)).clamp(min=1e-300),
        flips=flipped.sum(1) / counted.sum(1),
    )


def learned(mode: Mode, treatment: str, logits: Tensor, steps: int) -> Mapping[str, Tensor]:
    """Follow the expected updates (`leave_one_out`, groups of 4) for *steps*; ``treatment = ""`` is
    the true gradient. Return what the author means and the rate of failures by the policy, each of
    each step and seed, [steps + 1, B].
    """
    logits = logits.clone()
    scale = factor("leave_one_out", 4)
    curves: dict[str, list[Tensor]] = {"success": [], "stalls": []}
    for step in range(steps + 1):
        probs, _ = score_functions(logits)
        curves["success"].append((probs * means(mode)).sum(-1).mean(-1))
        curves["stalls"].append((probs * Chances.of(mode).policys).sum(-1).mean(-1))
        if step < steps:
            logits = logits + RATE * (
                expected_update(mode, treatment, logits, "leave_one_out", 4) / scale
                if treatment
                else true_gradient(mode, logits)
            )
    return {name: torch.stack(values) for name, values in curves.items()}


def best(figures: Mapping[str, float], tolerance: float = 0.01) -> list[str]:
    """Return the treatments whose relative bias is the least, to *tolerance*."""
    least = min(figures.values())
    return [name for name, value in figures.items() if value <= least + tolerance]


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Bias of the expected update and success of the learned policy, by mode and treatment."""
    logits = beginners(seeds)
    steps = 3 if quick else STEPS
    finals = {
        mode: {
            t: {name: curve[-1] for name, curve in learned(mode, t, logits, steps).items()}
            for t in ("", *TREATMENTS)
        }
        for mode in MODES
    }
    panels = [
        panel(mode, quantity, logits, steps)
        for mode in (MODES[6], MODES[0])
        for quantity in ("success", "stalls")
    ]
    contrasts: dict[str, list[float]] = {}
    for cause, t in product(("policy", "others", "both"), TREATMENTS):
        modes = [m for m in MODES if m.cause == cause]
        biases = [bias(m, t, logits, "leave_one_out", 4).relative for m in modes]
        lost = [finals[m][""]["success"] - finals[m][t]["success"] for m in modes]
        contrasts[f"{cause}: relative bias, {t}"] = torch.stack(biases).mean(0).tolist()
        contrasts[f"{cause}: success lost, {t}"] = torch.stack(lost).mean(0).tolist()
    table = {mode.name: record(mode, logits, finals[mode]) for mode in MODES}
    settings: dict[str, Any] = {"steps": steps, "lr": RATE, "modes": table}
    notes = [*bias_table(logits), *shares(logits)]
    return Report(panels=panels, contrasts=contrasts, settings=settings, notes=notes)


def record(
    mode: Mode, logits: Tensor, finals: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    """Return the figures of one mode: means over the policies, by estimator and treatment."""
    return {
        "family": mode.family,
        "cause": mode.cause,
        "kind": str(mode.kind),
        "relative bias, cosine, flips": {
            f"{b}, groups of {size}": {
                t: ", ".join(
                    f"{float(x.mean()):.4f}" for x in vars(bias(mode, t, logits, b, size)).values()
                )
                for t in TREATMENTS
            }
            for b, size in product(BASELINES, GROUP_SIZES)
        },
        "learned": {
            t or "true gradient": ", ".join(f"{n} {float(x.mean()):.4f}" for n, x in final.items())
            for t, final in finals.items()
        },
    }


def bias_table(logits: Tensor) -> list[str]:
    """Return a table of relative bias, cosine and flips, by mode and treatment."""
    head = ["mode", "cause", "ended as", *TREATMENTS, "least bias"]
    rows = [head, ["---"] * len(head)]
    for mode in MODES:
        figures = {t: bias(mode, t, logits, "leave_one_out", 4) for t in TREATMENTS}
        winners = best({t: float(b.relative.mean()) for t, b in figures.items()})
        cells = [
            f"{float(b.relative.mean()):.2f}, {float(b.cosine.mean()):.2f}, "
            f"{100 * float(b.flips.mean()):.0f} %"
            for b in figures.values()
        ]
        told = "by cause" if "by cause" in winners else ", ".join(winners)
        kind = str(mode.kind) if mode.scored is None else "by its time"
        rows.append([mode.name, mode.cause, kind, *cells, told])
    return ["| " + " | ".join(row) + " |" for row in rows]


RULES: dict[str, Callable[[Episode], bool]] = {
    "never the policy's": lambda e: False,
    "more than a quarter": lambda e: e.calls > 0,
    "more than half": lambda e: e.calls > e.thoughts,
    "always the policy's": lambda e: True,
}
"""Whose failure a time limit is, by the share of the policy's time; a call takes as long as a thought."""


def shares(logits: Tensor) -> list[str]:
    """Return the relative bias and the flips of each rule for the two modes that both can cause."""
    lines = ["", "| rule | " + " | ".join(m.name for m in MODES[-2:]) + " |", "|---|---|---|"]
    for rule, scored in RULES.items():
        cells = []
        for mode in MODES[-2:]:
            changed = Mode(**{**vars(mode), "scored": scored})
            measured = bias(changed, "by cause", logits, "leave_one_out", 4)
            cells.append(
                f"{float(measured.relative.mean()):.2f}, {100 * float(measured.flips.mean()):.0f} %"
            )
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return lines


def panel(mode: Mode, quantity: str, logits: Tensor, steps: int) -> Panel:
    """Return the curves of one mode."""
    shown = list(range(0, steps + 1, min(5, steps)))
    lines = []
    for treatment in ("", *TREATMENTS):
        values = learned(mode, treatment, logits, steps)[quantity][shown]
        label = treatment or "true gradient"
        lines.append(Line(label=label, x=shown, values=values.T.tolist()))
    return Panel(title=f"{quantity}, {mode.name}", xlabel="step", lines=lines)


if __name__ == "__main__":
    main(study)
