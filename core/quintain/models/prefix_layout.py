"""In which order the tokens of a micro-batch pass through the layers, so that what rows of a group
begin with is computed once.

Most groups are one prompt and the replies to it: a common prefix and a rest for each row. Where rows
part at several places (rewritten histories, sub-agents), the group is a `PrefixTree`.

Shapes: F flat tokens, N positions, M prefix groups, G rows of a group, P tokens of a common prefix,
T tokens of a rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from .prefix_tree import SHORTEST, Node, PrefixTree, common_length
from .transfers import to_device


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids, and the positions (from 1, increasing) whose log-probs are needed; *experts* as in
    `quintain.types.transcript.Sampled`.
    """

    ids: Sequence[int]
    positions: Sequence[int]
    experts: Sequence[str] = ()


PrefixGroup = Sequence[TokenSequence]
"""Rows that may have a common prefix."""


PositionsOf = Callable[[Sequence[int]], Sequence[int]]
"""The rotary positions of the tokens of a row."""


def plain_positions(ids: Sequence[int]) -> Sequence[int]:
    """Return the places of *ids*, which are the positions of text."""
    return range(len(ids))


def shared_start(prefix_group: PrefixGroup) -> int:
    """Return the length of the common prefix of all rows; each row keeps at least one input token
    of its own.
    """
    if len(prefix_group) < 2:
        return 0
    # What the first and the last in dictionary order have in common at the start, all between them
    # have, too.
    first = min(list(row.ids) for row in prefix_group)
    last = max(list(row.ids) for row in prefix_group)
    return min(common_length(first, last), min(len(row.ids) for row in prefix_group) - 2)


def tree_of(prefix_group: PrefixGroup) -> PrefixTree | None:
    """Return the rows without their last tokens as a tree, where this computes at least `SHORTEST`
    tokens less than one common prefix for each further call of attention. Else return ``None``: with
    common prefixes two calls serve all groups.
    """
    if len(prefix_group) < 2:
        return None
    tree = PrefixTree.of([list(row.ids[:-1]) for row in prefix_group])
    saved = _two_level_cost(prefix_group) - tree.tokens
    return tree if saved >= SHORTEST * max(1, tree.calls - 2) else None


def tokens_computed(prefix_group: PrefixGroup) -> int:
    """Return how many tokens pass through the layers for *prefix_group*."""
    tree = tree_of(prefix_group)
    return _two_level_cost(prefix_group) if tree is None else tree.tokens


def _two_level_cost(prefix_group: PrefixGroup) -> int:
    lengths = [len(row.ids) - 1 for row in prefix_group]
    return sum(lengths) - (len(prefix_group) - 1) * shared_start(prefix_group)


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Rearranges flat tokens into a padded block and back, both as gathers.

    Attributes:
        shape: of the block.
        block_to_flat: for each cell of the block its flat token, 0 in the padding.
        flat_to_block: the inverse.
        real: boolean, of shape *shape*; like both gathers ``None`` where nothing is padded.
    """

    shape: tuple[int, ...]
    block_to_flat: Tensor | None
    flat_to_block: Tensor | None
    real: Tensor | None

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], device: torch.device) -> Padding:
        """Return the padding of runs of *lengths* by prefix group and row to a block [M, G, T]."""
        shape = (
            len(lengths),
            max(map(len, lengths)),
            max(n for prefix_group in lengths for n in prefix_group),
        )
        if all(
            len(prefix_group) == shape[1] and all(n == shape[2] for n in prefix_group)
            for prefix_group in lengths
        ):
            return cls(shape=shape, block_to_flat=None, flat_to_block=None, real=None)
        sizes_MG = torch.zeros(shape[:2], dtype=torch.long)
        for m, prefix_group in enumerate(lengths):
            sizes_MG[m, : len(prefix_group)] = torch.tensor(prefix_group)
        real = torch.arange(shape[2]) < sizes_MG.unsqueeze(-1)
        flat_to_block = real.flatten().nonzero()[:, 0]
        block_to_flat = torch.zeros(real.numel(), dtype=torch.long)
        block_to_flat[flat_to_block] = torch.arange(flat_to_block.numel())
        return cls(
            shape=shape,
            block_to_flat=to_device(block_to_flat, device),
            flat_to_block=to_device(flat_to_block, device),
            real=to_device(real, device),
        )

    def block(self, flat: Tensor) -> Tensor:
        """Lay [F, ...] out as [*shape, ...]; the padding holds copies of token 0, which attention
        must mask.
        """
        if self.block_to_flat is None or self.flat_to_block is None:
            return flat.unflatten(0, self.shape)
        return cast(
            Tensor, _Rearrange.apply(flat, self.block_to_flat, self.flat_to_block)
        ).unflatten(0, self.shape)

    def flat(self, block: Tensor) -> Tensor:
        """Lay [*shape, ...] out as [F, ...], without the padding."""
        merged = block.flatten(0, len(self.shape) - 1)
        return merged if self.flat_to_block is None else merged.index_select(0, self.flat_to_block)


class _Rearrange(torch.autograd.Function):
    """A gather whose gradient is the inverse gather: autograd would scatter with additions, which
    is slower and, on a GPU, in no fixed order. Copies in padded positions carry no gradient, since
    attention masks them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return grad.index_select(0, inverse), None, None


@dataclass(frozen=True, kw_only=True)
class PrefixLayout:
    """Order of a micro-batch's tokens: first the common prefixes ("starts") of all groups, then the
    rests of all rows, then the nodes of groups that are trees.

    Attributes:
        ids, positions: of the flat tokens, [F].
        starts, rests: number of flat tokens in common prefixes, and in rests.
        start, rest: paddings of the two parts; *start* is [M, 1, P], ``None`` where no group has a
            common prefix; *rest* is ``None`` where all groups are trees.
        tree_nodes: in the order of their flat tokens; *before* are indices into this tuple.
        lengths: of each group of the two parts, tokens of its start, 0 for none, and of its rests.
        asked: index of the flat token that predicts each position, [N].
    """

    ids: Tensor
    positions: Tensor
    starts: int
    rests: int
    start: Padding | None
    rest: Padding | None
    tree_nodes: tuple[Node, ...]
    lengths: tuple[tuple[int, Sequence[int]], ...]
    asked: Tensor

    @classmethod
    def of(
        cls,
        groups: Sequence[PrefixGroup],
        device: torch.device,
        positions_of: PositionsOf = plain_positions,
    ) -> PrefixLayout:
        """Return the layout of *groups*."""
        trees = [tree_of(group) for group in groups]
        two_level = [group for group, tree in zip(groups, trees, strict=True) if tree is None]
        shared = [shared_start(group) for group in two_level]
        # rows alone need no mask beyond causality, for which attention has a faster kernel
        if not any(shared):
            two_level, shared = [[row] for group in two_level for row in group], []
        # The last token of a row predicts nothing that trains, so it is left out everywhere below.
        common = shared or [0] * len(two_level)
        ids = [i for n, group in zip(shared, two_level, strict=False) for i in group[0].ids[:n]]
        positions = [
            p
            for n, group in zip(shared, two_level, strict=False)
            for p in positions_of(group[0].ids)[:n]
        ]
        starts, begin = len(ids), 0
        asked_by_row: list[list[int]] = []
        for n, group in zip(common, two_level, strict=True):
            for row in group:
                # The token before position p predicts it: in the common prefix if p <= n, else in
                # the row's rest.
                asked_by_row.append(
                    [begin + p - 1 if p <= n else len(ids) + p - 1 - n for p in row.positions]
                )
                ids.extend(row.ids[n:-1])
                positions.extend(positions_of(row.ids)[n:-1])
            begin += n
        lengths = [
            [len(row.ids) - 1 - n for row in group]
            for n, group in zip(common, two_level, strict=True)
        ]
        rests = len(ids) - starts
        of_two_level = iter(asked_by_row)
        tree_nodes: list[Node] = []
        asked: list[int] = []
        for group, tree in zip(groups, trees, strict=True):
            if tree is None:
                asked.extend(i for _ in group for i in next(of_two_level))
                continue
            first_node = len(tree_nodes)
            first_tokens = list(
                accumulate((len(node.ids) for node in tree.nodes), initial=len(ids))
            )
            rows_of = {
                k: row.ids for row, path in zip(group, tree.paths, strict=True) for k in path
            }
            for index, node in enumerate(tree.nodes):
                before = tuple(first_node + k for k in node.before)
                tree_nodes.append(replace(node, before=before))
                ids.extend(node.ids)
                end = node.begin + len(node.ids)
                positions.extend(positions_of(rows_of[index])[node.begin : end])
            for row, path in zip(group, tree.paths, strict=True):
                flat = [
                    i for k in path for i in range(first_tokens[k], first_tokens[k + 1])
                ]  # the row's tokens
                asked.extend(flat[p - 1] for p in row.positions)
        return cls(
            ids=to_device(ids, device),
            positions=to_device(positions, device),
            starts=starts,
            rests=rests,
            start=Padding.of([[n] for n in shared], device) if shared else None,
            rest=Padding.of(lengths, device) if lengths else None,
            tree_nodes=tuple(tree_nodes),
            lengths=tuple(zip(common, lengths, strict=True)),
            asked=to_device(asked, device),
        )
