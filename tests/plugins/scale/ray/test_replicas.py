"""Replicas of a pool on a real Ray, whose nodes are raylets of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from quintain import Sampled, Sampling, Weights
from quintain.console.screen import Screen
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder
from quintain_engines.placed import PlacedServer
from quintain_scale.schedules import EnginePool

from ....core.models.tiny import save_tiny
from ....integration.kills import check_history
from ....processes import ended, within
from ...learners.fsdp.test_learner import assert_equal
from ..schedules.process_replica import SERVER, ProcessReplica
from ..schedules.replica_server import token
from . import test_ranks
from .placed_replica import PlacedReplica
from .test_ranks import NODE, command_of, node_of, parent, processes

ray = pytest.importorskip("ray", reason="needs Ray: pip install ray")

WAITING = Path(__file__).parents[3] / "integration" / "waiting.py"
STEPS = 9
nodes = test_ranks.nodes


def kit(kind: type[ProcessReplica]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def recipe_of(model: Path, kind: type[ProcessReplica], **tables: Any) -> Recipe:
    pool = {"engine": kit(kind), "count": 2, "backoff": 0.0, "restarts": 100}
    return Recipe.of(
        {
            # the log-probs are made up; the weights of the replicas are compared before each update
            "run": {"steps": STEPS, "max_sample_mismatch": 20.0},
            "model": {"name": str(model), "device": "cpu"},
            "environments": [{"use": f"{WAITING}:TwoTurns", "args": {"size": 7}}],
            "algorithm": {"use": "dr_grpo", "args": {"plan": {}}},
            "engine": {"use": "pool", "args": pool},
            "sampling": {"max_tokens": 8},
            "batch": {"prompts": 3, "group_size": 2},
            "learner": {"lr": 3e-3},
            "evaluation": {"every": 0, "test": {"tasks": 0}},
            "checkpoint": {"every": STEPS, "keep": 1},
            **tables,
        }
    )


def train(place: Path, recipe: Recipe) -> RunFolder:
    RunFolder.create(place, recipe.to_toml()).close()
    with RunFolder.open(place) as folder:
        run_training(recipe, folder, Screen(quiet=True))
    assert check_history(place, max_staleness=0)["abandoned"] == 0
    return RunFolder(place, lock=False)


def rollouts(folder: RunFolder) -> list[Any]:
    """What was trained on: tokens and versions of each rollout."""
    rows = [row for step in range(1, STEPS + 1) for row in folder.read_rollouts(step)]
    names = ("group", "sample", "task_id", "token_ids", "token_versions")
    return [[row[name] for name in names] for row in rows]


def weights(folder: RunFolder) -> dict[str, Any]:
    (file,) = (folder.path / f"checkpoints/step-{STEPS:06d}/model").glob("*.safetensors")
    return load_file(file)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Sampled]]:
    """When each turn ended, and its reply, whose tokens are checked at once."""
    given: list[tuple[float, Sampled]] = []
    sample = EnginePool.sample

    async def checked(self: EnginePool, ids: Sequence[int], sampling: Sampling) -> Sampled:
        began = self.version
        reply = await sample(self, ids, sampling)
        new: list[int] = []
        for version in reply.versions:
            content = ProcessReplica.contents[version]
            new.append(token([*ids, *new], sampling.seed or 0, content))
        assert new == list(reply.ids), "a token of other weights than its version says"
        assert min(reply.versions) >= began, "a stale replica sampled"
        given.append((time.monotonic(), reply))
        return reply

    monkeypatch.setattr(EnginePool, "sample", checked)
    ProcessReplica.contents.clear()
    PlacedReplica.servers.clear()
    return given


@pytest.mark.ci
def test_replicas_are_lost_while_a_run_trains(
    nodes: Any, tmp_path: Path, turns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a server, its actor and its node, in turns, then both servers: rollouts and weights are those of
    servers of this machine, bit for bit. Nothing stays. With ``-s`` it says how long the run waited.
    """
    three = [nodes.add_node(num_cpus=1, **NODE) for _ in range(3)]
    model = save_tiny(tmp_path / "model", context=256)
    local = train(tmp_path / "local", recipe_of(model, ProcessReplica))
    ProcessReplica.contents.clear()
    turns.clear()
    losses: list[tuple[str, float]] = []
    update = EnginePool.update

    def lose(server: PlacedServer) -> None:
        """Returns when the process of *server* has ended: that of a lost node lives for a while."""
        how = ("process", "actor", "node", "both")[len(losses)]
        actor, lost = parent(parent(server.pid)), [server]
        assert command_of(actor).startswith("ray::ProcessActor")
        if how == "process":
            os.kill(server.pid, signal.SIGKILL)
        elif how == "actor":
            os.kill(actor, signal.SIGKILL)
        elif how == "node":
            (node,) = (node for node in three if node.node_id == node_of(actor))
            nodes.remove_node(node, allow_graceful=False)
        else:  # the first one of all has not been lost yet
            lost.append(PlacedReplica.servers[0])
            for one in lost:
                os.kill(one.pid, signal.SIGKILL)
        assert within(60, lambda: all(ended(one.pid) for one in lost))
        losses.append((how, time.monotonic()))

    async def then_lose(self: EnginePool, new: Weights) -> int:
        """Every other update finds both replicas there again, and then a server is lost."""
        version = await update(self, new)
        supervisor = self._supervisor
        if version in (1, 3, 5, 7):
            lose(PlacedReplica.servers[-1])
            return version
        while len(supervisor.up()) < 2 or any(  # noqa: ASYNC110 -- another process is waited for
            replica._server.is_gone for replica in supervisor.replicas.values()
        ):
            await asyncio.sleep(0.05)
        return version

    monkeypatch.setattr(EnginePool, "update", then_lose)
    cluster = {"use": "ray", "args": {"address": nodes.address}}
    placed = train(tmp_path / "placed", recipe_of(model, PlacedReplica, cluster=cluster))

    assert rollouts(placed) == rollouts(local)
    assert_equal(weights(placed), weights(local))
    assert [how for how, _ in losses] == ["process", "actor", "node", "both"]
    waits = [min(ended - when for ended, _ in turns if ended > when) for _, when in losses]
    print(f"\nthe next turn ended {waits} s after a loss")
    assert len(PlacedReplica.servers) == 7
    assert within(30, lambda: all(ended(server.pid) for server in PlacedReplica.servers))
    states: dict[int, list[str]] = {}
    for record in placed.replicas():
        states.setdefault(record["replica"], []).append(record["state"])
    for one in states.values():
        for before, after in pairwise(one):
            assert after != "healthy" or before == "stale"
    assert sum(one.count("dead") for one in states.values()) == 5


@pytest.mark.ci
def test_servers_end_with_a_run_that_is_killed(nodes: Any, tmp_path: Path) -> None:
    nodes.add_node(num_cpus=2, **NODE)
    model = save_tiny(tmp_path / "model", context=256)
    cluster = {"use": "ray", "args": {"address": nodes.address}}
    endless = {"run": {"steps": 10_000, "max_sample_mismatch": 20.0}}
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_of(model, PlacedReplica, cluster=cluster, **endless).to_toml())
    words = ["-m", "quintain", "train", str(recipe), "-q", "--name", "killed"]
    root = str(Path(__file__).parents[4])
    run = subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}
    )
    metrics = tmp_path / "runs/killed/metrics.jsonl"
    assert within(300, lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
    servers = [p for p in processes() if f" -S -E {SERVER} " in command_of(p)]
    placed = [p for p in servers if command_of(parent(parent(p))).startswith("ray::ProcessActor")]
    assert len(placed) == 2
    run.kill()
    run.wait()
    assert within(60, lambda: all(map(ended, placed)))
