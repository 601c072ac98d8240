"""Which checkpoint of a run is its best, by what, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quintain.store.best import HeldOutScore, checkpoint_note

Found = tuple[float, float, float | None]
"""Accuracy, lower end of its interval, reward."""

RUNS: list[tuple[str, list[Found], list[str]]] = [
    (
        "a reward that never reaches 1",
        [(0.0, 0.0, 0.351), (0.0, 0.0, 0.481), (0.0, 0.0, 0.47), (0.0, 0.0, 0.5)],
        ["reward", "reward", "", "reward"],
    ),
    ("stars", [(1.0, 0.8, 3.7), (1.0, 0.8, 4.9), (1.0, 0.8, 4.8)], ["reward", "reward", ""]),
    ("negative", [(0.0, 0.0, -9.0), (0.0, 0.0, -2.0)], ["reward", "reward"]),
    (
        "right or wrong",
        [(0.4, 0.3, 0.4), (0.6, 0.5, 0.6), (0.5, 0.4, 0.5)],
        ["accuracy"] * 2 + [""],
    ),
    ("right or wrong, equal", [(0.9, 0.8, 0.9), (0.9, 0.8, 0.9)], ["accuracy", "order"]),
    ("constant", [(0.0, 0.0, 0.5), (0.0, 0.0, 0.5), (0.0, 0.0, 0.5)], ["reward", "order", "order"]),
    (
        "no reward known",
        [(0.5, 0.4, None), (0.6, 0.5, None), (0.6, 0.5, None)],
        ["accuracy"] * 2 + ["order"],
    ),
    (
        "partial credit, one lucky task at first",
        [(0.005, 0.001, 0.2), (0.0, 0.0, 0.6), (0.004, 0.001, 0.7)],
        ["reward", "", "reward"],
    ),
    (
        "partial credit that rises while tasks are lost",
        [(0.8, 0.7, 0.85), (0.75, 0.65, 0.86), (0.69, 0.6, 0.9)],
        ["reward", "reward", ""],
    ),
    (
        "partial credit, clearly more right",
        [(0.2, 0.1, 0.6), (0.7, 0.6, 0.55)],
        ["reward", "accuracy"],
    ),
    (
        "all zero, then graded, then zero again",
        [(0.0, 0.0, 0.0), (0.0, 0.0, 0.3), (0.0, 0.0, 0.0)],
        ["accuracy", "reward", ""],
    ),
    ("a large offset", [(1.0, 0.8, 1e7 + 1), (1.0, 0.8, 1e7 + 3)], ["reward", "reward"]),
]


@pytest.mark.parametrize(("name", "found", "expected"), RUNS, ids=[name for name, *_ in RUNS])
def test_the_reward_decides_where_the_accuracy_does_not(
    name: str, found: list[Found], expected: list[str]
) -> None:
    best: HeldOutScore | None = None
    by = []
    for accuracy, low, reward in found:
        measured = HeldOutScore(accuracy=accuracy, low=low, reward=reward)
        by.append(measured.better_by(best))
        best = measured.after(best) if by[-1] else best

    assert by == expected


def test_an_evaluation_without_an_accuracy_says_nothing() -> None:
    assert HeldOutScore.of({"accuracy": None, "reward": 0.5}, "dev") is None
    found = HeldOutScore.of({"accuracy": 0.5}, "dev")
    assert found == HeldOutScore(accuracy=0.5, low=0.5, split="dev")


NOTES: list[tuple[dict[str, Any], str]] = [
    (
        {"best_by": "reward", "held_out": {"accuracy": 0.0, "low": 0.0, "reward": 0.5}},
        "checkpoint of step 30 (the best by held-out reward, 0.0 % of held-out tasks right, "
        "held-out reward 0.5)",
    ),
    (
        {"best_by": "order", "held_out": {"accuracy": 0.9, "low": 0.8, "reward": None}},
        "checkpoint of step 30 (the newest of equally good ones, 90.0 % of held-out tasks right)",
    ),
    (
        {
            "best_by": "accuracy",
            "held_out": {"accuracy": 0.9, "low": 0.8, "reward": None, "split": "dev"},
        },
        "checkpoint of step 30 (the best by held-out accuracy, 90.0 % of dev tasks right)",
    ),
    (
        {"best_by": "", "held_out": None},
        "checkpoint of step 30 (it was not measured in training)",
    ),
]


@pytest.mark.parametrize(("about", "note"), NOTES)
def test_a_command_says_which_checkpoint_it_takes(
    about: dict[str, Any], note: str, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint.json").write_text(json.dumps({"step": 30, **about}))

    assert checkpoint_note(tmp_path / "model") == note


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step": "x"}'])
def test_what_is_no_checkpoint_has_no_note(text: str, tmp_path: Path) -> None:
    assert checkpoint_note("Qwen/Qwen3-0.6B") == ""
    (tmp_path / "checkpoint.json").write_text(text)
    assert checkpoint_note(tmp_path / "model") == ""
