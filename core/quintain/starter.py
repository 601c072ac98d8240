"""The supervised start: a small model is grown on an environment's worked examples, far enough to be rewarded at times.

Without it a small model never sees a reward. It is kept short on purpose: reinforcement learning does the rest.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from .engine import Sampling
from .environment import Demonstration, Environment
from .errors import StorageError, UsageError
from .evaluate import evaluate, tasks_of
from .learning.learner import Learner
from .model.codec import HFCodec
from .model.layers import fuse_storage
from .model.load import LoadedModel, as_device
from .plugins.binding import bind
from .seedling import CONTEXT, build_model, build_tokenizer
from .services import opened
from .task import Message, Task, messages_of
from .transcript import TrainingSequence

if TYPE_CHECKING:
    from .engines.embedded import EmbeddedEngine
    from .recipe import Recipe
    from .report.screen import Screen
    from .stage import Casting

FORMAT = 1
"""Counts up when a model grown by older code must not be taken from the cache."""

GLANCE = 40
"""Tasks of a first look; where it shows next to nothing the others are not asked."""

HALVINGS = 5
"""How often the learning rate is halved because accuracy jumped over the target."""

FADE = 0.9
"""Share of the learning rate that goes, bit by bit, in the second half of the time that accuracy takes to settle."""

UNFIT = 100
"""Demonstrations in a row that are too long for the context before growing gives up."""

SLOTS = 256
AnyEnvironment = Environment[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Check:
    """Where growing stood: after *steps* updates, greedy *accuracy* on ``dev`` and training *loss* (nats a token).

    An accuracy that comes from a first look is *rough*.
    """

    steps: int
    accuracy: float
    loss: float
    lr: float
    rough: bool = False


@dataclass(frozen=True, kw_only=True)
class GrowReport:
    """What growing gave. *reached* is false where *max_steps* ended it short of the target."""

    path: str
    reached: bool
    accuracy: float
    steps: int
    examples: int
    tokens: int
    seconds: float
    parameters: int
    checks: tuple[Check, ...] = ()


@dataclass
class _Plant:
    """What grows, and how it is looked at."""

    learner: Learner
    codec: HFCodec
    environments: Sequence[AnyEnvironment]
    engine: EmbeddedEngine
    services: Mapping[str, Any]
    examples: Iterator[TrainingSequence]
    tasks: Sequence[Sequence[Task]]
    longest: int = 1
    steps: int = 0
    tokens: int = 0
    lr: float = 0.0
    accuracy: float = 0.0
    checks: list[Check] = field(default_factory=list)


def grow(
    environments: Sequence[AnyEnvironment],
    seed: int,
    out: str | Path,
    progress: Callable[[Check], None] | None = None,
    services: Mapping[str, Any] | None = None,
    *,
    target: tuple[float, float] = (0.20, 0.35),
    check_every: int = 10,
    settle: int = 1,
    max_steps: int = 1500,
    lr: float = 1e-3,
    warmup_steps: int = 20,
    batch: int = 32,
    tasks: int = 200,
    model: Mapping[str, Any] | None = None,
) -> GrowReport:
    """Train a fresh default model on demonstrations of *environments* until greedy accuracy on ``dev`` is in *target*.

    Where accuracy jumps over the target between two checks, the model goes back to the check before and on at half the
    learning rate.

    Args:
        environments: one or several; their demonstrations take turns, and their accuracies are averaged.
        seed: of weights and of the order of examples.
        out: folder to write: model, tokenizer and ``grown.json``.
        progress: called after each check.
        services: by slot, started; for environments or rewards that need some.
        target: least and greatest accuracy to stop at.
        check_every: updates between two checks.
        settle: checks in a row that must find it in *target*; over the later half of them the learning rate fades.
        max_steps: updates at most.
        lr: learning rate of AdamW, constant after *warmup_steps* until accuracy is in *target*.
        batch: examples an update.
        tasks: of ``dev`` for each environment, at most.
        model: sizes, as for `quintain.seedling.build_model`.

    Raises:
        UsageError: no demonstrations, none that fits the context, or a target that is no interval.
        StorageError: *out* cannot be written.
    """
    return asyncio.run(
        _grow(
            environments,
            seed,
            out,
            progress,
            services,
            target=target,
            check_every=check_every,
            settle=settle,
            max_steps=max_steps,
            lr=lr,
            warmup_steps=warmup_steps,
            batch=batch,
            tasks=tasks,
            model=model,
        )
    )


async def _grow(
    environments: Sequence[AnyEnvironment],
    seed: int,
    out: str | Path,
    progress: Callable[[Check], None] | None,
    services: Mapping[str, Any] | None,
    *,
    target: tuple[float, float],
    check_every: int,
    settle: int,
    max_steps: int,
    lr: float,
    warmup_steps: int,
    batch: int,
    tasks: int,
    model: Mapping[str, Any] | None,
) -> GrowReport:
    if not 0 <= target[0] < target[1] <= 1 or check_every < 1 or batch < 1:
        raise UsageError(
            f"grow: target {target}, check_every {check_every}, batch {batch}; expected 0 <= low < high <= 1"
        )
    began = time.monotonic()
    plant = _planted(
        environments, seed, services or {}, lr=lr, warmup_steps=warmup_steps, tasks=tasks, model=model or {}
    )
    async with plant.engine:
        reached = await _trained(plant, target, check_every, settle, max_steps, batch, progress or (lambda check: None))
    report = GrowReport(
        path=str(out),
        reached=reached,
        accuracy=plant.accuracy,
        steps=plant.steps,
        examples=plant.steps * batch,
        tokens=plant.tokens,
        seconds=time.monotonic() - began,
        parameters=sum(p.numel() for p in plant.learner.module.parameters()),
        checks=tuple(plant.checks),
    )
    _save(plant, report, Path(out))
    return report


def _planted(
    environments: Sequence[AnyEnvironment],
    seed: int,
    services: Mapping[str, Any],
    *,
    lr: float,
    warmup_steps: int,
    tasks: int,
    model: Mapping[str, Any],
) -> _Plant:
    from .engines.embedded import EmbeddedEngine

    made = fresh(seed, **model)
    module, codec = made.module, made.codec
    engine = EmbeddedEngine.sharing(module, codec, slots=SLOTS)
    return _Plant(
        learner=Learner(module, lr=lr, warmup_steps=warmup_steps, betas=(0.9, 0.98)),
        codec=codec,
        environments=environments,
        engine=engine,
        services={**services, "policy": engine},
        examples=_shuffled(examples(environments, codec), Random(seed)),
        tasks=[_some_tasks(e, tasks) for e in environments],
        lr=lr,
    )


def fresh(seed: int, *, device: str = "cpu", **sizes: Any) -> LoadedModel:
    """The default model before it learned anything; *sizes* as for `quintain.seedling.build_model`."""
    module: Any = build_model(seed, **sizes)
    codec = HFCodec(build_tokenizer(), stop_ids=tuple(module.config.eos_token_id))
    module.to(as_device(device))
    return LoadedModel(module=module, codec=codec, path="default", context=CONTEXT, fused=fuse_storage(module))


async def _trained(
    plant: _Plant,
    target: tuple[float, float],
    check_every: int,
    settle: int,
    max_steps: int,
    batch: int,
    progress: Callable[[Check], None],
) -> bool:
    """Updates and checks until accuracy has settled in *target*; whether it got there."""
    before, inside, halvings = _state(plant), 0, 0
    while plant.steps < max_steps:
        plant.learner.lr = plant.lr * (1 - FADE * max(0.0, 2 * inside / settle - 1))
        check = await _checked(plant, _updated(plant, check_every, batch), target[0])
        progress(check)
        if check.accuracy > target[1]:
            _set_back(plant, before)
            if halvings == HALVINGS:
                return inside > 0
            halvings += 1
            continue
        before, inside = _state(plant), inside + 1 if check.accuracy >= target[0] else 0
        if inside == settle:
            return True
    return inside > 0


async def _checked(plant: _Plant, loss: float, least: float) -> Check:
    accuracy, rough = await _accuracy(plant, least)
    check = Check(steps=plant.steps, accuracy=accuracy, loss=loss, lr=plant.learner.lr, rough=rough)
    plant.accuracy = accuracy
    plant.checks.append(check)
    return check


def _updated(plant: _Plant, count: int, batch: int) -> float:
    """*count* updates; the mean loss."""
    losses = []
    for _ in range(count):
        sequences = list(islice(plant.examples, batch))
        plant.longest = max(plant.longest, *(sum(s.mask) for s in sequences))
        metrics = plant.learner.supervised_step(sequences)
        plant.tokens += int(metrics["tokens"])
        losses.append(metrics["loss"])
    plant.steps += count
    return math.fsum(losses) / count


def _state(plant: _Plant) -> dict[str, Any]:
    accuracy = plant.checks[-1].accuracy if plant.checks else 0.0
    return {"learner": copy.deepcopy(plant.learner.state_dict()), "steps": plant.steps, "accuracy": accuracy}


def _set_back(plant: _Plant, state: Mapping[str, Any]) -> None:
    """To an earlier check, at half the learning rate; the examples go on from where they are."""
    plant.learner.load_state_dict(copy.deepcopy(state["learner"]))
    plant.steps, plant.accuracy = state["steps"], state["accuracy"]
    plant.lr /= 2


async def _accuracy(plant: _Plant, least: float) -> tuple[float, bool]:
    """Greedy accuracy on ``dev``, and whether it is only a first look (too few tasks right to be near *least*)."""
    await plant.engine.update(plant.learner.weights())
    glances = [await _measured(plant, i, tasks[:GLANCE]) for i, tasks in enumerate(plant.tasks)]
    rough = math.fsum(glances) / len(glances)
    if rough < least / 2:
        return rough, True
    found = []
    for i, (tasks, glance) in enumerate(zip(plant.tasks, glances, strict=True)):
        rest = tasks[GLANCE:]
        rest_right = await _measured(plant, i, rest) * len(rest) if rest else 0.0
        found.append((glance * len(tasks[:GLANCE]) + rest_right) / len(tasks))
    return math.fsum(found) / len(found), False


async def _measured(plant: _Plant, index: int, tasks: Sequence[Task]) -> float:
    how = Sampling(temperature=0.0, max_tokens=plant.longest + plant.longest // 4 + 4)
    environment = plant.environments[index]
    found = await evaluate(
        environment, plant.engine, split="dev", tasks=tasks, how=how, services=plant.services, concurrency=SLOTS
    )
    return found.accuracy.value if found.accuracy else 0.0


def _some_tasks(environment: AnyEnvironment, count: int) -> list[Task]:
    return tasks_of(environment, "dev", count)


def examples(environments: Sequence[AnyEnvironment], codec: HFCodec) -> Iterator[TrainingSequence]:
    """Endless examples for `Learner.supervised_step` from demonstrations of ``train``; environments take turns.

    Raises:
        UsageError: an environment has no demonstrations, or none that fits the context.
    """
    sources = [_endless(e) for e in environments]
    unfit = 0
    while True:
        for source, environment in zip(sources, environments, strict=True):
            sequence = encoded(next(source), codec, environment.system)
            unfit = unfit + 1 if len(sequence.ids) > CONTEXT else 0
            if unfit > UNFIT:
                raise UsageError(
                    f"{type(environment).__name__}: {UNFIT} demonstrations in a row are longer than the {CONTEXT} "
                    "tokens of the default model; shorten them, or train a pretrained model with --model"
                )
            if not unfit:
                yield sequence


def _endless(environment: AnyEnvironment) -> Iterator[Demonstration]:
    while True:
        found = False
        for demonstration in environment.demonstrations("train"):
            found = True
            yield demonstration
        if not found:
            raise UsageError(
                f"{type(environment).__name__} has no demonstrations to grow a model on: define "
                "demonstrations(self, split), or start from a pretrained model with --model"
            )


def _shuffled(source: Iterator[TrainingSequence], rng: Random, window: int = 256) -> Iterator[TrainingSequence]:
    """The same ones in an order that depends on *rng*, a window at a time."""
    while True:
        part = list(islice(source, window))
        rng.shuffle(part)
        yield from part


def encoded(demonstration: Demonstration, codec: HFCodec, system: str = "") -> TrainingSequence:
    """Prompt and reply as the policy would see and say them; the reply and the end of the turn train."""
    messages = messages_of(demonstration.prompt)
    system = demonstration.system or system
    if system and not any(m.role == "system" for m in messages):
        messages.insert(0, Message("system", system))
    asked = codec.encode(codec.render(messages, prompt=True))
    said = [*codec.encode(demonstration.reply), codec.stop_ids[0]]
    n = len(asked) + len(said)
    return TrainingSequence(
        ids=(*asked, *said),
        mask=(*(False,) * len(asked), *(True,) * len(said)),
        logps=(0.0,) * n,
        versions=(-1,) * n,
    )


def _save(plant: _Plant, report: GrowReport, out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        module: Any = plant.learner.module
        module.save_pretrained(out)
        plant.codec.tokenizer.save_pretrained(out)
        facts = {k: v for k, v in asdict(report).items() if k != "path"}  # the folder may be moved
        (out / "grown.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    except OSError as e:
        raise StorageError(f"cannot write the grown model to {out}: {e}") from e


def cache_folder() -> Path:
    """Where grown models are kept: ``$QUINTAIN_CACHE``, else ``~/.cache/quintain``."""
    given = os.environ.get("QUINTAIN_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "quintain"


def grown(castings: Sequence[Casting], recipe: Recipe, screen: Screen) -> Path:
    """The model grown for the environments and the seed of *recipe*: from the cache, or grown now and cached.

    Raises:
        UsageError: as `grow`, or wrong ``[model.start] args``.
    """
    return asyncio.run(_cached(castings, recipe, screen))


async def _cached(castings: Sequence[Casting], recipe: Recipe, screen: Screen) -> Path:
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
        await _into(folder, planned.keywords, environments, recipe.run.seed, screen, services)
    return folder


async def _into(
    folder: Path,
    settings: Mapping[str, Any],
    environments: Sequence[AnyEnvironment],
    seed: int,
    screen: Screen,
    services: Mapping[str, Any],
) -> None:
    """Grow in a folder beside, then rename, so that the cache never holds half a model."""

    def progress(check: Check) -> None:
        screen.advance()
        about = "about " if check.rough else ""
        screen.note(f"growing: {check.steps} updates  loss {check.loss:.3f}  dev {about}{check.accuracy:.1%}")

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as e:
        raise StorageError(f"cannot write to the cache {folder.parent}: {e}; name another with QUINTAIN_CACHE") from e
    try:
        report = await _grow(environments, seed, beside, progress, services, **{**_defaults(), **settings})
        _moved(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    if not report.reached:
        screen.warn(f"growing ended at {report.accuracy:.1%} on dev after {report.steps} updates, outside its target")


def _plain(name: str) -> str:
    """A name that any file system takes: the last word of ``module:Class`` and the like."""
    return re.sub(r"[^\w.-]", "-", re.split(r"[/:]", name)[-1])


def _moved(beside: Path, folder: Path) -> None:
    try:
        beside.rename(folder)
    except OSError as e:
        if not (folder / "grown.json").is_file():  # else another process was faster with the same model
            raise StorageError(
                f"cannot write to the cache {folder.parent}: {e}; name another with QUINTAIN_CACHE"
            ) from e


def _defaults() -> dict[str, Any]:
    return dict(grow.__kwdefaults__ or {})


def _key(environments: Sequence[AnyEnvironment], args: Mapping[str, Any], seed: int) -> str:
    """A hash of all that the grown model depends on: settings, sizes, tokenizer, and the environments' own examples."""
    shown = [
        {
            "type": f"{type(e).__module__}.{type(e).__qualname__}",
            "examples": [asdict(d) for d in islice(e.demonstrations("train"), 64)],
            "tasks": [t.id for t in islice(e.tasks("dev"), 64)],
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
