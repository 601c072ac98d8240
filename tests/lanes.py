"""Which tests, and which cases of a test, are in `make test`, `make test-more` and `make test-slow`."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import hypothesis
import pytest

EXAMPLES = float(os.environ.get("QUINTAIN_EXAMPLES", "0.25"))
"""The share of its examples that a test of a property draws."""


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


def leave_more(tests: Sequence[pytest.Item]) -> None:
    """Give the mark ``more`` to those of the cases *tests* of one test that its mark ``keeps`` does
    not name.

    Raises:
        pytest.UsageError: it names a case that the test does not have, so that `make test` would
            prove less than the mark says.
    """
    mark = tests[0].get_closest_marker("keeps") if tests else None
    if mark is None:
        return
    cases = [test.name.partition("[")[2].removesuffix("]") for test in tests]
    if unknown := set(mark.args) - set(cases):
        name = tests[0].nodeid.partition("[")[0]
        raise pytest.UsageError(
            f"{name} has no case {', '.join(sorted(unknown))}. The cases are {', '.join(cases)}"
        )
    for test, case in zip(tests, cases, strict=True):
        if case not in mark.args:
            test.add_marker(pytest.mark.more)


def is_further(test: pytest.Item) -> bool:
    """Whether *test* is one of many of its kind, of which a draw takes a share."""
    return any(test.get_closest_marker(name) is not None for name in ("more", "slow"))


def is_drawn(name: str, share: float, seed: str) -> bool:
    """Whether the test *name* is in the *share* of all tests that *seed* draws."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


def examples(most: int) -> hypothesis.settings:
    """Settings of a test of a property: `.ci/run` draws *most* examples, `make test` a quarter."""
    return hypothesis.settings(max_examples=max(1, round(most * EXAMPLES)))


def needs(module: str, reason: str) -> pytest.MarkDecorator:
    """Skip the tests of a file where *module* is not installed. Unlike `pytest.importorskip` it
    imports nothing, since each process collects all files.
    """
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=reason)
