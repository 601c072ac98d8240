"""`quintain chat`: talk to a trained model."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from .options import Count

if TYPE_CHECKING:
    from ..engines.embedded.engine import EmbeddedEngine
    from ..types.sampling import Sampling


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--temperature", "-t", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--max-tokens", type=Count(1), default=512, show_default=True, help="New tokens per answer.")
@click.option("--system", metavar="TEXT", help="System message; by default that of the run's environment.")
@click.option("--once", metavar="TEXT", help="Say this, print the answer and leave.")
@click.option("--folder", default="runs", show_default=True, help="Where run folders are.")
def chat(run: str, temperature: float, max_tokens: int, system: str | None, once: str | None, folder: str) -> None:
    """Talk to the model of RUN (a run, a folder with a model, or a Hugging Face id).

    An empty line or Ctrl-D ends it; /new starts over.
    """
    from ..engines.embedded.engine import EmbeddedEngine
    from ..training.runs import model_named
    from ..types.sampling import Sampling

    path, own_system = model_named(run, folder)
    engine = EmbeddedEngine(path)
    talk = Talk(
        engine, Sampling(temperature=temperature, max_tokens=max_tokens), own_system if system is None else system
    )
    asyncio.run(talk.once(once) if once is not None else talk.forever())


class Talk:
    """A conversation on the terminal."""

    def __init__(self, engine: EmbeddedEngine, sampling: Sampling, system: str) -> None:
        self._engine, self._sampling, self._system = engine, sampling, system
        self._start()

    def _start(self) -> None:
        from ..rollouts.chat.bridge import Conversation
        from ..types.task import Message

        self._conversation = Conversation(self._engine.tokenizer)
        if self._system:
            self._conversation.add(Message("system", self._system))

    async def once(self, text: str) -> None:
        """One answer."""
        click.echo(await self._answer(text))

    async def forever(self) -> None:
        """Answers until an empty line."""
        click.echo("an empty line ends the talk, /new starts over", err=True)
        while True:
            click.echo("> ", nl=False, err=True)
            line = (await asyncio.to_thread(sys.stdin.readline)).strip()
            if not line:
                return
            if line == "/new":
                self._start()
                continue
            click.echo(await self._answer(line))

    async def _answer(self, text: str) -> str:
        from ..rollouts.chat.bridge import stops
        from ..types.task import Message

        self._conversation.add(Message("user", text))
        sampled = await self._engine.sample(self._conversation.prompt(), stops(self._engine.tokenizer, self._sampling))
        return self._conversation.add_sampled(sampled).strip()
