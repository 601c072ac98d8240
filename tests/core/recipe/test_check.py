"""Checks of a recipe before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.interfaces.service import need
from quintain.recipe.check import allowing_unstarted_services, without_services
from quintain.recipe.resolve import EnvironmentSpec
from quintain.recipe.tables import EnvironmentTable
from quintain.testing import isolated_plugins
from quintain.types.task import Task


@reward
def always(rollout: Any) -> float:
    return 1.0


class AsksAsItIsMade(Environment):
    reward = always
    shelf: Any = need()

    def __post_init__(self) -> None:
        assert self.shelf.count() > 0

    def tasks(self, split: str) -> Iterable[Task]:
        return ()


def spec() -> EnvironmentSpec:
    with isolated_plugins() as plugins:
        plugins.add("environment", "asks", AsksAsItIsMade)
        return EnvironmentSpec.of(EnvironmentTable(use="asks"))


def test_an_environment_that_asks_a_service_as_it_is_made_is_not_checked_further() -> None:
    """No service is started by a check, so nothing can be said about its tasks."""
    reached = False

    with allowing_unstarted_services():
        without_services(spec())
        reached = True
    assert not reached
