"""A search in two turns over a small corpus: the policy asks a library, reads, and answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from quintain import Agent, Environment, Limits, Message, Rollout, Task, ToolCall, reward

NAMES = ("Ada", "Bela", "Carl", "Dora", "Emil", "Fina", "Gus", "Hana", "Ivo", "Jana", "Kurt", "Lia")
SURNAMES = ("Berg", "Moss", "Stone", "Field", "Wood", "Lake", "Hill", "Sand")
TOWNS = ("Oslo", "Lima", "Kyoto", "Porto", "Tunis", "Quito", "Perth", "Turin", "Basel", "Minsk")
TRADES = ("baker", "pilot", "tailor", "singer", "painter", "doctor", "miner", "farmer")
SHOWN = (
    ("Zoe Reed", "Cairo", "nurse"),
    ("Max Frost", "Delhi", "tutor"),
    ("Una Pike", "Malmo", "judge"),
)
ASKED = {
    "train": {
        "town": ("Where does {name} live?", "In which town does {name} live?"),
        "trade": ("What does {name} do?", "What is the job of {name}?"),
    },
    "dev": {"town": ("What is the home of {name}?",), "trade": ("What is the work of {name}?",)},
    "test": {
        "town": ("Which town is {name} from?",),
        "trade": ("Which job does {name} have?",),
    },
}


def people(seed: str = "library") -> dict[str, dict[str, str]]:
    """Return who lives where and does what; each split asks about people of its own."""
    rng = Random(seed)
    names = [f"{first} {last}" for first in NAMES for last in SURNAMES]
    return {n: {"town": rng.choice(TOWNS), "trade": rng.choice(TRADES)} for n in names}


def of_split(split: str) -> list[str]:
    """Return the people that a split asks about."""
    place = {"dev": 0, "test": 1}
    return [n for i, n in enumerate(people()) if place.get(split, 2) == min(i % 6, 2)]


@reward(range=(0, 1))
def right(rollout: Rollout) -> float:
    """Whether the last reply has the answer, and no other town or trade."""
    found = [word for word in (*TOWNS, *TRADES) if word.lower() in rollout.reply.lower()]
    return float(found == [rollout.task.answer])


def shown(name: str, town: str, trade: str) -> list[Message]:
    """Return a worked question."""
    call = ToolCall(name="search", arguments={"query": name}, id=name)
    entry = f"{name} lives in {town} and is a {trade}."
    return [
        Message("user", f"Where does {name} live?"),
        Message("assistant", "", calls=(call,)),
        Message("tool", entry, call_id=name, name="search"),
        Message("assistant", town),
    ]


class Library(Environment[Task, None]):
    """Answer a question about a person, after a search. *examples* worked questions, at most 3,
    stand before it.
    """

    reward = right
    limits = Limits(turns=3)
    system = "Search the library for the person, then answer in a few words."
    examples: int = 3

    def tasks(self, split: str) -> Iterator[Task]:
        rng, known = Random(split), people()
        for i in itertools.count() if split == "train" else range(64):
            name, what = rng.choice(of_split(split)), rng.choice(("town", "trade"))
            prompt = rng.choice(ASKED[split][what]).format(name=name)
            yield Task(prompt=prompt, answer=known[name][what], id=f"{split} {i}")

    async def rollout(self, task: Task, agent: Agent) -> None:
        known = people()

        def search(query: str) -> str:
            """Return the entry of the library that fits best."""
            words = set(query.lower().split())
            name = max(known, key=lambda n: len(words & set(n.lower().split())))
            if not words & set(name.lower().split()):
                return "nothing found"
            return f"{name} lives in {known[name]['town']} and is a {known[name]['trade']}."

        for entry in SHOWN[: self.examples]:
            agent.user(shown(*entry))
        agent.user(str(task.prompt))
        await agent.run(search)
