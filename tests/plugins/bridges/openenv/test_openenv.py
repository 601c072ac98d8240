"""OpenEnv both ways: our client and server with each other, and with OpenEnv's own.

What needs OpenEnv itself runs where QUINTAIN_OPENENV_PYTHON names an interpreter that has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from quintain import Agent, Environment, Limits, Reply, Rollout, Score, Task, ToolCall, reward
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ScriptedEngine, run_episode
from quintain_bridges.openenv import OpenEnv
from quintain_bridges.openenv.server import OpenEnvServer, TurnAction

HERE = Path(__file__).parent


@reward
def counted(rollout: Rollout[Task, int]) -> Score:
    if rollout.result < 0:
        raise ValueError("the reward is broken")
    return Score(value=float(rollout.result), players={"second": 0.5})


class Count(Environment[Task, int]):
    """Counts turns that say more, of two players, with a tool."""

    reward, limits, system = counted, Limits(turns=6), "Say more."

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt=f"{split} {n}") for n in range(4)]

    async def rollout(self, task: Task, agent: Agent) -> int:
        total = 0

        def more(by: int) -> str:
            """Say more."""
            nonlocal total
            total += by
            return f"{total} so far"

        agent.user(task.prompt)
        last = await agent.run(more)
        if last.reply == "break":
            return -1
        second = agent.player("second")
        second.user("And you?")
        return total + len((await second.turn()).reply)


@asynccontextmanager
async def served(environment: Environment[Any, Any], **settings: Any) -> AsyncIterator[str]:
    """Serve *environment* and yield the address."""
    runner = web.AppRunner(OpenEnvServer(environment, name="count", **settings).app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def exchanged(url: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Send messages over one session and return the answers."""
    async with ClientSession() as client, client.ws_connect(f"{url}/ws") as socket:
        answers = []
        for message in messages:
            await socket.send_json(message)
            answers.append(await socket.receive_json(timeout=30))
        return answers


def step(**action: Any) -> dict[str, Any]:
    return {"type": "step", "data": {"message": "", **action}}


def test_a_client_plays_all_turns_and_gets_the_reward() -> None:
    """Turns of two players and results of a tool arrive; the end has the scores of both."""

    async def play() -> list[dict[str, Any]]:
        async with served(Count()) as url:
            return await exchanged(
                url,
                {"type": "reset", "data": {"split": "test", "index": 2, "episode_id": "e"}},
                step(tool_calls=[{"name": "more", "arguments": {"by": 3}}]),
                step(message="enough"),
                {"type": "state"},
                step(message="me too"),
                step(message="one more"),
            )

    first, second, third, state, end, after = asyncio.run(play())
    seen = first["data"]["observation"]
    assert [m["content"] for m in seen["messages"]] == ["Say more.", "test 2"]
    assert seen["tools"][0]["function"]["name"] == "more"
    assert first["data"]["reward"] is None
    assert second["data"]["observation"]["messages"][0]["content"] == "3 so far"
    assert second["data"]["observation"]["messages"][0]["role"] == "tool"
    assert third["data"]["observation"]["player"] == "second"
    assert state["data"] == {"episode_id": "e", "step_count": 2}
    assert end["data"]["done"] is True
    assert end["data"]["reward"] == 9.0
    assert end["data"]["metadata"]["players"] == {"second": 0.5}
    assert after["data"]["code"] == "EXECUTION_ERROR"


def test_verifiers_sends_a_reply_as_the_message() -> None:
    """Its taskset `openenv` makes an action of a reply by the schema of the server."""
    python = os.environ.get("QUINTAIN_VERIFIERS_PYTHON", "")
    if not python:
        pytest.skip("QUINTAIN_VERIFIERS_PYTHON names no interpreter with verifiers 0.4")
    program = (
        "import json, sys\n"
        "from verifiers.v1.tasksets.openenv.taskset import parse_action\n"
        "print(json.dumps(parse_action('Lima', json.loads(sys.argv[1]))))"
    )
    schema = TurnAction.model_json_schema()
    said = subprocess.run(
        [python, "-c", program, json.dumps(schema)], capture_output=True, text=True, check=True
    )
    assert json.loads(said.stdout.splitlines()[-1]) == {"message": "Lima"}
    assert schema["title"] not in {"Action", "CallToolAction", "ListToolsAction"}


def test_a_failure_of_the_environment_is_an_error_and_no_reward() -> None:
    """A reward that raises, a wrong action, a wrong split and what is no message are all errors,
    and the session goes on.
    """

    async def play() -> list[dict[str, Any]]:
        async with served(Count()) as url:
            return await exchanged(
                url,
                step(message="too early"),
                {"type": "reset", "data": {"split": "tests"}},
                {"type": "reset", "data": {"index": 9}},
                {"type": "reset", "data": {}},
                {"type": "step", "data": {"text": "x"}},
                {"type": "what"},
                step(message="break"),
                {"type": "reset", "data": {}},
            )

    answers = asyncio.run(play())
    codes = [a["data"].get("code", "") for a in answers]
    broken = ["EXECUTION_ERROR"] * 3
    assert codes == [*broken, "", "VALIDATION_ERROR", "UNKNOWN_TYPE", "EXECUTION_ERROR", ""]
    assert "the reward is broken" in answers[6]["data"]["message"]


def test_sessions_beyond_the_limit_are_refused_and_come_back() -> None:
    """The episodes of a recipe that asks for more sessions than the server has fail as
    infrastructure; one after the other they pass.
    """

    async def play(sessions: int, retries: int = 0) -> list[str]:
        async with served(Count(), sessions=1) as url:
            environment = OpenEnv(url=url, sessions=sessions, action="message")
            requests = [
                RolloutRequest(
                    environment=environment,
                    task=Task(prompt="x", id=f"t{n}"),
                    group_size=1,
                    index=n,
                )
                for n in range(4)
            ]
            for request in requests:
                object.__setattr__(request.task, "parameters", {"split": "test", "index": 0})
            context = RolloutContext(engine=ScriptedEngine(replies="y"), retries=retries)
            groups = await run_groups(requests, context)
            return [
                str(r.termination.kind) + r.termination.reason for g in groups for r in g.rollouts
            ]

    assert asyncio.run(play(1)) == ["finished"] * 4
    refused = [kind for kind in asyncio.run(play(4)) if kind != "finished"]
    assert refused
    assert all("1 of 1 sessions" in kind for kind in refused)
    assert all(kind.startswith("infrastructure_error") for kind in refused)


@pytest.fixture(scope="module")
def their_python() -> str:
    """An interpreter that has OpenEnv."""
    found = os.environ.get("QUINTAIN_OPENENV_PYTHON", "")
    if not found:
        pytest.skip("QUINTAIN_OPENENV_PYTHON names no interpreter with openenv 0.10")
    return found


@pytest.fixture(scope="module")
def their_server(
    their_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Starts one of `their_servers`, or the server that ``openenv init`` writes (``template``), and
    returns its address.
    """
    running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def start(kind: str) -> str:
        if kind not in running:
            port = 20000 + (os.getpid() * 7 + len(running)) % 20000
            command, folder = [their_python, str(HERE / "their_servers.py"), kind, str(port)], HERE
            if kind == "template":
                folder = tmp_path_factory.mktemp("openenv")
                tool = str(Path(their_python).with_name("openenv"))
                subprocess.run(
                    [tool, "init", "my_echo", "-o", str(folder)], check=True, capture_output=True
                )
                command = [their_python, "-m", "my_echo.server.app", "--port", str(port)]
            url = f"http://127.0.0.1:{port}"
            running[kind] = (subprocess.Popen(command, cwd=folder), url)
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5).close()
                    break
                except OSError:
                    assert running[kind][0].poll() is None
                    time.sleep(0.5)
        return running[kind][1]

    yield start
    for process, _ in running.values():
        process.terminate()
        process.wait(30)


def test_the_server_that_openenv_writes_is_an_environment(
    their_server: Callable[[str], str],
) -> None:
    """``openenv init`` writes an echo that pays a tenth for each letter, up to 1."""
    echo = OpenEnv(url=their_server("template"), observation="echoed_message", size=5)
    short = echo.overridden(limits=Limits(turns=3))
    played = run_episode(short, next(iter(echo.tasks("test"))), ["hello", "ten letters"])
    assert [m.content for m in played.messages][:3] == [
        "My Echo environment ready!",
        "hello",
        "hello",
    ]
    assert played.result.rewards == (0.5, 1.0, 1.0)
    assert played.outcome.total == 2.5


def test_their_server_is_an_environment(their_server: Callable[[str], str]) -> None:
    """Replies are actions, hints come back, and their reward is the score."""
    environment = OpenEnv(url=their_server("numbers"), size=10)
    (task,) = (t for t in environment.tasks("dev") if t.parameters["seed"] == 3)
    played = run_episode(environment, task, ["7", "1", "3"])
    assert [m.content for m in played.messages][2::2] == ["lower", "higher"]
    assert played.outcome.total == 1.0
    assert played.result.rewards == (0.0, 0.0, 1.0)
    assert played.result.done


def test_a_step_that_their_server_cannot_take_is_no_zero(
    their_server: Callable[[str], str],
) -> None:
    """An environment that raises is an error of it; an episode without a reward has none."""
    environment = OpenEnv(url=their_server("numbers"), size=10)
    task = next(iter(environment.tasks("dev")))
    kinds = [run_episode(environment, task, x).termination.kind for x in ("crash", "unscored")]
    assert kinds == ["environment_error", "reward_error"]
    wrong = OpenEnv(url=environment.url, action="words")
    played = run_episode(wrong, task, "1")
    assert played.termination.kind == "policy_fault"
    assert played.outcome.total == 0.0


def test_their_tasks_are_ours(their_server: Callable[[str], str]) -> None:
    """Splits and numbers of tasks are asked for, and a task is reset by split and index."""
    environment = OpenEnv(url=their_server("listed"))
    counts = {s: len(list(environment.tasks(s))) for s in ("train", "dev", "test")}
    assert counts == {"train": 8, "dev": 0, "test": 2}
    *_, last = environment.tasks("test")
    assert last.parameters == {"split": "held-out", "index": 1}
    assert run_episode(environment, last, "1").outcome.total == 1.0


def test_their_mcp_tools_are_tools(their_server: Callable[[str], str]) -> None:
    """A call is a step, whose result the policy reads; calls of one turn go one by one."""
    environment = OpenEnv(url=their_server("sums"), size=1)
    task = next(iter(environment.tasks("train")))
    calls = tuple(ToolCall(name="add", arguments={"a": 4, "b": b}) for b in (7, 1))
    played = run_episode(environment, task, [Reply(calls=calls), "done"])
    assert [c.result for c in played.turns[0].calls] == ["11", "5"]
    assert played.result.rewards == (1.0, 0.0)


def test_their_client_plays_our_server(their_python: str) -> None:
    """OpenEnv's own client, in its own interpreter, plays an environment of ours."""
    command = [sys.executable, "-m", "quintain", "openenv", "arithmetic", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[0]
        body = json.dumps({"split": "test", "index": 1}).encode()
        with urllib.request.urlopen(f"{url}/arithmetic/task", data=body, timeout=30) as answer:
            question = json.load(answer)["task"]["prompt"]
        a, _, b = question.split("=")[0].partition("+")
        script = [
            [{"split": "test", "index": 1}, [{"message": f"#### {int(a) + int(b)}"}]],
            [{"split": "test", "index": 1}, [{"message": "#### 1"}]],
        ]
        done = subprocess.run(
            [their_python, str(HERE / "their_client.py"), url, json.dumps(script)],
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        )
    finally:
        server.terminate()
        server.communicate(timeout=30)
    episodes = json.loads(done.stdout.splitlines()[-1])
    assert [e["steps"][0]["observation"]["text"] for e in episodes] == [question] * 2
    assert [(e["steps"][-1]["done"], e["steps"][-1]["reward"]) for e in episodes] == [
        (True, 1.0),
        (True, 0.0),
    ]
