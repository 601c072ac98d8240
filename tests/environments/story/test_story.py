"""The environment `story`: conformance, plans, prompts, and its rewards against a plain forward
pass.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quintain import Message, Rollout, Service
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import RewardFault, UsageError
from quintain.interfaces.reward import RewardContext
from quintain.models import HFTokenizer
from quintain.testing import rollout
from quintain_authoring import EnvironmentSuite, run_episode
from quintain_authoring.controls import check_controls
from quintain_env_story import (
    Scorer,
    Story,
    StoryResult,
    StoryTask,
    plan_nats,
    plan_of,
    plan_overlap,
    vr_cli,
    vr_cli_linear,
)
from quintain_env_story.procedural import stories, task_of
from quintain_env_story.tasks import PLAN, WRITE, writing_prompt
from quintain_rewards.likelihood import EngineLikelihood, Pair, TextLikelihood, TextScore

from ...core.models.tiny import byte_tokenizer, tiny_model


class TestStory(EnvironmentSuite):
    environment = Story

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "scorer": Scorer()}


class TestStoryWithMoreBoats(TestStory):
    args = {"boats": 7, "size": 20}


def first_tasks(n: int, **fields: Any) -> list[StoryTask]:
    return list(islice(Story(**fields).tasks("dev"), n))


def planned(task: StoryTask, plan: str) -> Rollout[StoryTask, StoryResult]:
    return rollout(task, plan, result=StoryResult(plan=plan))


def scored(reward: Any, rollouts: Sequence[Any], scorer: TextLikelihood) -> list[Any]:
    return asyncio.run(reward.score_all(rollouts, RewardContext(services={"scorer": scorer})))


# ---------------------------------------------------------------- plans
@pytest.mark.parametrize(
    "reply, plan",
    [
        ("Ed opens it.", "Ed opens it."),
        ("Ed is at sea.\n\n## Plan\nEd comes home.", "Ed comes home."),
        ("First thoughts.\nPlan:\nno\n**Detailed Plan**\nEd comes home.", "Ed comes home."),
        ("Long thoughts. More.\nIn summary, Ed comes home.", "Ed comes home."),
        ("The plan: was to sail.", "The plan: was to sail."),
        ("<think>and then", ""),
        ("Plan:\n", ""),
        ("", ""),
    ],
)
def test_the_plan_follows_the_reasoning(reply: str, plan: str) -> None:
    assert plan == plan_of(reply, 300)


def test_closed_reasoning_is_no_plan() -> None:
    (task,) = first_tasks(1)
    played = run_episode(
        Story(), task, f"<think>{task.wrong}</think>{task.answer}", services={"scorer": Scorer()}
    )
    assert played.result.plan == task.answer
    assert played.outcome is not None
    assert played.outcome.total == 1


@given(st.text(), st.integers(1, 20))
def test_a_plan_has_a_maximum_of_words(reply: str, words: int) -> None:
    plan = plan_of(reply, words)
    assert len(plan.split()) <= words
    assert plan in reply


# ---------------------------------------------------------------- prompts
def test_the_two_prompts_differ_by_the_plan_alone() -> None:
    """No line of the instructions changes with the plan: it would give or take improvement whatever
    the plan is.
    """
    (task,) = first_tasks(1)
    (bare,), (with_plan,) = writing_prompt(task, ""), writing_prompt(task, "Everybody sleeps.")
    assert bare.content == with_plan.content.replace("Everybody sleeps.", "")
    assert str(task.prompt).endswith(PLAN)
    assert bare.content.endswith(f"{WRITE}\n\n# Plan\n")
    assert bare.content.startswith(str(task.prompt).removesuffix(PLAN))


def test_the_answer_follows_from_the_prompt() -> None:
    """The locks of an honest plan are those of the last moves, which the prompt tells, and no boat
    stays.
    """
    for task in first_tasks(50, boats=4):
        lines = str(task.prompt).splitlines()
        first, last = (
            next(line for line in lines if line.startswith(word)) for word in ("Boats", "Then")
        )
        assert task.answer == last.replace("Then", "End") == task.chapter
        assert not set(first.strip(".").split()) & set(last.strip(".").split())


def test_splits_share_no_story_whatever_the_seed() -> None:
    prompts = {
        split: {
            s.prompt()
            for seed in range(3)
            for s in islice(stories(split, boats=2, size=60, seed=seed), 60)
        }
        for split in ("train", "dev", "test")
    }
    assert not prompts["train"] & prompts["dev"]
    assert not prompts["train"] & prompts["test"]
    assert not prompts["dev"] & prompts["test"]


@pytest.mark.parametrize(
    "fields", [{"boats": 1}, {"boats": 9}, {"size": 0}, {"slips": 1.5}, {"plan_words": 0}]
)
def test_fields_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="story: "):
        Story(**fields)


# ---------------------------------------------------------------- rewards
def tiny_scorer() -> tuple[Any, EngineLikelihood]:
    module = tiny_model()
    return module, EngineLikelihood(
        EmbeddedEngine.sharing(module, HFTokenizer(byte_tokenizer()), reproducible=False)
    )


def plain_perplexity(module: Any, prompt: Sequence[Message], text: str) -> float:
    """exp of the mean negative log-prob of *text*, by transformers alone."""
    hf = byte_tokenizer()
    chat = [{"role": m.role, "content": m.content} for m in prompt]
    head = hf(hf.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))["input_ids"]
    tail = hf(text)["input_ids"]
    with torch.no_grad():
        logps = module(torch.tensor([head + tail])).logits[0].double().log_softmax(-1)
    return math.exp(
        -sum(float(logps[len(head) - 1 + i, token]) for i, token in enumerate(tail)) / len(tail)
    )


def test_the_reward_is_that_of_a_plain_forward_pass() -> None:
    """Improvement and reward of several plans, from perplexities that transformers computes."""
    module, scorer = tiny_scorer()
    (task,) = first_tasks(1)
    plans = [task.answer, task.wrong, task.filler, "No.", ""]
    scores = scored(vr_cli(floor="none"), [planned(task, plan) for plan in plans], scorer)
    bare = plain_perplexity(module, writing_prompt(task, ""), task.chapter)
    for plan, score in zip(plans, scores, strict=True):
        percent = (
            1 - plain_perplexity(module, writing_prompt(task, plan), task.chapter) / bare
        ) * 100
        assert score.parts["vr_cli.improvement"] == pytest.approx(percent, abs=1e-3)
        assert score.parts["vr_cli.baseline_bits"] == pytest.approx(math.log2(bare), abs=1e-5)
        assert score.total == sum(
            step for edge, step in ((0.05, 0.5), (1, 0.4), (2, 0.1)) if percent >= edge
        )
    assert scores[-1].parts["vr_cli.improvement"] == 0  # an empty plan is the baseline, exactly


def test_the_other_forms_of_the_reward() -> None:
    scorer, (task,) = Scorer(), first_tasks(1)
    group = [planned(task, plan) for plan in (task.answer, task.wrong)]
    percents = [s.parts["vr_cli.improvement"] for s in scored(vr_cli, group, scorer)]
    assert percents[1] < 0 < percents[0] < 60
    linear = [s.total for s in scored(vr_cli_linear(full=60.0), group, scorer)]
    assert linear == pytest.approx([percents[0] / 60, 0])
    nats = [s.total for s in scored(plan_nats, group, scorer)]
    assert nats == pytest.approx([-math.log1p(-p / 100) for p in percents])


def test_a_group_is_scored_in_one_batch_and_its_baseline_once() -> None:
    """Eight plans for one task are one call; a second group of the task computes no baseline."""
    sizes: list[int] = []

    class Counting(Scorer):
        async def score(self, pairs: Any, *, max_tokens: int = 0) -> list[TextScore]:
            sizes.append(len(pairs))
            return await super().score(pairs, max_tokens=max_tokens)

    scorer, (task,) = Counting(), first_tasks(1)
    group = [planned(task, f"{task.answer} {i}") for i in range(8)]
    scored(vr_cli(floor="none"), group, scorer)
    assert sizes == [1, 8]
    scored(vr_cli(floor="none"), group, scorer)
    assert sizes == [1, 8, 8]
    scored(vr_cli(floor="controls"), group, scorer)
    assert sizes[-2:] == [8, 5]  # the plans, then the controls: four, and none
    measured = len(sizes)
    scored(vr_cli(floor="controls"), group, scorer)
    assert sizes[measured:] == [8]


class Generous(Scorer):
    """Any plan adds 0.1 nats per token to the score without one, however little it says; the
    chapter adds 0.5.
    """

    async def score(self, pairs: Any, *, max_tokens: int = 0) -> list[TextScore]:
        texts = [p.prompt if isinstance(p.prompt, str) else p.prompt[0].content for p in pairs]
        parts = [text.partition("# Plan\n") for text in texts]
        gains = [
            0.5 if plan == pair.reply else 0.1 if plan else 0.0
            for pair, (*_, plan) in zip(pairs, parts, strict=True)
        ]
        bare = [
            Pair(before + mark, pair.reply)
            for pair, (before, mark, _) in zip(pairs, parts, strict=True)
        ]
        scores = await super().score(bare, max_tokens=max_tokens)
        return [
            TextScore(tuple(x + gain for x in s.logprobs))
            for s, gain in zip(scores, gains, strict=True)
        ]


def test_the_floor_of_the_controls_is_what_says_nothing() -> None:
    """With a scorer that any text helps, the published edges pay for filler; counted from the
    controls they do not.
    """
    (task,) = first_tasks(1)
    group = [
        planned(task, plan)
        for plan in (task.answer, task.filler, task.synopsis, "Another text altogether.")
    ]
    published = [s.total for s in scored(vr_cli(floor="none"), group, Generous())]
    above = [s.total for s in scored(vr_cli(floor="controls"), group, Generous())]
    assert published == [1, 1, 1, 1]
    assert above == [1, 0, 0, 0]


def test_controls_that_earn_are_found() -> None:
    """With the published reward and a scorer that any text helps, the check of the controls fails
    and names them.
    """
    environment = Story().overridden(reward=vr_cli(floor="none"))
    checks = asyncio.run(check_controls(environment, count=3, services={"scorer": Generous()}))
    assert {c.name for c in checks if c.wrong} == {
        "copied_synopsis",
        "filler",
        "page",
        "wrong_chapter",
    }


@pytest.mark.more
def test_an_honest_plan_beats_the_empty_ones() -> None:
    """By improvement, on each task; the gold chapter is at least as good."""
    scorer = Scorer()
    environment = Story()
    for task in first_tasks(40, boats=4):
        plans = [environment.gold(task, ()), task.answer, "", *task.empty_plans(8)]
        gold, honest, *empty = (
            s.parts["vr_cli.improvement"]
            for s in scored(vr_cli, [planned(task, p) for p in plans], scorer)
        )
        assert gold >= honest > 2
        assert max(empty) <= 0.0


def test_one_forgotten_move_costs() -> None:
    """A plan that forgets one move earns less than the honest one, one that forgets all earns
    nothing.
    """
    scorer = Scorer()
    for story in islice(stories("dev", boats=2, size=40, seed=0), 40):
        task, canal = task_of(story), min(story.last)
        plans = [
            task.answer,
            story.plan({**story.last, canal: story.first[canal]}),
            story.plan(story.first),
        ]
        scores = scored(vr_cli, [planned(task, p) for p in plans], scorer)
        honest, one, none = (s.parts["vr_cli.improvement"] for s in scores)
        assert honest > one > none
        assert scores[2].total == 0


def test_the_overlap_with_an_honest_plan() -> None:
    """F1 of the words; plans without a word are compared, too, and a task without an honest plan
    has no yardstick.
    """
    (task,) = first_tasks(1)
    assert plan_overlap.score(planned(task, task.answer)).total == 1.0
    assert plan_overlap.score(planned(task, "")).total == 0.0
    assert 0 < plan_overlap.score(planned(task, task.wrong)).total < 1
    assert plan_overlap.score(planned(replace(task, answer="..."), "")).total == 0.0
    with pytest.raises(RewardFault, match="no honest plan"):
        plan_overlap.score(planned(replace(task, answer=""), "End."))
