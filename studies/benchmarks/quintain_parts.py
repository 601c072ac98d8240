"""The other side of `overhead`: the parts of a step alone, without the loop around them.

A question is one step: the engine samples the replies to prompts that are rendered already, the
reward scores their texts, the learner updates on a batch that is made already, and the engine takes
the weights. Only these four are timed.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle, islice
from typing import Any

import torch

from quintain.learning.batch import Batch, Sample
from quintain.learning.learner import Learner
from quintain.models.load import load_model
from quintain.recipe import Recipe
from quintain.recipe.resolve import resolve_algorithm
from quintain.run.build import seed_everything
from quintain.types.sampling import Sampling
from quintain.types.task import Message
from quintain.types.transcript import Sampled, TrainingSequence

from . import shapes
from .common import Door
from .quintain_step import RECIPE
from .task import ForcedEngine

PARTS = ("rollouts", "scoring", "update", "sync")


async def answer(door: Door, args: Any) -> None:
    """Answer questions until the other end hangs up."""
    samples = args.groups * args.group_size
    half = args.precision == "bf16"
    dtype = "bfloat16" if half else "float32"
    text = RECIPE.format(
        **vars(args) | {"precision": "bf16" if half else "float32"},
        dtype=dtype,
        engine_args="",
        learner_extra="",
    )
    recipe = Recipe.parse(text)
    seed_everything(recipe.run.seed)
    model = load_model(args.model, dtype="float32", device=args.device)
    learner = Learner(model.module, resolve_algorithm(recipe), **_options(recipe))
    slots = args.slots or ForcedEngine.slots_for(
        model.module, samples=samples, tokens=2 * args.high + 512
    )
    engine = ForcedEngine.sharing(model.module, model.tokenizer, slots=slots, dtype=dtype)
    texts = cycle(shapes.prompts(args.model))
    seeds = count()

    async def sampled(ids: list[int]) -> Sampled:
        with engine.register():
            return await engine.sample(ids, Sampling(max_tokens=args.high, seed=next(seeds)))

    await engine.update(learner.weights())
    while (question := door.hear()) is not None:
        seconds, burnt = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)

        @contextmanager
        def timed(
            part: str, seconds: dict[str, float] = seconds, burnt: dict[str, float] = burnt
        ) -> Iterator[None]:
            began, cpu = time.perf_counter(), time.process_time()
            yield
            seconds[part] = time.perf_counter() - began
            burnt[part] = time.process_time() - cpu

        prompts = [
            model.tokenizer.encode(model.tokenizer.render([Message(role="user", content=text)]))
            for text in islice(texts, args.groups)
            for _ in range(args.group_size)
        ]
        if args.low < args.high:
            ForcedEngine.lengths = iter(
                shapes.lengths(question["round"], samples, args.low, args.high)
            )
        with timed("rollouts"):
            replies = await asyncio.gather(*map(sampled, prompts))
        with timed("scoring"):
            rewards = [
                shapes.reward(model.tokenizer.decode(reply.ids, special=False)) for reply in replies
            ]
        batch = Batch(
            samples=tuple(
                Sample(
                    sequences=(_sequence(ids, reply),), outcome=reward, group=i // args.group_size
                )
                for i, (ids, reply, reward) in enumerate(
                    zip(prompts, replies, rewards, strict=True)
                )
            ),
            max_tokens=args.high,
        )
        with timed("update"):
            prepared = learner.prepare(batch)
            learner.step(prepared, advantages=await learner.compute_advantages(prepared))
        with timed("sync"):
            await engine.update(learner.weights())
        tokens = sum(reply.tokens for reply in replies)
        door.say(
            seconds=sum(seconds.values()), cpu=sum(burnt.values()), tokens=tokens, phases=seconds
        )


def _options(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.learner.options().items() if value is not None}


def _sequence(ids: list[int], reply: Sampled) -> TrainingSequence:
    before = len(ids)
    return TrainingSequence(
        ids=(*ids, *reply.ids),
        mask=(*[False] * before, *[True] * len(reply.ids)),
        logps=(*[0.0] * before, *reply.logps),
        versions=(*[-1] * before, *reply.versions),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name in ("groups", "group-size", "low", "high", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lr", default="1e-4")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--slots", type=int, help="of the engine")
    args = parser.parse_args()
    door = Door()
    torch.set_num_threads(args.threads)
    door.say(side="parts", threads=torch.get_num_threads())
    asyncio.run(answer(door, args))


if __name__ == "__main__":
    main()
