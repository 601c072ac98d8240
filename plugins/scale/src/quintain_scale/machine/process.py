"""A process that ends with the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

LAST_LINES = 20
"""Lines of output that are kept as the last words of a process."""
LAST_SECONDS = 5.0
"""For which the rest of the output of a process that has ended is waited for."""


def run_tied(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    *,
    said: Callable[[str], None],
    began: Callable[[subprocess.Popen[str]], None] = lambda _: None,
) -> tuple[int, str]:
    """Run Python with *words*; return its exit code and last words, or 1 and why it could not be
    started, as without memory.

    It gets SIGTERM when the thread that calls this ends. What it started itself may live on, and is
    not waited for.

    Args:
        environment: variables beside those of this process.
        folder: where it runs, if this machine has it.
        said: gets each line of its output.
        began: gets the process as soon as it runs.
    """
    try:
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
    except OSError as error:
        return 1, str(error)
    began(process)
    last: deque[str] = deque(maxlen=LAST_LINES)
    output = process.stdout
    assert output is not None

    def read() -> None:
        with output:
            for line in output:
                said(line)
                last.append(line)

    # A process that it leaves behind may hold its output open.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    status = process.wait()
    reader.join(LAST_SECONDS)
    return status, "".join([*last]).strip()


def passed_on(line: str) -> None:
    """Write a line of a process to the output of this one."""
    sys.stdout.write(line)
    sys.stdout.flush()
