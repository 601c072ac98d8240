"""The floors of the house: imports point downward, and the lower floors carry no numeric library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "core" / "quintain"

FLOORS: dict[int, str] = {
    0: "errors",
    1: "task transcript rollout hub",
    2: "environment reward agent tools service engine piece plan algorithm methods plugins toml",
    3: "chat session episodes replay scoring voting services controls workers worker wire expression testing",
    4: "model learning engines",
    5: """recipe recipe_errors recipe_layers stage conduct curriculum loop estimates evaluate health checkpoint store
         rollout_table selection filling publishing probing starter nursery seedling sft sft_sources
         run report alarms compare standings fits intervals""",
    6: "cli __main__",
}
FLOOR_OF = {name: floor for floor, names in FLOORS.items() for name in names.split()}

HEAVY = {"torch", "transformers", "datasets", "numpy", "pyarrow", "matplotlib", "peft", "pandas"}
SIBLINGS = ({"learning", "engines"},)


def top(path: Path) -> str:
    """The part of core that a file belongs to."""
    first = path.relative_to(CORE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path, *, lazy: bool) -> Iterator[str]:
    """Absolute names of the modules a file imports when it runs; with *lazy* also those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ["quintain", *path.relative_to(CORE).parts[:-1]]
    for node in walk(tree, lazy=lazy):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def walk(node: ast.AST, *, lazy: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if not lazy and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        yield child
        yield from walk(child, lazy=lazy)


def own(names: Iterator[str]) -> set[str]:
    """The parts of core among *names*."""
    parts = (n.split(".")[1] for n in names if n.startswith("quintain."))
    return {p for p in parts if p in FLOOR_OF}


FILES = sorted(p for p in CORE.rglob("*.py") if p.name != "__init__.py" or p.parent != CORE)


def names(path: Path) -> str:
    return path.relative_to(CORE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=names)
def test_every_file_has_a_floor(path: Path) -> None:
    """A new part of core says on which floor it lives."""
    assert top(path) in FLOOR_OF, f"add {top(path)!r} to FLOORS"


@pytest.mark.parametrize("path", FILES, ids=names)
def test_imports_point_downward(path: Path) -> None:
    """A module imports from its own floor or below. An import inside a function may look up: late and on purpose."""
    here = top(path)

    above = {p for p in own(imports(path, lazy=False)) if FLOOR_OF[p] > FLOOR_OF.get(here, 9)}

    assert not above, f"{names(path)} imports {sorted(above)} from above"


@pytest.mark.parametrize("path", [p for p in FILES if FLOOR_OF.get(top(p), 9) <= 3], ids=names)
def test_lower_floors_are_free_of_numeric_libraries(path: Path) -> None:
    """Floors 1 to 3 never import torch and its friends, not even late."""
    heavy = {n.split(".")[0] for n in imports(path, lazy=True)} & HEAVY

    assert not heavy


@pytest.mark.parametrize("path", [p for p in FILES if top(p) in ("learning", "engines")], ids=names)
def test_learning_and_engines_never_meet(path: Path) -> None:
    """Neither imports the other, not even late."""
    for pair in SIBLINGS:
        assert not own(imports(path, lazy=True)) & (pair - {top(path)})


def test_the_walk_sees_what_it_should() -> None:
    """The tests above can fail: an upward import is seen, one for type checkers alone is not."""
    tree = ast.parse(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import numpy\nimport sys"
    )

    seen = {a.name for n in walk(tree, lazy=True) if isinstance(n, ast.Import) for a in n.names}
    eager = {a.name for n in walk(tree, lazy=False) if isinstance(n, ast.Import) for a in n.names}

    assert {"numpy", "sys"} == seen
    assert {"sys"} == eager
    assert sys.stdlib_module_names >= eager
