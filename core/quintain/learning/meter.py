"""What a step tells about itself, summed over micro-batches; numbers leave the device once, at the end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .objectives import kl_estimate
from .terms import Terms


class Meter:
    """Means, extremes and updates of one step. Ratios are raw: before any clip, cap or mask."""

    def __init__(self) -> None:
        self.updates = 0
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._least: dict[str, Tensor] = {}
        self._most: dict[str, Tensor] = {}
        self._loss = 0.0
        self._norm = 0.0

    @torch.no_grad()
    def add(self, **values: Tensor) -> None:
        """Count each element of each tensor once in a mean."""
        for name, value in values.items():
            total = value.detach().sum(dtype=torch.float64)
            self._sums[name] = self._sums.get(name, torch.zeros_like(total)) + total
            self._counts[name] = self._counts.get(name, 0) + value.numel()

    @torch.no_grad()
    def observe(self, t: Terms, diagnostics: Mapping[str, Tensor], weights: Tensor) -> None:
        """Record a micro-batch."""
        if not t.logp.numel():
            return
        ratio = t.log_ratio().detach().exp()
        self.add(entropy=t.entropy, ratio=ratio, **{name: x.detach().float() for name, x in diagnostics.items()})
        self.add(correction=weights, masked=(weights == 0).float())
        self._extremes("ratio", ratio)
        if t.ref_logp is not None:
            self.add(kl=kl_estimate(t.logp.detach() - t.ref_logp, "k3"))
        if self.updates == 0:
            gap = (t.logp.detach() - t.mu_logp).abs()
            self.add(mismatch=gap)
            self._extremes("mismatch", gap)

    def _extremes(self, name: str, value: Tensor) -> None:
        least, most = value.min(), value.max()
        self._least[name] = torch.minimum(self._least.get(name, least), least)
        self._most[name] = torch.maximum(self._most.get(name, most), most)

    def update(self, *, loss: float, grad_norm: float) -> None:
        """Record an optimizer step; *grad_norm* is from before clipping."""
        self.updates += 1
        self._loss += loss
        self._norm = max(self._norm, grad_norm)

    def summary(self, **more: float) -> dict[str, float]:
        """Metrics of the step, with *more*.

        ``loss`` is the mean over updates, ``grad_norm`` the largest before clipping. ``entropy``, ``kl`` (k3 to ref),
        ``ratio_mean``, ``clip_low``, ``clip_high`` (shares of tokens), ``correction`` (mean weight), ``masked`` (share
        of weight 0) are means over tokens and epochs; ``ratio_min`` and ``ratio_max`` extremes. ``mismatch_mean`` and
        ``mismatch_max`` are \\|log theta - log mu\\| during the first update.
        """
        out = {name: float(total) / max(1, self._counts[name]) for name, total in self._sums.items()}
        for name in ("ratio", "mismatch"):
            if name in self._most:
                out[f"{name}_mean"] = out.pop(name)
                out[f"{name}_max"] = float(self._most[name])
        if "ratio" in self._least:
            out["ratio_min"] = float(self._least["ratio"])
        updates = max(1, self.updates)
        return {"loss": self._loss / updates, "grad_norm": self._norm, "updates": float(self.updates)} | out | more
