"""Environments: where tasks come from, how an episode runs, which rewards judge it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar, dataclass_transform

from ..errors import EnvironmentFault, NoTasksError, QuintainError, UsageError
from ..tracebacks import defined_at, describe_error, is_failure
from ..types.task import Message, Task
from .agent import Agent, Limits
from .engine import Reply
from .reward import Reward

T = TypeVar("T", bound=Task)
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A prompt and a good reply, for a warm start: supervised fine-tuning before reinforcement
    learning.
    """

    prompt: str | Sequence[Message]
    reply: str
    system: str = ""


def control(*, scores: Literal["max", "min"] | None = None) -> Callable[[F], F]:
    """Mark a method ``(task, messages) -> str | Reply`` as a control, which is a baseline as in an
    experiment: a scripted policy that `eval --engine @name` can run. A parameter ``player: str``
    gets the name of the player that it answers for.

    Args:
        scores: what the conformance suite expects of it: ``"max"`` for a reference answer,
            ``"min"`` for a known hack.
    """

    def mark(method: F) -> F:
        method.__control__ = scores or ""  # type: ignore[attr-defined]
        return method

    return mark


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Environment(Generic[T, R]):
    """Subclass it; subclasses become frozen keyword-only dataclasses whose fields are their
    configuration.

    A field ``x: Judge = need()`` is a service. Instances are shared by concurrent episodes, so the
    state of an episode lives in locals of `rollout`. `tasks` must be given, and `reward` unless the
    recipe names one. Everything else has a default: one turn, no result::

        @dataclass(frozen=True, kw_only=True)
        class Sum(Task):
            answer: str

        @reward
        def right(rollout: Rollout[Sum, None]) -> float:
            return float(rollout.reply == rollout.task.answer)

        class Sums(Environment[Sum, None]):
            reward = right

            def tasks(self, split: str) -> Iterator[Sum]:
                for a in range(10):
                    yield Sum(prompt=f"{a} + {a}?", answer=str(2 * a))

    ``T`` is the class of the tasks, ``R`` what `rollout` returns. For several turns, read the
    environment `guess`.
    """

    reward: ClassVar[Reward]
    """Of an episode; 1 and more counts as a success."""
    shaping: ClassVar[Reward | None] = None
    """Added to the reward in training, counted in no accuracy."""
    yardstick: ClassVar[Reward | None] = None
    """A score that is reported beside the reward and never trains. Where the reward is a proxy, it
    tells progress from exploits of the proxy.
    """
    limits: ClassVar[Limits] = Limits(turns=1)
    system: ClassVar[str] = ""
    """The system message of every task that has none."""
    early: ClassVar[float] = 0.0
    """The outcome of an episode that a limit or a fault of the policy ended before there was a
    result.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not inspect.iscoroutinefunction(inspect.unwrap(cls.rollout)):
            raise UsageError(
                f"{cls.__name__}.rollout is no coroutine: write `async def rollout(self, task, "
                f"agent)`"
            )
        try:
            dataclass(frozen=True, kw_only=True)(cls)
        except ValueError as e:
            field = re.match(r"mutable default <class '(\w+)'> for field (\w+)", str(e))
            if field is None:
                raise
            fixed = {
                "list": "tuple[str, ...] = ()",
                "dict": "Mapping[str, str] = field(default_factory=dict)",
            }
            raise UsageError(
                f"{cls.__name__}.{field[2]} is a {field[1]}, which all environments would share; "
                f"write `{field[2]}: {fixed.get(field[1], 'frozenset[str] = frozenset()')}`"
            ) from None

    def tasks(self, split: str) -> Iterable[T]:
        """Return the tasks of ``train``, ``dev`` or ``test``: the same ones each time for the same
        fields; may be endless.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say what its tasks are: define tasks(self, split)"
        )

    async def rollout(self, task: T, agent: Agent) -> R:
        """Run one episode; what it returns is the result: plain data, all that rewards will see of
        it.
        """
        agent.user(task.prompt)
        await agent.turn()
        return None  # type: ignore[return-value]

    @control(scores="max")
    def oracle(self, task: T, messages: Sequence[Message]) -> str | Reply:
        """Answer perfectly. The default replies with the task's answer."""
        return str(task.answer)

    @control(scores="min")
    def nop(self, task: T, messages: Sequence[Message]) -> str | Reply:
        """Reply with nothing."""
        return ""

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        """Return worked examples for a warm start; none by default."""
        return ()

    @classmethod
    def controls(cls) -> Mapping[str, str]:
        """Return the names of the controls, each with ``"max"``, ``"min"`` or ``""``."""
        marks: dict[str, str] = {}
        for name in dir(cls):
            # An override without the decorator keeps the mark of what it overrides.
            lineage = (
                getattr(getattr(base, name, None), "__control__", None) for base in cls.__mro__
            )
            mark = next((m for m in lineage if m is not None), None)
            if mark is not None:
                marks[name] = mark
        return marks

    def control_marks(self) -> Mapping[str, str]:
        """Return what each control is expected to score with the reward of this instance. Override
        it where a control knows the class's own reward alone, and a recipe may name another.
        """
        return self.controls()

    def overridden(
        self,
        *,
        reward: Reward | None = None,
        shaping: Reward | None = None,
        yardstick: Reward | None = None,
        limits: Limits | None = None,
        system: str | None = None,
    ) -> Environment[T, R]:
        """Return a copy with other class-level settings (a recipe's); ``None`` keeps.

        A reward that is replaced by a proxy becomes the yardstick, unless there is one or it needs
        a service.
        """
        copy = shallow_copy(self)  # keeps rewards that an earlier call gave
        replaced = getattr(self, "reward", None)
        if (
            yardstick is None
            and self.yardstick is None
            and reward is not None
            and reward.proxy
            and replaced
        ):
            yardstick = None if replaced.proxy or replaced.needs else replaced
        changes = {
            "reward": reward,
            "shaping": shaping,
            "yardstick": yardstick,
            "limits": limits,
            "system": system,
        }
        for name, value in changes.items():
            if value is not None:
                object.__setattr__(copy, name, value)
        return copy


def yielded(
    environment: Environment[Any, Any],
    method: Literal["tasks", "demonstrations"],
    split: str,
    name: str = "",
    ordered: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Iterator[Any]:
    """Yield what a method of *environment* yields for *split*; as *ordered* takes it.

    Raises:
        EnvironmentFault: its code failed, or it yields something that is no task; the message has
            its *name*.
        NoTasksError: it does not define `tasks`.
    """
    name = name or type(environment).__name__
    try:
        for item in ordered(getattr(environment, method)(split)):
            if method == "tasks" and not isinstance(item, Task):
                kind = type(item).__name__
                place = defined_at(type(environment).tasks)
                fault = f"environment {name!r} ({place}) yields a {kind} as a task: {item!r:.200}"
                raise EnvironmentFault(
                    f"{fault}; expected a Task, as in Task(prompt=..., answer=...)"
                )
            yield item
    except BaseException as e:
        if isinstance(e, (QuintainError, GeneratorExit)) or not is_failure(e):
            raise
        if method == "tasks" and isinstance(e, NotImplementedError):
            raise NoTasksError(
                str(e) or f"environment {name!r} has no tasks: define tasks(self, split)"
            ) from e
        unknown_split = isinstance(e, KeyError) and e.args == (split,)
        splits = f"; it is called with {', '.join(SPLITS)}, one at a time" if unknown_split else ""
        raise EnvironmentFault(
            f"environment {name!r} failed in {method}({split!r}): {describe_error(e)}{splits}"
        ) from e
