"""Monte Carlo tree search over the steps of an answer, guided by a value model."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from quintain import Sampling
from quintain.errors import UsageError

from .engine import SLOTS, SearchEngine, loaded, shared
from .partial import Partial
from .steps import By, StepRule


@dataclass(kw_only=True)
class SearchNode:
    """The beginning of an answer in a search tree.

    Attributes:
        value: what the value model says of it.
        prior: the share of its siblings' draws that gave it.
        visits, total: simulations that passed it, and the sum of the values that they found.
    """

    partial: Partial
    value: float = 0.0
    prior: float = 1.0
    visits: int = 0
    total: float = 0.0
    children: list[SearchNode] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean of the values found below; its own value before the first visit."""
        return self.total / self.visits if self.visits else self.value

    def best_child(self, exploration: float) -> SearchNode:
        """Return the child with the largest mean + exploration prior sqrt(visits) / (1 + its own
        visits), the first of equals (PUCT; AlphaGo Zero, Silver et al. 2017).
        """
        scale = exploration * math.sqrt(self.visits)
        return max(self.children, key=lambda c: c.mean + scale * c.prior / (1 + c.visits))

    def descendants(self) -> Iterator[SearchNode]:
        """Yield the node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.descendants()


class MCTSEngine(SearchEngine):
    """Searches with PUCT.

    A simulation descends to a node without children. Where that was visited before and goes on,
    *branches* steps are sampled after it, equal ones become one child with a larger prior, and the
    best of them is taken. The value of the node that is reached counts for all nodes on the way.
    The answer is the complete one with the largest value; where there is none, the policy completes
    the beginning that was visited most.

    The answers are not drawn from the policy; see `BeamEngine`.

    Args:
        model: a folder or hub id; a run decodes the learner's own weights.
        value: the folder of a value model (`quintain value`); without one, the mean log-prob.
        simulations: of one search.
        branches: steps sampled after a node.
        exploration: the weight of the prior.
        by, size: what a step is; see `StepRule`.
        slots, dtype, device: of the engine that samples.

    Raises:
        UsageError: a setting is out of range, or a model cannot be loaded.
    """

    name = "mcts"

    def __init__(
        self,
        model: str = "",
        *,
        value: str = "",
        simulations: int = 32,
        branches: int = 4,
        exploration: float = 1.0,
        by: By = "lines",
        size: int = 16,
        slots: int = SLOTS,
        dtype: str = "float32",
        device: str = "auto",
    ) -> None:
        self._configure(simulations, branches, exploration)
        policy = loaded(model, slots=slots, dtype=dtype, device=device)
        self.open_policy(policy, StepRule(by=by, size=size), value)

    @classmethod
    def sharing(
        cls,
        module: Any,
        tokenizer: Any,
        *,
        dtype: str | None = None,
        value: str = "",
        simulations: int = 32,
        branches: int = 4,
        exploration: float = 1.0,
        by: By = "lines",
        size: int = 16,
        slots: int = SLOTS,
        copy: bool = False,
    ) -> Self:
        """Return an engine over a learner's *module*; see `SharesModule.sharing`."""
        engine = cls.__new__(cls)
        engine._configure(simulations, branches, exploration)
        policy = shared(module, tokenizer, dtype=dtype, slots=slots, copy=copy)
        engine.open_policy(policy, StepRule(by=by, size=size), value)
        return engine

    def _configure(self, simulations: int, branches: int, exploration: float) -> None:
        if simulations < 1 or branches < 1 or exploration < 0:
            raise UsageError(
                f"mcts: simulations {simulations}, branches {branches}, exploration {exploration}; "
                "expected at least 1, at least 1, at least 0"
            )
        self.simulations, self.branches, self.exploration = simulations, branches, exploration

    async def search(self, prompt: tuple[int, ...], sampling: Sampling) -> Partial:
        root = SearchNode(partial=Partial(), visits=1)
        for simulation in range(self.simulations):
            path = [root]
            while path[-1].children:
                path.append(path[-1].best_child(self.exploration))
            if path[-1].partial.finish is None and path[-1].visits:
                await self._expand(prompt, path[-1], sampling, simulation)
                path.append(path[-1].best_child(self.exploration))
            for node in path:
                node.visits += 1
                node.total += path[-1].value
        complete = [node for node in root.descendants() if node.partial.finish is not None]
        if complete:
            return max(complete, key=lambda node: node.value).partial
        node = root
        while node.children:
            node = max(node.children, key=lambda child: child.visits)
        return await self.completed(prompt, node.partial, sampling, "mcts", "rest")

    async def _expand(
        self, prompt: tuple[int, ...], node: SearchNode, sampling: Sampling, simulation: int
    ) -> None:
        grown = await asyncio.gather(
            *(
                self.extended(prompt, node.partial, sampling, "mcts", simulation, copy)
                for copy in range(self.branches)
            )
        )
        draws = Counter(partial.ids for partial in grown)
        different = list({partial.ids: partial for partial in grown}.values())
        values = await self.worth(prompt, different)
        node.children = [
            SearchNode(partial=partial, value=value, prior=draws[partial.ids] / self.branches)
            for partial, value in zip(different, values, strict=True)
        ]
