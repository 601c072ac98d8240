"""What the audit found: a verdict on each data set, which `sound` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

FREE = 0.9
"""Mean score of a reply without work from which on a data set gives its reward away."""

NONSENSE = 0.05
"""Mean score of an empty reply, or of the question, that is worth naming."""


@dataclass(frozen=True, kw_only=True)
class AuditVerdict:
    """Mean scores of replies over the rows of a data set, and what is odd.

    Attributes:
        rows: how many were scored.
        oracle: mean score of the stored answers; ``None`` where the rows store none.
        empty: of an empty reply.
        constant: of the best of a few constant replies, one of which is the commonest answer.
        constant_reply: that reply.
        echo: of the question.
        other: of the answer of another row.
        changed: share of rows that differ between five processes which draw them as the package
            does. The environment stores rows.
        raises: the scorer raised on a reply, though not on the stored answer.
        runs_replies: the scorer runs the reply as Python. The environment refuses code.
        repeats: five calls of the scorer gave one score for each stored answer.
    """

    rows: int
    oracle: float | None
    empty: float
    constant: float
    constant_reply: str
    echo: float
    other: float
    changed: float
    raises: bool
    runs_replies: bool
    repeats: bool

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the data set itself, of the kinds that the page lists."""
        free = max(self.empty, self.constant, self.echo, self.other) >= FREE
        kinds = {
            "free reward": free,
            "no answer": self.oracle is None or self.oracle < 1,
            "pays nonsense": not free and max(self.empty, self.echo) >= NONSENSE,
            "raises": self.raises,
            "runs replies": self.runs_replies,
            "unstable rows": self.changed > 0,
            "unstable scores": not self.repeats,
        }
        return tuple(kind for kind, found in kinds.items() if found)


NOT_SOUND = {"free reward", "no answer", "unstable scores"}
"""Faults that the environment cannot make up for."""


@lru_cache(maxsize=1)
def verdicts() -> Mapping[str, AuditVerdict]:
    """Return the verdicts on the data sets of reasoning-gym 0.1.25, by name."""
    text = files(__package__).joinpath("verdicts.json").read_text(encoding="utf-8")
    return {name: AuditVerdict(**fields) for name, fields in json.loads(text).items()}


def sound(name: str) -> bool:
    """Return whether the data set *name* was audited, and no fault was found that the environment
    cannot make up for.
    """
    verdict = verdicts().get(name)
    return verdict is not None and not NOT_SOUND & set(verdict.faults)
