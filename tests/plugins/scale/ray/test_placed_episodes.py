"""Episode processes on a real Ray, whose nodes are raylets of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.errors import UsageError
from quintain.recipe import Recipe, RunPlan
from quintain.recipe.extends import bundled_text
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain.services import started_services
from quintain.types import AnyGroup
from quintain_scale.ray import Ray
from quintain_scale.workers import EpisodeProcesses

from ....processes import ended
from ....small_run import small_recipe
from ....tools import load_tool
from ...learners.fsdp.test_run import SUMS
from ..workers.test_episodes import Draws, Played, opened
from .sandbox_environment import PROGRAM
from .test_ranks import NODE, command_of, nodes, parent, processes

ray = pytest.importorskip("ray", reason="needs Ray: pip install ray")

__all__ = ["nodes"]  # the fixture
FILE = Path(__file__).parent / "sandbox_environment.py"
KINDS = ("process", "watcher", "actor", "node")
GUARD = 120.0
"""Seconds after which a test that waits has failed."""


def ancestors(pid: int) -> list[int]:
    found = []
    while (pid := parent(pid)) > 1:
        found.append(pid)
    return found


def nodes_of(pids: Sequence[int]) -> list[str]:
    """The ids of the nodes on which processes run."""
    raylets = {
        pid: node["NodeID"]
        for node in ray.nodes()
        for pid in processes()
        if f"--raylet_socket_name={node['RayletSocketName']} " in command_of(pid)
    }
    return [next(raylets[one] for one in ancestors(pid) if one in raylets) for pid in pids]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD):
        while not condition():  # noqa: ASYNC110 - processes of the system tell nobody
            await asyncio.sleep(0.05)


@pytest.mark.ci
def test_a_run_is_the_same_on_two_nodes(
    nodes: Any, small_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, rollouts and weights, bit for bit. The learner needs no ranks for it."""
    evaluated = "every = 1\ntasks = 3\ntest = { tasks = 3 }"
    folder = small_run(small_recipe(SUMS, steps=2, evaluation=evaluated), context=1024)
    for _ in range(2):
        nodes.add_node(num_cpus=1, **NODE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    assert main("train recipe.toml -q --name here".split()) == 0
    words = "--set workers.episodes=2 --set cluster.use=ray"
    assert main(f"train recipe.toml -q --name placed {words}".split()) == 0
    digests = load_tool("digests")
    here, placed = folder / "runs/here", folder / "runs/placed"
    assert [*digests.measured(placed)] == [*digests.measured(here)]
    assert [*digests.sampled(placed)] == [*digests.sampled(here)]
    assert digests.weights(placed) == digests.weights(here)


@pytest.mark.ci
def test_a_lost_process_watcher_actor_and_node_cost_no_episode(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is killed while its episodes wait for the engine. All are scored once, and none is zero.
    Another process takes the place, where the cluster has room for it. None is left at the end.
    """
    pair = [nodes.add_node(num_cpus=1, **NODE) for _ in range(2)]
    monkeypatch.chdir(tmp_path)
    cluster = Ray(address=nodes.address)
    used: set[int] = set()

    async def killed(kind: str, played: Played) -> None:
        pid = played.pids[0]
        if kind == "node":
            lost = next(node for node in pair if node.node_id == nodes_of([pid])[0])
            nodes.add_node(num_cpus=1, **NODE)  # in the main thread, since it sets signals
            await asyncio.to_thread(nodes.remove_node, lost, allow_graceful=False)
            return
        tree = [pid, *ancestors(pid)]
        if kind == "actor":
            (victim,) = [one for one in tree if command_of(one).startswith("ray::ProcessActor")]
        else:
            victim = tree[KINDS.index(kind)]
        assert ("quintain_scale.workers.join" in command_of(victim)) == (kind == "watcher")
        os.kill(victim, signal.SIGKILL)

    async def run() -> dict[str, list[AnyGroup]]:
        groups = {}
        args = {"folder": str(tmp_path)}
        async with opened("Deadly", args, cluster=cluster) as played:
            assert len(set(nodes_of(played.pids))) == 2
            for kind in KINDS:
                used.update(played.pids)
                asked, deaths = played.engine.asked, played.processes.deaths
                played.engine.hold = True
                running = asyncio.create_task(played.run(10, 2))
                await until(lambda: played.engine.asked == asked + 20)  # noqa: B023
                await killed(kind, played)
                await until(lambda: played.processes.deaths == deaths + 1)  # noqa: B023
                played.engine.hold = False
                groups[kind] = await running
                assert played.engine.asked > asked + 20  # some were played again
                await until(lambda: len(played.pids) == 2)
            assert len(set(nodes_of(played.pids))) == 2
            used.update(played.pids)
        return groups

    for groups in asyncio.run(run()).values():
        rollouts = [r for group in groups for r in group.rollouts]
        assert [(r.group, r.sample) for r in rollouts] == [
            (g, s) for g in range(10) for s in (0, 1)
        ]
        assert [(r.valid, r.total) for r in rollouts] == [(True, 1.0)] * 20
    cluster.close()
    assert len(used) == 6
    assert all(map(ended, used))


@pytest.mark.ci
def test_sandboxes_are_placed_with_the_episode_processes(nodes: Any) -> None:
    """Each process starts the services of its environment, so that programs run on both nodes."""
    for _ in range(2):
        nodes.add_node(num_cpus=1, **NODE)
    sandbox = {"use": "rlimits", "args": {"allow_unsafe": True, "enforce": []}}
    plan = RunPlan.of(
        Recipe.of({"environments": [{"use": f"{FILE}:Sleeps"}], "services": {"sandbox": sandbox}})
    )
    cluster, engine = Ray(address=nodes.address), Draws()

    async def run() -> tuple[list[AnyGroup], set[int], set[int]]:
        workers = EpisodeProcesses(policy=engine, processes=2)
        available = {"policy": engine}
        async with started_services(plan.services, set(plan.slots), available) as services, workers:
            environment = plan.tasks.environments[0].make(services)
            await workers.open(plan, [environment], services, cluster)
            (team,) = workers.teams
            pids = {process.pid for process in team.live}
            assert len(set(nodes_of([*pids]))) == 2
            requests = [
                RolloutRequest(environment=environment, task=task, group_size=4, name="t", index=i)
                for i, task in enumerate(environment.tasks("train"))
            ]
            context = RolloutContext(engine=engine, play=workers.play)
            running = asyncio.create_task(run_groups(requests, context))
            command = " ".join(PROGRAM)

            def programs() -> list[int]:
                return [pid for pid in processes() if command_of(pid).strip() == command]

            await until(lambda: len(programs()) >= 2 or running.done())
            await asyncio.sleep(1.0)
            above = {one for pid in programs() for one in ancestors(pid)}
            return await running, pids, above

    groups, pids, above = asyncio.run(run())
    cluster.close()
    assert pids <= above
    assert [r.total for g in groups for r in g.rollouts] == [1.0] * 8


def test_episodes_are_reason_enough_for_a_cluster() -> None:
    """With a learner that starts no ranks."""

    def plan(*settings: str) -> RunPlan:
        return RunPlan.of(Recipe.parse(bundled_text("quickstart"), settings))

    assert plan("cluster.use=ray", "workers.episodes=2").cluster is not None
    with pytest.raises(UsageError, match=r"starts none there.*set workers\.episodes"):
        plan("cluster.use=ray")
