"""Reward expressions as text: ``0.1 * kind(rubric="polite") + ranked.clip(-1, 1)``.

The language is the algebra of `quintain.interfaces.reward`. Python's parser reads the text, and
each node is checked against this grammar; other nodes are errors with their column. No code is
evaluated::

    sum     = sum ("+" | "-") product | product
    product = product "*" factor | factor
    factor  = "-" factor | number | reward | factor "." method | "(" sum ")"
    reward  = name | use("distribution/name") | reward(keyword=literal, ...)
    method  = clip(low, high) | gate(sum, at=1.0) | ramp(start, stop, steps)

A literal is text, a number, true or false (``True``), ``None``, or a list, tuple or dict of
literals.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import (
    RecipeError,
    UnknownNameError,
    UsageError,
    did_you_mean,
)
from ..interfaces.reward import Reward, RewardFunction, constant
from ..registry.binding import bind

Resolve = Callable[[str], Any]
_METHODS = {"clip": ("low", "high"), "gate": ("by", "at"), "ramp": ("start", "stop", "steps")}
_ALLOWED = "rewards, numbers, + - * and .clip .gate .ramp"
_LONGEST = 4000
_DEEPEST = 50
"""Brackets, signs and operators around one name or number; an expression that a person writes has
fewer than ten.
"""
_SHOWN = 100
"""Characters of a longer text that an error shows."""


def parse_reward(text: str, resolve: Resolve, *, where: str = "reward") -> Reward:
    """Parse *text* as a reward.

    Args:
        resolve: name (or ``distribution/name``) to reward; raises `UnknownNameError` for unknown
            names.
        where: name of the text in errors, such as ``environments.0.shaping``.

    Raises:
        RecipeError: *text* is not in the grammar, or a number is out of range; with the column.
        UnknownNameError: *resolve* raised it; with the column.
    """
    try:
        value = _Walk(text.strip().replace("\n", " "), resolve, where).top()
    except (MemoryError, RecursionError):  # the stack of the caller may be deep, too
        raise RecipeError(
            f"{where} is nested more than {_DEEPEST} deep; expected {_ALLOWED}"
        ) from None
    return constant(value) if isinstance(value, (int, float)) else value


def as_expression(text: str) -> str:
    """Return *text*, or ``use("FILE:function")`` for ``FILE:function``."""
    return (
        f'use("{text.strip()}")'
        if re.fullmatch(r"[^\s\"'()]+:[A-Za-z_]\w*", text.strip())
        else text
    )


def qualified(text: str, qualify: Callable[[str], str]) -> str:
    """Return the valid expression *text* with ``use("...")`` for each reward that *qualify* gives
    another name.
    """
    line = text.strip().replace("\n", " ").encode()
    names: list[tuple[int, int, str]] = []
    for node in ast.walk(ast.parse(line, mode="eval")):
        match node:
            case ast.Name(id=name) if name != "use":
                names.append((node.col_offset, node.end_col_offset or 0, name))
            case ast.Call(func=ast.Name(id="use"), args=[ast.Constant(value=str(name))]):
                names.append((node.col_offset, node.end_col_offset or 0, name))
    for begin, end, name in sorted(names, reverse=True):
        if (full := qualify(name)) != name:
            line = line[:begin] + f'use("{full}")'.encode() + line[end:]
    return line.decode() if len(line) <= _LONGEST else text


class _Walk:
    def __init__(self, text: str, resolve: Resolve, where: str) -> None:
        self.text, self.resolve, self.where = text, resolve, where
        self.depth = 0

    def top(self) -> Reward | float:
        if not self.text:
            raise RecipeError(f"{self.where} is empty; name a reward, or leave the key out")
        if len(self.text) > _LONGEST:
            raise RecipeError(
                f"{self.where} has {len(self.text)} characters; expected at most {_LONGEST}"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the parser, about code that is never run
                tree = ast.parse(self.text, mode="eval")
        except SyntaxError as e:
            # The position of a missing end is outside the text.
            position = e.offset - 1 if e.lineno == 1 and e.offset else len(self.text)
            raise self.error(f"cannot read it: {e.msg}", min(position, len(self.text))) from None
        except ValueError as e:
            raise RecipeError(f"{self.where}: cannot read it: {e}") from None
        return self.reward(tree.body)

    def error(
        self, message: str, position: int, kind: type[UsageError] = RecipeError
    ) -> UsageError:
        begin = max(0, position - _SHOWN // 2) if len(self.text) > _SHOWN else 0
        shown = self.text[begin : begin + _SHOWN]
        mark = " " * (position - begin) + "^"
        return kind(f"{self.where}, column {position + 1}: {message}\n  {shown}\n  {mark}")

    def at(self, node: ast.expr) -> int:
        """Return the column of *node*; the parser counts bytes."""
        return len(self.text.encode()[: node.col_offset].decode(errors="ignore"))

    def wrong(self, node: ast.expr, message: str) -> UsageError:
        return self.error(message, self.at(node))

    def deeper(self, read: Callable[[ast.expr], Any], node: ast.expr) -> Any:
        """Return what *read* makes of *node*, which is one level further in."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.wrong(node, f"nested more than {_DEEPEST} deep")
        try:
            return read(node)
        finally:
            self.depth -= 1

    def reward(self, node: ast.expr) -> Reward | float:
        """Return a reward or a plain number."""
        value: Reward | float = self.deeper(self._reward, node)
        return value

    def _reward(self, node: ast.expr) -> Reward | float:
        match node:
            case ast.Constant():
                return self.number(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.reward(operand)
            case ast.BinOp():
                return self.joined(node)
            case ast.Name() | ast.Call(func=ast.Name(id="use")):
                return self.configured(node, node, [])
            case ast.Call(func=ast.Attribute()):
                return self.method(node)
            case ast.Call():
                if node.args:
                    raise self.wrong(
                        node.args[0],
                        "a reward is configured by keyword, as in kind(rubric='polite')",
                    )
                return self.configured(node, node.func, node.keywords)
            case ast.Attribute(attr=attr):
                raise self.wrong(node, f"{attr!r} is not called; write {attr}(...)")
        raise self.wrong(
            node, f"{type(node).__name__} has no place in a reward; expected {_ALLOWED}"
        )

    def number(self, node: ast.Constant) -> float:
        value = node.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(
                node, f"{value!r} is not a reward; expected the name of one, or a number"
            )
        return self.finite(node, value)

    def finite(self, node: ast.expr, value: float) -> float:
        try:
            if math.isfinite(value):
                return value
        except OverflowError:  # a whole number beyond the range of a float
            pass
        raise self.wrong(node, "the number is too large")

    def joined(self, node: ast.BinOp) -> Reward | float:
        a, b = self.reward(node.left), self.reward(node.right)
        value: Reward | float
        match node.op:
            case ast.Add():
                value = a + b
            case ast.Sub():
                value = a - b
            case ast.Mult():
                value = a * b
            case _:
                raise self.wrong(node.right, "only + - * combine rewards")
        return self.finite(node, value) if isinstance(value, (int, float)) else value

    def configured(
        self, node: ast.expr, source: ast.expr, keywords: Sequence[ast.keyword]
    ) -> Reward:
        """Return the reward *source* with *keywords*, which are checked against its signature."""
        reward = self.named(source)
        config = self.keywords(keywords, self.literal)
        if not isinstance(reward, RewardFunction):
            if config:
                raise self.wrong(node, f"{ast.unparse(source)} takes no configuration")
            return reward
        try:
            bound: Reward = bind(reward, config, who=f"reward {reward.name!r}")
        except UsageError as e:
            raise self.wrong(node, str(e)) from e
        return bound

    def named(self, node: ast.expr) -> Reward:
        match node:
            case ast.Name(id=name):
                pass
            case ast.Call(
                func=ast.Name(id="use"), args=[ast.Constant(value=str(name))], keywords=[]
            ):
                pass
            case ast.Call(func=ast.Name(id="use")):
                raise self.wrong(
                    node, 'use() takes one quoted name, as in use("distribution/name")'
                )
            case _:
                raise self.wrong(node, "only a reward can be configured, and once")
        try:
            reward = self.resolve(name)
        except UnknownNameError as e:
            raise self.error(str(e), self.at(node), UnknownNameError) from e
        if not isinstance(reward, Reward):
            kind = type(reward).__name__
            raise self.wrong(
                node, f"{name!r} is a {kind}, not a reward; decorate the function with @reward"
            )
        return reward

    def keywords(
        self, keywords: Sequence[ast.keyword], read: Callable[[ast.expr], Any]
    ) -> dict[str, Any]:
        values = {}
        for keyword in keywords:
            if keyword.arg is None:
                raise self.wrong(keyword.value, "** has no place in a reward")
            values[keyword.arg] = read(keyword.value)
        return values

    def literal(self, node: ast.expr) -> Any:
        return self.deeper(self._literal, node)

    def _literal(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=str() | int() | float() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.List(elts=elements):
                return [self.literal(e) for e in elements]
            case ast.Tuple(elts=elements):
                return tuple(self.literal(e) for e in elements)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self.key(k): self.literal(v)
                    for k, v in zip(keys, values, strict=True)
                    if k is not None
                }
        raise self.wrong(
            node,
            "expected a literal: text, a number, True, False, None, or a list, tuple or dict of "
            "those",
        )

    def key(self, node: ast.expr) -> str | int:
        match node:
            case ast.Constant(value=str() | int() as value):
                return value
        raise self.wrong(node, "expected text or a whole number as a key")

    def method(self, node: ast.Call) -> Reward:
        assert isinstance(node.func, ast.Attribute)
        name = node.func.attr
        if name not in _METHODS:
            raise self.wrong(node.func, f"a reward has no {name!r}{did_you_mean(name, _METHODS)}")
        reward = self.reward(node.func.value)
        if not isinstance(reward, Reward):
            raise self.wrong(node.func, f"a number has no {name!r}; it belongs to a reward")
        nodes = self.arguments(node, name)
        values = {k: self.argument(name, k, v) for k, v in nodes.items()}
        try:
            combined: Reward = getattr(reward, name)(**values)  # one of the three in _METHODS
        except UsageError as e:
            raise self.wrong(node, str(e)) from e
        return combined

    def arguments(self, node: ast.Call, name: str) -> dict[str, ast.expr]:
        names = _METHODS[name]
        if len(node.args) > len(names):
            raise self.wrong(node.args[len(names)], f"{name} takes {', '.join(names)}")
        nodes = dict(zip(names, node.args, strict=False))
        for key, value in self.keywords(node.keywords, lambda n: n).items():
            if key not in names or key in nodes:
                raise self.wrong(value, f"{name} takes {', '.join(names)}, each once; got {key!r}")
            nodes[key] = value
        if missing := [n for n in names if n not in nodes and n != "at"]:
            raise self.wrong(
                node, f"{name} takes {', '.join(names)}; {', '.join(missing)} is missing"
            )
        return nodes

    def argument(self, method: str, key: str, node: ast.expr) -> Reward | float:
        value = self.reward(node)
        if key == "by":
            if isinstance(value, Reward):
                return value
            raise self.wrong(
                node, "gate expects a reward to be gated by, as in brevity.gate(math_equal)"
            )
        if isinstance(value, Reward):
            raise self.wrong(node, f"{method} expects a number for {key}")
        if key == "steps" and not isinstance(value, int):
            raise self.wrong(node, f"{method} expects a whole number for {key}")
        return value
