"""What tests of rewards need in a bare install: rollouts, and a registry of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from quintain.errors import UnknownNameError
from quintain.interfaces.environment import Environment
from quintain.registry import lookup as registry
from quintain.tasks.mixture import Mixture
from quintain.testing import isolated_plugins, rollout
from quintain.types.task import Task


def test_rollout_is_what_a_reward_sees() -> None:
    task = Task(prompt="?")
    r = rollout(task, "<think>hm</think>1", "7", result={"a": 1}, metrics={"x": 2.0})
    assert r.reply == "7"
    assert r.result == {"a": 1}
    assert r.metrics == {"x": 2.0}
    assert [m.role for m in r.messages] == ["user", "assistant", "assistant"]
    assert r.turns[0].text == "<think>hm</think>1"
    assert r.turns[0].reply == "1"
    assert r.turns[0].reasoning == "hm"
    assert rollout(task).reply == ""
    with pytest.raises(TypeError, match="evidense"):
        rollout(task, "7", evidense=1)


def test_isolated_plugins_hides_and_restores() -> None:
    before = registry.current()
    with isolated_plugins() as plugins:
        plugins.add("environment", "added", Environment)
        assert registry.current().load("environment", "added") is Environment
        assert registry.current().load("curriculum", "shuffled") is Mixture
        assert {c.distribution for c in plugins.components()} == {"quintain", "local"}
    assert registry.current() is before
    with pytest.raises(UnknownNameError), isolated_plugins(keep=()):
        registry.current().load("curriculum", "shuffled")


def test_the_pytest_plugin_is_light() -> None:
    code = (
        "import sys, quintain.testing.pytest_plugin; print([m for m in sys.modules if "
        "m.startswith('quintain')])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert sorted(eval(loaded)) == [
        "quintain",
        "quintain.testing",
        "quintain.testing.pytest_plugin",
    ]
