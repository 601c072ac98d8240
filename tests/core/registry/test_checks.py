"""Checks of plugins see the class of an environment before it is used, and a broken one is named."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from quintain import Environment, Rollout, Task, reward
from quintain.errors import PluginError, UsageError
from quintain.recipe.resolve import EnvironmentSpec
from quintain.recipe.tables import EnvironmentTable
from quintain.registry.discovery import Component
from quintain.registry.lookup import Registry, isolated


@reward
def always(rollout: Rollout) -> float:
    return 1.0


class Fine(Environment[Task, None]):
    """It has no mistake."""

    reward = always

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(prompt="?")


UNLOADABLE = Component(
    kind="check", name="gone", target="no_such_module:check", distribution="its-owner"
)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with isolated(UNLOADABLE) as registry:
        registry.add("environment", "fine", Fine)
        yield registry


def raises(error: BaseException) -> Any:
    def check(environment: type) -> None:
        raise error

    return check


def test_every_check_sees_the_class_and_a_broken_one_is_named_once(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """One cannot be imported, one fails; the others are called and the environment is used."""
    seen: list[type] = []
    registry.add("check", "bug", raises(KeyError("letters")))
    registry.add("check", "last", seen.append)

    with caplog.at_level(logging.WARNING):
        components = [EnvironmentSpec.of(EnvironmentTable(use="fine")).component for _ in range(2)]

    assert components == [Fine, Fine]
    assert seen == [Fine, Fine]
    gone, bug = sorted(record.getMessage() for record in caplog.records)
    assert gone.startswith("check 'its-owner/gone': ")
    assert bug.startswith("check 'local/bug': KeyError: 'letters'")
    assert bug.endswith("; Fine is used without it")


def test_a_mistake_that_a_check_finds_is_the_users(registry: Registry) -> None:
    """Its message reaches the user as it is."""
    registry.add("check", "strict", raises(UsageError("Fine is not fine")))

    with pytest.raises(UsageError, match="^Fine is not fine$"):
        EnvironmentSpec.of(EnvironmentTable(use="fine"))


def test_strict_plugins_raise_what_a_check_raised(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for hooks, a failure of a plugin ends the command then."""
    monkeypatch.setenv("QUINTAIN_STRICT_PLUGINS", "1")

    with pytest.raises(PluginError, match="check 'its-owner/gone'"):
        EnvironmentSpec.of(EnvironmentTable(use="fine"))


def test_a_request_to_stop_is_no_failure(registry: Registry) -> None:
    """Ctrl-C in a check ends the command."""
    registry.add("check", "slow", raises(KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        EnvironmentSpec.of(EnvironmentTable(use="fine"))
