"""Advantages of the algorithms in this package: other baselines, other spreads, values of single
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor

from quintain import (
    Algorithm,
    Replay,
    Sampled,
    Sampling,
    TokenEngine,
    Weights,
    advantage,
    need,
    per_group,
)
from quintain.errors import UsageError
from quintain.learning import (
    SPREAD_TOLERANCE,
    SUCCESS,
    Sample,
    Step,
    advantages,
    are_equal,
    reaches,
)

from .token_rewards import check_order, returns, token_rewards, turn_rewards

NormalisedOver = Literal["batch", "environment"]


class Greedy(TokenEngine):
    """Another engine, asked for the likeliest token always."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self.tokenizer, self.context, self.name = engine.tokenizer, engine.context, engine.name

    @property
    def version(self) -> int:  # type: ignore[override]
        return self._engine.version

    @property
    def concurrency(self) -> int | None:
        return self._engine.concurrency

    def register(self) -> AbstractContextManager[None]:
        return self._engine.register()

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        return await self._engine.sample(ids, sampling.replace(temperature=0.0))

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return await self._engine.score(ids, start, temperature)

    async def update(self, weights: Weights) -> int:
        return await self._engine.update(weights)


@advantage
async def greedy(
    step: Step,
    *,
    engine: TokenEngine = need("policy"),
    replay: Replay = need(),
    tolerance: float = SPREAD_TOLERANCE,
) -> list[float]:
    """R - R(greedy): the reward of the same task answered greedily by the same policy
    (self-critical training, Rennie et al. 2017, 1612.00563; ReMax, Li et al. 2023, 2310.10505).
    Unbiased, as that answer depends on no sample; one more episode per group.

    A group whose greedy episode failed through our fault gets 0.
    """
    played = await replay([(indices[0], Greedy(engine)) for indices in step.groups])
    out = [0.0] * len(step.rewards)
    for indices, rollout in zip(step.groups, played, strict=True):
        for i in indices if rollout.valid else ():
            if not are_equal([step.rewards[i], rollout.total], tolerance):
                out[i] = step.rewards[i] - rollout.total
    return out


def _fits_no_penalty(algorithm: Algorithm) -> None:
    if algorithm.alters_reward:
        raise UsageError(
            f"algorithm {algorithm.name!r}: {algorithm.advantage!r} takes rewards that are not "
            "negative, and a KL term or a length punishment in the reward makes them so; set "
            "kl.where = 'loss' and overlong = 0"
        )


@per_group(fits=_fits_no_penalty)
def maxrl(
    rewards: Sequence[float],
    *,
    form: Literal["centred", "success"] = "centred",
    tolerance: float = SPREAD_TOLERANCE,
) -> list[float]:
    """Advantages whose expected update climbs a truncation of log p, p the success rate (MaxRL,
    2602.02710).

    log p = -sum_k (1 - p)^k / k. For rewards of 0 or 1 and groups of G, averaged over the samples:
    ``success`` is R / mean and climbs the first G terms, its expectation is (1 - (1 - p)^G) / p
    times grad p; ``centred`` is (R - mean) / mean, of less variance, and climbs the first G - 1.
    Both are 0 where no sample succeeds; ``centred`` also where all do. Other rewards must not be
    negative.

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
    return [
        value / mean
        for value in (advantages.centre(rewards, tolerance) if form == "centred" else rewards)
    ]


@advantage
def length_reward(
    step: Step,
    *,
    weight: float = 1.0,
    start: int = 50,
    success: float = SUCCESS,
    tolerance: float = SPREAD_TOLERANCE,
    state: Any = None,
) -> tuple[list[float], int]:
    """R + weight * length reward, less its mean over the group (Kimi k1.5, 2501.12599, section
    2.3.3).

    With lambda = 0.5 - (length - shortest) / (longest - shortest) over the samples of a group, the
    length reward is lambda for a sample that succeeded and min(0, lambda) for any other; 0 where
    all are of one length. So short right answers gain, long ones lose, right or wrong. Lengths are
    in trained tokens. The paper trains without it first, as it slows down the start, and states
    neither its weight nor when it begins.

    Args:
        weight: below 2 a right answer stays above every wrong one of its group (outcomes of 0 and
            1).
        start: number of batches without the length reward.
        success: outcome from which on a sample succeeded.
    """
    done, out = int(state or 0), [0.0] * len(step.rewards)
    samples = step.batch.samples
    for indices in step.groups:
        shortest, longest = (f(samples[i].tokens for i in indices) for f in (min, max))
        rewards = [step.rewards[i] for i in indices]
        if done >= start and shortest < longest:
            for k, i in enumerate(indices):
                bonus = 0.5 - (samples[i].tokens - shortest) / (longest - shortest)
                rewards[k] += weight * (
                    bonus if reaches(samples[i].outcome, success) else min(0.0, bonus)
                )
        for i, value in zip(indices, advantages.centre(rewards, tolerance), strict=True):
            out[i] = value
    return out, done + 1


@advantage
def batch_norm(
    step: Step,
    *,
    over: NormalisedOver = "batch",
    epsilon: float = 1e-4,
    tolerance: float = SPREAD_TOLERANCE,
) -> list[float]:
    """(R - mean(group)) / (spread + epsilon), the spread being that of the centred rewards of the
    whole batch (ScaleRL, 2510.13786, section 3.2; Magistral). ddof 0. TRL's
    ``scale_rewards="batch"`` takes the spread of the raw rewards, with ddof 1.

    Args:
        over: ``environment``: the spread of the samples of the same environment, so that one with
            large rewards does not drown the others.
    """
    centred = advantages.group_mean(step, tolerance=tolerance)
    return _scaled(step, centred, [1] * len(centred), over, epsilon, shift=False)


@advantage
def reinforce_pp_baseline(
    step: Step,
    *,
    over: NormalisedOver = "batch",
    epsilon: float = 1e-8,
    tolerance: float = SPREAD_TOLERANCE,
) -> list[float]:
    """R - mean(group), then less the mean and over the spread of the batch, each sample weighing as
    many times as it has tokens (REINFORCE++-baseline, 2501.03262, section 3.2; ddof 0 as in
    OpenRLHF, verl takes 1).

    The mean is over tokens, so the mean over samples is not 0 (OpenRLHF #924), and a group of equal
    rewards moves where other groups' right answers differ in length from their wrong ones.
    """
    centred = advantages.group_mean(step, tolerance=tolerance)
    return _scaled(step, centred, [s.tokens for s in step.batch.samples], over, epsilon, shift=True)


@advantage
def reinforce_pp(
    step: Step,
    *,
    over: NormalisedOver = "batch",
    epsilon: float = 1e-8,
    tolerance: float = SPREAD_TOLERANCE,
) -> Tensor:
    """Return-to-go per token, less the mean and over the spread of all tokens of the batch
    (REINFORCE++, 2501.03262, equations 3 to 5), [N].

    A token's reward is minus its KL penalty, where the KL is in the reward; turn scores come at the
    end of their turn, the rest of the reward with the last token. No discount. Observations are no
    tokens here, so the return crosses them. ddof 0 as in OpenRLHF; verl takes 1, SkyRL's return
    does not reach tokens before a tool's answer.

    Args:
        over: ``environment``: mean and spread of the tokens of the same environment.
    """
    value, sample = returns(step), step.batch.sample_of_tokens
    out = torch.zeros_like(value)
    for indices in advantages.parts_of(step, over):
        part = torch.isin(sample, torch.tensor(indices))
        part_value = value[part]
        if not are_equal(part_value.tolist(), tolerance):
            out[part] = (part_value - part_value.mean()) / (part_value.std(correction=0) + epsilon)
    return out


@advantage(fits=advantages.remark_on_spread)
def process_norm(
    step: Step, *, epsilon: float = 1e-4, ddof: int = 0, tolerance: float = SPREAD_TOLERANCE
) -> Tensor:
    """GRPO with process rewards: scores of turns normalised over all turns of the group, summed
    from each turn on (2402.03300, section 4.1.3), [N].

    What a sample was given as a whole comes with its last turn. A sample without turn scores is one
    turn, so that without any this is `group_norm`.
    """
    if any(sample.turn_scores for sample in step.batch.samples):
        check_order(step)
    tensors: list[Tensor] = [torch.zeros(0, dtype=torch.float64)] * len(step.batch.samples)
    for indices in step.groups:
        scored = [_scored_turns(step.batch.samples[i], step.rewards[i]) for i in indices]
        flat = [score for turns in scored for _, score in turns]
        values = iter(advantages.standardise(flat, epsilon, ddof, tolerance))
        for i, turns in zip(indices, scored, strict=True):
            gains = [next(values) for _ in turns]
            after = [math.fsum(gains[k:]) for k in range(len(gains))]
            tensors[i] = torch.tensor(after, dtype=torch.float64).repeat_interleave(
                torch.tensor([count for count, _ in turns], dtype=torch.long)
            )
    return torch.cat(tensors)


@advantage
def turn_level(
    step: Step,
    *,
    gamma: float = 1.0,
    baseline: Literal["others", "mean"] = "others",
    tolerance: float = SPREAD_TOLERANCE,
) -> Tensor:
    """Return from each turn on, discounted by turns, less the group's mean at the same turn index,
    [N].

    G_k = sum_{j >= k} gamma^(j - k) r_j, r_j the score of turn j less the KL penalty of its tokens;
    what a sample was given as a whole comes with its last turn. All tokens of turn k get G_k - b_k
    (turn-level credit: Zeng et al. 2025, 2505.11821, without a discount and over a spread). With
    ``others`` and gamma = 1 the expected update is the true gradient if no score of a turn depends
    on what is sampled after the turn.

    Args:
        gamma: discount per turn, in [0, 1].
        baseline: ``mean``: b_k is the mean of G_k over the samples of the group that have a turn k;
            ``others`` leaves the sample itself out, and compares a turn that no other sample
            reaches with the others' whole returns.

    Raises:
        UsageError: a discount outside [0, 1], or an unknown baseline.
    """
    if not 0 <= gamma <= 1:
        raise UsageError(f"gamma is {gamma}; expected a discount per turn in [0, 1]")
    if baseline not in ("others", "mean"):
        raise UsageError(f"baseline is {baseline!r}; expected others or mean")
    check_order(step)
    counts = [s.turns or (s.tokens,) for s in step.batch.samples]
    rewards = iter(token_rewards(step).split([n for turns in counts for n in turns]))
    gains = [_discounted([float(next(rewards).sum()) for _ in turns], gamma) for turns in counts]
    out: list[float] = []
    of_sample = {i: indices for indices in step.groups for i in indices}
    for i, gain in enumerate(gains):
        others = [gains[j] for j in of_sample[i] if j != i]
        for k, value in enumerate(gain):
            peers = [other[k] for other in others if len(other) > k]
            if baseline == "others":
                peers = peers or [other[0] for other in others]
            size = len(peers) + (baseline == "mean")
            same = are_equal([value, *peers], tolerance)
            out.append(0.0 if same else (len(peers) * value - math.fsum(peers)) / size)
    turns = torch.tensor([n for turns in counts for n in turns], dtype=torch.long)
    return torch.tensor(out, dtype=torch.float64).repeat_interleave(turns)


def _discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return the discounted sum of *rewards* from each on."""
    out, after = [0.0] * len(rewards), 0.0
    for k in reversed(range(len(rewards))):
        out[k] = after = rewards[k] + gamma * after
    return out


@advantage(reads=("square",))
def optimal_token(step: Step, *, tolerance: float = SPREAD_TOLERANCE) -> Tensor:
    """Return-to-go less a weighted baseline at each place, meant to have the least variance: OTB
    (2602.07078), [N].

    At place t of a group: B = sum_i G_i W_i / sum_i W_i over the samples that have a token there,
    G_i their return from t on and W_i = sum_{j <= t} (1 - 2 prox_j + sum_v prox_v^2), the squared
    gradient of the logits so far, as a proxy for that of the parameters. B holds the sample itself,
    so the update has a bias of order 1 / G; where one sample is left B is its return, and its
    advantage 0.
    """
    check_order(step)
    gain, sample = returns(step), step.batch.sample_of_tokens
    square, prox = (step.statistics[name].double().cpu() for name in ("square", "prox_logp"))
    proxy = (1 - 2 * prox.exp() + square).clamp(min=0)
    out = torch.zeros_like(gain)
    counts = [s.tokens for s in step.batch.samples]
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    assert sample.shape[0] == starts[-1]
    for indices in step.groups:
        if are_equal([step.rewards[i] for i in indices], tolerance) and step.penalty is None:
            turns = [turn_rewards(step.batch.samples[i], step.rewards[i]) for i in indices]
            # else returns differ on the way to the same total
            if all(one[:-1] == turns[0][:-1] for one in turns):
                continue
        longest = max(counts[i] for i in indices)
        weighted_sum = torch.zeros(longest, dtype=torch.float64)
        total = torch.zeros(longest, dtype=torch.float64)
        for i in indices:
            part = slice(starts[i], starts[i + 1])
            weight = proxy[part].cumsum(0)
            weighted_sum[: counts[i]] += gain[part] * weight
            total[: counts[i]] += weight
        baseline = weighted_sum / total.clamp(min=torch.finfo(torch.float64).tiny)
        for i in indices:
            part = slice(starts[i], starts[i + 1])
            out[part] = torch.where(total[: counts[i]] > 0, gain[part] - baseline[: counts[i]], 0.0)
    return out


def _scored_turns(sample: Sample, reward: float) -> list[tuple[int, float]]:
    """Return what `turn_rewards` does, with one turn for a sample whose turns were not scored."""
    return turn_rewards(sample, reward) if sample.turn_scores else [(sample.tokens, reward)]


def _scaled(
    step: Step,
    values: Sequence[float],
    weights: Sequence[int],
    over: NormalisedOver,
    epsilon: float,
    *,
    shift: bool,
) -> list[float]:
    """Return *values* over their weighted spread (ddof 0), less their weighted mean where *shift*,
    in the batch or in each environment. All 0 where all are.
    """
    out = [0.0] * len(values)
    for indices in advantages.parts_of(step, over):
        if not any(values[i] for i in indices):
            continue
        total = max(1, sum(weights[i] for i in indices))
        mean = math.fsum(values[i] * weights[i] for i in indices) / total
        spread = math.sqrt(math.fsum((values[i] - mean) ** 2 * weights[i] for i in indices) / total)
        for i in indices:
            out[i] = (values[i] - (mean if shift else 0.0)) / (spread + epsilon)
    return out
