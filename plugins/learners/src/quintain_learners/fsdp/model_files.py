"""The files of a model in Hugging Face format, of which each rank writes its own."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Files = Mapping[int, tuple[str, list[str]]]
"""By rank: the path of its file, and the names of the tensors in it."""


def model_files(module: Any, folder: Path, ranks: int) -> Files:
    """Write configuration and index of *module* into *folder*, and return which file each rank adds
    to it. Nothing is written, and none returned, for adapters, or where the format has other names
    than the module.
    """
    tensors = _saved(module)
    if hasattr(module, "disable_adapter") or not _same_names(module, tensors):
        return {}
    folder.mkdir(parents=True)
    config = copy.deepcopy(module.config)
    config.dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    config.architectures = [type(module).__name__]
    config.save_pretrained(folder)
    if module.can_generate():
        module.generation_config.save_pretrained(folder)
    names: list[list[str]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for name in sorted(tensors, key=lambda name: (-tensors[name].numel(), name)):
        least = min(range(ranks), key=loads.__getitem__)
        names[least].append(name)
        loads[least] += tensors[name].numel()
    used = [part for part in names if part]
    files = {
        rank: (f"model-{rank + 1:05d}-of-{len(used):05d}.safetensors", part)
        for rank, part in enumerate(used)
    }
    index = {
        "metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())},
        "weight_map": {name: file for file, part in files.values() for name in part},
    }
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return {rank: (str(folder / file), part) for rank, (file, part) in files.items()}


class ModelWriter:
    """Writes a file of a model in a thread. Nothing is copied: its *tensors* may change after `wait`
    alone.

    Attributes:
        became: ``writing``, ``complete``, or the error.
        digest: SHA-256 of the file once it is complete.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self.path = path
        self.became, self.digest = "writing", ""
        self._thread = Thread(target=self._write, args=(tensors,), name="model")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the file is written."""
        self._thread.join()

    def _write(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            write_file(self.path, tensors)
            self.digest = digest_of(self.path)
            self.became = "complete"
        except Exception as error:  # noqa: BLE001 - the driver raises it
            self.became = f"{type(error).__name__}: {error}"


def write_file(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write *tensors* as safetensors, down to the disk."""
    save_file(dict(tensors), path, metadata={"format": "pt"})
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_full(fault: str) -> bool:
    """Return whether the text of an error is that of a full disk, or of a limit of file sizes."""
    return any(
        sign in fault for sign in ("No space left", "os error 28", "os error 27", "File too")
    )


def _saved(module: Any) -> dict[str, Tensor]:
    """Return the tensors that a file has, by name: those that share memory under the first alone."""
    seen: set[int] = set()
    found = {}
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            found[name] = tensor
    return found


def _same_names(module: Any, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether transformers saves *tensors* of *module* as they are."""
    from transformers.core_model_loading import revert_weight_conversion

    on_paper = {name: torch.empty_like(t, device="meta") for name, t in tensors.items()}
    converted = revert_weight_conversion(module, dict(on_paper))
    return {name: tuple(t.shape) for name, t in converted.items()} == {
        name: tuple(t.shape) for name, t in on_paper.items()
    }
