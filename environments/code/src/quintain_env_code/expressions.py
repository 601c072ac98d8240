"""Expressions as trees: what Python reads with brackets, and what it reads where a pair of them is
missing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TypeAlias

Tree: TypeAlias = "int | str | tuple[str, Tree, Tree]"
"""A number, a parameter, or an operation on two trees; ``max`` and ``min`` are written as calls."""

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "/": 2, "%": 2, "**": 3}
COMPUTE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "**": operator.pow,
    "max": max,
    "min": min,
}
CONFUSED = {"max": "min", "min": "max", "//": "/"}
"""An operation, and the one that a slip writes instead."""


def render(tree: Tree) -> str:
    """Return the expression with the brackets that it needs, and no others."""
    if not isinstance(tree, tuple):
        return str(tree)
    name, left, right = tree
    if name not in PRECEDENCE:
        return f"{name}({render(left)}, {render(right)})"
    weak_left = _precedence(left) < PRECEDENCE[name] + (name == "**")
    weak_right = _precedence(right) <= PRECEDENCE[name] - (name == "**")
    texts = (
        f"({render(t)})" if weak else render(t)
        for t, weak in ((left, weak_left), (right, weak_right))
    )
    return f" {name} ".join(texts)


def _precedence(tree: Tree) -> int:
    return PRECEDENCE.get(tree[0], 4) if isinstance(tree, tuple) else 4


def compute(tree: Tree, values: dict[str, int]) -> int:
    """Return the value of the expression."""
    if isinstance(tree, tuple):
        return COMPUTE[tree[0]](compute(tree[1], values), compute(tree[2], values))
    return values[tree] if isinstance(tree, str) else tree


def append(tree: Tree, name: str, operand: Tree) -> Tree:
    """Return what Python reads where the operator *name* and *operand* are written behind *tree*
    without brackets.
    """
    if isinstance(tree, tuple) and _precedence(tree) < PRECEDENCE[name]:
        bracketed = _precedence(tree[2]) <= _precedence(tree)
        right: Tree = (name, tree[2], operand) if bracketed else append(tree[2], name, operand)
        return tree[0], tree[1], right
    return name, tree, operand


def prepend_minus(operand: Tree, tree: Tree) -> Tree:
    """Return what Python reads where *operand* and a minus sign are written before *tree* without
    brackets.
    """
    if isinstance(tree, tuple) and _precedence(tree) == PRECEDENCE["-"]:
        return tree[0], prepend_minus(operand, tree[1]), tree[2]
    return "-", operand, tree
