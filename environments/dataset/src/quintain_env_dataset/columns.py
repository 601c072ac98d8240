"""Which column of a data set is the prompt, the answer, the split and the system message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quintain.errors import UsageError, did_you_mean

USUAL: Mapping[str, Sequence[str]] = {
    "prompt": ("prompt", "question", "problem", "query", "instruction", "input", "messages"),
    "answer": (
        "answer",
        "target",
        "label",
        "output",
        "response",
        "completion",
        "solution",
        "ground_truth",
    ),
    "split": ("split",),
    "system": ("system", "system_prompt"),
    "image": (),  # only where it is named
}
"""Names of columns by role; the first that a data set has is taken."""


@dataclass(frozen=True, kw_only=True)
class RoleColumns:
    """The column of each role; empty where the data set has none."""

    prompt: str
    answer: str = ""
    split: str = ""
    system: str = ""
    image: str = ""

    def __str__(self) -> str:
        roles = ((role, getattr(self, role)) for role in USUAL)
        return ", ".join(f"{role} = {name!r}" for role, name in roles if name)


def chosen(where: str, names: Iterable[str], wanted: Mapping[str, str]) -> RoleColumns:
    """Return the columns among *names*: those *wanted* by role, for the other roles the usual name.

    Raises:
        UsageError: there is no such column, or none has a usual name for prompts.
    """
    columns = [*names]
    known = {name.casefold().strip(): name for name in reversed(columns)}
    column_of_role: dict[str, str] = {}
    for role, usual in USUAL.items():
        if column := wanted.get(role, ""):
            if column not in columns:
                hint = did_you_mean(column, columns) or f"; it has {', '.join(columns)}"
                raise UsageError(f"dataset: {where} has no column {column!r}{hint}")
            column_of_role[role] = column
        else:
            taken = set(wanted.values()) | set(column_of_role.values())
            column_of_role[role] = next(
                (known[n] for n in usual if n in known and known[n] not in taken), ""
            )
    if not column_of_role["prompt"]:
        raise UsageError(
            f"dataset: {where} has the columns {', '.join(columns)}, and none has a usual name for "
            f"prompts ({', '.join(USUAL['prompt'])}); name it with --arg prompt=COLUMN"
        )
    return RoleColumns(**column_of_role)
