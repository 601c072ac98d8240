"""What an error says of an author's code: what was raised, where, and the name that was meant."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, tracebacks
from quintain.errors import (
    BindingError,
    EnvironmentFault,
    PluginError,
    RewardFault,
    did_you_mean,
    nearest,
    suggestion,
)
from quintain.evaluation.evaluation import tasks_of
from quintain.interfaces.environment import yielded
from quintain.registry.binding import bind
from quintain.registry.lookup import current
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_episode
from quintain.tasks.mixture import Mixture
from quintain.testing import rollout
from quintain.tracebacks import describe_error, place_of
from quintain.types.sampling import Sampling
from quintain.types.task import Task
from quintain_authoring import ControlEngine

MISTAKES = """
import json

from quintain import Environment, Rollout, Task, reward
import quintain


@reward
def exact(rollout: Rollout) -> float:
    return float(rollout.repl == "yes")


class Mistaken(Environment[Task, None]):
    reward = exact
    size: int = 3

    def __post_init__(self) -> None:
        if self.size > 3:
            raise ValueError("size is above 3")
        if self.size < 0:
            raise RuntimeError("no size")

    def tasks(self, split):
        if split == "test":
            yield Task(promt="?")
        if split == "dev":
            yield quintain.Task(promt="?")
        yield Task(prompt="?", answer=answr)

    async def rollout(self, task, agent):
        return json.loads("{")

    def demonstrations(self, split):
        return [helper(word="a", sise=2)]

    def oracle(self, task, messages):
        return self.sizes


def helper(*, word, size):
    return word * size
"""


def line(text: str) -> int:
    """Where *text* stands in the author's file."""
    (found,) = (n for n, written in enumerate(MISTAKES.splitlines(), 1) if text in written)
    return found


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> type[Environment[Any, Any]]:
    path = tmp_path_factory.mktemp("own") / "mistakes.py"
    path.write_text(MISTAKES)
    found: type[Environment[Any, Any]] = current().load("environment", f"{path}:Mistaken")
    return found


def message(error: type[Exception], run: Callable[[], Any]) -> str:
    with pytest.raises(error) as raised:
        run()
    return str(raised.value)


def meant(name: str) -> str:
    """The suggestion of a keyword: Python's own from 3.13 on."""
    return (
        f". Did you mean {name!r}?" if sys.version_info >= (3, 13) else f"; did you mean {name!r}?"
    )


def test_tasks(mistaken: type[Environment[Any, Any]]) -> None:
    """Where the mistake is, and the keyword that was meant, also behind a module's name."""
    known = (
        f"TypeError: Task.__init__() got an unexpected keyword argument 'promt'{meant('prompt')}"
    )
    assert message(EnvironmentFault, lambda: tasks_of(mistaken(), "test", name="mine")) == (
        f"environment 'mine' failed in tasks('test'): {known} (mistakes.py, line "
        f"{line('yield Task(promt')})"
    )
    assert message(EnvironmentFault, lambda: tasks_of(mistaken(), "dev", name="mine")) == (
        f"environment 'mine' failed in tasks('dev'): {known} (mistakes.py, line "
        f"{line('quintain.Task(promt')})"
    )
    assert message(EnvironmentFault, lambda: Mixture([mistaken()], names=["mine"]).pick(1)) == (
        "environment 'mine' failed in tasks('train'): NameError: name 'answr' is not defined "
        f"(mistakes.py, line {line('answr)')})"
    )


def test_demonstrations(mistaken: type[Environment[Any, Any]]) -> None:
    """A function of the author's own has keywords, too."""
    assert message(
        EnvironmentFault, lambda: list(yielded(mistaken(), "demonstrations", "train"))
    ) == (
        "environment 'Mistaken' failed in demonstrations('train'): TypeError: helper() got an "
        f"unexpected keyword argument 'sise'{meant('size')} (mistakes.py, line {line('sise=')})"
    )


def test_rollout(mistaken: type[Environment[Any, Any]]) -> None:
    """The line is the author's, not that of the library which it called."""
    environment = mistaken()
    request = RolloutRequest(environment=environment, task=Task(prompt="?"), group_size=1)
    played = asyncio.run(
        run_episode(request, 0, RolloutContext(engine=ControlEngine(environment, "nop")))
    )
    assert played.termination.reason == (
        "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 "
        f"(char 1) (mistakes.py, line {line('json.loads')})"
    )


def test_reward_and_control(mistaken: type[Environment[Any, Any]]) -> None:
    """An attribute gets the nearest one that is there."""
    assert message(
        RewardFault, lambda: mistaken.reward.score(rollout(Task(prompt="?"), "yes"))
    ) == (
        "reward 'exact' failed: AttributeError: 'Rollout' object has no attribute 'repl'; did you "
        f"mean 'reply'? (mistakes.py, line {line('rollout.repl')})"
    )
    engine = ControlEngine(mistaken(), "oracle").for_task(Task(prompt="?"))
    assert message(EnvironmentFault, lambda: asyncio.run(engine.reply([], [], Sampling()))) == (
        "the control Mistaken.oracle failed: AttributeError: 'Mistaken' object has no attribute "
        f"'sizes'; did you mean 'size'? (mistakes.py, line {line('self.sizes')})"
    )


def test_constructor(mistaken: type[Environment[Any, Any]]) -> None:
    """A refusal keeps its words; what is none is told as a failure."""
    assert message(BindingError, lambda: bind(mistaken, {"size": 4}, who="environment 'mine'")) == (
        f"environment 'mine': size is above 3 (mistakes.py, line {line('raise ValueError')})"
    )
    assert message(PluginError, lambda: bind(mistaken, {"size": -1}, who="environment 'mine'")) == (
        "environment 'mine' failed while it was set up: RuntimeError: no size "
        f"(mistakes.py, line {line('raise RuntimeError')})"
    )


def raised_by(path: Path, source: str) -> Exception:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    try:
        exec(compile(source, str(path), "exec"), {})
    except Exception as e:
        return e
    raise AssertionError("nothing was raised")


def test_what_is_installed_is_named_only_where_nothing_else_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's own line, though it is installed, and not that of a library that the plugin
    called.
    """
    site = tmp_path / "site-packages"
    monkeypatch.setattr(tracebacks, "_INSTALLED", {site})
    library = site / "library" / "parts.py"
    library.parent.mkdir(parents=True)
    library.write_text("def part():\n    raise KeyError('x')\n")
    use = (
        "import importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('library_parts', {str(library)!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n\n"
        "module.part()\n"
    )
    plugin = raised_by(site / "plugin" / "__init__.py", use)
    script = raised_by(tmp_path / "script.py", use)
    # This file's own frames are an author's too, so the traceback begins at the plugin.
    assert plugin.__traceback__ is not None
    assert script.__traceback__ is not None
    assert (
        describe_error(plugin.with_traceback(plugin.__traceback__.tb_next))
        == "KeyError: 'x' (plugin/__init__.py, line 6)"
    )
    assert describe_error(script) == "KeyError: 'x' (script.py, line 6)"


def test_without_an_author_there_is_no_place() -> None:
    assert describe_error(ValueError("what")) == "ValueError: what"
    assert describe_error(ValueError()) == "ValueError"
    assert place_of(ValueError("what")) == ""


def test_a_line_that_is_not_python(tmp_path: Path) -> None:
    found = raised_by(tmp_path / "half.py", "x = 1\ndef half(:\n")
    assert describe_error(found) == "SyntaxError: invalid syntax: `def half(:` (half.py, line 2)"


def test_nothing_is_guessed(tmp_path: Path) -> None:
    """What is like no name gets no suggestion; a function out of reach gets none either."""
    far = raised_by(tmp_path / "far.py", "class A:\n    pass\nA().wholly_other\n")
    assert (
        describe_error(far)
        == "AttributeError: 'A' object has no attribute 'wholly_other' (far.py, line 3)"
    )
    hidden = raised_by(tmp_path / "hidden.py", "import json\njson.JSONEncoder().encode(1, kye=2)\n")
    assert describe_error(hidden) == (
        "TypeError: JSONEncoder.encode() got an unexpected keyword argument 'kye' (hidden.py, line "
        "2)"
    )
    assert nearest("lettrs", ["letters", "size"]) == "letters"
    assert nearest("x", ["letters"]) == ""
    assert suggestion("letters") == "; did you mean 'letters'?"
    assert suggestion("") == ""
    assert did_you_mean("x", ["letters"]) == "; known: letters"
