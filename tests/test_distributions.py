"""What a stranger gets from an index: complete metadata, wheels with all their files, and commands
that work.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from .tools import load_tool

ROOT = Path(__file__).resolve().parent.parent
MEMBERS: list[Path] = load_tool("registry").members()


def project(member: Path) -> dict[str, Any]:
    """The table `project` of a distribution."""
    table = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_metadata_is_complete(member: Path) -> None:
    """A distribution has a description, a README that names how to install it, authors, and the
    classifiers of core.
    """
    metadata = project(member)
    core = project(ROOT)

    assert {"description", "readme", "license", "authors", "classifiers"} <= metadata.keys()
    assert set(metadata["classifiers"]) <= set(core["classifiers"])
    assert {"Operating System :: POSIX :: Linux", "Typing :: Typed"} <= set(metadata["classifiers"])
    # Without the marker, mypy takes all that is imported from it for Any.
    assert list(member.glob("core/*/py.typed" if member == ROOT else "src/*/py.typed"))
    assert metadata["name"] in (member / metadata["readme"]).read_text()


IMPORTED_AS = {"mlflow-skinny": "mlflow"}
"""Packages whose module has another name."""
IMPORT_ALL = """
import json, sys
from importlib import import_module
extras, packages = map(json.loads, sys.argv[1:])
sys.modules.update(dict.fromkeys(extras))  # as if they were not installed
for package in packages:
    import_module(package)
"""


@pytest.mark.more
def test_packages_are_imported_without_their_extras() -> None:
    """What only an extra installs is imported when it is used, so that a plugin without it can be
    listed and say so.
    """
    members = [
        m
        for m in MEMBERS
        if "optional-dependencies" in (p := project(m)) and p["name"] != "quintain"
    ]
    # torch takes seconds
    members = [m for m in members if "quintain[train]>=0.1" not in project(m)["dependencies"]]
    optional = [project(member) for member in members]
    names = {
        re.split("[^a-z0-9-]", r)[0]
        for p in optional
        for rs in p["optional-dependencies"].values()
        for r in rs
    }
    required = {re.split("[^a-z0-9-]", r)[0] for p in optional for r in p["dependencies"]}
    extras = sorted(
        IMPORTED_AS.get(name, name) for name in names - required if not name.startswith("quintain")
    )
    assert {"datasets", "docker", "wandb"} <= set(extras)

    packages = [file.parent.name for member in members for file in member.glob("src/*/__init__.py")]
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(extras), json.dumps(packages)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_citation_has_the_version() -> None:
    """CITATION.cff names the version of core."""
    assert f"\nversion: {project(ROOT)['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_workflow_calls_the_script_of_ci() -> None:
    """Continuous integration runs `.ci/run`, and the other Pythons that are supported."""
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    supported = {c.rsplit(" ", 1)[1] for c in project(ROOT)["classifiers"] if ":: Python ::" in c}

    assert "bash .ci/run" in [step.get("run") for step in jobs["full"]["steps"]]
    (python,) = (
        step["with"]["python-version"]
        for step in jobs["full"]["steps"]
        if "setup-python" in str(step)
    )
    assert supported <= {python, *jobs["pythons"]["strategy"]["matrix"]["python"]}
    for lane in ("wheels", "macos"):
        assert supported == set(jobs[lane]["strategy"]["matrix"]["python"])
        assert any(
            "tests/test_distributions.py" in step.get("run", "") for step in jobs[lane]["steps"]
        )
    assert "make site" in [step.get("run") for step in jobs["docs"]["steps"]]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    named = {word for c in commands for word in c.split() if word.startswith(("tests/", ".ci/"))}
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_updates_of_pins_are_proposed() -> None:
    """Dependabot reads the pins and the actions of the workflow, from folders that exist."""
    updates = pytest.importorskip("yaml").safe_load(
        (ROOT / ".github" / "dependabot.yml").read_text()
    )["updates"]

    assert {"pip", "github-actions"} == {u["package-ecosystem"] for u in updates}
    assert (ROOT / "constraints.txt").exists()
    assert all(u["directory"] == "/" for u in updates)


def test_the_container_installs_what_make_installs() -> None:
    """The development container has a supported Python and calls a target of the Makefile."""
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())

    assert ":3.11" in container["image"]
    assert "make setup" in container["postCreateCommand"]


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda f: f.stem
)
def test_issue_forms_are_forms(form: Path) -> None:
    """Each form is YAML; one with fields has a name, a description and labelled fields with ids of
    their own.
    """
    content = pytest.importorskip("yaml").safe_load(form.read_text())
    fields = content.get("body", [])

    assert len(fields) == len({field["id"] for field in fields})
    assert all(field["attributes"]["label"] for field in fields)
    assert form.stem == "config" or {"name", "description"} <= content.keys()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution, by its name."""
    folder = tmp_path_factory.mktemp("wheels")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*build, *map(str, MEMBERS)], check=True, timeout=600)
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


@pytest.mark.ci
def test_wheels_have_all_files(wheels: dict[str, Path]) -> None:
    """Every file of the sources, and a page for an index."""
    assert {project(m)["name"] for m in MEMBERS} == wheels.keys()
    for member in MEMBERS:
        sources = member / "core" if member == ROOT else member / "src"
        with zipfile.ZipFile(wheels[project(member)["name"]]) as wheel:
            names = set(wheel.namelist())
            (metadata,) = (
                message_from_bytes(wheel.read(n))
                for n in names
                if n.endswith(".dist-info/METADATA")
            )
        files = {p.relative_to(sources).as_posix() for p in sources.rglob("*") if p.is_file()}
        assert {f for f in files if "__pycache__" not in f} <= names, member.name
        assert str(metadata.get_payload()).strip(), (
            f"{member.name}: the page on an index would be empty"
        )


class FreshEnvironment:
    """An empty virtual environment in *folder*: libraries of others are those of this interpreter,
    our own packages are nowhere but in wheels.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "venv"
        venv.create(self.home, with_pip=False)
        self.python = self.home / "bin" / "python"
        bases = {"base": str(self.home), "platbase": str(self.home)}
        self.place = Path(sysconfig.get_path("purelib", vars=bases))
        libraries = folder / "libraries"
        libraries.mkdir()
        for site in (Path(path) for path in sys.path if Path(path).name == "site-packages"):
            for path in site.iterdir():
                ours = "quintain" in path.name
                if not (ours or path.name.startswith(("_", "pip")) or path.suffix == ".pth"):
                    (libraries / path.name).symlink_to(path)
        (self.place / "libraries.pth").write_text(str(libraries))
        self._variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
            "HOME": str(folder),
            "QUINTAIN_CACHE": str(folder / "cache"),
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
        }

    def install(self, *what: str) -> None:
        """Install by the pip of this interpreter, without an index."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        subprocess.run([*pip, "install", "--quiet", "--no-index", *what], check=True)

    def start(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run *command* in the folder."""
        return subprocess.run(
            shlex.split(command),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._variables,
            timeout=300,
            check=False,
        )

    def run(self, command: str) -> str:
        """Return what *command* prints; it has to succeed."""
        done = self.start(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout


LETTERS = """
import os
import signal
from pathlib import Path

from quintain import Environment, Task, reward


@reward
def has_an_a(rollout):
    if Path("fatal").exists() and [*Path("runs").glob("*/checkpoints/step-000001")]:
        os.kill(os.getpid(), signal.SIGKILL)
    return float("a" in rollout.reply)


class Letters(Environment[Task, None]):
    reward = has_an_a

    def tasks(self, split):
        return [Task(prompt=f"{split} {i}", id=f"{split}-{i}") for i in range(8)]
"""
"""An environment in a file, whose reward kills the run in its second step while there is a file."""


@pytest.mark.ci
def test_the_package_alone_trains(wheels: dict[str, Path], tmp_path: Path) -> None:
    """With the wheel of `quintain` and libraries of others: two steps on a model in a folder, of
    which the second is killed and resumed, and the evaluations of the run.
    """
    from .core.models.tiny import save_tiny

    fresh = FreshEnvironment(tmp_path)
    fresh.install("--no-deps", str(wheels["quintain"]))
    ours = "[d.name for d in m.distributions() if d.name.startswith('quintain')]"
    found = fresh.run(f'{fresh.python} -c "import importlib.metadata as m; print({ours})"')
    assert found == "['quintain']\n"

    (tmp_path / "letters.py").write_text(LETTERS)
    save_tiny(tmp_path / "tiny")
    (tmp_path / "fatal").touch()
    words = (
        "--steps 2 --name alone --set checkpoint.every=1 --set batch.prompts=2 "
        "--set batch.group_size=2 --set sampling.max_tokens=8 --set evaluation.tasks=4"
    )
    killed = fresh.start(f"quintain train --env letters.py:Letters --model tiny {words}")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "runs" / "alone" / "summary.json").exists()

    (tmp_path / "fatal").unlink()
    fresh.run("quintain train --resume alone")
    summary = json.loads((tmp_path / "runs" / "alone" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["held_out"]


@pytest.mark.ci
def test_one_extra_installs_what_the_readme_shows(wheels: dict[str, Path], tmp_path: Path) -> None:
    """`pip install 'quintain[all]'` from wheels alone into an empty environment, and commands of
    README.md.
    """
    fresh = FreshEnvironment(tmp_path)
    root, run = wheels["quintain"], fresh.run
    fresh.install("--find-links", str(root.parent), f"quintain[all] @ file://{root}")

    where = run(f"{fresh.python} -c 'import quintain; print(quintain.__file__)'")
    assert where.startswith(str(fresh.place))
    listed = run("quintain list --json")
    # `quintain list` names what has components
    named = [project(member) for member in MEMBERS[1:]]
    assert not [p["name"] for p in named if "entry-points" in p and p["name"] not in listed]
    short = (
        "--steps 2 --set evaluation.tasks=8 --set evaluation.test.tasks=8 --set batch.prompts=8 "
        "--set rollouts.keep=2"
    )
    run(f"quintain train arithmetic {short}")
    assert (tmp_path / "runs" / "arithmetic-1" / "curves.png").is_file()
    readme = (ROOT / "README.md").read_text()
    shown = [
        re.sub(" +#.*", "", line).replace("extraction-1", "arithmetic-1")
        for line in readme.splitlines()
        if line.startswith("quintain ")
    ]
    chosen = [
        line
        for line in shown
        if re.match(r"quintain (runs|eval arithmetic|rollouts|chat|list|info) ?", line)
    ]
    assert chosen
    taken = dict.fromkeys([*chosen, *ON_A_RUN])
    assert len(taken) >= 8
    for command in taken:
        assert run(command), command
    for command in (
        "quintain doctor quintain",
        "quintain compare --help",
        "quintain sft --help",
        "quintain new --help",
    ):
        assert run(command), command


ON_A_RUN = (
    "quintain runs",
    "quintain eval arithmetic --model arithmetic-1 --tasks 20",
    "quintain eval arithmetic --engine @oracle --tasks 20",
    "quintain rollouts arithmetic-1 --wrong -n 3",
    'quintain chat arithmetic-1 --once "What is 58 plus 67?"',
    "quintain list",
    "quintain info arithmetic",
    "quintain info dapo --against cispo",
)
"""What a newcomer asks of a run and of what is installed."""

CLOSURE = """
import importlib.metadata, json, re, sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from importlib.metadata import PackageNotFoundError, distribution

def normalised(name):
    return re.sub(r"[-_.]+", "-", name).lower()

def installed():
    return {normalised(one.metadata["Name"]) for one in importlib.metadata.distributions()}

def needed(dist, extras):
    from packaging.requirements import Requirement
    for text in dist.requires or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras)):
            yield normalised(one.name), frozenset(one.extras)

def closure(name, extras):
    found, unread = {}, [(normalised(name), frozenset(extras))]
    while unread:
        name, extras = unread.pop()
        if name in found and extras <= found[name]:
            continue
        found[name] = found.get(name, frozenset()) | extras
        try:
            unread += needed(distribution(name), found[name])
        except PackageNotFoundError:
            pass  # not installed here, so that nobody imports it
    return found

class Limited(PathFinder):
    "Finds modules of *allowed* distributions, and those that belong to none."

    allowed = set()
    owners = {
        top: {normalised(name) for name in names}
        for top, names in importlib.metadata.packages_distributions().items()
    }

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        owners = cls.owners.get(name.partition(".")[0], cls.allowed)
        return super().find_spec(name, path, target) if owners & cls.allowed else None

name, extras, modules = json.loads(sys.argv[1])
declared = closure(name, extras)
absent = {one for one in declared if one not in installed()}
Limited.allowed = {*declared, "packaging", "pip", "setuptools"}
sys.meta_path[sys.meta_path.index(PathFinder)] = Limited
failed = {}
for module in modules:
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if normalised((error.name or "").partition(".")[0]) not in absent:
            failed[module] = str(error)
    except BaseException as error:
        failed[module] = f"{type(error).__name__}: {error}"
Path(sys.argv[2]).write_text(json.dumps(failed))
"""
"""Imports modules where only a distribution is installed, with some extras and all that these need:
a module of another distribution is not found. What is declared and not installed here, such as
vLLM, is left out.
"""


@functools.cache
def modules_by_extra() -> dict[tuple[str, str], list[str]]:
    """The modules of every distribution by its name and the extra with which they are imported."""
    layout = load_tool("layout")
    checkout = layout.read(ROOT)
    rules = importlib.import_module("members")  # beside the layout
    declared = rules.Declarations(checkout)
    found: dict[tuple[str, str], list[str]] = {}
    for name, module in checkout.installed.items():
        owner = checkout.projects[module.member]
        is_program = name.endswith(("_main", "__main__")) or rules.elsewhere(name)
        if "examples" not in module.path.parts and not is_program:
            extra = declared.extra_for(name, owner)
            found.setdefault((owner.name, extra), []).append(name)
    return found


@pytest.mark.ci
@pytest.mark.keeps("bridges", "view")  # those with the most extras
@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_distribution_alone_imports_all_its_modules(member: Path, tmp_path: Path) -> None:
    """With nothing else installed than what it declares. Modules that need an extra are imported
    with what that extra declares.
    """
    failed: dict[str, str] = {}
    for (name, extra), modules in modules_by_extra().items():
        if name == project(member)["name"]:
            request = json.dumps([name, [extra] if extra else [], modules])
            answer = tmp_path / "failed.json"
            done = subprocess.run(
                [sys.executable, "-c", CLOSURE, request, str(answer)],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                timeout=300,
            )
            assert done.returncode == 0, done.stderr
            failed |= json.loads(answer.read_text())

    assert failed == {}
