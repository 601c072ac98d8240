"""Runs cases against a layer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

from .case import Case
from .client import Client
from .comparison import COLUMNS, Column, compared
from .delivery import delivered
from .dialects import DialectName
from .layer import Capture, Layer

__all__ = ["Outcome", "Result", "run_case", "run_cases"]

Outcome = Literal["pass", "fail", "not offered"]
SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """One case in one dialect.

    Attributes:
        columns: with a difference, in the order of `COLUMNS`; ``error`` where the run broke off.
        reasons: differences, or what the layer does not offer.
    """

    case: str
    dialect: DialectName
    outcome: Outcome
    columns: tuple[Column | Literal["error"], ...] = ()
    reasons: tuple[str, ...] = ()
    turns: int = 0
    tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def run_case(case: Case, layer: Layer, dialect: DialectName) -> Result:
    """Return the result of *case* in *dialect*, whatever the layer raises."""
    name = {"case": case.name, "dialect": dialect}
    missing = [str(f) for f in sorted(case.needs - layer.features)]
    if dialect not in layer.dialects:
        missing.append(f"the dialect {dialect}")
    if missing:
        reason = f"the layer does not offer {', '.join(missing)}"
        return Result(**name, outcome="not offered", reasons=(reason,))
    truth, clients, failed = case.truth(), [], []

    async def agent(base_url: str, key: str) -> None:
        async with aiohttp.ClientSession() as http:
            client = Client(http, base_url, key, truth, dialect, stream=case.streams)
            clients.append(client)
            try:
                await case.program(client)
            except Exception as e:
                failed.append(e)
                raise

    captured = Capture(sequences=())
    try:
        async with asyncio.timeout(SECONDS):
            captured = await layer.capture(truth, agent, temperature=case.temperature)
    except Exception as e:  # noqa: BLE001 - whatever a layer raises is the result of the case
        failed.append(e)
    if not clients and not failed:
        failed.append(RuntimeError("the layer never ran the agent"))
    columns = [c for c in COLUMNS if c in layer.columns]
    differences = compared(truth.log, captured.sequences, unread=truth.unread, columns=columns)
    if clients and not failed:
        differences += delivered(
            truth.tokenizer, truth.log, clients[0].read, unread=truth.unread, shown=case.shown
        )
    wrong = {d.column for d in differences}
    at_fault: list[Column | Literal["error"]] = [c for c in COLUMNS if c in wrong]
    return Result(
        **name,
        outcome="fail" if differences or failed else "pass",
        columns=(*(["error"] if failed else []), *at_fault),
        reasons=(
            *(f"error: {type(e).__name__}: {e}" for e in failed[:1]),
            *map(str, differences),
        ),
        turns=len(truth.log),
        tokens=sum(len(turn.ids) for turn in truth.log),
    )


def run_cases(cases: Sequence[Case], layer: Layer, dialect: str = "") -> Iterator[Result]:
    """Yield the results of *cases*, each in all of its dialects, or in *dialect* alone."""
    for case in cases:
        for name in case.dialects:
            if dialect in ("", name):
                yield asyncio.run(run_case(case, layer, name))
