"""Who is next: keys take turns, then the sessions of a key, and the requests of a model run in the
order of its client.
"""

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
        self._served: dict[str, int] = {}  # by owner, the number of its last turn
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

    def queued(self, owner: str) -> tuple[int, int]:
        """Return the number of requests of *owner* that wait, and the bytes of their bodies."""
        with self._changed:
            queues = [*self._queues.values()]
            sizes = [len(r.body) for queue in queues for r in queue.values() if r.owner == owner]
        return len(sizes), sum(sizes)

    def next_of_model(self, request: Accepted) -> bool:
        """Return whether *request* is the one that the others of its model wait for."""
        with self._changed:
            return bool(request.model) and self._ready(request)

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
            self._models.tidy(request.model)
            if request.model:
                self._applied[request.model] = request.seq
            self._told(request.id)

    def _next(self) -> Accepted | None:
        with self._changed:
            while not self._ended:
                first: dict[str, Accepted] = {}  # by owner
                for session, queue in [*self._queues.items()]:
                    if not queue:
                        del self._queues[session]
                        continue
                    ready = next(filter(self._ready, queue.values()), None)
                    if ready is not None:
                        first.setdefault(ready.owner, ready)
                if first:
                    return self._taken(min(first.values(), key=self._last_turn))
                self._changed.wait()
        return None

    def _last_turn(self, request: Accepted) -> int:
        return self._served.get(request.owner, 0)

    def _taken(self, request: Accepted) -> Accepted:
        """Take *request* out of its queue: all other keys come before the next one of its key, and
        all other sessions of that key before the next one of its session.
        """
        del self._queues[request.session][request.id]
        self._queues.move_to_end(request.session)
        self._served[request.owner] = max(self._served.values(), default=0) + 1
        return request

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
