"""Judged rollouts per second: from the cache, and against a server that takes 50 ms for each
verdict.

The server is a process of its own and does nothing but wait; 32 requests in flight give it a
capacity of 640 verdicts a second. Beside it, bare aiohttp sends requests of the same size, 32 at a
time. From the cache, `judge_score` scores stored rollouts, each with a reply of its own, whose
verdicts lie in the SQLite file of an earlier process.

    python -m studies.benchmarks.judge [--quick]
"""

from __future__ import annotations

import asyncio
import json
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .common import arguments, spread, table, write

CONCURRENCY, LATENCY = 32, 0.05
CAPACITY = CONCURRENCY / LATENCY
RUBRIC = "Answers the question and nothing else."
REPLY = (
    "The bridge opened in {n}, after seven years of work on its two towers and the road between "
    "them. " * 3
)
COMPLETION = {
    "choices": [
        {
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": '{"reason": "r", "score": 2}'},
        }
    ],
    "usage": {"prompt_tokens": 300, "completion_tokens": 12},
}


async def serve() -> None:
    """Answer each request `LATENCY` seconds after it has arrived; print the address."""
    from aiohttp import web

    body = json.dumps(COMPLETION).encode()

    async def chat(request: web.Request) -> web.Response:
        until = time.monotonic() + LATENCY
        await request.read()
        await asyncio.sleep(until - time.monotonic())
        return web.Response(body=body, content_type="application/json")

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "mock"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


def rollouts(count: int) -> list[Any]:
    from quintain import Task
    from quintain.testing import rollout

    task = Task(prompt="When did the bridge open?")
    return [rollout(task, REPLY.format(n=n)) for n in range(count)]


async def judged(url: str, cache: Path, items: list[Any]) -> dict[str, float]:
    """Rate and CPU time of `judge_score` over *items*, twice as many at once as the judge has in
    flight.
    """
    from quintain.interfaces.reward import RewardContext
    from quintain_judge import JudgeService
    from quintain_judge.rewards import judge_score

    async with JudgeService(base_url=url, cache=str(cache), concurrency=CONCURRENCY) as judge:
        context = RewardContext(services={"judge": judge})
        wall, cpu = time.perf_counter(), time.process_time()
        reward, left, scores = judge_score(rubric=RUBRIC), iter(items), []

        async def worker() -> None:
            for item in left:
                scores.extend(await reward.score_all([item], context))

        await asyncio.gather(*(worker() for _ in range(2 * CONCURRENCY)))
        seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert all(s.total == 1 for s in scores), scores[0]  # type: ignore[union-attr]
        calls = judge.metrics().get("calls", 0)
    return {"rate": len(items) / seconds, "cpu_ms": 1000 * cpu / len(items), "calls": calls}


async def bare(url: str, count: int) -> float:
    """Requests per second of aiohttp alone, `CONCURRENCY` in flight, with a body of about the same
    size.
    """
    import aiohttp

    body = {"model": "mock", "messages": [{"role": "user", "content": REPLY * 5}]}
    left = iter(range(count))

    async def worker(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(f"{url}/chat/completions", json=body) as response:
                await response.json()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        start = time.perf_counter()
        await asyncio.gather(*(worker(session) for _ in range(CONCURRENCY)))
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--serve", action="store_true", help="be the server")
    args = parser.parse_args()
    if args.serve:
        # `epoll` rounds waits up to milliseconds: the server would be up to one slower than it
        # claims.
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
        ) as runner:
            runner.run(serve())
        return
    rounds = args.rounds or (1 if args.quick else 5)
    count = 320 if args.quick else 3200
    command = [sys.executable, "-m", "studies.benchmarks.judge", "--serve"]
    rows: list[dict[str, float]] = []
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            url = server.stdout.readline().strip() if server.stdout else ""
            for number in range(rounds):
                items, cache = rollouts(count), Path(folder) / f"{number}.sqlite"
                direct = asyncio.run(bare(url, count))
                uncached, cached = (asyncio.run(judged(url, cache, items)) for _ in range(2))
                assert (uncached["calls"], cached["calls"]) == (count, 0)
                rows.append(
                    {
                        "server, rate": uncached["rate"],
                        "server, share of the capacity": uncached["rate"] / CAPACITY,
                        "server, share of bare aiohttp": uncached["rate"] / direct,
                        "server, CPU ms": uncached["cpu_ms"],
                        "bare aiohttp, rate": direct,
                        "cache, rate": cached["rate"],
                        "cache, CPU ms": cached["cpu_ms"],
                    }
                )
        finally:
            server.terminate()
    figures = {name: spread(row[name] for row in rows) for name in rows[0]}
    print(
        table(("figure", "median", "quartiles"), [_shown(name, f) for name, f in figures.items()])
    )
    conditions = {
        "rounds": rounds,
        "rollouts": count,
        "concurrency": CONCURRENCY,
        "latency": LATENCY,
    }
    write("judge", figures, quick=args.quick, about=conditions)


def _shown(name: str, f: dict[str, Any]) -> tuple[str, str, str]:
    unit = (lambda x: f"{x:.1%}") if "share" in name else (lambda x: f"{x:,.2f}")
    return name, unit(f["median"]), f"{unit(f['q1'])} to {unit(f['q3'])}"


if __name__ == "__main__":
    main()
