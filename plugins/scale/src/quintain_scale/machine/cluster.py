"""The cluster `machine`: processes of this machine, each with devices of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from quintain.errors import UsageError
from quintain.interfaces import ProcessRequest
from quintain.recipe import DeviceRow, Recipe, RunPlan

from .division import VISIBLE, Division, check_machines, device_ids, devices_here, taken
from .nodes import JoinedMachine, RemoteProcess, address_of, joined
from .process import run_tied
from .table import SHARE, changes_of, rows_of

log = logging.getLogger(__name__)

LAST = 10.0
"""Seconds that processes get to end by themselves when the cluster is closed."""
LOOK = 0.05
"""Seconds between two looks at them."""


class Killable(Protocol):
    """A process that can be killed."""

    def kill(self) -> None:
        """Kill it."""


class Machine:
    """Processes of this machine. Each sees the devices that it was given, and no others.

    A rank gets a device of those that *learn*, and a server as many as it asks for of those that
    *sample*. It waits until they are free. A process that is killed is started again on the same
    devices, if that was asked for.

    Args:
        sample: devices of the servers of the engine: how many, or their numbers. By default those
            that do not learn.
        learn: devices of the learner, in the same way; the first ones, unless numbers say which. By
            default those that do not sample, or one if the learner has no ranks.
        turns: devices sample and learn in turns: all of them, unless *sample* or *learn* says which.
            Servers free their memory while the learner computes.
        share: of the memory of a device that a server may take. By default 0.6 with *turns*, else
            what the server takes itself.
        devices: of each machine. By default those that torch sees here.
        memory: of each device, in bytes, for what is planned. By default what torch sees.
        machines: how many there are. More than one join the run, this one included, with
            ``quintain_scale.machine.join``, which `quintain launch` starts.
        rendezvous: ``host:port`` of this machine where they join. ``$NAME`` in it is an environment
            variable.
        patience: seconds until they have to be there.

    Raises:
        UsageError: more devices are asked for than there are, or one for two things without *turns*.
        RunError: machines do not join.
    """

    def __init__(
        self,
        *,
        sample: int | list[int] | None = None,
        learn: int | list[int] | None = None,
        turns: bool = False,
        share: float | None = None,
        devices: int | None = None,
        memory: float | None = None,
        machines: int = 1,
        rendezvous: str | None = None,
        patience: float = 600.0,
    ) -> None:
        self.host = "127.0.0.1" if rendezvous is None else address_of(rendezvous)[0]
        self.is_local = rendezvous is None  # files of this machine reach all processes
        self.turns, self.share = turns, _checked_share(share, turns=turns)
        self._names = device_ids(devices)
        if 0 < (here := devices_here()) < len(self._names):
            raise UsageError(
                f"cluster machine: devices = {devices}, and torch sees {here} here: lower "
                "cluster.args.devices, or leave it out"
            )
        check_machines(machines, rendezvous)
        self._each = len(self._names)
        division = Division.of(machines * self._each, sample=sample, learn=learn, turns=turns)
        self._nodes: list[JoinedMachine] = []
        if rendezvous is not None:
            self._nodes = joined(machines, rendezvous, self._each, patience)
        self._free = {"rank": [*division.learn], "replica": [*division.sample]}
        self._room = {role: len(free) for role, free in self._free.items()}
        self._waiting: list[list[MachineProcess]] = []
        self._started: list[MachineProcess] = []
        self._lock = threading.RLock()

    @classmethod
    def changes(cls, recipe: Recipe) -> Mapping[str, Any]:
        """Return what the division says of other tables of *recipe*, as the number of ranks and of
        servers.

        Raises:
            UsageError: the tables do not fit.
        """
        return changes_of(recipe)

    @classmethod
    def placement(cls, args: Mapping[str, Any], plan: RunPlan, module: Any) -> Sequence[DeviceRow]:
        """Return what each device does in a run of *plan*.

        Raises:
            UsageError: the devices do not suffice.
        """
        return rows_of(args, plan, module)

    def start(self, requests: Sequence[ProcessRequest]) -> Sequence[MachineProcess]:
        """Start *requests*, see `quintain.interfaces.ProcessCluster`.

        Raises:
            UsageError: they need more devices than do what they are for.
        """
        for role, room in self._room.items():
            if (needed := sum(_devices_of(r) for r in requests if r.role == role)) > room:
                key = "learn" if role == "rank" else "sample"
                raise UsageError(
                    f"cluster machine: {needed} devices are needed for what is started together, and "
                    f"cluster.args.{key} has {room}: raise it, or lower "
                    + ("learner.args.ranks" if role == "rank" else "the GPUs of a server")
                )
        threads = max(1, (os.cpu_count() or 1) // max(1, min(len(requests), self._each)))
        placed = [MachineProcess(request, self, threads=threads) for request in requests]
        with self._lock:
            self._started += placed
            self._waiting.append(placed)
            self._fill()
        return placed

    def _fill(self) -> None:
        """Start those that wait, the first ones first, for as long as there is room."""
        for group in [*self._waiting]:
            if all(self._has_room(role, group) for role in self._free):
                self._waiting.remove(group)
                for one in group:
                    free = self._free.get(one.request.role, [])
                    one.begin(taken(free, one.needed, each=self._each) or [])

    def _has_room(self, role: str, group: Sequence[MachineProcess]) -> bool:
        free = [*self._free[role]]
        wanted = [one.needed for one in group if one.request.role == role]
        return all(taken(free, needed, each=self._each) is not None for needed in wanted)

    def run(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        devices: Sequence[int],
        *,
        said: Callable[[str], None],
        began: Callable[[Killable], None],
    ) -> tuple[int, str]:
        """Run Python with *words* on *devices*; return its exit code and last words.

        Args:
            said: gets each line of its output, on this machine.
            began: gets what kills it.
        """
        node = self.node_of(devices)
        names = self._names if node is None else node.devices
        visible = ",".join(names[number % self._each] for number in devices)
        environment = {**environment, VISIBLE: visible}
        if node is None:
            return run_tied(words, environment, os.getcwd(), said=said, began=began)
        number = node.next_number()
        began(RemoteProcess(node, number))
        return node.run(words, environment, os.getcwd(), number)

    def node_of(self, devices: Sequence[int]) -> JoinedMachine | None:
        """Return the machine of *devices*, the first without any; ``None`` is this one."""
        return self._nodes[devices[0] // self._each if devices else 0] if self._nodes else None

    def give_back(self, process: MachineProcess) -> None:
        """Take back the devices of a process that has ended, for those that wait."""
        with self._lock:
            for group in [*self._waiting]:
                if process in group:
                    self._waiting.remove(group)
            if process.devices:
                free = self._free[process.request.role]
                free += process.devices
                free.sort()
                process.devices = []
            self._fill()

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._waiting = []
        deadline = time.monotonic() + LAST
        while time.monotonic() < deadline and any(one.runs for one in self._started):
            time.sleep(LOOK)
        for one in self._started:
            one.end()
        self._started = []
        for node in self._nodes:
            node.close()


def _checked_share(share: float | None, *, turns: bool) -> float | None:
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"cluster machine: share is {share:g}; expected more than 0, at most 1")
    return SHARE if share is None and turns else share


def _devices_of(request: ProcessRequest) -> int:
    """Return how many devices a process gets: one at least where they are counted, so that a rank or
    a server on a CPU has its place.
    """
    return 0 if request.role == "worker" else max(1, int(request.gpus))


class MachineProcess:
    """A process of a `Machine`.

    Attributes:
        needed: how many devices it gets.
        devices: their numbers, while it runs.
    """

    def __init__(self, request: ProcessRequest, machine: Machine, *, threads: int) -> None:
        self.request, self.needed = request, _devices_of(request)
        self.devices: list[int] = []
        self._machine, self._threads = machine, threads
        self._process: Killable | None = None
        self._said: str | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def begin(self, devices: list[int]) -> None:
        """Start it, on *devices*."""
        self.devices = devices
        # A process ends with the thread that started it, so each has one of its own.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        environment = {**self.request.environment}
        if self.request.role == "rank" and "OMP_NUM_THREADS" not in os.environ:
            environment.setdefault("OMP_NUM_THREADS", str(self._threads))
        while True:
            status, words = self._machine.run(
                self.request.words,
                environment,
                self.devices,
                said=self._passed_on,
                began=self._began,
            )
            if not (status < 0 and self.request.restarts) or self._is_over:
                break
            log.warning("a process of a %s was killed and starts again", self.request.role)
        self._said = f"exit code {status}: {words}"
        self._machine.give_back(self)

    def _passed_on(self, line: str) -> None:
        log.debug("%s on devices %s: %s", self.request.role, self.devices, line.rstrip())

    def _began(self, process: Killable) -> None:
        with self._lock:
            self._process = process
            if self._is_over:  # ended while it started
                process.kill()

    @property
    def host(self) -> str:
        """Address of its machine; empty while it waits for devices."""
        if self._thread is None:
            return ""
        node = self._machine.node_of(self.devices)
        return self._machine.host if node is None else node.host

    @property
    def ended(self) -> str | None:
        """Exit code and last words, once it has ended; ``None`` before."""
        return self._said

    @property
    def runs(self) -> bool:
        """Whether it has begun and has not ended."""
        return self._thread is not None and self._said is None

    def end(self) -> None:
        """End the process, and give its devices back."""
        with self._lock:
            self._is_over = True
            if self._process is not None:
                self._process.kill()
        if self._thread is None:
            self._machine.give_back(self)
        elif self._thread is not threading.current_thread():
            self._thread.join()
