"""Measure how long the tests of each part take, and write which test files are long.

    python tools/durations.py                  every part; writes tests/durations.toml
    python tools/durations.py compare run      some parts; writes nothing

A part is what ``make test PART=`` takes, or the other files of a folder. Each is measured in one
process, one after the other: half of its CPU time is what two quiet cores need at best.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PLACES = (TESTS, TESTS / "core", TESTS / "plugins", TESTS / "environments")
WRITTEN = TESTS / "durations.toml"
LONG = 4
"""Seconds from which a file is worth an early start."""
SLOW = {"tests/test_benchmarks_gpu_kit.py": 120}
"""Seconds of files that are long in `make test-slow` alone, which begins with the same ones; they
are not measured here.
"""

HEAD = """\
# Test files that take long, in seconds; `make test` begins with them.
# `python tools/durations.py` writes this file.
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the tests of a part took: numbers of tests, seconds by the clock and of the CPU, and
    seconds of each file.
    """

    tests: int
    seconds: float
    cpu_seconds: float
    files: Counter[str]


def parts() -> Iterator[tuple[str, list[Path]]]:
    """Yield each part with its folder, or with the files that lie beside folders of parts."""
    for place in PLACES:
        if files := sorted(place.glob("test_*.py")):
            yield f"{place.relative_to(ROOT)}/test_*.py", files
        for folder in sorted(place.iterdir()):
            if folder not in PLACES and any(folder.glob("test_*.py")):
                yield folder.name.replace("_", "-"), [folder]


def measure(paths: list[Path]) -> Measured:
    """Run the tests of `make test` at *paths* in one process; reports of failures are printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-n", "0", "-m", "not slow and not ci"]
        # of the families of reports the one that names the file of each test
        options += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        before, began = os.times(), time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *map(str, paths)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds, after = time.perf_counter() - began, os.times()
        if ended.returncode:
            print(ended.stdout, ended.stderr, file=sys.stderr)
        cases = ET.parse(report).findall(".//testcase")
    files: Counter[str] = Counter()
    for case in cases:
        files[case.attrib["file"]] += float(case.attrib["time"])
    return Measured(
        tests=len(cases),
        seconds=seconds,
        cpu_seconds=after.children_user
        + after.children_system
        - before.children_user
        - before.children_system,
        files=files,
    )


def render(files: Counter[str]) -> str:
    """Return the text of tests/durations.toml, longest first."""
    lines = (
        f'"{name}" = {seconds:.0f}\n' for name, seconds in files.most_common() if seconds > LONG
    )
    return HEAD + "".join(lines)


def main(names: list[str]) -> None:
    """Measure the parts called *names*, or all, and print them with the slowest first."""
    known = dict(parts())
    if unknown := set(names) - set(known):
        raise SystemExit(f"no part {', '.join(sorted(unknown))}. The parts are {', '.join(known)}")
    measured = {}
    for name in names or known:
        measured[name] = measure(known[name])
        print(f"{name}: {measured[name].seconds:.0f} s", file=sys.stderr, flush=True)
    print("| part | tests | CPU time | one process |\n|---|---|---|---|")
    for name, part in sorted(measured.items(), key=lambda item: -item[1].seconds):
        print(f"| {name} | {part.tests} | {part.cpu_seconds:.0f} s | {part.seconds:.0f} s |")
    tests, cpu_seconds, seconds = (
        sum(getattr(part, field) for part in measured.values())
        for field in ("tests", "cpu_seconds", "seconds")
    )
    print(f"| all | {tests} | {cpu_seconds:.0f} s | {seconds:.0f} s |")
    if not names:
        files: Counter[str] = Counter()
        for part in measured.values():
            files.update(part.files)
        files.update(SLOW)
        WRITTEN.write_text(render(files), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
