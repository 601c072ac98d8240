"""Credit for the steps of an answer: from the other leaves of its tree, or from a value model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from quintain import Algorithm, TokenEngine, advantage, need
from quintain.errors import UsageError
from quintain.learning import Sample, Step

from .steps import By, StepRule
from .tree import TreeEngine
from .value import ValueModel

WithMetrics = tuple[Tensor, dict[str, float]]
Key = tuple[int, tuple[int, ...]]
"""A node: how many steps lead to it, and the tokens of these steps."""


class Edge(NamedTuple):
    """A step of an answer in a tree, from *parent* to *node*; *tokens* of it."""

    parent: Key
    node: Key
    tokens: int


def _fits(algorithm: Algorithm) -> None:
    if algorithm.kl.in_reward:
        raise UsageError(
            f"algorithm {algorithm.name!r}: {algorithm.advantage!r} compares rewards of whole "
            'answers, and a KL term in the reward belongs to single tokens; set kl.where = "loss"'
        )


@advantage(fits=_fits)
def tree_steps(step: Step, *, engine: TokenEngine = need("policy")) -> WithMetrics:
    """N / (N - 1) (V(node) - V(parent)) for the tokens of the step from parent to node; V is the
    mean reward of the leaves below a node and N the number of steps that were drawn after parent
    (group-relative over siblings, as in TreeRPO, Yang et al. 2025, 2506.05183, without its division
    by the spread).

    Equal to V(node) less the mean of the other draws. Its expected update is the gradient of the
    expected reward, with less variance than that of whole answers, since V(node) is a mean. Equal
    steps count as several draws. Trees of which leaves are missing are nearly unbiased.

    Raises:
        UsageError: the engine samples no trees, or an answer has several turns.
    """
    trees = _trees(engine)

    def credit(edge: Edge, values: dict[Key, float], leaves: dict[Key, int]) -> float:
        below = int(trees.branches ** (trees.depth - edge.node[0]))
        draws = math.ceil(leaves[edge.parent] / below)
        if draws < 2:
            return 0.0
        return draws / (draws - 1) * (values[edge.node] - values[edge.parent])

    return _credited(step, trees, credit)


@advantage(fits=_fits)
def tree_process(step: Step, *, engine: TokenEngine = need("policy")) -> WithMetrics:
    """(V(node) - V(root) + V(node) - V(parent)) / sqrt(leaves below node) for the tokens of the
    step from parent to node (TreeRL, Hou et al. 2025, 2506.11902, section 3.3).

    Not the gradient of the expected reward: steps with many leaves weigh less.

    Raises:
        UsageError: as `tree_steps`.
    """

    def credit(edge: Edge, values: dict[Key, float], leaves: dict[Key, int]) -> float:
        value = values[edge.node]
        total = 2 * value - values[(0, ())] - values[edge.parent]
        return total / math.sqrt(leaves[edge.node])

    return _credited(step, _trees(engine), credit)


@advantage(fits=_fits)
def value_steps(
    step: Step,
    *,
    by: By = "lines",
    size: int = 16,
    engine: TokenEngine = need("policy"),
    value: ValueModel = need(),
) -> WithMetrics:
    """V(end) - V(start) for the tokens of a step, R - V(start) for those of the last one; V is the
    value model's, which stays what it is (a process reward model's differences, as in PAV, Setlur
    et al. 2024, 2410.08146).

    The sum over an answer is R - V(prompt). The update is biased as far as V is wrong.

    Args:
        by, size: what a step is; see `StepRule`.

    Raises:
        UsageError: an answer has several turns, or a setting is out of range.
    """
    steps = StepRule(by=by, size=size)
    rows, places = [], []
    for sample in step.batch.samples:
        prompt, tokens = answer_of(sample, "value_steps")
        ends = steps.ends(tokens, engine.tokenizer)
        rows.append((*prompt, *tokens))
        places.append([len(prompt) + end for end in (0, *ends[:-1])])
    found = value.values_at(rows, places)
    out: list[float] = []
    for row, starts, values, reward in zip(rows, places, found, step.rewards, strict=True):
        for (start, own), (end, reached) in pairwise(
            [*zip(starts, values, strict=True), (len(row), reward)]
        ):
            out.extend([reached - own] * (end - start))
    error = [abs(values[-1] - reward) for values, reward in zip(found, step.rewards, strict=True)]
    return torch.tensor(out, dtype=torch.float64), {
        "value.prompt": sum(values[0] for values in found) / max(1, len(found)),
        "value.error": sum(error) / max(1, len(error)),
    }


def answer_of(sample: Sample, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the prompt and the tokens of the one answer of *sample*.

    Args:
        name: of the advantage, for errors.

    Raises:
        UsageError: it has several turns, or holds tokens that were not sampled.
    """
    why = f"advantage.{name} reads single answers, and this rollout"
    if len(sample.turns) > 1 or len(sample.sequences) > 1:
        raise UsageError(f"{why} has several turns; take an environment of a single turn")
    (sequence,) = sample.sequences
    first = sequence.mask.index(True) if any(sequence.mask) else len(sequence.mask)
    if not all(sequence.mask[first:]):
        raise UsageError(f"{why} holds tokens that it did not sample; set thinking_budget = none")
    return tuple(sequence.ids[:first]), tuple(sequence.ids[first:])


def _trees(engine: TokenEngine) -> TreeEngine:
    if not isinstance(engine, TreeEngine):
        raise UsageError(
            f"the engine {engine.name!r} samples no trees; set engine.use = 'tree', and "
            "batch.group_size to its number of leaves"
        )
    return engine


def _credited(
    step: Step,
    engine: TreeEngine,
    credit: Callable[[Edge, dict[Key, float], dict[Key, int]], float],
) -> WithMetrics:
    """Return the advantages that *credit* gives the steps of all answers, by the mean rewards and
    the numbers of leaves of the nodes of their group's tree.
    """
    by_sample: dict[int, list[float]] = {}
    nodes = sampled = 0
    for group in step.groups:
        edges = {i: _edges(step.batch.samples[i], engine) for i in group}
        rewards: defaultdict[Key, list[float]] = defaultdict(list)
        for i in group:
            for key in ((0, ()), *(edge.node for edge in edges[i])):
                rewards[key].append(step.rewards[i])
        values = {key: math.fsum(own) / len(own) for key, own in rewards.items()}
        leaves = {key: len(own) for key, own in rewards.items()}
        for i in group:
            by_sample[i] = [
                credit(edge, values, leaves) for edge in edges[i] for _ in range(edge.tokens)
            ]
        tokens = {edge.node: edge.tokens for own in edges.values() for edge in own}
        nodes, sampled = nodes + len(tokens), sampled + sum(tokens.values())
    out = [x for i in range(len(step.batch.samples)) for x in by_sample[i]]
    metrics = {"tree.steps": float(nodes), "tree.tokens": float(sampled)}
    return torch.tensor(out, dtype=torch.float64), metrics


def _edges(sample: Sample, engine: TreeEngine) -> list[Edge]:
    """Return the steps of an answer between the places at which its tree branches."""
    _, tokens = answer_of(sample, "tree_steps")
    if not tokens:
        return []
    ends = engine.steps.ends(tokens, engine.tokenizer)
    branched = [*ends[:-1][: engine.depth - 1], ends[-1]]
    return [
        Edge((level, tokens[:start]), (level + 1, tokens[:end]), end - start)
        for level, (start, end) in enumerate(pairwise((0, *branched)))
    ]
