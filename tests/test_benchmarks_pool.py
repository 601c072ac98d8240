"""`studies.benchmarks.pool` on its simulated clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parent.parent


def test_repacked_replicas_wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal turns: an update that waits for all costs most, one that waits for none least; runs
    repeat exactly.
    """
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from studies.benchmarks.pool import ROWS, train
    from studies.benchmarks.simulated import Costs, simulated

    def run(row: str) -> dict[str, float]:
        with simulated(Costs()):
            return asyncio.run(train(row, 8, 5.0, 8, 0))

    figures = {row: run(row) for row in ROWS}

    assert figures["repack"] == run("repack")
    seconds = [figures[row]["seconds"] for row in ("in flight", "repack", "late", "all")]
    assert seconds == sorted(seconds)
    assert 2 * seconds[1] < seconds[3]
    assert figures["in flight"]["for_sync"] == 1.0
