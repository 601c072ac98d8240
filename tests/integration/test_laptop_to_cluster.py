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

from quintain_fsdp.wire import TOKEN

from ..docs.pages import page
from ..plugins.fsdp.test_remote import SECRET, may_make_namespaces, two_machines

SMALL = ["--steps", "3", "--quiet", "--set", "evaluation.tasks=4", "--set", "batch.prompts=8"]
"""What makes a run of the page one of seconds."""

TIMES = ("seconds", "per_second")


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


@pytest.mark.ci
@pytest.mark.skipif(not may_make_namespaces(), reason="needs root and ip, for network namespaces")
def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    """Episode processes change no bit, ranks no weight, and two machines no bit of two ranks."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        TOKEN: SECRET,
        "OMP_NUM_THREADS": "1",
    }
    walk = page("docs/laptop-to-cluster.md")
    for block in walk.blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        for command in block.commands if block.language == "bash" else []:
            words = shlex.split(command)
            if words[1] == "train" and "--dry-run" not in words:
                words += SMALL
            if words[1] == "launch":
                for setting in ("evaluation.tasks=4", "batch.prompts=8", "run.steps=3"):
                    words += ["--set", setting]
                words += ["--set", "schedule.use=sync"]  # the bits of `ranks`, to compare
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            if words[1] == "launch":
                (tmp_path / "job.sh").write_text(done.stdout)
            if words[1] == "plan":
                assert "one change:" in done.stdout

    assert metrics(tmp_path, "processes") == metrics(tmp_path, "laptop")
    torch.testing.assert_close(
        weights(tmp_path, "processes"), weights(tmp_path, "laptop"), rtol=0, atol=0
    )
    torch.testing.assert_close(
        weights(tmp_path, "ranks"), weights(tmp_path, "laptop"), rtol=0, atol=2e-5
    )
    assert all(
        (tmp_path / f"runs/{name}/summary.json").exists() for name in ("overlap", "replicas")
    )

    with two_machines() as machines:
        jobs = [
            subprocess.Popen([*machine, "bash", "job.sh", str(k)], cwd=tmp_path, env=environment)
            for k, machine in enumerate(machines)
        ]
        try:
            assert [job.wait(timeout=900) for job in jobs] == [0, 0]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
    torch.testing.assert_close(
        weights(tmp_path, "machines"), weights(tmp_path, "ranks"), rtol=0, atol=0
    )
