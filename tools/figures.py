"""Print the figures of the source that `docs/architecture.md` has.

    python tools/figures.py

The walk of a setting is that of `tools/walk.py`, the time of the tests that of `tools/durations.py`,
and mypy prints how many files it checks.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import docstrings
import layout
from sources import PACKAGE, Module, attribute, exports, read

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
SHORT = 6
"""Lines of a function that may say nothing new."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def wide_lines(modules: Iterable[Module]) -> float:
    """Return the share of lines of more than `WIDTH` columns."""
    lines = [line for module in modules for line in module.text.splitlines()]
    return sum(len(line) > WIDTH for line in lines) / len(lines)


def private_functions_used_once(modules: Iterable[Module]) -> Iterator[Function]:
    """Yield the private functions and methods whose name has one use in their file."""
    for module in modules:
        uses = Counter[str]()
        for node in module.nodes:
            uses[node.id if isinstance(node, ast.Name) else attribute(node)[1]] += 1
        for node in module.nodes:
            if isinstance(node, Function) and layout.private(node.name) and uses[node.name] == 1:
                yield node


def public_names(package: Mapping[str, Module]) -> dict[str, int]:
    """Return how many names each folder of the package offers to plugins."""
    folders = {name: package[f"{PACKAGE}.{name}"] for name in layout.RANK}
    names = {name: exports(module) for name, module in folders.items() if module.is_package}
    return {name: len(found) for name, found in names.items() if found}


def main() -> None:
    """Print one figure a line."""
    checkout = read(ROOT)
    package, members = checkout.package.values(), checkout.members.values()
    folders = {layout.part(module.name) for module in package if module.is_package} - {""}
    print("folders of the package:", len(folders))
    print("layers:", len(layout.LAYERS))
    print("circles of modules or members:", len(layout.cycles(checkout)))
    print("class names with two meanings:", len(layout.repeated_classes(checkout)))
    print(f"tokens of the kernel: {layout.tokens(layout.kernel(checkout)):,}")
    print(f"tokens of the package: {layout.tokens(package):,}")
    print(f"lines over {WIDTH} columns, package: {wide_lines(package):.2%}")
    print(f"lines over {WIDTH} columns, members: {wide_lines(members):.2%}")
    once = list(private_functions_used_once(package))
    short = [node for node in once if (node.end_lineno or 0) - node.lineno < SHORT]
    print(f"private functions used once: {len(once)}, of at most {SHORT} lines: {len(short)}")
    for name, modules in (("package", package), ("members", members)):
        without = sum(len(docstrings.without_verb(module.text)) for module in modules)
        print(f"functions whose docstring begins with no verb, {name}: {without}")
    counts = public_names(checkout.package)
    print("public names:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
