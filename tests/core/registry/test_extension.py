"""A real third party's package, installed by pip: what works works, and what is broken in it stays
its own trouble.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "extension"
DIST = "third-party-pack"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the package is installed."""
    target = tmp_path_factory.mktemp("installed")
    options = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(SOURCE)],
        check=True,
        capture_output=True,
    )
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def quintain(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quintain", *words]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=120
    )


def components(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """By id."""
    return {f"{c['kind']}:{c['id']}": c for c in json.loads(done.stdout)["components"]}


def test_list_shows_its_components_and_the_clash(env: dict[str, str]) -> None:
    """Broken modules are listed like others, for nothing is imported; a name used twice says what
    to write.
    """
    done = quintain(env, "list", "--json")
    listed = components(done)

    assert done.returncode == 0
    assert listed[f"environment:{DIST}/broken"]["summary"] == "Raises when imported."
    assert listed[f"environment:{DIST}/echo"]["version"] == "2.5"
    assert listed[f"environment:{DIST}/echo"]["tags"] == ["example", "single-turn"]
    assert (
        (listed[f"reward:{DIST}/format_tags"]["error"])
        == "quintain-rewards uses the same name; write 'third-party-pack/format_tags'"
    )


def test_list_for_people(env: dict[str, str]) -> None:
    """One row per component, the broken one with its error."""
    out = quintain(env, "list", "rewards").stdout

    assert "repeats" in out
    assert "error: quintain-rewards uses the same name" in out
    assert "echo" not in out


def test_info_shows_fields_services_and_controls(env: dict[str, str]) -> None:
    """What a recipe can say of it, with types, defaults and documentation."""
    done = quintain(env, "info", "echo", "--json")
    (told,) = json.loads(done.stdout)["components"]

    assert done.returncode == 0
    assert [(f["name"], f["type"], f["doc"]) for f in told["fields"]] == [
        ("words", "tuple[str, ...]", "what is to be said."),
        ("polite", "bool", "whether to say please."),
    ]
    assert told["services"] == [{"slot": "book", "parameter": "book", "type": "LogBook"}]
    assert {"oracle", "nop"} <= set(told["controls"])


def test_info_for_people(env: dict[str, str]) -> None:
    """The same as a table, and how a recipe asks for it."""
    out = quintain(env, "info", "environment:third-party-pack/echo").stdout

    for expected in ("echo", "polite", "true", "[services.book]", 'use = "echo"'):
        assert expected in out


def test_info_of_a_broken_component(env: dict[str, str]) -> None:
    """What the manifest says, with the error; the status says that something is wrong."""
    done = quintain(env, "info", "broken", "--json")
    (told,) = json.loads(done.stdout)["components"]

    assert done.returncode == 1
    assert told["summary"] == "Raises when imported."
    assert "RuntimeError: the third party made a mistake" in told["error"]


def test_info_of_own_code(env: dict[str, str], tmp_path: Path) -> None:
    """A file in the working directory needs no packaging."""
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    '''My own.'''\n    def __init__(self, size: int = 3): ...\n"
    )
    command = [sys.executable, "-m", "quintain", "info", "mine:Mine", "--json"]

    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert [f["name"] for f in json.loads(done.stdout)["components"][0]["fields"]] == ["size"]


def test_doctor_reports_each_fault_and_survives_a_crash(env: dict[str, str]) -> None:
    """An error, a missing optional library, a misspelled hook, a renamed class and a dead
    interpreter: each a row.
    """
    done = quintain(env, "doctor", DIST, "--json")
    report = json.loads(done.stdout)
    found = {f"{c['kind']}:{c['id'].partition('/')[2]}": c for c in report["components"]}

    assert done.returncode == 1
    assert report["ok"] is False
    assert {DIST} == {c["id"].partition("/")[0] for c in report["components"]}
    assert "ok" == found["environment:echo"]["status"] == found["reward:repeats"]["status"]
    assert "ok" == found["hooks:tally"]["status"] == found["command:third-party-hello"]["status"]
    assert "the third party made a mistake" in found["environment:broken"]["message"]
    assert "status 7" in found["environment:quits"]["message"]
    assert "NoSuchClass" in found["environment:renamed"]["message"]
    assert "did you mean 'quintain_on_step_end'" in found["hooks:typo"]["message"]
    assert found["service:needs_extra"]["status"] == "extra"
    assert "pip install 'third-party-pack[more]'" in found["service:needs_extra"]["message"]


def test_its_command_is_ours(env: dict[str, str]) -> None:
    """A plugin's command runs and stands in the help, which imports nothing of it."""
    assert quintain(env, "third-party-hello").stdout == "hello from a third party\n"
    assert "third-party-hello" in quintain(env, "--help").stdout


def test_its_hooks_load_apart(env: dict[str, str]) -> None:
    """The good hook plugin works though the other is misspelled; strict, the misspelled one is
    fatal.
    """
    program = (
        "from quintain.interfaces.events import StepEnd; from quintain.run.hooks import Hooks; h = Hooks.installed(); "
        "h.emit(StepEnd(step=4, metrics={})); import third_party_pack.tally as t; "
        "print(t.steps, [f.plugin for f in h.failures])"
    )

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program]
        lenient = {k: v for k, v in env.items() if k != "QUINTAIN_STRICT_PLUGINS"}  # CI sets it
        return subprocess.run(
            command, env={**lenient, **more}, capture_output=True, text=True, check=False
        )

    assert run().stdout == "[4] ['third-party-pack/typo']\n"
    assert run(QUINTAIN_PLUGINS="tally", QUINTAIN_STRICT_PLUGINS="1").stdout == "[4] []\n"
    assert "PluginError" in run(QUINTAIN_STRICT_PLUGINS="1").stderr


def test_its_environment_is_bound_with_its_service(env: dict[str, str]) -> None:
    """Found by name, configured from plain data, given its service."""
    program = (
        "from quintain.registry.lookup import current; from quintain.registry.binding import bind;"
        "book = bind(current().load('service', 'log_book'), {'limit': 3});"
        "e = bind(current().load('environment', 'echo'), {'words': ['a']}, {'book': book});"
        "print(e.words, e.book.limit, [t.prompt for t in e.tasks('train')])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )

    assert done.stdout == "('a',) 3 ['Please say a.']\n"


GOOD = 'api = 1\n[[components]]\nkind = "environment"\nname = "{name}"\nsummary = "Sums."\n'
WORKING = """
from quintain import Environment, Rollout, Task, reward

@reward
def equal(rollout: Rollout) -> float:
    return float(rollout.reply == rollout.task.answer)

class Sums(Environment[Task, None]):
    reward = equal

    def tasks(self, split):
        return [Task(prompt="1 + 1 = ?", answer="2")]
"""
FAULTS: dict[str, tuple[str | None, str, str]] = {
    "fine": (GOOD, WORKING, "outcomes"),
    "unlisting": (None, WORKING, "outcomes"),
    "newer": (GOOD.replace("1", "2"), WORKING, "`api` is 2, and this Quintain speaks 1"),
    "unreadable": ("api = [", WORKING, "quintain.toml: not TOML"),
    "kinds": (GOOD.replace("environment", "enviroment"), WORKING, "did you mean 'environment'"),
    "other": (
        GOOD.replace("{name}", "another"),
        WORKING,
        "is not in the quintain.toml of its distribution",
    ),
    "renamed": (GOOD, WORKING.replace("Sums", "Sum"), "did you mean 'Sum'? Fix: upgrade renamed"),
    "lacking": (GOOD, "", "in your own, correct pyproject.toml, then install again"),
    "importing": (
        GOOD,
        "import not_a_library",
        "in your own importing, add it to [project] dependencies",
    ),
    "nowhere": (None, "nowhere", "no module named 'nowhere'"),
}
EVALUATE = """
import contextlib, io, json, sys
from quintain.cli import main
out = {}
for name in sys.argv[1:]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        status = main(["eval", name, "--engine", "@oracle", "--tasks", "1", "--split", "train"])
    out[name] = [status, text.getvalue()]
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with a distribution for each fault, as pip writes them."""
    target = tmp_path_factory.mktemp("faulty")
    for name, (manifest, code, _) in FAULTS.items():
        metadata = target / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(
            f"[quintain.environments]\n{name} = {name}:Sums\n"
        )
        if code == "nowhere":
            continue
        (target / name).mkdir()
        (target / name / "__init__.py").write_text(code)
        if manifest is not None:
            (target / name / "quintain.toml").write_text(manifest.replace("{name}", name))
    metadata = target / "singular-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: singular\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[quintain.environment]\nsums = fine:Sums\n")
    path = os.pathsep.join(filter(None, [str(target), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def test_a_faulty_manifest_is_refused_where_it_is_used(faulty: dict[str, str]) -> None:
    """Another API version, no TOML, an unknown kind or another component: no command uses such a
    distribution.
    """
    command = [sys.executable, "-c", EVALUATE, *FAULTS]
    done = subprocess.run(
        command, env=faulty, capture_output=True, text=True, check=True, timeout=120
    )
    for name, (status, output) in json.loads(done.stdout).items():
        expected = FAULTS[name][2]
        assert (0 if expected == "outcomes" else 1) == status, (name, output)
        assert expected == "outcomes" or expected in output, (name, output)


def test_doctor_names_groups_that_are_none(faulty: dict[str, str]) -> None:
    """An entry point in the group `quintain.environment` (singular) is an error with the right
    group.
    """
    done = quintain(faulty, "doctor", "singular")

    assert done.returncode == 1
    assert (
        "'quintain.environment' of singular is unknown; did you mean 'quintain.environments'?"
        in done.stdout
    )
