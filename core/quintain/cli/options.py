"""Numbers on the command line."""

from __future__ import annotations

from typing import Any

import click


class Count(click.IntRange):
    """A whole number >= *least*."""

    name = "number"

    def __init__(self, least: int) -> None:
        super().__init__(min=least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"expected a whole number of at least {self.min}, got {str(value)[:100]!r}", param, ctx)
