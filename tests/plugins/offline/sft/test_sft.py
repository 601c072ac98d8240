"""Supervised training and its command."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.cli import main
from quintain.console.screen import Screen
from quintain.learning import Batch, Learner, Sample
from quintain.models.load import load_model
from quintain.store.run_folder import RunFolder
from quintain.types.task import Message
from quintain_offline.preference import SFT
from quintain_offline.sft import command
from quintain_offline.sft.sources import (
    Example,
    ExampleSource,
    examined,
    rows_of,
)
from quintain_offline.sft.supervised import EpochUpdate, end_of_turn
from quintain_offline.sft.tuning import tune

from ....core.models.tiny import save_tiny, tiny_model
from .kit import PARROT, TOKENIZER, lines, said, scored, source_of

# ---- training ------------------------------------------------------------------------------------


def test_the_row_is_the_supervised_step() -> None:
    """The same gradient from `sft` on rollouts as from a supervised step on their tokens."""
    talks = [(Message("user", "a"), Message("assistant", word)) for word in ("b", "cde", "ff")]
    rows = [
        rows_of(Example(messages=talk, replies=(1,)), TOKENIZER, end_of_turn(TOKENIZER))[0]
        for talk in talks
    ]
    sequences = [algorithm.sequence() for algorithm in rows]
    batch = Batch(
        samples=tuple(Sample(sequences=(s,), outcome=0.0, group=i) for i, s in enumerate(sequences))
    )
    grads = []
    for algorithm in (SFT, None):
        learner = Learner(tiny_model(dtype=torch.float64), algorithm, lr=0.0, max_grad_norm=0.0)
        _ = learner.step(batch) if algorithm else learner.supervised_step(sequences)
        grads.append(torch.cat([p.grad.flatten() for p in learner.module.parameters()]).numpy())
    assert np.abs(grads[0]).max() > 1e-3
    np.testing.assert_allclose(grads[0], grads[1], rtol=0, atol=1e-12)


def test_training_depends_on_the_seed_alone(tmp_path: Path) -> None:
    source = source_of(f"{PARROT}:Echo")
    folder = save_tiny(tmp_path / "m")

    def weights(seed: int, **settings: Any) -> tuple[torch.Tensor, Any]:
        learner, report = tune(
            load_model(folder), source, epochs=2, lr=1e-3, batch=7, seed=seed, **settings
        )
        return torch.cat([p.detach().flatten() for p in learner.module.parameters()]), report

    first, report = weights(0)
    assert torch.equal(weights(0)[0], first)
    assert not torch.equal(weights(1)[0], first)
    assert report.finished
    assert report.updates == 2 * 6
    assert report.examples == 40
    assert report.losses[1] < report.losses[0]
    rates: list[float] = []
    weights(0, progress=lambda update: rates.append(update.lr), options={"warmup_steps": 3})
    assert rates == pytest.approx([1e-3 * (1 - k / 12) * min(1, (k + 1) / 3) for k in range(12)])
    seen: list[int] = []
    stopped = weights(
        0, progress=lambda update: seen.append(update.number), stop=lambda: len(seen) == 3
    )[1]
    assert not stopped.finished
    assert stopped.updates == 3


# ---- the command ---------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert main([*words, "--json"]) == status, capsys.readouterr()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def accuracy(
    capsys: pytest.CaptureFixture[str], environment: str, model: Path, *words: str
) -> float:
    fixed = ("--tasks", "100", "--max-tokens", "4")
    return float(
        run(capsys, "eval", environment, "--split", "dev", "--model", str(model), *fixed, *words)[
            "pass@1"
        ]
    )


def test_demonstrations_take_accuracy_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is one that eval and train take; its report stands beside the weights."""
    model, out = save_tiny(tmp_path / "m"), tmp_path / "deep" / "out"
    environment = f"{PARROT}:Echo"
    assert accuracy(capsys, environment, model) == 0
    words = (
        "--model",
        str(model),
        "--out",
        str(out),
        "--epochs",
        "8",
        "--lr",
        "3e-3",
        "--batch",
        "8",
    )
    report = run(capsys, "sft", environment, *words, "--arg", "word=ok")
    assert report["path"] == str(out)
    assert report["examples"] == 40
    assert report["updates"] == 40
    assert report["losses"][-1] < report["losses"][0] / 3
    assert accuracy(capsys, environment, out, "--arg", "word=ok") >= 0.9
    held = json.loads((out / "quintain.json").read_text())["sft"]
    assert held["losses"] == report["losses"]
    assert held["environment"] == environment
    assert main(["train", "--model", str(out), "--env", environment, "--dry-run"]) == 0
    assert str(out) in capsys.readouterr().out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 36,000 random weights."""
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=256)


@pytest.fixture(scope="module")
def teacher(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned to say a small letter, with its rollouts."""
    place = tmp_path_factory.mktemp("runs")
    recipe = {
        "run": {"name": "teacher", "folder": str(place), "steps": 6},
        "model": {"name": str(tiny), "device": "cpu"},
        "environments": [{"use": f"{PARROT}:Babble"}],
        "algorithm": {"use": "rloo"},
        "sampling": {"max_tokens": 16},
        "batch": {"prompts": 8, "group_size": 8},
        "learner": {"lr": 3e-3},
        "evaluation": {"every": 0, "test": {"tasks": 0}},
        "checkpoint": {"every": 0, "best": False},
    }
    from quintain.console.screen import Screen
    from quintain.recipe.tables import Recipe
    from quintain.run.build import run_training

    made = Recipe.of(recipe)
    with RunFolder.create(place / "teacher", made.to_toml()) as folder:
        run_training(made, folder, Screen(quiet=True))
    return place / "teacher"


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_runs_right_answers_are_distilled(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into another model of the same tokenizer: exact tokens, rewarded rollouts only, accuracy
    up.
    """
    student, out = save_tiny(tmp_path / "student", seed=1), tmp_path / "out"
    environment = f"{PARROT}:Babble"
    before = accuracy(capsys, environment, student, "--temperature", "1")
    words = (
        "--model",
        str(student),
        "--out",
        str(out),
        "--lr",
        "3e-3",
        "--batch",
        "8",
        "--truncated",
    )
    report = run(capsys, "sft", str(teacher), *words, "--set", "learner.betas=[0.9, 0.98]")
    rows = [
        row
        for step in range(1, 7)
        for row in RunFolder.open(teacher, lock=False).read_rollouts(step)
    ]
    right = [row for row in rows if row["outcome"] >= 1]
    assert report["examples"] == len(right)
    assert report["left_out"] == {"below a reward of 1": len(rows) - len(right)}
    assert accuracy(capsys, environment, out, "--temperature", "1") >= before + 0.1
    tokenizer = load_model(student).tokenizer
    found = source_of(teacher, truncated=True)
    exact = sorted(tuple(row.ids) for row in examined(found.examples, tokenizer, 256, Counter()))
    assert exact == sorted(tuple(row["token_ids"]) for row in right)


@pytest.mark.more
def test_rollouts_of_eval_are_a_source(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A teacher's answers, as Parquet or as JSON lines, are the same examples."""
    environment, found = f"{PARROT}:Babble", []
    for suffix in ("parquet", "jsonl"):
        out = tmp_path / f"answers.{suffix}"
        accuracy(capsys, environment, teacher, "--temperature", "1", "--out", str(out))
        found.append(source_of(out, truncated=True))
    assert found[0].examples == found[1].examples
    assert len(found[0].examples) > 0
    assert found[0].left_out == found[1].left_out


def test_an_environment_gets_its_services(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen and configured as for `quintain eval`."""
    monkeypatch.chdir(tmp_path)
    seen: list[ExampleSource] = []
    monkeypatch.setattr(
        "quintain_offline.sft.tuning.tune",
        lambda model, source, **settings: tune(model, _kept(source, seen), **settings),
    )
    words = (
        "--service",
        f"book={PARROT}:Book",
        "--service-arg",
        "book.word=hello",
        "--examples",
        "2",
        "--epochs",
        "1",
    )
    assert main(["sft", f"{PARROT}:Told", "--model", str(tiny), *words, "--json"]) == 0
    assert [example.messages[-1].content for example in seen[0].examples] == ["hello", "hello"]


def _kept(source: ExampleSource, seen: list[ExampleSource]) -> ExampleSource:
    seen.append(source)
    return source


@pytest.mark.parametrize(
    "given, places", [((), ["sft/echo-1", "sft/echo-2"]), (("--out", "mine"), ["mine", "mine-1"])]
)
def test_a_trained_model_is_kept_where_its_place_was_taken(
    given: Sequence[str],
    places: Sequence[str],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The name is held from the start; should somebody fill the folder all the same, the model goes
    beside it.
    """
    monkeypatch.chdir(tmp_path)
    words = ("sft", f"{PARROT}:Echo", "--model", str(tiny), "--examples", "2", "--epochs", "1")

    def rude(*args: Any, **settings: Any) -> Any:
        assert Path(places[0]).is_dir()
        assert not any(Path(places[0]).iterdir())
        (tmp_path / places[0] / "file").write_text("theirs")
        return tune(*args, **settings)

    monkeypatch.setattr("quintain_offline.sft.tuning.tune", rude)
    report = run(capsys, *words, *given)
    assert places[1] == report["path"]
    assert (tmp_path / places[0] / "file").read_text() == "theirs"
    assert load_model(tmp_path / places[1]).parameters == report["parameters"]
    monkeypatch.undo()


def test_two_at_once_have_two_names(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two commands begins while the first trains."""
    monkeypatch.chdir(tmp_path)
    words = ("sft", f"{PARROT}:Echo", "--model", str(tiny), "--examples", "2", "--epochs", "1")
    inner: list[dict[str, Any]] = []

    def nested(*args: Any, **settings: Any) -> Any:
        if not inner:
            inner.append({})
            inner[0] = run(capsys, *words)
        return tune(*args, **settings)

    monkeypatch.setattr("quintain_offline.sft.tuning.tune", nested)
    assert run(capsys, *words)["path"] == "sft/echo-1"
    assert inner[0]["path"] == "sft/echo-2"
    assert all(
        (tmp_path / "sft" / name / "quintain.json").is_file() for name in ("echo-1", "echo-2")
    )


def test_ctrl_c_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is heard after the update that runs; the model so far is whole."""
    model, out = save_tiny(tmp_path / "m"), tmp_path / "out"
    show = command._show

    def interrupted(screen: Screen, update: EpochUpdate) -> None:
        show(screen, update)
        if update.number == 40:  # of 800
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command, "_show", interrupted)
    words = (
        "sft",
        f"{PARROT}:Echo",
        "--model",
        str(model),
        "--out",
        str(out),
        "--epochs",
        "20",
        "--batch",
        "1",
    )
    assert main([*words]) == 130
    assert f"the model so far: {out}" in capsys.readouterr().err
    report = json.loads((out / "quintain.json").read_text())["sft"]
    assert not report["finished"]
    assert report["updates"] == 40
    load_model(out)


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere"], "neither a run in 'runs' nor a file"),
        (["gone.jsonl"], "there is no file 'gone.jsonl'"),
        (["empty.jsonl"], "is empty"),
        (["bad.jsonl"], "bad.jsonl:2: not JSON"),
        (["list.jsonl"], "list.jsonl:1: a list; expected {"),
        (["odd.jsonl"], 'odd.jsonl:1: expected {"messages"'),
        (["tool.jsonl"], "tool.jsonl:1: a message of role 'tool'"),
        (["mute.jsonl"], "the assistant answers nothing"),
        (["low.jsonl"], "1 below a reward of 1"),
        (["bad.parquet"], "holds no rollouts"),
        ([f"{PARROT}:Talk"], "has no demonstrations to imitate"),
        (["talk.jsonl", "--out", "taken"], "is there already"),
        (["talk.jsonl", "--set", "run.steps=1"], "only keys of learner and model"),
        (["talk.jsonl", "--set", "model.name=x"], "say --model"),
        (["talk.jsonl", "--set", "model.dtype=bfloat16"], "learner.precision=bf16"),
        (["talk.jsonl", "--set", "model.start.enabled=true"], "`quintain start`"),
        (["talk.jsonl", "--set", "model.start.args.max_steps=3"], "`quintain start`"),
        (["talk.jsonl", "--set", "model.lroa.r=3"], "did you mean 'lora'"),
        (
            ["talk.jsonl", "--service", f"book={PARROT}:Book"],
            "--service fills a slot of an environment",
        ),
        ([f"{PARROT}:Told"], "--service book=NAME"),
        (["talk.jsonl", "--arg", "word=x"], "--arg sets a field of an environment"),
        (["talk.jsonl", "--think", "0.5"], "no example of 'talk.jsonl' has one"),
        (["talk.jsonl", "--lr", "0"], "learner.lr"),
        (["talk.jsonl", "--model", "gone"], "no run 'gone'"),
        ([f"{PARROT}:Echo", "--arg", "wrod=x"], "did you mean 'word'"),
    ],
    ids=lambda x: " ".join(x).replace(str(PARROT), "") if isinstance(x, list) else "",
)
def test_mistakes_are_named(
    words: Sequence[str],
    message: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is written; status 2."""
    monkeypatch.chdir(tmp_path)
    files: Mapping[str, tuple[Any, ...]] = {
        "empty.jsonl": ("",),
        "bad.jsonl": (said("a", "b"), "{"),
        "list.jsonl": ([1],),
        "odd.jsonl": ({"text": "x"},),
        "tool.jsonl": ({"messages": [{"role": "tool", "content": "x"}]},),
        "mute.jsonl": (said("a"),),
        "low.jsonl": (scored("4", 0.5).to_json(),),
        "bad.parquet": ("PAR1",),
        "talk.jsonl": (said("a", "b"),),
    }
    for name, records in files.items():
        lines(tmp_path / name, *records)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    model = [] if "--model" in words else ["--model", str(tiny)]
    assert main(["sft", *words, *model, "--json"]) == 2
    assert message in json.loads(capsys.readouterr().out)["error"]["message"]
    assert not (tmp_path / "sft").exists()
