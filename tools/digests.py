"""Print digests of four seeded runs: what they measured, sampled and trained.

A change of the source that is meant to keep behaviour leaves every digest as it was: run this
before and after, on the same machine. Times are left out, and of the names of
tokenizers all but the hash of the vocabulary.

    python tools/digests.py [--quick] [--set KEY=VALUE] [FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMES = ("seconds", "idle", "throughput", "tokens_per_second", "grading", "seconds_per_rollout")
"""Parts of the names of metrics that the clock decides."""

RUNS = {
    "quickstart": ["quickstart", "--steps", "6"],
    "search": ["search", "--steps", "2"],
    "code": ["code", "--steps", "2"],
    # With a staleness of 0 the asynchronous collector waits for each batch, so that the run repeats
    # bit for bit.
    "asynchronous": [
        "quickstart",
        "--steps",
        "6",
        "--set",
        "schedule.use=areal",
        "--set",
        "schedule.args.max_staleness=0",
    ],
}


def measured(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the metrics without times."""
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        yield {k: v for k, v in json.loads(line).items() if not {*TIMES} & {*k.split(".")}}


def sampled(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the rollouts without times, which the episode repeats as JSON, and with the
    hash of the vocabulary alone from the name of the tokenizer.

    The name of a default model has the key of its cache, a hash of the environment's source files,
    so that a comment there would change the digest.
    """
    import pyarrow.parquet

    for path in sorted((folder / "rollouts").glob("*.parquet")):
        for row in pyarrow.parquet.read_table(path).to_pylist():
            row["rollout"] = json.loads(row["rollout"])
            del row["seconds"], row["rollout"]["seconds"]
            for transcript in row["rollout"]["transcripts"].values():
                transcript["tokenizer"] = transcript["tokenizer"].rpartition("-")[2]
            yield row


def digest(rows: Iterator[dict[str, Any]]) -> str:
    """Return a short digest of plain data."""
    sha256 = hashlib.sha256()
    for row in rows:
        sha256.update(json.dumps(row, sort_keys=True, default=str).encode())
    return sha256.hexdigest()[:16]


def weights(folder: Path) -> str:
    """Return a short digest of the weights of the last checkpoint."""
    last = max((folder / "checkpoints").glob("*/model/*.safetensors"), key=lambda path: path.parts)
    return hashlib.sha256(last.read_bytes()).hexdigest()[:16]


def main() -> None:
    """Train and print one line for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="folder of the runs (default: a temporary one)"
    )
    parser.add_argument("--quick", action="store_true", help="only the two runs of the quickstart")
    parser.add_argument(
        "--set", action="append", default=[], help="a setting of all runs, as workers.episodes=2"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        parent = options.folder or Path(temporary)
        for name, words in RUNS.items():
            if options.quick and "quickstart" not in words:
                continue
            command = [
                sys.executable,
                "-m",
                "quintain",
                "train",
                *words,
                "--name",
                name,
                "--folder",
                str(parent),
                "-q",
            ]
            command += ["--set", "evaluation.test.tasks=20", "--set", "evaluation.tasks=20"]
            command += [word for setting in options.set for word in ("--set", setting)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            run = parent / name
            print(
                f"{name:14}metrics {digest(measured(run))}  samples {digest(sampled(run))}  "
                f"weights {weights(run)}"
            )


if __name__ == "__main__":
    main()
