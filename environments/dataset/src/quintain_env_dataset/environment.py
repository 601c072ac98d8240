"""The environment `dataset`: one reply to each prompt of a file or a data set of the hub."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from quintain import (
    Demonstration,
    Environment,
    Message,
    Reward,
    Rollout,
    Score,
    Task,
    control,
    reward,
)
from quintain.errors import UsageError
from quintain.evaluation import final_answer
from quintain_data import DataFaults

from .columns import RoleColumns, chosen
from .readers import SPLITS, Record, records

ROLES = ("system", "user", "assistant", "tool")
LONG = 100_000
"""Characters of a prompt that is remarked."""
_log = logging.getLogger("quintain.env.dataset")


@dataclass(frozen=True, kw_only=True)
class Row(Task):
    """A row as a task; *columns* has all its values, which the parameters of a reward function can
    name.
    """

    columns: Mapping[str, Any] = field(default_factory=dict)


@reward(range=(0, 1))
def same_answer(rollout: Rollout[Row, Any]) -> Score:
    r"""Return 1 where the final answer of the reply is the task's, else 0.

    The final answer is the last ``\boxed{}``, ``<answer>`` tag or line after ``####``, else the
    last number of the last line, or that line. Case, spaces, thousands separators and trailing
    zeros do not count. Not for free text.
    """
    expected, given = final_answer(_text(rollout.task.answer)), final_answer(rollout.reply)
    right = expected is not None and given == expected
    return Score(value=float(right), reason="" if right else f"{given!r} is not {expected!r}"[:200])


class Dataset(Environment[Row, None]):
    """One reply to each prompt of your own data, scored by `same_answer` or the reward that you
    name.

    Attributes:
        path: a file (.jsonl, .json, .csv, .tsv, .parquet), a folder with such files called train,
            dev and test, or a data set of the hub, ``owner/name``.
        prompt: column of the prompts, text or lists of messages ``{"role": ..., "content": ...}``.
            Empty, here and below: the column with a usual name, such as question, prompt or
            problem.
        answer: column of the expected answers; a data set without answers needs a reward that asks
            for none.
        split: column with train, dev or test. Splits that the data set does not have are cut from
            its train rows: a tenth each, chosen by a hash of the prompt.
        system_column: column of system messages.
        suffix: text after every prompt, such as "Put the final answer within \\boxed{}."
        subset: of a data set of the hub.
    """

    reward = same_answer

    path: str = ""
    prompt: str = ""
    answer: str = ""
    split: str = ""
    system_column: str = ""
    suffix: str = ""
    subset: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            raise UsageError(
                "dataset: name your data: --arg path=FILE, a folder, or a data set of the hub"
            )

    def tasks(self, split: str) -> Iterable[Row]:
        wanted = (self.prompt, self.answer, self.split, self.system_column)
        place = Path(self.path).expanduser()
        # a notebook may write the file again
        changed = place.stat().st_mtime_ns if place.is_file() else 0
        compares = _compares(self.reward)
        rows = _loaded(self.path, self.subset, wanted, self.suffix, changed, compares).get(
            split, ()
        )
        if compares and rows and all(_missing(row.answer) for row in rows):
            raise UsageError(
                f"dataset: none of the {len(rows)} rows ({split}) has an answer, which the reward "
                "same_answer needs; name its column with --arg answer=COLUMN, or a reward of your "
                "own with --reward FILE:function"
            )
        return rows

    @control(scores="max")
    def oracle(self, task: Row, messages: Sequence[Message]) -> str:
        """Reply with the answer of the row."""
        if task.answer is None:
            raise UsageError("the data has no answers, so no reply is known to be right")
        return _text(task.answer)

    @control()
    def echo(self, task: Row, messages: Sequence[Message]) -> str:
        """Reply with the prompt."""
        return messages[-1].content

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            if task.answer is not None:
                yield Demonstration(prompt=task.prompt, reply=_text(task.answer))


def _compares(scored: Reward) -> bool:
    """Return whether `same_answer` is a part of the reward, so that each row needs an answer."""
    return scored is same_answer or any(map(_compares, scored.parts))


@lru_cache(maxsize=4)
def _loaded(
    path: str, subset: str, wanted: tuple[str, ...], suffix: str, changed: int, answered: bool
) -> Mapping[str, Sequence[Row]]:
    """Return the rows of all splits; says once which columns they come from, and what is odd.

    Raises:
        UsageError: with all faults of the data; if *answered*, a row without an answer is one,
            unless it is so in all rows of its file.
    """
    parsed: list[tuple[Record, str, Row]] = []
    with DataFaults(path, "dataset") as faults:
        rows = records(path, subset, faults)
        if not rows and not faults:
            raise UsageError(f"dataset: {path} has no rows")
        columns = RoleColumns(prompt="")
        roles = dict(zip(("prompt", "answer", "split", "system"), wanted, strict=True))
        with faults.row(path):
            columns = chosen(path, rows[0].values, roles) if rows else columns
        some = {r.split for r in rows if answered and not _missing(r.values.get(columns.answer))}
        for record in rows if columns.prompt else ():
            with faults.row(record.where):
                part = _split_of(record, columns)
                parsed.append((record, part, _task(record, columns, suffix, record.split in some)))
    splits: dict[str, dict[str, Row]] = {"train": {}, "dev": {}, "test": {}}
    for _, given, task in parsed:
        splits[given or "train"].setdefault(task.id, task)
    cut = [name for name in ("dev", "test") if not splits[name]]
    for task in [*splits["train"].values()] if cut else ():
        name = {0: "dev", 1: "test"}.get(_hash(task.prompt) % 10, "train")
        if name in cut:
            splits[name][task.id] = splits["train"].pop(task.id)
    for name in cut:
        if not splits[name] and len(splits["train"]) > 1:  # a small file
            task = min(splits["train"].values(), key=lambda task: _hash(task.prompt))
            splits[name][task.id] = splits["train"].pop(task.id)
    counts = ", ".join(f"{len(tasks)} {name}" for name, tasks in splits.items())
    remarks = _remarks(splits, len(rows), cut) + "".join(_oddities(parsed))
    _log.warning("dataset %s: %s; %s%s", path, columns, counts, remarks)
    return {name: tuple(tasks.values()) for name, tasks in splits.items()}


def _missing(answer: Any) -> bool:
    """Return whether there is no answer: null, the NaN that tables have instead, or blank text."""
    return answer is None or answer != answer or (isinstance(answer, str) and not answer.strip())


def _oddities(parsed: Sequence[tuple[Record, str, Row]]) -> Iterator[str]:
    """Yield what may be a mistake in the rows, with the number of rows and the place of the
    first.
    """
    first: dict[str, tuple[Record, Row]] = {}
    first_of_id: dict[str, tuple[Record, Row]] = {}
    contradictions, tables, long, ids = [], [], [], []
    for record, _, task in parsed:
        before, known = first.setdefault(str(task.prompt), (record, task))
        if known.answer != task.answer:
            contradictions.append(f"{before.where} and {record.where}")
        if (name := record.values.get("id")) is not None:
            before, known = first_of_id.setdefault(str(name), (record, task))
            if known.id != task.id:
                ids.append(f"{name!r} at {before.where} and {record.where}")
        if isinstance(task.answer, Mapping):
            tables.append(record.where)
        if (length := len(str(task.prompt))) > LONG:
            long.append(f"{record.where}, {length:,}")
    for places, one, several, text in (
        (contradictions, "prompt has", "prompts have", "another answer in an earlier row"),
        (ids, "row has", "rows have", "the id of an earlier, different row"),
        (tables, "answer is an object, compared", "answers are objects, compared", "as JSON text"),
        (long, "prompt has", "prompts have", f"more than {LONG:,} characters"),
    ):
        if places:
            subject = one if len(places) == 1 else several
            yield f"; {len(places)} {subject} {text} (first: {places[0]})"


def _remarks(splits: Mapping[str, Mapping[str, Row]], rows: int, cut: Sequence[str]) -> str:
    remarks = f" ({' and '.join(cut)} cut from train by a hash of the prompt)" if cut else ""
    if (twice := rows - sum(map(len, splits.values()))) > 0:
        remarks += f"; {twice} rows that occur twice are left out"
    seen = Counter(
        str(prompt)
        for tasks in splits.values()
        for prompt in {task.prompt for task in tasks.values()}
    )
    if shared := sum(count > 1 for count in seen.values()):
        remarks += f"; {shared} prompts are in more than one split, so held-out accuracy is too high for them"
    return remarks


def _split_of(record: Record, columns: RoleColumns) -> str:
    if record.split or not columns.split:
        return record.split
    name = record.values.get(columns.split)
    if not name:
        return ""
    if (known := SPLITS.get(str(name).strip().casefold())) is None:
        raise UsageError(
            f"dataset: {record.where}, column {columns.split!r} is {str(name)[:40]!r}; expected "
            f"train, dev or test"
        )
    return known


def _hash(prompt: str | Sequence[Message]) -> int:
    return int.from_bytes(hashlib.sha256(str(prompt).encode()).digest()[:8], "big")


def _task(record: Record, columns: RoleColumns, suffix: str, answered: bool) -> Row:
    for name in (columns.prompt, columns.answer):
        if name and name not in record.values:
            raise UsageError(
                f"dataset: {record.where} has no column {name!r}; it has {', '.join(record.values)}"
            )
    if answered and _missing(given := record.values.get(columns.answer)):
        kind = "null" if given is None else "empty" if isinstance(given, str) else "NaN"
        raise UsageError(
            f"dataset: {record.where}, column {columns.answer!r} is {kind}; expected an answer"
        )
    messages = _messages(record, columns.prompt)
    if suffix:
        messages[-1] = Message(messages[-1].role, f"{messages[-1].content}\n\n{suffix}")
    if system := record.values.get(columns.system):
        messages = [Message("system", str(system)), *(m for m in messages if m.role != "system")]
    alone = len(messages) == 1 and messages[0].role == "user"
    values = {str(k): _plain(v) for k, v in record.values.items()}
    answer = values.get(columns.answer)
    return Row(prompt=messages[0].content if alone else messages, answer=answer, columns=values)


def _messages(record: Record, column: str) -> list[Message]:
    value = record.values[column]
    where = f"dataset: {record.where}, column {column!r}"
    if isinstance(value, str) and value.strip():
        return [Message("user", value)]
    if not isinstance(value, (list, tuple)) or not value:
        raise UsageError(f"{where} is {str(value)[:40]!r}; expected text, or a list of messages")
    messages: list[Message] = []
    for number, item in enumerate(value, 1):
        role, content = (
            (item.get("role"), item.get("content")) if isinstance(item, Mapping) else (None, None)
        )
        if role not in ROLES or not isinstance(content, str):
            raise UsageError(
                f'{where}, message {number} is {str(item)[:60]}; expected {{"role": "user", '
                f'"content": "..."}} with a '
                f"role of {', '.join(ROLES)}"
            )
        messages.append(Message(role, content))
    if messages[-1].role == "assistant":
        raise UsageError(f"{where} ends with the assistant's message; expected the user's")
    return messages


def _plain(value: Any) -> Any:
    """Return *value* as JSON has it: a time or a decimal of Parquet becomes text."""
    return json.loads(json.dumps(value, default=str))


def _text(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
