"""Generated stories: boats start at locks of their canals, move to others, and rest there in the
next chapter.

A is a canal, A4 a lock of it. A plan that carries the last locks over makes the next chapter
probable; one that forgets the moves makes it improbable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from .tasks import StoryTask, story_prompt

CANALS = "ABCDEFGH"
LOCKS = "0123456789"
SPLITS = ("train",) * 8 + ("dev", "test")
SYNOPSIS = "End where the boats are."


@dataclass(frozen=True)
class Boats:
    """The *first* and the *last* lock of the boat on each canal, in the order of the canals."""

    first: dict[str, str]
    last: dict[str, str]

    def plan(self, locks: dict[str, str]) -> str:
        """Say where the boats rest by *locks*; with the last locks this is the next chapter."""
        return f"End {_listed(locks)}."

    def prompt(self) -> str:
        return story_prompt(
            {
                "Story": f"Boats {_listed(self.first)}.",
                "Last": f"Then {_listed(self.last)}.",
                "Next": SYNOPSIS,
            }
        )


def _listed(locks: dict[str, str]) -> str:
    return " ".join(canal + lock for canal, lock in locks.items())


def draw(rng: Random, boats: int) -> Boats:
    """Return a story of *boats* boats; each moves to another lock."""
    first = {canal: rng.choice(LOCKS) for canal in sorted(rng.sample(CANALS, boats))}
    return Boats(first, {c: rng.choice(LOCKS.replace(lock, "")) for c, lock in first.items()})


def stories(split: str, *, boats: int, size: int, seed: int) -> Iterator[Boats]:
    """Yield the stories of *split*, each once; ``train`` has no end, the others have *size*.

    The split of a story is a hash of its prompt, so splits share none whatever the seed.
    """
    rng, seen = Random(f"story/{seed}/{split}"), set[bytes]()
    while split == "train" or len(seen) < size:
        story = draw(rng, boats)
        digest = sha256(story.prompt().encode()).digest()
        if digest not in seen and SPLITS[digest[0] % len(SPLITS)] == split:
            seen.add(digest)
            yield story


def task_of(story: Boats) -> StoryTask:
    """Return the task of a story; in the wrong chapter no boat is at a lock where it was."""
    elsewhere = {
        canal: next(x for x in LOCKS[int(lock) :] + LOCKS if x not in (lock, story.first[canal]))
        for canal, lock in story.last.items()
    }
    return StoryTask(
        prompt=story.prompt(),
        answer=story.plan(story.last),
        chapter=story.plan(story.last),
        synopsis=SYNOPSIS,
        wrong=story.plan(elsewhere),
        book="boats",
        level=float(len(story.last)),
    )
