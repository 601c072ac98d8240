"""Describes what an author's code raised and where in it, for messages about somebody else's error."""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .errors import did_you_mean, meaning, nearest


def said_by(error: BaseException) -> str:
    """What an author's code raised, and where in it: ``"KeyError: 'letters' (reverse.py, line 12)"``.

    An unknown name gets the nearest known one, which Python itself adds only to printed tracebacks.
    """
    if isinstance(error, SyntaxError):  # its text has a place of its own, in Python's form
        shown = f": `{error.text.strip()}`" if error.text else ""
        text = f"{type(error).__name__}: {error.msg}{shown}"
    else:
        text = ": ".join(filter(None, (type(error).__name__, str(error))))
        if "did you mean" not in text.lower():
            text += _near_miss(error)
    place = place_of(error)
    return f"{text} ({place})" if place else text


def place_of(error: BaseException) -> str:
    """File and line of the author's code that raised *error*, as in ``"reverse.py, line 12"``; empty where none did.

    It is the innermost frame outside Quintain, the standard library and what is installed. Where only an installed
    plugin ran, it is the innermost frame in the folder of the first one, not of a library that it called.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_title(error.filename)}, line {error.lineno}"
    every = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    frames = [(name, line) for name, line in every if _is_author(name)]
    own = [f for f in frames if not _is_installed(f[0])]
    if not own and frames:
        own = [f for f in frames if Path(f[0]).parent == Path(frames[0][0]).parent]
    return f"{_title(own[-1][0])}, line {own[-1][1]}" if own else ""


_OURS = Path(__file__).resolve().parent
_PATHS = sysconfig.get_paths()
_INSTALLED = {Path(_PATHS[key]).resolve() for key in ("purelib", "platlib")}
_STANDARD = {Path(_PATHS[key]).resolve() for key in ("stdlib", "platstdlib")}


@functools.cache
def _is_author(filename: str) -> bool:
    if filename.startswith("<"):  # a generated constructor, an import; a cell of a notebook has a file name
        return False
    if _is_installed(filename):  # its folder may be inside that of the standard library
        return True
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in (_OURS, *_STANDARD))


@functools.cache
def _is_installed(filename: str) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in _INSTALLED) and not path.is_relative_to(_OURS)


def _title(filename: str) -> str:
    path = Path(filename)
    return f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name


_KEYWORD = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")


def _near_miss(error: BaseException) -> str:
    """Did-you-mean for a misspelled variable, attribute or keyword argument."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, NameError) and error.name:
        known = [name for f in frames[-1:] for name in (*f.f_locals, *f.f_globals, *vars(builtins))]
        return meaning(nearest(error.name, known))
    if isinstance(error, AttributeError) and error.name and error.obj is not None:
        return meaning(nearest(error.name, (name for name in dir(error.obj) if not name.startswith("_"))))
    unexpected = _KEYWORD.match(str(error)) if isinstance(error, TypeError) else None
    if unexpected is None:
        return ""
    name = unexpected[1].removesuffix(".__init__").rpartition(".")[2]
    for frame in reversed(frames):
        callee = _named(name, frame.f_locals) or _named(name, frame.f_globals)
        if callee is not None:
            return did_you_mean(unexpected[2], _keywords(callee))
    return ""


def _named(name: str, known: Mapping[str, Any]) -> Any:
    """The class or function called *name* among the values of *known* or of its modules."""
    candidates = [*known.values(), *(vars(m).get(name) for m in known.values() if isinstance(m, ModuleType))]
    return next((c for c in candidates if isinstance(c, (type, FunctionType)) and c.__name__ == name), None)


def _keywords(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one written in C may have no signature
        return []
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]
