"""vLLM in this process samples what the plain model would, and records exactly what it sampled.

Runs in the environment of `tools/vllm_env.sh`; elsewhere it is skipped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")

import torch

from quintain import InfrastructureError, LimitReached, Sampling
from quintain.errors import UsageError
from quintain_engines.vllm import SleepUnsupportedError, VLLMEngine
from quintain_engines.vllm.requests import sampled

from ....core.models.tiny import tiny_model
from .kit import TOKENIZER, Running, plain_logps, prompts

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    started = Running(tiny_model(hidden=128))
    yield started
    started.close()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_agree_with_a_plain_forward(running: Running, temperature: float) -> None:
    """Ragged prompts and lengths, fewer slots than requests, groups that share a prompt."""
    rng = Random(1)
    calls = [
        (ids, Sampling(seed=i, temperature=temperature, max_tokens=rng.randint(1, 60)))
        for i, ids in enumerate(prompts(24, group=3))
    ]
    for (ids, sampling), out in zip(calls, running.sample(*calls), strict=True):
        assert len(out.ids) == sampling.max_tokens or out.finish == "stop"
        assert list(out.logps) == pytest.approx(
            plain_logps(running.model, ids, out.ids, temperature), abs=1e-4
        )
        assert out.versions == (0,) * len(out.ids)


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(running: Running) -> None:
    calls = [(ids, Sampling(seed=i, max_tokens=30)) for i, ids in enumerate(prompts(12, group=2))]
    together = running.sample(*calls)
    alone = [running.sample(call)[0] for call in calls]
    assert [o.ids for o in together] == [o.ids for o in alone]
    assert len({o.ids for o in together}) == len(together)


def test_another_seed_gives_other_tokens_and_none_draws_one(running: Running) -> None:
    calls = [([1, 2, 3], Sampling(seed=seed, max_tokens=20)) for seed in (1, 1, 2, None, None)]
    ids = [o.ids for o in running.sample(*calls)]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


def test_greedy_is_the_argmax_with_untempered_log_probs(running: Running) -> None:
    mixed = [
        ([1, 2, 3], Sampling(temperature=0, max_tokens=12)),
        ([9], Sampling(seed=0, max_tokens=12)),
    ]
    out = running.sample(*mixed)[0]
    with torch.no_grad():
        expected = running.model.generate(
            torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=12
        )[0, 3:].tolist()
    assert list(out.ids) == expected[: len(out.ids)]
    assert out.logps == pytest.approx(plain_logps(running.model, [1, 2, 3], out.ids), abs=1e-4)


@pytest.mark.parametrize("truncation", [{"top_k": 3}, {"top_p": 0.3}, {"min_p": 0.6}])
def test_truncation_keeps_the_likeliest_and_records_the_whole_distribution(
    running: Running, truncation: dict[str, Any]
) -> None:
    outs = running.sample(
        *(([7, 8], Sampling(seed=i, max_tokens=1, **truncation)) for i in range(60))
    )
    with torch.no_grad():
        probs = running.model(torch.tensor([[7, 8]])).logits[0, -1].softmax(-1)
    order = probs.argsort(descending=True)
    before = probs[order].cumsum(0) - probs[order]
    kept = {
        "top_k": order[:3],
        "top_p": order[before < 0.3],
        "min_p": order[probs[order] >= 0.6 * probs[order[0]]],
    }[next(iter(truncation))]
    assert {o.ids[0] for o in outs} <= set(kept.tolist())
    assert all(o.logps[0] == pytest.approx(math.log(probs[o.ids[0]]), abs=1e-5) for o in outs)


def test_pruning_records_the_renormalised_distribution(running: Running) -> None:
    outs = running.sample(
        *(([7, 8], Sampling(seed=i, max_tokens=1, prune=0.1, temperature=0.8)) for i in range(40))
    )
    with torch.no_grad():
        probs = (running.model(torch.tensor([[7, 8]])).logits[0, -1] / 0.8).softmax(-1)
    kept = torch.where(probs >= 0.1 * probs.max(), probs, 0.0)
    kept /= kept.sum()
    assert all(o.logps[0] == pytest.approx(math.log(kept[o.ids[0]]), abs=1e-4) for o in outs)


def test_stop_ids_length_and_their_order(running: Running) -> None:
    (free,) = running.sample(([1, 2], Sampling(seed=3, max_tokens=30)))
    place = next(i for i, token in enumerate(free.ids) if i >= 4 and token not in free.ids[:i])
    token = free.ids[place]
    stopped, exact, short = running.sample(
        ([1, 2], Sampling(seed=3, max_tokens=30, stop_ids=(9999, token))),
        ([1, 2], Sampling(seed=3, max_tokens=place + 1, stop_ids=(token,))),
        ([1, 2], Sampling(seed=3, max_tokens=place)),
    )
    assert stopped.finish == "stop"
    assert stopped.stop == token
    assert stopped.ids == free.ids[: place + 1]
    assert exact.finish == "stop"
    assert exact.stop == token
    assert short.finish == "length"
    assert short.stop is None
    assert short.ids == free.ids[:place]


def test_the_tokenizers_own_stop_ids_end_a_turn(running: Running) -> None:
    outs = running.sample(*(([i], Sampling(seed=i, max_tokens=400)) for i in range(12)))
    ended = [o for o in outs if o.finish == "stop"]
    assert ended
    assert all(o.ids[-1] == o.stop and o.stop in TOKENIZER.stop_ids for o in ended)
    assert all(not set(o.ids[:-1]) & set(TOKENIZER.stop_ids) for o in outs)


def test_stop_strings_keep_the_token_that_completes_them(running: Running) -> None:
    (free,) = running.sample(([1, 2], Sampling(seed=3, max_tokens=60)))
    place = next(
        i
        for i in range(3, len(free.ids))
        if TOKENIZER.decode(free.ids[i - 1 : i + 1]).isascii()
        and TOKENIZER.decode(free.ids[i - 1 : i + 1]) not in TOKENIZER.decode(free.ids[:i])
    )
    stop = TOKENIZER.decode(free.ids[place - 1 : place + 1])
    (out,) = running.sample(([1, 2], Sampling(seed=3, max_tokens=60, stop=("never seen", stop))))
    assert out.finish == "stop"
    assert out.stop == stop
    assert out.ids == free.ids[: place + 1]
    assert len(out.logps) == len(out.ids)


def test_the_context_is_a_limit(running: Running) -> None:
    (out,) = running.sample(
        (list(range(200)) + list(range(200)) + list(range(100)), Sampling(seed=4))
    )
    assert len(out.ids) == 12 or out.finish == "stop"
    with pytest.raises(LimitReached, match="context is 512"):
        running.sample(([1] * 512, Sampling()))
    with pytest.raises(ValueError, match="empty prompt"):
        running.sample(([], Sampling()))


def test_scores_are_those_of_a_plain_forward(running: Running) -> None:
    """At any temperature, from any start, up to a whole context, and of a single token."""
    ids = [random % 256 for random in range(3, 512 * 7 + 3, 7)]
    for start, length, temperature in [
        (1, 512, 1.0),
        (500, 512, 0.7),
        (11, 12, 0.7),
        (5, 40, 1.0),
        (3, 4, 1.0),
    ]:
        scores = running.do(running.engine.score(ids[:length], start, temperature))
        assert scores == pytest.approx(
            plain_logps(running.model, ids[:start], ids[start:length], temperature), abs=2e-4
        ), (start, length)
    assert running.do(running.engine.score(ids[:5], 5)) == []
    with pytest.raises(ValueError, match="start is 0"):
        running.do(running.engine.score(ids[:5], 0))
    with pytest.raises(LimitReached):
        running.do(running.engine.score([1] * 513, 1))


def test_a_cancelled_request_frees_its_slot(running: Running) -> None:
    async def cancel() -> tuple[int, list[Any]]:
        tasks = [
            asyncio.create_task(running.engine.sample([i], Sampling(seed=i))) for i in range(40)
        ]
        await asyncio.sleep(0)
        assert await running.engine._do(lambda engine: engine.get_num_unfinished_requests()) > 0
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        return await running.engine._do(lambda engine: engine.get_num_unfinished_requests()), ended

    left, ended = running.do(cancel())
    assert left == 0
    assert any(isinstance(e, asyncio.CancelledError) for e in ended)


def test_a_reply_that_another_client_aborts_is_a_failure() -> None:
    """It would be scored as a whole reply."""
    with pytest.raises(InfrastructureError, match="cut the turn off"):
        sampled((1, 2), (-0.5, -0.1), (("3", 0, 2),), "abort", None, range(4))


def test_a_group_computes_its_prompt_once(running: Running) -> None:
    """64 tokens are two blocks of 32; all but the first sample find them."""
    prompt = [Random(9).randrange(256) for _ in range(70)]

    async def group() -> list[int]:
        fields = {"max_tokens": 2, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
        return [
            a.cached
            for a in await asyncio.gather(
                *(running.engine._generate(prompt, fields) for _ in range(8))
            )
        ]

    assert sorted(running.do(group())) == [0] + [64] * 7


def test_a_wrong_request_fails_alone(running: Running) -> None:
    async def both() -> list[Any]:
        wrong = running.engine._generate([1], {"max_tokens": 1, "logprobs": -5})
        right = running.engine.sample([1], Sampling(max_tokens=3))
        return await asyncio.gather(wrong, right, return_exceptions=True)

    failed, fine = running.do(both())
    assert isinstance(failed, Exception)
    assert 1 <= len(fine.ids) <= 3


def test_settings_out_of_range() -> None:
    model = tiny_model()
    with pytest.raises(UsageError, match="slots is 0"):
        VLLMEngine.sharing(model, TOKENIZER, slots=0)
    with pytest.raises(UsageError, match="takes 2 to 512"):
        VLLMEngine.sharing(model, TOKENIZER, context=513)
    with pytest.raises(UsageError, match="not started"):
        asyncio.run(VLLMEngine.sharing(model, TOKENIZER).sample([1], Sampling()))
    with pytest.raises(UsageError, match="needs a model"):
        VLLMEngine()


def test_temperatures_that_vllm_would_change_are_refused(running: Running) -> None:
    with pytest.raises(UsageError, match=r"at least 0\.01"):
        running.sample(([1], Sampling(temperature=0.001)))
    with pytest.raises(UsageError, match="prune"):
        running.sample(([1], Sampling(prune=0.1, top_k=3)))


def test_sleep_is_refused_on_a_cpu(running: Running) -> None:
    with pytest.raises(SleepUnsupportedError, match="cannot sleep here"):
        running.do(running.engine.sleep())
    with pytest.raises(UsageError, match="expected 1 or 2"):
        running.do(running.engine.sleep(3))
