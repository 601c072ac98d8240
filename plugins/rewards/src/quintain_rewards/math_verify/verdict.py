"""The verdict on one answer, and its kinds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VerdictKind(StrEnum):
    """Verdicts judge the answer and are scores. Failures say that there is no verdict.

    ``timeout`` and ``too_large`` are the answer's doing, unless the worker was starved; ``error``
    is the verifier's.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    ERROR = "error"

    @property
    def failure(self) -> bool:
        """Whether the verifier did not come to a verdict."""
        return self in (VerdictKind.TIMEOUT, VerdictKind.TOO_LARGE, VerdictKind.ERROR)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The outcome of one verification.

    Attributes:
        answer: the answer that was found in the reply, at most 200 characters.
        reason: why it is not correct.
        starved: the worker got too little CPU time or died by itself, so that a repetition may give
            a verdict.
    """

    kind: VerdictKind
    answer: str = ""
    reason: str = ""
    starved: bool = False
