"""The rules about names with a leading underscore, which stay in the module that defines them.
`tools/layout.py` runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from sources import (
    FUNCTIONS,
    Checkout,
    Import,
    Module,
    attribute,
    dotted,
    literal,
    meanings,
    module_attributes,
    written_imports,
)

NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Public attributes of named tuples, which keep the plain names for their fields."""

OWN = {"self", "cls", "super()", "type(self)"}
"""Expressions for the object of a method, or its class."""

SETTERS = {"object.__setattr__", "setattr"}
OF_OBJECT = SETTERS | {"delattr", "hasattr"}
BY_TEXT = OF_OBJECT | {"operator.attrgetter", "operator.methodcaller"}
"""Functions that take an attribute by its name as text, beside `getattr`, which reads as ``a.b``
everywhere. The first argument of those `OF_OBJECT` has it.
"""


def private(name: str) -> bool:
    """Return whether a name is private by its spelling; ``__version__`` and its like are not."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def private_names(checkout: Checkout) -> list[str]:
    """Names with a leading underscore that one module takes from another, by import or as an
    attribute.
    """
    violations = []
    known = checkout.installed
    members = {module.member for module in known.values()}
    for module in known.values():
        private_ones = private_imports(module)
        violations += [str(one) for one in private_ones if one.target.partition(".")[0] in members]
        for line, owner, name in module_attributes(module, known):
            if private(name):
                violations.append(f"{module.at(line)} uses {owner}.{name}")
    return violations


@cache
def private_imports(module: Module) -> list[Import]:
    """Return the imports of a module that name something private."""
    return [
        one
        for one in written_imports(module)
        if any(map(private, [*one.target.split("."), one.name]))
    ]


# ---------------------------------------------------------------- attributes of foreign objects
def private_attributes(checkout: Checkout) -> list[str]:
    """Attributes with a leading underscore of objects whose class another module defines.

    The module is the unit, as for names: a method may read them from another object of its class,
    and so may a function beside the class. Libraries document some of theirs, such as `os._exit`.
    """
    members = {module.member for module in checkout.installed.values()}
    return [
        violation
        for module in checkout.installed.values()
        for violation, library in foreign_private_attributes(module)
        if not library or library in members
    ]


@cache
def foreign_private_attributes(module: Module) -> list[tuple[str, str]]:
    """Return such attributes in *module*, each with the package that its object is imported from,
    if it is.
    """
    violations = []
    meaning = meanings(module)
    defined = own_attributes(module)
    for node, value, name in attributes(module):
        if private(name) and name not in defined | NAMED_TUPLE:
            library = meaning.get(dotted(value).partition(".")[0], "").partition(".")[0]
            owner = ast.unparse(value)
            if owner not in OWN:
                violations.append((f"{module.at(node)} uses {owner}.{name}", library))
    for call, names in attributes_by_text(module):
        foreign = {name for name in names if private(name)} - defined - NAMED_TUPLE
        if foreign:
            violations.append((f"{module.at(call)} uses {ast.unparse(call)}", ""))
    return violations


def attributes(module: Module) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Yield each ``a.b`` or ``getattr(a, "b")`` with its object and its name."""
    for node in module.find(ast.Attribute, ast.Call):
        value, name = attribute(node)
        if value is not None:
            yield node, value, name


def attributes_by_text(module: Module) -> Iterator[tuple[ast.Call, list[str]]]:
    """Yield the calls of `BY_TEXT`, each with the names that it takes: of ``attrgetter("a.b")``
    two.
    """
    meaning = meanings(module)
    for call in module.find(ast.Call):
        first, dot, more = dotted(call.func).partition(".")
        if meaning.get(first, first) + dot + more in BY_TEXT:
            texts = [literal(argument) or "" for argument in call.args]
            yield call, [name for text in texts for name in text.split(".")]


@cache
def own_attributes(module: Module) -> set[str]:
    """Names that the classes of a module define: in their body, or by assignment to ``self``."""
    names: set[str] = set()
    for node in module.find(ast.ClassDef):
        names |= defined_in(node)
    return names


# ---------------------------------------------------------------- what a subclass uses of its base
@dataclass(frozen=True)
class Class:
    """A class of the checkout."""

    module: Module
    node: ast.ClassDef


def inherited_privates(checkout: Checkout) -> list[str]:
    """Private attributes that a subclass uses or defines again, through ``self``, ``cls`` or
    ``super()``, though a base class in another folder defines them.

    The folder is the unit here: a family of classes has one author, who changes base and subclass
    together.
    """
    known = checkout.installed
    violations = []
    for module in known.values():
        for node in module.find(ast.ClassDef):
            owners = {}
            for base in bases(Class(module, node), known):
                if base.module.folder != module.folder:
                    owners.update(dict.fromkeys(defined_in(base.node), base.node.name))
            violations += [
                f"{module.at(line)} uses {owners[name]}.{name} in {node.name}"
                for name, line in (used_in(node) if owners else {}).items()
                if name in owners and private(name)
            ]
    return violations


def bases(one: Class, known: Mapping[str, Module]) -> list[Class]:
    """Return the base classes of *one* in *known* modules, also those of its bases."""
    found: list[Class] = []
    unread = [one]
    while unread:
        here = unread.pop()
        for expression in here.node.bases:
            inner = expression.value if isinstance(expression, ast.Subscript) else expression
            base = class_named(here.module, dotted(inner), known)
            if base is not None and base not in (one, *found):
                found.append(base)
                unread.append(base)
    return found


def class_named(module: Module, name: str, known: Mapping[str, Module]) -> Class | None:
    """Return the class that *name* means in *module*: its own, or one that it imports, also from a
    module that imports the class to offer it; None if no *known* module has it.
    """
    own = classes(module)
    if name in own:
        return Class(module, own[name])
    first, dot, more = name.partition(".")
    meaning = meanings(module).get(first)
    owner, _, last = (meaning + dot + more if meaning else "").rpartition(".")
    if owner not in known or owner == module.name:
        return None
    return class_named(known[owner], last, known)


@cache
def classes(module: Module) -> dict[str, ast.ClassDef]:
    """Return the classes of a module by name."""
    return {node.name: node for node in module.find(ast.ClassDef)}


@cache
def defined_in(node: ast.ClassDef) -> set[str]:
    """Names that a class defines: in its body, or by assignment to ``self`` or ``cls``."""
    names: set[str] = set()
    for inner in node.body:
        names.add(getattr(inner, "name", ""))  # a method
        names |= {dotted(target) for target in getattr(inner, "targets", [])}
        names.add(dotted(getattr(inner, "target", inner)))
    for deeper in ast.walk(node):
        if isinstance(deeper, ast.Attribute) and isinstance(deeper.ctx, ast.Store):
            if dotted(deeper.value) in ("self", "cls"):
                names.add(deeper.attr)
        elif isinstance(deeper, ast.Call) and dotted(deeper.func) in SETTERS:
            owner, name, *_ = deeper.args  # as a frozen class sets its own attributes
            if dotted(owner) == "self":
                names.add(literal(name) or "")
    return names


@cache
def used_in(node: ast.ClassDef) -> dict[str, int]:
    """Return the attributes of its own object that a class reads, sets or defines, each with the
    first line.
    """
    lines: dict[str, int] = {}
    for inner in node.body:
        if isinstance(inner, FUNCTIONS):
            lines[inner.name] = inner.lineno
        for target in getattr(inner, "targets", [getattr(inner, "target", inner)]):
            lines.setdefault(dotted(target), inner.lineno)
    for deeper in ast.walk(node):
        value, name = attribute(deeper)
        if value is not None and ast.unparse(value) in OWN:
            lines.setdefault(name, value.lineno)
    return lines
