"""A rank: the process that trains a part of every minibatch, at the commands of the driver."""

from __future__ import annotations

import copy
import ctypes
import logging
import os
import pickle
import signal
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import forkserver, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from quintain import Algorithm
from quintain.errors import UsageError
from quintain.learning import Batch, Learner, Prepared, TrainingSequence

from .model_files import Files
from .optimizers import PartOptimizer, parts_of
from .processes import ProcessRanks
from .saver import Saver, flat, nested
from .setup import Modes, Place, Setup, mapped
from .shards import (
    as_part,
    local,
    materialize,
    mesh_of,
    read,
    root_of,
    rows_of,
    shard,
    sharded_parts,
    target_of,
)
from .signs import BEAT, Sign, stacks
from .sources import Source, sources_named
from .spares import REFERENCE, Spare

COLLECTIVE = timedelta(minutes=30)
"""How long a collective waits for a rank that lives but does not come."""
SEES = 5.0
"""Seconds after which a file of another machine has to be seen."""
PR_SET_PDEATHSIG = 1
"""See prctl(2): the signal that a process gets when its parent ends."""

LIBC = ctypes.CDLL(None)
M_MMAP_THRESHOLD = -3
"""See mallopt(3): blocks of this size lie in memory of their own, which `free` gives back."""
LARGE = 2**28
"""Bytes of weights from which the holes that gathered weights leave are worth the time."""


def run_rank(rank: int, connection: Connection, signs: Any, spare: Spare) -> None:
    """Serve the driver until it closes the *connection* or ends. The command ``start`` comes first,
    and again for another learner.

    Args:
        signs: signs of life of each rank, in shared memory.
        spare: files for copies of what this rank has made.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the driver decides
    threading.Thread(target=_beat, args=(signs[rank],), daemon=True).start()
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        # A process that is stopped does not see that its driver has ended. The server that forked
        # it does: once nobody has the other end of its pipe, of which this process has got a copy.
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(server._forkserver_alive_fd)
    serve(rank, connection, spare)


def serve(
    rank: int, connection: Any, spare: Spare, *, make: Callable[..., Worker] | None = None
) -> None:
    """Do what comes over *connection* until it ends, and answer.

    Args:
        connection: has `recv` and `send`, as that of `multiprocessing`.
        spare: see `run_rank`.
        make: `Worker`, or what else the command ``start`` makes.
    """
    # The driver says the same of its own model.
    logging.getLogger("quintain").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    worker: Worker | None = None
    reply: tuple[str, Any]
    while True:
        try:
            command, arguments = connection.recv()
        except (EOFError, ConnectionResetError):  # the latter if an answer was not read
            break
        try:
            if command == "start":
                if worker is not None:
                    dist.destroy_process_group()
                worker, result = (make or Worker)(rank, *arguments, spare=spare), None
            else:
                result = getattr(worker, command)(*arguments)
            reply = "done", result if rank == 0 else None
        except BaseException as error:  # noqa: BLE001 - it goes to the driver
            error.add_note(f"in rank {rank} of the learner:\n{traceback.format_exc()}")
            reply = "failed", (type(error), error.args, vars(error))
        try:
            connection.send(reply)
        except (BrokenPipeError, ConnectionResetError):  # the driver ends this process
            break
    if worker is not None and reply[0] == "done":
        dist.destroy_process_group()


def _beat(sign: Sign) -> None:
    """Give signs of life, and end this process when the driver has ended, whatever it is doing."""
    driver = parent_process()
    assert driver is not None
    with open(os.memfd_create("stacks"), "w+b", buffering=0) as file:
        while not wait([driver.sentinel], timeout=BEAT):
            sign.renew(stacks(file))
    os._exit(1)


class Worker:
    """A rank's learner, and the commands to it. All ranks get the same commands.

    Args:
        rank: its number.
        setup: what all ranks are started with.
        spare: files for copies of what this rank has made.
    """

    def __init__(self, rank: int, setup: Setup, *, spare: Spare) -> None:
        if setup.threads:
            torch.set_num_threads(setup.threads)
        self._meet(rank, setup)
        self.rank, self._spare = rank, spare
        self._sources = setup.sources
        sharded = setup.sharding != "replicated"
        algorithm: Algorithm | None = pickle.loads(setup.algorithm) if setup.algorithm else None
        module = self._module(setup)
        large = sum(p.nbytes for p in module.parameters()) >= LARGE
        if sharded and large and hasattr(LIBC, "mallopt"):
            # Gathered weights come and go. Between other blocks they would leave holes, of some 300
            # MB. Blocks of their own cost page faults in each step.
            LIBC.mallopt(M_MMAP_THRESHOLD, 2**20)
        self._images = {name: p.data for name, p in module.named_parameters()}
        tables = {n: t for n, t in module.state_dict().items() if n in dict(module.named_buffers())}
        reference = None
        if algorithm and algorithm.uses_reference and not hasattr(module, "disable_adapter"):
            shared = {id(p): nn.Parameter(p.data, p.requires_grad) for p in module.parameters()}
            reference = copy.deepcopy(module, shared)
        # before sharding, which may add the output layer to the body under a second name
        reference_names = list(module.state_dict()) if reference is not None else []
        mesh = mesh_of(setup.device, setup.ranks, setup.group)
        modes = setup.modes
        half = torch.bfloat16 if modes.gather == "bfloat16" else None
        copies = [module] if reference is None else [module, reference]
        for copied in copies:
            if sharded:
                shard(
                    copied,
                    mesh,
                    half=half,
                    offload=modes.offload == "all",
                    split_experts=modes.experts == "split",
                )
            else:
                for parameter in copied.parameters():  # apart from the memory that all share
                    parameter.data = parameter.data.clone()
        self._fill(copies)
        for copied in copies:
            _move(copied, setup.device, parameters=modes.offload != "all")
        self._parameters = {name: module.get_parameter(name) for name in self._images}
        self._saved: dict[str, Tensor] = {**self._parameters, **tables}
        # Found once: to ask DTensors takes longer than to copy small ones.
        self._targets: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            target = target_of(parameter, self._images[name], first=rank == 0)
            if parameter.requires_grad and target is not None and self._sources is None:
                self._targets[name] = target
        self._reference = (
            {}
            if reference is None
            else {name: _tensor(reference, name) for name in reference_names}
        )
        settings = dict(setup.settings)
        self.learner = RankLearner(
            module,
            algorithm,
            modes=modes,
            ranks=ProcessRanks(
                sharded=sharded, device=setup.device, half=half, root=root_of(module)
            ),
            reference=reference,
            **settings,
        )
        if algorithm is not None:
            # The driver runs the advantage; here it only says what it reads.
            self.learner.serve(dict.fromkeys(algorithm.advantage.needs.values()))
        self._prepared: Prepared | None = None
        self._waiting: list[Tensor] = []
        self._saver = Saver() if setup.saves_parts else None
        self._reshard()
        # Once, for what starting took: in each step it would cost a fifth of its time.
        if hasattr(LIBC, "malloc_trim"):
            LIBC.malloc_trim(0)

    def _meet(self, rank: int, setup: Setup) -> None:
        """Connect with the other ranks."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "gloo"
        if setup.device == "cuda":
            gpus = torch.cuda.device_count()
            torch.cuda.set_device(rank % gpus)
            # NCCL refuses ranks that share a GPU
            backend = "cpu:gloo,cuda:nccl" if setup.ranks <= gpus else "cpu:gloo,cuda:gloo"
        dist.init_process_group(
            backend,
            init_method=f"file://{setup.rendezvous}",
            rank=rank,
            world_size=setup.ranks,
            timeout=COLLECTIVE,
        )

    def _module(self, setup: Setup) -> nn.Module:
        """Return the model."""
        return setup.module

    def _fill(self, copies: Sequence[nn.Module]) -> None:
        """Read this rank's part of the weights into the model, and into the reference if there is
        one; *copies* of a model in shared memory have it already.
        """
        if self._sources is None:
            return
        files = {source.path: source for source in self._sources.values()}
        missing = "".join(path for path, source in files.items() if not source.is_here)[:1000]
        absent: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(absent, missing)
        for rank, path in enumerate(absent):
            if path:
                raise UsageError(
                    f"learner fsdp: rank {rank} does not see {path} as the run does, and weights = "
                    '"ranks" reads it there; let all machines mount one file system at this path'
                )
        generator = torch.Generator().manual_seed(0)
        for copied in copies:
            materialize(copied)
            for name in self._images:
                parameter = copied.get_parameter(name)
                if self._sources:
                    self._read_file(parameter, self._sources[name])
                else:  # `restore` follows; numbers until then, to find out how to compute with
                    local(parameter.detach()).normal_(0, 0.02, generator=generator)

    @torch.no_grad()
    def _read_file(self, parameter: Tensor, source: Source) -> None:
        """Read this rank's part of a parameter."""
        rows = rows_of(parameter)
        if rows.start < rows.stop:
            local(parameter).copy_(source.read(rows))

    def _image(self, name: str) -> Tensor:
        """Return the parameter *name* of the driver, whole."""
        return self._images[name]

    def _arrived(self, value: Any) -> Any:
        """Return a tensor that the driver has sent."""
        return value

    @torch.no_grad()
    def _deliver(self, key: str | int, part: Tensor, whole: Tensor) -> None:
        """Give the driver a tensor, this rank its *part*: the parameter named *key*, or the tensor
        of this number.
        """
        if (target := target_of(part, whole, first=self.rank == 0)) is not None:
            target.copy_(local(part))

    @torch.no_grad()
    def _publish(self) -> None:
        """Give the driver the new weights, this rank its part."""
        for name, target in self._targets.items():
            target.copy_(local(self._parameters[name]))

    def prepare(self, batch: Batch) -> tuple[Any, ...]:
        """Return rewards, penalty and statistics of *batch*."""
        self._prepared = self.learner.prepare(batch)
        self._reshard()
        # Adapters of the root were parts when the reference switched them off, and gathered when it
        # switched them on again.
        for parameter in self.learner.parameters:
            parameter.requires_grad_()
        step = self._prepared.step
        statistics = {name: value.cpu() for name, value in step.statistics.items()}
        return step.rewards, step.penalty, statistics

    def step(self, values: Sequence[float] | Tensor) -> tuple[dict[str, float], int, int]:
        """Train on the batch that was prepared last; return metrics, version and updates."""
        if self._prepared is None:
            raise UsageError("learner fsdp: no batch is prepared")
        self._await_saver()
        return self._published(self.learner.step(self._prepared, advantages=values))

    def supervised_step(
        self, sequences: Sequence[TrainingSequence]
    ) -> tuple[dict[str, float], int, int]:
        """Make one update on *sequences*; return metrics, version and updates."""
        self._await_saver()
        return self._published(self.learner.supervised_step(sequences))

    def forget(self) -> None:
        """Give memory that torch keeps of what was computed to whoever asks for it."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def layout(self) -> str:
        """Return how rows pass through the layers, see `quintain.models.Forward`."""
        return self.learner.forward.layout

    def gradients(self, wholes: Sequence[Tensor]) -> None:
        """Write the gradients of the last update into *wholes*, in the order of the parameters."""
        for index, parameter in enumerate(self.learner.parameters):
            assert parameter.grad is not None
            self._deliver(index, parameter.grad, wholes[index])

    def give(self, names: Sequence[str], wholes: Sequence[Tensor]) -> None:
        """Write this rank's parts of the weights *names* into *wholes*."""
        for index, name in enumerate(names):
            self._deliver(index, self._parameters[name].detach(), wholes[index])

    @torch.no_grad()
    def logits(self, ids: Sequence[int], half: torch.dtype | None) -> Tensor:
        """Return the logits of a text of one sequence, [token, vocabulary], by the forward of the
        model itself; *half* is the type of autocast.
        """
        learner = self.learner
        device = learner.forward.device
        half = half or learner.ranks.half  # in which layers are gathered
        with torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
            row = torch.tensor([list(ids)], device=device)
            logits: Tensor = learner.module(input_ids=row, use_cache=False).logits[0]
        self._reshard()
        return logits.cpu()

    def not_finite(self) -> str:
        """Return the first parameter with a number that is not finite; empty if there is none."""
        found = next(
            (n for n, p in self._parameters.items() if not local(p.detach()).isfinite().all()), ""
        )
        names = [name for name in self.learner.ranks.gather(found) if name]
        return min(names, key=list(self._parameters).index) if names else ""

    def describe(self) -> dict[str, Any]:
        """Return the optimizer's state and the reference, with a `Place` for each tensor that
        `fill` writes.
        """
        self._waiting = []

        def place(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.ndim:
                return value.clone() if isinstance(value, Tensor) else value
            self._waiting.append(value)
            index = len(self._waiting) - 1
            return Place(index=index, shape=tuple(value.shape), dtype=value.dtype)

        state = {"optimizer": self.learner.state_dict(weights=False)["optimizer"]}
        return mapped(state | {"reference": self._reference}, place)  # type: ignore[no-any-return]

    def fill(self, wholes: Sequence[Tensor]) -> None:
        """Write this rank's parts of the tensors that `describe` named."""
        if not self._waiting:  # this process began after that
            self.describe()
        for index, (part, whole) in enumerate(zip(self._waiting, wholes, strict=True)):
            self._deliver(index, part, whole)
        self._waiting = []

    def sees(self, path: str, content: bytes) -> list[str]:
        """Return of each rank its name if it does not find *content* in the file *path*, else
        nothing.
        """
        deadline = time.monotonic() + SEES
        while not (found := os.path.exists(path) and Path(path).read_bytes() == content):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        name = f"rank {self.rank} on {socket.gethostname()}"
        return self.learner.ranks.gather("" if found else name)

    def begin_save(self, folder: str, files: Files) -> dict[str, Any]:
        """Begin to write this rank's part of the optimizer's state, of the reference and of the
        model; return the rest of the optimizer's state.
        """
        assert self._saver is not None
        state = self.learner.state_dict(weights=False)["optimizer"]
        tensors, rest = flat(state["state"])
        reference = {f"{REFERENCE}/{name}": t for name, t in self._reference.items()}
        self._saver.begin(Path(folder), tensors | reference, files, self._saved)
        return {"rest": rest, "param_groups": state["param_groups"]}

    def end_save(self, wait: bool) -> list[tuple[str, dict[str, str]]]:
        """Return what became of the files of each rank, and their digests; *wait* until they are
        written.
        """
        assert self._saver is not None
        if wait:
            self._saver.wait()
        return self.learner.ranks.gather((self._saver.became, self._saver.digests))

    def load_parts(self, folder: str, state: Mapping[str, Any]) -> None:
        """Take this rank's parts of the weights in shared memory and of the files in *folder*."""
        self._saver = self._saver or Saver()
        if self._sources is None:
            self._read_weights()
        else:
            self._reshard()
            sources = sources_named(self._parameters, Path(folder).parent / "model")
            for name, parameter in self._parameters.items():
                self._read_file(parameter, sources[name])
        ordered = self._ordered()

        def like(name: str) -> Tensor:
            first, _, rest = name.partition("/")
            return self._reference[rest] if first == REFERENCE else ordered[int(first)]

        tensors = self._saver.read(Path(folder), like)
        moments = {}
        for name, tensor in tensors.items():
            first, _, rest = name.partition("/")
            if first == REFERENCE:
                local(self._reference[rest].detach()).copy_(local(tensor))
            else:
                moments[name] = tensor
        saved = state["optimizer"]
        self._restore(state, nested(moments | saved["rest"]), saved["param_groups"])

    def load(self, state: Mapping[str, Any]) -> None:
        """Take this rank's parts of the weights in shared memory, and of *state*."""
        self._read_weights()
        for name, whole in (state.get("reference") or {}).items():
            read(self._reference[name], self._arrived(whole))
        ordered = self._ordered()
        moments = {
            index: parts_of(mapped(saved, self._arrived), ordered[index])
            for index, saved in state["optimizer"]["state"].items()
        }
        self._restore(state, moments, state["optimizer"]["param_groups"])

    def _restore(self, state: Mapping[str, Any], moments: Any, groups: Any) -> None:
        """Take the counters of *state* and an optimizer's state of parts."""
        own = self.learner.state_dict(weights=False)
        counters = {"version": state["version"], "updates": state["updates"]}
        optimizer = {"state": moments, "param_groups": groups}
        self.learner.load_state_dict(own | counters | {"optimizer": optimizer})

    def copy(self, slot: int, reference: bool) -> None:
        """Write this rank's part of the state into its spare file *slot*, and of the *reference*
        into another.

        Raises:
            OSError: one of the ranks could not, as on a full disk; all raise it.
        """
        optimizer = self.learner.state_dict(weights=False)["optimizer"]["state"]
        state = {
            "weights": {
                name: local(p.data)
                for name, p in self._parameters.items()
                if p.requires_grad or self._sources is not None
            },
            "moments": mapped(optimizer, _cut),
            "counters": {"version": self.learner.version, "updates": self.learner.updates},
        }
        written: dict[int | str, Any] = {slot: state}
        if reference and self._reference:
            written[REFERENCE] = {name: local(t.data) for name, t in self._reference.items()}
        fault = ""
        try:
            for key, value in written.items():
                file = self._spare[key]
                torch.save(value, file)
                file.truncate()
                file.flush()
        except (OSError, RuntimeError) as error:  # torch hides the first behind the second
            fault = str(error.__context__ or error)
        if faults := [of_rank for of_rank in self.learner.ranks.gather(fault) if of_rank]:
            raise OSError(faults[0])

    @torch.no_grad()
    def restore(self, slot: int) -> None:
        """Take this rank's part of the state from its spare file *slot*."""
        self._reshard()
        state = torch.load(self._spare[slot], weights_only=False)
        for name, part in state["weights"].items():
            local(self._parameters[name].data).copy_(part)
        if self._reference:
            for name, part in torch.load(self._spare[REFERENCE], weights_only=False).items():
                local(self._reference[name].data).copy_(part)
        own = self.learner.state_dict(weights=False)
        ordered = self._ordered()
        moments = {
            index: mapped(saved, partial(_whole, like=ordered[index]))
            for index, saved in state["moments"].items()
        }
        optimizer = own["optimizer"] | {"state": moments}
        self.learner.load_state_dict(own | state["counters"] | {"optimizer": optimizer})

    def _read_weights(self) -> None:
        self._await_saver()
        self._reshard()
        for name, parameter in self._parameters.items():
            read(parameter, self._image(name))

    def _await_saver(self) -> None:
        """Wait until the weights of now are written, which are about to change."""
        if self._saver is not None:
            self._saver.wait()

    def _ordered(self) -> list[nn.Parameter]:
        """Return the parameters in the order of the optimizer's state."""
        return [
            p for wide in (True, False) for p in self.learner.parameters if (p.ndim > 1) == wide
        ]

    def _reshard(self) -> None:
        """Let go of gathered weights, which a forward pass without a backward one leaves."""
        for module in filter(None, (self.learner.module, self.learner.scorer.reference)):
            for part in sharded_parts(module):
                part.reshard()

    def _published(self, metrics: dict[str, float]) -> tuple[dict[str, float], int, int]:
        self._publish()
        self._reshard()
        return metrics, self.learner.version, self.learner.updates


class RankLearner(Learner):
    """The learner of one rank.

    Args:
        modes: how weights and moments are kept.
        settings: of `Learner`.
    """

    def __init__(
        self, module: nn.Module, algorithm: Algorithm | None, *, modes: Modes, **settings: Any
    ) -> None:
        self._modes = modes
        super().__init__(module, algorithm, **settings)
        if modes.offload == "inputs":
            compute = partial(_kept_on_host, self.forward.hidden)
            self.forward.hidden = compute  # type: ignore[method-assign]

    def adamw(self, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
        """Make the optimizer of the parameters in *groups*; *settings* are lr, betas and eps."""
        kind = self._modes.optimizer
        if kind == "adamw":
            return super().adamw(groups, **settings)
        return PartOptimizer(kind, groups, **settings)


def _kept_on_host(compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return what *compute* does; what it keeps for the backward pass is in host memory. Layers keep
    their inputs, and what they compute again in the backward pass stays where it is.
    """
    with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
        return compute(*arguments)


def _move(module: nn.Module, device: str, *, parameters: bool) -> None:
    """Move the buffers of *module* to *device*, and its *parameters*."""
    if parameters:
        module.to(device)
        return
    for name, buffer in module.named_buffers():
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, buffer.to(device))


def _tensor(module: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer *name* of *module*."""
    owner, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(owner), leaf)
    return tensor


@dataclass(frozen=True)
class RankPart:
    """This rank's part of a tensor of *shape*."""

    tensor: Tensor
    shape: tuple[int, ...]


def _cut(value: Any) -> Any:
    """Return a tensor of which ranks have parts as a `RankPart`."""
    return RankPart(value.to_local(), tuple(value.shape)) if isinstance(value, DTensor) else value


def _whole(value: Any, *, like: Tensor) -> Any:
    """Return the tensor that a `RankPart` is of, cut as *like* is."""
    if not isinstance(value, RankPart):
        return value
    assert isinstance(like, DTensor)
    return as_part(value.tensor, like, value.shape)
