"""Rows of IFEval and IFBench: prompts with the ids and arguments of their instructions, from a file
of JSON lines.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import UsageError

from .checks import CHECKS, Constraint
from .ifeval import detected
from .verdicts import arguments_of

Splits = Literal["own", "test"]
SHARE = 10
"""One row in so many is ``dev``, and one is ``test``."""
_log = logging.getLogger("quintain.env.instructions")
_OF_LANGUAGES = frozenset(
    ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
)


def read_rows(path: str, unknown: Literal["refuse", "drop"]) -> list[tuple[str, list[Constraint]]]:
    """Return the prompts of the file *path*, each with its constraints.

    Args:
        unknown: ``"drop"`` leaves rows out whose instruction no check decides, and says how many.

    Raises:
        UsageError: the file or a row cannot be read, or a check needs what is not installed; the
            message has the lines.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise UsageError(f"instructions: there is no file {path!r}; expected JSON lines")
    found: list[tuple[str, list[Constraint]]] = []
    dropped: Counter[str] = Counter()
    with DataFaults(file, "instructions") as faults:
        for where, line in text_lines(file, faults):
            with faults.row(where):
                row = json_object(line)
                strange = _ids(row) - CHECKS.keys() if unknown == "drop" else set()
                dropped.update(strange)
                if not strange:
                    found.append(_row(row))
    if dropped:
        ids = ", ".join(f"{name} ({count})" for name, count in sorted(dropped.items()))
        _log.warning("instructions: rows of %s without a check are left out: %s", file, ids)
    if not found:
        raise UsageError(f"instructions: {file} has no row that can be read")
    if any(each.id in _OF_LANGUAGES for _, constraints in found for each in constraints):
        detected("One sentence in English.")  # names the extra before a run, not in its middle
    return found


def _ids(row: Mapping[str, Any]) -> set[str]:
    names = row.get("instruction_id_list")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise UsageError("the row has no list `instruction_id_list` of texts")
    return set(names)


def _row(row: Mapping[str, Any]) -> tuple[str, list[Constraint]]:
    _ids(row)
    names = row["instruction_id_list"]
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise UsageError("the row has no text `prompt`")
    given = row.get("kwargs")
    if not isinstance(given, list) or len(given) != len(names):
        raise UsageError(f"`kwargs` is no list of {len(names)}, one for each instruction")
    constraints = []
    for name, arguments in zip(names, given, strict=True):
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(values, dict):
            raise UsageError(f"the arguments of {name!r} are no object: {str(arguments)[:60]}")
        constraints.append(Constraint(id=name, arguments=arguments_of(name, values)))
    return prompt, constraints


def split_of(prompt: str) -> str:
    """Return the split of *prompt*, in every process and for every seed."""
    slot = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % SHARE
    return {0: "dev", 1: "test"}.get(slot, "train")
