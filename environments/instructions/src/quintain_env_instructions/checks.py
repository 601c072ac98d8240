"""The table of checks: what decides an instruction, by its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quintain_judge import check

Check = Callable[..., bool]
F = TypeVar("F", bound=Check)

CHECKS: dict[str, Check] = {}
"""Checks by id. Each takes the reply, and the arguments of the instruction by the names that IFEval
and IFBench give them.
"""


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """One constraint of a prompt.

    Attributes:
        id, arguments: the check in `CHECKS` that decides it.
        kind: of a generated one, its name in `quintain_env_instructions.kinds.KINDS`.
        asked: of a generated one, the sentence of the prompt.
        values: of a generated one, what was drawn.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""
    asked: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)


def decides(*ids: str) -> Callable[[F], F]:
    """Enter a function in `CHECKS` under *ids*."""

    def enter(function: F) -> F:
        for name in ids:
            CHECKS[name] = function
        return function

    return enter


@decides("rule")
def by_rule(reply: str, *, criterion: str) -> bool:
    """Decide a sentence of the grammar of `quintain_judge.rules`, which counts by Unicode's rules."""
    met = check(criterion, reply)
    assert met is not None  # `verdicts.arguments_of` refuses other sentences
    return met
