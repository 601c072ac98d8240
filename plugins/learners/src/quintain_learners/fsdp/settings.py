"""The settings of the learner `fsdp`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from quintain import Algorithm
from quintain.errors import UsageError
from quintain.interfaces import BytesPerParameter, LearnerKind, ProcessCluster

from .learner import FsdpLearner, device_of, group_of
from .memory import gathered_bytes
from .setup import (
    CheckpointKind,
    Experts,
    Gather,
    Holder,
    Modes,
    Moments,
    Offload,
    RankDevice,
    Sharding,
)
from .wire import address_of


@dataclass(frozen=True, kw_only=True)
class Fsdp(LearnerKind):
    """Settings of an `FsdpLearner`, the ``args`` of ``[learner]``.

    Attributes:
        ranks: processes that train, on a GPU machine each on a GPU of its own.
        sharding: ``replicated``, every rank has the whole model; ``sharded``, each has a part of
            the weights, gradients and moments; ``hybrid``, groups of ranks have the whole together.
        group: ranks of a group under ``hybrid``; by default the largest proper divisor of *ranks*.
        gather: type in which a rank gathers the weights of a layer. ``auto`` is that in which it
            computes: ``bfloat16`` with ``learner.precision = "bf16"``. What learns, and the sums of
            gradients, are in float32 always.
        optimizer: ``adamw``; ``adamw_8bit``, moments in 8 bits; ``adamw_host``, weights that learn
            and moments in host memory, as those of the learner `lean`.
        offload: ``inputs`` keeps the inputs of layers, which ``learner.checkpoint_activations`` keeps
            for the backward pass, in host memory; ``all`` keeps the parts of weights, gradients and
            moments there, and a layer is on the GPU while it computes. Not under ``replicated``.
        experts: of a mixture: ``gathered``, a rank gathers all experts of a layer; ``split``, each
            computes some, for the tokens of all ranks. Under ``sharded`` only, with a number of ranks
            that divides the experts of a layer.
        weights: ``run``, the run has the weights in host memory, where an engine of its process can
            decode them; ``ranks``, it has none: ranks read their parts in the files of the model,
            and servers get them from the ranks, a bucket at a time. Needs ``checkpoint =
            "sharded"``, and all weights to learn.
        device: of the ranks: ``auto`` is a GPU each where the run sees one, else the CPU. Beside GPUs
            the run itself has its weights in host memory.
        checkpoint: ``whole``, that of any learner; ``sharded``, each rank writes a part while the run
            goes on, and any number of ranks reads it.
        silence: seconds after which a rank that gives no sign of life, or that hangs, is given up.
        restarts: how often ranks that are lost start again without an update in between; 0 ends the
            run with the first.
        copy_every: updates between two copies of the state, from which they start; what came after
            is computed again. Two copies are in temporary files of the run's machine, each of 12
            bytes per trained parameter for each group of ranks that has the whole. By default 10,
            or no copies where they would take more than half of what is free there.
        rendezvous: ``host:port`` of this machine at which the run waits for ranks that something
            else has started, here or elsewhere; by default it starts them here. ``$NAME`` in it is
            an environment variable.
        token_file: file with what such ranks have to know; by default the environment variable
            ``QUINTAIN_RANKS_TOKEN`` has it.
        patience: seconds until such ranks have to be there.

    Raises:
        UsageError: a setting is out of range.
    """

    ranks: int = 2
    sharding: Sharding = "sharded"
    group: int | None = None
    gather: Gather = "auto"
    optimizer: Moments = "adamw"
    offload: Offload = "none"
    experts: Experts = "gathered"
    weights: Holder = "run"
    device: RankDevice = "auto"
    checkpoint: CheckpointKind = "whole"
    silence: float = 20.0
    restarts: int = 3
    copy_every: int | None = None
    rendezvous: str | None = None
    token_file: str | None = None
    patience: float = 600.0

    def __post_init__(self) -> None:
        if self.ranks < 1 or not self.silence > 0:
            raise UsageError(
                f"learner fsdp: ranks is {self.ranks} and silence {self.silence}; expected at "
                "least 1 rank and more than 0 s"
            )
        if self.restarts < 0 or (self.copy_every is not None and self.copy_every < 1):
            raise UsageError(
                f"learner fsdp: restarts is {self.restarts} and copy_every {self.copy_every}; "
                "expected at least 0 and 1"
            )
        if self.weights == "ranks" and self.checkpoint != "sharded":
            raise UsageError(
                'learner fsdp: weights = "ranks" leaves the run without a model to save; set '
                'learner.args.checkpoint = "sharded"'
            )
        if self.rendezvous is not None and "$" not in self.rendezvous:
            address_of(self.rendezvous)
        if self.group is not None and (self.sharding != "hybrid" or self.ranks % self.group):
            raise UsageError(
                f"learner fsdp: group is {self.group} under sharding {self.sharding!r} of "
                f"{self.ranks} ranks; it needs 'hybrid', and to divide the ranks"
            )

    @property
    def modes(self) -> Modes:
        """How ranks keep weights and moments."""
        return Modes(
            gather=self.gather,
            optimizer=self.optimizer,
            offload=self.offload,
            experts=self.experts,
        )

    def __call__(
        self,
        module: Any,
        algorithm: Algorithm | None,
        *,
        max_sample_mismatch: float | None = None,
        exact_sampler: bool = False,
        cluster: ProcessCluster | None = None,
        **settings: Any,
    ) -> FsdpLearner:
        settings["max_sample_mismatch"] = max_sample_mismatch
        settings["exact_sampler"] = exact_sampler
        return FsdpLearner(
            module,
            algorithm,
            ranks=self.ranks,
            sharding=self.sharding,
            group=self.group,
            silence=self.silence,
            restarts=self.restarts,
            copy_every=self.copy_every,
            checkpoint=self.checkpoint,
            modes=self.modes,
            device=self.device,
            rendezvous=self.rendezvous,
            token_file=self.token_file,
            patience=self.patience,
            cluster=cluster,
            **settings,
        )

    def bytes_per_parameter(self, *, adapters: bool) -> BytesPerParameter:
        """Return what the module and the ranks take: on a CPU all ranks, which share its memory, else
        a GPU of a rank, and the host.
        """
        group = group_of(self.ranks, self.sharding, self.group)
        on_gpu = device_of(self.device) == "cuda"
        share = (1 if on_gpu else self.ranks) / group  # of the model, on one device
        on_host = self.ranks / group
        moments = {"adamw": 8.0, "adamw_8bit": 2.0, "adamw_host": 0.0}[self.optimizer]
        host = 12 * on_host if self.optimizer == "adamw_host" else 0
        own, gradients = 4 * share, 4 * share
        if on_gpu and self.offload == "all":
            host += (8 + moments) * on_host
            own = gradients = moments = 0
        return BytesPerParameter(
            weights=4,
            own=own,
            gradients=gradients,
            moments=moments * share,
            host=host,
            processes=1 if on_gpu else self.ranks,
            module="nowhere" if self.weights == "ranks" else "host" if on_gpu else "device",
        )

    def module_device(self, device: str) -> str:
        """Return the host where ranks have GPUs, of which the weights of the run would take one; or
        ``meta``, if it has none.
        """
        if self.weights == "ranks":
            return "meta"
        return "cpu" if device_of(self.device) == "cuda" else device

    def on_gpus(self, ranks: int) -> Fsdp:
        """Return these settings for as many GPUs, for a plan."""
        return replace(self, ranks=ranks, group=None, device="cuda")

    def update_bytes(self, module: Any, *, precision: str) -> int | None:
        """Return what each rank takes for a time: whole layers, and the root."""
        if self.sharding == "replicated":
            return None
        modes = self.modes.resolved(self.sharding, precision)
        size = 2 if modes.gather == "bfloat16" else 4
        return gathered_bytes(
            module,
            gather=size,
            autocast=precision != "float32",
            split=self.ranks if self.experts == "split" else None,
        )
