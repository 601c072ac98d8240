"""Batches of made-up rollouts for the tests of learning."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from quintain.learning.batch import Batch, Sample
from quintain.types.transcript import TrainingSequence


def sequence(
    prompt: Sequence[int],
    reply: Sequence[int],
    *,
    logps: Sequence[float] | None = None,
    tail: Sequence[int] = (),
) -> TrainingSequence:
    """*reply* trains after *prompt*; *tail* is context that follows."""
    ids = (*prompt, *reply, *tail)
    mask = (False,) * len(prompt) + (True,) * len(reply) + (False,) * len(tail)
    given = tuple(logps) if logps is not None else (-1.0,) * len(reply)
    return TrainingSequence(
        ids=ids,
        mask=mask,
        logps=(0.0,) * len(prompt) + given + (0.0,) * len(tail),
        versions=tuple(0 if m else -1 for m in mask),
    )


def batch(
    *,
    groups: int = 3,
    group_size: int = 4,
    vocab: int = 260,
    seed: int = 0,
    longest: int = 9,
    temperature: float = 1.0,
    rewards: Sequence[float] = (),
    start: Sequence[int] = (),
) -> Batch:
    """Groups with ragged prompts behind *start* and ragged replies, rewards 0 or 1 (or cycling
    through *rewards*).
    """
    draw = random.Random(seed)
    samples = []
    for group in range(groups):
        prompt = [*start, *(draw.randrange(vocab) for _ in range(draw.randrange(2, 8)))]
        for sample in range(group_size):
            reply = [draw.randrange(vocab) for _ in range(draw.randrange(1, longest))]
            logps = [-draw.random() * 3 for _ in reply]
            outcome = rewards[sample % len(rewards)] if rewards else float(draw.random() < 0.5)
            samples.append(
                Sample(
                    sequences=(sequence(prompt, reply, logps=logps),), outcome=outcome, group=group
                )
            )
    return Batch(samples=tuple(samples), max_tokens=longest, temperature=temperature)


def near(row: TrainingSequence, exact: list[float]) -> TrainingSequence:
    """Return *row* with log-probs 0.3 nats above and below the policy's, whose next ones are taken
    from *exact*.
    """
    shifted = (exact.pop(0) + 0.3 * (-1) ** k if m else 0.0 for k, m in enumerate(row.mask))
    return replace(row, logps=tuple(shifted))
