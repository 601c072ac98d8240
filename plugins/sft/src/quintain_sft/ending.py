"""The end of a command that trains a model on stored examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import click


class Report(Protocol):
    """The outcome of a training, as far as its end needs it."""

    @property
    def finished(self) -> bool:
        """Whether it was not stopped early."""
        ...

    @property
    def updates(self) -> int:
        """Number of updates that were made."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return its fields as plain data."""
        ...


def print_as_json(report: Report, out: Path, as_json: bool) -> bool:
    """Print *report* as one JSON object, if that was asked for, and return whether it was.

    Raises:
        click.Abort: the training was stopped; the message names the model so far.
    """
    if not report.finished:
        where = f"; the model so far: {out}" if report.updates else "; nothing was trained yet"
        raise click.Abort(f"stopped after {report.updates} updates{where}")
    if as_json:
        click.echo(json.dumps({**report.to_json(), "path": str(out)}))
    return as_json
