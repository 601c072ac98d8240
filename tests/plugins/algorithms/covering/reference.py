"""Training on a batch by the formulas of the papers, in NumPy alone: nothing of the package is
imported.

The policy is a table of logits, [rows, V]: the token before a place chooses the row. A loss is
written as a function of the log-probs of the sampled tokens, which may be complex: its derivative
by one of them is the imaginary part of the loss at logp + i h, over h, exact to rounding (Squire
and Trapp 1998). So no derivative is written down here. A stopped gradient is the real part;
comparisons read real parts.

Shapes: N tokens of a batch, flat in the order of samples; S samples; V vocabulary; P perturbed
copies of the log-probs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
TINY = 1e-30
"""The complex step h: its square is below the smallest rounding error."""


def log_softmax(logits: Array) -> Array:
    peak = logits.max(-1, keepdims=True)
    return np.asarray(logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True)))


def sg(x: Array) -> Array:
    """Stop the gradient."""
    return np.asarray(x.real)


# ---------------------------------------------------------------- the batch


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A sample: *rows* of the table that predict its trained tokens *ids*, log-probs *mu* when they
    were sampled.

    Attributes:
        prompt: token ids before the first trained token.
        turns, scores: tokens of each turn, and what each was given; part of outcome plus shaping.
    """

    group: int
    environment: str
    prompt: tuple[int, ...]
    rows: tuple[int, ...]
    ids: tuple[int, ...]
    mu: tuple[float, ...]
    outcome: float
    shaping: float = 0.0
    truncated: bool = False
    turns: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A batch, with what the frozen policies say of it.

    Attributes:
        support: tokens that pruning leaves at each place, [N, V].
        prox_V: log-probs of prox over the support, [N, V].
        prox, ref: of the sampled tokens, [N].
    """

    answers: Sequence[Answer]
    support: Array
    prox_V: Array
    prox: Array
    ref: Array

    @cached_property
    def sample(self) -> Array:
        return np.repeat(np.arange(len(self.answers)), [len(a) for a in self.answers])

    @cached_property
    def belongs(self) -> Array:
        """[N, S]."""
        return (self.sample[:, None] == np.arange(len(self.answers))).astype(float)

    @cached_property
    def mu(self) -> Array:
        return np.array([x for a in self.answers for x in a.mu])

    @cached_property
    def groups(self) -> list[list[int]]:
        numbers = dict.fromkeys(a.group for a in self.answers)
        return [[i for i, a in enumerate(self.answers) if a.group == g] for g in numbers]

    def of(self, i: int) -> slice:
        start = sum(len(a) for a in self.answers[:i])
        return slice(start, start + len(self.answers[i]))


# ---------------------------------------------------------------- advantages, [N]


@dataclass(kw_only=True)
class Earned:
    """What an advantage reads.

    Attributes:
        totals: outcome plus shaping plus overlong punishment less the KL in the reward, [S].
        penalty: the KL in the reward, of each token, [N].
        values: of a critic, [N].
        memory: of a stateful advantage; it changes this.
    """

    seen: Seen
    totals: Array
    penalty: Array
    values: Array
    memory: dict[str, float]

    def spread(self, values_S: Array) -> Array:
        return np.asarray(values_S[self.seen.sample])

    def of_environments(self, rule: Callable[[Array], Array], values: Array) -> Array:
        """*rule* of the *values*, [S] or [N], of each environment."""
        names = np.array([a.environment for a in self.seen.answers])
        names = names if len(values) == len(names) else names[self.seen.sample]
        out = np.zeros(len(values))
        for name in np.unique(names):
            out[names == name] = rule(values[names == name])
        return out

    def in_groups(self, rule: Callable[[Array], Array]) -> Array:
        out = np.zeros(len(self.totals))
        for group in self.seen.groups:
            out[group] = rule(self.totals[group])
        return out


def centred(r: Array) -> Array:
    return np.zeros_like(r) if np.ptp(r) < 1e-6 else r - r.mean()


def standardised(r: Array) -> Array:
    """GRPO, section 4.1.2; population standard deviation, epsilon 1e-4."""
    return np.asarray(centred(r) / (np.sqrt((centred(r) ** 2).mean()) + 1e-4))


def raw(e: Earned) -> Array:
    return e.spread(e.totals)


def batch_mean(e: Earned) -> Array:
    return e.spread(centred(e.totals))


def batch_mean_of_environments(e: Earned) -> Array:
    return e.spread(e.of_environments(centred, e.totals))


def ema(e: Earned) -> Array:
    """Less a moving average of earlier batch means with decay 0.9, corrected for its start at 0."""
    weight, average = e.memory.get("weight", 0.0), e.memory.get("average", 0.0)
    baseline = average / weight if weight else 0.0
    e.memory.update(weight=0.9 * weight + 0.1, average=0.9 * average + 0.1 * float(e.totals.mean()))
    return e.spread(e.totals - baseline)


def group_mean(e: Earned) -> Array:
    return e.spread(e.in_groups(centred))


def group_norm(e: Earned) -> Array:
    return e.spread(e.in_groups(standardised))


def leave_one_out(e: Earned) -> Array:
    """RLOO, equation 7; a sample alone gets 0."""

    def rule(r: Array) -> Array:
        if np.ptp(r) < 1e-6:
            return np.zeros_like(r)  # a sample alone, too
        return np.array([r[i] - np.delete(r, i).mean() for i in range(len(r))])

    return e.spread(e.in_groups(rule))


GREEDY = (0.3, 0.7, 0.1, 0.9, 0.4, 0.2)
"""What the greedy answer of each group earns."""


def greedy(e: Earned) -> Array:
    """ReMax: less the reward of the greedy answer."""
    return e.spread(e.totals - np.array([GREEDY[a.group % len(GREEDY)] for a in e.seen.answers]))


def maxrl(e: Earned) -> Array:
    """(R - mean) / mean, 0 where nothing was earned."""
    return e.spread(
        e.in_groups(lambda r: centred(r) / r.mean() if r.mean() > 1e-6 else np.zeros_like(r))
    )


def batch_norm(e: Earned) -> Array:
    """ScaleRL, section 3.2: (R - group mean) / (standard deviation of that over the batch +
    1e-4).
    """
    values = e.in_groups(centred)
    return e.spread(values / (values.std() + 1e-4))


def batch_norm_of_environments(e: Earned) -> Array:
    return e.spread(e.of_environments(lambda x: x / (x.std() + 1e-4), e.in_groups(centred)))


def over_success(e: Earned) -> Array:
    """R / mean, 0 where nothing was earned."""
    return e.spread(e.in_groups(lambda r: r / r.mean() if r.mean() > 1e-6 else np.zeros_like(r)))


def whitened(x: Array) -> Array:
    return np.zeros_like(x) if np.ptp(x) < 1e-6 else (x - x.mean()) / (x.std() + 1e-8)


def reinforce_pp_baseline(e: Earned) -> Array:
    """Group means subtracted, then whitened over all tokens of the batch."""
    return whitened(e.spread(e.in_groups(centred)))


def reinforce_pp_baseline_of_environments(e: Earned) -> Array:
    return e.of_environments(whitened, e.spread(e.in_groups(centred)))


def token_rewards(e: Earned) -> Array:
    """-KL of each token; turn scores at the ends of turns; the rest of the total at the end."""
    out = -e.penalty
    for i, answer in enumerate(e.seen.answers):
        own = out[e.seen.of(i)]
        ends = np.cumsum(answer.turns) - 1 if answer.turns else [len(answer) - 1]
        for end, score in zip(ends, answer.scores, strict=False):
            own[end] += score
        own[-1] += e.totals[i] + e.penalty[e.seen.of(i)].sum() - sum(answer.scores)
    return np.asarray(out)


def returns(e: Earned) -> Array:
    rewards = token_rewards(e)
    return np.concatenate(
        [rewards[e.seen.of(i)][::-1].cumsum()[::-1] for i in range(len(e.totals))]
    )


def reinforce_pp(e: Earned) -> Array:
    """REINFORCE++, equations 3 to 5."""
    return whitened(returns(e))


def reinforce_pp_of_environments(e: Earned) -> Array:
    return e.of_environments(whitened, returns(e))


def process_norm(e: Earned) -> Array:
    """GRPO, section 4.1.3: turn scores standardised over the group's turns, summed from each turn
    on.
    """
    out = np.zeros(len(e.seen.sample))
    for group in e.seen.groups:
        held = []
        for i in group:
            answer = e.seen.answers[i]
            turns = answer.turns if answer.scores and answer.turns else (len(answer),)
            scores = np.zeros(len(turns))
            scores[: len(answer.scores)] = answer.scores
            scores[-1] += e.totals[i] - sum(answer.scores)
            held.append((i, turns, scores))
        every = standardised(np.concatenate([scores for _, _, scores in held]))
        for i, turns, scores in held:
            mine, every = every[: len(scores)], every[len(scores) :]
            out[e.seen.of(i)] = np.repeat(mine[::-1].cumsum()[::-1], turns)
    return out


def turn_level(e: Earned, gamma: float = 0.8) -> Array:
    """Discounted return of each turn less the mean of the other samples' at that turn, or at their
    first if none has it.
    """
    flat, gains, lengths = token_rewards(e), [], []
    for i, answer in enumerate(e.seen.answers):
        lengths.append(answer.turns or (len(answer),))
        own = [part.sum() for part in np.split(flat[e.seen.of(i)], np.cumsum(lengths[i])[:-1])]
        gains.append([sum(r * gamma**j for j, r in enumerate(own[k:])) for k in range(len(own))])
    out = np.zeros(len(e.seen.sample))
    for group in e.seen.groups:
        for i in group:
            others = [gains[j] for j in group if j != i]
            at = [
                [g[k] for g in others if len(g) > k] or [g[0] for g in others]
                for k in range(len(gains[i]))
            ]
            values = [
                v - np.mean(held) if held else 0.0 for v, held in zip(gains[i], at, strict=True)
            ]
            out[e.seen.of(i)] = np.repeat(values, lengths[i])
    return out


def optimal_token(e: Earned) -> Array:
    """OTB: G_t - sum_i G_it W_it / sum_i W_it over samples with a token at t, W_it = sum_{j<=t} 1 -
    2 p + sum_v p^2.

    0 where all W are: all tokens so far were the only ones possible, and have no gradient.
    """
    gain = returns(e)
    proxy = 1 - 2 * np.exp(e.seen.prox) + (np.exp(e.seen.prox_V) ** 2).sum(1)
    out = np.zeros_like(gain)
    for group in e.seen.groups:
        spans = {i: e.seen.of(i) for i in group}
        gains = {i: gain[s] for i, s in spans.items()}
        weights = {i: proxy[s].cumsum() for i, s in spans.items()}
        for t in range(max(map(len, gains.values()))):
            there = [i for i in group if len(gains[i]) > t]
            total = sum(weights[i][t] for i in there)
            for i in there if total else ():
                baseline = sum(gains[j][t] * weights[j][t] for j in there) / total
                out[spans[i].start + t] = gains[i][t] - baseline
    return out


def length_reward(e: Earned) -> Array:
    """Kimi k1.5, section 2.3.3: lambda = 0.5 - (len - min_len) / (max_len - min_len); min(0,
    lambda) if wrong. Here from the second batch on, with weight 0.8.
    """
    batch = e.memory["batch"] = e.memory.get("batch", 0) + 1
    totals = e.totals.copy()
    lengths = np.array([len(a) for a in e.seen.answers], dtype=float)
    right = np.array([a.outcome >= 1 for a in e.seen.answers])
    for group in e.seen.groups if batch > 1 else ():
        if np.ptp(lengths[group]):
            bonus = 0.5 - (lengths[group] - lengths[group].min()) / np.ptp(lengths[group])
            totals[group] += 0.8 * np.where(right[group], bonus, np.minimum(0, bonus))
    out = np.zeros_like(totals)
    for group in e.seen.groups:
        out[group] = centred(totals[group])
    return e.spread(out)


def gae(e: Earned) -> Array:
    """Negative KL does not count; whitened."""
    return whitened(_gae(e, token_rewards(e) + np.minimum(e.penalty, 0)))


def gae_signed(e: Earned) -> Array:
    return _gae(e, token_rewards(e))


def _gae(e: Earned, rewards: Array) -> Array:
    """Schulman et al. 2015, equation 16, gamma 0.95, lambda 0.9; nothing follows the end."""
    out = np.zeros_like(rewards)
    for i in range(len(e.totals)):
        r, v = rewards[e.seen.of(i)], e.values[e.seen.of(i)]
        delta = r + 0.95 * np.append(v[1:], 0) - v
        own = out[e.seen.of(i)]
        for t in range(len(r)):
            own[t] = sum((0.95 * 0.9) ** k * delta[t + k] for k in range(len(r) - t))
    return out


def continuation(tokens: Sequence[int], number: int) -> float:
    """What the continuation *number* of a beginning earns."""
    return (7 * sum(tokens) + 13 * number) % 11 / 11


def vine(e: Earned) -> Array:
    """VinePPO, steps of 2 tokens, 3 continuations: the value of the next step's beginning less that
    of its own.
    """
    out = []
    for answer in e.seen.answers:
        cuts = range(0, len(answer), 2)
        begun = [answer.prompt + answer.ids[:cut] for cut in cuts]
        values = [np.mean([continuation(tokens, k) for k in range(3)]) for tokens in begun]
        reached = [*values[1:], answer.outcome + answer.shaping]
        steps = np.array(reached) - np.array(values)
        out.append(np.repeat(steps, 2)[: len(answer)])
    return np.concatenate(out)


def ones(e: Earned) -> Array:
    return np.ones(len(e.seen.sample))


def winners(e: Earned) -> Array:
    return e.spread(np.array([float(succeeded(a)) for a in e.seen.answers]))


def desirable(e: Earned) -> Array:
    return 2 * winners(e) - 1


def succeeded(answer: Answer) -> bool:
    return answer.outcome > 1 - 1e-9


# ----------------------------------------------------- objectives, [P, N], [P, S] or [P, groups]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What an objective reads; *theta_V* are log-probs of theta over the support, [N, V], without
    gradient, *part* the samples that train.
    """

    part: Sequence[int]
    logp: Array
    old: Array
    advantage: Array
    seen: Seen
    theta_V: Array

    @property
    def log_ratio(self) -> Array:
        return np.asarray(self.logp - self.old)

    def total(self, x: Array) -> Array:
        return np.asarray(x @ self.seen.belongs)

    def mean(self, x: Array) -> Array:
        return np.asarray(self.total(x) / self.seen.belongs.sum(0))


def surrogate(ratio: Array, a: Array, low: float, high: float, dual: float | None = None) -> Array:
    """-min(r A, clip(r, 1 - low, 1 + high) A); where A < 0 at most -dual A."""
    held = np.where(ratio.real < 1 - low, 1 - low, np.where(ratio.real > 1 + high, 1 + high, ratio))
    gain = np.where((ratio * a).real <= (held * a).real, ratio * a, held * a)
    if dual is not None:
        gain = np.where((a < 0) & (gain.real < dual * a), dual * a + 0 * gain, gain)
    return -gain


def policy_gradient(t: Terms) -> Array:
    return -t.advantage * t.logp


def importance(t: Terms) -> Array:
    return -np.exp(t.log_ratio) * t.advantage


def ppo_clip(t: Terms) -> Array:
    return surrogate(np.exp(t.log_ratio), t.advantage, 0.1, 0.15)


def ppo_dual(t: Terms) -> Array:
    return surrogate(np.exp(t.log_ratio), t.advantage, 0.2, 0.2, dual=1.3)


def sequence_clip(t: Terms) -> Array:
    return surrogate(np.exp(t.total(t.log_ratio)), t.mean(t.advantage), 0.2, 0.3)


def gspo(t: Terms) -> Array:
    """Equations 5 to 7, with bounds that are met here."""
    return surrogate(np.exp(t.mean(t.log_ratio)), t.mean(t.advantage), 0.05, 0.08)


def gspo_token(t: Terms) -> Array:
    """Equations 13 and 14: s_t = sg(s) theta_t / sg(theta_t)."""
    whole = sg(np.exp(t.mean(t.log_ratio))) @ t.seen.belongs.T
    return surrogate(whole * np.exp(t.logp - sg(t.logp)), t.advantage, 0.05, 0.08)


def cispo(t: Terms) -> Array:
    return -np.minimum(sg(np.exp(t.log_ratio)), 1.2) * t.advantage * t.logp


def _unmasked(t: Terms, raised: Array, lowered: Array, cap: float) -> Array:
    """-sg(min(r, cap)) A log theta but for tokens that moved too far in the direction of A."""
    dropped = ((t.advantage > 0) & raised) | ((t.advantage < 0) & lowered)
    return np.where(dropped, 0, -np.minimum(sg(np.exp(t.log_ratio)), cap) * t.advantage * t.logp)


def dppo_tv(t: Terms) -> Array:
    """Binary total variation, delta 0.05, cap 1.5."""
    moved = np.exp(sg(t.logp)) - np.exp(t.old)
    return _unmasked(t, moved > 0.05, moved < -0.05, 1.5)


def dppo_kl(t: Terms) -> Array:
    """Binary KL(old || theta), delta 0.01; 0 log 0 is 0, and a place with one token left has no
    divergence.
    """
    p, q = np.broadcast_arrays(np.exp(t.old), np.exp(sg(t.logp)))
    rest = np.zeros_like(p)
    np.log((1 - p) / np.where(q < 1, 1 - q, 1), out=rest, where=(p < 1) & (q < 1))
    far = p * np.log(p / q) + (1 - p) * rest > 0.01
    return _unmasked(t, far & (q > p), far & (q <= p), 20.0)


def dppo_top(t: Terms) -> Array:
    """Total variation over the 3 likeliest tokens of prox, the sampled one and all others, delta
    0.04.
    """
    prox, theta = np.exp(t.seen.prox_V), np.exp(t.theta_V)
    sampled_prox, sampled = np.exp(t.seen.prox), np.exp(sg(t.logp))[0]
    far = []
    for n in range(len(sampled)):
        chosen = list(np.argsort(-prox[n])[:3])
        p, q = list(prox[n][chosen]), list(theta[n][chosen])
        if not np.any(np.isclose(prox[n][chosen], sampled_prox[n], rtol=1e-12, atol=0)):
            p, q = [*p, sampled_prox[n]], [*q, sampled[n]]
        variation = sum(abs(x - y) for x, y in zip(p, q, strict=True)) + abs(
            (1 - sum(p)) - (1 - sum(q))
        )
        far.append(variation / 2 > 0.04)
    up = sg(t.log_ratio) > 0
    return _unmasked(t, np.array(far) & up, np.array(far) & ~up, 20.0)


def mirror_descent(t: Terms) -> Array:
    """Kimi k1.5, equation 3 over 2 tau, tau 0.5: (A - tau log(theta(y) / old(y)))^2."""
    return (t.mean(t.advantage) - 0.5 * t.total(t.log_ratio)) ** 2 / (2 * 0.5)


def _of_groups(t: Terms, term: Callable[[list[int]], Array]) -> Array:
    """*term*, [P], of what trains of each group; 0 where nothing does."""
    held = [[i for i in group if i in t.part] for group in t.seen.groups]
    nothing = np.zeros(len(t.logp))
    return np.stack([term(samples) if samples else nothing for samples in held], 1)


def _of_pairs(t: Terms, score: Array, beta: float, gamma: float, extremes: bool = False) -> Array:
    """Mean of log(1 + exp(-(beta (s_w - s_l) - gamma))) over the pairs of a group, a sample being
    worth its largest advantage.
    """
    worth = np.array([t.advantage[t.seen.of(i)].max() for i in range(len(t.seen.answers))])

    def better(i: int, j: int) -> bool:
        return bool(worth[i] - worth[j] > 1e-6 * max(1, abs(worth[i]), abs(worth[j])))

    def term(samples: list[int]) -> Array:
        pairs = [(i, j) for i in samples for j in samples if better(i, j)]
        if extremes:
            first, last = (min(samples, key=lambda i: sign * worth[i]) for sign in (-1, 1))
            pairs = [(first, last)] if better(first, last) else []
        margins = [beta * (score[:, i] - score[:, j]) - gamma for i, j in pairs]
        return sum((np.log(1 + np.exp(-m)) for m in margins), 0 * score[:, 0]) / max(1, len(pairs))

    return _of_groups(t, term)


def dpo(t: Terms) -> Array:
    """Rafailov et al. 2023, equation 7, beta 0.5."""
    return _of_pairs(t, t.total(t.logp - t.seen.ref), 0.5, 0.0)


def dpo_extremes(t: Terms) -> Array:
    return _of_pairs(t, t.total(t.logp - t.seen.ref), 0.5, 0.0, extremes=True)


def dpo_norm(t: Terms) -> Array:
    return _of_pairs(t, t.mean(t.logp - t.seen.ref), 2.0, 0.0)


def simpo(t: Terms) -> Array:
    """Meng et al. 2024, equation 6, beta 2, gamma 0.3."""
    return _of_pairs(t, t.mean(t.logp), 2.0, 0.3)


def kto(t: Terms) -> Array:
    """Ethayarajh et al. 2024, equation 8, beta 0.7, weights 1.3 and 0.8 times the size of the
    advantage; the reference point is that of the samples without an advantage, if there are any.
    """
    h, value = t.total(t.logp - t.seen.ref), t.mean(t.advantage)

    def term(samples: list[int]) -> Array:
        unlabelled = [i for i in samples if value[i] == 0] or samples
        z = np.maximum(0, sg(h)[:, unlabelled].mean(1))
        labelled = [i for i in samples if value[i]]
        terms = [
            (1.3 if value[i] > 0 else 0.8)
            * abs(value[i])
            * (1 - 1 / (1 + np.exp(-0.7 * np.sign(value[i]) * (h[:, i] - z))))
            for i in labelled
        ]
        return sum(terms, 0 * h[:, 0]) / max(1, len(labelled))

    return _of_groups(t, term)


OF_GROUPS = (dpo, dpo_extremes, dpo_norm, simpo, kto)
NEVER_IDLE = (mirror_descent, kto)


# ---------------------------------------------------- corrections, [N] or [S], of log prox - log mu


def none(seen: Seen) -> Array:
    return np.ones(len(seen.sample))


def _product(seen: Seen) -> Array:
    return np.asarray(np.exp((seen.prox - seen.mu) @ seen.belongs))


def tis(seen: Seen) -> Array:
    return np.minimum(np.exp(seen.prox - seen.mu), 1.2)


def tis_sequence(seen: Seen) -> Array:
    return np.minimum(_product(seen), 1.1)


def icepop(seen: Seen) -> Array:
    weight = np.exp(seen.prox - seen.mu)
    return np.where((weight < 0.8) | (weight > 1.3), 0.0, weight)


def mis(seen: Seen) -> Array:
    weight = _product(seen)
    return np.where((weight < 0.5) | (weight > 1.4), 0.0, weight)


def _k3(seen: Seen) -> Array:
    d = seen.prox - seen.mu
    return np.asarray(np.exp(d) - 1 - d)


def sequence_mask(seen: Seen) -> Array:
    """Mean of k3 over a sample's tokens within 0.05."""
    return np.asarray((_k3(seen) @ seen.belongs / seen.belongs.sum(0) <= 0.05).astype(float))


def trm(seen: Seen) -> Array:
    """Largest k3 of a sample's tokens within 0.15."""
    return np.array([float(_k3(seen)[seen.of(i)].max() <= 0.15) for i in range(len(seen.answers))])


# --------------------------------------------------------------- weight of one token of each sample


def token(answers: Sequence[Answer], longest: int) -> list[float]:
    return [1 / sum(map(len, answers))] * len(answers)


def sequence(answers: Sequence[Answer], longest: int) -> list[float]:
    return [1 / (len(answers) * len(a)) for a in answers]


def constant(answers: Sequence[Answer], longest: int) -> list[float]:
    return [1 / (len(answers) * longest)] * len(answers)


def prompt(answers: Sequence[Answer], longest: int) -> list[float]:
    tokens: dict[int, int] = {}
    for a in answers:
        tokens[a.group] = tokens.get(a.group, 0) + len(a)
    return [1 / (len(tokens) * tokens[a.group]) for a in answers]


def over_winners(answers: Sequence[Answer], longest: int) -> list[float]:
    tokens = sum(len(a) for a in answers if succeeded(a))
    return [1 / tokens if succeeded(a) else 0.0 for a in answers]


# ---------------------------------------------------------------- the rest


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """A KL term; *where* is ``loss`` or ``reward``."""

    where: str
    estimate: str
    coefficient: float = 0.3
    score: bool = False


def kl_estimate(d: Array, estimate: str) -> Array:
    """Schulman 2020, d = log theta - log ref."""
    return np.asarray({"k1": d, "k2": d * d / 2, "k3": np.exp(-d) - 1 + d}[estimate])


def overlong(length: int, longest: int, share: float) -> float:
    """DAPO, equation 13, with the buffer share * longest; 0 where the share is."""
    if not share or length <= (1 - share) * longest:
        return 0.0
    return max(-1.0, ((1 - share) * longest - length) / (share * longest))


Filter = Callable[[Array, Array], bool]
"""Whether a group with these outcomes and totals trains."""


def at_least(samples: int) -> Filter:
    return lambda outcomes, totals: len(outcomes) >= samples


def varied(outcomes: Array, totals: Array) -> bool:
    return len(outcomes) >= 2 and bool(np.ptp(outcomes) > 1e-6)


def varied_total(outcomes: Array, totals: Array) -> bool:
    return len(outcomes) >= 2 and bool(max(np.ptp(outcomes), np.ptp(totals)) > 1e-6)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A combination of pieces and settings; a name of an objective or correction alone does not
    tell its level.
    """

    advantage: Callable[[Earned], Array]
    objective: Callable[[Terms], Array]
    correction: Callable[[Seen], Array]
    aggregation: Callable[[Sequence[Answer], int], list[float]]
    group_filter: Filter
    kl: Penalty | None = None
    epochs: int = 1
    minibatches: int = 1
    ratio_to: str = "prox"
    mask_truncated: bool = False
    overlong: float = 0.0
    prune: float = 0.0
    reset_optimizer: bool = False
    skip_idle: bool = True
    natural: bool = False


@dataclass(frozen=True, kw_only=True)
class Update:
    """One optimizer step: the loss before it and its gradient by the table."""

    loss: float
    gradient: Array


@dataclass(kw_only=True)
class Trainer:
    """The table of theta, its optimizer and what an advantage remembers.

    Attributes:
        temperature: of the policy.
        longest: configured maximum of tokens of a turn.
        step_size, epsilon: of AdamW, without decay.
    """

    method: Method
    table: Array
    ref: Array
    temperature: float
    longest: int
    step_size: float
    epsilon: float
    memory: dict[str, float] = field(default_factory=dict)
    updates: int = 0
    count: int = 0
    first: Array | float = 0.0
    second: Array | float = 0.0

    def accepted(self, answers: Sequence[Answer]) -> list[Answer]:
        """Those whose group passes the filter."""
        out = []
        for number in dict.fromkeys(a.group for a in answers):
            group = [a for a in answers if a.group == number]
            outcomes = np.array([a.outcome for a in group])
            totals = np.array([self._total(a) for a in group])
            out += group if self.method.group_filter(outcomes, totals) else []
        return out

    def step(self, answers: Sequence[Answer], values: Array | None = None) -> list[Update]:
        """Train on *answers*; *values* are a critic's."""
        method, seen = self.method, self._seen(answers)
        advantage = self._advantage(seen, values)
        if method.reset_optimizer:
            self.count, self.first, self.second = 0, 0.0, 0.0
        found = []
        for epoch in range(method.epochs):
            order = list(range(len(seen.groups)))
            if epoch:  # the order of later epochs follows from the number of updates
                random.Random(f"minibatches/{self.updates}").shuffle(order)
            for part in self._parts(seen, order):
                update = self._update(seen, part, advantage)
                found += [update] if update else []
        return found

    def _parts(self, seen: Seen, order: list[int]) -> list[list[int]]:
        """Whole groups in as many parts of like size as there are minibatches."""
        count = min(self.method.minibatches, len(order))
        cuts = [round(len(order) * k / count) for k in range(count + 1)]
        return [[i for g in order[a:b] for i in seen.groups[g]] for a, b in pairwise(cuts)]

    def _total(self, a: Answer) -> float:
        return (
            a.outcome
            + a.shaping
            + overlong(max(a.turns, default=len(a)), self.longest, self.method.overlong)
        )

    def _over(self, table: Array, seen_rows: Array, support: Array) -> Array:
        return log_softmax(np.where(support, table[seen_rows] / self.temperature, -np.inf))

    def _seen(self, answers: Sequence[Answer]) -> Seen:
        rows, ids = self._flat(answers)
        logits = self.table[rows] / self.temperature
        prob = np.exp(log_softmax(logits))
        support = prob >= self.method.prune * prob.max(1, keepdims=True)
        support[np.arange(len(ids)), ids] = True
        prox_V, ref_V = (self._over(table, rows, support) for table in (self.table, self.ref))
        at = np.arange(len(ids))
        return Seen(
            answers=answers,
            support=support,
            prox_V=prox_V,
            prox=prox_V[at, ids],
            ref=ref_V[at, ids],
        )

    @staticmethod
    def _flat(answers: Sequence[Answer]) -> tuple[Array, Array]:
        return np.array([r for a in answers for r in a.rows]), np.array(
            [x for a in answers for x in a.ids]
        )

    def _advantage(self, seen: Seen, values: Array | None) -> Array:
        kl, penalty = self.method.kl, np.zeros_like(seen.prox)
        if kl is not None and kl.where == "reward":
            penalty = kl.coefficient * kl_estimate(seen.prox - seen.ref, kl.estimate)
        totals = np.array([self._total(a) for a in seen.answers]) - penalty @ seen.belongs
        values = np.zeros_like(penalty) if values is None else values
        return self.method.advantage(
            Earned(seen=seen, totals=totals, penalty=penalty, values=values, memory=self.memory)
        )

    def _loss(
        self, seen: Seen, part: Sequence[int], advantage: Array, logp: Array, theta_V: Array
    ) -> Array:
        """[P], at log-probs [P, N]."""
        method = self.method
        weight = np.zeros(len(seen.answers))
        weight[list(part)] = method.aggregation([seen.answers[i] for i in part], self.longest)
        weight_N = weight[seen.sample]
        old = seen.mu if method.ratio_to == "mu" else seen.prox
        terms = method.objective(
            Terms(part=part, logp=logp, old=old, advantage=advantage, seen=seen, theta_V=theta_V)
        )
        correction = method.correction(seen)
        # a term of a sample or a group weighs what its tokens weigh together
        if method.objective in OF_GROUPS:
            weight_S = weight * seen.belongs.sum(0)
            loss = terms @ np.array([weight_S[group].sum() for group in seen.groups])
        elif terms.shape[1] == len(seen.answers):
            loss = terms @ (weight * seen.belongs.sum(0) * _by_sample(correction, seen))
        else:
            loss = terms @ (weight_N * _by_token(correction, seen))
        if method.kl is not None and method.kl.where == "loss":
            value = kl_estimate(logp - seen.ref, method.kl.estimate)
            value = value * np.exp(logp - sg(logp)) if method.kl.score else value
            loss = loss + method.kl.coefficient * (value @ weight_N)
        return np.asarray(loss)

    def _update(self, seen: Seen, part: list[int], advantage: Array) -> Update | None:
        if self.method.mask_truncated:
            part = [i for i in part if not seen.answers[i].truncated]
        reads = part
        if self.method.objective in OF_GROUPS:  # of what a group lost, too
            reads = [i for group in seen.groups if set(group) & set(part) for i in group]
        still = not np.any(advantage[np.isin(seen.sample, reads)])
        learns_nothing = still and self.method.skip_idle and self.method.objective not in NEVER_IDLE
        if not part or (
            learns_nothing and not (self.method.kl is not None and self.method.kl.where == "loss")
        ):
            return None  # momentum alone moves nothing
        rows, ids = self._flat(seen.answers)
        n = np.arange(len(ids))

        def loss_at(table: Array) -> tuple[float, Array]:
            """The loss, and its derivative by each log-prob."""
            theta_V = self._over(table, rows, seen.support)
            logp = theta_V[n, ids] + 1j * TINY * np.eye(len(ids))
            loss = self._loss(seen, part, advantage, logp, theta_V)
            return float(loss[0].real), loss.imag / TINY

        loss, slope = loss_at(self.table)
        prob = np.exp(self._over(self.table, rows, seen.support))
        gradient = np.zeros_like(self.table)
        np.add.at(gradient, (rows, ids), slope / self.temperature)
        np.add.at(gradient, rows, -slope[:, None] * prob / self.temperature)
        if self.method.natural:
            self._natural(rows, loss, gradient, lambda table: loss_at(table)[0])
        else:
            self._adamw(gradient)
        self.updates += 1
        return Update(loss=loss, gradient=gradient)

    def _adamw(self, gradient: Array) -> None:
        """Loshchilov and Hutter 2019, betas 0.9 and 0.999."""
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        first, second = self.first / (1 - 0.9**self.count), self.second / (1 - 0.999**self.count)
        self.table = self.table - self.step_size * first / (np.sqrt(second) + self.epsilon)

    def _natural(
        self, rows: Array, loss: float, gradient: Array, loss_at: Callable[[Array], float]
    ) -> None:
        """TRPO, appendix C: conjugate gradients on the Fisher information plus 0.1, then a line
        search; delta 0.01.
        """
        delta, prob = 0.01, np.exp(log_softmax(self.table[rows] / self.temperature))

        def fisher(x: Array) -> Array:
            out = 0.1 * x
            along = x[rows] / self.temperature
            pushed = prob * (along - (prob * along).sum(1, keepdims=True))
            np.add.at(out, rows, pushed / self.temperature / len(rows))
            return np.asarray(out)

        x, rest = np.zeros_like(gradient), gradient.copy()
        way = rest.copy()
        for _ in range(10):
            if (rest**2).sum() <= 1e-20 * (gradient**2).sum():
                break
            size = (rest**2).sum() / (way * fisher(way)).sum()
            x, rest, before = x + size * way, rest - size * fisher(way), (rest**2).sum()
            way = rest + (rest**2).sum() / before * way
        if not np.any(x):
            return
        whole = -math.sqrt(2 * delta / (x * fisher(x)).sum()) * x
        for k in range(10):
            table = self.table + 0.8**k * whole
            moved = np.log(prob) - log_softmax(table[rows] / self.temperature)
            if loss_at(table) < loss and (prob * moved).sum() / len(rows) <= delta:
                self.table = table
                return


def _by_token(correction: Array, seen: Seen) -> Array:
    return correction if len(correction) == len(seen.sample) else correction[seen.sample]


def _by_sample(correction: Array, seen: Seen) -> Array:
    """Of whole samples; "none" is 1 for each."""
    return correction if len(correction) == len(seen.answers) else np.ones(len(seen.answers))
