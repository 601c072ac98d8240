"""Where rows come from: files, folders and the hub; their splits; and the rows that are left
out.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UsageError, did_you_mean
from quintain.models import offline, quiet, unreachable

from .contests import UnsupportedRow
from .rows import FORMATS, task_of
from .tasks import CodeTask

log = logging.getLogger("quintain.code")

MBPP_SPLITS = {"train": range(601, 975), "dev": range(511, 601), "test": range(11, 511)}
"""The splits of MBPP (Austin et al. 2021, arXiv:2108.07732) by task id; 1 to 10 are the paper's
few-shot prompts.
"""
HUB_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "prompt"), "test": ("test",)}
"""Names of the splits in data sets of the hub, in order of preference."""


SPLITS = tuple(HUB_SPLITS)
Rows = list[tuple[Any, str]]
"""Rows, each with the place that it comes from."""


def load(data: str, split: str, splits: str = "own", show_tests: int = -1) -> tuple[CodeTask, ...]:
    """Return all tasks of a split, without repetitions and without rows that are not supported; a
    warning counts those.

    Args:
        data, splits, show_tests: as the fields of `Code`.

    Raises:
        UsageError: there is no such data, or a row has no known format.
    """
    return tuple(task for task, _ in located(data, split, splits, show_tests))


@lru_cache(maxsize=16)
def located(
    data: str, split: str, splits: str = "own", show_tests: int = -1
) -> tuple[tuple[CodeTask, str], ...]:
    """Return the tasks of `load`, each with its place: file and line, or data set and index."""
    show, written = None if show_tests < 0 else show_tests, Path(data).exists()
    tasks: dict[str, tuple[CodeTask, str]] = {}
    unsupported: list[UnsupportedRow] = []
    with DataFaults(data, "code") as faults:
        for row, where in rows_of(data, split, splits):
            with faults.row(where):
                try:
                    task = task_of(row, where, show, written=written)
                except UnsupportedRow as e:
                    unsupported.append(e)
                    continue
                tasks[fingerprint(task)] = task, where
        # a faulty file has to be corrected as a whole
        for other in SPLITS if faults and Path(data).is_file() else ():
            for row, where in rows_of(data, other, splits) if other != split else ():
                with faults.row(where), suppress(UnsupportedRow):
                    task_of(row, where, show, written=written)
    if unsupported:
        count = f"{len(unsupported)} row{'s' * (len(unsupported) > 1)}"
        log.warning(
            "code: %s of %s left out as not supported, the first %s", count, data, unsupported[0]
        )
    return tuple({task.id: (task, where) for task, where in tasks.values()}.values())


def rows_of(data: str, split: str, splits: str = "own") -> Rows:
    """Return the rows of a split as they are, each with its place; arguments and errors as
    `load`.
    """
    path = Path(checked(data))
    if split not in SPLITS:
        raise UsageError(f"code: there is no split {split!r}{did_you_mean(split, SPLITS)}")
    if path.is_dir():
        return _of_folder(path, split)
    return list(_of_file(path, split, splits)) if path.is_file() else _of_hub(data, split)


def checked(data: str) -> str:
    """Return *data*, if it is there or may be a data set of the hub.

    Raises:
        UsageError: it is empty, or names a file or folder that is not there.
    """
    if not data:
        raise UsageError(
            "data is empty; name a file of JSON lines, a folder with train.jsonl and test.jsonl, "
            "or a data "
            "set of the hub: --arg data=FILE, or in a recipe args = { data = "
            '"google-research-datasets/mbpp" }'
        )
    path = Path(data)
    if not path.exists() and (
        path.suffix or data.startswith((".", "/", "~")) or data.count("/") > 1
    ):
        raise UsageError(f"there is no file or folder {data!r}{_beside(path)}")
    return data


def _beside(path: Path) -> str:
    """Return the entry of the parent folder that the name may be a misspelling of."""
    folder = next((f for f in path.parents if f.is_dir()), None)
    if folder is None or folder != path.parent:
        return f", nor a folder {str(path.parent)!r}; name one with --arg data=FILE"
    near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    return (
        f"; did you mean {str(folder / near[0])!r}?" if near else "; name one with --arg data=FILE"
    )


def fingerprint(task: CodeTask) -> str:
    """Return a hash of tests and reference: the same whatever the prompt shows."""
    cases = [[case.stdin, case.stdout, *case.also] for case in task.cases]
    parts: list[Any] = [
        task.kind,
        task.setup,
        task.tests,
        cases,
        dict(task.suite),
        dict(task.solution),
    ]
    judges = [dict(task.checker), dict(task.interactor), task.absolute_error, task.relative_error]
    parts += judges if any(judges) else []
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def known_faults() -> dict[str, str]:
    """Return reasons by fingerprint, of rows of published data sets that cannot be used."""
    return _faults((resources.files(__package__) / "left_out.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def read_faults(file: Path) -> dict[str, str]:
    """Return the same, from a file that ``quintain-code check`` wrote.

    Raises:
        UsageError: it is no such file.
    """
    try:
        return _faults(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as e:
        raise UsageError(
            f"code: left_out = {str(file)!r} is no file of `quintain-code check`: {e}"
        ) from e


def _faults(text: str) -> dict[str, str]:
    return {key: f"{row['source']}: {row['reason']}" for key, row in json.loads(text).items()}


def _of_folder(folder: Path, split: str) -> Rows:
    file = folder / f"{split}.jsonl"
    if file.is_file():
        rows = _lines(file)
        with DataFaults(file, "code") as faults:
            for row, where in rows:
                if (row_split := row.get("split", split)) != split:
                    faults.append(
                        f"{where}: its split is {row_split!r}, and the file is that of {split!r}; "
                        f"correct one of them"
                    )
        return rows
    if split != "dev" or not (folder / "train.jsonl").is_file():
        raise UsageError(
            f"code: there is no file {file}; a folder has train.jsonl, test.jsonl and perhaps "
            f"dev.jsonl"
        )
    return []


def _of_file(file: Path, split: str, splits: str) -> Iterable[tuple[Any, str]]:
    rows = _lines(file)
    if splits == "test":
        return rows if split == "test" else []
    owners = _splits(file, rows)
    chosen = [row for row, owner in zip(rows, owners, strict=True) if owner == split]
    if split == "test" and len(chosen) < len(rows):
        # The others may be trained on, so they are not tests unless the user says so.
        counts = f"{len(chosen)} of {len(rows)} rows of {file}"
        log.warning("code: %s are the split test; splits=test makes it all", counts)
    return chosen


def _splits(file: Path, located_rows: Rows) -> list[str]:
    """Return the split of each row: its own, MBPP's by task id, or by a hash of its text.

    Raises:
        UsageError: a row names an unknown split, or none where others do.
    """
    rows = [row for row, _ in located_rows]
    ids = [row.get("task_id") if "test_list" in row else None for row in rows]
    if rows and all(type(i) is int and 1 <= i <= 974 for i in ids):
        return [
            next((split for split, numbers in MBPP_SPLITS.items() if i in numbers), "prompt")
            for i in ids
        ]
    named = [row.get("split") for row in rows]
    if any(split is not None for split in named):
        with DataFaults(file, "code") as faults:
            for split, (_, where) in zip(named, located_rows, strict=True):
                if split is None:
                    faults.append(
                        f"{where} has no split, and other rows of the file have one; name it, or "
                        f"remove theirs"
                    )
                elif split not in SPLITS:
                    near = did_you_mean(str(split), SPLITS)
                    faults.append(f"{where}: there is no split {split!r}{near}")
        return list(map(str, named))
    keys = [hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest() for row in rows]
    order, tenth = sorted(keys), max(1, len(rows) // 10)
    dev, test = set(order[:tenth]), set(order[tenth : 2 * tenth])
    return ["dev" if key in dev else "test" if key in test else "train" for key in keys]


def _lines(file: Path) -> Rows:
    return list(_lines_at(file, file.stat().st_mtime_ns))  # a notebook may write the file again


@lru_cache(maxsize=4)
def _lines_at(file: Path, changed: int) -> Rows:
    """Return the rows of *file*; a warning says which ids stand for several tasks, since an id is
    but a label here.
    """
    rows: Rows = []
    first: dict[str, tuple[Any, str]] = {}
    repeated = []
    with DataFaults(file, "code") as faults:
        for where, line in text_lines(file, faults):
            with faults.row(where):
                row = json_object(line, f"lines of {FORMATS}")
                rows.append((row, where))
                other, there = first.setdefault(str(row.get("id", where)), (row, where))
                if other != row:
                    repeated.append(f"{row['id']!r} at {there} and {where}")
    if not rows:
        raise UsageError(f"code: {file} holds no lines")
    if repeated:
        log.warning(
            "code: %d rows have the id of another row (first: %s)", len(repeated), repeated[0]
        )
    return rows


@lru_cache(maxsize=4)
def _of_hub(data: str, split: str) -> Rows:
    repository, _, configuration = data.partition(":")
    try:
        from datasets import get_dataset_split_names, load_dataset
    except ImportError as e:
        raise UsageError(
            f"code: {data!r} is no file; the hub needs `datasets`: pip install "
            "'quintain-env-code[hub]'"
        ) from e
    reason = unreachable()
    try:
        with offline() if reason else quiet():
            names = get_dataset_split_names(repository, configuration or None)
            name = next((n for n in HUB_SPLITS[split] if n in names), "")
            rows = load_dataset(repository, configuration or None, split=name) if name else []
    except (OSError, ValueError) as e:
        # a ConnectionError among them; in the cache there is no such configuration
        why = reason or re.split(r"\n", str(e).strip())[0]
        raise UsageError(
            f"code: {data!r} is no file, and the hub does not give it ({why}). Fix: name a file of "
            "JSON lines, or a folder with train.jsonl and test.jsonl: --arg data=FILE"
        ) from e
    return [(row, f"{repository} {name}[{i}]") for i, row in enumerate(rows)]
