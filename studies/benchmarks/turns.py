"""CPU time of long conversations: what each turn costs while the conversation grows.

The server, in a process of its own, answers at once. *bare* posts the same messages with aiohttp
and nothing else. *tokens* is ``openai-tokens``: ids, log-probs, versions and sources of every token
are recorded. *gateway* is an agent on bare aiohttp that asks the gateway, which asks the same
engine, all in one process; *bare gateway* is that agent with a server of bare aiohttp in place of
the gateway, which passes messages on. An episode of five turns calls a tool in the first four; one
of thirty calls it in all but the last, and ends with 8,800 tokens.

    python -m studies.benchmarks.turns                      four minutes
    python -m studies.benchmarks.turns --block 4096         how long the loop is blocked, too
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from .common import ROOT, Door, Worker, arguments, child_environment, shown, spread, table, write
from .rollouts import CALL, answer_until_killed, tokenizer_folder

CASES = {"one turn": 1, "five turns, tool": 5, "thirty turns, tool": 30}
EPISODES = {1: 2048, 5: 512, 30: 64}
CONCURRENT = 64
SAMPLED = {1: 16, 5: 16, 30: 40}
"""Tokens of a turn."""
RESULT = {1: "", 5: "42", 30: "the 42nd row of the table says: " + "ba do la " * 76}
"""What the tool returns; 260 tokens in the long case."""
SIDES = {"bare": "", "tokens": "bare", "bare gateway": "", "gateway": "bare gateway"}
"""Each side with the one that it is compared with."""
QUESTION = "What is 17 + 25?"


def turns_of(count: int) -> dict[str, list[int]]:
    """Ids of a turn that calls the tool and of one that answers, in an episode of *count* turns."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    filler = tokenizer.encode(" ba" * 80, add_special_tokens=False)
    call, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (CALL, "42"))
    stop, room = [tokenizer.eos_token_id], SAMPLED[count] - 1
    return {
        "call": filler[: room - len(call)] + call + stop,
        "answer": answer + filler[: room - len(answer)] + stop,
    }


async def serve() -> None:
    """Print the address, then answer until killed. ``user`` of a request holds the number of turns
    of its episode.
    """
    from aiohttp import web
    from transformers import AutoTokenizer

    stop = turns_of(1)["call"][-1]
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder())
    texts: dict[tuple[int, str], str] = {}
    chats: dict[tuple[int, str], str] = {}
    for count in CASES.values():
        for name, ids in turns_of(count).items():
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "stop_reason": stop}
            logps = {"token_logprobs": [-0.5 - i / 1000 for i in range(len(ids))]}
            text = {**choice, "token_ids": ids, "logprobs": logps}
            texts[count, name] = json.dumps({"object": "text_completion", "choices": [text]})
            message = {"role": "assistant", "content": tokenizer.decode(ids[:-1])}
            chat = {**choice, "message": message}
            chats[count, name] = json.dumps({"object": "chat.completion", "choices": [chat]})

    async def complete(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        # Each turn, and each message between two turns, ends with one stop token.
        count, turn = int(body["user"]), (body["prompt"].count(stop) - 1) // 2
        name = "call" if turn < count - 1 else "answer"
        return web.Response(text=texts[count, name], content_type="application/json")

    async def chat(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        count, turn = int(body["user"]), sum(m["role"] == "assistant" for m in body["messages"])
        name = "call" if turn < count - 1 else "answer"
        return web.Response(text=chats[count, name], content_type="application/json")

    await answer_until_killed(complete, chat, context=16384)


async def converse(http: Any, url: str, key: str, count: int) -> str:
    """Return the last reply of an agent on bare aiohttp, which calls nothing but the server."""
    head = {"Authorization": f"Bearer {key}"} if key else {}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    tools = {"tools": [tool]} if count > 1 else {}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(count):
        body = {
            "model": "m",
            "messages": messages,
            "max_tokens": SAMPLED[count],
            "user": str(count),
            **tools,
        }
        async with http.post(f"{url}/chat/completions", json=body, headers=head) as answer:
            reply = json.loads(await answer.read())["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": "c", "content": RESULT[count]}
        for call in reply.get("tool_calls") or ():
            result["tool_call_id"] = call["id"]
        messages += [reply, result]
    return str(reply["content"])


class Side:
    """One way to play episodes."""

    def __init__(self, side: str, url: str, count: int) -> None:
        self.side, self.url, self.count = side, url, count

    @contextlib.asynccontextmanager
    async def playing(self, concurrency: int) -> AsyncIterator[Any]:
        """Return a function that plays so many episodes and returns the rollouts, if any."""
        import aiohttp

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            if self.side.startswith("bare"):
                async with self._bare(http, concurrency) as play:
                    yield play
            else:
                async with self._recorded(http, concurrency) as play:
                    yield play

    @contextlib.asynccontextmanager
    async def _bare(self, http: Any, concurrency: int) -> AsyncIterator[Any]:
        from aiohttp import web

        url, runner = self.url, None
        if self.side == "bare gateway":

            async def passed_on(request: web.Request) -> web.Response:
                body = json.loads(await request.read())
                async with http.post(f"{self.url}/chat/completions", json=body) as answer:
                    whole = json.loads(await answer.read())
                return web.json_response(whole)

            app = web.Application(client_max_size=2**24)
            app.router.add_post("/v1/chat/completions", passed_on)
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=8192).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        gate = asyncio.Semaphore(concurrency)

        async def one() -> None:
            async with gate:
                assert "42" in await converse(http, url, "", self.count)

        async def play(episodes: int) -> list[Any]:
            await asyncio.gather(*(one() for _ in range(episodes)))
            return []

        yield play
        if runner is not None:
            await runner.cleanup()

    @contextlib.asynccontextmanager
    async def _recorded(self, http: Any, concurrency: int) -> AsyncIterator[Any]:
        from quintain import Sampling
        from quintain.evaluation import evaluate
        from quintain_engines.openai import OpenAITokenEngine
        from quintain_gateway import Gateway

        engine = OpenAITokenEngine(
            base_url=self.url,
            model="m",
            tokenizer=str(tokenizer_folder()),
            concurrency=concurrency,
            extra={"user": str(self.count)},
        )
        async with engine, Gateway() as gateway:
            env = environment(self.side, self.count, gateway, http)
            tasks = list(env.tasks("train"))

            async def play(episodes: int) -> list[Any]:
                done = await evaluate(
                    env,
                    engine,
                    tasks=[tasks[i % 64] for i in range(episodes)],
                    sampling=Sampling(max_tokens=SAMPLED[self.count], seed=1),
                    concurrency=concurrency,
                )
                for r in done.rollouts:
                    assert r.total == 1, r
                    tokens = sum(t.sampled for t in r.transcripts.values())
                    assert tokens == self.count * SAMPLED[self.count], tokens
                    assert [len(t.branches) for t in r.transcripts.values()] == [1]
                return list(done.rollouts)

            yield play


def environment(side: str, count: int, gateway: Any, http: Any) -> Any:
    """Return the environment of an episode with *count* turns."""
    from quintain import Environment, Limits, Rollout, Task, reward

    def add(x: int, y: int) -> str:
        """Add two numbers."""
        return RESULT[count]

    @reward
    def right(rollout: Rollout) -> float:
        return float("42" in rollout.turns[-1].reply)

    class Sums(Environment[Task, None]):
        reward = right
        limits = Limits(turns=count)

        def tasks(self, split: str) -> Iterator[Task]:
            return (Task(prompt=QUESTION, answer=str(i)) for i in range(64))

        async def rollout(self, task: Task, agent: Any) -> None:
            if side == "gateway":
                async with gateway.endpoint(agent) as endpoint:
                    await converse(http, endpoint.base_url, endpoint.api_key, count)
                return
            agent.user(task.prompt)
            await (agent.run(add) if count > 1 else agent.turn())

    return Sums()


async def longest_block(play: Any, episodes: int) -> float:
    """Return the longest time, in ms of CPU, that the loop let a timer wait while *episodes* play at
    once. It is not wall clock, which counts other programs of the machine.
    """
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            worst = max(worst, time.thread_time() - before)

    ticking = asyncio.create_task(tick())
    await play(episodes)
    ticking.cancel()
    return 1000 * worst


def child(side: str) -> None:
    """Answer the parent's questions."""
    door = Door()
    door.say(side=side)
    while (request := door.hear()) is not None:
        one = Side(side, request["url"], request["turns"])

        async def answer(one: Side = one, request: Any = request) -> dict[str, float]:
            async with one.playing(request["concurrency"]) as play:
                await play(min(request["episodes"], CONCURRENT))  # opens the connections
                if request["block"]:
                    return {"block": await longest_block(play, request["episodes"])}
                began = time.process_time()
                rollouts = await play(request["episodes"])
                cpu = 1000 * (time.process_time() - began) / request["episodes"]
                tokens = [len(t.path(-1).ids) for r in rollouts[:1] for t in r.transcripts.values()]
                return {"cpu_ms": cpu, "tokens": float(sum(tokens))}

        door.say(**asyncio.run(answer()))


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of the server."""
    command = [sys.executable, "-m", "studies.benchmarks.turns", "--serve"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env=child_environment(1), text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--sides", default=",".join(SIDES), help="which, with commas")
    parser.add_argument(
        "--block", type=int, help="episodes at once, for the time of a blocked loop"
    )
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick else 5)
    sides = [side for side in SIDES if side in args.sides.split(",")]
    figures: dict[str, Any] = {}
    rows: list[tuple[str, ...]] = []
    command = [sys.executable, "-m", "studies.benchmarks.turns", "--child"]
    tokenizer_folder()  # made once, before the children read it
    with served() as url, contextlib.ExitStack() as stack:
        workers = {s: stack.enter_context(Worker(s, [*command, s], threads=1)) for s in sides}
        for case, turns in CASES.items():
            if args.only not in case:
                continue
            episodes = EPISODES[turns] // (16 if args.quick else 1)
            asked = {"url": url, "turns": turns, "episodes": episodes, "concurrency": CONCURRENT}
            answers: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
            for round_ in range(rounds):
                for side in sides if round_ % 2 else reversed(sides):
                    answers[side].append(workers[side].ask(**asked, block=False))
            of_case: dict[str, Any] = {}
            for side in sides:
                figure = {"cpu_ms": spread(a["cpu_ms"] for a in answers[side])}
                figure["tokens"] = answers[side][0]["tokens"]
                if SIDES[side] in answers:
                    pairs = zip(answers[side], answers[SIDES[side]], strict=True)
                    figure["of_bare"] = spread(a["cpu_ms"] / b["cpu_ms"] for a, b in pairs)
                if args.block and turns < max(CASES.values()):
                    many = asked | {"episodes": args.block, "concurrency": args.block}
                    figure["block_ms"] = workers[side].ask(**many, block=True)["block"]
                of_case[side] = figure
                rows.append(
                    (
                        case,
                        side,
                        shown(figure["cpu_ms"]),
                        shown(figure["of_bare"], "x") if "of_bare" in figure else "",
                        f"{figure['tokens']:,.0f}" if figure["tokens"] else "",
                        f"{figure['block_ms']:,.0f} ms" if "block_ms" in figure else "",
                    )
                )
            figures[case] = of_case
    head = ("case", "side", "CPU ms a rollout", "of bare", "tokens", "longest block")
    print(table(head, rows))
    about = {"rounds": rounds, "concurrent": CONCURRENT, "block": args.block or 0}
    write("turns", figures, quick=args.quick, about=about)


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[-1])
    elif "--serve" in sys.argv:
        asyncio.run(serve())
    else:
        main()
