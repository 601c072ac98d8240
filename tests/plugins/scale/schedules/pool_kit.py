"""A replica without a model: its tokens are a function of the prefix, the seed and the version of
its weights.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from quintain import InfrastructureError, Sampled, Sampling, TokenEngine, Weights
from quintain.interfaces import Pressure
from quintain_authoring.byte_tokenizer import ByteTokenizer

PIECE = 4
"""Tokens of a segment in the tests."""


def token(prefix: Sequence[int], seed: int, version: int) -> int:
    """The token after *prefix*; less than 250, so that it never stops a turn."""
    return (
        hashlib.blake2b(repr((tuple(prefix), seed, version)).encode(), digest_size=1).digest()[0]
        % 250
    )


class Published:
    """Weights of a version, which replicas without a model read nothing else of."""

    def __init__(self, version: int) -> None:
        self.version = version

    def tensors(self) -> dict[str, Any]:
        return {}


class Decoder(TokenEngine):
    """Samples a token of each of its turns per round of the event loop.

    Attributes:
        fault: that every call raises, until it is ``None``.
        running: prompt lengths of the turns that it samples now.
        started: prompts of all calls.
    """

    name = "decoder"

    def __init__(self, *, slots: int = 2, label: str = "", context: int = 64) -> None:
        self.tokenizer = ByteTokenizer()
        self.context = context
        self.slots = slots
        self.label = label
        self.fault: Exception | None = None
        self.update_fault: Exception | None = None
        self.blocked = False
        self.open = 0
        self.running: list[tuple[int, ...]] = []
        self.started: list[tuple[int, ...]] = []

    async def __aenter__(self) -> Decoder:
        if self.label == "broken":
            raise InfrastructureError("a broken replica")
        self.open += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.open -= 1

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        prompt, new, versions = tuple(ids), list[int](), list[int]()
        self.started.append(prompt)
        self.running.append(prompt)
        try:
            while len(new) < min(sampling.max_tokens or self.context, self.context - len(ids)):
                await asyncio.sleep(0)
                while self.blocked:  # noqa: ASYNC110 -- rounds of the loop are the clock here
                    await asyncio.sleep(0)
                if self.fault is not None:
                    raise self.fault
                new.append(token([*ids, *new], sampling.seed or 0, self.version))
                versions.append(self.version)
        finally:
            self.running.remove(prompt)
        return Sampled(
            ids=tuple(new), logps=(-1.0,) * len(new), versions=tuple(versions), finish="length"
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return [-float(i) for i in ids[start:]]

    async def update(self, weights: Weights) -> int:
        await asyncio.sleep(0)
        if not self.in_flight_updates:
            assert not self.running, "the pool updates a replica that samples"
        if self.update_fault is not None:
            raise self.update_fault
        if self.fault is not None:
            raise self.fault
        self.version = weights.version
        return self.version


class Mortal(Decoder):
    """A replica in a process that may die: `kill` ends it, and every call fails from then on.

    The process computes with `served`, whatever its client believes.

    Attributes:
        served: the version of the weights that it computes with: 0 when it starts, -1 if it waits
            for weights and has none.
        pressed: what it says of itself.
    """

    name = "mortal"
    made: ClassVar[list[Mortal]] = []
    """All that were made, oldest first."""
    stillborn: ClassVar[int] = 0
    """How many of the next ones do not start."""

    def __init__(self, *, slots: int = 2, label: str = "", context: int = 64) -> None:
        super().__init__(slots=slots, label=label, context=context)
        self.served = 0
        self.pressed: Pressure | None = None
        Mortal.made.append(self)

    async def __aenter__(self) -> Mortal:
        if Mortal.stillborn:
            Mortal.stillborn -= 1
            raise InfrastructureError("no memory")
        await asyncio.sleep(0)
        self.served = -1 if self.awaits_weights else 0
        await super().__aenter__()
        return self

    def kill(self) -> None:
        self.fault = InfrastructureError("killed")

    async def probe(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def pressure(self) -> Pressure | None:
        for _ in range(2):  # an answer takes its time
            await asyncio.sleep(0)
        return self.pressed

    async def outdated(self, weights: Weights) -> str:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return "" if self.served == weights.version else "a tensor"

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        reply = await super().sample(ids, sampling)  # which takes its time, and may fail
        new = list[int]()
        for _ in reply.ids:
            new.append(token([*ids, *new], sampling.seed or 0, self.served))
        return replace(reply, ids=tuple(new), versions=(self.served,) * len(new))

    async def update(self, weights: Weights) -> int:
        version = await super().update(weights)
        self.served = version
        return version
