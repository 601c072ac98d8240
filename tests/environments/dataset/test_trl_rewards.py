"""Reward functions of TRL, as its package has them, on rows of `dataset`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="pip install trl")

from quintain_authoring import run_episode
from quintain_authoring.plain_functions import adapted
from quintain_env_dataset import Dataset


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A file of conversations with solutions, as TRL's data sets have them."""
    path = tmp_path / "rows.jsonl"
    row = {"prompt": [{"role": "user", "content": "1/2 + 1/4?"}], "solution": r"$\frac{3}{4}$"}
    other = {"prompt": [{"role": "user", "content": "2 + 2?"}], "solution": "$4$"}
    path.write_text("".join(json.dumps(r) + "\n" for r in (row, row | {"solution": "$x$"}, other)))
    return str(path)


def test_accuracy_reward(rows: str) -> None:
    """Mathematics is compared by TRL; its column `solution` is the answer of the row."""
    from trl.rewards import accuracy_reward

    data = Dataset(path=rows).overridden(reward=adapted(accuracy_reward))
    tasks = {t.answer: t for split in ("train", "dev", "test") for t in data.tasks(split)}
    task = tasks[r"$\frac{3}{4}$"]
    replies = (r"It is \boxed{\frac{6}{8}}", r"\boxed{\frac{1}{4}}")
    assert [run_episode(data, task, r).outcome.total for r in replies] == [1.0, 0.0]


def test_think_format_reward(rows: str) -> None:
    """A function of the completion alone, with the messages that it expects."""
    from trl.rewards import think_format_reward

    data = Dataset(path=rows).overridden(reward=adapted(think_format_reward))
    task = next(iter(data.tasks("train")))
    assert run_episode(data, task, "no thought").outcome.total == 0.0


def test_several_are_added(rows: str) -> None:
    """Weights are an expression, as `reward_weights` of TRL."""
    from trl.rewards import accuracy_reward, think_format_reward

    both = 2.0 * adapted(accuracy_reward) + 0.5 * adapted(think_format_reward)
    data = Dataset(path=rows).overridden(reward=both)
    tasks = [t for split in ("train", "dev", "test") for t in data.tasks(split)]
    (task,) = [t for t in tasks if t.answer == "$4$"]
    assert run_episode(data, task, r"\boxed{4}").outcome.total == 2.0
