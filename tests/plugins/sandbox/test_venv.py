"""Packages in the box: a virtual environment of the host, read-only, whose Python programs run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_env_code import Case, CodeTask, Grader
from quintain_sandbox import Bubblewrap, Landlock, ProbedSandbox, ProgramLimits

from .service import started

SYSTEM = "/usr/bin/python3"


@pytest.fixture(scope="module")
def venv() -> Iterator[Path]:
    """Made by the system's Python, where all users may read it, with a package of one module."""
    if not Path(SYSTEM).exists():
        pytest.skip(f"needs {SYSTEM}")
    with tempfile.TemporaryDirectory(prefix="quintain-venv-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        made = Path(folder) / "packages"
        subprocess.run(
            [SYSTEM, "-m", "venv", "--without-pip", made], check=True, capture_output=True
        )
        (site,) = made.glob("lib/python3*/site-packages")
        (site / "thirteen.py").write_text("VALUE = 13\n")
        yield made


def output(sandbox: ProbedSandbox, code: str) -> bytes:
    limits = ProgramLimits(seconds=30.0, cpu_seconds=30.0)
    result = asyncio.run(
        sandbox.run({"main.py": code}, ["python3", "-I", "main.py"], limits=limits)
    )
    return result.stdout + result.stderr


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(("bubblewrap", {}), marks=pytest.mark.slow),
        ("bubblewrap", {"warm": 1}),
        ("landlock", {}),
    ],
    ids=str,
)
def test_programs_have_the_packages_of_the_environment_and_cannot_change_them(
    venv: Path, settings: tuple[str, dict[str, int]]
) -> None:
    """Also where interpreters wait, and for a graded solution."""
    provider, further = settings
    code = """
import sys, thirteen
print(thirteen.VALUE, sys.prefix)
try:
    open(thirteen.__file__, "a")
except OSError as e:
    print("refused")
"""
    task = CodeTask(
        prompt="", kind="stdin", cases=(Case(stdin="2", stdout="26"), Case(stdin="3", stdout="39"))
    )
    solution = {"solution.py": "import thirteen\nprint(thirteen.VALUE * int(input()))\n"}
    for sandbox in started(provider, slots=2, venv=str(venv), **further):
        assert f"13 {venv}\nrefused\n".encode() == output(sandbox, code)
        assert asyncio.run(Grader(sandbox).once(task, solution)).score == 1
    assert tuple(p.read_bytes() for p in venv.glob("lib/python3*/site-packages/thirteen.py")) == (
        b"VALUE = 13\n",
    )


def test_numpy_works_in_the_box(venv: Path) -> None:
    """Its threads and its memory fit the limits."""
    numpy = pytest.importorskip("numpy")
    packages = Path(numpy.__file__).parents[1]
    version = subprocess.run(
        [SYSTEM, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
    )
    if version.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"the numpy here is for another Python than {SYSTEM}")
    if any(not os.stat(folder).st_mode & 0o001 for folder in packages.parents):
        pytest.skip(f"other users cannot read {packages}")
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "numpy_here.pth").write_text(f"{packages}\n")
    for sandbox in started(slots=1, venv=str(venv), read_only=[str(packages)]):
        code = "import numpy\na = numpy.array([[1, 2], [3, 4]])\nprint((a @ a).tolist())"
        assert output(sandbox, code) == b"[[7, 10], [15, 22]]\n"


def test_an_environment_that_programs_cannot_use_is_named(venv: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"bubblewrap.venv is './packages'; expected an absolute path"
    ):
        Bubblewrap(venv="./packages")
    with pytest.raises(
        UsageError, match=r"landlock.venv is .*expected an absolute path to a virtual environment"
    ):
        Landlock(venv=str(tmp_path))
    if os.getuid() != 0:
        pytest.skip("boxes have users of their own where root starts them")
    os.chmod(venv, 0o700)
    try:
        with pytest.raises(InfrastructureError, match=r"(?s)venv|cannot start"):
            asyncio.run(Landlock(slots=1, enforce=(), venv=str(venv)).__aenter__())
    finally:
        os.chmod(venv, 0o755)
