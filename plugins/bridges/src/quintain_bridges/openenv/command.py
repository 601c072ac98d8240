"""`quintain serve-environment`: an environment behind OpenEnv's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from quintain.cli import Count, arg_option, sigterm_as_ctrl_c
from quintain.recipe import EnvironmentSpec, EnvironmentTable
from quintain.services import BY_OPTION, started_services
from quintain_authoring import arguments_of, service_options, services_of


@click.command("serve-environment")
@click.argument("environment")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option(
    "--sessions", type=Count(1), default=64, show_default=True, help="Episodes at once, at most."
)
@arg_option
@service_options
def serve_environment(
    environment: str,
    host: str,
    port: int,
    sessions: int,
    args: Sequence[str],
    services: Sequence[str],
    service_args: Sequence[str],
) -> None:
    """Serve ENVIRONMENT to clients of OpenEnv, whichever trainer they belong to.

    ENVIRONMENT is the name of an installed environment, module:Class or path/to/file.py:Class. An
    action has a `message` and may have `tool_calls`. Ctrl-C ends it.

    \b
    quintain serve-environment arithmetic --port 8000
    """
    from quintain.registry import current

    component = current().resolve(current().find("environment", environment))
    table = EnvironmentTable(use=environment, args=arguments_of(args, component, "--arg"))
    chosen = services_of(services, service_args)
    with sigterm_as_ctrl_c():
        asyncio.run(_serve(table, chosen, host, port, sessions))


async def _serve(
    table: EnvironmentTable, chosen: Mapping[str, Any], host: str, port: int, sessions: int
) -> None:
    from aiohttp import web

    from .server import OpenEnvServer

    spec = EnvironmentSpec.of(table)
    async with started_services(chosen, spec.slots, {}, fix=BY_OPTION) as services:
        served = OpenEnvServer(
            spec.make(services), name=spec.name, services=services, sessions=sessions
        )
        runner = web.AppRunner(served.app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            click.echo(f"http://{host}:{runner.addresses[0][1]} ({spec.name})")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
