"""What was read of a conversation is not read again, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quintain_gateway.fields import texts_alone
from quintain_gateway.recent import MOST_KEPT, Recent

from ...lanes import examples

ITEM = st.sampled_from(
    ["a", "b", {"x": "y"}, {"x": None, "n": ["a"]}, {"x": 1}, {"x": 1.0}, {"x": True}, [0], [False]]
)
STEP = st.tuples(st.integers(0, 3), st.integers(0, 6), st.lists(ITEM, max_size=3))


@given(st.lists(STEP, max_size=12))
@examples(200)
def test_results_are_those_of_reading_all(steps: list[tuple[int, int, list[Any]]]) -> None:
    """Four conversations go on side by side, and some are cut and continued otherwise. A result
    depends on all items before it, as the digest of a conversation does.
    """
    recent = Recent(eq, texts_alone)
    conversations: list[list[Any]] = [[] for _ in range(4)]

    def more(known: list[str], items: Sequence[Any]) -> list[str]:
        results = [*known]
        for item in items:
            results.append(f"{results[-1] if results else ''}/{item!r}")
        return results[len(known) :]

    for which, kept, added in steps:
        conversations[which] = [*conversations[which][:kept], *added]
        items = conversations[which]
        assert recent.made(items, more) == more([], items)


def test_only_what_is_new_is_read() -> None:
    """In each of the conversations that are kept."""
    recent, read = Recent(eq, texts_alone), list[str]()

    def more(known: list[str], items: Sequence[str]) -> list[str]:
        read.extend(items)
        return [*items]

    for length in range(1, 4):
        for which in range(MOST_KEPT):
            recent.made([f"{which}.{i}" for i in range(length)], more)
    assert len(read) == len(set(read)) == 3 * MOST_KEPT
