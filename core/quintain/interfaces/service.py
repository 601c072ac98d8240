"""Services: resources of a run, started and probed before step 1, stopped at the end. Plugins add
types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable


class Service(ABC):  # noqa: B024 - all of it has defaults
    """One per run and slot. A component asks for one with ``name: Judge = need()``.

    Its constructor may ``need()`` others; the run starts them in dependency order and stops them in
    reverse.

    Its methods ``quintain_on_*`` are called with the events of the run (docs/hooks.md).
    """

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> str | None:
        """Look for the files, packages and programs that the settings *args* of a recipe need;
        start and load nothing.

        Called for ``--dry-run`` and before a run begins. May return a note on the memory and the
        work that the service takes.

        Raises:
            UsageError, InfrastructureError: one is missing; the message names the fix.
        """
        return None

    async def __aenter__(self) -> Self:
        """Start, and probe that it works; raise `InfrastructureError` naming the fix where it does
        not.
        """
        return self

    async def __aexit__(self, *exc: object) -> None:  # noqa: B027 - nothing to stop by default
        """Stop. Called once, also after a failure."""

    def state(self) -> Mapping[str, Any]:
        """Return plain data and tensors that go into every checkpoint. Tensors may be live, for
        they are not copied: they must not change while episodes run, so that a step that is given
        up then leaves them as they were.
        """
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - nothing to restore by default
        """Restore what `state` returned."""


@dataclass(frozen=True, slots=True)
class Need:
    """The default value of a parameter that is a service; *slot* is empty where the parameter's
    name is the slot.
    """

    slot: str = ""


def need(slot: str = "") -> Any:
    """Ask for a service: ``judge: Judge = need()`` is filled from ``[services.judge]``, or from
    *slot* where given.
    """
    return Need(slot)


@runtime_checkable
class Workers(Protocol):
    """Killable worker processes for code that may hang or crash (parsers, checkers)."""

    async def call(
        self, function: Callable[..., Any] | str, *args: Any, timeout: float = 5.0
    ) -> Any:
        """Run an importable *function* (or its ``"module:name"``) in a worker; it returns plain
        data.

        Raises:
            TimeoutError: it took longer than *timeout* seconds; the worker was killed.
            InfrastructureError: the worker died.
            Exception: what the function itself raised.
        """


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A judge's grade: ``score`` in [0, 1], and the reason."""

    score: float
    reason: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Judge(Protocol):
    """Grades a reply against a rubric (criteria, as text)."""

    async def grade(self, prompt: Any, reply: str, rubric: str) -> Judgement: ...


@runtime_checkable
class Likelihood(Protocol):
    """Log-likelihood of a given continuation under some policy."""

    async def logprobs(self, prompt: Any, reply: str) -> Sequence[float]: ...


class Sandbox(Service):
    """Runs untrusted programs elsewhere: their failures are values, the sandbox's own an
    `InfrastructureError`.

    This is the least that one offers. `ProbedSandbox` of the plugin for sandboxes adds limits and
    the type of the result.
    """

    @abstractmethod
    async def run(
        self, files: Mapping[str, bytes], argv: Sequence[str], stdin: bytes = b""
    ) -> Any: ...
