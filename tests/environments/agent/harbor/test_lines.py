"""`quintain tasks lines`: tasks that any program reads, with the command that scores a reply."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quintain.cli import main

OWN = '''
# Some programs take U+2028 for the end of a line.
from quintain import Environment, Task, reward


@reward(range=(0, 1))
def loud(rollout) -> float:
    if rollout.reply == "die":
        raise ValueError("the reward is broken")
    return float(rollout.reply == rollout.task.answer)


class Loud(Environment[Task, None]):
    """Say it loudly."""

    reward, system = loud, "Be loud."
    end: str = "!"

    def tasks(self, split):
        for word in ("fox", "owl", "elk"):
            yield Task(prompt=f"Say {word}.\u2028", answer=word.upper() + self.end, id=word)

    def oracle(self, task, messages):
        return task.answer
'''


@pytest.mark.slow
def test_lines_name_what_scores_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stored answer has 1, another one 0, in an interpreter that knows no Quintain; a reward
    that fails is no 0. Signs that end a line elsewhere do not end one of JSON.
    """
    (tmp_path / "loud.py").write_text(OWN)
    out = tmp_path / "out"
    words = ["tasks", "lines", f"{tmp_path / 'loud.py'}:Loud", str(out), "--tasks", "2"]
    assert main([*words, "--arg", "end=?", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tasks"] == 2
    assert "quintain" in report["packages"]
    assert not [r for r in report["requirements"] if r.startswith("quintain")]
    rows = [json.loads(line) for line in (out / "tasks.jsonl").read_text().split("\n")[:-1]]
    assert [(row["id"], row["split"], row["answer"]) for row in rows] == [
        ("fox", "train", "FOX?"),
        ("owl", "train", "OWL?"),
    ]
    assert rows[0]["prompt"] == [
        {"role": "system", "content": "Be loud."},
        {"role": "user", "content": "Say fox.\u2028"},
    ]

    def scored(row: dict[str, list[str]], reply: str) -> subprocess.CompletedProcess[str]:
        python, *command = row["score"]
        assert python == "python3"
        return subprocess.run(
            [sys.executable, *command], cwd=out, input=reply, capture_output=True, text=True
        )

    for row, other in zip(rows, reversed(rows), strict=True):
        assert json.loads(scored(row, row["answer"]).stdout) == {"reward": 1.0}
        assert json.loads(scored(row, other["answer"]).stdout) == {"reward": 0.0}
    broken = scored(rows[0], "die")
    assert broken.returncode == 3
    assert broken.stdout == ""
    assert "the reward is broken" in broken.stderr
    assert scored({"score": ["python3", "score.py", "cat"]}, "x").returncode == 2


def test_what_lines_cannot_hold_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "lines", "guess", str(tmp_path / "out")]) == 2
    assert "an episode of its own" in capsys.readouterr().err
