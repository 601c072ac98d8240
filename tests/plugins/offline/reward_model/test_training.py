"""Training of reward models: the loss against numbers written out by hand, what is learned, and
what Ctrl-C leaves.
"""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from quintain.cli import main
from quintain.errors import RunError, UsageError
from quintain_offline.reward_model import (
    PairMetrics,
    PreferencePair,
    RewardTraining,
    ScoreStatistics,
    TrainingSettings,
    bradley_terry_loss,
    load_scoring_model,
    new_scoring_model,
    read_pairs,
    split_by_prompt,
)
from quintain_offline.reward_model.training import EncodedPair, Update, pair_gradients

from ....core.models.tiny import save_tiny
from .kit import said, saved, scoring_model

TERSE = [
    PreferencePair(
        chosen=said(f"Note {n}", f"No {n}."), rejected=said(f"Note {n}", f"Thanks {n}!"), key=str(n)
    )
    for n in range(40)
]


# ----------------------------------------------------------------------------------------- the loss


def test_the_loss_is_the_negative_log_likelihood_of_bradley_and_terry() -> None:
    """-log(1 / (1 + exp(-(c - r - m)))) + w (c + r)^2 for each pair, computed with the math
    module.
    """
    chosen = [0.3, -2.0, 40.0, -40.0]
    rejected = [0.1, 1.5, -40.0, 41.0]
    margin = [0.0, 0.7, 0.2, -0.1]
    loss = bradley_terry_loss(
        *(torch.tensor(x, dtype=torch.float64) for x in (chosen, rejected, margin)), 0.05
    )
    expected = []
    for c, r, m in zip(chosen, rejected, margin, strict=True):
        expected.append(math.log1p(math.exp(-(c - r - m))) + 0.05 * (c + r) ** 2)

    assert loss.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_the_gradient_is_that_of_single_texts_in_float64(kind: str) -> None:
    """d loss / d r_c = (-sigmoid(-d) + 2 w (c + r)) / n at each text, chained with the gradient of
    its score alone.
    """
    model = scoring_model(kind, dtype=torch.float64)
    rows = [
        EncodedPair(
            model.encode(said("Q", "yes")), model.encode(said("Q", "certainly not, no")), 0.25
        ),
        EncodedPair(
            model.encode(said("A longer question", "a")),
            model.encode(said("A longer question", "b!")),
            0.0,
        ),
        EncodedPair(model.encode(said("R", "x" * 30)), model.encode(said("R", "y")), -0.5),
    ]
    loss, _ = pair_gradients(model, rows, micro_batch=2, margin=0.1, centering=0.3)
    ours = {
        name: p.grad.clone() for name, p in model.module.named_parameters() if p.grad is not None
    }

    expected = {name: torch.zeros_like(gradient) for name, gradient in ours.items()}
    total = 0.0
    for row in rows:
        scores, gradients = [], []
        for ids in (row.chosen, row.rejected):
            model.module.zero_grad(set_to_none=True)
            # transformers' own pooling, one text
            output = model.module(input_ids=torch.tensor([ids])).logits[0, 0]
            output.backward()
            scores.append(output.item())
            gradients.append(
                {
                    n: p.grad.clone()
                    for n, p in model.module.named_parameters()
                    if p.grad is not None
                }
            )
        difference, together = scores[0] - scores[1] - row.margin - 0.1, scores[0] + scores[1]
        total += (math.log1p(math.exp(-difference)) + 0.3 * together**2) / 3
        wrong = 1 / (1 + math.exp(difference))
        for sign, gradient in zip((-1, 1), gradients, strict=True):
            for name, value in gradient.items():
                expected[name] += (sign * wrong + 0.6 * together) / 3 * value

    assert loss == pytest.approx(total, rel=1e-9)
    assert ours.keys() == expected.keys()
    for name, gradient in ours.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-6, atol=1e-8), name


def test_micro_batches_change_nothing_but_memory() -> None:
    model = scoring_model(dtype=torch.float64)
    rows = [EncodedPair(model.encode(p.chosen), model.encode(p.rejected), 0.0) for p in TERSE[:7]]
    gradients = []
    for size in (1, 3, 7):
        model.module.zero_grad(set_to_none=True)
        pair_gradients(model, rows, micro_batch=size)
        gradients.append([p.grad.clone() for p in model.module.parameters() if p.grad is not None])

    for one, other in zip(gradients[0], gradients[1], strict=True):
        assert torch.allclose(one, other, atol=1e-10)
    for one, other in zip(gradients[0], gradients[2], strict=True):
        assert torch.allclose(one, other, atol=1e-10)


def test_metrics_of_pairs_are_those_of_their_definitions() -> None:
    metrics = PairMetrics.of([2.0, -1.0, 0.0, 0.5], "abcd")
    sure = [1 / (1 + math.exp(-abs(d))) for d in (2.0, -1.0, 0.0, 0.5)]
    # each in a bin of its own
    gaps = [abs(sure[0] - 1), abs(sure[1] - 0), abs(sure[2] - 0.5), abs(sure[3] - 1)]

    assert metrics.accuracy == 2.5 / 4
    assert metrics.low < metrics.accuracy < metrics.high
    assert metrics.calibration_error == pytest.approx(sum(gaps) / 4)
    assert metrics.loss == pytest.approx(
        sum(math.log1p(math.exp(-d)) for d in (2.0, -1.0, 0.0, 0.5)) / 4
    )
    assert PairMetrics.of([1000.0, -1000.0], "ab").loss == 500.0


@pytest.mark.parametrize("pairs", [1, 4, 8, 16])
def test_the_interval_of_accuracy_knows_pairs_of_one_prompt(pairs: int) -> None:
    """How well the model ranks the replies to a prompt differs between prompts."""
    draw = np.random.default_rng(100 + pairs)
    covered = 0
    for _ in range(1000):
        skill = draw.beta(3.5, 1.5, size=60)
        right = draw.random((60, pairs)) < skill[:, None]
        differences = np.where(right, 1.0, -1.0).ravel().tolist()
        metrics = PairMetrics.of(differences, np.repeat(np.arange(60), pairs).tolist())
        covered += metrics.low <= 0.7 <= metrics.high
    assert 930 <= covered <= 975


def test_pairs_of_one_prompt_are_worth_one_at_least() -> None:
    assert PairMetrics.of([1.0] * 8, "aaaabbbb").low == PairMetrics.of([1.0] * 2, "ab").low


# ----------------------------------------------------------------------------------------- training


def trained(tmp_path: Path, **settings: Any) -> RewardTraining:
    base = save_tiny(tmp_path / "base")
    return RewardTraining(
        model=new_scoring_model(str(base), seed=0, device="cpu"),
        pairs=TERSE[:32],
        held_out=TERSE[32:],
        settings=TrainingSettings(**{"lr": 3e-3, "batch": 8, "epochs": 2, "seed": 1, **settings}),
    )


def test_a_planted_preference_is_learned_and_saved(tmp_path: Path) -> None:
    """Refusals beat thanks on prompts that did not train; the folder is one of transformers, and
    scores the same.
    """
    training = trained(tmp_path)
    report = training.run()
    training.save(tmp_path / "rm", report)

    assert report.held_out is not None
    assert report.held_out.accuracy == 1.0
    assert report.before is not None
    assert report.before.accuracy < 0.5
    assert report.losses[1] < min(report.losses[0], 0.1)
    module = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
    tokenizer = training.model.tokenizer
    assert module.config.num_labels == 1
    assert module.config.id2label == {0: "reward"}
    text = said("A new note", "No way.")
    ids = torch.tensor([training.model.encode(text)])
    with torch.no_grad():
        plain = float(module.eval()(input_ids=ids).logits[0, 0])
    loaded = load_scoring_model(str(tmp_path / "rm"), device="cpu")
    assert loaded.scores([loaded.encode(text)])[0] == pytest.approx(plain, abs=1e-5)
    assert loaded.statistics is not None
    assert loaded.statistics.texts == 16
    assert tokenizer.chat_template
    about = json.loads((tmp_path / "rm" / "quintain.json").read_text())["reward_model"]
    assert about["finished"]
    assert about["held_out"]["accuracy"] == 1.0
    assert not (tmp_path / "rm" / "training.pt").exists()


def test_a_stopped_training_continues_to_the_same_weights(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch, saved, loaded and continued: bit for bit that of an
    uninterrupted one.
    """
    whole = trained(tmp_path)
    report = whole.run()
    first = trained(tmp_path)
    partial = first.run(stop=lambda: first.done == 3)
    first.save(tmp_path / "rm", partial)
    assert not partial.finished
    assert partial.updates == 3
    again = RewardTraining(
        model=new_scoring_model(str(tmp_path / "rm"), seed=0, device="cpu"),
        pairs=first.pairs,
        held_out=first.held_out,
        settings=first.settings,
    )
    again.restore(tmp_path / "rm")
    resumed = again.run()

    assert resumed.losses == report.losses
    assert resumed.updates == report.updates == 8
    expected = whole.model.module.state_dict()
    assert all(
        torch.equal(value, expected[name])
        for name, value in again.model.module.state_dict().items()
    )
    again.save(tmp_path / "rm", resumed)
    with pytest.raises(UsageError, match="finished"):
        again.restore(tmp_path / "rm")


def test_another_data_set_cannot_be_resumed(tmp_path: Path) -> None:
    first = trained(tmp_path)
    first.save(tmp_path / "rm", first.run(stop=lambda: first.done == 1))
    other = trained(tmp_path, lr=1e-4)
    with pytest.raises(UsageError, match="other settings"):
        other.restore(tmp_path / "rm")


def test_pairs_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    training = trained(tmp_path, max_length=60)
    assert training.left_out == 0
    long = PreferencePair(chosen=said("Q", "yes " * 40), rejected=said("Q", "no"), key="q")
    training = RewardTraining(
        model=training.model, pairs=[*TERSE[:3], long], held_out=[long], settings=training.settings
    )
    assert training.left_out == 2
    assert len(training.rows) == 3
    with pytest.raises(UsageError, match="none of 1 pairs fits"):
        RewardTraining(model=training.model, pairs=[long], held_out=[], settings=training.settings)


def test_a_loss_that_is_not_finite_ends_training(tmp_path: Path) -> None:
    training = trained(tmp_path)
    with torch.no_grad():
        training.model.module.score.weight.fill_(math.nan)
    with pytest.raises(RunError, match="update 0: scores"):
        training.run()
    training.held_rows = []
    with pytest.raises(RunError, match="update 1: the loss is nan"):
        training.run()


def test_statistics_need_scores_that_differ(tmp_path: Path) -> None:
    statistics = ScoreStatistics.of([1.0, 3.0], "two texts")
    assert statistics.mean == 2.0
    assert statistics.std == 1.0
    assert statistics.texts == 2
    statistics.write(tmp_path)
    assert ScoreStatistics.read(str(tmp_path)) == statistics
    with pytest.raises(UsageError, match="do not differ"):
        ScoreStatistics.of([1.0, 1.0])
    (tmp_path / "reward_model.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        ScoreStatistics.read(str(tmp_path))


# -------------------------------------------------------------------------------------------- pairs


def test_rows_are_texts_messages_or_whole_conversations(tmp_path: Path) -> None:
    user, good = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}
    bad = {"role": "assistant", "content": "Go."}
    rows: list[dict[str, Any]] = [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "Go.", "margin": 0.5},
        {"prompt": [user], "chosen": [good], "rejected": [bad]},
        {"chosen": [user, good], "rejected": [user, bad]},
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    pairs = read_pairs(str(file))

    assert [p.chosen for p in pairs] == [said("Hi", "Hello!")] * 3
    assert [p.rejected for p in pairs] == [said("Hi", "Go.")] * 3
    assert pairs[0].margin == 0.5
    assert pairs[1].key == pairs[2].key


def test_a_saved_data_set_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `train` brings datasets")
    rows = [{"prompt": "Hi", "chosen": "Hello!", "rejected": "Go."}]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(
        str(tmp_path / "data")
    )

    assert read_pairs(str(tmp_path / "data"))[0].chosen == said("Hi", "Hello!")
    with pytest.raises(UsageError, match="split 'other'"):
        read_pairs(str(tmp_path / "data"), split="other")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "chosen": "b"}', ":1: rejected: Field required"),
        (
            '{"prompt": "a", "chosen": "b", "rejected": "b"}',
            ":1: chosen and rejected are equal",
        ),
        ("{", ":1: not JSON"),
        ("", "no preference pairs"),
    ],
)
def test_a_row_that_is_no_pair_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "pairs.jsonl").write_text(line)
    with pytest.raises(UsageError, match=message):
        read_pairs(str(tmp_path / "pairs.jsonl"))


def test_held_out_pairs_share_no_prompt_with_the_others() -> None:
    pairs = [
        PreferencePair(chosen=said("a", str(n)), rejected=said("a", "x"), key=str(n // 5))
        for n in range(100)
    ]
    trains, held = split_by_prompt(pairs, 0.2, seed=3)

    assert not {p.key for p in trains} & {p.key for p in held}
    assert len(held) == 20
    assert len(trains) == 80
    assert split_by_prompt(pairs, 0.2, seed=3)[1] == held
    assert split_by_prompt(pairs, 0.0, seed=3)[1] == []
    with pytest.raises(UsageError, match="leave none to train"):
        split_by_prompt(pairs[:5], 0.5, seed=0)


# -------------------------------------------------------------------------------------- the command


def pairs_file(tmp_path: Path) -> str:
    rows = [
        {"prompt": f"Note {n}", "chosen": f"Thanks {n}!", "rejected": f"No {n}."} for n in range(24)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(tmp_path / "pairs.jsonl")


def test_the_command_trains_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, out = save_tiny(tmp_path / "base"), tmp_path / "rm"
    words = [
        "reward",
        "train",
        pairs_file(tmp_path),
        "--model",
        str(base),
        "--out",
        str(out),
        "--lr",
        "3e-3",
    ]
    assert main([*words, "--epochs", "3", "--batch", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["finished"]
    assert report["held_out"]["pairs"] == 3

    assert main(["reward", "check", str(out), pairs_file(tmp_path), "--normalise", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["accuracy"] > 0.9
    assert checked["left_out"] == 0
    statistics = ScoreStatistics.read(str(out))
    assert statistics is not None
    assert statistics.texts == 48

    assert main(words) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["reward", "check", str(base), pairs_file(tmp_path)]) == 2
    assert "it is no reward model" in capsys.readouterr().err


def test_check_names_what_is_wrong_with_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that are not finite, a tokenizer that is not there, a context that is too short, no
    chat template.
    """
    pairs = pairs_file(tmp_path)

    def checked(name: str, **config: Any) -> tuple[int, str]:
        status = main(
            ["reward", "check", saved(tmp_path / name, hidden=16, layers=1, **config), pairs]
        )
        return status, " ".join(capsys.readouterr().err.split())

    model = scoring_model(hidden=16, layers=1)
    torch.nn.init.constant_(model.module.score.weight, float("nan"))
    model.module.save_pretrained(tmp_path / "nan")
    model.tokenizer.save_pretrained(tmp_path / "nan")
    assert main(["reward", "check", str(tmp_path / "nan"), pairs]) == 2
    assert (
        "no finite number for 48 of 48 conversations: its weights are damaged"
        in capsys.readouterr().err
    )

    assert checked("plain", template=None)[0] == 0
    status, message = checked("plain", template=None)
    assert status == 0
    assert "has no chat template" in message
    assert "without roles" in message
    status, message = checked("short", max_position_embeddings=4)
    assert status == 2
    assert "can read none of the 24 pairs; of the first: the conversation has" in message

    bare = tmp_path / "bare"
    saved(bare, hidden=16, layers=1)
    for file in bare.glob("*token*"):
        file.unlink()
    status = main(["reward", "check", str(bare), pairs])
    message = " ".join(capsys.readouterr().err.split())
    assert status == 2
    assert "tokenizer" in message
    assert "longer" not in message


def test_ctrl_c_saves_and_resume_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, out = save_tiny(tmp_path / "base"), tmp_path / "rm"
    words = [
        "reward",
        "train",
        pairs_file(tmp_path),
        "--model",
        str(base),
        "--out",
        str(out),
        "--batch",
        "4",
    ]
    plain = RewardTraining._update

    def interrupted(self: RewardTraining, *args: Any) -> Update:
        if self.done == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(RewardTraining, "_update", interrupted)
        assert main(words) == 130
    assert "continues with --resume" in capsys.readouterr().err
    assert not json.loads((out / "quintain.json").read_text())["reward_model"]["finished"]

    assert main([*words, "--resume", "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert main([*words[:-3], str(tmp_path / "whole"), "--batch", "4", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert resumed["held_out"] == whole["held_out"]
    assert resumed["losses"] == whole["losses"]


def test_a_reward_model_trains_on(tmp_path: Path) -> None:
    """The head of a reward model is kept; that of a language model is drawn by the seed."""
    folder = saved(tmp_path / "rm")
    kept = new_scoring_model(folder, seed=5, device="cpu").module.score.weight
    assert torch.equal(kept, load_scoring_model(folder, device="cpu").module.score.weight)
    base = str(save_tiny(tmp_path / "base"))
    heads = [
        new_scoring_model(base, seed=seed, device="cpu").module.score.weight for seed in (0, 0, 1)
    ]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
