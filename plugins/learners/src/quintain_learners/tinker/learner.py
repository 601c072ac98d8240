"""The learner `tinker` and its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quintain import Algorithm
from quintain.errors import RunError, UsageError
from quintain.interfaces import BytesPerParameter, LearnerKind
from quintain.learning import Advantages, Batch, Learner, Prepared, TrainingSequence
from quintain.models import Forward, TokenSequence

from .remote import RemoteAdapter, logps_with_gradient, sdk

log = logging.getLogger(__name__)

STATE = "learner.pt"
"""The file of a checkpoint with which a run resumes. The best one is kept without it."""
SAME_MODEL = 0.1
"""Nats by which log-probs of one text may differ between the server's base and the run's."""


@dataclass(frozen=True, kw_only=True)
class Tinker(LearnerKind):
    """Settings of a `TinkerLearner`, the ``args`` of ``[learner]``. The key of the server is in
    ``TINKER_API_KEY``.

    Attributes:
        base_url: of the server; by default ``TINKER_BASE_URL``.
        base_model: the model as the server names it; by default its only one.
        seed: of the adapter's initial values; by default the server draws one.

    Raises:
        UsageError: the SDK is not installed.
    """

    base_url: str | None = None
    base_model: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        sdk()

    def __call__(
        self,
        module: Any,
        algorithm: Algorithm | None,
        *,
        max_sample_mismatch: float | None = None,
        **settings: Any,
    ) -> TinkerLearner:
        settings["max_sample_mismatch"] = max_sample_mismatch
        where: dict[str, Any] = {
            "base_url": self.base_url,
            "base_model": self.base_model,
            "seed": self.seed,
        }
        return TinkerLearner(module, algorithm, **where, **settings)

    def bytes_per_parameter(self, *, adapters: bool) -> BytesPerParameter:
        return BytesPerParameter(gradients=4, moments=0)


class TinkerLearner(Learner):
    """A `Learner` whose log-probs, gradients and moments are on a server of Tinker's API.

    Objective, correction and aggregation are computed here, on the log-probs that the server gives.
    The gradient of the loss by these goes back as weights of ``cross_entropy``: by the chain rule
    its gradient in the adapter is that of the loss. `module` has a copy of the adapter, which
    follows each step; engines and checkpoints read it.

    Args:
        module: with adapters of the server's rank, factor and maps.
        base_url, base_model, seed: see `Tinker`.
        settings: of `Learner`.

    Raises:
        UsageError: the module, the algorithm or the server is refused.
    """

    saves_parts = True
    """A checkpoint tells its folder, which is how states of deleted ones are found."""
    digests: Mapping[str, str] = {}

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm | None = None,
        *,
        base_url: str | None = None,
        base_model: str | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        if algorithm is not None:
            _check(algorithm)
        if settings.get("precision", "float32") != "float32":
            raise UsageError(
                "learner tinker: the server chooses the precision; leave out learner.precision"
            )
        self._steps: RemoteAdamW | None = None
        self._saved: dict[str, str] = {}
        """By folder of a checkpoint, where the server keeps its state."""
        super().__init__(module, algorithm, **settings)
        names = _names(self.module)
        rank = self._config().r
        self.remote = RemoteAdapter(
            base_url=base_url,
            base_model=base_model,
            rank=rank,
            seed=seed,
            parts={
                "train_attn": any("attn" in name for name in names),
                "train_mlp": any("mlp" in name for name in names),
            },
        )
        try:
            self._check_adapter()
            self._check_base()
        except BaseException:
            self.close()
            raise
        assert self._steps is not None
        self._steps.remote, self._steps.limit = self.remote, self.max_grad_norm
        forward: Any = RemoteForward(self.forward, self.remote, self.parameters[0])
        self.scorer.forward = forward

    def adamw(self, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
        """Make the optimizer, whose steps the server takes."""
        self._steps = RemoteAdamW(groups, settings)
        return self._steps

    def prepare(self, batch: Batch) -> Prepared:
        if batch.temperature != 1.0:
            raise UsageError(
                f"learner tinker: the server gives log-probs at temperature 1, and the batch was "
                f"sampled at {batch.temperature}; set rollouts.temperature = 1.0"
            )
        return super().prepare(batch)

    def step(
        self,
        batch: Batch | Prepared,
        *,
        advantages: Advantages | Sequence[float] | Tensor | None = None,
    ) -> dict[str, float]:
        return self._followed(lambda: super(TinkerLearner, self).step(batch, advantages=advantages))

    def supervised_step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        return self._followed(lambda: super(TinkerLearner, self).supervised_step(sequences))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; the server has what it saved."""
        super().load_state_dict(state)
        self._saved = dict(state.get("saved", {}))
        self._pull()

    def part_bytes(self) -> int:
        """Return 0: the moments are on the server."""
        return 0

    def begin_save(self, folder: Path) -> dict[str, Any]:
        """Let the server keep adapter and moments, and delete there what it kept for checkpoints
        that were deleted here; see `quintain.interfaces.PartSaver`.
        """
        place = folder.absolute().parent
        # A run may have been moved or copied: the states of another folder are not this one's.
        self._saved = {
            name: kept for name, kept in self._saved.items() if Path(name).parent == place
        }
        self._forget_deleted()
        state = self.state_dict(weights=False)
        step = folder.name.removeprefix(".").partition(".")[0]
        self._saved[str(place / step)] = state["optimizer"]["path"]
        return {**state, "saved": dict(self._saved)}

    def end_save(self, *, wait: bool) -> Literal["complete"]:
        """Return that the server has it all: it is asked while a save begins."""
        return "complete"

    def load_parts(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Refuse: no checkpoint of this learner has parts.

        Raises:
            ValueError: always.
        """
        raise ValueError("it was written by another learner")

    def close(self) -> None:
        """End the session on the server; what it saved for the checkpoints that are left stays."""
        try:
            self._forget_deleted()
        finally:
            self.remote.close()

    def _forget_deleted(self) -> None:
        """Delete the states on the server whose checkpoints are deleted, or kept without the state
        to resume them.
        """
        for name, kept in [*self._saved.items()]:
            if (Path(name) / STATE).exists():
                continue
            try:
                self.remote.forget(kept)
            except RunError as e:  # a run does not end for a file too many
                log.warning("%s; it counts for the server's limit of disk", e)
                continue
            del self._saved[name]

    def _followed(self, update: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Return the metrics of *update*, and let the copy here follow. The server does not tell the
        entropy.
        """
        assert self._steps is not None
        self._steps.norms.clear()
        metrics = update()
        metrics.pop("entropy", None)
        if self._steps.norms:
            metrics["grad_norm"] = max(self._steps.norms)
            self._pull()
        return metrics

    @torch.no_grad()
    def _pull(self) -> None:
        """Copy the server's adapter into that of the module."""
        tensors, _ = self.remote.export()
        torch.autograd.graph.increment_version(self.parameters)
        for name, parameter in _names(self.module).items():
            parameter.copy_(tensors[name])

    def _config(self) -> Any:
        module: Any = self.module
        return next(iter(module.peft_config.values()))

    def _check_adapter(self) -> None:
        """Check that the module's adapters are those of the server, and take over their values.

        Raises:
            UsageError: they have other maps, another rank or another factor.
        """
        tensors, theirs = self.remote.export()
        ours = self._config()
        names = _names(self.module)
        if unlike := sorted(names.keys() ^ tensors.keys()):
            maps = sorted({name.split(".")[-3] for name in tensors})
            raise UsageError(
                f"learner tinker: run and server adapt other maps, such as {unlike[0]}; set "
                f"model.lora.target_modules = {json_list(maps)}"
            )
        if ours.lora_alpha / ours.r != theirs["lora_alpha"] / theirs["r"]:
            raise UsageError(
                f"learner tinker: model.lora.lora_alpha is {ours.lora_alpha} with r = {ours.r}, and "
                f"the server's {theirs['lora_alpha']} with r = {theirs['r']}; set "
                f"model.lora.lora_alpha = {theirs['lora_alpha'] * ours.r / theirs['r']:g}"
            )
        self._pull()

    @torch.no_grad()
    def _check_base(self) -> None:
        """Check that the server's model is that of the run.

        Raises:
            UsageError: log-probs of a text differ.
        """
        words = self.forward.head_weight.shape[0]
        row = TokenSequence([(7 * place + 1) % words for place in range(24)], range(1, 24))
        local_N = self.forward.statistics([[row]]).logp
        remote_N = torch.tensor(self.remote.logps([row]))
        difference = float((local_N.cpu() - remote_N).abs().mean())
        if not difference <= SAME_MODEL:
            raise UsageError(
                f"learner tinker: log-probs of {self.remote.base_model!r} on the server differ from "
                f"those of the run's model by {difference:.2g} nats; let model.name and "
                "learner.args.base_model be the same model"
            )


class RemoteAdamW(torch.optim.Optimizer):
    """Lets the server take the steps of AdamW.

    Attributes:
        remote: whose steps these are.
        limit: norm to which a gradient is scaled down; 0 leaves it.
        norms: of the gradients before, by step.
    """

    remote: RemoteAdapter
    limit: float

    def __init__(self, groups: list[dict[str, Any]], settings: dict[str, Any]) -> None:
        self.norms: list[float] = []
        super().__init__(groups, settings)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        norm = self.remote.step(
            learning_rate=group["lr"],
            beta1=beta1,
            beta2=beta2,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            grad_clip_norm=self.limit,
        )
        self.norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """Let the server keep adapter and moments, and return where."""
        return {"path": self.remote.save()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what `state_dict` told."""
        self.remote.load(state_dict["path"])


@dataclass(frozen=True, kw_only=True)
class KnownStatistics:
    """What the server tells of the distribution of each token: the log-prob of the target, [N].
    All else is NaN, or ``None`` where `quintain.models.statistics` leaves it out.
    """

    logp: Tensor
    entropy: Tensor
    square: Tensor
    mean_logp: Tensor
    asked_logp: None = None
    rest_logp: None = None
    top_ids: None = None
    top_logp: None = None
    safe: None = None


class RemoteForward:
    """Stands where a learner has its `Forward`, and asks the server.

    Args:
        local: the forward pass of the copy, for what is no number.
        remote: the server's adapter.
        anchor: a parameter that gradients go through.
    """

    def __init__(self, local: Forward, remote: RemoteAdapter, anchor: Tensor) -> None:
        self.head_weight, self.device, self.cost = local.head_weight, local.device, local.cost
        self.module = self  # for `disable_adapter`
        self._remote, self._anchor = remote, anchor
        self._of_base = False

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Score by the base model within the context."""
        self._of_base = True
        try:
            yield
        finally:
            self._of_base = False

    def statistics(
        self, prefix_groups: Sequence[Sequence[TokenSequence]], **options: Any
    ) -> KnownStatistics:
        """Return the log-probs of all positions.

        Raises:
            UsageError: further tokens are to be scored.
        """
        if options.get("asked_NK") is not None:
            raise UsageError("learner tinker: the server scores no tokens but those of the batch")
        rows = [*chain.from_iterable(prefix_groups)]
        if self._of_base:
            scored = self._remote.base_logps(rows)
            logp_N = torch.tensor(scored, dtype=self._anchor.dtype, device=self.device)
        else:
            logp_N = logps_with_gradient(self._anchor, self._remote, rows)
        unknown = torch.full_like(logp_N, float("nan"), requires_grad=False)
        return KnownStatistics(logp=logp_N, entropy=unknown, square=unknown, mean_logp=unknown)


def _names(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the adapters' parameters under the names of peft's files.

    Raises:
        UsageError: something else trains, too.
    """
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not hasattr(module, "peft_config") or not all(".lora_" in name for name in trained):
        raise UsageError(
            "learner tinker trains adapters alone; set model.lora = { r = 32, lora_alpha = 32 }"
        )
    return {name.replace(".default.", "."): parameter for name, parameter in trained.items()}


def _check(algorithm: Algorithm) -> None:
    """Refuse what needs more of the model than log-probs.

    Raises:
        UsageError: a piece of *algorithm* does.
    """
    why = {
        f"reads {', '.join(sorted(algorithm.reads))} of the distribution": algorithm.reads,
        "prunes the vocabulary": algorithm.prune,
        "takes its own optimizer step": algorithm.optimizer_step is not None,
        "resets the optimizer": algorithm.reset_optimizer,
    }
    for reason, found in why.items():
        if found:
            raise UsageError(
                f"learner tinker: algorithm {algorithm.name!r} {reason}, and the server's API has "
                "log-probs and AdamW; take another algorithm, or the default learner"
            )


def json_list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"
