"""Which replica holds the keys and values of which prefixes, as far as the pool can know."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 16
"""Tokens of a block, as in engines that page their cache."""
BLOCKS = 1 << 17
"""Blocks that are remembered, about 25 MB; those not used for longest are forgotten."""
_BYTES = 8


class PrefixIndex:
    """Remembers prefixes by blocks: a block is named by its tokens and the name of the block
    before, so that one name stands for a whole prefix.

    A name is a hash. If two prefixes had the same one, a turn would go to the wrong replica and be
    computed there as on any other.

    Args:
        size: blocks that are remembered.
    """

    def __init__(self, size: int = BLOCKS) -> None:
        self._size = size
        self._holders: OrderedDict[int, int] = OrderedDict()  # name -> replicas, a bit for each

    def __len__(self) -> int:
        return len(self._holders)

    @staticmethod
    def names(ids: Sequence[int], known: Sequence[int] = ()) -> list[int]:
        """Return the names of the blocks of *ids*, the first first. The last one may be shorter, so
        that equal prompts share it.

        Args:
            known: names of the first blocks, all of them whole.
        """
        names = list(known)
        name = names[-1] if names else 0
        content = array("q", ids[len(names) * BLOCK :]).tobytes()
        for start in range(0, len(content), BLOCK * _BYTES):
            name = hash((name, content[start : start + BLOCK * _BYTES]))
            names.append(name)
        return names

    def add(self, names: Sequence[int], replica: int) -> None:
        """Note that *replica* holds the prefix of the blocks *names*."""
        holders, bit = self._holders, 1 << replica
        for name in reversed(names):  # the end of a prefix is forgotten before its begin
            holders[name] = holders.get(name, 0) | bit
            holders.move_to_end(name)
        while len(holders) > self._size:
            holders.popitem(last=False)

    def held(self, names: Sequence[int]) -> dict[int, int]:
        """Return how many of the first blocks of *names* each replica holds, without those that
        hold none.
        """
        held: dict[int, int] = {}
        present = -1
        for count, name in enumerate(names):
            still = present & self._holders.get(name, 0)
            if count:
                _note(held, present & ~still, count)
            present = still
            if not present:
                return held
        if names:
            _note(held, present, len(names))
        return held

    def forget(self, replica: int | None = None) -> None:
        """Forget what *replica* holds, whose cache is empty now; ``None``: all replicas."""
        if replica is None:
            self._holders.clear()
            return
        kept = {name: bits & ~(1 << replica) for name, bits in self._holders.items()}
        self._holders = OrderedDict((name, bits) for name, bits in kept.items() if bits)


def _note(held: dict[int, int], replicas: int, count: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        held[lowest.bit_length() - 1] = count
        replicas ^= lowest
