"""Advantages: what a sample's reward is compared with. Rewards are plain floats (double precision), so tolerances mean
something.

A group, or a batch where that is the baseline, whose rewards differ by no more than ``tolerance`` gets exactly 0: in
floating point "subtract the mean, divide by the spread" turns constant rewards of 0.7 into advantages of a hundred
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ...interfaces.algorithm import Row
from ...interfaces.engine import TokenEngine, Weights
from ...interfaces.pieces import advantage, per_group
from ...interfaces.service import need
from ...types.sampling import Sampling
from ...types.transcript import Sampled
from ..batch import Batch, Sample

if TYPE_CHECKING:
    from ...interfaces.engine import Replay

TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Step:
    """All groups of a step, as an advantage sees them.

    Attributes:
        batch: the samples.
        rewards: total reward per sample, less the KL term where that is in the reward.
        penalty: coefficient times KL estimate of each token, where the KL is in the reward, else ``None``; [N]. Its sum
            over a sample, and the punishment of overlong ones, are what `rewards` lack of the sample's total.
        sample: which sample each trained token belongs to, in the order of the samples, [N].
        statistics: ``mu_logp``, ``prox_logp`` (where it was scored), ``ref_logp`` (where it is used) and what the piece
            reads, under prox, [N].
    """

    batch: Batch
    rewards: tuple[float, ...]
    penalty: Tensor | None = None
    sample: Tensor | None = None
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each group's members."""
        return self.batch.groups


def is_constant(rewards: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Whether *rewards* differ by at most *tolerance* times the largest magnitude (1 at least)."""
    if not rewards:
        return True
    return max(rewards) - min(rewards) <= tolerance * max(1.0, *map(abs, rewards))


def _centred(rewards: Sequence[float], tolerance: float) -> list[float]:
    if is_constant(rewards, tolerance):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


@per_group
def group_mean(rewards: Sequence[float], *, tolerance: float = TOLERANCE) -> list[float]:
    """R - mean(group): Dr. GRPO (Liu et al. 2025, 2503.20783). Its expectation is (G - 1) / G of the true gradient."""
    return _centred(rewards, tolerance)


def remark_on_spread(row: Row) -> str | None:
    """The remark of an advantage that divides by the spread of its group's rewards."""
    if not row.kl.in_reward or row.admission.name == "varied":
        return None
    return (
        f"{row.advantage!r} divides by the spread of the group: where all answers earn the same, that of the KL "
        "penalty alone, so such groups train on it at full size; admit varied groups only"
    )


@per_group(fits=remark_on_spread)
def group_norm(
    rewards: Sequence[float], *, epsilon: float = 1e-4, ddof: int = 0, tolerance: float = TOLERANCE
) -> list[float]:
    """(R - mean) / (std + epsilon) over the group: GRPO (Shao et al. 2024, 2402.03300, section 4.1.2).

    The paper gives neither ddof nor epsilon. Here ddof is 0 (as in GRPO-Zero, nano-aha-moment and open-instruct; TRL,
    verl and OpenRLHF take 1) and epsilon 1e-4 (TRL, GRPO-Zero), which damps near-ties that pass the tolerance.
    """
    return _normed(rewards, epsilon, ddof, tolerance)


def _normed(rewards: Sequence[float], epsilon: float, ddof: int, tolerance: float) -> list[float]:
    centred = _centred(rewards, tolerance)
    if not any(centred) or len(rewards) <= ddof:
        return [0.0] * len(rewards)
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - ddof))
    return [c / (std + epsilon) for c in centred]


@per_group
def leave_one_out(rewards: Sequence[float], *, tolerance: float = TOLERANCE) -> list[float]:
    """R_i - mean of the others = G / (G - 1) (R_i - mean): RLOO (Ahmadian et al. 2024, 2402.14740, equation 7).
    Unbiased.

    A group of one has no others and gets 0.
    """
    size = len(rewards)
    return [c * size / (size - 1) for c in _centred(rewards, tolerance)] if size > 1 else [0.0]


@advantage
def raw(step: Step) -> list[float]:
    """R itself: REINFORCE without a baseline (Williams 1992). Unbiased, of large variance."""
    return list(step.rewards)


Over = Literal["batch", "environment"]


@advantage
def batch_mean(step: Step, *, over: Over = "batch", tolerance: float = TOLERANCE) -> list[float]:
    """R - mean(batch). Its expectation is (N - 1) / N of the true gradient for N independent samples of one task.

    Args:
        over: ``environment``: the mean of the samples of the same environment.
    """
    out = [0.0] * len(step.rewards)
    for members in _parts(step, over):
        for i, value in zip(members, _centred([step.rewards[i] for i in members], tolerance), strict=True):
            out[i] = value
    return out


@advantage
def ema(step: Step, *, decay: float = 0.9, state: Any = None) -> tuple[list[float], dict[str, float]]:
    """R - moving average of earlier batch means; unbiased, as the baseline has not seen this batch.

    The average is corrected for its start at nothing (divided by 1 - decay^k after k batches); the first batch has
    baseline 0.
    """
    held = state or {"average": 0.0, "weight": 0.0}
    baseline = held["average"] / held["weight"] if held["weight"] else 0.0
    mean = math.fsum(step.rewards) / max(1, len(step.rewards))
    after = {key: decay * held[key] + (1 - decay) * value for key, value in (("average", mean), ("weight", 1.0))}
    return [reward - baseline for reward in step.rewards], after


def _fits_no_reward(row: Row) -> str:
    if row.alters_reward:
        raise UsageError(
            f"algorithm {row.name!r}: {row.advantage!r} reads no reward, so a KL term or a length punishment in it "
            "does nothing; set kl.where = 'loss' and overlong = 0"
        )
    return (
        "every sample counts as an example: on the policy's own samples the expected update is 0; `rft` follows those "
        "that succeed, `quintain sft` learns from a teacher's"
    )


@advantage(fits=_fits_no_reward)
def ones(step: Step) -> list[float]:
    """1: every sample is an example to follow (supervised learning on rollouts)."""
    return [1.0] * len(step.rewards)


class Greedy(TokenEngine):
    """Another engine, asked for the likeliest token always."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self.codec, self.context, self.name = engine.codec, engine.context, engine.name

    @property
    def version(self) -> int:  # type: ignore[override]
        return self._engine.version

    @property
    def concurrency(self) -> int | None:
        return self._engine.concurrency

    def attend(self) -> AbstractContextManager[None]:
        return self._engine.attend()

    async def sample(self, ids: Sequence[int], how: Sampling) -> Sampled:
        return await self._engine.sample(ids, how.but(temperature=0.0))

    async def score(self, ids: Sequence[int], start: int, temperature: float = 1.0) -> Sequence[float]:
        return await self._engine.score(ids, start, temperature)

    async def update(self, weights: Weights) -> int:
        return await self._engine.update(weights)


@advantage
async def greedy(
    step: Step, *, engine: TokenEngine = need("policy"), replay: Replay = need(), tolerance: float = TOLERANCE
) -> list[float]:
    """R - R(greedy): the reward of the same task answered greedily by the same policy (self-critical training, Rennie
    et al. 2017, 1612.00563; ReMax, Li et al. 2023, 2310.10505). Unbiased, as that answer depends on no sample; one
    more episode per group.

    A group whose greedy episode failed through our fault gets 0.
    """
    played = await replay([(members[0], Greedy(engine)) for members in step.groups])
    out = [0.0] * len(step.rewards)
    for members, rollout in zip(step.groups, played, strict=True):
        for i in members if rollout.valid else ():
            gap = step.rewards[i] - rollout.total
            out[i] = gap if abs(gap) > tolerance else 0.0
    return out


def _fits_no_penalty(row: Row) -> None:
    if row.alters_reward:
        raise UsageError(
            f"algorithm {row.name!r}: {row.advantage!r} takes rewards that are not negative, and a KL term or a length "
            "punishment in the reward makes them so; set kl.where = 'loss' and overlong = 0"
        )


@per_group(fits=_fits_no_penalty)
def maxrl(
    rewards: Sequence[float], *, form: Literal["centred", "success"] = "centred", tolerance: float = TOLERANCE
) -> list[float]:
    """Advantages whose expected update climbs a truncation of log p, p the success rate (MaxRL, 2602.02710).

    log p = -sum_k (1 - p)^k / k. For rewards of 0 or 1 and groups of G, averaged over the samples: ``success`` is
    R / mean and climbs the first G terms, its expectation is (1 - (1 - p)^G) / p times grad p; ``centred`` is
    (R - mean) / mean, of less variance, and climbs the first G - 1. Both are 0 where no member succeeds; ``centred``
    also where all do. Other rewards must not be negative.

    Raises:
        UsageError: a negative reward, or an unknown form.
    """
    if min(rewards, default=0.0) < -tolerance:
        raise UsageError(f"maxrl needs rewards that are not negative; got {min(rewards)}")
    if form not in ("centred", "success"):
        raise UsageError(f"form is {form!r}; expected centred or success")
    mean = math.fsum(rewards) / max(1, len(rewards))
    if mean <= tolerance:
        return [0.0] * len(rewards)
    return [value / mean for value in (_centred(rewards, tolerance) if form == "centred" else rewards)]


@advantage
def batch_norm(step: Step, *, over: Over = "batch", epsilon: float = 1e-4, tolerance: float = TOLERANCE) -> list[float]:
    """(R - mean(group)) / (spread + epsilon), the spread being that of the centred rewards of the whole batch (ScaleRL,
    2510.13786, section 3.2; Magistral). ddof 0. TRL's ``scale_rewards="batch"`` takes the spread of the raw
    rewards, with ddof 1.

    Args:
        over: ``environment``: the spread of the samples of the same environment, so that one with large rewards does
            not drown the others.
    """
    centred = group_mean(step, tolerance=tolerance)
    return _scaled(step, centred, [1] * len(centred), over, epsilon, shift=False)


@advantage
def reinforce_pp_baseline(
    step: Step, *, over: Over = "batch", epsilon: float = 1e-8, tolerance: float = TOLERANCE
) -> list[float]:
    """R - mean(group), then less the mean and over the spread of the batch, each sample weighing as many times as it
    has tokens (REINFORCE++-baseline, 2501.03262, section 3.2; ddof 0 as in OpenRLHF, verl takes 1).

    The mean is over tokens, so the mean over samples is not 0 (OpenRLHF #924), and a group of equal rewards moves where
    other groups' right answers differ in length from their wrong ones.
    """
    centred = group_mean(step, tolerance=tolerance)
    return _scaled(step, centred, [s.tokens for s in step.batch.samples], over, epsilon, shift=True)


@advantage
def reinforce_pp(step: Step, *, over: Over = "batch", epsilon: float = 1e-8, tolerance: float = TOLERANCE) -> Tensor:
    """Return-to-go per token, less the mean and over the spread of all tokens of the batch (REINFORCE++, 2501.03262,
    equations 3 to 5), [N].

    A token's reward is minus its KL penalty, where the KL is in the reward; turn scores come at the end of their turn,
    the rest of the reward with the last token. No discount. Observations are no tokens here, so the return crosses
    them. ddof 0 as in OpenRLHF; verl takes 1, SkyRL's return does not reach tokens before a tool's answer.

    Args:
        over: ``environment``: mean and spread of the tokens of the same environment.
    """
    value, sample = returns(step), _owner(step)
    out = torch.zeros_like(value)
    for members in _parts(step, over):
        part = torch.isin(sample, torch.tensor(members))
        held = value[part]
        if not is_constant(held.tolist(), tolerance):
            out[part] = (held - held.mean()) / (held.std(correction=0) + epsilon)
    return out


@advantage(fits=remark_on_spread)
def process_norm(step: Step, *, epsilon: float = 1e-4, ddof: int = 0, tolerance: float = TOLERANCE) -> Tensor:
    """GRPO with process rewards: scores of turns normalised over all turns of the group, summed from each turn on
    (2402.03300, section 4.1.3), [N].

    What a sample was given as a whole comes with its last turn. A sample without turn scores is one turn, so that
    without any this is `group_norm`.
    """
    tensors: list[Tensor] = [torch.zeros(0, dtype=torch.float64)] * len(step.batch.samples)
    for members in step.groups:
        scored = [_scored_turns(step.batch.samples[i], step.rewards[i]) for i in members]
        flat = [score for turns in scored for _, score in turns]
        values = iter(_normed(flat, epsilon, ddof, tolerance))
        for i, turns in zip(members, scored, strict=True):
            gains = [next(values) for _ in turns]
            after = [math.fsum(gains[k:]) for k in range(len(gains))]
            tensors[i] = torch.tensor(after, dtype=torch.float64).repeat_interleave(
                torch.tensor([count for count, _ in turns], dtype=torch.long)
            )
    return torch.cat(tensors)


@advantage(reads=("square",))
def optimal_token(step: Step, *, tolerance: float = TOLERANCE) -> Tensor:
    """Return-to-go less the baseline of least variance at each place: OTB (2602.07078), [N].

    At place t of a group: B = sum_i G_i W_i / sum_i W_i over the members that have a token there, G_i their return from
    t on and W_i = sum_{j <= t} (1 - 2 prox_j + sum_v prox_v^2), the squared gradient of the logits so far, as a proxy
    for that of the parameters. B holds the sample itself, so the update has a bias of order 1 / G; where one member is
    left B is its return, and its advantage 0.
    """
    gain, sample = returns(step), _owner(step)
    square, prox = (step.statistics[name].double().cpu() for name in ("square", "prox_logp"))
    proxy = (1 - 2 * prox.exp() + square).clamp(min=0)
    out = torch.zeros_like(gain)
    counts = [s.tokens for s in step.batch.samples]
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    assert sample.shape[0] == starts[-1]
    for members in step.groups:
        if is_constant([step.rewards[i] for i in members], tolerance) and step.penalty is None:
            turns = [_turns(step.batch.samples[i], step.rewards[i]) for i in members]
            if all(one[:-1] == turns[0][:-1] for one in turns):  # else returns differ on the way to the same total
                continue
        longest = max(counts[i] for i in members)
        weighed, total = torch.zeros(longest, dtype=torch.float64), torch.zeros(longest, dtype=torch.float64)
        for i in members:
            part = slice(starts[i], starts[i + 1])
            weight = proxy[part].cumsum(0)
            weighed[: counts[i]] += gain[part] * weight
            total[: counts[i]] += weight
        baseline = weighed / total.clamp(min=torch.finfo(torch.float64).tiny)
        for i in members:
            part = slice(starts[i], starts[i + 1])
            out[part] = torch.where(total[: counts[i]] > 0, gain[part] - baseline[: counts[i]], 0.0)
    return out


def _scored_turns(sample: Sample, reward: float) -> list[tuple[int, float]]:
    """As `_turns`, but a sample whose turns were not scored is one turn."""
    return _turns(sample, reward) if sample.turn_scores else [(sample.tokens, reward)]


def returns(step: Step) -> Tensor:
    """Undiscounted return from each trained token on, [N], float64.

    A token's reward is minus its KL penalty where the KL is in the reward; turn scores come with the last token of
    their turn, the rest of the sample's total with its last token.
    """
    rewards = token_rewards(step)
    sample = _owner(step)
    before = rewards.cumsum(0)
    total = torch.zeros(len(step.batch.samples), dtype=torch.float64).index_add(0, sample, rewards)
    ends = total.cumsum(0)
    return ends[sample] - before + rewards


def token_rewards(step: Step) -> Tensor:
    """The reward of each trained token, as in `returns`, [N], float64."""
    sample = _owner(step)
    rewards = torch.zeros(sample.shape[0], dtype=torch.float64)
    if step.penalty is not None:
        rewards -= step.penalty.double().cpu()
    at = 0
    for i, one in enumerate(step.batch.samples):
        extra = math.fsum(step.penalty[at : at + one.tokens].tolist()) if step.penalty is not None else 0.0
        for count, score in _turns(one, step.rewards[i] + extra):
            at += count
            if count:
                rewards[at - 1] += score
    return rewards


def _turns(sample: Sample, reward: float) -> list[tuple[int, float]]:
    """Tokens and score of each turn; what *reward* holds besides turn scores comes with the last. What a turn without
    tokens was given comes with the next that has some.
    """
    counts = [count for count in sample.turns if count] or [sample.tokens]
    scores = [0.0] * len(counts)
    at = 0
    for count, score in zip(sample.turns or (sample.tokens,), sample.turn_scores, strict=False):
        scores[min(at, len(scores) - 1)] += score
        at += count > 0
    scores[-1] += reward - math.fsum(scores)
    return list(zip(counts, scores, strict=True))


def _owner(step: Step) -> Tensor:
    if step.sample is not None:
        return step.sample.cpu()
    counts = torch.tensor([s.tokens for s in step.batch.samples], dtype=torch.long)
    return torch.arange(len(counts)).repeat_interleave(counts)


def _scaled(
    step: Step, values: Sequence[float], weights: Sequence[int], over: Over, epsilon: float, *, shift: bool
) -> list[float]:
    """*values* over their weighted spread (ddof 0), less their weighted mean where *shift*, in the batch or in each
    environment. All 0 where all are.
    """
    out = [0.0] * len(values)
    for members in _parts(step, over):
        if not any(values[i] for i in members):
            continue
        total = max(1, sum(weights[i] for i in members))
        mean = math.fsum(values[i] * weights[i] for i in members) / total
        spread = math.sqrt(math.fsum((values[i] - mean) ** 2 * weights[i] for i in members) / total)
        for i in members:
            out[i] = (values[i] - (mean if shift else 0.0)) / (spread + epsilon)
    return out


def _parts(step: Step, over: Over) -> list[list[int]]:
    """Indices of the samples that are taken together: all, or those of each environment."""
    if over not in ("batch", "environment"):
        raise UsageError(f"over is {over!r}; expected batch or environment")
    names = [s.environment if over == "environment" else "" for s in step.batch.samples]
    return [[i for i, held in enumerate(names) if held == name] for name in dict.fromkeys(names)]
