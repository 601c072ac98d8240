"""`python -m studies.benchmarks.parity`: our side alone in the ordinary suite, both sides where TRL
is installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.more

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "studies" / "benchmarks" / ".peers"


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command as a module."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    import studies.benchmarks.parity.__main__ as command

    return command


def test_every_case_names_an_algorithm_that_takes_its_values(parity: Any) -> None:
    from studies.benchmarks.parity.ours import algorithm_of

    assert len({case.name for case in parity.CASES}) == len(parity.CASES)
    for case in parity.CASES:
        if not case.supervised:
            assert algorithm_of(case).name == case.algorithm
        assert not case.twin or any(other.name == case.twin for other in parity.CASES)


def test_a_wrong_value_is_noticed(parity: Any, tmp_path: Path) -> None:
    """Our side against itself agrees; with another clip, advantage or reference it is refused."""
    import dataclasses

    import torch

    case = next(c for c in parity.CASES if c.name == "GRPO, k3 in the loss")
    given = parity.world(tmp_path)

    def ours(**changes: Any) -> Any:
        held = dataclasses.replace(case, changes={**case.changes, **changes})
        return parity.compute(held, tmp_path, given["states"], given["logps"], torch.float64)

    def said(found: Any) -> list[str]:
        one = parity.compared(case, found, {case.name: ours()}, [case])
        return parity.complaints(case, {"float64": one})

    assert said(ours()) == []
    for changes in (
        {"objective": {"high": 0.21}},
        {"advantage": {"ddof": 0}},
        {"kl": {"coefficient": 0.041}},
    ):
        assert len(said(ours(**changes))) == 1, changes
    assert "never happened" in said(ours(objective={"low": 0.99, "high": 99.0}))[-1]


@pytest.mark.ci
@pytest.mark.skipif(
    not (PEERS / ".ready").exists(),
    reason="TRL is not installed: studies/benchmarks/peers/make_env.sh",
)
def test_losses_and_gradients_are_those_of_trl() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "studies.benchmarks.parity", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
