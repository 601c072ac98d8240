"""Preferences that were stored: rows of a file, and batches of samples made of them."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from pydantic import BaseModel, ConfigDict, model_validator

from quintain import Message
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UsageError
from quintain.learning import Batch, Sample, TrainingSequence
from quintain.models import ChatTokenizer
from quintain.types import derived_seed

from ..messages import WrittenMessage
from ..sft import encode_conversation, end_of_turn

_log = logging.getLogger("quintain.preference")
TRIED = 8
"""Other prompts behind which a reply is tried."""

Prompt = tuple[Message, ...]


class _PreferenceRow(BaseModel):
    """A line of the file: a pair, or one reply with its label. A reply is a text, or the messages
    from the prompt on; without a prompt it is a whole conversation, as TRL has it.
    """

    model_config = ConfigDict(extra="ignore")
    prompt: str | list[WrittenMessage] | None = None
    chosen: str | list[WrittenMessage] | None = None
    rejected: str | list[WrittenMessage] | None = None
    completion: str | list[WrittenMessage] | None = None
    label: bool | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> _PreferenceRow:
        pair = self.chosen is not None and self.rejected is not None
        labelled = self.completion is not None and self.label is not None
        if pair == labelled:
            raise ValueError(
                "expected prompt, chosen and rejected, or prompt, completion and label"
            )
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
    ``completion``, ``label``; replies and prompts are texts or messages, as TRL has them. A row
    that occurs twice is read once.

    Raises:
        UsageError: there is no file, nothing in it, or lines are no rows, have blank or equal replies, or
            say the opposite of another: the first ten of these with their number, and how many
            there are.
    """
    if not path.is_file():
        raise UsageError(
            f"there is no file {str(path)!r}; expected JSON lines with prompt, chosen and rejected"
        )
    preferences: list[Preference] = []
    wanted: dict[tuple[Prompt, frozenset[str]], tuple[str, tuple[tuple[str, bool], ...]]] = {}
    twice = 0
    with DataFaults(path) as faults:
        for where, line in text_lines(path, faults):
            with faults.row(where):
                row = _preference(_PreferenceRow.model_validate(json_object(line)))
                texts = frozenset(_plain(text) for text, _ in row.replies)
                before, replies = wanted.setdefault((row.prompt, texts), (where, row.replies))
                if before == where:
                    preferences.append(row)
                elif _best(replies) == _best(row.replies):
                    twice += 1
                else:
                    raise UsageError(f"says the opposite of {before}; leave one of them out")
    if twice:
        _log.warning("%s: %d rows that occur twice are left out", path, twice)
    if not preferences:
        raise UsageError(f"{path}: no rows; expected JSON lines with prompt, chosen and rejected")
    return preferences


def _best(replies: Sequence[tuple[str, bool]]) -> set[str]:
    return {_plain(text) for text, wanted in replies if wanted}


def _plain(text: str) -> str:
    """Return a reply without what no reader sees: blanks at its ends, and the form of Unicode."""
    return unicodedata.normalize("NFC", text).strip()


def _preference(row: _PreferenceRow) -> Preference:
    """Return the prompt and the replies of a row.

    Raises:
        UsageError: a text is blank, two replies are the same, or the messages are no prompt with
            one reply behind it.
    """
    parts = {"chosen": row.chosen, "rejected": row.rejected, "completion": row.completion}
    given = {name: text for name, text in parts.items() if text is not None}
    begin, replies = _begun(row.prompt, given)
    if not begin or not any(m.content.strip() for m in begin):
        raise UsageError("the prompt is blank")
    if begin[-1].role == "assistant":
        raise UsageError("the prompt ends with the assistant's message; expected the user's")
    for name, text in replies.items():
        if not text.strip():
            raise UsageError(f"{name} is blank; a model would learn to say nothing, or not to")
    if "completion" in replies:
        return Preference(prompt=begin, replies=((replies["completion"], bool(row.label)),))
    if _plain(replies["chosen"]) == _plain(replies["rejected"]):
        raise UsageError("chosen and rejected are equal, or differ by blanks; leave the row out")
    return Preference(
        prompt=begin, replies=((replies["chosen"], True), (replies["rejected"], False))
    )


def _begun(
    prompt: str | list[WrittenMessage] | None, given: Mapping[str, str | list[WrittenMessage]]
) -> tuple[Prompt, dict[str, str]]:
    """Return the prompt, and the one reply behind it that each of *given* has."""
    begin = [WrittenMessage(role="user", content=prompt)] if isinstance(prompt, str) else prompt
    if begin is None:
        conversations = [text for text in given.values() if not isinstance(text, str)]
        if len(conversations) < len(given) or not all(conversations):
            raise UsageError("there is no prompt; expected one, or whole conversations as replies")
        begin = conversations[0][:-1]
        given = {
            name: text[len(begin) :] for name, text in given.items() if text[: len(begin)] == begin
        }
        if len(given) < len(conversations):
            raise UsageError("chosen and rejected differ before the last message")
    replies: dict[str, str] = {}
    for name, text in given.items():
        if isinstance(text, str):
            replies[name] = text
            continue
        own = text[len(begin) :] if text[: len(begin)] == begin else text
        if len(own) != 1 or own[0].role != "assistant":
            raise UsageError(
                f"{name} has {len(own)} messages behind the prompt; expected one of the assistant"
            )
        replies[name] = own[0].content
    return tuple(Message(m.role, m.content) for m in begin), replies


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
