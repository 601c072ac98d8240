"""Repacking: the unfinished sequences of nearly idle replicas move to others (Laminar, 2510.12633,
section 5).
"""

from __future__ import annotations

from collections.abc import Sequence


def repack(loads: Sequence[int], slots: int) -> list[tuple[int, int, int]]:
    """Plan moves that leave as many replicas as possible without a sequence, which can then take
    new weights and work.

    Replicas are emptied whole, the least loaded first, into the fullest that have room; a replica
    that cannot be emptied keeps what it has.

    Args:
        loads: running sequences of each replica, 0 to *slots*.
        slots: sequences that a replica decodes at once.

    Returns:
        (source, target, number of sequences), in the order of the moves.

    Raises:
        ValueError: a load is out of range.
    """
    if any(not 0 <= load <= slots for load in loads):
        raise ValueError(f"loads are {list(loads)}; expected 0 to {slots} each")
    left = list(loads)
    moves: list[tuple[int, int, int]] = []
    emptied: set[int] = set()
    for source in sorted(range(len(left)), key=lambda i: (left[i], i)):
        targets = [i for i in range(len(left)) if i != source and left[i] and i not in emptied]
        if not left[source] or left[source] > sum(slots - left[i] for i in targets):
            continue
        for target in sorted(targets, key=lambda i: (-left[i], -i)):
            count = min(left[source], slots - left[target])
            if count:
                moves.append((source, target, count))
                left[source], left[target] = left[source] - count, left[target] + count
        emptied.add(source)
    return moves
