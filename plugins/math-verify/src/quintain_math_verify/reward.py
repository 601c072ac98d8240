"""The reward `math_equal`."""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

from quintain import Rollout, Score, Workers, need, reward
from quintain.errors import InfrastructureError, RewardFault

CHECK = "quintain_math_verify.check:equal"

_answered: WeakKeyDictionary[Workers, float] = WeakKeyDictionary()
"""When workers last returned an outcome, in seconds of the monotonic clock."""


@reward(range=(0, 1))
async def math_equal(rollout: Rollout[Any, Any], *, timeout: float = 5.0, workers: Workers = need()) -> Score:
    """1 where the reply's final answer equals the task's as mathematics, else 0.

    The answer is what is in ``\\boxed{}`` (several boxes are a set), or else what Math-Verify takes for the final
    expression. Runs in a worker that is killed after *timeout* seconds; such an answer scores 0 if another answer
    got an outcome meanwhile, or else a trivial control passes, since then the answer caused the time-out.

    Raises:
        RewardFault: the task's own answer cannot be read: correct the task.
        InfrastructureError: the worker died, or the control ran out of time too.
    """
    gold = rollout.task.answer
    if gold is None or isinstance(gold, bool) or not str(gold).strip():
        raise RewardFault(f"task {rollout.task.id}: math_equal needs an answer to compare with, got {gold!r}")
    began = time.monotonic()
    try:
        outcome, reason = await workers.call(CHECK, str(gold), rollout.reply, timeout=timeout)
    except TimeoutError:
        if _answered.get(workers, began) <= began:
            await _control(workers, timeout)
        return Score(value=0.0, reason=f"no outcome within {timeout:g} s")
    _answered[workers] = time.monotonic()
    if outcome is None:
        raise RewardFault(f"task {rollout.task.id}: {reason}")
    return Score(value=float(outcome), reason=reason)


async def _control(workers: Workers, timeout: float) -> None:
    try:
        await workers.call(CHECK, "1", "1", timeout=timeout)
        _answered[workers] = time.monotonic()
    except TimeoutError as e:
        raise InfrastructureError(
            f"math_equal: even 1 = 1 has no outcome within {timeout:g} s; the machine is too busy"
        ) from e
