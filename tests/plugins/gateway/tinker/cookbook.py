"""The interpreter of an environment that has `tinker_cookbook`, and a server for its programs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from quintain_gateway.tinker.server import TinkerServer

from ....core.models.tiny import save_tiny

MODEL = "Qwen/Qwen3-4B-Instruct-2507"
"""The recipes choose the chat format by the name of the model."""
PACKAGES = ("tinker==0.38.0", "tinker-cookbook[math-rl]==0.6.1")
END = "sys.stdout.flush(); os._exit(0)"
"""The last statements of a program: a thread of the SDK that waits in code of Rust while the
interpreter ends would abort it, whatever was answered before.
"""
RENDERERS = "tml-renderers"
"""Where no index has the version that the cookbook asks for, tests take the newest that there is: the
cookbook imports it for pictures, audio and some formats of other models alone.
"""


def cookbook_python(folder: Path) -> str:
    """Return the interpreter that ``QUINTAIN_COOKBOOK_PYTHON`` names, or that of a new environment in
    *folder*; skips where the packages cannot be installed.
    """
    if given := os.environ.get("QUINTAIN_COOKBOOK_PYTHON"):
        return given
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    inside = str(folder / "bin" / "python")

    def install(*words: str) -> str:
        """Why it failed, or nothing."""
        command = [inside, "-m", "pip", "install", "-q", "--no-input", *words]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stderr[-300:] if found.returncode else ""

    # the version of this environment, which is one for this machine
    torch = f"torch=={version('torch').partition('+')[0]}"
    failed = install(torch, *PACKAGES)
    if failed and RENDERERS in failed:
        failed = install("--no-deps", *PACKAGES, RENDERERS) or install(torch, *_needs(inside))
    if failed:
        pytest.skip(f"{PACKAGES[1]} cannot be installed here: {failed}")
    return inside


def _needs(python: str) -> list[str]:
    """What the cookbook in the environment of *python* asks for, but for the renderers."""
    code = "import importlib.metadata as m; print(*m.requires('tinker-cookbook'), sep='\\n')"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    needs = [Requirement(line) for line in asked.stdout.splitlines()]
    return [
        f"{need.name}{need.specifier}"
        for need in needs
        if need.name != RENDERERS
        and (not need.marker or need.marker.evaluate({"extra": "math-rl"}))
    ]


def run_program(folder: Path, command: Callable[[str], Sequence[str]]) -> tuple[int, str]:
    """Run a program in *folder* against a server of a tiny model; return its status and output.

    Args:
        command: makes the words of the program from the address of the server.
    """
    (folder / MODEL).parent.mkdir(parents=True, exist_ok=True)
    save_tiny(folder / MODEL)

    async def inside() -> tuple[int, str]:
        about = {"host": "127.0.0.1", "port": 0, "max_bytes": 10**7}
        server = TinkerServer(str(folder / MODEL), MODEL, folder / "state", **about)
        async with server:
            environment = {
                **os.environ,
                "TINKER_BASE_URL": server.root_url,
                "TINKER_API_KEY": "tml-test",
                "HF_HUB_OFFLINE": "1",
                "HF_DATASETS_CACHE": str(folder / "hub"),
            }
            program = await asyncio.create_subprocess_exec(
                *command(server.root_url), cwd=folder, env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            out, _ = await program.communicate()
            assert program.returncode is not None
            return program.returncode, out.decode()

    return asyncio.run(inside())
