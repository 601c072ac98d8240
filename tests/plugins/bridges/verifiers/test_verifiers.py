"""Environments of Quintain that verifiers itself plays, in an interpreter that has it.

QUINTAIN_VERIFIERS_PYTHON names the interpreter. It needs what the base of Quintain needs (click,
pluggy, rich), and no Quintain.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from quintain_env_math import Arithmetic

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
SOURCES = (
    "core",
    "plugins/authoring/src",
    "plugins/rewards/src",
    "plugins/bridges/src",
    "environments/math/src",
    "environments/games/src",
)
PLACES = os.pathsep.join(str(ROOT / source) for source in SOURCES)
EXCHANGES = Path(__file__).with_name("exchanges.py")


class Endpoint(BaseHTTPRequestHandler):
    """An endpoint of OpenAI's protocol whose model adds, and guesses by halving."""

    protocol_version = "HTTP/1.1"
    asked: list[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body["messages"])
        if body.get("tools"):
            self.stream(call_for(body["messages"]))
            return
        try:
            text = reply_to([m["content"] for m in body["messages"] if m["role"] == "user"])
        except ValueError:
            self.send_error(500)
            return
        self.stream({"role": "assistant", "content": text})

    def stream(self, delta: dict[str, Any]) -> None:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        choice = {"index": 0, "delta": delta}
        reason = "tool_calls" if "tool_calls" in delta else "stop"
        ended = {"index": 0, "delta": {}, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        events = [
            {**chunk, "choices": [choice]},
            {**chunk, "choices": [ended]},
            {**chunk, "choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        data = "".join([*lines, "data: [DONE]\n\n"]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def reply_to(said: list[str]) -> str:
    """Return the sum that the first message asks for, or the next guess.

    Raises:
        ValueError: it is neither.
    """
    if found := re.search(r"(\d+)\+(\d+)=\?", said[0]):
        return f"#### {int(found[1]) + int(found[2])}"
    if found := re.search(r"(\d+) (?:to|and) (\d+)", said[0]):
        low, high = int(found[1]), int(found[2])
        for answer in said[1:]:
            guess = (low + high) // 2
            if "higher" in answer.lower():
                low = guess + 1
            else:
                high = guess - 1
        return str((low + high) // 2)
    raise ValueError(said[0])


def call_for(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a call that adds the next number of the first message, or a text after the last."""
    (asked,) = [m["content"] for m in messages if m["role"] == "user"]
    numbers = re.findall(r"\d+", asked)
    made = sum(m["role"] == "tool" for m in messages)
    if made == len(numbers):
        return {"role": "assistant", "content": "All are added."}
    function = {"name": "add", "arguments": json.dumps({"count": int(numbers[made])})}
    call = {"index": 0, "id": f"call-{made}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    Endpoint.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def interpreter() -> str:
    python = os.environ.get("QUINTAIN_VERIFIERS_PYTHON", "")
    if not python:
        pytest.skip("QUINTAIN_VERIFIERS_PYTHON names no interpreter with verifiers 0.4")
    return python


def traces(
    endpoint: str, folder: Path, environment: str, *words: str, tasks: int = 3
) -> list[dict[str, Any]]:
    """Let `vf-eval` play *environment*, and return the traces in the order of the tasks."""
    python = interpreter()
    # The null harness prepares an environment for its chat program; that of verifiers has it all.
    uv = folder / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        '#!/bin/sh\ncase "$*" in *--help*) echo --script;; python*) echo ' + python + ";; esac\n"
    )
    uv.chmod(0o755)
    done = subprocess.run(
        [
            *(python, "-c", "from verifiers.v1.cli.eval.main import main; main()"),
            *("quintain_bridges.verifiers", "--env.taskset.environment", environment, *words),
            *("--env.player.runtime.type", "subprocess", "--select.limit", str(tasks)),
            *("--client.base-url", endpoint, "--client.api-key-var", "NO_KEY", "--model", "m"),
            *("--no-push", "-o", str(folder / "out")),
        ],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": PLACES,
            "PATH": f"{uv.parent}:{os.environ['PATH']}",
            "HOME": str(folder),
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = list(folder.glob("out/*/traces.jsonl"))
    assert len(files) == 1, done.stdout + done.stderr
    rows = [json.loads(line) for line in files[0].read_text().splitlines()]
    found = [trace for row in rows for trace in row["traces"]]
    return sorted(found, key=lambda trace: int(trace["task"]["data"]["index"]))


def test_one_turn(endpoint: str, tmp_path: Path) -> None:
    """The prompt arrives, the reply is scored by the environment's own reward; fields and split
    are those of the command line.
    """
    words = ["--env.taskset.split", "test", "--env.taskset.args", '{"levels": [1]}']
    rows = traces(endpoint, tmp_path, "quintain_env_math:Arithmetic", *words)
    assert [row["rewards"] for row in rows] == [{"quintain": {"score": 1.0, "weight": 1.0}}] * 3
    assert all(row["ok"] for row in rows)
    said = [[node["message"]["role"] for node in row["nodes"]] for row in rows]
    assert said == [["user", "assistant"]] * 3
    prompts = {row["nodes"][0]["message"]["content"] for row in rows}
    tasks = Arithmetic(levels=(1,)).tasks("test")
    assert prompts == {str(task.prompt) for task in islice(tasks, 3)}


def test_several_turns(endpoint: str, tmp_path: Path) -> None:
    """The environment answers until its episode ends."""
    rows = traces(endpoint, tmp_path, "quintain_env_games:Guess", tasks=2)
    assert [row["rewards"]["quintain"]["score"] for row in rows] == [1.0, 1.0], Endpoint.asked
    assert max(len(row["nodes"]) for row in rows) > 2


def test_a_failure_is_no_zero(endpoint: str, tmp_path: Path) -> None:
    """An endpoint that fails leaves a trace without a reward."""
    rows = traces(
        endpoint,
        tmp_path,
        "quintain_env_math:Countdown",
        "--env.player.retries.max-retries",
        "0",
        tasks=1,
    )
    assert [(row["ok"], row["rewards"]) for row in rows] == [(False, {})]


def test_tools(endpoint: str, tmp_path: Path) -> None:
    """Tools are those of a server; what they answer is the environment's."""
    (row,) = traces(endpoint, tmp_path, f"{EXCHANGES}:Sums", tasks=1)
    assert row["ok"], row["errors"]
    assert row["rewards"]["quintain"]["score"] == 1.0
    assert row["metrics"]["right_total.calls"] == 2.0
    said = [(node["message"]["role"], node["message"].get("content")) for node in row["nodes"]]
    assert [text for role, text in said if role == "tool"] == ["The sum is 2.", "The sum is 5."]
    assert said[-1] == ("assistant", "All are added.")


def test_several_players(endpoint: str, tmp_path: Path) -> None:
    """Each has a trace of its own, with its messages and its reward."""
    rows = traces(endpoint, tmp_path, f"{EXCHANGES}:Pair", tasks=1)
    assert [row["ok"] for row in rows] == [True, True]
    found = {row["info"]["player"]: row for row in rows}
    rewards = {name: row["rewards"]["quintain"]["score"] for name, row in found.items()}
    assert rewards == {"": 0.75, "second": 0.25}
    assert found[""]["info"]["quintain"] == "#### 2"
    said = [node["message"]["content"] for node in found["second"]["nodes"]]
    assert said == ["You are the second.", "They said #### 2. Say 2+2=?", "#### 4"]
    others = [node["message"]["content"] for node in found[""]["nodes"]]
    assert others == [
        "You are the first.",
        *("Say 1+1=?", "#### 2", "They said #### 4. Go on.", "#### 2"),
    ]


START = f"""
import asyncio
from pathlib import Path
from quintain.errors import UsageError
from quintain_bridges.verifiers.taskset import QuintainConfig, QuintainEnv, QuintainEnvConfig

async def start(**named):
    taskset = QuintainConfig(id="quintain_bridges.verifiers", **named)
    env = QuintainEnv(QuintainEnvConfig(taskset=taskset))
    try:
        await env.start()
    except UsageError as e:
        print(e)
    print(Path("ended.txt").exists())
    await env.stop()

services = {{"noted": "{EXCHANGES}:Noted"}}
asyncio.run(start())
asyncio.run(start(environment="{EXCHANGES}:Empty", services=services))
"""


def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    """The service was started before the tasks were read."""
    done = subprocess.run(
        [interpreter(), "-c", START],
        env={**os.environ, "PYTHONPATH": PLACES},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        *("name an environment: --env.taskset.environment NAME", "False"),
        *(f"{EXCHANGES}:Empty has no tasks in 'train'", "True"),
    ], done.stderr
