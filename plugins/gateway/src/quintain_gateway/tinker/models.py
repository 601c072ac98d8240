"""The adapters that train, each with what it takes to have it again after a kill: the last file of
its weights, and the requests since then, which are applied again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..errors import ApiError, invalid
from .adapters import (
    Adapter,
    AdapterSpec,
    peft_config,
    read_tensors,
    settings_of,
    write_tensors,
    write_whole,
)
from .compute import Compute
from .disk import WITH_MOMENTS, Disk
from .journal import Accepted, Effect, Journal
from .requests import ForwardBackward, forward_backward_of

__all__ = ["Models", "digest", "expiry"]

SNAPSHOT_SHARE = 10.0
"""Seconds of work, per second that writing a file of weights takes, after which one is written."""
SAMPLERS = 4
"""Adapters of samplers that stay in memory."""
KEPT_SAMPLERS = 32
"""Samplers of a session without a path of their own whose weights are kept."""


@dataclass
class Live:
    """An adapter in memory.

    Attributes:
        work: seconds of computing since the last file of its weights.
        cost: seconds that writing it took.
    """

    adapter: Adapter
    owner: str
    work: float = 0.0
    cost: float = 0.0


class Models:
    """The adapters of all tenants; used by the thread that computes.

    Args:
        most: adapters of one owner in memory.
        disk: bytes of one owner on disk.

    Attributes:
        disk: what owners keep there.
    """

    def __init__(self, compute: Compute, journal: Journal, most: int, disk: int) -> None:
        self._compute, self._journal, self._most = compute, journal, most
        self.disk = Disk(journal, compute.bank.bytes_of, disk)
        self._live: dict[str, Live] = {}
        self._samplers: OrderedDict[str, Adapter] = OrderedDict()
        self._stale: list[str] = []

    def held(self, owner: str) -> set[str]:
        """Return the adapters of *owner* in memory, and those that wait to be created."""
        pending = "SELECT id FROM model WHERE owner = ? AND unloaded = 0 AND applied < 0"
        names = {row["id"] for row in self._journal.all(pending, owner)}
        return names | {name for name, live in [*self._live.items()] if live.owner == owner}

    def drop(self, model: str) -> None:
        """Free the memory of *model*; its next request brings it back from the disk."""
        self._live.pop(model, None)

    def run(self, request: Accepted) -> tuple[Any, list[Effect]]:
        """Do what *request* asks, and return its result and what to write down with it.

        Raises:
            ApiError: it cannot be done.
        """
        try:
            return self._run(request)
        except ApiError:
            raise  # nothing was changed
        except Exception:
            # It may have been changed in part, as by a step after which the disk was full.
            self.drop(request.model)
            raise

    def _run(self, request: Accepted) -> tuple[Any, list[Effect]]:
        if request.kind in ("create_model", "create_by_load"):
            return self._create(request)
        live = self._get(request.model)
        if request.kind in ("forward", "forward_backward", "optim_step", "load_weights"):
            began = time.perf_counter()
            result = self._apply(live, request)
            live.work += time.perf_counter() - began
            # What was loaded may be overwritten later, so it cannot be loaded again.
            due = request.kind == "load_weights" or (
                request.kind == "optim_step" and live.work >= SNAPSHOT_SHARE * live.cost
            )
            return result, self._snapshot(request, live) if due else []
        if request.kind == "unload_model":
            return self._unload(request)
        if request.kind == "save_weights_external":
            return self._export(request, live)
        return self._save(request, live)

    def forward(self, request: Accepted) -> ForwardBackward:
        """Return the batch in *request*."""
        parsed = None if "protobuf" in request.form else request.json()
        only = request.kind == "forward"
        return forward_backward_of(request.body, request.form, parsed, forward_only=only)

    def sampler(self, file: str) -> Adapter | None:
        """Return the adapter in *file*; an empty name is the base alone."""
        if not file:
            return None
        if not (self._journal.folder / file).is_file():
            self._samplers.pop(file, None)
        if file not in self._samplers:
            self._samplers[file] = self._read(file, optimizer=False)
        self._samplers.move_to_end(file)
        while len(self._samplers) > SAMPLERS:
            self._samplers.popitem(last=False)
        return self._samplers[file]

    def _get(self, model: str) -> Live:
        """Return the adapter *model*, brought back from the disk where a kill lost it."""
        if model in self._live:
            return self._live[model]
        row = self._journal.one("SELECT * FROM model WHERE id = ?", model)
        if row is None or row["unloaded"]:
            raise ApiError(404, "unknown_model", f"there is no model {model!r}")
        if row["spec"] == "":
            raise ApiError(
                409, "no_model", f"model {model!r} was not created: its first request failed"
            )
        if row["snapshot"]:
            adapter = self._read(row["snapshot"], optimizer=True)
        else:
            adapter = self._compute.bank.create(AdapterSpec(**json.loads(row["spec"])))
        live = Live(adapter, row["owner"])
        for request in self._journal.since(model, row["covered"]):
            self._apply(live, request)
        self._live[model] = live
        own = [name for name, other in [*self._live.items()] if other.owner == live.owner]
        for name in own[: -self._most]:
            self.drop(name)
        return live

    def _apply(self, live: Live, request: Accepted) -> Any:
        """Do a request that changes the adapter; the same request on the same state does the same."""
        if request.kind in ("forward", "forward_backward"):
            return self._compute.forward_backward(live.adapter, self.forward(request))
        body = request.json()
        if request.kind == "optim_step":
            settings = settings_of(body.get("adam_params"))
            return {"metrics": {"grad_norm:mean": live.adapter.step(settings)}}
        checkpoint = self.checkpoint(body["path"], request.owner)
        tensors, record = read_tensors(self._journal.folder / checkpoint["file"])
        if AdapterSpec(**record["spec"]) != live.adapter.spec and _shape(record["spec"]) != _shape(
            live.adapter.spec.to_json()
        ):
            raise invalid(f"{body['path']} is an adapter of another shape: {record['spec']}")
        live.adapter.load(tensors, optimizer=body["optimizer"])
        return {"type": "load_weights", "path": body["path"], "model_id": request.model}

    def _create(self, request: Accepted) -> tuple[Any, list[Effect]]:
        body = request.json()
        model = request.model
        if request.kind == "create_model":
            spec = AdapterSpec(**body["spec"])
            room = self._room(request, spec, WITH_MOMENTS)
            adapter = self._compute.bank.create(spec)
            result: dict[str, Any] = {"type": "create_model", "model_id": model}
        else:
            row = self.checkpoint(body["path"], request.owner)
            spec = AdapterSpec(**json.loads(row["about"])["spec"])
            room = self._room(request, spec, WITH_MOMENTS)
            adapter = self._read(row["file"], optimizer=body["optimizer"])
            result = {"type": "load_weights", "path": body["path"], "model_id": model}
        live = self._live[model] = Live(adapter, request.owner)
        given = ("UPDATE model SET spec = ? WHERE id = ?", (json.dumps(spec.to_json()), model))
        loaded = self._snapshot(request, live) if request.kind != "create_model" else []
        return result, [given, *loaded, *self._freed(room)]

    def _room(self, request: Accepted, spec: AdapterSpec, sizes: int) -> Any:
        return self.disk.room(request.owner, sizes * self._compute.bank.bytes_of(spec))

    def _freed(self, room: tuple[list[Effect], list[str]]) -> list[Effect]:
        """Return what forgets the files that made *room*, now that it is used."""
        effects, files = room
        self._stale += files
        return effects

    def checkpoint(self, path: str, owner: str) -> Any:
        """Return the row of the checkpoint at *path*.

        Raises:
            ApiError: 404, *owner* has none there.
        """
        row = self._journal.one("SELECT * FROM checkpoint WHERE path = ?", path)
        expired = row is not None and row["expires"] is not None and row["expires"] < time.time()
        if row is None or expired or not (row["owner"] == owner or row["public"]):
            raise ApiError(404, "unknown_checkpoint", f"there is no checkpoint {path!r}")
        return row

    def _snapshot(self, request: Accepted, live: Live) -> list[Effect]:
        began = time.perf_counter()
        old = self._journal.one("SELECT snapshot FROM model WHERE id = ?", request.model)[
            "snapshot"
        ]
        file = f"models/{digest(request.model)}/{request.seq}.safetensors"
        self._write(file, live.adapter, optimizer=True)
        live.work, live.cost = 0.0, time.perf_counter() - began
        self._stale += [old] if old not in ("", file) else []
        return [
            (
                "UPDATE model SET snapshot = ?, covered = ? WHERE id = ?",
                (file, request.seq, request.model),
            ),
            (
                "UPDATE request SET body = NULL WHERE model = ? AND seq <= ?",
                (request.model, request.seq),
            ),
        ]

    def tidy(self, model: str) -> None:
        """Free what nothing names any more, now that a result of *model* is written: files, and the
        adapter of a session that finished meanwhile.
        """
        row = self._journal.one("SELECT unloaded FROM model WHERE id = ?", model)
        if row is not None and row["unloaded"]:
            self.drop(model)
        while self._stale:
            file = self._stale.pop()
            self._samplers.pop(file, None)
            path = self._journal.folder / file
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _save(self, request: Accepted, live: Live) -> tuple[Any, list[Effect]]:
        body = request.json()
        trains = request.kind == "save_weights"
        if not trains and body.get("path") is None:
            # for one sampler alone, which no list shows
            sampler = f"{request.session}:sample:{int(body['sampling_session_seq_id'])}"
            file = f"samplers/{digest(f'{sampler} {request.seq}')}.safetensors"
            room = self._room(request, live.adapter.spec, 1)
            self._write(file, live.adapter, optimizer=False)
            self._replaces("SELECT file FROM sampler WHERE id = ?", sampler, file)
            row = (sampler, request.owner, request.session, file, None)
            kept = ("INSERT OR REPLACE INTO sampler VALUES (?, ?, ?, ?, ?)", row)
            result = {"type": request.kind, "sampling_session_id": sampler}
            return result, [kept, *self._without_old(request.session), *self._freed(room)]
        path = self._free(request, body, "weights" if trains else "sampler_weights")
        # Each write has a file of its own: a sampler of the former weights must not read these.
        file = f"checkpoints/{digest(f'{path} {request.seq}')}.safetensors"
        row = self._row(request, live, path, file)
        room = self._room(request, live.adapter.spec, WITH_MOMENTS if trains else 1)
        size = self._write(file, live.adapter, optimizer=trains)
        return self._kept(request, row, size, room)

    def _unload(self, request: Accepted) -> tuple[Any, list[Effect]]:
        row = self._journal.one("SELECT snapshot FROM model WHERE id = ?", request.model)
        self._stale += [row["snapshot"]] if row["snapshot"] else []
        self.drop(request.model)
        gone = ("UPDATE model SET unloaded = 1 WHERE id = ?", (request.model,))
        return {"type": "unload_model", "model_id": request.model}, [gone]

    def _without_old(self, session: str) -> list[Effect]:
        """Return what drops all but the newest samplers of *session* that no list shows."""
        rows = self._journal.all(
            "SELECT id, file FROM sampler WHERE session = ? AND path IS NULL AND file != ''"
            " ORDER BY rowid DESC LIMIT -1 OFFSET ?",
            session,
            KEPT_SAMPLERS - 1,
        )
        self._stale += [row["file"] for row in rows]
        return [("DELETE FROM sampler WHERE id = ?", (row["id"],)) for row in rows]

    def _export(self, request: Accepted, live: Live) -> tuple[Any, list[Effect]]:
        body = request.json()
        if body.get("age_encryption_recipients"):
            raise invalid("age_encryption_recipients: files are not encrypted here; leave it out")
        path = self._free(request, body, "external_weights")
        folder = f"external/{digest(f'{path} {request.seq}')}"
        row = self._row(request, live, path, folder)
        room = self._room(request, live.adapter.spec, 1)
        size = self._write(f"{folder}/adapter_model.safetensors", live.adapter, optimizer=False)
        config = json.dumps(peft_config(live.adapter, self._compute.path)).encode()
        write_whole(self._journal.folder / folder / "adapter_config.json", config)
        return self._kept(request, row, size + len(config), room)

    def _free(self, request: Accepted, body: Any, kind: str) -> str:
        name = str(body.get("path"))
        if not name or "/" in name or len(name) > 200:
            raise invalid(f"path is {name!r}; expected a name without slashes", "path")
        path = f"tinker://{request.model}/{kind}/{name}"
        valid = "path = ? AND (expires IS NULL OR expires > ?)"
        taken = self._journal.one(f"SELECT 1 FROM checkpoint WHERE {valid}", path, time.time())
        if taken and not body.get("overwrite"):
            raise ApiError(409, "exists", f"{path} exists; set overwrite, or take another name")
        return path

    def _row(self, request: Accepted, live: Live, path: str, file: str) -> tuple[Any, ...]:
        """Return the row of a checkpoint, but for its bytes."""
        body, now = request.json(), time.time()
        about = {"user": body.get("user_metadata"), "spec": live.adapter.spec.to_json()}
        part = path.split("/")[3]
        kind = {"weights": "training", "sampler_weights": "sampler"}.get(part, "external")
        name = "/".join(path.split("/")[3:])
        expires = expiry(body.get("ttl_seconds"))
        first = (path, request.owner, request.model, name, kind, now, expires)
        return (*first, 0, json.dumps(about), file)

    def _kept(
        self,
        request: Accepted,
        row: tuple[Any, ...],
        size: int,
        room: tuple[list[Effect], list[str]],
    ) -> tuple[Any, list[Effect]]:
        path, file = row[0], row[-1]
        self._replaces("SELECT file FROM checkpoint WHERE path = ?", path, file)
        values = (*row[:7], size, *row[7:])
        places = ", ".join("?" * len(values))
        kept = (f"INSERT OR REPLACE INTO checkpoint VALUES ({places})", values)
        return {"type": request.kind, "path": path}, [*self._freed(room), kept]

    def _replaces(self, sql: str, name: str, file: str) -> None:
        """Remove, once the result is written, the file that *file* replaces."""
        old = self._journal.one(sql, name)
        self._stale += [old["file"]] if old and old["file"] not in ("", file) else []

    def _write(self, file: str, adapter: Adapter, *, optimizer: bool) -> int:
        record = {"spec": adapter.spec.to_json(), "base": self._compute.path}
        tensors = adapter.tensors(optimizer=optimizer)
        return write_tensors(self._journal.folder / file, tensors, record=record)

    def _read(self, file: str, *, optimizer: bool) -> Adapter:
        path = self._journal.folder / file
        if not path.is_file():
            raise ApiError(410, "gone", "the weights of this sampler or model were removed")
        tensors, record = read_tensors(path)
        adapter = self._compute.bank.create(AdapterSpec(**record["spec"]))
        adapter.load(tensors, optimizer=optimizer)
        return adapter


def _shape(spec: Any) -> Any:
    return {name: value for name, value in spec.items() if name != "seed"}


def digest(name: str) -> str:
    """Return the name of a file for what has *name*."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def expiry(seconds: Any) -> float | None:
    """Return the time at which what is kept for *seconds* ends; ``None`` is never.

    Raises:
        ApiError: 400, it is no time.
    """
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not abs(seconds) < 1e10:
        raise invalid(f"ttl_seconds is {seconds!r}; expected seconds, or none", "ttl_seconds")
    return time.time() + float(seconds)
