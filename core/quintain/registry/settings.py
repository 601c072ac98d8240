"""The settings of a component as a record that stands once, whatever constructors take them."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar

Constructor = TypeVar("Constructor", bound=Callable[..., Any])


def takes(settings: type) -> Callable[[Constructor], Constructor]:
    """Decorate a constructor: its ``**keywords`` are the fields of the dataclass *settings*, by
    which recipes are checked.
    """

    def with_fields(constructor: Constructor) -> Constructor:
        hints = typing.get_type_hints(settings, include_extras=True)
        fields = [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=_default(f), annotation=hints[f.name])
            for f in dataclasses.fields(settings)
        ]
        declared = [
            p
            for p in inspect.signature(constructor).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        decorated: Any = constructor
        decorated.__signature__ = inspect.Signature([*declared, *fields])
        decorated.settings = settings
        return constructor

    return with_fields


def settings_of(component: type) -> type | None:
    """Return the dataclass that the constructor of *component* `takes`; ``None`` if it takes
    none.
    """
    return getattr(component.__init__, "settings", None)  # type: ignore[misc]


def _default(setting: dataclasses.Field[Any]) -> Any:
    if setting.default_factory is not dataclasses.MISSING:
        return setting.default_factory()
    return Parameter.empty if setting.default is dataclasses.MISSING else setting.default
