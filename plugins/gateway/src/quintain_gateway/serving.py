"""A model behind an address: sessions by key, each with its own conversations, reaped when nobody
uses them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from aiohttp import web

from quintain import Sampled, Sampling, TokenEngine

from .endpoint import Endpoint
from .engine_policy import EnginePolicy
from .errors import ApiError
from .server import Server, is_loopback
from .traffic import TrafficJournal, served_version

_log = logging.getLogger(__name__)
MOST_SESSIONS = 1024
MOST_CONVERSATIONS = 4096
"""Of a session; then the key begins another one, and the old one ends with its last request."""
RETIRED_SECONDS = 1.0
"""Between two looks at a session that waits for its last request."""
CONCURRENCY, QUEUE = 64, 1024
FOLLOW_SECONDS = 2.0
"""Between two looks for new weights."""


@dataclass(eq=False)
class KeySession:
    """The conversations under one key."""

    endpoint: Endpoint
    policy: EnginePolicy
    began: float = field(default_factory=time.time)
    turns: list[dict[str, Any]] = field(default_factory=list)

    def observe(self, name: str, sampled: Sampled, sampling: Sampling) -> None:
        """Note the settings of a turn, which requests choose."""
        chosen = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
        }
        self.turns.append(
            {"conversation": name, "tokens": len(sampled.ids), "finish": sampled.finish, **chosen}
        )


class ModelServer(Server):
    """Serves *engine*, one session per key.

    Args:
        key: the only one that is accepted; empty accepts any, each with a session of its own, from
            this machine.
        record: folder that each session is written to when it ends, and each reply and rating as it
            comes; ``None`` records nothing.
        follow: take the weights that `quintain traffic` accepts in *record*, while the server runs.
        idle: seconds after which an unused session ends.
    """

    def __init__(
        self,
        engine: TokenEngine,
        sampling: Sampling,
        *,
        key: str = "",
        record: Path | None = None,
        follow: bool = False,
        idle: float = 600.0,
        **server: Any,
    ) -> None:
        super().__init__(**server)
        self._engine, self._sampling = engine, sampling
        self._key, self._record, self._idle = key, record, idle
        self._follow = follow
        self._follower: asyncio.Task[None] | None = None
        self._traffic: TrafficJournal | None = None
        self._sessions: dict[str, KeySession] = {}
        self._written = 0
        self._reaper: asyncio.Task[None] | None = None
        self._retired: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        if self._record is not None:
            self._traffic = TrafficJournal(self._record)
        try:
            if self._follow:
                await self._take_served()
            await super().__aenter__()
        except BaseException:
            if self._traffic is not None:
                self._traffic.close()
            raise
        if self._follow:
            self._follower = asyncio.create_task(self._following(), name="quintain-gateway-follow")
        self._reaper = asyncio.create_task(self._reap(), name="quintain-gateway-reaper")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
        if self._follower is not None:
            self._follower.cancel()
        for key in [*self._sessions]:
            await self._end(key, self._sessions.pop(key))
        for task in self._retired:
            task.cancel()  # which ends its session
        await asyncio.gather(*self._retired, return_exceptions=True)
        await super().__aexit__(*exc)
        if self._traffic is not None:
            self._traffic.close()

    async def _following(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            await self._take_served()

    async def _take_served(self) -> None:
        """Load the weights that were accepted last; requests in flight continue under them."""
        assert self._record is not None
        served = await asyncio.to_thread(served_version, self._record)
        if served is None or served[0] == self._engine.version:
            return
        version, path = served
        try:
            await self._engine.update(await asyncio.to_thread(_weights, path, version))
        except Exception:  # noqa: BLE001 -- such as no memory; the next weights are taken all the same
            _log.exception("version %d was not loaded from %s", version, path)
        else:
            _log.warning("serving version %d from %s", version, path)

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    def check(self, request: web.Request) -> None:
        """Refuse, where there is no key, what a page in a browser could send through a name that it
        points to this machine.
        """
        host = urlsplit(f"//{request.host}").hostname or ""
        if not self._key and not is_loopback(host):
            raise ApiError(
                403,
                "unknown_host",
                f"requests without a key come from this machine; host is {host!r}",
            )

    def knows(self, key: str) -> bool:
        return not self._key or _digest(key) == _digest(self._key)

    async def endpoint_for(self, key: str) -> Endpoint:
        if not self.knows(key):
            raise ApiError(
                401, "invalid_api_key", "this is not the key that the server was started with"
            )
        session = self._sessions.get(key)
        if session is None:
            if len(self._sessions) >= MOST_SESSIONS:
                raise ApiError(
                    429, "too_many_sessions", f"{MOST_SESSIONS} sessions are open", retry=True
                )
            session = self._sessions[key] = self._session(key)
        elif session.endpoint.threads >= MOST_CONVERSATIONS:
            session = self._sessions[key] = self._successor(key, session)
        return session.endpoint

    def _successor(self, key: str, full: KeySession) -> KeySession:
        """Return the session that follows one that is *full*, whose memory would grow without
        bound; it knows the newest responses, which requests may continue.
        """
        task = asyncio.create_task(self._retire(key, full), name="quintain-gateway-retired")
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)
        session = self._session(key)
        session.endpoint.histories.update(full.endpoint.histories)
        return session

    async def _retire(self, key: str, session: KeySession) -> None:
        """End a session that gets no more requests once those in flight are answered."""
        try:
            await asyncio.sleep(RETIRED_SECONDS)
            while session.endpoint.busy:  # noqa: ASYNC110 -- nobody waits for it
                await asyncio.sleep(RETIRED_SECONDS)
        finally:
            await self._end(key, session)

    def _session(self, key: str) -> KeySession:
        policy = EnginePolicy(self._engine, self._sampling)
        endpoint = Endpoint(policy, self.base_url, key, concurrency=CONCURRENCY, queue=QUEUE)
        endpoint.traffic = self._traffic
        session = KeySession(endpoint, policy)
        policy.observe = session.observe if self._record is not None else None
        return session

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle, 30.0) / 2)
            before = asyncio.get_running_loop().time() - self._idle
            for key, session in [*self._sessions.items()]:
                if not session.endpoint.busy and session.endpoint.last_used < before:
                    await self._end(key, self._sessions.pop(key))

    async def _end(self, key: str, session: KeySession) -> None:
        await session.endpoint.close()
        if self._record is not None and session.turns:
            self._written += 1
            _write(self._record, key, session, self._written)


def _write(folder: Path, key: str, session: KeySession, number: int) -> None:
    """Write one JSON file per session, complete or not there. The key itself is not written."""
    folder.mkdir(parents=True, exist_ok=True)
    transcripts: Mapping[str, Any] = {
        name: _plain(t) for name, t in session.policy.transcripts().items()
    }
    record = {
        "session": _digest(key)[:16],
        "began": session.began,
        "turns": session.turns,
        "transcripts": transcripts,
    }
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(session.began))
    path = folder / f"{stamp}-{number:05d}-{os.getpid()}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record), encoding="utf-8")
    os.replace(temporary, path)


def _weights(path: str, version: int) -> Any:
    """Return the weights of a folder."""
    from quintain.learning import ModuleWeights
    from quintain.models import load_model

    return ModuleWeights(load_model(path).module, version)


def _plain(transcript: Any) -> dict[str, Any]:
    """Return a transcript as `quintain.Rollout.to_json` has it."""
    columns = ("ids", "sources", "logps", "versions")
    branches = [
        {"parent": b.parent, "fork": b.fork, **{c: list(getattr(b, c)) for c in columns}}
        for b in transcript.branches
    ]
    names = ("policy", "tokenizer", "temperature")
    return {"branches": branches, **{name: getattr(transcript, name) for name in names}}


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
