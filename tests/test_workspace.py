"""The workspace is written down in several places; they agree."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from quintain import __version__
from quintain.registry.known import install_line, known_plugins

from .lazy import lazily
from .tools import load_tool

ROOT = Path(__file__).resolve().parent.parent


TOOL = load_tool("registry")
MEMBERS: list[Path] = TOOL.members()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("path", TOOL.render(), ids=lambda p: p.name)
def test_lists_of_members_are_up_to_date(path: Path) -> None:
    """Each file that names the members is what `make registry` would write."""
    assert path.read_text(encoding="utf-8") == TOOL.render()[path], "run `make registry`"


def test_uv_and_pip_take_the_members_from_one_extra() -> None:
    """uv finds the folders by a glob, and installs what `pip install 'quintain[all]'` does."""
    assert PROJECT["tool"]["uv"]["workspace"]["members"] == ["environments/*", "plugins/*"]
    assert PROJECT["dependency-groups"]["members"] == ["quintain[all]"]
    assert PROJECT["project"]["optional-dependencies"]["all"][0] == "quintain[train,lora]"


def test_a_list_that_is_missing_or_there_twice_is_refused() -> None:
    """A run of lines that looks like the list, elsewhere in the file, is not rewritten silently."""
    for text in ("[a]\n", "b = 1\n\nb = 2\n"):
        with pytest.raises(ValueError, match="not one"):
            TOOL._listed(text, "b = .", ["3"], "b = {}")


def test_every_folder_is_a_member() -> None:
    """uv's globs are strict: a folder without pyproject.toml would fail the sync."""
    folders = [
        f for place in ("environments", "plugins") for f in (ROOT / place).iterdir() if f.is_dir()
    ]

    assert set(folders) == set(MEMBERS[1:])


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_manifest_and_entry_points_agree(member: Path) -> None:
    """A member's manifest lists exactly its entry points, each with a summary."""
    manifest = TOOL.manifest(member)

    assert TOOL.declared(member) == {(e.kind, e.name) for e in manifest.components}
    assert manifest.licence == TOOL.project(member)["project"]["license"]


LAZY = [
    TOOL.package(member).name
    for member in MEMBERS[1:]
    if "lazy_names(" in (TOOL.package(member) / "__init__.py").read_text(encoding="utf-8")
]
"""The packages of members that import their public names when they are used."""
FOREIGN = {"quintain_bridges.verifiers": "verifiers"}
"""What a package subclasses, and only a virtual environment of its own has."""


@pytest.mark.parametrize("name", LAZY)
def test_type_checkers_see_the_names_of_a_lazy_package(name: str) -> None:
    """Each name under TYPE_CHECKING is the object of the module that it names, and is listed."""
    if name in FOREIGN:
        pytest.importorskip(FOREIGN[name], reason=f"{name} is for interpreters that have it")
    package = importlib.import_module(name)

    assert lazily(package) == set(package.__all__)


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_members_support_the_same_pythons(member: Path) -> None:
    """3.11 and newer, everywhere."""
    assert TOOL.project(member)["project"]["requires-python"] == ">=3.11"


def test_core_knows_every_component_of_a_plugin() -> None:
    """So an error about a missing one names what to install."""
    declared = {
        key: TOOL.project(m)["project"]["name"] for m in MEMBERS[1:] for key in TOOL.declared(m)
    }

    assert known_plugins() == declared


SHARED_WORDS = {
    "chat": "the command talks to any model, the environment is replies to chats by rubrics",
    "sft": "the command and the algorithm minimise the same loss",
}
"""Words that name components of two kinds, each with the reason."""


def test_a_word_names_components_of_one_kind() -> None:
    """So that a name in an error, a page or a recipe says what it is."""
    kinds: dict[str, set[str]] = {}
    for member in MEMBERS:
        for kind, name in TOOL.declared(member):
            kinds.setdefault(name, set()).add(kind)

    assert {name for name, found in kinds.items() if len(found) > 1} == SHARED_WORDS.keys()


def test_no_line_of_core_names_a_plugin() -> None:
    """Neither a distribution nor its package; known.json, which the tool writes, has them all."""
    names = {TOOL.project(m)["project"]["name"] for m in MEMBERS[1:]}
    names |= {TOOL.package(m).name for m in MEMBERS[1:]}
    pattern = re.compile(rf"\b(?:{'|'.join(sorted(names))})\b")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "core").rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]

    assert found == []


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


def test_the_line_that_installs_a_component_names_its_extra() -> None:
    """pip quotes an extra, since a shell reads brackets."""
    assert install_line("service", "workers") == "pip install quintain-scale"
    assert install_line("engine", "vllm") == "pip install 'quintain-engines[vllm]'"
