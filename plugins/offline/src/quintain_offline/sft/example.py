"""One conversation to imitate, and the tokens that train."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from quintain import Message, ToolSpec
from quintain.learning import TrainingSequence
from quintain.models import PICTURE_TOKENS
from quintain.types import split_thought


@dataclass(frozen=True, slots=True)
class Tokens:
    """A token sequence in a tenth of the memory of a `TrainingSequence`: ids, and 1 for each that
    trains.
    """

    ids: array[int]
    mask: bytes

    @classmethod
    def of(cls, row: TrainingSequence) -> Tokens:
        # tokens of pictures have more than 32 bits
        code = "q" if max(row.ids, default=0) >= PICTURE_TOKENS else "i"
        return cls(array(code, row.ids), bytes(row.mask))

    def sequence(self) -> TrainingSequence:
        """Return the same for `Learner.supervised_step`, without log-probs and weight versions."""
        n = len(self.ids)
        mask = tuple(map(bool, self.mask))
        return TrainingSequence(
            ids=tuple(self.ids), mask=mask, logps=(0.0,) * n, versions=(-1,) * n
        )


@dataclass(frozen=True, kw_only=True)
class Example:
    """A conversation, and which of its messages train.

    Attributes:
        messages: in order; those that train hold the raw text, thoughts and tool calls included.
        replies: positions of the messages that train.
        tools: those that were offered; messages that train may then have calls, which the chat
            template writes.
        calls: whether unknown tools were called; such an example trains only with the tokens that
            were sampled.
        exact: the tokens as they were sampled, where they were recorded.
        tokenizer: the tokenizer of *exact*.
    """

    messages: tuple[Message, ...]
    replies: tuple[int, ...]
    tools: tuple[ToolSpec, ...] = ()
    calls: bool = False
    exact: tuple[Tokens, ...] = ()
    tokenizer: str = ""

    @property
    def thinks(self) -> bool:
        """Whether some message that trains begins with a thought."""
        return any(split_thought(self.messages[index].content)[0] for index in self.replies)
