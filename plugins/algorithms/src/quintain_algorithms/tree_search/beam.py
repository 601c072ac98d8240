"""Keeps the best beginnings of an answer by their value, step by step."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, Self

from quintain import Sampling
from quintain.errors import UsageError

from .engine import SLOTS, SearchEngine, loaded, shared
from .partial import Partial
from .steps import By, StepRule


class BeamEngine(SearchEngine):
    """Beam search over steps (Snell et al. 2024, 2408.03314, section 5.2).

    Each round samples *branches* steps after each of the *width* beginnings that are kept, and
    keeps the *width* best by value; beginnings that have ended stay among them. The first round
    samples *width* times *branches* steps. The best one is the answer once all kept have ended.
    With ``by = "answer"`` a step is a whole answer: the best of *width* times *branches* samples.

    The answers are not drawn from the policy. Imitate them (`rft`, `sft`); the ratio and the
    baselines of policy gradients do not hold for them.

    Args:
        model: a folder or hub id; a run decodes the learner's own weights.
        value: the folder of a value model (`quintain value`); without one, the mean log-prob.
        width, branches: beginnings that are kept, and steps sampled after each.
        by, size: what a step is; see `StepRule`.
        slots, dtype, device: of the engine that samples.

    Raises:
        UsageError: a setting is out of range, or a model cannot be loaded.
    """

    name = "beam"

    def __init__(
        self,
        model: str = "",
        *,
        value: str = "",
        width: int = 4,
        branches: int = 4,
        by: By = "lines",
        size: int = 16,
        slots: int = SLOTS,
        dtype: str = "float32",
        device: str = "auto",
    ) -> None:
        self._configure(width, branches)
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
        width: int = 4,
        branches: int = 4,
        by: By = "lines",
        size: int = 16,
        slots: int = SLOTS,
        copy: bool = False,
    ) -> Self:
        """Return an engine over a learner's *module*; see `SharesModule.sharing`."""
        engine = cls.__new__(cls)
        engine._configure(width, branches)
        policy = shared(module, tokenizer, dtype=dtype, slots=slots, copy=copy)
        engine.open_policy(policy, StepRule(by=by, size=size), value)
        return engine

    def _configure(self, width: int, branches: int) -> None:
        if width < 1 or branches < 1:
            raise UsageError(
                f"beam: width {width}, branches {branches}; expected at least 1 of each"
            )
        self.width, self.branches = width, branches

    async def search(self, prompt: tuple[int, ...], sampling: Sampling) -> Partial:
        kept = [Partial()]
        for round_number in count():
            copies = self.branches if round_number else self.width * self.branches
            grown = await asyncio.gather(
                *(
                    self.extended(prompt, beginning, sampling, "beam", round_number, place, copy)
                    for place, beginning in enumerate(kept)
                    if beginning.finish is None
                    for copy in range(copies)
                )
            )
            ended = [beginning for beginning in kept if beginning.finish is not None]
            candidates = list({c.ids: c for c in (*ended, *grown)}.values())
            values = await self.worth(prompt, candidates)
            order = sorted(range(len(candidates)), key=lambda i: -values[i])
            kept = [candidates[i] for i in order[: self.width]]
            if all(beginning.finish is not None for beginning in kept):
                break
        return kept[0]
