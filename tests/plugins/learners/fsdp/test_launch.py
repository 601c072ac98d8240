"""`quintain launch`: what it prints can be read by what it is for, and works where that is here."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from quintain.cli import main
from quintain_learners.fsdp.wire import TOKEN

from ....small_run import small_recipe
from .test_remote import SECRET, free_port
from .test_run import SUMS

SRUN = """#!/bin/bash
# Stands in for Slurm's, on one machine with two tasks.
shift
for task in 0 1; do
    SLURM_PROCID=$task SLURM_NTASKS=2 SLURM_LOCALID=$task "$@" &
done
wait
"""
SCONTROL = "#!/bin/bash\necho 127.0.0.1\necho unused\n"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["launch", *words]) == 0
    return capsys.readouterr().out


def check_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def words_of(script: str, first: str) -> list[str]:
    """Return the words of the line of *script* that begins with *first*."""
    (line,) = [line for line in script.splitlines() if line.strip().startswith(first)]
    return shlex.split(line)


def test_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    script = printed(capsys, "quickstart", "--nodes", "2", "--gpus", "8", "--slurm")
    check_bash(script)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n" in script
    assert "learner.args.ranks=16" in words_of(script, "quintain train quickstart")


def test_words_reach_the_run_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Quotes, blanks and dollars; the address is read from the environment by the run."""
    change = "environments.0.args.data=it's $HOME.jsonl"
    for words in (["--slurm"], ["--torchrun", "--host", "node 0"]):
        script = printed(capsys, "quickstart", *words, "--set", change, "--name", "a-run")
        check_bash(script)
        run = words_of(script, "quintain train quickstart")
        assert run[run.index("--set") + 1] == change
        assert run[-1] == "learner.args.rendezvous=$QUINTAIN_RENDEZVOUS"
        assert run[3:5] == ["--name", "a-run"]


def test_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    text = printed(
        capsys, *"quickstart --nodes 3 --gpus 4 --kubernetes --image registry/q:1".split()
    )
    service, job = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["spec"]["completions"] == 3
    assert job["spec"]["parallelism"] == 3
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert container["image"] == "registry/q:1"
    # the name by which machines find the first one
    assert pod["subdomain"] == service["metadata"]["name"] == "quickstart"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    script = container["command"][-1]
    check_bash(script)
    assert "QUINTAIN_RENDEZVOUS=quickstart-0.quickstart:29400\n" in script
    assert "--nnodes=3 --nproc-per-node=4" in script


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("quickstart", "--slurm, --kubernetes or --torchrun"),
        ("quickstart --torchrun", "--host"),
        ("quickstart --kubernetes", "--image"),
        ("quickstart --slurm --name A_b", "cannot be that of a job"),
        ("quickstart --slurm --set learner.rl=1", "learner.rl"),
        ("missing.toml --slurm", "missing.toml"),
        ("quikstart --slurm", "did you mean 'quickstart'"),
    ],
)
def test_refusals(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_printed_jobs_train(
    small_run: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the same bits as ranks that the run starts itself: torchrun's, and Slurm's script with a
    program that stands in for Slurm.
    """
    tables = '[learner]\nuse = "fsdp"\nlr = 1e-3\nargs = { ranks = 2, silence = 60.0 }'
    folder = small_run(small_recipe(SUMS, steps=3, algorithm="sft", tables=tables))
    monkeypatch.chdir(folder)
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {
        "PATH": path,
        TOKEN: SECRET,
        "SLURM_JOB_NODELIST": "node",
        "OMP_NUM_THREADS": "1",
        "QUINTAIN_PLUGINS": "",
    }

    def run(name: str, command: list[str]) -> dict[str, Any]:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return load_file(folder / f"runs/{name}/checkpoints/step-000003/model/model.safetensors")

    quintain = [sys.executable, "-m", "quintain", "train", "recipe.toml", "-q", "--name", "here"]
    expected = run("here", quintain)
    for kind in (["--torchrun", "--host", "127.0.0.1"], ["--slurm"]):
        name = kind[0].strip("-")
        words = f"recipe.toml --gpus 2 --port {free_port()} --name {name}".split()
        script = printed(capsys, *words, *kind, "--set", "learner.args.silence=60.0")
        (folder / f"{name}.sh").write_text(script)
        weights = run(name, ["bash", f"{name}.sh", "0"])
        assert weights.keys() == expected.keys()
        assert all(bool((weights[key] == expected[key]).all()) for key in expected)
