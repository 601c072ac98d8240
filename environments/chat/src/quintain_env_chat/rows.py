"""Prompts with rubrics of one's own, from a file of JSON lines."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from quintain import Message
from quintain.errors import UsageError
from quintain_judge import read_rows

from .rubric import ChatTask, Criterion, Level

SPLITS = ("train", "dev", "test")


class LevelRow(BaseModel):
    """A level of a criterion as a row has it."""

    model_config = ConfigDict(extra="forbid")
    text: str
    score: float


class CriterionRow(BaseModel):
    """A criterion as a row has it."""

    model_config = ConfigDict(extra="forbid")
    text: str
    weight: float = 1.0
    check: bool = False
    must: bool = False
    levels: list[str | LevelRow] = []

    def criterion(self) -> Criterion:
        """Return what the row says."""
        levels = tuple(
            level if isinstance(level, str) else Level(**level.model_dump())
            for level in self.levels
        )
        return Criterion(
            text=self.text, weight=self.weight, check=self.check, must=self.must, levels=levels
        )


class MessageRow(BaseModel):
    """A message as a row has it."""

    model_config = ConfigDict(extra="ignore")
    role: str
    content: str


class ChatRow(BaseModel):
    """One line: the *prompt* as text or messages, *criteria* as texts or tables, a good *answer*
    where it is known.

    *split*: by default a hash of the prompt decides: one row in ten is ``dev``, one ``test``.
    """

    model_config = ConfigDict(extra="ignore")
    prompt: str | list[MessageRow]
    criteria: list[str | CriterionRow] = []
    answer: str | None = None
    split: str = ""


def rows(path: str, split: str, shared: Sequence[Criterion]) -> list[ChatTask]:
    """Return the tasks of *split* in the file *path*, each with its own criteria and the *shared*
    ones.

    Raises:
        UsageError: no file, or lines that are no rows; the message names line and key.
    """
    missing = (
        f"chat: there is no file {path}; expected JSON lines with the keys prompt and criteria"
    )

    def made(line: str, row: ChatRow) -> ChatTask:
        if row.split and row.split not in SPLITS:
            raise UsageError(f"split is {row.split!r}; expected {', '.join(SPLITS)}")
        part = row.split or _split_of(row.prompt if isinstance(row.prompt, str) else line)
        return _task(row, part, shared)

    return [task for task in read_rows(path, ChatRow, missing, made) if task.split == split]


def _task(row: ChatRow, split: str, shared: Sequence[Criterion]) -> ChatTask:
    criteria = [Criterion(text=c) if isinstance(c, str) else c.criterion() for c in row.criteria]
    if not (criteria or shared):
        raise UsageError("no criteria; give the row some, or the environment criteria for all rows")
    prompt: Any = row.prompt
    if not isinstance(prompt, str):
        prompt = [Message(m.role, m.content) for m in prompt]
    return ChatTask(prompt=prompt, answer=row.answer, criteria=(*criteria, *shared), split=split)


def _split_of(text: str) -> str:
    slot = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10
    return {0: "dev", 1: "test"}.get(slot, "train")
