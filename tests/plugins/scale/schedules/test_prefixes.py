"""Who holds which prefix, against a plain comparison of tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quintain_scale.schedules.prefixes import BLOCK, PrefixIndex

tokens = st.lists(st.integers(0, 1), max_size=3 * BLOCK)


def blocks_in_common(first: list[int], second: list[int]) -> int:
    """Blocks of *second* at its begin that *first* has, too; the last may be shorter."""
    count = 0
    for start in range(0, len(second), BLOCK):
        block = second[start : start + BLOCK]
        if first[start : start + BLOCK] != block:
            break
        count += 1
    return count


@given(added=st.lists(st.tuples(tokens, st.integers(0, 3)), max_size=8), asked=tokens)
def test_it_finds_the_longest_prefix_of_each_replica(
    added: list[tuple[list[int], int]], asked: list[int]
) -> None:
    index = PrefixIndex()
    expected: dict[int, int] = {}
    for ids, replica in added:
        index.add(index.names(ids), replica)
        if common := blocks_in_common(ids, asked):
            expected[replica] = max(common, expected.get(replica, 0))

    assert index.held(index.names(asked)) == expected


@given(ids=st.lists(st.integers(0, 300_000), max_size=5 * BLOCK), cut=st.integers(0, 5 * BLOCK))
def test_names_go_on_from_whole_blocks(ids: list[int], cut: int) -> None:
    known = PrefixIndex.names(ids[: cut - cut % BLOCK])

    assert PrefixIndex.names(ids, known[: len(ids) // BLOCK]) == PrefixIndex.names(ids)


def test_it_forgets_what_was_not_used_for_longest_and_ends_before_begins() -> None:
    index = PrefixIndex(size=4)
    old, new = list(range(3 * BLOCK)), [7] * (2 * BLOCK)
    index.add(index.names(old), 0)
    index.add(index.names(new), 1)

    assert len(index) == 4
    assert index.held(index.names(old)) == {0: 2}
    assert index.held(index.names(new)) == {1: 2}


def test_a_replica_that_died_holds_nothing() -> None:
    index = PrefixIndex()
    ids = list(range(2 * BLOCK))
    for replica in (0, 1):
        index.add(index.names(ids), replica)
    index.forget(0)
    assert index.held(index.names(ids)) == {1: 2}
    index.forget(1)
    assert len(index) == 0
    index.add(index.names(ids), 1)
    index.forget()
    assert len(index) == 0
