"""Checkpoints: the state for a bit-identical resume, and a model that ``from_pretrained`` loads.

::

    checkpoints/step-000020/
        model/            Hugging Face format, tokenizer included; with LoRA the adapters alone, and the name and digest
                          of the model that they change
        learner.pt        optimizer, counters, random-number generators; weights if model/ is not exact; not in the
                          best checkpoint once later ones are kept
        parts/            instead of the optimizer in learner.pt, what a learner of several processes wrote
        state.json        what `Saving` gives: `run` (counters), `published` (weights that the
                          engine has still to get), `curriculum`, `queue` (groups that no batch has
                          taken) and `services`
        state.pt          tensors of that state, if any
        checkpoint.json   step, whether it was the best so far and by what, what the evaluation of this step
                          found (null if there was none), whether the step is still to be evaluated and
                          recorded (open), version, name of the tokenizer, number and digest of the lines of
                          each log of the run (`RunFolder.log_digests`)
        SHA256SUMS        digests of the other files, as `sha256sum -c` reads them

A checkpoint is written under a temporary name, flushed to the disk and renamed: a folder with the
name of a step is complete.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import __version__
from ..errors import RunError, StorageError, UsageError
from ..interfaces.learner import PARTS, AnyLearner, PartSaver
from ..models.hf import BASE_FILE
from .digests import ABOUT, SUMS, description_of, digests, fault_of, read_whole
from .run_folder import RunFolder
from .storage import (
    free_bytes,
    plain_data,
    remove_tree,
    steps_in,
    storage_error,
    sync_folder,
    temporary,
    write_atomically,
)

FORMAT = 2
STATE = "learner.pt"
OPEN = "open"
"""Key of ``checkpoint.json`` and of the counters in ``state.json``: the step is trained, and still to
be evaluated and recorded.
"""
_SPARE = 8_000_000
"""Bytes reserved for tokenizer, configuration and state."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint on disk; *tokenizer* is its name in the rollouts of the run."""

    path: Path
    step: int
    best: bool = False
    tokenizer: str = ""

    @property
    def model(self) -> Path:
        """The folder for ``from_pretrained``."""
        return self.path / "model"

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Open the checkpoint at *path*.

        Raises:
            RunError: it is damaged, or from a newer version of Quintain.
        """
        with read_whole(path, ABOUT):
            description = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            step, best, form = (
                int(description["step"]),
                bool(description["best"]),
                int(description["format"]),
            )
            tokenizer = str(description.get("tokenizer", ""))
            if (step, path) not in steps_in(path.parent):
                raise ValueError(f"it is of step {step}")
        if form > FORMAT:
            version = description.get("version")
            raise RunError(
                f"checkpoint {path} was made by Quintain {version}; this is {__version__}: upgrade "
                f"it"
            )
        return cls(path=path, step=step, best=best, tokenizer=tokenizer)

    def verify(self) -> None:
        """Compare the files with their digests, which takes about 0.7 s per GB, and the logs of the
        run up to here with theirs.

        Raises:
            RunError: a file is missing, added or different; the message names the last earlier
                checkpoint without such.
            RunError: it has no optimizer state, as the best one of a run after later ones.
            RunError: lines of the run's logs are missing or different.
        """
        if not (fault := fault_of(self.path)):
            if not (self.path / STATE).exists():
                kept = (
                    f"{self.path} is the best checkpoint of the run, kept without the optimizer to "
                    f"resume it"
                )
                raise RunError(f"{kept}; train its model in a new run: --model {self.model}")
            folder = RunFolder(self.path.parent.parent, lock=False)
            folder.compare_logs(self.path, moved=True)
            return
        earlier = (path for step, path in reversed(steps_in(self.path.parent)) if step < self.step)
        complete = (path for path in earlier if (path / STATE).exists())
        undamaged = next((path.name for path in complete if not fault_of(path)), None)
        fix = (
            f"continue from {undamaged}"
            if undamaged
            else "start the run again; no earlier checkpoint is undamaged"
        )
        raise RunError(f"checkpoint {self.path} is damaged ({fault}); remove the folder to {fix}")

    def verify_model(self) -> None:
        """Compare the files of the model and what is said of it with their digests, if it is of a
        checkpoint.

        Raises:
            RunError: a file is missing, added or different.
        """
        if not any((self.path / name).exists() for name in (SUMS, ABOUT)):
            return
        if fault := fault_of(self.path, "model/") or fault_of(self.path, ABOUT):
            raise RunError(
                f"the model of checkpoint {self.path} is damaged ({fault}); take another checkpoint "
                "of the run"
            )

    @property
    def state(self) -> dict[str, Any]:
        """The state of the run, as `CheckpointManager.save` received it.

        Raises:
            RunError: the checkpoint is damaged.
        """
        with read_whole(self.path):
            content = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
            return dict(_put_back(content, self.path / "state.pt"))

    def restore(self, learner: AnyLearner) -> dict[str, Any]:
        """Restore *learner* and the random-number generators of the process; return the state of
        the run.

        Raises:
            RunError: the checkpoint is damaged, or its model has other parameters.
        """
        import torch

        state = self.state
        with read_whole(self.path):
            content = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
            learner_state, generators = dict(content["learner"]), dict(content["generators"])
            hollow = next(learner.module.parameters()).is_meta  # its processes read the files
            read = "module" not in learner_state and not hollow
            weights = dict(_tensors(self.model)) if read else {}
            if read and not weights:
                raise FileNotFoundError(f"{self.model} has no weights")
        if (self.model / BASE_FILE).exists():
            from ..models.lora import check_base

            try:
                check_base(learner.module, self.model)
            except UsageError as e:
                raise RunError(f"checkpoint {self.path} cannot be resumed: {e}") from e
        try:
            if read:
                _load_weights(learner.module, weights)
            if not (self.path / PARTS).exists():
                learner.load_state_dict(learner_state)
            elif isinstance(learner, PartSaver):
                learner.load_parts(self.path / PARTS, learner_state)
            else:
                raise RunError(
                    f"checkpoint {self.path} was written by a learner of several processes; resume "
                    "it with the same learner.use"
                )
        except (RuntimeError, ValueError, KeyError) as e:
            raise RunError(
                f"checkpoint {self.path} does not fit the model of the recipe: {e}"
            ) from e
        with read_whole(self.path):
            restore_random_states(generators)
        return state


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """A checkpoint that is being written into the folder *beside*; leaving *written* names it."""

    checkpoint: Checkpoint
    beside: Path
    saver: PartSaver | None
    written: ExitStack


class CheckpointManager:
    """Saves the checkpoints of a run and deletes old ones.

    Args:
        tokenizer: its ``hf`` is saved in the model folders.
        keep: number of last checkpoints to keep.
        best: also keep the best one.
        base: path or id of the model that the adapters of a LoRA run change.
        base_learner: see `Adapters.write_adapters`.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        tokenizer: Any,
        keep: int = 3,
        best: bool = True,
        base: str = "",
        base_learner: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.tokenizer, self.keep, self.keep_best = folder, tokenizer, keep, best
        self._base, self._base_digest, self._base_learner = base, "", base_learner
        self._begun: _Begun | None = None

    def save(
        self, step: int, *, learner: AnyLearner, state: Mapping[str, Any], best: bool = False
    ) -> Path:
        """Write the checkpoint of *step* as `begin` does, and wait until it is complete; return its
        path.
        """
        path = self.begin(step, learner=learner, state=state, best=best)
        self.complete(wait=True)
        return path

    def begin(
        self,
        step: int,
        *,
        learner: AnyLearner,
        state: Mapping[str, Any],
        best: bool = False,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> Path:
        """Begin the checkpoint of *step*, which `complete` completes: of the state of now, whatever
        follows. Return the path that it will have.

        Args:
            state: plain data and tensors that `Checkpoint.restore` returns.
            best: whether this is the best model so far.
            about: plain data for ``checkpoint.json``.

        Raises:
            RunError: a weight is not finite, or the run folder was moved or deleted.
            StorageError: no room; no saved data is lost.
        """
        import torch

        from ..models.adapters import has_adapters
        from ..models.lora import digest_of, write_adapters

        final = self.folder.checkpoints / f"step-{step:06d}"
        self.folder.check()
        if self.has(step):  # a step has one state, which is saved already
            return final
        if bad := next(
            (
                n
                for n, p in learner.module.named_parameters()
                if not p.is_meta and not p.isfinite().all()
            ),
            None,
        ):
            raise RunError(
                f"the weights after step {step} are not finite ({bad}), so no checkpoint is saved; "
                "lower learner.lr or learner.max_grad_norm and continue from the checkpoint "
                "before, or start again"
            )
        beside = temporary(final)
        lora = has_adapters(learner.module)
        parts = learner if isinstance(learner, PartSaver) and learner.saves_parts else None
        needed = _weight_bytes(learner, trained=lora) + sum(
            _tensor_bytes([{} if parts else learner.state_dict(weights=False), state])
        )
        needed += parts.part_bytes() if parts else 0
        with ExitStack() as written:
            written.enter_context(_written_whole(beside, final, needed, replaces=True))
            begun = parts.begin_save(beside) if parts else {}
            model = beside / "model"
            if not model.exists() and lora:
                # they never change the base, whose digest is thus that of the whole run
                self._base_digest = self._base_digest or digest_of(learner.module)
                write_adapters(
                    model, learner.module, self._base, self._base_digest, self._base_learner
                )
            elif not model.exists():
                _write_model(model, learner)
            _write_tokenizer(model, self.tokenizer)
            learner_state = begun or learner.state_dict(
                weights=not _saved_exactly(learner.module, model)
            )
            content = {"learner": learner_state, "generators": random_states()}
            _check_loadable(
                {
                    k: v
                    for k, v in learner_state.items()
                    if k not in ("module", "optimizer", "reference")
                }
            )
            with open(beside / STATE, "wb") as file:
                torch.save(content, file)
            tensors: dict[str, Any] = {}
            _write_json(beside / "state.json", plain_data(_taken_out(state, tensors), exact=True))
            if tensors:
                torch.save(tensors, beside / "state.pt")
            name = getattr(self.tokenizer, "name", "")
            description = dict(about) | {
                "format": FORMAT,
                "step": step,
                "best": best,
                "version": __version__,
                "tokenizer": name,
                "logs": self.folder.log_digests(),
            }
            _write_json(beside / ABOUT, description)
            self._begun = _Begun(
                checkpoint=Checkpoint(path=final, step=step, best=best, tokenizer=name),
                beside=beside,
                saver=parts,
                written=written.pop_all(),
            )
        return final

    def complete(self, *, wait: bool = False) -> Checkpoint | None:
        """Complete the checkpoint that `begin` has begun, once all of it is written, and return it;
        delete old ones. ``None`` where there is none, or not yet.

        Args:
            wait: until it is written.

        Raises:
            StorageError: no room; no saved data is lost.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        with begun.written as written:
            became = begun.saver.end_save(wait=wait) if begun.saver else "complete"
            if became == "complete":
                known = begun.saver.digests if begun.saver else {}
                found = sorted(digests(begun.beside, known).items())
                sums = "".join(f"{digest}  {name}\n" for name, digest in found)
                (begun.beside / SUMS).write_text(sums, encoding="utf-8")
            elif became == "writing":
                self._begun = replace(begun, written=written.pop_all())
                return None
            else:
                written.pop_all()
                shutil.rmtree(begun.beside, ignore_errors=True)
                return None
        self.prune()
        return begun.checkpoint

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first."""
        return _complete(self.folder)

    def has(self, step: int) -> bool:
        """Return whether the checkpoint of *step* is complete: one of an open step is replaced."""
        saved = [path for at, path in steps_in(self.folder.checkpoints) if at == step]
        return any(not description_of(path).get(OPEN) for path in saved)

    def prune(self) -> None:
        """Delete all but the last *keep* and the best, and the optimizer of the best, which no
        resume needs.
        """
        checkpoints = self.all()
        best = _last_best(checkpoints) if self.keep_best else None
        for old in checkpoints[: -self.keep]:
            if old is not best:
                remove_tree(old.path)
                continue
            sums = old.path / SUMS
            text = sums.read_text(encoding="utf-8") if sums.exists() else ""
            if STATE in text:
                # The optimizer goes first: that makes the room to write the digests.
                (old.path / STATE).unlink(missing_ok=True)
                shutil.rmtree(old.path / PARTS, ignore_errors=True)
                kept = re.sub(rf".*  (?:{STATE}|{PARTS}/.*)\n", "", text)
                write_atomically(sums, kept.encode())


def latest(folder: RunFolder) -> Checkpoint | None:
    """Return the last complete checkpoint of a run."""
    steps = steps_in(folder.checkpoints)
    return Checkpoint.open(steps[-1][1]) if steps else None


def best(folder: RunFolder) -> Checkpoint | None:
    """Return the last checkpoint of a run that was the best when saved; the latest if none was."""
    checkpoints = _complete(folder)
    return _last_best(checkpoints) or (checkpoints[-1] if checkpoints else None)


def _complete(folder: RunFolder) -> list[Checkpoint]:
    return [Checkpoint.open(path) for _, path in steps_in(folder.checkpoints)]


def _last_best(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    return next((c for c in reversed(checkpoints) if c.best), None)


def save_model(
    folder: Path, learner: AnyLearner, tokenizer: Any, description: Mapping[str, Any]
) -> None:
    """Write a *folder* for ``from_pretrained``, with *description* as ``quintain.json``; on an error
    nothing is written.

    Args:
        folder: new, or empty.

    Raises:
        StorageError: no room, or the folder cannot be written.
    """
    beside = temporary(folder)
    with _written_whole(beside, folder, _weight_bytes(learner)):
        _write_model(beside, learner)
        _write_tokenizer(beside, tokenizer)
        _write_json(beside / "quintain.json", plain_data(description))


@contextmanager
def _written_whole(
    beside: Path, final: Path, needed: int, *, replaces: bool = False
) -> Iterator[None]:
    """Make the folder *beside*, to be filled with about *needed* bytes, and rename it to *final*;
    remove it on errors.

    Args:
        replaces: *final* may be there, and is deleted: the checkpoint of an open step.

    Raises:
        StorageError: no room, or the folder cannot be written.
    """
    if (free := free_bytes(final)) < needed:
        raise storage_error(final, OSError(28, f"{free} bytes free"), needed)
    replaced = beside.with_name(f"{beside.name}-replaced")
    try:
        beside.mkdir(parents=True)
        yield
        _sync_tree(beside)
        if replaces and final.exists():
            os.rename(final, replaced)  # a kill here costs the steps since the one before
        os.rename(beside, final)
        shutil.rmtree(replaced, ignore_errors=True)
        sync_folder(final.parent)
    except BaseException as e:
        if replaced.exists() and not final.exists():
            os.rename(replaced, final)
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(e, OSError) and not isinstance(e, StorageError):
            raise storage_error(final, e, needed) from e
        if _no_room(e):
            raise storage_error(final, OSError(28, str(e)), needed) from e
        raise


def _no_room(error: BaseException) -> bool:
    """Return whether *error* or its cause is a full disk; safetensors and torch report one without
    the error number.
    """
    before = error.__cause__ or error.__context__
    if before is not None and (
        (isinstance(before, OSError) and before.errno in (27, 28)) or _no_room(before)
    ):
        return True
    signs = ("No space left on device", "os error 28", "os error 27", "PytorchStreamWriter failed")
    return any(sign in str(error) for sign in signs)


def _weight_bytes(learner: AnyLearner, *, trained: bool = False) -> int:
    """Return the bytes of the weights, or of those alone that are *trained*, with what is saved
    beside them.
    """
    parameters = [p for p in learner.module.parameters() if p.requires_grad or not trained]
    return int(sum(p.numel() * p.element_size() for p in parameters)) + _SPARE


def _tensor_bytes(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensor_bytes(v)
    elif hasattr(value, "element_size"):
        yield value.numel() * value.element_size()


def _write_model(path: Path, learner: AnyLearner) -> None:
    from transformers.utils import logging

    from ..models.adapters import has_adapters

    module: Any = learner.module
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # it would break the live screen
    try:
        if has_adapters(module):
            # Adapters are merged into a copy of the tensors, under the names of a plain model.
            merged = {k: v.contiguous() for k, v in learner.weights().tensors().items()}
            module.get_base_model().save_pretrained(path, state_dict=merged)
        else:
            module.save_pretrained(path)
    finally:
        if bars:
            logging.enable_progress_bar()


def _write_tokenizer(path: Path, tokenizer: Any) -> None:
    if (tokenizer := getattr(tokenizer, "hf", None)) is not None:
        tokenizer.save_pretrained(path)


_TENSOR = "$tensor"
"""The key of a reference to a tensor in ``state.json``; the value is its name in ``state.pt``."""


def _taken_out(value: Any, tensors: dict[str, Any], path: str = "") -> Any:
    """Return *value* with each tensor replaced by a reference; the tensors are added to *tensors*."""
    if isinstance(value, Mapping):
        return {str(k): _taken_out(v, tensors, f"{path}/{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_taken_out(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]
    if not hasattr(value, "element_size"):
        return value
    tensors[path] = value.detach()
    return {_TENSOR: path}


def _put_back(value: Any, path: Path) -> Any:
    """Return *value* with each reference replaced by its tensor, read from *path*."""
    tensors: dict[str, Any] = {}
    if path.exists():
        import torch

        tensors = torch.load(path, map_location="cpu", weights_only=True)

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return (
                tensors[value[_TENSOR]]
                if set(value) == {_TENSOR}
                else {k: put(v) for k, v in value.items()}
            )
        return [put(v) for v in value] if isinstance(value, list) else value

    return put(value)


def _check_loadable(state: Mapping[str, Any]) -> None:
    """Read small state back, so that state which cannot be resumed fails now and not after a crash.

    Raises:
        RunError: the state has a value that is neither plain data nor a tensor.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as e:
        raise RunError(
            f"the state of the algorithm's pieces cannot be saved: {e}. Use plain data and tensors"
        ) from e


def _saved_exactly(module: Any, folder: Path) -> bool:
    """Return whether the model folder has every parameter under its own name and type (no renamed
    layers).
    """
    tensors = _checkpoint_tensors(module)
    saved = dict(_tensors(folder))
    places = {tensors[k].data_ptr() for k in saved if k in tensors}
    same = all(
        k in tensors and tensors[k].dtype == v.dtype and tensors[k].shape == v.shape
        for k, v in saved.items()
    )
    return same and all(k in saved or v.data_ptr() in places for k, v in tensors.items())


def _checkpoint_tensors(module: Any) -> Mapping[str, Any]:
    """Return the tensors that a checkpoint holds, in the memory of *module*: all, or those of its
    adapters.
    """
    from ..models.adapters import has_adapters
    from ..models.lora import adapter_tensors

    return adapter_tensors(module) if has_adapters(module) else module.state_dict()


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                yield name, file.get_tensor(name)


def _load_weights(module: Any, weights: Mapping[str, Any]) -> None:
    """Copy *weights* into *module*, in place; tied tensors need only one of their names."""
    import torch

    tensors = _checkpoint_tensors(module)
    places = {tensors[name].data_ptr() for name in weights}
    if absent := [
        k for k, v in tensors.items() if weights and k not in weights and v.data_ptr() not in places
    ]:
        raise KeyError(
            f"{len(absent)} of its {len(tensors)} tensors are missing, such as {absent[0]!r}"
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            tensors[name].copy_(tensor)


def random_states() -> dict[str, Any]:
    """Return the states of the process's random-number generators: Python's, NumPy's and
    torch's.
    """
    import numpy
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    kind, words, *rest = numpy.random.get_state(legacy=True)
    numpy_state = [str(kind), [int(w) for w in words], *rest]
    return {
        "python": random.getstate(),
        "numpy": numpy_state,
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore the *states* that `random_states` returned; those of devices that are not here are
    left out.
    """
    import numpy
    import torch

    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    numpy.random.set_state(tuple(states["numpy"]))
    torch.set_rng_state(states["torch"])
    # The run may go on with fewer or more devices than it was saved with.
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, state in enumerate(states["cuda"][:present]):
        torch.cuda.set_rng_state(state, device)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


def _sync_tree(folder: Path) -> None:
    mode = folder.stat().st_mode & 0o666  # safetensors makes files that only their owner can read
    for path, _, names in os.walk(folder):
        for name in names:
            os.chmod(os.path.join(path, name), mode)
            handle = os.open(os.path.join(path, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(path))
