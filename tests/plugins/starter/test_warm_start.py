"""The default model: its tokenizer, its template, and the warm start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

from quintain import as_tool
from quintain.console import Screen
from quintain.errors import UsageError
from quintain.interfaces.environment import Demonstration, Environment
from quintain.interfaces.reward import reward
from quintain.learning import Learner
from quintain.models import HFTokenizer, load_model
from quintain.recipe import ModelRequest, ModelSource, Recipe
from quintain.store import save_model
from quintain.types.rollout import Rollout
from quintain.types.task import Message, Task, ToolCall
from quintain.types.transcript import TrainingSequence
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_starter.architecture import CONTEXT, PHRASES, TAGS, build_model, build_tokenizer
from quintain_starter.source import DefaultModel, untrained
from quintain_starter.warm_start import (
    WarmStart,
    WarmStartCheck,
    WarmStartReport,
    examples_of,
    warm_start,
)

SMALL = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 64}
TOKENIZER = HFTokenizer(build_tokenizer())


@reward(range=(0, 1))
def says_it(rollout: Rollout[Task, None]) -> float:
    return float(rollout.reply == rollout.task.answer)


class Echo(Environment[Task, None]):
    """Say *word*; learned within a few updates."""

    reward = says_it
    word: str = "a"

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(8 if split != "train" else 64):
            yield Task(prompt=f"{split} {i}", answer=self.word)

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply=self.word)


class Silent(Echo):
    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        return ()


class Endless(Echo):
    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        yield Demonstration(prompt="?", reply="9" * CONTEXT)


# ---- tokenizer and template ----------------------------------------------------------------------


@given(st.text() | st.text(alphabet="0123456789 #\n+=<>/think", max_size=60))
def test_every_text_comes_back(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_every_byte_has_a_token() -> None:
    alphabet = ByteLevel.alphabet()
    assert len(alphabet) == 256
    assert set(alphabet) <= set(TOKENIZER.hf.get_vocab())


@given(st.integers(0, 10**30))
def test_digits_are_read_one_by_one(number: int) -> None:
    assert [TOKENIZER.decode([i]) for i in TOKENIZER.encode(f"n={number}")] == [
        "n",
        "=",
        *str(number),
    ]


def test_tags_and_turns_are_one_token() -> None:
    for text in (
        *TAGS,
        *PHRASES,
        "<|im_start|>",
        "<|im_end|>",
        " the",
        " result",
        "####",
        "user",
        "assistant",
    ):
        assert len(TOKENIZER.encode(text)) == 1, text


def test_phrases_of_tools_need_no_larger_network() -> None:
    """The tokens for descriptions and calls of tools fill rows that the vocabulary is rounded up
    to.
    """
    assert len(TOKENIZER.hf) <= 576 == build_model().config.vocab_size
    call = '<tool_call>\n{"name": "f", "arguments": {"n": 4}}\n</tool_call>'
    assert len(TOKENIZER.encode(call)) == 8


def test_two_tokenizers_are_the_same() -> None:
    assert HFTokenizer(build_tokenizer()).name == TOKENIZER.name


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


CALL = ToolCall(name="multiply", arguments={"a": 6, "b": 7}, id="c")
TALK = [
    Message("system", "Be brief."),
    Message("user", "6 times 7?"),
    Message("assistant", "Let me see.", calls=(CALL,)),
    Message("tool", "42", call_id="c", name="multiply"),
    Message("assistant", "<think>good</think>42"),
]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("tools", [(), (as_tool(multiply).spec,)])
@pytest.mark.parametrize("prompt", [True, False])
def test_template_renders_as_the_byte_tokenizer(start: int, tools: Any, prompt: bool) -> None:
    for end in range(start + 1, len(TALK) + 1):
        talk = TALK[start:end]
        assert TOKENIZER.render(talk, tools, prompt=prompt) == ByteTokenizer().render(
            talk, tools, prompt=prompt
        )


def test_a_conversation_never_rewrites_its_past() -> None:
    before = ""
    for end in range(2, len(TALK) + 1):
        text = TOKENIZER.render(TALK[:end], prompt=False)
        assert text.startswith(before)
        before = text


# ---- model ---------------------------------------------------------------------------------------


def test_the_default_model_is_small_and_depends_on_its_seed_alone() -> None:
    model, again, other = build_model(3), build_model(3), build_model(4)
    assert 1e6 <= sum(p.numel() for p in model.parameters()) <= 5e6
    assert model.config.max_position_embeddings == CONTEXT == 4096
    same = [torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(model.get_input_embeddings().weight, other.get_input_embeddings().weight)


def test_the_spread_of_the_initial_weights_is_a_setting() -> None:
    """Of the same draws; 0.02 without it."""
    plain, wide = build_model(3), build_model(3, initializer_range=0.1)
    one, other = (m.get_input_embeddings().weight for m in (plain, wide))
    assert pytest.approx(one.std().item(), rel=0.02) == 0.02
    torch.testing.assert_close(other, 5 * one)


def test_building_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    build_model(7, **SMALL)
    assert torch.rand(1) == expected


# ---- warm start ----------------------------------------------------------------------------------


class Greeting(Echo):
    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        yield Demonstration(prompt="hi", reply="yo", system="s")


def train(
    environment: Echo,
    seed: int,
    out: Path,
    progress: Callable[[WarmStartCheck], None] = lambda check: None,
    **settings: Any,
) -> WarmStartReport:
    """The warm start of a small model, saved at *out*."""
    model = untrained(seed, **SMALL)
    started = warm_start(
        model, [environment], WarmStart(**settings), seed=seed, services={}, progress=progress
    )
    learner, report = asyncio.run(started)
    save_model(out, learner, model.tokenizer, {})
    return report


def first_examples(count: int, *environments: Environment[Any, Any]) -> list[TrainingSequence]:
    """The first sequences that a warm start on *environments* trains on."""

    async def take() -> list[TrainingSequence]:
        examples = examples_of(environments, TOKENIZER)
        return [await anext(examples) for _ in range(count)]

    return asyncio.run(take())


def test_only_the_reply_and_the_end_of_the_turn_train() -> None:
    (sequence,) = first_examples(1, Greeting())
    trained = [i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m]
    assert TOKENIZER.decode(trained) == "yo<|im_end|>"
    context = [i for i, m in zip(sequence.ids, sequence.mask, strict=True) if not m]
    assert TOKENIZER.decode(context) == TOKENIZER.render(
        [Message("system", "s"), Message("user", "hi")]
    )


def test_environments_take_turns_and_finite_demonstrations_repeat() -> None:
    found = first_examples(200, Echo(word="a"), Echo(word="b"))
    assert [said(s) for s in found] == ["a", "b"] * 100


def said(sequence: TrainingSequence) -> str:
    return TOKENIZER.decode(
        [i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m], special=False
    )


def test_finite_demonstrations_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes of an agent cost more than an update; more examples than are kept are made again, in
    the same order.
    """
    made: list[str] = []

    class Counted(Echo):
        def demonstrations(self, split: str) -> Iterable[Demonstration]:
            for demonstration in super().demonstrations(split):
                made.append(str(demonstration.prompt))
                yield demonstration

    first = first_examples(150, Counted())
    assert len(made) == 64
    assert first[64:128] == first[:64]

    made.clear()
    monkeypatch.setattr("quintain_starter.warm_start.MOST_KEPT", 63)
    assert first_examples(150, Counted()) == first
    assert len(made) == 150


def test_warm_start_stops_in_its_target_and_saves_an_ordinary_folder(tmp_path: Path) -> None:
    seen: list[int] = []
    report = train(
        Echo(),
        0,
        tmp_path / "m",
        lambda c: seen.append(c.steps),
        target=(0.5, 1.0),
        lr=3e-3,
        batch=8,
    )
    assert report.reached
    assert 0.5 <= report.accuracy <= 1.0
    assert seen == list(range(10, report.steps + 1, 10))
    assert report.examples == report.steps * 8
    model, tokenizer = (
        kind.from_pretrained(tmp_path / "m") for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "dev 1"}], add_generation_prompt=True
    )["input_ids"]
    out = model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False)[0, len(ids) :]
    assert tokenizer.decode(out) == "a<|im_end|>"
    assert load_model(tmp_path / "m").tokenizer.stop_ids == tuple(model.config.eos_token_id)


@pytest.mark.more
def test_warm_start_is_a_function_of_the_seed(tmp_path: Path) -> None:
    count = iter(range(9))

    def losses(seed: int) -> list[float]:
        report = train(
            Echo(), seed, tmp_path / f"{next(count)}", target=(0.0, 0.01), max_steps=20, batch=4
        )
        return [c.loss for c in report.checks]

    first = losses(0)
    assert losses(0) == first
    assert losses(1) != first


def test_a_jump_over_the_target_goes_back_at_half_the_rate(tmp_path: Path) -> None:
    report = train(Echo(), 0, tmp_path / "m", target=(0.45, 0.55), lr=1e-2, batch=8, max_steps=100)
    over = [i for i, c in enumerate(report.checks) if c.accuracy > 0.55]
    assert over, "this environment is learned all at once"
    first = over[0]
    assert report.checks[first + 1].steps == report.checks[first].steps
    assert report.checks[first + 1].lr == pytest.approx(report.checks[first].lr / 2)
    assert report.accuracy <= 0.55


@pytest.mark.parametrize(
    ("target", "kept"), [((0.4, 0.45), 0.05), ((0.35, 0.65), 0.05), ((0.6, 0.7), 0.95)]
)
def test_a_jump_that_stays_ends_with_the_nearer_check(
    target: tuple[float, float],
    kept: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Where accuracy is 5 % at one check and 95 % at the next, at any learning rate, the model is
    that of the check nearer to the target, the lower one of two that are equally near; a line on
    the screen says so.
    """
    measured = iter([0.05, 0.97, 0.95, 0.97])  # it goes back twice
    trained: list[dict[str, torch.Tensor]] = []
    update = Learner.weights

    async def accuracy(*args: Any, **kwargs: Any) -> tuple[float, bool]:
        return next(measured), False

    def weights(learner: Learner) -> Any:
        trained.append({k: v.clone() for k, v in learner.module.state_dict().items()})
        return update(learner)

    monkeypatch.setattr("quintain_starter.warm_start._accuracy", accuracy)
    monkeypatch.setattr(Learner, "weights", weights)
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    settings = {"target": list(target), "check_every": 1, "batch": 2, "settle": 1}
    recipe = Recipe.parse(
        '[[environments]]\nuse = "arithmetic"\n',
        [f"model.start.args.{key}={value}" for key, value in settings.items()]
        + [f"model.start.args.model={json.dumps(SMALL).replace(':', '=')}"],
    )
    source = ModelSource.of(recipe)
    assert isinstance(source, DefaultModel)

    folder = source.train_once(ModelRequest.of(recipe, Screen()))

    report = json.loads((folder / "quintain.json").read_text())["warm_start"]
    assert [report["jumped"], report["accuracy"], report["reached"]] == [[0.05, 0.95], kept, False]
    assert report["steps"] == (1 if kept == 0.05 else 2)
    kept_weights = trained[0 if kept == 0.05 else 2]
    saved = load_model(folder).module.state_dict()
    assert all(torch.equal(saved[name], kept_weights[name]) for name in saved)
    said = " ".join(capsys.readouterr().err.split())
    assert f"5.0% right on dev, then 95.0%; it keeps the nearer one, {kept:.1%}" in said


@pytest.mark.parametrize(
    ("settle", "measured", "steps"),
    [
        (1, [0.05, 0.71], [1, 2]),
        (1, [0.05, 0.91, 0.9], [1, 2, 2]),
        (2, [0.05, 0.71, 0.5, 0.71, 0.5], [1, 2, 2, 3, 3]),
    ],
)
def test_one_check_above_the_target_is_enough_where_something_is_left_to_learn(
    settle: int, measured: list[float], steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one check is enough; several checks in a row must be in the target."""
    found = iter(measured)

    async def accuracy(*args: Any, **kwargs: Any) -> tuple[float, bool]:
        return next(found), False

    monkeypatch.setattr("quintain_starter.warm_start._accuracy", accuracy)
    settings = WarmStart(target=(0.44, 0.56), settle=settle, check_every=1, batch=2)
    model = untrained(0, **SMALL)

    _, report = asyncio.run(warm_start(model, [Echo()], settings, seed=0, services={}))

    assert [check.steps for check in report.checks] == steps
    assert report.reached is True
    assert report.accuracy == measured[-1]
    assert report.jumped is None
    assert not list(found)


def test_a_stop_ends_between_two_updates() -> None:
    """Not only at the next check, which may be minutes away."""

    async def stopped() -> int:
        done = 0

        def updated(steps: int) -> None:
            nonlocal done
            done = steps
            if steps == 3:
                task.cancel()

        settings = WarmStart(check_every=40, max_steps=40, batch=2)
        started = warm_start(
            untrained(0, **SMALL), [Echo()], settings, seed=0, services={}, updated=updated
        )
        task = asyncio.ensure_future(started)
        with pytest.raises(asyncio.CancelledError):
            await task
        return done

    assert asyncio.run(stopped()) == 3


def test_a_trained_model_that_is_good_enough_stays_as_it_is() -> None:
    """It is checked before the first update; one that is below the target is trained."""

    def started(trained: bool) -> WarmStartReport:
        settings = WarmStart(target=(0.5, 1.0), lr=3e-3, batch=8)
        return asyncio.run(
            warm_start(model, [Echo()], settings, seed=0, services={}, trained=trained)
        )[1]

    model = untrained(0, **SMALL)
    first, second = started(True), started(True)
    assert first.checks[0].steps == 0
    assert first.checks[0].loss is None
    assert first.checks[0].accuracy == 0.0
    assert first.steps > 0
    assert second.reached
    assert second.accuracy >= 0.5
    assert 0 == second.steps == second.tokens
    assert len(second.checks) == 1
    assert started(False).steps > 0


def test_settling_takes_several_checks_while_the_rate_fades(tmp_path: Path) -> None:
    report = train(Echo(), 0, tmp_path / "m", target=(0.5, 1.0), settle=4, lr=3e-3, batch=8)
    last = report.checks[-4:]
    assert all(c.accuracy >= 0.5 for c in last)
    assert [c.lr / 3e-3 for c in last] == pytest.approx([1, 1, 1, 0.55])


@pytest.mark.parametrize(
    ("environment", "words"), [(Silent(), "no demonstrations"), (Endless(), "longer than")]
)
def test_what_cannot_be_trained_on_is_named(environment: Echo, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        train(environment, 0, tmp_path / "m")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong", [{"target": (0.5, 0.4)}, {"settle": 0}, {"batch": 0}, {"check_every": 0}]
)
def test_settings_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected 0 <= low < high <= 1, the others at least 1"):
        DefaultModel(**wrong)


def test_a_model_is_cached_by_what_it_was_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    text = (
        '[[environments]]\nuse = "arithmetic"\n[model.start.args]\nmax_steps = 2\ncheck_every = '
        "2\ntasks = 4\n"
    )

    def run(*changes: str) -> Path:
        recipe = Recipe.parse(
            text, [f"model.start.args.model={json.dumps(SMALL).replace(':', '=')}", *changes]
        )
        source = ModelSource.of(recipe)
        assert isinstance(source, DefaultModel)
        return source.train_once(ModelRequest.of(recipe, Screen(quiet=True)))

    first = run()
    written = (first / "quintain.json").stat().st_mtime_ns
    assert run() == first
    assert (first / "quintain.json").stat().st_mtime_ns == written
    assert run("run.seed=1") == first
    others = {
        run("model.start.args.seed=1"),
        run("environments.0.args.slips=0.1"),
        run("model.start.args.lr=1e-4"),
    }
    assert len(others | {first}) == 4
    assert {p.name for p in (tmp_path / "models").iterdir()} == {p.name for p in others | {first}}
