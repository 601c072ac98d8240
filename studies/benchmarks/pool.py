"""Seconds of a step with several replicas of an engine and turns of very different lengths, on a
simulated clock.

128 slots are divided among the replicas. Each decodes its turns at one speed, whatever their
number, as an engine does whose time is that of reading the weights. Lengths are log-normal: of 64
turns the longest has about ten times the tokens of the median. The learner takes the 64 turns that
ended first, updates, and publishes; 128 turns are running, complete or in its hands, as under
``one_step_off``. The rows differ in what an update waits for:

    all          all running turns, on every replica
    late         the turns of half of the replicas; the others take a later update
    repack       as `late`, and turns of nearly idle replicas move to others after 256 tokens
    in flight    nothing: turns continue under the new weights, and long ones have several versions

    python -m studies.benchmarks.pool [--quick]
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

from quintain import Sampled, Sampling, TokenEngine, Weights
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_scale.schedules import EnginePool

from .common import arguments, table, write
from .simulated import Costs, simulated

BATCH, AHEAD, ALL_SLOTS, SEGMENT = 64, 1, 128, 256
TOKEN, PREFILL, TRANSFER = 0.01, 2e-5, 1.0
"""Seconds of a decoded token, of a token of a prefix that is computed, of a transfer of weights."""
MEDIAN, SPREAD, LONGEST = 500, 1.0, 16_000
REPLICAS, UPDATES = (4, 8, 16), (5.0, 30.0)
"""Numbers of replicas; seconds of the learner."""
ROWS = ("all", "late", "repack", "in flight")


class Sleeper(TokenEngine):
    """A replica that waits as long as decoding would take; the prompt's first ids are number and
    length of a turn.
    """

    name = "sleeper"

    def __init__(self, *, slots: int) -> None:
        self.tokenizer, self.context = ByteTokenizer(), 2 * LONGEST
        self.slots = asyncio.Semaphore(slots)
        self.cached: dict[int, int] = {}

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        number, length, done, version = ids[0], ids[1], len(ids) - 2, self.version
        tokens = min(length - done, sampling.max_tokens or length)
        async with self.slots:
            fresh = len(ids) - self.cached.get(number, 0)
            await asyncio.sleep(fresh * PREFILL + tokens * TOKEN)
        self.cached[number] = len(ids) + tokens
        ended = done + tokens == length
        new = (0,) * tokens
        return Sampled(
            ids=new, logps=new, versions=(version,) * tokens, finish="stop" if ended else "length"
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [0.0] * (len(ids) - start)

    async def update(self, weights: Weights) -> int:
        await asyncio.sleep(TRANSFER)
        self.cached.clear()
        self.version = weights.version
        return self.version


class Published:
    """Weights that consist of their version."""

    def __init__(self, version: int) -> None:
        self.version = version

    def tensors(self) -> dict[str, Any]:
        return {}


async def train(row: str, replicas: int, update: float, steps: int, seed: int) -> dict[str, float]:
    """Figures of one run of *steps* steps after two that do not count."""
    name = f"{Sleeper.__module__}:{Sleeper.__qualname__}"
    moves = {"segment": SEGMENT} if row == "repack" else {}
    late = replicas // 2 if row in ("late", "repack") else 0
    pool = EnginePool(engine=name, count=replicas, slots=ALL_SLOTS // replicas, late=late, **moves)
    pool.in_flight_updates = row == "in flight"
    rng, loop = random.Random(f"pool/{seed}"), asyncio.get_running_loop()
    running: set[asyncio.Task[Any]] = set()
    complete: list[Sampled] = []
    numbers = itertools.count()

    async def turn() -> None:
        length = min(LONGEST, int(MEDIAN * math.exp(rng.gauss(0, SPREAD))) + 1)
        complete.append(await pool.sample([next(numbers), length], Sampling(max_tokens=LONGEST)))

    def start(taken: int) -> None:
        while taken + len(complete) + len(running) < (AHEAD + 1) * BATCH:
            task = loop.create_task(turn())
            running.add(task)
            task.add_done_callback(running.discard)

    began, for_batch, for_sync, tokens = 0.0, 0.0, 0.0, 0
    ages: list[int] = []
    for step in range(-2, steps):
        if step == 0:
            began, for_batch, for_sync, tokens = loop.time(), 0.0, 0.0, 0
            ages.clear()
        start(0)
        waited_from = loop.time()
        while len(complete) < BATCH:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for_batch += loop.time() - waited_from
        tokens += sum(len(reply.ids) for reply in complete[:BATCH])
        ages += [step + 2 - reply.versions[0] for reply in complete[:BATCH]]
        del complete[:BATCH]
        start(BATCH)
        await asyncio.sleep(update)
        waited_from = loop.time()
        await pool.update(Published(step + 3))
        for_sync += loop.time() - waited_from
    seconds = loop.time() - began
    for task in running:
        task.cancel()
    return {
        "seconds": seconds / steps,
        "tokens_per_second": tokens / seconds,
        "for_batch": for_batch / steps,
        "for_sync": for_sync / steps,
        "staleness": statistics.fmean(ages),
        "oldest": max(ages),
    }


def main() -> None:
    args = arguments(__doc__).parse_args()
    steps, seeds = args.rounds or (6 if args.quick else 60), 1 if args.quick else 5
    figures: dict[str, Any] = {}
    rows = []
    for update, replicas, row in itertools.product(
        UPDATES, REPLICAS[:1] if args.quick else REPLICAS, ROWS
    ):
        runs = []
        for seed in range(seeds):
            with simulated(Costs()):
                runs.append(asyncio.run(train(row, replicas, update, steps, seed)))
        means: dict[str, Any] = {
            name: statistics.fmean(run[name] for run in runs) for name in runs[0]
        }
        means["oldest"] = max(run["oldest"] for run in runs)
        figures[f"{row}, {replicas} replicas, {update:g} s"] = means | {
            "of each seed": [run["seconds"] for run in runs]
        }
        gain = figures[f"all, {replicas} replicas, {update:g} s"]["seconds"] / means["seconds"]
        cells = [
            f"{means['seconds']:.1f} ({gain:.1f}x)",
            f"{means['for_batch']:.1f}",
            f"{means['for_sync']:.1f}",
        ]
        cells += [
            f"{means['tokens_per_second']:,.0f}",
            f"{means['staleness']:.1f}, {means['oldest']:.0f}",
        ]
        rows.append([f"{update:g}", str(replicas), row, *cells])
    head = [
        "learner s",
        "replicas",
        "",
        "seconds a step",
        "for a batch",
        "for the sync",
        "tokens a second",
    ]
    print(table([*head, "staleness: mean, largest"], rows))
    conditions = {
        "slots": ALL_SLOTS,
        "batch": BATCH,
        "steps": steps,
        "seeds": seeds,
        "segment": SEGMENT,
    }
    conditions |= {
        "seconds of a token": TOKEN,
        "of a token of a prefix": PREFILL,
        "of a transfer": TRANSFER,
    }
    write("pool", figures, quick=args.quick, about=conditions)


if __name__ == "__main__":
    main()
