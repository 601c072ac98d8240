"""Stored preferences: rows, batches, losses against plain forward passes, and `quintain
preference`.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quintain.cli import main
from quintain.errors import UsageError
from quintain.learning import Learner
from quintain_offline.preference import DPO, KTO
from quintain_offline.preference.stored import (
    by_prompt,
    encoded,
    label_batch,
    pair_batch,
    read_preferences,
)

from ....core.models.tiny import save_tiny, tiny_model, with_exact_norms
from ..sft.kit import TOKENIZER

PAIRS = [{"prompt": f"{n}?", "chosen": f"yes {n}", "rejected": f"no, not {n}"} for n in range(12)]


def written(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_the_loss_of_stored_rows_equals_plain_forward_passes(loss: str, tmp_path: Path) -> None:
    """Sums of log-ratios to a reference that differs, in float64; KTO with its mismatched
    answers.
    """
    theta, ref = (with_exact_norms(tiny_model(seed=seed, dtype=torch.float64)) for seed in (0, 1))
    rows, left_out = encoded(read_preferences(written(tmp_path, list(PAIRS[:3]))), TOKENIZER, 512)
    assert not left_out

    def ratio(ids: tuple[int, ...], mask: tuple[bool, ...]) -> float:
        tokens = torch.tensor([ids])
        with torch.no_grad():
            theta_logp, ref_logp = (
                m(tokens).logits.log_softmax(-1)[0, :-1].gather(1, tokens[0, 1:, None])[:, 0]
                for m in (theta, ref)
            )
        return float(((theta_logp - ref_logp) * torch.tensor(mask[1:])).sum())

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    algorithm = {"dpo": DPO, "kto": KTO}[loss]
    learner = Learner(copy.deepcopy(theta), algorithm, reference=ref, lr=1e-9, token_budget=60)
    batch, values = (
        (pair_batch(rows), None)
        if loss == "dpo"
        else label_batch(rows, [row.row.prompt for row in rows], TOKENIZER, 512, share=2)
    )
    h = [ratio(s.sequences[0].ids, s.sequences[0].mask) for s in batch.samples]
    wanted = 0.0
    if values is None:
        wanted = sum(-math.log(sigmoid(0.1 * (h[i] - h[i + 1]))) for i in (0, 2, 4)) / 3
    else:
        count = sum(value != 0 for value in values)
        for group in batch.groups:
            others = [h[i] for i in group if values[i] == 0] or [h[i] for i in group]
            z = max(0.0, sum(others) / len(others))
            terms = [
                1 - sigmoid(0.1 * math.copysign(1, values[i]) * (h[i] - z))
                for i in group
                if values[i]
            ]
            wanted += sum(terms) / count

    assert learner.step(batch, advantages=values)["loss"] == pytest.approx(wanted, abs=1e-9)


def test_mismatched_answers_stand_behind_another_prompt_that_leaves_room(tmp_path: Path) -> None:
    """They have an advantage of 0. All labelled replies of a batch weigh the same, though groups
    differ in size.
    """
    stored: list[dict[str, object]] = [*PAIRS[:4], {**PAIRS[0], "chosen": "maybe"}]
    rows, _ = encoded(read_preferences(written(tmp_path, stored)), TOKENIZER, 512)
    prompts = list(dict.fromkeys(row.row.prompt for row in rows))
    batch, values = label_batch(rows, prompts, TOKENIZER, 512, share=3)

    assert [len(group) for group in batch.groups] == [8, 12]
    assert len(prompts) == 4
    for group in batch.groups:
        labelled = [abs(values[i]) for i in group if values[i]]
        assert [v / len(labelled) / 2 for v in labelled] == pytest.approx([0.1] * len(labelled))
    for sample, value, following in zip(batch.samples, values, batch.samples[1:], strict=False):
        if value:
            matched, mismatched = (
                TOKENIZER.decode(s.sequences[0].ids) for s in (sample, following)
            )
            assert matched.split("<|im_end|>")[0] != mismatched.split("<|im_end|>")[0]
            assert matched.split("assistant")[1] in mismatched
    _, narrow = label_batch(rows, prompts, TOKENIZER, 10, share=3)
    assert all(narrow)


def test_no_prompt_is_on_both_sides(tmp_path: Path) -> None:
    """Rows of one prompt are held out together: else the measure would be of what was trained."""
    stored: list[dict[str, object]] = [
        {**row, "chosen": f"{row['chosen']} {n}"} for row in PAIRS for n in range(4)
    ]
    rows, _ = encoded(read_preferences(written(tmp_path, stored)), TOKENIZER, 512)
    trained, apart = by_prompt(rows, 0.25, 0)

    assert len(trained) == 36
    assert len(apart) == 12
    assert sorted(trained + apart) == list(range(48))
    assert not {rows[i].row.prompt for i in trained} & {rows[i].row.prompt for i in apart}
    assert by_prompt(rows, 0.25, 1) != (trained, apart)
    assert by_prompt(rows[:4], 0.5, 0)[1] == []


def test_all_faults_of_a_file_are_named(tmp_path: Path) -> None:
    """The first ten with their lines, and their number."""
    rows: list[dict[str, object]] = [
        PAIRS[0],
        {"prompt": "a", "chosen": "b"},
        {"prompt": "", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "b"},
        {"prompt": "a", "completion": "b", "label": "perhaps"},
        *[{"prompt": 3}] * 8,
    ]
    path = written(tmp_path, rows)
    with pytest.raises(UsageError) as found:
        read_preferences(path)
    head, *lines = str(found.value).splitlines()
    assert head == f"12 faults in {path}; the first 10:"
    assert (
        lines[0]
        == f"  {path}:2: expected prompt, chosen and rejected, or prompt, completion and label"
    )
    assert lines[1] == f"  {path}:3: the prompt is blank"
    assert "leave the row out" in lines[2]
    assert ":5: label" in lines[3]
    assert len(lines) == 10
    with pytest.raises(UsageError, match="there is no file"):
        read_preferences(tmp_path / "none.jsonl")


LABELLED = [
    {"prompt": row["prompt"], "completion": row[key], "label": key == "chosen"}
    for row in PAIRS
    for key in ("chosen", "rejected")
]


@pytest.fixture
def teach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, list[Any]], dict[str, Any]]:
    """Train a tiny model on rows with a loss by the command, and return its report."""

    def taught(loss: str, rows: list[Any]) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        save_tiny(tmp_path / "model")
        words = ["preference", str(written(tmp_path, rows)), "--model", "model", "--loss", loss]
        words += "--lr 1e-3 --batch 4 --epochs 4 --held-out 0.25 --json".split()
        status = main([*words, "--set", "model.device=cpu"])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert status == 0
        assert report["finished"]
        assert report["losses"][-1] < report["losses"][0]
        assert report["separation"] > 0
        AutoModelForCausalLM.from_pretrained(report["path"])
        return report

    return taught


@pytest.mark.parametrize("loss", ["dpo", "simpo"])
def test_the_command_teaches_a_preference(
    loss: str, teach: Callable[[str, list[Any]], dict[str, Any]]
) -> None:
    """Replies that begin with yes win against those that begin with no, on prompts that did not
    train.
    """
    report = teach(loss, list(PAIRS))

    assert report["accuracy"][0] == 1.0
    assert report["rows"] == 9
    assert report["held_out"] == 3


def test_the_command_teaches_labels(teach: Callable[[str, list[Any]], dict[str, Any]]) -> None:
    report = teach("kto", LABELLED)

    assert report["accuracy"] is None
    assert report["rows"] == 18
    assert report["held_out"] == 6


def test_labels_need_a_loss_of_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reply alone cannot be compared; nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "model")
    path = written(tmp_path, [PAIRS[0], {"prompt": "a", "completion": "b", "label": True}])

    assert main(["preference", str(path), "--model", "model", "--quiet"]) != 0
    assert "1 of 2 rows are no pairs, which dpo compares; use --loss kto" in capsys.readouterr().err
    assert not (tmp_path / "preference").exists()


# ---- pairs as others write them, and pairs that teach nothing ------------------------------------

USER = {"role": "user", "content": "2+2?"}
SAYS_4 = {"role": "assistant", "content": "4"}
SAYS_5 = {"role": "assistant", "content": "5"}
PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        ([{"chosen": [USER, SAYS_4], "rejected": [USER, SAYS_5]}], 1),
        ([{"prompt": [USER], "chosen": [SAYS_4], "rejected": [SAYS_5]}], 1),
        ([{"prompt": [USER], "chosen": [USER, SAYS_4], "rejected": [USER, SAYS_5]}], 1),
        ([{"prompt": "2+2?", "chosen": [SAYS_4], "rejected": [SAYS_5]}], 1),
        ([{"prompt": [USER], "chosen": "4", "rejected": [SAYS_5]}], 1),
        ([{"prompt": [USER], "completion": [SAYS_4], "label": True}], 1),
        ([{"chosen": [USER, SAYS_5, USER, SAYS_4], "rejected": [USER, SAYS_5, USER, SAYS_5]}], 1),
        ([PAIR, PAIR], 1),
        ([PAIR, {**PAIR, "chosen": "a "}], 1),
        ([PAIR, {**PAIR, "prompt": "r", "chosen": "b", "rejected": "a"}], 2),
        ([{"prompt": "q", "completion": "a", "label": True}] * 2, 1),
    ],
)
def test_pairs_are_read_as_trl_has_them_and_once(
    tmp_path: Path, rows: list[dict[str, object]], read: int
) -> None:
    assert len(read_preferences(written(tmp_path, rows))) == read


def test_a_conversation_has_its_prompt_and_its_reply(tmp_path: Path) -> None:
    rows = [{"chosen": [USER, SAYS_4], "rejected": [USER, SAYS_5]}]
    (row,) = read_preferences(written(tmp_path, rows))
    assert [(m.role, m.content) for m in row.prompt] == [("user", "2+2?")]
    assert row.replies == (("4", True), ("5", False))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([PAIR, {**PAIR, "chosen": ""}], ":2: chosen is blank"),
        ([{**PAIR, "rejected": " \n"}], ":1: rejected is blank"),
        ([{"prompt": "q", "completion": "\t", "label": True}], "completion is blank"),
        ([{**PAIR, "chosen": "b"}], "equal, or differ by blanks"),
        ([{**PAIR, "chosen": "b\n"}], "equal, or differ by blanks"),
        ([{**PAIR, "chosen": "\u00e9", "rejected": "e\u0301"}], "equal, or differ by blanks"),
        ([PAIR, {**PAIR, "chosen": "b", "rejected": "a"}], ":2: says the opposite of"),
        ([{"prompt": "q", "completion": "a", "label": x} for x in (True, False)], "the opposite"),
        ([{**PAIR, "prompt": " "}], "the prompt is blank"),
        ([{**PAIR, "prompt": [SAYS_4]}], "ends with the assistant"),
        ([{"chosen": "a", "rejected": "b"}], "there is no prompt"),
        ([{"chosen": [SAYS_4], "rejected": [SAYS_5]}], "the prompt is blank"),
        ([{"chosen": [USER, SAYS_4], "rejected": [SAYS_4, SAYS_5]}], "differ before the last"),
        ([{"prompt": [USER], "chosen": [SAYS_4, USER], "rejected": [SAYS_5]}], "has 2 messages"),
        ([{"prompt": [USER], "chosen": [], "rejected": [SAYS_5]}], "has 0 messages"),
    ],
)
def test_pairs_that_teach_nothing_are_refused_with_their_line(
    tmp_path: Path, rows: list[dict[str, object]], said: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        read_preferences(written(tmp_path, rows))


def test_a_key_twice_in_a_pair_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "q", "chosen": "a", "chosen": "b", "rejected": "c"}\n')
    with pytest.raises(UsageError, match="the key 'chosen' occurs twice"):
        read_preferences(file)
