"""Evaluation: what is counted, what is left out, and what an interruption keeps."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import EnvironmentFault, NoTasksError, PolicyFault, UsageError
from quintain.evaluation.answers import final_answer
from quintain.evaluation.estimates import cons_at_k, pass_at_k, wilson
from quintain.evaluation.evaluation import (
    YOUNG_OBJECTS,
    Evaluation,
    evaluate,
    frozen_heap,
    tasks_of,
)
from quintain.interfaces.agent import Agent
from quintain.interfaces.environment import Environment, control
from quintain.interfaces.reward import group_reward, reward
from quintain.types.rollout import Rollout, Score
from quintain.types.sampling import Sampling
from quintain.types.task import Message, Task
from quintain_authoring import ControlEngine
from quintain_authoring.controls import check_controls
from quintain_authoring.evaluate.report import metrics_of, terminations_of, to_json
from quintain_authoring.scripted import ScriptedEngine

from .evaluations import (
    Doubling,
    Endless,
    Hackable,
    OnlyTrain,
    Undefined,
    measured,
    sometimes_right,
)


def test_estimates_are_those_of_the_rollouts() -> None:
    e = measured(Doubling(), samples=8, ks=(1, 4, 8), seed=3)
    right = [sum(r.reply == str(g.task.answer) for r in g.rollouts) for g in e.groups]
    assert 0 < sum(right) < 48
    assert [t.right for t in e.results] == right
    assert e.accuracy is not None
    assert e.accuracy.value == pytest.approx(sum(right) / 48)
    at_4 = e.pass_at(4)
    assert at_4 is not None
    assert at_4.value == pytest.approx(sum(pass_at_k(8, c, 4) for c in right) / 6)
    cons = e.cons_at(8)
    expected = [
        cons_at_k([(r.reply, r.reply == str(g.task.answer)) for r in g.rollouts], 8)
        for g in e.groups
    ]
    assert cons is not None
    assert cons.value == pytest.approx(sum(expected) / 6)
    assert list(e.estimates()) == ["pass@1", "pass@4", "pass@8", "cons@4", "cons@8"]
    assert terminations_of(e) == {"finished": 48}
    assert e.failed == 0
    assert e.tokens == pytest.approx(sum(len(r.reply) + 1 for r in e.rollouts) / 48)


def test_parts_of_the_reward_are_reported_where_there_are_several() -> None:
    """They are means over rollouts; the only part of a reward is its total and is not repeated."""

    @reward(range=(0, 1))
    def split(rollout: Rollout[Task, None]) -> Score:
        right = rollout.reply == str(rollout.task.answer)
        return Score(value=float(right), parts={"wrong": float(not right)})

    class Parted(Doubling):
        reward = split

    parted, plain = measured(Parted(), samples=8, seed=3), measured(Doubling(), samples=8, seed=3)
    assert plain.accuracy is not None
    share = plain.accuracy.value
    assert 0 < share < 1
    assert metrics_of(plain) == {}
    assert {"split": share, "split.wrong": 1 - share} == pytest.approx(metrics_of(parted))


def test_the_same_seed_gives_the_same_evaluation_at_any_concurrency() -> None:
    def replies(**settings: Any) -> list[str]:
        return [r.reply for r in measured(Doubling(), samples=4, **settings).rollouts]

    one = replies(seed=1, concurrency=1)
    assert one == replies(seed=1, concurrency=24)
    assert one == replies(seed=1, concurrency=24, progress=lambda _: None)
    assert one != replies(seed=2)


def test_greedy_is_the_default_for_one_sample() -> None:
    assert measured(Doubling()).sampling == Sampling(temperature=0.0)
    assert measured(Doubling(), samples=2).sampling == Sampling(temperature=1.0)


def test_failures_are_left_out_and_counted() -> None:
    engine = ScriptedEngine(replies=sometimes_right, fail_on=range(1, 10))
    e = measured(Doubling(), engine, samples=4, retries=0, concurrency=1, ks=(1, 4))
    clean = measured(Doubling(), samples=4, retries=0, concurrency=1)
    assert [t.samples for t in e.results] == [0, 0, 3, 4, 4, 4]
    assert [t.failed for t in e.results] == [4, 4, 1, 0, 0, 0]
    assert e.failed == 9 / 24
    assert terminations_of(e) == {"finished": 15, "infrastructure_error": 9}
    # What is left is what the same rollouts say without the failures; the two lost tasks count
    # nowhere.
    expected = [t.right / 4 for t in clean.results[3:]]
    third = sum(r.reply == str(r.task.answer) for r in clean.groups[2].rollouts[1:]) / 3
    assert e.accuracy is not None
    assert e.accuracy.value == pytest.approx((third + sum(expected)) / 4)
    at_4 = e.pass_at(4)
    assert at_4 is not None
    assert at_4.tasks == 3
    assert sum(e.reasons.values()) == 9
    assert all("scripted failure" in r for r in e.reasons)


def test_failures_are_tried_again() -> None:
    engine = ScriptedEngine(replies=sometimes_right, fail_on=(1, 3))
    e = measured(Doubling(), engine, retries=1, concurrency=1)
    clean = measured(Doubling())
    assert e.failed == 0
    assert [r.reply for r in e.rollouts] == [r.reply for r in clean.rollouts]


def test_where_everything_fails_nothing_is_claimed() -> None:
    e = measured(Doubling(), ScriptedEngine(replies="", fail_on=range(1, 100)), retries=0)
    assert e.accuracy is None
    assert e.reward is None
    assert e.failed == 1.0
    assert to_json(e)["pass@1"] is None
    json.dumps(to_json(e))


def test_faults_of_the_policy_do_count() -> None:
    class Strict(Doubling):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            if (await agent.turn()).reply != str(task.answer):
                raise PolicyFault("wrong, and that is forbidden")

    e = measured(Strict(), samples=2)
    right = sum(r.reply == str(r.task.answer) for r in e.rollouts)
    assert terminations_of(e) == {"finished": right, "policy_fault": 12 - right}
    assert e.accuracy is not None
    assert e.accuracy.value == pytest.approx(right / 12)


def test_one_sample_per_task_has_wilsons_interval() -> None:
    e = measured(Doubling(size=40))
    assert e.accuracy is not None
    assert (e.accuracy.low, e.accuracy.high) == pytest.approx(wilson(e.accuracy.value, 40))


def test_tasks_listed_twice_draw_different_samples() -> None:
    task = Task(prompt="5 + 5 = ?", answer=10)
    e = measured(Doubling(), tasks=[task] * 12)
    assert len({r.seed for r in e.rollouts}) == 12


def test_success_has_a_threshold() -> None:
    @reward
    def half(rollout: Rollout[Task, None]) -> float:
        return 0.5

    @reward
    def nearly(rollout: Rollout[Task, None]) -> float:
        return 0.7 + 0.2 + 0.1  # 0.9999999999999999

    e = measured(Doubling().overridden(reward=half))
    assert e.accuracy is not None
    assert e.accuracy.value == 0
    assert e.reward is not None
    assert e.reward.value == 0.5
    lenient = measured(Doubling().overridden(reward=half), success=0.5).accuracy
    assert lenient is not None
    assert lenient.value == 1
    rounded = measured(Doubling().overridden(reward=nearly)).accuracy
    assert rounded is not None
    assert rounded.value == 1


def test_tasks_of_a_split() -> None:
    assert len(tasks_of(Doubling(), "dev")) == 6
    assert [t.answer for t in tasks_of(Endless(), "test", 3)] == [0, 1, 2]
    assert len(tasks_of(Doubling(), "dev", 100)) == 6


def test_what_cannot_be_evaluated_says_why() -> None:
    with pytest.raises(UsageError, match=r"no end: say how many with --tasks N"):
        tasks_of(Endless(), "test")
    with pytest.raises(NoTasksError, match=r"no tasks for the split 'test'; it has some for train"):
        tasks_of(OnlyTrain(), "test")
    with pytest.raises(NoTasksError, match=r"define tasks\(self, split\)"):
        tasks_of(Undefined(), "test")
    with pytest.raises(UsageError, match=r"unknown split 'tset'; did you mean 'test'"):
        tasks_of(Doubling(), "tset")
    with pytest.raises(UsageError, match="expected at least 1"):
        tasks_of(Doubling(), "test", 0)
    with pytest.raises(UsageError, match="k = 8 with 4 samples"):
        measured(Doubling(), samples=4, ks=(1, 8))

    class Broken(Doubling):
        def tasks(self, split: str) -> Iterable[Task]:
            yield Task(prompt="a")
            raise RuntimeError("file is gone")

    class Wrong(Doubling):
        def tasks(self, split: str) -> Iterable[Any]:
            return ["a"]

    class Unjudged(Environment[Task, None]):
        def tasks(self, split: str) -> Iterable[Task]:
            return [Task(prompt="a")]

    with pytest.raises(EnvironmentFault, match="RuntimeError: file is gone"):
        tasks_of(Broken(), "test")
    with pytest.raises(EnvironmentFault, match="yields a str as a task"):
        tasks_of(Wrong(), "test")
    with pytest.raises(UsageError, match="has no reward"):
        measured(Unjudged())


def test_controls_read_their_split_twice() -> None:
    """Once for the tasks, and once to see that they are the same."""
    read: list[str] = []

    class Counted(Doubling):
        def tasks(self, split: str) -> Iterable[Task]:
            read.append(split)
            return super().tasks(split)

    asyncio.run(check_controls(Counted(), count=4))
    assert Counter(read) == {"test": 2, "train": 1}
    with pytest.raises(UsageError, match="0 tasks were asked for"):
        asyncio.run(check_controls(Doubling(), count=0))


def test_controls_are_checked() -> None:
    good = asyncio.run(check_controls(Doubling()))
    assert [(c.name, c.wrong) for c in good] == [("oracle", ""), ("nop", "")]
    found = {c.name: c.wrong for c in asyncio.run(check_controls(Hackable(), count=4))}
    assert found["oracle"] == found["nop"] == found["idle"] == ""
    assert "rewarded on 4 tasks" in found["shouting"]
    assert "not on 2 tasks" in found["careless"]
    assert "RuntimeError: oops" in found["crashing"]


def test_a_hack_that_beats_silence_is_found_below_success() -> None:
    @reward
    def lenient(rollout: Rollout[Task, None]) -> float:
        return 1.0 if rollout.reply == str(rollout.task.answer) else 0.1 * bool(rollout.reply)

    class Generous(Doubling):
        reward = lenient

        @control(scores="min")
        def babble(self, task: Task, messages: Sequence[Message]) -> str:
            return "so"

    found = {c.name: c.wrong for c in asyncio.run(check_controls(Generous()))}
    assert found["oracle"] == found["nop"] == ""
    assert "(0.1)" in found["babble"]


@pytest.mark.parametrize(
    "reply, answer",
    [
        ("so \\boxed{12} and \\boxed{\\frac{1}{2}} done", "\\frac{1}{2}"),
        ("<think>3</think><answer> 1,250.0 </answer> ok", "1250"),
        ("step 3\n#### 1,250", "1250"),
        ("We add.\nThe answer is $42.", "42"),
        ("-3.50", "-3.5"),
        ("Paris.", "paris"),
        ("first\n\nLondon  town\n", "london town"),
        ("\\boxed{unclosed", None),
        ("\\boxed{5}, or \\boxed{", None),
        ("\\boxed{5}. No: the answer is 6", "6"),
        ("\u22123", "-3"),
        ("1/2", "1/2"),
        ("", None),
        ("  \n ", None),
        ("\\boxed{}", None),
    ],
)
def test_final_answer(reply: str, answer: str | None) -> None:
    assert final_answer(reply) == answer


@given(st.text(alphabet="ab1,.{}<>/$# \n\\boxedanswer", max_size=60))
def test_any_reply_has_an_answer_or_none(reply: str) -> None:
    answer = final_answer(reply)
    assert answer is None or answer == answer.strip() != ""


def interrupted(environment: Environment[Any, Any], after: int, **settings: Any) -> Evaluation:
    """An evaluation of one episode at a time whose task is cancelled when *after* rollouts are
    scored.
    """

    async def run() -> Evaluation:
        task = asyncio.current_task()
        scored: list[Any] = []

        def progress(rollout: Any) -> None:
            scored.append(rollout)
            if len(scored) == after:
                assert task is not None
                task.cancel()

        async with ScriptedEngine(replies=sometimes_right) as engine:
            return await evaluate(environment, engine, concurrency=1, progress=progress, **settings)

    return asyncio.run(run())


def test_an_interrupted_evaluation_has_the_rollouts_that_are_scored() -> None:
    whole = measured(Doubling(), samples=4, seed=3)
    part = interrupted(Doubling(), 10, samples=4, seed=3, partial=True)
    replies = {(r.group, r.sample): r.reply for r in whole.rollouts}
    assert 10 <= len(part.rollouts) < 24 == part.planned
    assert part.interrupted
    assert all(r.reply == replies[r.group, r.sample] for r in part.rollouts)
    assert part.accuracy is not None
    assert part.accuracy.tasks == len(part.groups)
    assert whole.planned == 24
    assert whole.interrupted is False
    with pytest.raises(asyncio.CancelledError):
        interrupted(Doubling(), 10, samples=4)


def test_rewards_that_compare_samples_score_complete_groups_of_an_interrupted_evaluation() -> None:
    @group_reward
    def longest(rollouts: Sequence[Rollout[Task, None]]) -> list[float]:
        most = max(len(r.reply) for r in rollouts)
        return [float(len(r.reply) == most) for r in rollouts]

    class Compared(Doubling):
        reward = longest

    part = interrupted(Compared(), 10, samples=4, partial=True)
    assert part.interrupted
    assert [len(g.rollouts) for g in part.groups] == [4] * len(part.groups)
    assert all(r.outcome is not None for r in part.rollouts)
    assert part.accuracy is not None
    with pytest.raises(asyncio.CancelledError):  # no group is complete
        interrupted(Compared(), 2, samples=4, partial=True)


class Cyclic(Doubling):
    """Each episode leaves 25 objects that only the garbage collector frees."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        for _ in range(25):
            loop = Loop()
            loop.self = loop
        await agent.turn()


class Loop:
    alive = 0
    self: Any = None

    def __init__(self) -> None:
        Loop.alive += 1

    def __del__(self) -> None:
        Loop.alive -= 1


@pytest.fixture
def python_collects() -> Iterator[None]:
    """Python's own settings of the garbage collector; the tests of this process have others."""
    ours = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*ours)
    gc.freeze()


@pytest.mark.more
@pytest.mark.usefixtures("python_collects")
def test_memory_stays_flat_over_many_evaluations() -> None:
    """Collections are fewer while episodes run, but what these leave behind is freed; Python's
    settings return.
    """
    settings = (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled())
    left = []
    for _ in range(3):
        asyncio.run(evaluate(Cyclic(size=800), ControlEngine(Cyclic(), "nop")))
        left.append(Loop.alive)
    assert settings == (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled())
    assert max(left) < 30_000  # of 60,000


@pytest.mark.usefixtures("python_collects")
@pytest.mark.parametrize("own", [(0, 10, 10), (100_000, 5, 5)])
def test_the_callers_own_settings_of_the_collector_stay(own: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(*own)
        with frozen_heap():
            assert own == gc.get_threshold()
        gc.set_threshold(*before)
        gc.freeze()
        with frozen_heap():
            assert before == gc.get_threshold()
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


@pytest.mark.usefixtures("python_collects")
def test_frozen_objects_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where collections are rare, as inside another block, the count is not needed; of the million
    objects of a large process it would take a tenth of a second each time.
    """
    counted: list[int] = []
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(count()) or counted[-1])
    with frozen_heap(), frozen_heap():
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    assert counted == [0]
