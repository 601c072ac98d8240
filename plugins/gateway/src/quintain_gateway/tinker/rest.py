"""The calls of ``RestClient``: what sessions left, listed, copied, published and removed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import ApiError, invalid, unsupported
from .adapters import write_whole
from .calls import Calls, SdkCall
from .journal import Journal
from .models import Models, expiry

__all__ = ["Rest"]

LINK_SECONDS = 3600
"""How long a link to a file holds."""


class Rest:
    """Answers what needs no session.

    Args:
        base_url: of the server, with which links begin.
        about: tokenizer and context of the base.
    """

    def __init__(
        self, calls: Calls, journal: Journal, models: Models, about: Mapping[str, Any]
    ) -> None:
        self._calls, self._journal, self._models = calls, journal, models
        self._about = about
        self._copying = asyncio.Lock()
        self.base_url = ""
        secret = journal.folder / "secret"
        if not secret.is_file():
            write_whole(secret, secrets.token_bytes(32))
            secret.chmod(0o600)
        self._secret = secret.read_bytes()

    async def capabilities(self, call: SdkCall) -> Any:
        known = {"trainable": True, "sampleable": True}
        length = self._about["context"]
        model = {"model_name": self._calls.name, "max_context_length": length, **known}
        return {"supported_models": [model]}

    async def health(self, call: SdkCall) -> Any:
        return {"status": "ok"}

    async def config(self, call: SdkCall) -> Any:
        return {"pjwt_auth_enabled": False, "sample_use_retrieve_futures": False}

    async def dynamic_config(self, call: SdkCall) -> Any:
        return {"sample_cancel_enabled": True}

    async def telemetry(self, call: SdkCall) -> Any:
        return {"status": "accepted"}  # and dropped

    async def info(self, call: SdkCall) -> Any:
        row = self._calls.model(call, str(call.json().get("model_id")))
        names = {"model_name": self._calls.name, "tokenizer_id": self._about["tokenizer"]}
        return {
            "type": "get_info",
            "model_id": row["id"],
            "model_name": self._calls.name,
            "model_data": {"arch": self._about["arch"], **names},
            "is_lora": True,
            "lora_rank": _rank(row),
        }

    async def weights_info(self, call: SdkCall) -> Any:
        row = self._models.checkpoint(str(call.json().get("tinker_path")), call.owner)
        spec = json.loads(row["about"])["spec"]
        return {
            "base_model": self._calls.name,
            "is_lora": True,
            "lora_rank": spec["rank"],
            "train_unembed": spec["unembedding"],
            "train_mlp": spec["feedforward"],
            "train_attn": spec["attention"],
        }

    async def sessions(self, call: SdkCall) -> Any:
        rows = self._page(call, "SELECT id FROM session WHERE owner = ? ORDER BY created DESC")
        return {"sessions": [row["id"] for row in rows]}

    async def session(self, call: SdkCall) -> Any:
        name = call.parts["session"]
        row = self._journal.one("SELECT * FROM session WHERE id = ?", name)
        if row is None or row["owner"] != call.owner:
            raise ApiError(404, "unknown_session", f"this key has no session {name!r}")
        about = json.loads(row["about"])
        ids = {
            key: [
                r["id"]
                for r in self._journal.all(f"SELECT id FROM {table} WHERE session = ?", name)
            ]
            for key, table in (("training_run_ids", "model"), ("sampler_ids", "sampler"))
        }
        return {**ids, **{key: about.get(key) for key in ("user_metadata", "display_name")}}

    async def runs(self, call: SdkCall) -> Any:
        rows = self._page(
            call, "SELECT * FROM model WHERE owner = ? AND spec != '' ORDER BY used DESC"
        )
        total = self._journal.one("SELECT count(*) AS n FROM model WHERE owner = ?", call.owner)[
            "n"
        ]
        return {"training_runs": [self._run(row) for row in rows], "cursor": _cursor(call, total)}

    async def run(self, call: SdkCall) -> Any:
        name = call.parts["run"]
        row = self._journal.one("SELECT * FROM model WHERE id = ? AND owner = ?", name, call.owner)
        if row is None:
            raise ApiError(404, "unknown_model", f"this key has no training run {name!r}")
        return self._run(row)

    async def checkpoints_of(self, call: SdkCall) -> Any:
        rows = self._journal.all(
            f"SELECT * FROM checkpoint WHERE {VALID} AND model = ? ORDER BY created",
            call.owner,
            time.time(),
            call.parts["run"],
        )
        return {"checkpoints": [_checkpoint(row) for row in rows]}

    async def checkpoints(self, call: SdkCall) -> Any:
        rows = self._page(
            call, f"SELECT * FROM checkpoint WHERE {VALID} ORDER BY created DESC", time.time()
        )
        count = f"SELECT count(*) AS n FROM checkpoint WHERE {VALID}"
        total = self._journal.one(count, call.owner, time.time())["n"]
        return {"checkpoints": [_checkpoint(row) for row in rows], "cursor": _cursor(call, total)}

    async def delete(self, call: SdkCall) -> Any:
        row = self._own(call)
        self._journal.commit([("DELETE FROM checkpoint WHERE path = ?", (row["path"],))])
        _remove(self._journal.folder / row["file"])
        return {}

    async def publish(self, call: SdkCall) -> Any:
        return self._set(call, "public", 1)

    async def unpublish(self, call: SdkCall) -> Any:
        return self._set(call, "public", 0)

    async def ttl(self, call: SdkCall) -> Any:
        return self._set(call, "expires", expiry(call.json().get("ttl_seconds")))

    async def copy(self, call: SdkCall) -> Any:
        """Copy a checkpoint into a run of its own, once for each idempotency key."""
        async with self._copying:
            return await self._copied(call, call.json())

    async def _copied(self, call: SdkCall, body: Mapping[str, Any]) -> Any:
        key = f"{call.owner}:copy:{call.idempotency}"
        known = self._journal.one("SELECT body FROM reply WHERE key = ?", key)
        if call.idempotency and known:
            return json.loads(known["body"])
        row = self._models.checkpoint(str(body.get("source_path")), call.owner)
        if row["kind"] == "external":
            raise unsupported("source_path", "an export is not copied; copy what it was made from")
        run = f"copy-{secrets.token_hex(8)}"
        if body.get("session_id") is not None:
            session = self._calls.open_session(call, body["session_id"])["id"]
            run = f"{session}:train:{int(body['model_seq_id'])}"
        expires = expiry(body.get("ttl_seconds"))
        path = f"tinker://{run}/{row['name']}"
        if self._journal.one("SELECT 1 FROM checkpoint WHERE path = ?", path):
            raise invalid(f"{path} exists")
        file = f"checkpoints/{secrets.token_hex(16)}.safetensors"
        source = self._journal.folder / row["file"]
        if not source.is_file():
            raise ApiError(410, "gone", "the weights of this checkpoint were removed")
        room, files = self._models.disk.room(call.owner, row["bytes"])
        now, copy = time.time(), self._journal.folder / file
        await asyncio.to_thread(lambda: write_whole(copy, source.read_bytes()))
        copied = (
            path, call.owner, run, row["name"], row["kind"], now, expires, row["bytes"], 0,
            row["about"], file,
        )  # fmt: skip
        answer = {"tinker_path": path}
        places = ", ".join("?" * len(copied))
        effects: list[Any] = [*room, (f"INSERT INTO checkpoint VALUES ({places})", copied)]
        if call.idempotency:
            effects.append(("INSERT INTO reply VALUES (?, ?)", (key, json.dumps(answer))))
        self._journal.commit(effects)
        for old in files:
            _remove(self._journal.folder / old)
        return answer

    async def links(self, call: SdkCall) -> Any:
        """Return links to the files of an export, which need no key and hold for an hour."""
        row = self._own(call)
        if row["kind"] != "external":
            raise invalid(f"{row['path']} has no files to fetch: save_weights_external makes them")
        expires = int(time.time()) + LINK_SECONDS
        urls = {}
        for path in sorted((self._journal.folder / row["file"]).iterdir()):
            place = f"{Path(row['file']).name}/{path.name}"
            signed = f"expires={expires}&signature={self._signature(place, expires)}"
            urls[path.name] = f"{self.base_url}/api/v1/files/{place}?{signed}"
        return {"urls": urls, "expires": _time(expires)}

    def file(self, place: str, query: Mapping[str, str]) -> Path:
        """Return the file behind a link.

        Raises:
            ApiError: 403, the link is not one of ours, or no longer.
        """
        until = query.get("expires", "")
        expires = int(until) if re.fullmatch("[0-9]{1,12}", until) else 0
        given, right = query.get("signature", ""), self._signature(place, expires)
        same = hmac.compare_digest(given.encode(errors="replace"), right.encode())
        if not same or expires < time.time():
            raise ApiError(403, "link_over", "the link is not valid any more; ask for another one")
        path = self._journal.folder / "external" / place
        if not path.is_file():
            raise ApiError(404, "gone", "the export was removed")
        return path

    def _signature(self, place: str, expires: int) -> str:
        return hmac.new(
            self._secret, f"{place} {expires}".encode(errors="replace"), hashlib.sha256
        ).hexdigest()

    def _own(self, call: SdkCall) -> Any:
        path = f"tinker://{call.parts['run']}/{call.parts['checkpoint']}"
        row = self._models.checkpoint(path, call.owner)
        if row["owner"] != call.owner:
            raise ApiError(403, "not_yours", f"{path} was published by another key")
        return row

    def _set(self, call: SdkCall, column: str, value: Any) -> Any:
        row = self._own(call)
        self._journal.commit(
            [(f"UPDATE checkpoint SET {column} = ? WHERE path = ?", (value, row["path"]))]
        )
        return {}

    def _page(self, call: SdkCall, sql: str, *values: Any) -> list[Any]:
        limit, offset = _bounds(call)
        return self._journal.all(f"{sql} LIMIT ? OFFSET ?", call.owner, *values, limit, offset)

    def _run(self, row: Any) -> Any:
        last = {}
        for key, kind in (("last_checkpoint", "training"), ("last_sampler_checkpoint", "sampler")):
            found = self._journal.one(
                f"SELECT * FROM checkpoint WHERE {VALID} AND model = ? AND kind = ?"
                " ORDER BY created DESC",
                row["owner"],
                time.time(),
                row["id"],
                kind,
            )
            last[key] = found and _checkpoint(found)
        return {
            "training_run_id": row["id"],
            "base_model": self._calls.name,
            "model_owner": row["owner"][:12],
            "is_lora": True,
            "lora_rank": _rank(row),
            "last_request_time": _time(row["used"]),
            "user_metadata": json.loads(row["about"]),
            **last,
        }


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


VALID = "owner = ? AND (expires IS NULL OR expires > ?)"


def _checkpoint(row: Any) -> Any:
    return {
        "checkpoint_id": row["name"],
        "checkpoint_type": row["kind"],
        "time": _time(row["created"]),
        "tinker_path": row["path"],
        "size_bytes": row["bytes"],
        "public": bool(row["public"]),
        "user_metadata": json.loads(row["about"])["user"],
        "expires_at": row["expires"] and _time(row["expires"]),
    }


def _rank(row: Any) -> int | None:
    return json.loads(row["spec"])["rank"] if row["spec"] else None


def _bounds(call: SdkCall) -> tuple[int, int]:
    limit, offset = (
        int(call.query.get(key, value)) for key, value in (("limit", 20), ("offset", 0))
    )
    return max(0, min(limit, 1000)), max(0, offset)


def _cursor(call: SdkCall, total: int) -> Any:
    limit, offset = _bounds(call)
    return {"offset": offset, "limit": limit, "total_count": total}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
