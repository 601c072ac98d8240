"""CPU seconds until reinforcement learning starts in twelve small environments, and its gain:
general starter or none.

Each side is one process of one thread: `quintain train --env
studies/benchmarks/starter_tasks.py:Small` with the settings of the quickstart, once with the
general starter, once with `model.start.args.general=false`. Times are CPU seconds of that process,
so that other work on the machine counts little. ``--budget`` seconds after the first step began the
run is stopped as by Ctrl-C, and its last complete step is evaluated. Accuracy is that of sampled
replies at temperature 0.7, the one of training. A side whose warm start is not over after
``--limit`` seconds is ended, and its last check is reported. ``--untrained`` evaluates the general
starter as it is instead: a model with random weights gets nothing right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..records import record_lines
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
    parser.add_argument(
        "--limit", type=float, default=600, help="CPU seconds of a warm start at most"
    )
    parser.add_argument(
        "--budget", type=float, default=300, help="CPU seconds of reinforcement learning"
    )
    parser.add_argument(
        "--side", choices=SIDES, action="append", help="one side alone (default: both)"
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
        rows.append({"kind": kind})
        for name in args.side or SIDES:
            rows[-1][name] = measured(kind, SIDES[name], args)
            print(line(kind, name, rows[-1][name]), flush=True)
            save("starter.json", rows)


def save(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Write *rows* and how they were measured to ``results/``."""
    conditions = {
        "command": " ".join(sys.argv[1:]),
        "load": os.getloadavg(),
        "date": time.strftime("%Y-%m-%d"),
    }
    (RESULTS / name).write_text(record_lines({**conditions, "rows": rows}), encoding="utf-8")


async def untrained(kinds: Sequence[str], tasks: int) -> list[dict[str, Any]]:
    """Sampled and greedy accuracy of the general starter on the test split of each kind."""
    from quintain import Sampling
    from quintain.engine import EmbeddedEngine
    from quintain.evaluation import evaluate
    from quintain_starter.source import GENERAL

    from .starter_tasks import Small

    rows = []
    async with EmbeddedEngine(str(GENERAL), device="cpu", slots=64) as engine:
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


SIDES = {"general": True, "none": False}
STARTED = "step 1: rollouts"
"""What the log has as the first step begins."""


def measured(kind: str, general: bool, args: argparse.Namespace) -> dict[str, Any]:
    """Train one side of the environment *kind*, and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        environment = {**child_environment(1, ROOT), "QUINTAIN_CACHE": str(place / "cache")}
        command = [sys.executable, "-m", "quintain"]
        log = place / "log"
        with log.open("w") as file:
            child = subprocess.Popen(
                [*command, *train(kind, general, args.tasks), "--folder", str(place / "runs")],
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=place,
                env=environment,
            )
        row: dict[str, Any] = {}
        # A process that ended has no CPU time to read until it is waited for.
        while (status := child.poll()) is None:
            used = cpu_seconds(child.pid)
            if "start_seconds" not in row and STARTED in log.read_text(encoding="utf-8"):
                row["start_seconds"] = used
            begun = row.get("start_seconds")
            if used > args.limit if begun is None else used - begun > args.budget:
                child.send_signal(signal.SIGINT)  # it saves its last complete step
                status = child.wait()
                break
            time.sleep(0.2)
        text = log.read_text(encoding="utf-8")
        checks = re.findall(r"warm start: (\d+) updates.*?dev (?:about )?([\d.]+)%", text)
        row["checks"] = [[int(step), float(dev)] for step, dev in checks]
        if "start_seconds" not in row:
            if used <= args.limit:
                raise RuntimeError(f"ended with status {status} before a step: {text[-2000:]}")
            return row
        row["steps"] = len(set(re.findall(r"^\S+ \S+ step (\d+)/\d+ ", text, re.MULTILINE)))
        before = re.search(r"test, step 0: ([\d.]+)% of", text)
        if before is None or not row["steps"]:
            raise RuntimeError(text[-2000:])
        row["before"] = float(before[1]) / 100
        words = [
            "eval",
            "--like",
            str(place / "runs" / "run"),
            "--tasks",
            str(args.tasks),
            "--json",
        ]
        done = subprocess.run(
            [*command, *words], capture_output=True, text=True, check=True, env=environment
        )
        row["after"] = json.loads(done.stdout)["pass@1"]
        return row


def train(kind: str, general: bool, tasks: int) -> list[str]:
    """Return the words of `quintain train` for one side: endless, no evaluation but the first."""
    settings = {
        "model.start.args.general": str(general).lower(),
        "sampling.temperature": str(TEMPERATURE),
        "run.steps": "100000",
        "stop": "{}",
        "evaluation": (
            f"{{every=1000000, tasks={tasks}, temperature={TEMPERATURE}, "
            f"test={{tasks={tasks}, other_decoding=false}}}}"
        ),
    }
    file = ROOT / "studies" / "benchmarks" / "starter_tasks.py"
    words = ["train", "--env", f"{file}:Small", "--arg", f"kind={kind}", "--name", "run"]
    return [*words, *(word for pair in settings.items() for word in ("--set", "=".join(pair)))]


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of the process *pid* so far, all its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line(kind: str, side: str, row: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "before" in row:
        result = (
            f"starts after {row['start_seconds']:.0f} s, {row['before']:.0%} -> "
            f"{row['after']:.0%} in {row['steps']} steps"
        )
    else:
        last = row["checks"][-1] if row["checks"] else [0, 0.0]
        best = max((dev for _, dev in row["checks"]), default=0.0)
        result = (
            f"not in time: dev {last[1]:.0f}% greedily after {last[0]} updates, {best:.0f}% at most"
        )
    return f"{kind} | {side} | {result}"


if __name__ == "__main__":
    main()
