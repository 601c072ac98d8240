"""Where rows come from: files, folders and the hub; their splits; and the rows that are left out."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from quintain.errors import UsageError
from quintain.models import offline, quiet, unreachable

from .rows import FORMATS, task_of
from .tasks import CodeTask

log = logging.getLogger("quintain.code")

MBPP_SPLITS = {"train": range(601, 975), "dev": range(511, 601), "test": range(11, 511)}
"""The splits of MBPP (Austin et al. 2021, arXiv:2108.07732) by task id; 1 to 10 are the paper's few-shot prompts."""
HUB_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "prompt"), "test": ("test",)}
"""Names of the splits in data sets of the hub, in order of preference."""


@lru_cache(maxsize=16)
def load(data: str, split: str, splits: str = "own", show_tests: int = -1) -> tuple[CodeTask, ...]:
    """All tasks of a split, without repetitions.

    Args:
        data, splits, show_tests: as the fields of `Code`.

    Raises:
        UsageError: there is no such data, or a row has no known format.
    """
    path = Path(data)
    if path.is_dir():
        rows = _of_folder(path, split)
    elif path.is_file():
        rows = list(_of_file(path, split, splits))
    elif path.suffix or data.startswith((".", "/")) or data.count("/") > 1:
        raise UsageError(f"code: there is no file or folder {data!r}")
    else:
        rows = _of_hub(data, split)
    show = None if show_tests < 0 else show_tests
    tasks = {fingerprint(task): task for task in (task_of(row, where, show) for row, where in rows)}
    return tuple({task.id: task for task in tasks.values()}.values())


def fingerprint(task: CodeTask) -> str:
    """A hash of tests and reference: the same whatever the prompt shows."""
    cases = [[case.stdin, case.stdout] for case in task.cases]
    parts = [task.kind, task.setup, task.tests, cases, dict(task.suite), dict(task.solution)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def known_faults() -> dict[str, str]:
    """Reasons by fingerprint, of rows of published data sets that cannot be used."""
    return _faults((resources.files(__package__) / "left_out.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def read_faults(file: Path) -> dict[str, str]:
    """The same, from a file that ``quintain-code check`` wrote.

    Raises:
        UsageError: it is no such file.
    """
    try:
        return _faults(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as e:
        raise UsageError(f"code: left_out = {str(file)!r} is no file of `quintain-code check`: {e}") from e


def _faults(text: str) -> dict[str, str]:
    return {key: f"{row['source']}: {row['reason']}" for key, row in json.loads(text).items()}


Rows = list[tuple[Any, str]]
"""Rows, each with the place that it comes from."""


def _of_folder(folder: Path, split: str) -> Rows:
    file = folder / f"{split}.jsonl"
    if file.is_file():
        return _lines(file)
    if split != "dev" or not (folder / "train.jsonl").is_file():
        raise UsageError(f"code: there is no file {file}; a folder has train.jsonl, test.jsonl and perhaps dev.jsonl")
    return []


def _of_file(file: Path, split: str, splits: str) -> Iterable[tuple[Any, str]]:
    rows = _lines(file)
    if splits == "test":
        return rows if split == "test" else []
    owners = _splits([row for row, _ in rows])
    found = [row for row, owner in zip(rows, owners, strict=True) if owner == split]
    if split == "test" and len(found) < len(rows):
        # The others may be trained on, so they are not tests unless the user says so.
        counts = f"{len(found)} of {len(rows)} rows of {file}"
        log.warning("code: %s are the split test; splits=test makes it all", counts)
    return found


def _splits(rows: Sequence[Any]) -> list[str]:
    """The split of each row: its own, MBPP's by task id, or by a hash of its text."""
    ids = [row.get("task_id") if isinstance(row, Mapping) and "test_list" in row else None for row in rows]
    if rows and all(type(i) is int and 1 <= i <= 974 for i in ids):
        return [next((split for split, numbers in MBPP_SPLITS.items() if i in numbers), "prompt") for i in ids]
    if rows and all(isinstance(row, Mapping) and isinstance(row.get("split"), str) for row in rows):
        return [row["split"] for row in rows]
    keys = [hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest() for row in rows]
    order, tenth = sorted(keys), max(1, len(rows) // 10)
    dev, test = set(order[:tenth]), set(order[tenth : 2 * tenth])
    return ["dev" if key in dev else "test" if key in test else "train" for key in keys]


def _lines(file: Path) -> Rows:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            try:
                rows.append((json.loads(line), f"{file}:{number}"))
            except json.JSONDecodeError as e:
                raise UsageError(f"code: {file}:{number} is no JSON; expected lines of {FORMATS}") from e
    if not rows:
        raise UsageError(f"code: {file} holds no lines")
    return rows


@lru_cache(maxsize=4)
def _of_hub(data: str, split: str) -> Rows:
    repository, _, configuration = data.partition(":")
    try:
        from datasets import get_dataset_split_names, load_dataset
    except ImportError as e:
        raise UsageError(
            f"code: {data!r} is no file; the hub needs `datasets`: pip install quintain-env-code[hub]"
        ) from e
    reason = unreachable()
    try:
        with offline() if reason else quiet():
            names = get_dataset_split_names(repository, configuration or None)
            name = next((n for n in HUB_SPLITS[split] if n in names), "")
            rows = load_dataset(repository, configuration or None, split=name) if name else []
    except (OSError, ValueError) as e:  # a ConnectionError among them; in the cache there is no such configuration
        why = reason or re.split(r"\n", str(e).strip())[0]
        raise UsageError(
            f"code: {data!r} is no file, and the hub does not give it ({why}). Fix: name a file of JSON lines, or a "
            "folder with train.jsonl and test.jsonl: --data FILE"
        ) from e
    return [(row, f"{repository} {name}[{i}]") for i, row in enumerate(rows)]
