"""Mistakes in an environment's class that its source text shows."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator
from typing import Any

from quintain import Environment
from quintain.errors import UsageError

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_class(component: type[Environment[Any, Any]]) -> None:
    """Refuse an environment whose methods cannot work, by their source text; without that, nothing is checked.

    Raises:
        UsageError: a method assigns to ``self``, which concurrent episodes share, or `tasks` returns nothing.
    """
    own = [c for c in component.__mro__ if issubclass(c, Environment) and c is not Environment]
    if faults := [fault for c in own for fault in _faults(c, {n for n in vars(c) if c is _owner(component, n)})]:
        raise UsageError("\n".join(faults))


def _owner(component: type, name: str) -> type:
    return next(c for c in component.__mro__ if name in vars(c))


def _faults(component: type[Environment[Any, Any]], used: Collection[str]) -> Iterator[str]:
    """The mistakes in the methods *used* of *component*; the others are overridden."""
    try:
        lines, start = inspect.getsourcelines(component)
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # made at run time, or its file changed
        return
    assert isinstance(tree, ast.ClassDef)
    for method in (m for m in tree.body if isinstance(m, FUNCTIONS) and m.name in used):
        nodes, where = list(_of_method(method)), f"{component.__name__}.{method.name}"
        for n in nodes:
            if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load) and ast.unparse(n.value) == "self":
                yield (
                    f"{where}, line {start + n.lineno - 1}, assigns to self.{n.attr}, but concurrent episodes share "
                    "the environment: keep the state of an episode in local variables, that of a run in a service"
                )
        ends = [n for n in nodes if isinstance(n, (ast.Yield, ast.YieldFrom, ast.Raise, ast.Return))]
        if method.name == "tasks" and all(isinstance(n, ast.Return) and n.value is None for n in ends):
            yield f"{where}, line {start + method.lineno - 1}, returns nothing: return a list of tasks, or `yield` them"


def _of_method(method: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a method without those of classes in it, which have a ``self`` of their own."""
    for node in ast.iter_child_nodes(method):
        if not isinstance(node, ast.ClassDef):
            yield node
            yield from _of_method(node)
