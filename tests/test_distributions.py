"""What a stranger gets from an index: complete metadata, wheels with all their files, and commands
that work.
"""

from __future__ import annotations

import json
import os
import re
import shlex
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
    assert named and not [name for name in named if not (ROOT / name).exists()]


def test_updates_of_pins_are_proposed() -> None:
    """Dependabot reads the pins and the actions of the workflow, from folders that exist."""
    updates = pytest.importorskip("yaml").safe_load(
        (ROOT / ".github" / "dependabot.yml").read_text()
    )["updates"]

    assert {"pip", "github-actions"} == {u["package-ecosystem"] for u in updates}
    assert (ROOT / "constraints.txt").exists() and all(u["directory"] == "/" for u in updates)


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


@pytest.mark.ci
def test_one_extra_installs_what_the_readme_shows(wheels: dict[str, Path], tmp_path: Path) -> None:
    """`pip install 'quintain[all]'` from wheels alone into an empty environment, and commands of
    README.md.
    """
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    place = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    # Libraries of others are those of this interpreter; our own packages are nowhere but in the
    # wheels.
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for folder in (Path(path) for path in sys.path if Path(path).name == "site-packages"):
        for path in folder.iterdir():
            if (
                "quintain" not in path.name
                and not path.name.startswith(("_", "pip"))
                and path.suffix != ".pth"
            ):
                (libraries / path.name).symlink_to(path)
    (place / "libraries.pth").write_text(str(libraries))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
    ]
    root = wheels["quintain"]
    subprocess.run(
        [*install, "--find-links", str(root.parent), f"quintain[all] @ file://{root}"], check=True
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {
        "HOME": str(tmp_path),
        "QUINTAIN_CACHE": str(tmp_path / "cache"),
        "PATH": f"{home}/bin:{os.environ['PATH']}",
    }

    def run(command: str) -> str:
        done = subprocess.run(
            shlex.split(command),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    where = run(f"{python} -c 'import quintain; print(quintain.__file__)'")
    assert where.startswith(str(place))
    listed = run("quintain list --json")
    # `quintain list` names what has components
    named = [project(member) for member in MEMBERS[1:]]
    assert not [p["name"] for p in named if "entry-points" in p and p["name"] not in listed]
    short = (
        "--steps 2 --set evaluation.tasks=8 --set evaluation.test.tasks=8 --set batch.prompts=8 "
        "--set rollouts.keep=2"
    )
    run(f"quintain train {short}")
    assert (tmp_path / "runs" / "arithmetic-1" / "curves.png").is_file()
    readme = (ROOT / "README.md").read_text()
    shown = [
        re.sub(" +#.*", "", line) for line in readme.splitlines() if line.startswith("quintain ")
    ]
    chosen = [
        line
        for line in shown
        if re.match(r"quintain (runs|eval arithmetic|rollouts|chat|list|info) ?", line)
    ]
    assert len(chosen) >= 8
    for command in chosen:
        assert run(command), command
    for command in (
        "quintain doctor quintain",
        "quintain compare --help",
        "quintain sft --help",
        "quintain new --help",
    ):
        assert run(command), command
