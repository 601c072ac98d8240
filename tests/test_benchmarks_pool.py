"""`studies.benchmarks.pool` on its simulated clock, and the commands of its folder `gpu`."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

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
    assert seconds == sorted(seconds) and 2 * seconds[1] < seconds[3]
    assert figures["in flight"]["for_sync"] == 1.0


@pytest.mark.parametrize("has_vllm", [True, False])
def test_the_gpu_commands_have_a_case_of_vllm(has_vllm: bool, tmp_path: Path) -> None:
    """Where vLLM is absent, the last line says so and how to get it."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {int(not has_vllm)}\necho ran "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "DEVICE": "cpu"}
    script = ["sh", "studies/benchmarks/gpu/run.sh", "--quick"]
    done = subprocess.run(
        script, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    *others, last = done.stdout.splitlines()

    assert others == [
        f"ran -m studies.benchmarks.{name} --device cpu --quick"
        for name in ("memory", "engine", "step")
    ]
    if has_vllm:
        assert last == "ran -m studies.benchmarks.engines --device cpu --quick"
    else:
        assert "studies.benchmarks.engines is left out" in last and "quintain-vllm[gpu]" in last
