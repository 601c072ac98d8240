"""Runs cases against a layer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from .case import CaptureCase
from .client import AgentClient, RefusedError, UnexpectedError
from .comparison import COLUMNS, Column, TokenDifference, compared
from .delivery import delivered
from .dialects import DialectName
from .layer import Capture, CaptureLayer
from .truth import TruthEngine

__all__ = ["Outcome", "Result", "run_case", "run_cases"]

Outcome = Literal["pass", "fail", "not offered"]
SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """One case in one dialect.

    Attributes:
        columns: with a difference, in the order of `COLUMNS`; ``error`` where the run broke off.
        reasons: differences, or what the layer does not offer.
        turns, tokens: that the engine sampled.
        sequences, length: that would train, and their tokens in sum, context included.
    """

    case: str
    dialect: DialectName
    outcome: Outcome
    columns: tuple[Column | Literal["error"], ...] = ()
    reasons: tuple[str, ...] = ()
    turns: int = 0
    tokens: int = 0
    sequences: int = 0
    length: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class PlayedAgent:
    """The agent of one run, which a layer calls with an address and a key."""

    def __init__(self, case: CaptureCase, truth: TruthEngine, dialect: DialectName) -> None:
        self._case, self._truth, self._dialect = case, truth, dialect
        self.client: AgentClient | None = None
        self.failure: Exception | None = None

    async def __call__(self, base_url: str, key: str) -> None:
        """Run the program; what it raises is kept."""
        case = self._case
        async with aiohttp.ClientSession() as http:
            self.client = AgentClient(
                http, base_url, key, self._truth, self._dialect, stream=case.streams
            )
            try:
                await case.program(self.client)
            except Exception as e:  # noqa: BLE001 - whatever it is, it is the result of the case
                self.failure = e


async def run_case(case: CaptureCase, layer: CaptureLayer, dialect: DialectName) -> Result:
    """Return the result of *case* in *dialect*, whatever the layer raises."""
    missing = _missing(case, layer, dialect)
    if missing:
        reason = f"the layer does not offer {', '.join(missing)}"
        return Result(case=case.name, dialect=dialect, outcome="not offered", reasons=(reason,))
    truth = case.truth()
    agent = PlayedAgent(case, truth, dialect)
    captured = Capture(sequences=())
    failure: Exception | None = None
    try:
        async with asyncio.timeout(SECONDS):
            captured = await layer.capture(truth, agent, case)
    except Exception as e:  # noqa: BLE001 - whatever a layer raises is the result of the case
        failure = e
    columns = [c for c in COLUMNS if c in layer.columns]
    differences = compared(truth.log, captured.sequences, unread=truth.unread, columns=columns)
    if isinstance(agent.failure, RefusedError | UnexpectedError):
        differences.append(TokenDifference("replies", str(agent.failure)))
    elif agent.failure:
        failure = failure or agent.failure
    elif "replies" in layer.columns and not failure:
        read = captured.read if agent.client is None else agent.client.read
        differences += delivered(
            truth.tokenizer, truth.log, read, unread=truth.unread, shown=case.shown
        )
    if agent.client is None and not layer.plays and not failure:
        failure = RuntimeError("the layer did not run the agent")
    wrong = {d.column for d in differences}
    at_fault: list[Column | Literal["error"]] = ["error"] if failure else []
    at_fault += [c for c in COLUMNS if c in wrong]
    broken = [f"error: {type(failure).__name__}: {failure}"] if failure else []
    return Result(
        case=case.name,
        dialect=dialect,
        outcome="fail" if differences or failure else "pass",
        columns=tuple(at_fault),
        reasons=(*broken, *map(str, differences)),
        turns=len(truth.log),
        tokens=sum(len(turn.ids) for turn in truth.log),
        sequences=len(captured.sequences),
        length=sum(len(sequence.ids) for sequence in captured.sequences),
    )


def run_cases(
    cases: Sequence[CaptureCase], layer: CaptureLayer, dialect: str = ""
) -> Iterator[Result]:
    """Yield the results of *cases*, each in all of its dialects, or in *dialect* alone; all run in
    one event loop.
    """
    with asyncio.Runner() as runner:
        for case in cases:
            for name in case.dialects:
                if dialect in ("", name):
                    yield runner.run(run_case(case, layer, name))


def _missing(case: CaptureCase, layer: CaptureLayer, dialect: DialectName) -> list[str]:
    """Return what *case* needs and the layer does not offer."""
    if layer.plays and case.name not in layer.plays:
        return ["this case"]
    missing = [str(feature) for feature in sorted(case.needs - layer.features)]
    return missing + ([] if dialect in layer.dialects else [f"the dialect {dialect}"])
