"""The learner: a model, its optimizer, and how a batch becomes advantages, a weighted sum and
optimizer steps.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..errors import PluginError, RunError, UsageError
from ..interfaces.algorithm import Algorithm, overlong
from ..models.forward import TOKEN_BUDGET, Forward, Layout
from ..models.load import trainable
from ..models.module_weights import ModuleWeights
from ..models.sampler_mismatch import SamplerMismatch, differences
from ..models.transfers import to_device
from ..types.rollout import Group
from ..types.transcript import TrainingSequence
from .batch import Batch, Sample, batch_of
from .loss import MinibatchLoss
from .meter import Meter, advantage_metrics, sampler_metrics, staleness, under
from .microbatch import FlatTokens, MicroBatch
from .optimizer_step import OptimizerStep
from .pieces.advantages import Step
from .pieces.objectives import kl_estimate
from .ranks import ALONE, Ranks
from .scorer import HALF, FrozenPolicies, Precision, TokenScorer

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch with what the algorithm needs of it before its first update.

    Attributes:
        step: what the advantage reads.
        flat_tokens: the trained tokens.
        policies: mu, prox and ref; the first pass of `Learner.step` completes them.
        seconds: that preparing took.
    """

    step: Step
    flat_tokens: FlatTokens
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
        lr: peak learning rate of AdamW, constant after the warm-up.
        warmup_steps: updates over which the learning rate rises linearly from lr / warmup_steps.
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
            mu and prox, in nats (see `typical_difference`); ``None`` compares nothing.
        ranks: the processes that train together; all make the same calls with the same batches.
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm | None = None,
        *,
        lr: float = 1e-5,
        warmup_steps: int = 0,
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
        ranks: Ranks = ALONE,
    ) -> None:
        if precision != "float32" and precision not in HALF:
            raise UsageError(f"precision is {precision!r}; expected 'float32', 'bf16' or 'fp16'")
        self.algorithm, self.ranks = algorithm, ranks
        self.max_sample_mismatch = max_sample_mismatch
        self.version = 0
        self.updates = 0
        self.lr, self.warmup_steps, self.max_grad_norm = lr, warmup_steps, max_grad_norm
        self.precision, self.token_budget, self.skip_idle = precision, token_budget, skip_idle
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
        matrices, vectors = (
            [p for p in self.parameters if (p.ndim > 1) == wide] for wide in (True, False)
        )
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        self._optimizer = self.adamw(groups, lr=lr, betas=betas, eps=epsilon)
        self._scaler = torch.amp.GradScaler(self.forward.device.type, enabled=precision == "fp16")
        self._piece_state: dict[str, Any] = {}
        # The head follows the layers' precision, unless it is to stay in float32.
        half = HALF.get(precision)
        wide_head = float32_head or (algorithm is not None and algorithm.float32_head)
        self.scorer = TokenScorer(
            self.forward,
            self._reference(reference),
            algorithm=algorithm,
            half=half,
            math=half if half is None or not wide_head else torch.float32,
            token_budget=token_budget,
            ranks=ranks,
        )
        for note in algorithm.notes() if algorithm else ():
            log.warning("%s: %s", algorithm.name if algorithm else "", note)

    def adamw(self, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
        """Make the optimizer of the parameters in *groups*; *settings* are lr, betas and eps."""
        return torch.optim.AdamW(groups, fused=True, **settings)

    def serve(self, services: Mapping[str, Any]) -> None:
        """Give the algorithm's pieces the services that they need, by slot.

        Raises:
            BindingError: a slot is empty.
        """
        self.algorithm = self._algorithm.with_services(services)

    def batch(
        self, groups: Sequence[Group[Any, Any]], *, temperature: float, max_tokens: int | None
    ) -> Batch:
        """Return the samples of *groups*: one per valid rollout and player."""
        return batch_of(groups, temperature=temperature, max_tokens=max_tokens)

    def prepare(self, batch: Batch) -> Prepared:
        """Compute what the algorithm needs before the first update: log-probs under the frozen
        policies, rewards.

        Raises:
            UsageError: the batch holds no token that trains, or a piece lacks a service.
        """
        if not batch.tokens:
            raise UsageError("the batch holds no token that trains")
        for piece in self._algorithm.pieces:
            empty = [slot for parameter, slot in piece.needs.items() if parameter not in piece.args]
            if empty:
                slots = ", ".join(empty)
                raise UsageError(
                    f"{piece!r} needs the services {slots}: a run gives them, or `Learner.serve` "
                    f"does"
                )
        began = time.perf_counter()
        flat_tokens = FlatTokens(batch=batch)
        # The first minibatch gets prox from its own first pass, before any update; the others must
        # be scored now.
        _, *later = self._minibatches(batch, 0)
        policies = self.scorer.freeze(flat_tokens, sorted(i for part in later for i in part))
        rewards, penalty = self._rewards(flat_tokens, policies)
        step = Step(batch=batch, rewards=rewards, penalty=penalty, statistics=policies.statistics())
        return Prepared(
            step=step,
            flat_tokens=flat_tokens,
            policies=policies,
            seconds=time.perf_counter() - began,
        )

    async def compute_advantages(self, prepared: Prepared) -> Advantages:
        """Return the advantages of a batch for `step`, also where the piece has to be awaited."""
        returned = self._run_advantage(prepared.step)
        return self._unpack(await returned if inspect.isawaitable(returned) else returned)

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
                here where ``None``.

        Returns:
            metrics, see ``docs/health.md``.

        Raises:
            UsageError: the batch holds no token that trains, or its advantages have to be awaited.
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
            if algorithm.advantage.asynchronous:
                raise UsageError(
                    f"{algorithm.advantage!r} has to be awaited: pass `advantages` from "
                    f"`compute_advantages`"
                )
            advantages = self._unpack(self._run_advantage(prepared.step))
        elif not isinstance(advantages, Advantages):
            advantages = Advantages(values=advantages)
        batch, flat_tokens, policies = prepared.step.batch, prepared.flat_tokens, prepared.policies
        advantage_N = self._per_token(flat_tokens, advantages.values)
        for name, column in advantages.columns.items():
            if len(column) != batch.tokens:
                raise UsageError(
                    f"{algorithm.advantage!r} gave {len(column)} rows of {name!r}; expected one "
                    f"per token that trains ({batch.tokens})"
                )
        if algorithm.reset_optimizer:
            self._optimizer.state.clear()
        meter = Meter(self.ranks)
        for epoch in range(algorithm.epochs):
            for part in self._minibatches(batch, epoch):
                self._update(prepared, part, advantage_N, advantages.columns, meter)
        metrics = {"samples": float(len(batch.samples)), "tokens": float(batch.tokens)}
        metrics |= {under("advantage", name): value for name, value in advantages.metrics.items()}
        metrics |= advantage_metrics(advantage_N, flat_tokens.sample, len(batch.samples))
        metrics |= sampler_metrics(policies.prox_logp, policies.mu_logp, flat_tokens.sample)
        metrics |= staleness(
            flat_tokens.versions, self.version, ignored=algorithm.ignores_staleness
        )
        self.version += 1
        return (
            meter.summary(
                lr=self._optimizer.param_groups[0]["lr"], seconds=time.perf_counter() - began
            )
            | metrics
        )

    def supervised_step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        """Make one update on -log theta of the trained tokens, averaged over all of them; publishes
        one new version.

        Returns:
            ``loss`` and ``entropy`` in nats per token, ``grad_norm``, ``tokens``, ``seconds``,
            ``lr``.
        """
        began = time.perf_counter()
        batch = Batch(
            samples=tuple(
                Sample(sequences=(s,), outcome=0.0, group=i) for i, s in enumerate(sequences)
            )
        )
        if not batch.tokens:
            raise UsageError("the sequences hold no token that trains")
        meter = Meter(self.ranks)

        def cross_entropy(micro: MicroBatch, observe: bool) -> Tensor:
            statistics = self.scorer.statistics(micro.prefix_groups)
            if observe:
                meter.add(entropy=statistics.entropy)
            return -statistics.logp.sum() / batch.tokens

        self._take_adamw_step(
            self._problem(FlatTokens(batch=batch), range(len(sequences)), cross_entropy), meter
        )
        self.version += 1
        summary = meter.summary(
            lr=self._optimizer.param_groups[0]["lr"], seconds=time.perf_counter() - began
        )
        return summary | {"tokens": float(batch.tokens), "samples": float(len(sequences))}

    def logprobs(self, batch: Batch, *, policy: Literal["theta", "ref"] = "theta") -> Tensor:
        """Return the log-probs of all trained tokens at the batch's temperature, [N], in the order
        of samples, sequences and positions.
        """
        return self.scorer.score(FlatTokens(batch=batch), range(len(batch.samples)), policy)["logp"]

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
            "pieces": copy.deepcopy(self._piece_state),
        }
        if weights:
            state["module"] = self.module.state_dict()
        if self.scorer.reference is not None:
            state["reference"] = self.scorer.reference.state_dict()
        if self._scaler.is_enabled():
            state["scaler"] = self._scaler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.version, self.updates = state["version"], state["updates"]
        self._optimizer.load_state_dict(state["optimizer"])
        self._piece_state = copy.deepcopy(state["pieces"])
        if "module" in state:
            self.module.load_state_dict(state["module"])
        if self.scorer.reference is not None:
            self.scorer.reference.load_state_dict(state["reference"])
        if self._scaler.is_enabled() and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])

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
        # A model with adapters holds ref already: it is the model without them.
        adapted = hasattr(self.module, "disable_adapter")
        if (
            self.algorithm is None
            or not self.algorithm.uses_reference
            or (given is None and adapted)
        ):
            return None
        return (
            (given if given is not None else copy.deepcopy(self.module))
            .requires_grad_(False)
            .eval()
        )

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
        self, flat_tokens: FlatTokens, policies: FrozenPolicies
    ) -> tuple[tuple[float, ...], Tensor | None]:
        """Return the total reward per sample, punished for length and less the KL penalty where the
        algorithm has these; and the penalty of each token, [N]: coefficient times estimate.
        """
        share, longest = self._algorithm.overlong, flat_tokens.batch.max_tokens
        totals = [
            s.total + overlong(s.longest_turn, longest, share) for s in flat_tokens.batch.samples
        ]
        kl = self._algorithm.kl
        if not kl.in_reward:
            return tuple(totals), None
        log_ratio_N = policies.prox_logp - cast(Tensor, policies.ref_logp)
        penalty_N = kl.coefficient * kl_estimate(log_ratio_N, kl.estimator).double().cpu()
        sums = (
            torch.zeros(len(totals), dtype=torch.float64)
            .index_add(0, flat_tokens.sample, penalty_N)
            .tolist()
        )
        return tuple(
            total - penalty for total, penalty in zip(totals, sums, strict=True)
        ), penalty_N

    def _run_advantage(self, step: Step) -> Any:
        piece = self._algorithm.advantage
        return (
            piece(step, state=self._piece_state.get("advantage")) if piece.stateful else piece(step)
        )

    def _unpack(self, returned: Any) -> Advantages:
        """Return the values, metrics and columns of what an advantage returned; its state is kept
        for the next batch.
        """
        if self._algorithm.advantage.stateful:
            returned, self._piece_state["advantage"] = returned
        if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
            values, named = returned
            columns = {k: v for k, v in named.items() if isinstance(v, Tensor) and v.ndim}
            return Advantages(
                values=values,
                metrics={k: float(v) for k, v in named.items() if k not in columns},
                columns=columns,
            )
        return Advantages(values=returned)

    def _per_token(self, flat_tokens: FlatTokens, values: Sequence[float] | Tensor) -> Tensor:
        """Return the advantages as [N], in host memory."""
        advantages = torch.as_tensor(values, dtype=self.scorer.dtype)
        samples, tokens = len(flat_tokens.batch.samples), flat_tokens.starts[-1]
        # As many samples as tokens: a tensor is taken to be per token, a list per sample. The
        # values are the same.
        if advantages.shape == (samples,) and not (
            isinstance(values, Tensor) and samples == tokens
        ):
            advantages = advantages.index_select(0, flat_tokens.sample)
        elif advantages.shape != (tokens,) or not isinstance(values, Tensor):
            raise UsageError(
                f"{self._algorithm.advantage!r} gave values of shape {list(advantages.shape)}; "
                f"expected one per sample ({samples}), or a tensor of one per token that trains "
                f"({tokens})"
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
        algorithm, flat_tokens = self._algorithm, prepared.flat_tokens
        batch = flat_tokens.batch
        if algorithm.mask_truncated:
            part = [i for i in part if not batch.samples[i].truncated]
        token_weight_S = torch.zeros(len(batch.samples), dtype=torch.float64)
        if part:
            token_weight_S[list(part)] = torch.tensor(
                algorithm.aggregation(batch.only(part)), dtype=torch.float64
            )
        active = self._active(flat_tokens, part, advantage_N)
        if not active:
            # Without a gradient, AdamW would still move the weights by its momentum. So no update
            # is made.
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter)
            meter.skip()
            return
        loss = MinibatchLoss(
            algorithm=algorithm,
            scorer=self.scorer,
            policies=prepared.policies,
            temperature=batch.temperature,
            advantage_N=to_device(advantage_N, self.scorer.device),
            columns=columns,
            weight_N=to_device(
                token_weight_S.index_select(0, flat_tokens.sample).to(self.scorer.dtype),
                self.scorer.device,
            ),
            meter=meter,
            first=not meter.updates,
        )

        def evaluated() -> None:
            prepared.policies.exchange(self.ranks, optimization.parts)
            if loss.first and self.max_sample_mismatch is not None:
                self._check_sampler(prepared, meter, self.max_sample_mismatch)

        optimization = self._problem(flat_tokens, active, loss, evaluated=evaluated)
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
        meter.update(loss=metrics.pop("loss"), grad_norm=metrics.pop("grad_norm"), **metrics)

    def _active(
        self, flat_tokens: FlatTokens, part: Sequence[int], advantage_N: Tensor
    ) -> list[int]:
        """Return the samples whose gradient is not known to be exactly 0. Weights were fixed over
        all of them.
        """
        algorithm = self._algorithm
        if not (self.skip_idle and algorithm.objective.idle) or algorithm.kl.in_loss:
            return list(part)
        moves = torch.zeros(len(flat_tokens.batch.samples), dtype=torch.bool)
        moves[flat_tokens.sample[advantage_N != 0]] = True
        if algorithm.objective.level == "group":
            # One term reads all samples, so one advantage makes the whole group's gradient differ
            # from 0.
            for indices in flat_tokens.batch.groups:
                moves[list(indices)] = moves[list(indices)].any()
        return [i for i in part if moves[i]]

    def _check_sampler(self, prepared: Prepared, meter: Meter, limit: float) -> None:
        """Compare mu with prox before the first update, over the tokens that the present weights
        sampled.
        """
        flat_tokens, policies = prepared.flat_tokens, prepared.policies
        # A sample that several versions sampled may have keys and values of older weights before
        # its newest tokens.
        oldest_S = torch.full((len(prepared.step.batch.samples),), self.version)
        oldest_S.scatter_reduce_(0, flat_tokens.sample, flat_tokens.versions, "amin")
        fresh = oldest_S[flat_tokens.sample] == self.version
        by_sample = differences(policies.prox_logp, policies.mu_logp, flat_tokens.sample, fresh)
        largest, worst = max(
            ((difference, i) for i, difference in by_sample.items()), default=(0.0, 0)
        )
        if by_sample:
            meter.add(**{"mismatch.sample": torch.tensor(largest)})
        if largest > limit:
            prox_logp = policies.prox_logp[flat_tokens.of([worst])].tolist()
            sequences = prepared.step.batch.samples[worst].sequences
            raise SamplerMismatch("engine or learner", largest, limit, sequences, prox_logp)

    def _problem(
        self,
        flat_tokens: FlatTokens,
        samples: Sequence[int],
        evaluate: Callable[[MicroBatch, bool], Tensor],
        **options: Any,
    ) -> OptimizerStep:
        return OptimizerStep(
            module=self.module,
            parameters=self.parameters,
            batch=flat_tokens.batch,
            parts=self.scorer.micro_batches(flat_tokens, samples),
            evaluate=evaluate,
            nothing=self.scorer.nothing,
            token_budget=self.token_budget,
            ranks=self.ranks,
            **options,
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
        optimizer, scaler = self._optimizer, self._scaler
        optimizer.zero_grad(set_to_none=True)
        total = optimization.accumulate(scaler.scale)
        scaler.unscale_(optimizer)
        gradients = [cast(Tensor, p.grad) for p in self.parameters]
        norm = self.ranks.whole(nn.utils.get_total_norm(gradients))
        # the one point of an update at which the host waits for the device
        loss, grad_norm = torch.stack([total, norm.to(total)]).tolist()
        finite = math.isfinite(grad_norm)
        if not finite and scaler.is_enabled():
            # In float16 a large loss scale overflows: the scaler then leaves the step out and
            # halves the scale. A scale of at most 1 cannot be the cause.
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scale > 1:
                meter.skip(loss)
                return
        if not finite:
            optimizer.zero_grad(set_to_none=True)
            raise RunError(
                f"the gradient of update {self.updates + 1} is not finite; lower the learning "
                "rate, or look at the rewards and the log-probs of this step"
            )
        if self.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, self.max_grad_norm, norm)
        self.updates += 1
        # Linear warm-up: the first update already has a learning rate above 0.
        for group in optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, self.updates / max(1, self.warmup_steps))
        self._announce_change()
        scaler.step(optimizer)
        scaler.update()
        meter.update(loss=loss, grad_norm=grad_norm)
