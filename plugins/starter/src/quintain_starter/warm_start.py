"""The warm start: a small model trains on an environment's demonstrations until it reaches a target
accuracy.

Without it a small model never sees a reward. It stops at a low accuracy on purpose: reinforcement
learning does the rest.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from quintain import Environment, Sampling, Task, TokenEngine
from quintain.engine import EmbeddedEngine
from quintain.errors import UsageError
from quintain.evaluation import evaluate, tasks_of
from quintain.learning import Learner, TrainingSequence
from quintain.models import ChatTokenizer, LoadedModel
from quintain_offline.sft import (
    Example,
    demonstrations_of,
    encode_conversation,
    end_of_turn,
)

from .architecture import CONTEXT

ROUNDING = 1e-9
"""Differences of accuracies that count as none."""

FIRST_LOOK = 40
"""Tasks of a check that are tried first; where next to none of them is right, the others are left
out.
"""

MOST_ACCEPTED = 0.9
"""Greatest accuracy above the target that ends the training all the same where one check is enough
(``settle = 1``): reinforcement learning has something left to do.
"""

HALVINGS = 5
"""How often the learning rate is halved at most because accuracy jumped over the target."""

FEW_HALVINGS = 2
"""The same where one check is enough."""

DECAY = 0.9
"""Share of the learning rate that is taken off, bit by bit, over the later half of the checks
inside the target.
"""

TOO_LONG = 100
"""Demonstrations in a row that are longer than the context before training gives up."""

WINDOW = 256
"""Examples that are shuffled together."""

MOST_KEPT = 4096
"""Demonstrations of a finite split that are kept; if there are more, they are generated each
time.
"""

SLOTS = 256

REPLY_TOKENS = 48
"""Longest reply to expect where no demonstration shows one."""

AnyEnvironment = Environment[Any, Any]


class NoDemonstrationsError(UsageError):
    """An environment has none to train on."""


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Settings of the warm start; `quintain_starter.source.DefaultModel` documents them."""

    target: tuple[float, float] = (0.20, 0.35)
    check_every: int = 10
    settle: int = 1
    max_steps: int = 1500
    lr: float = 1e-3
    warmup_steps: int = 20
    batch: int = 32
    tasks: int = 200
    model: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (
            not 0 <= self.target[0] < self.target[1] <= 1
            or min(self.check_every, self.settle, self.batch) < 1
        ):
            raise UsageError(
                f"warm start: target {self.target}, check_every {self.check_every}, settle "
                f"{self.settle}, batch {self.batch}; expected 0 <= low < high <= 1, the others at "
                "least 1"
            )

    @property
    def highest(self) -> float:
        """Greatest accuracy that may end the training: where one check is enough, also above the
        target.
        """
        return max(self.target[1], MOST_ACCEPTED) if self.settle == 1 else self.target[1]

    @property
    def most_halvings(self) -> int:
        """How often training goes back from a check above the target at most."""
        return FEW_HALVINGS if self.settle == 1 else HALVINGS


@dataclass(frozen=True, kw_only=True)
class WarmStartCheck:
    """Greedy *accuracy* on ``dev`` after *steps* updates.

    Attributes:
        loss: mean over the updates before the check, in nats per token; none before the first
            update.
        lr: learning rate of the updates before the check.
        rough: whether accuracy comes from `FIRST_LOOK` alone.
        inside: consecutive checks that found accuracy in the target or accepted it above, this one
            included.
        halvings: checks that found it above the target and were taken back, this one included.
    """

    steps: int
    accuracy: float
    loss: float | None
    lr: float
    rough: bool
    inside: int
    halvings: int


@dataclass(frozen=True, kw_only=True)
class WarmStartReport:
    """The outcome of a warm start.

    Attributes:
        reached: false where *max_steps* or too many halvings ended it outside the target.
        accuracy: greedy, on ``dev``.
        steps: updates that the weights went through; *examples* those of these updates.
        tokens: that trained, those of updates that were taken back included.
        demonstrations: false where an environment has none, so that a trained model stayed as it
            was.
        jumped: the accuracies below and above the target between which it ended because no check
            found one inside; the nearer one was kept. None where it did not jump.
    """

    reached: bool
    accuracy: float
    steps: int
    examples: int
    tokens: int
    seconds: float
    parameters: int
    checks: tuple[WarmStartCheck, ...]
    demonstrations: bool = True
    jumped: tuple[float, float] | None = None


async def warm_start(
    model: LoadedModel,
    environments: Sequence[AnyEnvironment],
    settings: WarmStart,
    *,
    seed: int,
    services: Mapping[str, Any],
    trained: bool = False,
    progress: Callable[[WarmStartCheck], None] = lambda check: None,
    updated: Callable[[int], None] = lambda steps: None,
) -> tuple[Learner, WarmStartReport]:
    """Train *model* in place until accuracy has settled in the target; return the learner and the
    report.

    Where a check finds accuracy above the target, the weights go back to those of the check before
    it and training continues at half the learning rate, with new examples; where one check is
    enough, only if accuracy is above `MOST_ACCEPTED`, too. If none of that ends in the target, the
    model keeps the weights whose accuracy is nearer to it: those below, or those of the lowest jump
    over it.

    Args:
        environments: their demonstrations take turns, and their accuracies are averaged.
        seed: of the order of examples.
        services: by slot, started; for environments and rewards that need some.
        trained: whether the model has learned something before: then it is checked before the first
            update, and stays as it is if it reaches the target or is above it, or if an environment
            has no demonstrations and some task is solved.
        progress: called after each check.
        updated: called after each update, with the number of updates so far.

    Raises:
        NoDemonstrationsError: an environment has none, and the model has learned nothing before or
            solves no task.
        UsageError: no demonstration of an environment fits the context.
        NoTasksError: an environment has no tasks in ``dev``.
    """
    began = time.monotonic()
    engine = EmbeddedEngine.sharing(model.module, model.tokenizer, slots=SLOTS)
    learner = Learner(
        model.module, lr=settings.lr, warmup_steps=settings.warmup_steps, betas=(0.9, 0.98)
    )
    low = settings.target[0]
    examples = _shuffled(examples_of(environments, model.tokenizer, services), Random(seed))
    steps = tokens = inside = halvings = 0
    accuracy, lr, longest = 0.0, settings.lr, 1
    checks: list[WarmStartCheck] = []
    missing: NoDemonstrationsError | None = None
    jump: tuple[WarmStartCheck, dict[str, Any]] | None = None  # the lowest one, with its weights
    async with engine:
        tasks = [tasks_of(environment, "dev", settings.tasks) for environment in environments]
        accepted = copy.deepcopy(learner.state_dict())
        if trained:
            first, longest, missing = await _check_of_trained(
                engine, environments, tasks, examples, settings, services
            )
            accuracy, inside = first.accuracy, first.inside
            checks.append(first)
            progress(first)
        while (
            not missing
            and steps < settings.max_steps
            and inside < settings.settle
            and halvings <= settings.most_halvings
        ):
            # Over the later half of the checks inside the target the rate decays, so that accuracy
            # stays there.
            rate = lr * (1 - DECAY * max(0.0, 2 * inside / settings.settle - 1))
            batches = [
                [await anext(examples) for _ in range(settings.batch)]
                for _ in range(settings.check_every)
            ]
            learner.lr = rate
            losses = []
            for batch in batches:
                update = learner.supervised_step(batch)
                losses.append(update["loss"])
                tokens += int(update["tokens"])
                updated(steps + len(losses))
                await asyncio.sleep(0)  # where a signal ends it
            longest = max(longest, *(sum(sequence.mask) for batch in batches for sequence in batch))
            await engine.update(learner.weights())
            greedy = _greedy(longest)
            measured, rough = await _accuracy(
                engine, environments, tasks, greedy, services, least=low / 2
            )
            above = measured > settings.highest
            if above:
                halvings += 1
            else:
                inside = inside + 1 if measured >= low else 0
            check = WarmStartCheck(
                steps=steps + settings.check_every,
                accuracy=measured,
                loss=math.fsum(losses) / len(losses),
                lr=rate,
                rough=rough,
                inside=inside,
                halvings=halvings,
            )
            checks.append(check)
            progress(check)
            if above:
                if jump is None or measured < jump[0].accuracy:
                    jump = check, copy.deepcopy(learner.state_dict())
                # Adam's moments go back with the weights; the examples do not, or the same jump
                # would come again.
                learner.load_state_dict(copy.deepcopy(accepted))
                lr /= 2
            else:
                steps, accuracy = check.steps, measured
                accepted = copy.deepcopy(learner.state_dict())
    jumped = None
    if jump is not None and accuracy < low:
        over, weights = jump
        jumped = accuracy, over.accuracy
        if _above_is_nearer(jumped, settings.target):
            learner.load_state_dict(weights)
            steps, accuracy = over.steps, over.accuracy
    return learner, WarmStartReport(
        reached=inside > 0,
        accuracy=accuracy,
        steps=steps,
        examples=steps * settings.batch,
        tokens=tokens,
        seconds=time.monotonic() - began,
        parameters=model.parameters,
        checks=tuple(checks),
        demonstrations=missing is None,
        jumped=jumped,
    )


async def _check_of_trained(
    engine: TokenEngine,
    environments: Sequence[AnyEnvironment],
    tasks: Sequence[Sequence[Task]],
    examples: AsyncIterator[TrainingSequence],
    settings: WarmStart,
    services: Mapping[str, Any],
) -> tuple[WarmStartCheck, int, NoDemonstrationsError | None]:
    """Check a model that has learned something before its first update; return the check, the
    longest reply of the first batch in tokens, and the error of an environment without
    demonstrations.

    Raises:
        NoDemonstrationsError: an environment has none, and the model solves no task.
    """
    low, missing = settings.target[0], None
    try:
        shown = [await anext(examples) for _ in range(settings.batch)]
        longest, least = max(sum(sequence.mask) for sequence in shown), low / 2
    except NoDemonstrationsError as error:
        missing, longest, least = error, REPLY_TOKENS, 0.0
    accuracy, rough = await _accuracy(
        engine, environments, tasks, _greedy(longest), services, least=least
    )
    if missing and not accuracy:
        count = sum(map(len, tasks))
        raise NoDemonstrationsError(
            f"{missing} (the general starter solves 0 of {count} dev tasks)"
        ) from missing
    check = WarmStartCheck(
        steps=0,
        accuracy=accuracy,
        loss=None,
        lr=0.0,
        rough=rough,
        inside=settings.settle if accuracy >= low else 0,
        halvings=0,
    )
    return check, longest, missing


def _above_is_nearer(jumped: tuple[float, float], target: tuple[float, float]) -> bool:
    """Return whether the accuracy above *target* is nearer to it than the one below. At the same
    distance it is not: below, more is left to learn.
    """
    below, above = jumped
    low, high = target
    return above - high < low - below - ROUNDING


def _greedy(longest: int) -> Sampling:
    """Return greedy sampling, with some room beyond the *longest* reply that was shown."""
    return Sampling(temperature=0.0, max_tokens=longest + longest // 4 + 4)


async def _accuracy(
    engine: TokenEngine,
    environments: Sequence[AnyEnvironment],
    tasks: Sequence[Sequence[Task]],
    greedy: Sampling,
    services: Mapping[str, Any],
    *,
    least: float,
) -> tuple[float, bool]:
    """Return the mean accuracy over environments, and whether it is that of `FIRST_LOOK`, since it
    is below *least*.
    """

    async def share(environment: AnyEnvironment, some: Sequence[Task]) -> float:
        evaluation = await evaluate(
            environment,
            engine,
            split="dev",
            tasks=some,
            sampling=greedy,
            services={**services, "policy": engine},
            concurrency=SLOTS,
        )
        return evaluation.accuracy.value if evaluation.accuracy else 0.0

    first = [await share(e, some[:FIRST_LOOK]) for e, some in zip(environments, tasks, strict=True)]
    mean = math.fsum(first) / len(first)
    if mean < least:
        return mean, True
    accuracies = []
    for environment, some, accuracy in zip(environments, tasks, first, strict=True):
        rest = some[FIRST_LOOK:]
        right_of_rest = await share(environment, rest) * len(rest) if rest else 0.0
        accuracies.append((accuracy * len(some[:FIRST_LOOK]) + right_of_rest) / len(some))
    return math.fsum(accuracies) / len(accuracies), False


async def examples_of(
    environments: Sequence[AnyEnvironment],
    tokenizer: ChatTokenizer,
    services: Mapping[str, Any] | None = None,
) -> AsyncIterator[TrainingSequence]:
    """Yield the demonstrations of ``train`` as token sequences, over and over; environments take
    turns.

    A demonstration that the chat template cuts into several sequences counts once for each.

    Raises:
        NoDemonstrationsError: an environment has none.
        UsageError: no demonstration of an environment fits the context.
    """
    sources = [_repeated(environment, services or {}) for environment in environments]
    end, too_long = end_of_turn(tokenizer), 0
    while True:
        for source, environment in zip(sources, environments, strict=True):
            shown = await anext(source)
            sequences = encode_conversation(
                shown.messages, shown.replies, tokenizer, end, shown.tools
            )
            too_long = (
                too_long + 1 if any(len(sequence.ids) > CONTEXT for sequence in sequences) else 0
            )
            if too_long > TOO_LONG:
                raise UsageError(
                    f"{type(environment).__name__}: {TOO_LONG} demonstrations in a row are longer "
                    f"than the {CONTEXT} tokens of the default model; shorten them, or train a "
                    "pretrained model with --model"
                )
            if not too_long:
                for sequence in sequences:
                    yield sequence


async def _repeated(
    environment: AnyEnvironment, services: Mapping[str, Any]
) -> AsyncIterator[Example]:
    while True:
        kept: list[Example] = []
        count = 0
        async for example in demonstrations_of(environment, services=services):
            count += 1
            if count <= MOST_KEPT:
                kept.append(example)
            yield example
        if not count:
            raise NoDemonstrationsError(
                f"{type(environment).__name__} has no demonstrations to train the default model "
                "on: define demonstrations(self, split) or a control `demonstrator`, or start "
                "from a pretrained model with --model"
            )
        while count == len(kept):  # playing them again would give the same
            for example in kept:
                yield example


async def _shuffled(
    source: AsyncIterator[TrainingSequence], rng: Random, window: int = WINDOW
) -> AsyncIterator[TrainingSequence]:
    """Yield the same sequences in an order that depends on *rng*, shuffled one window at a time."""
    while True:
        part = [await anext(source) for _ in range(window)]
        rng.shuffle(part)
        for sequence in part:
            yield sequence
