"""Which parameters of a test are in `make test`, and which only in `make test-slow`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def mostly_slow(
    values: Iterable[Any], fast: Collection[str], *, name: Callable[[Any], str] = str
) -> list[Any]:
    """*values* as parameters, of which only those called *fast* are in `make test`.

    Raises:
        ValueError: none is, so that `make test` would prove nothing.
    """
    values = list(values)
    if not any(name(value) in fast for value in values):
        raise ValueError(f"no parameter is called {' or '.join(sorted(fast))}")
    slow = pytest.mark.slow
    return [value if name(value) in fast else pytest.param(value, marks=slow) for value in values]


def asked_for(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """The values of a parameter among the tests of the file that are to run, so that a fixture that
    prepares all of them prepares no others.
    """
    items = [item for item in request.session.items if item.path == request.path]
    calls = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return [call[parameter] for call in calls if parameter in call]
