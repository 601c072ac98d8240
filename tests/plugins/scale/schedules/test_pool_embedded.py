"""A pool of embedded engines samples what one of them samples, and trains."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

import torch

from quintain import InfrastructureError, Sampled, Sampling
from quintain.engine.embedded import EmbeddedEngine
from quintain.learning import ModuleWeights
from quintain.models import HFTokenizer
from quintain.store.run_folder import RunFolder
from quintain_scale.schedules import EnginePool

from ....core.models.tiny import byte_tokenizer, save_tiny, tiny_model
from ....integration.test_run_plan import metrics, recipe, run

pytestmark = pytest.mark.usefixtures("no_curves")

CALLS = [
    ([k % 5, 7, 9], Sampling(max_tokens=12 + k, seed=k, temperature=0.8 + 0.4 * (k % 2)))
    for k in range(12)
]


def plain_logps(
    module: Any, ids: Sequence[int], reply: Sequence[int], temperature: float
) -> list[float]:
    with torch.no_grad():
        logits = module(torch.tensor([[*ids, *reply]])).logits[0, len(ids) - 1 : -1] / temperature
    return list(
        logits.log_softmax(-1).gather(-1, torch.tensor(reply)[:, None]).squeeze(-1).tolist()
    )


def pool(module: Any, **options: Any) -> EnginePool:
    return EnginePool.sharing(module, HFTokenizer(byte_tokenizer()), **options)


async def all_of(engine: Any) -> list[Sampled]:
    async with engine:
        return await asyncio.gather(*(engine.sample(ids, sampling) for ids, sampling in CALLS))


def test_tokens_and_log_probs_are_those_of_one_engine() -> None:
    """Also where the learner's module is decoded itself; and scores."""
    module = tiny_model()
    one = EmbeddedEngine.sharing(module, HFTokenizer(byte_tokenizer()), reproducible=False)
    expected = asyncio.run(all_of(one))
    for copy in (False, True):
        several = pool(module, count=3, copy=copy)
        for reply, other in zip(expected, asyncio.run(all_of(several)), strict=True):
            assert reply.ids == other.ids
            assert reply.finish == other.finish
            assert reply.stop == other.stop
            assert list(reply.logps) == pytest.approx(list(other.logps), abs=1e-5)
            assert reply.versions == other.versions
    ids = [*CALLS[0][0], *expected[0].ids]
    assert asyncio.run(one.score(ids, 2, 0.8)) == pytest.approx(
        asyncio.run(several.score(ids, 2, 0.8)), abs=1e-5
    )


def test_log_probs_of_segments_are_the_model_s() -> None:
    module = tiny_model()
    for (ids, sampling), reply in zip(
        CALLS, asyncio.run(all_of(pool(module, segment=5))), strict=True
    ):
        assert list(reply.logps) == pytest.approx(
            plain_logps(module, ids, reply.ids, sampling.temperature), abs=1e-4
        )
        assert reply.finish == "stop" or len(reply.ids) == sampling.max_tokens


def test_a_stop_string_may_span_two_segments() -> None:
    module = tiny_model(context=64)
    engine = pool(module, segment=5)
    tokenizer = engine.tokenizer
    for seed in range(200):
        whole = asyncio.run(engine.sample([1, 2], Sampling(max_tokens=10, seed=seed)))
        if len(whole.ids) == 10 and all(32 <= token < 90 for token in whole.ids[4:6]):
            break
    text = tokenizer.decode(whole.ids[4:6])
    stopped = asyncio.run(engine.sample([1, 2], Sampling(max_tokens=10, seed=seed, stop=(text,))))

    assert len(text) == 2
    assert stopped.ids == whole.ids[:6]
    assert stopped.finish == "stop"
    assert stopped.stop == text


def test_each_token_of_an_update_in_flight_has_its_version() -> None:
    """On both replicas, with the log-probs of a plain forward under that version."""
    modules = [tiny_model(), tiny_model()]
    with torch.no_grad():
        for parameter in modules[1].parameters():
            parameter.mul_(1.3)
    engine = pool(modules[0], copy=True)

    async def go() -> list[Sampled]:
        async with engine:
            await engine.update(ModuleWeights(modules[0], 0))
            turns = [
                asyncio.create_task(engine.sample([k, 2, 3], Sampling(max_tokens=200, seed=k)))
                for k in range(4)
            ]
            replicas: list[Any] = engine._replicas
            while not all(replica._running() for replica in replicas):  # noqa: ASYNC110 -- engines have no event for it
                await asyncio.sleep(0)
            assert await engine.update(ModuleWeights(modules[1], 1)) == 1
            return await asyncio.gather(*turns)

    replies = asyncio.run(go())
    assert all(
        reply.versions[0] == 0 and list(reply.versions) == sorted(reply.versions)
        for reply in replies
    )
    assert 1 in replies[0].versions
    assert 1 in replies[1].versions
    for k, reply in enumerate(replies):
        both = [plain_logps(module, [k, 2, 3], reply.ids, 1.0) for module in modules]
        assert [both[v][at] for at, v in enumerate(reply.versions)] == pytest.approx(
            list(reply.logps), abs=1e-4
        )


def test_a_replica_that_kept_its_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the label of the new ones (radixark/miles#1724, sgl-project/sglang#2050)."""
    module = tiny_model()
    engine: Any = pool(module, copy=True)
    monkeypatch.setattr(engine._replicas[1].snapshot, "refresh", lambda weights: None)
    with torch.no_grad():
        module.model.norm.weight.add_(1e-6)
    assert asyncio.run(engine.update(ModuleWeights(module, 1))) == 1
    outdated = asyncio.run(engine.outdated(ModuleWeights(module, 1)))
    assert outdated == "model.norm.weight of Qwen3RMSNorm in replica 1"
    monkeypatch.undo()
    asyncio.run(engine.update(ModuleWeights(module, 2)))
    assert asyncio.run(engine.outdated(ModuleWeights(module, 2))) == ""


def spoil(replica: Any) -> None:
    with torch.no_grad():
        next(iter(replica.snapshot.module.parameters())).fill_(float("nan"))


def test_turns_of_a_broken_replica_are_sampled_on_another_and_it_is_made_anew() -> None:
    """A weight that is not a number, as after a fault of the memory; the tokens are the same as
    without it, and a new replica takes the weights that were published before.
    """
    module = tiny_model()
    expected = asyncio.run(all_of(pool(module, copy=True)))
    engine = pool(module, copy=True, backoff=0.0)

    async def go() -> tuple[list[Sampled], list[Sampled]]:
        async with engine:
            await engine.update(ModuleWeights(module, 1))
            spoil(broken := engine._replicas[0])
            during = await asyncio.gather(*(engine.sample(*call) for call in CALLS))
            await engine._router.until(lambda: not engine._router.is_lost(0))
            assert engine._replicas[0] is not broken
            assert await engine._replicas[0].outdated(ModuleWeights(module, 1)) == ""
            return during, await asyncio.gather(*(engine.sample(*call) for call in CALLS))

    for replies in asyncio.run(go()):
        for reply, other in zip(expected, replies, strict=True):
            assert reply.ids == other.ids
            assert list(reply.logps) == pytest.approx(list(other.logps), abs=1e-5)
            assert other.versions == (1,) * len(reply.ids)


def test_a_turn_that_all_replicas_break_is_a_failure_of_the_engine() -> None:
    engine = pool(tiny_model(), copy=True, restarts=0)
    for replica in engine._replicas:
        spoil(replica)
    with pytest.raises(InfrastructureError, match="NaN"):
        asyncio.run(engine.sample([1], Sampling(max_tokens=2, seed=0)))


@pytest.mark.more
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(
            {"use": "one_step_off", "args": {"order": "longest_first"}}, marks=pytest.mark.slow
        ),
        {"use": "areal"},
    ],
)
def test_a_run_trains_with_a_pool(schedule: dict[str, Any], tmp_path: Path) -> None:
    """Engine and learner agree on every token, and every rollout of a batch is there."""
    told = recipe(
        save_tiny(tmp_path / "model", context=256), {}, run__steps=4, algorithm__args={}
    ).replace(
        {
            "engine.use": "pool",
            "engine.args": {"count": 2, "slots": 4, "segment": 3, "late": 1},
            "schedule": schedule,
        }
    )
    summary = run(tmp_path / "run", told)
    steps = [record for record in metrics(tmp_path / "run") if record["step"]]

    assert 4 == summary["steps"] == len(steps)
    assert all(record["failed"] == 0 and record["groups"] == 4 for record in steps)
    assert all(record["mismatch.sample"] < 1e-3 for record in steps if "mismatch.sample" in record)
    assert any("mismatch.sample" in record for record in steps)
    rows = list(RunFolder(tmp_path / "run", lock=False).read_rollouts(4))
    assert {v for row in rows for v in row["token_versions"]} <= {-1, 0, 1, 2, 3}
