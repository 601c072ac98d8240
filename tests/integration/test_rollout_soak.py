"""Twenty thousand episodes of several turns with tools, through a server, of which one in twenty
meets a fault.

Every fault has its typed end, the others finish, and nothing is left: no task, thread, process or
descriptor.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quintain import (
    Environment,
    InfrastructureError,
    Limits,
    PolicyFault,
    Rollout,
    Sampling,
    Task,
    ToolError,
    as_tool,
    reward,
)
from quintain.evaluation import evaluate
from quintain.models import HFTokenizer
from quintain_engines.openai import OpenAITokenEngine

from ..core.models.tiny import byte_tokenizer

CONTEXT = 2000
TIMEOUT = 2.0  # of a request; a loaded machine needs more than the milliseconds of an answer
ENDS = {
    "": "finished",
    # of the server
    "refused_once": "finished",
    "refused": "infrastructure_error",
    "dropped": "infrastructure_error",
    "garbage": "infrastructure_error",
    "without_logprobs": "infrastructure_error",
    "silent": "infrastructure_error",
    # of a tool
    "tool_error": "finished",
    "tool_late": "finished",
    "tool_long": "truncated",
    "tool_bug": "environment_error",
    "tool_exit": "environment_error",
    "tool_dead": "infrastructure_error",
    # of the policy
    "malformed": "policy_fault",
    "endless": "truncated",
    "fault": "policy_fault",
    # of the environment
    "bug": "environment_error",
    "cancels_itself": "environment_error",
    "unstorable": "environment_error",
    "hangs": "timeout",
    # of the reward
    "reward_bug": "reward_error",
    "reward_nan": "reward_error",
    "reward_hangs": "infrastructure_error",
}
FAULTS = [name for name in ENDS if name]


class Server:
    """Answers completions of ids as the fault in the prompt says."""

    def __init__(self) -> None:
        from quintain.models import HFTokenizer

        self.tokenizer = HFTokenizer(byte_tokenizer())
        self.seen: Counter[str] = Counter()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        ids = json.loads(await request.read())["prompt"]
        text = self.tokenizer.decode(ids)
        name, number = re.search(r"fault=(\w*) number=(\d+)", text).groups()  # type: ignore[union-attr]
        turn = text.count("<|im_start|>tool")
        self.seen[number] += 1
        if name == "refused" or (name == "refused_once" and self.seen[number] == 1):
            return web.Response(status=503, text="busy")
        if name == "dropped":
            assert request.transport is not None
            request.transport.abort()
        if name == "garbage":
            return web.Response(text='{"choices": [', content_type="application/json")
        if name == "silent":
            await asyncio.sleep(60)
        call = json.dumps({"name": "look", "arguments": {"turn": turn}})
        said = "42" if turn == 2 and name != "endless" else f"<tool_call>{call}</tool_call>"
        if name == "malformed":
            said = "<tool_call>{</tool_call>"
        # the one that the template writes
        new = [*self.tokenizer.encode(said), self.tokenizer.stop_ids[-1]]
        choice = {
            "finish_reason": "stop",
            "token_ids": new,
            "logprobs": {"token_logprobs": [-0.5] * len(new)},
        }
        if name == "without_logprobs":
            choice["logprobs"] = None  # type: ignore[assignment]
        return web.json_response({"choices": [choice]})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def start(self) -> tuple[web.AppRunner, str]:
        app = web.Application()
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


@reward
async def judged(rollout: Rollout) -> float:
    fault = rollout.task.answer
    if fault == "reward_bug":
        raise ZeroDivisionError
    if fault == "reward_hangs":
        await asyncio.sleep(60)
    return float("nan") if fault == "reward_nan" else float(rollout.reply == "42")


class Faulty(Environment[Task, Any]):
    reward = judged
    limits = Limits(turns=6, seconds=15.0, reward_seconds=1.0)
    count: int

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(self.count):
            fault = FAULTS[i // 20 % len(FAULTS)] if i % 20 == 7 else ""
            yield Task(prompt=f"fault={fault} number={i}", answer=fault)

    async def rollout(self, task: Task, agent: Any) -> Any:
        fault = task.answer

        async def look(turn: int) -> str:
            await asyncio.sleep(0)
            if fault == "tool_error":
                raise ToolError("nothing there")
            if fault == "tool_late":
                await asyncio.sleep(60)
            if fault == "tool_bug":
                raise KeyError(turn)
            if fault == "tool_exit":
                raise SystemExit(1)
            if fault == "tool_dead":
                raise InfrastructureError("the store is down")
            return "y" * 10_000 if fault == "tool_long" else f"seen {turn}"

        agent.user(task.prompt)
        if fault == "hangs":
            await asyncio.sleep(60)
        if fault == "cancels_itself":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
        if fault == "bug":
            raise ValueError("bug")
        await agent.run(replace(as_tool(look), seconds=0.05))
        if fault == "fault":
            raise PolicyFault("illegal")
        return object() if fault == "unstorable" else None


def kept() -> tuple[int, int, int]:
    """Threads, child processes and descriptors of this process."""
    own = Path("/proc/self")
    children = [
        child
        for task in (own / "task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return threading.active_count(), len(children), len(os.listdir(own / "fd"))


@pytest.mark.more
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.slow)])
def test_every_episode_ends_typed_and_nothing_is_left(count: int, tmp_path: Path) -> None:
    """The counts of every kind of end are those of the faults; the rest of the episodes score 1."""
    tokenizer = HFTokenizer(byte_tokenizer())
    tokenizer.use_tool_format("hermes")  # the template lists no tools
    tokenizer.hf.save_pretrained(tmp_path)
    before = kept()
    environment = Faulty(count=count)

    async def play() -> tuple[Any, set[Any]]:
        runner, url = await Server().start()
        engine = OpenAITokenEngine(
            base_url=url,
            tokenizer=str(tmp_path),
            context=CONTEXT,
            timeout=TIMEOUT,
            retries=1,
            backoff=0.01,
            concurrency=64,
        )
        async with engine:
            tasks = list(environment.tasks("test"))
            done = await evaluate(
                environment, engine, tasks=tasks, retries=0, sampling=Sampling(max_tokens=500)
            )
        await runner.cleanup()
        await asyncio.sleep(0.1)
        server = "web_protocol.py"  # the handlers of requests that were to get no answer
        left = {t for t in asyncio.all_tasks() if server not in t.get_coro().cr_code.co_filename}  # type: ignore[union-attr]
        return done, left - {asyncio.current_task()}

    done, tasks_left = asyncio.run(play())
    ends = Counter(rollout.task.answer for rollout in done.rollouts)
    for rollout in done.rollouts:
        assert rollout.termination.ours == (rollout.outcome is None), rollout.termination
        assert rollout.termination.kind == ENDS[rollout.task.answer], (
            rollout.task.answer,
            rollout.termination,
        )
        if ENDS[rollout.task.answer] == "finished":
            assert rollout.outcome.total == 1.0
            assert len(rollout.turns) == 3
            assert len(rollout.transcripts[""].sequences()) == 1
    assert count == ends.total()
    assert all(ends[name] >= count // 20 // len(FAULTS) for name in FAULTS)
    assert not tasks_left
    threads, children, descriptors = (now - then for now, then in zip(kept(), before, strict=True))
    assert threads <= 0
    assert children == 0
    assert descriptors <= 8, os.listdir("/proc/self/fd")  # of libraries that were loaded meanwhile
