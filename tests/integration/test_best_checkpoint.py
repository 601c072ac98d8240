"""A graded reward: the commands that take a run take its best checkpoint by held-out reward, and
name it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Limits, Rollout, Task, reward
from quintain.cli import main
from quintain.store.checkpoint import best
from quintain.store.run_folder import RunFolder

from ..core.run.everything import played, settings


@reward
def half(rollout: Rollout[Any, Any]) -> float:
    """Never 1: half the share of small letters."""
    text = rollout.reply
    return 0.5 * sum("a" <= c <= "z" for c in text) / max(1, len(text))


@reward
def stars(rollout: Rollout[Any, Any]) -> float:
    """Never below 1."""
    text = rollout.reply
    return 1 + 4 * sum("a" <= c <= "z" for c in text) / max(1, len(text))


class Half(Environment[Task, Any]):
    reward = half
    limits = Limits(turns=1, tokens=4)

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{split} {i}", answer="a") for i in range(100))


class Stars(Half):
    reward = stars


GRADED: dict[str, Any] = {
    "run__steps": 8,
    "batch": {"prompts": 8, "group_size": 8},
    "algorithm": {"use": "dr_grpo"},
    "learner__lr": 1e-2,
    "evaluation": {"every": 2, "tasks": 16, "temperature": 1.0, "test": {"tasks": 0}},
    "checkpoint": {"every": 2, "keep": 2},
}


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("name", ["Half", pytest.param("Stars", marks=pytest.mark.more)])
def test_the_best_is_that_of_the_highest_held_out_reward(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = GRADED | {"environments": [{"use": f"{__name__}:{name}"}]}
    records, _, _ = played(tmp_path / "run", settings(**changes))
    rewards = {r["step"]: r["held_out.reward"] for r in records if "held_out.reward" in r}
    expected = max(step for step in rewards if step and rewards[step] == max(rewards.values()))

    assert {r["held_out.accuracy"] for r in records if "held_out.accuracy" in r} <= {0.0, 1.0}
    checkpoint = best(RunFolder(tmp_path / "run", lock=False))
    assert checkpoint is not None
    assert checkpoint.step == expected
    about = json.loads((checkpoint.path / "checkpoint.json").read_text())
    assert about["held_out"]["reward"] == rewards[expected]

    named = f"checkpoint of step {expected} (the best by held-out reward"
    run = str(tmp_path / "run")
    assert main(["export", run, str(tmp_path / "out")]) == 0
    assert named in capsys.readouterr().err
    assert main(["train", f"{__name__}:{name}", "--model", run, "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert named in shown.err
    assert f"step-{expected:06d}" in shown.out
