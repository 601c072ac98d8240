"""The kinds of constraints that prompts are made of: how one is drawn, asked for, written and
broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from quintain.errors import UsageError

from .checks import Constraint
from .outlines import Outline

Drawn = tuple[str, Mapping[str, Any], str, Mapping[str, Any]]
"""Id, arguments, the sentence of the prompt, and the values."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of constraint.

    Attributes:
        claims: parts of a reply that it decides. Two kinds that claim one part never meet.
        easy: whether level 1 draws it: a small model meets it sometimes, and a reply that ignores
            it does not.
        idle: whether nearly every reply follows it, so that a prompt needs another one besides.
        alone: whether it decides the whole reply, so that it meets no other kind.
        draw: returns a constraint; its second argument has words that no other constraint has.
        write: enters the constraint in a outline.
        spoil: breaks the constraint in a reply that follows it.
    """

    claims: frozenset[str]
    easy: bool
    idle: bool
    alone: bool
    draw: Callable[[Random, Words], Drawn]
    write: Callable[[Outline, Mapping[str, Any]], None]
    spoil: Callable[[str, Mapping[str, Any]], str]


PATIENCE = 1000
"""Draws after which there is no prompt with such kinds."""


class Words:
    """Words for the constraints of one prompt, each given out once.

    None of them is in the text of an outline (`quintain_env_instructions.outlines`).
    """

    def __init__(self, rng: Random) -> None:
        self._left = rng.sample(KEYWORDS, len(KEYWORDS))

    def take(self) -> str:
        """Return a word that nobody had."""
        return self._left.pop()


KEYWORDS = (
    "apple autumn basket beach berry blanket bread butter cake camera candle carpet castle chair "
    "coffee copper cotton cousin desert dinner doctor dragon engine feather fire garlic ghost glass "
    "gold guitar hammer honey island jacket jungle kettle ladder lemon magic milk mirror morning "
    "music nest ocean onion orange paper pencil pepper piano planet potato rain ring river "
    "salt school shadow silver snow soap soup spider spring stamp sugar summer sun tea thunder ticket "
    "tiger tomato turtle valley violin whale wheel winter wolf"
).split()
KINDS: dict[str, Kind] = {}


def kind(
    name: str,
    *claims: str,
    easy: bool = False,
    idle: bool = False,
    alone: bool = False,
    write: Callable[[Outline, Mapping[str, Any]], None],
    spoil: Callable[[str, Mapping[str, Any]], str],
) -> Callable[[Callable[[Random, Words], Drawn]], Callable[[Random, Words], Drawn]]:
    """Enter the function that draws a kind in `KINDS`."""

    def enter(draw: Callable[[Random, Words], Drawn]) -> Callable[[Random, Words], Drawn]:
        KINDS[name] = Kind(
            claims=frozenset((name, *claims)),
            easy=easy,
            idle=idle,
            alone=alone,
            draw=draw,
            write=write,
            spoil=spoil,
        )
        return draw

    return enter


def may_meet(names: Sequence[str]) -> bool:
    """Return whether kinds of these *names* can be in one prompt."""
    kinds = [KINDS[name] for name in names]
    if all(each.idle for each in kinds):
        return False
    if any(each.alone for each in kinds):
        return len(kinds) == 1
    claimed = [claim for each in kinds for claim in each.claims]
    return len(claimed) == len(set(claimed))


def drawn(name: str, rng: Random, words: Words) -> Constraint:
    """Return a constraint of the kind *name* with drawn parameters."""
    check, arguments, asked, values = KINDS[name].draw(rng, words)
    return Constraint(kind=name, id=check, arguments=arguments, asked=asked, values=values)


def draw_all(count: int, rng: Random, words: Words, names: Sequence[str] = ()) -> list[Constraint]:
    """Return *count* constraints that one reply can follow together; one alone is an easy one.

    Args:
        names: of the kinds to draw from; empty takes all that are as easy as *count* asks.

    Raises:
        UsageError: so many kinds of *names* cannot be in one prompt.
    """
    names = names or [name for name, each in KINDS.items() if each.easy or count > 1]
    for _ in range(PATIENCE):
        if len(names) < count:
            break
        chosen = rng.sample(names, count)
        if not may_meet(chosen):
            continue
        constraints = [drawn(name, rng, words) for name in chosen]
        if outline_of(constraints).feasible:
            return constraints
    raise UsageError(
        f"no {count} kinds of {', '.join(names)} can be in one prompt; name others, or a lower level"
    )


def outline_of(constraints: Sequence[Constraint]) -> Outline:
    """Return the outline that follows all *constraints*."""
    outline = Outline()
    for constraint in constraints:
        KINDS[constraint.kind].write(outline, constraint.values)
    return outline


def rule(criterion: str, asked: str, **values: Any) -> Drawn:
    """Return a constraint that a sentence of the grammar of rules decides."""
    return "rule", {"criterion": criterion}, asked, values
