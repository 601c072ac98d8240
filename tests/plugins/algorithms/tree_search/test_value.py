"""Value models: what they learn, and that searches, advantages and process rewards read the same
numbers.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForTokenClassification

from quintain import Message, Task
from quintain.errors import UsageError
from quintain.learning import Batch, Sample, Step
from quintain.models import HFTokenizer, load_model
from quintain.testing import rollout
from quintain_algorithms.tree_search import (
    BeamEngine,
    Partial,
    ScoredRow,
    StepRule,
    ValueModel,
    ValueReport,
    fit_value,
    value_steps,
)
from quintain_algorithms.tree_search.command import value as command
from quintain_offline.reward_model import ProcessRewardModel

from ....core.learning import batches
from ....core.models.tiny import save_tiny, with_exact_norms


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("policy")
    save_tiny(folder, seed=3, context=256)
    return str(folder)


def rows(tokenizer: HFTokenizer, count: int) -> list[ScoredRow]:
    """Answers of two letters after a question; those that begin with b succeed, half of those with
    a, none with c.
    """
    draw = Random(7)
    found = []
    for number in range(count):
        first = draw.choice("abc")
        prompt = tokenizer.encode(tokenizer.render([Message("user", f"say {number % 40}")]))
        reply = tokenizer.encode(f"{first}\n{draw.choice('xyz')}")
        success = first == "b" or (first == "a" and draw.random() < 0.5)
        found.append(ScoredRow(ids=(*prompt, *reply), first=len(prompt), success=success))
    return found


@pytest.fixture(scope="module")
def fitted(policy: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ValueReport]:
    folder = tmp_path_factory.mktemp("value") / "value"
    tokenizer = load_model(policy, device="cpu").tokenizer
    return folder, fit_value(policy, rows(tokenizer, 480), folder, epochs=6, lr=1e-2)


def values(folder: Path, found: list[tuple[int, ...]]) -> list[float]:
    async def asked() -> list[float]:
        async with ValueModel(model=str(folder), device="cpu") as model:
            return model.values(found)

    return asyncio.run(asked())


@pytest.mark.slow
def test_it_learns_how_probable_success_is(policy: str, fitted: tuple[Path, ValueReport]) -> None:
    folder, report = fitted
    assert 0 < report.held_out_loss < 0.75 * report.base_rate_loss
    assert report.rows == 432
    assert report.updates == 6 * 14
    tokenizer = load_model(policy, device="cpu").tokenizer
    prompt = tokenizer.encode(tokenizer.render([Message("user", "say 3")]))
    a, b, c = values(folder, [(*prompt, *tokenizer.encode(f"{x}\n")) for x in "abc"])
    assert c < 0.15 < 0.25 < a < 0.75 < 0.85 < b


def test_values_are_those_of_a_plain_forward_pass(
    policy: str, fitted: tuple[Path, ValueReport]
) -> None:
    """Whatever rows are padded and batched together; with a line break at the end."""
    folder, _ = fitted
    tokenizer = load_model(policy, device="cpu").tokenizer
    (newline,) = tokenizer.encode("\n")
    found = [(5, 6, 7), (8, newline), (9, 10, 11, 12, 13)]
    module = AutoModelForTokenClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = [
            float(module(torch.tensor([ids])).logits[0, -1, 0].sigmoid())
            for ids in ((5, 6, 7, newline), (8, newline), (9, 10, 11, 12, 13, newline))
        ]

    async def by_budget(budget: int) -> list[float]:
        async with ValueModel(model=str(folder), device="cpu", token_budget=budget) as model:
            return model.values(found)

    for budget in (1, 6, 8192):
        assert asyncio.run(by_budget(budget)) == pytest.approx(expected, abs=1e-6)


def test_values_at_places_are_those_of_the_beginnings(fitted: tuple[Path, ValueReport]) -> None:
    folder, _ = fitted

    async def both() -> tuple[list[list[float]], list[list[float]]]:
        async with ValueModel(model=str(folder), device="cpu") as model:
            whole = model.values_at([(5, 6, 7, 8), (9, 10)], [[1, 4], [2]])
            begun = [
                model.values_at([ids], [[len(ids)]])[0] for ids in ((5,), (5, 6, 7, 8), (9, 10))
            ]
            return whole, [[begun[0][0], begun[1][0]], begun[2]]

    whole, begun = asyncio.run(both())
    assert whole[0] == pytest.approx(begun[0], abs=1e-6)
    assert whole[1] == pytest.approx(begun[1], abs=1e-6)


@pytest.mark.keeps("30")
@pytest.mark.parametrize("budget", [1, 30, 8192])
def test_credit_is_that_of_plain_passes_over_beginnings(
    policy: str, tmp_path: Path, budget: int
) -> None:
    """`value_steps` against float64: each beginning that ends with a line break, or is the prompt, in
    a pass of its own. The end of an answer is worth its reward.
    """
    torch.manual_seed(0)
    module: Any = AutoModelForTokenClassification.from_pretrained(policy, num_labels=1)
    torch.nn.init.normal_(module.score.weight, std=0.5)
    module.save_pretrained(tmp_path)
    tokenizer = load_model(policy, device="cpu").tokenizer
    tokenizer.hf.save_pretrained(tmp_path)
    wide = with_exact_norms(module.double().eval())
    prompt = tokenizer.encode("say it\n")
    answers = [("a\n\nbc\nd", 0.3), ("no line", 1.0), ("ends\n", 0.0), ("\nx", 0.5)]
    samples, expected = [], []
    for text, reward in answers:
        lines = text.splitlines(keepends=True)
        begun = [prompt]
        for line in lines:
            begun.append([*begun[-1], *tokenizer.encode(line)])
        with torch.no_grad():
            worth = [
                float(wide(torch.tensor([ids])).logits[0, -1, 0].sigmoid()) for ids in begun[:-1]
            ]
        for k, line in enumerate(lines):
            reached = worth[k + 1] if k + 1 < len(worth) else reward
            expected += [reached - worth[k]] * len(tokenizer.encode(line))
        row = batches.sequence(prompt, begun[-1][len(prompt) :])
        samples.append(Sample(sequences=(row,), outcome=reward, group=0))
    step = Step(batch=Batch(samples=tuple(samples)), rewards=tuple(r for _, r in answers))

    async def computed() -> list[float]:
        engine = SimpleNamespace(tokenizer=tokenizer)
        async with ValueModel(model=str(tmp_path), device="cpu", token_budget=budget) as model:
            found, _ = value_steps.with_services({"policy": engine, "value": model})(step)
        return list(found.tolist())

    assert asyncio.run(computed()) == pytest.approx(expected, abs=1e-6)
    assert max(map(abs, expected)) > 0.1


def test_a_process_reward_model_reads_the_same_values(
    policy: str, fitted: tuple[Path, ValueReport]
) -> None:
    folder, _ = fitted
    tokenizer = load_model(policy, device="cpu").tokenizer
    question = [Message("user", "say\n3")]
    prompt = tokenizer.encode(tokenizer.render(question))
    expected = values(folder, [(*prompt, *tokenizer.encode(text)) for text in ("b\n", "b\ny\n")])
    talk = rollout(Task(prompt="say\n3", answer="b"), "b\ny")

    async def scored(reduce: str) -> float:
        service = ProcessRewardModel(
            model=str(folder),
            head="labels",
            separator="\n",
            split="\n",
            reduce=reduce,  # type: ignore[arg-type]
            device="cpu",
        )
        async with service:
            (found,) = await service.score_all([talk])
        assert isinstance(found, tuple)
        return found[0]

    assert asyncio.run(scored("min")) == pytest.approx(min(expected), abs=1e-6)
    assert asyncio.run(scored("last")) == pytest.approx(expected[-1], abs=1e-6)


def test_a_search_reads_answers_without_their_stop_token(
    policy: str, fitted: tuple[Path, ValueReport]
) -> None:
    folder, _ = fitted
    loaded = load_model(policy, device="cpu")
    stop = loaded.tokenizer.stop_ids[0]
    engine = BeamEngine.sharing(loaded.module, loaded.tokenizer, value=str(folder))

    async def worth() -> list[float]:
        async with engine:
            return await engine.worth((5, 6), [Partial(ids=(7, stop), finish="stop"), Partial()])

    assert asyncio.run(worth()) == pytest.approx(values(folder, [(5, 6, 7), (5, 6)]), abs=1e-6)
    assert engine.steps == StepRule(by="lines")


def test_both_right_and_wrong_answers_are_needed(policy: str, tmp_path: Path) -> None:
    right = [ScoredRow(ids=(5, 6), first=1, success=True)] * 3
    with pytest.raises(UsageError, match="3 of 3 answers succeeded"):
        fit_value(policy, right, tmp_path / "value")


def test_a_language_model_is_no_value_model(policy: str) -> None:
    with pytest.raises(UsageError, match="2 outputs per token; expected one"):
        asyncio.run(ValueModel(model=policy, device="cpu").__aenter__())


def test_quintain_value(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of `quintain eval`, a value model of them, and a search with it."""
    from quintain.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "babble.py").write_text(BABBLE)
    words = ["eval", "babble.py:Babble", "--model", policy, "--temperature", "1"]
    sampled = ["--tasks", "8", "--samples", "4", "--max-tokens", "6", "--out", "out.parquet"]
    assert main([*words, *sampled]) == 0
    found = CliRunner().invoke(
        command, ["out.parquet", "--model", policy, "--out", "value", "--json"]
    )
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["rows"] == 32
    assert report["out"] == "value"
    search = ["--engine", "mcts", "--engine-arg", "value=value", "--engine-arg", "simulations=4"]
    assert (
        main([*words, *search, "--engine-arg", "by=tokens", "--tasks", "2", "--max-tokens", "6"])
        == 0
    )


BABBLE = """
from quintain import Environment, Task, reward

@reward(range=(0, 1))
def letters(rollout):
    return float(sum(c.isalpha() for c in rollout.reply) % 2)

class Babble(Environment):
    reward = letters
    def tasks(self, split):
        return [Task(prompt=f"say {n}", answer=str(n)) for n in range(40)]
"""
