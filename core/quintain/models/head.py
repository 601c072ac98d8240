"""Hidden states to statistics of the next-token distribution, in chunks: the logits of a large
batch never exist.

The forward pass keeps the hidden states only; the backward pass computes the logits of each chunk
again. Peak memory is that of one chunk instead of several copies of [N, V] logits, for one more
product with the head. On a CPU, a batch that fits one chunk keeps its logits instead, and the
backward pass turns them into their gradient in place.

A chunk is one product with the head. What follows is done in blocks of its rows, which stay in the
cache of a CPU.

Shapes: N tokens, D hidden size, V vocabulary, K asked ids per token, C tokens of a chunk, B tokens
of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .transfers import to_device

CHUNK_ELEMENTS = {"cpu": 1 << 24, "gpu": 1 << 27}
"""Logits in one chunk: 64 MiB of float32 on a CPU; 512 MiB on a GPU, where each chunk also adds a
product of the size of the head to its gradient, and a small one is bound by memory.
"""
BLOCK_ELEMENTS = 1 << 17
"""Logits in one block for each thread of a CPU: 512 KiB of float32."""


@dataclass(frozen=True)
class LogitMap:
    """The map from the output layer's product x to the logits: cap * tanh(scale * x / cap), or
    scale * x without a cap.

    Attributes:
        scale: ``logit_scale`` of Cohere, 1 / ``logits_scaling`` of Granite.
        cap: ``final_logit_softcapping`` of Gemma 2 and 3.
    """

    scale: float = 1.0
    cap: float = inf

    def __call__(self, product: Tensor) -> Tensor:
        """Return the logits; overwrites *product*."""
        logits = product if self.scale == 1.0 else product.mul_(self.scale)
        return logits if self.cap == inf else logits.div_(self.cap).tanh_() * self.cap

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return the derivative where the map gives *logits*: scale * (1 - tanh^2)."""
        return (
            self.scale if self.cap == inf else (1 - (logits / self.cap).square_()).mul_(self.scale)
        )


PLAIN = LogitMap()


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Statistics of the next-token distribution at each of N tokens, at the policy's temperature.
    Natural logarithms.

    Attributes:
        logp: log-prob of the target, [N].
        entropy: in nats, [N].
        square: sum over the vocabulary of the squared probability, [N].
        mean_logp: mean over the vocabulary of the log-prob, [N].
        asked_logp: log-probs of further ids, [N, K]; ``None`` where no ids were passed.
        rest_logp: log of the probability of all ids but these, [N]; ``None`` where no ids were
            passed, or all.
        top_ids, top_logp: the likeliest tokens and their log-probs, without gradient, [N, K], or
            ``None``.
        safe: the tokens that pruning kept, as bits, [N, ceil(V / 8)]; all statistics are those of
            the distribution over these tokens.
    """

    logp: Tensor
    entropy: Tensor
    square: Tensor
    mean_logp: Tensor
    asked_logp: Tensor | None = None
    rest_logp: Tensor | None = None
    top_ids: Tensor | None = None
    top_logp: Tensor | None = None
    safe: Tensor | None = None


def statistics(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    target_N: Tensor,
    *,
    bias_V: Tensor | None = None,
    logit_map: LogitMap = PLAIN,
    temperature: float = 1.0,
    asked_NK: Tensor | None = None,
    math: torch.dtype | None = None,
    chunk: int | None = None,
    top: int = 0,
    prune: float = 0.0,
    safe: Tensor | None = None,
) -> Statistics:
    """Compute `Statistics` of softmax(logit_map(hidden @ weight.T + bias) / temperature). All but
    the likeliest tokens carry gradients.

    Args:
        hidden_ND: hidden states after the last norm.
        weight_VD, bias_V: the output layer.
        logit_map: scale and soft cap of the logits.
        target_N: the token that followed, as int64.
        temperature: of the policy, > 0.
        asked_NK: further ids whose log-probs to return.
        math: type of the product with the head (bfloat16 or float32; ``None`` is that of
            *hidden_ND*). All later operations are in float32, or in float64 for float64 input.
        chunk: tokens per chunk; by default as many as keep the logits within `CHUNK_ELEMENTS` of
            the device.
        top: number of likeliest tokens to return.
        prune: drop tokens below this share of the likeliest token's probability, but never the
            target.
        safe: keep exactly these tokens instead, bits from an earlier call.
    """
    size = chunk or chunk_of(weight_VD)
    token_ids = (
        target_N.unsqueeze(1)
        if asked_NK is None
        else torch.cat([target_N.unsqueeze(1), asked_NK], dim=1)
    )
    kind = math or hidden_ND.dtype
    tempered = LogitMap(logit_map.scale / temperature, logit_map.cap / temperature)
    columns = _Reduce.apply(
        hidden_ND, weight_VD, bias_V, token_ids, tempered, kind, size, top, prune, safe
    )
    asked_logp, entropy, square, mean_logp, rest_logp, top_ids, top_logp, kept = columns
    return Statistics(
        logp=asked_logp[:, 0],
        entropy=entropy,
        square=square,
        mean_logp=mean_logp,
        asked_logp=None if asked_NK is None else asked_logp[:, 1:],
        rest_logp=rest_logp,
        top_ids=top_ids,
        top_logp=top_logp,
        safe=kept,
    )


def chunk_of(weight_VD: Tensor) -> int:
    """Return the number of tokens of a chunk whose logits fit `CHUNK_ELEMENTS`, at least one."""
    return max(
        1, CHUNK_ELEMENTS["cpu" if weight_VD.device.type == "cpu" else "gpu"] // weight_VD.shape[0]
    )


class _Reduce(torch.autograd.Function):
    """The statistics and their gradient. Nearly always only the target's log-prob receives a
    gradient; statistics without one then add nothing to the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        asked_NK: Tensor,
        tempered: LogitMap,
        kind: torch.dtype,
        chunk: int,
        top: int,
        prune: float,
        safe: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        ctx.tempered, ctx.kind, ctx.chunk = tempered, kind, chunk
        wide = _wide(hidden_ND)
        n, vocab = hidden_ND.shape[0], weight_VD.shape[0]
        asked_logp = hidden_ND.new_empty(asked_NK.shape, dtype=wide)
        entropy, square, mean_logp, normaliser = (
            hidden_ND.new_empty(n, dtype=wide) for _ in range(4)
        )
        has_rest = 1 < asked_NK.shape[1] <= vocab
        rest_logp = hidden_ND.new_empty(n, dtype=wide) if has_rest else None
        top = min(top, vocab)
        top_ids = asked_NK.new_empty((n, top)) if top else None
        top_logp = hidden_ND.new_empty((n, top), dtype=wide) if top else None
        kept = safe
        if prune and safe is None:
            kept = torch.empty((n, -(-vocab // 8)), dtype=torch.uint8, device=hidden_ND.device)
        head_DV = weight_VD.to(kind).t()
        whole = n <= chunk and kept is None and hidden_ND.device.type == "cpu"
        keeps = whole and any(ctx.needs_input_grad[:3])
        ctx.logits = None
        for start in range(0, n, chunk):
            logits_CV = _logits(hidden_ND[start : start + chunk], head_DV, bias_V, tempered, wide)
            if keeps:
                ctx.logits = logits_CV
            for part, logits_BV in _blocks(start, logits_CV):
                out_BV = None  # pruned tokens
                if kept is not None:
                    if safe is None:
                        _choose(kept[part], logits_BV, asked_NK[part, :1], prune)
                    out_BV = ~_unpacked(kept[part], vocab)
                    logits_BV.masked_fill_(out_BV, -torch.inf)
                peak_B1 = logits_BV.amax(1, keepdim=True)
                # Subtracting the peak keeps exp from overflowing. This one exponential serves all
                # statistics.
                below_BV = torch.sub(logits_BV, peak_B1, out=None if keeps else logits_BV)
                raised_BV = below_BV.exp()
                total_B = raised_BV.sum(1)
                log_total_B = total_B.log()
                asked_logp[part] = below_BV.gather(1, asked_NK[part]) - log_total_B.unsqueeze(1)
                if rest_logp is not None:
                    # A sum of its own: 1 less the others would be their rounding where it is small.
                    rest_BV = below_BV.scatter(1, asked_NK[part, 1:], -torch.inf)
                    rest_logp[part] = rest_BV.logsumexp(1) - log_total_B
                if top_ids is not None and top_logp is not None:
                    values, top_ids[part] = below_BV.topk(top, dim=1)
                    top_logp[part] = values - log_total_B.unsqueeze(1)
                size: Tensor | int = vocab
                if out_BV is not None:
                    below_BV.masked_fill_(out_BV, 0.0)  # sums below would compute 0 * -inf = NaN
                    size = vocab - out_BV.sum(1)
                mean_logp[part] = below_BV.sum(1) / size - log_total_B
                square[part] = torch.linalg.vecdot(raised_BV, raised_BV) / total_B.square()
                entropy[part] = log_total_B - torch.linalg.vecdot(raised_BV, below_BV) / total_B
                normaliser[part] = log_total_B + peak_B1.squeeze(1)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, asked_NK, normaliser, kept)
        ctx.mark_non_differentiable(*(x for x in (top_ids, top_logp, kept) if x is not None))
        return (
            asked_logp,
            entropy,
            square,
            mean_logp,
            rest_logp,
            top_ids,
            top_logp,
            None if kept is None else kept.clone(),
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, asked_NK, normaliser_N, kept = ctx.saved_tensors
        wide = _wide(hidden_ND)
        head_VD = weight_VD.to(ctx.kind)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden_ND) if wants_hidden else None
        grad_weight = torch.zeros_like(weight_VD, dtype=wide) if wants_weight else None
        grad_bias = torch.zeros_like(bias_V) if wants_bias else None
        # A second backward pass through the same graph computes them again.
        logits, ctx.logits = ctx.logits, None
        for start in range(0, hidden_ND.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits_CV = logits
            if logits_CV is None:
                logits_CV = _logits(hidden_ND[part], head_VD.t(), bias_V, ctx.tempered, wide)
            for places, logits_BV in _blocks(start, logits_CV):
                slope_BV = ctx.tempered.slope(logits_BV)
                grad_BV = _grad_logits(
                    logits_BV.sub_(normaliser_N[places].unsqueeze(1)),
                    asked_NK[places],
                    [None if g is None else g[places] for g in grads[:5]],
                    None if kept is None else _unpacked(kept[places], head_VD.shape[0]),
                )
                if isinstance(slope_BV, Tensor) or slope_BV != 1.0:
                    grad_BV.mul_(slope_BV)
            grad_CV = logits_CV.to(ctx.kind)
            if grad_hidden is not None:
                grad_hidden[part] = grad_CV @ head_VD
            if grad_weight is not None:
                _accumulate(grad_weight, grad_CV.t(), hidden_ND[part].to(ctx.kind))
            if grad_bias is not None:
                grad_bias += grad_CV.sum(0)
        by_weight = None if grad_weight is None else grad_weight.to(weight_VD.dtype)
        return grad_hidden, by_weight, grad_bias, *[None] * 7


def _blocks(start: int, logits_CV: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield of each block the places of its tokens, the first at *start*, and its logits. On a GPU
    a chunk is one block.
    """
    rows, vocab = logits_CV.shape
    count = 1
    if logits_CV.device.type == "cpu":
        # Two rows at least: several threads add up a single one in parts, which rounds otherwise.
        count = rows // max(2, BLOCK_ELEMENTS * torch.get_num_threads() // vocab)
    for logits_BV in logits_CV.tensor_split(max(1, count)):
        yield slice(start, start + len(logits_BV)), logits_BV
        start += len(logits_BV)


def _choose(kept: Tensor, logits_CV: Tensor, target_C1: Tensor, prune: float) -> None:
    """Write the kept vocabulary into *kept*: tokens with at least *prune* of the likeliest token's
    probability, and the target.
    """
    safe_CV = logits_CV >= logits_CV.amax(1, keepdim=True) + log(prune)
    safe_CV.scatter_(1, target_C1, True)
    padded = torch.nn.functional.pad(safe_CV, (0, 8 * kept.shape[1] - safe_CV.shape[1])).view(
        len(kept), -1, 8
    )
    kept.copy_((padded * to_device(_BITS, kept.device)).sum(-1, dtype=torch.uint8))


def _unpacked(kept: Tensor, vocab: int) -> Tensor:
    """Unpack bits [C, ceil(V / 8)] to booleans [C, V]."""
    return ((kept.unsqueeze(-1) & to_device(_BITS, kept.device)) != 0).flatten(1)[:, :vocab]


_BITS = torch.tensor([1 << k for k in range(8)], dtype=torch.uint8)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _logits(
    hidden_CD: Tensor, head_DV: Tensor, bias_V: Tensor | None, tempered: LogitMap, wide: torch.dtype
) -> Tensor:
    product_CV = (hidden_CD.to(head_DV.dtype) @ head_DV).to(wide)
    return tempered(product_CV if bias_V is None else product_CV.add_(bias_V))


def _grad_logits(
    logp_CV: Tensor, asked_CK: Tensor, grads: list[Tensor | None], in_CV: Tensor | None
) -> Tensor:
    """Overwrite *logp_CV* with the gradient with respect to the scaled logits z, from those of the
    five statistics, and return it; tokens outside *in_CV* receive none.

    With p = softmax(z): d logp_k = 1_k - p; d entropy = -p (log p + entropy); d square = 2 p (p -
    square); d mean_logp = 1/V - p; d rest_logp = p / rest - p for the ids of the rest, else -p.
    """
    by_asked, by_entropy, by_square, by_mean, by_rest = grads
    if in_CV is not None:
        logp_CV.masked_fill_(~in_CV, -torch.inf)
    if by_rest is not None:
        rest_CV = logp_CV.scatter(1, asked_CK[:, 1:], -torch.inf).softmax(1)
    prob_CV = logp_CV.exp() if by_entropy is not None else logp_CV.exp_()
    if in_CV is not None and by_entropy is not None:
        logp_CV.masked_fill_(~in_CV, 0.0)
    if in_CV is not None and by_asked is not None:
        by_asked = by_asked * in_CV.gather(1, asked_CK)
    factor_CV: Tensor | float = 0.0
    if by_entropy is not None:
        entropy = -torch.linalg.vecdot(prob_CV, logp_CV).unsqueeze(1)
        factor_CV = factor_CV - by_entropy.unsqueeze(1) * (logp_CV + entropy)
    if by_square is not None:
        square = torch.linalg.vecdot(prob_CV, prob_CV).unsqueeze(1)
        factor_CV = factor_CV + 2 * by_square.unsqueeze(1) * (prob_CV - square)
    if by_mean is not None:
        factor_CV = factor_CV - by_mean.unsqueeze(1)
    if by_asked is not None:
        factor_CV = factor_CV - by_asked.sum(1, keepdim=True)
    if by_rest is not None:
        by_rest = by_rest.unsqueeze(1)
        factor_CV = factor_CV - by_rest
    grad_CV = torch.mul(prob_CV, factor_CV, out=logp_CV)
    if by_rest is not None:
        grad_CV.addcmul_(rest_CV, by_rest)
    if by_mean is not None:
        share = 1 / logp_CV.shape[1] if in_CV is None else in_CV / in_CV.sum(1, keepdim=True)
        grad_CV += by_mean.unsqueeze(1) * share
    if by_asked is not None:
        grad_CV.scatter_add_(1, asked_CK, by_asked.to(grad_CV.dtype))
    return grad_CV


def _accumulate(into: Tensor, left: Tensor, right: Tensor) -> None:
    """Compute ``into += left @ right``, summed over chunks in the wider type."""
    if into.dtype == left.dtype:
        into.addmm_(left, right)
    else:
        into += left @ right
