"""Micro-batches: parts of a batch within the token budget. No term is split over two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress, count
from typing import Any

import torch
from torch import Tensor

from ..interfaces.pieces import Level
from ..models.prefix_layout import PrefixGroup, TokenSequence
from .batch import Batch
from .ranks import ALONE, Ranks


@dataclass(frozen=True, kw_only=True)
class FlatTokens:
    """The trained tokens of a whole batch, flat, in the order of samples, sequences and positions.
    [N].
    """

    batch: Batch

    @cached_property
    def mu_logp(self) -> Tensor:
        """Log-probs under the sampler, float64."""
        return torch.tensor(self._trained("logps"), dtype=torch.float64)

    @cached_property
    def ids(self) -> Tensor:
        """The tokens themselves."""
        return torch.tensor(self._trained("ids"), dtype=torch.long)

    @cached_property
    def versions(self) -> Tensor:
        """The version of the weights that sampled each token."""
        return torch.tensor(self._trained("versions"), dtype=torch.long)

    @cached_property
    def sample(self) -> Tensor:
        """Index of each token's sample."""
        counts = torch.tensor([sample.tokens for sample in self.batch.samples], dtype=torch.long)
        return torch.arange(len(counts)).repeat_interleave(counts)

    @cached_property
    def starts(self) -> list[int]:
        """Where each sample's tokens begin."""
        return list(accumulate((sample.tokens for sample in self.batch.samples), initial=0))

    def of(self, indices: Sequence[int]) -> Tensor:
        """Return the flat positions of the tokens of some samples, in their order."""
        spans = [torch.arange(self.starts[i], self.starts[i + 1]) for i in indices]
        return torch.cat(spans) if spans else torch.zeros(0, dtype=torch.long)

    def rows(self, indices: Sequence[int]) -> PrefixGroup:
        """Return the sequences of some samples with the places of their trained tokens."""
        return [row for i in indices for row in self._rows[i]]

    @cached_property
    def _rows(self) -> list[PrefixGroup]:
        """By sample: each sequence that trains."""
        return [
            [
                TokenSequence(s.ids, list(compress(count(), s.mask)))
                for s in sample.sequences
                if any(s.mask)
            ]
            for sample in self.batch.samples
        ]

    def _trained(self, column: str) -> list[Any]:
        sequences = (sequence for sample in self.batch.samples for sequence in sample.sequences)
        return [
            x for sequence in sequences for x in compress(getattr(sequence, column), sequence.mask)
        ]


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Samples whose terms are computed together.

    Attributes:
        prefix_groups: rows of its samples; a common prefix is computed once.
        sample: local sample of each token, [N].
        group: local group of each sample, [S].
        positions: flat positions of the tokens in the batch's `FlatTokens`, [N].
        padding: it repeats what another rank computes and counts for nothing, see `Ranks.lockstep`.
    """

    prefix_groups: tuple[PrefixGroup, ...]
    sample: Tensor
    group: Tensor
    positions: Tensor
    padding: bool = False

    @classmethod
    def of(
        cls, flat_tokens: FlatTokens, indices: Sequence[Sequence[int]], *, padding: bool = False
    ) -> MicroBatch:
        """Return those of the samples at *indices*, indices into the batch by prefix group."""
        samples = flat_tokens.batch.samples
        flat = [i for prefix_group in indices for i in prefix_group]
        counts = torch.tensor([samples[i].tokens for i in flat], dtype=torch.long)
        numbers = {
            number: k for k, number in enumerate(dict.fromkeys(samples[i].group for i in flat))
        }
        return cls(
            prefix_groups=tuple(map(flat_tokens.rows, indices)),
            sample=torch.arange(len(flat)).repeat_interleave(counts),
            group=torch.tensor([numbers[samples[i].group] for i in flat], dtype=torch.long),
            positions=flat_tokens.of(flat),
            padding=padding,
        )


def micro_batches(
    flat_tokens: FlatTokens,
    indices: Sequence[int],
    *,
    budget: int,
    level: Level,
    cost: Callable[[PrefixGroup], int],
    ranks: Ranks = ALONE,
) -> list[MicroBatch]:
    """Cut the samples at *indices* into micro-batches of about *budget* tokens; return those of this
    rank.

    A group within the budget stays together, so that its prompt is computed once; a part of a
    larger one takes up to twice its common prefix if that is more than the budget. A sample is
    never split, nor a group if terms read whole groups. Groups of similar length go together,
    longest first. Nothing but the batch decides.

    Args:
        level: what one term reads.
        cost: tokens that a prefix group costs.
    """
    samples = flat_tokens.batch.samples
    chosen = set(indices)
    groups = [
        [i for i in group if i in chosen and samples[i].tokens]
        for group in flat_tokens.batch.groups
    ]
    prefix_groups = [
        part
        for group in groups
        if group
        for part in _parts(group, flat_tokens, budget, level, cost)
    ]
    costs = [cost(flat_tokens.rows(prefix_group)) for prefix_group in prefix_groups]
    longest = [
        max(len(s.ids) for i in prefix_group for s in samples[i].sequences)
        for prefix_group in prefix_groups
    ]
    # alike together: attention pads to the longest
    order = sorted(range(len(prefix_groups)), key=lambda k: (-longest[k], k))
    by_rank = []
    for share in map(set, ranks.share(costs)):
        filled: list[list[list[int]]] = []
        room = 0
        for k in order:
            if k not in share:
                continue
            if not filled or costs[k] > room:
                filled.append([])
                room = budget
            filled[-1].append(prefix_groups[k])
            room -= costs[k]
        by_rank.append(filled)
    of_this_rank = [MicroBatch.of(flat_tokens, indices) for indices in by_rank[ranks.rank]]
    # A rank without a sample makes one pass all the same, to know what there is to add up.
    passes = max(map(len, by_rank)) if ranks.lockstep else min(1, len(costs))
    if len(of_this_rank) < passes:
        cheapest = prefix_groups[min(range(len(costs)), key=costs.__getitem__)]
        padding = MicroBatch.of(flat_tokens, [cheapest], padding=True)
        of_this_rank += [padding] * (passes - len(of_this_rank))
    return of_this_rank


def _parts(
    group: list[int],
    flat_tokens: FlatTokens,
    budget: int,
    level: Level,
    cost: Callable[[PrefixGroup], int],
) -> list[list[int]]:
    """Return a group in parts that fit the budget, samples of like length together."""
    together = cost(flat_tokens.rows(group))
    if level == "group" or together <= budget:
        return [group]
    # Each part computes the common prefix again, so a part may take twice its tokens: split by the
    # budget alone, a prompt that is longer than it would be computed once per sample.
    prefix = (sum(cost(flat_tokens.rows([i])) for i in group) - together) // max(len(group) - 1, 1)
    limit = max(budget, 2 * prefix)
    parts: list[list[int]] = []
    for i in sorted(
        group, key=lambda i: (-sum(len(s.ids) for s in flat_tokens.batch.samples[i].sequences), i)
    ):
        if not parts or cost(flat_tokens.rows((*parts[-1], i))) > limit:
            parts.append([])
        parts[-1].append(i)
    return parts
