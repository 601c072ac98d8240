"""`quintain launch`: what it prints can be read by what it is for, and works where that is here."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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
DIVIDED = "quickstart --set cluster.use=machine --set engine.use=pool --set learner.use=fsdp"
DIVIDED += " --set engine.args.engine=vllm-server --set cluster.args.learn=2"
"""Of the GPUs of all machines, two learn and the others sample."""
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


def test_machines_whose_gpus_sample_and_learn(capsys: pytest.CaptureFixture[str]) -> None:
    """Each joins the run once, and the job says what each GPU does."""
    several = [*DIVIDED.split(), "--nodes", "2", "--gpus", "2"]
    script = printed(capsys, *several, "--slurm")
    check_bash(script)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=2\n" in script
    assert "#   0: GPU 1    rank 1 of 2\n#   1: GPU 0    server 1 of 2\n" in script
    join = words_of(script, "srun")
    assert join[2:5] == ["python", "-m", "quintain_scale.machine.join"]
    assert join[5:8] == ["$QUINTAIN_RENDEZVOUS", "--devices", "2"]
    run = words_of(script, "quintain train quickstart")
    changes = ["cluster.args.machines=2", "cluster.args.devices=2"]
    assert run[-5::2] == [*changes, "cluster.args.rendezvous=$QUINTAIN_RENDEZVOUS"]
    assert not [word for word in run if word.startswith("learner.args")]
    on_each = printed(capsys, *several, "--torchrun", "--host", "node0")
    check_bash(on_each)
    assert words_of(on_each, "python -m")[-3:] == ["--machine", "$node", "&"]
    assert "torchrun" not in on_each
    assert "QUINTAIN_RANKS_TOKEN" not in on_each


@pytest.mark.ci
@pytest.mark.parametrize("recipe", ["quickstart", DIVIDED])
def test_sbatch_reads_the_options_of_the_script(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its own parser, which says what it has read; no cluster is there."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        pytest.skip("needs sbatch: apt-get install slurm-client slurm-wlm-basic-plugins")
    conf = ["ClusterName=test", "SlurmctldHost=localhost(127.0.0.1)", "SlurmctldPort=1"]
    conf += ["AuthType=auth/none", "MessageTimeout=1", "NodeName=node[0-3]"]
    own = Path(sbatch).parents[1] / "lib/x86_64-linux-gnu/slurm-wlm"  # of one that is unpacked
    conf += [f"PluginDir={own}"] if own.is_dir() else []
    (tmp_path / "slurm.conf").write_text("\n".join(conf) + "\n")
    script = tmp_path / "job.sh"
    words = [*recipe.split(), "--nodes", "4", "--gpus", "8", "--slurm"]
    script.write_text(printed(capsys, *words))
    done = subprocess.run(
        [sbatch, "-vv", "--test-only", script],
        env=os.environ | {"SLURM_CONF": str(tmp_path / "slurm.conf")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    pairs = [line.partition(": ")[2].split(": ") for line in done.stderr.splitlines()]
    read = {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}
    assert read["nodes"] == "4"
    assert read["gpus-per-node"] == "8"
    assert read["ntasks-per-node"] == ("8" if recipe == "quickstart" else "1")
    assert read["job-name"] == "quickstart"
    assert read["output"] == str(tmp_path / "quickstart-%j.txt")
    assert "nrecognized" not in done.stderr


def unknown_fields(value: Any, kind: str, models: Any, path: str) -> Iterator[str]:
    """What of *value* the class *kind* of the client for Kubernetes does not know."""
    if kind.startswith("list["):
        for index, one in enumerate(value):
            yield from unknown_fields(one, kind[5:-1], models, f"{path}[{index}]")
    elif kind.startswith("dict("):
        if not isinstance(value, dict):
            yield f"{path}: no mapping"
    elif (model := getattr(models, kind, None)) is not None:
        types = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
        for name, one in value.items():
            if name in types:
                yield from unknown_fields(one, types[name], models, f"{path}.{name}")
            else:
                yield f"{path}.{name}: unknown"
    elif not isinstance(value, {"str": str, "int": int, "bool": bool}.get(kind, object)):
        yield f"{path}: no {kind}"


@pytest.mark.ci
@pytest.mark.parametrize("recipe", ["quickstart", DIVIDED])
def test_kubernetes_knows_the_fields(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the classes of its own client, which has those of its interface."""
    client = pytest.importorskip("kubernetes.client", reason="needs: pip install kubernetes")
    yaml = pytest.importorskip("yaml")
    words = [*recipe.split(), *"--nodes 3 --gpus 4 --kubernetes --image q:1".split()]
    service, job = yaml.safe_load_all(printed(capsys, *words))
    assert (service["apiVersion"], job["apiVersion"]) == ("v1", "batch/v1")
    assert [*unknown_fields(service, "V1Service", client, "service")] == []
    assert [*unknown_fields(job, "V1Job", client, "job")] == []
    job["spec"]["template"]["spec"]["replicas"] = "3"
    assert [*unknown_fields(job, "V1Job", client, "job")] == [
        "job.spec.template.spec.replicas: unknown"
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("quickstart", "--slurm, --kubernetes or --torchrun"),
        ("quickstart --torchrun", "--host"),
        ("quickstart --kubernetes", "--image"),
        ("quickstart --slurm --name A_b", "cannot be that of a job"),
        ("quickstart --slurm --set learner.rl=1", "learner.rl"),
        ("missing.toml --slurm", "missing.toml"),
        ("quickstart --slurm --set engine.use=vllm-server", "cluster.args.learn"),
        (f"{DIVIDED} --slurm --set cluster.args.learn=9", "learn = 9, and there are 8"),
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
