"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv:2110.14168)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from quintain import Demonstration, Environment, Message, Task, control
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UsageError
from quintain.evaluation import AnswerControls
from quintain_rewards.math_verify import math_equal

from .rows import Splits, carved, from_hub, in_folder, of_file

REPOSITORY = "openai/gsm8k"
LINE = '{"question": ..., "answer": "... #### number"}'
REQUEST = "Reason step by step, and put the final number within \\boxed{}."

_CALCULATOR = re.compile(r"<<[^<>]*>>")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class WordProblem(Task):
    """A question with a number for an answer, and the data set's *solution*."""

    solution: str = ""


@dataclass(frozen=True)
class GSM8KRow:
    """One line of the data set; the number stands after ``####`` in *answer*."""

    question: str
    answer: str

    @property
    def number(self) -> str:
        """The final number, without thousands separators."""
        return self.answer.rpartition("####")[2].strip().replace(",", "")

    @property
    def solution(self) -> str:
        """The worked text, without calculator marks (``<<2*3=6>>``) and the final number."""
        return _CALCULATOR.sub("", self.answer.rpartition("####")[0]).strip()


class GSM8K(AnswerControls, Environment[WordProblem, None]):
    """Word problems, from the hub or from JSON lines on disk.

    Attributes:
        data: folder with ``train.jsonl`` and ``test.jsonl``, or one file; empty takes
            ``openai/gsm8k`` from the hub.
        dev: problems carved from ``train`` for the split ``dev``: always the same ones, and no
            longer in ``train``.
        splits: of one file. ``"own"``: a tenth of its problems each is ``dev`` and ``test``;
            ``"test"``: all are ``test``.
    """

    reward = math_equal

    data: str = ""
    dev: int = 200
    splits: Splits = "own"

    def __post_init__(self) -> None:
        if self.dev < 1:
            raise UsageError(f"gsm8k: dev is {self.dev}; expected at least 1")

    def tasks(self, split: str) -> Iterable[WordProblem]:
        for row in self._rows(split):
            yield WordProblem(
                prompt=f"{row.question}\n\n{REQUEST}", answer=row.number, solution=row.solution
            )

    def _rows(self, split: str) -> Sequence[GSM8KRow]:
        file = Path(self.data)
        if self.data and file.is_file():
            return of_file("gsm8k", file, _from_file(file), split, self.splits, _question)
        if split == "test":
            return _source(self.data, "test")
        rows = _source(self.data, "train")
        held_out = set(carved("gsm8k", rows, self.dev, _question))
        return [row for row in rows if (row in held_out) == (split == "dev")]

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(
                prompt=task.prompt, reply=f"{task.solution}\n\\boxed{{{task.answer}}}"
            )

    @control(scores="max")
    def oracle(self, task: WordProblem, messages: Sequence[Message]) -> str:
        """Reply with the boxed number."""
        return f"\\boxed{{{task.answer}}}"

    @control()
    def echo(self, task: WordProblem, messages: Sequence[Message]) -> str:
        """Reply with the question. Its last number is the answer in 3 % of the problems."""
        return str(task.prompt)

    @control(scores="min")
    def every_number(self, task: WordProblem, messages: Sequence[Message]) -> str:
        """Reply with every number around the right one, each in a box."""
        number = int(float(task.answer))
        return " ".join(f"\\boxed{{{n}}}" for n in range(number - 5, number + 6))


def _question(row: GSM8KRow) -> str:
    return row.question


def _source(data: str, split: str) -> tuple[GSM8KRow, ...]:
    return _from_file(in_folder("gsm8k", data, split)) if data else _from_hub(split)


@lru_cache(maxsize=8)
def _from_file(file: Path) -> tuple[GSM8KRow, ...]:
    rows = []
    with DataFaults(file, "gsm8k") as faults:
        for where, line in text_lines(file, faults):
            with faults.row(where):
                rows.append(_row(json_object(line, LINE)))
    if not rows:
        raise UsageError(f"gsm8k: {file} holds no lines")
    return tuple(dict.fromkeys(rows))


def _row(row: Mapping[str, Any]) -> GSM8KRow:
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise UsageError(f"expected {LINE}")
    record = GSM8KRow(question, answer)
    if not _NUMBER.fullmatch(record.number):
        raise UsageError("the answer does not end in #### and a number")
    return record


@lru_cache(maxsize=2)
def _from_hub(split: str) -> tuple[GSM8KRow, ...]:
    rows = []
    with DataFaults(REPOSITORY, "gsm8k") as faults:
        for i, row in enumerate(from_hub("gsm8k", REPOSITORY, "main", split, LINE)):
            with faults.row(f"{REPOSITORY} {split}[{i}]"):
                rows.append(_row(row))
    return tuple(rows)
