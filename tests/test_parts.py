"""`make test PART=NAME` runs the tests of a room, a plugin or an environment, the longest files
first.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from .conftest import pytest_collection_modifyitems
from .lanes import mostly_slow
from .tools import load_tool

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(path.parent.name for path in (ROOT / "core" / "quintain").glob("*/__init__.py"))
MEMBERS = {
    place: sorted(path.parent.name for path in (ROOT / place).glob("*/pyproject.toml"))
    for place in ("plugins", "environments")
}

DURATIONS = load_tool("durations")
LONG = tomllib.loads(DURATIONS.WRITTEN.read_text(encoding="utf-8"))

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(part: str) -> subprocess.CompletedProcess[str]:
    """What `make test PART=part` would run."""
    command = ["make", "--dry-run", "--directory", str(ROOT), "test", f"PART={part}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_make
@pytest.mark.parametrize(
    ("place", "names"), [("core", ROOMS), *MEMBERS.items()], ids=["rooms", *MEMBERS]
)
def test_every_room_plugin_and_environment_is_a_part(place: str, names: list[str]) -> None:
    """Each has a folder with tests under its own name, which no other part has."""
    assert len(names) > 5
    words = make(" ".join(names)).stdout.split()

    folders = [f"tests/{place}/{name.replace('-', '_')}" for name in names]
    assert [word for word in words if word.startswith("tests/")] == folders


@needs_make
def test_an_unknown_part_is_refused_with_the_list_of_parts() -> None:
    refused = make("rolouts")

    assert refused.returncode != 0
    assert 'no part "rolouts". The parts are' in refused.stderr
    for name in (*ROOMS, *MEMBERS["plugins"], *MEMBERS["environments"]):
        assert name in refused.stderr.split()


@needs_make
def test_processes_take_the_files_in_the_order_of_the_tests() -> None:
    """Otherwise pytest-xdist begins with the files of most tests, which are not the longest."""
    words = make("docs").stdout.split()

    assert "loadfile" in words and "--no-loadscope-reorder" in words


@pytest.mark.parametrize("config", [SimpleNamespace(workerinput={}), SimpleNamespace()])
def test_long_files_come_first_where_processes_share_them(config: SimpleNamespace) -> None:
    """One process keeps the order of the folders, in which a reader looks for a failure."""
    longest, *_, shorter = LONG
    files = ["tests/test_parts.py", shorter, longest]
    items = [SimpleNamespace(nodeid=f"{file}::test_{n}") for file in files for n in range(2)]

    pytest_collection_modifyitems(config, items)

    ordered = files[::-1] if hasattr(config, "workerinput") else files
    assert [item.nodeid for item in items] == [f"{f}::test_{n}" for f in ordered for n in range(2)]


def test_most_long_files_exist_and_they_are_in_order() -> None:
    """A file that was renamed or split is taken for a short one until `python tools/durations.py`
    writes the list again.
    """
    missing = [file for file in LONG if not (ROOT / file).is_file()]

    assert len(missing) <= len(LONG) / 4, "run `python tools/durations.py`"
    assert sorted(LONG.values(), reverse=True) == list(LONG.values())


def test_every_test_file_is_measured_once() -> None:
    """The parts that are measured share no file, and leave none out."""
    files = [
        file
        for _, paths in DURATIONS.parts()
        for path in paths
        for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
    ]

    assert sorted(files) == sorted((ROOT / "tests").rglob("test_*.py"))


def test_parameters_of_which_none_is_fast_are_refused() -> None:
    """A renamed parameter would otherwise move all proofs to `make test-slow`."""
    first, second = mostly_slow(["a", "b"], ["a", "c"])

    assert first == "a"
    assert [mark.name for mark in second.marks] == ["slow"]
    with pytest.raises(ValueError, match="no parameter is called c"):
        mostly_slow(["a", "b"], ["c"])
