"""What computing costs on a simulated cluster, in seconds: of engines and of the learner."""

from __future__ import annotations

import math
from dataclasses import dataclass

QUICKEST = 1e-6
"""Seconds of a step at least: one of no time would never end."""


@dataclass(frozen=True, kw_only=True)
class EngineCosts:
    """Seconds of one engine, which may be several GPUs.

    A step of decoding gives each of *n* sequences one token. With *c* tokens of context in all, it
    takes ``overhead + max(weights, compute * n) + sequence * n + context * c``.

    Attributes:
        overhead: of a step, whatever it decodes.
        weights: to read the weights once.
        compute: to multiply the weights with one token; hidden behind *weights* for small batches.
        sequence: of each sequence, beside that.
        context: to read the keys and values of a token.
        prefill: of a token of a prompt.
        prefill_context: of a pair of tokens of a prompt, one of which attends to the other.
        slots: sequences that are decoded at once.
        capacity: tokens whose keys and values fit.
    """

    overhead: float = 0.0
    weights: float = 0.0
    compute: float = 0.0
    sequence: float = 0.0
    context: float = 0.0
    prefill: float = 0.0
    prefill_context: float = 0.0
    slots: int = 256
    capacity: float = math.inf

    def step(self, sequences: int) -> float:
        """Return the seconds of a step of *sequences*, without what their contexts add."""
        read = max(self.weights, self.compute * sequences)
        return max(QUICKEST, self.overhead + read + self.sequence * sequences)

    def steps_in(self, seconds: float, sequences: int, context: float) -> float:
        """Return how many steps *seconds* have room for, where the *context* of all sequences
        grows by one token of each in a step.
        """
        first = self.step(sequences) + self.context * context
        growth = self.context * sequences
        # The sum of n steps is first * n + growth * n^2 / 2; this form of the root loses no digits.
        root = math.sqrt(first * first + 2 * growth * seconds)
        return 2 * seconds / (first + root)

    def seconds_of(self, steps: float, sequences: int, context: float) -> float:
        """Return the seconds of *steps*; the inverse of `steps_in`."""
        first = self.step(sequences) + self.context * context
        return first * steps + self.context * sequences * steps * steps / 2

    def prefill_seconds(self, tokens: float, cached: float) -> float:
        """Return the seconds that *tokens* of a prompt take after *cached* ones."""
        pairs = tokens * (cached + tokens / 2)
        return self.prefill * tokens + self.prefill_context * pairs


@dataclass(frozen=True, kw_only=True)
class LearnerCosts:
    """Seconds of the learner, with all its GPUs.

    Attributes:
        base: of an update, whatever its batch.
        sequence: of each rollout.
        token: of each token, sampled or context.
        pair: of a pair of tokens of a sequence, one of which attends to the other.
        transfer: to send the weights to the engines. An engine decodes nothing meanwhile.
    """

    base: float = 0.0
    sequence: float = 0.0
    token: float = 0.0
    pair: float = 0.0
    transfer: float = 0.0

    def update(self, lengths: list[float]) -> float:
        """Return the seconds of an update on sequences of *lengths*, context included."""
        pairs = sum(length * length / 2 for length in lengths) if self.pair else 0.0
        return (
            self.base + self.sequence * len(lengths) + self.token * sum(lengths) + self.pair * pairs
        )
