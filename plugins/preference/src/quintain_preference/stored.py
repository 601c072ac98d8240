"""Preferences that were stored: rows of a file, and batches of samples made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quintain import Message
from quintain.errors import UsageError
from quintain.learning import Batch, Sample, TrainingSequence
from quintain.models import ChatTokenizer
from quintain.types import derived_seed
from quintain_data import DataFaults, json_object, text_lines
from quintain_sft import encode_conversation, end_of_turn

TRIED = 8
"""Other prompts behind which a reply is tried."""

Prompt = tuple[Message, ...]


class _Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str


class _Row(BaseModel):
    """A line of the file: a pair, or one reply with its label."""

    model_config = ConfigDict(extra="ignore")
    prompt: str | list[_Message] = Field(min_length=1)
    chosen: str | None = None
    rejected: str | None = None
    completion: str | None = None
    label: bool | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> _Row:
        pair = self.chosen is not None and self.rejected is not None
        labelled = self.completion is not None and self.label is not None
        if pair == labelled:
            raise ValueError(
                "expected prompt, chosen and rejected, or prompt, completion and label"
            )
        if pair and self.chosen == self.rejected:
            raise ValueError("chosen and rejected are equal; leave the row out")
        return self


@dataclass(frozen=True, kw_only=True)
class Preference:
    """One row: the replies to *prompt*, each with whether it is wanted; a pair has two."""

    prompt: Prompt
    replies: tuple[tuple[str, bool], ...]

    @property
    def pair(self) -> bool:
        """Whether it compares two replies."""
        return len(self.replies) == 2


def read_preferences(path: Path) -> list[Preference]:
    """Read a file of JSON lines: ``prompt``, ``chosen``, ``rejected``, or ``prompt``,
    ``completion``, ``label``.

    Raises:
        UsageError: there is no file, nothing in it, or lines are no rows: the first ten of these
            with their number, and how many there are.
    """
    if not path.is_file():
        raise UsageError(
            f"there is no file {str(path)!r}; expected JSON lines with prompt, chosen and rejected"
        )
    preferences: list[Preference] = []
    with DataFaults(path) as faults:
        for where, line in text_lines(path, faults):
            with faults.row(where):
                preferences.append(_preference(_Row.model_validate(json_object(line))))
    if not preferences:
        raise UsageError(f"{path}: no rows; expected JSON lines with prompt, chosen and rejected")
    return preferences


def _preference(row: _Row) -> Preference:
    prompt = (
        [_Message(role="user", content=row.prompt)] if isinstance(row.prompt, str) else row.prompt
    )
    replies: tuple[tuple[str, bool], ...]
    if row.chosen is not None and row.rejected is not None:
        replies = ((row.chosen, True), (row.rejected, False))
    else:
        replies = ((row.completion or "", bool(row.label)),)
    return Preference(prompt=tuple(Message(m.role, m.content) for m in prompt), replies=replies)


@dataclass(frozen=True, kw_only=True)
class EncodedPreference:
    """The token sequences of the replies of a row, in its order; more than one where the template
    rewrites history.
    """

    row: Preference
    sequences: tuple[tuple[TrainingSequence, ...], ...]


def encoded(
    rows: Sequence[Preference], tokenizer: ChatTokenizer, context: int
) -> tuple[list[EncodedPreference], int]:
    """Encode *rows* in the chat format of a model; return those that fit and the number of those
    that do not.

    Args:
        context: longest sequence, tokens.
    """
    end = end_of_turn(tokenizer)
    kept = []
    for row in rows:
        sequences = tuple(
            tuple(_encode(row.prompt, text, tokenizer, end)) for text, _ in row.replies
        )
        if all(len(s.ids) <= context for reply in sequences for s in reply):
            kept.append(EncodedPreference(row=row, sequences=sequences))
    return kept, len(rows) - len(kept)


def _encode(
    prompt: Sequence[Message], reply: str, tokenizer: ChatTokenizer, end: int
) -> list[TrainingSequence]:
    return encode_conversation(
        [*prompt, Message("assistant", reply)], {len(prompt)}, tokenizer, end
    )


def pair_batch(rows: Sequence[EncodedPreference]) -> Batch:
    """Make a group of each pair, with the outcomes 1 and 0."""
    return Batch(
        samples=tuple(
            Sample(sequences=sequences, outcome=float(wanted), group=group)
            for group, row in enumerate(rows)
            for sequences, (_, wanted) in zip(row.sequences, row.row.replies, strict=True)
        )
    )


def label_batch(
    rows: Sequence[EncodedPreference],
    prompts: Sequence[Prompt],
    tokenizer: ChatTokenizer,
    context: int,
    *,
    share: int,
) -> tuple[Batch, list[float]]:
    """Make groups for KTO of about *share* rows each; return the batch and the advantages of its
    samples.

    A reply counts with 1 or -1, as its label says, times what makes all replies of the batch weigh
    the same although groups differ in size. Each group has besides its replies behind other
    prompts, with 0: they estimate the reference point and do not train (2402.01306, section 4.1). A
    reply that fits behind no other prompt has no such sample.

    Args:
        prompts: from which the other ones are taken, in order.
        context: longest sequence, tokens.
    """
    end = end_of_turn(tokenizer)
    count = -(-len(rows) // share)
    cuts = [round(len(rows) * i / count) for i in range(count + 1)]
    replies = sum(len(row.row.replies) for row in rows)
    samples: list[Sample] = []
    values: list[float] = []
    for group, part in enumerate(rows[a:b] for a, b in pairwise(cuts)):
        # The term of a group is a mean over its labelled replies, and groups weigh the same.
        weight = count * sum(len(row.row.replies) for row in part) / replies
        for row in part:
            for sequences, (text, wanted) in zip(row.sequences, row.row.replies, strict=True):
                samples.append(Sample(sequences=sequences, outcome=float(wanted), group=group))
                values.append(weight if wanted else -weight)
                if elsewhere := _behind_another(
                    row.row.prompt, text, prompts, tokenizer, end, context
                ):
                    samples.append(Sample(sequences=elsewhere, outcome=0.0, group=group))
                    values.append(0.0)
    return Batch(samples=tuple(samples)), values


def _behind_another(
    prompt: Prompt,
    reply: str,
    prompts: Sequence[Prompt],
    tokenizer: ChatTokenizer,
    end: int,
    context: int,
) -> tuple[TrainingSequence, ...]:
    """Encode *reply* behind the first of *prompts* after its own that leaves room for it; empty if
    none does.
    """
    start = prompts.index(prompt)
    for other in (*prompts[start + 1 :], *prompts[:start])[:TRIED]:
        sequences = tuple(_encode(other, reply, tokenizer, end))
        if all(len(sequence.ids) <= context for sequence in sequences):
            return sequences
    return ()


def by_prompt(
    rows: Sequence[EncodedPreference], share: float, seed: int
) -> tuple[list[int], list[int]]:
    """Split the places of *rows* into those that train and about *share* of them held out, each
    prompt on one side.
    """
    prompts = list(dict.fromkeys(row.row.prompt for row in rows))
    Random(derived_seed(seed, "held out")).shuffle(prompts)
    apart = set(prompts[: round(share * len(prompts))] if len(prompts) > 1 else ())
    places: tuple[list[int], list[int]] = ([], [])
    for place, row in enumerate(rows):
        places[row.row.prompt in apart].append(place)
    return places
