"""The kit for one GPU: runs its parts in turns, each in a process of its own that ends within a
limit.

    sh studies/benchmarks/gpu/run.sh                 a quarter of an hour on CUDA
    sh studies/benchmarks/gpu/run.sh --full          all parts
    sh studies/benchmarks/gpu/run.sh --parts 1,2     some, each up to its whole limit
    sh studies/benchmarks/gpu/run.sh --rehearse      tiny sizes on the CPU: does everything run?

Each part writes one JSON file as it goes; a part that is cut leaves what it had. ``report.md`` has
the tables of all files in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..common import RESULTS, ROOT
from .report import report

GRACE = 15.0
"""Seconds after its limit when a part is killed."""

PATIENCE = 4
"""How much longer a part may take in a rehearsal, on whatever else the machine does."""


@dataclass(frozen=True)
class Limits:
    """A part: the name of its module and files, its limit in seconds, and that in the first quarter
    of an hour; 0 leaves it out there.
    """

    module: str
    seconds: float
    first: float = 0.0


PARTS: dict[int, Limits] = {
    1: Limits("correctness", 280, 120),
    8: Limits("overlap", 240, 130),
    3: Limits("decoding", 280, 110),
    2: Limits("training", 280, 100),
    4: Limits("loop", 280, 170),
    6: Limits("lora", 240, 130),
    5: Limits("memory", 250),
    7: Limits("ranks", 210),
}
"""By number, the most valuable first. The first six take less than a quarter of an hour together, all
of them with ``--full`` some 35 minutes.
"""


def run_part(number: int, args: argparse.Namespace, seconds: float) -> str:
    """Run part *number* for up to *seconds*; return what became of it."""
    part = PARTS[number]
    file = args.out / f"{number}-{part.module}.json"
    file.unlink(missing_ok=True)  # of an earlier run
    command = [sys.executable, "-m", f"studies.benchmarks.gpu.{part.module}"]
    command += ["--device", args.device, "--out", str(args.out), "--seconds", f"{seconds:.0f}"]
    command += ["--rehearse"] if args.rehearse else []
    # a group of its own, so that what the part started ends with it
    child = subprocess.Popen(command, cwd=ROOT, process_group=0, env=environment())
    try:
        status = child.wait(seconds + GRACE)
    except subprocess.TimeoutExpired:
        kill_group(child)
        note_cut(file, seconds)
        return f"cut after {seconds:.0f} s"
    except BaseException:
        kill_group(child)
        raise
    return "done" if status == 0 else f"status {status}"


def environment() -> dict[str, str]:
    """Return the environment of a part: offline, and without lines of libraries between ours."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "KINETO_LOG_LEVEL": "5",
        "PYTHONUNBUFFERED": "1",
    }


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """End *child* and all that it started."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def note_cut(path: Path, seconds: float) -> None:
    """Write into the file of a part that was killed which step was running."""
    if not path.exists():
        return
    record = json.loads(path.read_text())
    for name, figures in record["steps"].items():
        if figures.get("running"):
            record["steps"][name] = {"cut": f"still running {GRACE:.0f} s after {seconds:.0f} s"}
    path.write_text(json.dumps(record, indent=1) + "\n")


def stop(_signal: int, _frame: FrameType | None) -> None:
    """Leave through the handlers that end the child."""
    raise SystemExit(143)


def arguments() -> argparse.Namespace:
    """Return the command line's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", help="numbers, in their order; each up to its whole limit")
    parser.add_argument("--full", action="store_true", help="all parts up to their whole limits")
    parser.add_argument("--device", help="default: cuda, with --rehearse cpu")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--minutes", type=float, default=120.0, help="limit of all parts together")
    args = parser.parse_args()
    args.device = args.device or ("cpu" if args.rehearse else "cuda")
    default = (
        RESULTS / "quick" / "gpu" if args.rehearse or args.device == "cpu" else RESULTS / "gpu"
    )
    args.out = (args.out or default).resolve()
    whole = args.full or args.rehearse or args.parts
    args.limits = {n: part.seconds if whole else part.first for n, part in PARTS.items()}
    named = args.parts.split(",") if args.parts else [n for n in PARTS if args.limits[n]]
    args.numbers = [int(text) for text in named]
    if unknown := set(args.numbers) - set(PARTS):
        parser.error(f"there is no part {unknown.pop()}; parts are 1 to {max(PARTS)}")
    return args


def main() -> int:
    args = arguments()
    ends = time.monotonic() + 60 * args.minutes
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, stop)
    results: dict[int, str] = {}
    for number in args.numbers:
        left = ends - time.monotonic() - GRACE
        if left < 30:
            results[number] = f"not begun: {max(0, left):.0f} s were left"
            continue
        print(f"== part {number}: {PARTS[number].module}", flush=True)
        limit = args.limits[number] * (PATIENCE if args.rehearse else 1)
        results[number] = run_part(number, args, min(limit, left))
    text = report(args.out)
    (args.out / "report.md").write_text(text)
    print(f"\n{text}\n")
    for number, result in results.items():
        print(f"part {number} ({PARTS[number].module}): {result}")
    print(f"results: {args.out}")
    return int(any(result != "done" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
