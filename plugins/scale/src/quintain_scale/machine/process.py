"""A process that ends with the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

LAST_LINES = 20
"""Lines of output that are kept as the last words of a process."""


def run_tied(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    *,
    said: Callable[[str], None],
    began: Callable[[subprocess.Popen[str]], None] = lambda _: None,
) -> tuple[int, str]:
    """Run Python with *words*; return its exit code and last words.

    It is killed when the thread that calls this ends.

    Args:
        environment: variables beside those of this process.
        folder: where it runs, if this machine has it.
        said: gets each line of its output.
        began: gets the process as soon as it runs.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "quintain_scale.machine.tied", str(os.getpid()), *words],
        env=os.environ | dict(environment),
        cwd=folder if os.path.isdir(folder) else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    began(process)
    last: deque[str] = deque(maxlen=LAST_LINES)
    assert process.stdout is not None
    for line in process.stdout:
        said(line)
        last.append(line)
    status = process.wait()
    process.stdout.close()
    return status, "".join(last).strip()
