"""Measure how long the tests of each part take, and write which test files are long.

    python tools/durations.py                  every part; writes tests/durations.toml
    python tools/durations.py compare run      some parts; writes nothing
    python tools/durations.py --from FILES     what `tools/cpu_times.py` measured; writes, too

A part is what ``make test PART=`` takes, or the other files of a folder. Each is measured in one
process, one after the other: half of its CPU time is what two quiet cores need at best, and a few
seconds for the start of each process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PLACES = (TESTS, TESTS / "core", TESTS / "plugins", TESTS / "environments")
WRITTEN = TESTS / "durations.toml"
LISTED = 80
"""How many files are worth an early start."""
SLOW = {"tests/test_benchmarks_gpu_kit.py": 120.0}
"""Seconds of files that are long in `make test-slow` alone, which begins with the same ones; they
are not measured here.
"""

HEAD = """\
# The test files that take longest, in seconds by the clock of the machine that measured them;
# `make test` begins with them. `python tools/durations.py` writes this file.
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a test took: its file, seconds by the clock and of the CPU."""

    file: str
    seconds: float
    cpu_seconds: float


def parts() -> Iterator[tuple[str, list[Path]]]:
    """Yield each part with its folder, or with the files that lie beside folders of parts."""
    for place in PLACES:
        if files := sorted(place.glob("test_*.py")):
            yield f"{place.relative_to(ROOT)}/test_*.py", files
        for folder in sorted(place.iterdir()):
            if folder not in PLACES and any(folder.rglob("test_*.py")):
                yield folder.name.replace("_", "-"), [folder]


def measure(paths: Iterable[Path]) -> list[Measured]:
    """Run the tests of `make test` at *paths* in one process; reports of failures are printed."""
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        options = ["-q", "-n", "0", "-m", "not more and not slow and not ci"]
        options += ["-p", "cpu_times", f"--cpu-times={times}"]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *map(str, paths)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "tools")},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            print(ended.stdout, ended.stderr, file=sys.stderr)
        return read(times)


def read(times: Path) -> list[Measured]:
    """Read a file of `tools/cpu_times.py`."""
    return [
        Measured(file=test.partition("::")[0], seconds=seconds, cpu_seconds=cpu_seconds)
        for test, seconds, cpu_seconds in json.loads(times.read_text(encoding="utf-8"))
    ]


def table(tests: Sequence[Measured]) -> str:
    """Return the table of parts, those of most CPU time first."""
    rows = []
    for name, paths in parts():
        files = {
            file.relative_to(ROOT).as_posix()
            for path in paths
            for file in (path.rglob("test_*.py") if path.is_dir() else [path])
        }
        if of_part := [test for test in tests if test.file in files]:
            rows.append((name, len(of_part), sum(test.cpu_seconds for test in of_part)))
    rows.sort(key=lambda row: -row[2])
    rows.append(("all", len(tests), sum(test.cpu_seconds for test in tests)))
    lines = [f"| {name} | {count:,} | {seconds:.0f} s |" for name, count, seconds in rows]
    return "\n".join(["| part | tests | CPU time |", "|---|---|---|", *lines])


def render(tests: Iterable[Measured]) -> str:
    """Return the text of tests/durations.toml, longest first."""
    files: defaultdict[str, float] = defaultdict(float, SLOW)
    for test in tests:
        files[test.file] += test.seconds
    longest = sorted(files, key=lambda file: -files[file])[:LISTED]
    return HEAD + "".join(f'"{file}" = {files[file]:.0f}\n' for file in longest)


def main(words: list[str]) -> None:
    """Measure the parts called *words*, or all, or read the files after ``--from``; print the table
    and write the list of long files if it has all parts.
    """
    if words[:1] == ["--from"]:
        tests = [test for path in words[1:] for test in read(Path(path))]
    else:
        known = dict(parts())
        if unknown := set(words) - set(known):
            raise SystemExit(
                f"no part {', '.join(sorted(unknown))}. The parts are {', '.join(known)}"
            )
        tests = []
        for name in words or known:
            print(name, file=sys.stderr, flush=True)
            tests += measure(known[name])
    print(table(tests))
    if not words or words[0] == "--from":
        WRITTEN.write_text(render(tests), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
