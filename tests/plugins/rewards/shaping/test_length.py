"""Rewards on length: values by hand, bounds, the two forms for right and wrong answers, refused
arguments.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Rollout, Task, Turn
from quintain.errors import BindingError, RewardFault
from quintain.interfaces.reward import Reward, RewardContext, reward
from quintain.learning import Batch, Sample
from quintain.learning.pieces.advantages import Step
from quintain.registry.binding import bind
from quintain.registry.pieces import find
from quintain.testing import rollout
from quintain_authoring import RewardSuite
from quintain_rewards.shaping import length_cosine, length_kimi, length_l1, soft_overlong

from ....core.learning import batches

TASK = Task(prompt="?", answer="4")
LENGTHS = st.integers(0, 10**6)


@dataclass(frozen=True, kw_only=True)
class BudgetTask(Task):
    budget: Any = None


def of_length(tokens: int, reply: str = "4", task: Task = TASK) -> Rollout[Any, Any]:
    """A rollout of one turn with *tokens* sampled tokens."""
    return rollout(task, reply).replace(turns=(Turn(text=reply, reply=reply, tokens=tokens),))


def value(of: Reward, tokens: int, reply: str = "4") -> float:
    return of.score(of_length(tokens, reply)).total


def values(of: Reward, *rollouts: Rollout[Any, Any]) -> list[float]:
    """The totals of a group."""
    scores = asyncio.run(of.score_all(rollouts, RewardContext()))
    return [s.total for s in scores]  # type: ignore[union-attr]  # a failure has no total, which fails the test


@reward(range=(0, 1))
def is_right(rollout: Rollout[Any, Any]) -> float:
    """A stand-in for a verifier, which needs no service."""
    return float(rollout.reply == rollout.task.answer)


class TestLengthL1Exact(RewardSuite):
    reward = length_l1(target=100, alpha=0.01)

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (of_length(100), 0),
            (of_length(150), -0.5),
            (of_length(50), -0.5),
            (of_length(0), -1),
            (of_length(1100), -10),
        ]


class TestLengthL1Maximum(RewardSuite):
    reward = length_l1(target=100, form="maximum", alpha=0.01)

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (of_length(100), 0.5),
            (of_length(80), 0.7),
            (of_length(50), 1),
            (of_length(0), 1),
            (of_length(140), 0.1),
            (of_length(150), 0),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [of_length(151), of_length(10**9)]


class TestLengthCosine(RewardSuite):
    reward = length_cosine(limit=100, start=2, end=1, over=-10)
    lowest = -10

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (of_length(0), 2),
            (of_length(25), 1.5 + math.sqrt(2) / 4),
            (of_length(50), 1.5),
            (of_length(75), 1.5 - math.sqrt(2) / 4),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [of_length(100), of_length(101)]


class TestSoftOverlong(RewardSuite):
    reward = soft_overlong(limit=100, buffer=40)
    lowest = -1

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (of_length(0), 0),
            (of_length(60), 0),
            (of_length(61), -0.025),
            (of_length(80), -0.5),
            (of_length(100), -1),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [of_length(101), of_length(10**9)]


class TestLengthKimi(RewardSuite):
    reward = length_kimi

    def gold(self):  # type: ignore[no-untyped-def]
        # alone, every answer is the shortest and the longest
        return [(of_length(7), 0), (rollout(TASK), 0)]


def test_kimi_by_hand() -> None:
    """Lengths 10, 20, 30 and 50: lambda is 0.5, 0.25, 0 and -0.5."""
    group = [of_length(n) for n in (10, 20, 30, 50)]
    assert values(length_kimi, *group) == [0.5, 0.25, 0, -0.5]
    assert values(length_kimi(answers="wrong"), *group) == [0, 0, 0, -0.5]
    assert values(length_kimi, *group[:1] * 3) == [0, 0, 0]
    assert values(length_kimi) == []


@given(st.lists(LENGTHS, min_size=1, max_size=6), st.sampled_from(["right", "wrong"]), st.randoms())
def test_kimi_ignores_the_order_of_a_group(lengths: list[int], answers: Any, random: Any) -> None:
    """The score belongs to the length alone; bounds hold, and a longer answer never scores more."""
    form = length_kimi(answers=answers)
    by_length = dict(zip(lengths, values(form, *map(of_length, lengths)), strict=True))
    shuffled = random.sample(lengths, len(lengths))
    assert values(form, *map(of_length, shuffled)) == [by_length[n] for n in shuffled]
    assert all(-0.5 <= v <= 0.5 for v in by_length.values())
    assert [by_length[n] for n in sorted(by_length)] == sorted(by_length.values(), reverse=True)


def test_kimi_equals_the_advantage_of_the_algorithm() -> None:
    """The expression of the docstring, and `length_reward` of quintain-algorithms: same lengths,
    same outcomes.
    """
    both = length_kimi.gate(is_right) + length_kimi(answers="wrong").gate(1 - is_right)
    for lengths, replies in itertools.product(
        [(1, 3, 5), (2, 2, 9), (4, 4, 4)], itertools.product("45", repeat=3)
    ):
        outcomes = [float(reply == "4") for reply in replies]
        samples = tuple(
            Sample(sequences=(batches.sequence([1], [2] * n),), outcome=o, group=0)
            for n, o in zip(lengths, outcomes, strict=True)
        )
        step = Step(batch=Batch(samples=samples), rewards=tuple(outcomes))
        advantage, _ = find("advantage", "length_reward").configure(start=0)(step, state=None)
        shaped = values(is_right + both, *map(of_length, lengths, replies))
        mean = sum(shaped) / len(shaped)
        assert [v - mean for v in shaped] == pytest.approx(advantage)


def test_cosine_with_right_and_wrong_answers_is_the_papers() -> None:
    """The outcome and the expression of the docstring: 2 to 1 for right answers, -10 to 0 for wrong
    ones.
    """
    shaping = length_cosine(limit=4096, over=-11).gate(is_right) + length_cosine(
        limit=4096, start=-10, over=-10
    ).gate(1 - is_right)
    total = is_right + shaping
    right = {0: 2.0, 2048: 1.5, 4096: -10.0}
    wrong = {0: -10.0, 2048: -5.0, 4096: -10.0}
    assert right == pytest.approx({n: value(total, n) for n in right})
    assert wrong == pytest.approx({n: value(total, n, "5") for n in wrong})


def test_l1_maximum_with_an_outcome_is_the_papers() -> None:
    """Outcome plus shaping is the outcome times the clipped factor; a wrong answer gets nothing at
    any length.
    """
    total = is_right + is_right * (length_l1(target=2000, form="maximum") - 1)
    assert [value(total, n) for n in (0, 2000, 3000, 9000)] == pytest.approx([1, 0.5, 0.2, 0])
    assert [value(total, n, "5") for n in (0, 2000, 9000)] == [0, 0, 0]


def test_l1_reads_the_target_of_the_task() -> None:
    near = of_length(90, task=BudgetTask(prompt="?", budget=100))
    assert length_l1(target="budget", alpha=0.5).score(near).total == -5
    for budget in (None, 0, -5, True, "100", math.nan, math.inf):
        with pytest.raises(
            RewardFault, match="in its field 'budget'; expected a number of tokens above 0"
        ):
            length_l1(target="budget").score(
                of_length(90, task=BudgetTask(prompt="?", budget=budget))
            )
    with pytest.raises(RewardFault, match="None in its field 'budgte'"):
        length_l1(target="budgte").score(of_length(90, task=BudgetTask(prompt="?", budget=100)))


@given(LENGTHS, st.integers(1, 10**6), st.floats(1e-6, 10), st.floats(-2, 2))
def test_l1_stays_in_its_bounds(tokens: int, target: int, alpha: float, delta: float) -> None:
    exact = length_l1(target=target, alpha=alpha)
    maximum = exact(form="maximum", delta=delta)
    assert value(exact, tokens) <= 0
    assert 0 <= value(maximum, tokens) <= 1
    assert value(exact, target) == 0
    assert value(maximum, tokens + 1) <= value(maximum, tokens)


@given(LENGTHS, st.integers(1, 10**6), st.tuples(*[st.floats(-100, 100)] * 3))
def test_cosine_stays_in_its_bounds(
    tokens: int, limit: int, settings: tuple[float, float, float]
) -> None:
    start, end, over = settings
    got = value(length_cosine(limit=limit, start=start, end=end, over=over), tokens)
    assert min(settings) - 1e-9 <= got <= max(settings) + 1e-9
    assert tokens < limit or got == over


@given(LENGTHS, st.integers(1, 10**6), st.data())
def test_soft_overlong_stays_in_its_bounds(tokens: int, limit: int, data: st.DataObject) -> None:
    """And never rises with the length."""
    punished = soft_overlong(limit=limit, buffer=data.draw(st.integers(1, limit)))
    assert 0 >= value(punished, tokens) >= value(punished, tokens + 1) >= -1
    assert value(punished, limit + 1) == -1


def test_length_counts_the_tokens_of_all_turns_and_no_others() -> None:
    own = (Turn(text="a", tokens=30), Turn(text="b", tokens=50))
    assert soft_overlong(limit=100, buffer=40).score(rollout(TASK).replace(turns=own)).total == -0.5
    other = replace(own[0], player="user", tokens=0)
    assert (
        soft_overlong(limit=100, buffer=40).score(rollout(TASK).replace(turns=(*own, other))).total
        == -0.5
    )


WRONG: list[tuple[Any, dict[str, Any]]] = [
    (length_l1, {"target": 0}),
    (length_l1, {"target": 100, "alpha": 0.0}),
    (length_l1, {"target": 100, "alpha": math.nan}),
    (length_cosine, {"limit": 0}),
    (soft_overlong, {"limit": 100, "buffer": 0}),
]


@pytest.mark.parametrize(
    ("of", "args"), WRONG, ids=lambda x: getattr(x, "name", None) or ",".join(x)
)
def test_arguments_are_refused_before_a_run_and_in_python(of: Any, args: dict[str, Any]) -> None:
    """A recipe is refused when it is read; Python code gets a failure that names the argument."""
    with pytest.raises(BindingError, match=f"reward 'x': {list(args)[-1]}"):
        bind(of, args, who="reward 'x'")
    with pytest.raises(RewardFault, match=f"{of.name}.*{list(args)[-1]}"):
        of(**args).score(of_length(10))


def test_a_buffer_above_the_limit_is_refused() -> None:
    with pytest.raises(RewardFault, match=r"buffer is 101; expected 1 to limit \(100\) tokens"):
        soft_overlong(limit=100, buffer=101).score(of_length(10))


@pytest.mark.parametrize(
    ("of", "missing"), [(length_l1, "target"), (length_cosine, "limit"), (soft_overlong, "limit")]
)
def test_lengths_have_no_default(of: Any, missing: str) -> None:
    """A limit that fits no run would be a reward without effect."""
    with pytest.raises(BindingError, match=f"needs the argument '{missing}'"):
        bind(of, {}, who="reward")


def test_forms_are_checked() -> None:
    """An unknown name must not count as one of the two forms."""
    for of, args in (
        (length_l1, {"target": 5, "form": "max"}),
        (length_kimi, {"answers": "correct"}),
    ):
        key, name = list(args.items())[-1]
        with pytest.raises(BindingError, match=f"{key} is '{name}'; expected Literal"):
            bind(of, args, who="reward")
        with pytest.raises(RewardFault, match=f"{of.name}: {key} is '{name}'; expected one of "):
            of(**args).score(of_length(10))
