"""The reward `math_equal`."""

from __future__ import annotations

from typing import Any

from quintain import Rollout, Score, reward
from quintain.errors import InfrastructureError, RewardFault, UsageError

from .verdict import VerdictKind
from .verifier import shared_verifier

PARTS = (VerdictKind.NO_ANSWER, VerdictKind.WRONG, VerdictKind.TIMEOUT, VerdictKind.TOO_LARGE)
"""Verdicts that score 0, whose shares are reported."""


@reward(range=(0, 1))
async def math_equal(
    rollout: Rollout[Any, Any],
    *,
    timeout: float = 5.0,
    processes: int = 2,
    memory: int = 2048,
    boxed_only: bool = False,
    zero_on_limits: bool = True,
) -> Score:
    """1 where the reply's final answer equals the task's as mathematics, else 0.

    The answer is the last ``\\boxed{}`` after the reasoning, or else a final statement at the end
    of the reply. The comparison runs in worker processes, which are killed at *timeout*. The kinds
    of verdicts:

    - ``correct`` scores 1; ``wrong`` and ``no_answer`` score 0;
    - ``timeout`` and ``too_large`` are answers beyond a limit, and score 0 unless *zero_on_limits*
      is off;
    - ``error`` is a failure of the verifier: the rollout is left out and counted.

    Args:
        timeout: seconds for one comparison, from the moment a worker gets it.
        processes: workers of this process at most.
        memory: limit on the address space of a worker, MiB.
        boxed_only: take no answer but a box.
        zero_on_limits: score 0 where the answer is too large, or exhausts a worker that had the
            processor to itself. Off, such rollouts are left out and counted.

    Raises:
        RewardFault: the task's own answer cannot be compared with, or the answer gets no verdict.
        InfrastructureError: the worker died or got too little CPU time; a repetition may give a
            verdict.
    """
    task = rollout.task
    gold = task.answer
    if gold is None or isinstance(gold, bool) or not str(gold).strip():
        raise RewardFault(
            f"task {task.id}: math_equal needs an answer to compare with, got {gold!r}"
        )
    verifier = shared_verifier(processes, memory)
    try:
        verdict = await verifier.averify(
            str(gold), rollout.reply, timeout=timeout, boxed_only=boxed_only
        )
    except UsageError as e:
        raise RewardFault(f"task {task.id}: {e}; correct the answer of the task") from e
    if verdict.kind.failure:
        problem = f"math_equal: {verdict.kind.value}: {verdict.reason}"
        if verdict.starved:
            raise InfrastructureError(problem)
        if not zero_on_limits or verdict.kind is VerdictKind.ERROR:
            raise RewardFault(problem)
    parts = {kind.value: float(verdict.kind is kind) for kind in PARTS}
    return Score(
        value=float(verdict.kind is VerdictKind.CORRECT), reason=verdict.reason, parts=parts
    )
