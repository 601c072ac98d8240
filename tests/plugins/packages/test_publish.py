"""A distribution that is built and checked, and added from what was printed about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain_packages.records import find, read_registry

from .conftest import Commands

pytestmark = pytest.mark.slow


def published(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = main(["publish", *words, "--no-isolation", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_from_a_template_to_an_installation(
    commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`new`, `publish`, `search`, `add`, `list`, `remove`: the record that is printed holds."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "reward", "brevity"]) == 0
    status, report = published(capsys, "quintain-brevity", "--out", "wheels")
    assert (status, report["ok"]) == (0, True)
    assert [Path(name).name for name in report["files"]] == [
        "quintain_brevity-0.1.0-py3-none-any.whl",
        "quintain_brevity-0.1.0.tar.gz",
    ]
    assert [c.split()[:4] for c in report["commands"]] == [
        ["python", "-m", "twine", "check"],
        ["python", "-m", "twine", "upload"],
    ]
    (tmp_path / "registry.toml").write_text(report["record"])
    record = find(read_registry("registry.toml"), "brevity")
    assert (record.check, record.provides, len(record.hashes)) == ("suite", ("reward:brevity",), 2)

    registry = ("--registry", "registry.toml")
    assert "quintain-brevity" in commands("search", "reply words", *registry).stdout
    added = commands("add", "brevity", *registry, "--yes")
    assert added.returncode == 0, added.stderr
    assert "brevity" in commands("list", "rewards").stdout
    assert commands("remove", "brevity", "--yes").returncode == 0
    assert "brevity" not in commands("list", "rewards").stdout


def test_a_failed_check_has_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reward that leaves its range."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "reward", "brevity"]) == 0
    code = next(tmp_path.glob("quintain-brevity/src/*/brevity.py"))
    code.write_text(code.read_text() + "\n\nraise RuntimeError('it is broken')\n")
    status, report = published(capsys, "quintain-brevity")
    assert (status, report["ok"], report["record"]) == (1, False, "")
    assert "it is broken" in json.dumps(report["checks"])


def test_a_wheel_that_lacks_its_manifest_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one whose manifest lists another component than its entry points."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "reward", "brevity"]) == 0
    manifest = next(tmp_path.glob("quintain-brevity/src/*/quintain.toml"))
    text = manifest.read_text()
    manifest.write_text(text.replace('name = "brevity"', 'name = "shortness"'))
    status, report = published(capsys, "quintain-brevity")
    assert status == 1 and "its manifest has reward shortness alone" in report["error"]["message"]
    manifest.unlink()
    status, report = published(capsys, "quintain-brevity")
    assert status == 1 and "every plugin has quintain.toml" in report["error"]["message"]


def test_a_folder_without_a_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", str(tmp_path)]) == 2
    assert "`quintain new` writes one" in capsys.readouterr().err
