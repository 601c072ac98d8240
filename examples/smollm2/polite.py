"""Rewriting a text under a judge of rules: a blunt request becomes a polite question. The yardstick,
which does not train, asks what the rules do not: whether the request is still the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from random import Random

from quintain import Environment, Message, Rollout, Task, control, reward

BLUNT = ("Send me {thing} by {day}.", "I need {thing}, and {day} at the latest.")
OTHER_BLUNT = ("Get {thing} over here until {day}.",)
THINGS = {
    "train": ("the report", "the keys", "your slides", "the new contract", "a copy of the list"),
    "dev": ("the invoice", "your notes"),
    "test": ("the photos", "a map of the site", "the signed form"),
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@reward(range=(0, 1), proxy=True)
def rules(rollout: Rollout) -> float:
    """A quarter for each rule: one question, a polite beginning, "please", at most 16 words."""
    reply = rollout.reply.strip()
    kept = (
        reply.endswith("?") and reply.count("?") == 1,
        re.match(r"(could|would|can) you\b", reply, re.IGNORECASE) is not None,
        re.search(r"\bplease\b", reply, re.IGNORECASE) is not None,
        0 < len(reply.split()) <= 16,
    )
    return sum(kept) / len(kept)


@reward(range=(0, 1))
def same_request(rollout: Rollout) -> float:
    """Whether the reply names the thing and the day."""
    return float(all(word in rollout.reply for word in rollout.task.answer))


class Polite(Environment[Task, None]):
    """Rewrite a blunt request as a polite question. *blunt* takes other ways to be blunt."""

    reward, yardstick = rules, same_request
    system = "Rewrite the request as one short polite question. Reply with the question alone."
    blunt: str = "usual"

    def tasks(self, split: str) -> Iterator[Task]:
        sentences = OTHER_BLUNT if self.blunt == "other" else BLUNT
        requests = [*itertools.product(sentences, THINGS[split], DAYS)]
        Random(split).shuffle(requests)
        for sentence, thing, day in requests:
            prompt = sentence.format(thing=thing, day=day)
            yield Task(prompt=prompt, answer=[thing.split()[-1], day])

    @control(scores="max")
    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        """Ask politely for the same."""
        return "Could you please send the {} by {}?".format(*task.answer)
