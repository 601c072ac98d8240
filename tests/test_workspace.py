"""The workspace is written down in several places; they agree."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from quintain import __version__
from quintain.registry.discovery import PLUGINS

from .tools import load_tool

ROOT = Path(__file__).resolve().parent.parent


TOOL = load_tool("registry")
MEMBERS: list[Path] = TOOL.members()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_requirements_name_every_member() -> None:
    """requirements-dev.txt installs the root and each folder that has a pyproject.toml."""
    lines = re.findall(r"^-e (\S+)", (ROOT / "requirements-dev.txt").read_text(), re.M)

    assert re.match(r"\.\[.*dev.*\]", lines[0])
    assert [f"./{m.relative_to(ROOT).as_posix()}" for m in MEMBERS[1:]] == lines[1:]


def test_uv_workspace_names_every_member() -> None:
    """The uv spelling knows the same members: by glob, in the dependency group and among the sources."""
    names = [TOOL.project(m)["project"]["name"] for m in MEMBERS[1:]]

    assert ["environments/*", "plugins/*"] == PROJECT["tool"]["uv"]["workspace"]["members"]
    assert sorted(names) == sorted(PROJECT["dependency-groups"]["members"])
    assert sorted(names) == sorted(PROJECT["tool"]["uv"]["sources"])


def test_every_folder_is_a_member() -> None:
    """uv's globs are strict: a folder without pyproject.toml would fail the sync."""
    folders = [f for place in ("environments", "plugins") for f in (ROOT / place).iterdir() if f.is_dir()]

    assert set(folders) == set(MEMBERS[1:])


def test_registry_is_up_to_date() -> None:
    """registry.toml is what `make registry` would write."""
    assert TOOL.render() == (ROOT / "registry.toml").read_text(), "run `make registry`"


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_manifest_and_entry_points_agree(member: Path) -> None:
    """A member's manifest lists exactly its entry points, each with a summary."""
    manifest = TOOL.manifest(member)

    assert TOOL.declared(member) == {(e.kind, e.name) for e in manifest.components}
    assert manifest.licence == TOOL.project(member)["project"]["license"]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_members_support_the_same_pythons(member: Path) -> None:
    """3.11 and newer, everywhere."""
    assert ">=3.11" == TOOL.project(member)["project"]["requires-python"]


def test_core_names_the_plugins_that_bring_commands_and_algorithms() -> None:
    """`PLUGINS` has every command and algorithm of a member, and nothing that no member declares."""
    declared = {key: TOOL.project(m)["project"]["name"] for m in MEMBERS[1:] for key in TOOL.declared(m)}

    assert PLUGINS.items() <= declared.items()
    for kind in ("command", "algorithm"):
        assert {key for key in PLUGINS if key[0] == kind} == {key for key in declared if key[0] == kind}


def test_version_is_in_two_places() -> None:
    """`quintain.__version__` is the distribution's."""
    assert PROJECT["project"]["version"] == __version__


def test_core_folder_holds_the_package_and_nothing_else() -> None:
    """What lies beside an editable package becomes importable."""
    assert {"quintain"} == {p.name for p in (ROOT / "core").iterdir()} - {"__pycache__"}


def test_base_install_is_light() -> None:
    """The base dependencies are the four the design allows."""
    names = {re.split(r"[<>=\[]", d)[0] for d in PROJECT["project"]["dependencies"]}

    assert {"click", "pluggy", "pydantic", "rich"} == names


def test_ci_script_runs() -> None:
    """`.ci/run` is executable and is a valid script."""
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
