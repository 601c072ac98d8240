"""Other models than the policy that an agent's program asks for at the policy's address, answered by
a server of theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from quintain import Engine, Message, Reply, Sampling, ToolSpec
from quintain.errors import InfrastructureError, UsageError
from quintain.registry import current

MOST_MODELS = 64
"""Names of one run: each has a client of its own."""


class ForwardedModels:
    """An engine for each name, made when it is first asked for.

    Args:
        settings: of the engine; ``use`` is its name, by default ``openai``. ``model`` is the name
            that the server is asked for, by default the one that the program used.

    Raises:
        UsageError: the settings are not those of the engine.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {name: value for name, value in settings.items() if name != "use"}
        self._kind: Any = current().load("engine", str(settings.get("use", "openai")))
        self._engines: dict[str, _Opened] = {}
        self._opened = AsyncExitStack()
        self._made("a-model")  # wrong settings are told before the first episode

    def engine(self, model: str) -> Engine:
        """Return the engine that answers to *model*.

        Raises:
            InfrastructureError: the programs have asked for too many names.
        """
        if model not in self._engines:
            if len(self._engines) >= MOST_MODELS:
                raise InfrastructureError(
                    f"gateway: programs asked for more than {MOST_MODELS} other models"
                )
            self._engines[model] = _Opened(self._made(model), self._opened)
        return self._engines[model]

    async def close(self) -> None:
        """Leave all engines."""
        await self._opened.aclose()

    def _made(self, model: str) -> Engine:
        try:
            engine: Engine = self._kind(**{"model": model, **self._settings})
        except TypeError as e:
            raise UsageError(f"gateway: other_models: {e}") from e
        return engine


class _Opened(Engine):
    """An engine that is entered by its first turn."""

    def __init__(self, engine: Engine, stack: AsyncExitStack) -> None:
        self._engine, self._stack = engine, stack
        self._entering = asyncio.Lock()
        self._entered = False
        self.name = engine.name

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        async with self._entering:
            if not self._entered:
                await self._stack.enter_async_context(self._engine)
                self._entered = True
        return await self._engine.reply(messages, tools, sampling)
