"""Seconds until reinforcement learning starts in twelve small environments, and its gain: general
starter or none.

The two sides run at the same time, one process and one thread each, so that other work slows both
alike: `quintain train --env studies/benchmarks/starter_tasks.py:Small` with the settings of the
quickstart, once with the general starter, once with `model.start.args.general=false`. Accuracy is
that of sampled replies at temperature 0.7, the one of training. A side whose warm start is not over
after ``--limit`` seconds is ended, and its last check is reported. ``--untrained`` evaluates the
general starter as it is instead: a model with random weights gets nothing right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .common import RESULTS, ROOT, child_environment

TEMPERATURE = 0.7


def main() -> None:
    """Measure the environments that are named, and write ``results/starter.json``."""
    from .starter_tasks import OTHERS, OWN

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", default=[*OWN, *OTHERS], help="environments (default: all)"
    )
    parser.add_argument("--limit", type=float, default=600, help="seconds of a warm start at most")
    parser.add_argument(
        "--minutes", type=float, default=5, help="minutes of a run, its warm start included"
    )
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks")
    parser.add_argument(
        "--untrained", action="store_true", help="evaluate the general starter alone"
    )
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if args.untrained:
        rows = asyncio.run(untrained(args.kinds, args.tasks))
        save("starter_untrained.json", rows)
        return
    for kind in args.kinds:
        rows.append({"kind": kind, **measured(kind, args.limit, args.minutes, args.tasks)})
        print(line(rows[-1]), flush=True)
        save("starter.json", rows)


def save(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write *rows* and how they were measured to ``results/``."""
    conditions = {
        "command": " ".join(sys.argv[1:]),
        "load": os.getloadavg(),
        "date": time.strftime("%Y-%m-%d"),
    }
    (RESULTS / name).write_text(
        json.dumps({**conditions, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )


async def untrained(kinds: Sequence[str], tasks: int) -> list[dict[str, Any]]:
    """Sampled and greedy accuracy of the general starter on the test split of each kind."""
    from quintain import Sampling
    from quintain.evaluation import evaluate
    from quintain.models import load_model
    from quintain.run import embedded_engine
    from quintain_starter.source import GENERAL

    from .starter_tasks import Small

    rows = []
    async with embedded_engine(load_model(GENERAL, device="cpu"), slots=64) as engine:
        for kind in kinds:
            row: dict[str, Any] = {"kind": kind}
            for name, temperature in (("sampled", TEMPERATURE), ("greedy", 0.0)):
                sampling = Sampling(temperature=temperature, max_tokens=48)
                evaluation = await evaluate(
                    Small(kind=kind), engine, split="test", tasks=tasks, sampling=sampling
                )
                row[name] = evaluation.accuracy.value if evaluation.accuracy else None
            print(row, flush=True)
            rows.append(row)
    return rows


def measured(kind: str, limit: float, minutes: float, tasks: int) -> dict[str, Any]:
    """Both sides of one environment, started together."""
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            name: Side(Path(folder) / name, kind, general, minutes, tasks)
            for name, general in SIDES.items()
        }
        running = [*sides.values()]
        while running:
            running = [side for side in running if side.running(limit)]
            time.sleep(0.2)
        return {name: side.result() for name, side in sides.items()}


SIDES = {"general": True, "none": False}


class Side:
    """One training run in a process of its own."""

    def __init__(self, place: Path, kind: str, general: bool, minutes: float, tasks: int) -> None:
        place.mkdir()
        self.place, self.began = place, time.monotonic()
        settings = {
            "model.start.args.general": str(general).lower(),
            "sampling.temperature": str(TEMPERATURE),
            "stop": f"{{minutes={minutes}}}",
            "run.steps": "100000",
            "evaluation": (
                f"{{every=1000000, tasks={tasks}, temperature={TEMPERATURE}, "
                f"test={{tasks={tasks}}}}}"
            ),
        }
        words = [
            "train",
            "--env",
            f"{ROOT / 'studies' / 'benchmarks' / 'starter_tasks.py'}:Small",
            "--arg",
            f"kind={kind}",
        ]
        words += [word for pair in settings.items() for word in ("--set", "=".join(pair))]
        words += ["--name", "run", "--folder", str(place / "runs")]
        self.log = (place / "log").open("w")
        self.child = subprocess.Popen(
            [sys.executable, "-m", "quintain", *words],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            cwd=place,
            env={**child_environment(1, ROOT), "QUINTAIN_CACHE": str(place / "cache")},
        )

    def running(self, limit: float) -> bool:
        """Return whether it still runs; a warm start that takes longer than *limit* seconds is
        ended.
        """
        if self.child.poll() is not None:
            return False
        started = any(self.place.glob("cache/models/*/quintain.json"))
        if not started and time.monotonic() - self.began > limit:
            self.child.terminate()
            self.child.wait()
            return False
        return True

    def result(self) -> dict[str, Any]:
        """Return what it logged and saved, after its end."""
        self.log.close()
        text = (self.place / "log").read_text(encoding="utf-8")
        checks = re.findall(r"warm start: (\d+) updates.*?dev (?:about )?([\d.]+)%", text)
        row: dict[str, Any] = {"checks": [[int(step), float(dev)] for step, dev in checks]}
        for report in self.place.glob("cache/models/*/quintain.json"):
            row["warm_start_seconds"] = json.loads(report.read_text(encoding="utf-8"))[
                "warm_start"
            ]["seconds"]
        summary = self.place / "runs" / "run" / "summary.json"
        if summary.exists():
            held_out = json.loads(summary.read_text(encoding="utf-8"))["held_out"]
            row |= {when: held_out[when]["accuracy"] for when in ("before", "after")}
        elif "warm_start_seconds" in row:
            raise RuntimeError(text[-2000:])
        return row


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    cells = [row["kind"]]
    for name in SIDES:
        side = row[name]
        if "before" in side:
            cells.append(
                f"{side['warm_start_seconds']:.0f} s, {side['before']:.0%} -> {side['after']:.0%}"
            )
        else:
            last = side["checks"][-1] if side["checks"] else [0, 0.0]
            best = max((dev for _, dev in side["checks"]), default=0.0)
            cells.append(
                f"not in time: dev {last[1]:.0f}% greedily after {last[0]} updates, {best:.0f}% at "
                f"most"
            )
    return " | ".join(cells)


if __name__ == "__main__":
    main()
