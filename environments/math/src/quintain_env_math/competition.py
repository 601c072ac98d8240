"""Competition problems with boxed answers: MATH (Hendrycks et al. 2021, arXiv:2103.03874) and
AIME.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from quintain import Demonstration, Environment, Message, Task, control
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UsageError
from quintain.evaluation import AnswerControls
from quintain_rewards.math_verify import math_equal, shared_verifier
from quintain_rewards.math_verify.extract import final_answers

from .rows import Splits, carved, from_hub, in_folder, of_file

LINE = '{"problem": ..., "answer": ...}, or with "solution" that ends in \\boxed{...}'
LETTERS = "ABCDEFGHIJ"
REQUESTS = {
    "number": "put the final number within \\boxed{}",
    "expression": "put the final answer within \\boxed{}",
    "choice": "put the letter of the right choice within \\boxed{}",
    "interval": "put the interval, or the union of intervals, within \\boxed{}",
    "set": "put all values, as a set, within \\boxed{}",
    "tuple": "put the point or the ordered values, in parentheses, within \\boxed{}",
    "matrix": "put the matrix within \\boxed{}",
    "text": "put the final words within \\boxed{}",
}
"""The kinds of answers, each with the end of the request to the policy."""

_NUMBER = re.compile(r"-?(?:\\d?frac\{-?\d+\}\{\d+\}|[\d.,]*\d(?:/\d+)?)")
_INTERVAL = re.compile(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]")
_WHOLE = re.compile(r"\d{1,3}")


@dataclass(frozen=True, kw_only=True)
class CompetitionProblem(Task):
    """A problem with its *kind* of answer (a key of `REQUESTS`), *subject* and the data set's
    *solution*.
    """

    kind: str = "expression"
    subject: str = ""
    solution: str = ""


@dataclass(frozen=True)
class CompetitionRow:
    """One line of a data set."""

    problem: str
    answer: str
    kind: str
    level: float | None = None
    subject: str = ""
    solution: str = ""
    choices: tuple[str, ...] = ()


def _problem(row: CompetitionRow) -> str:
    return row.problem


class Math(AnswerControls, Environment[CompetitionProblem, None]):
    """Competition problems with boxed answers, from the hub or from JSON lines.

    Attributes:
        data: folder with ``train.jsonl`` and ``test.jsonl``, or one file; empty takes the data set
            from the hub. A line is ``{"problem": ..., "answer": ...}``; without ``answer`` it is
            the last box of ``solution``. Optional: ``level``, ``subject``, ``choices`` (a list,
            with the letter, the index or the text of the right one as answer), ``kind`` (else it
            follows from the answer).
        dev: problems of ``train`` for the split ``dev``: always the same ones, and no longer in
            ``train``.
        splits: of one file. ``"own"``: a tenth of its problems each is ``dev`` and ``test``;
            ``"test"``: all are ``test``.
        kinds: kinds of answers to keep, such as ``["interval", "set"]``; empty keeps all.
        unreadable: what happens to rows whose answer the verifier cannot read: ``"error"`` names
            them, ``"drop"`` leaves them out.
    """

    reward = math_equal

    data: str = ""
    dev: int = 200
    splits: Splits = "own"
    kinds: tuple[str, ...] = ()
    unreadable: str = "error"

    called: ClassVar[str] = "math"
    repository: ClassVar[str] = "DigitalLearningGmbH/MATH-lighteval"
    hub_splits: ClassVar[Mapping[str, str]] = {"train": "train", "test": "test"}

    def __post_init__(self) -> None:
        if self.dev < 1:
            raise UsageError(f"{self.called}: dev is {self.dev}; expected at least 1")
        if self.unreadable not in ("error", "drop"):
            raise UsageError(
                f"{self.called}: unreadable is {self.unreadable!r}; expected 'error' or 'drop'"
            )
        if unknown := sorted(set(self.kinds) - set(REQUESTS)):
            raise UsageError(
                f"{self.called}: unknown kinds {unknown}; known: {', '.join(REQUESTS)}"
            )

    def tasks(self, split: str) -> Iterable[CompetitionProblem]:
        rows = [row for row in self._rows(split) if not self.kinds or row.kind in self.kinds]
        if self.kinds and not rows:
            raise UsageError(
                f"{self.called}: no problem of the split {split!r} has an answer of the kinds "
                f"{self.kinds}"
            )
        for row in self._readable(split, rows):
            yield CompetitionProblem(
                prompt=f"{_shown(row)}\n\nReason step by step, and {REQUESTS[row.kind]}.",
                answer=row.answer,
                level=row.level,
                kind=row.kind,
                subject=row.subject,
                solution=row.solution,
            )

    def _rows(self, split: str) -> Sequence[CompetitionRow]:
        file = Path(self.data)
        if self.data and file.is_file():
            return of_file(self.called, file, self._file(file), split, self.splits, _problem)
        if split == "test":
            return self._source("test")
        rows = self._source("train")
        held_out = set(carved(self.called, rows, self.dev, _problem))
        return [row for row in rows if (row in held_out) == (split == "dev")]

    def _source(self, split: str) -> Sequence[CompetitionRow]:
        if not self.data:
            if split not in self.hub_splits:
                raise UsageError(
                    f"{self.called}: {self.repository} has no problems to train on; set `data` to "
                    f"a folder or a file"
                )
            return _from_hub(self.called, self.repository, self.hub_splits[split])
        return self._file(in_folder(self.called, self.data, split))

    def _file(self, file: Path) -> Sequence[CompetitionRow]:
        return _from_file(self.called, file)

    def _readable(self, split: str, rows: Sequence[CompetitionRow]) -> Sequence[CompetitionRow]:
        """Return the rows whose answers the verifier can read; each answer is read once, here,
        before anything trains.
        """
        broken = _unreadable(tuple(row.answer for row in rows))
        if broken and self.unreadable == "error":
            shown = "; ".join(f"{rows[i].answer[:40]!r} ({reason})" for i, reason in broken[:5])
            raise UsageError(
                f"{self.called}: {len(broken)} answers of the split {split!r} cannot be verified: "
                f"{shown}. Correct "
                "them, or leave them out: --arg unreadable=drop, or in a recipe args = { "
                'unreadable = "drop" }'
            )
        left_out = {i for i, _ in broken}
        return [row for i, row in enumerate(rows) if i not in left_out]

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            box = f"\\boxed{{{task.answer}}}"
            boxed = final_answers(task.solution, boxed_only=True) == [task.answer]
            reply = task.solution if boxed else f"{task.solution}\n{box}".strip()
            yield Demonstration(prompt=task.prompt, reply=reply)

    @control(scores="max")
    def oracle(self, task: CompetitionProblem, messages: Sequence[Message]) -> str:
        """Reply with the boxed answer."""
        return f"\\boxed{{{task.answer}}}"

    @control(scores="min")
    def nop(self, task: CompetitionProblem, messages: Sequence[Message]) -> str:
        """Reply with nothing."""
        return ""

    @control()
    def echo(self, task: CompetitionProblem, messages: Sequence[Message]) -> str:
        """Reply with the problem, whose request holds an empty box."""
        return str(task.prompt)

    @control(scores="min")
    def every_choice(self, task: CompetitionProblem, messages: Sequence[Message]) -> str:
        """Reply with every letter in a box, and with the answer beside a second one."""
        return " or ".join(
            f"\\boxed{{{letter}}}" for letter in (*LETTERS[:5], task.answer, "123456789")
        )


class AIME(Math):
    """American Invitational Mathematics Examination: answers are whole numbers from 0 to 999.

    The 30 problems of 2024 on the hub are the split ``test``; `data` gives problems to train on.
    With ``splits = "test"`` a file of another year is the test.
    """

    called: ClassVar[str] = "aime"
    repository: ClassVar[str] = "HuggingFaceH4/aime_2024"
    hub_splits: ClassVar[Mapping[str, str]] = {"test": "train"}

    def _rows(self, split: str) -> Sequence[CompetitionRow]:
        rows = super()._rows(split)
        for row in rows:
            if not _WHOLE.fullmatch(row.answer):
                raise UsageError(
                    f"aime: {row.answer!r} is no whole number from 0 to 999 (problem "
                    f"{row.problem[:60]!r})"
                )
        return rows


def kind_of(answer: str, choices: Sequence[str] = ()) -> str:
    """Return the kind of an answer, by its form: a key of `REQUESTS`."""
    text = answer.strip().strip("$").strip()
    if choices:
        return "choice"
    if re.search(r"matrix\}|\\begin\{array\}", text):
        return "matrix"
    if text.startswith("\\{") or re.search(r"\\pm|\\(?:emptyset|varnothing)", text):
        return "set"
    pair = re.sub(r"\\(?:left|right|big|Big)", "", text)
    if re.search(r"\\cup|\\infty", pair) or (
        _INTERVAL.fullmatch(pair) and ("[" in pair or "]" in pair)
    ):
        return "interval"
    if re.fullmatch(r"\(.*,.*\)", pair):
        return "tuple"
    if _NUMBER.fullmatch(text):
        return "number"
    return (
        "text"
        if re.fullmatch(r"\\text\{[A-Za-z ]{2,}\}|[A-Za-z]{3,}(?: [A-Za-z]+)*", text)
        else "expression"
    )


def _shown(row: CompetitionRow) -> str:
    return "\n".join(
        [row.problem, *(f"({LETTERS[i]}) {text}" for i, text in enumerate(row.choices))]
    )


@lru_cache(maxsize=8)
def _unreadable(answers: tuple[str, ...]) -> list[tuple[int, str]]:
    return shared_verifier().unreadable(answers, timeout=10.0)


@lru_cache(maxsize=8)
def _from_file(name: str, file: Path) -> tuple[CompetitionRow, ...]:
    rows = []
    with DataFaults(file, name) as faults:
        for where, line in text_lines(file, faults):
            with faults.row(where):
                rows.append(_row(json_object(line, LINE)))
    if not rows:
        raise UsageError(f"{name}: {file} holds no lines")
    return tuple(dict.fromkeys(rows))


@lru_cache(maxsize=4)
def _from_hub(name: str, repository: str, split: str) -> tuple[CompetitionRow, ...]:
    rows = []
    with DataFaults(repository, name) as faults:
        for i, row in enumerate(from_hub(name, repository, None, split, LINE)):
            with faults.row(f"{repository} {split}[{i}]"):
                rows.append(_row(row))
    return tuple(dict.fromkeys(rows))


def _row(data: Mapping[str, Any]) -> CompetitionRow:
    if not isinstance(data.get("problem", data.get("question")), str):
        raise UsageError(f"no problem; expected {LINE}")
    solution = str(data.get("solution") or "")
    answer = data.get("answer")
    if answer is None:
        boxes = final_answers(solution, boxed_only=True)
        answer = ", ".join(boxes)
    choices = tuple(str(c) for c in data.get("choices") or ())
    text = _letter(answer, choices) if choices else str(answer).strip()
    if not text or isinstance(answer, bool):
        raise UsageError(f"no answer; expected {LINE}")
    kind = str(data.get("kind") or kind_of(text, choices))
    if kind not in REQUESTS:
        raise UsageError(f"unknown kind {kind!r}; known: {', '.join(REQUESTS)}")
    level = re.search(r"\d+(?:\.\d+)?", str(data.get("level") or ""))
    return CompetitionRow(
        problem=str(data.get("problem", data.get("question"))),
        answer=text,
        kind=kind,
        level=float(level[0]) if level else None,
        subject=str(data.get("subject") or data.get("type") or ""),
        solution=solution,
        choices=choices,
    )


def _letter(answer: Any, choices: Sequence[str]) -> str:
    """Return the letter of the right choice, which a row names by letter, by index from 0 or by its
    text.
    """
    if len(choices) > len(LETTERS):
        raise UsageError(f"{len(choices)} choices; at most {len(LETTERS)} are supported")
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return LETTERS[answer]
    text = str(answer).strip()
    if text in choices:
        return LETTERS[choices.index(text)]
    letter = text.strip("().").upper()
    if len(letter) == 1 and letter in LETTERS[: len(choices)]:
        return letter
    raise UsageError(
        f"the answer {text!r} is none of its choices (a letter, an index from 0, or the text)"
    )
