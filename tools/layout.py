"""The rules of the source layout, as functions over a checkout: layers, cycles, sizes, names, what
members import.

`sources` reads the checkout; nothing of it is imported. ``python tools/layout.py`` prints the size
of each folder and every violation. The rules about cycles, names and imports hold for plugins,
environments and examples as for the package. Sizes are tokens, without comments, docstrings and
line ends: a comment, a name or a line break costs nothing, so no limit is a reason to leave one
out.
"""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, wraps
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from members import (
    ELSEWHERE as ELSEWHERE,
)
from members import (
    inside,
    loads,
    lonely_kinds,
    member_imports,
    undeclared_exports,
    undeclared_imports,
    unnamed_extras,
    unreachable_modules,
)
from privates import inherited_privates, private, private_attributes, private_names
from sources import (
    FUNCTIONS,
    PACKAGE,
    Checkout,
    Import,
    Module,
    code_lines,
    dotted,
    imported_by_expressions,
    imports,
    read,
    tree,
)

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "tracebacks"),
    ("types",),
    ("interfaces", "data"),
    ("registry", "tasks"),
    ("rollouts",),
    ("services",),
    ("models",),
    ("engine", "learning"),
    ("evaluation",),
    ("console",),
    ("process",),
    ("store",),
    ("recipe",),
    ("run", "testing"),
    ("cli",),
    ("__main__",),
)
"""Lowest first. A file imports from its own part or from a lower layer; two parts of one layer
never meet.
"""

RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}

ROOT_FILES = {"__init__", "__main__", "errors", "tracebacks"}
"""The modules that lie directly in the package; `errors` and `tracebacks` may import each other in
one direction.
"""

ROOT_DATA = {"py.typed", "quintain.toml", "recipes"}
"""What else lies there: the recipes that come with the package, and its table of components."""

ROOT_NAMES = {"API_VERSION", "__version__", "lazy_names"}
"""What a module may import from the package itself. All are defined in ``__init__.py``, which has
run before any module of the package does, so they are an edge to nothing. Every other name of the
root is lazy and reaches up to all layers.
"""

BASE_FOLDERS = {"types", "interfaces", "data", "registry", "rollouts", "tasks"}
BASE_MODULES = {
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in ("errors", "tracebacks", "run.loop")),
}
BASE_LIBRARIES = {"pydantic", "pluggy"}
"""The base: what the author of an environment needs, which imports the standard library and these
two only.
"""

READING_ORDER = (
    "run.loop",
    "run.collect",
    "rollouts.runner",
    "rollouts.session",
    "rollouts.chat.bridge",
    "types.transcript",
    "rollouts.scoring",
    "learning.batch",
    "learning.learner",
    "learning.pieces.advantages",
    "learning.loss",
    "run.weight_sync",
)
"""The files that follow one rollout to the weight update and back, as `docs/architecture.md` lists
them.
"""

READING_FOLDERS = {"run", "rollouts", "learning"}
"""Whose modules a reader of the reading order meets, too, as soon as one of its files imports them."""

READING_TOKENS = 29_400
READING_WITH_ALL_TOKENS = 36_700
KERNEL_TOKENS = 35_400
FILE_TOKENS = 5_000
FUNCTION_TOKENS = 700
"""At most so many tokens, with ten per cent of room or more when they were set (2026-11-23); the
kernel and the two of the reading order are what they had on 2026-11-30, in hundreds (decisions 0238,
0240, 0241, 0244 and 0277). The package has no limit: one was met by moving parts of the trainer
out of it (decision 0224).
"""

Rule = Callable[[Checkout], list[str]]

RAW = "a run is built from its plan and reads no recipe"
COMPUTED = "imports what its source does not name"

EXCEPTIONS: dict[str, dict[str, str]] = {
    "computed_imports": {
        f"{name} {COMPUTED}": f"2026-11-23: {why}"
        for why, names in {
            "the lazy public names of packages": "quintain",
            "the table of commands": "quintain.cli",
            "modules and files that a recipe names": "quintain.registry.lookup "
            "quintain_env_agent.functions quintain_bridges.gymnasium.environment",
            "the module around a class or function that it is given": "quintain.registry.binding "
            "quintain_starter.cache_key quintain_scale.workers.pool quintain_scale.workers.worker",
            "any of four trackers, none of them installed with it": "quintain_view.trackers.tracker",
            "the server of another library": "quintain_engines.vllm.serve",
            "tasks of another library, in its interpreter": "quintain_bridges.peers.sides.inspect_side "
            "quintain_bridges.peers.sides.verifiers_side",
            "programs that run what is under test": "quintain_sandbox.launcher_main "
            "quintain_sandbox.warm_main quintain_env_code.inside.solution quintain_env_code.inside.tests "
            "quintain_env_code.inside.values",
        }.items()
        for name in names.split()
    },
    "run_without_registry": {
        f"quintain.recipe.check imports quintain.learning.{name}: a run gets it from the "
        "registry": "2026-11-29: tries the advantage on a step of two samples"
        for name in ("Batch", "Sample", "Step", "TrainingSequence")
    },
    "raw_recipe": {
        f"{text}: {RAW}": f"2026-11-28: {why}"
        for text, why in {
            "quintain.run.build imports quintain.recipe.tables.Recipe": "makes the plan of it",
            "quintain.run.provenance imports quintain.recipe.tables.Recipe": "compares a recipe "
            "with that of the folder",
            "quintain.run.provenance uses recipe.model_dump": "as its whole, for that comparison",
        }.items()
    },
    "lonely_kinds": {
        "kind cluster: only quintain-scale has components": "2026-11-28: whoever has a cluster of "
        "another kind writes one",
        "kind tool_format: only quintain-tools has components": "2026-11-28: models with another "
        "format of tool calls appear each month",
    },
    "repeated_classes": {
        "class Step: quintain.learning.pieces.advantages, quintain_env_code.functions, "
        "quintain_env_games.tools": "2026-11-23: authors of advantages write the first; the text of "
        "the others, with its name, decides which tasks there are",
    },
    "private_attributes": {
        f"{module} uses {text}": f"2026-11-23: {why}"
        for module, text, why in (
            (
                "quintain.models.packed",
                "tensor._version",
                "torch counts the writes to a tensor under no other name",
            ),
            (
                "quintain.models.forward",
                "cast(Any, self.module).config._attn_implementation",
                "transformers says nowhere else which attention a loaded model runs",
            ),
            (
                "quintain_learners.fsdp.rank",
                "server._forkserver_alive_fd",
                "a forked process has a copy of this pipe, and no name says so",
            ),
            (
                "quintain_algorithms.classic.natural",
                "cast(Any, step.module).config._attn_implementation",
                "as in quintain.models.forward",
            ),
            (
                "quintain.models.load",
                "module._init_weights",
                "transformers computes tables that no file has by no other name",
            ),
            (
                "quintain.models.load",
                "module._keep_in_fp32_modules_strict",
                "transformers says nowhere else which parameters keep 32 bits",
            ),
            (
                "quintain.models.snapshot",
                "base._keep_in_fp32_modules_strict",
                "as in quintain.models.load",
            ),
            (
                "quintain.registry.binding",
                "expected._is_protocol",
                "typing has `is_protocol` from Python 3.13",
            ),
            (
                "quintain.registry.binding",
                "expected._is_runtime_protocol",
                "typing has no other answer",
            ),
            (
                "quintain.registry.discovery",
                "dist._path",
                "importlib.metadata says nowhere else where an unreadable distribution lies",
            ),
            (
                "quintain.cli.completion",
                "parameter._custom_shell_complete",
                "click takes it when a parameter is made, and these are made already",
            ),
            (
                "quintain_tools.search.corpus",
                "self._rows()._fingerprint",
                "datasets says nowhere else what a data set holds",
            ),
            (
                "quintain_tools.mcp.stdio_wire",
                "self._process._transport",
                "asyncio closes the pipes of a process nowhere else",
            ),
            (
                "quintain_sandbox.engine",
                "stream._response",
                "docker hands a socket out and keeps the response open",
            ),
            (
                "quintain_sandbox.engine",
                "stream._sock",
                "docker's SDK has no name for the socket, which must not block a look at its buffer",
            ),
            (
                "quintain_sandbox.engine",
                "stream._response.raw._fp",
                "docker's SDK gives the socket alone, and not what it has read of it already",
            ),
            (
                "quintain.interfaces.engine",
                "p._version",
                "torch counts the changes of a tensor there",
            ),
        )
    },
}
"""What a rule finds and may stay: by rule and text, without numbers of lines, each with the day and
the reason.
"""


def part(name: str) -> str:
    """Return the folder or root module that a module of the package belongs to; empty for the root
    itself.
    """
    return f"{name}.".split(".")[1]


def internal(checkout: Checkout) -> Iterator[Import]:
    """Imports of one module of the package by another; not those of the root, whose lazy names
    reach up by design.
    """
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
    violations = [f"{PACKAGE}.{name} has no layer" for name in sorted(unknown)]
    for one in internal(checkout):
        here, there = part(one.source.name), part(one.target)
        if one.target == PACKAGE:
            violations.append(f"{one}: the root of the package reaches up to every layer")
        elif here in unknown or there == here or {here, there} <= ROOT_FILES - {"__main__"}:
            continue
        elif RANK.get(there, len(LAYERS)) >= RANK[here]:
            violations.append(f"{one}: {there} does not lie below {here}")
    return violations


def cycles(checkout: Checkout) -> list[str]:
    """Sets of modules that import one another in a circle, and sets of members that do."""
    known = checkout.installed
    edges: dict[str, set[str]] = {name: set() for name in known}
    for one in connections(checkout):
        if one.target in known:
            edges[one.source.name].add(one.target)
    of_members: dict[str, set[str]] = {module.member: set() for module in known.values()}
    for name, targets in edges.items():
        of_members[known[name].member] |= {known[target].member for target in targets}
    components = strong_components(edges) + strong_components(of_members)
    return [" <-> ".join(sorted(circle)) for circle in components if len(circle) > 1]


def connections(checkout: Checkout) -> Iterator[Import]:
    """Imports of one installed module by another; not those of the root, as in `internal`."""
    yield from internal(checkout)
    known = checkout.installed
    for module in checkout.members.values():
        for one in imports(module, known):
            if one.target not in (module.name, PACKAGE):
                yield one


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


def run_without_registry(checkout: Checkout) -> list[str]:
    """Imports of the learner by a run, which gets it by name from the registry."""
    return [
        f"{one}: a run gets it from the registry"
        for one in internal(checkout)
        if part(one.source.name) in ("recipe", "run") and part(one.target) == "learning"
    ]


def raw_recipe(checkout: Checkout) -> list[str]:
    """Uses of the recipe in a run: a table of it, a part of its plain data, a value of it."""
    violations = []
    for module in checkout.package.values():
        if part(module.name) == "run":
            tables = [
                str(one)
                for one in imports(module, checkout.package)
                if one.target == f"{PACKAGE}.recipe.tables"
            ]
            violations += [f"{text}: {RAW}" for text in tables + parts_of_recipe(module)]
    return violations


def parts_of_recipe(module: Module) -> list[str]:
    """Places that read a value of a ``recipe``, or more than the whole of ``plan.record``."""
    owners = tree(module.text).parents
    violations = []
    for node in module.find(ast.Attribute):
        value = dotted(node.value).rpartition(".")[2]
        handed_on = isinstance(owners[node], (ast.Call, ast.keyword, ast.Dict))
        if value == "recipe" or (value == "plan" and node.attr == "record" and not handed_on):
            violations.append(f"{module.at(node)} uses {ast.unparse(node)}")
    return violations


def computed_imports(checkout: Checkout) -> list[str]:
    """Imports that the source does not name, which escape every other rule: by a computed name, by
    code in a text, or by a function of `importlib` that is handed on.
    """
    return [
        f"{module.at(node)} {COMPUTED}"
        for module in checkout.installed.values()
        for node, target in imported_by_expressions(module)
        if target is None
    ]


# ------------------------------------------------- rules 3, 4 and 7: the base, the kernel and sizes
def base_imports(checkout: Checkout) -> list[str]:
    """Libraries that the base imports beyond the standard one, pydantic and pluggy."""
    return [
        f"{one}: the base has no such library"
        for module in base(checkout)
        for one in imports(module, checkout.package)
        if is_heavy(one)
    ]


def base_loads(checkout: Checkout) -> list[str]:
    """Such libraries that a module of the base loads by the modules that it imports."""
    loaded = {
        name: list(loads(module, checkout.package)) for name, module in checkout.package.items()
    }
    violations = []
    for module in base(checkout):
        reached = {module.name: ""}
        unread = [module.name]
        while unread:
            here = unread.pop()
            for one in loaded[here]:
                if is_heavy(one) and here != module.name:
                    violations.append(f"{module.name} loads {here}, which the base must not: {one}")
                if one.target in loaded and one.target not in reached:
                    reached[one.target] = here
                    unread.append(one.target)
    return violations


def base(checkout: Checkout) -> list[Module]:
    """Return the modules of the base."""
    return [
        module
        for module in checkout.package.values()
        if part(module.name) in BASE_FOLDERS or module.name in BASE_MODULES
    ]


def is_heavy(one: Import) -> bool:
    """Return whether the base does without the library that is imported."""
    library = one.target.partition(".")[0]
    return library not in sys.stdlib_module_names | BASE_LIBRARIES | {PACKAGE}


def kernel(checkout: Checkout) -> list[Module]:
    """Return the modules that a reader needs to understand one step: the reading order, the records
    and the contracts.
    """
    order = {f"{PACKAGE}.{name}" for name in READING_ORDER}
    return [
        m
        for m in checkout.package.values()
        if part(m.name) in ("types", "interfaces") or m.name in order
    ]


def tokens(modules: Iterable[Module]) -> int:
    """Tokens of these files together."""
    return sum(module.tokens for module in modules)


def large_kernel(checkout: Checkout) -> list[str]:
    """Return a kernel of more than its number of tokens."""
    return over_budget("the kernel", kernel(checkout), KERNEL_TOKENS)


def reading(checkout: Checkout, *, distance: int = 1) -> list[Module]:
    """Return the reading order with the modules of `READING_FOLDERS` that it imports, and those
    that these import, up to *distance* imports away. Code that moves to a neighbour stays in it.
    """
    found = {f"{PACKAGE}.{name}" for name in READING_ORDER}
    for _ in range(distance):
        targets = {
            one.target
            for name in found
            for one in imports(checkout.package[name], checkout.package)
        }
        found |= {
            name for name in targets & checkout.package.keys() if part(name) in READING_FOLDERS
        }
    return [checkout.package[name] for name in sorted(found)]


def large_reading(checkout: Checkout) -> list[str]:
    """Return a reading order that has more than its number of tokens with what it imports, or with
    all that is behind that.
    """
    return [
        *over_budget("the reading order", reading(checkout), READING_TOKENS),
        *over_budget(
            "the reading order with all behind it",
            reading(checkout, distance=len(checkout.package)),
            READING_WITH_ALL_TOKENS,
        ),
    ]


def over_budget(name: str, modules: Iterable[Module], limit: int) -> list[str]:
    """Say that *modules* have more than *limit* tokens, where they do, and which folder has most."""
    sizes = Counter[str]()
    for module in modules:
        sizes[module.folder] += module.tokens
    if sizes.total() <= limit:
        return []
    (folder, largest), *_ = sizes.most_common(1)
    return [
        f"{name} has {sizes.total():,} tokens of {limit:,}; {folder} has most of them "
        f"({largest:,}): simplify what a step needs, or raise the limit with a reason in "
        "docs/decisions"
    ]


def root_files(checkout: Checkout) -> list[str]:
    """Return what lies directly in the package besides its modules, its parts and its data, or is
    missing there.
    """
    files = {f"{name}.py" for name in ROOT_FILES}
    expected = files | ROOT_DATA | {name for name in RANK if name not in ROOT_FILES}
    return sorted(f"{PACKAGE}/{name}" for name in checkout.top ^ expected)


def long_files(checkout: Checkout) -> list[str]:
    """Files of more than 5,000 tokens, members and scripts included."""
    return [
        f"{module.name} has {module.tokens:,} tokens, {FILE_TOKENS:,} at most: split it, one file "
        f"per noun"
        for module in checkout.all
        if module.tokens > FILE_TOKENS
    ]


def long_functions(checkout: Checkout) -> list[str]:
    """Functions of more than 700 tokens, members and scripts included.

    Their signature and docstring do not count: a command has a line per option and per paragraph of
    its ``--help``, a public function one per argument and error, and a split of the function would
    not shorten either.
    """
    return [
        f"{module.at(node)} {node.name} has {size:,} tokens, {FUNCTION_TOKENS} at most: name its "
        f"parts as functions"
        for module in checkout.all
        for node, size in functions_by_size(module).items()
        if size > FUNCTION_TOKENS
    ]


@cache
def functions_by_size(module: Module) -> dict[ast.FunctionDef | ast.AsyncFunctionDef, int]:
    """Return the functions of a module with the tokens of each."""
    return {node: body_tokens(module, node) for node in module.find(*FUNCTIONS)}


def body_tokens(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Tokens of a function after its signature and docstring."""
    lines = code_lines(module.text)
    return bisect_right(lines, function.end_lineno or function.lineno) - bisect_left(
        lines, function.body[0].lineno
    )


# ---------------------------------------------------------------- rule 5: names
def repeated_classes(checkout: Checkout) -> list[str]:
    """Class names with two meanings, nested classes included. A private one has to be unique in its
    member only.
    """
    places = defaultdict(list)
    for module in checkout.installed.values():
        for node in module.find(ast.ClassDef):
            member = module.member if private(node.name) else ""
            places[node.name, member].append(module.at(node))
    return [
        f"class {name}: {', '.join(where)}"
        for (name, _), where in sorted(places.items())
        if len(where) > 1
    ]


def without_exceptions(rule: Rule) -> Rule:
    """Leave the `EXCEPTIONS` out of what a rule finds, and report those that it finds no more."""

    @wraps(rule)
    def checked(checkout: Checkout) -> list[str]:
        bare_texts = {text: re.sub(r":\d+\b", "", text) for text in rule(checkout)}
        excepted = EXCEPTIONS.get(rule.__name__, {})
        gone = excepted.keys() - bare_texts.values()
        return [text for text, bare in bare_texts.items() if bare not in excepted] + [
            f"no longer so, so that its exception can go: {text}" for text in sorted(gone)
        ]

    return checked


RULES: dict[str, Rule] = {
    rule.__name__: without_exceptions(rule)
    for rule in (
        layers,
        cycles,
        run_without_registry,
        computed_imports,
        base_imports,
        base_loads,
        root_files,
        large_kernel,
        large_reading,
        long_files,
        long_functions,
        repeated_classes,
        private_names,
        private_attributes,
        inherited_privates,
        undeclared_exports,
        member_imports,
        undeclared_imports,
        unnamed_extras,
        unreachable_modules,
        raw_recipe,
        lonely_kinds,
    )
}
"""Each returns its violations, one line of text for each."""


def main(root: Path) -> int:
    """Print the tokens of every part, then the violations of every rule. Return how many there are."""
    checkout = read(root)
    sizes = Counter[str]()
    for module in checkout.package.values():
        sizes[part(module.name) or "__init__"] += module.tokens
    for name in sorted(sizes, key=lambda name: (RANK.get(name, -1), name)):
        print(f"{sizes[name]:7,}  {name}")
    print(f"{tokens(kernel(checkout)):7,}  kernel (at most {KERNEL_TOKENS:,})")
    near, whole = reading(checkout), reading(checkout, distance=len(checkout.package))
    print(f"{tokens(near):7,}  reading order (at most {READING_TOKENS:,})")
    print(f"{tokens(whole):7,}  all behind it (at most {READING_WITH_ALL_TOKENS:,})")
    size = tokens(checkout.package.values())
    print(f"{size:7,}  package")
    count = 0
    for name, rule in RULES.items():
        violations = rule(checkout)
        count += len(violations)
        print(f"{name}: {len(violations)}", *violations, sep="\n  ")
    return count


if __name__ == "__main__":
    sys.exit(1 if main(Path(__file__).resolve().parent.parent) else 0)
