"""Mistakes in an environment's class that its source text shows."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from quintain import Environment, Reward
from quintain.errors import UsageError

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
AWAITED = ("turn", "run")
"""Methods of an agent that are coroutines."""


def check_class(component: type[Environment[Any, Any]]) -> None:
    """Refuse an environment whose methods cannot work, by their source text; without that, nothing is checked.

    Raises:
        UsageError: the reward is a function without its decorator, a method assigns to ``self``, which concurrent
            episodes share, `tasks` returns nothing, or a call of the agent is not awaited.
    """
    given = inspect.getattr_static(component, "reward", None)
    if inspect.isfunction(given) and not isinstance(given, Reward):
        raise UsageError(
            f"{component.__name__}.reward is the function {given.__name__!r}; write `@reward` above its `def` "
            "(from quintain import reward)"
        )
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
        for line, fault in _not_awaited(method, nodes):
            yield f"{where}, line {start + line - 1}, {fault}"


def _not_awaited(method: ast.FunctionDef | ast.AsyncFunctionDef, nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and description of calls of an agent whose result is used as if they had been awaited."""
    parents = {child: node for node in (method, *nodes) for child in ast.iter_child_nodes(node)}
    agents = {a.arg for a in method.args.args if a.arg == "agent" or ast.unparse(a.annotation or a) == "Agent"}
    for n in nodes:  # other players of the episode
        if isinstance(n, ast.Assign) and _called(n.value, agents) in ("player", "fork"):
            agents |= {target.id for target in n.targets if isinstance(target, ast.Name)}
    for n in nodes:
        name, parent = _called(n, agents), parents[n]
        text = f"{ast.unparse(n.func)}()" if isinstance(n, ast.Call) else ""
        if name == "turns" and isinstance(parent, (ast.For, ast.comprehension)) and not getattr(parent, "is_async", 0):
            yield n.lineno, f"iterates over {text} with `for`; write `async for`"  # type: ignore[attr-defined]
        elif name in AWAITED and (isinstance(parent, (ast.Expr, ast.Attribute)) or _only_read(parent, nodes, parents)):
            yield n.lineno, f"calls the coroutine {text} without waiting for it; write `await {text}`"  # type: ignore[attr-defined]


def _called(node: ast.AST, owners: Collection[str]) -> str:
    """The method that *node* calls of one of the variables *owners*; empty if it is no such call."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.attr if node.func.value.id in owners else ""
    return ""


def _only_read(node: ast.AST, nodes: Sequence[ast.AST], parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether *node* assigns to a variable of which only attributes are read, so that nothing can await its value."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    variable = node.targets[0].id
    uses = [parents[n] for n in nodes if isinstance(n, ast.Name) and n.id == variable and isinstance(n.ctx, ast.Load)]
    return bool(uses) and all(isinstance(use, ast.Attribute) for use in uses)


def _of_method(method: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a method without those of classes in it, which have a ``self`` of their own."""
    for node in ast.iter_child_nodes(method):
        if not isinstance(node, ast.ClassDef):
            yield node
            yield from _of_method(node)
