"""A rank for a run on another machine: ``torchrun ... -m quintain_learners.fsdp.join HOST:PORT``.

torchrun and Slurm say which rank it is. By hand: ``--rank 0 --ranks 2``. It computes in a process of
its own, which starts again if it ends or stops, and ends with the run.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from quintain.errors import QuintainError, UsageError

from .wire import AuthenticationError, Wire, address_of, connected, interface_of, token_of

SILENT = 20.0
"""Seconds without a sign of life after which the process that computes is ended."""
FRUITLESS = 3
"""Starts in a row that do not reach the run, before this gives up."""
AGAIN = 60.0
"""Seconds that a rank waits for a run that was there before."""
REFUSED, NOBODY = 2, 3
"""Exit codes: the run does not want this rank; nobody is there."""


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments, with the numbers that torchrun or Slurm gives.

    Raises:
        UsageError: the number of the rank is unknown.
    """
    parser = argparse.ArgumentParser(
        prog="python -m quintain_learners.fsdp.join", description=__doc__
    )
    parser.add_argument("address", metavar="HOST:PORT", help="learner.args.rendezvous of the run")
    parser.add_argument("--token-file", help="with the token of the run")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for the run")
    for name in ("--rank", "--ranks", "--local-rank"):
        parser.add_argument(name, type=int, help="which torchrun or Slurm say otherwise")
    parser.add_argument("--pipe", type=int, help=argparse.SUPPRESS)
    found = parser.parse_args(words)
    if found.rank is None or found.ranks is None:
        try:
            found.rank, found.ranks, found.local_rank = rank_of_environment()
        except KeyError as error:
            raise UsageError(
                f"which rank is this? The environment has no {error.args[0]}; start it with torchrun "
                "or srun, or say --rank 0 --ranks 2"
            ) from None
    found.local_rank = found.rank if found.local_rank is None else found.local_rank
    return found


def rank_of_environment() -> tuple[int, int, int]:
    """Return rank, number of ranks and rank on this machine, as torchrun or Slurm says.

    Raises:
        KeyError: neither does.
    """
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if all(name in os.environ for name in names):
            rank, ranks, local = (int(os.environ[name]) for name in names)
            return rank, ranks, local
    raise KeyError("RANK, WORLD_SIZE, LOCAL_RANK")


def main(words: Sequence[str] | None = None) -> int:
    """Serve a run until it ends; return the exit code."""
    try:
        found = arguments(words)
        token = token_of(found.token_file)
        return compute(found, token) if found.pipe is not None else supervise(found)
    except QuintainError as error:
        print(error, file=sys.stderr)
        return REFUSED


def supervise(found: argparse.Namespace) -> int:
    """Start the process that computes, again whenever it ends before the run."""
    fruitless = 0
    while True:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, found.address]
        for name in ("rank", "ranks", "local_rank", "patience", "token_file"):
            if (value := getattr(found, name)) is not None:
                command += [f"--{name.replace('_', '-')}", str(value)]
        process = subprocess.Popen([*command, "--pipe", str(writing)], pass_fds=[writing])
        os.close(writing)
        reached = _attended(process, reading)
        os.close(reading)
        status = process.wait()
        if status in (0, REFUSED, NOBODY):
            return status
        if reached:
            found.patience = min(found.patience, AGAIN)
        fruitless = 0 if reached else fruitless + 1
        if fruitless == FRUITLESS:
            return 1
        print(f"rank {found.rank} ended with {status} and starts again", file=sys.stderr)


def _attended(process: subprocess.Popen[bytes], reading: int) -> bool:
    """Wait until *process* ends, and end it if it is silent; return whether it reached the run."""
    reached = False
    while True:
        ready, _, _ = select.select([reading], [], [], SILENT if reached else None)
        if not ready:
            process.kill()
            return reached
        if not os.read(reading, 1000):
            return reached
        reached = True


def compute(found: argparse.Namespace, token: bytes) -> int:
    """Connect to the run and do what it says."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the supervisor
    from .rank import serve  # here: torch takes seconds, and the supervisor does not need it
    from .remote_rank import RemoteWorker
    from .spares import Spare

    import torch  # isort: skip

    address = address_of(found.address)
    greeting = {
        "rank": found.rank,
        "ranks": found.ranks,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "torch": torch.__version__,
    }
    deadline = time.monotonic() + found.patience
    while True:
        try:
            wire, own = connected(address, token, greeting)
            refusal = wire.recv()
            break
        except AuthenticationError:
            raise UsageError(f"{found.address} has another token than this rank") from None
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline:
                print(f"no run at {found.address} within {found.patience:.0f} s: {error}")
                return NOBODY
            time.sleep(1.0)
    if refusal:
        raise UsageError(f"{found.address} refuses this rank: {refusal}")
    if name := interface_of(own):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the run decides
    served = Served(wire)
    threading.Thread(target=_beat, args=(served, found.pipe), daemon=True).start()
    make = partial(RemoteWorker, wire=wire, host=address[0], gpu=found.local_rank)
    serve(found.rank, served, Spare(), make=make)
    return 0 if served.dismissed else 1


class Served:
    """The wire as `serve` sees it: it knows whether a command is being done.

    Attributes:
        busy: whether it is.
        dismissed: whether the run has said that it ends.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.busy = self.dismissed = False

    def recv(self) -> Any:
        """Return the next command.

        Raises:
            EOFError: the run has ended.
        """
        try:
            message = self.wire.recv()
        except OSError:
            raise EOFError from None
        if message[0] == "end":
            self.dismissed = True
            raise EOFError
        self.busy = True
        return message

    def send(self, message: Any) -> None:
        """Answer it."""
        self.busy = False
        try:
            self.wire.send(message)
        except OSError:
            raise BrokenPipeError from None


def _beat(served: Served, pipe: int) -> None:
    """Give signs of life, to the run while it waits for an answer; end when it is gone."""
    from .signs import BEAT, Sign, stacks

    sign = Sign()
    with open(os.memfd_create("stacks"), "w+b", buffering=0) as file:
        while True:
            os.write(pipe, b".")
            time.sleep(BEAT)
            if not served.busy:
                continue
            sign.renew(stacks(file))
            try:
                served.wire.send(("beat", sign.cpu, sign.waits, sign.place))
            except OSError:
                os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
