"""`quintain tasks lines`: tasks of an environment as JSON lines, each with the command that scores
a reply.

The scorer is the grader of exported folders: the environment's own reward, with the packages that
it needs of Quintain beside it. Any program that reads lines and starts a process can use them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .export import GRADER, Exported

SCORER = Path(__file__).with_name("score_main.py")


def export_lines(
    name: str,
    out: Path,
    *,
    args: Mapping[str, Any],
    split: str,
    tasks: int | None,
) -> dict[str, Any]:
    """Write tasks of environment *name* to ``tasks.jsonl`` in *out*, with their scorer.

    A line has ``id``, ``split``, ``prompt`` (messages), ``answer`` (the reply of the oracle),
    ``score`` (the command, to be run in *out* with the reply as its input), and ``environment``,
    which the scorer reads.

    Args:
        args: of the environment.
        tasks: at most so many; ``None`` for all of the split.

    Returns:
        ``tasks``, ``packages`` in the archive, and ``requirements`` of the scorer, which
        ``requirements.txt`` lists.

    Raises:
        UsageError: the environment has several turns, tools or services, or an answer does not
            get its reward here.
    """
    exported = Exported.of(name, args, split, tasks)
    rows = []
    for task, answer in zip(exported.tasks, exported.oracles, strict=True):
        row = {
            "id": str(task.id),
            "split": split,
            "prompt": [
                {"role": message.role, "content": message.content}
                for message in exported.messages(task)
            ],
            "answer": answer,
            "score": ["python3", "score.py", str(task.id)],
            "environment": exported.told(task),
        }
        rows.append(json.dumps(row, ensure_ascii=False) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        archive, packages, requirements = exported.packaged(Path(folder))
        (out / "packages.zip").write_bytes(archive.read_bytes())
    (out / "tasks.jsonl").write_text("".join(rows), encoding="utf-8")
    (out / "grade.py").write_text(GRADER.read_text(encoding="utf-8"), encoding="utf-8")
    (out / "score.py").write_text(SCORER.read_text(encoding="utf-8"), encoding="utf-8")
    lines = "".join(f"{requirement}\n" for requirement in requirements)
    (out / "requirements.txt").write_text(lines, encoding="utf-8")
    for file, content in exported.files.items():
        (out / file).write_bytes(content)
    return {
        "tasks": len(exported.tasks),
        "packages": packages,
        "requirements": list(requirements),
    }
