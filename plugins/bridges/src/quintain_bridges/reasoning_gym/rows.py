"""Rows of data sets: drawn once, in a process of its own, and stored.

Some data sets of reasoning-gym draw from the random numbers of the whole process, and some depend
on the order of a set, which changes with the hash seed of Python. Here each row is drawn with both
fixed, so that a row is the same in every process; and it is stored, so that a run that resumes
reads what it had.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from quintain.errors import StorageError, UsageError
from quintain.store import cache_folder

Entry = dict[str, Any]
_log = logging.getLogger("quintain.env.reasoning_gym")


def library_version() -> str:
    """Return the version of reasoning-gym.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return version("reasoning-gym")
    except PackageNotFoundError:
        raise UsageError(
            "reasoning_gym: the package is not installed: pip install 'quintain-bridges[reasoning-gym]'"
        ) from None


@cache
def stored_rows(name: str, config: str, size: int, seed: int) -> tuple[str, ...]:
    """Return the rows of a data set as `as_text` has them. They are drawn where no earlier process
    stored them, below ``$QUINTAIN_CACHE/reasoning-gym``, else ``~/.cache/quintain/reasoning-gym``.

    Args:
        name: of the data set.
        config: its settings, a JSON object.
        size: number of rows.
        seed: of the data set.

    Raises:
        UsageError: reasoning-gym is not installed, or refuses the name or the settings.
        StorageError: the rows cannot be stored.
    """
    folder = cache_folder() / "reasoning-gym" / library_version()
    key = hashlib.sha256(f"{config}/{size}/{seed}".encode()).hexdigest()[:12]
    place = folder / f"{name}-{key}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(place.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together draw them once
            if not place.exists():
                _draw_elsewhere(name, config, size, seed, place)
        return tuple(json.loads(line) for line in place.read_text(encoding="utf-8").splitlines())
    except OSError as e:
        raise StorageError(f"reasoning_gym: {e}; name another cache with QUINTAIN_CACHE") from e


def _draw_elsewhere(name: str, config: str, size: int, seed: int, place: Path) -> None:
    """Draw rows in another interpreter, whose hash seed is fixed, and store them as *place*."""
    _log.warning("reasoning_gym: drawing %d rows of %s once", size, name)
    unfinished = place.with_suffix(".part")
    command = [sys.executable, "-m", __spec__.name, name, config, str(size), str(seed)]
    done = subprocess.run(
        [*command, str(unfinished)],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UsageError(f"reasoning_gym: no rows of {name!r} with {config}: {said[-300:]}")
    unfinished.replace(place)


def drawn(name: str, config: Mapping[str, Any], size: int, seed: int) -> list[Entry]:
    """Return *size* rows of a data set. Call it in a process with a fixed hash seed."""
    import numpy
    import reasoning_gym

    random.seed(seed)
    numpy.random.seed(seed)
    data_set = reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
    rows = []
    for index in range(min(size, len(data_set))):
        random.seed(f"{seed}/{index}")
        numpy.random.seed(index)
        rows.append(data_set[index])
    return rows


def as_text(entry: Entry) -> str:
    """Return *entry* as a Python literal, which keeps tuples and keys that are numbers; as JSON
    where it has objects that are no literal.
    """
    text = repr(entry)
    try:
        if ast.literal_eval(text) == entry:
            return text
    except (ValueError, SyntaxError):
        pass
    return json.dumps(entry, default=str)


def entry_of(text: str) -> Entry:
    """Return the row that `as_text` wrote."""
    try:
        entry: Entry = ast.literal_eval(text)
    except ValueError:  # JSON with null, true or false
        entry = json.loads(text)
    return entry


def main(arguments: Sequence[str]) -> None:
    """Write the rows of a data set, a JSON text a line."""
    name, config, size, seed, place = arguments
    lines = [json.dumps(as_text(e)) for e in drawn(name, json.loads(config), int(size), int(seed))]
    Path(place).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
