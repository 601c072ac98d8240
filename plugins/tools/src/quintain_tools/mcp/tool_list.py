"""The tools of a server, pinned by hash: what the model sees must stay the same for a whole run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.types import Tool as McpTool

from quintain import ToolSpec
from quintain.errors import UsageError, did_you_mean

from .declaration import McpServer
from .fence import escaped, shortened

NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
DESCRIPTION_CHARS, SCHEMA_CHARS = 8_000, 40_000


@dataclass(frozen=True, kw_only=True)
class RemoteTool:
    """A tool of a server.

    Attributes:
        name: as the server calls it.
        spec: as the model sees it.
        repeatable: the server declares it read-only or idempotent, so that a lost call may be sent
            again.
        digest: of all that the server says about it.
    """

    name: str
    spec: ToolSpec
    repeatable: bool
    digest: str


@dataclass(frozen=True)
class ToolList:
    """The offered tools of one server, by name."""

    tools: Mapping[str, RemoteTool]

    @property
    def hash(self) -> str:
        """A hash of names, descriptions, schemas and annotations, whatever their order."""
        return _digest(self.digests())

    def digests(self) -> dict[str, str]:
        """Return the hash of each tool, by name."""
        return {name: tool.digest for name, tool in sorted(self.tools.items())}


def tool_list(listed: Iterable[McpTool], server: McpServer, name: str) -> ToolList:
    """Return those of the *listed* tools that *server* offers.

    Raises:
        UsageError: one is missing, there are too many, or one cannot be shown to a model.
    """
    by_name: dict[str, McpTool] = {}
    for tool in listed:
        if tool.name != server.reset and by_name.setdefault(tool.name, tool) != tool:
            raise UsageError(
                f"the MCP server {name!r} lists two tools {tool.name[:200]!r}, and a call could mean "
                f"either one"
            )
    for wanted in server.tools:
        if wanted not in by_name:
            raise UsageError(
                f"servers.{name}.tools: the server has no tool "
                f"{wanted!r}{did_you_mean(wanted, by_name)}"
            )
    chosen = {n: t for n, t in sorted(by_name.items()) if not server.tools or n in server.tools}
    if not chosen:
        raise UsageError(f"the MCP server {name!r} has no tools")
    if len(chosen) > server.max_tools:
        raise UsageError(
            f"the MCP server {name!r} has {len(chosen)} tools; at most {server.max_tools} are "
            f"offered (max_tools): choose some with servers.{name}.tools = "
            f"{json.dumps(list(chosen)[:3])}"
        )
    tools = ToolList({n: _remote(t, server, name) for n, t in chosen.items()})
    if server.hash and tools.hash != server.hash:
        raise UsageError(
            f"servers.{name}.hash is {server.hash!r}, but the server's tools have {tools.hash!r}; "
            "look at them with `quintain mcp-tools` before you take over the new hash"
        )
    return tools


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return which tools changed between two results of `ToolList.digests`; empty if none did."""
    words = {
        "changed": [n for n in before if n in now and now[n] != before[n]],
        "gone": [n for n in before if n not in now],
        "new": [n for n in now if n not in before],
    }
    return "; ".join(
        f"{word}: {', '.join(map(repr, sorted(names)))}" for word, names in words.items() if names
    )


def _remote(tool: McpTool, server: McpServer, name: str) -> RemoteTool:
    shown_name = server.prefix + tool.name
    if not NAME.fullmatch(shown_name):
        raise UsageError(
            f"the MCP server {name!r} has a tool {tool.name[:200]!r}; a name has at most 128 "
            f"letters, digits and _ . / -. Leave it out: name the others in servers.{name}.tools"
        )
    hints = tool.annotations
    repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    declaration = tool.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"icons", "meta", "execution"}
    )
    schema = _escaped(tool.input_schema) if server.fence else tool.input_schema
    if len(text := json.dumps(schema, ensure_ascii=False)) > SCHEMA_CHARS:
        raise UsageError(
            f"the schema of the tool {tool.name!r} of the MCP server {name!r} has {len(text):,} "
            f"characters; at most {SCHEMA_CHARS:,} are shown to a model. Leave it out: name the "
            f"others in servers.{name}.tools"
        )
    description = shortened(tool.description or "", DESCRIPTION_CHARS)
    description = escaped(description) if server.fence else description
    spec = ToolSpec(name=shown_name, description=description, parameters=schema)
    return RemoteTool(name=tool.name, spec=spec, repeatable=repeatable, digest=_digest(declaration))


def _escaped(schema: Any) -> Any:
    """Return *schema* with its descriptions `escaped`; what a call has to repeat stays."""
    if isinstance(schema, Mapping):
        return {
            key: escaped(value)
            if key == "description" and isinstance(value, str)
            else _escaped(value)
            for key, value in schema.items()
        }
    return [_escaped(value) for value in schema] if isinstance(schema, list) else schema


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
