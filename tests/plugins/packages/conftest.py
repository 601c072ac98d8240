"""A virtual environment for each test that installs something."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

Commands = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """Runs `quintain` in a virtual environment of its own, which reads the packages of this one and
    changes none of them. Only *folder*`/wheels` has wheels.
    """
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    place = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    ours = sysconfig.get_path("purelib")
    (place / "developer.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    environment |= {
        "QUINTAIN_CACHE": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
    }

    def run(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command; what is *typed* comes from a terminal."""
        master, slave = pty.openpty()
        os.write(master, typed.encode())
        python = str(home / "bin" / "python")
        try:
            return subprocess.run(
                [python, "-m", "quintain", *words],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=environment,
                stdin=slave if typed else subprocess.DEVNULL,
            )
        finally:
            os.close(master)
            os.close(slave)

    assert Path(sys.prefix) != home
    return run
