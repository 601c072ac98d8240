"""The corpus that the environment asks about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from quintain_tools.search import Passage

from .pilots import passages
from .squad import read_squad


@dataclass(frozen=True)
class EnvironmentCorpus:
    """The paragraphs of a SQuAD file, or the generated facts; named as the fields of the
    environment name it.
    """

    data: str
    pilots: int
    seed: int

    def passages(self) -> Iterator[Passage]:
        return (
            iter(read_squad(self.data).passages) if self.data else passages(self.pilots, self.seed)
        )

    def digest(self) -> str:
        """Return a hash of the passages."""
        digest = hashlib.blake2b(digest_size=16)
        for passage in self.passages():
            digest.update(f"{passage!r}\n".encode())
        return digest.hexdigest()
