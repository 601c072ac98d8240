"""The learner `fsdp`: the part of it in the run's own process."""

from __future__ import annotations

import asyncio
import copy
import errno
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from quintain import Algorithm
from quintain.errors import RunError, UsageError
from quintain.interfaces import ProcessCluster
from quintain.learning import (
    Advantages,
    Batch,
    FrozenPolicies,
    Learner,
    Prepared,
    Ranks,
    Step,
    TrainingSequence,
)
from quintain.store import current_run

from .experts import check_split
from .held import RankWeights, computed_by
from .model_files import is_full, model_files, model_names_differ
from .placed_team import PlacedTeam
from .recovery import Recovery
from .remote_team import RemoteTeam
from .setup import (
    USUAL,
    CheckpointKind,
    Modes,
    Place,
    RankDevice,
    Setup,
    Sharding,
    mapped,
    packed,
    shared,
)
from .sources import sources_named
from .spares import updates_between
from .team import Team
from .wire import token_of

log = logging.getLogger(__name__)

SHARED_MEMORY = "/dev/shm"
FOR_ALL = "or leave out learner.args.checkpoint, so that the run writes all of it"


class OnHost(Ranks):
    """The process of the run, whose module has no weights and hence no device."""

    device = torch.device("cpu")


class FsdpLearner(Learner):
    """A `Learner` whose updates are made by several processes, the ranks.

    Its `module` has the weights of now, whole and in the memory of the machine: each rank reads its
    part from there at the start, and writes it back after every step. So no rank has more than its
    part, and whatever reads the module (an engine, a checkpoint, a critic) finds it as that of any
    learner. It holds neither gradients nor moments.

    Args:
        ranks, sharding, group, device, silence, restarts, copy_every, checkpoint, rendezvous,
            token_file, patience: see `Fsdp`.
        cluster: what starts the ranks, in place of this process.
        modes: the settings of `Fsdp` that say how ranks keep weights and moments.
        share_gpu: let ranks share the GPUs that there are, by gloo; to try things out.
        team: processes that run already, for several learners one after the other.
        settings: of `Learner`.

    Raises:
        UsageError: a setting or the algorithm is refused.
        RanksLost: ranks do not start.
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm | None = None,
        *,
        ranks: int = 2,
        sharding: Sharding = "sharded",
        group: int | None = None,
        silence: float = 20.0,
        restarts: int = 3,
        copy_every: int | None = None,
        checkpoint: CheckpointKind = "whole",
        modes: Modes = USUAL,
        device: RankDevice = "auto",
        rendezvous: str | None = None,
        token_file: str | None = None,
        patience: float = 600.0,
        cluster: ProcessCluster | None = None,
        share_gpu: bool = False,
        team: Team | None = None,
        **settings: Any,
    ) -> None:
        if algorithm is not None:
            _check(algorithm, sharding)
        if any("adaptive" in table for table in settings.get("schedules", {}).values()):
            raise UsageError(
                "learner fsdp: an adaptive schedule has a state that ranks do not save; use ramp or "
                "cosine"
            )
        precision = settings.get("precision", "float32")
        modes = modes.resolved(sharding, precision)
        _check_modes(modes, sharding, precision)
        if modes.experts == "split":
            check_split(module, ranks)
        if modes.offload == "inputs" and not settings.get("activation_checkpointing"):
            raise UsageError(
                'learner fsdp: offload = "inputs" keeps the inputs of layers in host memory, and '
                "nothing else is to be kept; set learner.checkpoint_activations = true"
            )
        if settings.get("precision") == "fp16":
            raise UsageError(
                "learner fsdp: fp16 needs a loss scale on which the ranks agree, which is not "
                'there; use precision = "bf16"'
            )
        # Without an algorithm, so that no copy is made for ref. Checkpointing is that of the ranks;
        # a critic asks for it. So are the schedules of settings.
        own_settings = settings | {"activation_checkpointing": False, "schedules": {}}
        self._hollow = next(module.parameters()).is_meta
        if self._hollow:
            _check_hollow(module, algorithm, checkpoint)
            own_settings["ranks"] = OnHost()
        super().__init__(module, None, **own_settings)
        self.forward.checkpointing = settings.get("activation_checkpointing", False)
        self.algorithm = algorithm
        place = device_of(device)
        if cluster is not None and rendezvous is not None:
            raise UsageError(
                "learner fsdp: [cluster] starts the ranks, and learner.args.rendezvous waits for "
                "ranks that something else starts; remove one of them"
            )
        self._elsewhere = rendezvous is not None or cluster is not None
        self._takes_turns = bool(getattr(cluster, "turns", False))
        """With servers that sleep while the ranks compute, and then need their memory."""
        own = not self._elsewhere and not share_gpu
        if place == "cuda" and own and ranks > torch.cuda.device_count():
            raise UsageError(
                f"learner fsdp: {ranks} ranks need a GPU each, and torch sees "
                f"{torch.cuda.device_count()}; lower learner.args.ranks"
            )
        self._image, self._ranks = _in_host_memory(self.module), ranks
        sources = None
        if self._hollow:
            like: Any = self.module
            sources = sources_named(dict(like.named_parameters()), like.config.name_or_path)
        of_ranks = {k: v for k, v in settings.items() if k not in ("lora", "widen", "reference")}
        setup = Setup(
            module=self._image,
            algorithm=None if algorithm is None else packed(algorithm),
            settings=of_ranks,
            ranks=ranks,
            sharding=sharding,
            group=group_of(ranks, sharding, group),
            threads=max(1, torch.get_num_threads() // ranks),
            rendezvous="",
            device=place,
            modes=modes,
            saves_parts=checkpoint == "sharded",
            sources=sources,
        )
        if restarts:
            copy_every = updates_between(copy_every, self._copy_bytes(setup))
        self.saves_parts = setup.saves_parts
        self.digests: dict[str, str] = {}
        if team is None and cluster is not None:
            team = PlacedTeam(
                ranks, cluster, gpu=place == "cuda", silence=silence, patience=patience
            )
        if team is None and rendezvous is not None:
            token = token_of(token_file)
            team = RemoteTeam(
                ranks, os.path.expandvars(rendezvous), token, silence=silence, patience=patience
            )
        self.team = Recovery(
            team or Team(ranks, silence=silence, gpu=place == "cuda"),
            setup,
            restarts=restarts,
            every=copy_every,
        )
        if self._hollow:
            self.module.forward = computed_by(self.team.call)
        if algorithm is not None:
            for note in algorithm.notes():
                log.warning("%s: %s", algorithm.name, note)
        self._last: Prepared | None = None
        self._saving: tuple[int, tuple[Any, ...]] = (-1, ())
        """Version and arguments of the last save that was begun."""
        if self.saves_parts and (run := current_run()) is not None:
            try:
                self._check_folder(run, FOR_ALL)
            except UsageError:
                self.close()
                raise

    def prepare(self, batch: Batch) -> Prepared:
        if not batch.tokens:
            raise UsageError("the batch holds no token that trains")
        began = time.perf_counter()
        self._announce()
        rewards, penalty, statistics = self.team.call("prepare", batch)
        step = Step(batch=batch, rewards=rewards, penalty=penalty, statistics=statistics)
        self._last = Prepared(
            step=step,
            policies=FrozenPolicies(
                mu_logp=statistics["mu_logp"],
                prox_logp=statistics["prox_logp"],
                ref_logp=statistics.get("ref_logp"),
            ),
            seconds=time.perf_counter() - began,
        )
        return self._last

    def step(
        self,
        batch: Batch | Prepared,
        *,
        advantages: Advantages | Sequence[float] | Tensor | None = None,
    ) -> dict[str, float]:
        prepared = batch if isinstance(batch, Prepared) else self.prepare(batch)
        if prepared is not self._last:
            raise UsageError("learner fsdp trains on the batch that was prepared last")
        self._last = None
        self._count_change()
        began = time.perf_counter() - prepared.seconds
        if advantages is None:
            advantages = asyncio.run(self.compute_advantages(prepared))
        if not isinstance(advantages, Advantages):
            advantages = Advantages(values=advantages)
        metrics = self._updated(self.team.call("step", advantages))
        return metrics | {"seconds": time.perf_counter() - began}

    def supervised_step(self, sequences: Sequence[TrainingSequence]) -> dict[str, float]:
        self._count_change()
        self._announce()
        return self._updated(self.team.call("supervised_step", tuple(sequences)))

    def adamw(self, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
        """Make an optimizer that only keeps settings: the ranks have the one that learns."""
        return torch.optim.AdamW(groups, **settings)

    def weights(self) -> Any:
        """Return the live weights, see `Learner.weights`; those that the ranks alone have arrive when
        they are asked for.
        """
        if self._hollow:
            return RankWeights(self.module, self.version, self.team.call)
        return super().weights()

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """Return all that a bitwise resume needs, whole: another number of ranks, or another
        learner, can load it.
        """
        described = self.team.call("describe")
        places: list[Place] = []
        mapped(described, lambda value: places.append(value) if isinstance(value, Place) else None)
        wholes = [place.empty() for place in places]
        self.team.call("fill", wholes)
        filled: dict[str, Any] = mapped(
            described, lambda value: wholes[value.index] if isinstance(value, Place) else value
        )
        if not filled["reference"]:
            del filled["reference"]
        return super().state_dict(weights=weights) | filled

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._load_own(state)
        names = ("version", "updates", "optimizer", "reference")
        sent = {name: mapped(state[name], _shared) for name in names if name in state}
        self.team.call("load", sent)

    def part_bytes(self) -> int:
        """Return the bytes of moments and reference model."""
        trained = sum(p.numel() * p.element_size() for p in self.parameters)
        whole = sum(p.numel() * p.element_size() for p in self.module.parameters())
        reference = self.algorithm is not None and self.algorithm.uses_reference
        return 2 * trained + (
            whole if reference and not hasattr(self.module, "disable_adapter") else 0
        )

    def _copy_bytes(self, setup: Setup) -> int:
        """Return the bytes of the weights that learn, their moments and the reference model in all
        ranks.
        """
        trained = sum(p.numel() * p.element_size() for p in self.parameters)
        # of 8 bytes of float32 moments 2 are left, and the scales of blocks
        saved = 1.47 * trained if setup.modes.optimizer == "adamw_8bit" else 0
        return int(trained + self.part_bytes() - saved) * (setup.ranks // setup.group)

    def begin_save(self, folder: Path) -> dict[str, Any]:
        """Let the ranks write into *folder*, see `quintain.interfaces.PartSaver`.

        Raises:
            UsageError: a rank does not see the folder.
            RunError: the ranks alone have the weights, and one is not finite.
        """
        folder = folder.absolute()
        self._check_folder(folder, FOR_ALL)
        if self._hollow and (bad := self.team.call("not_finite")):
            raise RunError(
                f"the weights of version {self.version} are not finite ({bad}), so no checkpoint is "
                "saved; lower learner.lr or learner.max_grad_norm and continue from the checkpoint "
                "before, or start again"
            )
        files = model_files(self._image, folder / "model", self._ranks)
        self._saving = self.version, (str(folder), files)
        rest = self.team.call("begin_save", *self._saving[1])
        # Files with other names, as those of a mixture, are not what is read back.
        whole = not files and not hasattr(self.module, "disable_adapter")
        state = super().state_dict(weights=whole)
        del state["optimizer"]  # the driver's own, which is empty
        return {**state, "optimizer": rest}

    def end_save(self, *, wait: bool) -> Literal["writing", "complete", "lost"]:
        """Return what became of the files, see `quintain.interfaces.PartSaver`."""
        found: list[tuple[str, dict[str, str]]] = self.team.call("end_save", wait)
        became = [word for word, _ in found]
        self.digests = {path: digest for _, files in found for path, digest in files.items()}
        if "writing" in became:
            return "writing"
        if faults := sorted({fault for fault in became if fault not in ("complete", "lost")}):
            raise OSError(errno.ENOSPC if is_full(faults[0]) else errno.EIO, faults[0])
        version, files = self._saving
        if "lost" in became and version == self.version:
            self.team.call("begin_save", *files)  # by ranks that have the same weights
            return self.end_save(wait=wait)
        if "lost" in became:
            log.warning(
                "learner fsdp: the ranks that wrote a checkpoint were lost, so it is left out; the "
                "next one is saved as planned"
            )
            return "lost"
        return "complete"

    def load_parts(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Restore what the ranks wrote, see `quintain.interfaces.PartSaver`.

        Raises:
            UsageError: a rank does not see the folder.
        """
        folder = folder.absolute()
        self._check_folder(
            folder, "or resume with ranks of this machine: no learner.args.rendezvous, no [cluster]"
        )
        self._load_own(state)
        sent = {name: value for name, value in state.items() if name != "module"}
        self.team.call("load_parts", str(folder), sent)

    def close(self) -> None:
        """End the ranks."""
        self.team.close()

    def _check_folder(self, folder: Path, otherwise: str) -> None:
        """Check that all ranks see the files of *folder*, in which they read or write their parts of
        a checkpoint.

        Raises:
            UsageError: one does not; the message ends with what to do *otherwise*.
        """
        if not self._elsewhere:
            return
        content = secrets.token_bytes(16)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            names = [name for name in self.team.call("sees", file.name, content) if name]
        if names:
            raise UsageError(
                f"learner fsdp: not seen by {', '.join(names)}: a file that the run has written to "
                f"{folder}, where each rank has its part of a checkpoint. Let all machines mount "
                f"one file system at this path, {otherwise}"
            )

    @torch.no_grad()
    def _load_own(self, state: Mapping[str, Any]) -> None:
        """Restore what the driver has, and let the ranks see the weights."""
        self._count_change()
        own = super().state_dict(weights=False)["optimizer"]  # the driver has no moments
        super().load_state_dict({**state, "optimizer": own})
        for kept, live in zip(self._image.parameters(), self.module.parameters(), strict=True):
            if kept.data_ptr() != live.data_ptr():
                kept.copy_(live)

    @torch.no_grad()
    def _announce(self) -> None:
        """Embed no token. An engine on the same devices sleeps when the module computes, and the
        ranks compute elsewhere.
        """
        module: Any = self.module
        embeddings = module.get_input_embeddings()
        embeddings(torch.empty(0, dtype=torch.long, device=self.parameters[0].device))

    def _count_change(self) -> None:
        """Count a change of the weights: ranks write them from other processes, which nobody would
        see by the counters of tensors.
        """
        torch.autograd.graph.increment_version(list(self.module.parameters()))

    @torch.no_grad()
    def _updated(self, reply: tuple[dict[str, float], int, int]) -> dict[str, float]:
        """Take up the weights that the ranks have written; return the metrics."""
        metrics, self.version, self.updates = reply
        for kept, live in zip(self._image.parameters(), self.module.parameters(), strict=True):
            if live.requires_grad and kept.data_ptr() != live.data_ptr():
                live.copy_(kept)
        if self._takes_turns:
            self.team.call("forget")
        return metrics


def _check(algorithm: Algorithm, sharding: Sharding) -> None:
    """Refuse what the ranks cannot do.

    Raises:
        UsageError: the algorithm has a piece that needs whole weights, or a service.
    """
    if algorithm.optimizer_step is not None and sharding != "replicated":
        raise UsageError(
            f"learner fsdp: {algorithm.optimizer_step!r} of algorithm {algorithm.name!r} needs the "
            f"whole weights and their gradient, and under sharding {sharding!r} a rank has a part; "
            'set learner.args.sharding = "replicated"'
        )
    for piece in algorithm.pieces:
        if piece.needs and piece.kind != "advantage":
            raise UsageError(
                f"learner fsdp: {piece!r} of algorithm {algorithm.name!r} needs the services "
                f"{', '.join(piece.needs.values())}, which are in the run's process, and runs in "
                "the ranks; use the default learner"
            )


def _check_hollow(module: Any, algorithm: Algorithm | None, checkpoint: CheckpointKind) -> None:
    """Refuse what needs the weights in this process.

    Raises:
        UsageError: the message names what to set.
    """
    if checkpoint != "sharded":
        raise UsageError(
            "learner fsdp: this process has no weights to save; set learner.args.checkpoint = "
            '"sharded"'
        )
    if hasattr(module, "disable_adapter"):
        raise UsageError(
            'learner fsdp: adapters need weights = "run", in whose process they are merged'
        )
    if algorithm is not None and algorithm.plan.staleness:
        raise UsageError(
            "learner fsdp: a simulated staleness keeps copies of all weights in this process; set "
            'learner.args.weights = "run", or a schedule that samples ahead'
        )
    own = {id(parameter) for parameter in module.parameters()}
    tables = any(id(t) not in own for t in module.state_dict(keep_vars=True).values())
    if tables or model_names_differ(module):
        raise UsageError(
            f"learner fsdp: {type(module).__name__} has other tensors in its files than "
            'parameters in memory; set learner.args.weights = "run"'
        )


def _check_modes(modes: Modes, sharding: Sharding, precision: str) -> None:
    """Refuse modes that do not go together.

    Raises:
        UsageError: the message names what to set.
    """
    if sharding == "replicated" and (modes.gather != "float32" or modes.offload == "all"):
        raise UsageError(
            "learner fsdp: under sharding 'replicated' no weights are gathered; leave out "
            'learner.args.gather and learner.args.offload, or set learner.args.sharding = "sharded"'
        )
    if modes.experts == "split" and sharding != "sharded":
        raise UsageError(
            f"learner fsdp: experts are split over all ranks, and under sharding {sharding!r} a "
            "group of them has them all; leave out learner.args.sharding, or learner.args.experts"
        )
    if modes.gather == "bfloat16" and precision != "bf16":
        raise UsageError(
            'learner fsdp: gather "bfloat16" rounds the weights of layers as autocast does; set '
            'learner.precision = "bf16" as well'
        )


def device_of(setting: str) -> str:
    """Return what ranks compute on, ``cpu`` or ``cuda``."""
    if setting != "auto":
        return setting
    return "cuda" if torch.cuda.is_available() else "cpu"


def group_of(ranks: int, sharding: Sharding, group: int | None) -> int:
    """Return how many ranks have the whole model together."""
    if sharding != "hybrid":
        return ranks if sharding == "sharded" else 1
    return group or next(n for n in range(max(1, ranks // 2), 0, -1) if ranks % n == 0)


def _in_host_memory(module: nn.Module) -> nn.Module:
    """Return a module like *module* with its weights in memory that processes share: they are those
    of *module* itself, or copies of those on a GPU. It has none of the hooks that come later, which
    cannot be sent to ranks that start again.

    Raises:
        UsageError: there is not enough such memory.
    """
    needed = sum(p.numel() * p.element_size() for p in module.parameters() if not p.is_meta)
    free = shutil.disk_usage(SHARED_MEMORY).free
    if needed > free:
        raise UsageError(
            f"learner fsdp: the weights take {needed / 1e9:.1f} GB of shared memory, and "
            f"{SHARED_MEMORY} has {free / 1e9:.1f} GB free; give it more, in a container with "
            "--shm-size"
        )
    on_host = {
        id(p): nn.Parameter(p.detach().cpu(), p.requires_grad) if p.is_cuda else p
        for p in module.parameters()
    }
    image = copy.deepcopy(module, on_host)
    return image.cpu().share_memory() if needed else image


def _shared(value: Any) -> Any:
    return shared(value) if isinstance(value, Tensor) and value.ndim else value
