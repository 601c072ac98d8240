"""Samples the rollouts of a group as the leaves of a tree: they share steps, and branch after
them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

from quintain import Algorithm, Sampling, Weights
from quintain.errors import UsageError

from .engine import SLOTS, SearchEngine, loaded, shared
from .partial import Partial
from .steps import By, StepRule

UNRELATED = frozenset({"tree_steps", "tree_process", "value_steps", "raw", "ema"})
"""Advantages that know the tree, or that compare no answers of a group."""
BY_STEPS = frozenset({"tree_steps", "tree_process"})
"""Advantages that read the shape of the tree: they hold for whole trees alone."""
Path = tuple[int, ...]
"""Which branch was taken at each step."""


@dataclass(kw_only=True)
class OpenTree:
    """A tree whose leaves are being sampled.

    Attributes:
        sampling: with the seed of its first leaf.
        given, active: leaves that were given away so far, and those that are not complete.
        steps: by the path to their end, as they are sampled.
    """

    sampling: Sampling
    given: int = 0
    active: int = 0
    steps: dict[Path, asyncio.Task[Partial]] = field(default_factory=dict)


class TreeEngine(SearchEngine):
    """Samples answers that have beginnings in common (on-policy trees, as in TreeRPO, 2506.05183).

    Equal prompts that are asked for at the same time are the leaves of one tree of *branches* to
    the power of *depth* leaves; what is more begins a further tree. After each of the first *depth*
    steps an answer branches, and the last branches run to the end. Each answer by itself is drawn
    from the policy; answers of one tree depend on one another, which the advantages `tree_steps` and
    `tree_process` know. A group is a whole tree where ``group_size`` is the number of leaves.

    An answer that ends before its last branching is the leaf of all episodes below it.

    Args:
        model: a folder or hub id; a run decodes the learner's own weights.
        branches, depth: of the tree, from 2 and 1.
        by, size: what a step is; see `StepRule`.
        slots, dtype, device: of the engine that samples.

    Raises:
        UsageError: a setting is out of range, or the model cannot be loaded.
    """

    name = "tree"

    def __init__(
        self,
        model: str = "",
        *,
        branches: int = 2,
        depth: int = 2,
        by: By = "lines",
        size: int = 16,
        slots: int = SLOTS,
        dtype: str = "float32",
        device: str = "auto",
    ) -> None:
        self._configure(branches, depth)
        policy = loaded(model, slots=slots, dtype=dtype, device=device)
        self.open_policy(policy, StepRule(by=by, size=size))

    @classmethod
    def sharing(
        cls,
        module: Any,
        tokenizer: Any,
        *,
        dtype: str | None = None,
        branches: int = 2,
        depth: int = 2,
        by: By = "lines",
        size: int = 16,
        slots: int = SLOTS,
        copy: bool = False,
    ) -> Self:
        """Return an engine over a learner's *module*; see `SharesModule.sharing`."""
        engine = cls.__new__(cls)
        engine._configure(branches, depth)
        policy = shared(module, tokenizer, dtype=dtype, slots=slots, copy=copy)
        engine.open_policy(policy, StepRule(by=by, size=size))
        return engine

    def _configure(self, branches: int, depth: int) -> None:
        if branches < 2 or depth < 1:
            raise UsageError(
                f"tree: branches {branches}, depth {depth}; expected at least 2 and at least 1"
            )
        self.branches, self.depth = branches, depth
        self._trees: dict[tuple[Any, ...], OpenTree] = {}

    @classmethod
    def check_algorithm(
        cls,
        algorithm: Algorithm,
        settings: Mapping[str, Any],
        *,
        group_size: int,
        concurrency: int | None,
    ) -> str | None:
        """Refuse groups that are not whole trees where credit is by steps, and remark on baselines
        that may come from other leaves of a tree; see `TokenEngine`.
        """
        advantage = algorithm.advantage
        if advantage.name in BY_STEPS:
            cls._check_whole_trees(advantage.name, settings, group_size, concurrency)
        if algorithm.takes_any_samples or advantage.name in UNRELATED:
            return None
        return (
            f"answers of one tree depend on one another, so that a baseline from the group, if "
            f"{advantage!r} takes one, shrinks the update of the steps that they share: a step with "
            "m of n leaves below it keeps 1 - (m - 1) / (n - 1); 'tree_credit' compares steps"
        )

    @staticmethod
    def _check_whole_trees(
        name: str, settings: Mapping[str, Any], group_size: int, concurrency: int | None
    ) -> None:
        branches, depth = settings.get("branches", 2), settings.get("depth", 2)
        leaves = branches**depth
        why = f"advantage.{name} compares the steps that were drawn at one place of a whole tree"
        if group_size % leaves:
            raise UsageError(
                f"{why}, and batch.group_size = {group_size} is no multiple of its {leaves} leaves "
                f"(branches {branches}, depth {depth}); set batch.group_size = "
                f"{leaves * math.ceil(group_size / leaves)}"
            )
        if concurrency is not None and concurrency < group_size:
            raise UsageError(
                f"{why}, and with batch.concurrency = {concurrency} the answers of a group of "
                f"{group_size} are not sampled together; set batch.concurrency = {group_size}, or "
                "leave it out"
            )

    @property
    def leaves(self) -> int:
        """Answers of a whole tree."""
        return int(self.branches**self.depth)

    def register(self) -> AbstractContextManager[None]:
        # Episodes that wait for a step of another one do not wait at the policy's engine. Each step
        # is announced there by itself.
        return nullcontext()

    async def search(self, prompt: tuple[int, ...], sampling: Sampling) -> Partial:
        key = (prompt, sampling.replace(seed=None))
        tree = self._trees.get(key)
        if tree is None or tree.given == self.leaves:
            tree = self._trees[key] = OpenTree(sampling=sampling)
        path = self._path(tree.given)
        tree.given += 1
        tree.active += 1
        try:
            partial = Partial()
            for end in range(1, self.depth + 1):
                # Shielded, since other leaves wait for the step of an episode that is cancelled.
                step = self._step(tree, prompt, partial, path[:end])
                partial = await asyncio.shield(step)
                if partial.finish:
                    break
            return partial
        finally:
            tree.active -= 1
            # One that is not whole waits: other answers of its group may begin when this is complete.
            whole = tree.given == self.leaves and not tree.active
            if whole and self._trees.get(key) is tree:
                del self._trees[key]

    async def update(self, weights: Weights) -> int:
        # Later answers to the same prompt are of other weights, and of another group.
        for key in [key for key, tree in self._trees.items() if not tree.active]:
            del self._trees[key]
        return await super().update(weights)

    def _path(self, leaf: int) -> Path:
        """Return the branches that lead to a leaf: its number in base *branches*."""
        return tuple(
            leaf // self.branches**place % self.branches for place in reversed(range(self.depth))
        )

    def _step(
        self, tree: OpenTree, prompt: tuple[int, ...], partial: Partial, path: Path
    ) -> asyncio.Task[Partial]:
        if path not in tree.steps:
            sample = self._registered(tree.sampling, prompt, partial, path)
            tree.steps[path] = asyncio.get_running_loop().create_task(sample)
        return tree.steps[path]

    async def _registered(
        self, sampling: Sampling, prompt: tuple[int, ...], partial: Partial, path: Path
    ) -> Partial:
        grow = self.completed if len(path) == self.depth else self.extended
        with self.policy.register():
            return await grow(prompt, partial, sampling, "tree", *path)
