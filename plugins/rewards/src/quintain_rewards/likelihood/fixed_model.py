"""A model whose weights stay as they are, as an engine: opponents, earlier selves, scorers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from quintain import Sampled, Sampling, TokenEngine, Weights
from quintain.errors import UsageError

if TYPE_CHECKING:
    from quintain.models import LoadedModel


class FixedModelEngine(TokenEngine):
    """Samples and scores with a model that does not train.

    A subclass names its model and calls `start`, in ``__aenter__`` or, to load nothing that is
    never asked for, in `started`.

    Args:
        name: of the player or scorer, in errors.
        slots: sequences that are decoded at once.
        reproducible: see `EmbeddedEngine`.

    Attributes:
        engine: the one that decodes the model; ``None`` before `start`.
    """

    def __init__(self, name: str, *, slots: int, reproducible: bool = True) -> None:
        self.name, self._slots, self._reproducible = name, slots, reproducible
        self.engine: TokenEngine | None = None
        self._stack = AsyncExitStack()

    async def start(self, model: LoadedModel) -> TokenEngine:
        """Start the engine of *model*."""
        from quintain.engine import EmbeddedEngine

        self.tokenizer, self.context = model.tokenizer, model.context
        engine = EmbeddedEngine.sharing(
            model.module, model.tokenizer, slots=self._slots, reproducible=self._reproducible
        )
        self.engine = await self._stack.enter_async_context(engine)
        return engine

    async def started(self) -> TokenEngine:
        """Return the engine that answers.

        Raises:
            UsageError: no model was started.
        """
        if self.engine is None:
            raise UsageError(f"{self.name} is not started: use `async with`")
        return self.engine

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        return await (await self.started()).sample(ids, sampling)

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return await (await self.started()).score(ids, start, temperature)

    async def update(self, weights: Weights) -> int:
        """Raise a `UsageError`."""
        raise UsageError(f"{self.name} keeps its weights")


def fixed_copy(module: Any, *, adapters: bool) -> Any:
    """Copy *module* for use without training.

    Args:
        adapters: merge the adapters of a peft module into the copy; else leave them out, which
            is the model that they began from.
    """
    module = copy.deepcopy(module)
    if hasattr(module, "peft_config"):
        module = module.merge_and_unload() if adapters else module.unload()
    return module.requires_grad_(False).eval()
