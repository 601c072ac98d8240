"""How often each task was picked, in little memory."""

from __future__ import annotations

import hashlib
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

_SHARDS = 4096
_BYTES = 8
"""Of the key of a task. The usual id of a task is the hexadecimal form of so many."""


class Visits:
    """Counts the visits of tasks by their ids.

    Of an endless split a run may see tens of millions. A dictionary takes 200 bytes for each, this
    table 13. It looks a key up by a search in one of 4,096 short strings of keys.
    """

    def __init__(self) -> None:
        self._keys = [bytearray() for _ in range(_SHARDS)]
        self._counts = [array("I") for _ in range(_SHARDS)]

    def add(self, task_id: str, visits: int = 1) -> int:
        """Count *visits* of a task; return how many there were before."""
        key = _key(task_id)
        shard = int.from_bytes(key[:2]) % _SHARDS
        keys, counts = self._keys[shard], self._counts[shard]
        position = keys.find(key)
        while (
            position > 0 and position % _BYTES
        ):  # the end of one key and the beginning of the next
            position = keys.find(key, position + 1)
        if position < 0:
            keys += key
            counts.append(visits)
            return 0
        counts[position // _BYTES] += visits
        return counts[position // _BYTES] - visits

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint: 11 bytes for a task that was visited once."""
        counts = array("I", [count for shard in self._counts for count in shard])
        return {
            "keys": b64encode(b"".join(self._keys)).decode(),
            "counts": b64encode(zlib.compress(counts.tobytes(), 1)).decode(),
            "shards": b64encode(
                zlib.compress(array("I", map(len, self._counts)).tobytes(), 1)
            ).decode(),
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Visits:
        """Return the table of a `state`, or of a mapping from ids to visits, which older
        checkpoints have.
        """
        visits = cls()
        if not isinstance(state.get("keys"), str):
            for task_id, count in state.items():
                visits.add(task_id, count)
            return visits
        keys, start = b64decode(state["keys"]), 0
        counts = array("I", zlib.decompress(b64decode(state["counts"])))
        for shard, length in enumerate(array("I", zlib.decompress(b64decode(state["shards"])))):
            visits._keys[shard] += keys[_BYTES * start : _BYTES * (start + length)]
            visits._counts[shard] = counts[start : start + length]
            start += length
        return visits


def _key(task_id: str) -> bytes:
    if len(task_id) == 2 * _BYTES and task_id.isalnum() and task_id.islower():
        try:
            return bytes.fromhex(task_id)
        except ValueError:
            pass
    return hashlib.blake2b(task_id.encode("utf-8", "surrogatepass"), digest_size=_BYTES).digest()
