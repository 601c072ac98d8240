"""`quintain doctor` shows sections of other distributions, and survives faulty ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain_authoring.devtools.host import usable_cpus
from quintain_authoring.devtools.sections import GROUP
from quintain_sandbox import AXES, Guarantee

SECTIONS = {
    "table": (
        "return {'columns': ['device', 'free'], 'rows': [['0', '1 GB'], ['1', '2 GB']], 'notes': "
        "['a note']}"
    ),
    "notes": "return {'notes': ['all is well']}",
    "raises": "raise RuntimeError('no such device')",
    "exits": "import os; os._exit(7)",
    "prints": "print('not json'); return {}",
    "hangs": "import time; time.sleep(600)",
    "ragged": "return {'columns': ['a', 'b'], 'rows': [['1']]}",
    "numbers": "return {'columns': ['a'], 'rows': [[1]]}",
    "text": "return 'hello'",
    "unknown": "return {'colums': []}",
}

MANIFEST = """
api = 1
licence = "MIT"

[[components]]
kind = "reward"
name = "waits"
summary = "Nothing."
"""
WAITS = """
import time
from pathlib import Path
from quintain import reward
Path(__file__).with_name("here").touch()
end = time.monotonic() + 60
while not Path(__file__).parents[1].joinpath("{other}", "here").exists():
    assert time.monotonic() < end, "{other} is not imported meanwhile"
    time.sleep(0.02)

@reward
def waits(reply):
    return 0.0
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which `looking-glass` brings these sections, and `shown` the
    first of them.
    """
    target = tmp_path_factory.mktemp("installed")
    for distribution, names in {"Looking_Glass": tuple(SECTIONS), "shown": ("table",)}.items():
        metadata = target / f"{distribution.lower()}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        lines = "".join(f"{name} = looking_glass:{name}\n" for name in names)
        (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    code = "".join(f"def {name}():\n    {body}\n" for name, body in SECTIONS.items())
    (target / "looking_glass.py").write_text(code)
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def doctor(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quintain", "doctor", *words]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def test_sections_are_shown_and_faulty_ones_are_rows_of_the_report(env: dict[str, str]) -> None:
    """A section that raises, ends, hangs or returns another form is an error; the others are
    shown.
    """
    done = doctor(env, "looking-glass", "--json", "--timeout", "3")
    report = json.loads(done.stdout)
    messages = {c["id"].partition("/")[2]: c["message"] for c in report["components"]}

    assert done.returncode == 1
    assert {"table", "notes", "prints"} == report["sections"].keys()
    assert report["sections"]["table"]["rows"] == [["0", "1 GB"], ["1", "2 GB"]]
    assert {"looking-glass"} == {c["id"].partition("/")[0] for c in report["components"]}
    assert SECTIONS.keys() - {"table", "notes", "prints"} == messages.keys()
    for name, expected in {
        "raises": "RuntimeError: no such device", "exits": "status 7",
        "hangs": "no answer within 3 s",
        "ragged": "one text per column", "numbers": "expected texts", "text": "expected a mapping",
        "unknown": "expected a mapping with some of ['columns', 'notes', 'rows']",
    }.items():  # fmt: skip
        assert expected in messages[name], name


@pytest.mark.more
def test_sections_for_people(env: dict[str, str]) -> None:
    """A title, a table, notes below it."""
    name, head, first, _, note = doctor(env, "shown", "--timeout", "60").stdout.splitlines()[:5]

    assert name == "table"
    assert note == "a note"
    assert head.split() == ["device", "free"]
    assert first.split(None, 1) == ["0", "1 GB"]


@pytest.mark.more
@pytest.mark.skipif(usable_cpus() == 1, reason="one interpreter at a time")
def test_distributions_are_imported_at_the_same_time(tmp_path: Path) -> None:
    """Each of two waits until the other is imported, too."""
    for name, other in (("left", "right"), ("right", "left")):
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[quintain.rewards]\nwaits = {name}:waits\n")
        (tmp_path / name).mkdir()
        (tmp_path / name / "quintain.toml").write_text(MANIFEST)
        (tmp_path / name / "__init__.py").write_text(WAITS.format(name=name, other=other))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    done = doctor({**os.environ, "PYTHONPATH": path}, "left", "right", "--json")

    assert {row["id"]: row["status"] for row in json.loads(done.stdout)["components"]} == {
        "left/waits": "ok",
        "right/waits": "ok",
    }, done.stdout


def test_the_sandboxes_are_a_section() -> None:
    """Each provider has a column with a level for each axis, and what is missing has its fix."""
    done = doctor(dict(os.environ), "quintain-sandbox", "--json")
    section: dict[str, Any] = json.loads(done.stdout)["sections"]["sandboxes"]
    axes, *columns = zip(*section["rows"], strict=True)

    assert done.returncode == 0
    assert tuple(AXES) == axes
    for name, levels in zip(section["columns"][1:], columns, strict=True):
        assert set(levels) <= {*map(str, Guarantee), "-"}
        notes = [note for note in section["notes"] if note.startswith(name)]
        assert bool(notes) == (set(levels) != {"enforced"})
        if "-" in levels:
            assert {"-"} == set(levels)
            assert notes[0].startswith(f"{name} does not start: ")
