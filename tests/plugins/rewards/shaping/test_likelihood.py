"""The mean log-prob: by hand, in its bounds, from a real episode, and refused where there are no
log-probs.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import Rollout, Sampled, Task, Transcript
from quintain.errors import RewardFault
from quintain.testing import rollout
from quintain.types.transcript import Recorder
from quintain_authoring import RewardSuite
from quintain_rewards.shaping import mean_log_prob

TASK = Task(prompt="?", answer="4")


def transcript(*turns: list[float]) -> Transcript:
    """A prompt of two tokens before each turn, whose tokens have these log-probs."""
    recorder = Recorder()
    for logps in turns:
        recorder.add([1, 2], [0, 0])
        n = len(logps)
        sampled = Sampled(ids=(3,) * n, logps=tuple(logps), versions=(0,) * n, finish="stop")
        recorder.sampled(sampled)
    return recorder.transcript()


def of_logps(*turns: list[float], **others: Transcript) -> Rollout[Any, Any]:
    return rollout(
        TASK, *("4" * len(logps) for logps in turns), transcripts={"": transcript(*turns), **others}
    )


class TestMeanLogProb(RewardSuite):
    reward = mean_log_prob(floor=-4.0)
    lowest = -4.0

    def gold(self):  # type: ignore[no-untyped-def]
        return [
            (of_logps([-0.5, -1.5]), -1),
            (of_logps([-0.25], [-0.5, -0.75]), -0.5),  # a mean over tokens, not over turns
            (of_logps([0.0, 0.0]), 0),
            (of_logps([-0.5], opponent=transcript([-3.0])), -0.5),
        ]

    def exploits(self):  # type: ignore[no-untyped-def]
        return [of_logps([-100.0, -1.0]), rollout(TASK)]


@given(
    st.lists(st.lists(st.floats(-1e6, 1e-6), max_size=5), min_size=1, max_size=3),
    st.floats(-50, -0.01),
)
def test_any_log_probs_stay_in_the_bounds(turns: list[list[float]], floor: float) -> None:
    assert floor <= mean_log_prob(floor=floor).score(of_logps(*turns)).total <= 0


@given(st.lists(st.floats(-5, 0), min_size=1, max_size=8), st.randoms())
def test_the_order_of_tokens_does_not_matter(logps: list[float], random: Any) -> None:
    """Its exponential is the geometric mean of the probabilities."""
    score = mean_log_prob.score(of_logps(logps)).total
    assert score == mean_log_prob.score(of_logps(random.sample(logps, len(logps)))).total
    assert math.exp(score) == pytest.approx(math.prod(map(math.exp, logps)) ** (1 / len(logps)))


def test_text_without_log_probs_is_refused() -> None:
    """Its score would be that of a policy which is certain, or of one that said nothing."""
    with pytest.raises(RewardFault, match="turns without log-probs; use a token engine"):
        mean_log_prob.score(rollout(TASK, "4"))
    with pytest.raises(RewardFault, match=r"floor is 0\.0; expected a number below 0"):
        mean_log_prob(floor=0.0).score(of_logps([-1.0]))
