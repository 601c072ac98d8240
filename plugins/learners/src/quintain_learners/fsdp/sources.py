"""Files of a model in which ranks on other machines read their parts of its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.utils import cached_file

from quintain.errors import UsageError
from quintain.models import base_of


@dataclass(frozen=True, kw_only=True)
class Source:
    """A tensor in a file of safetensors.

    Attributes:
        path: of the file.
        name: of the tensor in it.
        file: what tells the file from others, see `identity_of`.
    """

    path: str
    name: str
    file: tuple[int, int, int]

    @property
    def is_here(self) -> bool:
        """Whether this machine has the file too."""
        return os.path.exists(self.path) and identity_of(self.path) == self.file

    def read(self, rows: slice) -> Tensor:
        """Return some *rows* of the tensor, and read nothing else."""
        with safe_open(self.path, framework="pt") as file:
            part: Tensor = file.get_slice(self.name)[rows]
            return part


def identity_of(path: str | Path) -> tuple[int, int, int]:
    """Return number, bytes and time of a file: on a file system that machines share, all see the
    same, and a copy has another number.
    """
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@torch.no_grad()
def sources_of(module: nn.Module) -> Mapping[str, Source]:
    """Return where the very numbers of parameters of *module* are in the files that its model was
    loaded from, by name. Others have no entry: adapters, what has been trained, and what the files
    have under another name.
    """
    base: Any = base_of(module)
    names = {parameter: name for name, parameter in module.named_parameters()}
    parameters = {
        name.replace(".base_layer", ""): parameter for name, parameter in base.named_parameters()
    }
    found = {}
    for path in _files_of(base.config.name_or_path):
        with safe_open(path, framework="pt") as file:
            for name in parameters.keys() & set(file.keys()):
                parameter, saved = parameters[name], file.get_tensor(name)
                if saved.shape == parameter.shape and parameter.equal(saved.to(parameter.dtype)):
                    found[names[parameter]] = Source(
                        path=str(path), name=name, file=identity_of(path)
                    )
    return found


def sources_named(parameters: Mapping[str, Tensor], model: str | Path) -> Mapping[str, Source]:
    """Return where all *parameters*, by name, are in the files of *model*, a folder or a name in the
    hub's cache. Their shapes count, they need no numbers.

    Raises:
        UsageError: some are in none.
    """
    found = {}
    for path in _files_of(str(model)):
        with safe_open(path, framework="pt") as file:
            for name in parameters.keys() & set(file.keys()):
                if tuple(file.get_slice(name).get_shape()) == tuple(parameters[name].shape):
                    found[name] = Source(path=str(path), name=name, file=identity_of(path))
    if missing := [name for name in parameters if name not in found]:
        raise UsageError(
            f"learner fsdp: ranks do not find {missing[0]!r} of {model}, one of {len(missing)} such "
            "tensors, in its files of safetensors; leave out learner.args.weights, so that the run "
            "loads the model"
        )
    return found


def _files_of(model: str) -> list[Path]:
    """Return the files of safetensors of a *model*: of a folder, or of a name in the hub's cache."""
    try:
        config = cached_file(model, "config.json", local_files_only=True) if model else None
    except OSError:  # it was there when the model was loaded, if it ever was
        return []
    return [] if config is None else sorted(Path(config).absolute().parent.glob("*.safetensors"))
