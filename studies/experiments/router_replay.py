"""Does an engine whose routers choose other experts than the learner's break a run, and does router replay
mend it?

The claim is that of R3 (2510.11370): mixtures collapse in training because engine and learner send
tokens to different experts, and no longer do where the learner takes the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from quintain.engine.embedded import EmbeddedEngine
from quintain.learning.algorithms import DR_GRPO
from quintain.learning.batch import Batch, Sample
from quintain.learning.learner import Learner
from quintain.types.sampling import Sampling
from quintain.types.transcript import Sampled, TrainingSequence

from .common import Line, Panel, Report, by_variant, differences, main

LEAST_SEEDS = 3
WORDS, GROUP_SIZE, LONGEST = 8, 8, 4
STEPS, RATE, NOISE, EVERY = 100, 0.01, 1.0, 10


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An engine, and whether the learner takes its experts.

    Attributes:
        noise: of the engine's routers, drawn anew with each update, in standard deviations of their
            weights.
    """

    dtype: str = "float32"
    noise: float = 0.0
    replay: bool = False


VARIANTS = {
    "the same routers": Variant(),
    "bfloat16": Variant(dtype="bfloat16"),
    "bfloat16, replay": Variant(dtype="bfloat16", replay=True),
    "noisy routers": Variant(noise=NOISE),
    "noisy routers, replay": Variant(noise=NOISE, replay=True),
}


def born(seed: int) -> Any:
    """Two layers of 16 experts, of which a token goes to two."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=16,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        max_position_embeddings=64,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return Qwen3MoeForCausalLM(config).eval()


def reward(prompt: int, reply: Sequence[int]) -> float:
    """The share of words that count on from the prompt."""
    return sum(word == (prompt + i) % WORDS for i, word in enumerate(reply)) / LONGEST


def study(seeds: Sequence[int], quick: bool) -> Report:
    """Reward of the samples, reward of the learner's own greedy replies, and the mismatch."""
    steps = 2 if quick else STEPS
    every = 1 if quick else EVERY
    xs = list(range(every, steps + 1, every))
    results = by_variant(
        VARIANTS, seeds, lambda name, seed: _trained(VARIANTS[name], seed, steps, every)
    )
    titles = {
        "sampled": "reward of the engine's samples",
        "greedy": "reward of the learner's greedy replies",
        "mismatch": "KL of engine and learner per token (nats)",
        "grad_norm": "norm of the gradient",
    }
    panels = {
        key: Panel(
            title=title,
            xlabel="step",
            lines=[Line(label=n, x=xs, values=v) for n, v in results[key].items()],
            log_y=key == "mismatch",
        )
        for key, title in titles.items()
    }
    contrasts = {
        f"{titles[key]} at the end, {engine}, with replay less without": differences(
            panels[key].line(f"{engine}, replay"), panels[key].line(engine)
        )
        for engine in ("bfloat16", "noisy routers")
        for key in titles
    }
    for engine in ("bfloat16", "noisy routers"):
        contrasts[f"{titles['sampled']} at the end, {engine} less the same routers"] = differences(
            panels["sampled"].line(engine), panels["sampled"].line("the same routers")
        )
    settings = {"words": WORDS, "group_size": GROUP_SIZE, "tokens": LONGEST, "steps": steps}
    return Report(
        panels=[*panels.values()],
        contrasts=contrasts,
        settings=settings | {"lr": RATE, "noise": NOISE},
    )


def _trained(variant: Variant, seed: int, steps: int, every: int) -> dict[str, list[float]]:
    learner = Learner(born(seed), DR_GRPO, lr=RATE)
    engine = EmbeddedEngine.sharing(
        learner.module,
        _NoText(),
        dtype=variant.dtype,
        copy=variant.noise > 0,
        slots=WORDS * GROUP_SIZE,
        router_replay=variant.replay,
    )
    draw = torch.Generator().manual_seed(seed)
    out: dict[str, list[float]] = {"sampled": [], "greedy": [], "mismatch": [], "grad_norm": []}
    for step in range(1, steps + 1):
        turns = asyncio.run(_sampled(engine, learner, variant.noise, draw, step))
        samples = [_sample(prompt, turn, learner.version) for prompt, turn in turns]
        metrics = learner.step(Batch(samples=tuple(samples), max_tokens=LONGEST))
        if step % every == 0:
            out["sampled"].append(sum(sample.outcome for sample in samples) / len(samples))
            out["greedy"].append(_greedy(learner.module))
            # A batch of equal rewards has none, and a KL of 0 no place on a logarithmic axis.
            out["mismatch"].append(max(metrics.get("mismatch.kl", 0.0), 1e-12))
            out["grad_norm"].append(metrics.get("grad_norm", 0.0))
    return out


async def _sampled(
    engine: EmbeddedEngine, learner: Learner, noise: float, draw: torch.Generator, step: int
) -> list[tuple[int, Sampled]]:
    """Give the engine the weights, disturb its routers, and sample a group for each prompt."""
    await engine.update(learner.weights())
    if noise and engine.snapshot is not None:
        for name, parameter in engine.snapshot.module.named_parameters():
            if name.endswith("mlp.gate.weight"):
                random = torch.randn(parameter.shape, generator=draw)
                parameter.data += noise * parameter.data.std() * random
    prompts = [prompt for prompt in range(WORDS) for _ in range(GROUP_SIZE)]
    turns = await asyncio.gather(
        *(
            engine.sample([prompt], Sampling(max_tokens=LONGEST, seed=1000 * step + i))
            for i, prompt in enumerate(prompts)
        )
    )
    return list(zip(prompts, turns, strict=True))


def _sample(prompt: int, turn: Sampled, version: int) -> Sample:
    count = len(turn.ids)
    row = TrainingSequence(
        ids=(prompt, *turn.ids),
        mask=(False, *(True,) * count),
        logps=(0.0, *turn.logps),
        versions=(-1, *(version,) * count),
        experts=turn.experts,
    )
    return Sample(sequences=(row,), outcome=reward(prompt, turn.ids), group=prompt)


@torch.no_grad()
def _greedy(module: Any) -> float:
    """The mean reward of the likeliest words of all prompts, with the learner's own routers."""
    ids = torch.arange(WORDS)[:, None]
    for _ in range(LONGEST):
        ids = torch.cat((ids, module(input_ids=ids).logits[:, -1:].argmax(-1)), 1)
    return sum(reward(row[0], row[1:]) for row in ids.tolist()) / WORDS


class _NoText(SimpleNamespace):
    """What an engine asks of a tokenizer where there is no text: words end nothing."""

    stop_ids: tuple[int, ...] = ()
    vocab_size = WORDS

    def decode(self, ids: Sequence[int]) -> str:
        return ""


if __name__ == "__main__":
    main(study)
