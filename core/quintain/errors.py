"""Every error that Quintain raises on purpose; messages name what failed and where, what was
expected, and the fix.

`UsageError` is an error in the command line, a recipe or the user's code; `PluginError` is a broken
plugin; `RunError` is a run that cannot continue; `EpisodeError` is a failed episode, and its class
decides the episode's termination.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable

__all__ = [
    "BindingError", "EnvironmentFault", "EpisodeError", "InfrastructureError", "Interrupted",
    "LimitReached", "NoTasksError", "PluginError", "PolicyFault", "PolicyTimeout", "QuintainError",
    "RecipeError", "RewardFault",
    "RunError", "RunLockedError", "StorageError", "ToolError", "UndeliveredWeights",
    "UnknownNameError", "UsageError", "deprecated", "did_you_mean", "nearest", "suggestion",
]  # fmt: skip


class QuintainError(Exception):
    """Base of every error that Quintain raises on purpose."""


class UsageError(QuintainError, ValueError):
    """The user can correct it; the command line prints its message without a traceback and exits
    with status 2.
    """


class RecipeError(UsageError):
    """A recipe has an unknown key, a wrong type or a value out of range."""


class UnknownNameError(UsageError, LookupError):
    """No component, algorithm or run has the name; the message shows the nearest known one."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str], hint: str = "") -> UnknownNameError:
        """Return the error for *name*: its message shows the nearest of *known*, then *hint*."""
        near = did_you_mean(name, known)  # as in: unknown environment 'sums'; did you mean 'sum'?
        end = "" if near.endswith("?") else "."
        return cls(f"unknown {kind} {name!r}{near}{end + ' ' + hint if hint else ''}")


class BindingError(UsageError, TypeError):
    """Arguments do not fit the signature of a component."""


class PluginError(QuintainError):
    """A plugin failed to load, or two of them claim one name; the message names the
    distribution.
    """


class Interrupted(QuintainError):
    """The user asked to stop, or a budget is spent (a reward may raise it); every complete step is
    saved.
    """


class RunError(QuintainError):
    """A run cannot continue."""


class UndeliveredWeights(RunError):
    """The engine computes with other weights than the learner has in the version that it names.

    Attributes:
        tensor: the first that differs.
    """

    def __init__(self, where: str, tensor: str, version: int) -> None:
        super().__init__(
            f"{where} has another {tensor} than the learner in version {version}. Nothing of this "
            "step is saved, and a resumed run sends all weights again. If it happens again, please "
            'report engine and architecture; run.max_sample_mismatch = "none" trains nonetheless'
        )
        self.tensor = tensor


class RunLockedError(RunError):
    """Another process uses this run folder."""


class StorageError(RunError, OSError):
    """A file of the run cannot be written; files saved before are intact."""


class NoTasksError(RunError):
    """The environment yields no tasks, or too few."""


class EpisodeError(QuintainError):
    """Base of the failures of one episode. Those of the policy are scored; all others are left out
    and counted (`TerminationKind` has the table).
    """


class PolicyFault(EpisodeError):
    """A fault of the policy, such as unreadable tool calls; scored with `Environment.early`."""


class PolicyTimeout(PolicyFault):
    """What the policy chose, its calls or its programs, took too long; scored with
    `Environment.early`.
    """


class LimitReached(EpisodeError):
    """The policy reached *limit*: ``turns``, ``tokens`` or ``context``."""

    def __init__(self, limit: str, message: str = "") -> None:
        super().__init__(limit, message)
        self.limit = limit
        self.message = message

    def __str__(self) -> str:
        return self.message or f"limit on {self.limit} reached"


class EnvironmentFault(EpisodeError):
    """The environment's own code failed."""


class ToolError(EnvironmentFault):
    """A tool cannot do what it is asked to; the policy reads the message as the result of its
    call.
    """


class RewardFault(EpisodeError):
    """A reward raised, or did not return a finite number."""


class InfrastructureError(EpisodeError):
    """An engine, sandbox, network or judge failed.

    An episode is retried `batch.retries` times after any failure that is not the policy's, a call
    of a reward after this one alone.
    """


def deprecated(name: str, *, ends: str, instead: str) -> None:
    """Warn the caller of the function that calls this one.

    Args:
        name: what is deprecated.
        ends: the version of Quintain in which it is gone, as a literal. A test fails from that
            version on, as long as the call stands.
        instead: what to use.
    """
    warnings.warn(
        f"{name} ends with Quintain {ends}; use {instead}", DeprecationWarning, stacklevel=3
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, else up to 18 known names, else
    an empty string.
    """
    names = sorted(set(known))
    if near := nearest(name, names):
        return suggestion(near)
    return "; known: " + ", ".join(names) if 0 < len(names) <= 18 else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most similar to *name*; empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)), "")


def suggestion(near: str) -> str:
    """Return ``"; did you mean 'x'?"``; empty for an empty name."""
    return f"; did you mean {near!r}?" if near else ""
