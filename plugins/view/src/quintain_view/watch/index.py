"""The rollouts of a run that may still grow: filtered, searched, ordered and read in pages."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.compute

from quintain import Termination
from quintain.store import RunFolder, read_table, steps_in

from ..viewer.stored import TokenText, prompt_of, result_of, view_of

__all__ = ["Query", "RolloutIndex", "RolloutRow"]

COLUMNS = (
    "step",
    "environment",
    "group",
    "sample",
    "outcome",
    "shaping",
    "advantage",
    "termination",
    "tokens",
    "seconds",
)
TEXTS = ("task", "messages")
EXCERPT = 200
"""Characters of a prompt or a reply in a list."""
OPEN_FILES = 24
"""Files whose texts stay in memory for the lists."""
ANSWERS = 8
"""Queries whose answers stay in memory."""


class RolloutRow(NamedTuple):
    """A stored rollout, without its texts: *row* of the file of *step*."""

    step: int
    row: int
    environment: str
    group: int
    sample: int
    result: str
    reward: float | None
    advantage: float | None
    termination: str
    cause: str
    tokens: int
    seconds: float


ORDERS: Mapping[str, Callable[[RolloutRow], tuple[Any, ...]]] = {
    "newest": lambda e: (-e.step,),
    "oldest": lambda e: (e.step,),
    "highest": lambda e: (e.reward is None, -(e.reward or 0.0)),
    "lowest": lambda e: (e.reward is None, e.reward or 0.0),
    "longest": lambda e: (-e.tokens,),
    "slowest": lambda e: (-e.seconds,),
}


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which rollouts a list has; empty values match all.

    Attributes:
        text: in the prompt or a message, in any case.
        low, high: of the total reward.
        order: one of `ORDERS`.
    """

    text: str = ""
    environment: str = ""
    result: str = ""
    cause: str = ""
    step: int | None = None
    low: float | None = None
    high: float | None = None
    order: str = "newest"

    def matches(self, entry: RolloutRow) -> bool:
        """Return whether all but the text matches."""
        return (
            self.environment in ("", entry.environment)
            and self.result in ("", entry.result)
            and self.cause in ("", entry.cause)
            and self.step in (None, entry.step)
            and (self.low is None or (entry.reward is not None and entry.reward >= self.low))
            and (self.high is None or (entry.reward is not None and entry.reward <= self.high))
        )


class RolloutIndex:
    """All stored rollouts of a run, for one reader at a time.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, tuple[Path, int]] = {}
        self._entries: list[RolloutRow] = []
        self._answers: OrderedDict[Query, list[RolloutRow]] = OrderedDict()
        self._excerpts: OrderedDict[int, list[tuple[str, str]]] = OrderedDict()
        self._decode: TokenText | None = None

    @property
    def entries(self) -> Sequence[RolloutRow]:
        """Every rollout, in the order of the steps."""
        return self._entries

    def refresh(self) -> None:
        """Read the files that have come since, and forget those that are gone or written anew."""
        run = RunFolder(self._folder, lock=False)
        files = {step: (path, path.stat().st_mtime_ns) for step, path in steps_in(run.rollouts)}
        if files == self._files:
            return
        kept = {step for step, file in files.items() if self._files.get(step) == file}
        self._entries = [entry for entry in self._entries if entry.step in kept]
        for step in sorted(files.keys() - kept):
            self._entries += _entries_of(step, files[step][0])
            self._excerpts.pop(step, None)
        self._entries.sort(key=lambda entry: (entry.step, entry.row))
        self._files = files
        self._answers.clear()
        self._decode = None

    def found(self, query: Query) -> list[RolloutRow]:
        """Return the rollouts that match, in the order of the query."""
        if query not in self._answers:
            entries = [entry for entry in self._entries if query.matches(entry)]
            if query.text:
                steps = {entry.step for entry in entries}
                rows = {step: self._rows_with(query.text, step) for step in steps}
                entries = [entry for entry in entries if entry.row in rows[entry.step]]
            entries.sort(key=ORDERS[query.order])
            self._answers[query] = entries
            while len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        self._answers.move_to_end(query)
        return self._answers[query]

    def page(self, query: Query, offset: int, limit: int) -> dict[str, Any]:
        """Return the number of rollouts that match, and *limit* of them from *offset* on."""
        entries = self.found(query)
        rows = []
        for entry in entries[offset : offset + limit]:
            prompt, reply = self._excerpts_of(entry.step)[entry.row]
            rows.append({**entry._asdict(), "prompt": prompt, "reply": reply})
        return {"total": len(entries), "offset": offset, "rows": rows}

    def facets(self) -> dict[str, Any]:
        """Return what there is to filter by: environments, causes and steps."""
        return {
            "environments": sorted({entry.environment for entry in self._entries}),
            "causes": dict(Counter(entry.cause for entry in self._entries if entry.cause)),
            "results": dict(Counter(entry.result for entry in self._entries)),
            "steps": sorted(self._files),
            "total": len(self._entries),
        }

    def view(self, step: int, row: int) -> dict[str, Any] | None:
        """Return one rollout with its messages and tokens, as `quintain_view.viewer.stored.view_of`, with
        its branches and the texts of its tokens; ``None`` if there is none.
        """
        if step not in self._files or row < 0:
            return None
        table = read_table(self._files[step][0])
        if row >= table.num_rows:
            return None
        (stored,) = table.slice(row, 1).to_pylist()
        decode = self._decode = self._decode or TokenText(self._folder)
        view = view_of(stored, decode)
        branches = json.loads(stored["rollout"])["transcripts"]
        view["branches"] = {
            player: [
                {"parent": b["parent"], "fork": b["fork"], "tokens": len(b["ids"])}
                for b in transcript["branches"]
            ]
            for player, transcript in branches.items()
        }
        used = {t[0] for part in (view, *view["conversations"]) for t in part["tokens"] or ()}
        return view | {"texts": {str(token): decode(token) for token in sorted(used)}}

    def _rows_with(self, text: str, step: int) -> set[int]:
        table = read_table(self._files[step][0], TEXTS)
        # the columns are JSON, in which some characters are escaped
        wanted = json.dumps(text, ensure_ascii=False)[1:-1]
        found: set[int] = set()
        for column in TEXTS:
            hits = pyarrow.compute.match_substring(table[column], wanted, ignore_case=True)
            found.update(pyarrow.compute.indices_nonzero(hits).to_pylist())
        return found

    def _excerpts_of(self, step: int) -> list[tuple[str, str]]:
        if step not in self._excerpts:
            table = read_table(self._files[step][0], ["task", "reply"])
            self._excerpts[step] = [
                (prompt_of(json.loads(task))[:EXCERPT], (reply or "")[:EXCERPT])
                for task, reply in zip(
                    table["task"].to_pylist(), table["reply"].to_pylist(), strict=True
                )
            ]
            while len(self._excerpts) > OPEN_FILES:
                self._excerpts.popitem(last=False)
        self._excerpts.move_to_end(step)
        return self._excerpts[step]


def _entries_of(step: int, path: Path) -> list[RolloutRow]:
    table = read_table(path, COLUMNS)
    columns = [table[name].to_pylist() for name in COLUMNS]
    entries = []
    for number, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(COLUMNS, values, strict=True))
        outcome = row["outcome"]
        entries.append(
            RolloutRow(
                step=step,
                row=number,
                environment=row["environment"],
                group=row["group"],
                sample=row["sample"],
                result=result_of(row),
                reward=None if outcome is None else outcome + (row["shaping"] or 0.0),
                advantage=row["advantage"],
                termination=row["termination"],
                cause=Termination(row["termination"]).cause,
                tokens=row["tokens"] or 0,
                seconds=row["seconds"] or 0.0,
            )
        )
    return entries
