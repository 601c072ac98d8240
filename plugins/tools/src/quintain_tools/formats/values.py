"""Arguments: read without surprises, and compared with the JSON schema of the tool."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from quintain import ToolSpec

MAX_DEPTH = 64
"""Levels of nesting; deeper values cannot be compared or stored by recursive code."""

TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
"""All that ``type`` of a JSON schema may say."""

INNER = ("items", "additionalProperties", "not", "contains", "propertyNames")
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value is a schema, a list of schemas, a table of schemas."""

SHOWN = 80
"""Characters of a text that a reason quotes."""


def _no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"key {quoted(key)} is given twice")
        table[key] = value
    return table


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def read_json(text: str, position: int = 0) -> tuple[Any, int]:
    """Return the JSON value of *text* from *position*, leading blanks skipped, and the index after
    it.

    Raises:
        ValueError: no JSON, a repeated key, NaN, or nesting that is too deep; the message is a
            reason for the model.
    """
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    try:
        return DECODER.raw_decode(text, position)
    except json.JSONDecodeError as e:
        raise ValueError(f"not JSON: {e.msg} at character {max(0, e.pos - position)}") from e
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None


def whole_json(text: str) -> Any:
    """Return the JSON value that is all of *text*.

    Raises:
        ValueError: as `read_json`, or text follows the value.
    """
    value, end = read_json(text)
    if rest := text[end:].strip():
        raise ValueError(f"not JSON: {quoted(rest)} follows the value")
    return value


def quoted(text: str) -> str:
    """Quote *text* in a reason: at most `SHOWN` characters, always encodable."""
    return ascii(text[:SHOWN]) if len(text) <= SHOWN else ascii(text[:SHOWN]) + "..."


def fault_of(arguments: Any, spec: ToolSpec | None) -> str:
    """Return why *arguments* cannot be given to the tool; empty if they can.

    They have to be a mapping of plain values: finite numbers, encodable text, at most `MAX_DEPTH`
    levels. With a *spec* they have to fit its schema, too.
    """
    if not isinstance(arguments, dict):
        return f"arguments must be an object, got {_kind(arguments)}"
    if fault := _unfit(arguments):
        return fault
    try:
        return "" if spec is None else mismatch(arguments, spec.parameters, spec.parameters)
    except RecursionError:  # references of the schema in a circle say nothing of the arguments
        return ""


def _unfit(value: Any) -> str:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            return f"nested more than {MAX_DEPTH} levels deep"
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not _encodable(item):
                    return f"text with a lone surrogate: {quoted(item)}"
            elif isinstance(item, float):
                if not math.isfinite(item):
                    return "a number beyond the range of floats"
            elif isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif not (item is None or isinstance(item, (bool, int))):
                return f"a {type(item).__name__} is no JSON value"
        level, depth = below, depth + 1
    return ""


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    """Return the name of JSON schema for the type of *value*."""
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        dict: "object",
        list: "array",
    }
    return names.get(type(value), "null" if value is None else type(value).__name__)


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *schema* with a reference into *root* followed; a schema that cannot be followed
    allows everything.
    """
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        schema = target
    return schema if isinstance(schema, Mapping) else {}


def types_of(schema: Any, root: Mapping[str, Any]) -> set[str]:
    """Return the names of the types that *schema* allows; empty means all.

    A name that is none of `TYPES` allows everything: it is the mistake of the schema's author
    (`unknown_types`), and no argument can fit it.
    """
    return _types(schema, root, 0)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    schema = resolved(schema, root)
    if depth > MAX_DEPTH:
        return set()
    options = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    nullable = {"null"} if schema.get("nullable") is True else set()
    if options:
        sets = [_types(option, root, depth + 1) for option in options]
        return set().union(nullable, *sets) if all(sets) else set()
    if "type" in schema:
        given = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        names = {name for name in given if isinstance(name, str)}
        return names | nullable if names and names <= TYPES else set()
    values = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]
    if values:
        return {_kind(value) for value in values} | nullable
    parts = [_types(part, root, depth + 1) for part in schema.get("allOf") or ()]
    known = [part for part in parts if part]
    return set.intersection(*known) if known else set()


def unknown_types(schema: Any, place: str = "parameters") -> Iterator[str]:
    """Yield what the author of *schema* has to mend: each ``type`` that JSON schema does not have,
    with its place.
    """
    parts = [(place, schema, 0)]
    while parts:
        where, part, depth = parts.pop()
        if not isinstance(part, Mapping) or depth > MAX_DEPTH:
            continue
        given = part.get("type", [])
        for name in given if isinstance(given, list) else [given]:
            if name not in TYPES:
                known = ", ".join(sorted(TYPES))
                yield f"{where}.type is {quoted(str(name))}, no type of JSON schema ({known})"
        parts.extend((f"{where}.{key}", part.get(key), depth + 1) for key in INNER)
        for key in LISTED:
            listed = part.get(key)
            for i, option in enumerate(listed if isinstance(listed, list) else ()):
                parts.append((f"{where}.{key}[{i}]", option, depth + 1))
        for key in BY_NAME:
            table = part.get(key)
            for name, option in table.items() if isinstance(table, Mapping) else ():
                parts.append((f"{where}.{key}.{name}", option, depth + 1))


def mismatch(value: Any, schema: Any, root: Mapping[str, Any], place: str = "") -> str:
    """Return the first place where *value* does not fit the types of *schema*, as a reason; empty
    if it fits.

    Checked are ``type``, ``enum``, ``const``, ``anyOf``, ``oneOf``, ``allOf``, ``properties``,
    ``patternProperties``, ``required``, ``additionalProperties``, ``items`` and references; bounds
    and patterns of values are the tool's own matter.
    """
    schema = resolved(schema, root)
    where = f"argument {place}: " if place else ""
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        faults = [mismatch(value, option, root, place) for option in options]
        if all(faults):
            return (
                faults[0]
                if len(faults) == 1
                else f"{where}{_expected(types_of(schema, root), value)}"
            )
    for part in schema.get("allOf") or ():
        if fault := mismatch(value, part, root, place):
            return fault
    if value is None and schema.get("nullable") is True:
        return ""
    kind, allowed = _kind(value), types_of(schema, root)
    fits = kind in allowed or (kind == "integer" and "number" in allowed)
    fits = fits or ("integer" in allowed and kind == "number" and float(value).is_integer())
    if allowed and not fits:
        return where + _expected(allowed, value)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None and not any(_same(value, v) for v in values):
        return f"{where}expected one of {', '.join(map(json.dumps, values))}"
    if isinstance(value, dict):
        return _members(value, schema, root, place)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        for i, item in enumerate(value):
            if fault := mismatch(item, schema["items"], root, f"{place}[{i}]"):
                return fault
    return ""


def _same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; JSON has one kind of number, and ``true`` is
    none.
    """
    kinds = {_kind(value), _kind(other)}
    return bool(value == other) and (len(kinds) == 1 or kinds == {"integer", "number"})


def _expected(allowed: set[str], value: Any) -> str:
    return f"expected {' or '.join(sorted(allowed))}, got {_kind(value)}"


def _members(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any], place: str
) -> str:
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties", True)
    inside = f" in {place}" if place else ""
    for name in schema.get("required") or ():
        if name not in value:
            return f"missing argument {name}{inside}"
    for name, item in value.items():
        part = properties.get(name)
        if part is None:
            part = _of_pattern(name, schema)
        if part is None and extra is False:
            return f"unknown argument {quoted(name)}{inside}"
        part = extra if part is None else part
        if fault := mismatch(
            item, part, root, f"{place}.{name[:SHOWN]}" if place else name[:SHOWN]
        ):
            return fault
    return ""


def _of_pattern(name: str, schema: Mapping[str, Any]) -> Any:
    """Return the schema of the first pattern that *name* fits; ``None`` if there is none.

    A pattern that Python cannot read allows the name.
    """
    patterns = schema.get("patternProperties")
    for pattern, part in patterns.items() if isinstance(patterns, Mapping) else ():
        try:
            if re.search(pattern, name[:SHOWN]):
                return part
        except re.error:
            return {}
    return None


def from_text(text: str, name: str, spec: ToolSpec | None) -> Any:
    """Return the value of the argument *name* that a format without types gives as *text*.

    A parameter that may be text gets the text, unless ``null`` is allowed and meant; any other is
    read as JSON, with Python's spelling of constants, which several chat templates write. One whose
    schema names no type gets an object or a list where the text is one, and the text otherwise.

    Raises:
        ValueError: the text is no value of the types that the schema allows.
    """
    root: Mapping[str, Any] = {} if spec is None else spec.parameters
    properties = root.get("properties") or {}
    allowed = types_of(properties[name], root) if name in properties else set()
    word = text.strip()
    if "null" in allowed and word in ("null", "None"):
        return None
    if not allowed:
        return _structure(text)
    if "string" in allowed:
        return text
    constants = {"True": True, "False": False, "None": None}
    try:
        value = constants[word] if word in constants else whole_json(text)
    except ValueError as e:
        expected = " or ".join(sorted(allowed))
        raise ValueError(
            f"argument {name}: expected {expected}, got {quoted(text)} ({e})"
        ) from None
    return value


def _structure(text: str) -> Any:
    """Return the object or list that *text* is, else *text*."""
    if not text.strip().startswith(("{", "[")):
        return text
    try:
        return whole_json(text)
    except ValueError:
        return text


def as_text(value: Any) -> str:
    """Write *value* as a format without types does; the inverse of `from_text`."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
