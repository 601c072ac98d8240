"""Micro-batches: parts of a batch within the token budget. No term is split over two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..interfaces.pieces import Level
from ..models.prefix_layout import PrefixGroup, TokenSequence
from ..models.prefix_tree import LONG_START
from .batch import Batch
from .ranks import ALONE, Ranks

Cost = Callable[[PrefixGroup], int]
"""Returns the tokens that a prefix group costs."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Samples whose terms are computed together.

    Attributes:
        prefix_groups: rows of its samples; a common prefix is computed once.
        sample: local sample of each token, [N].
        group: local group of each sample, [S].
        positions: where its tokens stand in a column of the batch, [N].
        padding: it repeats what another rank computes and counts for nothing, see `Ranks.lockstep`.
    """

    prefix_groups: tuple[PrefixGroup, ...]
    sample: Tensor
    group: Tensor
    positions: Tensor
    padding: bool = False

    @classmethod
    def of(
        cls, batch: Batch, prefix_groups: Sequence[Sequence[int]], *, padding: bool = False
    ) -> MicroBatch:
        """Return that of some samples, given as indices into the batch by prefix group."""
        indices: list[int] = []
        for members in prefix_groups:
            indices.extend(members)
        # Groups are numbered by their first sample here, so that there are no gaps.
        numbers: dict[int, int] = {}
        group = [numbers.setdefault(batch.samples[i].group, len(numbers)) for i in indices]
        return cls(
            prefix_groups=tuple(batch.rows(members) for members in prefix_groups),
            sample=batch.only(indices).sample_of_tokens,
            group=torch.tensor(group, dtype=torch.long),
            positions=batch.positions(indices),
            padding=padding,
        )


def micro_batches(
    batch: Batch,
    indices: Sequence[int],
    *,
    budget: int,
    level: Level,
    cost: Cost,
    ranks: Ranks = ALONE,
) -> list[MicroBatch]:
    """Cut the samples at *indices* into micro-batches of about *budget* tokens; return those of this
    rank.

    A group within the budget stays together, so that its prompt is computed once; a part of a
    larger one takes up to twice its common prefix if that is more than the budget. A sample is
    never split, nor a group if terms read whole groups. Groups of similar length go together,
    longest first, and those that begin alike are joined. Nothing but the batch decides.

    Args:
        level: what one term reads.
    """
    chosen = set(indices)
    prefix_groups: list[list[int]] = []
    for group in batch.groups:
        trained = [i for i in group if i in chosen and batch.samples[i].tokens]
        if trained:
            prefix_groups += _parts(batch, trained, budget, level, cost)
    rows = [batch.rows(members) for members in prefix_groups]
    costs = [cost(group_rows) for group_rows in rows]
    longest = [max(map(length_of, group_rows)) for group_rows in rows]
    by_rank: list[list[list[list[int]]]] = []
    for share in ranks.share(costs):
        filled: list[list[list[int]]] = []
        room = 0
        # Attention pads to the longest row, so those that are alike go together.
        ordered = sorted(share, key=lambda k: (-longest[k], k))
        by_length = [(prefix_groups[k], costs[k]) for k in ordered]
        for members, tokens in _with_one_start(batch, by_length, budget, cost):
            if not filled or tokens > room:
                filled.append([])
                room = budget
            filled[-1].append(members)
            room -= tokens
        by_rank.append(filled)
    of_this_rank = [MicroBatch.of(batch, filled) for filled in by_rank[ranks.rank]]
    # Ranks in lockstep make as many passes as the one with most. A rank without a sample makes one
    # pass all the same, to know what there is to add up.
    passes = max(map(len, by_rank)) if ranks.lockstep else min(1, len(costs))
    if len(of_this_rank) < passes:
        cheapest = prefix_groups[costs.index(min(costs))]
        padding = MicroBatch.of(batch, [cheapest], padding=True)
        of_this_rank += [padding] * (passes - len(of_this_rank))
    return of_this_rank


def length_of(row: TokenSequence) -> int:
    return len(row.ids)


def _with_one_start(
    batch: Batch, groups: Sequence[tuple[list[int], int]], budget: int, cost: Cost
) -> list[tuple[list[int], int]]:
    """Return prefix groups and their tokens, of which those with the same first `LONG_START` tokens
    are one as far as the budget goes.
    """
    joined: list[tuple[list[int], int]] = []
    latest: dict[tuple[int, ...], int] = {}  # where the last one that begins so stands in *joined*
    for members, tokens in groups:
        start = tuple(batch.rows(members)[0].ids[:LONG_START])
        place = latest.get(start) if len(start) == LONG_START else None
        if place is not None:
            earlier, of_earlier = joined[place]
            together = cost(batch.rows([*earlier, *members]))
            # What only the samples of one group share may be too short for a node of a tree.
            if together <= min(budget, of_earlier + tokens - LONG_START // 2):
                joined[place] = [*earlier, *members], together
                continue
        latest[start] = len(joined)
        joined.append((members, tokens))
    return joined


def _parts(
    batch: Batch, group: list[int], budget: int, level: Level, cost: Cost
) -> list[list[int]]:
    """Return a group in parts that fit the budget, samples of like length together."""
    together = cost(batch.rows(group))
    if level == "group" or together <= budget:
        return [group]
    # Each part computes the common prefix again, so a part may take twice its tokens: split by the
    # budget alone, a prompt that is longer than it would be computed once per sample. Computed
    # apart, the samples cost the prefix once for each but one of them more than together.
    apart = sum(cost(batch.rows([i])) for i in group)
    prefix = (apart - together) // max(len(group) - 1, 1)
    limit = max(budget, 2 * prefix)
    lengths = {i: sum(map(length_of, batch.rows([i]))) for i in group}
    parts: list[list[int]] = []
    for i in sorted(group, key=lambda i: (-lengths[i], i)):
        if not parts or cost(batch.rows([*parts[-1], i])) > limit:
            parts.append([])
        parts[-1].append(i)
    return parts
