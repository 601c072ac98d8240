"""Contracts of engines that decode the module that the learner trains."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from .engine import TokenEngine
from .tokenizer import ChatTokenizer


@runtime_checkable
class SharesModule(Protocol):
    """The class of a `TokenEngine` that can decode the module that the learner trains.

    The weights of any other engine arrive through `TokenEngine.update` alone.
    """

    @classmethod
    def sharing(
        cls, module: Any, tokenizer: ChatTokenizer, *, dtype: str | None = None
    ) -> TokenEngine:
        """Return an engine that decodes the learner's live *module*; further keywords are
        ``engine.args`` of a recipe. Where *dtype* is not the module's, the engine keeps a copy that
        `update` refreshes. Schedules that sample during updates and plans with a staleness pass
        ``copy=True``: it keeps a copy in any case.

        Raises:
            UsageError: a setting is out of range.
        """


def shares_module(kind: Any) -> bool:
    """Return whether engines of the class *kind* can decode the learner's module.

    Others receive its weights only by `TokenEngine.update`.
    """
    return isinstance(kind, SharesModule)


@runtime_checkable
class SuggestsSlots(Protocol):
    """The class of a `SharesModule` engine that knows how many sequences of a batch it best decodes
    at once.
    """

    @classmethod
    def slots_for(
        cls, module: Any, *, samples: int, tokens: int, dtype: str, room: int | None
    ) -> int:
        """Return the ``slots`` of `sharing` for a step of *samples* sequences of at most *tokens*
        tokens, prompt included.

        *room* is the bytes of a GPU for their keys and values; ``None`` on a CPU.
        """
