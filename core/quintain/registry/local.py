"""Components in files of one's own: what a file holds, told without running it, and what a wrong name meant."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import UnknownNameError, UsageError, did_you_mean, meaning, nearest
from ..tracebacks import said_by
from .discovery import PIECES

BASES = {"environment": "Environment", "engine": "Engine", "service": "Service"}
"""What the base classes of a class of a kind end in."""
DECORATORS = {"reward": ("reward", "group_reward"), "algorithm": PIECES}
"""What marks a function as a component of a kind."""


def components_in(path: Path, kind: str) -> list[str]:
    """Names of the components of *kind* that the file *path* defines, in its order; nothing of it is run.

    Raises:
        UsageError: it is not Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as e:
        raise UsageError(f"{path.name} is not Python: {said_by(e)}") from e
    found: list[str] = []
    for node in tree.body:
        found.extend(_named_by(node, kind, found))
    return found


def _named_by(node: ast.stmt, kind: str, found: list[str]) -> Iterator[str]:
    if isinstance(node, ast.ClassDef) and kind in BASES:
        bases = [_last(b) for b in node.bases]
        if any(b in found or b.endswith(BASES[kind]) for b in bases):
            yield node.name
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and kind in DECORATORS:
        if any(_last(d) in DECORATORS[kind] for d in node.decorator_list):
            yield node.name
    elif isinstance(node, ast.Assign) and kind == "algorithm" and isinstance(node.value, ast.Call):
        made = _last(node.value.func) in ("Row", "but")
        yield from (target.id for target in node.targets if made and isinstance(target, ast.Name))


def _last(node: ast.expr) -> str:
    """``Environment`` of ``quintain.Environment[Task, None]``; ``reward`` of ``@quintain.reward(range=(0, 1))``."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def check_file(kind: str, name: str) -> None:
    """That the file in ``path/to/file.py:Attribute`` is there.

    Raises:
        UnknownNameError: it is not; the nearest file of its folder is shown.
    """
    file, _, attribute = name.partition(":")
    if not file.endswith(".py") or Path(file).expanduser().is_file():
        return
    raise UnknownNameError(f"{kind} {name!r}: there is no file {file!r}{_nearest_file(file, attribute)}")


def _nearest_file(file: str, attribute: str) -> str:
    path = Path(file).expanduser()
    if not path.parent.is_dir():
        return f"; there is no folder {str(path.parent)!r} either"
    near = nearest(path.name, (p.name for p in path.parent.glob("*.py")))
    return meaning(near and file.removesuffix(path.name) + near + (f":{attribute}" if attribute else ""))


def meant(kind: str, name: str) -> UnknownNameError | None:
    """What to say of a bare *name* that is a file, or that of a file without its ``.py``; ``None`` where none is.

    Raises:
        UnknownNameError: it ends in ``.py`` and there is no such file.
        UsageError: the file is not Python.
    """
    if kind not in (*BASES, *DECORATORS):
        return None
    check_file(kind, name)
    file = name if name.endswith(".py") else f"{name}.py"
    path = Path(file).expanduser()
    if not path.is_file():
        return None
    names = [f"{file}:{found}" for found in components_in(path, kind)]
    what = f"{kind} {name!r} is a file" if file == name else f"no {kind} {name!r} is installed, but there is {file}"
    if len(names) == 1:
        return UnknownNameError(f"{what}; write {names[0]}")
    if names:
        return UnknownNameError(f"{what} with several; write one of {', '.join(names)}")
    return UnknownNameError(f"{what}, and it defines none; write {file}:NAME for one that it imports")


def lacking(kind: str, target: str, module: Any, attribute: str) -> UnknownNameError:
    """What to say where *module* has no *attribute*: the nearest name of a component of *kind* that it has."""
    shown = target.partition(":")[0]
    known = [f"{shown}:{name}" for name in _of_kind(kind, module)]
    return UnknownNameError(f"{kind} {target!r}: {shown} has no {attribute!r}{did_you_mean(target, known)}")


def _of_kind(kind: str, module: Any) -> list[str]:
    from ..interfaces.algorithm import Row
    from ..interfaces.engine import Engine
    from ..interfaces.environment import Environment
    from ..interfaces.pieces import Piece
    from ..interfaces.reward import Reward
    from ..interfaces.service import Service

    classes = {"environment": Environment, "engine": Engine, "service": Service}
    instances: dict[str, tuple[type, ...]] = {"reward": (Reward,), "algorithm": (Row, Piece)}
    fits = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (
            isinstance(value, instances.get(kind, ()))
            or (isinstance(value, type) and kind in classes and issubclass(value, classes[kind]))
        )
    ]
    # What it only imports, such as the base class, is seldom meant.
    own = [name for name in fits if getattr(vars(module)[name], "__module__", module.__name__) == module.__name__]
    return own or fits
