"""Demonstrations of the environment `agent`: episodes in which the source's `demonstrator` answers
the agent.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="demonstrations need quintain[train]")

from quintain_env_agent import AgentProgram
from quintain_gateway import Gateway
from quintain_offline.sft.demonstrations import demonstrations_of, plays
from quintain_offline.sft.example import Example

AGENT = '''
import json
import urllib.request

PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = [{"type": "function", "function": {"name": "double", "description": "2 x.", "parameters": PARAMETERS}}]


def solve(prompt, endpoint):
    """An agent with a tool and a system message of its own."""
    messages = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": prompt}]
    head = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
    while True:
        body = json.dumps({"model": "m", "messages": messages, "tools": TOOLS}).encode()
        with urllib.request.urlopen(urllib.request.Request(endpoint.base_url + "/chat/completions", body, head)) as r:
            said = json.load(r)["choices"][0]["message"]
        messages.append(said)
        if not said.get("tool_calls"):
            return said["content"]
        for call in said["tool_calls"]:
            result = 2 * json.loads(call["function"]["arguments"])["x"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})
'''

TASKS = """
from quintain import Environment, Reply, Task, ToolCall, control


class Doubles(Environment[Task, None]):
    def tasks(self, split):
        first = 10 * ("train", "dev", "test").index(split)
        return [Task(prompt=f"2 * {n}", answer=2 * n) for n in range(first, first + 10)]

    @control()
    def demonstrator(self, task, messages):
        if messages[-1].role == "tool":
            return f"{messages[-1].content}"
        return Reply(calls=(ToolCall(name="double", arguments={"x": int(task.prompt[4:])}),))
"""

KEY = """
import sys
from quintain_env_agent import AgentProgram
from quintain_starter.cache_key import cache_key, values_of
environment = AgentProgram(gateway=None, function="agent.py:solve", source="doubles.py:Doubles")
print(cache_key([environment], {}, values_of([environment], examples=4, tasks=4)))
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "doubles.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "doubles", raising=False)
    return tmp_path


def test_the_sources_demonstrator_answers_the_agent(desk: Path) -> None:
    """Its replies stand in the context that the agent makes: system message, tools and results are
    the agent's.
    """

    async def shown() -> list[Example]:
        async with Gateway() as gateway:
            environment = AgentProgram(
                gateway=gateway,
                function=f"{desk}/agent.py:solve",
                source=f"{desk}/doubles.py:Doubles",
            )
            assert plays(environment)
            assert plays(environment.overridden(system="x"))
            return [example async for example in demonstrations_of(environment)]

    examples = asyncio.run(shown())

    assert len(examples) == 10
    for n, example in enumerate(examples):
        assert [m.role for m in example.messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert [m.content for m in example.messages[::2]] == ["Be exact.", "", str(2 * n)]
        assert example.messages[2].calls[0].arguments == {"x": n}
        assert example.replies == (2, 4)
        assert [tool.name for tool in example.tools] == ["double"]


def test_a_source_with_written_demonstrations_keeps_them() -> None:
    environment = AgentProgram(gateway=None, argv=("true",), source="arithmetic")

    assert not plays(environment)
    assert len(list(islice(environment.demonstrations("train"), 3))) == 3


@pytest.mark.ci
def test_the_cache_of_warm_starts_depends_on_the_code_of_agent_and_source(desk: Path) -> None:
    """A tool or a demonstrator that changes makes other demonstrations; another process finds the
    same key.
    """

    def key(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", KEY],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
            cwd=desk,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = key("1")
    assert key("2") == first
    (desk / "agent.py").write_text(AGENT.replace('"2 x."', '"Twice x."'))
    second = key("1")
    (desk / "doubles.py").write_text(TASKS.replace('f"{messages[-1].content}"', '"0"'))

    assert len({first, second, key("1")}) == 3
