"""The public names of `quintain`, pinned."""

from __future__ import annotations

import importlib.util
import inspect
from types import ModuleType

import pytest

import quintain

from ..lazy import lazily

ROOMS = [
    importlib.import_module(f"quintain.{room}")
    for room in (
        "cli console evaluation interfaces models process recipe registry rollouts run services store "
        "tasks types"
    ).split()
]

PUBLIC = """
    advantage Agent aggregation Algorithm API_VERSION as_tool control correction Demonstration
    Engine Environment Group group_filter group_reward InfrastructureError Judge Judgement KL
    lazy_names Likelihood LimitReached Limits Message need objective optimizer_step per_group Piece
    PolicyFault PolicyTimeout QuintainError Replay Reply Reward reward Rollout Sampled Sampling
    SamplingPlan Sandbox Score Service Task Termination ThinkingBudget TokenEngine Tool ToolCall
    ToolError ToolSpec Transcript Turn Weights Workers
""".split()


def test_public_names_are_these() -> None:
    """A name is added or taken away on purpose."""
    assert sorted(PUBLIC) == sorted(quintain.__all__)


def test_names_are_sorted() -> None:
    """`__all__` is in alphabetical order, whatever the case."""
    assert sorted(quintain.__all__, key=str.casefold) == quintain.__all__


@pytest.mark.parametrize("name", PUBLIC)
def test_name_resolves_and_is_documented(name: str) -> None:
    """Each name exists and, where it is a class or function, has a docstring."""
    value = getattr(quintain, name)

    assert name in dir(quintain)
    assert not (inspect.isclass(value) or inspect.isfunction(value)) or inspect.getdoc(value)


@pytest.mark.parametrize("package", [quintain, *ROOMS], ids=lambda p: p.__name__)
def test_type_checkers_see_the_same_names(package: ModuleType) -> None:
    """Each name under TYPE_CHECKING is the object of the module that it names, and is listed."""
    assert lazily(package) == {*package.__all__} - {"API_VERSION", "lazy_names", "main"}


@pytest.mark.parametrize("package", ROOMS, ids=lambda p: p.__name__)
def test_names_for_plugins_resolve_and_are_documented(package: ModuleType) -> None:
    """Each name exists and no module of its package hides it; classes and functions have docstrings."""
    for name in package.__all__:
        value = getattr(package, name)
        assert importlib.util.find_spec(f"{package.__name__}.{name}") is None
        assert not (inspect.isclass(value) or inspect.isfunction(value)) or inspect.getdoc(value)


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelled name fails as it does in any module."""
    with pytest.raises(AttributeError, match="no attribute 'Enviroment'"):
        _ = quintain.Enviroment


@pytest.mark.parametrize("name", PUBLIC)
def test_no_module_hides_a_public_name(name: str) -> None:
    """The import system binds a submodule on its package, over a public name of the same spelling."""
    assert importlib.util.find_spec(f"quintain.{name}") is None
