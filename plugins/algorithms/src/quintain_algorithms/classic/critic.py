"""A critic: what reward is still to come, read off the hidden state from which a token is
predicted.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from quintain import Service, need
from quintain.errors import RunError, UsageError
from quintain.learning import Batch, Learner, MicroBatch, micro_batches
from quintain.models import Forward


def value_terms(
    values_N: Tensor, old_N: Tensor, returns_N: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Return 1/2 max((V - R)^2, (clip(V, V_old - eps, V_old + eps) - R)^2) per token, and where the
    clip stops the gradient; each [N].

    Args:
        clip: eps; ``None`` is the plain squared error.
    """
    plain_N = (values_N - returns_N).square()
    if clip is None:
        return plain_N / 2, torch.zeros_like(plain_N, dtype=torch.bool)
    moved_N = values_N - old_N
    held_N = (old_N + moved_N.clamp(-clip, clip) - returns_N).square()
    return torch.maximum(plain_N, held_N) / 2, (held_N > plain_N) & (moved_N.abs() > clip)


class Critic(Service):
    """A value model of the learner's own shape: a copy of its layers, and a linear head that starts
    at 0.

    The value of a token is read at the position that predicts it: what is expected before the token
    is known. The copy shares nothing with the policy. Where the policy trains adapters, so does the
    critic, with adapters of its own.

    The settings are those of Stiennon et al. (2020, 2009.01325, appendix B.1), which TRL's PPO has
    as well, but for the learning rate: 1e-5 as in verl (InstructGPT and OpenRLHF take 9e-6;
    Stiennon et al. and TRL the policy's). Values are clipped to 0.2 of the old ones as in TRL,
    slime and SkyRL (0.5 in verl, OpenRLHF and AReaL).

    Args:
        lr: of AdamW, constant.
        epochs: passes over a batch per step.
        minibatches: updates per pass, each on whole groups.
        clip: how far a value may move from what it was at the start of the step before its gradient
            stops; ``None`` lets it move freely.
        max_grad_norm: gradients are scaled down to this norm.
        seed: of the order of groups in all passes but the first.

    Raises:
        UsageError: a setting is out of range.
    """

    def __init__(
        self,
        *,
        learner: Learner = need(),
        lr: float = 1e-5,
        epochs: int = 4,
        minibatches: int = 1,
        clip: float | None = 0.2,
        max_grad_norm: float = 1.0,
        seed: int = 0,
    ) -> None:
        if (
            not lr > 0
            or not max_grad_norm > 0
            or epochs < 1
            or minibatches < 1
            or (clip is not None and not clip > 0)
        ):
            raise UsageError(
                f"critic: lr {lr}, epochs {epochs}, minibatches {minibatches}, clip {clip}, "
                f"max_grad_norm {max_grad_norm}; expected numbers above 0"
            )
        self.epochs = epochs
        self.minibatches = minibatches
        self.clip = clip
        self.max_grad_norm = max_grad_norm
        self.updates = 0
        self._seed = seed
        self._budget = learner.token_budget
        self._half = learner.precision == "bf16"
        self._module = copy.deepcopy(learner.module)
        self._forward = Forward(
            self._module, layout=learner.forward.layout, checkpointing=learner.forward.checkpointing
        )
        weight = self._forward.head_weight
        self._head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        self._trained = _trained(self._module, self._head)
        self._optimizer = torch.optim.AdamW(
            self._trained.values(), lr=lr, weight_decay=0.0, fused=True
        )

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> str:
        """Say what a critic takes; see `quintain.Service.check_available`."""
        return (
            "critic: a copy of the model trains in the process of the run, whole also where the "
            "learner has several devices. In float32 it takes 4 bytes for each parameter and 12 more "
            "for each that trains, which the estimate of memory leaves out. Where that does not fit, "
            "take an algorithm without a critic, as vineppo or grpo"
        )

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """Return what reward each trained token's position is worth, [N], in the order of samples,
        sequences and places.
        """
        values_N = torch.full((batch.tokens,), float("nan"), dtype=self._head.weight.dtype)
        for micro in self._cut(batch, range(len(batch.samples))):
            values_N[micro.positions] = self._values(micro).cpu()
        return values_N

    def fit(self, batch: Batch, old_N: Tensor, returns_N: Tensor) -> dict[str, float]:
        """Move the values of *batch* towards *returns_N*, [N]; *old_N* are the values before, [N].

        Returns:
            ``critic.loss``, the mean over tokens and updates; ``critic.clipped``, the share of
            tokens whose gradient the clip stopped; ``critic.grad_norm``, the largest before
            clipping; ``critic.value``, the mean before; ``critic.explained_variance``, 1 - var(R -
            V) / var(R) before, left out where returns do not vary.

        Raises:
            RunError: the gradient is not finite; that update was not made.
        """
        per_update: dict[str, list[float]] = {"loss": [], "clipped": [], "norm": []}
        for epoch in range(self.epochs):
            order = list(range(len(batch.groups)))
            if epoch:
                random.Random(f"critic/{self._seed}/{self.updates}").shuffle(order)
            for part in batch.minibatches(self.minibatches, order):
                if any(batch.samples[i].tokens for i in part):
                    result = self._update(self._cut(batch, part), old_N, returns_N)
                    for name, value in zip(per_update, result, strict=True):
                        per_update[name].append(value)
        metrics = {
            "critic.loss": sum(per_update["loss"]) / len(per_update["loss"]),
            "critic.clipped": sum(per_update["clipped"]) / len(per_update["clipped"]),
            "critic.grad_norm": max(per_update["norm"]),
            "critic.value": float(old_N.double().mean()),
        }
        return metrics | explained_variance(old_N, returns_N)

    def state(self) -> Mapping[str, Any]:
        """Return the weights, the moments and the count of updates; the tensors are live."""
        moments = self._optimizer.state
        return {
            "updates": self.updates,
            "weights": {name: p.data for name, p in self._trained.items()},
            "moments": {
                name: dict(moments[p]) for name, p in self._trained.items() if p in moments
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave.

        Raises:
            RunError: it is of a model with other parameters.
        """
        shapes = {name: tuple(w.shape) for name, w in state["weights"].items()}
        if shapes != {name: tuple(p.shape) for name, p in self._trained.items()}:
            raise RunError(
                "the checkpoint's critic has other parameters than this model's; resume with the "
                "same model"
            )
        self.updates = int(state["updates"])
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(state["weights"][name])
        for name, moments in state["moments"].items():
            parameter = self._trained[name]
            self._optimizer.state[parameter] = {
                key: x.to(parameter.device, copy=True) for key, x in moments.items()
            }

    def _cut(self, batch: Batch, part: Sequence[int]) -> list[MicroBatch]:
        return micro_batches(
            batch, part, budget=self._budget, level="token", cost=self._forward.cost
        )

    def _values(self, micro: MicroBatch) -> Tensor:
        device = self._head.weight.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=self._half):
            hidden_ND = self._forward.hidden(micro.prefix_groups)
        values_N: Tensor = self._head(hidden_ND.to(self._head.weight.dtype))[:, 0]
        return values_N

    def _update(
        self, parts: Sequence[MicroBatch], old_N: Tensor, returns_N: Tensor
    ) -> tuple[float, float, float]:
        """Take one step on a minibatch; return its mean loss, its clipped share, the norm of its
        gradient.
        """
        self._optimizer.zero_grad(set_to_none=True)
        tokens = sum(len(micro.positions) for micro in parts)
        loss = clipped = 0.0
        for micro in parts:
            values_N = self._values(micro)
            old, returns = (
                x[micro.positions].to(values_N.device, values_N.dtype) for x in (old_N, returns_N)
            )
            terms, stopped = value_terms(values_N, old, returns, self.clip)
            part = terms.sum() / tokens
            part.backward()
            loss += float(part.detach())
            clipped += float(stopped.sum()) / tokens
        norm = nn.utils.clip_grad_norm_(self._trained.values(), self.max_grad_norm)
        if not bool(norm.isfinite()):
            raise RunError(
                f"the gradient of the critic's update {self.updates + 1} is not finite; lower "
                "services.critic.args.lr, or look at the rewards of this step"
            )
        self._optimizer.step()
        self.updates += 1
        return loss, clipped, float(norm)


def explained_variance(values_N: Tensor, returns_N: Tensor) -> dict[str, float]:
    """Return ``critic.explained_variance``: 1 - var(R - V) / var(R); nothing where returns do not
    vary.
    """
    returns, values = returns_N.double().cpu(), values_N.double().cpu()
    spread = returns.var(correction=0)
    if not float(spread) > 1e-12:
        return {}
    return {"critic.explained_variance": float(1 - (returns - values).var(correction=0) / spread)}


def _trained(module: nn.Module, head: nn.Linear) -> dict[str, nn.Parameter]:
    """Return the parameters that a value depends on, by name: all that train but an output layer of
    its own.
    """
    owner = cast(Any, module)
    output = owner.get_output_embeddings().weight
    if output is not owner.get_input_embeddings().weight:
        output.requires_grad_(False)
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return named | {f"value_head.{name}": p for name, p in head.named_parameters()}
