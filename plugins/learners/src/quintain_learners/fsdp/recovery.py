"""What a learner does when it loses its ranks: it starts them again where they were."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from threading import RLock
from typing import Any, TypeVar

from .setup import Setup
from .spares import SLOTS
from .team import RanksLost, Team

log = logging.getLogger(__name__)
T = TypeVar("T")

UPDATES = ("step", "supervised_step")
"""Commands that change weights and moments."""
LOADS = ("load", "load_parts")
"""Commands that replace them."""


class Recovery:
    """The ranks of a learner, started again when one of them is lost.

    A rank that ends takes its part of weights and moments with it, and may leave half of an update
    in the memory that it shares. So nothing is read from there. The ranks write a copy of their
    parts now and then, which counts once all have written it. The commands since then are kept, and
    ranks that start again do them once more: on a CPU they end at the same bits.

    Args:
        team: the processes.
        setup: what they are started with.
        restarts: how often the ranks start again without an update in between; 0 keeps no copies.
        every: updates between two copies; ``None`` makes none.

    Raises:
        RanksLost: a rank does not start.
    """

    def __init__(self, team: Team, setup: Setup, *, restarts: int, every: int | None) -> None:
        self._team, self._setup = team, setup
        self._restarts, self._left = restarts, restarts
        self._every = every if restarts else None
        self._slot: int | None = None  # of the last complete copy
        self._since: list[tuple[str, tuple[Any, ...], bool]] = []
        """Commands after it, and whether they failed, on all ranks alike."""
        self._updates = 0
        self._changed = False
        """Whether weights in shared memory are others than those of the setup."""
        self._lost = False
        self._loading = False
        """Whether a command that replaces the whole state is under way, which needs no copy."""
        self._empty = False
        """Whether the ranks started again meanwhile, and have no state until it has ended well."""
        self._lock = RLock()  # an engine may ask for weights in a thread while another one learns
        self._surviving(lambda: team.start(setup))
        self._surviving(lambda: self._copy(reference=True))

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        return self._team.pids

    def close(self) -> None:
        """End the ranks."""
        self._team.close()

    def call(self, command: str, *arguments: Any) -> Any:
        """Send a command to all ranks; return what the first answers. Ranks that are lost start
        again, and do it then.

        Raises:
            RanksLost: they were lost too often, or there is no copy to start from.
            Exception: the command raised it, on all ranks alike.
        """
        with self._lock:
            return self._called(command, arguments)

    def _called(self, command: str, arguments: tuple[Any, ...]) -> Any:
        self._changed |= command in (*UPDATES, *LOADS)
        if command in LOADS:
            self._loading = True
            try:
                return self._surviving(lambda: self._load(command, arguments))
            except Exception:
                if self._empty:
                    self._team.close()  # what is asked of them next is refused
                raise
            finally:
                self._loading = self._empty = False
        try:
            result = self._surviving(lambda: self._team.call(command, *arguments))
        except RanksLost:
            raise
        except Exception:
            self._keep(command, arguments, failed=True)
            raise
        self._keep(command, arguments, failed=False)
        if command in UPDATES:
            self._left = self._restarts
            self._updates += 1
            if self._every is not None and self._updates >= self._every:
                self._surviving(lambda: self._copy(reference=False))
        return result

    def _load(self, command: str, arguments: tuple[Any, ...]) -> None:
        self._team.call(command, *arguments)
        self._slot = None  # no state from before may come back
        self._copy(reference=True)

    def _keep(self, command: str, arguments: tuple[Any, ...], *, failed: bool) -> None:
        """Keep a command that has to be done again by ranks that start from the last copy."""
        if self._every is None or command not in (*UPDATES, "prepare"):
            return
        if self._since and self._since[-1][0] == "prepare" == command:
            del self._since[-1]
        self._since.append((command, arguments, failed))

    def _copy(self, *, reference: bool) -> None:
        """Let the ranks copy their parts, over the older of the two copies."""
        if self._every is None:
            return
        slot = ((self._slot or 0) + 1) % SLOTS
        try:
            self._team.call("copy", slot, reference)
        except OSError as error:
            log.warning(
                "learner fsdp: the ranks cannot copy their state to a temporary file (%s), so a "
                "rank that ends %s. Set TMPDIR to a folder with room",
                error,
                "ends the run"
                if self._slot is None
                else "costs more updates than learner.args.copy_every",
            )
        else:
            self._slot, self._updates, self._since = slot, 0, []

    def _surviving(self, work: Callable[[], T]) -> T:
        """Return the result of *work* of the ranks, which start again if they are lost."""
        while True:
            try:
                if self._lost:
                    self._start_again()
                    self._lost = False
                return work()
            except RanksLost as error:
                self._lost = True
                fault = ""
                if not self._left:
                    fault = f"they may start again {self._restarts} times (learner.args.restarts)"
                elif self._slot is None and self._changed and not self._loading:
                    fault = "there is no copy of their state to start from"
                if fault:
                    self._lost = False  # the team stays closed, and says so
                    raise RanksLost(
                        f"{error}. All were ended, and {fault}. Continue the run from its last "
                        "checkpoint with --resume"
                    ) from error
                self._left -= 1
                log.warning(
                    "%s. The ranks start again and repeat %d updates (%d more restarts without an "
                    "update between them)",
                    error,
                    0 if self._loading else self._updates,
                    self._left,
                )

    def _start_again(self) -> None:
        self._team.open()
        setup = self._setup
        if setup.sources is not None and (self._slot is not None or self._loading):
            # the copy, or what is loaded, has all; the files may be gone by now
            setup = replace(setup, sources={})
        self._team.start(setup)
        if self._loading:  # whose copy may be half written, and the one before it out of date
            self._empty = True
            return
        if self._slot is not None:
            self._team.call("restore", self._slot)
        for command, arguments, failed in self._since:
            try:
                self._team.call(command, *arguments)
            except RanksLost:
                raise
            except Exception:
                if not failed:
                    raise
