"""Makes a tool of a typed function (or bound method): the schema that a model sees, and the check of
its arguments.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from ..errors import ToolError
from ..interfaces.tools import Tool, ToolSpec


def as_tool(function: Tool | Callable[..., Any]) -> Tool:
    """Make a tool of a typed function: its name, first docstring paragraph and annotations become
    the schema.

    Arguments that do not fit the annotations come back to the model as text, so that it can correct
    its call.

    Raises:
        TypeError: no function, a parameter without an annotation, or one that cannot be given by
            name.
    """
    if isinstance(function, Tool):
        return function
    signature = inspect.signature(function, eval_str=True)
    name = function.__name__
    try:
        hash(signature)
    except TypeError:  # a default such as [] cannot be a key
        model, schema = _model_of.__wrapped__(name, signature, "")
    else:
        model, schema = _model_of(name, signature, str(signature))

    async def call(arguments: Mapping[str, Any]) -> str:
        from pydantic import ValidationError

        try:
            values = model.model_validate(dict(arguments))
        except ValidationError as e:
            lines = "; ".join(
                f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors(include_url=False)
            )
            raise ToolError(f"wrong arguments for {name}: {lines}") from None
        out = function(
            **{p: getattr(values, f"field_{i}") for i, p in enumerate(signature.parameters)}
        )
        if inspect.isawaitable(out):
            out = await out
        return out if isinstance(out, str) else json.dumps(out, default=str)

    description = (inspect.getdoc(function) or "").split("\n\n")[0]
    return Tool(spec=ToolSpec(name=name, description=description, parameters=schema), call=call)


@lru_cache(maxsize=256)
def _model_of(name: str, signature: inspect.Signature, text: str) -> tuple[Any, dict[str, Any]]:
    """Return pydantic's model of the arguments and its schema, which take a millisecond to make and
    depend on types alone.

    *text* tells apart signatures whose defaults are equal but not the same, such as 1 and True.
    """
    from pydantic import Field, create_model

    fields: dict[str, Any] = {}
    for i, p in enumerate(signature.parameters.values()):
        if p.annotation is inspect.Parameter.empty:
            raise TypeError(
                f"tool {name!r}: parameter {p.name!r} has no annotation, so the model cannot be "
                f"told its type"
            )
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise TypeError(f"tool {name!r}: parameter {p.name!r} cannot be given by name")
        default: Any = ... if p.default is inspect.Parameter.empty else p.default
        # Behind an alias, since names such as `copy` and `model_config` mean something to pydantic.
        fields[f"field_{i}"] = (p.annotation, Field(default, alias=p.name))
    model: Any = create_model(name, __config__={"extra": "forbid"}, **fields)
    schema = model.model_json_schema()
    schema.pop("title", None)
    return model, schema
