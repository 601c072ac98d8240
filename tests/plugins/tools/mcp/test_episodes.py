"""Episodes with tools of MCP servers: pooled sessions, retries, a run with its checkpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Limits, Reply, Task, ToolCall, reward
from quintain.console.screen import Screen
from quintain.errors import UsageError
from quintain.recipe.tables import Recipe
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder
from quintain_authoring import ScriptedEngine
from quintain_tools.mcp import Mcp, McpServer

from ....core.models.tiny import save_tiny
from .servers import BARE_SERVER, processes_of

BARE = McpServer(command=BARE_SERVER, session="episode", pool=4)
EPISODES = 32
EVALUATION = "evaluation={tasks=1, test={tasks=1}}"


@reward(range=(0, 1))
def nothing(rollout: Any) -> float:
    return 0.0


class Notes(Environment[Task, str]):
    """The policy keeps a note with its own name, and reads all notes."""

    reward = nothing
    limits = Limits(turns=3, seconds=300)
    mcp: Mcp
    path: str = ""

    def tasks(self, split: str) -> list[Task]:
        return [Task(id="t", prompt="Keep a note.")]

    async def rollout(self, task: Task, agent: Any) -> str:
        agent.user(task.prompt)
        async with self.mcp.session() as session:
            await agent.run(*session.choose("note", "recall"))
        return str(agent.messages[-2].content)


def script(messages: Any, rng: Any) -> Reply:
    """A note with a name of its own, then what the server knows."""
    taken = sum(m.role == "assistant" for m in messages)
    if taken == 2:
        return Reply(text="done")
    value = {"value": f"n{rng.random()}"} if taken == 0 else {}
    return Reply(calls=(ToolCall(name=("note", "recall")[taken], arguments=value, id="c"),))


async def many(
    mcp: Mcp, marker: str, engine: Any = None, environment: Any = None, **settings: Any
) -> Any:
    """Run `EPISODES` at once; the rollouts, and the largest number of servers that ran."""
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(processes_of(marker, without="guard_main.py")))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    request = RolloutRequest(
        environment=environment or Notes(mcp=mcp),
        task=Task(id="t", prompt="x"),
        group_size=EPISODES,
    )
    context = RolloutContext(
        engine=engine or ScriptedEngine(replies=script), concurrency=EPISODES, **settings
    )
    (group,) = await run_groups([request], context)
    watching.cancel()
    return group.rollouts, most


@pytest.mark.keeps("forget")
@pytest.mark.parametrize("reset", ["", "forget"])
def test_many_episodes_share_a_small_pool(reset: str, tmp_path: Path) -> None:
    """32 episodes at once have at most 4 servers, each sees its own note alone, and nothing is
    left.
    """
    server = dataclasses.replace(BARE, command=(*BARE_SERVER, str(tmp_path)), reset=reset)

    async def run() -> None:
        async with Mcp(servers={"notes": server}) as mcp:
            rollouts, most = await many(mcp, str(tmp_path))
        pids = []
        for rollout in rollouts:
            assert rollout.valid, rollout.termination
            note = rollout.turns[0].calls[0].arguments["value"]
            pid, kept = rollout.result.split()
            assert note == kept
            pids.append(pid)
        assert 0 < most <= 4
        assert len(set(pids)) <= 4 if reset else len(set(pids)) == EPISODES

    asyncio.run(run())
    assert not processes_of(str(tmp_path))


def test_episodes_with_two_servers_do_not_wait_for_one_another() -> None:
    """Each has a pool of one, and episodes call them in either order."""
    servers = {
        name: dataclasses.replace(BARE, pool=1, prefix=f"{name}_", reset="forget")
        for name in ("a", "b")
    }

    async def play(mcp: Mcp, order: str) -> None:
        async with mcp.session() as session:
            for name in order:
                assert not (await session.call(f"{name}_note", {"value": order})).failed
            for name in order:
                assert (await session.call(f"{name}_recall")).text.endswith(f" {order}")

    async def run() -> None:
        async with Mcp(servers=servers) as mcp, asyncio.timeout(60):
            await asyncio.gather(*(play(mcp, order) for order in ("ab", "ba") * 6))

    asyncio.run(run())


class Crashing(Notes):
    async def rollout(self, task: Task, agent: Any) -> str:
        async with self.mcp.session() as session:
            path = f"{self.path}/{agent.rng.random()}"
            await session.call("note", {"value": "kept"})
            await session.call("crash_once", {"value": path})
            return (await session.call("recall")).text


def test_an_episode_whose_server_died_is_tried_again_with_a_new_one(tmp_path: Path) -> None:
    """The second attempt of each knows nothing of the first."""

    async def run() -> None:
        async with Mcp(servers={"notes": dataclasses.replace(BARE, pool=8, restarts=100)}) as mcp:
            environment = Crashing(mcp=mcp, path=str(tmp_path))
            request = RolloutRequest(
                environment=environment, task=Task(id="t", prompt="x"), group_size=8
            )
            (group,) = await run_groups(
                [request], RolloutContext(engine=ScriptedEngine(), retries=1)
            )
        for rollout in group.rollouts:
            assert rollout.valid, rollout.termination
            assert rollout.termination.attempts == 2
            assert rollout.result.endswith(" kept")

    asyncio.run(run())


ENVIRONMENT = """
from quintain import Environment, Limits, Task, need, reward
from quintain_tools.mcp import Mcp

@reward(range=(0, 1))
def short(rollout):
    return 1 / (1 + len(rollout.turns[-1].text))

class Asks(Environment[Task, str]):
    reward = short
    limits = Limits(turns=2)
    mcp: Mcp = need()

    def tasks(self, split):
        return [Task(prompt=f"Say {i} in {split}.") for i in range(8)]

    async def rollout(self, task, agent):
        agent.user(task.prompt)
        async with self.mcp.session() as session:
            await agent.run(*session.choose("note"))
            return (await session.call("recall")).text.split()[-1]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_run_keeps_to_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run with a random model; resumed with other tools it is refused, with the same ones it
    resumes.
    """
    (tmp_path / "asks.py").write_text(ENVIRONMENT)
    model = save_tiny(tmp_path / "tiny", context=1024)
    recipe = Recipe.parse(
        f"""
        environments = [{{ use = "{tmp_path}/asks.py:Asks" }}]
        [model]
        name = {json.dumps(str(model))}
        device = "cpu"
        [services.mcp]
        use = "mcp"
        [services.mcp.args.servers.notes]
        command = {json.dumps(list(BARE_SERVER))}
        tools = ["note", "recall"]
        pass_env = ["NOTE_TEXT"]
        """,
        ["run.steps=1", "sampling.max_tokens=4", "batch={prompts=1, group_size=2}", EVALUATION],
    )

    def train(steps: int) -> dict[str, Any]:
        with RunFolder.open(tmp_path / "run") as folder:
            return run_training(
                recipe.replace({"run": {"steps": steps}}), folder, Screen(quiet=True)
            )

    monkeypatch.setenv("NOTE_TEXT", "Keep a note.")
    with RunFolder.create(tmp_path / "run", recipe.to_toml()) as folder:
        run_training(recipe, folder, Screen(quiet=True))
    monkeypatch.setenv("NOTE_TEXT", "Obey me.")
    with pytest.raises(
        UsageError,
        match=r"'notes' are not those with which the run began \(changed: 'note', 'recall'\)",
    ):
        train(2)
    monkeypatch.setenv("NOTE_TEXT", "Keep a note.")
    train(2)
    assert [m["step"] for m in RunFolder.open(tmp_path / "run", lock=False).metrics()] == [0, 1, 2]
