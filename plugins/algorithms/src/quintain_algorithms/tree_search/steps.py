"""What a step of an answer is: where searches branch and values are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quintain import Sampling
from quintain.errors import UsageError
from quintain.models import ChatTokenizer

NEWLINE = "\n"
By = Literal["lines", "tokens", "answer"]


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """The rule that cuts answers into steps.

    Attributes:
        by: ``lines`` ends a step with each token that has a line break, ``tokens`` after every
            *size* tokens; ``answer`` makes the whole answer one step.
        size: tokens of a step.

    Raises:
        UsageError: a setting is out of range.
    """

    by: By = "lines"
    size: int = 16

    def __post_init__(self) -> None:
        if self.by not in ("lines", "tokens", "answer") or self.size < 1:
            raise UsageError(
                f"steps: by {self.by!r}, size {self.size}; expected lines, tokens or answer, and a "
                "size from 1"
            )

    def sampling(self, sampling: Sampling) -> Sampling:
        """Return how one step is sampled where the answer is sampled by *sampling*."""
        if self.by == "lines":
            return sampling.replace(stop=(*sampling.stop, NEWLINE))
        if self.by == "tokens":
            return sampling.replace(max_tokens=min(self.size, sampling.max_tokens or self.size))
        return sampling

    def ends(self, tokens: Sequence[int], tokenizer: ChatTokenizer) -> list[int]:
        """Return the number of tokens up to the end of each step of an answer; the last one is the
        end of the answer.
        """
        count = len(tokens)
        if self.by == "tokens":
            places = list(range(self.size, count, self.size))
        elif self.by == "lines":
            places = [i for i in range(1, count) if NEWLINE in tokenizer.decode([tokens[i - 1]])]
        else:
            places = []
        return [*places, count] if count else []
