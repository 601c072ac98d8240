"""`quintain chat`: talk to a trained model, in the form of its environment's prompts, or let it
play held-out tasks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import click

from quintain import Environment, Message, Sampling, TokenEngine
from quintain.cli import Count, arg_option, folder_option, recipe_for
from quintain.errors import QuintainError, UsageError
from quintain.models import PICTURE
from quintain.types import messages_of

from .chat_template import PLAIN, template_of, with_template
from .prompt_form import PromptForm
from .streaming import stream

EXAMPLES = 48
"""Tasks from which the form of the prompts is read."""
HELP = """\
/task [N]   play held-out task N (default: the next one) and show the score
/raw        send texts as they are, in one conversation; again to switch back
/new        start a new conversation
/help       show this list
/quit       end the chat, as do /exit, an empty line, Ctrl-D and Ctrl-C"""
QUIT = ("/quit", "/exit")


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--temperature",
    "-t",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0 is greedy.",
)
@click.option(
    "--max-tokens", type=Count(1), default=512, show_default=True, help="New tokens per answer."
)
@click.option(
    "--system", metavar="TEXT", help="System message (default: that of the run's environment)."
)
@click.option(
    "--template", metavar="TEXT|FILE", help="Chat template (Jinja), for a model that has none."
)
@click.option(
    "--once",
    metavar="TEXT",
    help="Send TEXT (or a command such as /task), print the answer and exit.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Send texts as they are, without the form of the environment's prompts.",
)
@click.option(
    "--env",
    "-e",
    metavar="NAME",
    help="Environment whose tasks are played (default: that of the run's recipe).",
)
@arg_option
@folder_option
def chat(
    run: str,
    temperature: float,
    max_tokens: int,
    system: str | None,
    template: str | None,
    once: str | None,
    raw: bool,
    env: str | None,
    args: tuple[str, ...],
    folder: str,
) -> None:
    """Talk to the model of RUN (a run, a folder with a model, or a Hugging Face id).

    If all prompts of the run's environment begin or end with the same text, what you type gets it;
    if it has one turn, each text is a conversation of its own, as in training. With --raw texts
    stay as they are, in one conversation. /task plays a held-out task and shows its score, /help
    lists the commands. --env names the environment for a model that no run has trained.

    A base model has no chat template: what you type is then a paragraph that begins with "User:",
    and the reply ends where the next one would begin. --template sets another form.

    \b
    quintain chat arithmetic-1 --once "What is 58 plus 67?"
    quintain chat arithmetic-1 --once /task
    quintain chat smollm2-135m --env reverse.py:Reverse --once /task
    """
    from rich.console import Console

    from quintain.engine import EmbeddedEngine
    from quintain.models import HFTokenizer
    from quintain.store import checkpoint_note, model_named

    if args and env is None:
        raise click.UsageError("--arg is for the environment of --env; name that, too")
    path, own_system = model_named(run, folder)
    if note := checkpoint_note(path):
        click.echo(f"{run}: {note}", err=True)
    if env is not None:
        played: Played | None = _played_in(env, args)
        own_system = _system_of(played)
    else:
        played = _played(run, folder)
    text = None if template is None else template_of(template)
    with Console(stderr=True).status(f"loading {run} ..."):
        # a run has compared the layers with the model's own forward
        engine = EmbeddedEngine(path, checked=False)
    tokenizer = engine.tokenizer
    assert isinstance(tokenizer, HFTokenizer)  # it was loaded from a folder
    if text is not None:
        engine.tokenizer = with_template(tokenizer, text)
    elif not tokenizer.has_template:
        click.echo(
            f"{run} has no chat template: texts are sent as {PLAIN!r}; --template sets another "
            f"form",
            err=True,
        )
    form, shown = played.form() if played else (PromptForm(), ())
    chat = ChatConsole(
        engine=engine,
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
        system=own_system if system is None else system,
        played=played,
        form=form,
        shown=shown,
        raw=raw,
    )
    with asyncio.Runner() as runner:  # Ctrl-C cancels the answer, and ends the command
        if once is not None:
            if once.strip() not in QUIT:
                chat.take(runner, once)
            return
        click.echo(f"{chat.welcome()}\n{HELP}", err=True)
        while True:
            click.echo("> ", nl=False, err=True)
            line = sys.stdin.readline()
            if not line.strip() or line.strip() in QUIT:
                return
            try:
                chat.take(runner, line.strip())
            except UsageError as e:
                click.echo(str(e), err=True)


@dataclass
class Played:
    """The environment of a run, with the tasks of its held-out split."""

    recipe: Any
    spec: Any

    def form(self) -> tuple[PromptForm, tuple[Message, ...]]:
        """Return the form of its prompts, and the messages that stand before each: worked examples.
        Both are empty if it needs services; the second also where prompts begin in different ways.
        """
        if self.spec.slots:
            return PromptForm(), ()
        tasks = islice(self.spec.make({}).tasks(self.recipe.evaluation.test.split), EXAMPLES)
        prompts = [messages_of(task.prompt) for task in tasks]
        if not prompts or not all(prompt and prompt[-1].role == "user" for prompt in prompts):
            return PromptForm(), ()
        if any(PICTURE in message.content for prompt in prompts for message in prompt):
            return PromptForm(), ()  # a text has no picture of its own
        before = [[m for m in prompt[:-1] if m.role != "system"] for prompt in prompts]
        if any(messages != before[0] for messages in before):
            return PromptForm(), ()
        return PromptForm.of([prompt[-1].content for prompt in prompts]), tuple(before[0])

    async def play(self, engine: TokenEngine, number: int, temperature: float) -> Any:
        """Return the scored rollout of held-out task *number*, counted from 1.

        Raises:
            UsageError: there is no such task, or a service of the environment is missing.
        """
        from quintain.evaluation import evaluate
        from quintain.recipe import opened_environments

        test = self.recipe.evaluation.test
        sampling = self.recipe.evaluation.to_sampling(self.recipe.sampling).replace(
            temperature=temperature
        )
        async with opened_environments([self.spec], dict(self.recipe.services)) as (
            (environment,),
            services,
        ):
            tasks = list(islice(environment.tasks(test.split), number))
            if len(tasks) < number:
                raise UsageError(
                    f"the {test.split} split has {len(tasks)} tasks; choose one of 1 to "
                    f"{len(tasks)}"
                )
            settings: dict[str, Any] = {
                "split": test.split,
                "services": services,
                "name": self.spec.name,
            }
            result = await evaluate(
                environment, engine, tasks=[tasks[-1]], sampling=sampling, **settings
            )
        return result.rollouts[0]


def _played(run: str, folder: str) -> Played | None:
    """Return the first environment of a run's recipe; ``None`` for a model folder, or if its plugin
    is not installed.
    """
    from quintain.recipe import EnvironmentSpec, Recipe
    from quintain.store import RunFolder, find_run

    try:
        recipe = Recipe.parse(RunFolder(find_run(run, folder), lock=False).recipe())
        return Played(recipe, EnvironmentSpec.of(recipe.environments[0]))
    except QuintainError:
        return None


def _played_in(env: str, args: Sequence[str]) -> Played:
    """Return the environment *env* with the arguments of the command line.

    Raises:
        QuintainError: there is no such environment or argument.
    """
    from quintain.recipe import EnvironmentSpec

    recipe = recipe_for(env, [f"environments.0.args.{pair}" for pair in args])
    return Played(recipe, EnvironmentSpec.of(recipe.environments[0]))


def _system_of(played: Played | None) -> str:
    """Return the system message of an environment; empty for none."""
    if played is None:
        return ""
    return str(played.spec.system or getattr(played.spec.component, "system", ""))


@dataclass
class ChatConsole:
    """One conversation and its commands."""

    engine: TokenEngine
    sampling: Sampling
    system: str
    played: Played | None
    form: PromptForm
    shown: tuple[Message, ...] = ()
    raw: bool = False
    tasks: int = 0
    conversation: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.start()

    def welcome(self) -> str:
        """Return how texts are sent."""
        form = (
            "as it is"
            if self.raw or self.form == PromptForm()
            else f"as {self.form.fill('YOUR TEXT')!r}"
        )
        if self.shown and not self.raw:
            form += f" after the {len(self.shown)} messages before each task"
        return (
            f"Your text is sent {form}, {'each in a new' if self.single else 'in one'} "
            f"conversation."
        )

    @property
    def single(self) -> bool:
        """Whether each text is a conversation of its own, as in an environment of one turn."""
        return (
            not self.raw
            and self.played is not None
            and self.played.spec.component.rollout is Environment.rollout
        )

    def start(self) -> None:
        """Start a new conversation."""
        from quintain.rollouts import Conversation

        self.conversation = Conversation(self.engine.tokenizer)
        if self.system:
            self.conversation.add(Message("system", self.system))
        for message in () if self.raw else self.shown:
            self.conversation.add(message)

    def take(self, runner: asyncio.Runner, line: str) -> None:
        """Answer a text, or run a command.

        Raises:
            UsageError: an unknown command, or a task that cannot be played.
        """
        word, _, rest = line.partition(" ")
        if word == "/help":
            click.echo(HELP)
        elif word == "/new":
            self.start()
        elif word == "/raw":
            self.raw = not self.raw
            click.echo(self.welcome(), err=True)
        elif word == "/task":
            runner.run(self.task(rest.strip()))
        elif line.startswith("/") and word.isascii() and word[1:].isalpha():
            raise UsageError(
                f"unknown command {word!r}; /help lists the commands (also after /raw)"
            )
        else:
            if self.single:
                self.start()
            runner.run(self.answer(line if self.raw else self.form.fill(line)))

    async def answer(self, text: str) -> None:
        """Sample the answer to *text* and print it as it comes."""
        from quintain.rollouts import stops

        self.conversation.add(Message("user", text))
        prompt = self.conversation.prompt_ids()
        sampled = await stream(
            self.engine, prompt, stops(self.engine.tokenizer, self.sampling), _printer()
        )
        self.conversation.add_sampled(sampled)
        click.echo()

    async def task(self, number: str) -> None:
        """Play a task and print its conversation and score."""
        from quintain.console import printable

        if self.played is None:
            raise UsageError(
                "there is no environment to take a task from: name one with --env, or chat with a "
                "run, whose recipe names one"
            )
        if number and not (number.isdecimal() and 0 < int(number[:9]) < 10**8):
            raise UsageError(f"/task {number}: expected the number of a task, such as /task 3")
        self.tasks = int(number[:9]) if number else self.tasks + 1
        rollout = await self.played.play(self.engine, self.tasks, self.sampling.temperature)
        for message in rollout.messages:
            calls = [f"calls {call.name}({dict(call.arguments)})" for call in message.calls]
            text = "\n".join([message.content, *calls]).strip()
            click.echo(printable(f"{message.role}: {text}"))
        score = rollout.outcome
        lines = [
            f"task {self.tasks}: "
            f"{'failed' if score is None else 'right' if score.total >= 1 else 'wrong'}"
        ]
        if score is not None:
            lines.append(
                f"reward {score.total:.4g}" + (f" ({score.reason})" if score.reason else "")
            )
        if rollout.task.answer is not None:
            lines.append(f"expected {str(rollout.task.answer)[:200]}")
        if rollout.termination.kind != "finished":
            lines.append(f"{rollout.termination.kind} {rollout.termination.reason}".strip())
        click.echo(printable("; ".join(lines)))


def _printer() -> Callable[[str], None]:
    """Return a function that prints pieces of an answer without the space before it."""
    from quintain.console import printable

    begun = False

    def show(piece: str) -> None:
        nonlocal begun
        piece = piece if begun else piece.lstrip()
        begun = begun or bool(piece)
        click.echo(printable(piece), nl=False)

    return show
