"""Print the figures of the source that `docs/architecture.md` has, of this checkout or of another.

    python tools/figures.py [FOLDER]

The walk of a setting is that of `tools/walk.py`, the time of the tests that of `tools/durations.py`,
and mypy prints how many files it checks.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import layout
import members
from sources import FUNCTIONS, Checkout, Module, code_lines, imports, modules, read

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def main(root: Path) -> None:
    """Print one figure a line."""
    checkout = read(root)
    print_members(checkout)
    print_reading(checkout)
    print_style(checkout)
    print_tests(modules(root / "tests", root).values())


def print_members(checkout: Checkout) -> None:
    """Print how many distributions there are, and what holds them together."""
    kinds = members.owners_of_kinds(checkout)
    lonely = [kind for kind, owners in kinds.items() if len(owners) < 2]
    print(f"kinds of components: {len(kinds)}")
    print(f"kinds that one distribution has: {len(lonely)} ({', '.join(lonely) or 'none'})")
    sizes = lines_by_member(checkout)
    largest = max(sizes, key=lambda name: sizes[name])
    print(f"members: {len(sizes)}")
    print(f"lines of the largest member: {sizes[largest]:,} ({largest})")
    pages = {name: readme_lines(checkout, name) for name in sizes}
    longest = max(pages, key=lambda name: pages[name])
    print(f"lines of the longest README of a member: {pages[longest]} ({longest})")
    pairs = imports_between_members(checkout)
    names = sum(len(taken) for taken in pairs.values())
    print(f"pairs of members that import, names: {len(pairs)}, {names}")
    users = users_of_core(checkout)
    single = [name for name, packages in users.items() if len(packages) == 1]
    unused = [name for name in single if len(modules_with(checkout, name)) == 1]
    print(f"names of core that members import: {len(users)}, one member alone: {len(single)}")
    print(f"of these in one module of core: {len(unused)}")
    private_state = layout.RULES["inherited_privates"](checkout)
    print(f"private state of a base class of another folder: {len(private_state)}")
    undeclared = members.undeclared_imports(checkout)
    print(f"imports that no distribution declares: {len(undeclared)}")


def installed_members(checkout: Checkout) -> dict[str, list[Module]]:
    """Return the modules of each member by the name of its package, without those of examples."""
    by_package = defaultdict(list)
    for module in checkout.members.values():
        if "examples" not in module.path.parts:
            by_package[module.member].append(module)
    return dict(by_package)


def lines_by_member(checkout: Checkout) -> dict[str, int]:
    """Return how many lines of Python each member has."""
    return {
        name: sum(module.text.count("\n") for module in found)
        for name, found in installed_members(checkout).items()
    }


def readme_lines(checkout: Checkout, package: str) -> int:
    """Return how many lines the README of a member has."""
    page = checkout.projects[package].folder / "README.md"
    return len(page.read_text(encoding="utf-8").splitlines())


def imports_between_members(checkout: Checkout) -> dict[tuple[str, str], set[str]]:
    """Return which names each member imports of each other one."""
    pairs = defaultdict(set)
    by_package = installed_members(checkout)
    for package, found in by_package.items():
        for module in found:
            for one in imports(module, ()):
                owner = one.target.partition(".")[0]
                if owner in by_package and owner != package:
                    pairs[package, owner].add(f"{one.target}.{one.name}")
    return dict(pairs)


def users_of_core(checkout: Checkout) -> dict[str, set[str]]:
    """Return which members import each name of the package."""
    users = defaultdict(set)
    for package, found in installed_members(checkout).items():
        for module in found:
            for one in imports(module, ()):
                if members.inside(one.target) and one.name:
                    users[f"{one.target}.{one.name}"].add(package)
    return dict(users)


def modules_with(checkout: Checkout, name: str) -> list[str]:
    """Return the modules of the package, but those that only pass names on, that have the last
    word of *name*.
    """
    word = re.compile(rf"\b{name.rpartition('.')[2]}\b")
    return [
        module.name
        for module in checkout.package.values()
        if not module.is_package and word.search(module.text)
    ]


def print_reading(checkout: Checkout) -> None:
    """Print how much there is to read."""
    folders = {layout.part(m.name) for m in checkout.package.values() if m.is_package} - {""}
    print(f"folders of the package, layers: {len(folders)}, {len(layout.LAYERS)}")
    print(f"circles of modules or members: {len(layout.cycles(checkout))}")
    print(f"class names with two meanings: {len(layout.repeated_classes(checkout))}")
    print(f"tokens of the kernel: {layout.tokens(layout.kernel(checkout)):,}")
    near = layout.tokens(layout.reading(checkout))
    whole = layout.tokens(layout.reading(checkout, distance=len(checkout.package)))
    print(f"tokens of the reading order with what it imports: {near:,}")
    print(f"tokens of the reading order with all behind it: {whole:,}")
    print(f"tokens of the package: {layout.tokens(checkout.package.values()):,}")


def print_style(checkout: Checkout) -> None:
    """Print how dense the code is. A line of code has a token that is no comment or docstring."""
    parts: dict[str, list[Module]] = {"core": [*checkout.package.values()]}
    for found in installed_members(checkout).values():
        place = "environments" if "environments" in found[0].path.parts else "plugins"
        parts.setdefault(place, []).extend(found)
    for name, found in parts.items():
        tokens = layout.tokens(found)
        lines = sum(len(set(code_lines(module.text))) for module in found)
        print(f"{name}: {lines:,} lines of code, {tokens / lines:.2f} tokens each")
        for what, count in (
            ("comprehensions", sum(1 for m in found for _ in m.find(*COMPREHENSIONS))),
            ("tuple assignments", sum(map(tuple_assignments, found))),
            ("walruses", sum(1 for m in found for _ in m.find(ast.NamedExpr))),
        ):
            print(f"{name}: {what} in 1,000 lines of code: {1000 * count / lines:.1f}")


def tuple_assignments(module: Module) -> int:
    """Return how many assignments set several names to values written beside each other."""
    return sum(
        isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)
        for node in module.find(ast.Assign)
    )


def print_tests(tests: Iterable[Module]) -> None:
    """Print what makes tests hard to read."""
    asserts = [node.test for module in tests for node in module.find(ast.Assert)]
    compared = [test for test in asserts if isinstance(test, ast.Compare)]
    tuples = sum(isinstance(test.left, ast.Tuple) for test in compared)
    both = sum(isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) for test in asserts)
    functions = [
        node
        for module in tests
        for node in module.find(*FUNCTIONS)
        if node.name.startswith("test_")
    ]
    mute = sum(ast.get_docstring(node) is None for node in functions)
    print(f"asserts in tests: {len(asserts):,}, of tuples: {tuples}, of `a and b`: {both}")
    print(f"tests: {len(functions):,}, without a docstring: {mute:,}")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else here)
