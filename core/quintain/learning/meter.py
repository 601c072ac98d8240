"""Metrics of a learner's step: exact means over all tokens, independent of micro-batches.
`docs/health.md` lists them.

Sums and counts stay on the device, in float64, and are read once, at the end of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .loss_inputs import LossInputs
from .pieces.objectives import kl_estimate
from .ranks import ALONE, Ranks


def under(kind: str, name: str) -> str:
    """Return the full name of the metric *name* of a piece of *kind*: prefixed with the kind,
    unless *name* has a prefix.
    """
    return name if "." in name else f"{kind}.{name}"


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
        self._sums: dict[str, tuple[Tensor, int]] = {}  # of the values, and how many they are
        self._ratios: list[Tensor] = []  # the smallest and the largest of each micro-batch
        self._losses: list[float] = []
        self._norms: list[float] = []

    @torch.no_grad()
    def add(self, **values: Tensor) -> None:
        """Count each element of each tensor once in a mean."""
        for name, value in values.items():
            total, count = self._sums.get(name, (0.0, 0))
            total = total + value.detach().sum(dtype=torch.float64)
            self._sums[name] = (total, count + value.numel())

    @torch.no_grad()
    def observe(
        self, t: LossInputs, diagnostics: Mapping[str, Tensor], correction: Tensor | None = None
    ) -> None:
        """Record a micro-batch.

        Args:
            diagnostics: metrics of the objective, one value per term; see `under`.
            correction: its weights, [N] or [S]; ``None`` where nothing is corrected.
        """
        logp = t.logp.detach().double()
        ratio = t.log_ratio().detach().double().exp()
        self.add(entropy=t.entropy, **{"ratio.mean": ratio})
        self._ratios += [ratio.min(), ratio.max()]
        for name, value in diagnostics.items():
            self.add(**{under("objective", name): value.detach().float()})
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
        for estimator in ("k1", "k3"):
            self.add(**{f"{name}.{estimator}": kl_estimate(log_ratio, estimator)})

    def _masks(self, t: LossInputs, weight: Tensor) -> None:
        masked = (weight == 0).float()
        if weight.shape == t.logp.shape:
            # a sample is masked if all its tokens are
            tokens = masked
            samples = 1 - t.sample_max(1 - masked)
        else:
            tokens = t.spread(masked)
            samples = masked
        self.add(
            **{"correction.mean": weight, "masked.tokens": tokens, "masked.sequences": samples}
        )

    def update(self, *, loss: float, grad_norm: float, **metrics: float) -> None:
        """Record an optimizer step.

        Args:
            grad_norm: before clipping.
            metrics: of the update piece, averaged over the updates that give them; see `under`.
        """
        for name, value in metrics.items():
            of_update = torch.tensor([float(value)], dtype=torch.float64)
            self.add(**{under("optimizer_step", name): of_update})
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
        # Only here is the device read, since each read waits for what it still computes.
        ratios = torch.stack(self._ratios).tolist() if self._ratios else []
        sums = {name: (float(total), count) for name, (total, count) in self._sums.items()}
        of_all: dict[str, list[tuple[float, int]]] = {}
        ratios_of_all: list[float] = []
        for sums_of_rank, ratios_of_rank in self.ranks.gather((sums, ratios)):
            ratios_of_all += ratios_of_rank
            for name, summed in sums_of_rank.items():
                of_all.setdefault(name, []).append(summed)
        metrics: dict[str, float] = {}
        for name, summands in of_all.items():
            totals, counts = zip(*summands, strict=True)
            if any(counts):
                metrics[name] = math.fsum(totals) / sum(counts)
        if ratios_of_all:
            extremes = torch.tensor(ratios_of_all, dtype=torch.float64)  # which may be NaN
            metrics["ratio.min"] = float(extremes.min())
            metrics["ratio.max"] = float(extremes.max())
        if self._losses:
            metrics["loss"] = math.fsum(self._losses) / len(self._losses)
        if self._norms:
            metrics["grad_norm"] = max(self._norms)
        metrics["updates"] = float(self.updates)
        metrics["updates.skipped"] = float(self.skipped)
        return metrics | more


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
    prox_logp = prox_logp.cpu()
    mu_logp = mu_logp.cpu()
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
