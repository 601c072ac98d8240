"""Episodes of `search` through the real MCP server: exact transcripts, 64 at a time, the service's
own ends.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain import (
    InfrastructureError,
    Message,
    Sampled,
    Sampling,
    Service,
    Task,
    TokenEngine,
    Weights,
)
from quintain.engine import EmbeddedEngine
from quintain.evaluation import evaluate
from quintain.types.transcript import TokenSource
from quintain_env_search import Search, SearchServer, SearchService
from quintain_starter.source import untrained

PILOTS = 300
SMALL = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 64}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUINTAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Told(TokenEngine):
    """A real model that says what the oracle says: the tokens are given, their log-probs are the
    model's.
    """

    name = "told"

    def __init__(self, inner: TokenEngine, environment: Search) -> None:
        self.tokenizer, self.context = inner.tokenizer, inner.context
        self._inner, self._environment = inner, environment
        self._task: Any = None

    def for_task(self, task: Task) -> Told:
        bound = copy.copy(self)
        bound._task = task
        return bound

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        turns = self.tokenizer.decode(ids).count("<|im_start|>assistant\n") - 1
        reply = self._environment.oracle(self._task, [Message("assistant", "")] * turns)
        text = reply.text
        for call in reply.calls:
            text += f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
        stop = self.tokenizer.stop_ids[0]
        new = (*self.tokenizer.encode(text), stop)
        logps = await self._inner.score((*ids, *new), len(ids))
        return Sampled(
            ids=new, logps=tuple(logps), versions=(0,) * len(new), finish="stop", stop=stop
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return await self._inner.score(ids, start)

    async def update(self, weights: Weights) -> int:
        raise NotImplementedError


def episodes(search: Service, count: int, **fields: Any) -> Any:
    """Rollouts of `Told` on *count* questions, and the log-probs of their sequences when scored
    again.
    """

    async def play() -> Any:
        model = untrained(0, **SMALL)
        async with (
            search as server,
            EmbeddedEngine.sharing(model.module, model.tokenizer, slots=16) as inner,
        ):
            environment: Any = Search(pilots=PILOTS, search=server, **fields)
            tasks = environment.tasks("dev")[:count]
            engine = Told(inner, environment)
            done = await evaluate(
                environment, engine, split="dev", tasks=tasks, services={"retriever": server}
            )
            rollouts = [r for g in done.groups for r in g.rollouts]
            again = [
                [await inner.score(s.ids, 1) for s in rollout.transcripts[""].sequences()]
                for rollout in rollouts
            ]
            return rollouts, again, model.tokenizer

    return asyncio.run(play())


def test_transcripts_score_as_they_were_recorded() -> None:
    """64 episodes at a time, one sequence each: model tokens are what was said, and no token of a
    tool trains.
    """
    rollouts, again, tokenizer = episodes(SearchServer(pilots=PILOTS), 64)
    assert {1, 2} == {rollout.task.level for rollout in rollouts}
    for rollout, scored in zip(rollouts, again, strict=True):
        assert rollout.outcome.total == 1.0
        (sequence,), (logps,) = rollout.transcripts[""].sequences(), scored
        for mask, recorded, new in zip(sequence.mask[1:], sequence.logps[1:], logps, strict=True):
            assert not mask or recorded == pytest.approx(new, abs=1e-5)
        said = "".join(f"{turn.text}<|im_end|>" for turn in rollout.turns)
        assert said == tokenizer.decode(
            [i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m]
        )
        sources = rollout.transcripts[""].path(0).sources
        told = [
            (i, m)
            for i, m, s in zip(sequence.ids, sequence.mask, sources, strict=True)
            if s == TokenSource.TOOL
        ]
        assert not any(mask for _, mask in told)
        text = tokenizer.decode([i for i, _ in told])
        results = [m.content for m in rollout.messages if m.role == "tool"]
        assert rollout.task.level == len(results)
        assert text == "".join(results)


@pytest.mark.more
def test_the_server_and_the_index_give_the_same_episodes() -> None:
    """Token for token: the process behind MCP shows what the index in this process shows."""
    fields = {"results": 1, "open_tool": ""}
    (one, *_), (other, *_) = (
        episodes(s(pilots=PILOTS), 6, **fields) for s in (SearchServer, SearchService)
    )
    for a, b in zip(one, other, strict=True):
        assert a.replace(seconds=0.0) == b.replace(seconds=0.0)


def test_a_dead_server_is_no_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its data set is not there: the run ends before a task is asked."""
    with pytest.raises(InfrastructureError, match=r"missing\.json"):
        asyncio.run(_entered(SearchServer(data=str(tmp_path / "missing.json"))))


async def _entered(service: Service) -> None:
    async with service:
        pass
