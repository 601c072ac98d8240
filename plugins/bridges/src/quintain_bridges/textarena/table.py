"""A game of TextArena as an episode sees it: who is asked next, and what they were told."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from quintain.errors import EnvironmentFault, UsageError

from .word_lists import provide_words

MOST_PLAYERS = 15
RAW = "-raw"
"""What the id of a game without wrappers ends with."""
NLTK_WORDS = "corpora/words"
"""What NLTK names where it does not find its lists of words."""


class Table:
    """One game.

    The games draw from the random numbers of the whole process, so that two games at once would
    disturb each other. Here each game has its own state of them, which is in place during its calls
    alone.

    Args:
        game: id of TextArena.
        players: how many take part.
        seed: of the game.

    Attributes:
        alone: whether the game is for one player.
        brackets: whether a move has to be in brackets.

    Raises:
        UsageError: there is no such game, or it needs what is not there, such as the network.
    """

    def __init__(self, game: str, players: int, seed: int) -> None:
        self._game = made(game)
        self._state: Any = None
        self.brackets = "ActionFormattingWrapper" in wrappers_of(game)
        with self._own_random(seed):
            self._game.reset(num_players=players, seed=seed)
        self.alone = type(self._game.state).__name__ == "SinglePlayerState"
        if hasattr(self._game.state, "elimination_order"):
            _end_where_all_are_out(self._game.state)

    def asked(self) -> tuple[int, str]:
        """Return the number of the player whose turn it is, and what it was told since its last
        one.

        Raises:
            EnvironmentFault: the game raised.
        """
        with self._own_random():
            player, told = self._game.get_observation()
        names = self._game.state.role_mapping
        lines = [
            f"[{names.get(sender, f'Player {sender}')}] {text}"
            for sender, text, _ in told
            if sender != player
        ]
        return player, "\n".join(lines) or "Your turn."

    def move(self, action: str) -> bool:
        """Let the player whose turn it is do *action*; return whether the game is over.

        Raises:
            EnvironmentFault: the game raised.
        """
        if self.brackets and "[" not in action and "]" not in action:
            action = f"[{action}]"
        with self._own_random():
            done, _ = self._game.step(action=action)
        return bool(done)

    def ended(self) -> tuple[Mapping[int, float], Mapping[int, Mapping[str, Any]]]:
        """Return what each player gets, and what the game says of each.

        Some games put the words about a wrong move in the place of its reward, which is -1 then, as
        in all others.

        Raises:
            EnvironmentFault: a reward is no number, and no wrong move says why.
        """
        with self._own_random():
            rewards, remarks = self._game.close()
        given = {}
        for player, value in (rewards or {}).items():
            wrong = isinstance(value, str) and remarks.get(player, {}).get("invalid_move")
            try:
                given[player] = -1.0 if wrong else float(value)
            except (TypeError, ValueError) as e:
                raise EnvironmentFault(f"the game rewards player {player} with {value!r}") from e
        return given, remarks

    @contextlib.contextmanager
    def _own_random(self, seed: int | None = None) -> Iterator[None]:
        import numpy

        outside = (random.getstate(), numpy.random.get_state())
        if self._state is None:
            random.seed(seed)
            numpy.random.seed(seed)
        else:
            random.setstate(self._state[0])
            numpy.random.set_state(self._state[1])
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some games print
                yield
        except Exception as e:
            raise EnvironmentFault(f"the game raised {type(e).__name__}: {e}") from e
        finally:
            self._state = (random.getstate(), numpy.random.get_state())
            random.setstate(outside[0])
            numpy.random.set_state(outside[1])


def _end_where_all_are_out(state: Any) -> None:
    """Let a game end in which wrong moves have put every player out, as a loss of all: it would look
    for the next player without end.
    """
    step = state.step

    def bounded(*args: Any, **options: Any) -> Any:
        players = range(state.num_players)
        if not state.done and set(players) <= set(state.elimination_order):
            state.set_game_outcome(dict.fromkeys(players, -1), "all players are out")
        return step(*args, **options)

    state.step = bounded


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A game of the registry.

    Attributes:
        id: its name.
        kind: where its code is: games of one kind differ in their settings.
    """

    id: str
    kind: str


@cache
def listed() -> Mapping[str, Listed]:
    """Return the games by id; ids with other views of the same game are left out.

    Raises:
        UsageError: TextArena is not installed.
    """
    return {
        name: Listed(id=name, kind=str(spec.entry_point))
        for name, spec in _registry().items()
        if not name.endswith((RAW, "-train"))
    }


def wrappers_of(game: str) -> tuple[str, ...]:
    """Return the names of the wrappers that TextArena puts around *game*."""
    return tuple(wrapper.__name__ for wrapper in _registry()[game].default_wrappers or ())


def made(game: str) -> Any:
    """Return a new game without wrappers.

    Raises:
        UsageError: there is no such game, or it needs what is not there.
    """
    registry = _registry()
    if game not in registry:
        raise UsageError(
            f"textarena: there is no game {game!r}; python -m quintain_bridges.textarena lists them"
        )
    try:
        try:
            return _made(game)
        except LookupError as e:
            if NLTK_WORDS not in str(e):
                raise
            provide_words()
            return _made(game)
    except Exception as e:
        raise UsageError(f"textarena: {game} cannot be made: {type(e).__name__}: {e}") from e


def _made(game: str) -> Any:
    import textarena

    with contextlib.redirect_stdout(io.StringIO()):
        return textarena.make(game + RAW if game + RAW in _registry() else game)


@cache
def fewest_players(game: str) -> int:
    """Return the smallest number of players that *game* starts with; 1 only if it is for one, or
    starts with no more. Some games for several do not refuse a single one.

    Raises:
        UsageError: it starts with none up to 15, or needs what is not there.
    """
    made(game)
    starts_alone = False
    for players in range(1, MOST_PLAYERS + 1):
        try:
            table = Table(game, players, 0)
            table.asked()
        except EnvironmentFault as e:
            fault = e
        else:
            if players > 1 or table.alone:
                return players
            starts_alone = True
    if starts_alone:
        return 1
    raise UsageError(f"textarena: {game} does not start: {fault}") from fault


def _registry() -> Mapping[str, Any]:
    try:
        import textarena  # noqa: F401  # registers the games
        from textarena.envs.registration import ENV_REGISTRY
    except ImportError as e:
        raise UsageError(f"textarena: {e}: pip install 'quintain-bridges[textarena]'") from e
    registry: Mapping[str, Any] = ENV_REGISTRY
    return registry
