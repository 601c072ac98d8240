"""Reads a component's signature, checks a recipe's arguments against it, and configures the
component.

A class is configured through its constructor (for a dataclass, its fields); a function or reward
through its keyword parameters; an algorithm through its settings. Parameters that default to
`need()` are services.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BindingError, PluginError, QuintainError, UsageError, did_you_mean
from ..interfaces.algorithm import KL, TABLES, Algorithm
from ..interfaces.pieces import Piece
from ..interfaces.reward import Reward, RewardFunction
from ..interfaces.service import Need
from ..tracebacks import describe_error, place_of
from ..types.rollout import type_adapter
from .pieces import find

MISSING: Any = inspect.Parameter.empty
"""The default of a required field, and the type of one without an annotation."""
KL_NAMES = (
    "beta",
    "init_kl_coef",
    "kl_beta",
    "kl_coef",
    "kl_coefficient",
    "kl_loss_coef",
    "klcoef",
)
"""Names that other trainers have for the coefficient of a KL term."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One configurable argument. *type* is `MISSING` without an annotation; then the value is not
    checked.
    """

    name: str
    type: Any = MISSING
    default: Any = MISSING

    @property
    def required(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One service that a component needs: its *parameter*, the recipe's *slot*, the expected
    type.
    """

    parameter: str
    slot: str
    type: Any = MISSING


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """The arguments and services of a component. *open*: it accepts any further keyword."""

    fields: tuple[Field, ...] = ()
    needs: tuple[Slot, ...] = ()
    open: bool = False


def signature_of(component: Any) -> Signature:
    """Return the signature of *component* (class, function, reward, algorithm or piece), without
    ``_private`` parameters.

    Raises:
        PluginError: Python cannot read its signature.
    """
    if isinstance(component, (Algorithm, *TABLES.values())):
        hints = typing.get_type_hints(type(component))
        descriptive = ("name", "summary", "source", "published")
        values = {
            f.name: getattr(component, f.name)
            for f in dataclasses.fields(component)  # type: ignore[arg-type]
            if f.name not in descriptive
        }
        return Signature(
            fields=tuple(Field(name=n, type=hints[n], default=v) for n, v in values.items())
        )
    # The arguments of a configured piece are its defaults.
    preset = component.args if isinstance(component, Piece) else {}
    fields: list[Field] = []
    needs: list[Slot] = []
    parameters = _parameters(component)
    for p in parameters:
        if isinstance(p.default, Need):
            needs.append(Slot(parameter=p.name, slot=p.default.slot or p.name, type=p.annotation))
        elif p.kind is not p.VAR_KEYWORD:
            default = preset.get(p.name, p.default)
            fields.append(Field(name=p.name, type=p.annotation, default=default))
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return Signature(fields=tuple(fields), needs=tuple(needs), open=is_open)


class NotStartedError(AttributeError):
    """A service was asked for something in a check that starts none."""


class Unstarted:
    """Stands for a service in a check that starts none. It is false, and has nothing that it may be
    asked for.
    """

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise NotStartedError(f"no service was started, so there is no {name!r}")


def bind(
    component: Any,
    args: Mapping[str, Any],
    services: Mapping[str, Any] | None = None,
    *,
    who: str = "component",
) -> Any:
    """Configure *component* with plain data from a recipe.

    Types are strict: ``"3"`` is no int; an int is a float, a list becomes the annotated tuple, and
    text the annotated path, literal or enum. ``"none"`` is ``None`` if the annotation allows that
    and no text, because TOML has no null. A class returns its instance, a reward, algorithm or
    piece its configured copy, any other function a `functools.partial`.

    Args:
        args: by parameter name.
        services: by slot. Rewards and pieces get theirs when they are called; here their slots are
            only checked. ``None`` skips the check (classes that need services cannot be bound
            then).
        who: the component's name in messages, for instance ``"environment 'gsm8k'"``.

    Raises:
        BindingError: an unknown, missing or ill-typed argument, or an empty slot; all faults at
            once, one per line.
        PluginError: the component raised an unexpected error, or its annotations cannot be
            resolved.
    """
    if isinstance(component, Algorithm):
        return _bind_algorithm(component, args, who)
    faults: list[str] = []
    signature = signature_of(component)
    values = _checked(signature, args, who, faults, component)
    filled = _filled(signature, services, who, faults)
    if faults:
        raise BindingError("\n".join(faults))
    if isinstance(component, RewardFunction):
        return _called(lambda: component(**values), who)
    if isinstance(component, Piece):
        return _called(lambda: component.configure(**values), who)
    if isinstance(component, type):
        return _called(lambda: component(**values, **filled), who)
    return functools.partial(component, **values, **filled) if callable(component) else component


def check_args(component: Any, args: Mapping[str, Any], *, who: str = "component") -> None:
    """Check *args* against the signature of *component* without configuring it; ignores services,
    raises as `bind`.
    """
    if isinstance(component, Algorithm):
        _bind_algorithm(component, args, who)
        return
    faults: list[str] = []
    _checked(signature_of(component), args, who, faults, component)
    if faults:
        raise BindingError("\n".join(faults))


def type_name(annotation: Any) -> str:
    """Return an annotation as code, without module names and constraints; errors say what a
    constraint expects.
    """
    if annotation is MISSING or isinstance(annotation, str):
        return "any" if annotation is MISSING else annotation
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return "None" if annotation is type(None) else annotation.__qualname__
    plain = re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", str(annotation).replace("NoneType", "None"))
    return re.sub(
        r"Annotated\[((?:[^\[\]]|\[[^\[\]]*\])*?), (?:\w+\((?:[^()]|\([^()]*\))*\),? ?)+\]",
        r"\1",
        plain,
    )


def _parameters(component: Any) -> list[inspect.Parameter]:
    """Return the configurable parameters and ``**keywords``, their annotations as types if these
    can be resolved.
    """
    if isinstance(component, Reward) and not isinstance(component, RewardFunction):
        return []  # a combined reward is configured through its parts
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
        parameters = [
            p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) and p.name != "state"
        ]
    public = [p for p in parameters if p.kind is p.VAR_KEYWORD or not p.name.startswith("_")]
    return [p.replace(annotation=_resolved(p, target)) for p in public]


def _resolved(parameter: inspect.Parameter, owner: Any) -> Any:
    """Return the annotation of *parameter* as a type; its text if a name in it cannot be resolved
    at run time.
    """
    text = parameter.annotation
    if not isinstance(text, str):
        return text
    if isinstance(owner, type):  # the module of the class that declares the field comes first
        declaring = [c for c in owner.__mro__ if parameter.name in inspect.get_annotations(c)]
        modules = [sys.modules.get(c.__module__) for c in (*declaring, *owner.__mro__)]
        constructor = getattr(owner.__init__, "__globals__", {})  # type: ignore[misc]
        namespaces = [*(dict(vars(module)) for module in modules if module), constructor]
    else:
        namespaces = [getattr(inspect.unwrap(owner), "__globals__", {})]
    for namespace in namespaces:
        try:
            return eval(text, namespace)  # an annotation is code of the component itself
        except NameError:
            continue
    return text


def _bind_algorithm(algorithm: Algorithm, args: Mapping[str, Any], who: str) -> Algorithm:
    """Return the variant of *algorithm* with *args*, once their types are checked."""
    faults: list[str] = []

    def check(settings: Any, changes: Mapping[str, Any], where: str) -> dict[str, Any]:
        return _checked(
            signature_of(settings), changes, f"{who}, {where}" if where else who, faults
        )

    try:
        variant: Algorithm = _called(
            lambda: algorithm.configured(args, find=find, check=check), who
        )
    except UsageError:
        if not faults:
            raise
    if faults:
        raise BindingError("\n".join(faults))
    return variant


def _checked(
    signature: Signature,
    args: Mapping[str, Any],
    who: str,
    faults: list[str],
    component: Any = None,
) -> dict[str, Any]:
    fields = {f.name: f for f in signature.fields}
    slots = {s.parameter: s for s in signature.needs}
    values: dict[str, Any] = {}
    for key, value in args.items():
        if key in fields:
            typed = _typed(fields[key], value, who, faults)
            if typed is not MISSING:
                values[key] = typed
        elif key in slots:
            faults.append(
                f"{who}: {key!r} is a service, not an argument; configure it under "
                f"[services.{slots[key].slot}]"
            )
        elif signature.open:
            values[key] = value
        else:
            fix = (
                _as_constant(component, key)
                or (key in KL_NAMES and _kl_line(fields.get("kl"), value))
                or did_you_mean(key, fields)
                or ("" if fields else "; it takes none")
            )
            faults.append(f"{who} has no argument {key!r}{fix}")
    for f in signature.fields:
        if f.name not in args and not f.required and hasattr(f.type, "__metadata__"):
            # a constraint or validator may refuse it, such as an empty path
            _typed(f, f.default, who, faults)
    faults.extend(
        f"{who} needs the argument {f.name!r} ({type_name(f.type)})"
        for f in signature.fields
        if f.required and f.name not in args
    )
    return values


def _kl_line(field: Field | None, coefficient: Any) -> str:
    """Return what to write on the command line for a KL term with this *coefficient*; empty where
    *field* is no setting of a KL term or *coefficient* no number.
    """
    if (
        field is None
        or not isinstance(field.default, KL)
        or not isinstance(coefficient, (int, float))
    ):
        return ""
    if field.default.where != "none":
        return f"; write --set algorithm.args.kl.coefficient={coefficient:g}"
    return (
        '; write --set \'algorithm.args.kl={ where = "loss", estimator = "k2", coefficient = '
        f"{coefficient:g} }}'"
    )


def _as_constant(component: Any, key: str) -> str:
    """Return how to turn the class attribute *key*, which has no annotation, into an argument;
    empty if there is none.
    """
    if not isinstance(component, type):
        return ""
    owner = next((c for c in component.__mro__ if key in vars(c)), object)
    value = vars(owner).get(key)
    if any(key in inspect.get_annotations(c) for c in component.__mro__) or not isinstance(
        value, (str, bool, int, float, list, tuple, dict)
    ):
        return ""
    return (
        f": {key} has no annotation in {owner.__name__}, so it is a constant of the class; write "
        f"`{key}: {type(value).__name__} = {value!r}` to make it an argument"
    )


def _typed(field: Field, value: Any, who: str, faults: list[str]) -> Any:
    """Return *value* as the type of *field*; `MISSING` after a fault."""
    if field.type is MISSING or field.type is Any:
        return value
    if isinstance(field.type, str):
        raise PluginError(
            f"{who}: the annotation {field.type!r} of {field.name!r} has no meaning at run time, "
            f"so {value!r} cannot be checked. Fix: import its names outside `if TYPE_CHECKING`"
        )
    if (
        value == "none"
        and type(None) in (kinds := typing.get_args(field.type))
        and str not in kinds
    ):
        return None
    from pydantic import PydanticUserError, ValidationError

    try:
        adapter = type_adapter(field.type)
    except PydanticUserError:  # a class that pydantic does not know: only instances of it are valid
        adapter = type_adapter(field.type, arbitrary=True)
    try:
        try:
            # Strict validation of JSON still accepts a list as a tuple and text as a path; TOML has
            # neither.
            return adapter.validate_json(json.dumps(value), strict=True)
        except TypeError:  # not plain data: an object passed from Python
            return adapter.validate_python(value, strict=True)
    except ValidationError as e:
        expected = type_name(field.type)
        if dataclasses.is_dataclass(field.type):
            keys = ", ".join(f"{f.name} = ..." for f in dataclasses.fields(field.type) if f.init)
            expected = f"a table: {field.name} = {{ {keys} }}"
        for error in e.errors(include_url=False):
            if isinstance(cause := error.get("ctx", {}).get("error"), UsageError):
                faults.append(f"{who}: {cause}")  # of the component's own validator
                continue
            place = ".".join(str(x) for x in (field.name, *error["loc"]))
            message = error["msg"][0].lower() + error["msg"][1:]
            fix = _kl_line(field, value)
            faults.append(
                f"{who}: {place} is {error['input']!r}; expected {expected} ({message}){fix}"
            )
    return MISSING


def _filled(
    signature: Signature, services: Mapping[str, Any] | None, who: str, faults: list[str]
) -> dict[str, Any]:
    """Return the service of each parameter that needs one. Add to *faults* each slot that is empty
    or has a service of another type.
    """
    if services is None:  # a check without services has nothing to compare
        return {}
    filled: dict[str, Any] = {}
    for need in signature.needs:
        if need.slot not in services:
            faults.append(
                f"{who} needs a service {need.slot!r} ({type_name(need.type)}); add to the recipe: "
                f'[services.{need.slot}] with use = "..." (`quintain list services`)'
            )
            continue
        service = filled[need.parameter] = services[need.slot]
        if isinstance(service, Unstarted):
            continue
        expected = typing.get_origin(need.type) or need.type
        # since 3.11 Any is a class
        checkable = isinstance(expected, type) and expected not in (MISSING, Any)
        # isinstance refuses a Protocol that is not @runtime_checkable.
        uncheckable_protocol = getattr(expected, "_is_protocol", False) and not getattr(
            expected, "_is_runtime_protocol", False
        )
        if checkable and not uncheckable_protocol and not isinstance(service, expected):
            kind = type(service).__qualname__
            faults.append(
                f"{who}: [services.{need.slot}] is a {kind}; expected {type_name(need.type)}"
            )
    return filled


def _called(make: Callable[[], Any], who: str) -> Any:
    try:
        return make()
    except QuintainError:
        raise
    except (TypeError, ValueError) as e:
        place = place_of(e)
        raise BindingError(f"{who}: {e} ({place})" if place else f"{who}: {e}") from e
    except Exception as e:
        raise PluginError(f"{who} failed while it was set up: {describe_error(e)}") from e
