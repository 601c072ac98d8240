"""Metrics of a learner's step: exact means over all tokens, independent of micro-batches.
`docs/health.md` lists them.

Sums and counts stay on the device, in float64, and are read once, at the end of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from .loss_inputs import LossInputs
from .pieces.objectives import kl_estimate
from .ranks import ALONE, Ranks

_CLIPS = {"clip_low": "clip.low", "clip_high": "clip.high"}


def under(kind: str, name: str) -> str:
    """Return the full name of the metric *name* of a piece of *kind*: prefixed with the kind,
    unless *name* has a prefix.
    """
    return _CLIPS.get(name, name if "." in name else f"{kind}.{name}")


class Meter:
    """Means, extremes and updates of one step. Ratios are raw: before any clip, cap or mask.

    Attributes:
        ranks: the processes that observe parts of the step; all call `summary`.
        updates: optimizer steps made so far.
        skipped: those left out, see `skip`.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.ranks = ranks
        self.updates = 0
        self.skipped = 0
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._least: dict[str, Tensor] = {}
        self._most: dict[str, Tensor] = {}
        self._losses: list[float] = []
        self._norms: list[float] = []

    @torch.no_grad()
    def add(self, **values: Tensor) -> None:
        """Count each element of each tensor once in a mean."""
        for name, value in values.items():
            total = value.detach().sum(dtype=torch.float64)
            self._sums[name] = self._sums.get(name, torch.zeros_like(total)) + total
            self._counts[name] = self._counts.get(name, 0) + value.numel()

    @torch.no_grad()
    def observe(
        self, t: LossInputs, diagnostics: Mapping[str, Tensor], correction: Tensor | None = None
    ) -> None:
        """Record a micro-batch.

        Args:
            diagnostics: metrics of the objective, one value per term; see `under`.
            correction: its weights, [N] or [S]; ``None`` where nothing is corrected.
        """
        if not t.logp.numel():
            return
        logp, ratio = t.logp.detach().double(), t.log_ratio().detach().double().exp()
        self.add(entropy=t.entropy, **{"ratio.mean": ratio})
        smallest, largest = ratio.min(), ratio.max()
        self._least["ratio"] = torch.minimum(self._least.get("ratio", smallest), smallest)
        self._most["ratio"] = torch.maximum(self._most.get("ratio", largest), largest)
        self.add(
            **{under("objective", name): x.detach().float() for name, x in diagnostics.items()}
        )
        if t.ref_logp is not None:
            self._divergence("kl.ref", logp - t.ref_logp)
        if self.updates:  # theta is prox before the first update
            self._divergence("kl.prox", t.prox_logp - logp)
        if correction is not None:
            self._masks(t, correction)

    def _divergence(self, name: str, log_ratio: Tensor) -> None:
        """Add the KL of the first policy of *log_ratio* from the second, where the tokens are
        samples of the first.
        """
        self.add(
            **{
                f"{name}.{estimator}": kl_estimate(log_ratio, estimator)
                for estimator in ("k1", "k3")
            }
        )

    def _masks(self, t: LossInputs, weight: Tensor) -> None:
        masked = (weight == 0).float()
        if weight.shape == t.logp.shape:
            # a sample is masked if all its tokens are
            tokens, samples = masked, 1 - t.sample_max(1 - masked)
        else:
            tokens, samples = t.spread(masked), masked
        self.add(
            **{"correction.mean": weight, "masked.tokens": tokens, "masked.sequences": samples}
        )

    def update(self, *, loss: float, grad_norm: float, **metrics: float) -> None:
        """Record an optimizer step.

        Args:
            grad_norm: before clipping.
            metrics: of the update piece, averaged over the updates that give them; see `under`.
        """
        values = {
            name: torch.tensor([float(value)], dtype=torch.float64)
            for name, value in metrics.items()
        }
        self.add(**{under("optimizer_step", name): value for name, value in values.items()})
        self.updates += 1
        self._losses.append(loss)
        self._norms.append(grad_norm)

    def skip(self, loss: float | None = None) -> None:
        """Record an update that was left out, without a sample to learn from or with an overflow
        (and its *loss*).
        """
        self.skipped += 1
        if loss is not None:
            self._losses.append(loss)

    def summary(self, **more: float) -> dict[str, float]:
        """Return the metrics of the step, and *more*.

        ``loss`` is the mean over updates, ``grad_norm`` the largest before clipping; values from
        `add` are means over tokens (or terms) and epochs, ``ratio.min`` and ``ratio.max`` extremes.
        """
        of_this_rank = [
            {name: float(value) for name, value in values.items()}
            for values in (self._sums, self._counts, self._least, self._most)
        ]
        sums, counts, smallest, largest = zip(*self.ranks.gather(of_this_rank), strict=True)
        total, count = _merged(sums, math.fsum), _merged(counts, math.fsum)
        metrics = {name: total[name] / count[name] for name in total if count[name]}
        metrics |= {f"{name}.min": value for name, value in _merged(smallest, min).items()}
        metrics |= {f"{name}.max": value for name, value in _merged(largest, max).items()}
        if self._losses:
            metrics["loss"] = math.fsum(self._losses) / len(self._losses)
        if self._norms:
            metrics["grad_norm"] = max(self._norms)
        return (
            metrics
            | {"updates": float(self.updates), "updates.skipped": float(self.skipped)}
            | more
        )


def _merged(
    by_rank: Iterable[Mapping[str, float]], merge: Callable[[list[float]], float]
) -> dict[str, float]:
    """Return one value by name from those of all ranks that have it."""
    values: dict[str, list[float]] = {}
    for of_rank in by_rank:
        for name, value in of_rank.items():
            values.setdefault(name, []).append(value)
    return {name: merge(listed) for name, listed in values.items()}


@torch.no_grad()
def sampler_metrics(prox_logp: Tensor, mu_logp: Tensor, sample: Tensor) -> dict[str, float]:
    """Measure the mismatch between the sampler mu and the learner prox, over the tokens that were
    scored under prox.

    ``mismatch.mean`` and ``.max`` are \\|log prox - log mu\\| in nats, ``mismatch.kl`` estimates
    KL(mu \\|\\| prox) per token (k3: the tokens are samples of mu). ``ess.tokens`` and
    ``ess.sequences`` are the effective sample size of the weights w = prox / mu, of single tokens
    and of whole samples (products over their tokens), as a share: (sum w)^2 / (N sum w^2); Kong
    1992.

    Args:
        prox_logp: log-probs under prox, NaN where there are none, [N].
        mu_logp: log-probs under mu, [N].
        sample: which sample each token belongs to, [N].
    """
    prox_logp, mu_logp = prox_logp.cpu(), mu_logp.cpu()
    scored = ~prox_logp.isnan()
    if not bool(scored.any()):
        return {}
    log_N = (prox_logp.double() - mu_logp.double())[scored]
    names, place = sample[scored].unique(return_inverse=True)
    log_S = log_N.new_zeros(len(names)).index_add(0, place, log_N)
    return {
        "mismatch.mean": float(log_N.abs().mean()),
        "mismatch.max": float(log_N.abs().max()),
        "mismatch.kl": float(kl_estimate(-log_N, "k3").mean()),
        "ess.tokens": _effective(log_N),
        "ess.sequences": _effective(log_S),
    }


def _effective(log_weights: Tensor) -> float:
    """Return the effective sample size as a share, from logarithms: products over long samples
    leave the range of floats.
    """
    log_share = (
        2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0) - math.log(len(log_weights))
    )
    return float(log_share.exp())


@torch.no_grad()
def advantage_metrics(advantage: Tensor, sample: Tensor, samples: int) -> dict[str, float]:
    """Return ``advantage.mean``, ``.spread`` (standard deviation, ddof 0), ``.min``, ``.max`` and
    ``.positive`` (share above 0) over tokens; ``idle``, the share of samples whose advantage is 0
    at every token.

    Args:
        advantage: [N], in host memory.
        sample: which sample each token belongs to, [N].
        samples: how many there are, those without tokens included.
    """
    value = advantage.double()
    moving = len(sample[advantage != 0].unique())
    return {
        "advantage.mean": float(value.mean()),
        "advantage.spread": float(value.std(correction=0)),
        "advantage.min": float(value.min()),
        "advantage.max": float(value.max()),
        "advantage.positive": float((value > 0).double().mean()),
        "idle": 1 - moving / samples,
    }


def staleness(versions: Tensor, version: int, *, ignored: bool) -> dict[str, float]:
    """Return ``staleness.mean`` and ``.max`` over the tokens that train: by how many versions the
    learner, at *version*, is ahead of the weights that sampled the token. ``staleness.ignored`` is
    the share of tokens of older weights that the loss takes for the learner's own, 0 unless
    *ignored* (`Algorithm.ignores_staleness`).
    """
    lags = (version - versions).double()
    share = float((lags > 0).double().mean()) if ignored else 0.0
    return {
        "staleness.mean": float(lags.mean()),
        "staleness.max": float(lags.max()),
        "staleness.ignored": share,
    }
