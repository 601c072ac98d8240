"""`quintain chat`: talk to a trained model."""

from __future__ import annotations

import asyncio
import sys

import click

from quintain import Message, Sampling, TokenEngine
from quintain.cli import Count, current


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--temperature", "-t", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--max-tokens", type=Count(1), default=512, show_default=True, help="New tokens per answer.")
@click.option("--system", metavar="TEXT", help="System message (default: that of the run's environment).")
@click.option("--once", metavar="TEXT", help="Send TEXT, print the answer and exit.")
@click.option("--folder", default="runs", show_default=True, help="Parent folder of the run folders.")
def chat(run: str, temperature: float, max_tokens: int, system: str | None, once: str | None, folder: str) -> None:
    """Talk to the model of RUN (a run, a folder with a model, or a Hugging Face id).

    An empty line or Ctrl-D ends the conversation; /new starts a new one.
    """
    from quintain.training import model_named

    path, own_system = model_named(run, folder)
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    engine = current().load("engine", "quintain/embedded")(path)
    asyncio.run(_converse(engine, sampling, own_system if system is None else system, once))


async def _converse(engine: TokenEngine, sampling: Sampling, system: str, once: str | None) -> None:
    """Answer *once*, or each line of standard input until an empty one."""
    from quintain.training import Conversation, printable, stops

    def new_conversation() -> Conversation:
        conversation = Conversation(engine.tokenizer)
        if system:
            conversation.add(Message("system", system))
        return conversation

    async def answer(text: str) -> None:
        conversation.add(Message("user", text))
        sampled = await engine.sample(conversation.prompt(), stops(engine.tokenizer, sampling))
        click.echo(printable(conversation.add_sampled(sampled).strip()))

    conversation = new_conversation()
    if once is not None:
        await answer(once)
        return
    click.echo("an empty line ends the conversation, /new starts a new one", err=True)
    while True:
        click.echo("> ", nl=False, err=True)
        line = (await asyncio.to_thread(sys.stdin.readline)).strip()
        if not line:
            return
        if line == "/new":
            conversation = new_conversation()
        else:
            await answer(line)
