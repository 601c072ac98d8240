"""A user's file of each kind of answer: the first screen names the kind, the controls of both signs
hold, and the default model trains on it (`make test-more` has all kinds).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main

from .recipes import metrics_of

# Two answers each, so that a model which has seen a few of them guesses right half of the time:
# then two steps have a gradient.
FILES: Mapping[str, tuple[Sequence[Any], str]] = {
    "numbers": (["5 km", "7 km"], "24 numbers, 24 with a unit: compared by value and unit"),
    "choices": (["A", "B"], "24 choices: compared by letter"),
    "words": (["Lima", "Apollo 11"], "24 words or phrases, 2 different: compared as text"),
    "formulas": (["x^2", "2x"], "24 formulas: compared as mathematics (math_equal)"),
    "dates": (["2024-01-15", "5 May 2020"], "24 dates, times or versions: compared part by part"),
    "accepted": (
        [["Lima", "City of Kings"], ["Oslo"]],
        "24 lists of accepted answers: compared with each of them",
    ),
    "json": ([{"a": 1}, {"a": [2, 3]}], "24 JSON values: compared as JSON"),
}
SMALL = (
    "batch.prompts=8",
    "batch.group_size=4",
    "sampling.max_tokens=16",
    "sampling.temperature=1",
    "evaluation.every=0",
    "evaluation.test.tasks=0",
    "model.start.args.batch=8",
    "model.start.args.max_steps=60",
)
EARNED = {
    "oracle": 1,
    "in_a_box": 1,
    "in_a_sentence": 1,
    "same_last_number": 0,
    "same_first_word": 0,
    "same_length": 0,
    "echo": 0,
    "nop": 0,
}
"""The share of right replies of each control."""
DATA = ("dataset", "--arg", "path=qa.jsonl")


@pytest.mark.keeps("choices")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("no_curves")
def test_a_file_of_each_kind_trains(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The two commands of the page on your own data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    answers, kind = FILES[name]
    rows = [
        {"question": f"Case {i}: which?", "answer": answers[i % len(answers)]} for i in range(24)
    ]
    Path("qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    with caplog.at_level(logging.WARNING):
        assert main(["eval", *DATA, "--controls", "--json"]) == 0
    controls = json.loads(capsys.readouterr().out)["controls"]

    assert kind in caplog.text
    assert {control["control"]: control["pass@1"] for control in controls} == EARNED

    sets = [word for change in SMALL for word in ("--set", change)]
    assert main(["train", *DATA, "--steps", "2", "--name", "run", "--quiet", *sets]) == 0
    summary = json.loads(Path("runs/run/summary.json").read_text())
    assert (summary["steps"], summary["failures"]) == (2, {})
    metrics = metrics_of(Path("runs/run"))
    assert all(map(math.isfinite, numbers_of(metrics)))
    assert sum(record.get("updates", 0) for record in metrics) > 0


def numbers_of(records: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    for record in records:
        yield from (value for value in record.values() if isinstance(value, float))
