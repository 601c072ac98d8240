"""Reads the fields that the APIs share; every fault of a request is an `ApiError` that names its
field.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from quintain import Message, ToolCall, ToolSpec
from quintain.data import read_json
from quintain.models import PICTURE

from .errors import invalid, unsupported
from .request import ANY_TOOL

DEEPEST = 64
"""Levels of objects and lists in a request, at most."""
MOST_REPLIES = 64
"""Of ``n``."""
MOST_STOPS = 16
MOST_IMAGES = 16
"""Of a message."""
MOST_PIXELS = 16_777_216
"""Of an image: others wait while it is decoded."""
MOST_NEW_PIXELS = 2 * MOST_PIXELS
"""Of the images of a request that were in none before it, for the same reason."""
NEW_PIXELS: ContextVar[int] = ContextVar("NEW_PIXELS", default=0)
"""Pixels of new images so far in the request that is read."""
IMAGES = ("image_url", "input_image", "image")
"""Types of parts with an image: of chat completions, responses and messages."""
_PIECES = 64
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}\Z")
_RANGES = {"temperature": (0, 2), "top_p": (0, 1)}


def parsed(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Lone surrogates, which no tokenizer can encode, become
    question marks.
    """
    try:
        value = read_json(data.decode(), deepest=DEEPEST)
    except ValueError as e:
        raise invalid(f"the body cannot be read as JSON: {e}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(
            f"the body is a JSON {type(value).__name__}; expected an object", code="invalid_json"
        )
    return value


def get(
    body: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any, where: str = ""
) -> Any:
    """Return the field *name*, or *default* where it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join(k.__name__ for k in kinds)
        raise invalid(
            f"{where}{name} is {shown(value)}; expected {expected}",
            f"{where}{name}",
            "invalid_type",
        )
    return value


def positive(body: Mapping[str, Any], name: str, limit: int | None = None) -> int | None:
    """Return a whole number from 1 up, or ``None``."""
    value = get(body, name, int, None)
    if value is not None and not 1 <= value <= (limit or value):
        raise invalid(
            f"{name} is {value}; expected 1{f' to {limit}' if limit else ' or more'}", name
        )
    return value if value is None else int(value)


def text_of(content: Any, where: str, first: int = 0, *, role: str = "assistant") -> str:
    """Return the text of a message: a string, null, or a list of parts, counted from *first*. Images
    of the user and of tools become pictures (`quintain_vision`); other roles write text alone.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return _without_pictures(content, role)
    if not isinstance(content, list):
        raise invalid(
            f"{where} is {shown(content)}; expected text or a list of parts", where, "invalid_type"
        )
    count_images(content, where)
    out: list[str] = []
    for i, part in enumerate(content, first):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in IMAGES and role in ("user", "tool"):
            out.append(picture_of(part, f"{where}[{i}]", role))
            continue
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise unsupported(
                f"{where}[{i}]",
                f"{where}[{i}] is a part of type {shown(kind)}; only text is supported"
                + " and, of users and tools, images" * (kind in IMAGES),
            )
        value = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(value, str):
            raise invalid(
                f"{where}[{i}].text is {shown(value)}; expected text",
                f"{where}[{i}]",
                "invalid_type",
            )
        out.append(_without_pictures(value, role))
    return "".join(out)


def count_images(parts: Sequence[Any], where: str) -> None:
    """Refuse more than `MOST_IMAGES` images in the *parts* of a message."""
    images = sum(isinstance(part, dict) and part.get("type") in IMAGES for part in parts)
    if images > MOST_IMAGES:
        raise invalid(
            f"{where} has {images} images; expected at most {MOST_IMAGES}", where, "invalid_image"
        )


def _without_pictures(text: str, role: str) -> str:
    """Return *text* of an agent without the marks of pictures, which it may have copied from a
    policy. Those of a turn stay, since a reply is compared with what was sampled, and is no picture.
    """
    return text if role == "assistant" else text.replace(PICTURE, "\ufffd")


def picture_of(part: Mapping[str, Any], where: str, role: str) -> str:
    """Return what stands for an image of the user or of a tool in a message.

    Raises:
        ApiError: the image is refused.
        InfrastructureError: it cannot be stored.
    """
    url = _url_of(part, where)
    if not url.startswith("data:"):
        raise unsupported(
            where, f"{where} is an image at an address, and nothing is fetched; send it as data"
        )
    if find_spec("quintain_vision") is None:
        raise unsupported(
            where, f"{where} is an image; for those, pip install 'quintain-gateway[pictures]'"
        )
    from quintain_vision import PictureError, PictureLimits, StoreError, picture, tool_picture

    def decoding(pixels: int) -> None:
        NEW_PIXELS.set(NEW_PIXELS.get() + pixels)
        if NEW_PIXELS.get() > MOST_NEW_PIXELS:
            raise invalid(
                f"with {where} the new images of the request have {NEW_PIXELS.get():,} pixels; "
                f"expected at most {MOST_NEW_PIXELS:,}; make them smaller",
                where,
                "invalid_image",
            )

    limits = PictureLimits(pixels=MOST_PIXELS)
    try:
        return (picture if role == "user" else tool_picture)(url, limits=limits, decoding=decoding)
    except StoreError:  # ours, and no fault of the request
        raise
    except PictureError as e:
        raise invalid(f"{where}: {e}", where, "invalid_image") from None


def _url_of(part: Mapping[str, Any], where: str) -> str:
    """Return the URL of an image in a part of any API; base64 becomes a ``data:`` URL."""
    if part["type"] == "image":  # Anthropic's
        source = get(part, "source", dict, {}, f"{where}.")
        if source.get("type") == "base64":
            kind = get(source, "media_type", str, "", f"{where}.source.")
            return f"data:{kind};base64,{get(source, 'data', str, '', f'{where}.source.')}"
        url = source.get("url")
    else:
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, dict) else url
    if not isinstance(url, str):  # a file of the API, for one
        raise unsupported(where, f"{where} is an image without its data; send it in base64")
    return url


def call_of(name: Any, arguments: Any, call_id: Any, where: str) -> ToolCall:
    """Return a call of the history. Arguments that are no JSON object are kept as text, as a fault
    of the call.
    """
    if not isinstance(name, str) or not isinstance(call_id, str | None):
        raise invalid(f"{where} needs a name and an id of text", where, "invalid_type")
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = arguments
    value = {} if value is None else value  # some clients send null for a call without arguments
    if not isinstance(value, dict):
        return ToolCall(name=name, id=call_id or "", error=str(arguments))
    return ToolCall(name=name, arguments=value, id=call_id or "")


def named(messages: Iterable[Message], before: Iterable[Message] = ()) -> list[Message]:
    """Return *messages* with the name of the tool in each tool message, from the call that it
    answers, which may stand in a message *before*.
    """
    names = {c.id: c.name for m in before if m.calls for c in m.calls if c.id}
    out: list[Message] = []
    for m in messages:
        names |= {c.id: c.name for c in m.calls if c.id}
        known = m.role == "tool" and not m.name and m.call_id in names
        out.append(replace(m, name=names[m.call_id]) if known else m)
    return out


def texts_alone(value: Any) -> bool:
    """Return whether a JSON value has no numbers and no truth values: ``1``, ``1.0`` and ``true``
    are equal in Python.
    """
    if isinstance(value, dict):
        return all(map(texts_alone, value.values()))
    if isinstance(value, list):
        return all(map(texts_alone, value))
    return isinstance(value, str | None)


def tool_of(function: Any, where: str, schema_in: str = "parameters") -> ToolSpec:
    """Return a function tool, whose field *schema_in* has the schema of its arguments."""
    if not isinstance(function, dict):
        raise invalid(f"{where} is {shown(function)}; expected an object", where, "invalid_type")
    name = get(function, "name", str, "", f"{where}.")
    if not _NAME.match(name):
        raise invalid(
            f"{where}.name is {shown(name)}; expected letters, digits, _ . : / or -",
            f"{where}.name",
        )
    if isinstance(function.get(schema_in), list):  # the other form that qwen-agent takes
        example = '{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}'
        message = f"{where}.{schema_in} is a list; expected a JSON schema, such as {example}"
        raise invalid(message, f"{where}.{schema_in}", "invalid_type")
    parameters = get(function, schema_in, dict, None, f"{where}.")
    description = get(function, "description", str, "", f"{where}.")
    fields = (
        {}
        if parameters is None
        else {"parameters": known_types(parameters, f"{where}.{schema_in}")}
    )
    return ToolSpec(name=name, description=description, **fields)


def known_types(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return *schema*, whose types must be those of JSON schema: nothing that the policy writes can
    fit another.
    """
    from quintain_tools.formats import unknown_types

    fault = next(unknown_types(schema, where), "")
    if fault:
        raise invalid(fault, where, "invalid_schema")
    return schema


def distinct(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return *tools*, whose names must differ."""
    for name, count in Counter(tool.name for tool in tools).items():
        if count > 1:
            raise invalid(f"two tools have the name {name!r}", "tools")
    return tuple(tools)


def choice_of(choice: Any) -> dict[str, Any]:
    """Return the fields of `TurnRequest` that ``tool_choice`` sets: a demand is noted, since
    nothing can force a policy whose tokens are trained.
    """
    if not isinstance(choice, str | dict | None):
        raise invalid(
            f"tool_choice is {shown(choice)}; expected text or an object",
            "tool_choice",
            "invalid_type",
        )
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise invalid(
            f"tool_choice is {choice!r}; expected auto, none, required or a function", "tool_choice"
        )
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        return {
            "must_call": name if choice.get("type") == "function" and isinstance(name, str) else ""
        }
    return {
        "calls_allowed": choice != "none",
        "must_call": ANY_TOOL if choice == "required" else "",
    }


def format_of(given: Mapping[str, Any], inner: str, where: str) -> dict[str, Any]:
    """Return the fields of `TurnRequest` that ``response_format`` or ``text.format`` sets.

    Args:
        inner: field of *given* that holds name and schema; empty where they stand in *given*
            itself.
        where: the field's name.
    """
    kind = get(given, "type", str, "text", f"{where}.")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"schema": {"type": "object"}, "response_format": json.dumps({"type": kind})}
    if kind != "json_schema":
        reason = "take json_schema or json_object, or ask for the format in the prompt"
        raise unsupported(where, f"{where} {kind!r} is not supported: {reason}")
    holder, place = (
        (get(given, inner, dict, {}, f"{where}."), f"{where}.{inner}") if inner else (given, where)
    )
    schema: dict[str, Any] | None = get(holder, "schema", dict, None, f"{place}.")
    if schema is None:
        raise invalid(f"{place}.schema is missing; expected a JSON schema", f"{place}.schema")
    named_schema = {"name": "reply"} | {k: v for k, v in holder.items() if k != "type"}
    whole = {"type": kind, "json_schema": named_schema}
    known_types(schema, f"{place}.schema")
    return {"schema": schema, "response_format": json.dumps(whole)}


def with_schema(
    messages: Sequence[Message], schema: Mapping[str, Any] | None
) -> tuple[Message, ...]:
    """Return *messages* with a schema in the system message, where the policy reads it, as it reads
    the tools.

    A client that asks for ``json_object`` says so in its messages, as OpenAI's API demands.
    """
    if schema is None or schema == {"type": "object"}:
        return tuple(messages)
    instruction = (
        f"Reply with JSON alone, without any other text, that fits this "
        f"schema:\n{json.dumps(schema)}"
    )
    if messages[0].role == "system":
        return (Message("system", f"{messages[0].content}\n\n{instruction}"), *messages[1:])
    return (Message("system", instruction), *messages)


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Sampling` that a request may set, where its engine is not trained."""
    fields: dict[str, Any] = {}
    for name in (*_RANGES, "seed"):
        value = get(body, name, int if name == "seed" else (int, float), None)
        if value is None:
            continue
        low, high = _RANGES.get(name, (value, value))
        if not low <= value <= high:
            raise invalid(f"{name} is {value}; expected {low} to {high}", name)
        fields[name] = value
    return fields


def stops_of(body: Mapping[str, Any], name: str = "stop") -> tuple[str, ...]:
    """Return what ends a reply: the field *name* has a text or several."""
    stop = get(body, name, (str, list), [])
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MOST_STOPS or not all(isinstance(s, str) for s in stops):
        raise invalid(f"{name} is {shown(stop)}; expected a text or up to {MOST_STOPS}", name)
    return tuple(s for s in stops if s)


def refuse(body: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Refuse a request that sets a field of *reasons* to more than nothing."""
    for name, reason in reasons.items():
        if body.get(name) not in (None, False, 0, [], {}):
            raise unsupported(name, f"{name} is not supported: {reason}")


def pieces(text: str) -> list[str]:
    """Split *text* into a few parts, for a stream."""
    size = max(16, -(-len(text) // _PIECES))
    return [text[i : i + size] for i in range(0, len(text), size)]


def shown(value: Any) -> str:
    """Return *value* for a message, shortened."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 100 else text[:97] + "..."
