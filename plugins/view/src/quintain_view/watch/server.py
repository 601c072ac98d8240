"""The page of `quintain watch`, and the server behind it, for this machine alone.

A web page of somebody else, open in the same browser, must neither read a run nor steer it:

- The server listens at 127.0.0.1, and takes only requests whose ``Host`` is that address. So a name
  that leads here (DNS rebinding) gets nothing.
- Data and orders need the token of the address that the command prints. The page keeps it from the
  part of the address after ``#``, which no browser sends.
- The page may load nothing and ask nobody but this server, by its content security policy.
- Texts of rollouts are data that the script shows as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from quintain.errors import QuintainError, UsageError
from quintain.store import find_run

from ..viewer.runs import list_runs
from ..viewer.stored import SOURCES
from .index import ORDERS, Query, RolloutIndex
from .state import overview, timeline_of
from .steering import SteeringOrder, give, is_running

__all__ = ["WatchServer", "page_text"]

HOST = "127.0.0.1"
SCRIPTS = ("base.js", "curves.js", "rollouts.js", "lanes.js", "now.js", "app.js")
MOST_ROWS = 500
"""Rollouts of one answer."""
MOST_BODY = 10_000
"""Bytes of an order."""
MOST_DIGITS = 12
"""Digits of a step, of a row or of a length."""


def _part(name: str) -> str:
    return files(__package__).joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@cache
def page_text() -> tuple[str, str]:
    """Return the page and its content security policy."""
    style = _part("watch.css")
    script = '"use strict";\n' + "\n".join(map(_part, SCRIPTS))
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    head, rest = _part("watch.html").split("{{STYLE}}")
    middle, tail = rest.split("{{SCRIPT}}")
    return head + style + middle + script + tail, policy


class WatchServer:
    """Serves the runs of a folder at 127.0.0.1 until it is closed.

    Args:
        folder: parent of the run folders.
        names: the runs that the page shows first; by default the newest.
        port: 0 takes a free one.
        price: of an hour, for the cost.

    Raises:
        UsageError: the port is taken.
    """

    def __init__(
        self,
        folder: str | Path,
        names: Sequence[str] = (),
        *,
        port: int = 0,
        price: float | None = None,
    ) -> None:
        self.folder, self.names, self.price = Path(folder), list(names), price
        self.token = secrets.token_urlsafe(24)
        self._indexes: dict[Path, tuple[RolloutIndex, threading.Lock]] = {}
        self._opening = threading.Lock()
        handler = type("BoundWatchRequest", (WatchRequest,), {"watch": self})
        try:
            self._server = ThreadingHTTPServer((HOST, port), handler)
        except OSError as e:
            raise UsageError(f"port {port} of {HOST}: {e.strerror}; take another --port") from e
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.hosts = {f"{name}:{self.port}" for name in (HOST, "localhost")}

    @property
    def url(self) -> str:
        """The address with its token."""
        return f"http://{HOST}:{self.port}/#token={self.token}"

    def serve(self) -> None:
        """Answer until `close`."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop and free the port."""
        self._server.shutdown()
        self._server.server_close()

    # ---------------------------------------------------------------- answers
    def runs(self) -> dict[str, Any]:
        """Return the runs that there are, and those that the page shows first."""
        infos = list_runs(self.folder)
        known = [
            {"name": r.name, "state": r.state, "step": r.step, "steps": r.steps, "fault": r.fault}
            for r in infos
        ]
        first = self.names or [run.name for run in infos[:1]]
        return {"runs": known, "first": first, "sources": SOURCES, "orders": list(ORDERS)}

    def answer(self, path: Sequence[str], query: Mapping[str, str]) -> Any:
        """Return what is at *path* below ``/api``; ``None`` if nothing is.

        Raises:
            QuintainError: there is no such run, step or filter.
        """
        if list(path) == ["runs"]:
            return self.runs()
        if len(path) < 2 or path[0] != "runs":
            return None
        folder, rest = self._run(path[1]), list(path[2:])
        match rest:
            case []:
                return overview(folder, after=_whole(query, "after", -1), price=self.price)
            case ["facets"]:
                index, lock = self._index(folder)
                with lock:
                    index.refresh()
                    return index.facets()
            case ["rollouts"]:
                index, lock = self._index(folder)
                limit = min(MOST_ROWS, _whole(query, "limit", 100))
                with lock:
                    index.refresh()
                    return index.page(_query(query), max(0, _whole(query, "offset", 0)), limit)
            case ["rollouts", step, row] if _is_number(step) and _is_number(row):
                index, lock = self._index(folder)
                with lock:
                    return index.view(int(step), int(row))
            case ["timeline", step] if _is_number(step):
                return timeline_of(folder, int(step))
        return None

    def steer(self, name: str, body: bytes) -> dict[str, Any]:
        """Leave an order for the run *name*.

        Raises:
            QuintainError: it is no order, or the run does not run.
        """
        folder = self._run(name)
        try:
            wanted = json.loads(body)
            order = SteeringOrder(action=str(wanted["action"]), value=wanted.get("value"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise UsageError(f"no order: {e!r}") from e
        if not is_running(folder):
            raise UsageError(f"run {name!r} does not run, so nothing takes orders")
        give(folder, order)
        return {"given": order.action}

    def _run(self, name: str) -> Path:
        if "/" in name or name in ("", ".", ".."):
            raise UsageError(f"{name!r} is no name of a run")
        return find_run(self.folder / name, self.folder)

    def _index(self, folder: Path) -> tuple[RolloutIndex, threading.Lock]:
        with self._opening:
            if folder not in self._indexes:
                self._indexes[folder] = (RolloutIndex(folder), threading.Lock())
            return self._indexes[folder]


def _is_number(text: str) -> bool:
    """Return whether *text* is a number of a step or row. Python refuses to read very long ones."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def _whole(query: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(query.get(name, default))
    except ValueError as e:
        raise UsageError(f"{name} is {query[name]!r}; expected a whole number") from e


def _query(query: Mapping[str, str]) -> Query:
    def number(name: str) -> float | None:
        try:
            return float(query[name]) if query.get(name) else None
        except ValueError as e:
            raise UsageError(f"{name} is {query[name]!r}; expected a number") from e

    order = query.get("order", "newest")
    if order not in ORDERS:
        raise UsageError(f"no order {order!r}; there are {', '.join(ORDERS)}")
    return Query(
        text=query.get("text", ""),
        environment=query.get("environment", ""),
        result=query.get("result", ""),
        cause=query.get("cause", ""),
        step=_whole(query, "step", 0) if query.get("step") else None,
        low=number("low"),
        high=number("high"),
        order=order,
    )


class WatchRequest(BaseHTTPRequestHandler):
    """One request to a `WatchServer`."""

    watch: WatchServer
    protocol_version = "HTTP/1.1"
    server_version = "quintain"
    sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if not self._from_here():
            return
        if url.path == "/":
            text, policy = page_text()
            self._send(200, text.encode(), "text/html; charset=utf-8", policy)
            return
        if not self._allowed():
            return
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        path = [unquote(part) for part in url.path.strip("/").split("/")]
        try:
            answer = self.watch.answer(path[1:], query) if path[0] == "api" else None
        except QuintainError as e:
            self._json(400, {"error": str(e)})
            return
        if answer is None:
            self._json(404, {"error": f"nothing is at {url.path}"})
        else:
            self._json(200, answer)

    def do_POST(self) -> None:
        if not self._from_here() or not self._allowed():
            return
        path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        length = self.headers.get("Content-Length", "")
        if not _is_number(length) or int(length) > MOST_BODY:
            self.close_connection = True
            self._json(413, {"error": f"an order has at most {MOST_BODY} bytes"})
            return
        body = self.rfile.read(int(length))
        if len(path) != 4 or path[:2] != ["api", "runs"] or path[3] != "steer":
            self._json(404, {"error": f"nothing takes orders at {self.path}"})
            return
        try:
            self._json(200, self.watch.steer(path[2], body))
        except QuintainError as e:
            self._json(400, {"error": str(e)})

    def _from_here(self) -> bool:
        """Return whether the request was sent to this address by its own name, and not by the page
        of another site; answer it if not.
        """
        origin = self.headers.get("Origin")
        same_site = origin is None or urlsplit(origin).netloc in self.watch.hosts
        if self.headers.get("Host") in self.watch.hosts and same_site:
            return True
        self.close_connection = True
        self._json(403, {"error": f"open http://{HOST}:{self.watch.port}/ on this machine"})
        return False

    def _allowed(self) -> bool:
        """Return whether the request has the token; answer it if not."""
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if secrets.compare_digest(given.encode(), self.watch.token.encode()):
            return True
        self.close_connection = True
        self._json(401, {"error": "open the address that the command printed, with its token"})
        return False

    def _json(self, status: int, content: Any) -> None:
        body = json.dumps(content, separators=(",", ":"), default=str).encode()
        self._send(status, body, "application/json", "default-src 'none'")

    def _send(self, status: int, body: bytes, kind: str, policy: str) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as above
        """Print nothing: an address in a log would have what was searched for."""
