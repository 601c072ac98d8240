"""The Hugging Face hub: whether it can be asked, and which names of models are folders instead. Imports no torch."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from ..errors import UsageError, meaning, nearest

_PATIENCE = 5.0  # seconds for one connection; the library's own retries take over half a minute without network


def unreachable() -> str:
    """Why the hub cannot be asked, found out in one try; empty where it can."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    if {"https", "all"} & set(getproxies()):
        return ""  # the proxy knows hosts that this machine does not
    parts = urlsplit(constants.ENDPOINT)
    host = parts.hostname or parts.path
    try:
        with socket.create_connection((host, parts.port or (80 if parts.scheme == "http" else 443)), _PATIENCE):
            return ""
    except OSError as e:
        return f"{host} cannot be reached: {e.strerror or e}"


@contextmanager
def offline() -> Iterator[None]:
    """Inside the block the library, and `datasets` on top of it, look in their caches and ask nobody."""
    from huggingface_hub import constants

    modules = [m for m in (constants, sys.modules.get("datasets.config")) if m is not None]
    before = [m.HF_HUB_OFFLINE for m in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block the library does not log each retry; what it raises in the end says enough."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def is_folder(name: str) -> bool:
    """Whether a model called *name* is a folder, there or not: a hub's name neither begins nor ends like a path, and
    one that begins with a folder that is here is only the hub's where its cache has it.
    """
    if os.path.exists(os.path.expanduser(name)) or name.startswith((".", "/", "~")) or name.endswith("/"):
        return True
    owner, slash, _ = name.partition("/")
    return bool(slash) and os.path.isdir(owner) and not _in_cache(name)


def check_folder(name: str) -> None:
    """That the folder is there which *name* means; a name of the hub passes.

    Raises:
        UsageError: it is not, or is a file; the nearest folder beside it is shown.
    """
    path = Path(os.path.expanduser(name))  # the functions of os refuse no name
    if not is_folder(name) or os.path.isdir(path):
        return
    if os.path.exists(path):
        raise UsageError(f"model {name!r} is a file; expected a folder in Hugging Face format, or a hub name")
    beside = (p.name for p in path.parent.glob("*") if p.is_dir()) if os.path.isdir(path.parent) else ()
    near = nearest(path.name, beside)
    near = meaning(near and name.rstrip("/").removesuffix(path.name) + near)
    taken = "" if path.is_absolute() or name[0] in ".~" or name.endswith("/") else _taken(name)
    raise UsageError(
        f"model {name!r} does not exist{near or ';'} expected a folder in Hugging Face format, or a hub name{taken}"
    )


def check_available(name: str) -> None:
    """That the model *name* is a folder, is in the hub's cache, or can be downloaded; raises as `check_reachable`."""
    if not is_folder(name) and not _in_cache(name):
        check_reachable(name)


def saved_parameters(name: str) -> int:
    """Number of parameters in the safetensors files of the model *name*; 0 if they are not here or cannot be read."""
    cached = "" if is_folder(name) else _in_cache(name)
    folder, count = Path(cached).parent if cached else Path(os.path.expanduser(name)), 0
    try:
        for path in folder.glob("*.safetensors"):
            with open(path, "rb") as file:
                tensors = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), 100_000_000)))
            count += sum(math.prod(t["shape"]) for key, t in tensors.items() if key != "__metadata__")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return 0  # whoever loads it says what is wrong
    return count


def check_reachable(name: str) -> None:
    """That the hub, which has the model *name*, can be asked.

    Raises:
        UsageError: it cannot; the message says how to get the model.
    """
    if reason := unreachable():
        raise UsageError(
            f"cannot load model {name!r}: there is no such folder, the hub's cache does not have it, and {reason}; run "
            f"`hf download {name}` once where there is network, or name a folder in Hugging Face format"
        )


def _taken(name: str) -> str:
    return (
        f" (there is a folder {name.partition('/')[0]!r} here, so it is taken for a path; if the hub's model is meant, "
        f"`hf download {name}` fetches it first)"
    )


def _in_cache(name: str) -> str:
    """The path of a model's configuration in the hub's cache; empty if it is not there."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return ""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no name of the hub
        return ""
    return path if isinstance(path, str) else ""
