"""`make test PART=NAME` runs the tests of a room, a plugin or an environment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(path.parent.name for path in (ROOT / "core" / "quintain").glob("*/__init__.py"))
MEMBERS = {
    place: sorted(path.parent.name for path in (ROOT / place).glob("*/pyproject.toml"))
    for place in ("plugins", "environments")
}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(part: str) -> subprocess.CompletedProcess[str]:
    """What `make test PART=part` would run."""
    command = ["make", "--dry-run", "--directory", str(ROOT), "test", f"PART={part}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("place", "names"), [("core", ROOMS), *MEMBERS.items()], ids=["rooms", *MEMBERS]
)
def test_every_room_plugin_and_environment_is_a_part(place: str, names: list[str]) -> None:
    """Each has a folder with tests under its own name, which no other part has."""
    assert len(names) > 5
    words = make(" ".join(names)).stdout.split()

    folders = [f"tests/{place}/{name.replace('-', '_')}" for name in names]
    assert [word for word in words if word.startswith("tests/")] == folders


def test_an_unknown_part_is_refused_with_the_list_of_parts() -> None:
    refused = make("rolouts")

    assert refused.returncode != 0
    assert 'no part "rolouts". The parts are' in refused.stderr
    for name in (*ROOMS, *MEMBERS["plugins"], *MEMBERS["environments"]):
        assert name in refused.stderr.split()
