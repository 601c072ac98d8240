"""Small Python functions from a list of steps: the text of each, what it computes, and the slips
one makes.

Text and value come from the same steps, so nothing here executes text. A *slip* is a common mistake
at a known place: missing brackets, a bound that is off by one or has the wrong side, an empty list
that nobody thought of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from random import Random
from typing import Any, NamedTuple, TypeAlias

from .expressions import CONFUSED, Tree, append, compute, prepend_minus, render

Slips: TypeAlias = Callable[[], bool]
"""Asked at each place where a slip is possible: whether to make it."""


class Step(NamedTuple):
    """One step of a specification: what to do, and with which number, parameter or letter."""

    name: str
    operand: int | str = ""


@dataclass(frozen=True)
class Call:
    """A call of the solution and what it must return."""

    arguments: tuple[Any, ...]
    expected: Any

    def text(self, name: str) -> str:
        """Return the call as Python source."""
        return f"{name}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function: the lines of its body, and what it returns."""

    lines: tuple[str, ...]
    value: Callable[..., Any]

    def text(self, name: str, parameters: Sequence[str]) -> str:
        """Return the definition with this *name*."""
        return "\n".join(
            [f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in self.lines)]
        )


@dataclass(frozen=True, kw_only=True)
class Specification:
    """What a function has to compute, in words of its own *kind* of steps.

    Attributes:
        kind: a key of `KINDS`.
        parameters: of the function, in order.
        steps: in the order of the prompt.
    """

    kind: str
    parameters: tuple[str, ...]
    steps: tuple[Step, ...]

    def sentence(self) -> str:
        """Return the steps as one phrase without a full stop."""
        kind = KINDS[self.kind]
        phrases = [kind.phrases[step.name].format(step.operand) for step in self.steps]
        return ", ".join([kind.opening.format(self.parameters[0]), *phrases])

    def function(self, slips: Slips = lambda: False) -> Function:
        """Return the function, with the slips that *slips* asks for."""
        return KINDS[self.kind].build(self, slips)

    def slipped(self) -> Iterator[Function]:
        """Yield the function with one slip, for each place of one."""
        places = 0

        def count() -> bool:
            nonlocal places
            places += 1
            return False

        self.function(count)
        for place in range(places):
            numbers = iter(range(places))
            yield self.function(lambda numbers=numbers, place=place: next(numbers, None) == place)  # type: ignore[misc]

    def neighbours(self) -> Iterator[Function]:
        """Yield functions of similar specifications: an operand one more or less, a step left out,
        two steps swapped.
        """
        for position, step in enumerate(self.steps):
            if isinstance(step.operand, int):
                for operand in (step.operand - 1, step.operand + 1):
                    yield self._with(position, 1, [Step(step.name, operand)])
            yield self._with(position, 1, [])
            yield self._with(position, 2, self.steps[position : position + 2][::-1])

    def _with(self, position: int, count: int, steps: Sequence[Step]) -> Function:
        changed = (*self.steps[:position], *steps, *self.steps[position + count :])
        return replace(self, steps=changed).function()

    def renamed(self, names: Mapping[str, str]) -> Specification:
        """Return the same with other names of parameters."""
        steps = tuple(
            Step(s.name, names[str(s.operand)]) if s.operand in self.parameters else s
            for s in self.steps
        )
        return replace(self, parameters=tuple(names[p] for p in self.parameters), steps=steps)

    def arguments(self, rng: Random) -> tuple[Any, ...]:
        """Draw random arguments, often at the bounds that the steps name."""
        return KINDS[self.kind].arguments(self, rng)


# ---------------------------------------------------------------- numbers: one expression
OPERATORS: dict[str, str] = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "//", "remainder": "%", "square": "**",
}  # fmt: skip


def _build_numbers(specification: Specification, slips: Slips) -> Function:
    tree: Tree = specification.parameters[0]
    for step, operand in specification.steps:
        name = OPERATORS.get(step, step)
        if name in CONFUSED and slips():
            name = CONFUSED[name]
        if step in ("max", "min"):
            tree = (name, tree, operand)
            continue
        right: Tree
        flat: Tree
        if step == "from":
            right, flat = ("-", operand, tree), prepend_minus(operand, tree)
        else:
            right, flat = (name, tree, operand or 2), append(tree, name, operand or 2)
        tree = flat if flat != right and slips() else right
    names = specification.parameters
    return Function(
        lines=(f"return {render(tree)}",),
        value=lambda *args: compute(tree, dict(zip(names, args, strict=True))),
    )


SUMS = ("add", "subtract", "from")
PARAMETERS = ("x", "y", "z", "w")


def _draw_formulas(
    rng: Random, level: int, constants: float = 0.0
) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    """Return a share *constants* of the operands are numbers, the others parameters, each of which
    comes once.
    """
    parameters: tuple[str, ...] = ("x",)
    steps: list[Step] = []
    for _ in range(level):
        # Sums come first more often, so that brackets matter; no step comes twice, so that values
        # stay small.
        names = [n for n in _EXPRESSIONS if n not in {step.name for step in steps}]
        name = rng.choice(SUMS if not steps and rng.random() < 0.5 else names)
        operand: int | str = "" if name == "square" else rng.randint(2, 9)
        if name != "square" and rng.random() >= constants:
            operand = PARAMETERS[len(parameters)]
            parameters += (operand,)
        steps.append(Step(name, operand))
    return parameters, tuple(steps)


def _draw_numbers(rng: Random, level: int) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    return _draw_formulas(rng, level, 0.7)


def _number_arguments(specification: Specification, rng: Random) -> tuple[Any, ...]:
    first, *others = (_near_or_far(rng, -12, 12) for _ in specification.parameters)
    return first, *(n or 1 for n in others)  # which may divide


def _near_or_far(rng: Random, low: int, high: int) -> int:
    """Return a number of the range, where bounds lie, or of one that is too wide for a table of all
    of it.
    """
    return rng.randint(low, high) if rng.random() < 0.5 else rng.randint(50 * low, 50 * high)


# ----------------------------------------------------------- lists and loops: keep, change, collect
def _condition(step: Step, slips: Slips) -> tuple[str, Callable[[int], bool]]:
    """Return text and meaning of a step that keeps some of the numbers *v*."""
    k = step.operand
    assert isinstance(k, int)
    match step.name:
        case "above":
            return f"v > {k}", lambda v: v > k
        case "below":
            return f"v < {k}", lambda v: v < k
        case "at_least":
            return (f"v > {k}", lambda v: v > k) if slips() else (f"v >= {k}", lambda v: v >= k)
        case "at_most":
            return (f"v < {k}", lambda v: v < k) if slips() else (f"v <= {k}", lambda v: v <= k)
        case _:
            return f"v % {k} == 0", lambda v: v % k == 0


def _changed(step: Step) -> tuple[str, Callable[[int], int]]:
    """Return text and meaning of a step that changes each number *v*."""
    k = step.operand
    if step.name == "square":
        return "v * v", lambda v: v * v
    assert isinstance(k, int)
    return (f"v + {k}", lambda v: v + k) if step.name == "add" else (f"v * {k}", lambda v: v * k)


KEEP = ("above", "below", "at_least", "at_most", "divides")
CHANGE = ("add", "multiply", "square")
COLLECT = ("sum", "count", "largest", "sort")


def _parts(
    specification: Specification, slips: Slips
) -> tuple[str, str, Callable[[Sequence[int]], list[int]], str]:
    """Return condition and change of *v* as texts, both as one function of a sequence, and the
    collecting step's name, as in ``("v > 3", "v * v", squares_above_3, "sum")``.
    """
    holds: Callable[[int], bool]
    changed: Callable[[int], int]
    condition, holds = "", lambda v: True
    change, changed = "v", lambda v: v
    collect = ""
    for step in specification.steps:
        if step.name in KEEP:
            condition, holds = _condition(step, slips)
        elif step.name in CHANGE:
            change, changed = _changed(step)
        else:
            collect = step.name
    return condition, change, lambda values: [changed(v) for v in values if holds(v)], collect


def _build_lists(specification: Specification, slips: Slips) -> Function:
    (x,) = specification.parameters
    condition, change, of, collect = _parts(specification, slips)
    loop = f"{change} for v in {x}" + (f" if {condition}" if condition else "")
    plain = loop == f"v for v in {x}"
    made = x if plain else f"[{loop}]"
    match collect:
        case "sum":
            return Function(
                lines=(f"return sum({x if plain else loop})",), value=lambda v: sum(of(v))
            )
        case "count":
            return Function(lines=(f"return len({made})",), value=lambda v: len(of(v)))
        case "largest":
            if slips():
                return Function(lines=(f"return max({made})",), value=lambda v: max(of(v)))
            return Function(
                lines=(f"return max({made}, default=0)",), value=lambda v: max(of(v), default=0)
            )
        case "sort":
            return Function(lines=(f"return sorted({made})",), value=lambda v: sorted(of(v)))
        case _:
            return Function(lines=(f"return {made}",), value=of)


def _build_loops(specification: Specification, slips: Slips) -> Function:
    (n,) = specification.parameters
    end = 0 if slips() else 1
    condition, change, of, collect = _parts(specification, slips)
    total = f"t += {1 if collect == 'count' else change}"
    body = (f"    if {condition}:", f"        {total}") if condition else (f"    {total}",)
    lines = (
        "t = 0",
        f"for v in range(1, {n} + 1):" if end else f"for v in range(1, {n}):",
        *body,
        "return t",
    )
    reduce = len if collect == "count" else sum
    return Function(lines=lines, value=lambda n: reduce(of(range(1, n + end))))


def _draw_collecting(
    rng: Random, level: int, x: str, keep: Sequence[str], collect: Sequence[str], change: float
) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    steps = [Step(rng.choice(collect))]
    if steps[0].name != "count" and (level > 2 or (level > 1 and rng.random() < change)):
        name = rng.choice(CHANGE)
        steps.insert(0, Step(name, "" if name == "square" else rng.randint(2, 9)))
    while len(steps) < level and (len(steps) < 2 or steps[0].name in CHANGE):
        name = rng.choice(keep)
        steps.insert(0, Step(name, rng.randint(2, 5 if name == "divides" else 9)))
    return (x,), tuple(steps)


def _draw_lists(rng: Random, level: int) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    return _draw_collecting(rng, level, "x", KEEP, COLLECT, 0.4)


def _draw_loops(rng: Random, level: int) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    return _draw_collecting(
        rng, level, "n", ("divides", "above", "at_least"), ("sum", "count"), 0.4
    )


def _list_arguments(specification: Specification, rng: Random) -> tuple[Any, ...]:
    bounds = [
        step.operand + d
        for step in specification.steps
        if isinstance(step.operand, int)
        for d in (-1, 0, 1)
    ]
    return (
        [
            rng.choice([rng.randint(-9, 19), *bounds])
            for _ in range(rng.choice((0, 1, 2, 3, 4, 5, 6)))
        ],
    )


def _loop_arguments(specification: Specification, rng: Random) -> tuple[Any, ...]:
    return (_near_or_far(rng, 0, 12),)


# ---------------------------------------------------------------- text: slices and methods
SLICES: dict[str, tuple[str, Callable[[int, str], str]]] = {
    "first": ("[:{}]", lambda k, s: s[:k]),
    "last": ("[-{}:]", lambda k, s: s[-k:]),
    "drop_first": ("[{}:]", lambda k, s: s[k:]),
    "drop_last": ("[:-{}]", lambda k, s: s[:-k]),
}


def _build_text(specification: Specification, slips: Slips) -> Function:
    (text,) = specification.parameters
    functions: list[Callable[[Any], Any]] = []
    for name, operand in specification.steps:
        if name in SLICES:
            assert isinstance(operand, int)
            k = operand - 1 if slips() else operand
            written, cut = SLICES[name]
            text += written.format(k)
            functions.append(partial(cut, k))
        elif name == "reverse":
            text += "[::-1]"
            functions.append(lambda s: s[::-1])
        elif name == "upper":
            text += ".upper()"
            functions.append(str.upper)
        elif name == "length":
            text = f"len({text})"
            functions.append(len)
        else:
            text += f".count({operand!r})"
            functions.append(methodcaller("count", operand))

    def value(s: Any) -> Any:
        for function in functions:
            s = function(s)
        return s

    return Function(lines=(f"return {text}",), value=value)


def _draw_text(rng: Random, level: int) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    steps: list[Step] = []
    while len(steps) < level:
        earlier = {step.name for step in steps}
        names = [*SLICES, "reverse", "upper"]
        last = len(steps) == level - 1
        name = rng.choice(
            [n for n in [*names, *(("length", "count") if last else ())] if n not in earlier]
        )
        operand: int | str = (
            rng.choice("abc") if name == "count" else rng.randint(2, 4) if name in SLICES else ""
        )
        steps.append(Step(name, operand))
    return ("s",), tuple(steps)


def _text_arguments(specification: Specification, rng: Random) -> tuple[Any, ...]:
    return ("".join(rng.choice("abcabcdefABC ") for _ in range(rng.randint(0, 12))),)


# ---------------------------------------------------------------- tables: a dictionary
def _pairs(steps: Sequence[Step]) -> dict[int, int]:
    """Return keys and values of steps with operands such as ``8 give 3``."""
    return {int(key): int(value) for key, _, value in (str(step.operand).split() for step in steps)}


def _build_tables(specification: Specification, slips: Slips) -> Function:
    (x,) = specification.parameters
    table = _pairs(specification.steps)
    if slips():
        return Function(lines=(f"return {table}.get({x})",), value=table.get)
    return Function(lines=(f"return {table}.get({x}, {x})",), value=lambda x: table.get(x, x))


def _draw_tables(rng: Random, level: int) -> tuple[tuple[str, ...], tuple[Step, ...]]:
    keys = rng.sample(range(10), level)
    pairs = [(key, rng.choice([n for n in range(10) if n != key])) for key in keys]
    return ("x",), tuple(Step("give", f"{key} give {value}") for key, value in pairs)


def _table_arguments(specification: Specification, rng: Random) -> tuple[Any, ...]:
    return (
        rng.choice(
            [
                *_pairs(specification.steps),
                *(_near_or_far(rng, -9, 19) for _ in specification.steps),
            ]
        ),
    )


# ---------------------------------------------------------------- the kinds
@dataclass(frozen=True, kw_only=True)
class FunctionKind:
    """A kind of functions.

    Attributes:
        opening: words before the steps; has a place for the first parameter.
        phrases: words of each step, with a place for its operand.
        draw: parameters and as many steps as asked for.
    """

    opening: str
    phrases: dict[str, str]
    draw: Callable[[Random, int], tuple[tuple[str, ...], tuple[Step, ...]]]
    build: Callable[[Specification, Slips], Function]
    arguments: Callable[[Specification, Random], tuple[Any, ...]]


_EXPRESSIONS = {
    "add": "add {}",
    "subtract": "minus {}",
    "multiply": "times {}",
    "divide": "div {}",
    "remainder": "mod {}",
    "from": "take from {}",
    "square": "square",
    "max": "at least {}",
    "min": "at most {}",
}
_COLLECTING = {
    "above": "keep above {}",
    "below": "keep below {}",
    "at_least": "keep from {} up",
    "at_most": "keep up to {}",
    "divides": "keep multiples of {}",
    "add": "add {} to each",
    "multiply": "multiply each by {}",
    "square": "square each",
    "sum": "sum",
    "count": "count",
    "largest": "largest or 0",
    "sort": "sort",
}
KINDS = {
    "formulas": FunctionKind(
        opening="{}",
        phrases=_EXPRESSIONS,
        draw=_draw_formulas,
        build=_build_numbers,
        arguments=_number_arguments,
    ),
    "numbers": FunctionKind(
        opening="{}",
        phrases=_EXPRESSIONS,
        draw=_draw_numbers,
        build=_build_numbers,
        arguments=_number_arguments,
    ),
    "lists": FunctionKind(
        opening="list {}",
        phrases=_COLLECTING,
        draw=_draw_lists,
        build=_build_lists,
        arguments=_list_arguments,
    ),
    "loops": FunctionKind(
        opening="loop from 1 to {}",
        phrases=_COLLECTING,
        draw=_draw_loops,
        build=_build_loops,
        arguments=_loop_arguments,
    ),
    "tables": FunctionKind(
        opening="{} as it is",
        phrases={"give": "for {}"},
        draw=_draw_tables,
        build=_build_tables,
        arguments=_table_arguments,
    ),
    "text": FunctionKind(
        opening="text {}",
        phrases={
            "first": "the first {}",
            "last": "the last {}",
            "drop_first": "without the first {}",
            "drop_last": "without the last {}",
            "reverse": "reverse",
            "upper": "upper case",
            "length": "length",
            "count": "count letter {}",
        },
        draw=_draw_text,
        build=_build_text,
        arguments=_text_arguments,
    ),
}
