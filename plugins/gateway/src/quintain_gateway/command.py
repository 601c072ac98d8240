"""`quintain serve`: a model behind an OpenAI-compatible address."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import click

from quintain import Sampling
from quintain.cli import Count, folder_option, sigterm_as_ctrl_c
from quintain.errors import UsageError

from .server import is_loopback

DEFAULT = "default"
MOST_BYTES = 16_000_000
"""Of the body of a request."""
EXAMPLE = "Write stone backwards."
"""What the general starter, which is served by default, answers rightly without randomness."""


@click.command()
@click.argument("model", metavar="[MODEL]", default=DEFAULT)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="0 takes a free one.",
)
@click.option(
    "--key", envvar="QUINTAIN_SERVE_KEY", default="", help="The key that requests must have."
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write each session, reply and rating to FOLDER.",
)
@click.option(
    "--follow", is_flag=True, help="Serve what `quintain traffic` accepts in FOLDER of --record."
)
@click.option(
    "--temperature",
    "-t",
    type=click.FloatRange(0, 2),
    default=1.0,
    show_default=True,
    help="By default.",
)
@click.option(
    "--max-tokens",
    type=Count(1),
    default=1024,
    show_default=True,
    help="New tokens per reply, at most.",
)
@click.option(
    "--idle",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Seconds until a session ends.",
)
@click.option(
    "--slots", type=Count(1), default=64, show_default=True, help="Replies sampled at once."
)
@click.option("--tinker", is_flag=True, help="Train and sample by the API of Tinker's SDK.")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Journal and weights, with --tinker.  [default: tinker in the parent of the run folders]",
)
@click.option(
    "--adapters",
    type=Count(1),
    default=64,
    show_default=True,
    help="Adapters that a key holds, with --tinker.",
)
@click.option(
    "--disk",
    type=click.FloatRange(0, min_open=True),
    default=32.0,
    show_default=True,
    metavar="GIB",
    help="What a key keeps on disk, with --tinker.",
)
@folder_option
def serve(
    model: str,
    host: str,
    port: int,
    key: str,
    record: Path | None,
    follow: bool,
    temperature: float,
    max_tokens: int,
    idle: float,
    slots: int,
    tinker: bool,
    state: Path | None,
    adapters: int,
    disk: float,
    folder: str,
) -> None:
    """Serve MODEL (a run, a folder with a model, or a Hugging Face id; by default the default
       model).

       Chat completions, responses and messages, as docs/gateway.md says. Each key has a session of its own;
    without --key any is accepted, on the loopback interface only. Ctrl-C ends it.

    With --record: POST /v1/feedback rates a reply by its id, and `quintain traffic` trains on the
    ratings, as docs/traffic.md says.

    With --tinker: programs of Tinker's SDK train adapters on MODEL and sample from them, as
       docs/tinker.md says. --key takes several keys, separated by commas.
    """
    from quintain.store import model_named

    if not key and not is_loopback(host):
        raise UsageError(
            f"--host {host} is reachable from other machines: give a key with --key or "
            f"QUINTAIN_SERVE_KEY"
        )
    if follow and record is None:
        raise UsageError("--follow needs the FOLDER that it follows: add --record FOLDER")
    path = default_model() if model == DEFAULT else model_named(model, folder).path
    with sigterm_as_ctrl_c():
        if tinker:
            place = state or Path(folder) / "tinker"
            keys = [part.strip() for part in key.split(",") if part.strip()]
            about = {"host": host, "port": port, "keys": keys, "slots": slots}
            held = {"adapters": adapters, "idle": idle, "disk": int(disk * 2**30)}
            asyncio.run(_serve_tinker(path, model, place, held, about))
            return
        asyncio.run(
            _serve(
                path,
                slots,
                Sampling(temperature=temperature, max_tokens=max_tokens),
                {
                    "host": host,
                    "port": port,
                    "key": key,
                    "record": record,
                    "follow": follow,
                    "idle": idle,
                    "models": [model],
                },
            )
        )


def default_model() -> str:
    """Return the folder of the general starter, from which default models begin.

    Raises:
        UsageError: quintain-starter is not installed.
    """
    try:
        from quintain_starter import general_starter
    except ModuleNotFoundError as e:
        raise UsageError(
            "the default model needs quintain-starter: pip install 'quintain-gateway[default]'"
        ) from e
    return str(general_starter())


def _stopped() -> asyncio.Event:
    """Return what Ctrl-C and SIGTERM set from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _serve_tinker(
    path: str, name: str, state: Path, held: dict[str, Any], settings: dict[str, Any]
) -> None:
    from .tinker.calls import KeyLimits
    from .tinker.server import TinkerServer

    click.echo(f"loading {path}", err=True)
    server = TinkerServer(
        path,
        name,
        state,
        limits=KeyLimits(**held),
        max_bytes=MOST_BYTES,
        remote=True,
        **settings,
    )
    async with server:
        stop = _stopped()
        click.echo(f"serving {name} for training at {server.root_url}")
        key = "one of the keys of --key" if settings["keys"] else "tml-any"
        click.echo(f"set TINKER_BASE_URL={server.root_url} and TINKER_API_KEY={key}")
        await stop.wait()


async def _serve(path: str, slots: int, sampling: Sampling, settings: dict[str, Any]) -> None:
    from quintain.engine import EmbeddedEngine

    from .serving import ModelServer
    from .traffic import version_of

    click.echo(f"loading {path}", err=True)
    engine = EmbeddedEngine(path, slots=slots, reproducible=False)
    engine.version = version_of(path)
    async with (
        engine,
        ModelServer(engine, sampling, max_bytes=MOST_BYTES, remote=True, **settings) as server,
    ):
        stop = _stopped()
        note = getattr(engine.tokenizer, "tool_note", "")
        if note:
            click.echo(note, err=True)
        (name,) = settings["models"]
        click.echo(f"serving {name} at {server.base_url}")
        key = "$QUINTAIN_SERVE_KEY" if settings["key"] else "any"
        talk = f'"messages": [{{"role": "user", "content": "{EXAMPLE}"}}]'
        body = f'{{"model": "{name}", "temperature": 0, {talk}}}'
        click.echo(
            f"try: curl {server.base_url}/chat/completions -H 'Content-Type: application/json' "
            f"-H \"Authorization: Bearer {key}\" -d '{body}'"
        )
        await stop.wait()
        click.echo(f"ending {server.sessions} sessions", err=True)
