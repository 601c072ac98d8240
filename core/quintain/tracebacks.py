"""Describes an error in an author's code: its type, message, file and line, for Quintain's own
messages.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import re
import sysconfig
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import FrozenInstanceError
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .errors import Interrupted, did_you_mean, nearest, suggestion

__all__ = ["defined_at", "describe_error", "is_failure", "place_of", "text_of"]


def describe_error(error: BaseException) -> str:
    """Return the type, message and place of *error*, as in ``"KeyError: 'letters' (reverse.py, line
    12)"``.

    Adds the nearest known name to an unknown one, which Python itself does only in printed
    tracebacks.
    """
    if isinstance(error, SyntaxError):  # str() of it repeats the file and line
        source = f": `{error.text.strip()}`" if error.text else ""
        text = f"{type(error).__name__}: {error.msg}{source}"
    else:
        text = ": ".join(filter(None, (type(error).__name__, text_of(error))))
        if "did you mean" not in text.lower():
            with suppress(Exception):  # `__dir__` is an author's code, too
                text += _near_miss(error)
    place = place_of(error)
    return f"{text} ({place})" if place else text


def text_of(error: BaseException) -> str:
    """Return the message of *error*, of at most `LONGEST_TEXT` characters, without its middle if it
    is longer.
    """
    try:
        text = str(error)
    except BaseException as e:
        if not is_failure(e):
            raise
        return f"no message, because its __str__ raised {type(e).__name__}"
    return (
        text if len(text) <= LONGEST_TEXT else f"{text[:200]} ... {text[200 + 5 - LONGEST_TEXT :]}"
    )


def is_failure(error: BaseException) -> bool:
    """Return whether *error* is a failure of the code that raised it, no request to stop and no
    cancellation of its task.
    """
    import asyncio  # here: `quintain list` needs none

    if isinstance(error, asyncio.CancelledError):
        with suppress(RuntimeError):  # no event loop runs
            task = asyncio.current_task()
            return task is None or not task.cancelling()
    return not isinstance(error, (KeyboardInterrupt, Interrupted))


def place_of(error: BaseException) -> str:
    """Return the file and line of the author's code that raised *error*, as in ``"reverse.py, line
    12"``; empty if none did.

    This is the innermost frame outside Quintain, the standard library and installed packages. If
    only installed plugins ran, it is the innermost frame in the folder of the first one, not of a
    library that it called.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_title(error.filename)}, line {error.lineno}"
    every_frame = (
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    )
    frames = [(name, line) for name, line in every_frame if _is_author(name)]
    author_frames = [f for f in frames if not _is_installed(f[0])]
    if not author_frames and frames:
        author_frames = [f for f in frames if Path(f[0]).parent == Path(frames[0][0]).parent]
    return f"{_title(author_frames[-1][0])}, line {author_frames[-1][1]}" if author_frames else ""


def defined_at(function: Any) -> str:
    """Return the file and line where *function* or a class begins, as in ``"reverse.py, line 12"``;
    empty if it has no source.
    """
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            return f"{_title(code.co_filename)}, line {code.co_firstlineno}"
        return f"{_title(inspect.getfile(function))}, line {inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError, ValueError):
        return ""


LONGEST_TEXT = 300  # characters of an author's message that are kept
_OURS = Path(__file__).resolve().parent
_PATHS = sysconfig.get_paths()
_INSTALLED = {Path(_PATHS[key]).resolve() for key in ("purelib", "platlib")}
_STANDARD = {Path(_PATHS[key]).resolve() for key in ("stdlib", "platstdlib")}


@functools.cache
def _is_author(filename: str) -> bool:
    # a generated constructor, an import; a cell of a notebook has a file name
    if filename.startswith("<"):
        return False
    if _is_installed(filename):  # its folder may be inside that of the standard library
        return True
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in (_OURS, *_STANDARD))


@functools.cache
def _is_installed(filename: str) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in _INSTALLED) and not path.is_relative_to(
        _OURS
    )


def _title(filename: str) -> str:
    path = Path(filename)
    return f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name


_KEYWORD = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
_POSITIONAL = re.compile(r"([\w.]+)\.__init__\(\) takes 1 positional argument but \d+ were given()")


def _near_miss(error: BaseException) -> str:
    """Return a did-you-mean for a misspelled variable, attribute or argument, or the place of what
    cannot be stored.
    """
    if isinstance(error, FrozenInstanceError):
        return (
            "; concurrent episodes share the environment: keep the state of an episode in local "
            "variables"
        )
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, NameError) and error.name:
        names = [name for f in frames[-1:] for name in (*f.f_locals, *f.f_globals, *vars(builtins))]
        return suggestion(nearest(error.name, names))
    if isinstance(error, AttributeError) and error.name and error.obj is not None:
        return suggestion(
            nearest(error.name, (name for name in dir(error.obj) if not name.startswith("_")))
        )
    text = text_of(error)
    unexpected = (
        (_KEYWORD.match(text) or _POSITIONAL.match(text)) if isinstance(error, TypeError) else None
    )
    if unexpected is None:
        return ""
    name = unexpected[1].removesuffix(".__init__").rpartition(".")[2]
    for frame in reversed(frames):
        callee = _callee(name, frame.f_locals) or _callee(name, frame.f_globals)
        if callee is not None:
            try:
                parameters = inspect.signature(callee).parameters.values()
            except (TypeError, ValueError):  # one written in C may have no signature
                return ""
            keywords = [
                p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
            ]
            if not unexpected[2]:
                named = ", ".join(f"{keyword}=..." for keyword in keywords[:2])
                return f"; name the arguments: {name}({named})"
            return did_you_mean(
                unexpected[2], [keyword for keyword in keywords if keyword != "self"]
            )
    return ""


def _callee(name: str, namespace: Mapping[str, Any]) -> Any:
    """Return the class or function called *name* among the values of *namespace* and of the modules
    in it.
    """
    modules = [value for value in namespace.values() if isinstance(value, ModuleType)]
    candidates = [*namespace.values(), *(vars(module).get(name) for module in modules)]
    return next(
        (c for c in candidates if isinstance(c, (type, FunctionType)) and c.__name__ == name), None
    )
