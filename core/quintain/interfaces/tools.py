"""Tools: a typed function (or bound method) and the schema a model sees of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool as the model sees it: name, description and the JSON schema of the parameters."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def to_json(self) -> dict[str, Any]:
        """The form chat templates and OpenAI-compatible servers take."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A spec and what runs it: ``call(arguments) -> text``."""

    spec: ToolSpec
    call: Callable[[Mapping[str, Any]], Awaitable[str]]


def as_tool(function: Tool | Callable[..., Any]) -> Tool:
    """Make a tool of a typed function: its name, first docstring paragraph and annotations become the schema.

    Arguments that do not fit the annotations come back to the model as text, so that it can correct its call.

    Raises:
        TypeError: a parameter without an annotation, or one that cannot be given by name.
    """
    if isinstance(function, Tool):
        return function
    from pydantic import ConfigDict, Field, ValidationError, create_model

    name = function.__name__
    signature = inspect.signature(function, eval_str=True)
    fields: dict[str, Any] = {}
    for i, p in enumerate(signature.parameters.values()):
        if p.annotation is inspect.Parameter.empty:
            raise TypeError(
                f"tool {name!r}: parameter {p.name!r} has no annotation, so the model cannot be told its type"
            )
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise TypeError(f"tool {name!r}: parameter {p.name!r} cannot be given by name")
        default: Any = ... if p.default is inspect.Parameter.empty else p.default
        # Behind an alias, since names such as `copy` and `model_config` mean something to pydantic.
        fields[f"field_{i}"] = (p.annotation, Field(default, alias=p.name))
    model: Any = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    schema = model.model_json_schema()
    schema.pop("title", None)

    async def call(arguments: Mapping[str, Any]) -> str:
        try:
            values = model.model_validate(dict(arguments))
        except ValidationError as e:
            lines = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors(include_url=False))
            return f"error: wrong arguments for {name}: {lines}"
        out = function(**{p: getattr(values, f) for p, f in zip(signature.parameters, fields, strict=True)})
        if inspect.isawaitable(out):
            out = await out
        return out if isinstance(out, str) else json.dumps(out, default=str)

    description = (inspect.getdoc(function) or "").split("\n\n")[0]
    return Tool(spec=ToolSpec(name=name, description=description, parameters=schema), call=call)
