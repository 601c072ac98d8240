"""Messages about errors of a recipe: place, key, value, expected value and fix.

Those about a key of ``args`` come from `quintain.registry.binding`, which knows the component.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import did_you_mean, suggestion
from .extends import KEY, RecipeLayer, holder

Loc = Sequence[int | str]
_LONGEST = 300

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a table",
    "model_type": "a table",
    "tuple_type": "a list",
    "finite_number": "a finite number",
    "string_too_short": "some text",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:,}",
    "literal_error": "{expected}",
    "too_long": "at most {max_length} values",
}
ELSEWHERE = {
    "learning_rate": "learner.lr",
    "num_generations": "batch.group_size",
    "batch_size": "batch.prompts",
    "max_new_tokens": "sampling.max_tokens",
    "max_completion_length": "sampling.max_tokens",
    "max_steps": "run.steps",
    "gradient_checkpointing": "learner.checkpoint_activations",
}
"""Names that other trainers have for a key, and the key here."""
_NO_ENVIRONMENT = (
    'the recipe names no environment; add [[environments]] with use = "arithmetic" '
    "(`quintain list environments` shows them)"
)


def synonyms(**names: str) -> AfterValidator:
    """Replace each of *names* by the other word for it."""
    return AfterValidator(lambda value: names.get(value, value))


def describe(
    error: ValidationError,
    model: type[BaseModel],
    *,
    sources: Sequence[RecipeLayer],
    typed: Mapping[tuple[str, ...], str],
) -> str:
    """Return one line per error, with the file of *sources* and the line of the key; *typed* are
    overrides by path.
    """
    lines = []
    for e in error.errors():
        loc = e["loc"]
        if e["type"] == "too_short" and e["input"]:
            continue  # counts only valid elements; the invalid ones have their own lines
        layer = holder(sources, loc)
        line = line_of(layer.text, loc)
        overridden = _override_of(e, typed)
        in_file = f"{layer.source}:{line}" if line else layer.source
        where = f"--set {'.'.join(overridden)}={typed[overridden]}" if overridden else in_file
        lines.append(f"{where}: {_message(e, model)}")
    return "\n".join(lines)


def _override_of(e: ErrorDetails, typed: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the path of the override that caused the error, if one did."""
    loc = tuple(map(str, e["loc"]))
    above = [p for p in typed if p == loc[: len(p)]]
    if above:
        return max(above, key=len)
    if e["type"] != "value_error":
        return None
    # The message of a table validator has the name of the key.
    words = re.findall(r"\w+", str(e.get("ctx", {}).get("error", "")))
    return next((p for p in typed if p[: len(loc)] == loc and p[-1] in words), None)


def _message(e: ErrorDetails, model: type[BaseModel]) -> str:
    loc, kind, got = e["loc"], e["type"], e["input"]
    if kind == "extra_forbidden":
        return _unknown(loc, model)
    if loc == ("environments",) and kind in ("missing", "too_short"):
        return _NO_ENVIRONMENT
    if kind == "missing":
        missing = f"value {loc[-1] + 1}" if isinstance(loc[-1], int) else repr(loc[-1])
        return f"{_section(loc[:-1], model)} has no {missing}; add it"
    context = e.get("ctx", {})
    name = _dotted(loc)
    if kind == "value_error":
        message = str(context["error"])
        # The message of a table validator has the name of the key.
        return (
            f"{name} is {short(got)}; {message}"
            if message.startswith("expected")
            else f"{name}: {message}"
        )
    expected = _EXPECTED.get(kind, e["msg"]).format(**context)
    return f"{name} is {short(got)}; expected {expected}{_fix(kind, got, context)}"


def short(value: Any) -> str:
    """Return the value in an error; a long one is cut in the middle."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"


def _fix(kind: str, got: Any, context: Mapping[str, Any]) -> str:
    if kind == "literal_error" and isinstance(got, str):
        return did_you_mean(got, re.findall(r"'([^']*)'", context["expected"])).partition(
            "; known"
        )[0]
    if kind in ("int_type", "float_type", "bool_type") and isinstance(got, str):
        return "; remove the quotes" if re.fullmatch(r"[-+.\deE]+|true|false", got) else ""
    return (
        "; put quotes around it" if kind == "string_type" and isinstance(got, (int, float)) else ""
    )


def _unknown(loc: Loc, model: type[BaseModel]) -> str:
    key = str(loc[-1])
    table = _at(loc[:-1], model)
    keys = list(table.model_fields) if table else []
    if len(loc) == 1:
        homes = [
            f"{s}.{key}"
            for s, t in _tables(model, "")
            if key in t.model_fields and key not in ("use", "args")
        ]
        near = f"; did you mean {' or '.join(homes)}?" if homes else did_you_mean(key, [*keys, KEY])
        return f"unknown section [{key}]{near}"
    if key == KEY:
        return (
            f"unknown key {key!r} in {_section(loc[:-1], model)}; it belongs at the top, before "
            f"the first section"
        )
    near = suggestion(ELSEWHERE.get(key, "")) or did_you_mean(key, keys)
    homes = (
        []
        if near.startswith("; did")
        else [s for s, t in _tables(model, "") if key in t.model_fields]
    )
    hint = f"; it belongs in [{homes[0]}]" if len(homes) == 1 else near
    if not hint.startswith("; did") and "args" in keys and not homes:
        hint += "; settings of the component itself go under args"
    return f"unknown key {key!r} in {_section(loc[:-1], model)}{hint}"


def _tables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        table = _inner(field.annotation)
        if table is not None and name != "services":
            yield prefix + name, table
            yield from _tables(table, f"{prefix}{name}.")


def _inner(annotation: Any) -> type[BaseModel] | None:
    """Return the table inside ``Table``, ``Table | None``, ``tuple[Table, ...]`` or ``dict[str,
    Table]``.
    """
    if (
        isinstance(annotation, type)
        and get_origin(annotation) is None
        and issubclass(annotation, BaseModel)
    ):
        return annotation
    return next((model for a in get_args(annotation) if (model := _inner(a)) is not None), None)


def _at(loc: Loc, model: type[BaseModel]) -> type[BaseModel] | None:
    table: type[BaseModel] | None = model
    for part in loc:
        if table is None:
            return None
        if part in table.model_fields:
            table = _inner(table.model_fields[str(part)].annotation)
        # else: a position in a list or a slot of [services]; the table stays the same
    return table


def _section(loc: Loc, model: type[BaseModel]) -> str:
    if loc and loc[0] == "environments" and len(loc) == 2 and isinstance(loc[1], int):
        return f"[[environments]] number {loc[1] + 1}"
    return f"[{_dotted(loc)}]"


def _dotted(loc: Loc) -> str:
    return ".".join(map(str, loc))


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGN = re.compile(r"\s*([\w\"'.-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")


def line_of(text: str, loc: Loc) -> int | None:
    """Return the line (from 1) of *text* where the key *loc* is set, or of the nearest table around
    it.
    """
    target = tuple(map(str, loc))
    best: tuple[int, int | None] = (0, None)
    table: tuple[str, ...] = ()
    counts: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        path = table
        if header := _HEADER.match(line):
            table = path = _numbered(_parts(header[2]), counts, array=header[1] == "[[")
        elif assign := _ASSIGN.match(line):
            path = table + _parts(assign[1])
        else:
            continue
        if path == target[: len(path)] and len(path) > best[0]:
            best = (len(path), number)
    return best[1]


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(p.strip().strip("\"'") for p in dotted.split("."))


def _numbered(
    parts: tuple[str, ...], counts: dict[tuple[str, ...], int], *, array: bool
) -> tuple[str, ...]:
    """Return the path with positions of lists: ``[environments.args]`` belongs to the last
    ``[[environments]]``.
    """
    if array:
        counts[parts] = counts.get(parts, -1) + 1
    path: tuple[str, ...] = ()
    for i, part in enumerate(parts, 1):
        path += (part,)
        if parts[:i] in counts:
            path += (str(counts[parts[:i]]),)
    return path
