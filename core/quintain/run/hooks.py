"""Hooks: events of a run that plugins observe. A failing plugin is reported; the run and other
plugins continue.

A hook plugin is a module (or object) named by an entry point of the group ``quintain.plugins``; it
defines functions called ``quintain_on_*``. Each takes one argument, ``event``, a frozen record of
plain values, or none; its return value is ignored. `docs/hooks.md` lists them all::

    # pyproject.toml:  [project.entry-points."quintain.plugins"]
    #                  steps = "my_package.steps"
    def quintain_on_step_end(event):
        print(event.step, event.metrics.get("reward.mean"))

A service of the run that has such methods observes it, too.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

from ..errors import PluginError, UnknownNameError, did_you_mean
from ..interfaces.events import EVENTS, Event
from ..registry.discovery import Component
from ..registry.lookup import Registry, current, strict_plugins
from ..tracebacks import is_failure, text_of

PREFIX = "quintain_on_"
hookspec = pluggy.HookspecMarker("quintain")
hookimpl = pluggy.HookimplMarker("quintain")
"""Marks an implementation; needed only for ``tryfirst`` and ``trylast``, since the prefix
identifies hooks.
"""

log = logging.getLogger("quintain.plugins")


def _specified(kind: type[Event]) -> Callable[[Any], None]:
    def hook(event: Any) -> None: ...

    hook.__doc__ = kind.__doc__
    return hookspec(hook)


Specification = type("Specification", (), {kind.hook: _specified(kind) for kind in EVENTS})
"""The hook specifications for pluggy: one per event."""


@dataclass(kw_only=True)
class Failure:
    """A plugin's failure: the *hook* (empty: it did not load), the first *error*, and how often it
    failed there.
    """

    plugin: str
    hook: str
    error: BaseException
    count: int = 1

    def __str__(self) -> str:
        where = f" in {self.hook}" if self.hook else ""
        times = f", {self.count} times" if self.count > 1 else ""
        return (
            f"plugin {self.plugin!r}{where}: {type(self.error).__name__}: "
            f"{text_of(self.error)}{times}"
        )


class _Manager(pluggy.PluginManager):
    """Registers every function with the prefix, marked or not, so that misspelled hooks are
    detected.
    """

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        options = super().parse_hookimpl_opts(plugin, name)
        if (
            options is None
            and name.startswith(PREFIX)
            and inspect.isroutine(getattr(plugin, name, None))
        ):
            return {}
        return options


class _Methods:
    """Stands for a service as a plugin, with its hooks alone: pluggy reads every attribute of a
    plugin and refuses a second one that is equal.
    """

    def __init__(self, service: object) -> None:
        for name in dir(type(service)):
            if name.startswith(PREFIX):
                setattr(self, name, getattr(service, name))


class Hooks:
    """The hook plugins of one run.

    Args:
        strict: raise the failure of a plugin instead of recording it; ``None`` reads
            ``QUINTAIN_STRICT_PLUGINS``.

    Attributes:
        failures: one per plugin and hook.
    """

    def __init__(self, *, strict: bool | None = None) -> None:
        self.strict = strict_plugins() if strict is None else strict
        self.failures: list[Failure] = []
        self._manager = _Manager("quintain")
        self._manager.add_hookspecs(Specification)

    @classmethod
    def installed(
        cls,
        services: Mapping[str, Any] | None = None,
        *,
        registry: Registry | None = None,
        strict: bool | None = None,
    ) -> Hooks:
        """Load the installed hook plugins: all, or those in ``QUINTAIN_PLUGINS`` (comma-separated;
        empty: none). Add the *services* of the run that have hooks; they are called last.

        Raises:
            UnknownNameError: a plugin in ``QUINTAIN_PLUGINS`` is not installed.
            PluginError: a plugin cannot be loaded, in strict mode.
        """
        hooks = cls(strict=strict)
        registry = registry or current()
        # The last one registered is called first, so this calls the plugins in the order of their
        # names, and then the services in the order of their start.
        for slot, service in reversed([*(services or {}).items()]):
            try:
                hooks.add_service(service, slot)
            except PluginError as e:
                hooks._record(f"services.{slot}", "", e)
        for component in reversed(
            allowed(registry.components("hooks"), os.environ.get("QUINTAIN_PLUGINS"))
        ):
            try:
                hooks.add(registry.resolve(component), component.id)
            except PluginError as e:
                hooks._record(component.id, "", e)
        return hooks

    @property
    def plugins(self) -> list[str]:
        """Names of the plugins in use, sorted."""
        return sorted(name for name, _ in self._manager.list_name_plugin())

    def add(self, plugin: object, name: str) -> None:
        """Register *plugin*, with all of its hooks or none.

        Raises:
            PluginError: a misspelled hook, a wrong parameter, or a hook that cannot observe (a
                coroutine or wrapper).
        """
        try:
            self._manager.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as e:
            fix = "" if isinstance(e, ValueError) else "; a hook has the parameter `event`, or none"
            raise PluginError(f"plugin {name!r}: {e}{fix}") from e
        fault = self._fault(plugin)
        if fault:
            self._manager.unregister(plugin)
            raise PluginError(f"plugin {name!r}: {fault}")

    def add_service(self, service: object, slot: str) -> None:
        """Register the methods ``quintain_on_*`` of the class of *service* under the name
        ``services.SLOT``; do nothing if it has none. Raises as `add`.
        """
        methods = _Methods(service)
        if vars(methods):
            self.add(methods, f"services.{slot}")

    def emit(self, event: Event) -> None:
        """Call the hook of every plugin; an exception is recorded and the other plugins are still
        called.

        Raises:
            PluginError: a plugin raised, in strict mode.
        """
        for implementation in reversed(getattr(self._manager.hook, event.hook).get_hookimpls()):
            try:
                implementation.function(*([event] if implementation.argnames else []))
            except BaseException as e:
                if not is_failure(e):
                    raise
                self._record(implementation.plugin_name, event.hook, e)

    def close(self) -> None:
        """Unregister the plugins."""
        for plugin in self._manager.get_plugins():
            self._manager.unregister(plugin)

    def _fault(self, plugin: object) -> str:
        """Return why the registered *plugin* cannot be used; empty if it can."""
        names = [event.hook for event in EVENTS]
        for caller in self._manager.get_hookcallers(plugin) or []:
            if not caller.has_spec():
                return f"there is no hook {caller.name!r}{did_you_mean(caller.name, names)}"
            for implementation in caller.get_hookimpls():
                wraps = implementation.wrapper or implementation.hookwrapper
                awaits = inspect.iscoroutinefunction(implementation.function)
                if implementation.plugin is plugin and (wraps or awaits):
                    return f"{caller.name} must be a plain function: hooks neither await nor wrap"
        return ""

    def _record(self, plugin: str, hook: str, error: BaseException) -> None:
        failure = Failure(plugin=plugin, hook=hook, error=error)
        if self.strict:
            raise PluginError(str(failure)) from error
        same = next((f for f in self.failures if (f.plugin, f.hook) == (plugin, hook)), None)
        if same:
            same.count += 1
            return
        self.failures.append(failure)
        log.warning("%s", failure)
        log.debug("the traceback of the plugin", exc_info=error)


def allowed(components: Sequence[Component], names: str | None) -> list[Component]:
    """Return those of *components* that are in the comma-separated *names*; all for ``None``.

    Raises:
        UnknownNameError: a name matches no component.
    """
    if names is None:
        return list(components)
    selected = {n.strip() for n in names.split(",") if n.strip()}
    for name in selected:
        if not any(name in (c.name, c.id) for c in components):
            raise UnknownNameError.of(
                "plugin in QUINTAIN_PLUGINS", name, (c.name for c in components)
            )
    return [c for c in components if c.name in selected or c.id in selected]
