"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv:2110.14168)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from quintain import Demonstration, Environment, Message, Task, control
from quintain.errors import UsageError
from quintain_math_verify import math_equal

from .rows import carved, from_hub

REPOSITORY = "openai/gsm8k"
REQUEST = "Reason step by step, and put the final number within \\boxed{}."

_CALCULATOR = re.compile(r"<<[^<>]*>>")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class WordProblem(Task):
    """A question with a number for an answer, and the data set's *solution*."""

    solution: str = ""


@dataclass(frozen=True)
class Record:
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


class GSM8K(Environment[WordProblem, None]):
    """Word problems, from the hub or from JSON lines on disk.

    Attributes:
        path: folder with ``train.jsonl`` and ``test.jsonl``, or one file (then a tenth each becomes ``dev`` and
            ``test``); empty takes ``openai/gsm8k`` from the hub.
        dev: problems carved from ``train`` for the split ``dev``: always the same ones, and no longer in ``train``.
    """

    reward = math_equal

    path: str = ""
    dev: int = 200

    def __post_init__(self) -> None:
        if self.dev < 1:
            raise UsageError(f"gsm8k: dev is {self.dev}; expected at least 1")

    def tasks(self, split: str) -> Iterable[WordProblem]:
        for row in self._rows(split):
            yield WordProblem(prompt=f"{row.question}\n\n{REQUEST}", answer=row.number, solution=row.solution)

    def _rows(self, split: str) -> Sequence[Record]:
        if self.path and Path(self.path).is_file():
            rows = _from_file(Path(self.path))
            tenth = max(1, len(rows) // 10)
            held_out = _carved(rows, 2 * tenth)
            chosen = {"dev": set(held_out[:tenth]), "test": set(held_out[tenth:])}
        elif split == "test":
            return _source(self.path, "test")
        else:
            rows = _source(self.path, "train")
            chosen = {"dev": set(_carved(rows, self.dev))}
        if split in chosen:
            return [r for r in rows if r in chosen[split]]
        return [r for r in rows if not any(r in c for c in chosen.values())]

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=f"{task.solution}\n\\boxed{{{task.answer}}}")

    @control(scores="max")
    def oracle(self, task: WordProblem, messages: Sequence[Message]) -> str:
        """The boxed number."""
        return f"\\boxed{{{task.answer}}}"

    @control()
    def echo(self, task: WordProblem, messages: Sequence[Message]) -> str:
        """Repeat the question. Its last number is the answer in 3 % of the problems."""
        return str(task.prompt)

    @control(scores="min")
    def every_number(self, task: WordProblem, messages: Sequence[Message]) -> str:
        """Box every number around the right one."""
        number = int(float(task.answer))
        return " ".join(f"\\boxed{{{n}}}" for n in range(number - 5, number + 6))


def _carved(rows: Sequence[Record], n: int) -> list[Record]:
    return carved("gsm8k", rows, n, lambda row: row.question)


def _source(path: str, split: str) -> tuple[Record, ...]:
    if not path:
        return _from_hub(split)
    file = Path(path) / f"{split}.jsonl"
    if not file.is_file():
        raise UsageError(
            f"gsm8k: there is no file {file}; give `path` a folder with train.jsonl and test.jsonl, or a file"
        )
    return _from_file(file)


@lru_cache(maxsize=8)
def _from_file(file: Path) -> tuple[Record, ...]:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            rows.append(_row(line, f"{file}:{number}"))
    if not rows:
        raise UsageError(f"gsm8k: {file} holds no lines")
    return tuple(dict.fromkeys(rows))


def _row(line: str, where: str) -> Record:
    try:
        data = json.loads(line)
        return _checked(Record(data["question"], data["answer"]), where)
    except (json.JSONDecodeError, KeyError, TypeError) as e:
        raise UsageError(f'gsm8k: {where} is not {{"question": ..., "answer": "... #### number"}}') from e


def _checked(record: Record, where: str) -> Record:
    if not _NUMBER.fullmatch(record.number):
        raise UsageError(f"gsm8k: the answer at {where} does not end in #### and a number")
    return record


@lru_cache(maxsize=2)
def _from_hub(split: str) -> tuple[Record, ...]:
    line = '{"question": ..., "answer": "... #### number"}'
    rows = from_hub("gsm8k", REPOSITORY, "main", split, line)
    return tuple(_checked(Record(r["question"], r["answer"]), f"{REPOSITORY} {split}[{i}]") for i, r in enumerate(rows))
