"""The general starter: its tokenizer, its training and the model that comes with the package."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from quintain import Demonstration, Environment, Rollout, Task, reward
from quintain.console import Screen
from quintain.errors import UsageError
from quintain.models import HFTokenizer, load_model
from quintain.recipe import ModelRequest, ModelSource, Recipe
from quintain.recipe.resolve import EnvironmentSpec
from quintain_starter import general
from quintain_starter.architecture import TAGS, build_model, build_tokenizer
from quintain_starter.skills import exercise
from quintain_starter.source import GENERAL, DefaultModel

SMALL = {"hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate": 64}
WORDS = general.vocabulary()
TOKENIZER = HFTokenizer(build_tokenizer(WORDS))


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([i]) for i in TOKENIZER.encode(text)]


@given(st.text() | st.text(alphabet="0123456789 #\n+=<>/think", max_size=60))
def test_every_text_comes_back(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_whole_words_are_one_token_and_all_else_is_read_letter_by_letter() -> None:
    """So that a word of the user's has the same letters wherever it stands."""
    assert pieces(" the letters of") == [" the", " letters", " of"]
    assert [*" thenk"] == pieces(" thenk")
    assert [*"47"] == pieces("47")
    for text in (*TAGS, "user", "assistant", "####", "<|im_end|>"):
        assert [text] == pieces(text)


def packed(rows: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return general.packed(TOKENIZER, Random(1), 1.0, rows)


def test_rows_hold_whole_exercises() -> None:
    """Those that fit, in order; replies train, and each begins at position 0."""
    ids, positions, weights = packed()
    text = "".join(TOKENIZER.decode(row[row != TOKENIZER.hf.pad_token_id].tolist()) for row in ids)
    rng, found = Random(1), 0
    for made in (exercise(rng) for _ in range(40)):
        turns = TOKENIZER.render(made.messages[:-1], made.tools)
        found += f"{turns}{made.answer}" in text
    assert found > 12
    spans = (positions == 0) & (ids != TOKENIZER.hf.pad_token_id)
    assert int(spans.sum()) == text.count("<|im_start|>assistant") - text.count("<tool_response>")
    assert 0.05 < weights.mean() < 0.5
    assert not weights[spans].any()


def test_packed_losses_are_those_of_each_exercise_alone() -> None:
    """Attention and positions end at the borders of an exercise."""
    module: Any = build_model(0, vocabulary=len(TOKENIZER.hf), initializer_range=0.1, **SMALL)
    ids, positions, weights = packed()
    together = general.losses(module, ids, positions, weights)
    alone: list[torch.Tensor] = []
    for row, places, trained in zip(ids, positions, weights, strict=True):
        starts = [*(places == 0).nonzero().flatten().tolist(), len(row)]
        for begin, end in pairwise(starts):
            logits = module(input_ids=row[None, begin:end]).logits[0, :-1]
            chosen = trained[begin + 1 : end] > 0
            targets = row[begin + 1 : end][chosen]
            alone.append(functional.cross_entropy(logits[chosen], targets, reduction="none"))
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_updates_of_matrices_are_nearly_orthogonal() -> None:
    """Singular values of an update are close to each other, whatever those of the gradient."""
    weight = torch.nn.Parameter(torch.zeros(24, 40))
    weight.grad = (
        torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
        * torch.logspace(0, -2, 24)[:, None]
    )
    general.Muon([weight], 0.1).step()
    singular = torch.linalg.svdvals(weight.detach())
    assert singular.max() < 2.5 * singular.min()


def test_the_rate_rises_stays_and_falls() -> None:
    rates = [general.rate(step, 400) for step in range(400)]
    assert rates[0] == pytest.approx(1 / 60)
    assert {1.0} == {*rates[60:300]}
    assert rates[-1] == pytest.approx(0.01)
    assert rates[300:] == sorted(rates[300:], reverse=True)


@pytest.mark.slow
def test_training_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop, from its last checkpoint; the folder says how it came about."""
    monkeypatch.setattr(general, "SIZES", SMALL)
    monkeypatch.setattr(general, "ROWS", 2)
    monkeypatch.setattr(general, "accuracies", lambda *args: {})
    general.train(tmp_path / "whole", steps=6, keep=3)

    class Stopped(Exception):
        """The process ended."""

    def rate(step: int, steps: int, rate: Any = general.rate) -> float:
        if step == 4:
            raise Stopped
        return float(rate(step, steps))

    with monkeypatch.context() as patched:
        patched.setattr(general, "rate", rate)
        with pytest.raises(Stopped):
            general.train(tmp_path / "parts", steps=6, keep=3)
    general.train(tmp_path / "parts", steps=6, keep=3)
    whole, parts = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes()
        for name in ("whole", "parts")
    )
    assert whole == parts
    told = json.loads((tmp_path / "parts" / "model" / "quintain.json").read_text())["general"]
    assert {"script", "steps", "seed", "tokens", "loss", "date", "versions"} <= set(told)
    assert told["tokens"] > 500


# ---- the model that comes with the package -------------------------------------------------------


def test_the_package_holds_what_the_script_writes() -> None:
    """At most 12 MB, with the tokenizer of this version and its provenance."""
    told = json.loads((GENERAL / "quintain.json").read_text())["general"]
    model = load_model(GENERAL, device="cpu")
    assert 3e6 <= model.parameters == told["parameters"] <= 10e6
    assert sum(file.stat().st_size for file in GENERAL.iterdir()) < 12e6
    # of the content
    assert TOKENIZER.name.rpartition("-")[2] == model.tokenizer.name.rpartition("-")[2]
    assert told["tokens"] > 1e6
    assert told["date"]
    assert told["versions"]["torch"]


@pytest.mark.slow
def test_it_answers_as_its_provenance_says() -> None:
    """Of the first 150 of the exercises that were held out, within what so few can tell."""
    model = load_model(GENERAL, device="cpu")
    told = json.loads((GENERAL / "quintain.json").read_text())["general"]["accuracies"]
    found = general.accuracies(model.module, TOKENIZER, 150)
    assert (
        abs(sum(found.values()) / len(found) - sum(told[skill] for skill in found) / len(found))
        < 0.15
    )


class Halves(Environment[Task, None]):
    """Say the first letter; no exercise asks it in these words."""

    @reward(range=(0, 1))
    def reward(rollout: Rollout) -> float:
        return float(rollout.reply == rollout.task.answer)

    def tasks(self, split: str) -> list[Task]:
        letters = "abcdefgh"
        return [Task(prompt=f"{split} {a}{b} :", answer=a) for a in letters for b in letters]

    def demonstrations(self, split: str) -> list[Demonstration]:
        return [Demonstration(prompt=task.prompt, reply=task.answer) for task in self.tasks(split)]


class Backwards(Environment[Task, None]):
    """Words of four letters, which the exercises have, or a question that they lack; without
    demonstrations.
    """

    known: bool = True

    @reward(range=(0, 1))
    def reward(rollout: Rollout) -> float:
        return float(rollout.reply.strip() == rollout.task.answer)

    def tasks(self, split: str) -> list[Task]:
        words = ["".join(Random(f"{split} {i}").choices("abcdefghij", k=4)) for i in range(8)]
        return [
            Task(prompt=f"Write {w} backwards.", answer=w[::-1] if self.known else "-")
            for w in words
        ]


def test_what_it_solves_needs_no_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reinforcement learning begins with it as it is, and a line says how much it solves; at
    nothing it is refused.
    """
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    notes: list[str] = []
    screen = Screen(quiet=True)
    monkeypatch.setattr(screen, "note", notes.append)

    def started(**args: Any) -> Path:
        recipe = Recipe.of({"environments": [{"use": "backwards"}]})
        source = ModelSource.of(recipe)
        assert isinstance(source, DefaultModel)
        specs = [EnvironmentSpec(name="backwards", component=Backwards, args=args)]
        return source.train_once(ModelRequest.of(recipe, screen, specs))

    folder = started()
    told = json.loads((folder / "quintain.json").read_text())["warm_start"]
    assert told["steps"] == 0
    assert told["accuracy"] > 0.5
    assert not told["demonstrations"]
    assert f"as it is, {told['accuracy']:.1%} right on dev" in notes[-1]
    with pytest.raises(
        UsageError, match=r"Backwards has no demonstrations .*--model \(.* solves 0 of 8 dev tasks"
    ):
        started(known=False)


def test_a_warm_start_begins_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless sizes or `general = false` ask for a network of its own; each has a place of its own
    in the cache.
    """
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))

    def started(**settings: Any) -> Path:
        table = {"max_steps": 1, "check_every": 1, "batch": 2, "tasks": 2, "settle": 3, **settings}
        recipe = Recipe.of(
            {"environments": [{"use": "halves"}], "model": {"start": {"args": table}}}
        )
        source = ModelSource.of(recipe)
        assert isinstance(source, DefaultModel)
        specs = [EnvironmentSpec(name="halves", component=Halves)]
        return source.train_once(ModelRequest.of(recipe, Screen(quiet=True), specs))

    from_general, own = started(), started(general=False, model=SMALL)
    assert from_general != own
    parameters = load_model(GENERAL, device="cpu").parameters
    reports = [
        json.loads((folder / "quintain.json").read_text())["warm_start"]
        for folder in (from_general, own)
    ]
    assert parameters == reports[0]["parameters"] > reports[1]["parameters"]
    assert 0 == reports[0]["checks"][0]["steps"] < reports[1]["checks"][0]["steps"]
