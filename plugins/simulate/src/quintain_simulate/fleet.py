"""The simulated engine of a run: one decoder, or many with the same weights."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from quintain import InfrastructureError, Sampled, Sampling, TokenEngine, Weights
from quintain_scale.schedules import BLOCK

from .costs import EngineCosts
from .decoder import SimulatedDecoder, SimulatedTurn

PROMPT = BLOCK + 1
"""Ids of a prompt: a block of the group, and the number of the turn."""
ENDLESS = 1 << 60
"""The context of an engine whose memory alone limits it."""
NOBODY: Any = None
"""In place of a tokenizer: simulated turns have no text."""


@dataclass(kw_only=True)
class Published:
    """Weights that consist of their version."""

    version: int

    def tensors(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Failures:
    """How often engines go down.

    Attributes:
        every: mean seconds between two failures of one engine; 0 is never.
        restart: seconds until it answers again.
        seed: of the random numbers.
    """

    every: float = 0.0
    restart: float = 60.0
    seed: int = 0


@dataclass(eq=False)
class Cluster:
    """What the replicas of a run share: their costs, the turns on their way, and the decoders.

    Attributes:
        transfer: seconds in which an engine takes new weights.
        turns: by the number that stands for a prompt.
        decoders: all of them; *spare* are those whose engine was closed.
    """

    costs: EngineCosts
    transfer: float = 0.0
    failures: Failures = field(default_factory=Failures)
    turns: dict[int, SimulatedTurn] = field(default_factory=dict)
    decoders: list[SimulatedDecoder] = field(default_factory=list)
    spare: list[SimulatedDecoder] = field(default_factory=list)
    failed: int = 0

    def decoder(self) -> SimulatedDecoder:
        """Return a spare decoder, which may still be down, or one more, which fails as `failures`
        says.
        """
        if self.spare:
            return self.spare.pop()
        decoder = SimulatedDecoder(self.costs)
        self.decoders.append(decoder)
        if self.failures.every:
            random = Random(f"failures/{self.failures.seed}/{len(self.decoders)}")
            self._fail_later(decoder, random)
        return decoder

    def _fail_later(self, decoder: SimulatedDecoder, random: Random) -> None:
        def fail() -> None:
            self.failed += 1
            decoder.fail()
            loop.call_later(self.failures.restart, restart)

        def restart() -> None:
            decoder.restart()
            self._fail_later(decoder, random)

        loop = asyncio.get_running_loop()
        loop.call_later(random.expovariate(1 / self.failures.every), fail)


class Loads:
    """The turns of each of *count* decoders, and which of those that take turns has the fewest.

    Loads change by one, so that the decoders of each load are one bucket, in the order in which
    they came to it.
    """

    def __init__(self, count: int) -> None:
        self._of = [0] * count
        self._buckets: dict[int, dict[int, None]] = defaultdict(dict)
        self._buckets[0] = dict.fromkeys(range(count))
        self._out: set[int] = set()
        self._least = 0

    def of(self, number: int) -> int:
        """Return the turns of a decoder."""
        return self._of[number]

    def change(self, number: int, turns: int) -> None:
        """Count *turns* more of a decoder."""
        inside = number not in self._out
        self.leave_out(number)
        self._of[number] += turns
        if inside:
            self.take_in(number)

    def leave_out(self, number: int) -> None:
        """Leave the decoder out of what is named until `take_in`."""
        self._buckets[self._of[number]].pop(number, None)
        self._out.add(number)

    def take_in(self, number: int) -> None:
        """Name the decoder where it has the fewest turns."""
        self._out.discard(number)
        self._buckets[self._of[number]][number] = None
        self._least = min(self._least, self._of[number])

    def least(self) -> int | None:
        """Return the decoder with the fewest turns; ``None`` if all are left out."""
        if len(self._out) == len(self._of):
            return None
        while not self._buckets[self._least]:
            self._least += 1
        return next(iter(self._buckets[self._least]))


def prompt_of(group: int, number: int) -> tuple[int, ...]:
    """Return the ids that stand for the prompt of turn *number* in ``Cluster.turns``. They begin
    with a block of their *group*, by which a pool finds the replica that has its prompt.
    """
    return (*(group,) * BLOCK, number)


class SimulatedEngine(TokenEngine):
    """*engines* decoders that are used as one, or a replica of the engine ``pool`` with one.

    A prompt is made by `prompt_of`; after a segment of a pool, the ids that it has sampled follow.
    What `sample` returns counts in spans: ``versions`` has one entry for each version of the
    weights, and ``logps`` the number of its tokens. It has ids only if the turn goes on.

    Turns go to the least loaded decoder, or to that of their group if it has a slot. Without
    `in_flight_updates`, a decoder takes new weights when its turns have ended, as replicas of a
    pool do.
    """

    name = "simulated"
    tokenizer = NOBODY
    context = ENDLESS

    def __init__(self, *, cluster: Any, engines: int = 1) -> None:
        self.cluster: Cluster = cluster
        self._decoders = [cluster.decoder() for _ in range(engines)]
        self._closed: set[int] = set()
        self._lost: set[int] = set()
        self._homes: dict[Hashable, int] = {}
        self._loads = Loads(engines)
        self._opened = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start: wait for decoders that are down, as for a server that loads its model."""
        for decoder in self._decoders:
            await decoder.up()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Leave the decoders to the engine that replaces this one in a pool."""
        self.cluster.spare += self._decoders

    async def probe(self) -> None:
        """Do nothing while a decoder answers.

        Raises:
            InfrastructureError: all are down.
        """
        if all(decoder.down for decoder in self._decoders):
            raise InfrastructureError("all simulated engines are down")

    @property
    def concurrency(self) -> int | None:
        return len(self._decoders) * self.cluster.costs.slots

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        turn, done = self.cluster.turns[ids[BLOCK]], len(ids) - PROMPT
        part = self._part(turn, done, sampling)
        while True:
            number = await self._place(turn.group)
            decoder = self._decoders[number]
            part.done = ended = asyncio.get_running_loop().create_future()
            self._loads.change(number, 1)
            try:
                decoder.submit(part)
                await ended
                break
            except InfrastructureError:
                self._lose(number)
                if len(self._lost) == len(self._decoders):
                    raise
                part = self._part(turn, done, sampling)  # from its beginning
            except asyncio.CancelledError:
                decoder.cancel(part)
                raise
            finally:
                self._loads.change(number, -1)
        over = done + part.tokens == turn.tokens
        return Sampled(
            ids=() if over else (0,) * part.tokens,
            logps=tuple(float(tokens) for _, tokens in part.spans),
            versions=tuple(version for version, _ in part.spans),
            finish="stop" if over else "length",
        )

    @staticmethod
    def _part(turn: SimulatedTurn, done: int, sampling: Sampling) -> SimulatedTurn:
        """Return what is left of *turn* after *done* tokens, and at most ``max_tokens`` of it."""
        left = turn.tokens - done
        return SimulatedTurn(
            group=turn.group,
            shared=turn.shared,
            episode=turn.episode,
            prompt=turn.prompt + done,
            tokens=min(left, sampling.max_tokens or left),
        )

    async def _place(self, group: Hashable) -> int:
        """Return the number of the decoder for a turn of *group*."""
        while (best := self._loads.least()) is None:
            if len(self._lost) == len(self._decoders):
                raise InfrastructureError("no simulated engine has the present weights")
            self._opened.clear()
            await self._opened.wait()
        home = self._homes.get(group, best)
        slots = self.cluster.costs.slots
        full = self._loads.of(home) >= slots > self._loads.of(best)
        if home in self._closed or home in self._lost or full:
            home = best
        self._homes[group] = home
        return home

    def _lose(self, number: int) -> None:
        self._lost.add(number)
        self._loads.leave_out(number)

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [0.0] * (len(ids) - start)

    async def update(self, weights: Weights) -> int:
        """Load *weights* into all decoders; returns when each has them or is down.

        Raises:
            InfrastructureError: all are down.
        """
        self._homes.clear()
        if not self.in_flight_updates:
            for number in range(len(self._decoders)):
                self._closed.add(number)
                self._loads.leave_out(number)
        await asyncio.gather(
            *(self._update(number, weights.version) for number in range(len(self._decoders)))
        )
        if len(self._lost) == len(self._decoders):
            raise InfrastructureError("all simulated engines are down")
        self.version = weights.version
        return self.version

    async def _update(self, number: int, version: int) -> None:
        decoder = self._decoders[number]
        if not self.in_flight_updates:
            await decoder.empty()
        try:
            await decoder.take(version, self.cluster.transfer, recompute=self.recompute_kv)
            self._lost.discard(number)
            self._loads.take_in(number)
        except InfrastructureError:
            self._lose(number)
        self._closed.discard(number)
        self._opened.set()
