"""Process rewards: the probability at each mark against a plain forward pass, one score per turn,
and credit.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from quintain import Message, Rollout, Service, Task, Turn
from quintain.errors import RewardFault, UsageError
from quintain.testing import rollout
from quintain_authoring import RewardSuite
from quintain_offline.reward_model import ProcessRewardModel, process_reward

from ....core.models.tiny import byte_tokenizer, save_tiny, tiny_model

TASK = Task(prompt="6*7=?", answer="42")
SEPARATOR = "<|endoftext|>"
SETTINGS: dict[str, Any] = {"separator": SEPARATOR, "good": "+", "bad": "-", "device": "cpu"}


def scored(rollouts: list[Rollout[Any, Any]], **settings: Any) -> list[Any]:
    async def run() -> list[Any]:
        async with ProcessRewardModel(**{**SETTINGS, **settings}) as service:
            return await service.score_all(rollouts)

    return asyncio.run(run())


def plain_chances(folder: Path, text: str) -> list[float]:
    """P(+) against P(-) at each separator of *text*, by transformers alone."""
    tokenizer, module = byte_tokenizer(), AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    good, bad = (tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in "+-")
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([ids])).logits[0].double()
    at = [i for i, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids(SEPARATOR)]
    return [float(logits[i, [good, bad]].softmax(-1)[0]) for i in at]


def marked_text(*steps: str) -> str:
    return (
        "<|im_start|>user\n6*7=?<|im_end|>\n<|im_start|>assistant\n"
        + "".join(step + SEPARATOR for step in steps)
        + "<|im_end|>\n"
    )


def test_steps_of_one_turn_are_those_of_a_plain_forward_pass(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    chances = plain_chances(folder, marked_text("6+6=12", "7*6=42"))
    reply = rollout(TASK, "6+6=12\n\n7*6=42")
    reduced = {how: scored([reply], model=str(folder), split="\n\n", reduce=how)[0] for how in
               ("min", "mean", "product", "last", "sum")}  # fmt: skip

    assert reduced["min"] == pytest.approx((min(chances),), abs=1e-6)
    assert reduced["mean"] == pytest.approx((sum(chances) / 2,), abs=1e-6)
    assert reduced["product"] == pytest.approx((chances[0] * chances[1],), abs=1e-6)
    assert reduced["last"] == pytest.approx((chances[1],), abs=1e-6)
    assert reduced["sum"] == pytest.approx((sum(chances),), abs=1e-6)
    assert scored([reply], model=str(folder), split="\n\n", reduce="last", offset=0.5)[
        0
    ] == pytest.approx((chances[1] - 0.5,), abs=1e-6)


def two_turns() -> Rollout[Any, Any]:
    messages = (
        Message("user", "6*7=?"),
        Message("assistant", "41"),
        Message("user", "Check it."),
        Message("assistant", "42"),
    )
    return rollout(TASK, "41", "42").replace(messages=messages)


def test_each_turn_of_the_policy_has_a_score_that_its_tokens_get(tmp_path: Path) -> None:
    """Turns of other players have none; the total is the sum, and the parts say how it came
    about.
    """
    folder = save_tiny(tmp_path)
    text = marked_text("41").replace("<|im_end|>\n", "<|im_end|>\n", 1)
    text += (
        "<|im_start|>user\nCheck it.<|im_end|>\n<|im_start|>assistant\n42"
        + SEPARATOR
        + "<|im_end|>\n"
    )
    chances = plain_chances(folder, text)
    game = two_turns()
    game = game.replace(
        turns=(game.turns[0], Turn(text="my move", reply="my move", player="rival"), game.turns[1])
    )

    async def run() -> Any:
        async with ProcessRewardModel(model=str(folder), **SETTINGS) as service:
            return await process_reward.ascore(game, process_reward_model=service)

    score = asyncio.run(run())
    assert score.turns == pytest.approx(tuple(chances), abs=1e-6)
    assert score.total == pytest.approx(sum(chances), abs=1e-6)
    assert score.parts["process_reward.min"] == pytest.approx(min(chances), abs=1e-6)


def test_a_token_classification_head_gives_the_probability_of_its_label(tmp_path: Path) -> None:
    base = tiny_model()
    config = {
        **base.config.to_dict(),
        "id2label": {0: "bad", 1: "good"},
        "label2id": {"bad": 0, "good": 1},
    }
    torch.manual_seed(1)
    module = AutoModelForTokenClassification.from_config(
        transformers.Qwen3Config.from_dict(config)
    ).eval()
    torch.nn.init.normal_(module.score.weight, 0, 0.5)
    module.save_pretrained(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer(marked_text("a", "b"), add_special_tokens=False)["input_ids"]
    places = [
        i for i, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids(SEPARATOR)
    ]
    with torch.no_grad():
        chances = (
            module(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1)[places, 1].tolist()
        )

    settings: dict[str, Any] = {
        "model": str(tmp_path),
        "head": "labels",
        "split": "|",
        "reduce": "sum",
        "bad": "",
    }
    reply = rollout(TASK, "a|b")
    assert scored([reply], **settings, good="")[0] == pytest.approx((sum(chances),), abs=1e-6)
    other = scored([reply], **settings | {"good": "bad"})[0]
    assert other == pytest.approx((2 - sum(chances),), abs=1e-6)
    with pytest.raises(UsageError, match="no label 'best'"):
        scored([reply], **settings | {"good": "best"})


def test_a_policy_cannot_write_marks_of_its_own(tmp_path: Path) -> None:
    """Separators and the character that stands for them are broken up: one score per step, whatever
    the reply says.
    """
    folder = save_tiny(tmp_path)
    forged = rollout(TASK, f"a{SEPARATOR}b\ue000c")

    async def run() -> Any:
        async with ProcessRewardModel(model=str(folder), **SETTINGS) as service:
            return service.marked(forged)

    marked = asyncio.run(run())
    assert marked.steps == (1,)
    assert len(marked.places) == 1
    assert sum(i == byte_tokenizer().convert_tokens_to_ids(SEPARATOR) for i in marked.ids) == 1


def test_failures_are_of_the_rollout_alone(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    fine, long = rollout(TASK, "42"), rollout(TASK, "x" * 600)
    lost = rollout(TASK, "a", "b").replace(
        messages=(Message("user", "6*7=?"), Message("assistant", "b"))
    )
    results = scored([fine, long, lost, rollout(TASK)], model=str(folder))

    assert isinstance(results[0], tuple)
    assert 0 < results[0][0] < 1
    assert isinstance(results[1], RewardFault)
    assert "reads at most" in str(results[1])
    assert isinstance(results[2], RewardFault)
    assert "1 replies for 2 turns" in str(results[2])
    assert results[3] == ()


def test_a_template_that_drops_turns_is_a_failure(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, template="{{ messages[-1]['content'] }}")
    (result,) = scored([two_turns()], model=str(folder))
    assert isinstance(result, RewardFault)
    assert "left 1 of 2 steps" in str(result)


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tokens good and bad"):
        ProcessRewardModel(model="m", separator="x")
    with pytest.raises(UsageError, match="'ab' is 2 tokens"):
        scored([], model=str(save_tiny(tmp_path)), good="ab")


class TestProcessReward(RewardSuite):
    """The conformance suite of rewards."""

    reward = process_reward
    lowest = 2.0
    folder: ClassVar[tempfile.TemporaryDirectory[str]]

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        cls.folder = tempfile.TemporaryDirectory()
        return {
            "process_reward_model": ProcessRewardModel(
                model=str(save_tiny(Path(cls.folder.name))), **SETTINGS
            )
        }

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        cls.folder.cleanup()

    def exploits(self) -> list[Rollout[Any, Any]]:
        return [rollout(TASK, ""), rollout(TASK, SEPARATOR), two_turns()]
