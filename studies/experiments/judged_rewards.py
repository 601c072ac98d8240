"""Do rewards without an answer key train a model? A rubric, a judge over HTTP, rubrics that evolve,
a likelihood.

Runs of the bundled recipes `chat` and `story` with models of 265,000 and 152,000 parameters. The
judge is a script behind a real server: it ranks each group with errors, and one request in eight
fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from quintain.console import Screen
from quintain.recipe import Recipe
from quintain.run import run_training
from quintain.store import RunFolder
from quintain_env_chat import ChatTask, weighted
from quintain_env_chat.notes import notes
from quintain_judge import check

from .common import Line, Panel, Report, main

STEPS, EVERY = 60, 20
LEAST_SEEDS = 1
"""Of a full study, instead of five: each seed trains five models. The page says how many there
were.
"""
ERROR = 0.25
"""Standard deviation of the judge's errors; a note that meets its rubric has the score 1."""
FAULTS = {
    0: (503, "overloaded"),
    8: (200, "not a completion"),
    16: (200, "refusal"),
    24: (200, "half a ver"),
}
"""What the server answers to these requests out of 32, by number."""
SMALL = (
    "{hidden=96, layers=2, heads=4, kv_heads=4, head_dim=32, intermediate=192, "
    "initializer_range=0.1}"
)
TINY = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=32}"
CHAT = (f"model.start.args.model={SMALL}", "model.start.args.lr=4e-3", "learner.lr=3e-4")
EVOLVING = 'environments.0.shaping="evolving_rubric - rubric_score"'
ARMS = {
    "rubric, rules": ("chat", ()),
    "ranking, judge over HTTP": (
        "chat",
        (
            'environments.0.shaping="judge_ranking - rubric_score"',
            'services.judge={use="judge", args={base_url="URL", cache="none", backoff=0.001, '
            "gate=false}}",
        ),
    ),
    "evolving rubrics, paper": ("chat", (EVOLVING,)),
    "evolving rubrics, mainline": (
        "chat",
        (EVOLVING, 'services.rubric_library={use="rubric_library", args={variant="mainline"}}'),
    ),
    "likelihood of the next chapter": ("story", ("learner.lr=6e-5",)),
}
"""Recipe and changes. The shaping of the chat arms takes the rubric's score out again: it alone is
the outcome.
"""


QUICK = ("ranking, judge over HTTP", "likelihood of the next chapter")


@dataclass(frozen=True, kw_only=True)
class Curves:
    """One run: greedy success on `dev` by step and on `test` before and after, mean rewards, share
    of failures.

    Each success has the yardstick beside it, which neither trains nor decides success.
    """

    steps: list[int]
    held_out: list[float]
    yardstick: list[float]
    test: tuple[float, float]
    test_yardstick: tuple[float, float]
    reward: list[float]
    failed: float


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Held-out success by step for each signal, and the reward that the signal itself paid."""
    arms = [arm for arm in ARMS if not quick or arm in QUICK]
    runs = {arm: [trained(arm, seed, quick) for seed in seeds] for arm in arms}
    held_out = {
        arm: Line(label=arm, x=curves[0].steps, values=[c.held_out for c in curves])
        for arm, curves in runs.items()
    }
    yardsticks = {
        arm: Line(label=arm, x=curves[0].steps, values=[c.yardstick for c in curves])
        for arm, curves in runs.items()
    }
    paid = {
        arm: Line(
            label=arm, x=range(1, len(curves[0].reward) + 1), values=[c.reward for c in curves]
        )
        for arm, curves in runs.items()
    }
    panels = [
        Panel(
            title=f"{what}, {recipe}",
            xlabel="step",
            lines=[lines[arm] for arm in arms if ARMS[arm][0] == recipe],
        )
        for recipe in ("chat", "story")
        for what, lines in (
            ("held-out success (greedy)", held_out),
            ("yardstick, not trained on", yardsticks),
            ("mean reward of a step", paid),
        )
    ]
    return Report(
        panels=panels,
        contrasts={
            f"{arm}: success on test, after less before": [c.test[1] - c.test[0] for c in runs[arm]]
            for arm in arms
        }
        | {
            f"{arm}: yardstick on test, after less before": [
                c.test_yardstick[1] - c.test_yardstick[0] for c in runs[arm]
            ]
            for arm in arms
        },
        settings={
            "steps": len(next(iter(runs.values()))[0].reward),
            "arms": {arm: list(ARMS[arm][1]) for arm in arms},
        },
        notes=[
            f"{arm}: {sum(c.failed for c in curves):g} rollouts failed"
            for arm, curves in runs.items()
        ],
    )


def trained(arm: str, seed: int, quick: bool) -> Curves:
    """Run one arm with one seed."""
    name, changes = ARMS[arm]
    options = [
        f"run.seed={seed}",
        f"run.steps={STEPS}",
        f"evaluation.every={EVERY}",
        "stop={minutes=60}",
    ]
    options += ["checkpoint.every=1000", *(CHAT if name == "chat" else ()), *changes]
    options += [f"model.start.args.seed={seed}"]
    if quick:
        options += [
            f"model.start.args={{max_steps=1, check_every=1, batch=2, tasks=2, model={TINY}}}"
        ]
        options += ["run.steps=1", "sampling.max_tokens=4", "batch={prompts=2, group_size=2}"]
        options += ["evaluation={every=1, tasks=2, test={tasks=2}}"]
    with tempfile.TemporaryDirectory() as folder, server() as url:
        recipe = Recipe.load(name, [option.replace("URL", url) for option in options])
        with RunFolder.create(Path(folder) / "run", recipe.to_toml()) as run:
            summary = run_training(recipe, run, Screen(quiet=True))
        records = [
            json.loads(line)
            for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        ]
    measured = [record for record in records if "held_out.accuracy" in record]
    return Curves(
        steps=[record["step"] for record in measured],
        held_out=[record["held_out.accuracy"] for record in measured],
        yardstick=[record["held_out.yardstick"] for record in measured],
        test=tuple(summary["held_out"][when]["accuracy"] for when in ("before", "after")),
        test_yardstick=tuple(
            summary["held_out"][when]["yardstick"] for when in ("before", "after")
        ),
        reward=[record["reward.mean"] for record in records if "reward.mean" in record],
        failed=sum(record.get("failed", 0.0) for record in records),
    )


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The address of the scripted judge, which answers in a thread of its own."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), [""]
    stop, requests = asyncio.Event(), itertools.count(1)

    async def chat(request: web.Request) -> web.Response:
        messages = [message["content"] for message in (await request.json())["messages"]]
        status, text = FAULTS.get(next(requests) % 32, (200, verdict(*messages)))
        fields = {"refusal": "I do not judge."} if text == "refusal" else {"content": text}
        choice = {"finish_reason": "stop", "message": {"role": "assistant", **fields}}
        body = {"choices": [choice]} if text != "not a completion" else {}
        return web.json_response(body, status=status)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "script"}]})

    async def serve() -> None:
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address[0] = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        ready.wait()
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def verdict(system: str, user: str) -> str:
    """Return what the script answers: a criterion is met or not; replies are ranked by their rubric
    and an error.
    """
    blocks = re.findall(
        r"\[BEGIN (.+?) [0-9a-f]{16}\]\n(.*?)\n\[END \1 [0-9a-f]{16}\]", user, re.DOTALL
    )
    texts = dict(blocks)
    if criterion := re.search(r"^Criterion: (.*)$", system, re.MULTILINE):
        return json.dumps(
            {"reason": "", "score": 2 * int(bool(check(criterion[1], texts["reply"])))}
        )
    task = TASKS[texts["prompt"]]
    digest = hashlib.sha256(user.encode()).digest()
    draw = Random(digest)
    marks = {
        name.removeprefix("reply "): rubric(task, text) + draw.gauss(0, ERROR)
        for name, text in blocks
        if name != "prompt"
    }
    return json.dumps({"reason": "", "ranking": sorted(marks, key=lambda label: -marks[label])})


def rubric(task: ChatTask, reply: str) -> float:
    """Return the score of a note."""
    return weighted(task.criteria, [float(bool(check(c.text, reply))) for c in task.criteria])


TASKS: dict[Any, ChatTask] = {
    task.prompt: task for split in ("train", "dev", "test") for task in notes(split)
}


if __name__ == "__main__":
    main(study)
