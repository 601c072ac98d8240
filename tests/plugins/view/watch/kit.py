"""Spans, timelines and small runs for the tests of what follows a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain.cli import main
from quintain_view.watch.trace import Timed, TimelineFile

from ....small_run import small_recipe

SLOW = Path(__file__).parent / "slow.py"


class Spans:
    """Makes spans with ids; times are seconds after *began*."""

    def __init__(self, began: float = 1_000.0) -> None:
        self.began = began
        self.made: list[Timed] = []

    def add(
        self, kind: str, first: float, last: float, parent: Timed | None = None, **attributes: Any
    ) -> Timed:
        span = Timed(
            id=len(self.made) + 1,
            parent=parent.id if parent else 0,
            kind=kind,
            began=self.began + first,
            ended=self.began + last,
            attributes=attributes,
        )
        self.made.append(span)
        return span

    def episode(
        self, first: float, last: float, parent: Timed | None, *, group: int = 1, sample: int = 0
    ) -> Timed:
        place = {"environment": "sums", "group": group, "sample": sample, "step": 1, "attempt": 1}
        return self.add("episode", first, last, parent, **place, ended="finished")

    def turn(self, first: float, last: float, parent: Timed, tokens: int = 4) -> Timed:
        about = {"player": "", "engine": "embedded", "tokens": tokens, "finish": "stop"}
        return self.add("turn", first, last, parent, **about)

    def tool(self, first: float, last: float, parent: Timed, name: str = "look") -> Timed:
        return self.add("tool", first, last, parent, tool=name, call="c1", failed=False)

    def timeline(self, step: int = 1, run: str = "a") -> TimelineFile:
        spans = sorted(self.made, key=lambda span: span.began)
        return TimelineFile(run=run, step=step, spans=spans)


def train(
    small_run: Callable[..., Path],
    environment: str = f'use = "{SLOW}:Looking"',
    *,
    tables: str = "",
    steps: int = 2,
    evaluation: str | None = None,
    words: tuple[str, ...] = (),
) -> Path:
    """Train a tiny model on *environment*, lines of its table, and return the folder of the run."""
    settings = {} if evaluation is None else {"evaluation": evaluation}
    recipe = small_recipe(environment, steps=steps, tables=tables, **settings)
    recipe = recipe.replace("[run]", '[run]\nmax_sample_mismatch = "none"')
    recipe = recipe.replace("max_tokens = 4", "max_tokens = 200")  # `Caller` writes whole calls
    place = small_run(recipe, context=2048)
    assert main(["train", "recipe.toml", "--name", "a", "--quiet", *words]) == 0
    return place / "runs" / "a"
