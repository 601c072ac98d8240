"""Rows of a data set: from the hub, and set aside for a split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from quintain.errors import UsageError
from quintain.models import offline, quiet, unreachable

R = TypeVar("R", bound=Hashable)


def carved(name: str, rows: Sequence[R], n: int, question: Callable[[R], str]) -> list[R]:
    """The *n* distinct rows whose questions hash lowest: a fixed choice, whatever the order of the file."""
    if n >= len(rows):
        raise UsageError(f"{name}: {n} problems cannot be set aside of {len(rows)}; lower `dev` or give more lines")
    return sorted(set(rows), key=lambda r: hashlib.sha256(question(r).encode()).hexdigest())[:n]


def from_hub(name: str, repository: str, config: str | None, split: str, line: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a data set of the hub, or of its local cache when offline.

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
            f"{name} from the hub needs `datasets`: pip install quintain-env-math[hub], or set `path`"
        ) from e
    reason = unreachable()
    try:
        with offline() if reason else quiet():
            rows: Iterable[Mapping[str, Any]] = load_dataset(repository, config, split=split)
    except (OSError, ValueError) as e:  # a ConnectionError among them; in the cache there is no such configuration
        why = reason or str(e).strip().partition("\n")[0]
        raise UsageError(
            f"{name}: {repository} is not in the cache of `datasets`, and the hub does not give it ({why}). Fix: "
            f"name a copy on disk, a folder with train.jsonl and test.jsonl or one file of JSON lines {line}, as "
            '`path`: --arg path=FOLDER, or in a recipe args = { path = "FOLDER" }'
        ) from e
    return rows
