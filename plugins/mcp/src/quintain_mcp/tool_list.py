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
from .fence import neutral, shortened

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
    by_name = {tool.name: tool for tool in listed if tool.name != server.reset}
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
    tools = ToolList({n: _remote(t, server.prefix, name) for n, t in chosen.items()})
    if server.hash and tools.hash != server.hash:
        raise UsageError(
            f"servers.{name}.hash is {server.hash!r}, but the server's tools have {tools.hash!r}; "
            "look at them with `quintain mcp tools` before you take over the new hash"
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


def _remote(tool: McpTool, prefix: str, server: str) -> RemoteTool:
    if not NAME.fullmatch(prefix + tool.name):
        raise UsageError(
            f"the MCP server {server!r} has a tool {tool.name[:200]!r}; a name has at most 128 "
            f"letters, digits and _ . / -. Leave it out: name the others in servers.{server}.tools"
        )
    hints = tool.annotations
    repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    declaration = tool.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude={"icons", "meta", "execution"}
    )
    schema = _neutral(tool.input_schema)
    if len(text := json.dumps(schema)) > SCHEMA_CHARS:
        raise UsageError(
            f"the schema of the tool {tool.name!r} of the MCP server {server!r} has {len(text):,} "
            f"characters; at most {SCHEMA_CHARS:,} are shown to a model. Leave it out: name the "
            f"others in servers.{server}.tools"
        )
    description = shortened(neutral(tool.description or ""), DESCRIPTION_CHARS)
    spec = ToolSpec(name=prefix + tool.name, description=description, parameters=schema)
    return RemoteTool(name=tool.name, spec=spec, repeatable=repeatable, digest=_digest(declaration))


def _neutral(value: Any) -> Any:
    """Return *value* with all its strings neutral: a schema stands in the prompt, too."""
    if isinstance(value, str):
        return neutral(value)
    if isinstance(value, Mapping):
        return {neutral(str(k)): _neutral(v) for k, v in value.items()}
    return [_neutral(v) for v in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
