"""Advantages by hand: degenerate groups, where exactly 0 is asked for, turns, the baselines of OTB
and MaxRL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from quintain import Score, Task, Turn
from quintain.errors import UsageError
from quintain.interfaces.algorithm import overlong
from quintain.learning import Batch, Sample
from quintain.learning.batch import batch_of
from quintain.learning.pieces.advantages import Step
from quintain.registry.pieces import find
from quintain.types.rollout import Group, are_equal
from quintain_algorithms.token_rewards import returns, turn_rewards
from quintain_authoring import run_episode

from ...core.learning import batches
from ...core.run.everything import Talk


def step(
    rewards: Sequence[float], groups: Sequence[int] = (), tokens: int = 2, **sample: Any
) -> Step:
    """Samples of some tokens each, with what a step under prox would hold."""
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2] * tokens),), outcome=r, group=g, **sample)
        for r, g in zip(rewards, groups or [0] * len(rewards), strict=True)
    )
    n = tokens * len(rewards)
    draw = torch.Generator().manual_seed(0)
    prox = -torch.rand(n, generator=draw, dtype=torch.float64) * 2 - 0.1
    statistics = {"prox_logp": prox, "square": torch.full((n,), 0.9, dtype=torch.float64)}
    return Step(batch=Batch(samples=samples), rewards=tuple(rewards), statistics=statistics)


RELATIVE = [
    *"group_mean group_norm leave_one_out batch_mean maxrl batch_norm".split(),
    *"reinforce_pp reinforce_pp_baseline process_norm turn_level optimal_token".split(),
]
"""Advantages that compare rewards, so that equal ones say nothing."""


@pytest.mark.parametrize("group_size", [1, 2, 3, 8, 12])
@pytest.mark.parametrize("reward", [0.0, 0.1, 0.7, 0.9, 1.0, 1e6])
@pytest.mark.parametrize("name", RELATIVE)
def test_equal_rewards_give_exactly_nothing(name: str, reward: float, group_size: int) -> None:
    """Also where their mean, in floating point, is not one of them (0.1, 0.7, 0.9), and where sums
    differ by rounding: 0.1 + 0.2 is not 0.3.
    """
    noise = [reward, (reward / 3) * 3, reward + 0.3 - 0.1 - 0.2]
    values = [noise[i % 3] for i in range(group_size)]
    assert are_equal(values)
    found = find("advantage", name)(step(values))
    assert not torch.as_tensor(found).any()


@pytest.mark.parametrize("name", [name for name in RELATIVE if name != "reinforce_pp"])
def test_turn_scores_that_are_equal_say_nothing_either(name: str) -> None:
    """But to reinforce_pp, which compares places: returns fall along a sample, whatever the others
    do.
    """
    held = step([0.7] * 4, turns=(1, 1), turn_scores=(0.35, 0.35))
    assert not torch.as_tensor(find("advantage", name)(held)).any()


@pytest.mark.parametrize("name", ["process_norm", "turn_level", "optimal_token"])
def test_equal_totals_with_other_turns_do_say_something(name: str) -> None:
    """One sample earned everything in its first turn, the other in its last."""
    held = step([1.0, 1.0])
    samples = tuple(
        replace(s, turns=(1, 1), turn_scores=scores)
        for s, scores in zip(held.batch.samples, ((1.0, 0.0), (0.0, 1.0)), strict=True)
    )
    found = find("advantage", name)(replace(held, batch=replace(held.batch, samples=samples)))
    assert (
        torch.as_tensor(found).view(2, 2)[:, 1].tolist()[0]
        < 0
        < torch.as_tensor(found).view(2, 2)[:, 1].tolist()[1]
    )


OFFSETS = [(1e7, 1.0), (-2.5e6, 1.0), (1.7e9, 60.0), (1e6, 0.5), (0.0, 1e-9)]


@pytest.mark.parametrize(("offset", "scale"), OFFSETS)
@pytest.mark.parametrize("name", [name for name in RELATIVE if name != "maxrl"])
def test_rewards_of_any_offset_and_scale_say_the_same(
    name: str, offset: float, scale: float
) -> None:
    """But for maxrl, which divides by the mean: the ranking, and where the piece divides by nothing
    the differences themselves.
    """
    rewards = [0.0, 1.0, 2.0, 4.0]
    piece = find("advantage", name)
    plain = torch.as_tensor(piece(step(rewards))).double()
    found = torch.as_tensor(piece(step([offset + scale * r for r in rewards]))).double()

    assert found.any()
    assert found.argsort(stable=True).tolist() == plain.argsort(stable=True).tolist()
    if name in ("group_mean", "leave_one_out", "batch_mean", "turn_level"):
        assert (found / scale).tolist() == pytest.approx(plain.tolist(), rel=1e-5)


@pytest.mark.parametrize("name", RELATIVE)
def test_nearly_equal_is_not_equal(name: str) -> None:
    """A difference of 1e-3 is a signal."""
    assert torch.as_tensor(find("advantage", name)(step([0.7, 0.701, 0.7]))).any()


@pytest.mark.parametrize("name", ["group_norm", "process_norm"])
def test_a_spread_that_has_no_degrees_of_freedom_gives_nothing(name: str) -> None:
    for group_size in (1, 2, 3):
        found = torch.as_tensor(
            find("advantage", name).configure(ddof=group_size)(
                step([float(i) for i in range(group_size)])
            )
        )
        assert not found.any()
    assert torch.as_tensor(find("advantage", name).configure(ddof=1)(step([0.0, 1.0]))).any()


@pytest.mark.parametrize("name", RELATIVE)
def test_a_constant_group_next_to_a_varied_one(name: str) -> None:
    """Exactly 0 where the comparison is with the group; what compares with the batch may move
    it.
    """
    found = torch.as_tensor(
        find("advantage", name)(step([0.7, 0.7, 0.0, 1.0], (0, 0, 1, 1)))
    ).double()
    per_sample = found.view(4, -1)
    over_batch = {"batch_mean", "reinforce_pp", "reinforce_pp_baseline"}
    assert not per_sample[:2].any() or name in over_batch
    assert per_sample[2:].any()


def test_a_token_weighted_mean_moves_the_constant_group_of_reinforce_pp_baseline() -> None:
    """Known and wanted (OpenRLHF #924): the whitening is over tokens."""
    held = step([0.7, 0.7, 0.0, 1.0], (0, 0, 1, 1))
    longer = replace(held.batch.samples[3], sequences=(batches.sequence([1], [2] * 6),))
    batch = replace(held.batch, samples=(*held.batch.samples[:3], longer))
    found = find("advantage", "reinforce_pp_baseline")(Step(batch=batch, rewards=held.rewards))
    x = torch.tensor([0.0] * 4 + [-0.5] * 2 + [0.5] * 6, dtype=torch.float64)
    want = (x - x.mean()) / x.std(correction=0)
    assert found == pytest.approx(want[[0, 2, 4, 11]].tolist())


def test_batch_norm_per_environment_keeps_scales_apart() -> None:
    held = step([0.0, 1.0, 0.0, 100.0], (0, 0, 1, 1))
    samples = tuple(
        replace(s, environment=e) for s, e in zip(held.batch.samples, "aabb", strict=True)
    )
    held = replace(held, batch=replace(held.batch, samples=samples))
    apart = find("advantage", "batch_norm").configure(over="environment")(held)
    assert apart == pytest.approx([-1, 1, -1, 1], rel=1e-3)
    together = find("advantage", "batch_norm")(held)
    spread = math.sqrt((2 * 0.25 + 2 * 2500) / 4)
    assert together == pytest.approx(
        [-0.5 / spread, 0.5 / spread, -50 / spread, 50 / spread], rel=1e-3
    )
    with pytest.raises(UsageError, match="expected batch or environment"):
        find("advantage", "batch_norm").configure(over="task")(held)


@pytest.mark.parametrize(
    "form, rewards, want",
    [
        ("centred", [1.0, 0.0, 0.0, 0.0], [3.0, -1.0, -1.0, -1.0]),
        ("success", [1.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]),
        ("centred", [1.0, 1.0], [0.0, 0.0]),
        ("success", [1.0, 1.0], [1.0, 1.0]),
        ("centred", [0.0, 0.0], [0.0, 0.0]),
        ("success", [0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_maxrl_by_hand(form: str, rewards: list[float], want: list[float]) -> None:
    assert find("advantage", "maxrl").configure(form=form)(step(rewards)) == pytest.approx(want)


def test_maxrl_refuses_what_its_logarithm_does_not_know() -> None:
    with pytest.raises(UsageError, match="not negative"):
        find("advantage", "maxrl")(step([-1.0, 1.0]))
    with pytest.raises(UsageError, match="centred or success"):
        find("advantage", "maxrl").configure(form="middle")(step([0.0, 1.0]))


def test_length_reward_by_hand() -> None:
    """Lengths 1, 3 and 5 give lambda 0.5, 0 and -0.5; a wrong answer gets at most 0. Group 1 has
    one length.
    """
    lengths, outcomes = (1, 3, 5, 1, 4, 4), (1.0, 1.0, 1.0, 0.0, 1.0, 0.0)
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2] * n),), outcome=r, group=int(i > 3))
        for i, (n, r) in enumerate(zip(lengths, outcomes, strict=True))
    )
    held = Step(batch=Batch(samples=samples), rewards=outcomes)
    piece = find("advantage", "length_reward")
    plain = [0.25, 0.25, 0.25, -0.75, 0.5, -0.5]
    values, state = piece(held, state=None)
    assert values == pytest.approx(plain)
    assert state == 1
    assert piece(held, state=49)[0] == pytest.approx(plain)
    values, state = piece(held, state=50)
    assert values == pytest.approx([0.75, 0.25, -0.25, -0.75, 0.5, -0.5])
    assert state == 51
    wrong = Step(
        batch=Batch(samples=tuple(replace(s, outcome=0.0) for s in samples)), rewards=(0.0,) * 6
    )
    assert piece.configure(weight=2.0, start=0)(wrong, state=None)[0] == pytest.approx(
        [0.25, 0.25, -0.75, 0.25, 0, 0]
    )


def test_returns_and_process_rewards_by_hand() -> None:
    """Two turns of one and two tokens with scores 0.5 and 0.25; 1.25 came for the whole, hence with
    the last token.
    """
    sample = Sample(
        sequences=(batches.sequence([1], [2, 3, 4]),),
        outcome=2.0,
        group=0,
        turns=(1, 2),
        turn_scores=(0.5, 0.25),
    )
    other = Sample(sequences=(batches.sequence([1], [2]),), outcome=0.5, group=0)
    held = Step(batch=Batch(samples=(sample, other)), rewards=(2.0, 0.5))
    assert returns(held).tolist() == pytest.approx([2.0, 1.5, 1.5, 0.5])
    scores = torch.tensor([0.5, 1.5, 0.5], dtype=torch.float64)  # of the three turns of the group
    normed = ((scores - scores.mean()) / (scores.std(correction=0) + 1e-4)).tolist()
    want = [normed[0] + normed[1], normed[1], normed[1], normed[2]]
    assert find("advantage", "process_norm")(held).tolist() == pytest.approx(want)


def test_a_turn_without_tokens_hands_its_score_on() -> None:
    """What it was given is not lost, and the scores of other turns stay with them."""
    sample = Sample(
        sequences=(batches.sequence([1], [2, 3]),),
        outcome=1.0,
        group=0,
        turns=(1, 0, 1),
        turn_scores=(0.5, 0.2, 0.3),
    )
    held = Step(batch=Batch(samples=(sample,)), rewards=(1.0,))
    assert returns(held).tolist() == pytest.approx([1.0, 0.5])


def test_scores_of_turns_stay_with_their_turns_where_one_has_no_tokens() -> None:
    """An engine may answer with nothing; the scores of that turn and of the turns after it still
    count.
    """
    said = run_episode(Talk(), Task(prompt="?"), ["ab", "c"])
    first, last = said.turns
    played = replace(
        said, turns=(first, Turn(text=""), last), outcome=Score(turns=(0.1, 0.2, 0.4)), shaping=None
    )
    (sample,) = batch_of(
        [Group(task=said.task, rollouts=(played,))], temperature=1.0, max_tokens=8
    ).samples
    assert sample.turn_scores == (0.1, 0.2, 0.4)
    earned = [(first.tokens, pytest.approx(0.1)), (last.tokens, pytest.approx(0.6))]
    assert earned == turn_rewards(sample, sample.total)


def test_turn_level_by_hand() -> None:
    """Three samples of 2, 2 and 3 turns. Returns from each turn on, at gamma 0.5: (1, 2), (0.5, 1),
    (0.25, 0.5, 1); the third turn of the last is compared with the whole returns of the others.
    """
    shapes = [((1, 2), (0.0, 2.0)), ((2, 1), (0.0, 1.0)), ((1, 1, 1), (0.0, 0.0, 1.0))]
    samples = tuple(
        Sample(
            sequences=(batches.sequence([1], [2] * 3),),
            outcome=sum(scores),
            group=0,
            turns=turns,
            turn_scores=scores,
        )
        for turns, scores in shapes
    )
    held = Step(batch=Batch(samples=samples), rewards=(2.0, 1.0, 1.0))
    piece = find("advantage", "turn_level").configure(gamma=0.5)
    want = [
        1 - 0.375,
        *[2 - 0.75] * 2,
        *[0.5 - 0.625] * 2,
        1 - 1.25,
        0.25 - 0.75,
        0.5 - 1.5,
        1 - 0.75,
    ]
    assert piece(held).tolist() == pytest.approx(want)
    mean = [
        1 - 1.75 / 3,
        *[2 - 3.5 / 3] * 2,
        *[0.5 - 1.75 / 3] * 2,
        1 - 3.5 / 3,
        0.25 - 1.75 / 3,
        0.5 - 3.5 / 3,
        0.0,
    ]
    assert piece.configure(baseline="mean")(held).tolist() == pytest.approx(mean)
    alone = Step(batch=held.batch.only([2]), rewards=(1.0,))
    assert not piece(alone).any()
    assert not piece.configure(baseline="mean")(alone).any()
    for settings in ({"gamma": 1.5}, {"baseline": "median"}):
        with pytest.raises(UsageError, match="expected"):
            piece.configure(**settings)(held)


def test_turn_level_charges_a_turn_for_its_own_divergence() -> None:
    """A KL penalty in the reward counts from the turn of its token back, not from the end of the
    sample.
    """
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2] * 3),), outcome=0.0, group=0, turns=(1, 2))
        for _ in range(2)
    )
    penalty = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.25, 0.0], dtype=torch.float64)
    held = Step(batch=Batch(samples=samples), rewards=(-0.5, -0.25), penalty=penalty)
    assert find("advantage", "turn_level")(held).tolist() == pytest.approx(
        [-0.25, 0.25, 0.25, 0.25, -0.25, -0.25]
    )


def test_optimal_baseline_by_hand() -> None:
    """Weights 1 - 2 p + sum p^2, added up along each sample; the place that one sample alone
    reaches gets nothing.
    """
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2] * n),), outcome=r, group=0)
        for n, r in ((2, 1.0), (1, 0.0))
    )
    prox = torch.tensor([0.5, 0.8, 0.2], dtype=torch.float64).log()
    square = torch.tensor([0.5, 0.7, 0.4], dtype=torch.float64)
    held = Step(
        batch=Batch(samples=samples),
        rewards=(1.0, 0.0),
        statistics={"prox_logp": prox, "square": square},
    )
    baseline = 0.5 / (0.5 + 1.0)
    want = [1 - baseline, 0.0, -baseline]
    assert find("advantage", "optimal_token")(held).tolist() == pytest.approx(want)


def test_certain_tokens_weigh_nothing_in_the_optimal_baseline() -> None:
    """A policy that is sure has no gradient: weights of 0 give no division by 0."""
    held = step([0.0, 1.0])
    sure = {
        "prox_logp": torch.zeros(4, dtype=torch.float64),
        "square": torch.ones(4, dtype=torch.float64),
    }
    found = find("advantage", "optimal_token")(replace(held, statistics=sure))
    assert found.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "tokens, turns, punished",
    [
        (1, (), 0.0),
        (8, (), 0.0),
        (9, (), -0.5),
        (10, (), -1.0),
        (12, (), -1.0),
        (12, (6, 6), 0.0),
        (12, (3, 9), -0.5),
    ],
)
def test_overlong_punishment(tokens: int, turns: tuple[int, ...], punished: float) -> None:
    """Over the last fifth of ten tokens; the longest turn counts."""
    sample = Sample(
        sequences=(batches.sequence([1], [2] * tokens),), outcome=1.0, group=0, turns=turns
    )
    assert overlong(sample.longest_turn, 10, 0.2) == pytest.approx(punished)
    assert overlong(sample.longest_turn, 10, 0.0) == 0.0
    with pytest.raises(UsageError, match="max_tokens"):
        overlong(sample.longest_turn, None, 0.2)


def test_turns_without_scores_are_one_turn() -> None:
    """Then process rewards are outcome rewards, also where an answer has several turns."""
    samples = tuple(
        Sample(sequences=(batches.sequence([1], [2] * 5),), outcome=outcome, group=0, turns=(3, 2))
        for outcome in (1.0, 0.0)
    )
    held = Step(batch=Batch(samples=samples), rewards=(1.0, 0.0))
    by_sample = find("advantage", "group_norm")(held)
    assert find("advantage", "process_norm")(held).tolist() == pytest.approx(
        [by_sample[0]] * 5 + [by_sample[1]] * 5
    )


@pytest.mark.parametrize(
    "name", ["batch_mean", "batch_norm", "reinforce_pp", "reinforce_pp_baseline"]
)
def test_environments_are_normalised_apart_when_asked(name: str) -> None:
    """Each gets what it would get alone, so that one with large rewards does not drown the
    others.
    """
    piece = find("advantage", name)

    def held(*scales: float) -> Step:
        samples = tuple(
            Sample(
                sequences=(batches.sequence([1], [2] * (2 + k)),),
                outcome=scale * (k % 2),
                group=group,
                environment=f"e{scale}",
            )
            for group, scale in enumerate(scales)
            for k in range(3)
        )
        return Step(batch=Batch(samples=samples), rewards=tuple(s.total for s in samples))

    def values(*scales: float, **args: str) -> list[float]:
        return [float(x) for x in piece(held(*scales), **args)]

    alone = values(1.0) + values(100.0)
    assert values(1.0, 100.0, over="environment") == pytest.approx(alone)
    assert values(1.0, 100.0) != pytest.approx(alone)
    with pytest.raises(UsageError, match="expected batch or environment"):
        piece(held(1.0), over="world")
