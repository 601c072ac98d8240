"""Mistakes in an environment's class and tasks that are visible before any episode runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..errors import EnvironmentFault, UsageError
from ..interfaces.environment import Environment, yielded

FIRST = 100
"""Tasks of a split that are compared."""


def check_class(component: type[Environment[Any, Any]]) -> None:
    """Refuse an environment whose methods cannot work, by their source text; without that, nothing is checked.

    Raises:
        UsageError: a method assigns to ``self``, which concurrent episodes share, or `tasks` returns nothing.
    """
    own = [c for c in component.__mro__ if issubclass(c, Environment) and c is not Environment]
    if faults := [fault for c in own for fault in _faults(c)]:
        raise UsageError("\n".join(faults))


def _faults(component: type[Environment[Any, Any]]) -> Iterator[str]:
    try:
        lines, start = inspect.getsourcelines(component)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # made at run time, or its file changed
        return
    assert isinstance(tree, ast.ClassDef)
    for method in (m for m in tree.body if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))):
        nodes, where = list(ast.walk(method)), f"{component.__name__}.{method.name}"
        for n in nodes:
            if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load) and ast.unparse(n.value) == "self":
                yield (
                    f"{where}, line {start + n.lineno - 1}, assigns to self.{n.attr}, but concurrent episodes share "
                    "the environment: keep the state of an episode in local variables, that of a run in a service"
                )
        ends = [n for n in nodes if isinstance(n, (ast.Yield, ast.YieldFrom, ast.Raise, ast.Return))]
        if method.name == "tasks" and all(isinstance(n, ast.Return) and n.value is None for n in ends):
            yield f"{where}, line {start + method.lineno - 1}, returns nothing: return a list of tasks, or `yield` them"


def check_repeatable(environment: Environment[Any, Any], split: str, name: str) -> None:
    """Refuse a split whose first tasks differ from call to call: no run on it could be resumed.

    Raises:
        EnvironmentFault: they differ, or the code of the environment failed.
    """
    first, again = ([t.id for t in islice(yielded(environment, "tasks", split, name), FIRST)] for _ in range(2))
    if first != again:
        at = next(
            (i for i, (a, b) in enumerate(zip(first, again, strict=False)) if a != b), min(map(len, (first, again)))
        )
        raise EnvironmentFault(
            f"environment {name!r}: task {at} of the split {split!r} changes from call to call, so no run could be "
            "resumed; draw random tasks with a generator seeded by the fields and the split"
        )


def shared_tasks(environment: Environment[Any, Any], a: str, b: str, name: str) -> int:
    """How many of the first tasks of split *b* are among the first of split *a*."""
    ids = [{t.id for t in islice(yielded(environment, "tasks", split, name), FIRST)} for split in (a, b)]
    return len(ids[0] & ids[1])
