"""The cache of grown models, and growing that was broken off: it goes on where it stood.

::

    ~/.cache/quintain/models/
        Arithmetic-0123456789abcdef/             a grown model, under a hash of all that it depends on
        .Arithmetic-0123456789abcdef.growing/    while it grows, and until it is taken up again
            lock                                 held by the process that grows it
            growth                               where growing stands, behind a digest
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import torch

from ..errors import StorageError
from ..interfaces.environment import yielded
from ..models.tokenizer import HFCodec
from ..registry.binding import bind
from ..services.manager import opened
from .seedling import build_tokenizer
from .starter import HALVINGS, AnyEnvironment, Check, GrowReport, Growth, Plant, Unfit, grow, raised, save
from .storage import write_atomically

if TYPE_CHECKING:
    from .recipe.tables import Recipe
    from .resolve import Casting
    from .screen import Screen

FORMAT = 1
"""Counts up when a model grown by older code must not be taken from the cache."""

SHARE = 0.025
"""Of the time of growing that may go into writing down where it stands."""

GROWTH = 1
"""Counts up when a state of growing written by older code must not be taken up."""


Doing = Callable[[str], AbstractContextManager[Any]]


def cache_folder() -> Path:
    """Where grown models are kept: ``$QUINTAIN_CACHE``, else ``~/.cache/quintain``."""
    given = os.environ.get("QUINTAIN_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "quintain"


def grown(castings: Sequence[Casting], recipe: Recipe, screen: Screen, doing: Doing = nullcontext) -> Path:
    """The model grown for the environments and the seed of *recipe*: from the cache, or grown now and cached.

    Growing that was broken off, even by a kill, goes on where it stood and ends as if it had not been.

    Args:
        doing: entered with the word ``growing`` while it grows.

    Raises:
        UsageError: as `grow`, or wrong ``[model.start] args``.
    """
    return asyncio.run(_cached(castings, recipe, screen, doing))


async def _cached(castings: Sequence[Casting], recipe: Recipe, screen: Screen, doing: Doing) -> Path:
    wanted = {slot for casting in castings for slot in casting.slots} - {"policy"}
    async with opened(recipe.services, wanted, {}) as services:
        environments = [casting.make({**services, "policy": None}) for casting in castings]
        args = dict(recipe.model.start.args)
        planned = bind(grow, args, who="[model.start]")
        folder = cache_folder() / "models" / f"{_plain(castings[0].name)}-{_key(environments, args, recipe.run.seed)}"
        if (folder / "grown.json").is_file():
            screen.note(f"the default model for {castings[0].name} is in the cache: {folder}")
            return folder
        screen.phase(f"growing the default model on examples of {castings[0].name}")
        settings = {**_defaults(), **planned.keywords}
        with doing("growing"):
            await _into(folder, settings, environments, recipe.run.seed, screen, services)
    return folder


async def _into(
    folder: Path,
    settings: Mapping[str, Any],
    environments: Sequence[AnyEnvironment],
    seed: int,
    screen: Screen,
    services: Mapping[str, Any],
) -> None:
    """Grow, write in a folder beside, then rename, so that the cache never holds half a model."""

    def progress(check: Check) -> None:
        screen.advance()
        screen.note(_told(check, settings["target"], settings["settle"]))

    screen.note(_announced(settings))
    with Nursery(folder, screen) as nursery:
        plant, report = await _raised(nursery, environments, seed, progress, services, settings)
        _moved(plant, report, folder)
    if not report.reached:
        screen.warn(f"growing ended at {report.accuracy:.1%} on dev after {report.steps} updates, outside its target")


async def _raised(
    nursery: Nursery,
    environments: Sequence[AnyEnvironment],
    seed: int,
    progress: Any,
    services: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> tuple[Plant, GrowReport]:
    """`raised` from where growing was broken off, where that fits; else from the start."""
    growth = nursery.growth()
    if growth is not None:
        try:
            return await raised(environments, seed, progress, services, growth=growth, keep=nursery.keep, **settings)
        except Unfit as e:
            nursery.refuse(str(e))
    return await raised(environments, seed, progress, services, keep=nursery.keep, **settings)


def _announced(settings: Mapping[str, Any]) -> str:
    return (
        f"growing the default model on worked examples until it gets {_percent(settings['target'])} of dev right"
        f"{_times(settings['settle'])}; 0 % for the first hundred updates or so is normal; "
        f"at most {settings['max_steps']} updates"
    )


def _told(check: Check, target: Sequence[float], settle: int) -> str:
    about = "about " if check.rough else ""
    text = f"growing: {check.steps} updates  loss {check.loss:.3f}  dev {about}{check.accuracy:.1%}"
    if check.accuracy > target[1]:
        if check.halvings > HALVINGS:
            return f"{text}  above the target once more: the check before is the end of it"
        return f"{text}  above the target: back to the check before, on at half the learning rate"
    return f"{text}  in the target {check.inside}/{settle}" if check.inside else text


def _percent(target: Sequence[float]) -> str:
    return f"{100 * target[0]:g}-{100 * target[1]:g} %"


def _times(settle: int) -> str:
    return f" in {settle} checks in a row" if settle > 1 else ""


class Nursery(AbstractContextManager["Nursery"]):
    """Where growing for the cache entry *folder* stands, beside it; of the process that came first.

    A second process that grows the same model does so without keeping anything. What is kept goes when growing ends
    well; otherwise the last state is written when the context is left.

    Raises:
        StorageError: nothing can be written there.
    """

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.key, self.screen = folder.name, screen
        self.path = folder.with_name(f".{folder.name}.growing")
        self.file = self.path / "growth"
        self._lock: IO[str] | None = None
        self._last: Growth | None = None
        self._written: Growth | None = None
        self._next = -float("inf")

    def __enter__(self) -> Self:
        try:
            self._lock = _locked(self.path)
        except OSError as e:
            raise _cannot_cache(self.path.parent, e) from e
        if self._lock is None:
            self.screen.note(
                "another process grows this model, too; the first that is done fills the cache, and should this one "
                "be stopped, it will have kept nothing"
            )
        return self

    def growth(self) -> Growth | None:
        """Where growing was broken off; ``None`` where nothing is kept, or what is kept is of no use (a note says)."""
        if self._lock is None or not self.file.exists():
            return None
        try:
            found = _unpacked(self.file.read_bytes(), self.key)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as e:
            self.refuse(str(e).partition("\n")[0])
            return None
        self._last = self._written = found
        self.screen.note(f"going on with growing where it stood, {_place(found)}")
        return found

    def refuse(self, why: str) -> None:
        """Say that what was kept is of no use; growing begins anew."""
        self._last = self._written = None
        self.screen.note(f"{self.file} cannot be used ({why}); growing begins anew")

    def keep(self, growth: Growth) -> None:
        """Take note of where growing stands, and write it down unless that was just done."""
        self._last = growth if growth.checks else None
        if self._lock is None or self._last is None or time.monotonic() < self._next:
            return
        began = time.monotonic()
        try:
            self._write(growth)
        except StorageError as e:
            self.screen.warn(f"where growing stands is not kept from now on: {e}")
            self._next = float("inf")
            return
        ended = time.monotonic()
        self._next = ended + (ended - began) / SHARE

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._lock is None:
            return
        try:
            if error is not None:
                self._leave(error)
            if error is None or self._written is None:
                shutil.rmtree(self.path, ignore_errors=True)
        finally:
            self._lock.close()

    def _leave(self, error: BaseException) -> None:
        """Write what is not written yet, and say to somebody who stopped it what has become of it."""
        reason = ""
        if self._last is not None and self._last is not self._written:
            try:
                self._write(self._last)
            except StorageError as e:
                reason = f" ({e})"
        if isinstance(error, (KeyboardInterrupt, asyncio.CancelledError)):
            stood = f"where it stood, {_place(self._written)}, is saved" if self._written else "nothing of it is saved"
            self.screen.note(f"growing was stopped; {stood}{reason}")

    def _write(self, growth: Growth) -> None:
        write_atomically(self.file, _packed(growth, self.key))
        self._written = growth


def _place(growth: Growth) -> str:
    return f"after {growth.steps} updates (check {len(growth.checks)})"


def _packed(growth: Growth, key: str) -> bytes:
    """*growth* as bytes: a digest, then the state with the *key* that it belongs to."""
    state = {field.name: getattr(growth, field.name) for field in fields(growth)}
    state |= {"checks": [asdict(check) for check in growth.checks], "key": key, "format": GROWTH}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    return hashlib.sha256(body).digest() + body


def _unpacked(data: bytes, key: str) -> Growth:
    """What `_packed` packed.

    Raises:
        ValueError: it is damaged, or belongs to something else.
    """
    digest, body = data[:32], data[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("it is damaged")
    state = torch.load(io.BytesIO(body), weights_only=True)
    if (state.pop("key", None), state.pop("format", None)) != (key, GROWTH):
        raise ValueError("it belongs to something else")
    return Growth(**{**state, "checks": tuple(Check(**check) for check in state["checks"])})


def _locked(path: Path) -> IO[str] | None:
    """The lock of the folder at *path*, which is made; ``None`` where another process holds it."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            file = open(path / "lock", "w", encoding="utf-8")  # noqa: SIM115 - it stays open as long as growing
        except FileNotFoundError:  # whoever was done with the folder has just removed it
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path / "lock")):
                return file
        except BlockingIOError:
            file.close()
            return None
        except FileNotFoundError:
            pass
        file.close()


def _plain(name: str) -> str:
    """A name that any file system takes: the last word of ``module:Class`` and the like."""
    return re.sub(r"[^\w.-]", "-", re.split(r"[/:]", name)[-1])


def _moved(plant: Plant, report: GrowReport, folder: Path) -> None:
    """Write the model and put it at *folder*, unless another process was faster with the same one."""
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as e:
        raise _cannot_cache(folder.parent, e) from e
    try:
        save(plant, report, beside)
        beside.rename(folder)
    except OSError as e:
        if isinstance(e, StorageError):
            raise
        if not (folder / "grown.json").is_file():
            raise _cannot_cache(folder.parent, e) from e
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _cannot_cache(folder: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot write to the cache {folder}: {error}; name another with QUINTAIN_CACHE")


def _defaults() -> dict[str, Any]:
    return dict(grow.__kwdefaults__ or {})


def _key(environments: Sequence[AnyEnvironment], args: Mapping[str, Any], seed: int) -> str:
    """A hash of all that the grown model depends on: settings, sizes, tokenizer, and the environments' own examples."""
    shown = [
        {
            "type": f"{type(e).__module__}.{type(e).__qualname__}",
            "examples": [asdict(d) for d in islice(yielded(e, "demonstrations", "train"), 64)],
            "tasks": [t.id for t in islice(yielded(e, "tasks", "dev"), 64)],
            "reward": repr(e.reward),
            "system": e.system,
        }
        for e in environments
    ]
    settings = {**_defaults(), **args}
    plain = {
        "format": FORMAT,
        "seed": seed,
        "settings": settings,
        "codec": HFCodec(build_tokenizer()).name,
        "shown": shown,
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]
