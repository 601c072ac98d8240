"""A rank: the process that trains a part of every minibatch, at the commands of the driver."""

from __future__ import annotations

import copy
import ctypes
import logging
import os
import pickle
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from quintain import Algorithm
from quintain.errors import UsageError
from quintain.learning import Batch, Learner, Prepared, TrainingSequence

from .processes import ProcessRanks
from .setup import Place, Setup, mapped
from .shards import mesh_of, part_of, read, shard, sharded_parts, write
from .signs import BEAT, Sign
from .spares import REFERENCE, Spare

COLLECTIVE = timedelta(minutes=30)
"""How long a collective waits for a rank that lives but does not come."""
PR_SET_PDEATHSIG = 1
"""See prctl(2): the signal that a process gets when its parent ends."""


def run_rank(rank: int, connection: Connection, signs: Any, spare: Spare) -> None:
    """Serve the driver until it closes the *connection* or ends. The command ``start`` comes first,
    and again for another learner.

    Args:
        signs: signs of life of each rank, in shared memory.
        spare: files for copies of what this rank has made.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the driver decides
    threading.Thread(target=_beat, args=(signs[rank],), daemon=True).start()
    # A process that is stopped does not see that its driver has ended. What forked it does.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
        except EOFError:
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
        except BrokenPipeError:  # the driver ends this process
            break
    if worker is not None and reply[0] == "done":
        dist.destroy_process_group()


def _beat(sign: Sign) -> None:
    """Give signs of life, and end this process when the driver has ended, whatever it is doing."""
    driver = parent_process()
    assert driver is not None
    while not wait([driver.sentinel], timeout=BEAT):
        sign.renew()
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
        sharded = setup.sharding != "replicated"
        algorithm: Algorithm | None = pickle.loads(setup.algorithm) if setup.algorithm else None
        module = self._module(setup)
        self._images = {name: p.data for name, p in module.named_parameters()}
        reference = None
        if algorithm and algorithm.uses_reference and not hasattr(module, "disable_adapter"):
            shared = {id(p): nn.Parameter(p.data, p.requires_grad) for p in module.parameters()}
            reference = copy.deepcopy(module, shared)
        # before sharding, which may add the output layer to the body under a second name
        reference_names = list(module.state_dict()) if reference is not None else []
        mesh = mesh_of(setup.device, setup.ranks, setup.group)
        for copied in [module] if reference is None else [module, reference]:
            if sharded:
                shard(copied, mesh)
            else:
                for parameter in copied.parameters():  # apart from the memory that all share
                    parameter.data = parameter.data.clone()
            copied.to(setup.device)
        self._parameters = {name: module.get_parameter(name) for name in self._images}
        self._reference = (
            {}
            if reference is None
            else {name: _tensor(reference, name) for name in reference_names}
        )
        settings = dict(setup.settings)
        if sharded:
            settings["layout"] = "bucketed"
        self.learner = Learner(
            module,
            algorithm,
            ranks=ProcessRanks(sharded=sharded),
            reference=reference,
            **settings,
        )
        if algorithm is not None:
            # The driver runs the advantage; here it only says what it reads.
            self.learner.serve(dict.fromkeys(algorithm.advantage.needs.values()))
        self._prepared: Prepared | None = None
        self._waiting: list[Tensor] = []

    def _meet(self, rank: int, setup: Setup) -> None:
        """Connect with the other ranks."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if setup.device == "cuda":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if setup.device == "cuda" else "gloo",
            init_method=f"file://{setup.rendezvous}",
            rank=rank,
            world_size=setup.ranks,
            timeout=COLLECTIVE,
        )

    def _module(self, setup: Setup) -> nn.Module:
        """Return the model, whole."""
        return setup.module

    def _image(self, name: str) -> Tensor:
        """Return the parameter *name* of the driver, whole."""
        return self._images[name]

    def _arrived(self, value: Any) -> Any:
        """Return a tensor that the driver has sent."""
        return value

    def _deliver(self, key: str | int, part: Tensor, whole: Tensor) -> None:
        """Give the driver a tensor, this rank its *part*: the parameter named *key*, or the tensor
        of this number.
        """
        write(part, whole, first=self.rank == 0)

    def prepare(self, batch: Batch) -> tuple[Any, ...]:
        """Return rewards, penalty and statistics of *batch*."""
        self._prepared = self.learner.prepare(batch)
        step = self._prepared.step
        statistics = {name: value.cpu() for name, value in step.statistics.items()}
        return step.rewards, step.penalty, statistics

    def step(self, values: Sequence[float] | Tensor) -> tuple[dict[str, float], int, int]:
        """Train on the batch that was prepared last; return metrics, version and updates."""
        if self._prepared is None:
            raise UsageError("learner fsdp: no batch is prepared")
        return self._published(self.learner.step(self._prepared, advantages=values))

    def supervised_step(
        self, sequences: Sequence[TrainingSequence]
    ) -> tuple[dict[str, float], int, int]:
        """Make one update on *sequences*; return metrics, version and updates."""
        return self._published(self.learner.supervised_step(sequences))

    def gradients(self, wholes: Sequence[Tensor]) -> None:
        """Write the gradients of the last update into *wholes*, in the order of the parameters."""
        for index, parameter in enumerate(self.learner.parameters):
            assert parameter.grad is not None
            self._deliver(index, parameter.grad, wholes[index])

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

    def load(self, state: Mapping[str, Any]) -> None:
        """Take this rank's parts of the weights in shared memory, and of *state*."""
        self._reshard()
        for name, parameter in self._parameters.items():
            read(parameter, self._image(name))
        for name, whole in (state.get("reference") or {}).items():
            read(self._reference[name], self._arrived(whole))
        own = self.learner.state_dict(weights=False)
        ordered = self._ordered()
        moments = {
            index: mapped(mapped(saved, self._arrived), _part_like(ordered[index]))
            for index, saved in state["optimizer"]["state"].items()
        }
        optimizer = {"state": moments, "param_groups": state["optimizer"]["param_groups"]}
        counters = {"version": state["version"], "updates": state["updates"]}
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
                name: _local(p.data) for name, p in self._parameters.items() if p.requires_grad
            },
            "moments": mapped(optimizer, _cut),
            "counters": {"version": self.learner.version, "updates": self.learner.updates},
        }
        written: dict[int | str, Any] = {slot: state}
        if reference and self._reference:
            written[REFERENCE] = {name: _local(t.data) for name, t in self._reference.items()}
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
            _local(self._parameters[name].data).copy_(part)
        if self._reference:
            for name, part in torch.load(self._spare[REFERENCE], weights_only=False).items():
                _local(self._reference[name].data).copy_(part)
        own = self.learner.state_dict(weights=False)
        ordered = self._ordered()
        moments = {
            index: mapped(saved, partial(_whole, like=ordered[index]))
            for index, saved in state["moments"].items()
        }
        optimizer = own["optimizer"] | {"state": moments}
        self.learner.load_state_dict(own | state["counters"] | {"optimizer": optimizer})

    def _reshard(self) -> None:
        """Let go of gathered weights: a forward pass without a backward one leaves some."""
        reference = self.learner.scorer.reference
        for module in (
            [self.learner.module]
            if reference is None
            else [
                self.learner.module,
                reference,
            ]
        ):
            for part in sharded_parts(module):
                part.reshard()

    def _ordered(self) -> list[nn.Parameter]:
        """Return the parameters in the order of the optimizer's state."""
        return [
            p for wide in (True, False) for p in self.learner.parameters if (p.ndim > 1) == wide
        ]

    def _published(self, metrics: dict[str, float]) -> tuple[dict[str, float], int, int]:
        """Write the new weights into the memory that the driver shares, each rank its own part."""
        for name, parameter in self._parameters.items():
            if parameter.requires_grad:
                self._deliver(name, parameter, self._images[name])
        return metrics, self.learner.version, self.learner.updates


def _tensor(module: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer *name* of *module*."""
    owner, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(owner), leaf)
    return tensor


def _part_like(parameter: Tensor) -> Callable[[Any], Any]:
    def part(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        # Copied, also counters: what the driver sends lies in memory that all ranks share.
        return part_of(value, parameter) if value.ndim else value.clone()

    return part


@dataclass(frozen=True)
class Part:
    """This rank's part of a tensor of *shape*."""

    tensor: Tensor
    shape: tuple[int, ...]


def _local(value: Any) -> Any:
    """Return this rank's part of a tensor, in the same memory."""
    return value.to_local() if isinstance(value, DTensor) else value


def _cut(value: Any) -> Any:
    """Return a tensor of which ranks have parts as a `Part`."""
    return Part(value.to_local(), tuple(value.shape)) if isinstance(value, DTensor) else value


def _whole(value: Any, *, like: Tensor) -> Any:
    """Return the tensor that a `Part` is of, cut as *like* is."""
    if not isinstance(value, Part):
        return value
    assert isinstance(like, DTensor)
    return DTensor.from_local(
        value.tensor,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=torch.Size(value.shape),
        stride=torch.empty(value.shape, device="meta").stride(),
    )
