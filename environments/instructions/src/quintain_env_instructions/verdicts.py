"""Whether a reply follows a constraint, strictly and loosely."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from quintain.errors import UsageError, did_you_mean
from quintain_judge import check

from . import ifbench, ifbench_sentences, ifeval
from .checks import CHECKS, Constraint

OF_PAPERS = (ifeval, ifbench, ifbench_sentences)
"""Modules that enter their checks in `CHECKS` as they are imported."""


def arguments_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments *given* that are set, as the check *name* takes them: whole
    numbers as such.

    Raises:
        UsageError: there is no such check, an argument is missing, or it takes no such argument.
    """
    function = CHECKS.get(name)
    if function is None:
        hint = did_you_mean(name, CHECKS)
        raise UsageError(f"no check decides the instruction {name!r}{hint}")
    values = {key: value for key, value in given.items() if value is not None}
    known = list(inspect.signature(function).parameters.values())[1:]
    missing = [p.name for p in known if p.default is p.empty and p.name not in values]
    unknown = sorted(values.keys() - {p.name for p in known})
    if missing or unknown:
        fault = f"has no {', '.join(missing)}" if missing else f"takes no {', '.join(unknown)}"
        names = ", ".join(p.name for p in known) or "nothing"
        raise UsageError(f"the instruction {name!r} {fault}; its arguments: {names}")
    if name == "rule" and check(str(values["criterion"]), "") is None:
        raise UsageError(f"no rule decides the criterion {values['criterion']!r}")
    return {key: _whole(value) for key, value in values.items()}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def met(constraint: Constraint, reply: str) -> bool:
    """Return whether *reply* follows *constraint*; a blank one follows none."""
    return bool(reply.strip()) and CHECKS[constraint.id](reply, **constraint.arguments)


def met_loosely(constraint: Constraint, reply: str) -> bool:
    """Return whether *reply* follows *constraint* as it is, or without its first line, its last
    line or both, each also without asterisks (the loose accuracy of IFEval, arXiv:2311.07911).
    """
    return any(met(constraint, variant) for variant in _variants(reply))


def _variants(reply: str) -> list[str]:
    rows = reply.split("\n")
    texts = [
        reply,
        "\n".join(rows[1:]).strip(),
        "\n".join(rows[:-1]).strip(),
        "\n".join(rows[1:-1]).strip(),
    ]
    return [*texts, *(text.replace("*", "") for text in texts)]
