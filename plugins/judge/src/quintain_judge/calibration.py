"""How far a judge agrees with labels, and what moves it besides: the order of two replies, and
their length.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quintain import InfrastructureError
from quintain.errors import UsageError
from quintain.evaluation import rank_correlation

from .pairs import Measured, in_both_orders, position_bias
from .rows import read_rows
from .service import JudgeService


class Labelled(BaseModel):
    """A line of a file of labels: a *reply* with a *rubric* or a *reference*, or a pair *a* and *b*
    with *criteria*.

    The *label* is a score from 0 to 1 for a rubric, true or false for a reference, and ``A``, ``B``
    or ``tie`` for a pair.
    """

    model_config = ConfigDict(extra="ignore")
    prompt: str
    label: float | bool | Literal["A", "B", "tie"]
    reply: str = ""
    rubric: str = ""
    reference: str = ""
    a: str = ""
    b: str = ""
    criteria: list[str] = Field(default_factory=list)

    @property
    def kind(self) -> str:
        """``pair``, ``reference`` or ``rubric``."""
        return "pair" if self.criteria else "reference" if self.reference else "rubric"

    @model_validator(mode="after")
    def _fits(self) -> Labelled:
        wanted = {
            "pair": isinstance(self.label, str),
            "reference": isinstance(self.label, bool) or self.label in (0, 1),
            "rubric": bool(self.rubric)
            and not isinstance(self.label, str)
            and 0 <= self.label <= 1,
        }
        if not wanted[self.kind]:
            raise ValueError(
                "expected reply, rubric and a label from 0 to 1; or reply, reference and true or "
                "false; or a, b, criteria and A, B or tie"
            )
        return self


@dataclass(kw_only=True)
class Calibration(Measured):
    """Measures of a judge.

    Attributes:
        rows: number of rows by kind.
        failed: rows without a verdict, by kind; they count in no measure.
    """

    rows: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def number(self, name: str, value: float | None, rows: int) -> None:
        """Add a number that is no share, unless it is undefined."""
        if value is not None:
            self.measures[name] = {"value": value, "rows": rows}


def read_labels(path: Path) -> list[Labelled]:
    """Return the rows of a file of JSON lines.

    Raises:
        UsageError: no file, no rows, or lines that are no rows; the message names them.
    """
    missing = (
        f"there is no file {path}; expected JSON lines, see `quintain grading calibrate --help`"
    )
    rows = read_rows(path, Labelled, missing, lambda _, row: row)
    if not rows:
        raise UsageError(f"{path} has no rows")
    return rows


async def calibrate(
    judge: JudgeService, rows: Sequence[Labelled], on_row: Callable[[], None] = lambda: None
) -> Calibration:
    """Judge *rows* and compare the verdicts with their labels; a row without a verdict is counted
    and left out.
    """

    async def verdict(row: Labelled) -> Any:
        try:
            if row.kind == "pair":
                return await in_both_orders(judge, row.prompt, row.a, row.b, row.criteria)
            if row.kind == "reference":
                return (await judge.matches(row.prompt, row.reply, row.reference)).score
            return (await judge.grade(row.prompt, row.reply, row.rubric)).score
        except InfrastructureError:
            return None
        finally:
            on_row()

    result = Calibration(rows=Counter(row.kind for row in rows))
    verdicts = await asyncio.gather(*map(verdict, rows))
    judged = [(row, v) for row, v in zip(rows, verdicts, strict=True) if v is not None]
    result.failed = Counter(row.kind for row, v in zip(rows, verdicts, strict=True) if v is None)
    _pairs(result, [(row, v) for row, v in judged if row.kind == "pair"])
    _references(result, [(row, v) for row, v in judged if row.kind == "reference"])
    _rubrics(result, [(row, v) for row, v in judged if row.kind == "rubric"])
    return result


def _pairs(result: Calibration, rows: Sequence[tuple[Labelled, tuple[float, float]]]) -> None:
    position_bias(result, "pair.", [v for _, v in rows])
    final = [here if here == there else 0.5 for _, (here, there) in rows]
    labels = [{"A": 1.0, "B": 0.0, "tie": 0.5}[str(row.label)] for row, _ in rows]
    result.share(
        "pair.agreement", [float(f == label) for f, label in zip(final, labels, strict=True)]
    )
    result.number("pair.kappa", kappa(final, labels), len(rows))
    decided = [
        (f, label, row)
        for f, label, (row, _) in zip(final, labels, rows, strict=True)
        if len(row.a) != len(row.b)
    ]
    result.share(
        "pair.longer_wins",
        [float((f > 0.5) == (len(r.a) > len(r.b))) for f, _, r in decided if f != 0.5],
    )
    result.share(
        "pair.longer_is_labelled",
        [float((y > 0.5) == (len(r.a) > len(r.b))) for _, y, r in decided if y != 0.5],
    )


def _references(result: Calibration, rows: Sequence[tuple[Labelled, float]]) -> None:
    right = [(row, v) for row, v in rows if row.label]
    wrong = [(row, v) for row, v in rows if not row.label]
    result.share("reference.agreement", [float(bool(v) == bool(row.label)) for row, v in rows])
    result.share("reference.wrong_accepted", [v for _, v in wrong])
    result.share("reference.right_rejected", [1 - v for _, v in right])


def _rubrics(result: Calibration, rows: Sequence[tuple[Labelled, float]]) -> None:
    if not rows:
        return
    scores, labels = [v for _, v in rows], [float(row.label) for row, _ in rows]
    errors = [v - y for v, y in zip(scores, labels, strict=True)]
    result.share(
        "rubric.agreement",
        [float((v >= 0.5) == (y >= 0.5)) for v, y in zip(scores, labels, strict=True)],
    )
    result.number("rubric.rank_correlation", _correlation(scores, labels), len(rows))
    result.number("rubric.mean_error", fmean(errors), len(rows))
    result.number("rubric.mean_absolute_error", fmean(map(abs, errors)), len(rows))
    lengths = [float(len(row.reply)) for row, _ in rows]
    result.number("rubric.error_with_length", _correlation(errors, lengths), len(rows))


def kappa(one: Sequence[object], other: Sequence[object]) -> float | None:
    """Return Cohen's kappa: agreement beyond chance; ``None`` where chance alone would agree."""
    n = len(one)
    if not n:
        return None
    agreed = sum(a == b for a, b in zip(one, other, strict=True)) / n
    first, second = Counter(one), Counter(other)
    chance = sum(first[label] * second[label] for label in first) / n**2
    return (agreed - chance) / (1 - chance) if chance < 1 else None


def _correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the rank correlation; ``None`` for fewer than three pairs, since two always agree or
    disagree wholly.
    """
    return rank_correlation(one, other) if len(one) >= 3 else None
