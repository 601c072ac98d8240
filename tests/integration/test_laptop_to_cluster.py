"""docs/laptop-to-cluster.md, from one process to two machines: each of its commands, on a small
scale.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quintain_learners.fsdp.wire import TOKEN

from ..docs.pages import page
from ..plugins.learners.fsdp.test_remote import SECRET, may_make_namespaces, run_on_two_machines

SIZES = ["evaluation.tasks=4", "batch.prompts=8", "run.steps=3"]
"""What makes a run of the page one of seconds."""
SMALL = [word for size in SIZES for word in ("--set", size)]

TIMES = ("seconds", "per_second")

ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    TOKEN: SECRET,
    "OMP_NUM_THREADS": "1",
}

pytestmark = pytest.mark.ci


def weights(folder: Path, name: str) -> dict[str, Any]:
    (file,) = (folder / f"runs/{name}/checkpoints/step-000003/model").glob("*.safetensors")
    return load_file(file)


def metrics(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of the metrics of a run, without times."""
    lines = (folder / f"runs/{name}/metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not any(t in key for t in TIMES)}
        for line in lines
    ]


def done(words: list[str], folder: Path) -> str:
    """Run a command to its end, and return what it prints."""
    ended = subprocess.run(
        words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, f"{shlex.join(words)}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder in which the commands of the page ran in their order, and what each printed."""
    folder, printed = tmp_path_factory.mktemp("walk"), {}
    for block in page("docs/laptop-to-cluster.md").blocks:
        if block.file:
            (folder / block.file).write_text(block.text)
        for command in block.commands if block.language == "bash" else []:
            words = shlex.split(command)
            small = [*SMALL, "--quiet"] if words[1] == "train" and "--dry-run" not in words else []
            printed[command] = done([*words, *small], folder)
    return folder, printed


def test_every_command_of_the_page_works(walked: tuple[Path, dict[str, str]]) -> None:
    """Episode processes change no bit, and ranks no weight."""
    folder, printed = walked
    assert {command.split()[1] for command in printed} == {"train", "timeline", "plan", "launch"}
    (plan,) = [text for command, text in printed.items() if command.split()[1] == "plan"]
    assert "one change:" in plan
    assert metrics(folder, "processes") == metrics(folder, "laptop")
    one = weights(folder, "laptop")
    torch.testing.assert_close(weights(folder, "processes"), one, rtol=0, atol=0)
    torch.testing.assert_close(weights(folder, "ranks"), one, rtol=0, atol=2e-5)
    for name in ("overlap", "replicas"):
        assert len(metrics(folder, name)) == 4  # the first line is of what was there before step 1


@pytest.mark.skipif(not may_make_namespaces(), reason="needs root and ip, for network namespaces")
def test_two_machines_train_the_recipe_of_the_page(walked: tuple[Path, dict[str, str]]) -> None:
    """As it is, and without staleness, which makes the bits of the two ranks."""
    folder, printed = walked
    (command,) = [c for c in printed if c.split()[1] == "launch"]
    for name, more in (("machines", []), ("equal", ["--set", "schedule.use=sync"])):
        words = [name if word == "machines" else word for word in shlex.split(command)]
        (folder / "job.sh").write_text(done([*words, *SMALL, *more], folder))
        run_on_two_machines("job.sh", folder, ENVIRONMENT)
        assert len(metrics(folder, name)) == 4
    torch.testing.assert_close(weights(folder, "equal"), weights(folder, "ranks"), rtol=0, atol=0)
