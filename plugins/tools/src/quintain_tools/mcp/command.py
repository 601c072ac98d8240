"""`quintain mcp-tools`: what MCP servers offer to a policy."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .client import Mcp

EPILOG = """
\b
Examples:
  quintain mcp-tools --command "quintain-search-server corpus.jsonl"
  quintain mcp-tools --url http://127.0.0.1:8765/mcp --json
  quintain mcp-tools --recipe agent.toml
"""


@click.command("mcp-tools", epilog=EPILOG)
@click.option(
    "--recipe",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The servers of a recipe's services.",
)
@click.option("--command", metavar="TEXT", help="A program with its arguments, as in a shell.")
@click.option("--url", metavar="URL", help="A server over streamable HTTP.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header for --url (repeatable).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: hash, names, descriptions, schemas.",
)
def mcp_tools(
    recipe: Path | None, command: str | None, url: str | None, headers: Sequence[str], as_json: bool
) -> None:
    """Start an MCP server, list its tools as a model sees them, and stop it.

    The hash covers names, descriptions, schemas and annotations. A run keeps to the hash with which
    it began; written into a recipe (args.servers.NAME.hash), it holds from the start.
    """
    from quintain.errors import UsageError

    if sum(given is not None for given in (recipe, command, url)) != 1:
        raise UsageError("expected one of --recipe FILE, --command TEXT and --url URL")
    if headers and url is None:
        raise UsageError("--header is for --url")
    servers = asyncio.run(
        _of_recipe(recipe) if recipe is not None else _of_options(command, url, headers)
    )
    if as_json:
        click.echo(json.dumps({"servers": servers}, ensure_ascii=False))
        return
    for name, server in servers.items():
        click.echo(f"{name}  hash {server['hash']}  {len(server['tools'])} tools")
        for tool in server["tools"]:
            click.echo(f"\n  {tool['name']}({_signature(tool['parameters'])}){_hints(tool)}")
            for line in tool["description"].splitlines():
                click.echo(f"      {line}" if line else "")
        click.echo()


async def _of_options(
    command: str | None, url: str | None, headers: Sequence[str]
) -> dict[str, Any]:
    from quintain.errors import UsageError

    from .client import Mcp
    from .declaration import McpServer

    if url is not None:
        pairs = [header.partition("=") for header in headers]
        if any(not name or not equals for name, equals, _ in pairs):
            raise UsageError("--header expects NAME=VALUE, as in Authorization='Bearer KEY'")
        server = McpServer(url=url, headers={name: value for name, _, value in pairs})
    else:
        try:
            server = McpServer(command=tuple(shlex.split(command or "")))
        except ValueError as e:
            raise UsageError(f"--command {command!r} is not as in a shell: {e}") from e
    name = Path(server.command[0]).stem if server.command else "server"
    async with Mcp(servers={name: server}) as mcp:
        return _described(mcp)


async def _of_recipe(path: Path) -> dict[str, Any]:
    """Return the servers of all services of a recipe that are `Mcp`."""
    from quintain.errors import UnknownNameError, UsageError
    from quintain.recipe import Recipe, opened_environments
    from quintain.registry import current

    from .client import Mcp

    def is_mcp(use: str) -> bool:
        try:
            return current().load("service", use) is Mcp
        except UnknownNameError:  # an engine, which another player may have as a service
            return False

    choices = {
        slot: table for slot, table in Recipe.load(path).services.items() if is_mcp(table.use)
    }
    if not choices:
        raise UsageError(f'{path} has no [services.NAME] with use = "mcp"')
    async with opened_environments([], choices) as (_, services):
        described = {slot: _described(services[slot]) for slot in choices}
    if len(described) == 1:
        return next(iter(described.values()))
    return {
        f"{slot}.{name}": server
        for slot, servers in described.items()
        for name, server in servers.items()
    }


def _described(mcp: Mcp) -> dict[str, Any]:
    return {
        name: {
            "hash": tools.hash,
            "tools": [
                {
                    "name": tool.spec.name,
                    "description": tool.spec.description,
                    "parameters": tool.spec.parameters,
                    "repeatable": tool.repeatable,
                    "hash": tool.digest,
                }
                for tool in tools.tools.values()
            ],
        }
        for name, tools in mcp.tools.items()
    }


def _signature(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    parts = []
    for name, field in schema.get("properties", {}).items():
        kind = field.get("type", "any") if isinstance(field, Mapping) else "any"
        shown = " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
        parts.append(
            f"{name}: {shown}" if name in required else f"{name}: {shown} = {_default(field)}"
        )
    return ", ".join(parts)


def _default(field: Any) -> str:
    return (
        json.dumps(field["default"]) if isinstance(field, Mapping) and "default" in field else "..."
    )


def _hints(tool: Mapping[str, Any]) -> str:
    return "  [read-only or idempotent]" if tool["repeatable"] else ""
