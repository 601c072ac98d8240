"""Rollouts a second against a server that answers at once, and what many concurrent episodes cost.

One process serves, another plays: bare aiohttp, Quintain with exact tokens (``openai-tokens``: ids,
log-probs, versions and sources recorded, rewards computed), Quintain with text, and verifiers if
``--verifiers`` names a Python that has it. Every turn has 16 tokens; an episode of five turns calls
a tool in the first four.

    python -m studies.benchmarks.rollouts            three minutes
    python3 -m venv v; v/bin/pip install verifiers==0.1.14
    python -m studies.benchmarks.rollouts --verifiers v/bin/python
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from . import shapes
from .common import (
    CACHE,
    ROOT,
    Door,
    Worker,
    arguments,
    child_environment,
    shown,
    spread,
    table,
    write,
)

TURNS = 5
TOKENS = 16
PIECES = ("<tool_call>", "</tool_call>", '{"name": "add", "arguments": {"x": ', ', "y": ', "}}")
TEMPLATE = """\
{% if tools %}<|im_start|>system
Call a tool with <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": \
{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CALL = '<tool_call>{"name": "add", "arguments": {"x": 17, "y": 25}}</tool_call>'
CONCURRENT = 5000
SIDES = ("bare", "tokens", "text", "verifiers")


def tokenizer_folder() -> Path:
    """Return the tokenizer of `shapes` with a token for each piece of a call, and a template
    that lists tools.
    """
    path = CACHE / "rollouts-tokenizer-with-tools"
    if not (path / "tokenizer.json").exists():
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(shapes.folder("0.1M"))
        tokenizer.add_tokens(list(PIECES))
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(path)
    return path


def answers() -> dict[str, list[int]]:
    """Ids of a turn that calls the tool and of one that answers, each of `TOKENS` tokens with the
    stop token.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    filler = tokenizer.encode(" ba" * 40, add_special_tokens=False)
    call, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (CALL, "42"))
    stop, room = [tokenizer.eos_token_id], TOKENS - 1
    ids = {
        "call": filler[: room - len(call)] + call + stop,
        "answer": answer + filler[: room - len(answer)] + stop,
    }
    assert {len(turn) for turn in ids.values()} == {TOKENS}, ids
    return ids


async def serve() -> None:
    """Print the address, then answer until killed. A prompt with fewer than four tool results gets
    a call.
    """
    from aiohttp import web

    ids, stop = answers(), answers()["call"][-1]
    logps = [-0.5] * TOKENS
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "add", "arguments": '{"x": 17, "y": 25}'},
    }
    messages = {
        "call": {"role": "assistant", "content": "", "tool_calls": [call]},
        "answer": {"role": "assistant", "content": "42"},
    }
    usage = {"prompt_tokens": 8, "completion_tokens": TOKENS, "total_tokens": 8 + TOKENS}

    def choice(name: str) -> dict[str, Any]:
        return {
            "index": 0,
            "finish_reason": "stop",
            "stop_reason": stop,
            "token_ids": ids[name],
            "logprobs": {"token_logprobs": logps},
        }

    head = {"id": "x", "created": 0, "model": "m", "usage": usage}
    texts = {
        name: json.dumps({**head, "object": "text_completion", "choices": [choice(name)]})
        for name in ids
    }
    chats = {
        name: json.dumps(
            {
                **head,
                "object": "chat.completion",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": messages[name],
                        "logprobs": None,
                    }
                ],
            }
        )
        for name in ids
    }

    async def complete(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        # A conversation with tools has two messages a turn, each ended by the stop token, after the
        # first message.
        turn = (body["prompt"].count(stop) - 1) // 2
        name = "call" if "tools" in body.get("user", "") and turn < TURNS - 1 else "answer"
        return web.Response(text=texts[name], content_type="application/json")

    async def chat(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        turn = sum(m["role"] == "tool" for m in body["messages"])
        name = "call" if body.get("tools") and turn < TURNS - 1 else "answer"
        return web.Response(text=chats[name], content_type="application/json")

    await answer_until_killed(complete, chat, context=8192)


async def answer_until_killed(complete: Any, chat: Any, *, context: int) -> None:
    """Print the address of a server whose completions the handlers *complete* and *chat* answer,
    then answer until killed.
    """
    from aiohttp import web

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/completions", complete)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get(
        "/v1/models",
        lambda request: web.json_response({"data": [{"id": "m", "max_model_len": context}]}),
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=8192).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


def add(x: int, y: int) -> str:
    """Add two numbers."""
    return str(x + y)


def environment(turns: int) -> Any:
    from quintain import Environment, Limits, Rollout, Task, reward

    @reward
    def right(rollout: Rollout) -> float:
        return float(rollout.reply.startswith("42"))

    class Sums(Environment[Task, None]):
        reward = right
        limits = Limits(turns=turns)

        def tasks(self, split: str) -> Iterator[Task]:
            return (Task(prompt=f"What is {i} + {2 * i}?", answer=str(3 * i)) for i in range(64))

        async def rollout(self, task: Task, agent: Any) -> None:
            agent.user(task.prompt)
            await (agent.run(add) if turns > 1 else agent.turn())

    return Sums()


async def ours(url: str, turns: int, count: int, concurrency: int, tokens: bool) -> None:
    from quintain import Sampling
    from quintain.evaluation import evaluate
    from quintain_engines.openai import OpenAIEngine, OpenAITokenEngine

    tasks = list(environment(turns).tasks("train"))
    engine: Any = OpenAIEngine(base_url=url, model="m", concurrency=concurrency)
    if tokens:
        extra = {"user": "tools"} if turns > 1 else None
        folder = str(tokenizer_folder())
        engine = OpenAITokenEngine(
            base_url=url, model="m", tokenizer=folder, concurrency=concurrency, extra=extra
        )
    async with engine:
        done = await evaluate(
            environment(turns),
            engine,
            tasks=[tasks[i % 64] for i in range(count)],
            sampling=Sampling(max_tokens=TOKENS, seed=1),
            concurrency=concurrency,
        )
    rollouts = list(done.rollouts)
    assert all(
        r.outcome is not None and r.outcome.total == 1 and len(r.turns) == turns for r in rollouts
    ), rollouts[0]
    if tokens:
        assert all(r.transcripts[""].sampled == turns * TOKENS for r in rollouts), rollouts[
            0
        ].transcripts


async def bare(url: str, turns: int, count: int, concurrency: int) -> None:
    """The same requests and nothing else: no records, no rewards."""
    import aiohttp

    gate = asyncio.Semaphore(concurrency)
    prompt = {"role": "user", "content": "What is 1 + 2?"}
    spec = {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
    }

    async def episode(http: aiohttp.ClientSession) -> None:
        async with gate:
            messages: list[Any] = [prompt]
            for _ in range(turns):
                body = {
                    "model": "m",
                    "messages": messages,
                    "max_tokens": TOKENS,
                    "tools": [spec] if turns > 1 else None,
                }
                async with http.post(f"{url}/chat/completions", json=body) as response:
                    reply = json.loads(await response.text())["choices"][0]["message"]
                messages += [reply, {"role": "tool", "tool_call_id": "c", "content": "42"}]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*(episode(http) for _ in range(count)))


async def verifiers_of(url: str, turns: int, count: int, concurrency: int) -> None:
    """SingleTurnEnv or ToolEnv of verifiers 0.1.14 with the OpenAI client that it makes itself."""
    import verifiers as vf
    from datasets import Dataset
    from verifiers.types import ClientConfig

    def right(completion: Any, **_: Any) -> float:
        return float(completion[-1]["content"].startswith("42"))

    rows = Dataset.from_list(
        [{"question": f"What is {i} + {2 * i}?", "answer": str(3 * i)} for i in range(count)]
    )
    rubric = vf.Rubric(funcs=[right])
    kind: Any = vf.SingleTurnEnv if turns == 1 else vf.ToolEnv
    more = {} if turns == 1 else {"tools": [add], "max_turns": turns + 1}
    task = kind(dataset=rows, eval_dataset=rows, rubric=rubric, **more)
    os.environ["BENCHMARK_KEY"] = "none"
    client = ClientConfig(api_base_url=url, api_key_var="BENCHMARK_KEY")
    result = await task.evaluate(
        client=client,
        model="m",
        num_examples=count,
        rollouts_per_example=1,
        max_concurrent=concurrency,
    )
    outputs = result["outputs"] if isinstance(result, dict) and "outputs" in result else None
    rewards = [o["reward"] for o in outputs] if outputs is not None else list(result["reward"])
    assert [1.0] * count == rewards, rewards[:3]


async def held(count: int) -> dict[str, float]:
    """Memory while *count* episodes of five turns are in flight at once: each turn waits until all
    have asked.
    """
    from quintain.evaluation import evaluate
    from quintain_authoring import ScriptedEngine

    class Together(ScriptedEngine):
        waiting, everybody = 0, asyncio.Event()

        async def sample(self, ids: Any, sampling: Any) -> Any:
            Together.waiting += 1
            gate = Together.everybody
            if Together.waiting % count == 0:
                Together.everybody = asyncio.Event()
                gate.set()
            await gate.wait()
            return await super().sample(ids, sampling)

    from quintain import Reply, ToolCall

    call = Reply(calls=(ToolCall(name="add", arguments={"x": 17, "y": 25}),))
    engine = Together(replies=[*[call] * (TURNS - 1), Reply(text="42")])
    before = memory()
    tasks = list(environment(TURNS).tasks("train"))
    done = await evaluate(
        environment(TURNS),
        engine,
        tasks=[tasks[i % 64] for i in range(count)],
        concurrency=count,
        retries=0,
    )
    assert (0, TURNS * count) == (done.failed, Together.waiting)
    return {"before_gb": before, "peak_gb": memory()}


def memory() -> float:
    """Peak of the resident memory of this process, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def child(side: str) -> None:
    door = Door()
    door.say(side=side)
    plays: dict[str, Callable[..., Awaitable[None]]] = {
        "bare": bare,
        "tokens": lambda *a: ours(*a, tokens=True),
        "text": lambda *a: ours(*a, tokens=False),
        "verifiers": verifiers_of,
    }
    while (request := door.hear()) is not None:
        if side == "held":
            door.say(**asyncio.run(held(request["count"])))
            continue
        wall, cpu = time.perf_counter(), time.process_time()
        asyncio.run(
            plays[side](request["url"], request["turns"], request["count"], request["concurrency"])
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        door.say(
            rate=request["count"] / wall, cpu_ms=1000 * cpu / request["count"], peak_gb=memory()
        )


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[str]:
    command = [sys.executable, "-m", "studies.benchmarks.rollouts", "--serve"]
    environ = child_environment(1)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, cwd=ROOT, env=environ
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def measure(args: Any) -> dict[str, Any]:
    rounds = args.rounds or (1 if args.quick else 5)
    pythons = dict.fromkeys(SIDES, sys.executable) | {"verifiers": args.verifiers}
    figures: dict[str, Any] = {}
    async with served() as url:
        with contextlib.ExitStack() as stack:
            workers = {
                side: stack.enter_context(
                    Worker(
                        side,
                        [python, "-m", "studies.benchmarks.rollouts", "--child", side],
                        threads=1,
                    )
                )
                for side, python in pythons.items()
                if python
            }
            for turns in (1, TURNS):
                answers_of: dict[str, list[dict[str, Any]]] = {side: [] for side in workers}
                for round_ in range(-1, rounds):  # the first warms up
                    for side, worker in workers.items():
                        full = {"verifiers": 256}.get(side, 4096 if turns == 1 else 1024)
                        count = (
                            max(32, full // 32) if args.quick else max(full, 2 * args.concurrency)
                        )
                        if side == "verifiers" and not args.quick:
                            count = args.concurrency
                        answer = await asyncio.to_thread(
                            worker.ask,
                            url=url,
                            turns=turns,
                            count=count,
                            concurrency=args.concurrency,
                        )
                        if round_ >= 0:
                            answers_of[side].append(answer)
                for side, rows in answers_of.items():
                    figure = {key: spread(row[key] for row in rows) for key in rows[0]}
                    pairs = zip(rows, answers_of["bare"], strict=True)
                    figure["of_bare"] = spread(row["rate"] / base["rate"] for row, base in pairs)
                    figures[f"{turns} turns, {side}"] = figure
    count = 200 if args.quick else CONCURRENT
    with Worker(
        "held", [sys.executable, "-m", "studies.benchmarks.rollouts", "--child", "held"], threads=1
    ) as worker:
        figures["concurrent"] = {
            "episodes": count,
            **await asyncio.to_thread(worker.ask, count=count),
        }
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--verifiers", default="", help="a Python that has verifiers 0.1.14")
    parser.add_argument("--concurrency", type=int, default=512)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    tokenizer_folder()
    figures = asyncio.run(measure(args))
    rows = [
        (
            name,
            shown(f["rate"]),
            shown(f["of_bare"], "x"),
            shown(f["cpu_ms"]),
            f"{f['peak_gb']['median']:.2f}",
        )
        for name, f in figures.items()
        if "rate" in f
    ]
    print(table(("case", "rollouts/s", "of bare aiohttp", "client CPU ms", "peak GB"), rows))
    held_ = figures["concurrent"]
    print(
        f"\n{held_['episodes']} episodes of {TURNS} turns at once: peak {held_['peak_gb']:.2f} GB"
    )
    write(
        "rollouts",
        figures,
        quick=args.quick,
        about={"concurrency": args.concurrency, "tokens": TOKENS},
    )


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[sys.argv.index("--child") + 1])
    elif "--serve" in sys.argv:
        asyncio.run(serve())
    else:
        main()
