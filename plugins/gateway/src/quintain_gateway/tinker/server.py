"""The HTTP server of the API: finds the call of a path, and writes its answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from aiohttp import web

from quintain.errors import UsageError

from .. import api
from ..errors import ApiError, unsupported
from ..server import Server, is_loopback
from .calls import Calls, KeyLimits, SdkCall
from .compute import Compute
from .journal import Journal
from .models import Models
from .requests import reading
from .rest import Rest
from .turns import Turns

__all__ = ["TinkerServer"]

_log = logging.getLogger(__name__)

Handler = Callable[[SdkCall], Awaitable[Any]]

REFUSED = {
    "POST /create_custom_loss": "losses of your own run in the client: pass a callable",
    "POST /retrieve_futures": "ask for each result by retrieve_future",
    "POST /join_sampling_session": "clones of a sampling client choose their own numbers here",
    "POST /auth/token": "keys are used as they are",
    "GET /audit": "there is no audit log",
    "GET /billing/.*": "nothing is billed",
    "POST /sessions/search": "list the sessions instead",
    "PUT /sessions/[^/]+/project": "there are no projects",
    "GET /sessions/[^/]+/trace_export": "there are no traces",
}
"""Calls of the SDK that are not served, and why."""


class TinkerServer(Server):
    """Serves adapters on one base.

    Args:
        path, name: folder or id of the base, and the name that clients ask for.
        state: folder of the journal and of all weights.
        keys: those that are accepted, each an owner of its own; none accepts any, from this
            machine.

    Raises:
        UsageError: the model cannot be served, or another server uses *state*.
    """

    def __init__(
        self,
        path: str,
        name: str,
        state: Path,
        *,
        keys: Iterable[str] = (),
        limits: KeyLimits | None = None,
        slots: int = 64,
        **server: Any,
    ) -> None:
        super().__init__(models=[name], **server)
        self._keys = {_digest(key) for key in keys}
        self._journal = Journal(state)
        self.compute = Compute(path, slots=slots)
        limits = limits or KeyLimits()
        self._models = Models(self.compute, self._journal, limits.adapters, limits.disk)
        self._calls = Calls(name, self._journal, self._models, limits)
        tokenizer = str(Path(path).resolve()) if Path(path).is_dir() else path
        about = {
            "tokenizer": tokenizer,
            "context": self.compute.context,
            "arch": self.compute.architecture,
        }
        self._rest = Rest(self._calls, self._journal, self._models, about)
        self._routes = [(re.compile(p), h) for p, h in _routes(self._calls, self._rest).items()]

    async def __aenter__(self) -> Self:
        """Start to listen.

        Raises:
            UsageError: *state* is of another model.
        """
        try:
            self._journal.belong_to(self.compute.base)
        except UsageError:
            await self._close()
            raise
        if found := self._journal.found:
            _log.warning(
                "%s had no journal: %d files of weights in it stay, and no client can name them; "
                "if the folder was copied, copy journal.sqlite, too",
                self._journal.folder,
                len(found),
            )
        if swept := self._journal.sweep():
            _log.info("removed %d files of weights that killed servers left", len(swept))
        await super().__aenter__()
        self._rest.base_url = self.root_url
        loop = asyncio.get_running_loop()

        def told(request_id: str) -> None:
            loop.call_soon_threadsafe(self._calls.told, request_id)

        self._calls.worker = Turns(self.compute, self._journal, self._models, told)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        if self._calls.worker is not None:
            await asyncio.to_thread(self._calls.worker.close)
        await self._close()

    async def _close(self) -> None:
        await asyncio.to_thread(self.compute.close)
        self._journal.close()

    @property
    def root_url(self) -> str:
        """What ``TINKER_BASE_URL`` has to be."""
        return self.base_url.removesuffix("/v1")

    def check(self, request: web.Request) -> None:
        host = urlsplit(f"//{request.host}").hostname or ""
        if not self._keys and not is_loopback(host):
            message = f"requests without a key come from this machine; host is {host!r}"
            raise ApiError(403, "unknown_host", message)

    async def answer(self, request: web.Request) -> api.ApiResponse:
        self.check(request)
        if request.method == "GET" and request.path.startswith("/api/v1/files/"):
            place = unquote(request.path.removeprefix("/api/v1/files/"))
            content = await asyncio.to_thread(self._rest.file(place, request.query).read_bytes)
            return api.ApiResponse(
                headers={"Content-Type": "application/octet-stream"}, body=content
            )
        sent = (request.headers.get(name, "") for name in ("Authorization", "x-api-key"))
        key = api.key_of(*sent)
        if self._keys and _digest(key) not in self._keys:
            raise ApiError(401, "invalid_api_key", "this server does not have this key")
        handler, parts = self._route(request.method, request.path)
        call = SdkCall(
            owner=_digest(key),
            body=await request.read(),
            form=request.content_type,
            accepts=request.headers.get("Accept", ""),
            idempotency=request.headers.get("X-Idempotency-Key", ""),
            parts=parts,
            query=request.query,
        )
        with reading():
            return _response(await handler(call))

    def _route(self, method: str, path: str) -> tuple[Handler, dict[str, str]]:
        asked = f"{method} {path.removeprefix('/api/v1')}"
        if path.startswith("/api/v1/"):
            for pattern, handler in self._routes:
                if found := pattern.fullmatch(asked):
                    return handler, {k: unquote(v) for k, v in found.groupdict().items()}
            for refused, reason in REFUSED.items():
                if re.fullmatch(refused, asked):
                    raise unsupported("path", f"{asked} is not served: {reason}")
        raise ApiError(404, "unknown_url", f"no {method} {path} here; docs/tinker.md has all calls")


def _routes(calls: Calls, rest: Rest) -> dict[str, Handler]:
    run = "/training_runs/(?P<run>[^/]+)"
    checkpoint = f"{run}/checkpoints/(?P<checkpoint>[^/]+/[^/]+)"
    return {
        "POST /client/config": rest.config,
        "POST /client/dynamic_config": rest.dynamic_config,
        "POST /telemetry": rest.telemetry,
        "GET /healthz": rest.health,
        "GET /get_server_capabilities": rest.capabilities,
        "POST /create_session": calls.create_session,
        "POST /session_heartbeat": calls.heartbeat,
        "POST /sessions/(?P<session>[^/]+)/finish": calls.finish_session,
        "GET /sessions": rest.sessions,
        "GET /sessions/(?P<session>[^/]+)": rest.session,
        "POST /create_model": calls.create_model,
        "POST /get_info": rest.info,
        "POST /forward_backward": calls.forward_backward,
        "POST /forward": calls.forward,
        "POST /optim_step": calls.optim_step,
        "POST /save_weights": calls.save_weights,
        "POST /save_weights_for_sampler": calls.save_for_sampler,
        "POST /save_weights_external": calls.save_external,
        "POST /load_weights": calls.load_weights,
        "POST /unload_model": calls.unload,
        "POST /weights_info": rest.weights_info,
        "POST /copy_weights": rest.copy,
        "POST /create_sampling_session": calls.create_sampler,
        "GET /samplers/(?P<sampler>[^/]+)": calls.sampler,
        "POST /asample": calls.sample,
        "POST /cancel_future": calls.cancel,
        "POST /retrieve_future": calls.retrieve,
        "GET /training_runs": rest.runs,
        f"GET {run}": rest.run,
        f"GET {run}/checkpoints": rest.checkpoints_of,
        "GET /checkpoints": rest.checkpoints,
        f"DELETE {checkpoint}": rest.delete,
        f"POST {checkpoint}/publish": rest.publish,
        f"DELETE {checkpoint}/publish": rest.unpublish,
        f"PUT {checkpoint}/ttl": rest.ttl,
        f"GET {checkpoint}/external_weights_urls": rest.links,
    }


def _response(answer: Any) -> api.ApiResponse:
    if isinstance(answer, bytes):
        return api.ApiResponse(headers={"Content-Type": "application/x-protobuf"}, body=answer)
    status = 408 if answer.get("type") == "try_again" else 200
    headers = {"Content-Type": "application/json"}
    return api.ApiResponse(status=status, headers=headers, body=json.dumps(answer).encode())


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
