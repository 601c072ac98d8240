"""The cluster `ray`: processes in actors of Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from quintain.errors import RunError, UsageError
from quintain.interfaces import ProcessRequest

from .process import ProcessActor

log = logging.getLogger(__name__)

OBJECT_STORE = 100 * 2**20
"""Bytes of the object store of a Ray that is started here: nothing goes through it."""
ANSWER = 10.0
"""Seconds that a Ray has to answer."""
ROOM = 10.0
"""Seconds without room for a group of processes, after which a warning says so."""
LAST = 10.0
"""Seconds that processes get to end by themselves when the cluster is closed."""
ROLES = ("rank", "replica", "worker")
"""Roles of processes that Ray places."""


class Ray:
    """Processes in actors of a Ray that runs, or of one that starts on this machine.

    The processes of one start are a placement group with a bundle for each. Ray starts an actor that
    is killed, or whose node is gone, again where there is room for it, if that was asked for.

    Args:
        address: of a Ray that runs, as ``10.0.0.1:6379``; empty takes one that was started on this
            machine (or that ``RAY_ADDRESS`` names), else starts one, which ends with the run.
        strategy: how ranks are laid out: ``PACK``, on as few nodes as possible, or ``SPREAD``;
            ``STRICT_PACK`` and ``STRICT_SPREAD`` wait until it is possible.
        resources: of each process of a role, as ``{ rank = { CPU = 4, GPU = 1 } }``, in place of
            those it asks for. They are counted by Ray, and limit nothing.

    Raises:
        RunError: no Ray answers at *address*, or none starts.
        UsageError: a role or a resource is none.
    """

    def __init__(
        self,
        *,
        address: str = "",
        strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK",
        resources: dict[str, dict[str, float]] | None = None,
    ) -> None:
        self._strategy = strategy
        self._resources = resources or {}
        for role, amounts in self._resources.items():
            if role not in ROLES or not all(amount >= 0 for amount in amounts.values()):
                raise UsageError(
                    f"cluster ray: resources of {role!r} are {amounts}; expected amounts of at least "
                    f"0 for {' or '.join(ROLES)}"
                )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray prints what becomes of actors, of which the run has its own words
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")
        import ray  # here: it takes a second, and reads these variables

        self._ray = ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            self._connect(address)
        self.host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._placed: list[PlacedActor] = []

    def _connect(self, address: str) -> None:
        found = address or os.environ.get("RAY_ADDRESS") or _started_here()
        if found and not _answers(found):
            raise RunError(f"cluster ray: nobody answers at {found}; is Ray running there?")
        logging.getLogger("ray").setLevel(logging.ERROR)
        quiet: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
        of_run = signal.getsignal(signal.SIGTERM)  # Ray sets one of its own, which exits at once
        try:
            if found:
                self._ray.init(found, **quiet)
            else:
                self._ray.init(
                    "local", include_dashboard=False, object_store_memory=OBJECT_STORE, **quiet
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"answers at {found}" if found else "starts here"
            raise RunError(f"cluster ray: no Ray {where}: {error}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, of_run)

    def start(self, requests: Sequence[ProcessRequest]) -> Sequence[PlacedActor]:
        """Start *requests*, see `quintain.interfaces.ProcessCluster`.

        Raises:
            UsageError: Ray places no processes of a role yet.
        """
        for request in requests:
            if request.role not in ROLES:
                raise UsageError(
                    f"cluster ray places {' and '.join(ROLES)} processes, and none of the role "
                    f"{request.role!r}"
                )
        bundles = [self._bundle(request) for request in requests]
        group = self._ray.util.placement_group(bundles, strategy=self._strategy)
        if not group.wait(ROOM):
            log.warning(
                "cluster ray: waits for room: %s, and the nodes have %s",
                " + ".join(map(str, bundles)),
                self._ray.cluster_resources(),  # type: ignore[no-untyped-call]
            )
        placed = [
            PlacedActor(self._ray, group, index, request, bundle)
            for index, (request, bundle) in enumerate(zip(requests, bundles, strict=True))
        ]
        self._placed += placed
        return placed

    def _bundle(self, request: ProcessRequest) -> dict[str, float]:
        wanted = {"CPU": request.cpus, "GPU": request.gpus} | self._resources.get(request.role, {})
        return {name: amount for name, amount in wanted.items() if amount}

    def close(self) -> None:
        """End all processes, and a Ray that was started here."""
        if not self._ray.is_initialized():
            return
        running = [placed.result for placed in self._placed]
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=LAST)
        for placed in self._placed:
            placed.end()
        self._placed = []
        if self._is_own:
            self._ray.shutdown()


def _started_here() -> str:
    """Return the address of a Ray that runs on this machine, from the file in which Ray notes it;
    empty without one. A Ray that was killed leaves the file.
    """
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        address = Path(folder, "ray", "ray_current_cluster").read_text().strip()
    except FileNotFoundError:
        return ""
    return address if _answers(address) else ""


def _answers(address: str) -> bool:
    """Return whether somebody listens at *address*, for whom Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except (OSError, ValueError):
        return False
    return True


class PlacedActor:
    """A process in an actor, in the bundle *index* of a placement group."""

    def __init__(
        self, ray: Any, group: Any, index: int, request: ProcessRequest, bundle: Mapping[str, float]
    ) -> None:
        self._ray, self._group, self._index = ray, group, index
        others = {name: n for name, n in bundle.items() if name not in ("CPU", "GPU")}
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        )
        self._actor = (
            ray.remote(ProcessActor)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                resources=others,
                scheduling_strategy=strategy,
                max_restarts=-1 if request.restarts else 0,
                max_task_retries=-1 if request.restarts else 0,
                # else Ray gives it the least time of a busy machine, and the run waits for it
                runtime_env={"env_vars": {"RAY_worker_niceness": "0"}},
            )
            .remote()
        )
        self.result = self._actor.run.remote(
            request.words, dict(request.environment), os.getcwd(), restarts=request.restarts
        )

    @property
    def host(self) -> str:
        """Address of its node; empty while it waits for room."""
        table = self._ray.util.placement_group_table(self._group)
        node_id = table["bundles_to_node_id"].get(self._index)
        alive: dict[Any, str] = {
            n["NodeID"]: n["NodeManagerAddress"] for n in self._ray.nodes() if n["Alive"]
        }
        return alive.get(node_id, "")

    @property
    def ended(self) -> str | None:
        """Exit code and last words of the process; ``None`` while it runs."""
        ready, _ = self._ray.wait([self.result], timeout=0)
        if not ready:
            return None
        try:
            status, words = self._ray.get(self.result)
        except self._ray.exceptions.RayError as error:
            return f"Ray lost it: {str(error).partition(chr(10))[0]}"
        return f"exit code {status}: {words}"

    def end(self) -> None:
        """End the actor with its process. The group goes with the first of its actors: they need
        each other.
        """
        self._ray.kill(self._actor, no_restart=True)
        self._ray.util.remove_placement_group(self._group)
