"""The recipes for KubeRay and Slurm of docs/laptop-to-cluster.md, as far as they can be checked
without either.

`kuberay_fields.json` has the names and types of the fields of a RayJob of KubeRay 1.7 (``ray.io/v1``,
its custom resource definition) along the path that the page takes, with their siblings.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe

from .pages import ROOT, page

PAGE = page("docs/laptop-to-cluster.md")
FIELDS = json.loads((Path(__file__).parent / "kuberay_fields.json").read_text())
TYPES: dict[str, Any] = {
    "boolean": bool, "integer": int, "number": (int, float), "string": str, "object": dict,
    "map": dict, "any": object,
}  # fmt: skip


def faults(value: Any, known: Any, path: str) -> Iterator[str]:
    """What of *value* its definition does not know."""
    if isinstance(known, list):
        if not isinstance(value, list):
            yield f"{path}: no list"
        else:
            for index, one in enumerate(value):
                yield from faults(one, known[0], f"{path}[{index}]")
    elif isinstance(known, dict):
        for name in known["required"]:
            if name not in value:
                yield f"{path}.{name}: missing"
        for name, one in value.items():
            if name not in known["fields"]:
                yield f"{path}.{name}: unknown"
            else:
                yield from faults(one, known["fields"][name], f"{path}.{name}")
    elif not isinstance(value, TYPES[known]) or (known == "integer" and isinstance(value, bool)):
        yield f"{path}: no {known}"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    yaml: Any = pytest.importorskip("yaml")
    (block,) = [b for b in PAGE.blocks if "kind: RayJob" in b.text]
    read: dict[str, Any] = yaml.safe_load(block.text)
    return read


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> RunPlan:
    """That of the last recipe of the page."""
    folder = tmp_path_factory.mktemp("recipes")
    for block in PAGE.blocks:
        if block.file:
            (folder / block.file).write_text(block.text)
    return RunPlan.of(Recipe.load(folder / "ray.toml"))


def test_the_job_has_fields_of_kuberay(job: dict[str, Any]) -> None:
    assert job["apiVersion"] == "ray.io/v1"
    assert job["kind"] == "RayJob"
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    assert [*faults(job["spec"], FIELDS, "spec")] == []
    broken = copy.deepcopy(job["spec"])
    cluster = broken["rayClusterSpec"]
    cluster["workerGroupSpecs"][0]["groupname"] = cluster["workerGroupSpecs"][0].pop("groupName")
    cluster["enableInTreeAutoscaling"] = "true"
    assert [*faults(broken, FIELDS, "spec")] == [
        "spec.rayClusterSpec.enableInTreeAutoscaling: no boolean",
        "spec.rayClusterSpec.workerGroupSpecs[0].groupName: missing",
        "spec.rayClusterSpec.workerGroupSpecs[0].groupname: unknown",
    ]


def test_the_nodes_of_the_job_have_room_for_the_recipe(job: dict[str, Any], plan: RunPlan) -> None:
    """Ranks and episode processes have nodes of their own, and none is on that of the run."""
    assert plan.cluster is not None
    ranks, episodes = (
        plan.learner.component["args"]["ranks"],
        plan.services["episodes"].args["processes"],
    )
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    room = {}
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        cpus = int(group["rayStartParams"].get("num-cpus", limits["cpu"]))
        room[cpus, limits.get("nvidia.com/gpu", 0)] = group["maxReplicas"]
    assert room[1, 1] == ranks
    assert room[2, 0] * 2 >= episodes


def test_the_versions_are_those_of_the_constraints(job: dict[str, Any]) -> None:
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]


def test_both_start_a_run_of_the_recipe(job: dict[str, Any]) -> None:
    _, _, line = shlex.split(job["spec"]["entrypoint"])
    (script,) = [b.text for b in PAGE.blocks if "symmetric-run" in b.text]
    for text in (line, script.replace("\\\n", "")):
        assert "cd /shared" in text
        assert text.strip().endswith("quintain train ray.toml --name cluster")


@pytest.mark.slow
def test_the_script_for_slurm_starts_ray(tmp_path: Path) -> None:
    """It is bash, and Ray's command takes its options."""
    pytest.importorskip("ray")
    from ray.scripts.scripts import start
    from ray.scripts.symmetric_run import curate_and_validate_ray_start_args, symmetric_run

    (script,) = [b.text for b in PAGE.blocks if "symmetric-run" in b.text]
    for name, text in (
        ("scontrol", "printf 'node1\\nnode2\\n'"),
        ("srun", "shift; printf '%s\\n' \"$@\""),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    done = subprocess.run(
        ["bash", "-c", script.replace("cd /shared", "cd /")],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", **slurm},
        capture_output=True,
        text=True,
        check=True,
    )
    ray, command, *words = done.stdout.splitlines()
    assert ray == "ray"
    assert command == "symmetric-run"
    given = symmetric_run.make_context("symmetric-run", [*words]).params
    assert given["address"] == "node1:6379"
    assert given["min_nodes"] == 2
    options = curate_and_validate_ray_start_args(words[: words.index("--")])
    node = start.make_context("start", [*options]).params
    assert node["num_cpus"] == 16
    assert node["num_gpus"] == 1
