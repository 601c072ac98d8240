"""What a step learns from: samples in groups, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from ..errors import UsageError
from ..types.rollout import Group, Rollout, TerminationKind, trained
from ..types.transcript import TrainingSequence


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One rollout of one player: its branches count once in baselines and denominators.

    Attributes:
        sequences: its branches; each sampled token trains in exactly one of them.
        outcome: reward without shaping.
        shaping: what training adds.
        group: samples with the same number are compared with one another.
        environment: where the task came from.
        truncated: a limit cut the rollout short.
        turns: trained tokens of each turn, conversation by conversation; empty where that is not
            known.
        turn_scores: what single turns were given, outcome and shaping together; part of the total.
            Turns past its end got nothing.
        overlapping: the turns do not lie in the order of time, since conversations of the player
            overlap.
    """

    sequences: tuple[TrainingSequence, ...]
    outcome: float
    shaping: float = 0.0
    group: int
    environment: str = ""
    truncated: bool = False
    turns: tuple[int, ...] = ()
    turn_scores: tuple[float, ...] = ()
    overlapping: bool = False

    def __post_init__(self) -> None:
        if self.turns and sum(self.turns) != self.tokens:
            raise UsageError(
                f"sample of group {self.group}: its turns hold {sum(self.turns)} trained tokens, "
                f"its sequences {self.tokens}"
            )
        if len(self.turn_scores) > max(1, len(self.turns)):
            raise UsageError(
                f"sample of group {self.group}: {len(self.turn_scores)} turn scores for "
                f"{len(self.turns)} turns"
            )
        if not math.isfinite(self.total):
            raise UsageError(
                f"sample of group {self.group}: reward {self.outcome} + {self.shaping} is not "
                f"finite"
            )
        for index, sequence in enumerate(self.sequences):
            lengths = {
                len(sequence.ids),
                len(sequence.mask),
                len(sequence.logps),
                len(sequence.versions),
            }
            if len(lengths) != 1:
                raise UsageError(
                    f"sample of group {self.group}, sequence {index}: ids, mask, logps, versions "
                    f"differ in length"
                )
            if sequence.mask and sequence.mask[0]:
                raise UsageError(
                    f"sample of group {self.group}, sequence {index}: the first token has no "
                    f"context to train in"
                )

    @property
    def total(self) -> float:
        """Outcome plus shaping."""
        return self.outcome + self.shaping

    @cached_property
    def tokens(self) -> int:
        """Tokens that train."""
        return sum(sum(sequence.mask) for sequence in self.sequences)

    @property
    def longest_turn(self) -> int:
        """Trained tokens of the longest turn; all where turns are not known."""
        return max(self.turns, default=self.tokens)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The samples of one step.

    Attributes:
        samples: valid ones only; failed ones were left out before.
        temperature: of sampling, hence of the policy that is trained.
        max_tokens: configured maximum of new tokens per turn, the constant of ``constant``
            aggregation.
    """

    samples: tuple[Sample, ...]
    temperature: float = 1.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UsageError(
                f"cannot train at temperature {self.temperature}: a greedy policy has no gradient"
            )

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the samples of each group, in order of first appearance."""
        by_group: dict[int, list[int]] = {}
        for i, sample in enumerate(self.samples):
            by_group.setdefault(sample.group, []).append(i)
        return tuple(tuple(indices) for indices in by_group.values())

    @cached_property
    def tokens(self) -> int:
        """Tokens that train."""
        return sum(sample.tokens for sample in self.samples)

    def only(self, indices: Sequence[int]) -> Batch:
        """Return the batch of some samples."""
        return replace(self, samples=tuple(self.samples[i] for i in indices))

    def minibatches(self, count: int, order: Sequence[int] | None = None) -> list[list[int]]:
        """Return the indices of samples in *count* parts of whole groups (fewer parts where there
        are fewer groups).

        Args:
            order: of the groups; as they came where ``None``.
        """
        places = list(order) if order is not None else list(range(len(self.groups)))
        count = max(1, min(count, len(places)))
        cuts = [round(len(places) * k / count) for k in range(count + 1)]
        parts = (places[a:b] for a, b in pairwise(cuts))
        return [[i for g in part for i in self.groups[g]] for part in parts]


def batch_of(
    groups: Sequence[Group[Any, Any]], *, temperature: float, max_tokens: int | None
) -> Batch:
    """Return the batch of *groups*: one sample per valid rollout and player; each player of a group
    is a group of its own.

    All conversations of a player are branches of its one sample: they get one advantage, from
    rewards that are compared over rollouts, and the rollout counts once.
    """
    numbers: dict[tuple[int, str], int] = {}
    samples = [
        _sample(
            rollout, player, sequences, numbers.setdefault((rollout.group, player), len(numbers))
        )
        for rollout, player, sequences in trained(groups)
    ]
    return Batch(samples=tuple(samples), temperature=temperature, max_tokens=max_tokens)


def _sample(
    rollout: Rollout[Any, Any], player: str, sequences: tuple[TrainingSequence, ...], group: int
) -> Sample:
    places = [
        place
        for name in rollout.conversations[player]
        for place, turn in enumerate(rollout.turns)
        if turn.player == name
    ]
    turns = tuple(rollout.turns[place].tokens for place in places)
    counted = sum(turns) == sum(sum(s.mask) for s in sequences)
    return Sample(
        sequences=sequences,
        outcome=rollout.outcome.of_player(player) if rollout.outcome else 0.0,
        shaping=rollout.shaping.of_player(player) if rollout.shaping else 0.0,
        group=group,
        environment=rollout.environment,
        truncated=rollout.termination.kind is TerminationKind.TRUNCATED,
        turns=turns if counted else (),
        turn_scores=_turn_scores(rollout, player, len(turns)) if counted else (),
        overlapping=places != sorted(places),
    )


def _turn_scores(rollout: Rollout[Any, Any], player: str, turns: int) -> tuple[float, ...]:
    """Return what single turns of a player were given, outcome and shaping added up; nothing where
    players score apart.
    """
    scores = [
        s
        for s in (rollout.outcome, rollout.shaping)
        if s is not None and s.turns and player not in s.players
    ]
    if player or not scores or any(len(s.turns) > turns for s in scores):
        return ()
    return tuple(sum(s.turns[i] for s in scores if i < len(s.turns)) for i in range(turns))
