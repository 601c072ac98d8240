"""A component's signature is its configuration: read it, check a recipe's arguments against it, call it.

A class is configured through its constructor (for a dataclass, its fields); a function or reward through its keyword
parameters; an algorithm row through its settings. Parameters that default to `need()` are services.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BindingError, PluginError, QuintainError, UsageError, did_you_mean
from ..interfaces.algorithm import TABLES, Row
from ..interfaces.pieces import Piece
from ..interfaces.reward import Reward, RewardFunction
from ..interfaces.service import Need
from ..tracebacks import place_of, said_by
from ..types.rollout import type_adapter
from .pieces import find

MISSING: Any = inspect.Parameter.empty
"""The default of a field that must be given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One thing that can be configured. *type* is `MISSING` where nothing was annotated (then nothing is checked)."""

    name: str
    type: Any = MISSING
    default: Any = MISSING
    doc: str = ""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING

    @property
    def type_name(self) -> str:
        """The type as a person would write it."""
        return type_name(self.type)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One service that is needed: the *parameter* that takes it, the recipe's *slot*, the type expected."""

    parameter: str
    slot: str
    type: Any = MISSING

    @property
    def type_name(self) -> str:
        """The type as a person would write it."""
        return type_name(self.type)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What a component can be told, and which services it needs. *open*: it takes any further keyword."""

    fields: tuple[Field, ...] = ()
    needs: tuple[Slot, ...] = ()
    doc: str = ""
    open: bool = False


def signature_of(component: Any) -> Signature:
    """Read the signature of *component* (class, function, reward, algorithm row or piece); ``_private`` parameters are
    not in it.

    Raises:
        PluginError: it has none that Python can read.
    """
    if isinstance(component, (Row, *TABLES.values())):
        return _signature_of_settings(component)
    # A piece that is configured is another object than the decorated one, which alone has the function's docstring.
    doc = inspect.getdoc(component.function if isinstance(component, Piece) else component) or ""
    if isinstance(component, type) and doc.startswith(f"{component.__name__}("):
        doc = ""  # what a dataclass says of itself where its author says nothing
    docs = parameter_docs(doc)
    # A piece that is configured already has its own arguments for defaults.
    own = component.args if isinstance(component, Piece) else {}
    fields: list[Field] = []
    needs: list[Slot] = []
    parameters = _parameters(component)
    for p in parameters:
        if isinstance(p.default, Need):
            needs.append(Slot(parameter=p.name, slot=p.default.slot or p.name, type=p.annotation))
        elif p.kind is not p.VAR_KEYWORD:
            default = own.get(p.name, p.default)
            fields.append(Field(name=p.name, type=p.annotation, default=default, doc=docs.get(p.name, "")))
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return Signature(fields=tuple(fields), needs=tuple(needs), doc=doc, open=is_open)


def bind(
    component: Any, args: Mapping[str, Any], services: Mapping[str, Any] | None = None, *, who: str = "component"
) -> Any:
    """Configure *component* with plain data from a recipe.

    Types are checked, not guessed: ``"3"`` is no int; an int is a float, a list becomes the tuple and text the path,
    literal or enum that the annotation asks for. ``"none"`` is ``None`` where that fits and text does not, as TOML has
    no word for it. A class gives its instance, a reward the configured reward, a row its
    variant, a piece itself with arguments, any other function a `functools.partial`.

    Args:
        args: by parameter name.
        services: by slot. Rewards and pieces get theirs when they are called; that a slot is filled is checked here.
            ``None`` skips that check (and leaves classes that need some unbindable).
        who: how messages call the component, for instance ``"environment 'gsm8k'"``.

    Raises:
        BindingError: an unknown, missing or ill-typed argument, or an empty slot; all faults at once, one per line.
        PluginError: the component raised something unexpected, or its annotations cannot be resolved.
    """
    if isinstance(component, Row):
        return _bind_row(component, args, who)
    faults: list[str] = []
    signature = signature_of(component)
    values = _checked(signature, args, who, faults, component)
    filled = _filled(signature, services, who, faults)
    if faults:
        raise BindingError("\n".join(faults))
    if isinstance(component, RewardFunction):
        return _called(lambda: component(**values), who)
    if isinstance(component, Piece):
        return _called(lambda: component.using(**values), who)
    if isinstance(component, type):
        return _called(lambda: component(**values, **filled), who)
    return functools.partial(component, **values, **filled) if callable(component) else component


def check_args(component: Any, args: Mapping[str, Any], *, who: str = "component") -> None:
    """The half of `bind` that makes nothing: *args* against the signature of *component*, services left aside.

    Raises:
        BindingError: an unknown, missing or ill-typed argument; all faults at once, one per line.
        PluginError: its annotations cannot be resolved.
    """
    if isinstance(component, Row):
        _bind_row(component, args, who)
        return
    faults: list[str] = []
    _checked(signature_of(component), args, who, faults, component)
    if faults:
        raise BindingError("\n".join(faults))


def type_name(annotation: Any) -> str:
    """An annotation as a person would write it."""
    if annotation is MISSING:
        return "any"
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return "None" if annotation is type(None) else annotation.__qualname__
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", str(annotation).replace("NoneType", "None"))


_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", re.M)


def parameter_docs(doc: str) -> dict[str, str]:
    """What the sections ``Args:`` and ``Attributes:`` of a docstring say of each name; ``a, b: text`` is of both."""
    docs: dict[str, str] = {}
    for section in _SECTION.finditer(inspect.cleandoc(doc)):
        for item in re.split(r"\n(?=\S)", inspect.cleandoc(section[1])):
            names, colon, text = item.partition(":")
            if colon:
                docs.update({n.strip(" *`"): " ".join(text.split()) for n in names.split(",")})
    return docs


def without_parameters(doc: str, names: Collection[str]) -> str:
    """*doc* without its sections ``Args:`` and ``Attributes:``, where they are of none but *names*."""
    shown = set(names)
    # Behind a first line, whose indentation does not count, a section is as it stands in the docstring.
    kept = _SECTION.sub(lambda s: "" if parameter_docs(f"\n.\n{s[0]}").keys() <= shown else s[0], inspect.cleandoc(doc))
    return kept.strip()


def _parameters(component: Any) -> list[inspect.Parameter]:
    """The configurable parameters and ``**keywords``; their annotations are types where they can be resolved."""
    if isinstance(component, Reward) and not isinstance(component, RewardFunction):
        return []  # a combination is configured in its parts
    target = component.function if isinstance(component, (RewardFunction, Piece)) else component
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError) as e:
        raise PluginError(f"{component!r} has no signature that Python can read: {e}") from e
    if isinstance(component, RewardFunction):
        parameters = parameters[1:]  # the rollouts
    elif isinstance(component, type):
        parameters = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY)]
    else:
        parameters = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) and p.name != "state"]
    shown = [p for p in parameters if p.kind is p.VAR_KEYWORD or not p.name.startswith("_")]
    return [p.replace(annotation=_resolved(p, target)) for p in shown]


def _resolved(parameter: inspect.Parameter, owner: Any) -> Any:
    """The annotation as a type; the text itself where its names cannot be found at run time."""
    text = parameter.annotation
    if not isinstance(text, str):
        return text
    for namespace in _namespaces(parameter.name, owner):
        try:
            return eval(text, namespace)  # an annotation is code of the component itself
        except NameError:
            continue
    return text


def _namespaces(name: str, owner: Any) -> list[dict[str, Any]]:
    """Where an annotation of *owner* may find its names: first in the module of the class that declares the field."""
    if not isinstance(owner, type):
        return [getattr(inspect.unwrap(owner), "__globals__", {})]
    declaring = [c for c in owner.__mro__ if name in inspect.get_annotations(c)]
    modules = [sys.modules.get(c.__module__) for c in (*declaring, *owner.__mro__)]
    constructor = getattr(owner.__init__, "__globals__", {})  # type: ignore[misc]
    return [*(dict(vars(m)) for m in modules if m), constructor]


def _signature_of_settings(held: Any) -> Signature:
    """Of an algorithm or one of its tables: what it has now is the default."""
    docs, hints = parameter_docs(inspect.getdoc(type(held)) or ""), typing.get_type_hints(type(held))
    fields = tuple(
        Field(name=f.name, type=hints[f.name], default=getattr(held, f.name), doc=docs.get(f.name, ""))
        for f in dataclasses.fields(held)
        if f.name not in ("name", "summary", "source", "published")
    )
    if not isinstance(held, Row):
        return Signature(fields=fields)
    published = ", ".join(f"{key} {value}" for key, value in held.published.items())
    told = (held.summary, held.source, published and f"Published with {published}.")
    return Signature(fields=fields, doc="\n\n".join(filter(None, told)))


def _bind_row(row: Row, args: Mapping[str, Any], who: str) -> Row:
    """The variant of *row* with *args*, once their types are checked."""
    faults: list[str] = []

    def check(held: Any, table: Mapping[str, Any], where: str) -> dict[str, Any]:
        return _checked(signature_of(held), table, f"{who}, {where}" if where else who, faults)

    try:
        variant: Row = _called(lambda: row.configured(args, find=find, check=check), who)
    except UsageError:
        if not faults:
            raise
    if faults:
        raise BindingError("\n".join(faults))
    return variant


def _checked(
    signature: Signature, args: Mapping[str, Any], who: str, faults: list[str], component: Any = None
) -> dict[str, Any]:
    fields = {f.name: f for f in signature.fields}
    slots = {s.parameter: s for s in signature.needs}
    values: dict[str, Any] = {}
    for key, value in args.items():
        if key in fields:
            before = len(faults)
            typed = _typed(fields[key], value, who, faults)
            if len(faults) == before:
                values[key] = typed
        elif key in slots:
            faults.append(
                f"{who}: {key!r} is a service, not an argument; configure it under [services.{slots[key].slot}]"
            )
        elif signature.open:
            values[key] = value
        else:
            known = did_you_mean(key, fields) or "; it takes none"
            faults.append(f"{who} has no argument {key!r}{_as_constant(component, key) or known}")
    faults.extend(
        f"{who} needs the argument {f.name!r} ({f.type_name})"
        for f in signature.fields
        if f.required and f.name not in args
    )
    return values


def _as_constant(component: Any, key: str) -> str:
    """What to say where *key* was meant as a field of the class *component* and lacks the annotation of one."""
    if not isinstance(component, type):
        return ""
    owner = next((c for c in component.__mro__ if key in vars(c)), object)
    value = vars(owner).get(key)
    if any(key in inspect.get_annotations(c) for c in component.__mro__) or not isinstance(
        value, (str, bool, int, float, list, tuple, dict)
    ):
        return ""
    kind = type(value).__name__
    return (
        f": {key} has no annotation in {owner.__name__}, so it is a constant of the class; write "
        f"`{key}: {kind} = {value!r}` to make it an argument"
    )


def _typed(field: Field, value: Any, who: str, faults: list[str]) -> Any:
    if field.type is MISSING or field.type is Any:
        return value
    if isinstance(field.type, str):
        raise PluginError(
            f"{who}: the annotation {field.type!r} of {field.name!r} has no meaning at run time, so {value!r} cannot "
            "be checked. Fix: import its names outside `if TYPE_CHECKING`"
        )
    if value == "none" and type(None) in (kinds := typing.get_args(field.type)) and str not in kinds:
        return None
    from pydantic import PydanticUserError, ValidationError

    try:
        adapter = type_adapter(field.type)
    except PydanticUserError:  # a class that pydantic does not know: instances pass
        adapter = type_adapter(field.type, arbitrary=True)
    try:
        try:
            # As JSON, strict still lets a list be a tuple and text a path, as TOML has neither.
            return adapter.validate_json(json.dumps(value), strict=True)
        except TypeError:  # not plain data: an object given from Python
            return adapter.validate_python(value, strict=True)
    except ValidationError as e:
        for found in e.errors(include_url=False):
            place = ".".join(str(x) for x in (field.name, *found["loc"]))
            message = found["msg"][0].lower() + found["msg"][1:]
            expected = f"a table ({field.type_name})" if dataclasses.is_dataclass(field.type) else field.type_name
            faults.append(f"{who}: {place} is {found['input']!r}; expected {expected} ({message})")
    return None


def _filled(signature: Signature, services: Mapping[str, Any] | None, who: str, faults: list[str]) -> dict[str, Any]:
    if services is None:
        return {}
    filled: dict[str, Any] = {}
    for need in signature.needs:
        if need.slot not in services:
            faults.append(
                f"{who} needs a service {need.slot!r} ({need.type_name}); add to the recipe: "
                f'[services.{need.slot}] with use = "..." (`quintain list services`)'
            )
            continue
        filled[need.parameter] = services[need.slot]
        if not _is_a(services[need.slot], need.type):
            given = type(services[need.slot]).__qualname__
            faults.append(f"{who}: [services.{need.slot}] is a {given}; expected {need.type_name}")
    return filled


def _is_a(value: Any, annotation: Any) -> bool:
    kind = typing.get_origin(annotation) or annotation
    if not isinstance(kind, type) or kind in (MISSING, Any):  # since 3.11 Any is a class
        return True
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return True  # nothing to look at
    return isinstance(value, kind)


def _called(make: Callable[[], Any], who: str) -> Any:
    try:
        return make()
    except QuintainError:
        raise
    except (TypeError, ValueError) as e:
        place = place_of(e)
        raise BindingError(f"{who}: {e} ({place})" if place else f"{who}: {e}") from e
    except Exception as e:
        raise PluginError(f"{who} failed while it was set up: {said_by(e)}") from e
