"""Training with an agent in boxes, as docs/gateway.md shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...plugins.sandbox.service import left_behind, started
from .shown_recipes import two_steps


@pytest.mark.slow
def test_the_page_shows_a_recipe_that_trains_in_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of the page with a tiny model in place of the default one: two steps, every rollout
    valid.
    """
    for _ in started("bubblewrap", slots=1):  # skips the test where it cannot start
        pass
    rows = two_steps("docs/gateway.md", "boxed", tmp_path, monkeypatch, capsys, context=128)
    assert all(row.get("mismatch.max", 0) < 1e-3 for row in rows)
    assert all(row.get("engine.stalls", 0) == 0 for row in rows)
    assert not left_behind(None)
