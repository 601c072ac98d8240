"""The contract with plugins: a plugin of each of its versions runs for ever after, and what is
deprecated goes when it was said to go.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain import API_VERSION, __version__
from quintain.cli import main
from quintain.errors import deprecated
from quintain.registry import KINDS, Component
from quintain.registry.lookup import isolated

from .small_run import make_small_run, small_recipe

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "frozen_2026_11"
DIGEST = "926b4e1036308e4640b3eb2a7cc56d077b42baca7b4ffdcbc3460b56904d50c2"
"""Of the files of the frozen plugin. Whoever has to change it has broken the contract: raise
`API_VERSION` and freeze another plugin beside it.
"""
COMPONENTS = {
    "environment": "frozen_sums",
    "reward": "frozen_right",
    "service": "frozen_ledger",
    "engine": "frozen_adder",
    "algorithm": "frozen_cap",
    "hooks": "frozen_watch",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the frozen plugin is installed."""
    target = tmp_path_factory.mktemp("frozen")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", target]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, FROZEN], check=True, capture_output=True
    )
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def quintain(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "quintain", *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_frozen_plugin_is_as_it_was() -> None:
    """Nobody edits it to make a test pass."""
    files = sorted(p for p in FROZEN.rglob("*") if p.suffix in (".py", ".toml"))
    digest = hashlib.sha256(b"\0".join(p.read_bytes() for p in files)).hexdigest()
    assert len(files) == 6
    assert digest == DIGEST
    manifest = FROZEN / "src" / "quintain_frozen" / "quintain.toml"
    assert tomllib.loads(manifest.read_text())["api"] <= API_VERSION


def test_the_frozen_plugin_plays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its engine plays its environment, with its tool, its service and its reward."""
    monkeypatch.syspath_prepend(FROZEN / "src")
    groups = tomllib.loads((FROZEN / "pyproject.toml").read_text())["project"]["entry-points"]
    found = [
        Component(kind=KINDS[group], name=name, target=target, distribution="quintain-frozen")
        for group, points in groups.items()
        for name, target in points.items()
    ]
    words = ["frozen_sums", "--engine", "frozen_adder", "--tasks", "4", "--json"]
    with isolated(*found, keep=["quintain-authoring"]):
        assert main(["eval", *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pass@1"] == 1.0
    assert report["failed"] == 0
    assert report["rollouts"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPONENTS)
def test_the_frozen_plugin_passes_todays_checks(kind: str, environment: dict[str, str]) -> None:
    """`quintain check` of each component, with its manifest."""
    words = ["check", f"quintain-frozen/{COMPONENTS[kind]}", "--kind", kind, "--json"]
    words += ["--env", "frozen_sums"] if kind == "reward" else []
    report = json.loads(quintain(environment, *words))
    assert [row for row in report["checks"] if row["status"] == "failed"] == []
    assert report["ok"]


@pytest.mark.slow
def test_the_frozen_plugin_trains(environment: dict[str, str], tmp_path: Path) -> None:
    """A run with its algorithm, which its hooks observe, and which resumes with its service."""
    recipe = small_recipe('use = "frozen_sums"', algorithm="frozen_cap", steps=2)
    folder = make_small_run(tmp_path, recipe, context=512)
    steps = folder / "steps.txt"
    environment = {**environment, "FROZEN_STEPS": str(steps)}
    at = ["train", str(folder / "recipe.toml"), "--set", f"run.folder={tmp_path / 'runs'}"]
    quintain(environment, *at, "--set", f"model.name={folder / 'model'}", "--name", "a", "-q")
    assert steps.read_text() == "1 True\n2 True\n"
    run = tmp_path / "runs" / "a"
    edited = (run / "recipe.toml").read_text().replace("steps = 2", "steps = 3")
    (run / "recipe.toml").write_text(edited)
    quintain(environment, "train", "--resume", str(run), "--force", "-q")
    assert steps.read_text() == "1 True\n2 True\n3 True\n"
    noted = []
    for step in (2, 3):
        state = json.loads((run / f"checkpoints/step-00000{step}/state.json").read_text())
        noted.append(sum(state["services"]["frozen_ledger"]["counts"].values()))
    assert noted == [8, 12]  # two groups of two rollouts in each step


def calls(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield the place of each call of `deprecated` in a source, with the version in which what it
    names ends; empty where that is no literal.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and "deprecated" in (
            getattr(node.func, "id", ""),
            getattr(node.func, "attr", ""),
        ):
            ends = [k.value for k in node.keywords if k.arg == "ends"]
            literal = ends[0].value if ends and isinstance(ends[0], ast.Constant) else ""
            yield f"{where}:{node.lineno}", str(literal)


def overdue(sources: dict[str, str], version: str) -> list[str]:
    """Return the calls of `deprecated` whose version has come, or cannot be read."""

    def number(text: str) -> list[int]:
        return [int(part) for part in text.split(".")]

    found = []
    for where, text in sources.items():
        for place, ends in calls(text, where):
            if not ends:
                found.append(f"{place}: `ends` is to be a literal, such as ends='1.0'")
            elif number(ends) <= number(version):
                found.append(f"{place}: it ends with {ends}, and this is {version}: remove it")
    return found


def test_what_is_deprecated_goes_in_time() -> None:
    """No deprecated name is here in the version in which it was to be gone."""
    folders = ("core", "plugins", "environments")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    sources = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths}
    assert overdue(sources, __version__) == []


def test_a_name_whose_version_has_come_is_found() -> None:
    source = 'from quintain.errors import deprecated\n\ndeprecated("a", ends="0.10", instead="b")\n'
    assert overdue({"a.py": source}, "0.9.3") == []
    assert overdue({"a.py": source}, "0.10.0") == [
        "a.py:3: it ends with 0.10, and this is 0.10.0: remove it"
    ]
    assert "is to be a literal" in overdue({"a.py": source.replace('"0.10"', "END")}, "0.9")[0]


def test_a_deprecated_name_warns_its_caller() -> None:
    """With the version and the replacement, at the line that uses it."""

    def old() -> None:
        deprecated("old()", ends="9.0", instead="new()")

    with pytest.warns(
        DeprecationWarning, match=r"old\(\) ends with Quintain 9.0; use new\(\)"
    ) as w:
        old()
    assert w[0].filename == __file__
