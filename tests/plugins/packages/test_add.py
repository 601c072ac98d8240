"""Plugins that are added to a virtual environment, and removed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ...small_run import make_small_run, small_recipe
from .conftest import Commands
from .made_wheels import ENVIRONMENT, MANIFEST, POINTS, make_wheel, orchard, record

REGISTRY = ("--registry", "registry.toml")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """The folder that pip of `commands` looks into."""
    return tmp_path / "wheels"


def listed(commands: Commands, name: str = "quintain-orchard") -> bool:
    """Whether an environment of a distribution is installed."""
    rows = json.loads(commands("list", "environments", "--json").stdout)["components"]
    return name in {row["distribution"] for row in rows}


def packages(tmp_path: Path) -> set[str]:
    """The distributions in the virtual environment itself."""
    return {path.name for path in tmp_path.glob("venv/lib/python*/site-packages/*.dist-info")}


def report(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_added_and_removed(commands: Commands, wheels: Path, tmp_path: Path) -> None:
    """It is found by the name of a component, shown, and can be played; then it is gone."""
    wheel = orchard(wheels)
    (tmp_path / "registry.toml").write_text(record(wheel))

    done = commands("add", "fruit", *REGISTRY, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert f"hash sha256:{digest}, which the registry names" in lines
    assert {"licence MIT", "brings environment fruit", "installs quintain-orchard 1.0"} <= {*lines}
    assert "runs only what a recipe or a command names" in lines
    assert listed(commands)

    gone = commands("remove", "quintain-orchard", "--yes", "--json")
    assert report(gone) == {"removed": ["quintain-orchard"], "environment": ""}
    assert packages(tmp_path) == set()


@pytest.mark.slow
def test_a_dry_run_changes_nothing(commands: Commands, wheels: Path, tmp_path: Path) -> None:
    """The whole plan as data; the same without an answer is refused."""
    orchard(wheels, requires=("quintain>=0.1", "tinydep"))
    make_wheel(wheels, "tinydep", {"tinydep.py": ""}, version="2.5")
    (tmp_path / "registry.toml").write_text(record(memory='"2 GiB"'))

    told = report(commands("add", "quintain-orchard", *REGISTRY, "--dry-run", "--json"))
    assert (told["installed"], told["listed"], told["memory"]) == (False, True, "2 GiB")
    installs = [(row["name"], row["version"]) for row in told["installs"]]
    assert sorted(installs) == [("quintain-orchard", "1.0"), ("tinydep", "2.5")]
    asked = commands("add", "quintain-orchard", *REGISTRY)
    assert asked.returncode == 2 and "add --yes or --dry-run" in asked.stderr
    assert commands("add", "quintain-orchard", *REGISTRY, "--json").returncode == 2
    assert packages(tmp_path) == set()


@pytest.mark.slow
def test_it_asks(commands: Commands, wheels: Path, tmp_path: Path) -> None:
    """And does what is answered."""
    orchard(wheels)
    (tmp_path / "registry.toml").write_text(record())
    for answer, status, here in (("n\n", 1, False), ("y\n", 0, True)):
        done = commands("add", "fruit", *REGISTRY, typed=answer)
        assert "Install it? [y/N]" in done.stdout
        assert (done.returncode, bool(packages(tmp_path))) == (status, here), done.stderr
    for answer, status, here in (("n\n", 1, True), ("y\n", 0, False)):
        done = commands("remove", "fruit", typed=answer)
        assert "removes quintain-orchard" in done.stdout
        assert (done.returncode, bool(packages(tmp_path))) == (status, here), done.stderr


@pytest.mark.slow
def test_another_quintain_is_no_conflict_that_is_solved(
    commands: Commands, wheels: Path, tmp_path: Path
) -> None:
    """What the virtual environments share cannot differ there."""
    make_wheel(wheels, "quintain", {"quintain_later.py": ""}, version="99.0")
    orchard(wheels, requires=("quintain>=99",))
    (tmp_path / "registry.toml").write_text(record())
    done = commands("add", "fruit", *REGISTRY, "--yes")
    assert done.returncode == 1 and "pip install --upgrade quintain" in done.stderr
    assert packages(tmp_path) == set()


@pytest.mark.slow
def test_what_it_brought_goes_with_it(commands: Commands, wheels: Path, tmp_path: Path) -> None:
    """Unless another distribution needs it by now."""
    orchard(wheels, requires=("quintain>=0.1", "tinydep", "otherdep"))
    for name in ("tinydep", "otherdep"):
        make_wheel(wheels, name, {f"{name}.py": ""})
    user = make_wheel(wheels, "quintain-user", {"user.py": ""}, requires=("otherdep",))
    (tmp_path / "registry.toml").write_text(record())
    report(commands("add", "fruit", *REGISTRY, "--yes", "--json"))
    place = next(tmp_path.glob("venv/lib/python*/site-packages"))
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
    subprocess.run([*words, str(user)], check=True)

    assert report(commands("remove", "fruit", "--yes", "--json"))["removed"] == [
        "quintain-orchard",
        "tinydep",
    ]
    assert packages(tmp_path) == {"otherdep-1.0.dist-info", "quintain_user-1.0.dist-info"}


@pytest.mark.slow
def test_pins_are_honoured(commands: Commands, wheels: Path, tmp_path: Path) -> None:
    """The version of the registry, one on the command line, and a file with its hash."""
    old, new = orchard(wheels, version="1.0"), orchard(wheels, version="2.0")
    (tmp_path / "registry.toml").write_text(record(version='"1.0"'))
    (tmp_path / "newest.toml").write_text(record())

    def version(*words: str) -> str:
        told = report(commands("add", *words, "--dry-run", "--json"))
        return str(told["version"])

    assert version("quintain-orchard", *REGISTRY) == "1.0"
    assert version("quintain-orchard", "--registry", "newest.toml") == "2.0"
    assert version("quintain-orchard==1.0", "--registry", "newest.toml") == "1.0"
    digest = hashlib.sha256(old.read_bytes()).hexdigest()
    wrong = commands("add", f"quintain-orchard @ {new}#sha256={digest}", "--yes")
    assert wrong.returncode == 1 and packages(tmp_path) == set()
    added = report(commands("add", f"quintain-orchard @ {old}#sha256={digest}", "--yes", "--json"))
    assert (added["version"], added["listed"], added["installed"]) == ("1.0", False, True)
    assert packages(tmp_path) == {"quintain_orchard-1.0.dist-info"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "said, expected",
    [
        ({"hashes": f'["sha256:{"0" * 64}"]'}, f"sha256:{'0' * 64} was expected"),
        (
            {"provides": '["environment:fruit", "reward:same"]'},
            "the registry has reward same alone",
        ),
        ({"licence": '"Apache-2.0"'}, "its licence is 'MIT', and the registry says 'Apache-2.0'"),
    ],
)
def test_what_the_registry_does_not_say_is_refused(
    said: dict[str, str], expected: str, commands: Commands, wheels: Path, tmp_path: Path
) -> None:
    orchard(wheels)
    (tmp_path / "registry.toml").write_text(record(**said))
    done = commands("add", "fruit", *REGISTRY, "--yes")
    assert done.returncode == 1 and expected in done.stderr
    assert packages(tmp_path) == set()


@pytest.mark.slow
def test_files_of_others_are_not_replaced(commands: Commands, wheels: Path, tmp_path: Path) -> None:
    """A wheel with a module that is there."""
    place = next(tmp_path.glob("venv/lib/python*/site-packages"))
    (place / "taken.py").write_text("")
    orchard(wheels, more={"taken.py": "raise SystemExit"})
    (tmp_path / "registry.toml").write_text(record())
    done = commands("add", "fruit", *REGISTRY, "--yes")
    assert done.returncode == 1 and "it would replace what is there: taken.py" in done.stderr


@pytest.mark.slow
def test_an_installation_that_does_not_hold_is_undone(
    commands: Commands, wheels: Path, tmp_path: Path
) -> None:
    """Installed, its package is hidden by another one, so the manifest that is read is not its."""
    hidden = tmp_path / "quintain_orchard"  # beside what runs, hence first on the path
    hidden.mkdir()
    (hidden / "__init__.py").write_text("")
    (hidden / "quintain.toml").write_text("api = 99\n")
    make_wheel(wheels, "tinydep", {"tinydep.py": ""})
    orchard(wheels, requires=("tinydep",))
    (tmp_path / "registry.toml").write_text(record())
    done = commands("add", "fruit", *REGISTRY, "--yes")
    assert done.returncode == 1 and "was removed again" in done.stderr
    assert packages(tmp_path) == set()
    assert not (tmp_path / "venv" / "share" / "quintain" / "added.json").exists()


APART = ENVIRONMENT.replace(
    "    def tasks",
    "    async def rollout(self, task, agent):\n"
    "        import tinydep\n\n"
    "        agent.user(tinydep.VERSION)\n"
    "        await agent.turn()\n\n"
    "    def tasks",
)


def conflicting(wheels: Path, commands: Commands, tmp_path: Path, code: str) -> None:
    """tinydep 2 is installed, and `orchard` needs tinydep 1."""
    for version in ("1.0", "2.0"):
        text = f"VERSION = {version!r}\n"
        make_wheel(wheels, "tinydep", {"tinydep.py": text}, version=version)
    place = next(tmp_path.glob("venv/lib/python*/site-packages"))
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
    subprocess.run([*words, str(wheels / "tinydep-2.0-py3-none-any.whl")], check=True)
    orchard(wheels, requires=("quintain>=0.1", "tinydep<2"), code=code)
    (tmp_path / "registry.toml").write_text(record())


@pytest.mark.slow
def test_a_conflict_gets_a_virtual_environment(
    commands: Commands, wheels: Path, tmp_path: Path
) -> None:
    """What is installed stays as it is; the lines of the recipe name what the other one has, and
    episodes are played there.
    """
    conflicting(wheels, commands, tmp_path, APART)
    told = report(commands("add", "fruit", *REGISTRY, "--yes", "--json"))
    assert told["conflicts"] == ["tinydep 2.0 is installed, and it needs 1.0"]
    assert told["requirements"] == ["tinydep<2"]
    assert packages(tmp_path) == {"quintain_orchard-1.0.dist-info", "tinydep-2.0.dist-info"}
    python = Path(told["environment"], "bin", "python")
    said = subprocess.run(
        [python, "-c", "import tinydep; print(tinydep.VERSION)"], capture_output=True, text=True
    )
    assert said.stdout == "1.0\n"

    make_small_run(tmp_path, small_recipe('use = "fruit"', tables=told["recipe"]), context=512)
    wheels.rename(tmp_path / "gone")  # nothing is installed now
    done = commands("train", "recipe.toml", "--quiet", "--name", "apart")
    assert done.returncode == 0, done.stderr
    played = commands("rollouts", "apart", "--json").stdout
    assert '"content": "1.0"' in played, played[:2000]

    assert report(commands("remove", "fruit", "--yes", "--json"))["environment"]
    assert not Path(told["environment"]).exists()
    assert packages(tmp_path) == {"tinydep-2.0.dist-info"}


@pytest.mark.slow
def test_a_conflict_that_the_run_itself_would_have_is_undone(
    commands: Commands, wheels: Path, tmp_path: Path
) -> None:
    """The package is imported at the top of the module, where the run has the other version."""
    code = "from tinydep import VERSION\nassert VERSION == '1.0', 'another tinydep'\n" + ENVIRONMENT
    conflicting(wheels, commands, tmp_path, code)
    done = commands("add", "fruit", *REGISTRY, "--yes")
    assert done.returncode == 1 and "its author has to import them in `rollout`" in done.stderr
    assert packages(tmp_path) == {"tinydep-2.0.dist-info"}


@pytest.mark.slow
def test_a_conflict_of_anything_else_is_refused(
    commands: Commands, wheels: Path, tmp_path: Path
) -> None:
    """Only environments can have packages of their own."""
    conflicting(wheels, commands, tmp_path, ENVIRONMENT)
    orchard(
        wheels,
        requires=("tinydep<2",),
        points=POINTS.replace("environments]\nfruit", "rewards]\nsame").replace("Fruit", "same"),
        manifest=MANIFEST.replace('"environment"', '"reward"').replace('"fruit"', '"same"'),
    )
    (tmp_path / "registry.toml").write_text(record(provides='["reward:same"]'))
    done = commands("add", "same", *REGISTRY, "--yes")
    assert done.returncode == 1 and "tinydep 2.0 is installed, and it needs 1.0" in done.stderr
    assert packages(tmp_path) == {"tinydep-2.0.dist-info"}


@pytest.mark.slow
def test_a_source_archive_is_taken_on_request_alone(
    commands: Commands, wheels: Path, tmp_path: Path
) -> None:
    """Its code runs when it is built."""
    folder = tmp_path / "quintain_orchard-1.0"
    (folder / "quintain_orchard").mkdir(parents=True)
    (folder / "quintain_orchard" / "__init__.py").write_text(ENVIRONMENT)
    (folder / "quintain_orchard" / "quintain.toml").write_text(MANIFEST)
    (folder / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: quintain-orchard\nVersion: 1.0\n"
    )
    (folder / "backend.py").write_text(
        "import shutil\n\n\n"
        "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        f"    return shutil.copy({str(tmp_path / 'built' / 'quintain_orchard-1.0-py3-none-any.whl')!r}"
        ", folder).rpartition('/')[2]\n"
    )
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    orchard(tmp_path / "built")
    wheels.mkdir()
    with tarfile.open(wheels / "quintain_orchard-1.0.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    (tmp_path / "registry.toml").write_text(record(wheels / "quintain_orchard-1.0.tar.gz"))

    refused = commands("add", "fruit", *REGISTRY, "--yes")
    assert refused.returncode == 1 and "wheels are taken without --build" in refused.stderr
    assert report(commands("add", "fruit", *REGISTRY, "--yes", "--build", "--json"))["installed"]
    assert listed(commands)


@pytest.mark.slow
def test_what_others_need_stays(commands: Commands, tmp_path: Path) -> None:
    """Also Quintain itself."""
    done = commands("remove", "quintain-workers", "--yes")
    assert done.returncode == 2 and "quintain-packages" in done.stderr
    assert commands("remove", "quintain", "--yes").returncode == 2
    assert commands("remove", "no-such-plugin", "--yes").returncode == 2
