"""The recipe `search`: demonstrations, rollouts and evaluation call the real MCP server, a process
of its own.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quintain import Reply, ToolCall
from quintain.errors import InfrastructureError
from quintain.evaluation import evaluate
from quintain_authoring import ScriptedEngine
from quintain_env_search import Search, SearchServer
from quintain_tools.mcp import Mcp, McpServer

from ..plugins.tools.mcp.servers import processes_of
from .recipes import held_out, recipe_run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


TINY = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=32}"


@pytest.mark.more
@pytest.mark.usefixtures("no_curves")
def test_two_steps_through_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One update on demonstrations, then two on rewards; calls reach the server, whose tools are in
    the checkpoint.
    """
    called: list[str] = []
    from quintain_tools.mcp.client import McpSession

    call = McpSession.call

    async def counted(
        self: McpSession, name: str, arguments: Mapping[str, Any] | None = None
    ) -> Any:
        result = await call(self, name, arguments)
        called.append(name)
        return result

    monkeypatch.setattr(McpSession, "call", counted)
    changes = [
        f"model.start.args={{max_steps=1, check_every=1, batch=2, tasks=2, model={TINY}}}",
        "model.device=cpu",
        "environments.0.args.pilots=100",
        "services.retriever.args={pilots=100}",
        "run.steps=2",
        "sampling.max_tokens=4",
        "batch={prompts=2, group_size=2}",
        "evaluation={every=2, tasks=2, test={tasks=2}}",
    ]
    _, records = recipe_run("search", tmp_path / "run", changes)
    assert [record["step"] for record in records] == [0, 1, 2]
    assert [record["failed"] for record in records[1:]] == [0.0, 0.0]
    assert all(math.isfinite(record["reward.mean"]) for record in records[1:])
    assert called.count("open") == 2, "one episode compares the corpus of each server"
    assert called.count("search") >= 0.7 * 256, "the warm start shuffles 256 demonstrations"
    states = [
        p.read_text() for p in sorted((tmp_path / "run" / "checkpoints").glob("*/state.json"))
    ]
    assert states
    assert all('"search"' in state and '"open"' in state for state in states)


@pytest.mark.slow
def test_the_default_model_learns_to_search(tmp_path: Path) -> None:
    """`quintain train search` with a cold cache: held-out success rises by 25 points."""
    _, records = recipe_run("search", tmp_path / "run", ["evaluation.test.tasks=20"])
    curve = held_out(records)
    assert curve[0] < 0.7
    assert max(curve[-2:]) >= curve[0] + 0.25, curve


def squad(path: Path) -> Path:
    """Five articles with one paragraph and one question each, in the format of SQuAD."""
    articles = []
    for i, city in enumerate(("Rome", "Oslo", "Lima", "Kyiv", "Cork")):
        question = {
            "id": str(i),
            "question": f"Which city has number {i}?",
            "answers": [{"text": city}],
        }
        articles.append(
            {
                "title": f"T{i}",
                "paragraphs": [{"context": f"{city} has number {i}.", "qas": [question]}],
            }
        )
    path.write_text(json.dumps({"data": articles}))
    return path


def test_a_server_that_dies_is_a_failure_and_no_zero(tmp_path: Path) -> None:
    """The episode before its death scores 1, the one after it has no outcome and counts as
    failed.
    """
    data = squad(tmp_path / "squad.json")
    command = (sys.executable, "-m", "quintain_env_search", "--data", str(data))
    server = McpServer(command=command, restarts=0, pass_env=("QUINTAIN_CACHE",))

    async def play() -> Any:
        async with Mcp(servers={"search": server}) as mcp:
            environment = Search(data=str(data), search=mcp)
            task = next(iter(environment.tasks("dev")))
            search = Reply(
                text="", calls=(ToolCall(name="search", arguments={"query": task.prompt}),)
            )
            replies = [search, f"<answer>{task.answer}</answer> [{task.hops[-1].passage}]"]

            async def episode() -> Any:
                engine = ScriptedEngine(replies=replies)
                return await evaluate(
                    environment, engine, split="dev", tasks=[task], services={"retriever": mcp}
                )

            before = await episode()
            for pid in processes_of(str(data)):
                os.kill(pid, signal.SIGKILL)
            return before, await episode()

    before, after = asyncio.run(play())
    assert before.groups[0].rollouts[0].outcome.total == 1.0
    (rollout,) = after.groups[0].rollouts
    assert rollout.termination.kind == "infrastructure_error"
    assert not rollout.valid
    assert rollout.outcome is None
    assert after.accuracy is None


@pytest.mark.more
def test_each_episode_has_a_session_of_its_own() -> None:
    """One for each attempt, left when the episode ends, whether or not the policy called a tool."""
    events: list[str] = []

    class Counted(SearchServer):
        @asynccontextmanager
        async def session(self, *servers: str) -> AsyncIterator[Any]:
            events.append("enter")
            try:
                async with super().session(*servers) as session:
                    yield session
            finally:
                events.append("leave")

    async def play() -> Any:
        async with Counted(pilots=100) as mcp:
            environment = Search(pilots=100, search=mcp)
            tasks = list(environment.tasks("dev"))[:3]
            engine = ScriptedEngine(replies="<answer>unknown</answer>")
            return await evaluate(
                environment, engine, split="dev", tasks=tasks, services={"retriever": mcp}
            )

    done = asyncio.run(play())
    assert done.accuracy.value == 0.0
    assert 3 == events.count("enter") == events.count("leave")


@pytest.mark.more
def test_a_server_that_does_not_start_refuses_the_run(tmp_path: Path) -> None:
    """Its corpus is missing: no step is taken, and the error names the file."""
    changes = [
        f"services.retriever.args={{data={json.dumps(str(tmp_path / 'gone.json'))}}}",
        "run.steps=1",
    ]
    with pytest.raises(InfrastructureError, match=r"gone\.json"):
        recipe_run("search", tmp_path / "run", changes)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
