"""Resources servers of NeMo-Gym: a server of our own that speaks its protocol, and its own ones.

What needs NeMo-Gym runs where QUINTAIN_NEMO_GYM_PYTHON names an interpreter that has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quintain import Reply, Rollout, ToolCall
from quintain.errors import UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ScriptedEngine, run_episode
from quintain_bridges.nemo_gym import NemoGym

HERE = Path(__file__).parent
TOOL = {
    "type": "function",
    "name": "count",
    "parameters": {
        "type": "object",
        "properties": {"by": {"type": "integer"}},
        "required": ["by"],
    },
}


def row(number: int, **more: Any) -> dict[str, Any]:
    given = [
        {"role": "developer", "content": "Count."},
        {"role": "user", "content": f"to {number}"},
    ]
    return {"responses_create_params": {"input": given, "tools": [TOOL]}, "answer": number, **more}


def app() -> web.Application:
    """Counts in a session, which a cookie names; the verifier compares."""
    counts: dict[str, int] = {}

    async def seed(request: web.Request) -> web.Response:
        name = str(len(counts))
        counts[name] = 0
        answer = web.json_response({})
        answer.set_cookie("session", name)
        return answer

    async def count(request: web.Request) -> web.Response:
        by = (await request.json())["by"]
        if by < 0:
            raise web.HTTPUnprocessableEntity(text="by is negative")
        if by > 100:
            raise web.HTTPInternalServerError(text="overflow")
        counts[request.cookies["session"]] += by
        return web.json_response({"count": counts[request.cookies["session"]]})

    async def verify(request: web.Request) -> web.Response:
        body = await request.json()
        kinds = [item["type"] for item in body["response"]["output"]]
        if body.get("silent"):
            return web.json_response({"items": len(kinds)})
        right = counts[request.cookies["session"]] == body["answer"]
        return web.json_response({"reward": float(right), "items": len(kinds), "text": "x"})

    made = web.Application()
    routes = {"seed_session": seed, "count": count, "verify": verify}
    made.add_routes([web.post(f"/{name}", handler) for name, handler in routes.items()])
    return made


def played(path: Path, scripts: dict[int, list[Any]]) -> list[Rollout[Any, Any]]:
    """Play tasks of a file at once, by their answers, each with its replies."""

    async def play() -> list[Rollout[Any, Any]]:
        runner = web.AppRunner(app())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            gym = NemoGym(url=f"http://127.0.0.1:{runner.addresses[0][1]}", path=str(path))
            tasks = {t.answer: t for s in ("train", "dev", "test") for t in gym.tasks(s)}
            requests = [
                RolloutRequest(
                    environment=gym,
                    task=tasks[answer],
                    group_size=1,
                    index=n,
                    engine=ScriptedEngine(replies=script),
                )
                for n, (answer, script) in enumerate(scripts.items())
            ]
            context = RolloutContext(engine=ScriptedEngine(replies=""), retries=0)
            return [g.rollouts[0] for g in await run_groups(requests, context)]
        finally:
            await runner.cleanup()

    return asyncio.run(play())


def calls(*numbers: int) -> Reply:
    return Reply(
        calls=tuple(
            ToolCall(name="count", arguments={"by": by}, id=f"c{n}") for n, by in enumerate(numbers)
        )
    )


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    made = [*(row(n) for n in range(3, 9)), row(9, silent=True)]
    path.write_text("".join(json.dumps(r) + "\n" for r in made))
    return path


def test_tools_and_sessions(rows: Path) -> None:
    """Episodes at once have sessions of their own, results are read, and the verifier scores."""
    scripts = {
        3: [calls(1, 2), "three"],
        4: [calls(1), calls(3), "four"],
        5: ["five"],
    }
    three, four, five = played(rows, scripts)
    assert [r.outcome.total for r in (three, four, five)] == [1.0, 1.0, 0.0]
    assert [m.role for m in three.messages[:2]] == ["system", "user"]
    assert [c.content for c in three.messages if c.role == "tool"] == [
        '{"count": 1}',
        '{"count": 3}',
    ]
    assert four.outcome.parts["verified_reward.items"] == 5.0


def test_failures_are_told_apart(rows: Path) -> None:
    """Refused arguments are read by the policy; a server that fails, and a verifier without a
    reward, are no zeros.
    """
    refused, failed, silent = played(
        rows, {3: [calls(-1), calls(3), "so"], 4: [calls(101), "x"], 9: ["nine"]}
    )
    assert refused.messages[3].content == "error: by is negative"
    assert refused.outcome.total == 1.0
    assert failed.termination.kind == "infrastructure_error"
    assert failed.outcome is None
    assert silent.termination.kind == "reward_error"
    assert silent.outcome is None


def test_a_server_that_is_not_there(rows: Path) -> None:
    gym = NemoGym(url="http://127.0.0.1:9", path=str(rows))
    task = next(iter(gym.tasks("train")))
    assert run_episode(gym, task, "x").termination.kind == "infrastructure_error"


def test_faults_of_the_file_have_their_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    image = {"responses_create_params": {"input": [{"role": "tool", "content": "x"}]}}
    path.write_text(f'{json.dumps(row(3))}\n{{"input": 1}}\n{json.dumps(image)}\n')
    with pytest.raises(
        UsageError, match=r"2 faults[\s\S]*:2 has no resp[\s\S]*:3 has an input item"
    ):
        list(NemoGym(path=str(path)).tasks("train"))
    with pytest.raises(UsageError, match="name the rows"):
        NemoGym()


@pytest.fixture(scope="module")
def their_server() -> Iterator[Callable[[str], tuple[str, str]]]:
    """Starts a server of NeMo-Gym's package; returns its address and its rows."""
    python = os.environ.get("QUINTAIN_NEMO_GYM_PYTHON", "")
    if not python:
        pytest.skip("QUINTAIN_NEMO_GYM_PYTHON names no interpreter with nemo-gym 0.4")
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> tuple[str, str]:
        script = [python, str(HERE / "their_server.py"), name]
        said = subprocess.run(script, capture_output=True, text=True, check=True)
        port = 30000 + (os.getpid() * 3 + len(running)) % 20000
        running.append(subprocess.Popen([*script, str(port)]))
        url = f"http://127.0.0.1:{port}"
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/docs", timeout=5).close()
                break
            except OSError:
                assert running[-1].poll() is None
                time.sleep(0.5)
        return url, said.stdout.strip().splitlines()[-1]

    yield start
    for process in running:
        process.terminate()
        process.wait(30)


def test_their_server_with_tools(their_server: Callable[[str], tuple[str, str]]) -> None:
    """`example_multi_step`: calls in several turns, verified by its own code."""
    url, path = their_server("example_multi_step")
    gym = NemoGym(url=url, path=path)
    tasks = [t for split in ("train", "dev", "test") for t in gym.tasks(split)]
    assert len(tasks) == 5
    given = tasks[0].row
    first = tuple(
        ToolCall(name="get_synonym_value", arguments={"synonym": s}, id=f"c{n}")
        for n, s in enumerate(given["expected_synonyms"])
    )
    values = {"synonym_values": given["expected_synonym_values"]}
    last = ToolCall(name="extract_synonym_values", arguments=values, id="last")
    script = [Reply(calls=first), Reply(calls=(last,)), "done"]
    right, wrong = (run_episode(gym, tasks[0], s).outcome for s in (script, "no"))
    assert right.total == 1.0
    assert wrong.total == 0.0
    assert right.parts["verified_reward.accuracy"] == 1.0


def test_their_server_of_one_turn(their_server: Callable[[str], tuple[str, str]]) -> None:
    """`mcqa`: the oracle is right, another letter is not."""
    url, path = their_server("mcqa")
    gym = NemoGym(url=url, path=path)
    tasks = [t for split in ("train", "dev", "test") for t in gym.tasks(split)]
    for task in tasks:
        replies = (gym.oracle(task, ()), "\\boxed{Z}")
        assert [run_episode(gym, task, r).outcome.total for r in replies] == [1.0, 0.0]
