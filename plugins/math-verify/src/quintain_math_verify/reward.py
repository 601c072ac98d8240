"""The reward `math_equal`."""

from __future__ import annotations

from typing import Any

from quintain import Rollout, Score, Workers, need, reward
from quintain.errors import InfrastructureError, RewardFault

CHECK = "quintain_math_verify.check:equal"


@reward(range=(0, 1))
async def math_equal(rollout: Rollout[Any, Any], *, timeout: float = 5.0, workers: Workers = need()) -> Score:
    """1 where the reply's final answer equals the task's as mathematics, else 0.

    The answer is what is in ``\\boxed{}`` (several boxes are a set), or else what Math-Verify takes for the final
    expression. Runs in a worker that is killed after *timeout* seconds; such an answer scores 0 if a trivial control
    passes, since then the answer caused the time-out.

    Raises:
        RewardFault: the task's own answer cannot be read: correct the task.
        InfrastructureError: the worker died, or the control ran out of time too.
    """
    gold = rollout.task.answer
    if gold is None or isinstance(gold, bool) or not str(gold).strip():
        raise RewardFault(f"task {rollout.task.id}: math_equal needs an answer to compare with, got {gold!r}")
    try:
        outcome, reason = await workers.call(CHECK, str(gold), rollout.reply, timeout=timeout)
    except TimeoutError:
        await _control(workers, timeout)
        return Score(value=0.0, reason=f"no outcome within {timeout:g} s")
    if outcome is None:
        raise RewardFault(f"task {rollout.task.id}: {reason}")
    return Score(value=float(outcome), reason=reason)


async def _control(workers: Workers, timeout: float) -> None:
    try:
        await workers.call(CHECK, "1", "1", timeout=timeout)
    except TimeoutError as e:
        raise InfrastructureError(
            f"math_equal: even 1 = 1 has no outcome within {timeout:g} s; the machine is too busy"
        ) from e
