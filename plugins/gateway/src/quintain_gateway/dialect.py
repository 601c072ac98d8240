"""What the APIs say of a request, each with its own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain import Message, ToolSpec

from .errors import invalid, unsupported
from .fields import (
    choice_of,
    distinct,
    format_of,
    get,
    positive,
    refuse,
    sampling_of,
    text_of,
    tool_of,
)
from .request import ANY_TOOL

MOST_LOGPROBS = 20
"""Of ``top_logprobs``."""


def _offered(demanded: str, tools: Sequence[ToolSpec]) -> None:
    """Refuse a ``tool_choice`` that no tool can meet: the policy is not to blame."""
    names = [tool.name for tool in tools]
    if demanded and (not names or (demanded != ANY_TOOL and demanded not in names)):
        wanted = "a call" if demanded == ANY_TOOL else f"a call of {demanded!r}"
        message = f"tool_choice demands {wanted}; the tools are {', '.join(names) or 'none'}"
        raise invalid(message, "tool_choice")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The names of an API for what all have.

    Attributes:
        roles: of messages with a text, each with the role in a conversation.
        refused: fields that are not supported, each with the reason or what to do instead.
        limits: fields with the most tokens of a reply; the first that is set counts.
        format_at: path of the object that says the format of a reply.
        schema_in: the field of that object with the name and the schema; empty where it has them
            itself.
        function_in: the field of a tool with its function; empty where the tool is the function.
        parameters_in: the field of a function with the schema of its arguments.
        tool_types: of tools that are functions.
        choice: reads ``tool_choice``.
    """

    roles: Mapping[str, Any]
    refused: Mapping[str, str]
    limits: tuple[str, ...]
    format_at: tuple[str, ...]
    schema_in: str
    function_in: str
    parameters_in: str = "parameters"
    tool_types: tuple[str | None, ...] = ("function",)
    choice: Callable[[Any], dict[str, Any]] = choice_of

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `TurnRequest` that all APIs set.

        Raises:
            ApiError: 400, naming the field.
        """
        refuse(body, self.refused)
        top = get(body, "top_logprobs", int, 0)
        if not 0 <= top <= MOST_LOGPROBS:
            raise invalid(f"top_logprobs is {top}; expected 0 to {MOST_LOGPROBS}", "top_logprobs")
        form, where = body, ""
        for name in self.format_at:
            form, where = get(form, name, dict, {}, where), f"{where}{name}."
        limits = (positive(body, name) for name in self.limits)
        given = get(body, "tools", list, [])
        tools = distinct([self._tool(t, f"tools[{i}]") for i, t in enumerate(given)])
        choice = self.choice(body.get("tool_choice"))
        _offered(choice.get("must_call", ""), tools)
        one_call = get(body, "parallel_tool_calls", bool, True) is False
        return {
            "tools": tools,
            "one_call": one_call,
            **choice,
            **format_of(form, self.schema_in, where.removesuffix(".")),
            "max_tokens": next(filter(None, limits), None),
            "sampling": sampling_of(body),
            "top_logprobs": top,
            "stream": get(body, "stream", bool, False),
            "model": get(body, "model", str, "default"),
        }

    def _tool(self, data: Any, where: str) -> ToolSpec:
        kind = data.get("type") if isinstance(data, dict) else None
        if kind not in self.tool_types:
            raise unsupported(where, f"{where} is of type {kind!r}; only functions are supported")
        if self.function_in:
            data, where = data.get(self.function_in), f"{where}.{self.function_in}"
        return tool_of(data, where, self.parameters_in)

    def message(self, data: Mapping[str, Any], where: str) -> Message:
        """Return the role and the content of a message.

        Raises:
            ApiError: 400, the role is unknown, or the content is no text and no image.
        """
        role = self.roles.get(get(data, "role", str, "", f"{where}."))
        if role is None:
            raise invalid(
                f"{where}.role is {data.get('role')!r}; expected one of {', '.join(self.roles)}",
                f"{where}.role",
            )
        return Message(role, text_of(data.get("content"), f"{where}.content", role=role))
