"""Rows of a data set: from the hub, and set aside for a split."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from quintain.errors import UsageError
from quintain.models import offline, quiet, unreachable

R = TypeVar("R", bound=Hashable)
Splits = Literal["own", "test"]
log = logging.getLogger("quintain.env.math")


def carved(name: str, rows: Sequence[R], n: int, question: Callable[[R], str]) -> list[R]:
    """Return the *n* distinct rows whose questions hash lowest: a fixed choice, whatever the order
    of the file. Rows with one question are told apart by all that they have.
    """
    if n >= len(rows):
        raise UsageError(
            f"{name}: {n} problems cannot be set aside of {len(rows)}; lower `dev` or give more "
            f"problems"
        )

    def place(row: R) -> tuple[str, str]:
        return hashlib.sha256(question(row).encode()).hexdigest(), repr(row)

    return sorted(set(rows), key=place)[:n]


def of_file(
    name: str,
    file: Path,
    rows: Sequence[R],
    split: str,
    splits: Splits,
    question: Callable[[R], str],
) -> list[R]:
    """Return the rows of one file that are *split*: a tenth each is ``dev`` and ``test``, or with
    *splits* all are ``test``.

    Raises:
        UsageError: there are too few rows for three splits.
    """
    if splits == "test":
        return list(rows) if split == "test" else []
    if len(rows) < 3:
        raise UsageError(
            f"{name}: {file} has {len(rows)} problems, too few for train, dev and test; give more, "
            "a folder with train.jsonl and test.jsonl, or make all of them the split test with "
            "splits=test"
        )
    tenth = max(1, len(rows) // 10)
    held_out = carved(name, rows, 2 * tenth, question)
    chosen = {"dev": set(held_out[:tenth]), "test": set(held_out[tenth:])}
    # Only a tenth is the test, since the rest may be trained on. A file with a benchmark is usually
    # meant whole, so the split is said.
    if split == "test":
        counts = f"{len(chosen['test'])} of {len(rows)} problems of {file}"
        log.warning("%s: %s are the split test; splits=test makes it all", name, counts)
    if split in chosen:
        return [r for r in rows if r in chosen[split]]
    return [r for r in rows if not any(r in c for c in chosen.values())]


def in_folder(name: str, data: str, split: str) -> Path:
    """Return the file of *split* in the folder *data*.

    Raises:
        UsageError: there is no such file or folder.
    """
    file = Path(data) / f"{split}.jsonl"
    if not Path(data).exists():
        raise UsageError(f"{name}: there is no file or folder {data!r}")
    if not file.is_file():
        raise UsageError(
            f"{name}: there is no file {file}; `data` is a folder with train.jsonl and test.jsonl, "
            f"or a file"
        )
    return file


def from_hub(
    name: str, repository: str, config: str | None, split: str, line: str
) -> Iterable[Mapping[str, Any]]:
    """Return the rows of a data set of the hub, or of its local cache when offline.

    Args:
        name: of the environment, for errors.
        line: what a line of a local copy looks like.

    Raises:
        UsageError: `datasets` is not installed, or neither the cache nor the hub has the data set.
    """
    try:
        from datasets import load_dataset
    except ImportError as e:
        raise UsageError(
            f"{name} from the hub needs `datasets`: pip install 'quintain-env-math[hub]', or set "
            f"`data`"
        ) from e
    reason = unreachable()
    try:
        with offline() if reason else quiet():
            rows: Iterable[Mapping[str, Any]] = load_dataset(repository, config, split=split)
    except (OSError, ValueError) as e:
        # a ConnectionError among them; in the cache there is no such configuration
        why = reason or str(e).strip().partition("\n")[0]
        raise UsageError(
            f"{name}: {repository} is not in the cache of `datasets`, and the hub does not give it "
            f"({why}). Fix: "
            f"name a copy on disk, a folder with train.jsonl and test.jsonl or one file of JSON "
            f"lines {line}, as "
            '`data`: --arg data=FOLDER, or in a recipe args = { data = "FOLDER" }'
        ) from e
    return rows
