"""Processes that run `quintain`, forked from one that has imported everything: imports take
seconds, and most of these processes are killed after one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FORK_SERVER = """
import os, sys
import matplotlib.figure, pandas, pyarrow.parquet, rich.live, tokenizers, transformers.generation
from transformers.models.qwen3 import modeling_qwen3
import quintain.engine.embedded, quintain.learning, quintain.models.load, quintain_scale.schedules
import quintain.run.build, quintain.store.rollout_table
from quintain.cli import main
from quintain.run import Hooks
Hooks.installed()
for words in sys.stdin:
    if not (pid := os.fork()):
        os.dup2(2, 1)
        os._exit(main(words.split()))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class ForkedRun:
    """A process that runs `quintain`; `finish` waits for its end and returns its status, -9 after
    SIGKILL.
    """

    pid: int
    finish: Callable[[], int]

    @property
    def runs(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()


@contextmanager
def forked_runs(place: Path, **variables: str) -> Iterator[Callable[..., ForkedRun]]:
    """A function that starts `quintain` with some words in *place*, one process at a time.

    What it prints goes to ``errors.txt`` in *place*; *variables* are added to its environment.
    """
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with (place / "errors.txt").open("a") as errors:
        server = subprocess.Popen(
            [sys.executable, "-c", FORK_SERVER],
            cwd=place,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def start(*words: str) -> ForkedRun:
            stdin.write(" ".join(words) + "\n")
            stdin.flush()
            return ForkedRun(int(stdout.readline()), lambda: int(stdout.readline()))

        with server:
            yield start
            stdin.close()


def wait_for_step(run: Path, step: int, process: ForkedRun) -> None:
    """Wait until the run in the folder *run* has completed *step*, or its process has ended."""
    deadline, metrics = time.monotonic() + 120, run / "metrics.jsonl"
    while time.monotonic() < deadline and process.runs:
        # the first line is from before training
        if metrics.exists() and metrics.read_text().count("\n") >= step + 1:
            return
        time.sleep(0.01)
