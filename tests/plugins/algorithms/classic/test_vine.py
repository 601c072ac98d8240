"""Values by continuations: telescoping sums, the true gradient by enumeration, cuts, seeds,
failures, refusals.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from quintain.errors import EnvironmentFault, UsageError
from quintain.interfaces.engine import Engine, TokenEngine, Weights
from quintain.learning import Batch, Sample
from quintain.learning.pieces.advantages import Step
from quintain.types.rollout import Rollout, Score, Termination, TerminationKind
from quintain.types.sampling import Sampling
from quintain.types.task import Task
from quintain.types.transcript import Sampled
from quintain_algorithms.classic.algorithms import VINEPPO
from quintain_algorithms.classic.vine import Continued, CutSample, vine
from quintain_authoring import ScriptedEngine
from quintain_authoring.byte_tokenizer import ByteTokenizer

from ....core.learning import batches
from .table import PROMPT, REPLIES, REWARD, STOP, gradients, probabilities, value


class Table(TokenEngine):
    """Samples from the table of logits."""

    name = "table"

    def __init__(self) -> None:
        self.tokenizer, self.context, self.asked = ByteTokenizer(), 100, 0

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.asked += 1
        assert tuple(ids[:2]) == PROMPT
        draw, said, new = random.Random(sampling.seed), tuple(ids[2:]), ()
        while (
            len(said + new) < 3
            and (not new or new[-1] != STOP)
            and len(new) < (sampling.max_tokens or 3)
        ):
            new += (draw.choices(range(3), probabilities(said + new).tolist())[0],)
        return Sampled(
            ids=new, logps=(-1.0,) * len(new), versions=(0,) * len(new), finish="stop", stop=STOP
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        raise NotImplementedError

    async def update(self, weights: Weights) -> int:
        raise NotImplementedError


class Sampling3:
    """Plays one turn of at most 3 tokens; the episode of sample i has the seed *seed* + i."""

    def __init__(self, seed: int = 0, broken: Sequence[int] = ()) -> None:
        self.seed, self.broken, self.heard = seed, broken, []  # type: ignore[var-annotated]

    async def __call__(self, wanted: Sequence[tuple[int, Engine]]) -> list[Rollout[Any, Any]]:
        out = []
        for n, (i, engine) in enumerate(wanted):
            assert isinstance(engine, Continued)
            said = (await engine.sample(PROMPT, Sampling(seed=self.seed + i, max_tokens=3))).ids
            self.heard.append((i, engine.tokens, said))
            ours = (
                Termination(TerminationKind.REWARD_ERROR, "broken")
                if n in self.broken
                else Termination()
            )
            out.append(
                Rollout(
                    task=Task(prompt="?"),
                    termination=ours,
                    outcome=Score(value=float(REWARD[said])),
                )
            )
        return out


async def exact(wanted: Sequence[tuple[int, Engine]]) -> list[Rollout[Any, Any]]:
    """Gives every continuation what continuations get on average."""
    task = Task(prompt="?")
    return [
        Rollout(task=task, outcome=Score(value=value(e.tokens)))
        for _, e in wanted
        if isinstance(e, Continued)
    ]


def step_of(*replies: tuple[int, ...], **fields: Any) -> Step:
    samples = tuple(
        Sample(
            sequences=(batches.sequence(PROMPT, y),), outcome=float(REWARD[y]), group=0, **fields
        )
        for y in replies
    )
    return Step(batch=Batch(samples=samples), rewards=tuple(s.total for s in samples))


def assessed(
    step: Step, replay: Any, engine: Any = None, **options: Any
) -> tuple[list[float], dict[str, float]]:
    values, told = asyncio.run(vine(step, engine=engine or Table(), replay=replay, **options))
    assert values.dtype == torch.float64
    return values.tolist(), told


@pytest.mark.parametrize("size", [1, 2, 100])
def test_the_steps_of_an_answer_add_up(size: int) -> None:
    """Sum over steps of A = R - V(prompt), with sampled values; tokens of a step share theirs."""
    got, _ = assessed(step_of(*REPLIES), Sampling3(), size=size, rollouts=3)
    at = 0
    starts = set()
    for y in REPLIES:
        own = got[at : at + len(y)]
        at += len(y)
        assert all(own[k] == own[k - k % size] for k in range(len(y)))
        starts.add(round(float(REWARD[y]) - sum(own[::size]), 12))
    assert len(starts) == 1  # V(prompt), which all samples share
    assert at == len(got)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_with_exact_values_the_expected_update_is_the_true_gradient(size: int) -> None:
    """Enumerated over all replies: sum_y p(y) sum_t A_t grad log p(y_t) = grad E[R]."""
    update, truth = gradients(lambda y: assessed(step_of(y), exact, size=size, rollouts=1)[0])
    np.testing.assert_allclose(update, truth, rtol=0, atol=1e-12)
    assert np.abs(truth).max() > 0.01


@pytest.mark.more
def test_sampled_values_are_unbiased() -> None:
    """The mean over many seeds is V(next) - V(this), within 5 standard errors."""
    y = (0, 1, 1)
    held = np.array(
        [assessed(step_of(y), Sampling3(seed), size=1, rollouts=2)[0] for seed in range(700)]
    )
    want = [value(y[:1]) - value(()), value(y[:2]) - value(y[:1]), float(REWARD[y]) - value(y[:2])]
    np.testing.assert_array_less(
        np.abs(held.mean(0) - want), 5 * held.std(0) / math.sqrt(len(held)) + 1e-12
    )
    assert held.std(0).min() > 0.05


def test_every_continuation_draws_for_itself_and_repeats() -> None:
    first, second = Sampling3(), Sampling3()
    got, told = assessed(step_of((0, 1, 1)), first, size=1, rollouts=30)
    again, _ = assessed(step_of((0, 1, 1)), second, size=1, rollouts=30)
    assert got == again
    assert first.heard == second.heard
    assert all(said[: len(kept)] == kept for _, kept, said in first.heard)
    for kept in ((), (0,)):
        assert len({said for _, k, said in first.heard if k == kept}) > 3
    assert told["vine.continuations"] == 90
    assert told["vine.tokens"] == sum(len(said) - len(kept) for _, kept, said in first.heard)
    assert told["vine.failed"] == 0
    assert told["vine.steps"] == 3


def test_samples_share_what_they_have_in_common() -> None:
    """Two answers that begin alike, a third that does not: prompt and common beginning are valued
    once.
    """
    replay, engine = Sampling3(), Table()
    assessed(step_of((0, 0, 1), (0, 0, 2), (1, 2)), replay, engine, size=1, rollouts=2)
    begun = [kept for _, kept, _ in replay.heard]
    assert {kept: begun.count(kept) for kept in begun} == {(): 2, (0,): 2, (0, 0): 2, (1,): 2}
    assert engine.asked == len(begun)


def test_failures_count_for_nothing() -> None:
    """One of three fails: the mean is over two. All of a cut fail: its steps become one. The prompt
    fails: no advantage.
    """
    whole = Sampling3()
    full, _ = assessed(step_of((0, 1, 1)), whole, size=1, rollouts=3)
    worth = [float(REWARD[said]) for _, _, said in whole.heard]

    some, told = assessed(step_of((0, 1, 1)), Sampling3(broken=[3]), size=1, rollouts=3)
    assert told["vine.failed"] == 1
    assert some[0] == pytest.approx(np.mean(worth[4:6]) - np.mean(worth[:3]))
    assert some[2] == full[2]

    joined, told = assessed(step_of((0, 1, 1)), Sampling3(broken=[3, 4, 5]), size=1, rollouts=3)
    assert told["vine.failed"] == 3
    assert joined[0] == joined[1] == pytest.approx(full[0] + full[1])

    none, _ = assessed(step_of((0, 1, 1)), Sampling3(broken=[0, 1, 2]), size=1, rollouts=3)
    assert none == [0.0, 0.0, 0.0]


def test_solved_and_hopeless_answers_have_exactly_no_advantage() -> None:
    async def solved(wanted: Sequence[tuple[int, Engine]]) -> list[Rollout[Any, Any]]:
        return [Rollout(task=Task(prompt="?"), outcome=Score(value=0.7)) for _ in wanted]

    sample = Sample(sequences=(batches.sequence(PROMPT, (0, 1, 1)),), outcome=0.7, group=0)
    got, _ = assessed(Step(batch=Batch(samples=(sample,)), rewards=(0.7,)), solved, size=1)
    assert got == [0.0, 0.0, 0.0]


def test_shaping_counts_on_both_sides() -> None:
    async def shaped(wanted: Sequence[tuple[int, Engine]]) -> list[Rollout[Any, Any]]:
        return [
            Rollout(task=Task(prompt="?"), outcome=Score(value=0.5), shaping=Score(value=0.25))
            for _ in wanted
        ]

    got, _ = assessed(step_of((2,), shaping=0.5), shaped, rollouts=1)
    assert got == [pytest.approx(float(REWARD[(2,)]) + 0.5 - 0.75)]


def test_lines_end_steps() -> None:
    """After every token with a line break, but never after the last one."""
    engine = ScriptedEngine()
    said = tuple(engine.tokenizer.encode("a\nbc\n\nd\n"))
    answer = CutSample(start=(1,), tokens=said, total=1.0)
    assert answer.cuts(engine, "lines", 100) == [0, 2, 5, 6]
    assert answer.cuts(engine, "tokens", 3) == [0, 3, 6]
    assert answer.cuts(engine, "tokens", 8) == [0]
    assert CutSample(start=(1,), tokens=(), total=0.0).cuts(engine, "lines", 1) == []


def test_samples_without_tokens_have_no_advantage_to_give() -> None:
    empty = Sample(sequences=(batches.sequence((1, 2), ()),), outcome=1.0, group=0)
    samples = (empty, *step_of((2,)).batch.samples)
    got, _ = assessed(
        Step(batch=Batch(samples=samples), rewards=tuple(s.total for s in samples)),
        exact,
        rollouts=1,
    )
    assert len(got) == 1


async def _said(engine: ScriptedEngine, begun: str, **sampling: Any) -> tuple[str, Sampled]:
    tokenizer = engine.tokenizer
    start = tuple(tokenizer.encode(tokenizer.render([])))
    continued = Continued(engine, start, tuple(tokenizer.encode(begun)), number=0)
    sampled = await continued.sample(
        start, Sampling(seed=0, stop_ids=tokenizer.stop_ids, **sampling)
    )
    return tokenizer.decode(sampled.ids, special=False), sampled


def test_a_continuation_keeps_to_the_limits_of_its_turn() -> None:
    """Kept and new tokens together stay within the turn's maximum."""
    text, sampled = asyncio.run(_said(ScriptedEngine(replies="efghij"), "abcd", max_tokens=6))
    assert text == "abcdef"
    assert sampled.finish == "length"
    assert len(sampled.ids) == len(sampled.logps) == len(sampled.versions) == 6


@pytest.mark.parametrize(
    "begun, goes_on, stop, want",
    [
        ("one\n", "\nUser: two", "\n\nUser:", "one\n\nUser:"),
        ("one\n\nUs", "er: two", "\n\nUser:", "one\n\nUser:"),
        ("one\n\n", "\nUser: two", "\n\nUser:", "one\n\n\nUser:"),
        ("one ", "two. three", ".", "one two."),
        ("one\n\nUser", "s are many", "\n\nUser:", "one\n\nUsers are many"),
    ],
)
def test_a_stop_string_may_straddle_the_cut(begun: str, goes_on: str, stop: str, want: str) -> None:
    text, sampled = asyncio.run(_said(ScriptedEngine(replies=goes_on), begun, stop=(stop,)))
    assert text == want
    assert (sampled.stop == stop) == want.endswith(stop)


def test_a_turn_may_be_asked_for_in_pieces() -> None:
    """As a thinking budget does: kept tokens come first, in as many calls as it takes; a new try
    starts again.
    """
    policy = ScriptedEngine(replies="efgh")
    tokenizer = policy.tokenizer
    start, said = tuple(tokenizer.encode(tokenizer.render([]))), tuple(tokenizer.encode("abcd"))
    engine = Continued(policy, start, said, number=0)

    async def pieces() -> list[str]:
        ids, out = list(start), []
        for most in (3, 3, 2):
            sampled = await engine.sample(ids, Sampling(seed=0, max_tokens=most))
            ids += sampled.ids
            out.append(tokenizer.decode(sampled.ids))
        return out

    assert asyncio.run(pieces()) == ["abc", "def", "ef"]
    assert engine.for_task(None) is engine  # type: ignore[arg-type]
    assert asyncio.run(pieces()) == ["abc", "def", "ef"]


def test_another_prompt_than_the_first_time_is_a_fault_of_the_environment() -> None:
    engine = Continued(Table(), PROMPT, (0,), number=0)
    with pytest.raises(EnvironmentFault, match="another prompt"):
        asyncio.run(engine.sample((0, 0), Sampling(seed=0)))


def test_refusals_name_the_reason() -> None:
    plain = step_of((0, 1, 1))
    gap = batches.sequence(PROMPT, (0,), tail=(5,))
    forced = Sample(sequences=(gap,), outcome=0.0, group=0)
    for step, options, reason in (
        (step_of((0, 1, 1), turns=(1, 2)), {}, "several turns"),
        (Step(batch=Batch(samples=(forced,)), rewards=(0.0,)), {}, "did not sample"),
        (plain, {"rollouts": 0}, "expected numbers from 1"),
        (plain, {"by": "words"}, "'words'"),
    ):
        with pytest.raises(UsageError, match=reason):
            assessed(step, exact, **options)  # type: ignore[arg-type]
    for changes, reason in (
        ({"kl": {"where": "reward", "estimator": "k1"}}, 'kl.where = "loss"'),
        ({"overlong": 0.2}, "overlong = 0"),
        ({"plan": {"thinking_budget": {"min_tokens": 2, "max_tokens": 3}}}, "a thinking budget"),
    ):
        # when the row is made, not at a batch that has such an answer
        with pytest.raises(UsageError, match=reason):
            VINEPPO.replace(**changes)
