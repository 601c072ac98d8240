"""The ranks of a learner on other machines, as the driver sees them."""

from __future__ import annotations

import io
import logging
import pickle
import socket
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from quintain.errors import RunError

from .setup import Place, Setup, mapped
from .signs import Sign
from .sources import Source, sources_of
from .spares import Spare
from .team import Team
from .wire import AuthenticationError, Wire, accepted, address_of

log = logging.getLogger(__name__)

CHUNK = 2**26
"""Bytes of a copy that cross at once."""
Key = str | int
"""A parameter by its name, or a tensor of a state by its number."""


class RemoteTeam(Team):
    """Ranks that somebody has started elsewhere, with ``quintain_learners.fsdp.join``; they come to an
    address of the driver.

    Weights and states cross one tensor at a time, when the first rank asks for it or has it whole.
    Ranks read weights in the files of the model instead, if all of them have these.
    The driver listens at the host of *address* alone, on its port and on one more, for the ranks'
    own rendezvous.

    Args:
        size: number of ranks.
        address: ``host:port`` to listen at.
        token: what ranks have to know.
        silence: see `Team`.
        patience: seconds until all ranks have to be there, at the start and after one was lost.

    Raises:
        UsageError: *address* is none.
        RunError: the address is taken, or ranks do not come.
    """

    last_words = 30.0
    """A machine that is gone takes longer to find than a process."""
    least_port = 1
    """The least port of *address*; 0 lets the system choose one."""

    def __init__(  # no process is started here, so not that of `Team`
        self, size: int, address: str, token: bytes, *, silence: float, patience: float
    ) -> None:
        host, port = address_of(address, least=self.least_port)
        self._token, self._silence, self._patience = token, silence, patience
        self._learners = self._ranks = 0
        self._device = "cpu"
        try:
            family = socket.getaddrinfo(host, port)[0][0]
            self._server = socket.create_server((host, port), family=family)
            meeting = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise RunError(
                f"learner fsdp: cannot listen at {address}: {error.strerror}; "
                "learner.args.rendezvous has to be an address of this machine, with a free port"
            ) from None
        bound, own_port = self._server.getsockname()[:2]
        self.address = address if port else f"{address.removesuffix(':0')}:{own_port}"
        if bound.startswith("127.") and host not in (bound, "localhost"):
            log.warning(
                "learner fsdp: %s is %s on this machine, where ranks of other machines cannot come "
                "to; give its address in learner.args.rendezvous",
                host,
                bound,
            )
        self._meeting_port: int = meeting.getsockname()[1]
        self._store = TCPStore(
            host,
            self._meeting_port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=meeting.detach(),
        )
        self._spares = [Spare() for _ in range(size)]
        self._signs = [Sign() for _ in range(size)]
        self._wires: list[Wire] = []
        self._said: list[Mapping[str, Any]] = []
        self._gone: dict[int, str] = {}
        self._sources: Mapping[str, Source] = {}
        self._wanted = 0
        """Tensors that ranks have asked for since the last start."""
        self._whole: dict[Key, Tensor] = {}
        """What crosses: weights of the module in host memory, and of a state."""
        weakref.finalize(self, _release, self._server, self._spares)
        self.open()

    def open(self) -> None:
        self.close()
        came: dict[int, tuple[Wire, Mapping[str, Any]]] = {}
        size = len(self._spares)
        deadline = time.monotonic() + self._patience
        self._server.settimeout(1.0)
        while len(came) < size:
            if time.monotonic() > deadline:
                for wire, _ in came.values():
                    wire.close()
                absent = self._absent(rank for rank in range(size) if rank not in came)
                raise RunError(f"learner fsdp: {absent}")
            self._check_missing(rank for rank in range(size) if rank not in came)
            with suppress(TimeoutError):
                peer, origin = self._server.accept()
                try:
                    wire, said = accepted(peer, self._token, silence=self._silence)
                except (AuthenticationError, OSError, EOFError, ValueError) as error:
                    log.warning(
                        "learner fsdp: refused a connection from %s: %s",
                        origin[0],
                        error or "it does not speak as ranks do",
                    )
                    continue
                refusal = _refusal(said, size)
                with suppress(OSError):
                    wire.send(refusal)
                if refusal:
                    wire.close()
                    log.warning("learner fsdp: refused a rank from %s: %s", origin[0], refusal)
                    continue
                if (before := came.pop(said["rank"], None)) is not None:
                    before[0].close()  # it has started again
                came[said["rank"]] = wire, said
        self._wires = [came[rank][0] for rank in range(size)]
        self._said = [came[rank][1] for rank in range(size)]
        self._gone = {}
        self._end = weakref.finalize(self, _dismiss, self._wires)

    def _check_missing(self, ranks: Iterable[int]) -> None:
        """Raise `RunError` if one of *ranks*, which have not come yet, will not."""

    def _absent(self, ranks: Iterable[int]) -> str:
        """Return what to say of *ranks* that have not come in time."""
        return (
            f"ranks {', '.join(map(str, ranks))} of {len(self._spares)} have not come to "
            f"{self.address} within {self._patience:.0f} s; start them with `python -m "
            f"quintain_learners.fsdp.join {self.address}` (`quintain launch` prints the job)"
        )

    @property
    def pids(self) -> list[int]:
        return [said["pid"] for said in self._said]

    def close(self) -> None:
        if self._wires:
            self._end()
            self._wires = []

    def start(self, setup: Setup) -> None:
        self._whole = {name: p.data for name, p in setup.module.named_parameters()}
        self._sources = sources_of(setup.module) if setup.sources is None else setup.sources
        self._wanted = 0
        super().start(setup)
        log.info(
            "learner fsdp: %d of %d tensors came from the run, and ranks read the others in the files "
            "of the model",
            self._wanted,
            len(self._whole),
        )

    def call(self, command: str, *arguments: Any) -> Any:
        if command == "load":
            arguments = (mapped(arguments[0], self._offered),)
        elif command in ("fill", "gradients", "give"):
            *before, wholes = arguments
            self._whole |= dict(enumerate(wholes))
            arguments = (*before, [None] * len(wholes))
        try:
            return super().call(command, *arguments)
        finally:
            self._whole = {key: t for key, t in self._whole.items() if isinstance(key, str)}

    def _offered(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim:
            return value
        index = sum(isinstance(key, int) for key in self._whole)
        self._whole[index] = value
        return Place(index=index, shape=tuple(value.shape), dtype=value.dtype)

    def _size(self) -> int:
        return len(self._wires)

    def _rendezvous(self) -> str:
        return f":{self._meeting_port}/{self._learners}"

    def _send(self, command: str, arguments: tuple[Any, ...]) -> None:
        if command == "start":
            (setup,) = arguments
            bare = replace(setup, module=nn.Module(), threads=0)
            arguments = bare, hollow(setup.module), self._sources
        for rank, wire in enumerate(self._wires[: self._ranks]):
            self._signs[rank].time = time.monotonic()
            try:
                wire.send((command, arguments))
            except OSError as error:
                self._gone[rank] = _fault(error)

    def _wait(self, missing: Sequence[int]) -> None:
        wait([self._wires[rank].fileno() for rank in missing], timeout=1.0)

    def _receive(self, rank: int) -> Any:
        wire = self._wires[rank]
        try:
            while wire.poll():
                word, *rest = message = wire.recv()
                if word in ("done", "failed"):
                    return message
                self._served(rank, word, *rest)
        except (EOFError, OSError) as error:
            self._gone[rank] = _fault(error)
        return None

    def _served(self, rank: int, word: str, *rest: Any) -> None:
        """Do what a rank asks for while it does a command."""
        sign = self._signs[rank]
        sign.time = time.monotonic()
        if word == "beat":
            sign.cpu, sign.waits, sign.place = rest
        elif word == "want":
            self._wanted += 1
            self._wires[rank].send(self._whole[rest[0]].detach().cpu())
        elif word == "part":
            key, tensor = rest
            self._whole[key].copy_(tensor)
        elif word == "copied":
            slot, begins, data = rest
            file = self._spares[rank].file(slot)
            if begins:
                file.seek(0)
                file.truncate()
            file.write(data)
        elif word == "copy":
            slot, position = rest
            file = self._spares[rank].file(slot)
            file.seek(position)
            self._wires[rank].send(file.read(CHUNK))

    def _cause(self, rank: int) -> str:
        return self._gone.get(rank, "")

    def _named(self, rank: int) -> str:
        said = self._said[rank]
        return f"rank {rank} (process {said['pid']} on {said['host']})"

    def _kill(self) -> None:
        for wire in self._wires:  # without a word, so that they start again
            wire.close()
        self.close()


def _refusal(said: Any, size: int) -> str:
    """Return why a rank that says this of itself is not taken; empty if it is."""
    names = {"rank": int, "ranks": int, "pid": int, "host": str, "torch": str}
    if not isinstance(said, dict) or any(
        not isinstance(said.get(name), kind) for name, kind in names.items()
    ):
        return "it does not say what ranks say"
    if said["ranks"] != size or not 0 <= said["rank"] < size:
        return (
            f"it is rank {said['rank']} of {said['ranks']}, and learner.args.ranks is {size}; start "
            "as many ranks"
        )
    if said["torch"] != torch.__version__:
        return f"it has torch {said['torch']}, and the run has {torch.__version__}"
    return ""


def _fault(error: BaseException) -> str:
    if isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
        return "has ended: its connection is closed"
    if isinstance(error, BlockingIOError):
        return "has stopped in the middle of a message"
    return f"cannot be reached: {error}"


def _dismiss(wires: list[Wire]) -> None:
    for wire in wires:
        with suppress(OSError, ValueError):  # it has ended, or the wire is closed
            wire.send(("end", ()))
        wire.close()


def _release(server: socket.socket, spares: list[Spare]) -> None:
    server.close()
    for spare in spares:
        spare.close()


class _Hollow(pickle.Pickler):
    """Pickles a module without memory for its parameters. Tied ones stay one."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            return _unfilled, (tuple(value.shape), value.dtype, value.requires_grad)
        return NotImplemented


def _unfilled(shape: tuple[int, ...], dtype: torch.dtype, trains: bool) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), trains)


def hollow(module: nn.Module) -> bytes:
    """Return *module* for `pickle.loads`, its parameters on the device meta."""
    buffer = io.BytesIO()
    _Hollow(buffer).dump(module)
    return buffer.getvalue()
