"""The environment `textarena`: its games, by self-play or against an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice
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

from .moves import moves_in
from .table import Table, fewest_players

Rival = Literal["self", "engine"]


@dataclass(frozen=True, kw_only=True)
class Match(Task):
    """The start of a game.

    Attributes:
        game: its id.
        seed: of the game.
        players: how many take part.
        seat: which of them the policy is; by self-play it is the others, too.
        rival: who the others are: the policy (``self``) or the engine of the slot.
    """

    game: str
    seed: int
    players: int
    seat: int
    rival: Rival


@dataclass(frozen=True, kw_only=True)
class PlayedGame:
    """A game that ended.

    Attributes:
        rewards: what TextArena gives to each seat.
        reason: why it ended, in its words.
        invalid: seats that a move against the rules ended the game for.
        turns: moves of all players.
    """

    rewards: tuple[float, ...]
    reason: str
    invalid: tuple[int, ...]
    turns: int


@reward(range=(-1, 1))
def their_reward(rollout: Rollout[Match, PlayedGame]) -> Score:
    """What TextArena gives to each player, from -1 to 1: 1 is a win, and what is between is a draw
    or a part of the way, no success.
    """
    task, game = rollout.task, rollout.result
    bounded = [min(max(value, -1.0), 1.0) for value in game.rewards]
    others = {
        player_name(seat): value
        for seat, value in enumerate(bounded)
        if seat != task.seat and task.rival == "self"
    }
    parts = {
        "invalid": float(task.seat in game.invalid),
        "opponent_invalid": float(any(seat != task.seat for seat in game.invalid)),
    }
    return Score(value=bounded[task.seat], players=others, reason=game.reason, parts=parts)


class TextArena(Environment[Match, PlayedGame]):
    """Games of TextArena. Each player reads what was said to it since its last turn.

    Attributes:
        games: ids, such as ``TicTacToe-v0``.
        players: how many take part; 0 is the fewest that the game takes.
        against: who plays the other seats in training: the policy itself (``self``) or the engine
            of the slot `random_moves` (``engine``). Evaluations play against the engine.
        moves: for each player, after which a game ends without a winner: some games ask a player
            who makes wrong moves again without end.
        size: games of ``dev`` and of ``test``, for each id; ``train`` is endless.
    """

    reward, limits, early = their_reward, Limits(turns=100), -1.0

    games: str | tuple[str, ...] = "TicTacToe-v0"
    players: int = 0
    against: Rival = "self"
    moves: int = 100
    size: int = 50
    random_moves: Engine = need()

    def __post_init__(self) -> None:
        if not self.games or min(self.size, self.moves) < 1 or self.players < 0:
            raise UsageError(
                "textarena: expected games, a size and moves of at least 1, and players from 0"
            )

    def tasks(self, split: str) -> Iterable[Match]:
        names = (self.games,) if isinstance(self.games, str) else self.games
        first = {"dev": 0, "test": 1, "train": 2}[split]
        seeds = (seed for seed in count() if min(seed % 10, 2) == first)
        rival: Rival = self.against if split == "train" else "engine"
        for number, seed in enumerate(seeds if split == "train" else islice(seeds, self.size)):
            for name in names:
                players = self.players or fewest_players(name)
                yield Match(
                    prompt=f"{name}, game {seed}",
                    game=name,
                    seed=seed,
                    players=players,
                    seat=0 if rival == "self" else number % players,
                    rival=rival,
                )

    async def rollout(self, task: Match, agent: Agent) -> PlayedGame:
        table = Table(task.game, task.players, task.seed)
        rival = None if task.rival == "self" else self.random_moves
        seats = {task.seat: agent}
        turns, over = 0, False
        most = self.moves * task.players
        while not over and turns < most:
            number, told = table.asked()
            if number not in seats:
                seats[number] = agent.player(player_name(number), rival)
            seats[number].user(told)
            over = table.move((await seats[number].turn()).reply)
            turns += 1
        if not over:
            return PlayedGame(
                rewards=(0.0,) * task.players,
                reason=f"no end within {most} moves",
                invalid=(),
                turns=turns,
            )
        rewards, remarks = table.ended()
        return PlayedGame(
            rewards=tuple(rewards.get(seat, 0.0) for seat in range(task.players)),
            reason=str(remarks.get(task.seat, {}).get("reason", "")),
            invalid=tuple(s for s in range(task.players) if remarks.get(s, {}).get("invalid_move")),
            turns=turns,
        )

    @control()
    def oracle(self, task: Match, messages: Sequence[Message]) -> str:
        """Make any move that is shown; how to win is not known of any game."""
        return self.any_move(task, messages)

    @control()
    def any_move(self, task: Match, messages: Sequence[Message]) -> str:
        """Make any move that the last message shows in brackets."""
        return Random(f"{task.id}/{len(messages)}").choice(moves_in(messages))

    @control()
    def demonstrator(self, task: Match, messages: Sequence[Message]) -> str:
        """Make any move that is shown: it teaches the form of a move, not which one is good."""
        return self.any_move(task, messages)


def player_name(seat: int) -> str:
    """Return the name of the player of *seat*, other than the first of the policy."""
    return f"player {seat}"
