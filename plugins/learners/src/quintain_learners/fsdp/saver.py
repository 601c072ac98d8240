"""What a rank writes of a checkpoint, in a thread, and reads of one of any number of ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from quintain.interfaces import PARTS

from .model_files import Files, digest_of, write_rows
from .shards import as_part, rows_of


class Saver:
    """Writes this rank's part of one checkpoint at a time. Weights and moments do not change until
    the next update, so nothing is copied: an update waits for `wait`.
    """

    def __init__(self) -> None:
        # In a group of its own: the rank may do other work meanwhile. Files are written by the host.
        self._group, self._rank = dist.new_group(backend="gloo"), dist.get_rank()
        self._thread: threading.Thread | None = None
        self._became = "lost"  # of a process that has begun since
        self.digests: dict[str, str] = {}
        """SHA-256 of the files that this rank wrote, by their path in the folder."""

    def begin(
        self,
        folder: Path,
        tensors: Mapping[str, Tensor],
        files: Files,
        weights: Mapping[str, Tensor],
    ) -> None:
        """Begin to write this rank's parts of *tensors* into the folder `PARTS` of *folder*, and its
        rows of the *weights* into the *files* of the model.
        """

        def work() -> None:
            try:
                parts = folder / PARTS
                writer = FileSystemWriter(parts, sync_files=True)
                save(dict(tensors), storage_writer=writer, process_group=self._group)
                self._write_model(files, weights)
                own = [Path(files[self._rank][0])] if self._rank in files else []
                written = [*parts.glob(f"__{self._rank}_*"), *own]
                # Here, where nobody waits: it takes 0.7 s per GB.
                self.digests = {p.relative_to(folder).as_posix(): digest_of(p) for p in written}
                self._became = "complete"
            except CheckpointException as error:  # no `Exception`
                self._became = _first(error)
            except Exception as error:  # noqa: BLE001 - the driver raises it
                self._became = f"{type(error).__name__}: {error}"

        self.wait()
        self._became = "writing"
        self._thread = threading.Thread(target=work, name="checkpoint")
        self._thread.start()

    def _write_model(self, files: Files, weights: Mapping[str, Tensor]) -> None:
        """Write this rank's rows, and wait until all ranks have written theirs.

        Raises:
            OSError: one of them could not.
        """
        fault = ""
        try:
            for rank, (path, names) in files.items():
                write_rows(Path(path), names, weights, owns=rank == self._rank)
        except OSError as error:
            fault = str(error)
        faults = [""] * dist.get_world_size()
        dist.all_gather_object(faults, fault, group=self._group)
        if any(faults):
            raise OSError(next(filter(None, faults)))

    def wait(self) -> None:
        """Wait until all is written."""
        if self._thread is not None:
            self._thread.join()

    @property
    def became(self) -> str:
        """``writing``, ``complete``, ``lost``, or the error."""
        return self._became

    def read(self, folder: Path, like: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Return this rank's parts of the tensors in *folder*; one of a name is cut as *like* of it
        is.
        """
        reader = FileSystemReader(folder)
        tensors = {}
        for name, described in reader.read_metadata().state_dict_metadata.items():
            assert isinstance(described, TensorStorageMetadata)
            whole, shape = like(name), tuple(described.size)
            if not isinstance(whole, DTensor) or not shape:
                tensors[name] = torch.empty(shape, dtype=described.properties.dtype)
                continue
            rows = rows_of(whole, shape[0])
            size = (rows.stop - rows.start, *shape[1:])
            part = torch.empty(size, dtype=described.properties.dtype)
            tensors[name] = as_part(part.to(whole.to_local().device), whole, shape)
        try:
            load(tensors, storage_reader=reader, process_group=self._group)
        except CheckpointException as error:  # no `Exception`
            raise RuntimeError(_first(error)) from error
        return tensors


def _first(error: CheckpointException) -> str:
    """Return what failed on the first rank on which something did."""
    (fault, *_), *_ = error.failures.values()
    return f"{type(fault).__name__}: {fault}"


def flat(state: Mapping[Any, Any], prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of *state* by the path of their keys, and all other values likewise."""
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for key, value in state.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            for found, inner in zip((tensors, rest), flat(value, f"{path}/"), strict=True):
                found.update(inner)
        elif isinstance(value, Tensor):
            tensors[path] = value
        else:
            rest[path] = value
    return tensors, rest


def nested(values: Mapping[str, Any]) -> dict[Any, Any]:
    """Return what `flat` flattened; numbers are keys again."""
    state: dict[Any, Any] = {}
    for path, value in values.items():
        *outer, last = (int(key) if key.isdigit() else key for key in path.split("/"))
        inner = state
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return state
