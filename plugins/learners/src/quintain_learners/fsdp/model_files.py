"""The files of a model in Hugging Face format, of which each rank writes its rows."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .shards import is_writer, local, rows_of

Files = Mapping[int, tuple[str, list[str]]]
"""By rank: the path of its file, and the names of the tensors in it."""
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
"""Names of types in files of safetensors."""


def model_files(module: Any, folder: Path, ranks: int) -> Files:
    """Write configuration and index of *module* into *folder*, and return which file each rank begins
    and reads again. Nothing is written, and none returned, for adapters, or where the format has other names
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


def write_rows(
    path: Path, names: Sequence[str], tensors: Mapping[str, Tensor], *, owns: bool
) -> None:
    """Write this rank's rows of the tensors *names* into the file of safetensors at *path*, down to
    the disk; all ranks write into it.

    Args:
        tensors: by name, of which parts have the rows.
        owns: whether this rank writes the header, and tensors that all have.
    """
    header, starts = _layout(names, tensors)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb", buffering=0) as file:
        if owns:
            file.write(header)
        for name in names:
            tensor = tensors[name].detach()
            writes, row = owns, 0
            if isinstance(tensor, DTensor):
                writes, row = is_writer(tensor), rows_of(tensor).start
            part = local(tensor)
            if writes and part.numel():
                file.seek(starts[name] + row * part[:1].nbytes if part.ndim else starts[name])
                numbers: Any = part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                data = memoryview(numbers)
                while data:
                    data = data[file.write(data) :]
        os.fsync(file.fileno())


def _layout(names: Sequence[str], tensors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file of safetensors, and where each tensor begins in the file."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        tensor, begin = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        described[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)  # so that numbers are aligned
    starts = {name: 8 + len(text) + described[name]["data_offsets"][0] for name in names}
    return struct.pack("<Q", len(text)) + text, starts


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
    """Return the tensors that a file has, by name: tied ones under the first alone."""
    seen: set[int] = set()
    found = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor
    return found


def model_names_differ(module: Any) -> bool:
    """Return whether the files of *module* have other names than its tensors."""
    return not _same_names(module, _saved(module))


def _same_names(module: Any, tensors: Mapping[str, Tensor]) -> bool:
    """Return whether transformers saves *tensors* of *module* as they are."""
    from transformers.core_model_loading import revert_weight_conversion

    on_paper = {name: torch.empty_like(t, device="meta") for name, t in tensors.items()}
    converted = revert_weight_conversion(module, dict(on_paper))
    return {name: tuple(t.shape) for name, t in converted.items()} == {
        name: tuple(t.shape) for name, t in on_paper.items()
    }
