"""``quintain prompt``: optimise the system message and other texts of an environment with GEPA."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count, arg_option, json_option, sigterm_as_ctrl_c
from quintain.console import for_terminal, printable
from quintain.errors import UsageError

from .. import arguments_of, service_options, services_of
from ..evaluate.engines import engine_of, folder_of_model

if TYPE_CHECKING:
    from quintain import Engine
    from quintain.console import Screen
    from quintain.recipe import EnvironmentSpec
    from quintain.services import Choice

    from .search import PromptReport

EPILOG = """
\b
Examples:
  quintain prompt arithmetic --model default --budget 200
  quintain prompt mine.py:Mine -m Qwen/Qwen3-0.6B --reflect https://host/v1 --reflect-model NAME
  quintain prompt gsm8k --engine http://127.0.0.1:8000 --model NAME --budget 500

\b
The result is a file, which both take:
  quintain eval arithmetic --model default --system "$(cat prompts/arithmetic/system.txt)"
  quintain train arithmetic --set environments.0.system="$(cat prompts/arithmetic/system.txt)"
"""


@click.command(epilog=EPILOG)
@click.argument("environment")
@click.option(
    "--model", "-m", default="", help="The policy: folder, Hugging Face id, run, default."
)
@click.option(
    "--engine", default="quintain/embedded", show_default=True, help="Engine, or URL (OpenAI API)."
)
@click.option(
    "--engine-arg", "engine_args", multiple=True, metavar="KEY=VALUE", help="Its setting."
)
@click.option("--reflect", default="", help="Engine or URL that reflects.  [default: the policy's]")
@click.option("--reflect-model", default="", metavar="NAME", help="The model that reflects.")
@click.option(
    "--reflect-arg",
    "reflect_args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of its engine.",
)
@click.option(
    "--reflect-tokens",
    type=Count(1),
    default=1024,
    show_default=True,
    help="New tokens of a reflection.",
)
@click.option("--budget", type=Count(1), default=200, show_default=True, help="Rollouts.")
@click.option("--tasks", type=Count(1), default=32, show_default=True, help="Tasks of train.")
@click.option(
    "--held-out",
    type=Count(1),
    default=16,
    show_default=True,
    help="Tasks of dev, which choose the best message.",
)
@click.option(
    "--minibatch", type=Count(1), default=3, show_default=True, help="Tasks of a reflection."
)
@click.option(
    "--system",
    metavar="TEXT",
    help="First system message (default: that of the environment or the run).",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    default=("system",),
    show_default=True,
    metavar="NAME",
    help="What is optimised: system, or a text argument of the environment. May be repeated.",
)
@click.option(
    "--temperature",
    "-t",
    type=click.FloatRange(0, 2),
    default=0.0,
    show_default=True,
    help="Of the policy.",
)
@click.option(
    "--max-tokens", type=Count(1), default=1024, show_default=True, help="New tokens per turn."
)
@click.option("--reward", metavar="EXPR", help="As of `quintain eval` (default: its own).")
@arg_option
@service_options
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="State and result; a state is resumed.  [default: prompts/ENVIRONMENT]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be searched; sample nothing.")
@json_option
def prompt(
    environment: str, out: Path | None, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Optimise the system message of ENVIRONMENT with GEPA, without training.

    A language model reads rollouts with their rewards and reasons, and proposes a message. One that
    is better on a few tasks of train is measured on tasks of dev. The best one is written to
    FOLDER/system.txt. The tasks of test are not looked at. With --text NAME it is the argument NAME
    of ENVIRONMENT that changes, as a rubric or the description of a tool.

    Needs `pip install 'quintain-authoring[gepa]'`. The same command resumes a search that was
    stopped; a larger --budget continues one that has ended.
    """
    from quintain.process import run_stoppable

    if importlib.util.find_spec("gepa") is None:
        raise UsageError("quintain prompt needs gepa: pip install 'quintain-authoring[gepa]'")
    spec = _spec(environment, options)
    services = services_of(options["services"], options["service_args"])
    folder = out or Path("prompts") / spec.name
    if dry_run:
        click.echo(_planned(spec, folder, options))
        return
    engines = _engines(environment, options)
    with for_terminal() as screen:
        try:
            with sigterm_as_ctrl_c():
                found = run_stoppable(
                    _searched(spec, services, engines, folder, options, screen), screen
                )
        except KeyboardInterrupt as e:
            raise click.Abort(f"stopped; the same command resumes it from {folder}") from e
    _show(found, folder, environment, options["model"], as_json)


def _spec(environment: str, options: dict[str, Any]) -> EnvironmentSpec:
    from dataclasses import replace

    from quintain.recipe import EnvironmentSpec, EnvironmentTable, as_expression

    reward = as_expression(options["reward"]) if options["reward"] else None
    table = EnvironmentTable.model_construct(use=environment, reward=reward)
    spec = EnvironmentSpec.of(table)
    return replace(spec, args=arguments_of(options["args"], spec.component, "--arg"))


def _first(spec: EnvironmentSpec, options: dict[str, Any]) -> str:
    return spec.component.system if options["system"] is None else options["system"]


def _texts(spec: EnvironmentSpec, options: dict[str, Any]) -> dict[str, str]:
    """Return the texts that the search begins with, by component.

    Raises:
        UsageError: a name is no text argument of the environment.
    """
    from quintain.registry import signature_of

    from .adapter import SYSTEM

    fields = {f.name: f for f in signature_of(spec.component).fields if f.type is str}
    found = {}
    for name in dict.fromkeys(options["texts"]):
        if name == SYSTEM:
            found[name] = _first(spec, options)
        elif name in fields:
            first = spec.args.get(name, fields[name].default)
            found[name] = first if isinstance(first, str) else ""
        else:
            known = ", ".join([SYSTEM, *fields])
            raise UsageError(
                f"--text {name}: environment {spec.name!r} has no text argument of this name; "
                f"known: {known}"
            )
    return found


def _planned(spec: EnvironmentSpec, folder: Path, options: dict[str, Any]) -> str:
    """Return in words what a search would do."""
    return (
        f"environment {spec.name}: at most {options['tasks']} tasks of train, "
        f"{options['held_out']} of dev\n"
        f"budget {options['budget']} rollouts: {options['held_out']} for the first message, then "
        f"{2 * options['minibatch']} for each proposal and {options['held_out']} more for one that "
        f"is better\n"
        f"reflecting model: {options['reflect_model'] or options['model'] or 'of the engine'}\n"
        f"folder {folder}\n"
    ) + "\n".join(f"first {_named(name)}: {text!r}" for name, text in _texts(spec, options).items())


def _named(name: str) -> str:
    return "system message" if name == "system" else name


def _engines(environment: str, options: dict[str, Any]) -> tuple[Engine, Engine | None]:
    """Return the engine of the policy, and that of the reflecting model if it is another one.

    A run begins with the system message that it was trained with, as in `quintain eval`; *options*
    get it.
    """
    path, trained_with = folder_of_model(
        options["engine"], options["model"], environment, options["args"]
    )
    if options["system"] is None:
        options["system"] = trained_with or None
    policy = engine_of(options["engine"], path, options["engine_args"])
    if not (options["reflect"] or options["reflect_model"] or options["reflect_args"]):
        return policy, None
    name = options["reflect"] or "quintain/embedded"
    model, _ = folder_of_model(name, options["reflect_model"], environment, options["args"])
    return policy, engine_of(name, model, options["reflect_args"])


async def _searched(
    spec: EnvironmentSpec,
    choices: dict[str, Choice],
    engines: Sequence[Engine | None],
    folder: Path,
    options: dict[str, Any],
    screen: Screen,
) -> PromptReport:
    from dataclasses import replace

    from quintain import Sampling
    from quintain.services import BY_OPTION, started_services

    from .adapter import HELD_OUT, TRAIN, EnvironmentAdapter
    from .search import FIRST, Looped, PromptSearch, Reflecting

    policy, other = engines
    assert policy is not None
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(
            started_services(choices, spec.slots, {}, fix=BY_OPTION)
        )
        first, system = _texts(spec, options), _first(spec, options)
        search = PromptSearch(
            folder=folder,
            budget=options["budget"],
            minibatch=options["minibatch"],
            seed=options["seed"],
            settings=_settings(spec, system, first, options),
        )
        sampling = Sampling(temperature=options["temperature"], max_tokens=options["max_tokens"])
        loop = Looped(asyncio.get_running_loop())
        adapter = EnvironmentAdapter(
            spec.make(services),
            policy,
            first=first,
            counts={TRAIN: options["tasks"], HELD_OUT: options["held_out"]},
            settings={
                "sampling": sampling,
                "seed": options["seed"],
                "name": spec.name,
                "services": services,
                "progress": screen.advance,
                "system": system,
            },
            wait=loop,
            memory=folder / FIRST,
            with_arguments=lambda texts: replace(spec, args={**spec.args, **texts}).make(services),
        )
        search.check()
        for engine in filter(None, engines):
            await stack.enter_async_context(engine)
        reflect = Reflecting(
            other or policy,
            Sampling(temperature=1.0, max_tokens=options["reflect_tokens"]),
            options["seed"],
            loop,
        )
        screen.phase(f"{spec.name}: rollouts of the search", options["budget"])
        return await search.run(adapter, reflect)


def _settings(
    spec: EnvironmentSpec, system: str, first: dict[str, str], options: dict[str, Any]
) -> dict[str, Any]:
    """Return what a search must keep when it is resumed."""
    names = "model engine tasks held_out temperature max_tokens reward seed".split()
    args = {name: str(value) for name, value in spec.args.items()}
    return {"environment": spec.name, "args": args, "first": system, "texts": first} | {
        name: options[name] for name in names
    }


def _show(found: PromptReport, folder: Path, environment: str, model: str, as_json: bool) -> None:
    from .search import RESULT

    files = {name: str(folder / RESULT.format(name=name)) for name in found.texts}
    if as_json:
        click.echo(json.dumps(asdict(found) | {"files": files}))
        return
    click.echo(
        f"held out: {found.first_score:.4g} -> {found.score:.4g} in {found.rollouts} rollouts, "
        f"{found.candidates} candidates measured"
    )
    if found.texts == found.first:
        click.echo("nothing was better than the first texts")
    for name, text in found.texts.items():
        click.echo(printable(text))
        click.echo(f"{_named(name)}: {files[name]}")
    for reason, number in found.failures.items():
        click.echo(printable(f"failed, without a score: {number} x {reason}"), err=True)
    named = f" --model {shlex.quote(model)}" if model else ""
    read = {name: f'"$(cat {shlex.quote(file)})"' for name, file in files.items()}
    for_eval = {n: "--system " if n == "system" else f"--arg {n}=" for n in read}
    for_train = {n: "system=" if n == "system" else f"args.{n}=" for n in read}
    eval_words = " ".join(f"{for_eval[n]}{text}" for n, text in read.items())
    train_words = " ".join(f"--set environments.0.{for_train[n]}{text}" for n, text in read.items())
    click.echo(f"next: quintain eval {environment}{named} {eval_words}")
    click.echo(f"  or: quintain train {environment}{named} {train_words}")
