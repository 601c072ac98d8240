"""Mistakes in an environment's class that its source text shows."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import UsageError, did_you_mean
from ..interfaces.agent import Limits
from ..interfaces.environment import Environment
from ..interfaces.reward import Reward
from ..tracebacks import defined_at

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
AWAITED = ("turn", "run")
"""Methods of an agent that are coroutines."""
REWARDS = ("reward", "shaping", "yardstick")
"""Attributes of an environment that are rewards."""
OF_OTHERS = {
    "prompt": "",
    "completion": "",
    "prompts": "TRL",
    "completions": "TRL",
    "solution_str": "verl",
}
"""Names of parameters that tell a function for ``--reward FILE:function``, with the library that
has them.
"""


def check_class(component: type[Environment[Any, Any]]) -> None:
    """Refuse an environment whose methods cannot work, by their source text; without that, only
    names are checked.

    Raises:
        UsageError: it has no `tasks`, the reward is a function without its decorator or takes no
            rollout, a method assigns to ``self``, which concurrent episodes share, `tasks` returns
            nothing or is a coroutine, or a call of the agent is not awaited.
    """
    any_class: Any = component  # a class is hashable, though mypy asks its instances
    _check(any_class)


@lru_cache(maxsize=1024)  # a run resolves each environment several times
def _check(component: Any) -> None:
    given = inspect.getattr_static(component, "reward", None)
    if inspect.isfunction(given) and not isinstance(given, Reward):
        fix = (
            other_signature(given)
            or "write `@reward` above its `def` (from quintain import reward)"
        )
        raise UsageError(
            f"{component.__name__}.reward is the function {given.__name__!r} "
            f"({defined_at(given)}); {fix}"
        )
    if isinstance(given, Reward):
        check_parameters(given)
    if isinstance(given, str):
        near = next(iter(get_close_matches(given, dir(inspect.getmodule(component)))), given)
        raise UsageError(
            f"{component.__name__}.reward is the text {given!r} ({defined_at(component)}); "
            f"expected a reward without quotes, such as {near}"
        )
    if not isinstance(component.limits, Limits):
        raise UsageError(
            f"{component.__name__}.limits is {component.limits!r:.40} ({defined_at(component)}); "
            f"expected a record, such as Limits(turns=5) (from quintain import Limits)"
        )
    for name, value in vars(component).items():
        misspelt = name not in REWARDS and get_close_matches(name, REWARDS)
        if isinstance(value, Reward) and misspelt:
            raise UsageError(
                f"{component.__name__}.{name} is a reward, but no attribute that an environment "
                f"reads{did_you_mean(name, REWARDS)} ({defined_at(component)})"
            )
    if component.tasks is Environment.tasks:
        names = [name for name, value in vars(component).items() if inspect.isfunction(value)]
        fix = did_you_mean("tasks", names) or "; it yields the tasks of train, dev or test"
        raise UsageError(
            f"{component.__name__} ({defined_at(component)}) has no method tasks(self, split){fix}"
        )
    classes = [c for c in component.__mro__ if issubclass(c, Environment) and c is not Environment]
    if faults := [
        fault
        for c in classes
        for fault in _faults(c, {n for n in vars(c) if c is _owner(component, n)})
    ]:
        raise UsageError("\n".join(faults))


def check_parameters(given: Any) -> None:
    """Refuse a reward with a function that takes other things than a rollout, or that lacks a
    setting.

    Raises:
        UsageError: with file, line and fix.
    """
    for part in given.parts:
        check_parameters(part)
    function = getattr(given, "function", None)
    if given.parts or not hasattr(given, "config"):
        return
    where = f"reward {given.name!r} ({defined_at(function)})"
    if fix := other_signature(function):
        raise UsageError(f"{where}: {fix}")
    wanted = [
        n
        for n, p in given.parameters.items()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    if lacking := [name for name in wanted if name not in given.config]:
        settings = ", ".join(f"{name}=..." for name in lacking)
        raise UsageError(
            f"{where} has no value for {', '.join(lacking)}; write {given.name}({settings}), or a "
            f"default"
        )


def _file(component: type) -> str:
    return Path(inspect.getsourcefile(component) or "").name


def _source(component: type) -> tuple[list[str], int]:
    """Return the lines of a class and the number of the first; none if it was made at run time, or
    its file changed.
    """
    try:
        return inspect.getsourcelines(component)
    except (OSError, TypeError):
        return [], 0


def other_signature(function: Any) -> str:
    """Return what to write instead of a function with the parameters of another library; empty if
    it takes a rollout.
    """
    names = [*inspect.signature(function).parameters]
    known = [name for name in names if name in OF_OTHERS]
    if not known or names[0] in ("rollout", "group"):
        return ""
    library = next((f" ({OF_OTHERS[name]}'s)" for name in known if OF_OTHERS[name]), "")
    file, name = inspect.getsourcefile(function) or "FILE.py", function.__name__
    return (
        f"it takes {', '.join(names)}{library}; in a class a reward takes one rollout: def "
        f"{name}(rollout), with rollout.reply and rollout.task.answer. The function as it is works "
        f"without @reward as --reward {Path(file).name}:{name}"
    )


def _owner(component: type, name: str) -> type:
    return next(c for c in component.__mro__ if name in vars(c))


def _faults(component: type[Environment[Any, Any]], used: Collection[str]) -> Iterator[str]:
    """Yield the mistakes in the methods *used* of *component*; the others are overridden."""
    lines, start = _source(component)
    try:
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (SyntaxError, ValueError):
        return
    assert isinstance(tree, ast.ClassDef)
    file = _file(component)
    for method in (m for m in tree.body if isinstance(m, FUNCTIONS) and m.name in used):
        nodes = list(_of_method(method))

        def at(line: int, name: str = method.name) -> str:
            return f"{component.__name__}.{name} ({file}, line {start + line - 1})"

        for n in nodes:
            if (
                isinstance(n, ast.Attribute)
                and not isinstance(n.ctx, ast.Load)
                and ast.unparse(n.value) == "self"
            ):
                yield (
                    f"{at(n.lineno)} assigns to self.{n.attr}, but concurrent episodes share the "
                    "environment: keep the state of an episode in local variables, that of a run "
                    "in a service"
                )
        if method.name in ("tasks", "demonstrations") and isinstance(method, ast.AsyncFunctionDef):
            yield f"{at(method.lineno)} is a coroutine; write `def {method.name}(self, split)`"
        ends = [
            n for n in nodes if isinstance(n, (ast.Yield, ast.YieldFrom, ast.Raise, ast.Return))
        ]
        if method.name == "tasks" and all(
            isinstance(n, ast.Return) and n.value is None for n in ends
        ):
            yield f"{at(method.lineno)} returns nothing: return a list of tasks, or `yield` them"
        for line, fault in _not_awaited(method, nodes):
            yield f"{at(line)} {fault}"


def _not_awaited(
    method: ast.FunctionDef | ast.AsyncFunctionDef, nodes: Sequence[ast.AST]
) -> Iterator[tuple[int, str]]:
    """Yield line and description of calls of an agent whose result is used as if they had been
    awaited.
    """
    parents = {child: node for node in (method, *nodes) for child in ast.iter_child_nodes(node)}
    agents = {
        a.arg
        for a in method.args.args
        if a.arg == "agent" or ast.unparse(a.annotation or a) == "Agent"
    }
    for n in nodes:  # other players of the episode
        if isinstance(n, ast.Assign) and _called(n.value, agents) in ("player", "fork"):
            agents |= {target.id for target in n.targets if isinstance(target, ast.Name)}
    for n in nodes:
        name, parent = _called(n, agents), parents[n]
        if not isinstance(n, ast.Call):
            continue
        text = f"{ast.unparse(n.func)}()"
        if (
            name == "turns"
            and isinstance(parent, (ast.For, ast.comprehension))
            and not getattr(parent, "is_async", 0)
        ):
            yield n.lineno, f"iterates over {text} with `for`; write `async for`"
        elif name in AWAITED and (
            isinstance(parent, (ast.Expr, ast.Attribute)) or _only_read(parent, nodes, parents)
        ):
            yield (
                n.lineno,
                f"calls the coroutine {text} without waiting for it; write `await {text}`",
            )


def _called(node: ast.AST, owners: Collection[str]) -> str:
    """Return the method that *node* calls of one of the variables *owners*; empty if it is no such
    call.
    """
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    ):
        return node.func.attr if node.func.value.id in owners else ""
    return ""


def _only_read(node: ast.AST, nodes: Sequence[ast.AST], parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Return whether *node* assigns to a variable of which only attributes are read, so that
    nothing can await its value.
    """
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
        return False
    variable = node.targets[0].id
    uses = [
        parents[n]
        for n in nodes
        if isinstance(n, ast.Name) and n.id == variable and isinstance(n.ctx, ast.Load)
    ]
    return bool(uses) and all(isinstance(use, ast.Attribute) for use in uses)


def _of_method(method: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a method without those of classes in it, which have a ``self`` of their
    own.
    """
    for node in ast.iter_child_nodes(method):
        if not isinstance(node, ast.ClassDef):
            yield node
            yield from _of_method(node)
