"""Environments of Quintain in the trainer of `tinker_cookbook`, with the cookbook itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ....lanes import needs
from ...gateway.tinker.cookbook import END, cookbook_python, run_program

pytestmark = [pytest.mark.ci, needs("tinker", "pip install 'quintain-learners[tinker]'")]

PROGRAM = Path(__file__).with_name("environment_program.py")
ROOMS = """\
from quintain import Environment, Limits, Task, reward


@reward
def score(rollout):
    if rollout.reply == "raise":
        raise OSError("the disk is full")
    return 0.5


async def look() -> str:
    "Look around."
    return "a lamp and a chair"


class Rooms(Environment):
    reward = score
    limits = Limits(turns=4)

    def tasks(self, split):
        yield Task(prompt="How many things are here?")

    async def rollout(self, task, agent):
        agent.user(task.prompt)
        await agent.run(look)
"""


def test_the_trainer_of_the_cookbook_plays_and_trains_environments(tmp_path: Path) -> None:
    """Its packages come last in the path, so that those of this environment are tested."""
    python = cookbook_python(tmp_path / "venv")
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "rooms.py").write_text(ROOMS)
    runs = f"sys.path.append({site!r}); runpy.run_path({str(PROGRAM)!r})"
    words = [sys.executable, "-c", f"import os, runpy, sys; {runs}; {END}"]
    status, out = run_program(tmp_path, lambda url: [*words, url, str(tmp_path)])
    assert status == 0, out
    assert "environments trained" in out
