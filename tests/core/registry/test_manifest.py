"""Manifests: what is wrong in one is named, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import PluginError
from quintain.registry.manifest import Entry, Manifest, package_folder, parse_manifest, read

GOOD = """
api = 1
licence = "MIT"
tags = ["math"]

[[components]]
kind = "environment"
name = "sums"
summary = "Adds."
needs = ["network"]
extra = "hub"
"""


def test_good_manifest() -> None:
    """Every key arrives."""
    entry = Entry(
        kind="environment",
        name="sums",
        summary="Adds.",
        needs=("network",),
        extra="hub",
    )

    assert Manifest(api=1, licence="MIT", tags=("math",), components=(entry,)) == parse_manifest(
        GOOD
    )


@pytest.mark.parametrize(
    "change, message",
    [
        (("api = 1", ""), "`api` is missing"),
        (("api = 1", "api = true"), "`api` is True; expected the number 1"),
        (("api = 1", "api = 2"), "`api` is 2, and this Quintain speaks 1"),
        (("licence", "licance"), "unknown key `licance`; did you mean 'licence'?"),
        (
            ('"environment"', '"enviroment"'),
            "`components[1].kind` is 'enviroment'; did you mean 'environment'?",
        ),
        (('summary = "Adds."', ""), "`components[1].summary` is missing"),
        (
            ('["network"]', '["netwrok"]'),
            "`components[1].needs` has 'netwrok'; did you mean 'network'?",
        ),
        (
            ('["network"]', '["network"]\nsection = "lok"'),
            "`components[1].section` is 'lok'; did you mean 'look'?",
        ),
        (('["math"]', '"math"'), "`tags` is 'math'; expected a list of text"),
        (('"sums"', "3"), "`components[1].name` is 3; expected text"),
        (("[[components]]", "[components]"), "expected"),
        (("api = 1", "api ="), "not TOML"),
    ],
)
def test_faults_are_named(change: tuple[str, str], message: str) -> None:
    """Each fault names the file, the key and what was expected."""
    with pytest.raises(PluginError) as e:
        parse_manifest(GOOD.replace(*change), "some/quintain.toml")

    assert "some/quintain.toml: " in str(e.value)
    if message != "expected":
        assert message in str(e.value)


def test_all_faults_at_once() -> None:
    """Two faults are two lines."""
    with pytest.raises(PluginError) as e:
        parse_manifest(GOOD.replace("api = 1", "api = 2").replace("licence", "licance"))

    assert len(str(e.value).splitlines()) == 2


def test_a_component_is_listed_once() -> None:
    """Twice the same kind and name is a fault."""
    entry = GOOD[GOOD.index("[[") :]
    with pytest.raises(PluginError, match="'sums' is listed twice"):
        parse_manifest(GOOD + entry)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever a file holds, it is a manifest or a PluginError."""
    try:
        assert isinstance(parse_manifest(text), Manifest)
    except PluginError as e:
        assert str(e)


@given(
    st.sampled_from(["api", "licence", "tags", "components"]),
    st.integers() | st.text("ab", max_size=3),
)
def test_any_value_is_read_or_refused(key: str, value: int | str) -> None:
    """A wrong type under a known key is named, never a crash."""
    text = f"{key} = {value!r}\n" + ("" if key == "api" else "api = 1\n")
    try:
        parse_manifest(text)
    except PluginError as e:
        assert key in str(e)


def test_package_folder_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that fails when imported is located, and its manifest read."""
    package = tmp_path / "fails_on_import_1"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "quintain.toml").write_text(GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert package == package_folder("fails_on_import_1.deep.inside")
    assert (read("fails_on_import_1") or Manifest(api=0)).licence == "MIT"


def test_module_that_is_gone() -> None:
    """A distribution whose module was deleted says so."""
    with pytest.raises(PluginError, match="no module named 'gone_for_good'"):
        read("gone_for_good")
