"""Scores an answer by the environment that an exported task comes from. It runs in the container of
the task, as a program of its own, with the packages that lie beside it.

Exit status: 0 with a reward file, 3 without one, where the environment failed and not the answer.
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MOST = 1 << 20
"""Most characters of an answer that are read."""


def main(answer: Path, reward: Path) -> int:
    told = json.loads((HERE / "task.json").read_text(encoding="utf-8"))
    try:
        text = answer.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    score = scored(told, text)
    if score is None:
        return 3
    print(f"reward {score}")
    reward.parent.mkdir(parents=True, exist_ok=True)
    reward.write_text(f"{score!r}\n", encoding="utf-8")
    return 0


def scored(told: dict[str, Any], answer: str) -> float | None:
    """Return the reward of an answer to the task that was *told*; ``None`` where the environment
    failed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(HERE / "packages.zip") as packages,
    ):
        packages.extractall(folder)
        sys.path.insert(0, folder)
        return _rewarded(told, answer)


def _rewarded(told: dict[str, Any], answer: str) -> float | None:
    from pydantic import TypeAdapter

    from quintain import Task
    from quintain.recipe import EnvironmentSpec, EnvironmentTable
    from quintain_authoring import run_episode

    use = told["use"].replace("{here}", str(HERE))
    table = EnvironmentTable(use=use, args=told["args"])
    environment = EnvironmentSpec.of(table).make({})
    # The module of the environment is imported now, and with it those of its tasks.
    found = [
        c for c in classes(Task) if (c.__module__, c.__qualname__) == tuple(told["task_class"])
    ]
    found += [c for c in classes(Task) if c.__qualname__ == told["task_class"][1]]
    task = TypeAdapter(found[0]).validate_python(told["task"])
    # As a model's end of a text, blanks at the ends are no part of an answer.
    rollout = run_episode(environment, task, answer[:MOST].strip())
    if rollout.outcome is None or rollout.termination.kind not in (
        "finished",
        "truncated",
        "policy_fault",
        "policy_timeout",
    ):
        print(f"{rollout.termination.kind}: {rollout.termination.reason}", file=sys.stderr)
        return None
    return float(rollout.outcome.total)


def classes(kind: Any) -> list[Any]:
    """Return a class and all that derive from it."""
    return [kind, *(c for derived in kind.__subclasses__() for c in classes(derived))]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
