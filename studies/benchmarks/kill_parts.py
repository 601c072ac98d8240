"""What the runs of `studies.benchmarks.kills` are made of: an environment that uses a sandbox, and
replicas that are servers without a model, whose log-probs say with which weights they sampled.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.plugins.scale.ray.placed_replica import PlacedReplica
from tests.plugins.scale.schedules.process_replica import ProcessReplica, content_of

from quintain import (
    Agent,
    Environment,
    Limits,
    Rollout,
    Sampled,
    Sampling,
    Task,
    Weights,
    need,
    reward,
)
from quintain.rollouts import Span, record_spans
from quintain_scale.schedules import EnginePool

STATE = "QUINTAIN_KILLS_STATE"
"""The file in which a run says what it does."""
ROOM = 4096
"""Bytes of that file."""
WATCHED = ("rollouts", "update", "sync", "transfer", "record", "checkpoint")
PROGRAM = "import sys, time, zlib; time.sleep({}); print(zlib.crc32(sys.stdin.buffer.read()))"
Words = tuple[str, ...]


def expected_reward(replies: Sequence[str]) -> float:
    """The reward of an episode with these *replies*, whatever was killed; at least 0.25."""
    return 0.25 + zlib.crc32(" ".join(replies).encode()) % 1000 / 2000


@reward(range=(0, 1))
def graded(rollout: Rollout[Task, Words]) -> float:
    """Return 0 for a program that has failed, as an author would who expects no kill."""
    printed = rollout.result[-1]
    if not printed:
        return 0.0
    return 0.25 + int(printed) % 1000 / 2000


class Asks(Environment[Task, Words]):
    """Two turns with a program between them, and one after them that reads both replies."""

    reward = graded
    limits = Limits(turns=2)
    sandbox: Any = need()
    size: int = 24
    seconds: float = 0.05

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {number}", answer="") for number in range(self.size))

    async def rollout(self, task: Task, agent: Agent) -> Words:
        replies: list[str] = []
        printed = ""
        agent.user(task.prompt)
        for _ in range(2):
            replies.append((await agent.turn()).reply)
            code = PROGRAM.format(self.seconds)
            ran = await self.sandbox.run({}, ["python3", "-I", "-c", code], " ".join(replies))
            printed = ran.stdout.decode().strip() if ran.status == "ok" else ""
            agent.user(f"it printed {printed}")
        return (*replies, printed)


class State:
    """What this process of the run does now, in a file that others read.

    Attributes:
        content: ``pid`` of the run, ``steps`` that it has ended, ``spans`` that are open, and
            ``transfers``, the servers that are taking weights.
    """

    def __init__(self) -> None:
        self.content: dict[str, Any] = {"pid": os.getpid(), "steps": 0, "transfers": []}
        self._open: list[str] = []
        self._file = os.open(os.environ[STATE], os.O_RDWR | os.O_CREAT)
        self.write()

    def begin(self, span: Span) -> None:
        if span.name in WATCHED:
            self._open.append(span.name)
            self.write()

    def end(self, span: Span) -> None:
        if span.name in WATCHED:
            with suppress(ValueError):
                self._open.remove(span.name)
        if span.name == "step" and not span.error:
            self.content["steps"] += 1
        self.write()

    def write(self) -> None:
        text = json.dumps(self.content | {"spans": self._open}).ljust(ROOM - 1) + "\n"
        os.pwrite(self._file, text.encode(), 0)


def read_state(path: Path) -> dict[str, Any]:
    """What the run did last; empty before it said anything."""
    with suppress(FileNotFoundError, ValueError):
        content: dict[str, Any] = json.loads(path.read_text())
        return content
    return {}


_states: list[State] = []


class Pool(EnginePool):
    """The engine `pool`, in a run that says what it does."""

    def quintain_on_run_start(self, event: Any) -> None:
        super().quintain_on_run_start(event)
        _states[:] = [State()]
        record_spans(_states[0])


def logp_of(content: str) -> float:
    """The log-prob of each token that a server samples with the weights *content*."""
    return -5.0 - hashlib.blake2b(content.encode(), digest_size=2).digest()[0] / 1024


def contents_path() -> Path:
    """The file with what was published, a line for each transfer."""
    return Path(os.environ[STATE]).with_suffix(".contents")


class Replica(ProcessReplica):
    """A server without a model. Its log-probs tell the bytes of the weights that it has."""

    name = "kill-replica"

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        count = min(sampling.max_tokens or self.context, self.context - len(ids))
        answer = await self._call(do="sample", ids=list(ids), seed=sampling.seed, count=count)
        return Sampled(
            ids=tuple(answer["ids"]),
            logps=tuple(map(logp_of, answer["contents"])),
            versions=tuple(answer["versions"]),
            finish="length",
        )

    async def update(self, weights: Weights) -> int:
        with contents_path().open("a") as file:
            file.write(json.dumps([weights.version, content_of(weights)]) + "\n")
        process = self._process
        state = _states[0] if _states else None
        if state is not None and process is not None:
            state.content["transfers"].append(process.pid)
            state.write()
        try:
            return await super().update(weights)
        finally:
            if state is not None and process is not None:
                state.content["transfers"].remove(process.pid)
                state.write()


class Placed(Replica, PlacedReplica):
    """Such a server, which a cluster starts."""

    name = "kill-placed-replica"
