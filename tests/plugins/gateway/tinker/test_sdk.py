"""The SDK of Tinker itself, in an environment of its own, against a server of this process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ....core.models.tiny import save_tiny
from .kit import serving

pytestmark = pytest.mark.ci

VERSION = "0.38.0"
PROGRAM = Path(__file__).with_name("sdk_program.py")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the SDK; ``QUINTAIN_TINKER_PYTHON`` names one that is
    there.
    """
    if given := os.environ.get("QUINTAIN_TINKER_PYTHON"):
        return given
    folder = tmp_path_factory.mktemp("sdk")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    inside = str(folder / "bin" / "python")
    install = [inside, "-m", "pip", "install", "-q", "--no-input", f"tinker=={VERSION}"]
    found = subprocess.run(install, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"tinker {VERSION} cannot be installed here: {found.stderr[-300:]}")
    return inside


def test_a_program_of_the_sdk_runs_unmodified(tmp_path: Path, python: str) -> None:
    model = save_tiny(tmp_path / "tiny")

    async def inside() -> tuple[int, str]:
        async with serving(model, tmp_path / "state") as (server, _):
            program = await asyncio.create_subprocess_exec(
                python, str(PROGRAM), server.root_url, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            out, _ = await program.communicate()
            assert program.returncode is not None
            return program.returncode, out.decode()

    status, out = asyncio.run(inside())
    assert status == 0, out
    assert "all calls answered" in out
