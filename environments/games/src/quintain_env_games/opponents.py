"""Engines that play against the policy, as services: a script, and a trained model whose weights
stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Self

from quintain import Engine, Message, Reply, Sampling, ToolSpec
from quintain.errors import UsageError
from quintain_rewards.likelihood import FixedModelEngine

from .duel import best, legal, piles_of


class Opponent(Engine):
    """Plays the game of `duel` by a script.

    From equal piles every move loses; there it makes any, drawn by the seed of the turn, so that
    games are short and differ.

    Args:
        skill: share of the other moves that are perfect; the rest are any legal move, drawn by the
            same seed.
    """

    name = "opponent"

    def __init__(self, *, skill: float = 1.0) -> None:
        if not 0 <= skill <= 1:
            raise UsageError(f"opponent: skill is {skill}; expected a share, 0 to 1")
        self._skill = skill

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        piles, rng = piles_of(messages), Random(sampling.seed)
        perfect = rng.random() < self._skill and piles[0] != piles[1]
        return Reply(text=best(piles) if perfect else rng.choice(legal(piles)))


class Frozen(FixedModelEngine):
    """A trained model as a player that does not train: an earlier run, a checkpoint, or a folder
    with a model.

    Args:
        model: run, checkpoint, folder or hub id, as `quintain eval --model` takes it.
        slots: sequences that are decoded at once.
    """

    def __init__(self, *, model: str, slots: int = 256) -> None:
        if slots < 1:
            raise UsageError(f"frozen: slots is {slots}; expected at least 1")
        super().__init__(f"frozen {model}", slots=slots)
        self._model = model

    async def __aenter__(self) -> Self:
        # torch takes seconds, which the environments beside this do not need
        from quintain.models import load_model
        from quintain.store import model_named

        await self.start(load_model(model_named(self._model)[0]))
        return self
