"""A plugin of pytest that writes what each test took, by the clock and of the CPU.

    PYTHONPATH=tools python -m pytest -n 0 -p cpu_times --cpu-times=FILE

CPU time hardly depends on what else the machine does. A test has that of the processes that end
while it runs, also if another test of the file started them. `tools/durations.py` reads the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file."""
    parser.addoption("--cpu-times", type=Path, help="JSON file that gets the time of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Measure the session if a file is named."""
    if (path := config.getoption("cpu_times")) is not None:
        config.pluginmanager.register(CpuTimes(path))


class CpuTimes:
    """Collects ``[test, seconds by the clock, seconds of the CPU]`` of each test, and writes them to
    *path* at the end.
    """

    def __init__(self, path: Path) -> None:
        # Each worker of pytest-xdist writes a file of its own.
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        self.path = path.absolute().with_name(worker + path.name)
        self.tests: list[tuple[str, float, float]] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test with its fixtures."""
        began, used = time.perf_counter(), cpu_seconds()
        try:
            return (yield)
        finally:
            seconds = time.perf_counter() - began
            self.tests.append((item.nodeid, round(seconds, 3), round(cpu_seconds() - used, 3)))

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self.path.write_text(json.dumps(self.tests), encoding="utf-8")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
