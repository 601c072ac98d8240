"""The outcome of a training on stored examples."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True, kw_only=True)
class TuningReport:
    """What every training on stored examples reports.

    Attributes:
        model: that it began with.
        updates: number of optimizer steps that were taken.
        losses: of each epoch, measured before the update on its examples.
        finished: false where training was stopped early.
        lr: the highest learning rate.
        parameters: number of them.
        seconds: that it took.
    """

    model: str
    updates: int
    losses: tuple[float, ...]
    finished: bool
    seed: int
    lr: float
    parameters: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def print_as_json(self, out: Path, as_json: bool) -> bool:
        """Print one JSON object, if that was asked for, and return whether it was.

        Args:
            out: the folder of the trained model.

        Raises:
            click.Abort: the training was stopped; the message names the model so far.
        """
        if not self.finished:
            where = f"; the model so far: {out}" if self.updates else "; nothing was trained yet"
            raise click.Abort(f"stopped after {self.updates} updates{where}")
        if as_json:
            click.echo(json.dumps({**self.to_json(), "path": str(out)}))
        return as_json

    def print_size(self, out: Path, rows: str) -> None:
        """Print the first line for people: the folder, its size and what it was trained on."""
        click.echo(f"{out}: {self.parameters:,} parameters, {self.updates} updates on {rows}")
