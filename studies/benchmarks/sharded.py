"""Tokens per second of the learner `fsdp` on one and two ranks against torch's DDP and FSDP2 in a bare
training loop, memory of a rank, and what a run waits for: weights to the engine, and saves.

Both sides: the same random Qwen3-shaped weights, the same sequences of equal length, all tokens but
the first train, float32, AdamW, gradients clipped at norm 1, one thread for each rank. A step of the
bare loop is forward, cross-entropy, backward, clip and update. A step of ours has what a run needs,
too: the batch goes from the run to the ranks, metrics come back, and the new weights are written
into the memory of the run.

The ratio is of bare to ours in the same round, so 0.95 is an overhead of 5 %. The CPU seconds of all
processes of a side give the same ratio on a machine that does other things.

    python -m studies.benchmarks.sharded            about ten minutes on two quiet cores
    python -m studies.benchmarks.sharded --quick
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .common import Worker, alternate, arguments, shown, spread, table, write
from .shapes import folder

SIZE, SEQUENCES, LENGTH, STEPS = "4.46M", 8, 128, 2
QUICK = "0.1M", 4, 16, 1
PAIRS = {"replicated": "DDP", "sharded": "FSDP2"}
"""Our sharding, and what it is compared with."""
RUN_STEPS = 6


def side(kind: str, ranks: int, args: Any) -> list[str]:
    """Return the command of a side."""
    size, sequences, length, steps = QUICK if args.quick else (SIZE, SEQUENCES, LENGTH, STEPS)
    words = ["--kind", kind, "--ranks", str(ranks), "--sequences", str(sequences)]
    words += ["--length", str(length), "--steps", str(steps)]
    return [sys.executable, "-m", "studies.benchmarks.sharded_side", str(folder(size)), *words]


def compared(sharding: str, ranks: int, args: Any) -> dict[str, Any]:
    """Both sides in turns: tokens per second, ratios of seconds and of CPU seconds, memory."""
    bare = PAIRS[sharding]
    with (
        Worker(bare, side(bare, ranks, args), 1) as theirs,
        Worker("Quintain", side(sharding, ranks, args), 1) as ours,
    ):
        rounds = args.rounds or (2 if args.quick else 15)
        paired = alternate(ours, theirs, rounds=rounds, warmup=1 if args.quick else 2)
    for one, other in zip(paired.ours, paired.theirs, strict=True):
        if abs(one["loss"] - other["loss"]) > 1e-3:
            raise RuntimeError(f"unequal work: losses {one['loss']} and {other['loss']}")
    return {
        "tokens_per_second": spread(o["tokens"] / o["seconds"] for o in paired.ours),
        "their_tokens_per_second": spread(t["tokens"] / t["seconds"] for t in paired.theirs),
        **paired.summary(),
        "cpu_seconds": paired.summary("cpu"),
        "megabytes": spread(m for o in paired.ours for m in o["megabytes"]),
        "their_megabytes": spread(m for t in paired.theirs for m in t["megabytes"]),
    }


def waited(settings: list[str], args: Any) -> dict[str, float]:
    """Return seconds that a step of a run waits for weights and for a save, and those of its update."""
    size = QUICK[0] if args.quick else SIZE
    changes = [*settings, "evaluation.every=0", "evaluation.test.tasks=0", "checkpoint.every=1"]
    changes += ["checkpoint.keep=1", "batch.prompts=4", "batch.group_size=4"]
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            "-m",
            "quintain",
            "train",
            "arithmetic",
            "--quiet",
            "--name",
            "run",
        ]
        command += ["--model", str(folder(size)), "--steps", str(RUN_STEPS), "--folder", place]
        command += [word for change in changes for word in ("--set", change)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "QUINTAIN_PLUGINS": ""}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        text = Path(place, "run", "summary.json").read_text(encoding="utf-8")
    seconds = json.loads(text)["seconds"]
    return {name: seconds[name] / RUN_STEPS for name in ("sync", "checkpoint", "update")}


def main() -> None:
    args = arguments(__doc__).parse_args()
    figures: dict[str, Any] = {}
    for ranks in (1, 2):
        for sharding, bare in PAIRS.items():
            name = f"{sharding}, {ranks} rank{'s' * (ranks > 1)}"
            figures[name] = {"bare": bare, **compared(sharding, ranks, args)}
            print(f"{name}: {shown(figures[name]['cpu_seconds']['ratio'])}", flush=True)
    rows = [
        [
            name,
            shown(f["tokens_per_second"]),
            f"{f['bare']} {shown(f['their_tokens_per_second'])}",
            shown(f["ratio"]),
            shown(f["cpu_seconds"]["ratio"]),
            f"{f['megabytes']['median']:.0f}",
            f"{f['their_megabytes']['median']:.0f}",
        ]
        for name, f in figures.items()
    ]
    head = ["ranks", "tokens/s", "bare loop", "bare / ours", "of CPU seconds", "MB", "MB, bare"]
    print("\n" + table(head, rows) + "\n")
    fsdp = ["learner.use=fsdp", "learner.args.ranks=2"]
    waits = {
        "default learner": waited([], args),
        "2 ranks, replicated": waited([*fsdp, "learner.args.sharding=replicated"], args),
        "2 ranks, sharded": waited(fsdp, args),
    }
    names = ("update", "sync", "checkpoint")
    head = ["seconds of a step", "update", "weights to the engine", "save that training waits for"]
    print(table(head, [[way, *(f"{w[n]:.3f}" for n in names)] for way, w in waits.items()]))
    about = {"device": args.device, "size": QUICK[0] if args.quick else SIZE}
    write("sharded", {"compared": figures, "waits": waits}, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
