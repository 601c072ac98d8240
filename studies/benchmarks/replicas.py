"""Turns admitted by the engine's own counters against fixed slots, and turns routed by prefix
against by task, on a simulated clock.

A replica is vLLM as far as these questions need it: turns are decoded together, a step reads the
weights and all keys and values, prompts are computed before, and the cache holds a number of tokens.
When it is full, the newest turn loses its keys and values, waits, and is computed again. What ended
turns leave in the cache is kept, the oldest given up first, and the prompts of later turns find it.

    admission   512 turns at once on one replica, short and long replies
    routing     episodes of 6 turns with tools on 4 replicas, in groups of 8

    python -m studies.benchmarks.replicas [--quick]
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintain import Sampled, Sampling, Task, TokenEngine, Weights
from quintain.interfaces import Pressure
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_scale.schedules import EnginePool
from quintain_scale.schedules.prefixes import BLOCK, PrefixIndex
from quintain_scale.schedules.routing import Router

from .common import arguments, table, write
from .simulated import Costs, simulated

CACHE = 262_144
"""Tokens whose keys and values a replica holds."""
WEIGHTS, KEYS, PREFILL = 0.008, 4e-8, 4e-5
"""Seconds of reading the weights, of the keys and values of one token, and of a token of a prompt."""
CHUNK, LONGEST, PROMPT = 64, 24_000, 2_000
SLOTS = (16, 32, 64, 128, 256)
MEDIANS = {"short, median 500": 500, "long, median 8,000": 8_000}
TURNS = 512
REPLICAS, GROUPS, GROUP, EPISODE_TURNS = 4, 48, 8, 6
ROUTED_SLOTS = (48, 24)
"""Of a replica: as many as its share of the episodes at once, and half of them."""


@dataclass(eq=False)
class _Turn:
    ids: list[int]
    left: int
    done: asyncio.Future[None]
    tokens: int = 0  # in the cache; 0 while it waits
    shared: int = 0  # of these, found there
    new: int = 0
    replies: list[int] = field(default_factory=list)


class Paged(TokenEngine):
    """A replica with a bounded cache.

    Attributes:
        computed, found: tokens of prompts that were computed, and that the cache had.
    """

    name = "paged"

    def __init__(self, *, slots: int) -> None:
        self.tokenizer, self.context, self.slots = ByteTokenizer(), 10**6, slots
        self.running: list[_Turn] = []
        self.queue: deque[_Turn] = deque()
        self.kept: OrderedDict[int, None] = OrderedDict()
        self.preemptions = self.computed = self.found = self.decoded = 0
        self._driver: asyncio.Task[None] | None = None

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        turn = _Turn(
            list(ids), sampling.max_tokens or 1, asyncio.get_running_loop().create_future()
        )
        self.queue.append(turn)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        await turn.done
        reply = tuple(turn.replies)
        return Sampled(
            ids=reply,
            logps=(0.0,) * len(reply),
            versions=(self.version,) * len(reply),
            finish="stop",
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [0.0] * (len(ids) - start)

    async def update(self, weights: Weights) -> int:
        self.kept.clear()
        self.version = weights.version
        return self.version

    async def pressure(self) -> Pressure:
        return Pressure(
            running=len(self.running),
            waiting=len(self.queue),
            cache_used=self._used() / CACHE,
            preemptions=self.preemptions,
        )

    def _used(self) -> int:
        return sum(turn.tokens for turn in self.running)

    async def _drive(self) -> None:
        while self.running or self.queue:
            await asyncio.sleep(self._admit() * PREFILL)
            count = min(CHUNK, *(turn.left for turn in self.running))
            await asyncio.sleep(count * (WEIGHTS + KEYS * self._used()))
            ended = [turn for turn in self.running if turn.left == count]
            for turn in self.running:
                turn.replies += [turn.ids[0] % 7 + 1] * count
                turn.left, turn.tokens = turn.left - count, turn.tokens + count
                self.decoded += count
            for turn in ended:
                self._end(turn)
            if ended:  # those that follow them come before the next step, not after the next chunk
                await asyncio.sleep(WEIGHTS)
            while self._used() > CACHE:
                newest = self.running.pop()
                newest.tokens, self.preemptions = 0, self.preemptions + 1
                self.queue.appendleft(newest)
            self._shrink()

    def _admit(self) -> int:
        """Start waiting turns that fit; return the tokens of their prompts to compute."""
        computed = 0
        while self.queue and len(self.running) < self.slots:
            turn = self.queue[0]
            whole = len(turn.ids) + len(turn.replies)
            if self.running and self._used() + whole > CACHE:
                break
            names = PrefixIndex.names([*turn.ids, *turn.replies])
            hits = next((n for n, name in enumerate(names) if name not in self.kept), len(names))
            found = min(hits * BLOCK, whole)
            self.found, self.computed = self.found + found, self.computed + whole - found
            computed += whole - found
            turn.tokens = whole
            self._keep(names)  # of a group, one computes the prompt
            self.running.append(self.queue.popleft())
            self._shrink()
        return computed

    def _end(self, turn: _Turn) -> None:
        self.running.remove(turn)
        self._keep(PrefixIndex.names([*turn.ids, *turn.replies]))
        turn.done.set_result(None)

    def _keep(self, names: Sequence[int]) -> None:
        for name in reversed(names):
            self.kept[name] = None
            self.kept.move_to_end(name)

    def _shrink(self) -> None:
        room = max(0, CACHE // BLOCK)
        while len(self.kept) > room:
            self.kept.popitem(last=False)


class TaskRouter(Router):
    """Places the turns of a task on one replica, and all later ones elsewhere once it is full: the
    rule of the pool before it knew prefixes. The one name of a turn is its task.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._homes: dict[int, int] = {}

    def _choose(self, blocks: Sequence[int] | None, free: Sequence[int]) -> int:
        best = min(free, key=lambda i: (self.loads[i], i))
        (task,) = blocks or ()
        home = self._homes.get(task, best)
        if home in free and not self.loads[home] >= self.slots > self.loads[best]:
            best = home
        self._homes[task] = best
        return best


class ByTask(EnginePool):
    """Routes by task, see `TaskRouter`."""

    task = ""

    def _begin(self, replicas: Mapping[int, TokenEngine]) -> None:
        super()._begin(replicas)
        self._router = self._supervisor.router = TaskRouter(
            len(replicas), self._settings.slots, 0, moves=False
        )

    def for_task(self, task: Task) -> EnginePool:
        view = object.__new__(ByTask)
        view.__dict__.update(self.__dict__, task=task.id)
        return view

    def blocks_of(self, ids: Sequence[int], known: Sequence[int] = ()) -> list[int]:
        return [hash(self.task)]


def _length(rng: random.Random, median: int, spread: float) -> int:
    return min(LONGEST, int(median * math.exp(rng.gauss(0, spread))) + 1)


async def admit(median: int, slots: int, turns: int, seed: int) -> dict[str, float]:
    """Sample *turns* turns that come at once; 0 *slots* lets the engine decide, up to 256."""
    name = f"{Paged.__module__}:{Paged.__qualname__}"
    pool = EnginePool(engine=name, count=1, slots=slots or max(SLOTS), admission=not slots)
    rng = random.Random(f"admission/{seed}")
    async with pool:
        began = asyncio.get_running_loop().time()
        await asyncio.gather(
            *(
                pool.sample(
                    [number, *range(PROMPT - 1)],
                    Sampling(max_tokens=_length(rng, median, 0.6)),
                )
                for number in range(turns)
            )
        )
        seconds = asyncio.get_running_loop().time() - began
        replica: Any = pool._replicas[0]
        again = replica.computed - turns * PROMPT
    return {
        "tokens_per_second": replica.decoded / seconds,
        "preemptions": replica.preemptions,
        "computed_again": again / replica.decoded,
    }


async def route(
    kind: type[EnginePool], slots: int, shared: int, groups: int, seed: int
) -> dict[str, float]:
    """Play *groups* groups of episodes, 24 groups at once, whose prompts share *shared* tokens."""
    name = f"{Paged.__module__}:{Paged.__qualname__}"
    pool = kind(engine=name, count=REPLICAS, slots=slots)
    places = asyncio.Semaphore(24 * GROUP)

    async def episode(group: int, sample: int) -> None:
        own = random.Random(f"{seed}/{group}/{sample}")
        engine: Any = pool.for_task(Task(prompt="", id=str(group)))
        ids = [*range(shared), 10_000 + group, *range(20_000, 20_000 + 800)]
        async with places:
            for turn in range(EPISODE_TURNS):
                reply = await engine.sample(ids, Sampling(max_tokens=_length(own, 250, 0.8)))
                await asyncio.sleep(own.expovariate(1 / 4.0))
                told = own.randrange(100, 700)
                ids = [*ids, *reply.ids, 30_000 + sample, turn, *range(40_000, 40_000 + told)]

    async with pool:
        began = asyncio.get_running_loop().time()
        order = [(group, sample) for group in range(groups) for sample in range(GROUP)]
        await asyncio.gather(*(episode(*one) for one in order))
        seconds = asyncio.get_running_loop().time() - began
        replicas: list[Any] = list(pool._replicas)
    found, computed = (sum(getattr(r, f) for r in replicas) for f in ("found", "computed"))
    return {
        "found": found / (found + computed),
        "computed": computed / (groups * GROUP),
        "seconds": seconds,
    }


def main() -> None:
    args = arguments(__doc__).parse_args()
    seeds, turns = (1, 128) if args.quick else (args.rounds or 3, TURNS)
    groups = 6 if args.quick else GROUPS
    figures: dict[str, Any] = {}

    def mean(run: Any, *of: Any) -> dict[str, float]:
        results = []
        for seed in range(seeds):
            with simulated(Costs()):
                results.append(asyncio.run(run(*of, seed)))
        return {name: statistics.fmean(one[name] for one in results) for name in results[0]}

    rows = []
    for label, median in MEDIANS.items():
        for slots in (*SLOTS, 0):
            means = figures[f"{label}, {slots or 'admission'}"] = mean(admit, median, slots, turns)
            cells = [f"{means['tokens_per_second']:,.0f}", f"{means['preemptions']:,.0f}"]
            rows.append(
                [label, str(slots or "admission"), *cells, f"{means['computed_again']:.0%}"]
            )
    print(table(["replies", "slots", "tokens/s", "preemptions", "computed again / new"], rows))
    rows = []
    for slots in ROUTED_SLOTS:
        for shared in (0, 1_000):
            for routing, kind in (("task", ByTask), ("prefix", EnginePool)):
                means = figures[f"routing by {routing}, {slots} slots, {shared} shared"] = mean(
                    route, kind, slots, shared, groups
                )
                cells = [
                    f"{means['found']:.1%}",
                    f"{means['computed']:,.0f}",
                    f"{means['seconds']:,.0f}",
                ]
                rows.append([str(slots), f"{shared:,}", routing, *cells])
    head = [
        "slots",
        "shared by all",
        "routing by",
        "found in the cache",
        "prompt tokens an episode",
        "seconds",
    ]
    print(table(head, rows))
    about = {"cache": CACHE, "turns": turns, "groups": groups, "seeds": seeds, "replicas": REPLICAS}
    write("replicas", figures, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
