"""The learner: a model, its optimizer, and the one way in which a batch becomes a weighted sum and the sum becomes a
step.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..algorithm import Row
from ..errors import RunError, UsageError
from ..model.forward import Forward, Layout
from ..model.head import Statistics
from ..transcript import TrainingSequence
from .advantages import Step
from .batch import Batch, Sample
from .loss import weighted_sum
from .meter import Meter
from .microbatch import Columns, MicroBatch, micro_batches
from .objectives import kl_estimate
from .terms import Terms
from .weights import ModuleWeights

log = logging.getLogger(__name__)

Loss = Callable[[MicroBatch, Statistics], Tensor]
Precision = Literal["float32", "bf16"]


class Learner:
    """Trains a causal language model by one row of the table.

    Weights and optimizer state are float32 always (float64 where the module is); ``bf16`` is autocast. Dropout is off.

    Args:
        module: a causal language model of transformers.
        row: the method; only `supervised_step` works without.
        lr: peak learning rate of AdamW, constant after the warm-up.
        warmup_steps: updates over which the learning rate rises linearly from lr / warmup_steps.
        betas, epsilon, weight_decay: of AdamW; matrices alone decay.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them.
        precision: of the layers, ``float32`` or ``bf16``.
        float32_head: compute the logits in float32 also under bf16.
        token_budget: tokens of a micro-batch.
        skip_idle: leave out samples whose advantage is 0 where the objective says that their gradient is exactly 0
            then; metrics other than ``idle`` cover the others.
        activation_checkpointing: trade a second forward pass of each layer for memory.
        lora: settings of a `peft.LoraConfig`; only the adapters train then, and ref is the model without them.
        layout: see `quintain.model.forward`.
        reference: ref, where that is not *module* as it is now; used only while the row's KL term is on.
    """

    def __init__(
        self,
        module: nn.Module,
        row: Row | None = None,
        *,
        lr: float = 1e-5,
        warmup_steps: int = 0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        precision: Precision = "float32",
        float32_head: bool = False,
        token_budget: int = 2048,
        skip_idle: bool = True,
        activation_checkpointing: bool = False,
        lora: Mapping[str, Any] | None = None,
        layout: Layout | Literal["auto"] = "auto",
        reference: nn.Module | None = None,
    ) -> None:
        if precision not in ("float32", "bf16"):
            raise UsageError(f"precision is {precision!r}; expected 'float32' or 'bf16'")
        self.row = row
        self.version = 0
        self.updates = 0
        self.lr, self.warmup_steps, self.max_grad_norm = lr, warmup_steps, max_grad_norm
        self.precision, self.token_budget, self.skip_idle = precision, token_budget, skip_idle
        self._math = None if precision != "bf16" else torch.float32 if float32_head else torch.bfloat16
        self.module = _prepared(module, lora)
        self.forward = Forward(self.module, layout=layout, checkpointing=activation_checkpointing)
        self._parameters = [p for p in self.module.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            _decay_groups(self._parameters, weight_decay), lr=lr, betas=betas, eps=epsilon, fused=True
        )
        self._piece_state: dict[str, Any] = {}
        self._reference = self._keep_reference(reference)
        self._reference_forward: Forward | None = None
        for note in row.notes() if row else ():
            log.warning("%s: %s", row.name if row else "", note)

    @property
    def device(self) -> torch.device:
        return self.forward.head_weight.device

    def step(self, batch: Batch, *, advantages: Sequence[float] | Tensor | None = None) -> dict[str, float]:
        """Learn from a batch: all epochs and minibatches of the row; publishes one new version.

        Args:
            advantages: values from an asynchronous advantage, per sample or per token [N]; computed here where
                ``None``.

        Returns:
            metrics, see `Meter.summary`.

        Raises:
            UsageError: the batch holds no token that trains.
            RunError: the gradient is not finite; neither weights nor optimizer were touched by that update.
        """
        row = self._method
        if not batch.tokens:
            raise UsageError("the batch holds no token that trains")
        began = time.perf_counter()
        columns = Columns(batch=batch)
        policies = self._take_up(columns)
        advantage_N = self._advantages(columns, policies, advantages)
        meter = Meter()
        for epoch in range(row.epochs):
            for part in self._minibatches(batch, epoch):
                self._learn_from(columns, part, policies, advantage_N, meter)
        self.version += 1
        return meter.summary(lr=self._optimizer.param_groups[0]["lr"], seconds=time.perf_counter() - began) | {
            "samples": float(len(batch.samples)),
            "tokens": float(batch.tokens),
            "idle": float((advantage_N == 0).double().mean()),
        }

    def supervised_step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """One update on -log theta of the masked tokens, averaged over all of them; publishes one new version.

        Returns:
            ``loss`` and ``entropy`` in nats per token, ``grad_norm``, ``tokens``, ``seconds``, ``lr``.
        """
        began = time.perf_counter()
        samples = tuple(Sample(sequences=(s,), verdict=0.0, group=i) for i, s in enumerate(sequences))
        batch = Batch(samples=samples)
        if not batch.tokens:
            raise UsageError("the sequences hold no token that trains")
        meter = Meter()

        def loss(micro: MicroBatch, found: Statistics) -> Tensor:
            meter.add(entropy=found.entropy)
            return -found.logp.sum() / batch.tokens

        self._update(micro_batches(Columns(batch=batch), range(len(samples)), **self._cut), 1.0, loss, meter)
        self.version += 1
        summary = meter.summary(lr=self._optimizer.param_groups[0]["lr"], seconds=time.perf_counter() - began)
        return summary | {"tokens": float(batch.tokens), "samples": float(len(samples))}

    @torch.no_grad()
    def logprobs(self, batch: Batch, *, policy: Literal["theta", "ref"] = "theta") -> Tensor:
        """Log-probs of all trained tokens at the batch's temperature, [N], in the order of samples, sequences and
        places.
        """
        columns = Columns(batch=batch)
        return self._score(columns, range(len(batch.samples)), policy)["logp"]

    def weights(self) -> ModuleWeights:
        """The live weights under their names in a Hugging Face checkpoint; adapters are merged in a copy."""
        return ModuleWeights(self.module, self.version)

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """All that a bitwise resume needs.

        Args:
            weights: include the module's; without them the module must be restored by other means, as from a checkpoint
                folder.
        """
        state: dict[str, Any] = {
            "version": self.version,
            "updates": self.updates,
            "optimizer": self._optimizer.state_dict(),
            "pieces": copy.deepcopy(self._piece_state),
        }
        if weights:
            state["module"] = self.module.state_dict()
        if self._reference is not None:
            state["reference"] = self._reference.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        self.version, self.updates = state["version"], state["updates"]
        self._optimizer.load_state_dict(state["optimizer"])
        self._piece_state = copy.deepcopy(state["pieces"])
        if "module" in state:
            self.module.load_state_dict(state["module"])
        if self._reference is not None:
            self._reference.load_state_dict(state["reference"])

    @property
    def _method(self) -> Row:
        if self.row is None:
            raise UsageError("this learner was made without an algorithm; give it a row to call step()")
        return self.row

    @property
    def _cut(self) -> dict[str, Any]:
        level = self.row.objective.level if self.row else "token"
        return {"budget": self.token_budget, "level": level, "cost": self.forward.cost}

    def _keep_reference(self, given: nn.Module | None) -> nn.Module | None:
        if self.row is None or not self.row.kl.active or hasattr(self.module, "disable_adapter"):
            return None
        reference = given if given is not None else copy.deepcopy(self.module)
        return reference.requires_grad_(False).eval()

    def _minibatches(self, batch: Batch, epoch: int) -> list[list[int]]:
        """The first epoch takes groups as they came; later ones shuffle them, by the number of updates alone."""
        order = list(range(len(batch.groups)))
        if epoch:
            random.Random(f"minibatches/{self.updates}").shuffle(order)
        return batch.minibatches(self._method.minibatches, order)

    def _take_up(self, columns: Columns) -> dict[str, Tensor]:
        """Log-probs [N] of the frozen policies, where the row asks, before the first update.

        Tokens of the first minibatch learn prox from the first pass itself (their ratio is 1 exactly), so one update
        per batch needs no pass for it.
        """
        row, samples = self._method, range(len(columns.batch.samples))
        _, *later = self._minibatches(columns.batch, 0)
        held: dict[str, Tensor] = {"mu_logp": columns.mu_logp.to(self.device, self._wide)}
        held["prox_logp"] = torch.full_like(held["mu_logp"], float("nan"))
        if row.kl.active:
            held["ref_logp"] = self._score(columns, samples, "ref")["logp"]
        everything = row.advantage.reads or (row.kl.active and row.kl.where == "reward")
        needed = list(samples) if everything else sorted(i for part in later for i in part)
        if needed:
            scores = self._score(columns, needed, "theta")
            held["prox_logp"] = scores.pop("logp")
            held |= {name: scores[name] for name in row.advantage.reads}
        return held

    @property
    def _wide(self) -> torch.dtype:
        return torch.float64 if self.forward.head_weight.dtype == torch.float64 else torch.float32

    @torch.no_grad()
    def _score(self, columns: Columns, indices: Sequence[int], policy: Literal["theta", "ref"]) -> dict[str, Tensor]:
        """Statistics [N] of the tokens of some samples, NaN at the others."""
        names = ("logp", "entropy", "square", "mean_logp")
        held = {name: columns.mu_logp.new_full((columns.starts[-1],), float("nan")) for name in names}
        held = {name: x.to(self.device, self._wide) for name, x in held.items()}
        with self._as(policy) as forward:
            for micro in micro_batches(columns, indices, **self._cut):
                with self._autocast():
                    found = forward.statistics(micro.bundles, temperature=columns.batch.temperature, math=self._math)
                for name in names:
                    held[name][micro.places] = getattr(found, name)
        return held

    @contextlib.contextmanager
    def _as(self, policy: Literal["theta", "ref"]) -> Iterator[Forward]:
        if policy == "theta":
            yield self.forward
        elif self._reference is not None:
            self._reference_forward = self._reference_forward or Forward(self._reference, layout=self.forward.layout)
            yield self._reference_forward
        elif hasattr(self.module, "disable_adapter"):
            with cast(Any, self.module).disable_adapter():
                yield self.forward
        else:
            raise UsageError("no reference model is kept: the row's KL term is off")

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")

    def _advantages(
        self, columns: Columns, policies: Mapping[str, Tensor], given: Sequence[float] | Tensor | None
    ) -> Tensor:
        piece = self._method.advantage
        if given is None and (piece.asynchronous or piece.needs):
            raise UsageError(f"{piece!r} needs services or awaiting: compute it first and pass `advantages`")
        values = given
        if values is None:
            step = Step(batch=columns.batch, rewards=self._rewards(columns, policies), statistics=policies)
            values = piece(step, state=self._piece_state.get("advantage")) if piece.stateful else piece(step)
            if piece.stateful:
                values, self._piece_state["advantage"] = cast(Any, values)
        value = torch.as_tensor(values, dtype=self._wide)
        if value.shape[0] != columns.starts[-1] or not isinstance(values, Tensor):
            value = value.index_select(0, columns.sample)
        if not bool(value.isfinite().all()):
            raise RunError(f"{piece!r} gave an advantage that is not finite")
        return value.to(self.device)

    def _rewards(self, columns: Columns, policies: Mapping[str, Tensor]) -> tuple[float, ...]:
        """Total rewards, less coefficient times the KL estimate summed over the sample's tokens where that is in the
        reward.
        """
        totals = [sample.total for sample in columns.batch.samples]
        kl = self._method.kl
        if not (kl.active and kl.where == "reward"):
            return tuple(totals)
        value_N = kl_estimate(policies["prox_logp"] - policies["ref_logp"], kl.estimator).double().cpu()
        sums = torch.zeros(len(totals), dtype=torch.float64).index_add(0, columns.sample, value_N).tolist()
        return tuple(total - kl.coefficient * value for total, value in zip(totals, sums, strict=True))

    def _learn_from(
        self, columns: Columns, part: Sequence[int], policies: dict[str, Tensor], advantage_N: Tensor, meter: Meter
    ) -> None:
        """One optimizer step on some samples. Weights are fixed here, before any micro-batch is formed."""
        row, batch = self._method, columns.batch
        weight_S = torch.zeros(len(batch.samples), dtype=torch.float64)
        weight_S[list(part)] = torch.tensor(row.aggregation(batch.only(part)), dtype=torch.float64)
        weight_N = weight_S.index_select(0, columns.sample).to(self.device, self._wide)

        def loss(micro: MicroBatch, found: Statistics) -> Tensor:
            places = micro.places.to(self.device)
            fresh = (
                policies["prox_logp"][places].isnan() if meter.updates else torch.ones_like(places, dtype=torch.bool)
            )
            policies["prox_logp"][places] = torch.where(fresh, found.logp.detach(), policies["prox_logp"][places])
            terms = self._terms(micro, found, policies, advantage_N)
            weighed = weighted_sum(row, terms, weight_N[places])
            meter.observe(terms, weighed.diagnostics, weighed.correction)
            return weighed.loss

        active = self._active(columns, part, advantage_N)
        if not active:  # nothing to learn: an update would only let momentum carry the weights on
            for parameter in self._parameters:
                parameter.grad = torch.zeros_like(parameter)
            return
        self._update(micro_batches(columns, active, **self._cut), batch.temperature, loss, meter)

    def _active(self, columns: Columns, part: Sequence[int], advantage_N: Tensor) -> list[int]:
        """Samples whose gradient is not known to be exactly 0. Weights were fixed over all of them."""
        row = self._method
        if not (self.skip_idle and row.objective.idle) or (row.kl.active and row.kl.where == "loss"):
            return list(part)
        moves = torch.zeros(len(columns.batch.samples), dtype=torch.bool)
        moves[columns.sample[(advantage_N != 0).cpu()]] = True
        return [i for i in part if moves[i]]

    def _terms(
        self, micro: MicroBatch, found: Statistics, policies: Mapping[str, Tensor], advantage_N: Tensor
    ) -> Terms:
        places = micro.places.to(self.device)
        row = self._method
        return Terms(
            logp=found.logp,
            mu_logp=policies["mu_logp"][places],
            prox_logp=policies["prox_logp"][places],
            ref_logp=policies["ref_logp"][places] if "ref_logp" in policies else None,
            advantage=advantage_N[places],
            entropy=found.entropy if "entropy" in row.reads else found.entropy.detach(),
            sample=micro.sample.to(self.device),
            group=micro.group.to(self.device),
            anchor=row.anchor,
            statistics={
                name: getattr(found, name) for name in row.objective.reads | row.correction.reads if name != "ratio"
            },
        )

    def _update(self, parts: Sequence[MicroBatch], temperature: float, loss: Loss, meter: Meter) -> None:
        """Accumulate the gradient of *loss* over micro-batches, clip it, take one optimizer step."""
        self._optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro in parts:
            with self._autocast():
                found = self.forward.statistics(micro.bundles, temperature=temperature, math=self._math)
            part = loss(micro, found)
            part.backward()
            total += part.detach()
        for parameter in self._parameters:
            if parameter.grad is None:  # no term reached it; momentum still moves it
                parameter.grad = torch.zeros_like(parameter)
        norm = self._clip()
        self.updates += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, self.updates / max(1, self.warmup_steps))
        self._optimizer.step()
        meter.update(loss=float(total), grad_norm=norm)

    def _clip(self) -> float:
        """The gradient's norm before it is clipped.

        Raises:
            RunError: it is not finite.
        """
        norm = nn.utils.get_total_norm([cast(Tensor, p.grad) for p in self._parameters])
        if not bool(norm.isfinite()):
            self._optimizer.zero_grad(set_to_none=True)
            raise RunError(
                f"the gradient of update {self.updates + 1} is not finite; lower the learning rate, or look at the "
                "rewards and the log-probs of this step"
            )
        if self.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self._parameters, self.max_grad_norm, norm)
        return float(norm)


def _prepared(module: nn.Module, lora: Mapping[str, Any] | None) -> nn.Module:
    """Float32 at least, no dropout, adapters attached where asked."""
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters()):
        module.float()
    if lora is not None:
        module = _with_adapters(module, lora)
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "attention_dropout", None), float):
            part.attention_dropout = 0.0  # type: ignore[assignment]
    return module


def _with_adapters(module: nn.Module, lora: Mapping[str, Any]) -> nn.Module:
    try:
        import peft
    except ImportError as missing:
        raise UsageError("lora needs peft: pip install 'quintain[lora]'") from missing
    settings = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", **lora, "lora_dropout": 0.0}
    with warnings.catch_warnings():  # peft still asks transformers 5 by an older name
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        return peft.get_peft_model(cast(Any, module), peft.LoraConfig(**settings))


def _decay_groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
