"""Every forward of the engine, over many architectures and any schedule of requests, samples what
the module computes.

A schedule has episodes that start at different times, more of them than slots, with several turns
each; some are cancelled, and the weights are published again in the middle. The log-prob of each
sampled token is compared with the module's own forward over the whole sequence.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import torch

from quintain.engine import sampler
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import LimitReached, UsageError
from quintain.models.snapshot import Snapshot
from quintain.types.sampling import Sampling

from ...lanes import mostly_slow
from ..models.architectures import ARCHITECTURES, VOCABULARY, architecture, kinds_first
from .test_embedded_batching import Given
from .test_embedded_engine import TOKENIZER, run

REFUSED = {
    # takes no position ids, so left padding shifts positions
    "bart": "differ from those of its own forward by",
    # its state is in the module, for one batch alone
    "recurrent-gemma": "no attribute '(cache|past_key_values)'",
    "rwkv": "no attribute '(cache|past_key_values)'",
    # decodes wrong log-probs after left padding
    "minimax": "differ from those of its own forward by",
}
"""What the engine refuses, and why."""
SUPPORTED = [name for name in ARCHITECTURES if name not in REFUSED]
HALF = "qwen3 gemma3-cap gpt-oss deepseek-v3 mamba2 falcon-h1".split()
"""What rounds in another way: plain and capped attention, sinks, latent keys, a state, both."""


@pytest.fixture(autouse=True)
def _bursts_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst ends by its tokens alone, so that a schedule is the same on each machine."""
    monkeypatch.setattr(sampler, "BURST_SECONDS", math.inf)


@dataclass
class Episode:
    """Turns of prompt and reply; what was sampled, by position."""

    ids: list[int]
    logps: dict[int, float] = field(default_factory=dict)


async def _play(
    engine: EmbeddedEngine, rng: Random, prompt: Sequence[int], done: list[Episode]
) -> None:
    """One to three turns that begin at some time; one turn in six is cancelled under way."""
    episode = Episode(list(prompt))
    done.append(episode)
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(0, 6)):
            await asyncio.sleep(0)
        sampling = Sampling(seed=rng.getrandbits(30), max_tokens=rng.randint(1, 14), stop_ids=(7,))
        task = asyncio.ensure_future(engine.sample(episode.ids, sampling))
        if rng.random() < 1 / 6:
            for _ in range(rng.randint(1, 6)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            out = await task
        except asyncio.CancelledError:
            continue
        except LimitReached:
            return
        episode.logps |= dict(enumerate(out.logps, start=len(episode.ids)))
        episode.ids += [*out.ids, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 5)))]


def schedule(engine: EmbeddedEngine, seed: int, *, episodes: int = 9) -> list[Episode]:
    """Play *episodes* episodes, some with equal prompts, and publish the weights once meanwhile."""
    rng = Random(seed)
    distinct = [
        [rng.randrange(VOCABULARY) for _ in range(rng.choice((1, 3, 10, 24)))]
        for _ in range(episodes - 2)
    ]
    prompts = [*distinct, distinct[0], distinct[1]]
    done: list[Episode] = []

    async def publish() -> None:
        for _ in range(25):
            await asyncio.sleep(0)
        await engine.update(Given(version=1, named=dict(engine._module.named_parameters())))

    async def everything() -> None:
        plays = [_play(engine, Random(rng.getrandbits(30)), prompt, done) for prompt in prompts]
        await asyncio.gather(publish(), *plays)

    run(everything())
    return done


@torch.no_grad()
def recomputed(module: Any, episode: Episode) -> dict[int, float]:
    """The log-probs of an episode's sampled tokens from *module*'s own forward."""
    ids = episode.ids[: max(episode.logps) + 1]  # what follows may be longer than the context
    logits = module(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    plain = logits.float().log_softmax(-1)
    return {at: float(plain[at - 1, episode.ids[at]]) for at in episode.logps}


def errors(module: Any, done: Sequence[Episode]) -> list[float]:
    """Differences in nats between recorded log-probs and those of *module*'s own forward."""
    sampled = [episode for episode in done if episode.logps]
    return [
        abs(logp - plain)
        for episode in sampled
        for logp, plain in zip(
            episode.logps.values(), recomputed(module, episode).values(), strict=True
        )
    ]


def root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values) / len(values))


@pytest.mark.keeps("llama-1", "mistral-window-1", "falcon-alibi-1", "jamba-1")
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
@pytest.mark.parametrize("name", kinds_first(SUPPORTED))
def test_any_schedule_gives_the_modules_log_probs(name: str, seed: int) -> None:
    module = architecture(name, seed=seed)
    engine = EmbeddedEngine.sharing(module, TOKENIZER, slots=4, reproducible=False)
    assert max(errors(module, schedule(engine, seed))) < 1e-4


@pytest.mark.keeps("qwen3")
@pytest.mark.parametrize("name", mostly_slow(SUPPORTED, HALF))
def test_half_precision_adds_rounding_alone(name: str) -> None:
    """The engine decodes a copy in bfloat16: its error is that of the module's own forward in
    bfloat16.
    """
    module = architecture(name)
    engine = EmbeddedEngine.sharing(
        module, TOKENIZER, dtype="bfloat16", slots=4, reproducible=False
    )
    done = schedule(engine, 2)
    sampled = errors(module, done)
    half = architecture(name, dtype=torch.bfloat16)
    own = [replace(episode, logps=recomputed(half, episode)) for episode in done]
    # Rounding may route a token to another expert; where other operations round, too, not always
    # the same token.
    routes = 0.1 if name in {"jamba", "granite-hybrid"} else 0.005
    assert root_mean_square(sampled) < 1.5 * root_mean_square(errors(module, own)) + routes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_decodes_wrong_log_probs_is_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=rf"cannot sample from \w+: .*{REFUSED[name]}") as refusal:
        EmbeddedEngine.sharing(architecture(name, dtype=dtype), TOKENIZER)
    assert "\n" not in str(refusal.value)


@pytest.mark.keeps("llama", "gpt2", "qwen3")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_engines_copy_has_every_tensor(name: str) -> None:
    module = architecture(name)
    snapshot = Snapshot.apart(module)
    saved = module.state_dict()
    with torch.no_grad():
        for tensor in saved.values():
            tensor.add_(1)
    snapshot.refresh(Given(version=1, named=saved))
    copied = snapshot.module.state_dict()
    assert copied.keys() == saved.keys()
    assert all(torch.equal(copied[key], saved[key]) for key in saved)
