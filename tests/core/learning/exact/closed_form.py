"""Updates of every method in closed form, in NumPy alone; shares no code with the package.

The gradient of the loss is taken with respect to the logits of theta, [places, vocabulary] (see
`policies`): every loss here reads theta through the log-probs of sampled tokens alone, so it is
sum_k c_k (one-hot_k - softmax_k), and the formulas below give c, "what multiplies d log theta".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from .policies import Array, Path, Policies, Seen

PerToken = list[Array]
"""One array of values per sample, one value per token."""


# ---------------------------------------------------------------- advantages


@dataclass(frozen=True, kw_only=True)
class Earned:
    """What an advantage reads: totals, less the KL in the reward and the overlong punishment; and
    the KL per token.
    """

    seen: Seen
    totals: Array
    penalty: PerToken


Advantage = Callable[[Earned], PerToken]


def flat(values: Array) -> bool:
    return bool(np.ptp(values) < 1e-9)


def per_sample(earned: Earned, values: Array) -> PerToken:
    return [
        np.full(len(path), value) for path, value in zip(earned.seen.paths, values, strict=True)
    ]


def in_groups(rule: Callable[[Array], Array]) -> Advantage:
    """An advantage of totals, one group at a time."""

    def run(earned: Earned) -> PerToken:
        values = np.zeros(earned.seen.count)
        for indices in earned.seen.groups:
            values[indices] = rule(earned.totals[indices])
        return per_sample(earned, values)

    return run


def less_mean(r: Array) -> Array:
    return np.zeros_like(r) if flat(r) else r - r.mean()


def standardised(r: Array, *, epsilon: float = 1e-4) -> Array:
    return np.asarray(less_mean(r) / (np.sqrt(np.mean(less_mean(r) ** 2)) + epsilon))


def less_others(r: Array) -> Array:
    if len(r) == 1 or flat(r):
        return np.zeros_like(r)
    return np.array([r[i] - np.mean(np.delete(r, i)) for i in range(len(r))])


def over_success(r: Array) -> Array:
    """R / mean."""
    return r / r.mean() if r.mean() else np.zeros_like(r)


def excess_over_success(r: Array) -> Array:
    """(R - mean) / mean."""
    return less_mean(r) / r.mean() if r.mean() else np.zeros_like(r)


def brief(weight: float) -> Advantage:
    """R + weight * length reward, less the mean of the group; lambda falls from 1/2 for the
    shortest to -1/2.
    """

    def run(earned: Earned) -> PerToken:
        paths, values = earned.seen.paths, np.zeros(earned.seen.count)
        for indices in earned.seen.groups:
            lengths = np.array([len(paths[i]) for i in indices])
            bonus = (
                0.5 - (lengths - lengths.min()) / max(1, np.ptp(lengths))
                if np.ptp(lengths)
                else 0.0 * lengths
            )
            right = np.array([paths[i].outcome >= 1 for i in indices])
            values[indices] = less_mean(
                earned.totals[indices] + weight * np.where(right, bonus, np.minimum(0, bonus))
            )
        return per_sample(earned, values)

    return run


def less_batch_mean(earned: Earned) -> PerToken:
    return per_sample(earned, less_mean(earned.totals))


def less_constant(baseline: float) -> Advantage:
    return lambda earned: per_sample(earned, earned.totals - baseline)


def one(earned: Earned) -> PerToken:
    return per_sample(earned, np.ones(earned.seen.count))


def over_batch_spread(by_environment: bool = False) -> Advantage:
    """(R - mean of the group) / (spread of these over the batch, or over the environment)."""

    def run(earned: Earned) -> PerToken:
        centred = np.array([x[0] for x in in_groups(less_mean)(earned)])
        names = np.array([path.environment if by_environment else "" for path in earned.seen.paths])
        spread = np.array([np.std(centred[names == name]) for name in names])
        return per_sample(earned, centred / (spread + 1e-4))

    return run


def whitened(values: PerToken) -> PerToken:
    """Less the mean over all tokens, over their standard deviation."""
    every = np.concatenate(values)
    if flat(every):
        return [np.zeros_like(x) for x in values]
    return [(x - every.mean()) / (every.std() + 1e-8) for x in values]


def plus_plus_baseline(earned: Earned) -> PerToken:
    return whitened(in_groups(less_mean)(earned))


def plus_plus(earned: Earned) -> PerToken:
    return whitened(returns(earned))


def returns(earned: Earned) -> PerToken:
    """Sum of token rewards from each token on: minus the KL at each token, turn scores at the end
    of their turn, the rest of the sample's reward with its last token.
    """
    out = []
    for i, path in enumerate(earned.seen.paths):
        reward = -earned.penalty[i].copy()
        ends = np.cumsum(path.turns) - 1 if path.turns else np.array([len(path) - 1])
        for end, score in zip(ends, path.scores, strict=False):
            reward[end] += score
        reward[-1] += earned.totals[i] + earned.penalty[i].sum() - sum(path.scores)
        out.append(np.array([reward[t:].sum() for t in range(len(path))]))
    return out


def process(earned: Earned) -> PerToken:
    """GRPO with process rewards: turn scores standardised over the group, summed from each token's
    turn on.
    """
    out: PerToken = [np.zeros(0)] * earned.seen.count
    for indices in earned.seen.groups:
        scores = {}
        for i in indices:
            path = earned.seen.paths[i]
            held = np.zeros(max(1, len(path.turns)) if path.scores else 1)  # unscored turns are one
            held[: len(path.scores)] = path.scores
            held[-1] += earned.totals[i] - sum(path.scores)
            scores[i] = held
        every = standardised(np.concatenate([scores[i] for i in indices]))
        at = 0
        for i in indices:
            path = earned.seen.paths[i]
            mine = every[at : at + len(scores[i])]
            at += len(scores[i])
            turn = np.repeat(
                np.arange(len(mine)), path.turns if path.scores and path.turns else [len(path)]
            )
            out[i] = np.array([mine[k:].sum() for k in turn])
    return out


def turn_level(gamma: float, others: bool) -> Advantage:
    """Per turn: sum_j gamma^(j - k) r_j, less its mean over the (other) samples of the group with a
    turn k. A turn alone at its index: 0, or less the others' mean sum from the first turn on.
    """

    def run(earned: Earned) -> PerToken:
        seen, sums = earned.seen, []
        lengths = [path.turns or (len(path),) for path in seen.paths]
        for i, path in enumerate(seen.paths):
            cuts = np.cumsum(lengths[i])[:-1]
            r = np.array([-part.sum() for part in np.split(earned.penalty[i], cuts)])
            r[: len(path.scores)] += path.scores
            r[-1] += earned.totals[i] + earned.penalty[i].sum() - sum(path.scores)
            sums.append(
                [sum(gamma ** (j - k) * r[j] for j in range(k, len(r))) for k in range(len(r))]
            )
        out: PerToken = []
        for i in range(seen.count):
            (group,) = [g for g in seen.groups if i in g]
            values = []
            for k, value in enumerate(sums[i]):
                held = [sums[j][k] for j in group if len(sums[j]) > k and (j != i or not others)]
                held = held or [sums[j][0] for j in group if j != i]
                values.append(value - np.mean(held) if held else 0.0)
            out.append(np.repeat(values, lengths[i]))
        return out

    return run


def optimal_token(earned: Earned) -> PerToken:
    """G_t - sum_i G_it W_it / sum_i W_it over the samples with a token at t; W_it is the sum to t
    of 1 - 2 p + sum_v p_v^2.
    """
    gain, seen = returns(earned), earned.seen
    weight = []
    for i in range(seen.count):
        prob = np.exp(seen.table("prox", i))
        weight.append(np.cumsum(1 - 2 * np.exp(seen.logp("prox", i)) + (prob**2).sum(1)))
    out = [np.zeros(len(path)) for path in seen.paths]
    for indices in seen.groups:
        for t in range(seen.longest):
            there = [i for i in indices if len(seen.paths[i]) > t]
            total = sum(weight[i][t] for i in there)
            for i in there:
                out[i][t] = gain[i][t] - sum(gain[j][t] * weight[j][t] for j in there) / total
    return out


# --------------------------------------------------- objectives: d term / d log theta of each token

Slope = Callable[[Seen, int, Array], Array]


def log_ratio(seen: Seen, i: int, ratio_to: str) -> Array:
    return seen.logp("theta", i) - seen.logp(ratio_to, i)


def likelihood(seen: Seen, i: int, advantage: Array) -> Array:
    return -advantage


def clip_slope(
    ratio: Array, advantage: Array, low: float, high: float, dual: float | None = None
) -> Array:
    """Of -min(r A, clip(r) A) with respect to log r: -r A, and 0 where the clip holds."""
    held = ((advantage > 0) & (ratio > 1 + high)) | ((advantage < 0) & (ratio < 1 - low))
    if dual is not None:
        held |= (advantage < 0) & (ratio > dual)
    return np.where(held, 0.0, -ratio * advantage)


def clip(
    low: float = 0.2, high: float = 0.2, *, dual: float | None = None, ratio_to: str = "prox"
) -> Slope:
    return lambda seen, i, a: clip_slope(np.exp(log_ratio(seen, i, ratio_to)), a, low, high, dual)


def surrogate(ratio_to: str) -> Slope:
    return lambda seen, i, a: -np.exp(log_ratio(seen, i, ratio_to)) * a


def product_clip(
    low: float, high: float, *, dual: float | None = None, ratio_to: str = "prox"
) -> Slope:
    """Of the term of the whole sample, with the product of the ratios; A is the mean of the
    tokens'.
    """

    def run(seen: Seen, i: int, a: Array) -> Array:
        ratio = np.exp(log_ratio(seen, i, ratio_to).sum(keepdims=True))
        return np.repeat(clip_slope(ratio, a.mean(keepdims=True), low, high, dual), len(a))

    return run


def geometric_clip(low: float, high: float) -> Slope:
    """Of the term of the whole sample, s = geometric mean: ds / d log theta_t = s / T."""

    def run(seen: Seen, i: int, a: Array) -> Array:
        ratio = np.exp(log_ratio(seen, i, "prox").mean(keepdims=True))
        return np.repeat(clip_slope(ratio, a.mean(keepdims=True), low, high) / len(a), len(a))

    return run


def geometric_clip_of_tokens(low: float, high: float) -> Slope:
    def run(seen: Seen, i: int, a: Array) -> Array:
        ratio = np.exp(log_ratio(seen, i, "prox").mean(keepdims=True))
        return clip_slope(np.repeat(ratio, len(a)), a, low, high)

    return run


def capped(cap: float, *, ratio_to: str = "prox") -> Slope:
    return lambda seen, i, a: -np.minimum(np.exp(log_ratio(seen, i, ratio_to)), cap) * a


def divergence_mask(
    measure: Literal["tv", "kl", "top"],
    delta: float,
    *,
    cap: float = 20.0,
    top: int = 0,
    ratio_to: str = "mu",
) -> Slope:
    """Tokens that the policy already moved by more than *delta* the way A pushes get nothing."""

    def run(seen: Seen, i: int, a: Array) -> Array:
        p, q = np.exp(seen.logp(ratio_to, i)), np.exp(seen.logp("theta", i))
        if measure == "tv":
            far = np.abs(q - p) > delta
        elif measure == "kl":
            far = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)) > delta
        else:
            far = np.array([partition_tv(seen, i, k, top) > delta for k in range(len(a))])
        held = far & (((a > 0) & (q > p)) | ((a < 0) & (q < p)))
        return np.where(held, 0.0, -np.minimum(q / p, cap) * a)

    return run


def partition_tv(seen: Seen, i: int, k: int, top: int) -> float:
    """Total variation between prox and theta over the *top* likeliest tokens of prox, the sampled
    one, and the rest.
    """
    before, now = np.exp(seen.table("prox", i)[k]), np.exp(seen.table("theta", i)[k])
    apart = {*np.argsort(-before)[:top].tolist(), seen.paths[i].ids[k]}
    rest = [v for v in range(len(before)) if v not in apart]
    parts = [now[v] - before[v] for v in apart] + [now[rest].sum() - before[rest].sum()]
    return float(np.abs(parts).sum() / 2)


def squared(tau: float) -> Slope:
    """Of (A - tau d)^2 / (2 tau), d the log-ratio of the whole sample: -(A - tau d)."""
    return lambda seen, i, a: np.full(len(a), tau * log_ratio(seen, i, "prox").sum() - a.mean())


# ---------------------------------------------------------------- corrections: weights per token

Weigh = Callable[[Seen, int], "Array | float"]


def mismatch(seen: Seen, i: int) -> Array:
    """log prox / mu."""
    return seen.logp("prox", i) - seen.logp("mu", i)


def untouched(seen: Seen, i: int) -> float:
    return 1.0


def truncated(cap: float) -> Weigh:
    return lambda seen, i: np.minimum(np.exp(mismatch(seen, i)), cap)


def truncated_product(cap: float) -> Weigh:
    return lambda seen, i: float(min(np.exp(mismatch(seen, i).sum()), cap))


def banded(low: float, high: float) -> Weigh:
    def run(seen: Seen, i: int) -> Array:
        w = np.exp(mismatch(seen, i))
        return np.where((w >= low) & (w <= high), w, 0.0)

    return run


def banded_product(low: float, high: float) -> Weigh:
    def run(seen: Seen, i: int) -> float:
        w = float(np.exp(mismatch(seen, i).sum()))
        return w if low <= w <= high else 0.0

    return run


def whole_sample(estimate: str, over: str, limit: float) -> Weigh:
    """1 where the divergence of the sample is within *limit*, else 0."""

    def run(seen: Seen, i: int) -> float:
        d = -mismatch(seen, i)
        each = {"k1": d, "k2": d**2 / 2, "k3": np.exp(-d) - 1 + d}[estimate]
        found = {"sum": abs(each.sum()), "mean": abs(each.mean()), "max": np.abs(each).max()}[over]
        return float(found <= limit)

    return run


# ------------------------------------------------- aggregations: weight of one token of each sample

Share = Callable[[Sequence[Path], int], Array]


def by_token(paths: Sequence[Path], longest: int) -> Array:
    return np.full(len(paths), 1 / sum(map(len, paths)))


def by_sequence(paths: Sequence[Path], longest: int) -> Array:
    return np.array([1 / (len(paths) * len(path)) for path in paths])


def by_constant(paths: Sequence[Path], longest: int) -> Array:
    return np.full(len(paths), 1 / (len(paths) * longest))


def by_prompt(paths: Sequence[Path], longest: int) -> Array:
    tokens: dict[int, int] = {}
    for path in paths:
        tokens[path.group] = tokens.get(path.group, 0) + len(path)
    return np.array([1 / (len(tokens) * tokens[path.group]) for path in paths])


# ---------------------------------------------------------------- methods


@dataclass(frozen=True, kw_only=True)
class Penalty:
    """KL to ref: *slope* of the estimate for the loss, or its *value* for the reward."""

    where: Literal["loss", "reward"]
    estimate: Literal["k1", "k2", "k3"]
    coefficient: float
    score: bool = False

    def value(self, d: Array) -> Array:
        return {"k1": d, "k2": d**2 / 2, "k3": np.exp(-d) - 1 + d}[self.estimate]

    def slope(self, d: Array) -> Array:
        own = {"k1": np.ones_like(d), "k2": d, "k3": 1 - np.exp(-d)}[self.estimate]
        return own + self.value(d) if self.score else own


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row: everything that decides the gradient."""

    advantage: Advantage
    slope: Slope
    share: Share
    whole: bool = False  # one term per sample, which weighs what its tokens weigh together
    weigh: Weigh = untouched
    kl: Penalty | None = None
    prune: float = 0.0
    overlong: float = 0.0
    mask_truncated: bool = False

    def replace(self, **changes: object) -> Method:
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Taken:
    """A batch that was taken up: advantages are fixed here, over all of it."""

    method: Method
    seen: Seen
    advantages: PerToken = field(init=False)

    def __post_init__(self) -> None:
        method, seen = self.method, self.seen
        totals = np.array([path.outcome + path.shaping for path in seen.paths])
        if method.overlong:
            edge = (1 - method.overlong) * seen.longest
            lengths = np.array([max(path.turns or (len(path),)) for path in seen.paths])
            totals = totals - np.clip((lengths - edge) / (seen.longest - edge), 0, 1)
        penalty = [np.zeros(len(path)) for path in seen.paths]
        if method.kl is not None and method.kl.where == "reward":
            for i in range(seen.count):
                d = seen.logp("prox", i) - seen.logp("ref", i)
                penalty[i] = method.kl.coefficient * method.kl.value(d)
            totals = totals - np.array([x.sum() for x in penalty])
        self.advantages = method.advantage(Earned(seen=seen, totals=totals, penalty=penalty))

    def gradient(self, policies: Policies, part: Sequence[int] | None = None) -> Array:
        """Of the loss over the samples of *part*, by the logits of theta, [places, vocabulary]."""
        method = self.method
        part = list(range(self.seen.count)) if part is None else list(part)
        if method.mask_truncated:
            part = [i for i in part if not self.seen.paths[i].truncated]
        seen = replace(self.seen, policies=policies)
        shares = method.share([seen.paths[i] for i in part], seen.longest) if part else []
        out = np.zeros_like(policies.theta)
        for i, share in zip(part, shares, strict=True):
            path = seen.paths[i]
            slope = method.slope(seen, i, self.advantages[i]) * (len(path) if method.whole else 1)
            values = share * method.weigh(seen, i) * slope
            if method.kl is not None and method.kl.where == "loss":
                d = seen.logp("theta", i) - seen.logp("ref", i)
                values = values + share * method.kl.coefficient * method.kl.slope(d)
            prob = np.exp(seen.table("theta", i))
            for k, (at, token) in enumerate(zip(path.at, path.ids, strict=True)):
                out[at] -= values[k] * prob[k]
                out[at, token] += values[k]
        return out


def gradient(method: Method, policies: Policies, paths: Sequence[Path], longest: int) -> Array:
    """Of the loss of a whole batch in one update."""
    seen = Seen(paths=paths, policies=policies, longest=longest, prune=method.prune)
    return Taken(method=method, seen=seen).gradient(policies)
