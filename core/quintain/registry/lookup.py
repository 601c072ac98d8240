"""Finds components by name and imports them on first use, so a broken plugin fails only where it is
used.

Names are ``name``, ``distribution/name`` (never ambiguous) or, for scripts and notebooks,
``module:Attribute`` or ``path/to/file.py:Attribute``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import PluginError, QuintainError, UnknownNameError, nearest, suggestion
from ..tracebacks import describe_error, is_failure, place_of
from .discovery import Component, discover, in_order, normalise, without_components
from .known import install_line, known_plugins
from .local_files import explain
from .manifest import MANIFEST, Entry, Manifest, read


class Registry:
    """Components by kind and name: *components*, or by default the installed ones, discovered on
    first use.
    """

    def __init__(self, components: Iterable[Component] | None = None) -> None:
        if components is not None:
            self._installed = tuple(components)
        self._added: list[Component] = []
        self._loaded: dict[Component, Any] = {}
        self._manifests: dict[str, Manifest | None] = {}

    @cached_property
    def _installed(self) -> tuple[Component, ...]:
        return tuple(discover())

    def components(self, kind: str | None = None) -> list[Component]:
        """Return every component, or those of one *kind*, sorted by kind and name."""
        return in_order(c for c in (*self._installed, *self._added) if kind in (None, c.kind))

    def add(self, kind: str, name: str, component: Any) -> Component:
        """Register an object of this process, for tests and notebooks; it hides an installed one of
        the same name.
        """
        module, attribute = type(component).__module__, getattr(component, "__name__", name)
        entry = Component(
            kind=kind,
            name=name,
            target=f"{module}:{attribute}",
            distribution="local",
            origin="local",
        )
        self._added = [c for c in self._added if (c.kind, c.name) != (kind, name)] + [entry]
        self._loaded[entry] = component
        return entry

    def find(self, kind: str, name: str) -> Component:
        """Return the component called *name*.

        Raises:
            UnknownNameError: no component has the name; the nearest one is shown.
            PluginError: several distributions use the name.
        """
        if ":" in name:
            explain(kind, name)
            return Component(kind=kind, name=name, target=name, origin="local")
        matches = self.matching(name, kind)
        if not matches:
            owner, _, bare = name.rpartition("/")
            if (plugin := known_plugins().get((kind, bare))) and owner in ("", plugin):
                raise UnknownNameError(
                    f"{kind} {name!r} is in a plugin that is not installed: "
                    f"{install_line(kind, bare)}"
                )
            explain(kind, name)
            if undeclared := without_components(name):
                raise UnknownNameError(undeclared)
            names = [c.id if "/" in name else c.name for c in self.components(kind)]
            raise UnknownNameError.of(kind, name, names, f"`quintain list {kind}` shows all")
        if len(matches) > 1:
            owners = " and ".join(f"{c.distribution} {c.version}".strip() for c in matches)
            ids = " or ".join(repr(c.id) for c in matches)
            raise PluginError(f"{kind} {name!r} is claimed by {owners}; say which: {ids}")
        return matches[0]

    def matching(self, name: str, kind: str | None = None) -> list[Component]:
        """Return every component that ``name`` or ``distribution/name`` can mean."""
        owner, slash, bare = name.rpartition("/")
        named = in_order(
            c for c in (*self._installed, *self._added) if c.name == bare and kind in (None, c.kind)
        )
        if slash:
            return [c for c in named if c.distribution == normalise(owner)]
        return [c for c in named if c.origin == "local"] or named

    def load(self, kind: str, name: str) -> Any:
        """Return the object that *name* refers to, imported on first use.

        Raises:
            UnknownNameError: no component has the name, or a local module lacks the attribute.
            PluginError: it cannot be imported (the original exception is chained), or two
                distributions use the name.
        """
        return self.resolve(self.find(kind, name))

    def resolve(self, component: Component) -> Any:
        """Import the object of *component*; raises as `load`, also if its manifest is faulty or
        does not list it.
        """
        if component not in self._loaded:
            try:
                manifest = None if component.origin == "built-in" else self.manifest(component)
            except PluginError as e:
                raise PluginError(f"{component} cannot be loaded: {e}") from e
            if manifest and manifest.entry(component) is None:
                raise PluginError(
                    f"{component} is not in the {MANIFEST} of its distribution; add it, then install "
                    f"again"
                )
            self._loaded[component] = self._import(component)
        return self._loaded[component]

    def manifest(self, component: Component) -> Manifest | None:
        """Return the manifest of the component's distribution, read without importing it; ``None``
        if it has none.

        Raises:
            PluginError: its module cannot be found, or the manifest is faulty.
        """
        if component.origin == "local":
            return None
        top = component.module.partition(".")[0]
        if top not in self._manifests:
            self._manifests[top] = read(top)
        return self._manifests[top]

    def entry(self, component: Component) -> Entry | None:
        """Return the manifest's entry for *component*; raises as `manifest`."""
        manifest = self.manifest(component)
        return manifest.entry(component) if manifest else None

    def _import(self, component: Component) -> Any:
        name, _, attributes = component.target.partition(":")
        local, module = component.origin == "local", None
        try:
            with _working_directory_importable(local):
                module = (
                    _module_of_file(name)
                    if name.endswith(".py")
                    else importlib.import_module(name.strip())
                )
            value: Any = module
            for attribute in filter(None, attributes.strip().split(".")):
                value = getattr(value, attribute)  # a module's own __getattr__ may raise anything
        except BaseException as e:
            if not is_failure(e):
                raise
            if not local:
                failed = f"{component} cannot be loaded from {component.target!r}: {_described(e)}"
                end = "" if failed.endswith("?") else "."
                raise PluginError(f"{failed}{end} Fix: {self._fix(component, e)}") from e
            if module is not None and isinstance(e, AttributeError):
                explain(component.kind, component.target, module)
            raise PluginError(_failure_of_file(component, e)) from e
        return value

    def _fix(self, component: Component, error: BaseException) -> str:
        """Return what may repair *component*, which failed to import with *error*, for its user and
        for its author.
        """
        name = component.distribution
        if not isinstance(error, ModuleNotFoundError) or _own(error, component):
            return (
                f"upgrade {name} with pip, or uninstall it; in your own, correct pyproject.toml, "
                f"then install again"
            )
        if (entry := self.entry(component)) and entry.extra:
            return f"pip install '{name}[{entry.extra}]'"
        return (
            f"pip install what has the module {error.name!r}; in your own {name}, add it to "
            f"[project] dependencies"
        )


def _own(error: ModuleNotFoundError, component: Component) -> bool:
    return (error.name or "").partition(".")[0] == component.module.partition(".")[0]


def _described(error: BaseException) -> str:
    """Return *error* as `describe_error` does; one that Quintain raises on purpose says all that
    its type says.
    """
    text = describe_error(error)
    return (
        text.removeprefix(f"{type(error).__name__}: ") if isinstance(error, QuintainError) else text
    )


def _failure_of_file(component: Component, error: BaseException) -> str:
    failed = f"{component} cannot be loaded: {_described(error)}"
    if not isinstance(error, ModuleNotFoundError):
        return failed + (
            ". Fix: name a file of a package as module:Attribute"
            if "relative import" in failed
            else ""
        )
    if place_of(error) or not _own(error, component):
        return (
            f"{failed}. Fix: install what provides the module {error.name!r}, or correct its name"
        )
    if near := nearest(component.module, (p.stem for p in Path().glob("*.py"))):
        return f"{failed}{suggestion(near + component.target.removeprefix(component.module))}"
    return (
        f"{failed}. Fix: check its spelling, and that its folder is the working directory or on "
        f"PYTHONPATH"
    )


def _module_of_file(name: str) -> Any:
    """Import a Python file once, under its own name unless another module has that, loaded or
    installed, with its folder on the path.
    """
    path = Path(name).expanduser().resolve()
    title = path.stem
    if title not in sys.modules and _is_installed(title, path):
        title = f"quintain_file_{title}"
    while (module := sys.modules.get(title)) is not None:
        if getattr(module, "__file__", None) == str(path):
            return module  # importing it again would register its pieces twice
        title = f"quintain_file_{title}"
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None
    assert spec.loader is not None
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that it can import modules of its folder
    module = sys.modules[title] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[title]
        raise
    return module


def _is_installed(title: str, path: Path) -> bool:
    """Return whether importing *title* would find another module than the file *path*, such as the
    package that the file is an adapter of.
    """
    try:
        spec = importlib.util.find_spec(title)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() != path


@contextmanager
def _working_directory_importable(enabled: bool) -> Iterator[None]:
    # Unlike `python`, a console script does not have it on its path. It comes last, so it shadows
    # nothing installed.
    working_folder = str(Path.cwd())
    if not enabled or working_folder in sys.path:
        yield
        return
    sys.path.append(working_folder)
    try:
        yield
    finally:
        sys.path.remove(working_folder)


_current = Registry()


def current() -> Registry:
    """Return the registry that names are looked up in."""
    return _current


def strict_plugins() -> bool:
    """Return whether ``QUINTAIN_STRICT_PLUGINS`` makes the failure of a plugin an error."""
    return os.environ.get("QUINTAIN_STRICT_PLUGINS", "") not in ("", "0")


@contextmanager
def isolated(*components: Component, keep: Iterable[str] = ()) -> Iterator[Registry]:
    """Install only *components* and those of the distributions in *keep* inside the block; for
    tests.
    """
    global _current
    before, names = _current, {normalise(name) for name in keep}
    others = [c for c in before.components() if c.distribution in names] if names else []
    _current = Registry([*components, *others])
    try:
        yield _current
    finally:
        _current = before
