"""The supervised start: a small model is grown on an environment's worked examples, far enough to be rewarded at times.

Without it a small model never sees a reward. It is kept short on purpose: reinforcement learning does the rest.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from ..errors import StorageError, UsageError
from ..evaluation.evaluation import evaluate, tasks_of
from ..interfaces.environment import Demonstration, Environment, yielded
from ..learning.learner import Learner
from ..models.layers import fuse_storage
from ..models.load import LoadedModel, as_device
from ..models.tokenizer import HFCodec
from ..types.sampling import Sampling
from ..types.task import Message, Task, messages_of
from ..types.transcript import TrainingSequence
from .seedling import CONTEXT, build_model, build_tokenizer

if TYPE_CHECKING:
    from ..engines.embedded.engine import EmbeddedEngine

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

    An accuracy that comes from a first look is *rough*. *inside* counts the checks in a row that found it in the target
    and *halvings* those that found it above, both with this one.
    """

    steps: int
    accuracy: float
    loss: float
    lr: float
    rough: bool = False
    inside: int = 0
    halvings: int = 0


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


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Where growing stands between two checks: all that it takes to go on as if it had not been broken off.

    Attributes:
        learner: the state of the learner, weights and optimizer included.
        drawn: examples used so far, those of updates that were taken back included.
        longest: tokens of the longest reply so far, which bounds those of a check.
        lr: learning rate after all halvings.
        seconds: that growing took so far.
    """

    learner: Mapping[str, Any]
    steps: int
    tokens: int
    drawn: int
    longest: int
    lr: float
    accuracy: float
    inside: int
    halvings: int
    seconds: float
    checks: tuple[Check, ...]


class Unfit(Exception):
    """A `Growth` that is of another model."""


@dataclass
class Plant:
    """What grows, and how it is looked at."""

    learner: Learner
    codec: HFCodec
    environments: Sequence[AnyEnvironment]
    engine: EmbeddedEngine
    services: Mapping[str, Any]
    examples: Iterator[TrainingSequence]
    tasks: Sequence[Sequence[Task]]
    began: float  # seconds of the monotonic clock, those before a break taken off
    longest: int = 1
    steps: int = 0
    tokens: int = 0
    drawn: int = 0
    lr: float = 0.0
    accuracy: float = 0.0
    inside: int = 0
    halvings: int = 0
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
        model: sizes, as for `quintain.training.seedling.build_model`.

    Raises:
        UsageError: no demonstrations, none that fits the context, or a target that is no interval.
        StorageError: *out* cannot be written.
    """
    plant, report = asyncio.run(
        raised(
            environments,
            seed,
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
    save(plant, report, Path(out))
    return replace(report, path=str(out))


async def raised(
    environments: Sequence[AnyEnvironment],
    seed: int,
    progress: Callable[[Check], None] | None = None,
    services: Mapping[str, Any] | None = None,
    *,
    growth: Growth | None = None,
    keep: Callable[[Growth], None] | None = None,
    target: tuple[float, float],
    check_every: int,
    settle: int,
    max_steps: int,
    lr: float,
    warmup_steps: int,
    batch: int,
    tasks: int,
    model: Mapping[str, Any] | None,
) -> tuple[Plant, GrowReport]:
    """What `grow` does, up to writing it (see `save`).

    Args:
        growth: where growing with the same arguments was broken off; it goes on there.
        keep: called with where growing stands, at the start and after each check.

    Raises:
        UsageError: as `grow`.
        Unfit: *growth* is not of this model.
    """
    if not 0 <= target[0] < target[1] <= 1 or check_every < 1 or batch < 1:
        raise UsageError(
            f"grow: target {target}, check_every {check_every}, batch {batch}; expected 0 <= low < high <= 1"
        )
    plant = _planted(
        environments, seed, services or {}, lr=lr, warmup_steps=warmup_steps, tasks=tasks, model=model or {}
    )
    if growth is not None:
        _take_up(plant, growth)
    async with plant.engine:
        reached = await _trained(
            plant,
            target,
            check_every,
            settle,
            max_steps,
            batch,
            progress or (lambda check: None),
            keep or (lambda growth: None),
        )
    report = GrowReport(
        path="",
        reached=reached,
        accuracy=plant.accuracy,
        steps=plant.steps,
        examples=plant.steps * batch,
        tokens=plant.tokens,
        seconds=time.monotonic() - plant.began,
        parameters=sum(p.numel() for p in plant.learner.module.parameters()),
        checks=tuple(plant.checks),
    )
    return plant, report


def _planted(
    environments: Sequence[AnyEnvironment],
    seed: int,
    services: Mapping[str, Any],
    *,
    lr: float,
    warmup_steps: int,
    tasks: int,
    model: Mapping[str, Any],
) -> Plant:
    from ..engines.embedded.engine import EmbeddedEngine

    began = time.monotonic()
    made = fresh(seed, **model)
    module, codec = made.module, made.codec
    engine = EmbeddedEngine.sharing(module, codec, slots=SLOTS)
    return Plant(
        learner=Learner(module, lr=lr, warmup_steps=warmup_steps, betas=(0.9, 0.98)),
        codec=codec,
        environments=environments,
        engine=engine,
        services={**services, "policy": engine},
        examples=_shuffled(examples(environments, codec), Random(seed)),
        tasks=[_some_tasks(e, tasks) for e in environments],
        began=began,
        lr=lr,
    )


def fresh(seed: int, *, device: str = "cpu", **sizes: Any) -> LoadedModel:
    """The default model before it learned anything; *sizes* as for `quintain.training.seedling.build_model`."""
    module: Any = build_model(seed, **sizes)
    codec = HFCodec(build_tokenizer(), stop_ids=tuple(module.config.eos_token_id))
    module.to(as_device(device))
    return LoadedModel(module=module, codec=codec, path="default", context=CONTEXT, fused=fuse_storage(module))


async def _trained(
    plant: Plant,
    target: tuple[float, float],
    check_every: int,
    settle: int,
    max_steps: int,
    batch: int,
    progress: Callable[[Check], None],
    keep: Callable[[Growth], None],
) -> bool:
    """Updates and checks until accuracy has settled in *target*; whether it got there."""
    before = _stand(plant, _copied(plant.learner.state_dict()))
    while plant.steps < max_steps:
        keep(before)
        plant.learner.lr = plant.lr * (1 - FADE * max(0.0, 2 * plant.inside / settle - 1))
        loss = _updated(plant, check_every, batch)
        plant.accuracy, rough = await _accuracy(plant, target[0])
        over = plant.accuracy > target[1]
        if over:
            plant.halvings += 1
        else:
            plant.inside = plant.inside + 1 if plant.accuracy >= target[0] else 0
        progress(_checked(plant, loss, rough))
        if over:
            _set_back(plant, before)
            if plant.halvings > HALVINGS:
                break
        elif plant.inside == settle:
            return True
        # Here the learner is as it was copied, whether it went back or not.
        before = _stand(plant, before.learner if over else _copied(plant.learner.state_dict()))
    return plant.inside > 0


def _checked(plant: Plant, loss: float, rough: bool) -> Check:
    check = Check(
        steps=plant.steps,
        accuracy=plant.accuracy,
        loss=loss,
        lr=plant.learner.lr,
        rough=rough,
        inside=plant.inside,
        halvings=plant.halvings,
    )
    plant.checks.append(check)
    return check


def _updated(plant: Plant, count: int, batch: int) -> float:
    """*count* updates; the mean loss."""
    losses = []
    for _ in range(count):
        sequences = list(islice(plant.examples, batch))
        plant.drawn += len(sequences)
        plant.longest = max(plant.longest, *(sum(s.mask) for s in sequences))
        metrics = plant.learner.supervised_step(sequences)
        plant.tokens += int(metrics["tokens"])
        losses.append(metrics["loss"])
    plant.steps += count
    return math.fsum(losses) / count


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(dict(state))


def _stand(plant: Plant, learner: Mapping[str, Any]) -> Growth:
    return Growth(
        learner=learner,
        steps=plant.steps,
        tokens=plant.tokens,
        drawn=plant.drawn,
        longest=plant.longest,
        lr=plant.lr,
        accuracy=plant.accuracy,
        inside=plant.inside,
        halvings=plant.halvings,
        seconds=time.monotonic() - plant.began,
        checks=tuple(plant.checks),
    )


def _set_back(plant: Plant, to: Growth) -> None:
    """To an earlier check, at half the learning rate; the examples go on from where they are."""
    plant.learner.load_state_dict(_copied(to.learner))
    plant.steps, plant.accuracy = to.steps, to.accuracy
    plant.lr /= 2


def _take_up(plant: Plant, growth: Growth) -> None:
    """Make a fresh *plant* what *growth* says; the examples that it saw are drawn again and left out.

    Raises:
        Unfit: the state is not that of such a learner.
    """
    try:
        plant.learner.load_state_dict(_copied(growth.learner))
    except (KeyError, TypeError, ValueError, RuntimeError) as e:
        raise Unfit(str(e).strip().partition("\n")[0] or type(e).__name__) from e
    for name in ("steps", "tokens", "drawn", "longest", "lr", "accuracy", "inside", "halvings"):
        setattr(plant, name, getattr(growth, name))
    plant.checks = list(growth.checks)
    plant.began -= growth.seconds
    for _ in islice(plant.examples, growth.drawn):
        pass


async def _accuracy(plant: Plant, least: float) -> tuple[float, bool]:
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


async def _measured(plant: Plant, index: int, tasks: Sequence[Task]) -> float:
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
        for demonstration in yielded(environment, "demonstrations", "train"):
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


def save(plant: Plant, report: GrowReport, out: Path) -> None:
    """Write model, tokenizer and ``grown.json`` into the folder *out*.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        module: Any = plant.learner.module
        module.save_pretrained(out)
        plant.codec.tokenizer.save_pretrained(out)
        facts = {k: v for k, v in asdict(report).items() if k != "path"}  # the folder may be moved
        (out / "grown.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    except OSError as e:
        raise StorageError(f"cannot write the grown model to {out}: {e}") from e
