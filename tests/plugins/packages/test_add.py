"""Plugins that are added to a virtual environment, and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Commands
from .made_wheels import orchard, record


def test_added_and_removed(commands: Commands, tmp_path: Path) -> None:
    """What was added is listed and plays; what was removed is gone."""
    wheel = orchard(tmp_path / "wheels")
    (tmp_path / "registry.toml").write_text(record(wheel))

    done = commands("add", "fruit", "--registry", "registry.toml", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    print(done.stdout)
    assert "installed quintain-orchard 1.0" in done.stdout
    listed = commands("list", "environments", "--json")
    assert '"quintain-orchard"' in listed.stdout

    gone = commands("remove", "quintain-orchard", "--yes", "--json")
    assert json.loads(gone.stdout) == {"removed": ["quintain-orchard"], "environment": ""}
    assert '"quintain-orchard"' not in commands("list", "environments", "--json").stdout
