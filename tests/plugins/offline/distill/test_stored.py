"""Distillation on stored tokens: the loss against plain forward passes, the teacher's cache, and
`quintain distill`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.cli import main
from quintain.models import LoadedModel, load_model
from quintain_offline.distill import GKD, ModelTeacher
from quintain_offline.distill.stored import tune
from quintain_offline.sft.sources import ExampleSource, examined, source_of

from ....core.models.tiny import save_tiny

TALKS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": said}]}
    for n, said in enumerate(["yes", "no, never", "yes", "perhaps 12"])
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a student, a teacher and conversations."""
    save_tiny(tmp_path / "student")
    save_tiny(tmp_path / "teacher", seed=5)
    (tmp_path / "talks.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    return tmp_path


def read(place: Path) -> ExampleSource:
    from quintain.recipe import EnvironmentTable

    return source_of(EnvironmentTable(use=str(place / "talks.jsonl")))


def teacher_for(student: LoadedModel, place: Path) -> ModelTeacher:
    return ModelTeacher(model=str(place / "teacher"), policy=student, learner=student)


def plain_divergence(student: LoadedModel, place: Path) -> float:
    """The mean forward KL over the reply tokens, in float64."""
    from collections import Counter

    teacher = load_model(place / "teacher").module
    found: list[float] = []
    rows = examined(read(place).examples, student.tokenizer, 512, Counter())
    for row in (tokens.sequence() for tokens in rows):
        ids = torch.tensor([row.ids])
        with torch.no_grad():
            p, q = (
                m(ids).logits[0].double().log_softmax(-1)[:-1] for m in (student.module, teacher)
            )
        kl = (q.exp() * (q - p)).sum(1)
        found += [float(value) for value, on in zip(kl, row.mask[1:], strict=True) if on]
    return sum(found) / len(found)


FORWARD = GKD.replace(objective={"kind": "forward"})


def test_the_loss_is_the_divergence_at_the_reply_tokens(place: Path) -> None:
    student = load_model(place / "student")
    expected = plain_divergence(student, place)

    teacher = teacher_for(student, place)
    _, report = tune(student, read(place), teacher, algorithm=FORWARD, lr=1e-9, batch=4)

    assert report.losses[0] == pytest.approx(expected, rel=1e-5)
    assert report.rows == 4
    assert report.updates == 1
    assert report.computed == 4


def test_the_student_comes_closer_and_the_teacher_answers_from_its_cache(place: Path) -> None:
    student = load_model(place / "student")
    before = plain_divergence(student, place)

    teacher = teacher_for(student, place)
    _, report = tune(student, read(place), teacher, algorithm=FORWARD, epochs=12, lr=3e-3, batch=2)

    assert plain_divergence(student, place) < before / 2
    assert report.losses[-1] < report.losses[0]
    assert report.updates == 24
    assert report.computed == 4
    assert report.reused == 44


def test_quintain_distill(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes a model that is closer to the teacher, and says what the teacher did."""
    words = ["distill", str(place / "talks.jsonl"), "--model", str(place / "student")]
    words += ["--teacher", str(place / "teacher"), "--out", str(place / "out"), "--lr", "3e-3"]

    assert main([*words, "--epochs", "8", "--batch", "2", "--top", "20", "--quiet"]) == 0

    said = capsys.readouterr().out
    assert "16 updates on 4 rows" in said
    assert "the teacher scored 4 rows" in said
    before, after = (load_model(place / name) for name in ("student", "out"))
    assert plain_divergence(after, place) < plain_divergence(before, place)


def test_quintain_distill_from_an_ensemble_as_json(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(place / "other", seed=6)
    words = ["distill", str(place / "talks.jsonl"), "--model", str(place / "student"), "--json"]
    words += ["--teacher", str(place / "teacher"), "--teacher", str(place / "other")]

    assert main([*words, "--out", str(place / "out")]) == 0

    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["rows"] == 4
    assert report["finished"] is True
    assert report["path"] == str(place / "out")
