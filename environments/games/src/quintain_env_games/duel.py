"""The environment `duel`: Nim with two piles, against oneself or against an engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from quintain import (
    Agent,
    Engine,
    Environment,
    Limits,
    Message,
    Rollout,
    Score,
    Task,
    control,
    need,
    reward,
)
from quintain.errors import UsageError

from .habits import slips, turn_rng
from .splits import problems

Piles = tuple[int, int]
MOVE = re.compile(r"\b([AB])\s*=?\s*(\d{1,3})\b")
NEAR = 3
"""The greatest difference of two piles that a beginner sees through."""
SECOND = "second"
"""The player of the second seat."""


@dataclass(frozen=True, kw_only=True)
class Position(Task):
    """The piles at the start.

    Attributes:
        piles: stones of A and of B. They differ, so that the first player can win.
        rival: who plays second: the policy (``self``) or the engine of the slot `opponent`.
    """

    piles: Piles
    rival: Literal["self", "engine"]


@dataclass(frozen=True, kw_only=True)
class Game:
    """A game.

    Attributes:
        winner: 0 the first player, 1 the second, -1 where a limit ended the game.
        illegal: whether the loser lost by a reply without a legal move.
        piles: after each move, the start first.
    """

    winner: int
    illegal: bool
    piles: tuple[Piles, ...]


@reward(range=(0, 1))
def won(rollout: Rollout[Position, Game]) -> Score:
    """Return 1 for the player who took the last stone, 0 for the other; a reply without a legal
    move loses the game.
    """
    game = rollout.result
    first, second = float(game.winner == 0), float(game.winner == 1)
    reason = "illegal move" if game.illegal else ""
    return Score(
        value=first, players={SECOND: second} if rollout.task.rival == "self" else {}, reason=reason
    )


class Duel(Environment[Position, Game]):
    """Nim with two piles: in turn, players make one pile smaller; who takes the last stone wins.

    A move is a pile and the stones that it is left with, ``A 3``; the last one of a reply counts. A
    player who does not name a legal move loses at once: the score is the opponent's win, not a
    fault, since in self-play the other player has won.

    In ``train`` the policy plays both sides, each with a conversation and a score of its own (with
    ``rival = "engine"`` it plays the first only); in ``dev`` and ``test`` the engine of the slot
    `opponent` plays second, by default a script that never errs.

    Attributes:
        top: greatest number of stones in a pile.
        rival: who plays second in ``train``.
        slips: share of the moves of the demonstrations that take a single stone of the larger pile
            where the piles differ by more than `NEAR`; the others make them equal where they can,
            which wins.
        size: tasks in ``dev`` and in ``test`` at most; ``train`` is endless.
        seed: of the piles drawn. Which split two piles belong to, in either order, does not depend
            on it.
    """

    reward = won
    limits = Limits(turns=400)

    top: int = 30
    rival: Literal["self", "engine"] = "self"
    slips: float = 0.5
    size: int = 200
    seed: int = 0
    opponent: Engine = need()

    def __post_init__(self) -> None:
        if not 2 <= self.top <= 99 or not 0 <= self.slips <= 1 or self.size < 1:
            raise UsageError(
                f"duel: top {self.top}, slips {self.slips}, size {self.size}; expected 2 to 99, a "
                f"share, 1 or more"
            )

    def tasks(self, split: str) -> Iterable[Position]:
        rival: Literal["self", "engine"] = self.rival if split == "train" else "engine"
        drawn = problems(
            self._draw, split_key=_either_order, split=split, size=self.size, seed=self.seed
        )
        for piles in drawn:
            yield Position(prompt=view(piles), level=sum(piles), piles=piles, rival=rival)

    def _draw(self, rng: Random) -> Piles:
        a, b = rng.sample(range(self.top + 1), 2)
        return a, b

    async def rollout(self, task: Position, agent: Agent) -> Game:
        second = agent.player(SECOND, None if task.rival == "self" else self.opponent)
        history, mover, waiting = [task.piles], agent, second
        agent.user(task.prompt)
        number = 0
        while True:
            piles = moved(history[-1], (await mover.turn()).reply)
            if piles is None:
                return Game(winner=1 - number % 2, illegal=True, piles=tuple(history))
            history.append(piles)
            if piles == (0, 0):
                return Game(winner=number % 2, illegal=False, piles=tuple(history))
            waiting.user(view(piles))
            mover, waiting, number = waiting, mover, number + 1

    @control()
    def demonstrator(self, task: Position, messages: Sequence[Message]) -> str:
        """Make the piles equal; as often as `slips` says, take a single stone where they differ
        much. Make any move where none wins.
        """
        piles = piles_of(messages)
        if piles[0] == piles[1]:
            return turn_rng(task, messages).choice(legal(piles))
        far = abs(piles[0] - piles[1]) > NEAR
        return taken(piles) if far and slips(task, messages, self.slips) else best(piles)

    @control(scores="max")
    def oracle(self, task: Position, messages: Sequence[Message]) -> str:
        """Make the piles equal."""
        return best(piles_of(messages))

    @control()
    def random_moves(self, task: Position, messages: Sequence[Message]) -> str:
        """Make any legal move."""
        return turn_rng(task, messages).choice(legal(piles_of(messages)))

    @control(scores="min")
    def nop(self, task: Position, messages: Sequence[Message]) -> str:
        """Reply with nothing: no move loses."""
        return ""

    @control(scores="min")
    def two_moves(self, task: Position, messages: Sequence[Message]) -> str:
        """Make the best move, and behind it one that is not legal."""
        piles = piles_of(messages)
        return f"{best(piles)}, B {piles[1]}"

    @control(scores="min")
    def passes(self, task: Position, messages: Sequence[Message]) -> str:
        """Leave a pile as it is."""
        return f"A {piles_of(messages)[0]}"

    @control(scores="min")
    def adds_stones(self, task: Position, messages: Sequence[Message]) -> str:
        """Make the smaller pile as large as the other."""
        a, b = piles_of(messages)
        return f"A {b}" if a < b else f"B {a}"


def view(piles: Piles) -> str:
    """Return what a player sees.

    >>> view((3, 5))
    'A 3, B 5'
    """
    return f"A {piles[0]}, B {piles[1]}"


def moved(piles: Piles, reply: str) -> Piles | None:
    """Return the piles after the last move that *reply* names; ``None`` where that is not legal or
    there is none.

    >>> moved((3, 5), "B 3"), moved((3, 5), "A 4"), moved((3, 5), "pass")
    ((3, 3), None, None)
    """
    moves = MOVE.findall(reply)
    if not moves:
        return None
    pile, left = moves[-1][0], int(moves[-1][1])
    a, b = piles
    if pile == "A":
        return (left, b) if left < a else None
    return (a, left) if left < b else None


def legal(piles: Piles) -> list[str]:
    """Return all legal moves."""
    return [
        f"{name} {left}" for name, stones in zip("AB", piles, strict=True) for left in range(stones)
    ]


def best(piles: Piles) -> str:
    """Return the move that leaves equal piles, which wins; from equal piles, which lose, a single
    stone of A.

    >>> best((3, 5)), best((4, 4))
    ('B 3', 'A 3')
    """
    a, b = piles
    return taken(piles) if a == b else f"A {b}" if a > b else f"B {a}"


def taken(piles: Piles) -> str:
    """Return the move that takes a single stone of the larger pile."""
    a, b = piles
    return f"A {a - 1}" if a >= b else f"B {b - 1}"


def piles_of(messages: Sequence[Message]) -> Piles:
    """Return the piles that the last message of the environment shows."""
    text = next(m.content for m in reversed(messages) if m.role == "user")
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return numbers[-2], numbers[-1]


def _either_order(piles: Piles) -> Piles:
    return min(piles), max(piles)
