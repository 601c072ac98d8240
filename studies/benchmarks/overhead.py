"""Seconds of a step of the loop over the sum of its parts run alone: sampling, scoring, update,
weight sync.

Both sides are processes of their own with the same random weights, prompts and lengths of replies,
and alternate. The loop is that of `quintain train` with its run folder (metrics, every rollout in
Parquet) and the installed hooks; the parts are the same engine, reward and learner on inputs that
are ready (`quintain_parts`). The difference is sessions, transcripts, rollout records,
batches, metrics, files and the event loop. Evaluation and checkpoints are off. The ratio of CPU
time leaves out waits for the disk, and other programs on the machine disturb it less.

    python -m studies.benchmarks.overhead            about eight minutes on two quiet cores
    python -m studies.benchmarks.overhead --quick
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from .common import Worker, alternate, arguments, shown, table, write
from .shapes import folder

CASES = {
    "quickstart: 1.05M, 64 x 4, 8-48 tokens": ("1.05M", 64, 4, 8, 48),
    "4.46M, 32 x 8, 32-128 tokens": ("4.46M", 32, 8, 32, 128),
}
QUICK = {"0.1M, 4 x 4, 2-16 tokens": ("0.1M", 4, 4, 2, 16)}
AIM = 1.05


def measure(
    size: str,
    groups: int,
    group_size: int,
    low: int,
    high: int,
    args: Any,
    **options: str | int,
) -> dict[str, Any]:
    """Both sides in turns; medians, the paired ratio loop / parts, and the phases of each.

    *options* are further ones of both sides: ``precision``, and ``slots`` of the engine.
    """
    shape = {
        "groups": groups,
        "group-size": group_size,
        "low": low,
        "high": high,
        "threads": args.threads,
        "device": args.device,
        **options,
    }
    words = [str(folder(size))]
    words += [part for key, value in shape.items() for part in (f"--{key}", str(value))]
    python = [sys.executable, "-m"]
    with (
        Worker(
            "parts", [*python, "studies.benchmarks.quintain_parts", *words], args.threads
        ) as parts,
        Worker("loop", [*python, "studies.benchmarks.quintain_step", *words], args.threads) as loop,
    ):
        rounds = args.rounds or (2 if args.quick else 21)
        paired = alternate(parts, loop, rounds=rounds, warmup=1 if args.quick else 3)
    for ours, theirs in zip(paired.ours, paired.theirs, strict=True):
        if abs(ours["tokens"] - theirs["tokens"]) > 0.2 * theirs["tokens"]:
            raise RuntimeError(
                f"unequal work: {ours['tokens']} and {theirs['tokens']} new tokens in a round"
            )
    phases = {
        side: {
            name: statistics.median(a["phases"].get(name, 0.0) for a in answers)
            for name in answers[0]["phases"]
        }
        for side, answers in (("parts", paired.ours), ("loop", paired.theirs))
    }
    summary = paired.summary()
    return {
        "parts": summary["ours"],
        "loop": summary["theirs"],
        "ratio": summary["ratio"],
        "cpu_ratio": paired.summary("cpu")["ratio"],
        "phases": phases,
        "aim": AIM,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, case in (QUICK if args.quick else CASES).items():
        if args.only in name:
            figures[name] = measure(*case, args)
            print(
                f"{name}: {shown(figures[name]['ratio'], 'x')} {figures[name]['phases']}",
                file=sys.stderr,
                flush=True,
            )
    rows = [
        [
            name,
            *(shown(f[key], digits=4) for key in ("parts", "loop", "ratio", "cpu_ratio")),
            f"{AIM:g}",
        ]
        for name, f in figures.items()
    ]
    print(table(["step", "parts (s)", "loop (s)", "loop / parts", "in CPU time", "aim"], rows))
    write(
        "overhead",
        figures,
        quick=args.quick,
        about={"threads": args.threads, "device": args.device},
    )


if __name__ == "__main__":
    main()
