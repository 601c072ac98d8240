"""Calling a tool: the policy asks a store for the number of an item, and says it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from quintain import Agent, Environment, Limits, Message, Rollout, Task, ToolCall, reward

ITEMS = {
    "train": ("lamps", "chairs", "boxes", "tents", "spoons", "ropes", "pencils", "coats"),
    "dev": ("buckets", "rulers", "hats"),
    "test": ("ladders", "plates", "brushes", "drums", "kites"),
}
QUESTIONS = {
    "train": ("How many {item} are there?", "What is the stock of {item}?"),
    "dev": ("How many {item} do we have?",),
    "test": ("Tell me the number of {item}.", "How many {item} are left?"),
}


@reward(range=(0, 1))
def right(rollout: Rollout) -> float:
    """Whether the last reply has the number and no other."""
    numbers = [word.strip(".,!") for word in rollout.reply.split() if word.strip(".,!").isdigit()]
    return float(numbers == [str(rollout.task.answer)])


def shown(item: str, count: int) -> list[Message]:
    """Return a worked question."""
    call = ToolCall(name="stock", arguments={"name": item}, id=item)
    return [
        Message("user", f"How many {item} are there?"),
        Message("assistant", "", calls=(call,)),
        Message("tool", str(count), call_id=item, name="stock"),
        Message("assistant", f"There are {count} {item}."),
    ]


class Store(Environment[Task, None]):
    """Answer a question about the stock, which a tool knows. *examples* worked questions, at most
    3, stand before it.
    """

    reward = right
    limits = Limits(turns=3)
    system = "You keep a store. Call the tool to learn the stock, then answer in one sentence."
    examples: int = 3

    def tasks(self, split: str) -> Iterator[Task]:
        rng = Random(split)
        for _ in itertools.count() if split == "train" else range(64):
            item = rng.choice(ITEMS[split])
            prompt = rng.choice(QUESTIONS[split]).format(item=item)
            yield Task(prompt=prompt, answer=rng.randint(11, 98), id=f"{prompt} {rng.random()}")

    async def rollout(self, task: Task, agent: Agent) -> None:
        item = next(i for items in ITEMS.values() for i in items if i in str(task.prompt))

        def stock(name: str) -> int:
            """Return how many items of a name are in the store."""
            return int(task.answer) if name == item else 0

        for other, count in (("bottles", 31), ("mirrors", 8), ("towels", 57))[: self.examples]:
            agent.user(shown(other, count))
        agent.user(str(task.prompt))
        await agent.run(stock)
