"""The natural gradient step of TRPO: conjugate gradients on the Fisher information, then a line
search.

With z the logits at the positions of trained tokens, J their Jacobian and p = softmax(z), the
Fisher information of the mean over N tokens of KL(prox || theta) is F = 1/N sum_t J_t' (diag p_t -
p_t p_t') J_t. It is never built: a product F v is one forward pass and three backward passes (two
backward passes where all rows are computed together), over whole logits. That is the one place
where this library looks at whole logits, and why the update is a reference for small models rather
than a way to train large ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from quintain import Algorithm as Method
from quintain import optimizer_step
from quintain.errors import RunError, UsageError
from quintain.learning import Batch, OptimizerStep
from quintain.models import Forward, TokenSequence

LARGEST = 500_000_000
"""Parameters of the largest model that the update takes."""


def fits(algorithm: Method) -> None:
    """Refuse algorithms that the update is not made for.

    Raises:
        UsageError: several updates per batch, or a pruned vocabulary.
    """
    if algorithm.updates > 1:
        raise UsageError(
            f"optimizer_step.natural: algorithm {algorithm.name!r} makes {algorithm.updates} "
            "updates per batch, but one step goes to the edge of the trust region around prox "
            "already; set epochs = 1 and minibatches = 1"
        )
    if algorithm.prune:
        raise UsageError(
            "optimizer_step.natural: its KL is over the whole vocabulary, and this algorithm "
            "prunes it; set prune = 0"
        )


@optimizer_step(fits=fits)
def natural(
    optimization: OptimizerStep,
    *,
    delta: float = 0.01,
    damping: float = 0.1,
    iterations: int = 10,
    shrink: float = 0.8,
    tries: int = 10,
) -> dict[str, Any]:
    """theta - shrink^k s x with (F + damping 1) x = g, s = sqrt(2 delta / x' (F + damping 1) x),
    for the first k that lowers the loss and keeps the mean KL(prox || theta) over all trained
    tokens of the batch within *delta* (Schulman et al. 2015, 1502.05477, appendix C). If there is
    none the parameters stay.

    To second order the whole step costs delta - damping / 2 |s x|^2, so the damping bounds the step
    where F alone would not. Spinning Up and OpenAI's baselines scale the same way; the paper takes
    x' F x. The learning rate and the clipping of gradients have no part in this.

    Args:
        delta: nats per token.
        damping: added to the diagonal of F.
        iterations: of conjugate gradients, at most.
        shrink: what a refused step is multiplied with.
        tries: steps tried.

    Returns:
        ``loss`` before; ``grad_norm``; ``natural.kl`` of the step taken, in nats per token;
        ``natural.scale``, the share of the whole step that was taken, 0 where none was;
        ``natural.gain``, by how much the loss fell; ``natural.residual``, what conjugate gradients
        left of g, as a share of its norm.

    Raises:
        UsageError: a setting is out of range, the algorithm makes several updates per batch or
            prunes the vocabulary, or the model is too large.
        RunError: the gradient is not finite; the parameters were not touched.
    """
    if not (delta > 0 and damping >= 0 and 0 < shrink < 1 and iterations >= 1 and tries >= 1):
        raise UsageError(
            f"optimizer_step.natural: delta {delta}, damping {damping}, iterations {iterations}, "
            f"shrink {shrink}, tries {tries}; expected positive numbers, shrink below 1"
        )
    check(optimization)
    loss = optimization.backward()
    gradient = _flat([cast(Tensor, p.grad) for p in optimization.parameters])
    norm = _norm(gradient)
    if not math.isfinite(norm):
        raise RunError(
            "the gradient is not finite; look at the rewards and the log-probs of this step"
        )
    metrics = {
        "loss": loss,
        "grad_norm": norm,
        "natural.kl": 0.0,
        "natural.scale": 0.0,
        "natural.gain": 0.0,
    }
    if norm == 0:
        return metrics
    divergence = Divergence.of(optimization)

    def damped(vector: Tensor) -> Tensor:
        return divergence.fisher(vector).add_(vector, alpha=damping)

    direction, rest = conjugate_gradients(damped, gradient, iterations)
    metrics["natural.residual"] = _norm(rest) / norm
    # what is solved is x' (F + damping 1) x of the x that was reached
    curvature = _dot(direction, gradient - rest)
    if not curvature > 0:  # g is where F vanishes and nothing damps it: no length is right
        return metrics
    step = direction.mul_(-math.sqrt(2 * delta / curvature))
    for k in range(tries):
        scale = shrink**k
        divergence.move(step, scale)
        reached, kl = optimization.loss(), divergence.mean()
        if reached < loss and kl <= delta:
            return metrics | {
                "natural.kl": kl,
                "natural.scale": scale,
                "natural.gain": loss - reached,
            }
    divergence.move(step, 0.0)
    return metrics


def check(step: OptimizerStep) -> None:
    """Refuse a model that the update is not made for.

    Raises:
        UsageError: as `natural`.
    """
    check_size(step.module)
    attention = str(getattr(cast(Any, step.module).config, "_attn_implementation", ""))
    if "flash" in attention:
        raise UsageError(
            f"optimizer_step.natural differentiates twice, which {attention!r} cannot; load the "
            f"model with sdpa"
        )


def check_size(module: nn.Module) -> None:
    """Refuse a model of more than `LARGEST` parameters.

    Raises:
        UsageError: it has.
    """
    size = sum(p.numel() for p in module.parameters())
    if size > LARGEST:
        raise UsageError(
            f"optimizer_step.natural is a reference for models of up to {LARGEST / 1e9:g}B "
            f"parameters, and this one has {size / 1e9:.2f}B: every step takes a dozen products "
            "with the Fisher information, each four passes over whole logits that are "
            "differentiated twice. Take a smaller model, or algorithm 'ppo'"
        )


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The logits of some rows at prox, and their Jacobian as a graph.

    Attributes:
        logits: z, [N, V].
        dummy: u, as large.
        back: J'u by parameter, ``None`` where nothing depends on the parameter. It is linear in u,
            so its derivative along v is J v.
    """

    logits: Tensor
    dummy: Tensor
    back: Sequence[Tensor | None]


@dataclass(kw_only=True)
class Divergence:
    """The mean KL(prox || theta) over the trained tokens of a batch: its Fisher information, and
    its value elsewhere.

    Attributes:
        parameters: those that train, at prox now.
        origin: prox itself, flat.
        now, then: forward passes of the model and of a copy that stays at prox, by their own
            layers.
        parts: rows that are computed together.
        tokens: N.
        temperature: of the policy.
    """

    parameters: Sequence[nn.Parameter]
    origin: Tensor
    now: Forward
    then: Forward
    parts: Sequence[Sequence[TokenSequence]]
    tokens: int
    temperature: float
    _only: Linear | None = None
    """Where all rows are computed together, what products share."""

    @classmethod
    def of(cls, step: OptimizerStep) -> Divergence:
        """Return the divergence around the parameters of *step* as they are now."""
        module, copied = step.module, copy.deepcopy(step.module)
        rows = rows_of(step.batch)
        return cls(
            parameters=step.parameters,
            origin=_flat([p.detach() for p in step.parameters]),
            now=Forward(module, layout="bucketed"),
            then=Forward(copied, layout="bucketed"),
            parts=list(_parts(rows, step.token_budget)),
            tokens=sum(len(row.positions) for row in rows),
            temperature=step.batch.temperature,
        )

    def fisher(self, vector: Tensor) -> Tensor:
        """Return F v, flat, at prox. The parameters must be there."""
        if len(self.parts) == 1:
            self._only = self._only or self._linear(self.parts[0])
            return self._product(self._only, vector, again=True)
        out = torch.zeros_like(vector)
        for part in self.parts:
            out += self._product(self._linear(part), vector, again=False)
        return out

    def _linear(self, part: Sequence[TokenSequence]) -> Linear:
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            logits_NV = self._logits(self.now, part)
            dummy_NV = torch.zeros_like(logits_NV, requires_grad=True)
            back = torch.autograd.grad(
                logits_NV, self.parameters, dummy_NV, create_graph=True, allow_unused=True
            )
        return Linear(logits=logits_NV, dummy=dummy_NV, back=back)

    def _product(self, linear: Linear, vector: Tensor, *, again: bool) -> Tensor:
        pieces = self._pieces(vector)
        reached = [
            (b, v.view_as(b)) for b, v in zip(linear.back, pieces, strict=True) if b is not None
        ]
        back, along = ([b for b, _ in reached], [v for _, v in reached])
        (along_NV,) = torch.autograd.grad(back, [linear.dummy], along, retain_graph=again)
        prob_NV = linear.logits.detach().softmax(-1)
        pushed_NV = prob_NV * (along_NV - (prob_NV * along_NV).sum(-1, keepdim=True)) / self.tokens
        grads = torch.autograd.grad(
            linear.logits, self.parameters, pushed_NV, retain_graph=again, allow_unused=True
        )
        return _flat(
            [
                torch.zeros_like(p) if g is None else g
                for g, p in zip(grads, self.parameters, strict=True)
            ]
        )

    @torch.no_grad()
    def move(self, step: Tensor, scale: float) -> None:
        """Set the parameters to prox + scale step; exactly to prox where the scale is 0."""
        self._only = None  # of prox; and it holds a lot of memory
        point = self.origin if scale == 0 else self.origin.add(step, alpha=scale)
        for parameter, value in zip(self.parameters, self._pieces(point), strict=True):
            parameter.copy_(value.view_as(parameter))

    @torch.no_grad()
    def mean(self) -> float:
        """Return KL(prox || theta) in nats per token, at the parameters as they are now."""
        total = 0.0
        for part in self.parts:
            then_NV, now_NV = (
                self._logits(forward, part).log_softmax(-1) for forward in (self.then, self.now)
            )
            total += float((then_NV.exp() * (then_NV - now_NV)).sum(dtype=torch.float64))
        return total / self.tokens

    def _pieces(self, vector: Tensor) -> tuple[Tensor, ...]:
        return torch.split_with_sizes(vector, [p.numel() for p in self.parameters])

    def _logits(self, forward: Forward, part: Sequence[TokenSequence]) -> Tensor:
        return forward.logits(forward.hidden([part])) / self.temperature


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], target: Tensor, iterations: int, tolerance: float = 1e-10
) -> tuple[Tensor, Tensor]:
    """Return x with product(x) = target, from 0; and target - product(x), the residual.

    Args:
        product: with a symmetric matrix that is positive (semi-)definite.
        iterations: at most.
        tolerance: how small what is left may be, as a share, to stop.
    """
    x, rest = torch.zeros_like(target), target.clone()
    way = rest.clone()
    squared = start = _dot(rest, rest)
    for _ in range(iterations):
        if squared <= tolerance**2 * start:
            break
        image = product(way)
        curvature = _dot(way, image)
        if not curvature > 0:  # rounding, or a direction in which nothing changes
            break
        length = squared / curvature
        x.add_(way, alpha=length)
        rest.sub_(image, alpha=length)
        squared, last = _dot(rest, rest), squared
        way.mul_(squared / last).add_(rest)
    return x, rest


def rows_of(batch: Batch) -> list[TokenSequence]:
    """Return every sequence that trains, longest first, with the places of its trained tokens."""
    return sorted(batch.rows(range(len(batch.samples))), key=lambda row: -len(row.ids))


def _parts(rows: Sequence[TokenSequence], budget: int) -> Iterator[list[TokenSequence]]:
    """Yield rows that together, padded to the first of them, stay within *budget* tokens; one at
    least.
    """
    part: list[TokenSequence] = []
    for row in rows:
        if part and len(part[0].ids) * (len(part) + 1) > budget:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])


def _dot(a: Tensor, b: Tensor) -> float:
    """Return the dot product, in double precision: conjugate gradients depend on cancellation."""
    return float((a.double() * b.double()).sum())


def _norm(a: Tensor) -> float:
    return math.sqrt(_dot(a, a))
