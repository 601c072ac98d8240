"""CPU time and memory of episodes and their records, with engines that cost next to nothing.

Each case runs in a child process and is measured with `time.process_time`, while twenty thousand
earlier rollouts are alive, as in a long evaluation. With ``--against CHECKOUT`` (a checkout of
another commit) a second child measures that code in turns, and the table has the ratios of the
paired rounds.

    python -m studies.benchmarks.episodes                         two minutes
    git worktree add ../old COMMIT; python -m studies.benchmarks.episodes --against ../old
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import shapes
from .common import ROOT, Door, Worker, alternate, arguments, shown, spread, table, write

LIVE = 20_000
TURNS = 5
CASES = {
    "one turn, text": 400,
    "one turn, tokens": 200,
    "five tool turns, text": 60,
    "five tool turns, tokens": 30,
    "five tool turns, transformers": 30,
    "remote, one turn": 256,
    "remote, five turns": 64,
    "record of a step, 4 rollouts": 4,
    "record of a step, 128 rollouts": 128,
}
"""Episodes of one round."""


class Side:
    """The cases of the checkout that is on the path."""

    def __init__(self) -> None:
        from quintain import Engine, Environment, Limits, Reply, Rollout, Task, ToolCall, reward
        from quintain_authoring import ScriptedEngine

        self.live: list[Any] = []
        self.collecting = self.began = 0.0
        gc.callbacks.append(self.watch)
        call = ToolCall(name="add", arguments={"x": 17, "y": 25})
        replies = [Reply(text="I add the two numbers first.", calls=(call,))] * (TURNS - 1) + [
            Reply(text="42")
        ]

        class Canned(Engine):
            name = "canned"

            async def reply(self, messages: Any, tools: Any, sampling: Any) -> Reply:
                return (
                    replies[sum(m.role == "assistant" for m in messages)] if tools else replies[-1]
                )

        @reward
        def right(rollout: Rollout) -> float:
            return float(rollout.reply == "42")

        def add(x: int, y: int) -> str:
            """Add two numbers."""
            return str(x + y)

        class Asked(Environment[Task, None]):
            reward = right
            limits = Limits(turns=TURNS)
            turns: int = 1
            tools: bool = False

            def tasks(self, split: str) -> Iterator[Task]:
                return (
                    Task(prompt=f"What is {i} + {2 * i}?", answer=str(3 * i)) for i in range(64)
                )

            async def rollout(self, task: Task, agent: Any) -> None:
                agent.user(task.prompt)
                if self.tools:
                    await agent.run(add)
                    return
                for _ in range(self.turns):
                    await agent.turn()
                    agent.user("Are you sure?")

        self.environment, self.canned = Asked, Canned()
        self.scripted = {True: ScriptedEngine(replies=replies), False: ScriptedEngine(replies="42")}

    def watch(self, phase: str, info: dict[str, int]) -> None:
        """Adds up the CPU seconds of the garbage collector."""
        if phase == "start":
            self.began = time.process_time()
        else:
            self.collecting += time.process_time() - self.began

    async def play(self, case: str, count: int) -> list[Any]:
        """Runs and scores *count* episodes of *case*."""
        from quintain.evaluation.evaluation import evaluate

        tools = "tool" in case
        environment = self.environment(tools=tools)
        engine = self.canned if "text" in case else self.scripted[tools]
        if "transformers" in case:
            engine = self.transformers()
        tasks = list(environment.tasks("train"))
        evaluation = await evaluate(
            environment, engine, tasks=[tasks[i % 64] for i in range(count)]
        )
        rollouts = list(evaluation.rollouts)
        assert all(r.outcome is not None and r.outcome.total == 1 for r in rollouts), rollouts[0]
        return rollouts

    def transformers(self) -> Any:
        """Return the scripted engine over a tokenizer of transformers."""
        if "transformers" not in self.scripted:
            from transformers import AutoTokenizer

            from quintain.models.tokenizer import HFTokenizer
            from quintain_authoring import ScriptedEngine

            engine = ScriptedEngine(replies=lambda messages: "")
            engine.tokenizer = HFTokenizer(AutoTokenizer.from_pretrained(shapes.folder("0.1M")))
            engine._script = self.scripted[True]._script
            self.scripted["transformers"] = engine
        return self.scripted["transformers"]

    def cpu(self, case: str, count: int) -> dict[str, float]:
        """CPU milliseconds per episode (per step for records), and the collector's share of
        them.
        """
        if not self.live:
            self.live = asyncio.run(self.play("one turn, text", LIVE))
        if case.startswith("remote"):
            return asyncio.run(self.remote(TURNS if "five" in case else 1, count))
        if case.startswith("record"):
            return self.record(count)
        self.collecting, began = 0.0, time.process_time()
        rollouts = asyncio.run(self.play(case, count))
        spent = time.process_time() - began
        self.live = [*self.live, *rollouts][-LIVE:]
        return {"ms": 1000 * spent / count, "collector": self.collecting / spent}

    def kept(self, case: str, count: int = 40) -> dict[str, float]:
        """kB and tracked objects that a rollout keeps, and its tokens."""
        asyncio.run(self.play(case, 2))
        gc.collect()
        objects = len(gc.get_objects())
        tracemalloc.start()
        rollouts = asyncio.run(self.play(case, count))
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        ids = [len(t.path(0).ids) for t in rollouts[0].transcripts.values()]
        tracked = (len(gc.get_objects()) - objects) / count
        return {
            "kb": size / count / 1000,
            "objects": tracked,
            "tokens": sum(ids),
            "sampled": rollouts[0].tokens,
        }

    def record(self, count: int) -> dict[str, float]:
        """CPU milliseconds to record a step of *count* rollouts: metrics, Parquet, flushing."""
        from quintain.console.metrics import step_metrics
        from quintain.store.run_folder import RunFolder
        from quintain.types.rollout import Group

        rollouts = asyncio.run(self.play("one turn, tokens", count))
        groups = [Group(task=r.task, rollouts=(r,), index=i) for i, r in enumerate(rollouts)]
        with (
            tempfile.TemporaryDirectory() as where,
            RunFolder.create(Path(where) / "run", "") as folder,
        ):
            folder.write_rollouts(1, groups)  # imports pyarrow
            began = time.process_time()
            for step in range(2, 6):
                folder.write_rollouts(step, groups)
                folder.retain(2, step)
                folder.append({"step": step, **step_metrics(groups)})
            return {"ms": 1000 * (time.process_time() - began) / 4}

    async def remote(self, turns: int, count: int) -> dict[str, float]:
        """CPU milliseconds per episode: bare aiohttp, the client alone, and episodes with their
        records.
        """
        import aiohttp

        from quintain import Message, Sampling
        from quintain.evaluation.evaluation import evaluate
        from quintain_engines.openai import OpenAIEngine

        environment = self.environment(turns=turns)
        tasks = list(environment.tasks("train"))
        tasks = [tasks[i % 64] for i in range(count)]
        sampling = Sampling(max_tokens=16, seed=1)
        messages = [Message("user", "What is 1 + 2?")]
        spent: dict[str, float] = {}

        async def bare(http: aiohttp.ClientSession, url: str) -> None:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": "What is 1 + 2?"}],
                "max_tokens": 16,
            }
            for _ in range(turns):
                async with http.post(f"{url}/chat/completions", json=body) as response:
                    assert json.loads(await response.text())["choices"]

        async def client(engine: Any) -> None:
            for _ in range(turns):
                await engine.reply(messages, (), sampling)

        async with served() as url:
            connector = aiohttp.TCPConnector(limit=0)
            async with (
                aiohttp.ClientSession(connector=connector) as http,
                OpenAIEngine(base_url=url, model="m") as engine,
            ):
                for _ in range(2):  # the first round opens the connections
                    began = time.process_time()
                    await asyncio.gather(*(bare(http, url) for _ in range(count)))
                    spent["bare"] = time.process_time() - began
                    began = time.process_time()
                    await asyncio.gather(*(client(engine) for _ in range(count)))
                    spent["client"] = time.process_time() - began
                    began = time.process_time()
                    done = await evaluate(
                        environment, engine, tasks=tasks, sampling=sampling, concurrency=count
                    )
                    spent["ms"] = time.process_time() - began
                    assert not done.failed
        return {name: 1000 * seconds / count for name, seconds in spent.items()}


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[str]:
    """The address of a server, in another process, that answers every request at once."""
    command = [sys.executable, "-m", "studies.benchmarks.episodes", "--serve"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def serve() -> None:
    """Print the address, then answer until killed."""
    from aiohttp import web

    choice = {
        "index": 0,
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "42"},
    }
    text = json.dumps(
        {"object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": 2}}
    )

    async def chat(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=text, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", lambda request: web.json_response({"data": [{"id": "m"}]}))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


def child() -> None:
    """Answer the parent's questions."""
    door, side = Door(), Side()
    door.say(path=str(importlib.import_module("quintain").__path__[0]))
    while (request := door.hear()) is not None:
        door.say(
            **(
                side.kept(request["case"])
                if request.get("kept")
                else side.cpu(request["case"], request["count"])
            )
        )


def row(case: str, figure: dict[str, Any]) -> Sequence[str]:
    """One line of the table."""
    share = figure.get("collector")
    bare = (
        f"{figure['ms']['median'] / figure['bare']['median']:.2f}x bare" if "bare" in figure else ""
    )
    kept = figure.get("kept")
    return (
        case,
        shown(figure["ms"]),
        f"{share['median']:.0%}" if share else bare,
        f"{kept['kb']:.1f} kB, {kept['objects']:.0f} objects" if kept else "",
        shown(figure["theirs"]) if "theirs" in figure else "",
        shown(figure["ratio"], "x") if "ratio" in figure else "",
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    args = parser.parse_args()
    rounds = args.rounds or (2 if args.quick else 11)
    command = [sys.executable, "-m", "studies.benchmarks.episodes", "--child"]
    checkouts = [ROOT, args.against.resolve() if args.against else ROOT]
    figures: dict[str, Any] = {}
    with (
        Worker("ours", command, 1, checkouts[0]) as ours,
        Worker("theirs", command, 1, checkouts[1]) as theirs,
    ):
        for case, full in CASES.items():
            if args.only not in case:
                continue
            count = max(2, full // 10) if args.quick else full
            runs = alternate(ours, theirs, rounds=rounds, warmup=1, case=case, count=count)
            figure: dict[str, Any] = {
                key: spread(o[key] for o in runs.ours) for key in runs.ours[0]
            }
            if args.against:
                figure |= {
                    "theirs": spread(t["ms"] for t in runs.theirs),
                    "ratio": spread(runs.ratios("ms")),
                }
            if case.startswith(("one", "five")):
                figure["kept"] = ours.ask(kept=True, case=case)
                figure["kept_theirs"] = theirs.ask(kept=True, case=case)
            figures[case] = figure
    head = ("case", "CPU ms", "collector", "kept", "other checkout", "ratio")
    print(table(head, [row(*figure) for figure in figures.items()]))
    write(
        "episodes",
        figures,
        quick=args.quick,
        about={"against": str(args.against or ""), "rounds": rounds},
    )


if __name__ == "__main__":
    if "--child" in sys.argv:
        child()
    elif "--serve" in sys.argv:
        asyncio.run(serve())
    else:
        main()
