"""Rewards and the algebra that combines them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import (
    BindingError,
    EpisodeError,
    InfrastructureError,
    PolicyFault,
    RewardFault,
)
from quintain.interfaces.reward import Reward, RewardContext, constant, group_reward, reward
from quintain.interfaces.service import need
from quintain.testing import rollout
from quintain.types.rollout import Rollout, Score
from quintain.types.task import Task

TASK = Task(prompt="2 + 2 =", answer="4")
FINITE = st.floats(-1e6, 1e6)


@reward(range=(0, 1))
def right(r: Rollout[Task, Any]) -> float:
    """Whether the reply is the answer."""
    return float(r.reply == r.task.answer)


@reward
def length(r: Rollout[Task, Any], *, per: float = 1.0) -> float:
    return len(r.reply) / per


@reward
async def judged(
    r: Rollout[Task, Any], *, rubric: str, judge: Any = need(), other: Any = need("spare")
) -> Score:
    return Score(value=await judge(r.reply, rubric) + other, parts={"raw": 1}, reason="said so")


@group_reward
def rank(group: Sequence[Rollout[Task, Any]]) -> list[float]:
    order = sorted(range(len(group)), key=lambda i: group[i].reply)
    return [order.index(i) / len(group) for i in range(len(group))]


def given_score(**score: Any) -> Reward:
    """A reward of the same score for everyone, under a name of its own."""

    @reward
    def fixed(r: Rollout[Task, Any]) -> Score:
        return Score(**score)

    return fixed


def of(r: Reward, text: str = "4", **more: Any) -> Score:
    return r.score(rollout(TASK, text), **more)


def outcomes(r: Reward, *texts: str, step: int = 0) -> list[Score | EpisodeError]:
    return asyncio.run(r.score_all([rollout(TASK, t) for t in texts], RewardContext(step=step)))


def test_a_reward_is_configured_by_calling_and_evaluated_by_score() -> None:
    assert of(right).total == 1
    assert of(right, "5").total == 0
    assert of(length(per=4), "four").total == 1
    assert of(length(per=2)(per=8), "four").total == 0.5
    assert right.name == "right"
    assert right.__doc__ == "Whether the reply is the answer."
    assert list(length.parameters) == ["per"]


def test_misspelled_or_positional_configuration() -> None:
    with pytest.raises(BindingError, match="no parameter 'pre'; did you mean 'per'"):
        length(pre=3)  # type: ignore[call-arg]
    with pytest.raises(BindingError, match=r"length\.score\(rollout\)"):
        length(rollout(TASK, "4"))  # type: ignore[call-arg]


def test_services_fill_needs_by_slot() -> None:
    async def judge(reply: str, rubric: str) -> float:
        return len(reply) + len(rubric)

    configured = judged(rubric="ab")
    assert set(configured.needs) == {"judge", "spare"}
    score = of(configured, "four", judge=judge, spare=10)
    assert score.total == 16
    assert score.parts == {"judged": 16, "judged.raw": 1}
    assert score.reason == "said so"
    with pytest.raises(BindingError, match=r"\[services.spare\]"):
        of(configured, judge=judge)
    assert set((0.5 * (configured + right).clip(0, 1)).needs) == {"judge", "spare"}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1",
        b"1",
        "nan",
        math.nan,
        math.inf,
        -math.inf,
        [1.0],
        10**400,
        object(),
        Score(value=math.nan),
    ],
)
def test_what_is_no_finite_number_fails_its_sample(value: Any) -> None:
    @reward
    def odd(r: Rollout[Task, Any]) -> float:
        return value if r.reply == "odd" else 1.0

    @group_reward
    def oddly(group: Sequence[Rollout[Task, Any]]) -> list[float]:
        return [value if r.reply == "odd" else 1.0 for r in group]

    for r in (odd, oddly, 2 * odd, odd + oddly, (odd * 0).gate(right)):
        bad, good = outcomes(r, "odd", "4")
        assert isinstance(bad, RewardFault), r
        assert "odd" in str(bad)
        assert isinstance(good, Score)
    with pytest.raises(RewardFault, match="expected"):
        of(odd, "odd")


@pytest.mark.parametrize("value", [1, True, 1.0, Decimal(1), Score(value=1)])
def test_what_is_a_number_is_taken_and_becomes_a_float(value: Any) -> None:
    @reward
    def one(r: Rollout[Task, Any]) -> float:
        return value  # type: ignore[no-any-return]

    score = of(one)
    assert score.total == 1.0
    assert type(score.value) is float
    assert score.parts == {"one": 1.0}


@pytest.mark.parametrize(
    "field", [{"turns": (math.nan,)}, {"players": {"a": math.inf}}, {"turns": ("1",)}]
)
def test_turns_and_players_must_be_finite_too(field: dict[str, Any]) -> None:
    with pytest.raises(RewardFault):
        of(given_score(**field))


def test_an_overflow_in_the_algebra_is_found() -> None:
    with pytest.raises(RewardFault, match="finite"):
        of(given_score(value=1e308) * 100)


def test_exceptions_become_failures_that_keep_their_kind() -> None:
    for error, kind in (
        (KeyError("x"), RewardFault),
        (InfrastructureError("judge is down"), InfrastructureError),
        (PolicyFault("forbidden"), PolicyFault),
    ):

        @reward
        def fails(r: Rollout[Task, Any], error: Exception = error) -> float:
            if r.reply == "bad":
                raise error
            return 1.0

        bad, good = outcomes(fails + right, "bad", "4")
        assert type(bad) is kind, bad
        assert isinstance(good, Score)
        assert good.total == 2
    assert isinstance(bad, EpisodeError)


def test_the_cause_of_a_failure_is_kept() -> None:
    @reward
    def fails(r: Rollout[Task, Any]) -> float:
        return 1 / 0

    with pytest.raises(RewardFault, match="reward 'fails' failed: ZeroDivisionError") as caught:
        of(fails)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_declared_range_is_checked() -> None:
    @reward(range=(0, 1))
    def wide(r: Rollout[Task, Any]) -> float:
        return float(r.reply)

    assert of(wide, "1").total == 1
    with pytest.raises(RewardFault, match="outside its declared range"):
        of(wide, "1.1")


def test_group_rewards_combine_with_others() -> None:
    mixed = 0.5 * rank + right
    assert mixed.group
    assert not right.group
    scores = outcomes(mixed, "4", "1", "9")
    assert [s.total for s in scores if isinstance(s, Score)] == pytest.approx(
        [1 + 0.5 / 3, 0, 0.5 * 2 / 3]
    )


def test_a_group_reward_with_too_few_scores_fails_everyone() -> None:
    @group_reward
    def short(group: Sequence[Rollout[Task, Any]]) -> list[float]:
        return [1.0]

    for scored in outcomes(short, "a", "b"):
        assert isinstance(scored, RewardFault)
        assert "1 scores for 2 rollouts" in str(scored)


def test_parts_name_every_term() -> None:
    score = of(0.5 * right + length(per=1), "4")
    assert score.parts == {"right": 1.0, "length": 1.0}


@given(FINITE, FINITE, st.floats(-100, 100))
def test_arithmetic_is_arithmetic(a: float, b: float, k: float) -> None:
    x, y = constant(a), constant(b)
    assert of(x + y).total == pytest.approx(a + b)
    assert of(x - y).total == pytest.approx(a - b)
    assert of(k - x).total == pytest.approx(k - a)
    assert of(-x).total == -a
    assert of(k * x).total == of(x * k).total == pytest.approx(a * k)
    assert of(x * y).total == pytest.approx(a * b)
    assert of(sum([x, y])).total == pytest.approx(a + b)  # type: ignore[arg-type]


@given(FINITE, FINITE, FINITE)
def test_clip_bounds(a: float, b: float, c: float) -> None:
    low, high = sorted((b, c))
    if low < high:
        assert of(constant(a).clip(low, high)).total == min(max(a, low), high)
    else:
        with pytest.raises(BindingError, match="below"):
            constant(a).clip(low, high)


@pytest.mark.parametrize(
    "by, at, total", [(1.0, 1.0, 3.0), (0.99, 1.0, 0.0), (0.5, 0.5, 3.0), (-1.0, 0.0, 0.0)]
)
def test_gate(by: float, at: float, total: float) -> None:
    assert of(constant(3).gate(given_score(value=by), at)).total == total


@pytest.mark.parametrize("step, factor", [(0, 1.0), (5, 0.75), (10, 0.5), (99, 0.5)])
def test_ramp_goes_linearly_and_stays(step: int, factor: float) -> None:
    assert of(constant(4).ramp(1.0, 0.5, 10), step=step).total == pytest.approx(4 * factor)


def test_ramp_needs_a_step() -> None:
    with pytest.raises(BindingError, match="at least 1"):
        constant(1).ramp(0, 1, 0)


@given(
    FINITE,
    st.lists(FINITE, max_size=4),
    st.dictionaries(st.sampled_from("ab"), FINITE),
    st.floats(-10, 10),
)
def test_scaling_scales_value_turns_and_players(
    value: float, turns: list[float], players: dict[str, float], k: float
) -> None:
    score = of(k * given_score(value=value, turns=tuple(turns), players=players))
    assert score.value == pytest.approx(value * k)
    assert score.turns == pytest.approx(tuple(t * k for t in turns))
    assert score.players == pytest.approx({s: v * k for s, v in players.items()})
    assert score.total == pytest.approx(score.value + math.fsum(score.turns))


SCORES = st.builds(
    dict,
    value=FINITE,
    turns=st.lists(FINITE, max_size=3).map(tuple),
    players=st.dictionaries(st.sampled_from("abc"), FINITE, max_size=2),
)


@given(SCORES, SCORES)
def test_a_sum_adds_totals_and_what_every_player_gets(a: dict[str, Any], b: dict[str, Any]) -> None:
    x, y = Score(**a), Score(**b)
    both = of(given_score(**a) + given_score(**b))
    assert both.total == pytest.approx(x.total + y.total, abs=1e-6)
    for player in "abc":
        assert both.of_player(player) == pytest.approx(
            x.of_player(player) + y.of_player(player), abs=1e-6
        )


@given(SCORES, FINITE, st.booleans())
def test_a_product_with_a_whole_score_scales(a: dict[str, Any], k: float, left: bool) -> None:
    turned, whole = given_score(**a), given_score(value=k)
    both = of(whole * turned if left else turned * whole)
    x = Score(**a)
    assert both.total == pytest.approx(x.total * k, rel=1e-9, abs=1e-3)
    for player in "abc":
        assert both.of_player(player) == pytest.approx(x.of_player(player) * k, rel=1e-9, abs=1e-3)


def test_products_of_two_turn_scores_and_clips_of_one_are_refused_with_a_reason() -> None:
    turned = given_score(turns=(1.0, 2.0))
    with pytest.raises(RewardFault, match="no one meaning"):
        of(turned * turned)
    with pytest.raises(RewardFault, match="cannot be clipped"):
        of(turned.clip(0, 1))


def test_names_read_as_written() -> None:
    assert repr(0.1 * length + rank.clip(-1, 1)) == "0.1 * length + (rank).clip(-1, 1)"
    assert repr(2 * (right + length)) == "2 * (right + length)"
    assert repr(right.gate(length, 2).ramp(1, 0, 10)) == "((right).gate(length, 2)).ramp(1, 0, 10)"


def test_a_combination_knows_its_range() -> None:
    """From those of its parts, over all steps; none if one of them declares none, or it has no
    bound.
    """

    @reward(range=(-1, 2))
    def graded(r: Rollout[Task, Any]) -> float:
        return 0.0

    @reward
    def unbounded(r: Rollout[Task, Any]) -> float:
        return 0.0

    @reward(range=(-math.inf, math.inf))
    def nats(r: Rollout[Task, Any]) -> float:
        return 0.0

    for combined, expected in (
        (graded, (-1, 2)),
        (graded + 0.5, (-0.5, 2.5)),
        (1 - graded, (-1, 2)),
        (graded * graded, (-2, 4)),
        (-2 * graded, (-4, 2)),
        (graded.clip(0, 1), (0, 1)),
        (graded.gate(graded, 1), (-1, 2)),
        (graded.ramp(1, 3, 10), (-3, 6)),
        (graded + unbounded, None),
        (nats + graded, None),
        (nats * graded, None),
        (graded.gate(nats, 0.5), (-1, 2)),
        (nats.gate(graded, 0.5), None),
        (nats.clip(0, 1), (0, 1)),
    ):
        assert expected == combined.range
