"""The environment `dataset`: one reply to each prompt of a file or a data set of the hub."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain, islice, zip_longest
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
from quintain.data import DataFaults
from quintain.errors import RewardFault, UsageError
from quintain.evaluation import AnswerControls, stated_answer

from .columns import RoleColumns, chosen
from .comparison import MISSING, needs_math, states
from .kinds import KINDS, SETTINGS, AnswerKinds, kind_of, reference_of, settled, text_of
from .pictures import placed, with_pictures
from .readers import SPLITS, Record, passed_over, records
from .rows import Changed, RowFile, StoredRows, folder_for, new_rows, repeated, store, stored_in

ROLES = ("system", "user", "assistant", "tool")
PARTS = ("train", "dev", "test")
LONG = 100_000
"""Characters of a prompt that is remarked."""
IN_MEMORY = 20_000
"""Rows of a data set that a run holds in memory; those of a larger one stay on disk."""
SEARCHED = 1000
"""Rows of train, at most, among which those that are shown are looked for."""
MOST_SHOWN = 16
LARGE = 1_000_000
"""Bytes of files from which on the next run finds the rows of such a data set on disk."""
COMMON = 0.1
"""Share of the held-out tasks from which on their commonest answer is named."""
NAMED = 1000
"""Different answers whose text is kept for that."""
_LOOSE = re.compile(r"[\s!?;:'\"]+|[.,](?!\d)")
"""What two prompts that ask the same may differ in; signs of sums and points of numbers are kept."""
_log = logging.getLogger("quintain.env.dataset")


@dataclass(frozen=True, kw_only=True)
class Row(Task):
    """A row as a task.

    Attributes:
        columns: all its values, which the parameters of a reward function can name.
        kind: how `same_answer` compares the answer, as in ``number, decimal comma``; empty: as the
            answer alone tells.
    """

    columns: Mapping[str, Any] = field(default_factory=dict)
    kind: str = ""


@reward(range=(0, 1))
async def same_answer(rollout: Rollout[Any, Any]) -> Score:
    r"""Return 1 where the reply states the answer of the task, else 0.

    It states what its last mark has: ``\boxed{}``, an ``<answer>`` tag, ``####``, "the answer is"
    or "Answer:"; without a mark, its last line. How this is compared depends on the kind of the
    answer, which the environment `dataset` finds from all rows. The answer itself is never
    reduced. docs/dataset.md has the rules.

    Raises:
        RewardFault: the task has no answer, or a formula needs ``quintain-env-dataset[math]``.
    """
    task = rollout.task
    if _missing(task.answer):
        raise RewardFault(f"task {task.id}: same_answer needs an answer, got {task.answer!r}")
    kind = getattr(task, "kind", "") or kind_of(task.answer)
    stated = stated_answer(rollout.reply)
    if not await states(stated, task.answer, kind):
        return Score(value=0.0, reason=f"{stated.text!r} is not {task.answer!r} ({kind})"[:200])
    # Who wants the form of the file has to see that another one is rewarded. A full stop is no form.
    given, wanted = (text.strip(" .") for text in (stated.text, str(task.answer)))
    if kind.startswith("date") and given != wanted:
        said = f"{stated.text!r} for {task.answer!r}; --arg kind=exact wants this form"
        return Score(value=1.0, reason=said[:200])
    return Score(value=1.0)


class Dataset(AnswerControls, Environment[Row, None]):
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
            its train rows: about a tenth each, chosen by a hash of the prompt.
        system_column: column of system messages.
        suffix: text after every prompt, such as "Put the final answer within \\boxed{}."
        image: column of pictures: paths from the folder of the table, ``data:`` URLs, bytes in
            Parquet, or lists of these. They stand at each ``<image>`` of the prompt, else before it.
        subset: of a data set of the hub.
        kind: of the answers, for `same_answer`: number, choice, words, formula, date, sequence,
            accepted, json, exact, or with what rows leave open, as in ``"number, decimal comma"`` and
            ``"date, day first"``. Empty: found from all rows.
        shown: rows of train, at most 16, that stand as worked turns before each prompt, each with
            another answer as far as there are others, and then each answer again. They help a
            small model that would write another form.
    """

    reward = same_answer

    path: str = ""
    prompt: str = ""
    answer: str = ""
    split: str = ""
    system_column: str = ""
    suffix: str = ""
    image: str = ""
    subset: str = ""
    kind: str = ""
    shown: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.shown <= MOST_SHOWN:
            raise UsageError(f"dataset: shown is {self.shown}; expected 0 to {MOST_SHOWN}")
        if not self.path:
            raise UsageError(
                "dataset: name your data: --arg path=FILE, a folder, or a data set of the hub"
            )
        if self.kind and not settled(self.kind):
            raise UsageError(
                f"dataset: kind is {self.kind!r}; expected one of {', '.join(KINDS)}, or one with "
                f"a setting, as in {' or '.join(map(repr, SETTINGS))}"
            )

    def tasks(self, split: str) -> Sequence[Row]:
        rows = self._rows(split)
        return Changed(rows, self._with_shown) if self.shown else rows

    def _rows(self, split: str) -> Sequence[Row]:
        wanted = (self.prompt, self.answer, self.split, self.system_column, self.image)
        compares = _compares(self.reward)
        rows = _loaded(
            self.path, self.subset, wanted, self.suffix, _version(self.path), compares, self.kind
        ).get(split, ())
        if compares and rows and all(_missing(row.answer) for row in rows):
            raise UsageError(
                f"dataset: none of the {len(rows)} rows ({split}) has an answer, which the reward "
                "same_answer needs; name its column with --arg answer=COLUMN, or a reward of your "
                "own with --reward FILE:function"
            )
        return rows

    def _with_shown(self, task: Row) -> Row:
        """Return *task* with the turns that are shown in its prompt, behind its system messages."""
        turns: list[Message] = []
        others = (row for row in self._candidates if row.id != task.id)
        for row in islice(others, self.shown):
            turns += (message for message in _asked(row) if message.role != "system")
            turns.append(Message("assistant", _worked(row.answer) or text_of(row.answer)))
        asked = _asked(task)
        first = next((i for i, m in enumerate(asked) if m.role != "system"), len(asked))
        return replace(task, prompt=(*asked[:first], *turns, *asked[first:]))

    @cached_property
    def _candidates(self) -> Sequence[Row]:
        """The rows that are shown, and one more, for the task that is one of them."""
        rows = [row for row in islice(self._rows("train"), SEARCHED) if row.answer is not None]
        by_answer = dict[str, list[Row]]()
        for row in rows:
            by_answer.setdefault(text_of(row.answer), []).append(row)
        # One of each answer, then another one of each: none is shown more often than the others.
        rounds = zip_longest(*by_answer.values())
        chosen_rows = [row for one_round in rounds for row in one_round if row is not None]
        if len(chosen_rows) <= self.shown:
            raise UsageError(
                f"dataset: shown is {self.shown}, and train has {len(chosen_rows)} rows with an "
                f"answer; take at most {max(len(chosen_rows) - 1, 0)}"
            )
        return chosen_rows[: self.shown + 1]

    def right_answer(self, task: Row) -> str:
        if task.answer is None:
            raise UsageError("the data has no answers, so no reply is known to be right")
        return text_of(task.answer)

    def control_marks(self) -> Mapping[str, str]:
        """Return what the controls score: only `same_answer` is known to read boxes and
        sentences, and to give nothing for a part of an answer.
        """
        marks = self.controls()
        if self.reward is same_answer:
            return marks
        return {name: "" if hasattr(AnswerControls, name) else mark for name, mark in marks.items()}

    @control(scores="max")
    def oracle(self, task: Row, messages: Sequence[Message]) -> str:
        """Reply with the answer of the row."""
        return _worked(task.answer) or self.right_answer(task)

    @control()
    def echo(self, task: Row, messages: Sequence[Message]) -> str:
        """Reply with the prompt."""
        return messages[-1].content

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            if task.answer is not None:
                reply = _worked(task.answer) or text_of(task.answer)
                yield Demonstration(prompt=task.prompt, reply=reply)


def _asked(task: Row) -> list[Message]:
    prompt = task.prompt
    return [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)


def _worked(answer: Any) -> str:
    """Return an answer that is text, all of it: a worked solution is the demonstration, not what
    its mark has. Empty for other values, and for a list that is stored as text.
    """
    return answer if isinstance(answer, str) and isinstance(reference_of(answer), str) else ""


def _compares(scored: Reward) -> bool:
    """Return whether `same_answer` is a part of the reward, so that each row needs an answer."""
    return scored is same_answer or any(map(_compares, scored.parts))


def _version(path: str) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of each file of *path*, which a notebook may write again; empty for
    a data set of the hub.
    """
    place = Path(path).expanduser()
    files = [place] if place.is_file() else sorted(place.glob("*")) if place.is_dir() else []
    return tuple((str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files)


@lru_cache(maxsize=4)
def _loaded(
    path: str,
    subset: str,
    wanted: tuple[str, ...],
    suffix: str,
    version: tuple[tuple[str, int, int], ...],
    answered: bool,
    kind: str,
) -> Mapping[str, Sequence[Row]]:
    """Return the rows of all splits; says once which columns they come from, and what is odd.

    Those of a large data set stay on disk, and the next run finds them there.

    Raises:
        UsageError: with all faults of the data; if *answered*, a row without an answer is one,
            unless it is so in all rows of its file.
    """
    names, size = [name for name, _, _ in version], sum(size for _, size, _ in version)
    # Rows of pictures are read anew: their files may have changed while the table has not.
    keeps = size > LARGE and not wanted[-1]
    folder = folder_for(names, wanted, suffix, answered, kind) if keeps else None
    if folder is not None:
        known = stored_in(folder)
        if known is not None and known.about["version"] == [list(file) for file in version]:
            _log.warning(*known.about["said"])
            return _splits_of(known, suffix, kind)
    with new_rows(folder) as rows:
        kinds = AnswerKinds(kind) if answered else None
        splits, columns, remarks = _read(path, subset, wanted, suffix, kinds, rows)
        settings = kinds.settings() if kinds else ""
        counts = ", ".join(f"{len(numbers)} {name}" for name, numbers in splits.items())
        warning = ("dataset %s: %s; %s%s", path, str(columns), counts, remarks)
        _log.warning(*warning)
        if len(rows) <= IN_MEMORY:
            return {
                name: tuple(
                    _row(rows.read(i)[1], columns, suffix, f"{rows.ids[i]:016x}", kind, settings)
                    for i in numbers
                )
                for name, numbers in splits.items()
            }
        beside = {"version": version, "columns": asdict(columns), "said": warning}
        beside["settings"] = settings
        return _splits_of(store(rows, splits, beside, folder), suffix, kind)


def _splits_of(stored: StoredRows, suffix: str, kind: str) -> Mapping[str, Sequence[Row]]:
    columns = RoleColumns(**stored.about["columns"])

    settings = stored.about["settings"]

    def made(values: dict[str, Any], task: str) -> Row:
        return _row(values, columns, suffix, task, kind, settings)

    return {name: stored.rows(name, made) for name in stored.places}


def _read(
    path: str,
    subset: str,
    wanted: tuple[str, ...],
    suffix: str,
    kinds: AnswerKinds | None,
    rows: RowFile,
) -> tuple[Mapping[str, Sequence[int]], RoleColumns, str]:
    """Write the rows of all files to *rows*; return their numbers by split, their columns, and
    remarks about them.

    Raises:
        UsageError: as `_loaded`.
    """
    oddities, answers, columns = Oddities(), AnswerCounts(), RoleColumns(prompt="")
    roles = dict(zip(("prompt", "answer", "split", "system", "image"), wanted, strict=True))
    without_answer: list[tuple[Record, UsageError]] = []
    some: set[str] = set()  # files with an answer
    with DataFaults(path, "dataset") as faults:
        records_read = records(path, subset, faults)
        first = next(records_read, None)
        if first is None and not faults:
            raise UsageError(f"dataset: {path} has no rows")
        with faults.row(path):
            columns = chosen(path, first.values, roles) if first else columns
        for record in chain([first], records_read) if first else ():
            if not columns.prompt:
                continue
            with faults.row(record.where):
                part = _split_of(record, columns)
                fault = None
                if kinds is not None and columns.answer in record.values:
                    fault = _no_answer(record, columns.answer)
                    if fault is not None:
                        without_answer.append((record._replace(values={}), fault))
                    else:
                        some.add(record.split)
                if columns.image:
                    record = with_pictures(record, columns.image)
                text, task = _task(record, columns, suffix)
                if kinds is not None and fault is None:
                    kinds.look(record.where, task.answer)
                oddities.look(len(rows), record, task)
                answers.look(str(task.answer))
                rows.append(
                    record.where, text, _id(task), _hash(task.prompt), PARTS.index(part or "train")
                )
        for record, fault in without_answer:
            if record.split in some:
                with faults.row(record.where):
                    raise fault
    splits, cut = _cut(rows)
    remarks = _remarks(splits, rows, cut) + "".join(oddities.remarks(rows))
    remarks += _twins(splits, rows, oddities.loose) + passed_over(path)
    remarks += answers.remark(splits.get("test") or splits.get("dev") or ())
    if kinds is not None and kinds.counts:
        if kinds.counts.get("formula") and needs_math():
            place = kinds.first["formula"][0]
            count = kinds.counts["formula"]
            raise UsageError(f"dataset: {count} formulas (first: {place}): {MISSING}")
        remarks = f"{remarks}; answers: {kinds.said()}"
    return splits, columns, remarks


def _cut(rows: RowFile) -> tuple[dict[str, array[int]], list[str]]:
    """Return the numbers of different rows by split, and the splits that were cut from train."""
    twice: set[int] = set()
    for numbers in repeated(rows.ids):
        parts: set[int] = set()
        for i in numbers:
            if rows.parts[i] in parts:
                twice.add(i)
            parts.add(rows.parts[i])
    splits = {name: array("Q") for name in PARTS}
    for i, part in enumerate(rows.parts):
        if i not in twice:
            splits[PARTS[part]].append(i)
    cut = [name for name in ("dev", "test") if not splits[name]]
    if cut:
        given, splits["train"] = splits["train"], array("Q")
        for i in given:
            name = {0: "dev", 1: "test"}.get(rows.prompts[i] % 10, "train")
            splits[name if name in cut else "train"].append(i)
    for name in cut:
        if not splits[name] and len(splits["train"]) > 1:  # a small file
            moved = min(splits["train"], key=rows.prompts.__getitem__)
            splits["train"].remove(moved)
            splits[name].append(moved)
    return splits, cut


def _missing(answer: Any) -> bool:
    """Return whether there is no answer: null, the NaN that tables have instead, or blank text."""
    return answer is None or answer != answer or (isinstance(answer, str) and not answer.strip())


class Oddities:
    """Notes what may be a mistake in the rows."""

    def __init__(self) -> None:
        self.loose = array("q")  # a digest of each prompt without case, blanks and marks
        self._answers = array("q")  # a digest of each
        # of the rows that name an id: their numbers, and a digest of the name
        self._named, self._names = array("Q"), array("q")
        self._long: list[str] = []

    def look(self, number: int, record: Record, task: Row) -> None:
        """Note row *number*."""
        self.loose.append(hash(_LOOSE.sub("", str(task.prompt).casefold())))
        self._answers.append(_equality(task.answer))
        if (name := record.values.get("id")) is not None:
            self._named.append(number)
            self._names.append(hash(str(name)))
        if (length := len(str(task.prompt))) > LONG:
            self._long.append(f"{record.where}, {length:,}")

    def remarks(self, rows: RowFile) -> Iterator[str]:
        """Yield what is odd, with the number of rows and the place of the first."""
        contradictions = [
            (i, numbers[0])
            for numbers in repeated(rows.prompts)
            for i in numbers
            if self._answers[i] != self._answers[numbers[0]]
        ]
        ids = [
            (self._named[i], self._named[numbers[0]])
            for numbers in repeated(self._names)
            for i in numbers
            if rows.ids[self._named[i]] != rows.ids[self._named[numbers[0]]]
        ]
        long = self._long
        for count, first, one, several, text in (
            (
                len(contradictions),
                _both(rows, contradictions),
                "prompt has",
                "prompts have",
                "another answer in an earlier row",
            ),
            (
                len(ids),
                _both(rows, ids, named=True),
                "row has",
                "rows have",
                "the id of an earlier, different row",
            ),
            (
                len(long),
                long[0] if long else "",
                "prompt has",
                "prompts have",
                f"more than {LONG:,} characters",
            ),
        ):
            if count:
                subject = one if count == 1 else several
                yield f"; {count} {subject} {text} (first: {first})"


def _both(rows: RowFile, pairs: Sequence[tuple[int, int]], *, named: bool = False) -> str:
    """Return the places of the first of *pairs*, a later and an earlier row."""
    if not pairs:
        return ""
    later, earlier = min(pairs)
    where, values = rows.read(later)
    before, _ = rows.read(earlier)
    return f"{str(values['id'])!r} at {before} and {where}" if named else f"{before} and {where}"


def _equality(answer: Any) -> int:
    """Return a number that equal answers share in this process."""
    if answer is None or isinstance(answer, (str, int, float)):
        return hash(answer)
    return hash(json.dumps(answer, sort_keys=True))


def _remarks(splits: Mapping[str, Sequence[int]], rows: RowFile, cut: Sequence[str]) -> str:
    remarks = f" ({' and '.join(cut)} cut from train by a hash of the prompt)" if cut else ""
    if (twice := len(rows) - sum(map(len, splits.values()))) > 0:
        remarks += f"; {twice} rows that occur twice are left out"
    # rows without a split of their own are cut by their prompts, which then share a split
    if shared := sum(len({rows.parts[i] for i in n}) > 1 for n in repeated(rows.prompts)):
        remarks += f"; {shared} prompts are in more than one split, so held-out accuracy is too high for them"
    return remarks


class AnswerCounts:
    """The answers of the rows, as hashes, and the text of the first different ones."""

    def __init__(self) -> None:
        self._hashes, self._texts = array("q"), dict[int, str]()

    def look(self, text: str) -> None:
        """Note the answer of the next row."""
        key = hash(text)
        self._hashes.append(key)
        if len(self._texts) < NAMED:
            self._texts.setdefault(key, text)

    def remark(self, rows: Sequence[int]) -> str:
        """Return a remark on what a reply that is always the same earns on *rows*, if it is much: a
        run that collapses ends there.
        """
        found = Counter(self._hashes[i] for i in rows).most_common(1)
        if not found:
            return ""
        key, count = found[0]
        answer = self._texts.get(key)
        if answer is None or count < max(2, COMMON * len(rows)):
            return ""
        return f"; always {answer[:40]!r} is right in {count / len(rows):.0%} of the held-out tasks"


def _twins(splits: Mapping[str, Sequence[int]], rows: RowFile, loose: Sequence[int]) -> str:
    """Return a remark on the held-out prompts that are not those of train, but alike."""
    split_of = [""] * len(rows)  # rows that are left out have none
    for name, numbers in splits.items():
        for i in numbers:
            split_of[i] = name
    found: list[tuple[int, int]] = []
    for alike in repeated(loose):
        train = [i for i in alike if split_of[i] == "train"]
        same = {rows.prompts[i] for i in train}
        found += [
            (i, train[0])
            for i in alike
            if train and split_of[i] in ("dev", "test") and rows.prompts[i] not in same
        ]
    if not found:
        return ""
    several = "prompt differs" if len(found) == 1 else "prompts differ"
    return (
        f"; {len(found)} held-out {several} from one of train in case, blanks or marks alone, "
        f"so held-out accuracy is too high for them (first: {_both(rows, found)})"
    )


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


def _id(task: Row) -> str:
    """Return the id of a row: that of its text in Unicode's form NFC, in which equal rows are
    equal.
    """
    if unicodedata.is_normalized("NFC", json.dumps(task.columns, ensure_ascii=False)):
        return task.id
    prompt = task.prompt
    if isinstance(prompt, str):
        prompt = unicodedata.normalize("NFC", prompt)
    else:
        prompt = [replace(m, content=unicodedata.normalize("NFC", m.content)) for m in prompt]
    return Row(prompt=prompt, answer=_composed(task.answer), columns=_composed(task.columns)).id


def _composed(value: Any) -> Any:
    """Return plain data with its texts in Unicode's form NFC."""
    return json.loads(unicodedata.normalize("NFC", json.dumps(value, ensure_ascii=False)))


def _hash(prompt: str | Sequence[Message]) -> int:
    text = unicodedata.normalize("NFC", str(prompt)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def _no_answer(record: Record, column: str) -> UsageError | None:
    """Return the fault of a row without an answer."""
    given = record.values[column]
    if not _missing(given):
        return None
    kind = "null" if given is None else "empty" if isinstance(given, str) else "NaN"
    return UsageError(f"dataset: {record.where}, column {column!r} is {kind}; expected an answer")


def _task(record: Record, columns: RoleColumns, suffix: str) -> tuple[str, Row]:
    """Return the values of a row as JSON, and the row as a task."""
    for name in (columns.prompt, columns.answer):
        if name and name not in record.values:
            raise UsageError(
                f"dataset: {record.where} has no column {name!r}; it has {', '.join(record.values)}"
            )
    if isinstance(record.values.get(columns.answer), bytes):
        raise UsageError(
            f"dataset: {record.where}, column {columns.answer!r} is binary and not UTF-8; expected "
            "text"
        )
    prompt = _prompt(record, columns, suffix)
    values = {str(name): value for name, value in record.values.items()}
    try:
        text = json.dumps(values)
    except TypeError:  # a time or a decimal of Parquet becomes text
        text = json.dumps(values, default=str)
        values = json.loads(text)
    return text, Row(prompt=prompt, answer=values.get(columns.answer), columns=values)


def _row(
    values: dict[str, Any], columns: RoleColumns, suffix: str, task: str, kind: str, settings: str
) -> Row:
    """Return the task of a row that was read before, with the id that it had.

    Args:
        kind: of its answer, if the user names one.
        settings: what all answers tell about each; empty where `same_answer` compares none.
    """
    prompt = _prompt(Record("", values), columns, suffix)
    answer = values.get(columns.answer)
    if settings and not kind and not _missing(answer):
        kind = kind_of(answer, settings)
    return Row(prompt=prompt, answer=answer, columns=values, id=task, kind=kind)


def _prompt(record: Record, columns: RoleColumns, suffix: str) -> str | list[Message]:
    messages = _messages(record, columns.prompt)
    if columns.image:
        where = f"dataset: {record.where}, column {columns.prompt!r}"
        messages = placed(messages, str(record.values[columns.image]), where)
    if suffix:
        messages[-1] = Message(messages[-1].role, f"{messages[-1].content}\n\n{suffix}")
    if system := record.values.get(columns.system):
        messages = [Message("system", str(system)), *(m for m in messages if m.role != "system")]
    alone = len(messages) == 1 and messages[0].role == "user"
    return messages[0].content if alone else messages


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
