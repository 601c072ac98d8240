"""Registries, and wheels that are not what a registry says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.errors import UnknownNameError, UsageError
from quintain.registry.discovery import GROUPS
from quintain_authoring.packages.records import (
    PluginRecord,
    find_record,
    read_registry,
    record_lines,
)
from quintain_authoring.packages.wheel_file import WheelFile, faults

from .made_wheels import MANIFEST, POINTS, orchard

RECORD = PluginRecord(
    name="quintain-orchard", api=1, licence="MIT", provides=("environment:fruit",)
)
ROW = '[[plugin]]\nname = "quintain-orchard"\napi = 1\n'


def test_ours_lists_this_repository(tmp_path: Path) -> None:
    """A record is read as it was written."""
    records = read_registry()
    assert {record.check for record in records} == {"tests"}
    written = tmp_path / "registry.toml"
    written.write_text("\n".join(line for record in records for line in record_lines(record)))
    assert read_registry(written) == records


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plugin = 1", "valid list"),
        ("[[plugin]]\nname =", "not TOML"),
        ('[[plugin]]\nname = "x"', "0.api: Field required"),
        (f"{ROW}hashs = []", "0.hashs: Unexpected"),
        (f'{ROW}hashes = ["md5:1"]', "0.hashes.0: String should match pattern"),
        (f'{ROW}check = "tested"', "0.check: Input should be 'tests'"),
    ],
)
def test_a_faulty_registry_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    """The message names the record and the key."""
    (tmp_path / "registry.toml").write_text(text)
    with pytest.raises(UsageError, match=expected):
        read_registry(tmp_path / "registry.toml")


def test_names_are_found_or_suggested() -> None:
    """A distribution, in any spelling, or the only one that has a component of the name."""
    other = replace(RECORD, name="quintain-basket", provides=("reward:fruit", "reward:plum"))
    assert find_record([RECORD, other], "Quintain.Orchard") is RECORD
    assert find_record([RECORD, other], "plum") is other
    with pytest.raises(UsageError, match="quintain-orchard, quintain-basket; name one"):
        find_record([RECORD, other], "fruit")
    with pytest.raises(UnknownNameError, match="did you mean 'quintain-orchard'"):
        find_record([RECORD], "quintain-orchid")


def test_the_requirement_has_the_pins() -> None:
    """It is a line for a file that pip reads."""
    digest = "sha256:" + "a" * 64
    pinned = replace(RECORD, version="1.0", hashes=(digest,))
    assert pinned.requirement() == f"quintain-orchard==1.0 --hash={digest}"
    at = replace(pinned, url="https://example.org/o.whl", hashes=())
    assert at.requirement() == "quintain-orchard @ https://example.org/o.whl"


def test_a_sound_wheel_has_no_faults(tmp_path: Path) -> None:
    """It says the same of itself, and only what is named runs."""
    wheel = WheelFile(orchard(tmp_path))
    assert faults(wheel, RECORD) == []
    assert faults(wheel, wheel.own_record()) == []
    assert wheel.runs_unasked() == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"version": "2.0"}, "its version is '1.0', and the registry says '2.0'"),
        ({"licence": "GPL-3.0"}, "its licence is 'MIT'"),
        ({"provides": ()}, "its manifest and the registry differ in environment fruit"),
        ({"hashes": ("sha256:" + "0" * 64,)}, "and the registry names ['sha256:000"),
    ],
)
def test_a_wheel_is_what_the_registry_says(
    changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    """Each difference is a fault of its own."""
    (fault,) = faults(WheelFile(orchard(tmp_path)), replace(RECORD, **changes))  # type: ignore[arg-type]
    assert expected in fault


@pytest.mark.parametrize(
    ("points", "manifest", "expected"),
    [
        (f"{POINTS}[quintain.plugins]\nspy = q\n", MANIFEST, "differ in hooks spy"),
        (POINTS, f'{MANIFEST}needs = ["network"]\n', "it needs network, which"),
        (POINTS, MANIFEST.replace("api = 1", "api = 2"), "`api` is 2"),
    ],
)
def test_a_wheel_hides_nothing(points: str, manifest: str, expected: str, tmp_path: Path) -> None:
    """A component without a row in the manifest, a need, another contract."""
    (fault,) = faults(WheelFile(orchard(tmp_path, points=points, manifest=manifest)), RECORD)
    assert expected in fault


def test_what_runs_unasked_is_said(tmp_path: Path) -> None:
    """Plugins of pytest, and files that every start of Python reads."""
    more = {"spy.pth": "import os", "sitecustomize.py": ""}
    wheel = WheelFile(orchard(tmp_path, points=f"{POINTS}[pytest11]\np = q\n", more=more))
    assert wheel.runs_unasked() == [
        "spy.pth at every start of Python",
        "sitecustomize.py at every start of Python",
        "p in every run of pytest",
    ]


def test_hooks_of_a_wheel_are_said(tmp_path: Path) -> None:
    """They run because they are installed."""
    wheel = WheelFile(orchard(tmp_path, points=f"{POINTS}[{GROUPS['hooks']}]\nspy = q\n"))
    assert wheel.runs_unasked() == ["hooks spy in every run"]


def test_find_shows_what_has_all_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Of one kind, if one is asked for; what nothing has is status 1."""
    assert main(["packages", "find", "games", "--kind", "environment"]) == 0
    assert "quintain-env-games (installed: " in capsys.readouterr().out
    assert main(["packages", "find", "games", "--kind", "engine"]) == 1
    assert "nothing in the registry has 'games'" in capsys.readouterr().err
    assert main(["packages", "find", "games", "--kind", "engin"]) == 2


def test_a_wheel_is_shown_as_a_record_that_verifies_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `show` prints of a wheel is a registry in which `verify` finds it, and no other file."""
    wheel = orchard(tmp_path)
    registry = tmp_path / "registry.toml"
    assert main(["packages", "show", str(wheel)]) == 0
    registry.write_text(capsys.readouterr().out)

    assert main(["packages", "verify", str(wheel), "--registry", str(registry)]) == 0
    assert "its hash is the registry's" in capsys.readouterr().out
    orchard(tmp_path, more={"quintain_orchard/new.py": ""})
    assert main(["packages", "verify", str(wheel), "--registry", str(registry)]) == 1
    assert "its hash is sha256:" in capsys.readouterr().err


def test_show_says_what_a_person_decides_by(capsys: pytest.CaptureFixture[str]) -> None:
    """A component names its distribution."""
    assert main(["packages", "show", "guess"]) == 0
    shown = capsys.readouterr().out
    assert "quintain-env-games" in shown
    assert "pip       quintain-env-games==" in shown


def test_what_is_no_wheel_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is an error in the command line."""
    (tmp_path / "x.whl").write_text("x")
    assert main(["packages", "verify", str(tmp_path / "x.whl")]) == 2
    assert "no wheel" in capsys.readouterr().err
