"""What `quintain check` finds before a policy does: a reply that earns much whatever the task, and
a shaping that repeats the outcome.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from quintain import Environment, Reward, Rollout, Task, reward
from quintain_authoring.constant_replies import constant_replies, repeated_shaping, spaced
from quintain_authoring.suites import EnvironmentSuite

QUEUES = ["billing", "shipping", "account", "technical"]


@reward(range=(0, 1))
def exact(rollout: Rollout) -> float:
    return float(rollout.reply.strip().lower() == rollout.task.answer)


@reward(range=(-1, 1))
def signed(rollout: Rollout) -> float:
    return 1.0 if rollout.reply == rollout.task.answer else -1.0


@reward
def near(rollout: Rollout) -> float:
    """Partial credit for a number."""
    try:
        off = abs(float(rollout.reply) - float(rollout.task.answer))
    except ValueError:
        return 0.0
    return max(0.0, 1 - off / 100)


@reward(range=(1, 5))
def stars(rollout: Rollout) -> float:
    return 5.0 if rollout.reply == rollout.task.answer else 1.0


@reward
def polite(rollout: Rollout) -> float:
    return float(rollout.reply.startswith("q:"))


@reward
def prefix(rollout: Rollout) -> float:
    same = 0
    for a, b in zip(rollout.reply, rollout.task.answer, strict=False):
        if a != b:
            break
        same += 1
    return same / max(1, len(rollout.task.answer))


@reward
def short(rollout: Rollout) -> float:
    return -len(rollout.reply) / 100


class Asked(Environment[Task, None]):
    """Tasks with given answers."""

    reward = exact
    answers = ("",)  # not a field: a subclass has others

    def tasks(self, split: str) -> Iterator[Task]:
        for i, answer in enumerate(self.answers):
            yield Task(prompt=f"{split} {i}: {random.Random(i).random()}", answer=answer)


class Wrapped(Asked):
    """The oracle writes JSON."""

    @reward
    @staticmethod
    def of_json(rollout: Rollout) -> float:
        try:
            return float(json.loads(rollout.reply)["queue"] == rollout.task.answer)
        except (ValueError, TypeError, KeyError):
            return 0.0

    reward = of_json

    def oracle(self, task: Task, messages: Any) -> str:
        return json.dumps({"queue": task.answer})


def checked(
    check: Callable[[EnvironmentSuite], str],
    scored: Reward | None,
    answers: Sequence[str],
    shaping: Reward | None = None,
) -> str:
    """Return what *check* says of an environment with these answers and rewards."""
    fields: dict[str, Any] = {"answers": tuple(answers), "shaping": shaping}
    if scored is not None:
        fields["reward"] = scored
    made = type("Made", (Asked if scored is not None else Wrapped,), fields)
    kind = type("Checks", (EnvironmentSuite,), {"environment": made, "episodes": 16})
    kind.setup_class()
    try:
        return check(kind())
    finally:
        kind.teardown_class()


CASES: list[tuple[Reward | None, list[str], tuple[str, int] | None]] = [
    (exact, QUEUES * 30, ("billing", 25)),
    (exact, sorted(QUEUES * 30), ("account", 25)),  # sorted by answer
    (exact, ["yes"] * 80 + ["no"] * 20, ("yes", 80)),
    (None, QUEUES * 10, ('{"queue": "billing"}', 25)),
    (signed, ["A", "B", "C", "D"] * 10, ("A", 25)),
    (stars, ["A", "B"] * 10, ("A", 50)),
    (near, [str(i) for i in range(101)], ("50", 75)),
    (exact, [f"word {i}" for i in range(100)], None),
    (exact, [f"label{i % 12}" for i in range(120)], None),  # twelve labels
    (exact, ["42"] * 20, ("42", 100)),
]


@pytest.mark.parametrize(("scored", "answers", "expected"), CASES)
def test_the_reply_that_earns_most_everywhere_is_named(
    scored: Reward | None, answers: list[str], expected: tuple[str, int] | None
) -> None:
    """Without a reward: that of an environment whose oracle writes JSON."""
    text = checked(constant_replies, scored, answers)
    named = re.match(r"the reply '(.*?)' earns (\d+)% of the reward", text)

    assert (named and (named[1], int(named[2]))) == expected


def test_the_sentence_names_the_whole_set() -> None:
    text = checked(constant_replies, exact, QUEUES * 30)

    assert text.startswith(
        "the reply 'billing' earns 25% of the reward on all 120 tasks of 'train' (right on 25%); "
        "a policy may collapse there"
    )


def test_of_a_large_set_tasks_are_taken_evenly() -> None:
    tasks = [Task(prompt=str(i)) for i in range(10)]

    assert [t.prompt for t in spaced(tasks, 4)] == ["0", "2", "5", "7"]
    assert spaced(tasks, 20) == tasks


WORDS = ["billing", "shipping", "account", "returns", "technical", "sales", "login", "refunds"]
SHAPINGS = [
    (0.3 * exact, True),
    (exact, True),
    (2.0 * exact, True),
    (0.1 * polite, False),
    (0.2 * prefix, False),
    (short, False),
    (0.3 * exact + 0.1 * short, False),
]


@pytest.mark.parametrize(("shaping", "repeats"), SHAPINGS)
def test_a_shaping_that_repeats_the_outcome_is_named(shaping: Reward, repeats: bool) -> None:
    text = checked(repeated_shaping, exact, WORDS, shaping)

    assert text.startswith("the shaping ") is repeats
    assert ("repeats the outcome on all" in text) is repeats


def test_without_shaping_there_is_nothing_to_repeat() -> None:
    with pytest.raises(pytest.skip.Exception, match="it has no shaping"):
        checked(repeated_shaping, exact, WORDS)
