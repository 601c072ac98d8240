"""Engines for tests of the episode floor: exact bytes, no model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from quintain.interfaces.engine import TokenEngine, Weights
from quintain.interfaces.tools import ToolSpec
from quintain.types.sampling import Sampling
from quintain.types.task import Message
from quintain.types.transcript import Sampled
from quintain_authoring.byte_tokenizer import ByteTokenizer

Speak = Callable[[str, Sampling], str | Exception]


class ThoughtlessTokenizer(ByteTokenizer):
    """Drops the thoughts of earlier turns when it renders history, as Qwen3's template does."""

    name = "thoughtless"

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        last_user = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
        kept = [
            Message("assistant", m.content.split("</think>")[-1])
            if m.role == "assistant" and i < last_user
            else m
            for i, m in enumerate(messages)
        ]
        return super().render(kept, tools, prompt=prompt)


class Speaker(TokenEngine):
    """Says what a function of the prompt's text says, after a jittered wait; the text ends with the
    stop token unless cut.
    """

    name = "speaker"

    def __init__(
        self,
        speak: Speak,
        tokenizer: ByteTokenizer | None = None,
        context: int = 4096,
        jitter: int | None = None,
    ) -> None:
        self.speak, self.tokenizer, self.context = speak, tokenizer or ByteTokenizer(), context
        self.jitter = random.Random(jitter) if jitter is not None else None
        self.prompts: list[list[int]] = []
        self.seeds: list[int | None] = []

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.prompts.append(list(ids))
        self.seeds.append(sampling.seed)
        await asyncio.sleep(self.jitter.random() / 500 if self.jitter else 0)
        said = self.speak(self.tokenizer.decode(ids), sampling)
        if isinstance(said, Exception):
            raise said
        new = [*self.tokenizer.encode(said), self.tokenizer.stop_ids[0]]
        room = min(sampling.max_tokens or len(new), self.context - len(ids))
        finish = "stop" if len(new) <= room else "length"
        new = new[:room]
        logps = tuple(-1.0 - i / 100 for i in range(len(new)))
        stop = new[-1] if finish == "stop" else None
        return Sampled(
            ids=tuple(new),
            logps=logps,
            versions=(self.version,) * len(new),
            finish=finish,
            stop=stop,
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [-1.0] * (len(ids) - start)

    async def update(self, weights: Weights) -> int:
        self.version = weights.version
        return self.version
