"""The rules about the distributions of a checkout: what each may import, and what a kind of component
is for. `tools/layout.py` runs them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from sources import (
    PACKAGE,
    Checkout,
    Import,
    Module,
    Project,
    Requirement,
    component_groups,
    exports,
    imports,
    module_attributes,
    normalised,
    type_checking_names,
    written_imports,
)

PUBLIC_MODULES = {PACKAGE} | {
    f"{PACKAGE}.{name}"
    for name in (
        "errors tracebacks types interfaces data tasks registry rollouts services engine learning models "
        "evaluation testing console process store recipe run cli"
    ).split()
}
"""What plugins, environments and examples may import, each by the names in its ``__all__``."""

DISTRIBUTIONS = {
    "PIL": "pillow",
    "antlr4": "antlr4-python3-runtime",
    "mlflow": "mlflow-skinny",
    "yaml": "pyyaml",
}
"""Names of imports whose distribution has another name."""

PARTS = {"pydantic": {"annotated-types", "pydantic-core"}}
"""Distributions that another one documents as its own and installs in one version only."""

HOSTS = {"pytest11": "pytest"}
"""What has imported the entry points of a group, and so is there."""

ELSEWHERE = {
    "quintain_bridges.peers.sides": "a virtual environment that has Inspect or verifiers",
    "quintain_sandbox.remote.side": "a virtual environment that has harbor",
    "quintain_env_code.inside": "a sandbox, beside copies of its neighbours",
    "quintain_env_agent.harbor.score_main": "a container, beside a copy of its neighbour",
}
"""Modules that another interpreter runs, and which: it has other distributions than the one that
they come with.
"""


# ---------------------------------------------------------------- public names
def undeclared_exports(checkout: Checkout) -> list[str]:
    """Public modules that have no ``__all__``."""
    return [
        f"{name} has no __all__"
        for name in sorted(PUBLIC_MODULES)
        if name not in checkout.package or exports(checkout.package[name]) is None
    ]


def inside(name: str) -> bool:
    """Return whether a dotted name belongs to the package."""
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def member_imports(checkout: Checkout) -> list[str]:
    """Imports of members, from the package or from one another, that are not a public name of a
    public module.
    """
    violations = set()
    known = checkout.installed
    members = {module.member for module in known.values()}

    def refused(target: str, name: str) -> str:
        public = target in PUBLIC_MODULES if inside(target) else target in known
        names = exports(known[target]) or () if public else ()
        if name in names or (names and not name):
            return ""
        if f"{target}.{name}" in known:
            return refused(f"{target}.{name}", "")
        return "not in its __all__" if names else f"{target} is no public module"

    for module in checkout.members.values():
        used = [(str(one), one.target, one.name) for one in written_imports(module)]
        for line, owner, name in module_attributes(module, known):
            used.append((f"{module.at(line)} uses {owner}.{name}", owner, name))
        others = members - {module.member}
        for text, target, name in used:
            why = refused(target, name) if target.partition(".")[0] in others else ""
            if why:
                violations.add(f"{text}: {why}")
    return sorted(violations)


# ---------------------------------------------------------------- declared imports
class Declarations:
    """What the distributions of a checkout declare, and which of it their modules need."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        self.known = checkout.installed
        self.by_name = {project.name: project for project in checkout.projects.values()}
        self._eager: dict[str, list[Import]] = {}
        self._reached: dict[str, list[str]] = {}
        self._foreign: dict[str, list[tuple[Import, str]]] = {}

    def requirements(self, project: Project, extras: Iterable[str]) -> set[Requirement]:
        """Return what *project* with *extras* declares, extras of its own replaced by their list."""
        declared = set(project.dependencies)
        for extra in extras:
            declared |= project.extras.get(extra, frozenset())
        for one in list(declared):
            if one.name == project.name and not set(one.extras) <= set(extras):
                declared |= self.requirements(project, {*extras, *one.extras})
        return declared

    def allowed(self, project: Project, extras: Iterable[str]) -> set[str]:
        """Return the distributions that modules of *project* may import, if it is installed with
        *extras*: what it names, and what an extra of the package names that it asks for.
        """
        declared = self.requirements(project, extras)
        names = {project.name} | {one.name for one in declared}
        core = self.checkout.projects.get(PACKAGE)
        for one in declared:
            if core and one.name == core.name and one.extras and project is not core:
                names |= {each.name for each in self.requirements(core, one.extras)}
        return names.union(*(PARTS.get(name, ()) for name in names))

    def granted(self, project: Project, extras: Iterable[str]) -> dict[str, set[str]]:
        """Return the distributions of the checkout that an installation of *project* with *extras*
        has, each with its extras.
        """
        granted: dict[str, set[str]] = defaultdict(set)
        unread = [Requirement(project.name, tuple(extras))]
        while unread:
            one = unread.pop()
            new = one.name not in granted or not set(one.extras) <= granted[one.name]
            if one.name in self.by_name and new:
                granted[one.name] |= set(one.extras)
                unread += self.requirements(self.by_name[one.name], granted[one.name])
        return granted

    def eager(self, name: str) -> list[Import]:
        """Return what importing the module *name* imports directly."""
        if name not in self._eager:
            self._eager[name] = list(loads(self.known[name], self.known))
        return self._eager[name]

    def reached(self, start: str) -> list[str]:
        """Return the modules of the checkout that importing *start* imports, itself first."""
        if start in self._reached:
            return self._reached[start]
        folders = start.split(".")
        found = [".".join(folders[: n + 1]) for n in range(len(folders))]
        found = [name for name in found if name in self.known]
        seen = set(found)
        for name in found:  # which grows in this loop
            for one in self.eager(name):
                if one.target in self.known and one.target not in seen:
                    seen.add(one.target)
                    found.append(one.target)
        self._reached[start] = found
        return found

    def foreign(self, name: str) -> list[tuple[Import, str]]:
        """Return what importing the module *name* imports directly of other distributions than
        those that its own always comes with.
        """
        if name not in self._foreign:
            owner = self.checkout.projects.get(self.known[name].member)
            always = self.allowed(owner, ()) if owner else set()
            pairs = [(one, self.distribution(one)) for one in self.eager(name)] if owner else []
            of_others = [(one, wanted) for one, wanted in pairs if wanted not in {"", *always}]
            self._foreign[name] = [] if elsewhere(name) else of_others
        return self._foreign[name]

    def distribution(self, one: Import) -> str:
        """Return the distribution that an import is from; empty for the standard library, and for
        the importing module's own.
        """
        top = one.target.partition(".")[0]
        if top in sys.stdlib_module_names or top in (one.source.member, "__main__"):
            return ""
        if top in self.checkout.projects:
            return self.checkout.projects[top].name
        return DISTRIBUTIONS.get(top, normalised(top))

    def missing(
        self, start: str, project: Project, extras: Iterable[str]
    ) -> list[tuple[Import, str]]:
        """Return the imports that fail as the module *start* is imported where *project* alone is
        installed with *extras*, each with its distribution.
        """
        granted = self.granted(project, extras)
        found = []
        for name in self.reached(start):
            foreign = self.foreign(name)
            if foreign:
                owner = self.checkout.projects[self.known[name].member]
                allowed = self.allowed(owner, granted.get(owner.name, ()))
                found += [(one, wanted) for one, wanted in foreign if wanted not in allowed]
        return found

    def extra_for(self, start: str, project: Project) -> str | None:
        """Return the extra of *project* with which the module *start* can be imported, empty if it
        needs none; None if no extra helps.
        """
        for extra in ("", *project.extras):
            if not self.missing(start, project, [extra] if extra else []):
                return extra
        return None


def loads(module: Module, known: Mapping[str, Module]) -> Iterator[Import]:
    """Yield what importing a module imports: also the packages around each target, and the home of
    each lazy name.
    """
    for one in imports(module, known):
        if one.eager:
            yield one
            yield from packages_around(one)
            if one.target in known:
                homes = type_checking_names(known[one.target])
                if one.name in homes:
                    yield replace(one, target=homes[one.name])


@cache
def packages_around(one: Import) -> list[Import]:
    """Return the imports of the packages around what is imported."""
    folders = one.target.split(".")[:-1]
    return [replace(one, target=".".join(folders[: n + 1])) for n in range(len(folders))]


def elsewhere(name: str) -> bool:
    """Return whether another interpreter than that of its distribution runs the module *name*."""
    return any(f"{name}.".startswith(f"{place}.") for place in ELSEWHERE)


def undeclared_imports(checkout: Checkout) -> list[str]:
    """Imports from distributions that a member neither depends on nor has an extra for."""
    declared = Declarations(checkout)
    violations = set()
    for module in checkout.installed.values():
        project = checkout.projects.get(module.member)
        if project is None or elsewhere(module.name):
            continue
        allowed = declared.allowed(project, project.extras)
        for one in written_imports(module):
            wanted = declared.distribution(one)
            if wanted and wanted not in allowed:
                violations.add(f"{one}: {project.name} does not declare {wanted}")
    return sorted(violations)


def unnamed_extras(checkout: Checkout) -> list[str]:
    """Components that cannot be imported with the dependencies of their distribution and the extra
    that its manifest names, and packages that cannot without an extra.
    """
    declared = Declarations(checkout)
    violations = []
    for project in checkout.projects.values():
        starts = [(f"package {project.package}", project.package, "", "")]
        for one in project.entry_points:
            text = f"{one.group} {one.name!r} of {project.name}"
            starts.append((text, one.module, one.extra, HOSTS.get(one.group, "")))
        for text, module, extra, host in starts:
            if extra and extra not in project.extras:
                violations.append(f"{text} names the extra {extra!r}, which {project.name} has not")
            if module not in declared.known:
                continue
            missing = declared.missing(module, project, [extra] if extra else [])
            first = {wanted: found for found, wanted in reversed(missing) if wanted != host}
            violations += [f"{text} needs {wanted}: {found}" for wanted, found in first.items()]
    return violations


def unreachable_modules(checkout: Checkout) -> list[str]:
    """Modules of members that no single extra of their distribution lets one import."""
    declared = Declarations(checkout)
    return [
        f"{name} cannot be imported with any one extra of {project.name}"
        for name, module in checkout.installed.items()
        if (project := checkout.projects.get(module.member))
        and not elsewhere(name)
        and declared.extra_for(name, project) is None
    ]


# ---------------------------------------------------------------- kinds of components
def lonely_kinds(checkout: Checkout) -> list[str]:
    """Kinds of components that fewer than two distributions have: a door with one guest."""
    owners = owners_of_kinds(checkout)
    return [
        f"kind {kind}: only {', '.join(names) or 'nobody'} has components"
        for kind, names in owners.items()
        if len(names) < 2
    ]


def owners_of_kinds(checkout: Checkout) -> dict[str, list[str]]:
    """Return the distributions that have components of each kind, without those of examples."""
    owners: dict[str, list[str]] = {}
    for kind, group in component_groups(checkout.package).items():
        owners[kind] = sorted(
            project.name
            for project in checkout.projects.values()
            if "examples" not in project.folder.parts
            and any(one.group == group for one in project.entry_points)
        )
    return owners
