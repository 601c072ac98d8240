"""The learner: a model, its optimizer, and how a batch becomes advantages, a weighted sum and
optimizer steps.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..errors import PluginError, RunError, UsageError
from ..interfaces.algorithm import Algorithm, overlong
from ..interfaces.factors import Factors
from ..models.forward import TOKEN_BUDGET, Forward, Layout
from ..models.load import trainable
from ..models.module_weights import ModuleWeights
from ..models.sampler_mismatch import (
    Doubtful,
    DoubtfulSamples,
    SamplerMismatch,
    differences,
)
from ..models.transfers import to_device
from ..types.transcript import TrainingSequence
from .batch import Batch, Sample, batch_of
from .loss import MinibatchLoss
from .meter import Meter, advantage_metrics, sampler_metrics, staleness, under
from .microbatch import MicroBatch
from .optimizer_step import OptimizerStep
from .pieces.advantages import Step
from .pieces.objectives import kl_estimate
from .ranks import ALONE, Ranks
from .scorer import AUTOCAST, FrozenPolicies, Precision, TokenScorer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch with what the algorithm needs of it before its first update.

    Attributes:
        step: what the advantage reads.
        policies: mu, prox and ref; the first pass of `Learner.step` completes them.
        seconds: that preparing took.
    """

    step: Step
    policies: FrozenPolicies
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """What an advantage piece gave.

    Attributes:
        values: per sample, or per trained token [N].
        metrics: of the piece itself.
        columns: what it tells the objective of each trained token, [N, ...], in host memory.
    """

    values: Sequence[float] | Tensor
    metrics: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)


class Learner:
    """Trains a causal language model by one algorithm of the table.

    Weights and optimizer state are float32 always (float64 where the module is); ``bf16`` is
    autocast. Dropout is off. A subclass may train in less memory: `adamw` makes the optimizer, and
    *widen* leaves weights in half precision as they are.

    Args:
        module: a causal language model of transformers.
        algorithm: the algorithm; only `supervised_step` works without.
        lr: peak learning rate of AdamW, constant after the warm-up but for a schedule.
        warmup_steps: updates over which the learning rate rises linearly from lr / warmup_steps.
        schedules: what multiplies ``lr`` and numbers of the algorithm in each step (see `Factor`).
        betas, epsilon, weight_decay: of AdamW; matrices alone decay.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them.
        precision: of the layers: ``float32``, or autocast to ``bf16`` or ``fp16`` (with a loss
            scale that is halved when a gradient overflows; that update is left out and counted as
            ``updates.skipped``).
        float32_head: compute the logits in float32 also under autocast; an algorithm may require it
            too.
        token_budget: tokens of a micro-batch; a longer sample has one of its own. A GPU is busy
            with 16,000 and more.
        skip_idle: leave out samples whose advantage is 0, if the objective guarantees that their
            gradient is exactly 0; metrics other than ``idle`` then cover the rest.
        activation_checkpointing: trade a second forward pass of each layer for memory.
        lora: settings of a `peft.LoraConfig`; only the adapters train then, and ref is the model
            without them.
        widen: turn weights in half precision into float32.
        layout: see `quintain.models.forward`.
        reference: ref, if not *module* as it is now; kept only if the algorithm uses ref.
        max_sample_mismatch: no update is made if the log-probs of a sample differ by more between
            mu and prox, in nats (see `typical_difference`); ``None`` compares nothing. A sample with
            single tokens that differ by more than rounding explains (see `doubtful`) is left out,
            and the third such in the learner's life is a `SamplerMismatch`.
        exact_sampler: mu is computed in float32, too.
        ranks: the processes that train together; all make the same calls with the same batches.
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm | None = None,
        *,
        lr: float = 1e-5,
        warmup_steps: int = 0,
        schedules: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        precision: Precision = "float32",
        float32_head: bool = False,
        token_budget: int = TOKEN_BUDGET,
        skip_idle: bool = True,
        activation_checkpointing: bool = False,
        lora: Mapping[str, Any] | None = None,
        widen: bool = True,
        layout: Layout | Literal["auto"] = "auto",
        reference: nn.Module | None = None,
        max_sample_mismatch: float | None = None,
        exact_sampler: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        if precision not in AUTOCAST:
            raise UsageError(f"precision is {precision!r}; expected 'float32', 'bf16' or 'fp16'")
        self.algorithm = algorithm
        self._unscheduled = algorithm
        self._factors = Factors(schedules, algorithm)
        self.ranks = ranks
        self.max_sample_mismatch = max_sample_mismatch
        self._doubtful = DoubtfulSamples(exact=exact_sampler and precision == "float32")
        self.version = 0
        self.updates = 0
        self.lr = lr
        self.warmup_steps = warmup_steps
        self.max_grad_norm = max_grad_norm
        self.precision = precision
        self.token_budget = token_budget
        self.skip_idle = skip_idle
        self.module = trainable(module, lora, widen=widen)
        # Before any forward pass, which may leave a sharded module with other parameters.
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.forward = Forward(
            self.module,
            layout=layout,
            checkpointing=activation_checkpointing,
            device=ranks.device,
            half=ranks.half,
            gathers=ranks.lockstep,
        )
        matrices = [p for p in self.parameters if p.ndim > 1]
        vectors = [p for p in self.parameters if p.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._optimizer = self.adamw(groups, lr=lr, betas=betas, eps=epsilon)
        self._scaler = torch.amp.GradScaler(self.forward.device.type, enabled=precision == "fp16")
        self._advantage_state: Any = None
        half = AUTOCAST[precision]
        # The head follows the layers' precision, unless it is to stay in float32.
        head_type = half
        if half is not None and (float32_head or (algorithm and algorithm.float32_head)):
            head_type = torch.float32
        self.scorer = TokenScorer(
            forward=self.forward,
            reference=self._reference(reference),
            algorithm=algorithm,
            half=half,
            math=head_type,
            token_budget=token_budget,
            ranks=ranks,
        )
        if algorithm is not None:
            for note in algorithm.notes():
                log.warning("%s: %s", algorithm.name, note)

    def adamw(self, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
        """Make the optimizer of the parameters in *groups*; *settings* are lr, betas and eps."""
        return torch.optim.AdamW(groups, fused=True, **settings)

    def serve(self, services: Mapping[str, Any]) -> None:
        """Give the algorithm's pieces the services that they need, by slot.

        Raises:
            BindingError: a slot is empty.
        """
        base = self._unscheduled or self._algorithm
        self.algorithm = self._unscheduled = base.with_services(services)

    batch = staticmethod(batch_of)

    def prepare(self, batch: Batch) -> Prepared:
        """Compute what the algorithm needs before the first update: log-probs under the frozen
        policies, rewards.

        Raises:
            UsageError: the batch holds no token that trains, or a piece lacks a service.
        """
        if not batch.tokens:
            raise UsageError("the batch holds no token that trains")
        if self._unscheduled is not None and self._factors:
            self.algorithm = self._factors.algorithm_at(self._unscheduled, self.version)
        for piece in self._algorithm.pieces:
            empty = [slot for parameter, slot in piece.needs.items() if parameter not in piece.args]
            if empty:
                slots = ", ".join(empty)
                raise UsageError(
                    f"{piece!r} needs the services {slots}: a run gives them, or `Learner.serve` "
                    f"does"
                )
        began = time.perf_counter()
        # The first minibatch gets prox from its own first pass, before any update; the others must
        # be scored now.
        later: list[int] = []
        for part in self._minibatches(batch, 0)[1:]:
            later += part
        policies = self.scorer.freeze(batch, sorted(later))
        rewards, penalty = self._rewards(batch, policies)
        step = Step(batch=batch, rewards=rewards, penalty=penalty, statistics=policies.statistics())
        return Prepared(step=step, policies=policies, seconds=time.perf_counter() - began)

    async def compute_advantages(self, prepared: Prepared) -> Advantages:
        """Return the advantages of a batch for `step`; the state of the piece is kept for the next
        batch.
        """
        piece = self._algorithm.advantage
        state = {"state": self._advantage_state} if piece.stateful else {}
        returned = piece(prepared.step, **state)
        if inspect.isawaitable(returned):
            returned = await returned
        if piece.stateful:
            returned, self._advantage_state = returned
        values: Any = returned
        metrics: dict[str, float] = {}
        columns: dict[str, Tensor] = {}
        match returned:
            case (values, Mapping() as named):
                for name, value in named.items():
                    # A tensor with rows is told to the objective; a number, or a tensor of one, is
                    # a metric.
                    if isinstance(value, Tensor) and value.ndim:
                        columns[name] = value
                    else:
                        metrics[name] = float(value)
        return Advantages(values=values, metrics=metrics, columns=columns)

    def step(
        self,
        batch: Batch | Prepared,
        *,
        advantages: Advantages | Sequence[float] | Tensor | None = None,
    ) -> dict[str, float]:
        """Train on a batch: all epochs and minibatches of the algorithm. The weights then have a
        new version.

        Args:
            advantages: from `compute_advantages`, or values per sample or per token [N]; computed
                here where ``None``. Within an event loop, a piece that waits has to be awaited
                there.

        Returns:
            metrics, see ``docs/health.md``.

        Raises:
            UsageError: the batch holds no token that trains.
            RunError: the gradient is not finite; neither weights nor optimizer were touched by that
                update.
            SamplerMismatch: log-probs of the sampler differ from prox by more than
                `max_sample_mismatch`; no update.
        """
        algorithm = self._algorithm
        prepared = batch if isinstance(batch, Prepared) else self.prepare(batch)
        # As if it had begun with `prepare`; the time in between, for advantages that sample, is not
        # the learner's.
        began = time.perf_counter() - prepared.seconds
        if advantages is None:
            advantages = self._computed(prepared)
        elif not isinstance(advantages, Advantages):
            advantages = Advantages(values=advantages)
        batch = prepared.step.batch
        policies = prepared.policies
        advantage_N = self._per_token(batch, advantages.values)
        for name, column in advantages.columns.items():
            if len(column) != batch.tokens:
                raise UsageError(
                    f"{algorithm.advantage!r} gave {len(column)} rows of {name!r}; expected one "
                    f"per token that trains ({batch.tokens})"
                )
        if algorithm.reset_optimizer:
            self._optimizer.state.clear()
        left_out = self._doubtful.left_out
        left_out.clear()
        while True:
            meter = Meter(self.ranks)
            # Raised before the first update: the step begins again without the samples.
            with suppress(Doubtful):
                for epoch in range(algorithm.epochs):
                    for part in self._minibatches(batch, epoch):
                        kept = [i for i in part if i not in left_out]
                        self._update(prepared, kept, advantage_N, advantages.columns, meter)
                break
        metrics = {under("advantage", name): value for name, value in advantages.metrics.items()}
        metrics |= advantage_metrics(advantage_N, batch.sample_of_tokens, len(batch.samples))
        metrics |= sampler_metrics(policies.prox_logp, policies.mu_logp, batch.sample_of_tokens)
        metrics |= staleness(batch.versions, self.version, ignored=algorithm.ignores_staleness)
        if left_out:
            metrics["mismatch.left_out"] = float(len(left_out))
        metrics |= self._factors.metrics(self.version)
        metrics = self._summary(meter, batch, began) | metrics
        self._factors.observe(metrics)
        self.version += 1
        return metrics

    def _computed(self, prepared: Prepared) -> Advantages:
        """Return what `compute_advantages` does. A loop that runs cannot run another one, so within
        one the piece may wait for nothing.
        """
        computing = self.compute_advantages(prepared)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(computing)
        try:
            computing.send(None)
        except StopIteration as done:
            advantages: Advantages = done.value
            return advantages
        computing.close()
        raise UsageError(
            f"{self._algorithm.advantage!r} has to be awaited: pass `advantages` from "
            "`compute_advantages`"
        )

    def supervised_step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """Make one update on -log theta of the trained tokens, averaged over all of them; publishes
        one new version.

        Returns:
            ``loss`` and ``entropy`` in nats per token, ``grad_norm``, ``tokens``, ``seconds``,
            ``lr``.
        """
        began = time.perf_counter()
        samples = [
            Sample(sequences=(sequence,), outcome=0.0, group=i)
            for i, sequence in enumerate(sequences)
        ]
        batch = Batch(samples=tuple(samples))
        if not batch.tokens:
            raise UsageError("the sequences hold no token that trains")
        meter = Meter(self.ranks)

        def cross_entropy(micro: MicroBatch, observe: bool) -> Tensor:
            if micro.padding:
                return self.scorer.nothing(micro)
            statistics = self.scorer.statistics(micro.prefix_groups)
            if observe:
                meter.add(entropy=statistics.entropy)
            return -statistics.logp.sum() / batch.tokens

        everyone = range(len(samples))
        self._take_adamw_step(self._optimizer_step(batch, everyone, cross_entropy), meter)
        self.version += 1
        return self._summary(meter, batch, began)

    def logprobs(self, batch: Batch, *, policy: Literal["theta", "ref"] = "theta") -> Tensor:
        """Return the log-probs of all trained tokens at the batch's temperature, [N], in the order
        of samples, sequences and positions.
        """
        return self.scorer.score(batch, range(len(batch.samples)), policy)["logp"]

    def weights(self) -> ModuleWeights:
        """Return the live weights under their names in a Hugging Face checkpoint; adapters are
        merged in a copy.
        """
        return ModuleWeights(self.module, self.version)

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """Return all that a bitwise resume needs.

        Args:
            weights: include the module's; without them the module must be restored by other means,
                as from a checkpoint folder.
        """
        state: dict[str, Any] = {
            "version": self.version,
            "updates": self.updates,
            "optimizer": self._optimizer.state_dict(),
            "advantage": copy.deepcopy(self._advantage_state),
        }
        if weights:
            state["module"] = self.module.state_dict()
        if self.scorer.reference is not None:
            state["reference"] = self.scorer.reference.state_dict()
        state["scaler"] = self._scaler.state_dict()  # empty without a loss scale
        if self._factors.adapted:
            state["schedules"] = dict(self._factors.adapted)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.version = state["version"]
        self.updates = state["updates"]
        self._optimizer.load_state_dict(state["optimizer"])
        self._advantage_state = copy.deepcopy(state["advantage"])
        if "module" in state:
            self.module.load_state_dict(state["module"])
        if self.scorer.reference is not None:
            self.scorer.reference.load_state_dict(state["reference"])
        if state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self._factors.resume(state.get("schedules", {}))

    def close(self) -> None:
        """Do nothing; a learner with processes of its own ends them."""

    @property
    def _algorithm(self) -> Algorithm:
        if self.algorithm is None:
            raise UsageError(
                "this learner was made without an algorithm; give it an algorithm to call step()"
            )
        return self.algorithm

    def _reference(self, given: nn.Module | None) -> nn.Module | None:
        if self.algorithm is None or not self.algorithm.uses_reference:
            return None
        if given is None:
            if hasattr(self.module, "disable_adapter"):
                return None  # a model with adapters holds ref already: it is the model without them
            given = copy.deepcopy(self.module)
        return given.requires_grad_(False).eval()

    def _minibatches(self, batch: Batch, epoch: int) -> list[list[int]]:
        """Return the indices of the samples of each minibatch. The first epoch takes groups in
        their order, so that `prepare` knows which come before any update; later ones shuffle them
        by the number of updates, which a checkpoint holds.
        """
        order = list(range(len(batch.groups)))
        if epoch:
            random.Random(f"minibatches/{self.updates}").shuffle(order)
        return batch.minibatches(self._algorithm.minibatches, order)

    def _rewards(
        self, batch: Batch, policies: FrozenPolicies
    ) -> tuple[tuple[float, ...], Tensor | None]:
        """Return the total reward per sample, punished for length and less the KL penalty where the
        algorithm has these; and the penalty of each token, [N]: coefficient times estimate.
        """
        share = self._algorithm.overlong
        totals = [
            sample.total + overlong(sample.longest_turn, batch.max_tokens, share)
            for sample in batch.samples
        ]
        kl = self._algorithm.kl
        if not kl.in_reward:
            return tuple(totals), None
        log_ratio_N = policies.prox_logp - cast(Tensor, policies.ref_logp)
        penalty_N = kl.coefficient * kl_estimate(log_ratio_N, kl.estimator).double().cpu()
        sums = torch.zeros(len(totals), dtype=torch.float64)
        sums.index_add_(0, batch.sample_of_tokens, penalty_N)
        rewards = [total - penalty for total, penalty in zip(totals, sums.tolist(), strict=True)]
        return tuple(rewards), penalty_N

    def _per_token(self, batch: Batch, values: Sequence[float] | Tensor) -> Tensor:
        """Return the advantages as [N], in host memory."""
        advantages = torch.as_tensor(values, dtype=self.scorer.dtype)
        per_sample = advantages.shape == (len(batch.samples),)
        per_token = advantages.shape == (batch.tokens,) and isinstance(values, Tensor)
        # As many samples as tokens: a tensor is taken to be per token, a list per sample. The
        # values are the same.
        if per_sample and not per_token:
            advantages = advantages.index_select(0, batch.sample_of_tokens)
        elif not per_token:
            raise UsageError(
                f"{self._algorithm.advantage!r} gave values of shape {list(advantages.shape)}; "
                f"expected one per sample ({len(batch.samples)}), or a tensor of one per token "
                f"that trains ({batch.tokens})"
            )
        if not bool(advantages.isfinite().all()):
            raise RunError(f"{self._algorithm.advantage!r} gave an advantage that is not finite")
        return advantages.cpu()

    def _update(
        self,
        prepared: Prepared,
        part: Sequence[int],
        advantage_N: Tensor,
        columns: Mapping[str, Tensor],
        meter: Meter,
    ) -> None:
        """Take one optimizer step on the samples *part*, by the algorithm's own update piece or by
        AdamW.

        Weights are fixed here, before any micro-batch is formed, so that the loss is the same sum
        however it is cut.
        """
        algorithm = self._algorithm
        batch = prepared.step.batch
        device = self.scorer.device
        if algorithm.mask_truncated:
            part = [i for i in part if not batch.samples[i].truncated]
        active = self._active(batch, part, advantage_N)
        if not active:
            # Without a gradient, AdamW would still move the weights by its momentum. So no update
            # is made.
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)
            meter.skip()
            return
        weight_S = torch.zeros(len(batch.samples), dtype=torch.float64)
        of_part = algorithm.aggregation(batch.only(part))
        weight_S[list(part)] = torch.tensor(of_part, dtype=torch.float64)
        weight_N = weight_S.index_select(0, batch.sample_of_tokens).to(self.scorer.dtype)
        loss = MinibatchLoss(
            algorithm=algorithm,
            scorer=self.scorer,
            policies=prepared.policies,
            temperature=batch.temperature,
            advantage_N=to_device(advantage_N, device),
            columns=columns,
            weight_N=to_device(weight_N, device),
            meter=meter,
        )

        def evaluated() -> None:
            # The backward pass has seen every token once, before the weights change: prox is
            # complete on this rank, and an engine that disagrees with it can still stop the update.
            prepared.policies.exchange(self.ranks, optimization.parts)
            if not meter.updates and self.max_sample_mismatch is not None:
                self._check_sampler(prepared, meter, self.max_sample_mismatch)

        optimization = self._optimizer_step(batch, active, loss, evaluated)
        if algorithm.optimizer_step is None:
            self._take_adamw_step(optimization, meter)
            return
        self._announce_change()
        metrics = dict(algorithm.optimizer_step(optimization) or {})
        self.updates += 1
        if {"loss", "grad_norm"} - set(metrics):
            raise PluginError(
                f"{algorithm.optimizer_step!r} must return the metrics loss and grad_norm; it gave "
                f"{sorted(metrics)}"
            )
        meter.update(**metrics)

    def _active(self, batch: Batch, part: Sequence[int], advantage_N: Tensor) -> list[int]:
        """Return the samples whose gradient is not known to be exactly 0. Weights were fixed over
        all of them.
        """
        objective = self._algorithm.objective
        if not self.skip_idle or not objective.idle or self._algorithm.kl.in_loss:
            return list(part)
        moves = torch.zeros(len(batch.samples), dtype=torch.bool)
        moves[batch.sample_of_tokens[advantage_N != 0]] = True
        if objective.level == "group":
            # One term reads all samples, so one advantage makes the whole group's gradient differ
            # from 0.
            for indices in batch.groups:
                moves[list(indices)] = moves[list(indices)].any()
        return [i for i in part if moves[i]]

    def _check_sampler(self, prepared: Prepared, meter: Meter, limit: float) -> None:
        """Compare mu with prox before the first update, over the tokens that the present weights
        sampled.
        """
        batch = prepared.step.batch
        policies = prepared.policies
        sample_N = batch.sample_of_tokens
        # A sample that several versions sampled may have keys and values of older weights before
        # its newest tokens.
        oldest_S = torch.full((len(batch.samples),), self.version)
        oldest_S.scatter_reduce_(0, sample_N, batch.versions, "amin")
        fresh_N = oldest_S[sample_N] == self.version
        compared = (policies.prox_logp, policies.mu_logp, sample_N, fresh_N)
        by_sample = differences(*compared)
        if not by_sample:
            return
        worst = max(by_sample, key=lambda i: (by_sample[i], i))
        largest = by_sample[worst]
        meter.add(**{"mismatch.sample": torch.tensor(largest)})
        names = ""
        if largest <= limit:
            found = self._doubtful.check(*compared, limit, batch.samples)
            if found is None:
                return
            worst, largest, limit, names = found
        prox_logp = policies.prox_logp[batch.positions([worst])].tolist()
        sequences = batch.samples[worst].sequences
        raise SamplerMismatch("engine or learner", largest, limit, sequences, prox_logp, names)

    def _optimizer_step(
        self,
        batch: Batch,
        samples: Sequence[int],
        evaluate: Callable[[MicroBatch, bool], Tensor],
        evaluated: Callable[[], None] = lambda: None,
    ) -> OptimizerStep:
        return OptimizerStep(
            module=self.module,
            parameters=self.parameters,
            batch=batch,
            parts=self.scorer.micro_batches(batch, samples),
            evaluate=evaluate,
            evaluated=evaluated,
            token_budget=self.token_budget,
            ranks=self.ranks,
        )

    def _summary(self, meter: Meter, batch: Batch, began: float) -> dict[str, float]:
        return meter.summary(
            lr=self._optimizer.param_groups[0]["lr"],
            seconds=time.perf_counter() - began,
            samples=float(len(batch.samples)),
            tokens=float(batch.tokens),
            **self.forward.experts.metrics(self.ranks.sum),
        )

    def _announce_change(self) -> None:
        """Let `quintain.interfaces.changes_of` see a change of the weights before it begins.

        Torch counts a write when it has ended. An engine that copies the weights meanwhile, because
        it was started again, would take torn ones for whole.
        """
        torch.autograd.graph.increment_version(list(self.parameters))

    def _take_adamw_step(self, optimization: OptimizerStep, meter: Meter) -> None:
        """Accumulate the gradient over micro-batches, clip it, take one step of AdamW.

        Raises:
            RunError: the gradient is not finite, and no loss scale is to blame.
        """
        optimizer = self._optimizer
        scaler = self._scaler
        total = optimization.accumulate(scaler.scale)
        scaler.unscale_(optimizer)
        gradients = [cast(Tensor, p.grad) for p in self.parameters]
        norm = self.ranks.whole(nn.utils.get_total_norm(gradients))
        # the one point of an update at which the host waits for the device
        loss, grad_norm = torch.stack([total, norm.to(total)]).tolist()
        if not math.isfinite(grad_norm):
            # In float16 a large loss scale overflows: the scaler then leaves the step out and
            # halves the scale. A scale of at most 1, as without a scaler, cannot be the cause.
            if scaler.get_scale() > 1:
                scaler.step(optimizer)
                scaler.update()
                meter.skip(loss)
                return
            raise RunError(
                f"the gradient of update {self.updates + 1} is not finite; lower the learning "
                "rate, or look at the rewards and the log-probs of this step"
            )
        if self.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, norm)
        self.updates += 1
        # Linear warm-up: the first update already has a learning rate above 0.
        warmed = min(1.0, self.updates / max(1, self.warmup_steps))
        for group in optimizer.param_groups:
            group["lr"] = self.lr * warmed * self._factors.of("lr", self.version)
        self._announce_change()
        scaler.step(optimizer)
        scaler.update()
        meter.update(loss=loss, grad_norm=grad_norm)
