"""Rows of tokens as paths of a tree, so that what several begin with is computed once wherever they
part: turns of one conversation, rewritten histories, conversations of sub-agents.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

SHORTEST = 32
"""Tokens that some rows, but not all, must have in common to become a node of their own. Below,
computing them again costs less than one more call of attention in each layer.
"""
SAVED = 96
"""Tokens that a shorter node must save. Below, words that some replies begin with would cut the
groups of small models into many nodes.
"""
QUERY_CHUNK = 128
"""Queries of a node that attend in one call."""
SIDE_BY_SIDE = range(QUERY_CHUNK, 1024)
"""Queries of nodes behind the same ones that attend in one call: as many as there are tokens before
them, within these limits. Beyond, what the mask leaves out takes more than the calls that are saved.
"""

LONG_START = 128
"""Tokens that prompts of different tasks must begin with to be computed together: examples before the
question, a system message that describes tools. Below, more calls of attention, or a pass of the
engine for the first prompt alone, cost more than they save.
"""


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens between two places where rows part.

    Attributes:
        ids: the tokens.
        begin: position of the first of them in its rows.
        before: indices of the nodes that lead to it, from the root on.
    """

    ids: Sequence[int]
    begin: int
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes, and for each row the indices of the nodes that it consists of."""

    nodes: tuple[Node, ...]
    paths: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """Number of tokens that pass through the layers."""
        return sum(len(node.ids) for node in self.nodes)

    @property
    def calls(self) -> int:
        """Estimated calls of attention in a layer."""
        tokens, begins = Counter[tuple[int, ...]](), dict[tuple[int, ...], int]()
        for node in self.nodes:
            tokens[node.before] += len(node.ids)
            begins[node.before] = node.begin
        return sum(-(-tokens[before] // side_by_side(begins[before])) for before in tokens)

    @classmethod
    def of(cls, rows: Sequence[list[int]]) -> PrefixTree:
        """Return the tree of *rows*. What all rows begin with is shared at
        any length, what some begin with from `SHORTEST` tokens on, or where this saves `SAVED`.
        """
        nodes: list[Node] = []
        paths: list[tuple[int, ...]] = [()] * len(rows)
        # Rows in dictionary order, from which position on they have no node yet, and their nodes up
        # to there. A stack: a conversation of a thousand turns would be a recursion as deep.
        pending = [(sorted(range(len(rows)), key=rows.__getitem__), 0, paths[0])]
        while pending:
            members, begin, before = pending.pop()
            last = rows[members[-1]]
            end = common_length(rows[members[0]], last)
            one_or_all = len(members) in (1, len(rows))
            length, saved = end - begin, (len(members) - 1) * (end - begin)
            if length and (one_or_all or length >= SHORTEST or saved >= SAVED):
                nodes.append(Node(last[begin:end], begin, before))
                before, begin = (*before, len(nodes) - 1), end
            ended = [row for row in members if len(rows[row]) == end]
            for row in ended:
                if end > begin:
                    nodes.append(Node(rows[row][begin:end], begin, before))
                    paths[row] = (*before, len(nodes) - 1)
                else:
                    paths[row] = before
            going_on = members[len(ended) :]  # a row that ends comes before those that go on
            for _, branch in groupby(going_on, key=lambda row: rows[row][end]):
                pending.append((list(branch), begin, before))
        return cls(tuple(nodes), tuple(paths))


def side_by_side(begin: int) -> int:
    """Return how many queries of nodes behind *begin* tokens attend in one call."""
    return min(max(begin, SIDE_BY_SIDE.start), SIDE_BY_SIDE.stop)


def common_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Return how many tokens two lists, or characters two texts, have in common at the start."""
    # slices compare in C: many times faster than a loop over tokens
    shorter = min(len(first), len(second))
    return bisect_left(range(shorter), True, key=lambda k: first[: k + 1] != second[: k + 1])
