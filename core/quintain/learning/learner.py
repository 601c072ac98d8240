"""The learner: a model, its optimizer, and the one way in which a batch becomes a weighted sum and the sum becomes a
step.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..errors import PluginError, RunError, UsageError
from ..interfaces.algorithm import Row
from ..interfaces.learner import overlong
from ..interfaces.pieces import POLICIES
from ..models.forward import Forward, Layout
from ..models.head import Statistics
from ..types.rollout import Group
from ..types.transcript import TrainingSequence
from .batch import Batch, Sample, batch_of
from .loss import weighted_sum
from .meter import Meter, advantage_metrics, sampler_metrics, staleness, under
from .microbatch import Columns, MicroBatch, micro_batches
from .optimizer_step import Problem
from .pieces.advantages import Step
from .pieces.objectives import kl_estimate
from .setup import decay_groups, ready
from .terms import Terms
from .weights import ModuleWeights

log = logging.getLogger(__name__)

Precision = Literal["float32", "bf16", "fp16"]
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A batch that was taken up: scored where the row asks, before its first update.

    Attributes:
        step: what the advantage sees.
        columns: the trained tokens.
        policies: statistics [N] of the frozen policies.
        seconds: that this took.
        told: what the advantage tells of itself, once it ran.
    """

    step: Step
    columns: Columns
    policies: dict[str, Tensor]
    seconds: float
    told: dict[str, float] = field(default_factory=dict)


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
        precision: of the layers: ``float32``, or autocast to ``bf16`` or ``fp16`` (with a loss scale that is halved
            where a gradient overflows; that update is left out and counted as ``updates.skipped``).
        float32_head: compute the logits in float32 also under autocast; a row may ask for it too.
        token_budget: tokens of a micro-batch.
        skip_idle: leave out samples whose advantage is 0 where the objective says that their gradient is exactly 0
            then; metrics other than ``idle`` cover the others.
        activation_checkpointing: trade a second forward pass of each layer for memory.
        lora: settings of a `peft.LoraConfig`; only the adapters train then, and ref is the model without them.
        layout: see `quintain.models.forward`.
        reference: ref, where that is not *module* as it is now; kept only where the row uses ref.
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
        if precision != "float32" and precision not in HALF:
            raise UsageError(f"precision is {precision!r}; expected 'float32', 'bf16' or 'fp16'")
        self.row = row
        self.version = 0
        self.updates = 0
        self.lr, self.warmup_steps, self.max_grad_norm = lr, warmup_steps, max_grad_norm
        self.precision, self.token_budget, self.skip_idle = precision, token_budget, skip_idle
        float32_head = float32_head or (row is not None and row.float32_head)
        self._math = HALF.get(precision) if not float32_head else torch.float32 if precision in HALF else None
        self.module = ready(module, lora)
        self.forward = Forward(self.module, layout=layout, checkpointing=activation_checkpointing)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            decay_groups(self.trained, weight_decay), lr=lr, betas=betas, eps=epsilon, fused=True
        )
        self._scaler = torch.amp.GradScaler(self.forward.head_weight.device.type, enabled=precision == "fp16")
        self._piece_state: dict[str, Any] = {}
        self._reference = self._keep_reference(reference)
        self._reference_forward: Forward | None = None
        for note in row.notes() if row else ():
            log.warning("%s: %s", row.name if row else "", note)

    @property
    def device(self) -> torch.device:
        return self.forward.head_weight.device

    def serve(self, services: Mapping[str, Any]) -> None:
        """Give the row's pieces the services that they need, by slot.

        Raises:
            BindingError: a slot is empty.
        """
        self.row = self._method.served(services)

    def batch(self, groups: Sequence[Group[Any, Any]], *, temperature: float, max_tokens: int | None) -> Batch:
        """The samples of *groups*: one per valid rollout and seat."""
        return batch_of(groups, temperature=temperature, max_tokens=max_tokens)

    def prepare(self, batch: Batch) -> Prepared:
        """Take a batch up: score what the row asks for.

        Raises:
            UsageError: the batch holds no token that trains.
        """
        if not batch.tokens:
            raise UsageError("the batch holds no token that trains")
        for piece in self._method.pieces:
            empty = [slot for parameter, slot in piece.needs.items() if parameter not in piece.args]
            if empty:
                slots = ", ".join(empty)
                raise UsageError(f"{piece!r} needs the services {slots}: a run gives them, or `Learner.serve` does")
        began = time.perf_counter()
        columns = Columns(batch=batch)
        policies = self._take_up(columns)
        rewards, penalty = self._rewards(columns, policies)
        step = Step(batch=batch, rewards=rewards, penalty=penalty, sample=columns.sample, statistics=policies)
        return Prepared(step=step, columns=columns, policies=policies, seconds=time.perf_counter() - began)

    async def compute_advantages(self, prepared: Prepared) -> Sequence[float] | Tensor:
        """The advantages of a batch, also where the piece has to be awaited; for `step`."""
        values = self._assessed(prepared.step)
        return self._kept(await values if inspect.isawaitable(values) else values, prepared.told)

    def step(self, batch: Batch | Prepared, *, advantages: Sequence[float] | Tensor | None = None) -> dict[str, float]:
        """Learn from a batch: all epochs and minibatches of the row; publishes one new version.

        Args:
            advantages: values from `compute_advantages`, per sample or per token [N]; computed here where ``None``.

        Returns:
            metrics, see ``docs/health.md``.

        Raises:
            UsageError: the batch holds no token that trains, or its advantages have to be awaited.
            RunError: the gradient is not finite; neither weights nor optimizer were touched by that update.
        """
        row = self._method
        prepared = batch if isinstance(batch, Prepared) else self.prepare(batch)
        began = time.perf_counter() - prepared.seconds
        batch = prepared.step.batch
        if advantages is None:
            if row.advantage.asynchronous:
                raise UsageError(
                    f"{row.advantage!r} has to be awaited: pass what `compute_advantages` gives as `advantages`"
                )
            advantages = self._kept(self._assessed(prepared.step), prepared.told)
        advantage_N = self._spread(prepared.columns, advantages)
        if row.reset_optimizer:
            self._optimizer.state.clear()
        meter = Meter()
        for epoch in range(row.epochs):
            for part in self._minibatches(batch, epoch):
                self._learn_from(prepared, part, advantage_N, meter)
        columns, policies = prepared.columns, prepared.policies
        told = {"samples": float(len(batch.samples)), "tokens": float(batch.tokens)}
        told |= {under("advantage", name): value for name, value in prepared.told.items()}
        told |= advantage_metrics(advantage_N, columns.sample, len(batch.samples))
        told |= sampler_metrics(policies["prox_logp"], policies["mu_logp"], columns.sample)
        told |= staleness(batch, self.version)
        self.version += 1
        return meter.summary(lr=self._optimizer.param_groups[0]["lr"], seconds=time.perf_counter() - began) | told

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

        def evaluate(micro: MicroBatch, observe: bool) -> Tensor:
            with self._autocast():
                found = self.forward.statistics(micro.bundles, math=self._math)
            if observe:
                meter.add(entropy=found.entropy)
            return -found.logp.sum() / batch.tokens

        parts = micro_batches(Columns(batch=batch), range(len(samples)), **self._cut)
        self._optimize(Problem(learner=self, batch=batch, parts=parts, evaluate=evaluate), meter)
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
        if self._scaler.is_enabled():
            state["scaler"] = self._scaler.state_dict()
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
        if self._scaler.is_enabled() and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])

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
        adapted = hasattr(self.module, "disable_adapter")  # ref is the module without its adapters
        if self.row is None or not self.row.uses_reference or (given is None and adapted):
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
        """Statistics [N] of the frozen policies, where the row asks, before the first update.

        Tokens of the first minibatch learn prox from the first pass itself (their ratio is 1 exactly), so one update
        per batch needs no pass for it.
        """
        row, samples = self._method, range(len(columns.batch.samples))
        _, *later = self._minibatches(columns.batch, 0)
        held: dict[str, Tensor] = {"mu_logp": columns.mu_logp.to(self.device, self._wide)}
        held["prox_logp"] = torch.full_like(held["mu_logp"], float("nan"))
        reads = row.advantage.reads - {"ref"}
        everything = reads or "top" in row.objective.reads or (row.uses_reference and row.prune) or row.kl.in_reward
        needed = list(samples) if everything else sorted(i for part in later for i in part)
        if needed:
            scores = self._score(columns, needed, "theta")
            held["prox_logp"] = scores["logp"]
            held |= {name: scores[name] for name in reads - {"ratio", "top"}}
            if "top_ids" in scores:
                held |= {f"prox_{name}": scores[name] for name in ("top_ids", "top_logp")}
                # By id: the sampled token's log-prob comes from another pass, which rounds otherwise.
                held["prox_top_has"] = (scores["top_ids"] == columns.ids.to(self.device).unsqueeze(1)).any(1)
            held |= {name: scores[name] for name in ("safe",) if name in scores}
        if row.uses_reference:
            held["ref_logp"] = self._score(columns, samples, "ref", held.get("safe"))["logp"]
        return held

    @property
    def _wide(self) -> torch.dtype:
        return torch.float64 if self.forward.head_weight.dtype == torch.float64 else torch.float32

    @torch.no_grad()
    def _score(
        self, columns: Columns, indices: Sequence[int], policy: Literal["theta", "ref"], safe: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Statistics [N] of the tokens of some samples, NaN at the others."""
        held: dict[str, Tensor] = {}
        top = self._top if policy == "theta" else 0
        with self._as(policy) as forward:
            for micro in micro_batches(columns, indices, **self._cut):
                places = micro.places.to(self.device)
                with self._autocast():
                    found = forward.statistics(
                        micro.bundles,
                        temperature=columns.batch.temperature,
                        math=self._math,
                        top=top,
                        prune=self.row.prune if self.row else 0.0,
                        safe=None if safe is None else safe[places],
                    )
                for name in ("logp", "entropy", "square", "mean_logp", "top_ids", "top_logp", "safe"):
                    value = getattr(found, name)
                    if value is None:
                        continue
                    if name not in held:
                        kind = self._wide if value.is_floating_point() else value.dtype
                        fill = float("nan") if value.is_floating_point() else 0
                        shape = (columns.starts[-1], *value.shape[1:])
                        held[name] = torch.full(shape, fill, dtype=kind, device=self.device)
                    held[name][places] = value.to(held[name].dtype)
        return held

    @property
    def _top(self) -> int:
        """How many of the likeliest tokens the objective compares."""
        objective = self.row.objective if self.row else None
        return int(objective.argument("top")) if objective is not None and "top" in objective.reads else 0

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
            raise UsageError("no reference model is kept: the row does not use one")

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        half = HALF.get(self.precision)
        return torch.autocast(self.device.type, dtype=half or torch.bfloat16, enabled=half is not None)

    def _assessed(self, step: Step) -> Any:
        piece = self._method.advantage
        return piece(step, state=self._piece_state.get("advantage")) if piece.stateful else piece(step)

    def _kept(self, values: Any, told: dict[str, float]) -> Any:
        """The values, after the state and the metrics that came with them were put away."""
        if self._method.advantage.stateful:
            values, self._piece_state["advantage"] = values
        if isinstance(values, tuple) and len(values) == 2 and isinstance(values[1], Mapping):
            values, metrics = values
            told |= {name: float(value) for name, value in metrics.items()}
        return values

    def _spread(self, columns: Columns, values: Sequence[float] | Tensor) -> Tensor:
        """Advantages as [N]."""
        value = torch.as_tensor(values, dtype=self._wide)
        samples, tokens = len(columns.batch.samples), columns.starts[-1]
        if value.shape == (samples,) and not (isinstance(values, Tensor) and samples == tokens):
            value = value.index_select(0, columns.sample)
        elif value.shape != (tokens,) or not isinstance(values, Tensor):
            raise UsageError(
                f"{self._method.advantage!r} gave values of shape {list(value.shape)}; expected one per sample "
                f"({samples}), or a tensor of one per token that trains ({tokens})"
            )
        if not bool(value.isfinite().all()):
            raise RunError(f"{self._method.advantage!r} gave an advantage that is not finite")
        return value.to(self.device)

    def _rewards(self, columns: Columns, policies: Mapping[str, Tensor]) -> tuple[tuple[float, ...], Tensor | None]:
        """Total rewards, less coefficient times the KL estimate summed over the sample's tokens where that is in the
        reward; and that product per token. Less the punishment of overlong samples, where the row has one.
        """
        share = self._method.overlong
        longest = columns.batch.max_tokens
        totals = [s.total + overlong(s.longest_turn, longest, share) for s in columns.batch.samples]
        kl = self._method.kl
        if not kl.in_reward:
            return tuple(totals), None
        value_N = kl_estimate(policies["prox_logp"] - policies["ref_logp"], kl.estimator).double().cpu()
        penalty_N = kl.coefficient * value_N
        sums = torch.zeros(len(totals), dtype=torch.float64).index_add(0, columns.sample, penalty_N).tolist()
        return tuple(total - value for total, value in zip(totals, sums, strict=True)), penalty_N

    def _learn_from(self, prepared: Prepared, part: Sequence[int], advantage_N: Tensor, meter: Meter) -> None:
        """One optimizer step on some samples. Weights are fixed here, before any micro-batch is formed."""
        row, columns, policies = self._method, prepared.columns, prepared.policies
        batch = columns.batch
        if row.mask_truncated:
            part = [i for i in part if not batch.samples[i].truncated]
        weight_S = torch.zeros(len(batch.samples), dtype=torch.float64)
        if part:
            weight_S[list(part)] = torch.tensor(row.aggregation(batch.only(part)), dtype=torch.float64)
        weight_N = weight_S.index_select(0, columns.sample).to(self.device, self._wide)
        active = self._active(columns, part, advantage_N)
        if not active:  # nothing to learn: an update would only let momentum carry the weights on
            for parameter in self.trained:
                parameter.grad = torch.zeros_like(parameter)
            meter.skip()
            return
        first = not meter.updates  # theta is prox until the first update

        def evaluate(micro: MicroBatch, observe: bool) -> Tensor:
            places = micro.places.to(self.device)
            with self._autocast():
                found = self._statistics(micro, places, policies, batch.temperature, first and observe)
            if observe:
                held = policies["prox_logp"][places]
                fresh = torch.ones_like(held, dtype=torch.bool) if first else held.isnan()
                policies["prox_logp"][places] = torch.where(fresh, found.logp.detach(), held)
            terms = self._terms(micro, found, policies, advantage_N)
            weighed = weighted_sum(row, terms, weight_N[places])
            if observe:
                corrected = row.correction.name != "none"
                meter.observe(terms, weighed.diagnostics, weighed.correction if corrected else None)
            return weighed.loss

        problem = Problem(
            learner=self, batch=batch, parts=micro_batches(columns, active, **self._cut), evaluate=evaluate
        )
        self._update(problem, meter)

    def _statistics(
        self, micro: MicroBatch, places: Tensor, policies: dict[str, Tensor], temperature: float, first: bool
    ) -> Statistics:
        """Statistics under theta of a micro-batch; the *first* pass freezes the safe vocabulary."""
        row = self._method
        safe = policies.get("safe") if row.prune else None
        found = self.forward.statistics(
            micro.bundles,
            temperature=temperature,
            math=self._math,
            asked=policies["prox_top_ids"][places] if "top" in row.objective.reads else None,
            prune=row.prune,
            safe=None if safe is None or first else safe[places],
        )
        if row.prune and first and found.safe is not None:
            if safe is None:
                size = (len(policies["prox_logp"]), found.safe.shape[1])
                safe = policies["safe"] = torch.zeros(size, dtype=found.safe.dtype, device=self.device)
            safe[places] = found.safe
        return found

    def _active(self, columns: Columns, part: Sequence[int], advantage_N: Tensor) -> list[int]:
        """Samples whose gradient is not known to be exactly 0. Weights were fixed over all of them."""
        row = self._method
        if not (self.skip_idle and row.objective.idle) or row.kl.in_loss:
            return list(part)
        moves = torch.zeros(len(columns.batch.samples), dtype=torch.bool)
        moves[columns.sample[(advantage_N != 0).cpu()]] = True
        if row.objective.level == "group":  # one term reads every member
            for members in columns.batch.groups:
                moves[list(members)] = moves[list(members)].any()
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
            statistics=self._further(found, policies, places),
        )

    def _further(self, found: Statistics, policies: Mapping[str, Tensor], places: Tensor) -> dict[str, Tensor]:
        """What the objective and the correction read besides log-probs."""
        reads = self._method.objective.reads | self._method.correction.reads
        named = {name: getattr(found, name) for name in reads - POLICIES}
        if "top" in reads:
            named |= {"top_logp": cast(Tensor, found.asked_logp)}
            named |= {name: policies[name][places] for name in ("prox_top_logp", "prox_top_has")}
        return named

    def _update(self, problem: Problem, meter: Meter) -> None:
        """Change the parameters once: by the row's own update, else by the optimizer."""
        if self.row is not None and self.row.update is not None:
            told = dict(self.row.update(problem) or {})
            self.updates += 1
            missing = {"loss", "grad_norm"} - set(told)
            if missing:
                raise PluginError(
                    f"{self.row.update!r} must return the metrics loss and grad_norm; it gave {sorted(told)}"
                )
            meter.update(loss=told.pop("loss"), grad_norm=told.pop("grad_norm"), **told)
        else:
            self._optimize(problem, meter)

    def _optimize(self, problem: Problem, meter: Meter) -> None:
        """Accumulate the gradient over micro-batches, clip it, take one step of AdamW."""
        self._optimizer.zero_grad(set_to_none=True)
        loss = problem.backward(self._scaler.scale)
        self._scaler.unscale_(self._optimizer)
        norm = self._norm()
        if not norm.isfinite() and self._scaler.is_enabled():  # too large a loss scale: it is halved
            hopeless = self._scaler.get_scale() <= 1  # then it is not the scale
            self._scaler.step(self._optimizer)
            self._scaler.update()
            if not hopeless:
                meter.skip(loss)
                return
        self._clip(norm)
        self.updates += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, self.updates / max(1, self.warmup_steps))
        self._scaler.step(self._optimizer)
        self._scaler.update()
        meter.update(loss=loss, grad_norm=float(norm))

    def _norm(self) -> Tensor:
        return nn.utils.get_total_norm([cast(Tensor, p.grad) for p in self.trained])

    def _clip(self, norm: Tensor) -> None:
        """Scale the gradient, of *norm*, down to the largest that is allowed.

        Raises:
            RunError: it is not finite.
        """
        if not bool(norm.isfinite()):
            self._optimizer.zero_grad(set_to_none=True)
            raise RunError(
                f"the gradient of update {self.updates + 1} is not finite; lower the learning rate, or look at the "
                "rewards and the log-probs of this step"
            )
        if self.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self.trained, self.max_grad_norm, norm)
