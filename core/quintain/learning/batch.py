"""What a step learns from: samples in groups, and their trained tokens laid flat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, compress
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import UsageError
from ..models.prefix_layout import PrefixGroup, TokenSequence
from ..types.rollout import AnyGroup, AnyRollout, TerminationKind, trained
from ..types.transcript import TrainingSequence


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One rollout of one player. All its branches together are one sample: one advantage, and one
    in the number of samples.

    Attributes:
        sequences: its branches; each sampled token trains in exactly one of them.
        outcome: reward without shaping.
        shaping: what training adds.
        group: samples with the same number are compared with one another.
        environment: where the task came from.
        player: whose it is; empty for the first one.
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
    player: str = ""
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
            columns = (sequence.ids, sequence.mask, sequence.logps, sequence.versions)
            if len(set(map(len, columns))) != 1:
                raise UsageError(
                    f"sample of group {self.group}, sequence {index}: ids, mask, logps, versions "
                    f"differ in length"
                )
            # The policy predicts a token from those before it, so the first has no log-prob.
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

    Columns are of the N tokens that train, in the order of samples, sequences and positions, in
    host memory.

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
        return self.starts[-1]

    @cached_property
    def ids(self) -> Tensor:
        """The tokens themselves, [N]."""
        return torch.tensor(self._column("ids"), dtype=torch.long)

    @cached_property
    def mu_logp(self) -> Tensor:
        """Log-probs under the sampler, float64, [N]."""
        return torch.tensor(self._column("logps"), dtype=torch.float64)

    @cached_property
    def versions(self) -> Tensor:
        """The version of the weights that sampled each token, [N]."""
        return torch.tensor(self._column("versions"), dtype=torch.long)

    @cached_property
    def sample_of_tokens(self) -> Tensor:
        """Index of each token's sample, [N]."""
        counts = torch.tensor([sample.tokens for sample in self.samples], dtype=torch.long)
        return torch.arange(len(counts)).repeat_interleave(counts)

    @cached_property
    def starts(self) -> list[int]:
        """Where each sample's tokens begin in a column, and where those of the last one end."""
        return list(accumulate((sample.tokens for sample in self.samples), initial=0))

    def positions(self, indices: Sequence[int]) -> Tensor:
        """Return where the tokens of the samples at *indices* stand in a column, in the order of
        *indices*.
        """
        return torch.cat([torch.arange(self.starts[i], self.starts[i + 1]) for i in indices])

    def rows(self, indices: Sequence[int]) -> PrefixGroup:
        """Return the sequences of the samples at *indices* that train, with the places of their
        trained tokens.
        """
        return [row for i in indices for row in self._rows[i]]

    @cached_property
    def _rows(self) -> list[list[TokenSequence]]:
        # Kept, because the cut into micro-batches asks for the rows of a sample several times.
        of_samples: list[list[TokenSequence]] = []
        for sample in self.samples:
            rows: list[TokenSequence] = []
            for sequence in sample.sequences:
                places = [place for place, trains in enumerate(sequence.mask) if trains]
                if places:
                    rows.append(TokenSequence(sequence.ids, places, sequence.experts))
            of_samples.append(rows)
        return of_samples

    def _column(self, name: Literal["ids", "logps", "versions"]) -> list[Any]:
        column: list[Any] = []
        for sample in self.samples:
            for sequence in sample.sequences:
                column.extend(compress(getattr(sequence, name), sequence.mask))
        return column

    def only(self, indices: Sequence[int]) -> Batch:
        """Return the batch of some samples."""
        return replace(self, samples=tuple(self.samples[i] for i in indices))

    def minibatches(self, count: int, order: Sequence[int]) -> list[list[int]]:
        """Return the indices of samples in *count* parts of whole groups (fewer parts where there
        are fewer groups).

        Args:
            order: of the groups, a permutation of their numbers.
        """
        count = max(1, min(count, len(order)))
        parts: list[list[int]] = []
        for k in range(count):
            # Rounded bounds, so that parts differ by one group at most and each group is in one.
            first = round(len(order) * k / count)
            end = round(len(order) * (k + 1) / count)
            parts.append([i for group in order[first:end] for i in self.groups[group]])
        return parts


def batch_of(groups: Sequence[AnyGroup], *, temperature: float, max_tokens: int | None) -> Batch:
    """Return the batch of *groups*: one sample per valid rollout and player; each player of a group
    is a group of its own.

    All conversations of a player are branches of its one sample: they get one advantage, from
    rewards that are compared over rollouts, and the rollout counts once.
    """
    samples: list[Sample] = []
    # Two players have different tasks in the same game, so their rewards are not compared.
    numbers: dict[tuple[int, str], int] = {}
    for rollout, player, sequences in trained(groups):
        group = numbers.setdefault((rollout.group, player), len(numbers))
        samples.append(_sample(rollout, player, sequences, group))
    return Batch(samples=tuple(samples), temperature=temperature, max_tokens=max_tokens)


def _sample(
    rollout: AnyRollout, player: str, sequences: tuple[TrainingSequence, ...], group: int
) -> Sample:
    # The turns of the player, conversation by conversation: the order of its sequences.
    places: list[int] = []
    for conversation in rollout.conversations[player]:
        places += [i for i, turn in enumerate(rollout.turns) if turn.player == conversation]
    turns = tuple(rollout.turns[place].tokens for place in places)
    # Where the counts disagree, nothing says which turn a token belongs to, and scores of single
    # turns would go to the tokens of others.
    known = sum(turns) == sum(sum(sequence.mask) for sequence in sequences)
    outcome, shaping = rollout.scores_of(player)
    return Sample(
        sequences=sequences,
        outcome=outcome,
        shaping=shaping,
        group=group,
        environment=rollout.environment,
        player=player,
        truncated=rollout.termination.kind is TerminationKind.TRUNCATED,
        turns=turns if known else (),
        turn_scores=_turn_scores(rollout, player, len(turns)) if known else (),
        overlapping=places != sorted(places),
    )


def _turn_scores(rollout: AnyRollout, player: str, turns: int) -> tuple[float, ...]:
    """Return what single turns of a player were given, outcome and shaping added up; nothing where
    players score apart.
    """
    # Scores of turns are of the policy's own turns, which no other player has.
    if player:
        return ()
    added: list[float] = []
    for score in (rollout.outcome, rollout.shaping):
        if score is None or not score.turns or player in score.players:
            continue
        if len(score.turns) > turns:
            return ()
        added = added or [0.0] * turns
        for i, value in enumerate(score.turns):
            added[i] += value
    return tuple(added)
