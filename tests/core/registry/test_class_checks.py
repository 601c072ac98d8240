"""Mistakes in an environment's class and tasks that are found before an episode runs."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Rollout, Task, reward
from quintain.cli import main
from quintain.errors import UsageError
from quintain.registry.class_checks import check_class
from quintain_authoring import run_episode

TASKS = [Task(prompt="say a", answer="a")]


@reward(range=(0, 1))
def right(rollout: Rollout) -> float:
    return float(rollout.reply == rollout.task.answer)


class Sound(Environment[Task, Any]):
    reward = right

    def tasks(self, split: str) -> Iterable[Task]:
        return TASKS


def test_a_sound_class_passes() -> None:
    check_class(Sound)


def test_a_rollout_that_is_no_coroutine_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(
        UsageError, match=r"Plain.rollout is no coroutine: write `async def rollout"
    ):

        class Plain(Sound):
            def rollout(self, task: Task, agent: Any) -> None:  # type: ignore[override]
                return None


def test_a_decorated_coroutine_is_one() -> None:
    def logged(method: Any) -> Any:
        @functools.wraps(method)
        def call(*args: Any) -> Any:
            return method(*args)

        return call

    class Decorated(Sound):
        @logged
        async def rollout(self, task: Task, agent: Any) -> None:
            agent.user(task.prompt)
            await agent.turn()

    assert run_episode(Decorated(), TASKS[0], "a").total == 1


def test_writes_to_self_are_found_in_the_class_and_in_those_above() -> None:
    class Counting(Sound):
        async def rollout(self, task: Task, agent: Any) -> None:
            self.count = 1  # type: ignore[misc]
            self.count += 1

    class Below(Counting):
        def oracle(self, task: Any, messages: Any) -> str:
            other = task
            other.seen = True  # no attribute of self
            return "a"

    for component in (Counting, Below):
        with pytest.raises(UsageError, match="local variables") as caught:
            check_class(component)
        assert str(caught.value).count("assigns to self.count") == 2


def test_a_write_that_the_text_does_not_show_is_explained_when_it_happens() -> None:
    class Hidden(Sound):
        async def rollout(self, task: Task, agent: Any) -> None:
            setattr(self, "count", 1)  # noqa: B010

    played = run_episode(Hidden(), TASKS[0], "a")

    assert "keep the state of an episode in local variables" in played.termination.reason


def test_overridden_methods_and_classes_inside_a_method_are_not_checked() -> None:
    class Abstract(Sound):
        def tasks(self, split: str) -> Iterable[Task]:  # type: ignore[empty-body]
            """A subclass gives them."""

    class Whole(Abstract):
        def tasks(self, split: str) -> Iterable[Task]:
            return TASKS

        async def rollout(self, task: Task, agent: Any) -> None:
            class Board:
                def __init__(self) -> None:
                    self.moves = 0

            agent.user(f"{task.prompt} {Board().moves}")
            await agent.turn()

    check_class(Whole)


def test_tasks_that_return_nothing_are_found() -> None:
    class Nothing(Sound):
        def tasks(self, split: str) -> Iterable[Task]:  # type: ignore[empty-body]
            [Task(prompt=str(i)) for i in range(3)]

    with pytest.raises(
        UsageError, match=r"Nothing.tasks \(.*, line \d+\) returns nothing: return a list"
    ):
        check_class(Nothing)


def test_generators_and_refusals_return_something() -> None:
    class Yields(Sound):
        def tasks(self, split: str) -> Iterable[Task]:
            yield from TASKS

    class Refuses(Sound):
        def tasks(self, split: str) -> Iterable[Task]:
            raise UsageError("no data")

    check_class(Yields)
    check_class(Refuses)


def test_a_class_without_source_text_is_not_checked() -> None:
    space: dict[str, Any] = {"Sound": Sound}
    exec("class Made(Sound):\n    def tasks(self, split): pass", space)

    check_class(space["Made"])


def test_the_command_line_names_the_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "counting.py"
    file.write_text(
        "from quintain import Environment, Task, reward\n\n@reward\ndef zero(rollout):\n    return "
        "0.0\n\n"
        "class Counting(Environment):\n    reward = zero\n"
        "    def tasks(self, split):\n        self.n = 1\n        return []\n"
    )

    assert main(["check", f"{file}:Counting"]) == 1
    assert "Counting.tasks (counting.py, line 10) assigns to self.n" in capsys.readouterr().out
    assert main(["eval", f"{file}:Counting", "--engine", "@oracle"]) == 2
    assert "Counting.tasks (counting.py, line 10) assigns to self.n" in capsys.readouterr().err


CHANGING = """
import itertools
from quintain import Environment, Task, reward
CALLS = itertools.count()

@reward
def zero(rollout):
    return 0.0

class Changing(Environment):
    reward = zero
    def tasks(self, split):
        return [Task(prompt="same"), Task(prompt=f"call {next(CALLS)}")]

class Equal(Environment):
    reward = zero
    def tasks(self, split):
        return [Task(prompt="same"), Task(prompt="as well")]
"""


def test_tasks_that_change_are_refused_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tasks.py").write_text(CHANGING)

    assert main(["eval", "--controls", f"{tmp_path}/tasks.py:Changing"]) == 1
    assert "the tasks of 'test' change from call to call" in capsys.readouterr().err
    assert main(["eval", "--controls", f"{tmp_path}/tasks.py:Equal"]) == 1  # its reward is always 0
    assert "the splits 'train' and 'test' are equal" in caplog.text
    pytest.importorskip("torch", reason="training needs quintain[train]")
    assert main(["train", "--dry-run", "--env", f"{tmp_path}/tasks.py:Changing"]) == 1
    assert "the tasks of 'train' change from call to call" in capsys.readouterr().err
    assert main(["train", "--dry-run", "--env", f"{tmp_path}/tasks.py:Equal"]) == 0
    assert "the splits 'train' and 'dev' are equal" in caplog.text
