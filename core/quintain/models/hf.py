"""The Hugging Face hub: whether it can be asked, and which names of models are folders instead.
Imports no torch.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from ..errors import UsageError, nearest, suggestion

BASE_FILE = "base_model.json"
"""File beside adapters: the path or id of the model that they change, and the SHA-256 of its
weights.
"""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
_WEIGHT_FILES = ("*.safetensors", "*.bin")
# seconds for one connection; the library's own retries take over half a minute without network
_PATIENCE = 5.0


def unreachable() -> str:
    """Return why the hub cannot be asked, found out in one try; empty where it can."""
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    if {"https", "all"} & set(getproxies()):
        return ""  # the proxy knows hosts that this machine does not
    parts = urlsplit(constants.ENDPOINT)
    host = parts.hostname or parts.path
    try:
        with socket.create_connection(
            (host, parts.port or (80 if parts.scheme == "http" else 443)), _PATIENCE
        ):
            return ""
    except OSError as e:
        return f"{host} cannot be reached: {e.strerror or e}"


@contextmanager
def offline() -> Iterator[None]:
    """Let the library, and `datasets` on top of it, look in their caches and ask nobody inside the
    block.
    """
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
    """Keep the library from logging each retry inside the block; what it raises in the end says
    enough.
    """
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def is_folder(name: str) -> bool:
    """Return whether *name* means a folder, which may not exist, and not a model of the hub.

    A name that begins or ends like a path means a folder. ``owner/model`` does where a folder
    ``owner`` exists, unless the cache of the hub has that model.
    """
    if (
        os.path.exists(os.path.expanduser(name))
        or name.startswith((".", "/", "~"))
        or name.endswith("/")
    ):
        return True
    owner, slash, _ = name.partition("/")
    return bool(slash) and os.path.isdir(owner) and not _in_cache(name)


def check_folder(name: str) -> None:
    """Check that a *name* that means a folder means one that exists; a name of the hub passes.

    Raises:
        UsageError: there is no such folder, or it is a file; the message shows the nearest folder.
    """
    path = Path(os.path.expanduser(name))  # the functions of os refuse no name
    if not is_folder(name) or os.path.isdir(path):
        return
    if os.path.exists(path):
        raise UsageError(
            f"model {name!r} is a file; expected a folder in Hugging Face format, a GGUF file, or a "
            "hub name"
        )
    beside = (
        (p.name for p in path.parent.glob("*") if p.is_dir()) if os.path.isdir(path.parent) else ()
    )
    near = nearest(path.name, beside)
    near = suggestion(near and name.rstrip("/").removesuffix(path.name) + near)
    taken = "" if path.is_absolute() or name[0] in ".~" or name.endswith("/") else _taken(name)
    raise UsageError(
        f"model {name!r} does not exist{near or ';'} expected a folder in Hugging Face format, or "
        f"a hub name{taken}"
    )


def check_files(folder: Path) -> None:
    """Check that *folder* has the configuration, the tokenizer and the weights of a model, or
    adapters.

    Raises:
        UsageError: a file is missing; the message says how to save it.
    """
    if has_adapters_alone(folder):
        return
    check_config(folder)
    if not has_tokenizer_files(folder):
        raise UsageError(
            f"model folder {folder} has no tokenizer (tokenizer.json); "
            f"save the model's own there with `tokenizer.save_pretrained({str(folder)!r})`"
        )
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHT_FILES):
        raise UsageError(
            f"model folder {folder} has no weights (*.safetensors); save them with "
            f"`model.save_pretrained`"
        )


def check_config(folder: Path) -> None:
    """Check that *folder* has the configuration of a model, which is enough to plan its memory.

    Raises:
        UsageError: it has none; the message says how to save it.
    """
    if not (folder / "config.json").exists():
        raise UsageError(
            f"model folder {folder} has no config.json; save a model there with "
            f"`model.save_pretrained({str(folder)!r})`, or name another folder"
        )


def has_tokenizer_files(folder: Path) -> bool:
    """Return whether *folder* has a tokenizer."""
    return any((folder / name).exists() for name in _TOKENIZER_FILES)


def has_adapters_alone(name: str | Path) -> bool:
    """Return whether *name* is a folder of adapters in the format of peft, which change a model
    that is elsewhere.
    """
    folder = Path(os.path.expanduser(name))
    return os.path.isfile(folder / "adapter_config.json") and not os.path.isfile(
        folder / "config.json"
    )


def base_record(folder: Path) -> dict[str, Any]:
    """Return the record of the base model in a *folder* of adapters; empty if another program wrote
    the adapters.
    """
    if not (file := folder / BASE_FILE).is_file():
        return {}
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def base_named(folder: str | Path) -> tuple[str, str]:
    """Return the path or id of the model that the adapters in *folder* change, and the digest of
    its weights or ``""``.

    Raises:
        UsageError: the folder does not say, or the files are damaged.
    """
    folder = Path(os.path.expanduser(folder))
    try:
        if os.path.isfile(folder / BASE_FILE):
            record = base_record(folder)
            return str(record["model"]), str(record["sha256"])
        base = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))[
            "base_model_name_or_path"
        ]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UsageError(f"the adapters in {folder} are damaged ({type(e).__name__}: {e})") from e
    if not base:
        raise UsageError(
            f"{folder} has LoRA adapters alone: quintain export BASE_MODEL DIR --merge {folder}"
        )
    return str(base), ""


def check_whole(name: str) -> None:
    """Refuse a folder of adapters as *name*, for programs that cannot merge them.

    Raises:
        UsageError: it is one; the message has the command that merges them.
    """
    if has_adapters_alone(name):
        raise UsageError(
            f"{name} has LoRA adapters alone: run `quintain export {name} DIR` once, and name DIR "
            f"instead"
        )


def check_available(name: str) -> None:
    """Check that the model *name* is a folder with a configuration, is in the hub's cache, or can be
    downloaded. Where *name* is a folder of adapters alone, check the model that these adapters change.

    Raises:
        UsageError: the model cannot be had; see `check_folder`, `check_config` and
            `check_reachable`.
    """
    if has_adapters_alone(name):
        check_base_available(name)
    elif is_folder(name):
        check_folder(name)
        check_config(Path(os.path.expanduser(name)))
    elif not _in_cache(name):
        check_reachable(name)


def check_base_available(folder: str | Path) -> None:
    """Check that the base model of the adapters in *folder* is here or can be downloaded.

    Raises:
        UsageError: neither is so; the message names the file that has its path.
    """
    base, _ = base_named(folder)
    try:
        check_folder(base)
        check_available(base)
    except UsageError as e:
        place = f"{Path(folder) / BASE_FILE} names the model that the adapters change"
        raise UsageError(f"{e} ({place})") from e


def config_folder(name: str) -> str:
    """Return a folder with the configuration of model *name*, which may be downloaded from the hub;
    empty if there is none.
    """
    if has_adapters_alone(name):
        name = base_named(name)[0]
    if is_folder(name):
        return os.path.expanduser(name)
    cached = _in_cache(name)
    if not cached and not unreachable():
        from huggingface_hub import hf_hub_download

        with quiet():
            cached = hf_hub_download(name, "config.json")
    return os.path.dirname(cached)


def check_reachable(name: str) -> None:
    """Check that the hub, which has the model *name*, can be asked.

    Raises:
        UsageError: it cannot; the message says how to get the model.
    """
    if reason := unreachable():
        raise UsageError(
            f"cannot load model {name!r}: there is no such folder, the hub's cache does not have "
            f"it, and {reason}; run `hf download {name}` once where there is network, or name a "
            "folder in Hugging Face format"
        )


def _taken(name: str) -> str:
    return (
        f" (there is a folder {name.partition('/')[0]!r} here, so it is taken for a path; if the "
        f"hub's model is meant, `hf download {name}` fetches it first)"
    )


def _in_cache(name: str) -> str:
    """Return the path of a model's configuration in the hub's cache; empty if it is not there."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return ""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no name of the hub
        return ""
    return path if isinstance(path, str) else ""
