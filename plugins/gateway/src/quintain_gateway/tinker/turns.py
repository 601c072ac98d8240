"""Who is next: sessions take turns, and the requests of a model run in the order of its client."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..errors import ApiError
from .compute import Compute, sample_request_of
from .journal import Accepted, Journal
from .models import Models

__all__ = ["Turns"]

_log = logging.getLogger(__name__)


class Turns:
    """The one thread that computes.

    Args:
        told: called, in that thread, with the id of each request that has its result.
    """

    def __init__(
        self, compute: Compute, journal: Journal, models: Models, told: Callable[[str], None]
    ) -> None:
        self._compute, self._journal, self._models, self._told = compute, journal, models, told
        self._changed = threading.Condition()
        self._queues: OrderedDict[str, OrderedDict[str, Accepted]] = OrderedDict()
        self._applied: dict[str, int] = {}
        self._ended = False
        for row in journal.all("SELECT id, applied FROM model"):
            self._applied[row["id"]] = row["applied"]
        for request in journal.waiting():
            self.add(request)
        self._thread = threading.Thread(target=self._work, name="quintain-tinker", daemon=True)
        self._thread.start()

    def add(self, request: Accepted) -> None:
        """Queue *request*, which the journal has."""
        with self._changed:
            self._queues.setdefault(request.session, OrderedDict())[request.id] = request
            self._changed.notify()

    def queued(self, owner: str) -> int:
        """Return the number of requests of *owner* that wait."""
        with self._changed:
            queues = [*self._queues.values()]
            return sum(request.owner == owner for queue in queues for request in queue.values())

    def awaited(self, request: Accepted) -> bool:
        """Return whether a request that waits comes after *request* in the order of its model."""
        with self._changed:
            queue = self._queues.get(request.session, OrderedDict())
            return any(r.model == request.model and r.seq > request.seq for r in queue.values())

    def cancel(self, session: str, request_id: str = "") -> list[Accepted]:
        """Take out of the queue what has not begun: of *session* one request, or all."""
        with self._changed:
            queue = self._queues.get(session, OrderedDict())
            taken = [r for r in queue.values() if not request_id or r.id == request_id]
            for request in taken:
                del queue[request.id]
        return taken

    def close(self) -> None:
        """End after the request that runs; what waits stays in the journal."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    failure = ""
    """Why the thread ended, if it was not asked to: no result could be written."""

    def _work(self) -> None:
        try:
            self._take_turns()
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            _log.exception("the thread that computes has ended")
            raise

    def _take_turns(self) -> None:
        while (request := self._next()) is not None:
            try:
                result, effects = self._run(request)
            except ApiError as e:
                result, effects = {"error": e.message, "category": "user", "code": e.code}, []
            except Exception as e:  # noqa: BLE001 -- whatever it is, the client is told
                _log.exception("request %s failed", request.id)
                result = {"error": f"{type(e).__name__}: {e}", "category": "server"}
                effects = []
            self._journal.finish(request, result, effects)
            self._models.tidy()
            if request.model:
                self._applied[request.model] = request.seq
            self._told(request.id)

    def _next(self) -> Accepted | None:
        with self._changed:
            while not self._ended:
                for session, queue in [*self._queues.items()]:
                    if not queue:
                        del self._queues[session]
                        continue
                    ready = next(filter(self._ready, queue.values()), None)
                    if ready is not None:
                        del queue[ready.id]
                        self._queues.move_to_end(session)  # all others come before its next one
                        return ready
                self._changed.wait()
        return None

    def _ready(self, request: Accepted) -> bool:
        return not request.model or request.seq == self._applied.get(request.model, -1) + 1

    def _run(self, request: Accepted) -> tuple[Any, Any]:
        if request.kind != "asample":
            return self._models.run(request)
        body = request.json()
        row = self._journal.one("SELECT * FROM sampler WHERE id = ?", body["sampling_session_id"])
        if row is None:
            raise ApiError(404, "unknown_sampler", "there is no such sampling session")
        asked = sample_request_of(body, request.id, self._compute.vocabulary)
        return self._compute.sample(self._models.sampler(row["file"]), asked), []
