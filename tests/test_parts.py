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
from .lanes import is_drawn, leave_more, mostly_slow
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
@pytest.mark.parametrize("part", ["offline/sft", "sft"])
def test_a_part_of_a_plugin_is_a_part(part: str) -> None:
    assert "tests/plugins/offline/sft" in make(part).stdout.split()


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

    assert "loadfile" in words
    assert "--no-loadscope-reorder" in words


def nothing(option: str) -> None:
    """No option is given."""


@pytest.mark.parametrize(
    "config",
    [SimpleNamespace(getoption=nothing, workerinput={}), SimpleNamespace(getoption=nothing)],
)
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


class Case:
    """A case of a test, as far as `leave_more` looks at it."""

    def __init__(self, name: str, kept: list[str]) -> None:
        self.name = name
        self.nodeid = f"tests/test_it.py::{name}"
        self.kept = pytest.mark.keeps(*kept).mark
        self.marks: list[str] = []

    def get_closest_marker(self, name: str) -> pytest.Mark:
        assert name == "keeps"
        return self.kept

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def test_cases_that_a_test_does_not_keep_are_more() -> None:
    cases = [Case(f"test_it[{letter}]", ["a", "c[0]"]) for letter in ("a", "b", "c[0]")]

    leave_more(cases)

    assert [case.marks for case in cases] == [[], ["more"], []]


def test_a_kept_case_that_is_none_is_refused() -> None:
    """A renamed parameter would otherwise leave nothing in `make test`."""
    cases = [Case(f"test_it[{letter}]", ["a", "d"]) for letter in ("a", "b")]

    with pytest.raises(pytest.UsageError, match="test_it has no case d. The cases are a, b"):
        leave_more(cases)


def test_a_seed_draws_the_same_tests_again_and_another_one_draws_others() -> None:
    names = [f"test_{number}" for number in range(1000)]

    drawn = [name for name in names if is_drawn(name, 0.1, "a")]
    again = [name for name in names if is_drawn(name, 0.1, "a")]
    other = [name for name in names if is_drawn(name, 0.1, "b")]

    assert again == drawn
    assert other != drawn
    assert 70 < len(drawn) < 130
    assert not any(is_drawn(name, 0.0, "a") for name in names)
    assert all(is_drawn(name, 1.0, "a") for name in names)


@needs_make
def test_a_commit_draws_of_the_long_tests() -> None:
    words = ["make", "--dry-run", "--directory", str(ROOT), "test-slow", "DRAW=0.1", "SEED=abc"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True)

    assert "--draw=0.1 --draw-seed=abc" in shown.stdout
