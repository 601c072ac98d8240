"""Rewards, and the algebra that combines them.

A reward maps the valid samples of a group to one `Score` each. A per-rollout reward is that, mapped
over the samples, so all combine: ``0.1 * brevity + ranked.clip(-1, 1)``. A sample whose term fails
gets the failure, never a zero::

    @reward(range=(0, 1))
    def right(rollout: Rollout[Task, None]) -> float:
        return float(rollout.reply == rollout.task.answer)

In a recipe a plain function such as ``def score(completion, answer)`` works too, by a reward adapter.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import product
from math import isfinite
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ..errors import (
    BindingError,
    EpisodeError,
    InfrastructureError,
    PolicyFault,
    RewardFault,
    did_you_mean,
)
from ..tracebacks import defined_at, describe_error, is_failure
from ..types.rollout import SCORE_TOLERANCE, AnyRollout, Score, reaches
from .factors import Factor
from .service import Need

P = ParamSpec("P")
R = TypeVar("R", bound=AnyRollout)
LAST_STEP = 10**9  # of any run: where a ramp has ended
LARGEST_SCORE = 1e15  # the variance of larger ones overflows 32 bits
ScoreOrError = Score | EpisodeError
Value = float | int | bool | Score
OfRollout = Callable[Concatenate[R, P], Value | Awaitable[Value]]
OfGroup = Callable[Concatenate[Sequence[R], P], Sequence[Value] | Awaitable[Sequence[Value]]]


@dataclass(frozen=True, kw_only=True)
class RewardContext:
    """What a reward may depend on besides the rollouts: the training step and the services by
    slot.
    """

    step: int = 0
    services: Mapping[str, Any] = field(default_factory=dict)


class Reward(ABC):
    """Something that scores rollouts. Combine with ``+``, ``-``, ``*``, `clip`, `gate` and
    `ramp`.
    """

    parts: Sequence[Reward] = ()
    """The rewards it is made of."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How it is shown."""

    @property
    def group(self) -> bool:
        """Whether it compares the samples of a group, so that it must wait for all of them."""
        return any(p.group for p in self.parts)

    @property
    def proxy(self) -> bool:
        """Whether it stands for what is wanted and may be satisfied without that: rubrics, judges,
        likelihoods.
        """
        return any(p.proxy for p in self.parts)

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest total, where they are declared."""
        return None

    @property
    def needs(self) -> Mapping[str, Any]:
        """The service slots it needs, each with the expected type."""
        return {slot: kind for p in self.parts for slot, kind in p.needs.items()}

    @abstractmethod
    async def score_all(
        self, group: Sequence[AnyRollout], context: RewardContext
    ) -> list[ScoreOrError]:
        """Return one score or failure per sample, in order."""

    def score(self, rollout: AnyRollout, *, step: int = 0, **services: Any) -> Score:
        """Score one rollout outside a run (a test, a notebook cell); inside a coroutine await
        `ascore`.

        Raises:
            RewardFault: the reward raised or gave no finite number.
        """
        return asyncio.run(self.ascore(rollout, step=step, **services))

    async def ascore(self, rollout: AnyRollout, *, step: int = 0, **services: Any) -> Score:
        """Return `score`, awaited."""
        (scored,) = await self.score_all([rollout], RewardContext(step=step, services=services))
        if isinstance(scored, EpisodeError):
            raise scored
        return scored

    def __add__(self, other: Reward | float) -> Reward:
        b = other if isinstance(other, Reward) else constant(other)
        return Combined(f"{self.name} + {b.name}", _sum, (self, b))

    def __radd__(self, other: float) -> Reward:
        return constant(other) + self

    def __sub__(self, other: Reward | float) -> Reward:
        return self + -1.0 * (other if isinstance(other, Reward) else constant(other))

    def __rsub__(self, other: float) -> Reward:
        return constant(other) - self

    def __neg__(self) -> Reward:
        return -1.0 * self

    def __mul__(self, other: Reward | float) -> Reward:
        if isinstance(other, Reward):
            return Combined(f"({self.name}) * ({other.name})", _product, (self, other))
        return self.__rmul__(other)

    def __rmul__(self, other: float) -> Reward:
        operand = (
            f"({self.name})" if isinstance(self, Combined) and self.function is _sum else self.name
        )
        return Combined(f"{float(other):g} * {operand}", _scaled, (self,), (float(other),))

    def clip(self, low: float, high: float) -> Reward:
        """Bound the value; refused for scores with a value per turn, whose bound would be
        ambiguous.
        """
        if not low < high:
            raise BindingError(f"clip({low}, {high}): the first bound must be below the second")
        return Combined(f"({self.name}).clip({low:g}, {high:g})", _clipped, (self,), (low, high))

    def gate(self, by: Reward, at: float = 1.0) -> Reward:
        """Return this reward where *by* scores at least *at*, else 0."""
        return Combined(f"({self.name}).gate({by.name}, {at:g})", _gated, (self, by), (at,))

    def ramp(self, start: float, stop: float, steps: int) -> Reward:
        """Return the reward multiplied by a factor that goes linearly from *start* to *stop* over
        the first *steps* training steps.
        """
        if steps < 1:
            raise BindingError(f"ramp over {steps} steps; expected at least 1")
        return Combined(
            f"({self.name}).ramp({start:g}, {stop:g}, {steps})",
            _ramped,
            (self,),
            (start, stop, steps),
        )

    def __repr__(self) -> str:
        return self.name


def as_score(value: Any, reward_name: str) -> Score:
    """Return a `Score` of what an author's function returned.

    Raises:
        RewardFault: not a number or `Score`, or not finite.
    """
    try:
        score = value if isinstance(value, Score) else Score(value=_float(value))
        if score is value:
            players, parts = (
                {k: _float(v) for k, v in x.items()} for x in (score.players, score.parts)
            )
            turns = tuple(map(_float, score.turns))
            score = replace(
                score, value=_float(score.value), turns=turns, players=players, parts=parts
            )
    except (TypeError, ValueError, OverflowError) as e:
        raise RewardFault(
            f"reward {reward_name!r} returned {value!r}; expected a number or a Score"
            f"{_meant(value)}"
        ) from e
    if not all(
        abs(x) <= LARGEST_SCORE for x in (score.value, *score.turns, *score.players.values())
    ):
        raise RewardFault(
            f"reward {reward_name!r} returned {value!r}; expected finite numbers up to "
            f"{LARGEST_SCORE:g}"
        )
    return score


def _meant(value: Any) -> str:
    """Return what an author may have meant by a *value* that is no score."""
    match value:
        case None:
            return "; end the function with `return`"
        case str():
            return "; return float(...) of it, if it is a number"
        case (float() | int() as number, str() as reason):
            return f"; return Score(value={number}, reason={reason!r})"
    return ""


def _float(x: Any) -> float:
    """Return Python's own float: the scalars of array libraries cannot be stored."""
    if isinstance(x, (str, bytes)):
        raise TypeError("text is no number")  # though float() would read it
    return float(x)


@dataclass(frozen=True, repr=False)
class RewardFunction(Reward, Generic[P]):
    """A function of one rollout (or, with *grouped*, of the samples of a group), and its
    configuration.

    Calling it configures it: ``kind(rubric="polite")``.
    """

    function: Callable[..., Any]
    grouped: bool = False
    range: tuple[float, float] | None = None
    proxy: bool = field(default=False, compare=False)  # a mark: it changes no score
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self.function.__doc__

    @property
    def group(self) -> bool:
        return self.grouped

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.function

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The keyword parameters: configuration and needs (the first parameter, the rollouts, is
        left out).
        """
        return dict(list(inspect.signature(self.function).parameters.items())[1:])

    @property
    def needs(self) -> Mapping[str, Any]:
        return {slot: p.annotation for slot, p in self._needed.values()}

    @cached_property
    def _needed(self) -> dict[str, tuple[str, inspect.Parameter]]:
        """Slot and parameter, by the name of each parameter that a service fills."""
        unset = {
            n: p
            for n, p in self.parameters.items()
            if isinstance(p.default, Need) and n not in self.config
        }
        return {n: (p.default.slot or n, p) for n, p in unset.items()}

    def __call__(self, *args: P.args, **config: P.kwargs) -> RewardFunction[P]:
        if args:
            raise BindingError(
                f"reward {self.name!r} is configured by keyword; to score a rollout call "
                f"{self.name}.score(rollout)"
            )
        parameters = self.parameters
        for key in config:
            if key not in parameters:
                raise BindingError(
                    f"reward {self.name!r} has no parameter {key!r}{did_you_mean(key, parameters)}"
                )
        return replace(self, config={**self.config, **config})

    async def score_all(
        self, group: Sequence[AnyRollout], context: RewardContext
    ) -> list[ScoreOrError]:
        keywords = dict(self.config)
        for name, (slot, _) in self._needed.items():
            if slot not in context.services:
                raise BindingError(
                    f"reward {self.name!r} needs a service {slot!r}: add [services.{slot}] to the "
                    f"recipe"
                )
            keywords[name] = context.services[slot]
        if not self.grouped:
            scores = [self._score_one(r, keywords) for r in group]
            return [await scores[0]] if len(scores) == 1 else await asyncio.gather(*scores)
        try:
            values = list(await _called(self.function, group, keywords))
            if len(values) != len(group):
                raise RewardFault(
                    f"group reward {self.name!r} returned {len(values)} scores for {len(group)} "
                    f"rollouts"
                )
        except BaseException as e:  # noqa: BLE001 - an author's code may raise anything; it becomes a fault
            return [failure_of(e, self.name)] * len(group)
        return [self._checked(v) for v in values]

    async def _score_one(self, rollout: AnyRollout, keywords: Mapping[str, Any]) -> ScoreOrError:
        try:
            return self._checked(await _called(self.function, rollout, keywords))
        except BaseException as e:  # noqa: BLE001 - as above
            return failure_of(e, self.name)

    def _checked(self, value: Any) -> ScoreOrError:
        """Return the value as a score whose parts carry the reward's name, or why it is none."""
        place = f" ({definition})" if (definition := defined_at(self.function)) else ""
        try:
            score = as_score(value, self.name)
        except RewardFault as e:
            return RewardFault(f"{e}{place}")
        except BaseException as e:  # noqa: BLE001 - as above: its `__float__` or `__repr__`
            return failure_of(e, self.name)
        total, parts = score.total, {f"{self.name}.{k}": v for k, v in score.parts.items()}
        if self.range and not (
            reaches(total, self.range[0]) and total <= self.range[1] + SCORE_TOLERANCE
        ):
            return RewardFault(
                f"reward {self.name!r} scored {total}, outside its declared range "
                f"{self.range}; scale the score, or declare the range that it has{place}"
            )
        return replace(score, parts={self.name: total, **parts})


async def _called(function: Callable[..., Any], first: Any, keywords: Mapping[str, Any]) -> Any:
    value = function(first, **keywords)
    return await value if isinstance(value, Awaitable) else value


def failure_of(error: BaseException, reward_name: str) -> EpisodeError:
    """Return the failure of reward *reward_name* that *error* is; Ctrl-C and the cancellation of
    its task are raised.
    """
    if not is_failure(error):
        raise error
    if isinstance(error, (RewardFault, InfrastructureError, PolicyFault)):
        return error
    fault = RewardFault(f"reward {reward_name!r} failed: {describe_error(error)}")
    fault.__cause__ = error
    return fault


@dataclass(frozen=True, repr=False)
class Combined(Reward):
    """A reward computed from the scores of its parts, sample by sample.

    Attributes:
        label: how it is shown.
        function: ``(step, *scores, *numbers) -> Score``, a score per part; a `ValueError` says what
            is undefined.
        numbers: the constants of the combination, such as the bounds of a clip.
    """

    label: str
    function: Callable[..., Score]
    parts: Sequence[Reward]
    numbers: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return self.label

    @property
    def range(self) -> tuple[float, float] | None:
        """Bound the totals by the extremes of the parts; ``None`` where a bound is unknown or
        infinite.
        """
        ends = [part.range for part in self.parts]
        if None in ends:
            return None
        corners = product(
            (0, LAST_STEP), *([Score(value=x) for x in pair] for pair in ends if pair)
        )
        totals = [self.function(step, *scores, *self.numbers).total for step, *scores in corners]
        return (min(totals), max(totals)) if all(map(isfinite, totals)) else None

    async def score_all(
        self, group: Sequence[AnyRollout], context: RewardContext
    ) -> list[ScoreOrError]:
        columns = [await p.score_all(group, context) for p in self.parts]
        return [
            self._joined([column[i] for column in columns], context.step) for i in range(len(group))
        ]

    def _joined(self, row: Sequence[ScoreOrError], step: int) -> ScoreOrError:
        failure = next((scored for scored in row if isinstance(scored, EpisodeError)), None)
        if failure is not None:
            return failure
        try:
            return as_score(self.function(step, *row, *self.numbers), self.label)
        except ValueError as e:
            return RewardFault(f"{self.label}: {e}")
        except RewardFault as e:
            return e


@cache  # one object for each number, so that equal expressions are equal rewards
def constant(value: float) -> Reward:
    """Return the same number for every rollout."""
    return Combined(f"{value:g}", lambda step: Score(value=float(value)), ())


def _sum(step: int, a: Score, b: Score) -> Score:
    n = max(len(a.turns), len(b.turns))
    pad = [(*s.turns, *(0.0,) * (n - len(s.turns))) for s in (a, b)]
    players = {k: a.of_player(k) + b.of_player(k) for k in {**a.players, **b.players}}
    turns = tuple(x + y for x, y in zip(*pad, strict=True))
    return Score(value=a.value + b.value, turns=turns, players=players, **_details_of_both(a, b))


def _product(step: int, a: Score, b: Score) -> Score:
    if a.turns and b.turns:
        raise ValueError(
            "two scores of single turns have no one meaning as a product; score the whole rollout"
        )
    if b.turns:
        a, b = b, a
    players = {k: a.of_player(k) * b.of_player(k) for k in {**a.players, **b.players}}
    return replace(_scaled(step, a, b.value), players=players, **_details_of_both(a, b))


def _scaled(step: int, s: Score, by: float) -> Score:
    turns = tuple(t * by for t in s.turns)
    return replace(
        s, value=s.value * by, turns=turns, players={k: v * by for k, v in s.players.items()}
    )


def _clipped(step: int, s: Score, low: float, high: float) -> Score:
    if s.turns:
        raise ValueError(
            "a score with values per turn cannot be clipped; clip the value per turn in the reward"
        )
    players = {k: min(max(v, low), high) for k, v in s.players.items()}
    return replace(s, value=min(max(s.value, low), high), players=players)


def _gated(step: int, s: Score, by: Score, threshold: float) -> Score:
    return replace(
        _scaled(step, s, 1.0 if by.total >= threshold else 0.0), **_details_of_both(s, by)
    )


def _ramped(step: int, s: Score, start: float, stop: float, steps: int) -> Score:
    return _scaled(step, s, Factor("ramp", start, stop, steps).at(step))


def _details_of_both(a: Score, b: Score) -> dict[str, Any]:
    """Return the named parts and the reasons of both scores; the same reward twice (configured
    differently) keeps both parts.
    """
    parts = dict(a.parts)
    for name, value in b.parts.items():
        key, n = name, 2
        while key in parts:
            key, n = f"{name}.{n}", n + 1
        parts[key] = value
    return {"parts": parts, "reason": "; ".join(x for x in (a.reason, b.reason) if x)}


@overload
def reward(function: OfRollout[R, P], /) -> RewardFunction[P]: ...
@overload
def reward(
    *,
    range: tuple[float, float] | None = None,
    proxy: bool = False,
) -> Callable[[OfRollout[R, P]], RewardFunction[P]]: ...
def reward(
    function: Any = None,
    /,
    *,
    range: tuple[float, float] | None = None,  # noqa: A002
    proxy: bool = False,
) -> Any:
    """Make a reward of a function of one rollout.

    The function returns a number or a `Score`, now or awaited. Its other keyword parameters are its
    configuration; those that default to `need()` are services.

    Args:
        range: lowest and highest total, checked on every score.
        proxy: set it if the score can be earned without what is wanted, as a judge's or a
            likelihood can. A run on such a reward reports a *yardstick* beside it
            (`Environment.yardstick`).
    """
    make = partial(RewardFunction, range=range, proxy=proxy)
    return make(function) if function is not None else make


@overload
def group_reward(function: OfGroup[R, P], /) -> RewardFunction[P]: ...
@overload
def group_reward(
    *,
    range: tuple[float, float] | None = None,
    proxy: bool = False,
) -> Callable[[OfGroup[R, P]], RewardFunction[P]]: ...
def group_reward(
    function: Any = None,
    /,
    *,
    range: tuple[float, float] | None = None,  # noqa: A002
    proxy: bool = False,
) -> Any:
    """Make a reward of a function of the valid samples of a group; it returns one number or `Score`
    per sample.
    """
    make = partial(RewardFunction, grouped=True, range=range, proxy=proxy)
    return make(function) if function is not None else make
