"""Control groups for processes of tests."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """The file that takes a process, by its number, into a control group of 200 MiB, where the
    kernel ends it if it has more.
    """
    group = MEMORY / f"quintain-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(200 << 20))
    except OSError as e:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"needs a control group of memory (version 1) and root: {e}")
    yield group / "cgroup.procs"
    while True:  # until the kernel has taken out those that it ended
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.01)
