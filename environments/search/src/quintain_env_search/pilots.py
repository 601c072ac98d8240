"""A generated corpus: where each pilot is, and who leads whom. Facts are drawn at random, so only
search finds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random

from quintain.errors import UsageError
from quintain_tools.search import Passage

from .tasks import Hop, SearchTask

SHARE = 10
"""One name in this many belongs to ``dev``, one to ``test``, the others to ``train``."""
LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
"""Of names: no three of them are a word, or the stem of another name."""
CALL_SIGNS = ["".join(name) for name in product(LETTERS, LETTERS, "1234567")]
AIRPORTS = ["".join(name) for name in product(LETTERS, LETTERS, "089")]
"""In the form of call signs, so that a model that copies those can copy these, and told from them
by the digit.
"""
FEWEST, MOST = 100, 2500
"""Pilots of a corpus."""
KINDS = {
    1: (("Where is {}?", ("airport",)), ("Who is the lead of {}?", ("lead",))),
    2: (
        ("Where is the lead of {}?", ("lead", "airport")),
        ("Who is the lead of the lead of {}?", ("lead", "lead")),
    ),
}
"""Questions by number of hops, each with the relations that lead to its answer."""


@dataclass(frozen=True)
class Pilot:
    """A pilot by call sign, which is the id of the passage, too; the code of an airport; the call
    sign of the lead.
    """

    name: str
    airport: str
    lead: str

    @property
    def passage(self) -> Passage:
        text = f"{self.name} is at {self.airport}. The lead of {self.name} is {self.lead}."
        return Passage(id=self.name, text=text)


def split_of(name: str) -> str:
    """Return the split that owns a name, in every process, for every seed: splits share no pilot
    and no airport.
    """
    slot = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % SHARE
    return {0: "dev", 1: "test"}.get(slot, "train")


@lru_cache(maxsize=4)
def pilots_of(count: int, seed: int) -> dict[str, dict[str, Pilot]]:
    """Return *count* pilots with random facts, by split and name. Leads and airports are of the
    same split.

    Raises:
        UsageError: fewer than `FEWEST` or more than `MOST`.
    """
    if not FEWEST <= count <= MOST:
        raise UsageError(f"search: pilots is {count}; expected {FEWEST} to {MOST}")
    rng = Random(f"{seed}/pilots")
    names = rng.sample(CALL_SIGNS, count)
    pilots: dict[str, dict[str, Pilot]] = {}
    for split in ("train", "dev", "test"):
        split_names = [name for name in names if split_of(name) == split]
        airports = [name for name in AIRPORTS if split_of(name) == split]
        # Who leads whom is one circle in random order: nobody leads themselves, and no two lead
        # each other.
        pilots[split] = {
            n: Pilot(n, rng.choice(airports), split_names[i - 1]) for i, n in enumerate(split_names)
        }
    return pilots


def passages(count: int, seed: int) -> Iterator[Passage]:
    """Yield the corpus, in the order of the names."""
    everybody = [pilot for split in pilots_of(count, seed).values() for pilot in split.values()]
    yield from (pilot.passage for pilot in sorted(everybody, key=lambda p: p.name))


def questions(count: int, seed: int, hops: tuple[int, ...], split: str) -> list[SearchTask]:
    """Return every question of *split* with one of these numbers of *hops*, in random order."""
    pilots = pilots_of(count, seed)[split]
    tasks = [
        _question(pilots, pilot, text, relations)
        for pilot in pilots.values()
        for n in hops
        for text, relations in KINDS[n]
    ]
    Random(f"{seed}/{split}").shuffle(tasks)
    return tasks


def _question(
    pilots: dict[str, Pilot], pilot: Pilot, text: str, relations: tuple[str, ...]
) -> SearchTask:
    prompt, hops = text.format(pilot.name), [Hop(pilot.name, pilot.name)]
    for relation in relations[:-1]:
        pilot = pilots[getattr(pilot, relation)]
        hops.append(Hop(pilot.name, pilot.name))
    answer: str = getattr(pilot, relations[-1])
    return SearchTask(
        prompt=prompt, answer=answer, answers=(answer,), hops=tuple(hops), level=len(hops)
    )
