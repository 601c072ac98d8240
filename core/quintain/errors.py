"""Every error that Quintain raises on purpose, in one tree.

::

    QuintainError
    ├── UsageError (ValueError)            something you typed; the message names the fix
    │   ├── RecipeError                    a recipe key, type or range
    │   ├── UnknownNameError (LookupError) no such component, algorithm, run ...; the nearest known is shown
    │   └── BindingError (TypeError)       arguments that do not fit a component's signature
    ├── PluginError                        a plugin is broken, or two of them claim one name
    ├── Interrupted                        the user asked to stop; what was complete is saved
    ├── RunError                           a run cannot go on
    │   ├── RunLockedError                 another process works on this run folder
    │   ├── StorageError (OSError)         the disk is full or the folder cannot be written
    │   └── NoTasksError                   the environment yields no (more) tasks
    └── EpisodeError                       how one episode can fail; becomes its ending
        ├── PolicyFault                    the policy's doing: rewarded as the task says
        ├── LimitReached                   the policy's doing: tokens, turns or context used up
        ├── EnvironmentFault               ours: the environment's code failed
        ├── RewardFault                    ours: a reward failed or returned no finite number
        ├── InfrastructureError            ours: engine, sandbox, network or judge
        └── EpisodeTimeout (TimeoutError)  ours: the wall clock ran out

Messages say who, where, what was expected, what came, and the next thing to type.
"""

from __future__ import annotations

import builtins
import difflib
import functools
import inspect
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

__all__ = [
    "BindingError",
    "EnvironmentFault",
    "EpisodeError",
    "EpisodeTimeout",
    "InfrastructureError",
    "Interrupted",
    "LimitReached",
    "NoTasksError",
    "PluginError",
    "PolicyFault",
    "QuintainError",
    "RecipeError",
    "RewardFault",
    "RunError",
    "RunLockedError",
    "StorageError",
    "UnknownNameError",
    "UsageError",
]


class QuintainError(Exception):
    """Base of every deliberate error."""


class UsageError(QuintainError, ValueError):
    """The user can mend it; the command line prints the message without a traceback (exit status 2)."""


class RecipeError(UsageError):
    """A recipe has an unknown key, a wrong type or a value out of range."""


class UnknownNameError(UsageError, LookupError):
    """A name that nothing answers to."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
        """Build the message: what was asked for, the nearest known name, where to see them all."""
        near = did_you_mean(name, known)
        end = "" if near.endswith("?") else "."
        return cls(f"unknown {kind} {name!r}{near}{end + ' ' + hint if hint else ''}")


class BindingError(UsageError, TypeError):
    """Arguments that do not fit the signature of a component."""


class PluginError(QuintainError):
    """A plugin failed to load or clashes with another; names the distribution."""


class Interrupted(QuintainError):
    """The user asked to stop; every complete step is saved."""


class RunError(QuintainError):
    """A run cannot go on."""


class RunLockedError(RunError):
    """Another process works on this run folder."""


class StorageError(RunError, OSError):
    """A file of the run could not be written; nothing saved before is lost."""


class NoTasksError(RunError):
    """The environment yields no tasks where some are needed."""


class EpisodeError(QuintainError):
    """Base of what can go wrong inside one episode."""


class PolicyFault(EpisodeError):
    """The policy did something it must not; scored as the task says."""


class LimitReached(EpisodeError):
    """A limit on turns, tokens or context was reached.

    ``limit`` is one of ``turns``, ``tokens``, ``context``.
    """

    def __init__(self, limit: str, message: str = "") -> None:
        super().__init__(limit, message)
        self.limit = limit
        self.message = message

    def __str__(self) -> str:
        return self.message or f"limit on {self.limit} reached"


class EnvironmentFault(EpisodeError):
    """The environment's own code failed."""


class RewardFault(EpisodeError):
    """A reward raised, or returned something that is not a finite number."""


class InfrastructureError(EpisodeError):
    """Engine, sandbox, network or judge failed; retried within a budget."""


class EpisodeTimeout(EpisodeError, TimeoutError):
    """The wall clock of an episode ran out."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known name, else the known names if few, else nothing."""
    names = sorted(set(known))
    if near := nearest(name, names):
        return meaning(near)
    if names and len(names) <= 12:
        return "; known: " + ", ".join(names)
    return ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like *name*; empty where none is like it."""
    return next(iter(difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)), "")


def meaning(near: str) -> str:
    """``"; did you mean 'x'?"``; nothing for an empty name."""
    return f"; did you mean {near!r}?" if near else ""


def said_by(error: BaseException) -> str:
    """What an author's code raised, and where in it: ``"KeyError: 'letters' (reverse.py, line 12)"``.

    A name that nothing answers to gets the nearest one that something does, where Python keeps that to its tracebacks.
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
    if isinstance(error, NameError) and error.name:
        frames = list(_frames(error))[-1:]
        known = [name for f in frames for name in (*f.f_locals, *f.f_globals, *vars(builtins))]
        return meaning(nearest(error.name, known))
    if isinstance(error, AttributeError) and error.name and error.obj is not None:
        return meaning(nearest(error.name, (name for name in dir(error.obj) if not name.startswith("_"))))
    found = _KEYWORD.match(str(error)) if isinstance(error, TypeError) else None
    if found is None:
        return ""
    name = found[1].removesuffix(".__init__").rpartition(".")[2]
    for frame in reversed(list(_frames(error))):
        taker = _named(name, frame.f_locals) or _named(name, frame.f_globals)
        if taker is not None:
            return did_you_mean(found[2], _keywords(taker))
    return ""


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))


def _named(name: str, known: Mapping[str, Any]) -> Any:
    """The class or function called *name* among the values of *known* or of its modules."""
    candidates = [*known.values(), *(vars(m).get(name) for m in known.values() if isinstance(m, ModuleType))]
    return next((c for c in candidates if isinstance(c, (type, FunctionType)) and c.__name__ == name), None)


def _keywords(taker: Any) -> list[str]:
    try:
        parameters = inspect.signature(taker).parameters.values()
    except (TypeError, ValueError):  # one written in C says nothing of itself
        return []
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]
