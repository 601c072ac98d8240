"""Rewards on the length of an episode, counted in the tokens that the policy sampled
(`Rollout.tokens`).

A control or a stored text has no token counts, hence the length 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import PositiveFloat, PositiveInt

from quintain import Rollout, Task, group_reward, reward
from quintain.errors import RewardFault

Form = Literal["exact", "maximum"]
Answers = Literal["right", "wrong"]


@reward(range=(-math.inf, 1))
def length_l1(
    rollout: Rollout[Any, Any],
    *,
    target: PositiveInt | str,
    form: Form = "exact",
    alpha: PositiveFloat = 0.0003,
    delta: float = 0.5,
) -> float:
    """L1's reward for a length that the prompt asks for (Aggarwal and Welleck 2025,
    arXiv:2503.04697, section 3).

    With the length n and the target T, in tokens::

        exact:    -alpha * |T - n|                        equation 1, to add to the outcome; at most 0
        maximum:  clip(alpha * (T - n) + delta, 0, 1)     equation 2, to multiply by the outcome; from 0 to 1

    Args:
        target: number of tokens, or the name of the task's field that holds it. The prompt has to
            state it; the paper draws it from 100 to 4,000 for each prompt.
        form: ``exact`` punishes shorter and longer answers, ``maximum`` longer ones only.
        alpha: reward per token.
        delta: the factor of a right answer of exactly the target length, form ``maximum``.

    Raises:
        RewardFault: the target or *alpha* is not a number above 0, or *form* is unknown.
    """
    if form not in get_args(Form):
        raise RewardFault(f"length_l1: form is {form!r}; expected one of {get_args(Form)}")
    if not alpha > 0:
        raise RewardFault(f"length_l1: alpha is {alpha!r}; expected a number above 0")
    missing = target_of(rollout.task, target) - rollout.tokens
    return -alpha * abs(missing) if form == "exact" else min(max(alpha * missing + delta, 0.0), 1.0)


def target_of(task: Task, target: float | str) -> float:
    """Return the target length of *task*: *target* itself, or the field of that name.

    Raises:
        RewardFault: it is not a number above 0.
    """
    value = getattr(task, target, None) if isinstance(target, str) else target
    number = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    )
    if not number:
        where = (
            f"task {task.id} has {value!r} in its field {target!r}"
            if isinstance(target, str)
            else f"it is {value!r}"
        )
        raise RewardFault(f"length_l1, target: {where}; expected a number of tokens above 0")
    return float(value)  # type: ignore[arg-type]  # checked above


@group_reward(range=(-0.5, 0.5))
def length_kimi(group: Sequence[Rollout[Any, Any]], *, answers: Answers = "right") -> list[float]:
    """Kimi k1.5's length reward (arXiv:2501.12599, section 2.3.3), relative to the other answers of
    the group.

    With lambda = 0.5 - (n - shortest) / (longest - shortest), n being the length in tokens, it is
    lambda for right answers and min(0, lambda) for wrong ones; 0 where all lengths are equal.
    Bounds: -0.5 and 0.5.

    A reward does not see the outcome, so one expression gives each kind of answer its form::

        length_kimi.gate(math_equal) + length_kimi(answers="wrong").gate(1 - math_equal)

    The algorithm ``kimi`` of quintain-algorithms has the same formula in its advantage
    (`length_reward`) and starts it after 50 batches; with that algorithm leave this reward out.

    Args:
        answers: the kind of answers whose form it is.

    Raises:
        RewardFault: *answers* is unknown.
    """
    if answers not in get_args(Answers):
        raise RewardFault(
            f"length_kimi: answers is {answers!r}; expected one of {get_args(Answers)}"
        )
    lengths = [rollout.tokens for rollout in group]
    shortest = min(lengths, default=0)
    longest = max(lengths, default=0)
    if shortest == longest:
        return [0.0] * len(lengths)
    highest = 0.5 if answers == "right" else 0.0
    return [min(0.5 - (n - shortest) / (longest - shortest), highest) for n in lengths]


@reward
def length_cosine(
    rollout: Rollout[Any, Any],
    *,
    limit: PositiveInt,
    start: float = 1.0,
    end: float = 0.0,
    over: float = -1.0,
) -> float:
    """The cosine length reward (Yeo et al. 2025, arXiv:2502.03373, section 4.2 and appendix C.1).

    With the length n in tokens::

        end + (start - end) / 2 * (1 + cos(pi * n / limit))     for n < limit
        over                                                     for n >= limit

    Bounds: the lowest and the highest of *start*, *end* and *over*. The paper lets right answers go
    from 2 to 1, wrong ones from -10 to 0, and gives -10 at the limit. With an outcome of 1 and 0
    that is::

        length_cosine(limit=4096, start=1, end=0, over=-11).gate(math_equal)
        + length_cosine(limit=4096, start=-10, end=0, over=-10).gate(1 - math_equal)

    Args:
        limit: length of a truncated answer, usually ``sampling.max_tokens``.
        start: value at the length 0.
        end: value just below the limit.
        over: value from the limit on.

    Raises:
        RewardFault: *limit* is not above 0.
    """
    if not limit > 0:
        raise RewardFault(f"length_cosine: limit is {limit!r}; expected a number of tokens above 0")
    if rollout.tokens >= limit:
        return over
    return end + (start - end) / 2 * (1 + math.cos(math.pi * rollout.tokens / limit))


@reward(range=(-1, 0))
def soft_overlong(rollout: Rollout[Any, Any], *, limit: PositiveInt, buffer: PositiveInt) -> float:
    """DAPO's soft overlong punishment (arXiv:2503.14476, equation 13).

    With the length n in tokens::

        0                                 for n <= limit - buffer
        (limit - buffer - n) / buffer     in between
        -1                                for n > limit

    Bounds: -1 and 0; verl's reward manager has no lower bound. The paper has ``limit=20480``,
    ``buffer=4096``. An algorithm's setting ``overlong`` is the same punishment for the longest turn
    of an episode, over a share of ``sampling.max_tokens``, and `dapo` has it; use one of the two.

    Args:
        limit: length from which on the punishment is -1.
        buffer: tokens below the limit over which it grows.

    Raises:
        RewardFault: *buffer* is not between 1 and *limit*.
    """
    if not 0 < buffer <= limit:
        raise RewardFault(
            f"soft_overlong: buffer is {buffer!r}; expected 1 to limit ({limit!r}) tokens"
        )
    return min(0.0, max(-1.0, (limit - buffer - rollout.tokens) / buffer))
