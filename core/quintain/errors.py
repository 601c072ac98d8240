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
    └── EpisodeError                       how one episode can fail; becomes its termination
        ├── PolicyFault                    the policy's doing: rewarded as the task says
        ├── LimitReached                   the policy's doing: tokens, turns or context used up
        ├── EnvironmentFault               ours: the environment's code failed
        ├── RewardFault                    ours: a reward failed or returned no finite number
        ├── InfrastructureError            ours: engine, sandbox, network or judge
        └── EpisodeTimeout (TimeoutError)  ours: the wall clock ran out

Messages name who failed and where, what was expected, what came, and the next thing to type.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BindingError", "EnvironmentFault", "EpisodeError", "EpisodeTimeout", "InfrastructureError", "Interrupted",
    "LimitReached", "NoTasksError", "PluginError", "PolicyFault", "QuintainError", "RecipeError", "RewardFault",
    "RunError", "RunLockedError", "StorageError", "UnknownNameError", "UsageError", "did_you_mean",
]  # fmt: skip


class QuintainError(Exception):
    """Base of every deliberate error."""


class UsageError(QuintainError, ValueError):
    """The user can correct it; the command line prints the message without a traceback (exit status 2)."""


class RecipeError(UsageError):
    """A recipe has an unknown key, a wrong type or a value out of range."""


class UnknownNameError(UsageError, LookupError):
    """A name that nothing has."""

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
