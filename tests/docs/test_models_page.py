"""docs/models.md is what the models of the table do: how they load, sample and train, and what is
refused.
"""

from __future__ import annotations

import re

import pytest

from ..core.models.architectures import ARCHITECTURES, kinds_first
from ..tools import load_tool

TOOL = load_tool("models")
PAGE = TOOL.PAGE.read_text(encoding="utf-8")


def rows(page: str) -> dict[str, str]:
    """Architecture to its row, with the errors left out: they depend on the machine."""
    lines = re.findall(r"^\| `([\w.-]+)` (\|.*\|)$", page, re.MULTILINE)
    return {name: re.sub(r"\b0 \||1e-\d+|[\d.]+ nats", "", line) for name, line in lines}


def test_every_architecture_has_a_row() -> None:
    assert set(ARCHITECTURES) == set(rows(PAGE)), "run python tools/models.py"


@pytest.mark.keeps("gpt2", "qwen3")
@pytest.mark.parametrize("name", kinds_first(ARCHITECTURES))
def test_a_row_is_what_is_measured(name: str) -> None:
    """The same class, choices and refusal, and errors within the bound."""
    measured = TOOL.measure(name)
    assert rows(TOOL.render(PAGE, [measured])) == {name: rows(PAGE)[name]}, (
        "run python tools/models.py"
    )
    assert max(measured.engine_error, measured.learner_error) < TOOL.BOUND
