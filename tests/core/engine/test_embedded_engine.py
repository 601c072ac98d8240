"""The embedded engine samples what the plain model would, and records exactly what it sampled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
import torch

from quintain.engine.decoding import BatchForward, LayerForward, ModuleForward
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import InfrastructureError, LimitReached, UsageError
from quintain.models.tokenizer import HFTokenizer
from quintain.types.sampling import Sampling
from quintain.types.task import Message
from quintain.types.transcript import Sampled
from quintain_rewards.likelihood import LikelihoodService

from ..models.architectures import architecture
from ..models.tiny import KINDS, byte_tokenizer, save_tiny, tiny_model

TOKENIZER = HFTokenizer(byte_tokenizer())
Out = TypeVar("Out")


def run(coroutine: Coroutine[Any, Any, Out]) -> Out:
    async def bounded() -> Out:
        return await asyncio.wait_for(coroutine, 120)

    return asyncio.run(bounded())


async def sample_all(
    engine: EmbeddedEngine, calls: Sequence[tuple[Sequence[int], Sampling]]
) -> list[Sampled]:
    return await asyncio.gather(*(engine.sample(ids, sampling) for ids, sampling in calls))


async def under_way(engine: EmbeddedEngine) -> None:
    """Return once some request has its first token."""
    while not any(row.request and row.request.tokens for row in engine._slots.rows):  # noqa: ASYNC110 -- nothing tells
        await asyncio.sleep(0)


def prompts(count: int, *, seed: int = 0, group: int = 1) -> list[list[int]]:
    rng = Random(seed)
    distinct = [
        [rng.randrange(256) for _ in range(rng.randint(1, 40))] for _ in range(count // group)
    ]
    return [ids for ids in distinct for _ in range(group)]


def plain_logps(
    model: Any, ids: Sequence[int], reply: Sequence[int], temperature: float
) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *reply]])).logits[0, len(ids) - 1 : -1]
    logps = (logits.double() / temperature).log_softmax(-1)
    return logps.gather(-1, torch.tensor(reply)[:, None]).squeeze(-1).tolist()


def engine_of(model: Any, **options: Any) -> EmbeddedEngine:
    return EmbeddedEngine.sharing(model, TOKENIZER, **options)


def test_rotary_frequencies_that_depend_on_the_length_limit_the_context() -> None:
    """Here to 32 tokens: up to them, a short sequence gets its own log-probs beside one that
    reaches the limit.
    """
    model = architecture("phi3-longrope", vocab_size=260, eos_token_id=258, pad_token_id=259)
    engine = engine_of(model, slots=3)
    assert engine.context == 32
    calls = [(list(range(5, 5 + n)), Sampling(seed=n, max_tokens=60)) for n in (28, 10, 3, 20)]
    for (ids, _), out in zip(calls, run(sample_all(engine, calls)), strict=True):
        assert len(ids) + len(out.ids) == 32 or out.finish == "stop"
        assert list(out.logps) == pytest.approx(plain_logps(model, ids, out.ids, 1.0), abs=1e-4)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert engine_of(architecture("llama", vocab_size=260, rope_parameters=dynamic)).context == 128


@pytest.mark.keeps("1.0-llama", "1.0-gpt2", "0.7-qwen2")
@pytest.mark.parametrize("kind", [*KINDS, "mistral"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_agree_with_a_plain_forward(kind: str, temperature: float) -> None:
    """Ragged prompts and lengths, fewer slots than requests, groups that share a prompt."""
    model = tiny_model(kind, sliding_window=9) if kind == "mistral" else tiny_model(kind)
    engine = engine_of(model, slots=6)
    forward = {"gpt2": ModuleForward, "mistral": BatchForward}.get(kind, LayerForward)
    assert isinstance(engine._forward, forward)
    rng = Random(1)
    calls = [
        (ids, Sampling(seed=i, temperature=temperature, max_tokens=rng.randint(1, 60)))
        for i, ids in enumerate(prompts(24, group=3))
    ]
    for (ids, sampling), out in zip(calls, run(sample_all(engine, calls)), strict=True):
        assert len(out.ids) == sampling.max_tokens or out.finish == "stop"
        expected = plain_logps(model, ids, out.ids, temperature)
        assert max(abs(a - b) for a, b in zip(out.logps, expected, strict=True)) <= 1e-4
        assert out.versions == (0,) * len(out.ids)


@pytest.mark.keeps("qwen3")
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(kind: str) -> None:
    model = tiny_model(kind, dtype=torch.float64)
    calls = [(ids, Sampling(seed=i, max_tokens=30)) for i, ids in enumerate(prompts(12, group=2))]
    together = run(sample_all(engine_of(model, slots=5), calls))
    alone = [run(sample_all(engine_of(model), [call]))[0] for call in calls]
    assert [o.ids for o in together] == [o.ids for o in alone]
    assert len({o.ids for o in together}) == len(together)


def test_another_seed_gives_other_tokens_and_none_draws_one() -> None:
    engine = engine_of(tiny_model())
    calls = [([1, 2, 3], Sampling(seed=seed, max_tokens=20)) for seed in (1, 1, 2, None, None)]
    ids = [o.ids for o in run(sample_all(engine, calls))]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


@pytest.mark.more
def test_samples_follow_the_distribution() -> None:
    """2,000 first tokens against the model's own probabilities: chi-square within five standard
    deviations.
    """
    model = tiny_model(vocab=260, spread=0.4)
    count = 2000
    outs = run(
        sample_all(
            engine_of(model, slots=500),
            [([5], Sampling(seed=i, max_tokens=1)) for i in range(count)],
        )
    )
    with torch.no_grad():
        expected = model(torch.tensor([[5]])).logits[0, -1].double().softmax(-1) * count
    seen = torch.bincount(torch.tensor([o.ids[0] for o in outs]), minlength=260)
    often = expected >= 5
    statistic = ((seen - expected)[often] ** 2 / expected[often]).sum().item()
    freedom = int(often.sum())
    assert freedom > 20
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


def test_greedy_is_the_argmax_with_untempered_log_probs() -> None:
    model = tiny_model()
    greedy = Sampling(temperature=0, max_tokens=12)
    mixed = [([1, 2, 3], greedy), ([9], Sampling(seed=0, max_tokens=12))]
    out = run(sample_all(engine_of(model), mixed))[0]
    with torch.no_grad():
        expected = model.generate(torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=12)[
            0, 3:
        ].tolist()
    assert list(out.ids) == expected[: len(out.ids)]
    assert out.logps == pytest.approx(plain_logps(model, [1, 2, 3], out.ids, 1.0), abs=1e-4)


@pytest.mark.parametrize("sampling", [{"top_k": 3}, {"top_p": 0.3}, {"min_p": 0.6}])
def test_truncation_keeps_the_likeliest_and_records_the_whole_distribution(
    sampling: dict[str, Any],
) -> None:
    model = tiny_model(spread=0.3)
    calls = [([7, 8], Sampling(seed=i, max_tokens=1, **sampling)) for i in range(200)]
    outs = run(sample_all(engine_of(model, slots=200), calls))
    with torch.no_grad():
        probs = model(torch.tensor([[7, 8]])).logits[0, -1].softmax(-1)
    order = probs.argsort(descending=True)
    before = probs[order].cumsum(0) - probs[order]
    kept = {
        "top_k": order[:3],
        "top_p": order[before < 0.3],
        "min_p": order[probs[order] >= 0.6 * probs[order[0]]],
    }[next(iter(sampling))]
    assert {o.ids[0] for o in outs} == set(kept.tolist())
    assert all(o.logps[0] == pytest.approx(math.log(probs[o.ids[0]]), abs=1e-5) for o in outs)


def test_stop_ids_length_and_their_order() -> None:
    engine = engine_of(tiny_model())
    free = run(engine.sample([1, 2], Sampling(seed=3, max_tokens=30)))
    place = next(i for i, token in enumerate(free.ids) if i >= 4 and token not in free.ids[:i])
    token = free.ids[place]
    stopped = run(engine.sample([1, 2], Sampling(seed=3, max_tokens=30, stop_ids=(9999, token))))
    assert stopped.finish == "stop"
    assert stopped.stop == token
    assert stopped.ids == free.ids[: place + 1]
    exact = run(engine.sample([1, 2], Sampling(seed=3, max_tokens=place + 1, stop_ids=(token,))))
    assert exact.finish == "stop"
    assert exact.stop == token
    short = run(engine.sample([1, 2], Sampling(seed=3, max_tokens=place)))
    assert short.finish == "length"
    assert short.stop is None
    assert short.ids == free.ids[:place]


def test_the_tokenizers_own_stop_ids_end_a_turn() -> None:
    engine = engine_of(tiny_model(spread=0.4))
    outs = run(sample_all(engine, [([i], Sampling(seed=i, max_tokens=400)) for i in range(40)]))
    ended = [o for o in outs if o.finish == "stop"]
    assert ended
    assert all(o.ids[-1] == o.stop and o.stop in TOKENIZER.stop_ids for o in ended)
    assert all(not set(o.ids[:-1]) & set(TOKENIZER.stop_ids) for o in outs)


def test_stop_strings_keep_the_token_that_completes_them() -> None:
    engine = engine_of(tiny_model())
    free = run(engine.sample([1, 2], Sampling(seed=3, max_tokens=60)))
    place = next(
        i
        for i in range(6, 60)
        if "\N{REPLACEMENT CHARACTER}" not in TOKENIZER.decode(free.ids[i - 1 : i + 1])
    )
    stop = TOKENIZER.decode(free.ids[place - 1 : place + 1])
    assert stop not in TOKENIZER.decode(free.ids[:place])
    calls = [
        ([1, 2], Sampling(seed=3, max_tokens=60, stop=("never seen", stop))),
        ([5], Sampling(seed=1, max_tokens=60)),
    ]
    out = run(sample_all(engine, calls))[0]
    assert out.finish == "stop"
    assert out.stop == stop
    assert out.ids == free.ids[: place + 1]


def test_the_context_is_a_limit() -> None:
    engine = engine_of(tiny_model(), context=32)
    out = run(engine.sample(list(range(20)), Sampling(seed=4)))
    assert out.finish == "length"
    assert len(out.ids) == 12
    assert engine.context == 32
    for length in (32, 50):
        with pytest.raises(LimitReached, match="context is 32") as caught:
            run(engine.sample(list(range(length)), Sampling()))
        assert caught.value.limit == "context"
    with pytest.raises(LimitReached):
        run(engine.score(list(range(33)), 1))


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scoring_agrees_with_sampling(kind: str, temperature: float) -> None:
    engine = engine_of(tiny_model(kind))
    calls = [
        (ids, Sampling(seed=i, temperature=temperature, max_tokens=20 + i))
        for i, ids in enumerate(prompts(8))
    ]

    async def both() -> None:
        outs = await sample_all(engine, calls)
        scores = await asyncio.gather(
            *(
                engine.score([*ids, *out.ids], len(ids), temperature)
                for (ids, _), out in zip(calls, outs, strict=True)
            )
        )
        for out, score in zip(outs, scores, strict=True):
            assert list(out.logps) == pytest.approx(score, abs=1e-4)
        assert await engine.score([1, 2], 2) == []

    run(both())


def test_likelihood_takes_messages_text_and_ids() -> None:
    engine = engine_of(tiny_model())
    service = LikelihoodService(engine=engine)
    text = TOKENIZER.render([Message("user", "hi")])
    replies = [
        run(service.logprobs(p, "yes"))
        for p in ([Message("user", "hi")], text, TOKENIZER.encode(text))
    ]
    assert replies[0] == replies[1] == replies[2]
    ids = TOKENIZER.encode("yes")
    assert replies[0] == pytest.approx(
        plain_logps(engine._module, TOKENIZER.encode(text), ids, 1.0), abs=1e-4
    )
    with pytest.raises(UsageError, match="no token log-probs"):
        LikelihoodService(engine=object())


def test_cancelling_frees_the_slot() -> None:
    engine = engine_of(tiny_model(), slots=1)

    async def scenario() -> Sampled:
        long = asyncio.create_task(engine.sample([1], Sampling(temperature=0, max_tokens=400)))
        queued = asyncio.create_task(engine.sample([2], Sampling(temperature=0, max_tokens=400)))
        await under_way(engine)
        queued.cancel()
        long.cancel()
        assert all(
            isinstance(x, asyncio.CancelledError)
            for x in await asyncio.gather(long, queued, return_exceptions=True)
        )
        assert not engine._slots.live
        assert not engine._queue
        return await engine.sample([3], Sampling(seed=0, max_tokens=5))

    assert len(run(scenario()).ids) == 5


def test_closing_returns_what_there_is() -> None:
    async def scenario() -> Sampled:
        async with engine_of(tiny_model(context=4096), context=4096) as engine:
            task = asyncio.create_task(engine.sample([1], Sampling(temperature=0)))
            await under_way(engine)
        return await task

    out = run(scenario())
    assert out.finish == "cancelled"
    assert 0 < len(out.ids) == len(out.logps) < 4095


@pytest.mark.more
def test_the_event_loop_is_not_starved() -> None:
    engine = engine_of(tiny_model(context=2048))

    async def scenario() -> int:
        task = asyncio.create_task(engine.sample([1], Sampling(temperature=0, max_tokens=1500)))
        ticks = 0
        while not task.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert run(scenario()) >= 10


def test_nan_logits_are_a_failure_not_a_sample_and_the_engine_lives_on() -> None:
    model = tiny_model()
    engine = engine_of(model)
    weight = model.model.layers[0].mlp.down_proj.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(InfrastructureError, match="NaN"):
        run(sample_all(engine, [([1], Sampling(seed=0)), ([2], Sampling(seed=0))]))
    with torch.no_grad():
        weight.copy_(kept)
    assert len(run(engine.sample([1], Sampling(seed=0, max_tokens=3))).ids) == 3


def test_a_model_folder_is_enough(tmp_path: Path) -> None:
    engine = EmbeddedEngine(str(save_tiny(tmp_path, "llama")), dtype="auto", slots=4)
    prompt = TOKENIZER.encode(TOKENIZER.render([Message("user", "hi")]))
    assert len(run(engine.sample(prompt, Sampling(seed=1, max_tokens=8))).ids) == 8
    with pytest.raises(UsageError, match="samples tokens"):
        run(engine.reply([Message("user", "hi")], (), Sampling()))
    with pytest.raises(UsageError, match="no config.json"):
        EmbeddedEngine(str(tmp_path.parent))
    bf16 = EmbeddedEngine(str(tmp_path), dtype="bfloat16")
    assert isinstance(bf16._forward, LayerForward)
    out = run(bf16.sample([1, 2, 3], Sampling(seed=0, max_tokens=20)))
    assert list(out.logps) == pytest.approx(
        plain_logps(bf16._module, [1, 2, 3], out.ids, 1.0), abs=0.2
    )


def test_long_prompts_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain.engine.embedded.PREFILL_TOKENS", 16)
    model = tiny_model()
    calls = [
        (ids, Sampling(seed=i, max_tokens=6))
        for i, ids in enumerate([*prompts(6), list(range(100))])
    ]
    for (ids, _), out in zip(calls, run(sample_all(engine_of(model), calls)), strict=True):
        assert list(out.logps) == pytest.approx(plain_logps(model, ids, out.ids, 1.0), abs=1e-4)


def test_others_keep_their_gradients_while_the_engine_works() -> None:
    """Inference mode belongs to the thread: it must never be on while another task runs."""

    async def main() -> list[bool]:
        engine = engine_of(tiny_model())
        seen: list[bool] = []

        async def watch() -> None:
            while True:
                seen.append(torch.is_grad_enabled() and not torch.is_inference_mode_enabled())
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        sampling = Sampling(max_tokens=8)
        scores = asyncio.gather(*(engine.score([1, 2, 3, 4 + i], 1) for i in range(3)))
        await sample_all(
            engine, [(ids, sampling.replace(seed=i)) for i, ids in enumerate(prompts(6))]
        )
        await scores
        seen.append(torch.is_grad_enabled())
        watcher.cancel()
        return seen

    seen = run(main())

    assert len(seen) > 5
    assert all(seen)


@pytest.mark.parametrize(
    "setting",
    [
        {"slots": 0},
        {"slots": -1},
        {"context": 0},
        {"context": 1},
        {"context": -5},
        {"patience": -1.0},
        {"patience": 0},
    ],
)
def test_settings_out_of_range_are_refused_at_once(setting: dict[str, Any]) -> None:
    """Neither a hang nor a blame on the tasks; the model is not even looked for."""
    ((name, value),) = setting.items()
    for make in (engine_of, EmbeddedEngine):
        with pytest.raises(UsageError, match=f"{name} is {value}; .* expects"):
            make("no-such-model", **setting)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_texts_behind_one_prompt_are_scored_as_alone(kind: str) -> None:
    """A prompt that several texts share is computed once where the forward allows it; the numbers
    stay the same.
    """
    draw = Random(0)
    prompts = [[draw.randrange(250) for _ in range(100)] for _ in range(2)]
    texts = [
        (draw.choice(prompts), [draw.randrange(250) for _ in range(draw.randrange(1, 60))])
        for _ in range(9)
    ]
    rows = [([*prompt, *text], len(prompt)) for prompt, text in texts] + [
        ([*prompts[0][:70], 3, 4], 71),
        ([5, 6], 1),
    ]

    engine = engine_of(tiny_model(kind), slots=1, reproducible=False)
    prefixes: list[int] = []
    compute = engine._forward.prefix_cache
    engine._forward.prefix_cache = lambda ids: prefixes.append(len(ids)) or compute(ids)  # type: ignore[method-assign]

    async def scored(together: bool) -> list[list[float]]:
        calls = [engine.score(ids, start, 0.8) for ids, start in rows]
        return await asyncio.gather(*calls) if together else [await call for call in calls]

    alone = run(scored(False))
    assert not prefixes
    shared = run(scored(True))
    # the sequence with 70 tokens of a prompt shares less than half of the others'
    assert prefixes == [99, 99]
    for one, other in zip(alone, shared, strict=True):
        assert other == pytest.approx(one, abs=1e-5)
