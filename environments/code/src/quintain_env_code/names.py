"""What tests take from the solution, read from their syntax trees. Nothing runs here."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping
from functools import lru_cache

from quintain.errors import UsageError

from .literals import with_short_numbers

_BUILTIN = frozenset(vars(builtins)) | {"__name__", "__file__", "__doc__"}


@lru_cache(maxsize=4096)
def solution_names(
    setup: str, tests: tuple[str, ...], reference: str
) -> tuple[tuple[str, ...], str]:
    """Return the names that *tests* take from the solution, and import statements for those that
    they take from a library.

    A name belongs to the solution if neither the tests nor Python define it. A built-in name
    belongs to it only if the *reference* defines it, so that no solution can replace ``abs`` or
    ``len`` in the tests. A library that only the reference imports is imported for the tests, too,
    and a solution cannot replace it either.

    Raises:
        UsageError: the tests are no Python.
    """
    try:
        trees = [ast.parse(with_short_numbers(part)) for part in (setup, *tests)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise UsageError(f"the tests are no Python: {e}") from e
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    bound = {name for tree in trees for name in _bound(tree)}
    defined, imports = _top_level(reference)
    lines = [line for name, line in imports.items() if name in used - bound]
    names = {n for n in used - bound - set(imports) if n not in _BUILTIN or n in defined}
    return tuple(sorted(names)), "\n".join(dict.fromkeys(lines))


@lru_cache(maxsize=4096)
def signatures(names: tuple[str, ...], reference: str) -> tuple[str, ...]:
    """Return head lines of the functions and classes *names* as the *reference* defines them."""
    try:
        tree = ast.parse(with_short_numbers(reference))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    heads = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in names:
            heads.append(f"def {node.name}({ast.unparse(node.args)})")
        elif isinstance(node, ast.ClassDef) and node.name in names:
            heads.append(f"class {node.name}")
    return tuple(heads)


def suite_tests(suite: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tests that stand in the files of a pytest suite, as ``file::name`` or
    ``file::Class::name``, in order.

    Raises:
        UsageError: a file is no Python.
    """
    return tuple(test for file in sorted(suite) for test in _tests_in(file, suite[file]))


@lru_cache(maxsize=4096)
def _tests_in(file: str, text: str) -> tuple[str, ...]:
    base = file.rpartition("/")[2]
    if not base.endswith(".py") or not (base.startswith("test_") or base.endswith("_test.py")):
        return ()
    try:
        body = ast.parse(with_short_numbers(text)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise UsageError(f"{file} is no Python: {e}") from e
    test_ids = []
    for node in body:
        if isinstance(node, ast.ClassDef) and (node.name.startswith("Test") or _is_test_case(node)):
            test_ids += [f"{file}::{node.name}::{name}" for name in _functions(node.body)]
        test_ids += [f"{file}::{name}" for name in _functions([node])]
    return tuple(test_ids)


def _is_test_case(node: ast.ClassDef) -> bool:
    return any("TestCase" in ast.unparse(base) for base in node.bases)


def _functions(body: Iterable[ast.stmt]) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node.name for node in body if isinstance(node, kinds) and node.name.startswith("test")]


def _bound(tree: ast.AST) -> Iterable[str]:
    """Yield names that *tree* assigns, defines, imports or takes as parameters, in any scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def _top_level(reference: str) -> tuple[set[str], dict[str, str]]:
    """Return what the reference defines, and its imports as statements by bound name."""
    try:
        body = ast.parse(with_short_numbers(reference)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), {}
    defined: set[str] = set()
    imports: dict[str, str] = {}
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports |= _imported(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        else:
            defined |= {
                n.id
                for n in ast.walk(node)
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
    return defined, {name: line for name, line in imports.items() if name not in defined}


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    if isinstance(node, ast.Import):
        return {
            a.asname or a.name.partition(".")[0]: f"import {ast.unparse(a)}" for a in node.names
        }
    if node.level:
        return {}
    return {
        a.asname or a.name: f"from {node.module} import {ast.unparse(a)}"
        for a in node.names
        if a.name != "*"
    }
