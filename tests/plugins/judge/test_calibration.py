"""Calibration of judges against labels, by hand-computed measures and through the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.errors import UsageError
from quintain_judge import JudgeService
from quintain_judge.calibration import Labelled, calibrate, kappa, read_labels

from .kit import judged, of_canary, scored, texts_of


def pair(a: str, b: str, label: str) -> Labelled:
    return Labelled(prompt="p", a=a, b=b, criteria=["Is kind."], label=label)  # type: ignore[arg-type]


def test_pairs_show_agreement_and_the_biases() -> None:
    """A judge that prefers the longer reply, and the first one where both are of a length."""
    rows = [
        pair("long long", "short", "A"),
        pair("short", "long long", "A"),
        pair("even one", "even two", "B"),
        pair("even two", "even one", "tie"),
    ]

    def longer(body: Any) -> Any:
        texts = texts_of(body)
        return scored("A" if len(texts["A"]) >= len(texts["B"]) else "B", "verdict")

    m = judged(longer, lambda judge: calibrate(judge, rows)).measures
    # Verdicts: A (agrees), B (does not), order decides = tie (does not), order decides = tie
    # (agrees).
    assert m["pair.agreement"]["value"] == 0.5
    assert m["pair.agreement"]["rows"] == 4
    assert m["pair.same_in_both_orders"]["value"] == 0.5
    assert m["pair.first_wins_where_order_decides"]["value"] == 1
    assert m["pair.longer_wins"]["value"] == 1
    assert m["pair.longer_is_labelled"]["value"] == 0.5
    assert 0 < m["pair.agreement"]["low"] < 0.5 < m["pair.agreement"]["high"] < 1


def test_rubrics_and_references() -> None:
    rows = [
        Labelled(prompt="p", reply="kind words", rubric="Is kind.", label=1.0),
        Labelled(prompt="p", reply="a longer reply", rubric="Is kind.", label=0.0),
        Labelled(prompt="p", reply="the longest reply of all", rubric="Is kind.", label=0.0),
        Labelled(prompt="p", reply="unreadable verdict", rubric="Is kind.", label=0.0),
        Labelled(prompt="p", reply="eight", reference="8", label=True),
        Labelled(prompt="p", reply="nine", reference="8", label=False),
    ]

    def script(body: Any) -> Any:
        texts, system = texts_of(body), body["messages"][0]["content"]
        if "answer" in texts:
            # all are right
            return scored("A" if "A if the answer is right" in system else "B", "verdict")
        return scored({10: 2, 14: 0, 24: 2}.get(len(texts["reply"]), 9))

    result = judged(script, lambda judge: calibrate(judge, rows), retries=0)
    m = result.measures
    assert dict(result.failed) == {"rubric": 1}
    assert m["rubric.agreement"]["value"] == pytest.approx(2 / 3)
    assert m["rubric.mean_error"]["value"] == pytest.approx(1 / 3)
    assert m["rubric.rank_correlation"]["value"] == pytest.approx(0.5)
    assert m["rubric.error_with_length"]["value"] == pytest.approx(3**0.5 / 2)
    assert m["reference.agreement"]["value"] == 0.5
    assert m["reference.wrong_accepted"]["value"] == 1
    assert m["reference.right_rejected"]["value"] == 0


def test_kappa() -> None:
    # Of 10: both say yes 4 times, no 3 times: 0.7 observed, 0.5 * 0.6 + 0.5 * 0.4 = 0.5 by chance.
    a, b = "yyyyynnnnn", "yyyynyynnn"
    assert kappa(a, b) == pytest.approx((0.7 - 0.5) / (1 - 0.5))
    assert kappa("aa", "aa") is None


@pytest.mark.parametrize(
    "line", ["{", '{"prompt": "p"}', '{"prompt": "p", "reply": "r", "rubric": "k", "label": 2}',
             '{"prompt": "p", "a": "x", "b": "y", "criteria": ["k"], "label": 1}'],
)  # fmt: skip
def test_wrong_labels_name_the_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").write_text(line)
    with pytest.raises(UsageError, match="jsonl:1: "):
        read_labels(tmp_path / "labels.jsonl")


LABELS = [
    {"prompt": "Thank Ada.", "reply": "Thank you, Ada.", "rubric": 'Mentions "Ada".', "label": 1},
    {"prompt": "Thank Ada.", "reply": "Thanks.", "rubric": 'Mentions "Ada".', "label": 0},
    {"prompt": "6 * 7?", "reply": "Answer: 42", "reference": "42", "label": True},
    {
        "prompt": "Thank Ada.",
        "a": "Ada!",
        "b": "You!",
        "criteria": ['Mentions "Ada".'],
        "label": "A",
    },
]


def test_the_command_with_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, LABELS)))
    (tmp_path / "chat.toml").write_text('[services.judge]\nuse = "judge"\nargs = { scale = 4 }\n')

    assert (
        main(["grading", "calibrate", str(path), "--recipe", str(tmp_path / "chat.toml"), "--json"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["rows"] == {"rubric": 2, "reference": 1, "pair": 1}
    assert data["failed"] == {}
    assert {
        data["measures"][name]["value"]
        for name in ("rubric.agreement", "reference.agreement", "pair.agreement")
    } == {1}
    assert main(["grading", "calibrate", str(path), "--canaries"]) == 0
    printed = capsys.readouterr()
    assert "pair.agreement" in printed.out
    assert "canaries" not in printed.out
    assert "canaries are for models" in printed.err


def test_a_server_that_is_down_and_a_wrong_setting_end_the_command(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, LABELS)))
    command = [sys.executable, "-m", "quintain", "grading", "calibrate", str(path)]
    down = subprocess.run(
        [*command, "--url", "http://127.0.0.1:9/v1"], capture_output=True, text=True, timeout=60
    )
    assert down.returncode != 0
    assert "no server answers" in down.stderr
    (tmp_path / "wrong.toml").write_text(
        '[services.judge]\nuse = "judge"\nargs = { scale = "x" }\n'
    )
    wrong = subprocess.run(
        [*command, "--recipe", str(tmp_path / "wrong.toml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 2
    assert "scale" in wrong.stderr


def test_canaries_by_kind_of_a_judge_without_taste() -> None:
    """It knows references, and gives half marks and ties to everything else."""

    async def use(judge: JudgeService) -> Any:
        return await judge.judge_canaries()

    def flat(body: Any) -> Any:
        if "reply" in texts_of(body):
            return scored(1)
        return scored("tie", "verdict") if "A" in texts_of(body) else of_canary(body)

    report = judged(flat, use)
    assert report.kinds == {
        "reference": {"rejected": 0, "accepted": 0},
        "rubric": {"rejected": 0, "accepted": 1},
        "pair": {"rejected": 1},
    }
    assert report.accepted == 1
    assert report.rejected == 1
    assert report.changed == 0
    report = judged(of_canary, use)
    assert report.accepted == 0
    assert report.rejected == 0
    assert report.fooled == ""
    assert report.refused == ""
