"""What was made of the beginning of a conversation, for the next request that begins with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

MOST_KEPT = 8
"""Conversations of an episode that go on side by side."""


class Recent:
    """Keeps what was made of the newest sequences, item by item.

    Agents send the whole conversation with every turn; only what a request adds has to be read.

    Args:
        same: whether two items of sequences are the same.
        comparable: whether *same* can tell it of an item; another is read anew, with all behind it.
    """

    def __init__(
        self,
        same: Callable[[Any, Any], bool],
        comparable: Callable[[Any], bool] = lambda item: True,
    ) -> None:
        self._same, self._comparable = same, comparable
        self._kept: list[tuple[list[Any], list[Any]]] = []

    def made(
        self, items: Sequence[Any], more: Callable[[list[Any], Sequence[Any]], Sequence[Any]]
    ) -> list[Any]:
        """Return one result for each of *items*.

        Args:
            more: called with the results that are known, of the first items, and the other items;
                returns the results of those.
        """
        best, shared = -1, 0
        for place, (known, _) in enumerate(self._kept):
            length = self._shared(known, items)
            if length > shared:
                best, shared = place, length
        before, results = self._kept[best] if shared else ([], [])
        extends = shared == len(before)
        # the first items are those that are held already, so that equal ones are not held twice
        kept_items, made = before[:shared], results[:shared]
        made += more(made, items[shared:])
        kept_items += [item if self._comparable(item) else object() for item in items[shared:]]
        if extends and shared:
            del self._kept[best]
        self._kept = [*self._kept, (kept_items, made)][-MOST_KEPT:]
        return made[:]

    def _shared(self, known: Sequence[Any], items: Sequence[Any]) -> int:
        """Return how many items two sequences begin with alike."""
        if len(known) <= len(items) and all(map(self._same, known, items)):
            return len(known)
        pairs = enumerate(zip(known, items, strict=False))
        shorter = min(len(known), len(items))
        return next((i for i, (a, b) in pairs if not self._same(a, b)), shorter)
