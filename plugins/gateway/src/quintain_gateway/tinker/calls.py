"""The calls that a session makes: what is accepted becomes a request in the journal, and its answer
is an id with which the result is fetched.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quintain.types import derived_seed

from ..errors import ApiError, invalid, unsupported
from .journal import Accepted, Effect, Journal
from .models import Models
from .requests import head_of, output_in_protobuf, sample_in_protobuf
from .turns import Turns

__all__ = ["Calls", "KeyLimits", "SdkCall"]

POLL_SECONDS = 20.0
"""How long a request for a result waits; the SDK gives up after 45."""
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, kw_only=True)
class KeyLimits:
    """What one key may hold.

    Attributes:
        adapters: in memory at once.
        rank: of an adapter, at most.
        queue: requests that wait.
        idle: seconds after which an adapter without requests makes room for another one. It comes
            back from the disk with its next request.
        bytes: of the bodies of the requests that wait.
        disk: bytes of checkpoints, samplers and the state of adapters.
    """

    adapters: int = 64
    rank: int = 256
    queue: int = 4096
    idle: float = 600.0
    bytes: int = 1 << 28
    disk: int = 32 << 30


@dataclass(frozen=True, kw_only=True)
class SdkCall:
    """A request of HTTP by *owner*, the digest of its key.

    Attributes:
        parts: what stands in the path where its pattern has names.
    """

    owner: str
    body: bytes
    form: str
    accepts: str = ""
    idempotency: str = ""
    parts: Mapping[str, str]
    query: Mapping[str, str]

    def json(self) -> dict[str, Any]:
        """Return the object in the body.

        Raises:
            ApiError: 400, there is none.
        """
        try:
            parsed = json.loads(self.body or b"{}")
        except (ValueError, RecursionError) as e:
            raise invalid(f"the body is not JSON: {e}") from e
        if not isinstance(parsed, dict):
            raise invalid("the body is no JSON object")
        return parsed


class Calls:
    """Answers what sessions ask; used by the thread of the event loop."""

    def __init__(self, name: str, journal: Journal, models: Models, limits: KeyLimits) -> None:
        self.name, self._journal, self._models, self._limits = name, journal, models, limits
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self.worker: Turns | None = None

    def told(self, request_id: str) -> None:
        """Wake those who wait for a result."""
        for event in self._waiting.pop(request_id, []):
            event.set()

    async def create_session(self, call: SdkCall) -> Any:
        body = call.json()
        # the same request sent again is the same session
        known = uuid.uuid5(uuid.NAMESPACE_OID, call.owner + call.idempotency).hex
        session = known if call.idempotency else uuid.uuid4().hex
        row = (session, call.owner, time.time(), "", json.dumps(body))
        self._journal.commit([("INSERT OR IGNORE INTO session VALUES (?, ?, ?, ?, ?)", row)])
        return {"type": "create_session", "session_id": session}

    async def heartbeat(self, call: SdkCall) -> Any:
        row = self.open_session(call, call.json().get("session_id"))
        self._journal.forget(row["id"])
        return {"type": "session_heartbeat"}

    async def finish_session(self, call: SdkCall) -> Any:
        session = self._session(call, call.parts["session"])["id"]
        assert self.worker is not None
        self.worker.cancel(session)
        why = call.body.decode(errors="replace") or "{}"
        effects: list[Effect] = [
            ("UPDATE session SET finished = ? WHERE id = ?", (why, session)),
            ("UPDATE model SET unloaded = 1 WHERE session = ?", (session,)),
            ("DELETE FROM request WHERE session = ?", (session,)),
        ]
        files = [r["snapshot"] for r in self._models_of(session)]
        temporary = "session = ? AND path IS NULL AND file != ''"
        files += [
            r["file"]
            for r in self._journal.all(f"SELECT file FROM sampler WHERE {temporary}", session)
        ]
        self._journal.commit([*effects, (f"DELETE FROM sampler WHERE {temporary}", (session,))])
        for row in self._models_of(session):
            self._models.drop(row["id"])
        for file in filter(None, files):
            (self._journal.folder / file).unlink(missing_ok=True)
        return {}

    async def create_model(self, call: SdkCall) -> Any:
        body = call.json()
        session = self.open_session(call, body.get("session_id"))["id"]
        model = f"{session}:train:{int(body.get('model_seq_id', 0))}"
        self._check_base(body.get("base_model"))
        _check_optimizer(body.get("optimizer_config"))
        lora = body.get("lora_config")
        if not isinstance(lora, Mapping):
            raise unsupported("lora_config", "all training here is of adapters: send lora_config")
        rank = int(lora.get("rank", 0))
        if not 1 <= rank <= self._limits.rank:
            raise invalid(f"rank is {rank}; expected 1 to {self._limits.rank}", "lora_config")
        seed = lora.get("seed")
        body["spec"] = {
            "rank": rank,
            "seed": derived_seed("tinker", model) if seed is None else int(seed),
            "attention": bool(lora.get("train_attn", True)),
            "feedforward": bool(lora.get("train_mlp", True)),
            "unembedding": bool(lora.get("train_unembed", True)),
        }
        return self._new_model(call, session, model, "create_model", body)

    async def load_weights(self, call: SdkCall) -> Any:
        body = call.json()
        if body.get("weights_access_token"):
            raise unsupported("weights_access_token", "a published checkpoint needs no token here")
        if body.get("session_id") is None:
            return self._ordered(call, "load_weights", body)
        session = self.open_session(call, body["session_id"])["id"]
        if body.get("base_model") is not None:
            self._check_base(body["base_model"])
        _check_optimizer(body.get("optimizer_config"))
        self._models.checkpoint(str(body.get("path")), call.owner)
        model = f"{session}:train:{int(body.get('model_seq_id', 0))}"
        return self._new_model(call, session, model, "create_by_load", body)

    async def forward_backward(self, call: SdkCall) -> Any:
        if PROTOBUF not in call.form:
            return self._ordered(call, "forward_backward", call.json())
        model, seq, only = head_of(call.body)
        kind = "forward" if only else "forward_backward"
        return self._ordered(call, kind, {"model_id": model, "seq_id": seq})

    async def forward(self, call: SdkCall) -> Any:
        return self._ordered(call, "forward", call.json())

    async def optim_step(self, call: SdkCall) -> Any:
        return self._ordered(call, "optim_step", call.json())

    async def save_weights(self, call: SdkCall) -> Any:
        return self._ordered(call, "save_weights", call.json())

    async def save_for_sampler(self, call: SdkCall) -> Any:
        return self._ordered(call, "save_weights_for_sampler", call.json())

    async def save_external(self, call: SdkCall) -> Any:
        return self._ordered(call, "save_weights_external", call.json())

    async def unload(self, call: SdkCall) -> Any:
        body = call.json()
        row = self.model(call, str(body.get("model_id")))
        return self._ordered(call, "unload_model", {"seq_id": row["applied"] + 1, **body})

    async def create_sampler(self, call: SdkCall) -> Any:
        body = call.json()
        session = self.open_session(call, body.get("session_id"))["id"]
        sampler = f"{session}:sample:{int(body.get('sampling_session_seq_id', 0))}"
        path, file = body.get("model_path"), ""
        if path is not None:
            path = str(path)
            file = self._models.checkpoint(path, call.owner)["file"]
        else:
            self._check_base(body.get("base_model"))
        row = (sampler, call.owner, session, file, path or "")
        self._journal.commit([("INSERT OR IGNORE INTO sampler VALUES (?, ?, ?, ?, ?)", row)])
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    async def sampler(self, call: SdkCall) -> Any:
        row = self._sampler(call, call.parts["sampler"])
        return {"sampler_id": row["id"], "base_model": self.name, "model_path": row["path"] or None}

    async def sample(self, call: SdkCall) -> Any:
        body = call.json()
        if body.get("sampling_session_id") is None or body.get("seq_id") is None:
            raise invalid("a sample needs sampling_session_id and seq_id", "sampling_session_id")
        row = self._sampler(call, body["sampling_session_id"])
        request = Accepted(
            id=f"{row['id']}:{int(body['seq_id'])}",
            owner=call.owner,
            session=row["session"],
            model="",
            seq=int(body["seq_id"]),
            kind="asample",
            form=call.form,
            body=call.body,
        )
        self._accept(request)
        names = [f"{request.id}:{number}" for number in range(int(body.get("num_samples", 1)))]
        return {"request_id": request.id, "sample_sequence_ids": names}

    async def cancel(self, call: SdkCall) -> Any:
        name = str(call.json().get("request_id"))
        row = self._request(call, name)
        if row["model"]:
            raise unsupported(
                "request_id", "the requests of a model keep their order: none is cancelled"
            )
        assert self.worker is not None
        for request in self.worker.cancel(row["session"], name):
            result = {"error": "the client cancelled the request", "category": "user"}
            self._journal.finish(request, result, [])
            self.told(name)
        return {}

    async def retrieve(self, call: SdkCall) -> Any:
        """Return the result of a request, in the form that the client accepts: bytes of protobuf
        or JSON. Where there is none yet, the error 408 asks to come again.
        """
        name = str(call.json().get("request_id"))
        if not self._request(call, name)["done"]:
            self._check_worker()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._done(call, name)
            except TimeoutError:
                return {"type": "try_again", "request_id": name, "queue_state": "active"}
        row = self._request(call, name)
        result = json.loads(row["result"])
        if PROTOBUF in call.accepts and "error" not in result:
            if row["kind"] == "asample":
                return sample_in_protobuf(result)
            if row["kind"] in ("forward", "forward_backward"):
                return output_in_protobuf(result)
        return result

    async def _done(self, call: SdkCall, name: str) -> None:
        event = asyncio.Event()
        waiting = self._waiting.setdefault(name, [])
        waiting.append(event)
        try:
            if not self._request(call, name)["done"]:
                await event.wait()
        finally:  # also where the client went away
            waiting.remove(event)
            if not waiting:
                self._waiting.pop(name, None)

    def _new_model(self, call: SdkCall, session: str, model: str, kind: str, body: Any) -> Any:
        assert self.worker is not None
        known = self._journal.one("SELECT 1 FROM model WHERE id = ?", model)
        if not known:
            self._make_room(call.owner)
        if not known and len(self._models.held(call.owner)) >= self._limits.adapters:
            raise ApiError(
                403,
                "too_many_adapters",
                f"this key holds {self._limits.adapters} adapters: finish a session, or unload a model",
            )
        request = Accepted(
            id=f"{model}:0", owner=call.owner, session=session, model=model, seq=0, kind=kind,
            form="application/json", body=json.dumps(body).encode(),
        )  # fmt: skip
        about = json.dumps(body.get("user_metadata"))
        row = (model, call.owner, session, "", about, time.time())
        columns = "(id, owner, session, spec, about, used) VALUES (?, ?, ?, ?, ?, ?)"
        self._accept(request, [(f"INSERT OR IGNORE INTO model {columns}", row)])
        return {"request_id": request.id, "model_id": model}

    def _make_room(self, owner: str) -> None:
        """Drop from memory what has been idle, where *owner* holds all the adapters it may."""
        if len(self._models.held(owner)) < self._limits.adapters:
            return
        before = time.time() - self._limits.idle
        idle = "SELECT id FROM model WHERE owner = ? AND used < ?"
        for row in self._journal.all(idle, owner, before):
            self._models.drop(row["id"])

    def _ordered(self, call: SdkCall, kind: str, head: Mapping[str, Any]) -> Any:
        """Accept a request of a model, whatever is wrong in it: it takes its place in the order of
        the client, and fails there.
        """
        model, seq = str(head.get("model_id")), int(head.get("seq_id") or 0)
        row = self.model(call, model)
        if seq < 1:
            raise invalid(f"seq_id is {seq}; expected 1 or more", "seq_id")
        request = Accepted(
            id=f"{model}:{seq}", owner=call.owner, session=row["session"], model=model, seq=seq,
            kind=kind, form=call.form, body=call.body,
        )  # fmt: skip
        known = self._journal.one("SELECT 1 FROM request WHERE id = ?", request.id)
        if seq <= row["applied"] and not known:
            raise ApiError(410, "gone", f"request {seq} of {model} was answered long ago")
        self._accept(request)
        return {"request_id": request.id, "model_id": model}

    def _accept(self, request: Accepted, effects: list[Effect] | None = None) -> None:
        assert self.worker is not None
        self._check_worker()
        count, size = self.worker.queued(request.owner)
        bytes_full = size + len(request.body) > self._limits.bytes
        full = count >= self._limits.queue or bytes_full
        # The SDK sends the first part of a batch last: without it the others would wait for ever.
        if full and not self.worker.next_of_model(request):
            message = f"{count} requests of this key wait, with {size:,} bytes"
            raise ApiError(429, "queue_full", message, retry=True)
        if self._journal.accept(request, effects or []):
            self.worker.add(request)

    def _check_worker(self) -> None:
        assert self.worker is not None
        if self.worker.failure:
            raise ApiError(500, "stopped", f"the server computes no more: {self.worker.failure}")

    def model(self, call: SdkCall, model: str) -> Any:
        """Return the row of *model*.

        Raises:
            ApiError: 404, the key has none of this name.
        """
        row = self._journal.one("SELECT * FROM model WHERE id = ?", model)
        if row is None or row["owner"] != call.owner or row["unloaded"]:
            raise ApiError(404, "unknown_model", f"this key has no model {model!r}")
        return row

    def _models_of(self, session: str) -> list[Any]:
        return self._journal.all("SELECT * FROM model WHERE session = ?", session)

    def open_session(self, call: SdkCall, session: Any) -> Any:
        row = self._session(call, session)
        if row["finished"]:
            raise ApiError(410, "session_over", "the session has finished")
        return row

    def _session(self, call: SdkCall, session: Any) -> Any:
        row = self._journal.one("SELECT * FROM session WHERE id = ?", str(session))
        if row is None or row["owner"] != call.owner:
            raise ApiError(404, "unknown_session", f"this key has no session {session!r}")
        return row

    def _sampler(self, call: SdkCall, sampler: Any) -> Any:
        row = self._journal.one("SELECT * FROM sampler WHERE id = ?", str(sampler))
        if row is None or row["owner"] != call.owner:
            raise ApiError(404, "unknown_sampler", f"this key has no sampler {sampler!r}")
        return row

    def _request(self, call: SdkCall, name: str) -> Any:
        row = self._journal.one("SELECT * FROM request WHERE id = ?", name)
        if row is None or row["owner"] != call.owner:
            raise ApiError(404, "unknown_request", f"this key has no request {name!r}")
        return row

    def _check_base(self, base: Any) -> None:
        if base != self.name:
            raise ApiError(
                404, "unknown_model", f"base_model is {base!r}; this server has {self.name!r} alone"
            )


def _check_optimizer(config: Any) -> None:
    if config and config.get("type", "adamw") != "adamw":
        raise unsupported(
            "optimizer_config", f"optimizer {config.get('type')!r} is not served; take adamw"
        )
