"""A machine that joins a run: ``python -m quintain_scale.machine.join HOST:PORT``.

It starts processes for the run, and ends with it. Slurm and Kubernetes say which machine it is. By
hand: ``--machine 0``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from typing import Any

from quintain.errors import QuintainError, UsageError
from quintain.process import introduced

from .division import device_ids, devices_here
from .nodes import TOKEN, address_of
from .process import passed_on, run_tied

NUMBERS = ("SLURM_NODEID", "JOB_COMPLETION_INDEX", "GROUP_RANK")
"""Environment variables that say which machine this is: of Slurm, Kubernetes and torchrun."""
REFUSED, NOBODY = 2, 3
"""Exit codes: the run does not want this machine; nobody is there."""


def main(words: Sequence[str] | None = None) -> int:
    """Serve a run until it ends; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m quintain_scale.machine.join", description=__doc__
    )
    parser.add_argument("address", metavar="HOST:PORT", help="cluster.args.rendezvous of the run")
    parser.add_argument("--machine", type=int, help="its number, from 0, if nothing else says it")
    parser.add_argument(
        "--devices", type=int, help="how many of its GPUs; also for a machine whose torch sees none"
    )
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for the run")
    found = parser.parse_args(words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the run decides
    try:
        greeting = {"machine": _number(found.machine), "devices": _devices(found.devices)}
        run = _connected(found.address, greeting, found.patience)
    except AuthenticationError:
        print(f"{found.address} has another {TOKEN} than this machine", file=sys.stderr)
        return REFUSED
    except QuintainError as error:
        print(error, file=sys.stderr)
        return REFUSED
    if run is None:
        print(f"no run at {found.address} within {found.patience:.0f} s", file=sys.stderr)
        return NOBODY
    Joined(run).serve()
    return 0


def _devices(given: int | None) -> list[str]:
    if given is not None and 0 < (here := devices_here()) < given:
        raise UsageError(
            f"this machine has {here} GPUs, and {given} are asked for: lower --devices"
        )
    return device_ids(given)


def _number(given: int | None) -> int:
    values = (os.environ.get(name) for name in NUMBERS)
    number = given if given is not None else next((int(v) for v in values if v), None)
    if number is None:
        raise UsageError(
            f"which machine is this? The environment has none of {', '.join(NUMBERS)}: say --machine 0"
        )
    return number


def _connected(address: str, greeting: dict[str, Any], patience: float) -> socket.socket | None:
    """Return a connection to the run; ``None`` if nobody comes within *patience* seconds."""
    place, token = address_of(address), os.environ.get(TOKEN, "").encode()
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            return introduced(place, token, greeting)
        except (OSError, EOFError):
            time.sleep(1.0)
    return None


class Joined:
    """The processes that a run has on this machine."""

    def __init__(self, run: socket.socket) -> None:
        self._run, self._lock = run, threading.Lock()
        self._processes: dict[int, Any] = {}
        self._killed: set[int] = set()

    def serve(self) -> None:
        """Do what the run says until it is gone, and its processes with it."""
        threads = []
        with suppress(OSError), self._run.makefile("r") as reading:
            for line in reading:
                said = json.loads(line)
                if "kill" in said:
                    self._kill(said["kill"])
                else:
                    # a process ends with the thread that started it, so each has one of its own
                    threads.append(threading.Thread(target=self._start, args=(said,), daemon=True))
                    threads[-1].start()
        for number in [*self._processes]:
            self._kill(number)
        for thread in threads:
            thread.join()

    def _start(self, said: dict[str, Any]) -> None:
        number = said["start"]

        def began(process: Any) -> None:
            with self._lock:
                self._processes[number] = process
                if number in self._killed:
                    process.kill()

        status, words = run_tied(
            said["words"], said["environment"], said["folder"], said=passed_on, began=began
        )
        with self._lock:
            self._processes.pop(number, None)
            with suppress(OSError):  # the run is gone
                ended = {"ended": number, "status": status, "words": words}
                self._run.sendall(json.dumps(ended).encode() + b"\n")

    def _kill(self, number: int) -> None:
        with self._lock:
            self._killed.add(number)
            if (process := self._processes.get(number)) is not None:
                process.kill()


if __name__ == "__main__":
    sys.exit(main())
