"""Read the source of a checkout without importing it: its modules, and what each takes from others.

`tools/layout.py` has the rules about it. Every import counts: at the top of a module, inside a
function, under ``if TYPE_CHECKING``, and by a call such as ``import_module("literal")``, whatever
name the file gives to the function or to its module.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path

PACKAGE = "quintain"

NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
"""Kinds of tokens that cost nothing."""

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
class Checkout:
    """The modules of the package, of the members that use it, and of studies and tools, by name;
    and the names of the files and folders at the top of the package.
    """

    package: Mapping[str, Module]
    members: Mapping[str, Module]
    scripts: Mapping[str, Module]
    top: frozenset[str]

    @property
    def installed(self) -> dict[str, Module]:
        """The modules that a distribution installs: the package and the members."""
        return {**self.package, **self.members}

    @property
    def all(self) -> list[Module]:
        return [*self.package.values(), *self.members.values(), *self.scripts.values()]


def read(root: Path) -> Checkout:
    """Read the checkout at *root*: the package, and the sources of plugins, environments, examples
    and scripts.
    """
    members: dict[str, Module] = {}
    for pattern in ("plugins/*/src", "environments/*/src", "examples/*/src"):
        for folder in sorted(root.glob(pattern)):
            members |= modules(folder, folder)
    scripts = {k: v for f in ("studies", "tools") for k, v in modules(root / f, root).items()}
    package = root / "core" / PACKAGE
    top = frozenset(p.name for p in package.iterdir() if has_content(p))
    return Checkout(modules(package, root / "core"), members, scripts, top)


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
@cache
def parsed(text: str) -> list[ast.AST]:
    """Every node of the syntax tree of *text*, parsed once for all copies of a file."""
    return list(ast.walk(ast.parse(text)))


@cache
def parents(text: str) -> dict[ast.AST, ast.AST]:
    """Return the node that each node of *text* belongs to."""
    return {child: node for node in parsed(text) for child in ast.iter_child_nodes(node)}


@cache
def late(text: str) -> frozenset[ast.AST]:
    """Return the nodes of *text* that importing it does not run: inside functions, or for type
    checkers alone.
    """
    unread: list[ast.AST] = []
    for node in parsed(text):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            unread += node.body
        elif isinstance(node, ast.Lambda):
            unread.append(node.body)
        elif isinstance(node, ast.If) and for_type_checkers(node):
            unread += node.body
    return frozenset(inner for node in unread for inner in ast.walk(node))


@cache
def code_lines(text: str) -> list[int]:
    """Return the line of each token of *text* that is code.

    Comments, docstrings and line ends are none, and neither is what a formatter adds when it breaks
    a line: the comma before a closing bracket, and the second part of a literal in two parts.
    """
    docstrings = {
        (node.lineno, node.col_offset)
        for node in parsed(text)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    code = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE and token.start not in docstrings
    ]
    lines = []
    for token, following in zip_longest(code, code[1:]):
        last = following is not None and token.string == "," and following.string in (")", "]", "}")
        part = following is not None and token.type == following.type == tokenize.STRING
        if not (last or part):
            lines.append(token.start[0])
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
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else None


# ---------------------------------------------------------------- imports
def imports(module: Module, known: Container[str]) -> Iterator[Import]:
    """Every import of a module, wherever it stands; ``from a import b`` is ``a.b`` where that is a
    *known* module.
    """
    for one in written_imports(module):
        inner = f"{one.target}.{one.name}"
        yield replace(one, target=inner, name="") if one.name and inner in known else one


@cache
def written_imports(module: Module) -> list[Import]:
    """Every import of a module; the name in ``from a import b`` may be a module's."""
    written = []
    after = late(module.text)
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node.module or "", node.level)
            names = [(base, alias.name) for alias in node.names]
        else:
            continue
        written += [Import(module, *name, node.lineno, node not in after) for name in names]
    for node, target in imported_by_expressions(module):
        if target:
            written.append(Import(module, target, "", node.lineno, node not in after))
    return written


def absolute(module: Module, name: str, level: int) -> str:
    """Return the dotted name that *name* with *level* leading dots has inside *module*."""
    if not level:
        return name
    folder = module.folder.split(".")
    return ".".join([*folder[: len(folder) - level + 1], *filter(None, [name])])


def meanings(module: Module) -> dict[str, str]:
    """Return what the names mean that a module binds by imports."""
    meaning = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                meaning[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
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
    owners = parents(module.text)
    for node in module.nodes:
        if not isinstance(node, ast.expr) or not (name := dotted(node)):
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
    owners = parents(module.text)
    for reference in references(module):
        name, node, owner = reference.name, reference.node, owners[reference.node]
        called = owner if isinstance(owner, ast.Call) and owner.func is node else None
        if name in IMPORTERS or name.rpartition(".")[2] in IMPORTERS:
            names.append((node, called and argument(module, called)))
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


def module_attributes(
    module: Module, known: Mapping[str, Module]
) -> Iterator[tuple[int, str, str]]:
    """Attributes that a file reads from *known* modules it has imported: line, module,
    attribute.
    """
    for reference in references(module):
        if reference.start in known and reference.name not in known:
            parts = reference.name.split(".")
            cut = next(n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in known)
            yield reference.node.lineno, ".".join(parts[:cut]), parts[cut]
