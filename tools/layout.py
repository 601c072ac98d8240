"""The rules of the source layout, as functions over a checkout: layers, cycles, sizes, names, what members import.

Every import counts: at the top of a module, inside a function, under ``if TYPE_CHECKING``, and
``import_module("literal")``. Only the syntax tree is read; nothing is imported. ``python tools/layout.py`` prints the
size of each folder and every violation; ``tests/core/test_layout.py`` holds the numbers that may only fall.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

PACKAGE = "quintain"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "tracebacks"),
    ("types",),
    ("interfaces",),
    ("registry",),
    ("rollouts",),
    ("services",),
    ("models",),
    ("learning", "engines"),
    ("evaluation",),
    ("training", "testing"),
    ("cli",),
    ("__main__",),
)
"""Lowest first. A file imports from its own part or from a lower layer; two parts of one layer never meet."""

RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}

ROOT_FILES = {"__init__", "__main__", "errors", "tracebacks"}
"""The modules that lie directly in the package; `errors` and `tracebacks` may import each other in one direction."""

ROOT_NAMES = {"API_VERSION", "__version__", "lazy_names"}
"""What a module may import from the package itself. All are defined in ``__init__.py``, which has run before any module
of the package does, so they are an edge to nothing. Every other name of the root is lazy and reaches up to all
layers."""

KERNEL_FOLDERS = {"types", "interfaces", "registry", "rollouts"}
KERNEL_MODULES = {PACKAGE, *(f"{PACKAGE}.{name}" for name in ("__main__", "errors", "tracebacks", "training.loop"))}
KERNEL_LIBRARIES = {"pydantic", "pluggy"}

COMPUTED_IMPORTS = {
    PACKAGE,  # the public names, and those of the packages for plugins
    f"{PACKAGE}.testing",  # the same without its root, because pytest imports the package at every start
    f"{PACKAGE}.cli",  # the table of commands
    f"{PACKAGE}.registry.lookup",  # modules that a recipe names
}
"""Modules that may import by a name that is computed, which no reader of the source can follow."""

PUBLIC_MODULES = {PACKAGE} | {
    f"{PACKAGE}.{name}" for name in "errors testing learning models training evaluation cli".split()
}
"""What plugins, environments and examples may import, each by the names in its ``__all__``."""

KERNEL_CAP = 4_500
PACKAGE_CAP = 17_500
FILE_CAP = 500
FUNCTION_CAP = 60


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name, where it is, and its syntax tree."""

    name: str
    path: Path
    text: str = field(repr=False)
    is_package: bool

    @property
    def nodes(self) -> list[ast.AST]:
        """The syntax tree, its root first."""
        return parsed(self.text)

    @property
    def top(self) -> list[ast.AST]:
        """The statements at the top of the module."""
        return list(ast.iter_child_nodes(self.nodes[0]))

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def at(self, where: int | ast.stmt | ast.expr) -> str:
        """Name a line, or the line of a node."""
        return f"{self.name}:{where if isinstance(where, int) else where.lineno}"

    @property
    def folder(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Import:
    """One imported thing: *name* from *target*, or the module *target* itself where *name* is empty."""

    source: Module
    target: str
    name: str
    line: int

    def __str__(self) -> str:
        what = f"{self.target}.{self.name}" if self.name else self.target
        return f"{self.source.at(self.line)} imports {what}"


@dataclass(frozen=True)
class Checkout:
    """The modules of the package, of the members that use it, and of benchmarks, experiments and tools, by name."""

    package: Mapping[str, Module]
    members: Mapping[str, Module]
    scripts: Mapping[str, Module]

    @property
    def all(self) -> list[Module]:
        return [*self.package.values(), *self.members.values(), *self.scripts.values()]


@cache
def parsed(text: str) -> list[ast.AST]:
    """Every node of the syntax tree of *text*, parsed once for all copies of a file."""
    return list(ast.walk(ast.parse(text)))


def read(root: Path) -> Checkout:
    """Read the checkout at *root*: the package, and the sources of plugins, environments, examples and scripts."""
    members: dict[str, Module] = {}
    for pattern in ("plugins/*/src", "environments/*/src", "examples/*/src"):
        for folder in sorted(root.glob(pattern)):
            members |= modules(folder, folder)
    scripts = {k: v for f in ("benchmarks", "experiments", "tools") for k, v in modules(root / f, root).items()}
    return Checkout(modules(root / "core" / PACKAGE, root / "core"), members, scripts)


def modules(folder: Path, base: Path) -> dict[str, Module]:
    """Read every ``.py`` file under *folder*; names are relative to *base*."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        if any(part.startswith(".") for part in parts):
            continue  # a virtual environment
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = Module(name, path, path.read_text(encoding="utf-8"), is_package)
    return found


# ---------------------------------------------------------------- imports
def imports(module: Module, known: Iterable[str]) -> Iterator[Import]:
    """Every import of a module, wherever it stands; ``from a import b`` is ``a.b`` where that is a *known* module."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (Import(module, alias.name, "", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node.module or "", node.level)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                target, name = (inner, "") if inner in known else (base, alias.name)
                yield Import(module, target, name, node.lineno)
        elif isinstance(node, ast.Call) and (literal := imported_by_call(node)):
            dots = len(literal) - len(literal.lstrip("."))
            yield Import(module, absolute(module, literal[dots:], dots), "", node.lineno)


def absolute(module: Module, name: str, level: int) -> str:
    """The dotted name that *name* with *level* leading dots has inside *module*."""
    if not level:
        return name
    folder = module.folder.split(".")
    return ".".join([*folder[: len(folder) - level + 1], *filter(None, [name])])


def imported_by_call(node: ast.AST) -> str | None:
    """The name in a call of ``import_module`` or ``__import__``; empty where it is computed, None for other nodes."""
    if not (isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in ("import_module", "__import__")):
        return None
    first = node.args[0] if node.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def dotted(node: ast.AST) -> str:
    """``a.b.c`` as written; empty where the expression is anything but names and attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def inside(name: str) -> bool:
    """Whether a dotted name belongs to the package."""
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def part(name: str) -> str:
    """The folder or root module that a module of the package belongs to; empty for the root itself."""
    return f"{name}.".split(".")[1]


def internal(checkout: Checkout) -> Iterator[Import]:
    """Imports of one module of the package by another; not those of the root, whose lazy names reach up by design."""
    for module in checkout.package.values():
        if module.name == PACKAGE:
            continue
        for one in imports(module, checkout.package):
            if inside(one.target) and not (one.target == PACKAGE and one.name in ROOT_NAMES):
                yield one


# ---------------------------------------------------------------- rules 1 and 2: layers and cycles
def layers(checkout: Checkout) -> list[str]:
    """Imports that do not point to the own part or a lower layer, and parts that have no layer."""
    unknown = {part(name) for name in checkout.package} - {*RANK, ""}
    found = [f"{PACKAGE}.{name} has no layer" for name in sorted(unknown)]
    for one in internal(checkout):
        here, there = part(one.source.name), part(one.target)
        if one.target == PACKAGE:
            found.append(f"{one}: the root of the package reaches up to every layer")
        elif here in unknown or there == here or {here, there} <= ROOT_FILES - {"__main__"}:
            continue
        elif RANK.get(there, len(LAYERS)) >= RANK[here]:
            found.append(f"{one}: {there} does not lie below {here}")
    return found


def cycles(checkout: Checkout) -> list[str]:
    """Sets of modules that import one another in a circle."""
    edges: dict[str, set[str]] = {name: set() for name in checkout.package}
    for one in internal(checkout):
        if one.target in edges and one.target not in (one.source.name, PACKAGE):
            edges[one.source.name].add(one.target)
    return [" <-> ".join(sorted(circle)) for circle in strong_components(edges) if len(circle) > 1]


def strong_components(edges: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Strongly connected components of a directed graph (Tarjan 1972), without recursion."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    components: list[set[str]] = []
    number = count()

    def enter(node: str) -> tuple[str, Iterator[str]]:
        order[node] = low[node] = next(number)
        path.append(node)
        on_path.add(node)
        return node, iter(sorted(edges[node]))

    for start in sorted(edges):
        if start in order:
            continue
        open_nodes = [enter(start)]
        while open_nodes:
            node, targets = open_nodes[-1]
            for target in targets:
                if target not in order:
                    open_nodes.append(enter(target))
                    break
                if target in on_path:
                    low[node] = min(low[node], order[target])
            else:
                open_nodes.pop()
                if open_nodes:
                    parent = open_nodes[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    cut = path.index(node)
                    components.append(set(path[cut:]))
                    on_path.difference_update(path[cut:])
                    del path[cut:]
    return components


def training_without_registry(checkout: Checkout) -> list[str]:
    """Imports of the learner or of an engine by `training`, which gets both by name from the registry."""
    return [
        f"{one}: training gets it from the registry"
        for one in internal(checkout)
        if part(one.source.name) == "training" and part(one.target) in ("learning", "engines")
    ]


def computed_imports(checkout: Checkout) -> list[str]:
    """Imports by a computed name, which escape every other rule, outside the modules that need them."""
    return [
        f"{module.at(node)} imports a module by a computed name"
        for module in checkout.package.values()
        if module.name not in COMPUTED_IMPORTS
        for node in module.nodes
        if isinstance(node, ast.Call) and imported_by_call(node) == ""
    ]


# ---------------------------------------------------------------- rules 3, 4 and 7: the kernel and sizes
def kernel(checkout: Checkout) -> list[Module]:
    """The modules that a reader needs to understand one step."""
    return [m for m in checkout.package.values() if part(m.name) in KERNEL_FOLDERS or m.name in KERNEL_MODULES]


def kernel_imports(checkout: Checkout) -> list[str]:
    """Libraries that the kernel imports beyond the standard one, pydantic and pluggy."""
    allowed = sys.stdlib_module_names | KERNEL_LIBRARIES | {PACKAGE}
    return [
        f"{one}: the kernel has no such library"
        for module in kernel(checkout)
        for one in imports(module, checkout.package)
        if one.target.partition(".")[0] not in allowed
    ]


def lines(chosen: Iterable[Module]) -> int:
    """Lines of these files together, comments and blank lines included."""
    return sum(module.lines for module in chosen)


def budget(counted: int, limit: int, slack: int | None = None) -> str:
    """Say what is wrong with *counted* lines under a ratchet that follows within *slack* lines; empty where nothing."""
    if counted > limit:
        return f"{counted:,} lines, {counted - limit:,} more than the {limit:,} allowed"
    if slack is not None and counted < limit - slack:
        return f"lower the ratchet to {counted:,}: it stands at {limit:,} and may only fall"
    return ""


def root_files(checkout: Checkout) -> list[str]:
    """What lies directly in the package besides its four modules, or is missing there."""
    folder = checkout.package[PACKAGE].path.parent
    here = {module.path.stem for module in checkout.package.values() if module.path.parent == folder}
    return sorted(f"{PACKAGE}/{name}.py" for name in here ^ ROOT_FILES)


def long_files(checkout: Checkout) -> list[str]:
    """Files of more than 500 lines, members and scripts included."""
    return [f"{module.name} has {module.lines} lines" for module in checkout.all if module.lines > FILE_CAP]


def long_functions(checkout: Checkout) -> list[str]:
    """Functions of more than 60 lines, members and scripts included.

    Their signature and docstring do not count: a command has a line per option and per paragraph of its ``--help``, a
    public function one per argument and error, and a split of the function would not shorten either.
    """
    return [
        f"{module.at(node)} {node.name} has {length} lines"
        for module in checkout.all
        for node in module.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (length := body_lines(node)) > FUNCTION_CAP
    ]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function after its signature and docstring, comments and blank lines included."""
    end = function.end_lineno or function.lineno
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        return end - (first.end_lineno or first.lineno)
    return end - first.lineno + 1


# ---------------------------------------------------------------- rule 5: names
def repeated_classes(checkout: Checkout) -> list[str]:
    """Class names that the package defines more than once, nested classes included."""
    places = defaultdict(list)
    for module in checkout.package.values():
        for node in (n for n in module.nodes if isinstance(n, ast.ClassDef)):
            places[node.name].append(module.at(node))
    return [f"class {name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def private_names(checkout: Checkout) -> list[str]:
    """Names with a leading underscore that one module takes from another, by import or as an attribute."""
    found = []
    for module in checkout.package.values():
        for one in imports(module, checkout.package):
            taken = one.name or one.target.rpartition(".")[2]
            if inside(one.target) and private(taken):
                found.append(str(one))
        for line, owner, name in module_attributes(module, checkout.package):
            if private(name):
                found.append(f"{module.at(line)} uses {owner}.{name}")
    return found


def private(name: str) -> bool:
    """Whether a name is private by its spelling; ``__version__`` and its like are not."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def module_attributes(module: Module, known: Mapping[str, Module]) -> Iterator[tuple[int, str, str]]:
    """Attributes that a file reads from *known* modules it has imported: line, module, attribute."""
    aliases: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if inside(alias.name):
                    aliases[alias.asname or PACKAGE] = alias.name if alias.asname else PACKAGE
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node.module or "", node.level)
            for alias in node.names:
                if (full := f"{base}.{alias.name}") in known:
                    aliases[alias.asname or alias.name] = full
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            first, _, rest = dotted(node.value).partition(".")
            if first in aliases:
                owner = ".".join([aliases[first], *filter(None, [rest])])
                if owner in known and f"{owner}.{node.attr}" not in known:
                    yield node.lineno, owner, node.attr


# ---------------------------------------------------------------- rule 6: what members import
def undeclared_exports(checkout: Checkout) -> list[str]:
    """Public modules that have no ``__all__``."""
    return [
        f"{name} has no __all__"
        for name in sorted(PUBLIC_MODULES)
        if name not in checkout.package or exports(checkout.package[name]) is None
    ]


def exports(module: Module) -> set[str] | None:
    """The names in a module's ``__all__``; None where it has none.

    `lazy_names` gives a package one: what it imports for type checkers, and the names in the call.
    """
    for node in module.top:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            literals = (n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant))
            names = {value for value in literals if isinstance(value, str)}
            if "__all__" in map(dotted, targets):
                return names
            if isinstance(node.value, ast.Call) and dotted(node.value.func) == "lazy_names":
                return names | type_checking_names(module)
    return None


def type_checking_names(module: Module) -> set[str]:
    """Names that a module imports under ``if TYPE_CHECKING`` at its top."""
    return {
        alias.asname or alias.name
        for block in module.top
        if isinstance(block, ast.If) and dotted(block.test).rpartition(".")[2] == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def member_imports(checkout: Checkout) -> list[str]:
    """Imports of members that are not a public name of a public module."""
    found = []
    for module in checkout.members.values():
        used = [(str(one), one.target, one.name) for one in imports(module, checkout.package) if inside(one.target)]
        for line, owner, name in module_attributes(module, checkout.package):
            used.append((f"{module.at(line)} uses {owner}.{name}", owner, name))
        for text, target, name in used:
            if target not in PUBLIC_MODULES:
                found.append(f"{text}: {target} is no public module")
            elif name and target in checkout.package and name not in (exports(checkout.package[target]) or ()):
                found.append(f"{text}: not in its __all__")
    return sorted(set(found))


_ALL = [layers, cycles, training_without_registry, computed_imports, kernel_imports, root_files, long_files]
_ALL += [long_functions, repeated_classes, private_names, undeclared_exports, member_imports]
RULES: dict[str, Callable[[Checkout], list[str]]] = {rule.__name__: rule for rule in _ALL}
"""Each returns its violations, one line of text for each."""


def main(root: Path) -> None:
    """Print the lines of every part, then the violations of every rule."""
    checkout = read(root)
    sizes = Counter[str]()
    for module in checkout.package.values():
        sizes[part(module.name) or "__init__"] += module.lines
    for name in sorted(sizes, key=lambda name: (RANK.get(name, -1), name)):
        print(f"{sizes[name]:7,}  {name}")
    print(f"{lines(kernel(checkout)):7,}  kernel (at most {KERNEL_CAP:,})")
    print(f"{lines(checkout.package.values()):7,}  package (at most {PACKAGE_CAP:,})")
    for name, rule in RULES.items():
        violations = rule(checkout)
        print(f"\n{name}: {len(violations)}", *violations, sep="\n  ")


if __name__ == "__main__":
    main(Path(__file__).resolve().parent.parent)
