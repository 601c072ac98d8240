"""``quintain schema``: the JSON Schema of recipes, for editors and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, get_args

import click
from annotated_types import MinLen
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from quintain.recipe import Recipe
from quintain.registry import current

DIALECT = "https://json-schema.org/draft/2020-12/schema"
WORDS = ("all", "none", "all-linear", "sampling")
"""Words that keys of numbers or lists may take."""

NAMED = {
    "environments.use": "environment",
    "algorithm.use": "algorithm",
    "engine.use": "engine",
    "learner.use": "learner",
    "cluster.use": "cluster",
    "services.use": "service",
    "model.name": "model",
}
"""Keys with the name of a component, to its kind: an editor offers what is installed."""

MEANINGS = "recipe_keys.json"
"""The meaning of each key by its dotted name, and of each table; `tools/recipes.py` writes it."""


def recipe_schema() -> dict[str, Any]:
    """Return the schema of a recipe file with what is installed here.

    A recipe that it rejects is wrong; some mistakes need the program, as in ``quintain train FILE
    --dry-run``: arguments of components, reward expressions and relations between keys.
    """
    schema: dict[str, Any] = _table(Recipe, "")
    properties = {"extends": _extends(), **schema.pop("properties")}
    return {
        "$schema": DIALECT,
        "title": "Recipe of Quintain",
        **schema,
        "properties": properties,
        "anyOf": [{"required": ["environments"]}, {"required": ["extends"]}],
    }


def _extends() -> dict[str, Any]:
    names = sorted(
        p.name.removesuffix(".toml")
        for p in files("quintain.recipes").iterdir()
        if p.name.endswith(".toml")
    )
    text = (
        "recipe whose keys are the defaults of this one: a bundled recipe, or a path relative to "
        "this file"
    )
    return {"anyOf": [{"enum": names}, {"type": "string", "minLength": 1}], "description": text}


def _table(model: type[BaseModel], path: str) -> dict[str, Any]:
    """Return the object of the table *model*, whose dotted name is *path*."""
    properties, required = {}, []
    for name, field in model.model_fields.items():
        key = f"{path}.{name}" if path else name
        properties[name] = _field(field, key)
        if field.is_required() and key.rpartition(".")[0].endswith("environments"):
            required.append(name)
    return {
        "type": "object",
        **_described(path),
        "additionalProperties": False,
        "properties": properties,
        **({"required": required} if required else {}),
    }


def _field(field: FieldInfo, key: str) -> dict[str, Any]:
    inner = _tables_in(field.annotation)
    if (table := next(inner, None)) is not None:
        made = _table(table, key)
        if field.annotation is table or type(None) in get_args(field.annotation):
            return made
        described = _described(key)
        if key == "services":
            return {"type": "object", **described, "additionalProperties": made}
        return {"type": "array", **described, **_bounds(field), "items": made}
    made = _value(field)
    if kind := NAMED.get(key) or NAMED.get(key.removeprefix("evaluation.")):
        names = sorted({c.name for c in current().components(kind)})
        made = {"anyOf": [{"enum": names}, made]}
    default = field.get_default() if not field.is_required() else None
    if default not in (None, {}, ""):
        made["default"] = "all-linear" if default == ("all-linear",) else default
    return made | _described(key)


def _value(field: FieldInfo) -> dict[str, Any]:
    """Return the schema of a value. A validator in Python says nothing about what it accepts, so it
    is asked.
    """
    annotated: Any = (
        Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    )
    adapter = TypeAdapter(annotated)
    schema = adapter.json_schema(mode="validation")
    options: list[dict[str, Any]] = [
        o for o in schema.get("anyOf", [schema]) if o.get("type") != "null"
    ]
    if options == [{}]:  # a plain validator
        whole = not _accepts(adapter, 0.5)
        least = (
            {"minimum": 0}
            if _accepts(adapter, 0)
            else {"minimum": 1}
            if whole
            else {"exclusiveMinimum": 0}
        )
        options = [{"type": "integer" if whole else "number", **least}]
    if words := [
        word
        for word in WORDS
        if not any(o.get("type") == "string" for o in options) and _accepts(adapter, word)
    ]:
        options = [o for o in options if "const" not in o and "enum" not in o] + [{"enum": words}]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _bounds(field: FieldInfo) -> dict[str, int]:
    """Return the least length of a list."""
    least = next((m.min_length for m in field.metadata if isinstance(m, MinLen)), 0)
    return {"minItems": least} if least else {}


def _accepts(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def _tables_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the tables inside an annotation, also inside a list, a mapping or an optional."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _tables_in(argument)


def _described(key: str) -> dict[str, str]:
    text = _meanings().get(key) or _meanings().get(key.removeprefix("evaluation."))
    return {"description": text} if text else {}


@cache
def _meanings() -> Mapping[str, str]:
    meanings: dict[str, str] = json.loads(
        files(__package__).joinpath(MEANINGS).read_text(encoding="utf-8")
    )
    return meanings


@click.command("schema")
def schema() -> None:
    """Print the JSON Schema of recipes.

    Save it beside a recipe and name it in the recipe's first line, "#:schema recipe.schema.json".
    Editors with taplo (for VS Code: Even Better TOML) then complete keys, show their meaning and
    underline mistakes. The schema lists the names of installed components; print it again after
    installing others.
    """
    click.echo(json.dumps(recipe_schema(), indent=2))
