"""Who is next: keys take turns, then the sessions of a key, and the requests of a model run in the
order of its client. While those who are next ask for samples, these are decoded together.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..errors import ApiError
from .compute import Compute, SampleRequest, sample_request_of
from .journal import Accepted, Journal
from .models import Models

__all__ = ["Turns"]

_log = logging.getLogger(__name__)

MOST_DEATHS = 2
"""Servers that may die while they compute a request, before it is given up: the first may have been
killed for any reason.
"""


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
            suspect = request.id in self._journal.deaths
            running: dict[str, Accepted] = {}
            try:
                if self._journal.deaths.get(request.id, 0) >= MOST_DEATHS:
                    raise ApiError(500, "killed_server", _KILLED)
                self._journal.begin([request.id])  # before its body is read, which may kill, too
                if request.kind == "asample":
                    self._begin(request, self._asked(request), running)
                else:
                    result, effects = self._models.run(request)
            except Exception as e:  # noqa: BLE001 -- whatever it is, the client is told
                self._finish(request, _failure(request, e), [])
                continue
            if request.kind == "asample":
                self._sample(running, alone=suspect)
            else:
                self._finish(request, result, effects)

    def _finish(self, request: Accepted, result: Any, effects: Any) -> None:
        self._journal.finish(request, result, effects)
        self._models.tidy(request.model)
        if request.model:
            self._applied[request.model] = request.seq
        self._told(request.id)

    def _sample(self, running: dict[str, Accepted], *, alone: bool) -> None:
        """Answer what is *running*, and beside it those that come next in turn, as long as these are
        for samples and there is room. One in which a server died runs *alone*, since it may kill this
        one, too.
        """
        refused = ""
        while running:
            while not alone and (following := self._beside(refused)) is not None:
                refused = self._join(following, running)
            for name, result in self._compute.advance():
                ended, refused = running.pop(name), ""
                if isinstance(result, Exception):
                    result = _failure(ended, result)
                self._finish(ended, result, [])

    def _join(self, request: Accepted, running: dict[str, Accepted]) -> str:
        """Begin *request* beside what is *running*; returns its name where it has to wait for room."""
        try:
            self._journal.begin([*running, request.id])
            asked = self._asked(request)
            if not self._compute.fits(asked):
                self._journal.begin(running)
                return request.id
            if self._take(request):
                self._begin(request, asked, running)
        except Exception as e:  # noqa: BLE001 -- whatever it is, the client is told
            self._take(request)
            self._finish(request, _failure(request, e), [])
        return ""

    def _begin(self, request: Accepted, asked: SampleRequest, running: dict[str, Accepted]) -> None:
        sampler = json.loads(request.body)["sampling_session_id"]
        row = self._journal.one("SELECT * FROM sampler WHERE id = ?", sampler)
        if row is None:
            raise ApiError(404, "unknown_sampler", "there is no such sampling session")
        self._compute.begin(request.id, self._models.sampler(row["file"]), asked)
        running[request.id] = request

    def _asked(self, request: Accepted) -> SampleRequest:
        return sample_request_of(request.json(), request.id, self._compute.vocabulary)

    def _beside(self, refused: str) -> Accepted | None:
        """Return the next in turn where it is another one for samples than *refused*."""
        with self._changed:
            following = None if self._ended else self._first()
        if following is None or following.kind != "asample" or following.id == refused:
            return None
        return None if following.id in self._journal.deaths else following

    def _take(self, request: Accepted) -> bool:
        """Take *request* out of its queue; returns whether it was still there."""
        with self._changed:
            present = request.id in self._queues.get(request.session, {})
            if present:
                self._taken(request)
            return present

    def _next(self) -> Accepted | None:
        with self._changed:
            while not self._ended:
                if (first := self._first()) is not None:
                    return self._taken(first)
                self._changed.wait()
        return None

    def _first(self) -> Accepted | None:
        first: dict[str, Accepted] = {}  # by owner
        for session, queue in [*self._queues.items()]:
            if not queue:
                del self._queues[session]
                continue
            ready = next(filter(self._ready, queue.values()), None)
            if ready is not None:
                first.setdefault(ready.owner, ready)
        return min(first.values(), key=self._last_turn, default=None)

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


_KILLED = (
    f"{MOST_DEATHS} servers died while they computed this request, which may have taken all memory: "
    "send a smaller one"
)


def _failure(request: Accepted, error: Exception) -> dict[str, str]:
    """Return what the client is told; the SDK raises it where the future is awaited."""
    if isinstance(error, ApiError):
        category = "user" if error.status < 500 else "server"
        return {"error": error.message, "category": category, "code": error.code}
    _log.error("request %s failed", request.id, exc_info=error)
    return {"error": f"{type(error).__name__}: {error}", "category": "server"}
