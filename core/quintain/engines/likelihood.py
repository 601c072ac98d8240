"""Log-likelihood of replies under a token engine, as a service for rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UsageError
from ..interfaces.engine import TokenEngine
from ..interfaces.service import Service, need
from ..types.task import Message


class LikelihoodService(Service):
    """A `Likelihood` over any engine that scores tokens; by default the policy itself."""

    def __init__(self, *, engine: Any = need("policy"), temperature: float = 1.0) -> None:
        """Use *engine*; *temperature* divides its logits.

        Raises:
            UsageError: *engine* gives no token log-probs.
        """
        if not isinstance(engine, TokenEngine):
            raise UsageError(
                f"services.likelihood: {type(engine).__name__} gives no token log-probs; "
                "use an engine with exact tokens (embedded, vllm)"
            )
        self._engine = engine
        self._temperature = temperature

    async def logprobs(
        self, prompt: str | Sequence[int] | Sequence[Message], reply: str | Sequence[int]
    ) -> list[float]:
        """Log-prob of each token of *reply* after *prompt*.

        Args:
            prompt: messages (rendered with the chat template), text as it is, or ids.
            reply: text or ids. Text is encoded on its own, so that the prompt's tokens never change.

        Raises:
            LimitReached: both together exceed the context.
        """
        prompt_ids = self._ids(prompt)
        reply_ids = self._engine.tokenizer.encode(reply) if isinstance(reply, str) else list(reply)
        if not prompt_ids:
            raise ValueError("an empty prompt: the first token of the reply would have no condition")
        return list(await self._engine.score([*prompt_ids, *reply_ids], len(prompt_ids), self._temperature))

    def _ids(self, prompt: str | Sequence[int] | Sequence[Message]) -> list[int]:
        tokenizer = self._engine.tokenizer
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        messages = [m for m in prompt if isinstance(m, Message)]
        if messages:
            return tokenizer.encode(tokenizer.render(messages, prompt=True))
        return [i for i in prompt if isinstance(i, int)]
