"""What every environment owes a trainer, for the multi-turn worlds; 64 episodes at once among
it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from quintain import Service
from quintain_authoring import EnvironmentSuite
from quintain_env_games import (
    Customer,
    Duel,
    Guess,
    Maze,
    Notes,
    Opponent,
    Returns,
    Summariser,
    Tools,
)


class Games(EnvironmentSuite):
    """What the worlds share."""

    __test__ = False
    episodes = 8
    sample = 20


class TestGuess(Games):
    __test__ = True
    environment = Guess


@pytest.mark.more
class TestMaze(Games):
    __test__ = True
    environment = Maze


class TestDuel(Games):
    """`train`, which is played here, is self-play; `test_games.py` plays the engine."""

    __test__ = True
    environment = Duel

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "opponent": Opponent()}


@pytest.mark.more
class TestReturns(Games):
    __test__ = True
    environment = Returns

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "simulated_user": Customer()}


@pytest.mark.more
class TestTools(Games):
    """Twice 32 episodes are 64 at once in `test_concurrent_episodes_do_not_mix`."""

    __test__ = True
    environment = Tools
    episodes = 32


@pytest.mark.more
class TestNotes(Games):
    """The policy writes its notes; `test_notes.py` has the other modes."""

    __test__ = True
    environment = Notes

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "summariser": Summariser()}


@pytest.mark.more
class TestNotesByTool(TestNotes):
    """The policy decides when it writes them."""

    args = {"mode": "tool"}
