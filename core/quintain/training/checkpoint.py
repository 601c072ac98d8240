"""Checkpoints: all that a run needs to go on bit for bit, and a model that ``from_pretrained`` loads.

::

    checkpoints/step-000020/
        model/            Hugging Face format, tokenizer included (adapters merged)
        learner.pt        optimizer, counters, random-number generators; weights where model/ is not exact
        state.json        curriculum, services, counters of the run
        state.pt          tensors among these, if any
        checkpoint.json   step, whether it was the best so far, version

A checkpoint is written under another name, flushed to the disk and renamed: whatever has the name of a step is whole.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import __version__
from ..errors import RunError, StorageError
from .run_folder import RunFolder
from .storage import TEMPORARY, free_bytes, plain, remove_tree, steps_in, storage_error, sync_folder

if TYPE_CHECKING:
    from torch import nn

FORMAT = 1
_SPARE = 8_000_000
"""Bytes beyond the tensors: tokenizer, configuration, state."""


class Trainable(Protocol):
    """What a checkpoint needs of a learner (`quintain.learning.learner.Learner`)."""

    module: nn.Module

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def weights(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    step: int
    best: bool = False

    @property
    def model(self) -> Path:
        """The folder for ``from_pretrained``."""
        return self.path / "model"

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read what *path* is.

        Raises:
            RunError: it is damaged, or of a newer version of Quintain.
        """
        with _read_whole(path):
            about = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
            step, best, form = int(about["step"]), bool(about["best"]), int(about["format"])
        if form > FORMAT:
            version = about.get("version")
            raise RunError(f"checkpoint {path} was made by Quintain {version}; this is {__version__}: upgrade it")
        return cls(path=path, step=step, best=best)

    @property
    def state(self) -> dict[str, Any]:
        """What the run handed over to be kept.

        Raises:
            RunError: the checkpoint is damaged.
        """
        with _read_whole(self.path):
            content = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
            return dict(_put_back(content, self.path / "state.pt"))

    def restore(self, learner: Trainable) -> dict[str, Any]:
        """Bring *learner* and the random-number generators of the process back; the run's own state.

        Raises:
            RunError: the checkpoint is damaged, or of a model with other parameters.
        """
        import torch

        state = self.state
        with _read_whole(self.path):
            content = torch.load(self.path / "learner.pt", map_location="cpu", weights_only=True)
            learner_state, generators = dict(content["learner"]), dict(content["generators"])
            weights = {} if "module" in learner_state else dict(_tensors(self.model))
            if "module" not in learner_state and not weights:
                raise FileNotFoundError(f"{self.model} holds no weights")
        try:
            _load_weights(learner.module, weights)
            learner.load_state_dict(learner_state)
        except (RuntimeError, ValueError, KeyError) as e:
            raise RunError(f"checkpoint {self.path} does not fit the model of the recipe: {e}") from e
        with _read_whole(self.path):
            restore_generators(generators)
        return state


class CheckpointManager:
    """Saves the checkpoints of a run and drops old ones.

    Args:
        tokenizer: its ``hf`` goes into the model folders.
        keep: how many of the last to keep.
        best: keep the best one too.
    """

    def __init__(self, folder: RunFolder, *, tokenizer: Any, keep: int = 3, best: bool = True) -> None:
        self.folder, self.tokenizer, self.keep, self.keep_best = folder, tokenizer, keep, best

    def save(self, step: int, *, learner: Trainable, state: Mapping[str, Any], best: bool = False) -> Path:
        """Write the checkpoint of *step*; the old ones stay untouched until it is complete and on the disk.

        Args:
            state: plain data and tensors that `Checkpoint.restore` gives back.
            best: whether this is the best model so far.

        Raises:
            StorageError: no room; nothing is lost.
        """
        final = self.folder.checkpoints / f"step-{step:06d}"
        if final.exists():  # a step has one state: it is saved already
            return final
        beside = final.with_name(f".{final.name}{TEMPORARY}{os.getpid()}")
        with _written_whole(beside, final, _bytes_of(learner) + sum(_tensor_bytes(state))):
            _write_model(beside / "model", learner, self.tokenizer)
            _write_learner(beside, learner)
            _write_state(beside, state)
            about = {"format": FORMAT, "step": step, "best": best, "version": __version__}
            _write_json(beside / "checkpoint.json", about)
        self.prune()
        return final

    def all(self) -> list[Checkpoint]:
        """The complete checkpoints, oldest first."""
        return [Checkpoint.open(path) for _, path in steps_in(self.folder.checkpoints)]

    def has(self, step: int) -> bool:
        """Whether the checkpoint of *step* is complete."""
        return any(saved == step for saved, _ in steps_in(self.folder.checkpoints))

    def prune(self) -> None:
        """Drop all but the last *keep* and the best."""
        checkpoints = self.all()
        champion = next((c for c in reversed(checkpoints) if c.best), None) if self.keep_best else None
        for old in checkpoints[: -self.keep]:
            if champion is None or old.step != champion.step:
                remove_tree(old.path)


def latest(folder: RunFolder) -> Checkpoint | None:
    """The last complete checkpoint of a run."""
    steps = steps_in(folder.checkpoints)
    return Checkpoint.open(steps[-1][1]) if steps else None


def best(folder: RunFolder) -> Checkpoint | None:
    """The best checkpoint of a run, by its marks; the latest where there is no mark."""
    checkpoints = [Checkpoint.open(path) for _, path in steps_in(folder.checkpoints)]
    return next((c for c in reversed(checkpoints) if c.best), checkpoints[-1] if checkpoints else None)


def save_model(folder: Path, learner: Trainable, tokenizer: Any, about: Mapping[str, Any]) -> None:
    """Write a *folder* for ``from_pretrained`` and beside the weights ``quintain.json``, which says what *about* says;
    all of it or nothing.

    Args:
        folder: new, or empty.

    Raises:
        StorageError: no room, or it cannot be written.
    """
    weights = sum(p.numel() * p.element_size() for p in learner.module.parameters())
    beside = folder.with_name(f".{folder.name}{TEMPORARY}{os.getpid()}")
    with _written_whole(beside, folder, weights + _SPARE):
        _write_model(beside, learner, tokenizer)
        _write_json(beside / "quintain.json", plain(about))


@contextmanager
def _read_whole(path: Path) -> Iterator[None]:
    """Whatever is found wrong with the files of the checkpoint at *path*, told as one error.

    Raises:
        RunError: it is damaged.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as e:  # json, pickle, zip, torch and safetensors each raise their own
        reason = str(e).strip().split("\n")[0] or type(e).__name__
        raise RunError(
            f"checkpoint {path} is damaged ({reason}); remove the folder to go on from an earlier one"
        ) from e


@contextmanager
def _written_whole(beside: Path, final: Path, needed: int) -> Iterator[None]:
    """Make *beside*, let it be filled with about *needed* bytes, and put it at *final*; or remove it and say what went
    wrong.
    """
    if (free := free_bytes(final)) < needed:
        raise storage_error(final, OSError(28, f"{free} bytes free"), needed)
    try:
        beside.mkdir(parents=True)
        yield
        _sync_tree(beside)
        os.rename(beside, final)
        sync_folder(final.parent)
    except BaseException as e:
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(e, OSError) and not isinstance(e, StorageError):
            raise storage_error(final, e, needed) from e
        if _no_room(e):
            raise storage_error(final, OSError(28, str(e)), needed) from e
        raise


def _no_room(error: BaseException) -> bool:
    """Whether *error*, or what it came from, is a full disk as safetensors and torch report it: without its number."""
    before = error.__cause__ or error.__context__
    if before is not None and ((isinstance(before, OSError) and before.errno in (27, 28)) or _no_room(before)):
        return True
    signs = ("No space left on device", "os error 28", "os error 27", "PytorchStreamWriter failed")
    return any(sign in str(error) for sign in signs)


def _bytes_of(learner: Trainable) -> int:
    """Room that a checkpoint takes: the weights, and whatever tensors the learner keeps besides."""
    weights = sum(p.numel() * p.element_size() for p in learner.module.parameters())
    return weights + sum(_tensor_bytes(learner.state_dict(weights=False))) + _SPARE


def _tensor_bytes(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensor_bytes(v)
    elif hasattr(value, "element_size"):
        yield value.numel() * value.element_size()


def _write_model(path: Path, learner: Trainable, tokenizer: Any) -> None:
    module: Any = learner.module
    with _without_progress_bar():
        if hasattr(module, "get_base_model"):
            # Adapters are merged into a copy of the tensors, under the names that a plain model has.
            merged = {k: v.contiguous() for k, v in learner.weights().tensors().items()}
            module.get_base_model().save_pretrained(path, state_dict=merged)
        else:
            module.save_pretrained(path)
    if (tokenizer := getattr(tokenizer, "hf", None)) is not None:
        tokenizer.save_pretrained(path)


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Of transformers, which would tear the run's own screen."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _write_learner(folder: Path, learner: Trainable) -> None:
    import torch

    whole = _saved_exactly(learner.module, folder / "model")
    content = {"learner": learner.state_dict(weights=not whole), "generators": generators()}
    _check_loadable({k: v for k, v in content["learner"].items() if k not in ("module", "optimizer", "reference")})
    with open(folder / "learner.pt", "wb") as file:
        torch.save(content, file)


_TENSOR = "$tensor"
"""The only key of what stands for a tensor in ``state.json``: its name in ``state.pt``."""


def _write_state(folder: Path, state: Mapping[str, Any]) -> None:
    import torch

    tensors: dict[str, Any] = {}
    _write_json(folder / "state.json", plain(_taken_out(state, tensors)))
    if tensors:
        torch.save(tensors, folder / "state.pt")


def _taken_out(value: Any, tensors: dict[str, Any], at: str = "") -> Any:
    """*value* with a reference in the place of each tensor, which goes into *tensors*."""
    if isinstance(value, Mapping):
        return {str(k): _taken_out(v, tensors, f"{at}/{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_taken_out(v, tensors, f"{at}/{i}") for i, v in enumerate(value)]
    if not hasattr(value, "element_size"):
        return value
    tensors[at] = value.detach()
    return {_TENSOR: at}


def _put_back(value: Any, path: Path) -> Any:
    """*value* with the tensors that it refers to, read from *path* where there are any."""
    tensors: dict[str, Any] = {}
    if path.exists():
        import torch

        tensors = torch.load(path, map_location="cpu", weights_only=True)

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return tensors[value[_TENSOR]] if set(value) == {_TENSOR} else {k: put(v) for k, v in value.items()}
        return [put(v) for v in value] if isinstance(value, list) else value

    return put(value)


def _check_loadable(state: Mapping[str, Any]) -> None:
    """Small state is read back at once, so that what cannot be resumed fails now and not after the crash.

    Raises:
        RunError: it holds something that is no plain data or tensor.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as e:
        raise RunError(f"the state of the algorithm's pieces cannot be saved: {e}. Use plain data and tensors") from e


def _saved_exactly(module: Any, folder: Path) -> bool:
    """Whether the model folder holds every parameter under its own name and type (not adapters, nor renamed layers)."""
    if hasattr(module, "get_base_model"):
        return False
    own = module.state_dict()
    saved = dict(_tensors(folder))
    places = {own[k].data_ptr() for k in saved if k in own}
    same = all(k in own and own[k].dtype == v.dtype and own[k].shape == v.shape for k, v in saved.items())
    return same and all(k in saved or v.data_ptr() in places for k, v in own.items())


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, file.get_tensor(name)


def _load_weights(module: Any, weights: Mapping[str, Any]) -> None:
    """Copy *weights* into *module*, in place; those that are tied need only one of their names."""
    import torch

    own = module.state_dict()
    places = {own[name].data_ptr() for name in weights}
    absent = [k for k, v in own.items() if weights and k not in weights and v.data_ptr() not in places]
    if absent:
        raise KeyError(f"{len(absent)} of its {len(own)} tensors are not there, {absent[0]!r} for one")
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)


def generators() -> dict[str, Any]:
    """The states of the process's random-number generators: Python's, NumPy's and torch's."""
    import numpy
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    kind, words, *rest = numpy.random.get_state(legacy=True)
    numpy_state = [str(kind), [int(w) for w in words], *rest]
    return {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state(), "cuda": cuda}


def restore_generators(states: Mapping[str, Any]) -> None:
    """Take up what `generators` gave."""
    import numpy
    import torch

    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    numpy.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, allow_nan=False) + "\n", encoding="utf-8")


def _sync_tree(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(path, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(path))
