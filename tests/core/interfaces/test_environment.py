"""Environments are frozen dataclasses by inheritance; controls are marked methods."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from quintain.errors import (
    EnvironmentFault,
    QuintainError,
    UnknownNameError,
    UsageError,
    did_you_mean,
)
from quintain.interfaces.agent import Limits
from quintain.interfaces.environment import Environment, control
from quintain.interfaces.reward import constant
from quintain.interfaces.service import Service, need
from quintain.registry.binding import bind, signature_of, type_name
from quintain.types.task import Message, Task


class Box(Service):
    pass


class Count(Environment[Task, None]):
    """Count."""

    reward = constant(1)
    top: int = 3

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=str(n), answer=n) for n in range(self.top)]


class Boxed(Count):
    box: Box = need()

    @control(scores="min")
    def cheat(self, task: Task, messages: Sequence[Message]) -> str:
        return "cheat"

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return f"it is {task.answer}"


def test_fields_are_configuration() -> None:
    assert dataclasses.is_dataclass(Count)
    assert Count(top=5) == Count(top=5) != Count()
    assert len(list(Count(top=5).tasks("train"))) == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        Count().top = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        Count(5)  # type: ignore[misc]
    with pytest.raises(TypeError, match="tops"):
        Count(tops=5)  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(Count(top=5))) == Count(top=5)


def test_needs_are_services() -> None:
    assert [(n.slot, type_name(n.type)) for n in signature_of(Boxed).needs] == [("box", "Box")]
    box = Box()
    bound = bind(Boxed, {"top": 2}, {"box": box}, who="boxed")
    assert bound.box == box
    assert bound.top == 2
    with pytest.raises(UsageError, match=r"\[services.box\]"):
        bind(Boxed, {}, {}, who="boxed")


def test_controls_are_inherited_overridden_and_added() -> None:
    assert Count.controls() == {"oracle": "max", "nop": "min"}
    assert Boxed.controls() == {"oracle": "max", "nop": "min", "cheat": "min"}
    task = Task(prompt="?", answer=4)
    assert Boxed(box=Box()).oracle(task, ()) == "it is 4"
    assert Count().oracle(task, ()) == "4"
    assert Count().nop(task, ()) == ""


def test_an_environment_that_forgot_its_tasks_says_so() -> None:
    class Forgetful(Environment[Task, None]):
        reward = constant(1)

    with pytest.raises(NotImplementedError, match="Forgetful does not say what its tasks are"):
        list(Forgetful().tasks("train"))


def test_overridden_adds_up_and_leaves_the_original() -> None:
    plain = Count(top=7)
    one = plain.overridden(reward=constant(2), limits=None)
    both = one.overridden(shaping=constant(3), limits=Limits(turns=4))
    assert both.reward == constant(2)
    assert both.shaping == constant(3)
    assert both.limits.turns == 4
    assert plain.reward == constant(1)
    assert plain.shaping is None
    assert one.shaping is None
    assert one.limits == Limits(turns=1)
    assert both.top == 7
    assert type(both) is Count


@pytest.mark.parametrize(
    "wrong", [{"turns": 0}, {"tokens": -1}, {"reward_seconds": 0}, {"seconds": float("nan")}]
)
def test_limits_are_positive(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"limits.{next(iter(wrong))} is .*; expected more than 0"):
        Limits(**wrong)
    assert Limits(turns=None) == Limits(turns=None, tokens=None, seconds=600, reward_seconds=60)


def test_errors_form_one_tree_and_suggest() -> None:
    assert did_you_mean("arithmetik", ["arithmetic", "countdown"]) == "; did you mean 'arithmetic'?"
    assert did_you_mean("zzz", ["b", "a"]) == "; known: a, b"
    assert did_you_mean("zzz", map(str, range(99))) == ""
    error = UnknownNameError.of("environment", "cuntdown", ["countdown"], "see `quintain list`")
    assert (
        str(error)
        == "unknown environment 'cuntdown'; did you mean 'countdown'? see `quintain list`"
    )
    assert isinstance(error, (UsageError, LookupError))
    assert isinstance(error, QuintainError)
    assert not issubclass(EnvironmentFault, UsageError)
