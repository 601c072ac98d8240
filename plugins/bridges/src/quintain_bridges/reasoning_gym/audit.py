"""The audit of data sets: ``python -m quintain_bridges.reasoning_gym.audit OUT.json [NAME ...]``, and
the table of what was found: ``... audit --table``.

Data sets that OUT has already are left out, so that an audit that was ended goes on. No model
takes part.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from quintain_scale.workers import WorkerPool

from .environment import available
from .rows import Entry, entry_of, stored_rows
from .scoring import RUNS_REPLIES, scored, stored_answer
from .verdicts import AuditVerdict, verdicts

ROWS, RUNS, SECONDS = 20, 5, 20.0
CONSTANTS = ("I do not know.", "0", "1", "True", "False", "yes", "no", "A")
_DRAWN = """
import json, sys, reasoning_gym
size, *names = sys.argv[1:]
drawn = {}
for name in names:
    rows = reasoning_gym.create_dataset(name, size=int(size), seed=0)
    drawn[name] = [repr((rows[i]["question"], rows[i]["answer"])) for i in range(min(int(size), len(rows)))]
print("\\n" + json.dumps(drawn))
"""
"""Draws rows as the package does, in a process of its own."""


async def audited(
    name: str, workers: WorkerPool, *, rows: int = ROWS, changes: float = 0.0
) -> AuditVerdict:
    """Return the verdict on the data set *name*, from its first *rows* rows, of which *changes* is
    what `changed` found.
    """
    texts = stored_rows(name, "{}", rows, 0)
    entries = [entry_of(text) for text in texts]
    answers = [stored_answer(entry) for entry in entries]
    raised = False

    async def scores(replies: Sequence[str]) -> list[float]:
        nonlocal raised
        given = []
        for text, reply in zip(texts, replies, strict=True):
            value, reason = await workers.call(
                scored, name, "{}", text, reply.strip(), timeout=SECONDS
            )
            raised |= value is None or reason.startswith("the scorer raised")
            given.append(value or 0.0)
        return given

    known = [answer for answer in answers if answer is not None]
    right = [await scores(known) for _ in range(RUNS)] if len(known) == len(texts) else []
    constants = [*CONSTANTS, *(reply for reply, _ in Counter(known).most_common(1))]
    means = {reply: fmean(await scores([reply] * len(texts))) for reply in constants}
    best = max(means, key=lambda reply: means[reply])
    return AuditVerdict(
        rows=len(texts),
        oracle=round(fmean(right[0]), 3) if right else None,
        empty=round(fmean(await scores([""] * len(texts))), 3),
        constant=round(means[best], 3),
        constant_reply=best[:60],
        echo=round(fmean(await scores([str(e["question"]) for e in entries])), 3),
        other=round(fmean(await scores(_others(entries, answers))), 3) if right else 0.0,
        changed=changes,
        raises=raised,
        runs_replies=name in RUNS_REPLIES,
        repeats=all(run == right[0] for run in right),
    )


def _others(entries: Sequence[Entry], answers: Sequence[str | None]) -> list[str]:
    """Return for each row the answer of another one that differs from its own, where there is one."""
    return [
        next(
            (str(a) for a in (*answers[i + 1 :], *answers[:i]) if a != answers[i]),
            "no other answer",
        )
        for i in range(len(entries))
    ]


def changed(names: Sequence[str], rows: int = ROWS) -> dict[str, float]:
    """Return the share of rows that differ between processes with other hash seeds, by data set."""
    runs = []
    for number in range(RUNS):
        done = subprocess.run(
            [sys.executable, "-c", _DRAWN, str(rows), *names],
            env=os.environ | {"PYTHONHASHSEED": str(number + 1)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: round(
            fmean(len(set(row)) > 1 for row in zip(*(r[name] for r in runs), strict=True)), 3
        )
        for name in names
    }


async def audit(out: Path, names: Sequence[str]) -> None:
    """Add the verdicts on *names* to the file *out*, and print a line for each."""
    found = _kept(out)
    missing = [name for name in names if name not in found]
    changes = changed(missing) if missing else {}
    async with WorkerPool(size=1) as workers:
        for name in missing:
            verdict = await audited(name, workers, changes=changes[name])
            _keep(out, found | {name: asdict(verdict)})
            found = _kept(out)
            print(f"{name:24} {', '.join(verdict.faults) or 'sound'}", flush=True)


def _kept(out: Path) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return kept


def _keep(out: Path, found: Mapping[str, Any]) -> None:
    text = json.dumps(dict(sorted(found.items())), indent=1)
    out.write_text(f"{text}\n", encoding="utf-8")


def table() -> str:
    """Return what is shipped as a table of Markdown."""
    rows = [
        "| data set | stored answer | empty | best constant | question | another row's answer | "
        "rows that change | found |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, verdict in verdicts().items():
        oracle = "none" if verdict.oracle is None else f"{verdict.oracle:g}"
        shown = " ".join(verdict.constant_reply.split())[:20].replace("|", "\\|")
        constant = f"{verdict.constant:g} (`{shown}`)" if verdict.constant else "0"
        rows.append(
            f"| {name} | {oracle} | {verdict.empty:g} | {constant} | {verdict.echo:g} | "
            f"{verdict.other:g} | {verdict.changed:g} | {', '.join(verdict.faults)} |"
        )
    return "\n".join(rows) + "\n"


if __name__ == "__main__" and sys.argv[1:] == ["--table"]:
    print(table(), end="")
elif __name__ == "__main__":
    asyncio.run(audit(Path(sys.argv[1]), sys.argv[2:] or available()))
