"""`studies.benchmarks.prefix_tree` at a tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("case", ["four branches", "group", "chain"])
def test_rewritten_histories_cost_their_tree(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command itself compares the loss with that of each row alone."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from studies.benchmarks.prefix_tree import AIM, measure

    figures = measure(case, 320, rounds=1, width=32, layers=2)
    assert figures["computed"] <= AIM * figures["tree"]
    assert figures["alone"] > 2 * figures["tree"]
