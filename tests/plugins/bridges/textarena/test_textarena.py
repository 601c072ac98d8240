"""The games of TextArena, with the package itself."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain import Message
from quintain.errors import EnvironmentFault, UsageError
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain_authoring import ControlEngine, EnvironmentSuite, ScriptedEngine, run_episode
from quintain_bridges.textarena import Match, RandomMoves, TextArena
from quintain_bridges.textarena.__main__ import row_of
from quintain_bridges.textarena.moves import moves_in
from quintain_bridges.textarena.table import Table, fewest_players, listed
from quintain_bridges.textarena.word_lists import basic_words

from ....lanes import needs

pytestmark = needs("textarena", "pip install textarena")


def environment(**fields: Any) -> TextArena:
    return TextArena(random_moves=RandomMoves(), **fields)


@pytest.mark.more
class TestTextArena(EnvironmentSuite):
    environment = TextArena
    args = {"games": ["TicTacToe-v0", "Nim-v0"], "size": 10}
    sample = 10
    episodes = 3

    @classmethod
    def services(cls) -> Mapping[str, Any]:
        return {**super().services(), "random_moves": RandomMoves()}


def position(game: str, players: int, rival: str = "self", seat: int = 0, seed: int = 1) -> Match:
    return Match(
        prompt=game,
        game=game,
        seed=seed,
        players=players,
        seat=seat,
        rival=rival,  # type: ignore[arg-type]
    )


def test_each_player_of_a_game_gets_its_own_reward() -> None:
    """By self-play the winner gets 1 and the loser -1, whichever seat it has."""
    moves = {"": ["[0]", "[1]", "[2]"], "player 1": ["[3]", "[4]", "[8]"]}
    engine = ScriptedEngine(replies=moves[""], players={"player 1": moves["player 1"]})
    played = run_episode(environment(), position("TicTacToe-v0", 2), engine)
    assert played.result.rewards == (1.0, -1.0)
    assert played.outcome.total == 1.0
    assert played.outcome.players == {"player 1": -1.0}
    assert set(played.transcripts) == {"", "player 1"}


def test_a_player_reads_what_was_said_since_its_last_turn() -> None:
    """The rules once, and then the moves of the other and the board: never its own move again."""
    engine = ScriptedEngine(replies=["[0]", "[1]", "[2]"], players={"player 1": ["[3]", "[4]"]})
    played = run_episode(environment(), position("TicTacToe-v0", 2), engine)
    told = [m.content for m in played.messages if m.role == "user"]
    assert sum("Tic Tac Toe" in text for text in told) == 1
    assert "[Player 1] [3]" in told[1]
    assert "[Player 0] [0]" not in told[1]


def test_a_move_without_brackets_gets_them() -> None:
    """As TextArena's own wrapper has it."""
    engine = ScriptedEngine(replies=["0", "1", "2"], players={"player 1": ["3", "4"]})
    played = run_episode(environment(), position("TicTacToe-v0", 2), engine)
    assert played.result.rewards == (1.0, -1.0)


def test_the_engine_plays_the_other_seats() -> None:
    """Evaluations are against the engine, from every seat, and only the policy is scored."""
    tasks = list(environment(games="TicTacToe-v0", size=4).tasks("dev"))
    assert [(t.rival, t.seat) for t in tasks] == [("engine", 0), ("engine", 1)] * 2
    played = run_episode(environment(), tasks[1], "[0]")
    assert played.outcome.players == {}
    assert set(played.transcripts) == {""}
    assert played.result.turns > len(played.turns) - 1


def test_moves_against_the_rules_lose() -> None:
    """The game is over, and the seat is named."""
    played = run_episode(environment(), position("TicTacToe-v0", 2), "nothing")
    assert played.outcome.total == -1.0
    assert played.result.invalid == (0,)


def test_a_win_by_a_wrong_move_of_the_opponent_is_marked() -> None:
    """It says nothing about the policy."""
    careless = TextArena(random_moves=ScriptedEngine(replies="nothing"))
    played = run_episode(careless, position("TicTacToe-v0", 2, rival="engine"), "[0]")
    assert played.outcome.total == 1.0
    assert played.outcome.parts["their_reward.opponent_invalid"] == 1.0
    played = run_episode(environment(), position("TicTacToe-v0", 2), "nothing")
    assert played.outcome.parts["their_reward.opponent_invalid"] == 0.0


def test_words_in_the_place_of_a_reward_are_a_wrong_move() -> None:
    """ThreeCardMonte gives its complaint as the reward of a move that it cannot read."""
    played = run_episode(environment(), position("ThreeCardMonte-v0", 1), "nothing")
    assert played.outcome.total == -1.0
    assert played.result.invalid == (0,)


def test_a_game_that_a_limit_ends_is_lost() -> None:
    """A policy cannot save itself from a loss by stalling."""
    from quintain import Limits

    short = environment().overridden(limits=Limits(turns=2))
    engine = ScriptedEngine(replies=["[0]", "[1]"], players={"player 1": ["[3]"]})
    played = run_episode(short, position("TicTacToe-v0", 2), engine)
    assert played.termination.reason == "turns"
    assert played.outcome.total == -1.0


def test_a_game_without_a_player_left_ends() -> None:
    """Wrong moves put all of them out; the game itself would look for the next one for ever."""
    played = run_episode(environment(), position("MarketEntryGame-v0", 1), "nothing")
    assert played.result.rewards == (-1.0,)
    assert played.result.reason == "all players are out"
    assert played.result.invalid == (0,)


def test_a_game_that_the_others_do_not_end_has_no_winner() -> None:
    """The game asks the engine again and again for a move that is legal."""
    stuck = TextArena(random_moves=ScriptedEngine(replies="nothing"), moves=5)
    task = position("SantoriniBaseFixed-v0", 2, rival="engine")
    played = run_episode(stuck, task, "[N1C2C1B2]")
    assert played.result.rewards == (0.0, 0.0)
    assert played.outcome.total == 0.0
    assert played.result.reason == "no end within 10 moves"
    assert played.result.turns == 10


def test_games_at_once_do_not_disturb_each_other() -> None:
    """Each has its own random numbers: eight games at once are what they are alone, and the random
    numbers of the process stay as they were.
    """
    games = environment(games=("GuessTheNumber-v0", "Blackjack-v0"), size=4)
    tasks = list(games.tasks("dev"))

    def texts(chosen: list[Match]) -> list[list[str]]:
        engine = ControlEngine(games, "any_move")
        requests = [
            RolloutRequest(environment=games, task=task, group_size=1, index=0) for task in chosen
        ]
        context = RolloutContext(engine=engine, retries=0)
        groups = asyncio.run(run_groups(requests, context))
        return [[m.content for m in g.rollouts[0].messages] for g in groups]

    random.seed(5)
    expected = random.Random(5).random()
    together = texts(tasks)
    assert random.random() == expected
    assert together == [texts([task])[0] for task in tasks]


@pytest.mark.parametrize(
    ("game", "players"),
    [
        ("GuessTheNumber-v0", 1),
        ("TicTacToe-v0", 2),
        ("MarketEntryGame-v0", 2),
        ("ThreePlayerIPD-v0", 3),
    ],
)
def test_the_number_of_players_is_found(game: str, players: int) -> None:
    """A game for several may start with one, who then plays against nobody."""
    assert fewest_players(game) == players


def test_what_cannot_be_played_says_why() -> None:
    """A game that is not there, one that needs a key, and one that raises."""
    with pytest.raises(UsageError, match="no game 'Chess'"):
        list(environment(games="Chess", size=1).tasks("dev"))
    with pytest.raises(UsageError, match="OpenRouter API key"):
        fewest_players("Debate-v0")
    with pytest.raises(EnvironmentFault, match="the game raised AssertionError"):
        Table("TicTacToe-v0", 3, 0)


def test_the_short_list_of_words_has_the_common_ones() -> None:
    words = basic_words()
    assert words == sorted(set(words))
    assert len(words) == 850
    assert {"paint", "rate", "short", "watch"} <= set(words)
    assert all(3 <= len(word) <= 8 and word.isalpha() and word.islower() for word in words)


@pytest.mark.slow
def test_games_with_words_play_without_the_data_of_nltk(tmp_path: Path) -> None:
    """TextArena's own dictionary gives the words, which are stored."""
    program = (
        "import nltk; nltk.data.path[:] = []\n"
        "from quintain_bridges.textarena.table import Table\n"
        "print(Table('Hangman-v0', 1, 0).asked()[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "QUINTAIN_CACHE": str(tmp_path), "NLTK_DATA": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Hangman" in done.stdout, done.stderr
    folder = tmp_path / "textarena" / "corpora" / "words"
    assert folder.joinpath("en-basic").read_text().split() == basic_words()
    assert {"paints", "painting"} <= set(folder.joinpath("en").read_text().split())


def test_moves_in_a_message() -> None:
    told = [Message("user", "[GAME] Moves: [1] or [2 3]"), Message("user", "[Player 1] fine")]
    assert moves_in(told) == ["[1]", "[2 3]"]
    assert moves_in([Message("user", "[GAME] no move")]) == ["[0]"]


def test_a_row_of_the_table() -> None:
    """What the page shows of a game is played."""
    row = row_of("Nim-v0")
    assert row["players"] == 2
    assert row["unfinished"] == 0.0
    assert row["repeats"] is True
    assert row["nop"] < 0
    assert row["wins"] < 1
    assert "OpenRouter" in row_of("Debate-v0")["error"]


def test_most_games_are_listed() -> None:
    """Views of one game with other wrappers are not listed apart."""
    names = listed()
    assert len(names) >= 200
    assert len({game.kind for game in names.values()}) >= 90
    assert not any(name.endswith(("-raw", "-train")) for name in names)
