"""The model source `default`: a warm start per environment, seed and settings, whose result is
cached.

::

    ~/.cache/quintain/
        models/arithmetic-0123456789abcdef/       the trained model, under a hash of all that it depends on
        locks/arithmetic-0123456789abcdef.lock    held by the process that trains it
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quintain.console import Screen
from quintain.errors import NoTasksError, StorageError, UsageError
from quintain.models import HFTokenizer, LoadedModel, as_device, fuse_storage, load_model
from quintain.process import run_stoppable
from quintain.recipe import ModelRequest, ModelSource, opened_environments
from quintain.store import cache_folder, lock_owner, save_model, storage_errors, take_lock

from . import general_starter
from .architecture import CONTEXT, build_model, build_tokenizer
from .cache_key import Values, cache_key, values_of
from .progress import USUAL_FROM_GENERAL, USUAL_FROM_RANDOM, WarmStartProgress
from .warm_start import HALVINGS, MOST_ACCEPTED, WINDOW, AnyEnvironment, WarmStart, warm_start

FORMAT = 3
"""Counts up when a model that older code trained must not be taken from the cache."""

SHIPPED = Path(__file__).parent / "models"
"""Models that come with the package, named like those of the cache but by data and settings alone:
what ``OMP_NUM_THREADS=1 quintain start arithmetic --fresh`` writes, to the bit on the processor in
its `quintain.json`.
"""

GENERAL = general_starter()
"""What ``python -m quintain_starter.general`` trained."""

FROM_GENERAL, FROM_RANDOM = "mostly 1 to 3 minutes", "5 to 25 minutes"
"""What a warm start takes on a CPU."""

POLL_SECONDS = 0.5
"""Pause between two tries to get a lock that another process holds."""


@dataclass(frozen=True, kw_only=True)
class DefaultModel(WarmStart, ModelSource):
    """A small Qwen3-shaped model, trained on the demonstrations of the run's environments until it
    solves some tasks.

    Training begins from the general starter that comes with the package, unless a model for just
    these environments comes with it, too. Settings stand under ``[model.start.args]`` of a recipe.

    Attributes:
        target: least and greatest greedy accuracy on ``dev`` to stop at. Where one check is enough,
            up to 0.9 above it ends the warm start, too.
        check_every: updates between two checks.
        settle: consecutive checks that must find accuracy in *target*; the learning rate decays
            over their later half. From the general starter one is enough; set ``general`` to false
            for more.
        max_steps: updates at most.
        lr: learning rate of AdamW, constant after *warmup_steps* until accuracy is in *target*.
        warmup_steps: updates over which the learning rate rises.
        batch: examples per update.
        tasks: of ``dev`` for each environment, at most.
        model: sizes of the network: hidden, layers, heads, kv_heads, head_dim, intermediate; and
            initializer_range. A network with sizes of its own begins from random weights.
        general: whether to begin from the general starter; otherwise from random weights.
        seed: of random weights and of the order of examples. It does not follow the seed of a run.
    """

    general: bool = True
    seed: int = 0

    def load(self, request: ModelRequest) -> LoadedModel:
        return request.load_model(self.train_once(request))

    def folder(self, request: ModelRequest) -> Path:
        return self.train_once(request)

    def load_base(self, request: ModelRequest) -> LoadedModel:
        """Return the model before the warm start.

        Raises:
            UsageError: adapters are asked for.
        """
        if request.lora:
            raise UsageError(
                "the default model is untrained: adapters alone cannot teach it; leave model.lora "
                "out"
            )
        return untrained(request.seed, device=request.device, **(self.model or {}))

    def train_once(self, request: ModelRequest, *, again: bool = False) -> Path:
        """Return the folder of the trained model: from the cache or the package (unless *again*),
        or trained now.

        A process that is stopped or killed meanwhile leaves nothing behind; the next one begins
        again. One that finds another at work waits for it.

        Raises:
            UsageError: an environment has no demonstrations and the general starter solves no task
                of it, or no demonstration fits the context.
            StorageError: the cache cannot be written.
        """
        return run_stoppable(self._train_once(request, again))

    def remarks(self, request: ModelRequest) -> Sequence[str]:
        """Say that the model is trained first, unless it comes with the package or is in the cache;
        no service is started to find out.
        """
        name = request.specs[0].name
        if any(spec.own_slots for spec in request.specs):
            return [
                f"the default model for {name}: unless it is in the cache, a warm start trains it "
                "first"
            ]
        try:
            folders = self._folders([spec.make({}) for spec in request.specs], request)
        except NoTasksError:  # in dev, which the run says
            return ()
        if any(map(_is_complete, folders)):
            return ()
        return [_trained_first(request, general=self._is_general(folders[0]))]

    def _folders(
        self, environments: Sequence[AnyEnvironment], request: ModelRequest
    ) -> tuple[Path, Path]:
        """Return where the trained model is if it comes with the package, and if it is cached."""
        name = request.specs[0].name
        # the last word of module:Class
        plain_name = re.sub(r"[^\w.-]", "-", re.split(r"[/:]", name)[-1])
        # those taken back consume examples, too
        updates = self.max_steps + (HALVINGS + 1) * self.check_every
        examples = (updates * self.batch + WINDOW) // len(environments) + 1
        values = values_of(environments, examples=examples, tasks=self.tasks)
        data = self._hash(environments, request, values, code=False)
        shipped = SHIPPED / f"{plain_name}-{data}"
        hashed = self._hash(environments, request, values, general=self._is_general(shipped))
        return shipped, cache_folder() / "models" / f"{plain_name[:50]}-{hashed}"

    def _is_general(self, shipped: Path) -> bool:
        """Return whether training begins from the general starter, with the model that would come
        with the package at *shipped*.
        """
        return self.general and self.model is None and not _is_complete(shipped)

    async def _train_once(self, request: ModelRequest, again: bool) -> Path:
        async with opened_environments(request.specs, request.services) as (environments, services):
            name = request.specs[0].name
            shipped, folder = self._folders(environments, request)
            general = self._is_general(shipped)
            if not again and not _is_complete(folder) and _is_complete(shipped):
                request.screen.note(f"the default model for {name} comes with quintain-starter")
                return shipped
            if again or not _is_complete(folder):
                async with _locked(folder, request.screen):
                    # now, too: another process may have trained it meanwhile
                    if again or not _is_complete(folder):
                        if not again:
                            request.screen.note(_trained_first(request, general=general))
                        await self._train(
                            folder, name, environments, services, request, general=general
                        )
                        return folder
            request.screen.note(f"the default model for {name} is in the cache: {folder}")
        return folder

    async def _train(
        self,
        folder: Path,
        name: str,
        environments: Sequence[AnyEnvironment],
        services: Mapping[str, Any],
        request: ModelRequest,
        *,
        general: bool,
    ) -> None:
        screen = request.screen
        settings = replace(self, settle=1) if general else self
        usual = USUAL_FROM_GENERAL if general else USUAL_FROM_RANDOM
        progress = WarmStartProgress(screen, settings, usual)
        screen.phase(f"warm start of the default model for {name}")
        screen.note(
            f"Step 1 of 2: teach the form of an answer by demonstrations (stops at "
            f"{progress.range_text()} right on dev"
            + (f" in {settings.settle} checks in a row" if settings.settle > 1 else "")
            + f", or after {self.max_steps} updates). Step 2: reinforcement learning."
        )
        screen.note(
            "it begins from the general starter: no update where that is good enough"
            if general
            else "it begins from random weights: 0 % for the first hundred updates or so is normal"
        )

        model = (
            load_model(GENERAL, device="cpu")
            if general
            else untrained(self.seed, **(self.model or {}))
        )
        learner, report = await warm_start(
            model,
            environments,
            settings,
            seed=self.seed,
            services=services,
            trained=general,
            progress=progress.checked,
            updated=progress.updated,
        )
        with _caching(), storage_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)  # the one that is replaced, or a damaged one
            place = {"torch": torch.__version__, "threads": torch.get_num_threads()}
            place["processor"] = torch.backends.cpu.get_cpu_capability()
            save_model(
                folder,
                learner,
                model.tokenizer,
                {"warm_start": asdict(report), "trained_on": place},
            )
        if not report.demonstrations:
            screen.note(
                "an environment has no demonstrations: reinforcement learning begins with the "
                f"general starter as it is, {report.accuracy:.1%} right on dev"
            )
        elif report.jumped:
            below, above = report.jumped
            screen.warn(
                f"the warm start jumped over {progress.range_text()}: {below:.1%} "
                f"right on dev, then {above:.1%}; it keeps the nearer one, {report.accuracy:.1%}"
            )
        elif not report.reached:
            screen.warn(
                f"the warm start ended at {report.accuracy:.1%} on dev after {report.steps} "
                f"updates, outside {progress.range_text()}"
            )

    def _hash(
        self,
        environments: Sequence[AnyEnvironment],
        request: ModelRequest,
        values: Values,
        *,
        code: bool = True,
        general: bool = False,
    ) -> str:
        """Return a hash of all that the trained model depends on; without *code*, of its data and
        settings alone.

        Args:
            general: whether training begins from the general starter.
        """
        slots = {slot for spec in request.specs for slot in spec.slots}
        return cache_key(
            environments,
            {slot: request.services.get(slot) for slot in slots},
            values,
            code=code,
            format=FORMAT,
            seed=self.seed,
            settings={
                key: value for key, value in asdict(self).items() if key not in ("general", "seed")
            },
            **(
                {"general": _content(GENERAL)}
                if general
                else {"tokenizer": HFTokenizer(build_tokenizer()).name}
            ),
            **({"most_accepted": MOST_ACCEPTED} if general or self.settle == 1 else {}),
        )


def _trained_first(request: ModelRequest, *, general: bool) -> str:
    """Return the line that says that a warm start precedes the run, and its time; that from the
    *general* starter is shorter.
    """
    line = (
        f"there is no default model for {request.specs[0].name} with these settings: a warm start "
        f"trains one first, {FROM_GENERAL if general else FROM_RANDOM}"
    )
    if any(spec.reward for spec in request.specs):
        line += " (another reward is another default model: it decides what is right on dev)"
    return line


def untrained(seed: int, *, device: str = "cpu", **sizes: Any) -> LoadedModel:
    """Return the default model before the warm start; *sizes* as for
    `quintain_starter.architecture.build_model`.
    """
    module: Any = build_model(seed, **sizes)
    tokenizer = HFTokenizer(build_tokenizer(), stop_ids=tuple(module.config.eos_token_id))
    module.to(as_device(device))
    return LoadedModel(
        module=module,
        tokenizer=tokenizer,
        path="default",
        context=CONTEXT,
        fused=fuse_storage(module),
    )


def _content(folder: Path) -> str:
    """Return a hash of weights and tokenizer."""
    files = (
        folder / "model.safetensors",
        folder / "tokenizer.json",
        folder / "chat_template.jinja",
    )
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _is_complete(folder: Path) -> bool:
    return (folder / "quintain.json").is_file()


@asynccontextmanager
async def _locked(folder: Path, screen: Screen) -> AsyncIterator[None]:
    """Hold the lock of the model that is cached at *folder*, after whoever holds it now.

    Raises:
        StorageError: the lock cannot be written.
    """
    path = cache_folder() / "locks" / f"{folder.name}.lock"
    announced = False
    with _caching(), storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with _caching():
            lock = take_lock(path)
        if lock is not None:
            break
        if not announced:
            screen.note(
                f"{lock_owner(path) or 'another process'} trains this model; waiting for it"
            )
            announced = True
        await asyncio.sleep(POLL_SECONDS)
    with lock:
        _drop_leftovers(folder)
        yield


def _drop_leftovers(folder: Path) -> None:
    """Delete what processes that were killed left half written beside *folder*, whose lock is
    held.
    """
    for left in folder.parent.glob(".*.tmp-*"):
        model = left.name[1:].partition(".tmp-")[0]
        lock = (
            None if model == folder.name else take_lock(cache_folder() / "locks" / f"{model}.lock")
        )
        if lock is not None or model == folder.name:  # no other process is writing it
            shutil.rmtree(left, ignore_errors=True)
        if lock is not None:
            lock.close()


@contextmanager
def _caching() -> Iterator[None]:
    """Say in a `StorageError` how to put the cache somewhere else."""
    try:
        yield
    except StorageError as e:
        raise StorageError(f"{e}; name another cache with QUINTAIN_CACHE") from e
