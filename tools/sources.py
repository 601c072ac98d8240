"""Read the source of a checkout without importing it: its modules, and what each takes from others.

`tools/layout.py` has the rules about it. Every import counts: at the top of a module, inside a
function, under ``if TYPE_CHECKING``, and by a call such as ``import_module("literal")``, whatever
name the file gives to the function or to its module.
"""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

PACKAGE = "quintain"
MEMBER_FOLDERS = ("plugins", "environments", "examples")

TOKEN = re.compile(
    r"""
    (?P<line> \n )
    | (?P<comment> \#[^\n]* )
    | (?P<string> (?:[rRbBfFuU]|[rR][bBfF]|[bBfF][rR])? (?:
        \"\"\" [^"\\]* (?: (?:\\.|"(?!"")) [^"\\]* )* \"\"\"
        | \'\'\' [^'\\]* (?: (?:\\.|'(?!'')) [^'\\]* )* \'\'\'
        | " (?:[^"\\\n]|\\.)* " | ' (?:[^'\\\n]|\\.)* ' ) )
    | 0[xXoObB][\da-fA-F_]+ | (?:\d[\d_]*\.?|\.\d)[\d_]*(?:[eE][+-]?[\d_]+)?[jJ]?
    | \w+
    | (?P<comma> , )
    | (?P<close> [)\]}] )
    | \*\*=|//=|>>=|<<=|\.\.\.|[-+*/%@&|^:=<>!]=|\*\*|//|>>|<<|->|[^\s\\]
    """,
    re.VERBOSE | re.DOTALL,
)
"""A token of Python, an f-string as a whole, or the end of a line. `tokenize` is ten times slower,
and from Python 3.12 it counts the parts of an f-string.
"""

NO_NODES = {"arg", "attr", "ctx", "id", "kind", "module", "type_comment"}
"""Fields of nodes that have no inner nodes."""
LEAVES = {ast.Name, ast.Constant, ast.Pass}
"""Nodes without inner ones, half of all."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

IMPORTERS = {
    "__import__",
    "import_module",
    "importorskip",
    "pkgutil.resolve_name",
}
"""Functions that import the module that their first argument names. One without a module has the
same meaning in each: `importlib.metadata` offers `import_module`, too.
"""

RUNNERS = {
    "__builtins__",
    "builtins.eval",
    "builtins.exec",
    "eval",
    "exec",
    "importlib.reload",
    "importlib.util.module_from_spec",
    "importlib.util.spec_from_file_location",
    "importlib.util.spec_from_loader",
    "runpy.run_module",
    "runpy.run_path",
}
"""Functions that run code which the source does not show."""

IMPORT_MODULES = {"importlib", "importlib.machinery", "importlib.util", "pkgutil", "runpy", "sys"}
"""Modules of these functions, and `sys` with its table of modules. One that is handed on, as in
``vars(importlib)``, is used in a way that the source does not show.
"""


@dataclass(frozen=True, eq=False)
class Module:
    """A source file: its dotted name, where it is, and its syntax tree."""

    name: str
    path: Path
    text: str = field(repr=False)
    is_package: bool

    @property
    def nodes(self) -> list[ast.AST]:
        """The syntax tree, its root first."""
        return tree(self.text).nodes

    @property
    def top(self) -> list[ast.AST]:
        """The statements at the top of the module."""
        return list(ast.iter_child_nodes(self.nodes[0]))

    def find(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """Yield the nodes whose class is one of *kinds*, of each class those nearer the root
        first.
        """
        by_kind = tree(self.text).by_kind
        return chain.from_iterable(by_kind.get(kind, ()) for kind in kinds)

    @property
    def tokens(self) -> int:
        """How many tokens of code the file has."""
        return len(code_lines(self.text))

    @property
    def folder(self) -> str:
        """The package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def member(self) -> str:
        """The package at the top, which one distribution installs."""
        return self.name.partition(".")[0]

    def at(self, where: int | ast.stmt | ast.expr) -> str:
        """Name a line, or the line of a node."""
        return f"{self.name}:{where if isinstance(where, int) else where.lineno}"


@dataclass(frozen=True)
class Import:
    """One imported thing: *name* from *target*, or the module *target* itself where *name* is
    empty. An *eager* one is made when the module is imported.
    """

    source: Module
    target: str
    name: str
    line: int
    eager: bool

    def __str__(self) -> str:
        what = f"{self.target}.{self.name}" if self.name else self.target
        return f"{self.source.at(self.line)} imports {what}"


@dataclass(frozen=True)
class Requirement:
    """A distribution by its normalised name, with the *extras* that are asked for."""

    name: str
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class EntryPoint:
    """What a distribution declares under *name* in *group*, such as ``quintain.rewards``.

    Attributes:
        module: where the object is.
        extra: of the distribution, which the manifest says that it needs; else empty.
    """

    group: str
    name: str
    module: str
    extra: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Project:
    """What ``pyproject.toml`` and the manifest of a distribution say.

    Attributes:
        package: the name at the top of its imports.
        dependencies: what every installation of it has.
        extras: what each extra adds.
    """

    name: str
    folder: Path
    package: str
    dependencies: frozenset[Requirement]
    extras: Mapping[str, frozenset[Requirement]]
    entry_points: tuple[EntryPoint, ...]


@dataclass(frozen=True)
class Checkout:
    """The modules of the package, of the members that use it, and of studies and tools, by name;
    the names of the files and folders at the top of the package; and the distributions, by the name
    of their package.
    """

    package: Mapping[str, Module]
    members: Mapping[str, Module]
    scripts: Mapping[str, Module]
    top: frozenset[str]
    projects: Mapping[str, Project] = field(default_factory=dict)

    @property
    def installed(self) -> dict[str, Module]:
        """The modules that a distribution installs: the package and the members."""
        return {**self.package, **self.members}

    @property
    def all(self) -> list[Module]:
        return [*self.package.values(), *self.members.values(), *self.scripts.values()]


def read(root: Path) -> Checkout:
    """Read the checkout at *root*: the package, the sources of plugins, environments, examples and
    scripts, and what each distribution declares.
    """
    members: dict[str, Module] = {}
    for pattern in ("plugins/*/src", "environments/*/src", "examples/*/src"):
        for folder in sorted(root.glob(pattern)):
            members |= modules(folder, folder)
    scripts = {k: v for f in ("studies", "tools") for k, v in modules(root / f, root).items()}
    package = root / "core" / PACKAGE
    top = frozenset(p.name for p in package.iterdir() if has_content(p))
    of_package = modules(package, root / "core")
    kind_of = {group: kind for kind, group in component_groups(of_package).items()}
    patterns = ("pyproject.toml", *(f"{place}/*/pyproject.toml" for place in MEMBER_FOLDERS))
    paths = [path for pattern in patterns for path in sorted(root.glob(pattern))]
    projects = {one.package: one for one in (project(path, kind_of) for path in paths)}
    checkout = Checkout(of_package, members, scripts, top, projects)
    parse_all(checkout)
    return checkout


def parse_all(checkout: Checkout) -> None:
    """Parse every file now: the garbage collector looks at each new node several times, and takes as
    long as the parser.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        for module in checkout.all:
            tree(module.text)
    finally:
        if was_on:
            gc.enable()


def component_groups(package: Mapping[str, Module]) -> dict[str, str]:
    """Return the entry-point group of each kind of component, as `quintain.registry` has them."""
    discovery = package.get(f"{PACKAGE}.registry.discovery")
    for node in discovery.find(ast.Assign) if discovery else ():
        if dotted(node.targets[0]) == "GROUPS":
            groups: dict[str, str] = ast.literal_eval(node.value)
            return groups
    return {}


def project(path: Path, kind_of: Mapping[str, str]) -> Project:
    """Read the ``pyproject.toml`` at *path*, and the manifest in the package of its distribution.
    *kind_of* has the kind of component of each entry-point group.
    """
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    table = content["project"]
    (package,) = content["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    manifest = path.parent / package / "quintain.toml"
    components = tomllib.loads(manifest.read_text(encoding="utf-8")).get("components", ())
    extra_of = {(one["kind"], one["name"]): one.get("extra", "") for one in components}
    groups = {"scripts": table.get("scripts", {}), **table.get("entry-points", {})}
    entry_points = [
        EntryPoint(
            group, name, target.partition(":")[0], extra_of.get((kind_of.get(group), name), "")
        )
        for group, targets in groups.items()
        for name, target in targets.items()
    ]
    optional = table.get("optional-dependencies", {})
    return Project(
        name=normalised(table["name"]),
        folder=path.parent,
        package=Path(package).name,
        dependencies=requirements(table["dependencies"]),
        extras={extra: requirements(texts) for extra, texts in optional.items()},
        entry_points=tuple(entry_points),
    )


def requirements(texts: Iterable[str]) -> frozenset[Requirement]:
    """Read requirements such as ``quintain[train]>=0.1``, without their versions."""
    found = set()
    for text in texts:
        name, extras = re.match(r"([\w.-]+)(?:\[(.*?)\])?", text).groups()  # type: ignore[union-attr]
        named = tuple(extra.strip() for extra in (extras or "").split(",") if extra.strip())
        found.add(Requirement(normalised(name), named))
    return frozenset(found)


def normalised(name: str) -> str:
    """Return the name of a distribution as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def has_content(path: Path) -> bool:
    """Return whether *path* is a file, or a folder with one that is not compiled; after a move git
    leaves the old folder behind with its ``__pycache__``.
    """
    files = path.rglob("*") if path.is_dir() else [path]
    return any(file.is_file() and "__pycache__" not in file.parts for file in files)


def modules(folder: Path, base: Path) -> dict[str, Module]:
    """Read every ``.py`` file under *folder*; names are relative to *base*."""
    by_name = {}
    for path in sorted(folder.rglob("*.py")):
        if not any(part.startswith(".") for part in path.relative_to(base).parts):
            module = module_of(path, base, path.read_text(encoding="utf-8"))
            by_name[module.name] = module
    return by_name  # without those of a virtual environment


def module_of(path: Path, base: Path, text: str) -> Module:
    """Give *text* at *path* the name that it is imported by; *base* is on the path of imports."""
    parts = path.relative_to(base).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), path, text, is_package)


# ---------------------------------------------------------------- one text, whichever file has it
@dataclass(frozen=True, eq=False)
class Tree:
    """The syntax tree of a text.

    Attributes:
        nodes: all, the root first, without the contexts of names (`ast.Load`).
        by_kind: the same by their class.
        parents: the node that each belongs to.
    """

    nodes: list[ast.AST]
    by_kind: Mapping[type[ast.AST], list[ast.AST]]
    parents: Mapping[ast.AST, ast.AST]

    def is_late(self, node: ast.AST) -> bool:
        """Return whether importing the text does not run *node*: it is inside a function, or for
        type checkers alone.
        """
        while node in self.parents:
            owner = self.parents[node]
            if runs_later(owner) and node in ast_list(owner.body):  # type: ignore[attr-defined]
                return True
            node = owner
        return False


@cache
def tree(text: str) -> Tree:
    """Parse *text*, once for all copies of a file."""
    nodes: list[ast.AST] = [ast.parse(text)]
    by_kind = defaultdict(list)
    parents: dict[ast.AST, ast.AST] = {}
    for node in nodes:  # which grows in this loop
        kind = type(node)
        by_kind[kind].append(node)
        if kind in LEAVES:
            continue
        for name in node._fields:
            value = None if name in NO_NODES else getattr(node, name, None)
            if value:
                for child in ast_list(value):
                    nodes.append(child)
                    parents[child] = node
    return Tree(nodes, by_kind, parents)


def ast_list(value: object) -> list[ast.AST]:
    """Return the nodes that the value of a field has."""
    if isinstance(value, list):
        return [child for child in value if isinstance(child, ast.AST)]
    return [value] if isinstance(value, ast.AST) else []


def runs_later(node: ast.AST) -> bool:
    """Return whether the body of *node* does not run when its module is imported."""
    is_function = isinstance(node, (*FUNCTIONS, ast.Lambda))
    return is_function or (isinstance(node, ast.If) and for_type_checkers(node))


@cache
def code_lines(text: str) -> list[int]:
    """Return the line of each token of *text* that is code.

    Comments, docstrings and line ends are none, and neither is what a formatter adds when it breaks
    a line: the comma before a closing bracket, and the second part of a literal in two parts.
    """
    docstrings = {
        node.lineno
        for node in tree(text).by_kind.get(ast.Expr, ())
        if isinstance(node, ast.Expr) and literal(node.value) is not None
    }
    lines: list[int] = []
    line = 1
    before: str | None = None
    for token in TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "line":
            line += 1
            continue
        if kind == "comment":
            continue
        if kind == "string":
            if line not in docstrings and before != "string":
                lines.append(line)
            line += token[0].count("\n")
        else:
            if kind == "close" and before == "comma":
                lines.pop()
            lines.append(line)
        before = kind
    return lines


def for_type_checkers(block: ast.If) -> bool:
    """Return whether a block is ``if TYPE_CHECKING``."""
    return dotted(block.test).rpartition(".")[2] == "TYPE_CHECKING"


def dotted(node: ast.AST) -> str:
    """``a.b.c`` as written, also as ``getattr(a.b, "c")``; empty where the expression is anything
    else.
    """
    if isinstance(node, ast.Name):
        return node.id
    value, name = attribute(node)
    base = dotted(value) if value else ""
    return f"{base}.{name}" if base else ""


def attribute(node: ast.AST) -> tuple[ast.expr | None, str]:
    """Return the object and the name of ``a.b`` or ``getattr(a, "b")``; None for other
    expressions.
    """
    if isinstance(node, ast.Attribute):
        return node.value, node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        name = literal(node.args[1]) if len(node.args) > 1 else None
        if name is not None:
            return node.args[0], name
    return None, ""


def literal(node: ast.AST) -> str | None:
    """Return the text of a string in the source; None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


# ---------------------------------------------------------------- imports
def imports(module: Module, known: Container[str]) -> Iterator[Import]:
    """Every import of a module, wherever it stands; ``from a import b`` is ``a.b`` where that is a
    *known* module.
    """
    for one, as_module in import_readings(module):
        yield as_module if as_module.target in known else one


@cache
def import_readings(module: Module) -> list[tuple[Import, Import]]:
    """Return every import of a module as it is written, and as the import of a module: of ``a.b``
    for ``from a import b``.
    """
    return [
        (one, replace(one, target=f"{one.target}.{one.name}", name="") if one.name else one)
        for one in written_imports(module)
    ]


@cache
def written_imports(module: Module) -> list[Import]:
    """Every import of a module; the name in ``from a import b`` may be a module's."""
    written = []
    is_late = tree(module.text).is_late
    for node in module.find(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        else:
            base = absolute(module, node.module or "", node.level)
            names = [(base, alias.name) for alias in node.names]
        written += [Import(module, *name, node.lineno, not is_late(node)) for name in names]
    for node, target in imported_by_expressions(module):
        if target:
            written.append(Import(module, target, "", node.lineno, not is_late(node)))
    return written


def absolute(module: Module, name: str, level: int) -> str:
    """Return the dotted name that *name* with *level* leading dots has inside *module*."""
    if not level:
        return name
    folder = module.folder.split(".")
    return ".".join([*folder[: len(folder) - level + 1], *filter(None, [name])])


@cache
def meanings(module: Module) -> dict[str, str]:
    """Return what the names mean that a module binds by imports."""
    meaning = {}
    for node in module.find(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                meaning[alias.asname or first] = alias.name if alias.asname else first
        else:
            base = absolute(module, node.module or "", node.level)
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{base}.{alias.name}"
    return meaning


@dataclass(frozen=True)
class Reference:
    """``a.b.c`` in a module, at its full length, with the meaning that imports give to ``a``."""

    start: str
    more: str
    node: ast.expr

    @property
    def name(self) -> str:
        return self.start + self.more


@cache
def references(module: Module) -> list[Reference]:
    """Every name of a module, with the attributes that are read from it."""
    result = []
    meaning = meanings(module)
    owners = tree(module.text).parents
    for node in module.find(ast.Name, ast.Attribute, ast.Call):
        name = dotted(node)
        if not name:
            continue
        owner = owners[node]
        if attribute(owner)[0] is not node:  # else a part of a longer one
            first, dot, more = name.partition(".")
            result.append(Reference(meaning.get(first, first), dot + more, node))
    return result


@cache
def imported_by_expressions(module: Module) -> list[tuple[ast.expr, str | None]]:
    """Expressions that import a module or can: each with its name, or None where the source does
    not show it.
    """
    names: list[tuple[ast.expr, str | None]] = []
    owners = tree(module.text).parents
    for reference in references(module):
        name, node, owner = reference.name, reference.node, owners[reference.node]
        called = owner if isinstance(owner, ast.Call) and owner.func is node else None
        if name in IMPORTERS or name.rpartition(".")[2] in IMPORTERS:
            names.append((node, argument(module, called) if called else None))
        elif name == "sys.modules" and isinstance(owner, ast.Subscript):
            names.append((node, literal(owner.slice)))
        elif name == "sys.modules" and isinstance(owner, ast.Compare):
            continue  # asks whether one is loaded
        elif name.startswith("sys.modules"):
            names.append((node, literal(called.args[0]) if called and called.args else None))
        elif name in RUNNERS | IMPORT_MODULES:
            names.append((node, None))
    return names


def argument(module: Module, call: ast.Call) -> str | None:
    """Return the module that a call of one of `IMPORTERS` names; None where it is computed."""
    name, *more = map(literal, call.args) if call.args else [None]
    if name is None or call.keywords:
        return None
    package = [dotted(node) for node in call.args[1:]]
    dots = len(name) - len(name.lstrip("."))
    if (more or dots) and package not in (["__name__"], ["__package__"]):
        return None
    return absolute(module, name[dots:].partition(":")[0], dots)


# ---------------------------------------------------------------- public names
@cache
def exports(module: Module) -> set[str] | None:
    """Return the names in a module's ``__all__``; None where it has none.

    `lazy_names` gives a package one: what it imports for type checkers, and the names in the call.
    """
    for node in module.top:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            names = {name for n in ast.walk(node.value) if (name := literal(n)) is not None}
            if "__all__" in map(dotted, targets):
                return names
            if isinstance(node.value, ast.Call) and dotted(node.value.func) == "lazy_names":
                return names | set(type_checking_names(module))
    return None


@cache
def type_checking_names(module: Module) -> dict[str, str]:
    """Names that a module imports under ``if TYPE_CHECKING`` at its top, and where each is from."""
    return {
        alias.asname or alias.name: absolute(module, node.module or "", node.level)
        for block in module.top
        if isinstance(block, ast.If) and for_type_checkers(block)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@cache
def imported_references(module: Module) -> list[Reference]:
    """Return the names with attributes that begin with an import."""
    imported = set(meanings(module).values())
    return [one for one in references(module) if one.more and one.start in imported]


def module_attributes(
    module: Module, known: Mapping[str, Module]
) -> Iterator[tuple[int, str, str]]:
    """Attributes that a file reads from *known* modules it has imported: line, module,
    attribute.
    """
    for reference in imported_references(module):
        if reference.start in known and reference.name not in known:
            parts = reference.name.split(".")
            cut = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in known)
            yield reference.node.lineno, ".".join(parts[:cut]), parts[cut]
