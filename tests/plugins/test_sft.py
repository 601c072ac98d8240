"""Supervised training: what is read, which tokens train, and the command."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Rollout, Task
from quintain.cli import main
from quintain.errors import UsageError
from quintain.learning import Batch, Learner, Sample, TrainingSequence
from quintain.models.load import load_model
from quintain.models.tokenizer import HFTokenizer
from quintain.testing import rollout, run_episode
from quintain.testing.byte_tokenizer import ByteTokenizer
from quintain.training.recipe.tables import EnvironmentTable
from quintain.training.run_folder import RunFolder
from quintain.training.screen import Screen
from quintain.types.rollout import Score, Termination, TerminationKind
from quintain.types.task import Message
from quintain_preference import SFT
from quintain_sft import command
from quintain_sft.sources import (
    Example,
    ExampleSource,
    Selection,
    Tokens,
    examined,
    example_of,
    mixed,
    rows_of,
    same_tokens,
)
from quintain_sft.sources import source_of as opened
from quintain_sft.supervised import end_of_turn
from quintain_sft.tuning import EpochUpdate, tune, with_thoughts
from quintain_starter.architecture import build_tokenizer
from quintain_starter.warm_start import examples_of

from ..core import parrot
from ..core.engines import ThoughtlessTokenizer
from ..core.models import byte_tokenizer, save_tiny, tiny_model
from ..core.parrot import Echo, Talk

PARROT = Path(parrot.__file__)
TOKENIZER = HFTokenizer(byte_tokenizer())
PLAIN = HFTokenizer(byte_tokenizer(None))
TASK = Task(prompt="2+2?", answer="4")


def source_of(name: str | Path, **settings: Any) -> ExampleSource:
    return opened(EnvironmentTable(use=str(name)), Selection(**settings))


def texts(rows: Iterable[Tokens], tokenizer: Any = TOKENIZER) -> list[tuple[str, str]]:
    """Per row its whole text, and what trains in it."""
    return [
        (tokenizer.decode(list(r.ids)), tokenizer.decode([i for i, m in zip(r.ids, r.mask, strict=True) if m]))
        for r in rows
    ]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def said(*words: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": word} for i, word in enumerate(words)]}


def scored(text: str, outcome: float = 1.0, **fields: Any) -> Rollout[Task, Any]:
    return rollout(TASK, text, outcome=Score(value=outcome), **fields)


# ---- which tokens train ----------------------------------------------------------------------------------------------


def test_demonstrations_are_encoded_as_for_a_supervised_start() -> None:
    """The same ids and mask as the default model's warm start, the environment's system message included."""
    tokenizer = HFTokenizer(build_tokenizer())

    async def first_three() -> list[TrainingSequence]:
        examples = examples_of([Echo()], tokenizer)
        return [await anext(examples) for _ in range(3)]

    found = source_of(f"{PARROT}:Echo", count=3)
    assert (found.kind, found.environment) == ("demonstrations", f"{PARROT}:Echo")
    for example, want in zip(found.examples, asyncio.run(first_three()), strict=True):
        (row,) = rows_of(example, tokenizer, end_of_turn(tokenizer))
        assert (row.sequence().ids, row.sequence().mask) == (want.ids, want.mask)


def test_all_answers_of_a_conversation_train(tmp_path: Path) -> None:
    file = lines(tmp_path / "talk.jsonl", said("a", "b", "c", "d", "e"))
    rows = list(examined(source_of(file).examples, TOKENIZER, 999, Counter()))
    ((whole, trained),) = texts(rows)
    assert trained == "b<|im_end|>d<|im_end|>"
    assert whole == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>"
    )


def test_a_template_that_drops_thoughts_gives_a_row_per_answer(tmp_path: Path) -> None:
    """Each answer trains once, in the context that the model will meet."""
    answer = {"role": "assistant", "content": "4", "reasoning_content": "two and two"}
    talk = {"messages": [*said("2+2?")["messages"], answer, *said("sure?", "yes")["messages"]]}
    tokenizer = ThoughtlessTokenizer()
    (example,) = source_of(lines(tmp_path / "talk.jsonl", talk)).examples
    first, second = texts(rows_of(example, tokenizer, end_of_turn(tokenizer)), tokenizer)
    assert first[1] == "<think>\ntwo and two\n</think>\n\n4<|im_end|>"
    assert second[1] == "yes<|im_end|>"
    assert "two and two" not in second[0]


def test_the_end_is_the_templates_and_not_the_tokenizers() -> None:
    """A tokenizer may call another token its end of sequence than the one that ends a turn."""
    assert TOKENIZER.decode([TOKENIZER.stop_ids[0]]) == "<|endoftext|>"
    assert TOKENIZER.decode([end_of_turn(TOKENIZER)]) == "<|im_end|>"
    assert PLAIN.decode([end_of_turn(PLAIN)]) == "<|endoftext|>"


def test_without_a_template_answers_are_paragraphs() -> None:
    example = Example(messages=(Message("user", "a"), Message("assistant", "b")), replies=(1,))
    sampled = Example(messages=(Message("user", "a"), Message("assistant", " b")), replies=(1,))
    for written in (example, sampled):
        assert texts(rows_of(written, PLAIN, end_of_turn(PLAIN)), PLAIN) == [
            ("User: a\n\nAssistant: b<|endoftext|>", " b<|endoftext|>")
        ]


def test_a_tokenizer_is_known_again_after_it_was_saved(tmp_path: Path) -> None:
    """By the hash in its name, whatever the folder is called."""
    tokenizer = HFTokenizer(build_tokenizer())
    tokenizer.hf.save_pretrained(tmp_path / "other-name")
    tiny_model(vocab=tokenizer.vocab_size).save_pretrained(tmp_path / "other-name")
    again = load_model(tmp_path / "other-name").tokenizer
    assert again.name != tokenizer.name
    assert same_tokens(again.name, tokenizer.name)
    assert not same_tokens(TOKENIZER.name, tokenizer.name)
    assert not same_tokens("bytes", "thoughtless")
    assert not same_tokens("my-codec", "your-codec")


def test_rows_keep_ids_and_mask() -> None:
    (row,) = rows_of(
        Example(messages=(Message("user", "é"), Message("assistant", "ü")), replies=(1,)),
        TOKENIZER,
        end_of_turn(TOKENIZER),
    )
    sequence = row.sequence()
    assert Tokens.of(sequence) == row
    assert len(sequence.logps) == len(sequence.versions) == len(sequence.ids)


# ---- rollouts --------------------------------------------------------------------------------------------------------


def test_rollouts_are_taken_as_sampled_by_the_same_tokenizer() -> None:
    """The tokens of the transcript, all turns, nothing encoded anew."""
    held = run_episode(Talk(), TASK, ["<think>\nhm\n</think>\n\n5", "4"])
    (want,) = held.transcripts[""].sequences()
    tokenizer = ByteTokenizer()
    (row,) = rows_of(example_of(held), tokenizer, end_of_turn(tokenizer))
    assert (row.sequence().ids, row.sequence().mask) == (want.ids, want.mask)


def test_rollouts_of_another_tokenizer_are_encoded_anew() -> None:
    held = run_episode(Talk(), TASK, ["<think>\nhm\n</think>\n\n5", "4"])
    ((whole, trained),) = texts(rows_of(example_of(held), TOKENIZER, end_of_turn(TOKENIZER)))
    assert trained == "<think>\nhm\n</think>\n\n5<|im_end|>4<|im_end|>"
    assert whole.startswith("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n<think>")


def test_answers_in_a_prompt_are_context() -> None:
    """The prompt shows an answer that equals the policy's own; only the policy's trains."""
    prompt = (Message("user", "1+1?"), Message("assistant", "4"), Message("user", "2+2?"))
    held = rollout(Task(prompt=prompt, answer="4"), "4")
    assert example_of(held).replies == (3,)


def test_what_is_not_imitated_is_counted(tmp_path: Path) -> None:
    short = scored("4")
    rollouts = [
        scored("4"),
        scored("4"),
        scored("5", 0.0),
        scored("4", 1 - 1e-12),
        scored("4", termination=Termination(kind=TerminationKind.TIMEOUT)),
        short.replace(turns=tuple(t.__class__(text="4", reply="4", finish="length") for t in short.turns)),
        scored('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        scored("9" * 300),
    ]
    found = source_of(lines(tmp_path / "r.jsonl", *(r.to_json() for r in rollouts)))
    assert found.left_out == {"below a reward of 1": 1, "failed": 1, "cut off by a limit": 1}
    left_out: Counter[str] = Counter()
    rows = list(examined(found.examples, TOKENIZER, 200, left_out, dedupe=True))
    assert len(rows) == 1
    assert dict(left_out) == {
        "copies": 2,
        "with tool calls, which train only with the tokens that were sampled": 1,
        "longer than the model's 200 tokens": 1,
    }
    assert len(source_of(tmp_path / "r.jsonl", min_reward=0.0, count=3).examples) == 3


# ---- thinking --------------------------------------------------------------------------------------------------------


def thoughtful(tmp_path: Path, count: int = 40) -> ExampleSource:
    answer = {"role": "assistant", "content": "4", "reasoning_content": "two and two"}
    return source_of(lines(tmp_path / "t.jsonl", *([{"messages": [*said("2+2?")["messages"], answer]}] * count)))


def test_the_mix_of_thought_and_none(tmp_path: Path) -> None:
    """Qwen3's flags and empty think block, exactly."""
    (example,) = thoughtful(tmp_path, 1).examples
    for think, want in (
        (True, ("2+2? /think", "<think>\ntwo and two\n</think>\n\n4")),
        (False, ("2+2? /no_think", "<think>\n\n</think>\n\n4")),
    ):
        assert tuple(m.content for m in mixed(example, think).messages) == want


def test_the_mix_is_drawn_by_the_seed(tmp_path: Path) -> None:
    source = thoughtful(tmp_path, 400)
    examples, thinking = with_thoughts(source, 0.25, 0)
    assert thinking is not None and 60 <= thinking <= 140
    assert thinking == sum(e.thinks for e in examples)
    assert with_thoughts(source, 0.25, 0) == (examples, thinking)
    assert with_thoughts(source, 0.25, 1)[0] != examples
    assert with_thoughts(source, 0.0, 0)[1] == 0
    assert with_thoughts(source, 1.0, 0)[1] == 400
    assert with_thoughts(source, None, 0) == (list(source.examples), None)


def test_an_answer_without_thought_never_gets_one(tmp_path: Path) -> None:
    thinking = {"role": "assistant", "content": "<think>why</think>b"}
    source = source_of(lines(tmp_path / "m.jsonl", said("a", "b"), {"messages": [said("a")["messages"][0], thinking]}))
    examples, count = with_thoughts(source, 1.0, 0)
    assert count == 1
    assert [e.messages[1].content for e in examples] == ["<think>\n\n</think>\n\nb", "<think>\nwhy\n</think>\n\nb"]
    with pytest.raises(UsageError, match="no example of .* has one"):
        with_thoughts(source_of(lines(tmp_path / "n.jsonl", said("a", "b"))), 0.5, 0)
    with pytest.raises(UsageError, match="from 0 to 1"):
        with_thoughts(source, 1.5, 0)


# ---- training --------------------------------------------------------------------------------------------------------


def test_the_row_is_the_supervised_step() -> None:
    """The same gradient from `sft` on rollouts as from a supervised step on their tokens."""
    talks = [(Message("user", "a"), Message("assistant", word)) for word in ("b", "cde", "ff")]
    rows = [rows_of(Example(messages=talk, replies=(1,)), TOKENIZER, end_of_turn(TOKENIZER))[0] for talk in talks]
    sequences = [algorithm.sequence() for algorithm in rows]
    batch = Batch(samples=tuple(Sample(sequences=(s,), outcome=0.0, group=i) for i, s in enumerate(sequences)))
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
        learner, report = tune(load_model(folder), source, epochs=2, lr=1e-3, batch=7, seed=seed, **settings)
        return torch.cat([p.detach().flatten() for p in learner.module.parameters()]), report

    first, report = weights(0)
    assert torch.equal(weights(0)[0], first)
    assert not torch.equal(weights(1)[0], first)
    assert report.finished and report.updates == 2 * 6 and report.examples == 40
    assert report.losses[1] < report.losses[0]
    rates: list[float] = []
    weights(0, progress=lambda update: rates.append(update.lr), options={"warmup_steps": 3})
    assert rates == pytest.approx([1e-3 * (1 - k / 12) * min(1, (k + 1) / 3) for k in range(12)])
    seen: list[int] = []
    stopped = weights(0, progress=lambda update: seen.append(update.number), stop=lambda: len(seen) == 3)[1]
    assert not stopped.finished and stopped.updates == 3


# ---- the command -----------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert main([*words, "--json"]) == status, capsys.readouterr()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def accuracy(capsys: pytest.CaptureFixture[str], environment: str, model: Path, *words: str) -> float:
    fixed = ("--tasks", "100", "--max-tokens", "4")
    return float(run(capsys, "eval", environment, "--split", "dev", "--model", str(model), *fixed, *words)["pass@1"])


def test_demonstrations_take_accuracy_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder is one that eval and train take; its report stands beside the weights."""
    model, out = save_tiny(tmp_path / "m"), tmp_path / "deep" / "out"
    environment = f"{PARROT}:Echo"
    assert accuracy(capsys, environment, model) == 0
    words = ("--model", str(model), "--out", str(out), "--epochs", "8", "--lr", "3e-3", "--batch", "8")
    report = run(capsys, "sft", environment, *words, "--arg", "word=ok")
    assert (report["path"], report["examples"], report["updates"]) == (str(out), 40, 40)
    assert report["losses"][-1] < report["losses"][0] / 3
    assert accuracy(capsys, environment, out, "--arg", "word=ok") >= 0.9
    held = json.loads((out / "quintain.json").read_text())["sft"]
    assert held["losses"] == report["losses"] and held["environment"] == environment
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
    from quintain.training.build import run_training
    from quintain.training.recipe.tables import Recipe
    from quintain.training.screen import Screen

    made = Recipe.of(recipe)
    with RunFolder.create(place / "teacher", made.to_toml()) as folder:
        run_training(made, folder, Screen(quiet=True))
    return place / "teacher"


def test_a_runs_right_answers_are_distilled(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into another model of the same tokenizer: exact tokens, rewarded rollouts only, accuracy up."""
    student, out = save_tiny(tmp_path / "student", seed=1), tmp_path / "out"
    environment = f"{PARROT}:Babble"
    before = accuracy(capsys, environment, student, "--temperature", "1")
    words = ("--model", str(student), "--out", str(out), "--lr", "3e-3", "--batch", "8", "--truncated")
    report = run(capsys, "sft", str(teacher), *words, "--set", "learner.betas=[0.9, 0.98]")
    rows = [row for step in range(1, 7) for row in RunFolder.open(teacher, lock=False).read_rollouts(step)]
    right = [row for row in rows if row["outcome"] >= 1]
    assert report["examples"] == len(right)
    assert report["left_out"] == {"below a reward of 1": len(rows) - len(right)}
    assert accuracy(capsys, environment, out, "--temperature", "1") >= before + 0.1
    tokenizer = load_model(student).tokenizer
    found = source_of(teacher, truncated=True)
    exact = sorted(tuple(row.ids) for row in examined(found.examples, tokenizer, 256, Counter()))
    assert exact == sorted(tuple(row["token_ids"]) for row in right)


def test_rollouts_of_eval_are_a_source(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A teacher's answers, as Parquet or as JSON lines, are the same examples."""
    environment, found = f"{PARROT}:Babble", []
    for suffix in ("parquet", "jsonl"):
        out = tmp_path / f"answers.{suffix}"
        accuracy(capsys, environment, teacher, "--temperature", "1", "--out", str(out))
        found.append(source_of(out, truncated=True))
    assert found[0].examples == found[1].examples and len(found[0].examples) > 0
    assert found[0].left_out == found[1].left_out


def test_an_environment_gets_its_services(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen and configured as for `quintain eval`."""
    monkeypatch.chdir(tmp_path)
    seen: list[ExampleSource] = []
    monkeypatch.setattr(
        "quintain_sft.tuning.tune", lambda model, source, **settings: tune(model, _kept(source, seen), **settings)
    )
    words = ("--service", f"book={PARROT}:Book", "--service-arg", "book.word=hello", "--examples", "2", "--epochs", "1")
    assert main(["sft", f"{PARROT}:Told", "--model", str(tiny), *words, "--json"]) == 0
    assert ["hello", "hello"] == [example.messages[-1].content for example in seen[0].examples]


def _kept(source: ExampleSource, seen: list[ExampleSource]) -> ExampleSource:
    seen.append(source)
    return source


@pytest.mark.parametrize("given, places", [((), ["sft/echo-1", "sft/echo-2"]), (("--out", "mine"), ["mine", "mine-1"])])
def test_a_trained_model_is_kept_where_its_place_was_taken(
    given: Sequence[str],
    places: Sequence[str],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The name is held from the start; should somebody fill the folder all the same, the model goes beside it."""
    monkeypatch.chdir(tmp_path)
    words = ("sft", f"{PARROT}:Echo", "--model", str(tiny), "--examples", "2", "--epochs", "1")

    def rude(*args: Any, **settings: Any) -> Any:
        assert Path(places[0]).is_dir() and not any(Path(places[0]).iterdir())
        (tmp_path / places[0] / "file").write_text("theirs")
        return tune(*args, **settings)

    monkeypatch.setattr("quintain_sft.tuning.tune", rude)
    report = run(capsys, *words, *given)
    assert places[1] == report["path"]
    assert "theirs" == (tmp_path / places[0] / "file").read_text()
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

    monkeypatch.setattr("quintain_sft.tuning.tune", nested)
    assert ("sft/echo-1", "sft/echo-2") == (run(capsys, *words)["path"], inner[0]["path"])
    assert all((tmp_path / "sft" / name / "quintain.json").is_file() for name in ("echo-1", "echo-2"))


def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One is heard after the update that runs; the model so far is whole."""
    model, out = save_tiny(tmp_path / "m"), tmp_path / "out"
    shown = command._shown

    def interrupted(screen: Screen) -> Callable[[EpochUpdate], None]:
        show = shown(screen)

        def progress(update: EpochUpdate) -> None:
            show(update)
            if update.number == 40:  # of 800
                signal.raise_signal(signal.SIGINT)

        return progress

    monkeypatch.setattr(command, "_shown", interrupted)
    words = ("sft", f"{PARROT}:Echo", "--model", str(model), "--out", str(out), "--epochs", "20", "--batch", "1")
    assert main([*words]) == 130
    assert f"the model so far: {out}" in capsys.readouterr().err
    report = json.loads((out / "quintain.json").read_text())["sft"]
    assert not report["finished"] and 40 == report["updates"]
    load_model(out)


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere"], "neither a run in 'runs' nor a file"),
        (["gone.jsonl"], "there is no file 'gone.jsonl'"),
        (["empty.jsonl"], "is empty"),
        (["bad.jsonl"], "line 2: not JSON"),
        (["list.jsonl"], "line 1: expected an object"),
        (["odd.jsonl"], 'line 1: expected {"messages"'),
        (["tool.jsonl"], "line 1: a message of role 'tool'"),
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
        (["talk.jsonl", "--service", f"book={PARROT}:Book"], "--service fills a slot of an environment"),
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
