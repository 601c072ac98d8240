"""Components in Python files outside any distribution: finds them without running the file, for
error messages.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UnknownNameError, UsageError, did_you_mean, nearest, suggestion
from ..tracebacks import describe_error

BASES = {
    "environment": "Environment",
    "engine": "Engine",
    "service": "Service",
    "curriculum": "Curriculum",
}
"""The base class of each kind whose components are classes."""
RECORDS = {"reward": ("Reward",), "algorithm": ("Algorithm", "Piece")}
"""The classes of each kind whose components are instances: names, because importing them doubles
the time of `quintain list`.
"""
DECORATORS = {
    "reward": ("reward", "group_reward"),
    "algorithm": (
        "advantage",
        "per_group",
        "objective",
        "correction",
        "aggregation",
        "group_filter",
        "optimizer_step",
    ),
}
"""The decorators that turn a function into such an instance."""


def explain(kind: str, name: str, module: Any = None) -> None:
    """Say what is wrong with the *name* of a component that nothing has, be it in a file or in
    *module*, which was imported for it.

    Raises:
        UnknownNameError: there is no such file, or *name* is a file without an attribute, or
            *module*, which was imported, lacks the attribute.
        UsageError: the file is not Python.
    """
    if module is not None:
        raise error_for_missing(kind, name, module, name.partition(":")[2].strip())
    if ":" in name:
        check_file(kind, name)
    elif error := error_for_file(kind, name):
        raise error


def components_in(path: Path, kind: str) -> list[str]:
    """Return the names of the components of *kind* that the file *path* defines, in order, without
    running it.

    Raises:
        UsageError: the file is not Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as e:
        raise UsageError(f"{path.name} is not Python: {describe_error(e)}") from e
    names: list[str] = []
    for node in tree.body:
        names.extend(_defined_by(node, kind, names))
    return names


def _defined_by(node: ast.stmt, kind: str, before: list[str]) -> Iterator[str]:
    if isinstance(node, ast.ClassDef) and kind in BASES:
        if any(b in before or b.endswith(BASES[kind]) for b in map(_last, node.bases)):
            yield node.name
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and kind in DECORATORS:
        if any(_last(d) in DECORATORS[kind] for d in node.decorator_list):
            yield node.name
    elif isinstance(node, ast.Assign) and kind == "algorithm" and isinstance(node.value, ast.Call):
        makes_algorithm = _last(node.value.func) in ("Algorithm", "replace")
        yield from (
            target.id for target in node.targets if makes_algorithm and isinstance(target, ast.Name)
        )


def _last(node: ast.expr) -> str:
    """Return ``Environment`` of ``quintain.Environment[Task, None]``; ``reward`` of
    ``@quintain.reward(range=(0, 1))``.
    """
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def check_file(kind: str, name: str) -> None:
    """Check that the file in ``path/to/file.py:Attribute`` exists.

    Raises:
        UnknownNameError: it does not exist; the nearest file name of its folder is shown.
    """
    file, _, attribute = name.partition(":")
    path = Path(os.path.expanduser(file))  # these functions of os refuse no name
    if not file.endswith(".py") or os.path.isfile(path):
        return
    if os.path.isdir(path.parent):
        near = nearest(path.name, (p.name for p in path.parent.glob("*.py")))
        hint = suggestion(
            near and file.removesuffix(path.name) + near + (f":{attribute}" if attribute else "")
        )
    else:
        hint = f"; there is no folder {str(path.parent)!r} either"
    raise UnknownNameError(f"{kind} {name!r}: there is no file {file!r}{hint}")


def error_for_file(kind: str, name: str) -> UnknownNameError | None:
    """Return the error for a *name* that is a file, with or without its ``.py``, but names no
    attribute; else ``None``.

    Raises:
        UnknownNameError: *name* ends in ``.py`` and there is no such file.
        UsageError: the file is not Python.
    """
    if kind not in (*BASES, *DECORATORS):
        return None
    check_file(kind, name)
    file = name if name.endswith(".py") else f"{name}.py"
    path = Path(os.path.expanduser(file))
    if not os.path.isfile(path):
        return None
    names = [f"{file}:{component}" for component in components_in(path, kind)]
    what = (
        f"{kind} {name!r} is a file"
        if file == name
        else f"no {kind} {name!r} is installed, but there is {file}"
    )
    if len(names) == 1:
        return UnknownNameError(f"{what}; write {names[0]}")
    if names:
        return UnknownNameError(f"{what} with several; write one of {', '.join(names)}")
    return UnknownNameError(
        f"{what}, and it defines none; write {file}:NAME for one that it imports"
    )


def error_for_missing(kind: str, target: str, module: Any, attribute: str) -> UnknownNameError:
    """Return the error for a *module* without *attribute*: shows its nearest name of a component of
    *kind*.
    """
    place = target.partition(":")[0]
    components = {}
    for name, value in vars(module).items():
        classes = (BASES.get(kind),) if isinstance(value, type) else RECORDS.get(kind, ())
        lineage = value.__mro__ if isinstance(value, type) else type(value).__mro__
        base = getattr(value, "__name__", "") in classes
        if not name.startswith("_") and not base and any(c.__name__ in classes for c in lineage):
            components[name] = value
    # The user seldom means what the module only imports, such as the base class.
    own_components = [
        name
        for name, v in components.items()
        if getattr(v, "__module__", module.__name__) == module.__name__
    ]
    names = [f"{place}:{name}" for name in own_components or components]
    fix = did_you_mean(target, names) if names else f"; it defines no {kind}"
    return UnknownNameError(f"{kind} {target!r}: {place} has no {attribute!r}{fix}")
