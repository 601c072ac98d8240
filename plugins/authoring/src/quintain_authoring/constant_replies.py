"""Two checks of `quintain check` for what a policy may collapse to: a reply that earns much whatever
the task, and a shaping that repeats the outcome.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from statistics import fmean, median
from typing import Any

import pytest

from quintain import Rollout, Task
from quintain.interfaces import yielded
from quintain.registry import signature_of
from quintain.types import are_equal, reaches

from .audit import CONSTANTS
from .controls import ControlEngine
from .scripted import ScriptedEngine
from .suites import EnvironmentSuite

MOST_TASKS = 500
"""Tasks that a reply is scored on; of more, as many that lie evenly in the split."""
FEWEST = 20
"""Tasks below which one answer is a tenth by chance."""
LOOKED_AT = 100_000
"""Tasks whose answers are counted."""
COMMON = 3
"""Commonest answers that are tried."""
FINALISTS = 2
"""Replies that earned most on a few tasks, which are scored on many."""
MUCH = 0.1
"""Share of the reward from which on a constant reply is named: chance on ten equal labels."""


@dataclass(frozen=True, kw_only=True)
class Earned:
    """What one reply earned: its share of the outcome reward, and of tasks on which it is right."""

    reply: str
    share: float
    right: float


NOTHING = Earned(reply="", share=0.0, right=0.0)


def constant_replies(suite: EnvironmentSuite) -> str:
    """Return the reply that earns most on all tasks, where that is much; empty if none does."""
    environment = suite.build()
    if environment.reward.group:
        pytest.skip("the reward compares the samples of a group")
    tasks = list(islice(yielded(environment, "tasks", suite.splits[0]), LOOKED_AT))
    if len(tasks) < FEWEST:
        return ""
    needs = [*environment.reward.needs, *signature_of(type(environment)).needs]
    # A judge or a sandbox costs money or seconds a reply.
    most = suite.episodes if needs else max(MOST_TASKS, suite.episodes)
    few, many = spaced(tasks, suite.episodes), spaced(tasks, most)
    solved = suite.play(ControlEngine(environment, "oracle"), tasks=few, concurrency=len(few))
    first = [_earned(suite, reply, few, solved) for reply in candidates(suite, tasks, solved)]
    first.sort(key=lambda earned: -earned.share)
    found = [
        _earned(suite, one.reply, many, solved) for one in first[:FINALISTS] if one.share > MUCH / 2
    ]
    best = max(found, key=lambda earned: earned.share, default=NOTHING)
    if best.share < MUCH:
        return ""
    on = f"all {len(tasks):,}" if len(many) == len(tasks) else f"{len(many)} of {len(tasks):,}"
    return (
        f"the reply {best.reply!r:.80} earns {best.share:.0%} of the reward on {on} tasks of "
        f"{suite.splits[0]!r} (right on {best.right:.0%}); a policy may collapse there: let no "
        "answer be so common, take several tasks a step, and watch the alerts `one_reply_groups` "
        "and `entropy_collapse`"
    )


def spaced(tasks: Sequence[Task], most: int) -> list[Task]:
    """Return at most *most* tasks that lie evenly in *tasks*, which may be sorted by answer."""
    if len(tasks) <= most:
        return list(tasks)
    return [tasks[i * len(tasks) // most] for i in range(most)]


def candidates(
    suite: EnvironmentSuite,
    tasks: Sequence[Task],
    solved: Sequence[Rollout[Any, Any]],
) -> list[str]:
    """Return replies that do not look at the task: how the oracle writes the commonest answers and
    that of a task or two, the middle of numbers, and those of an audit.
    """
    counts = Counter(str(task.answer) for task in tasks if task.answer is not None)
    with_answer = {str(task.answer): task for task in reversed(tasks)}
    chosen = [with_answer[text] for text, _ in counts.most_common(COMMON)]
    written = suite.play(ControlEngine(suite.build(), "oracle"), tasks=chosen) if chosen else []
    written += solved[:2]
    replies = [r.reply for r in written if r.valid and len(r.turns) == 1]
    numbers = [n for text in counts if (n := _number(text)) is not None]
    middle = [f"{median(numbers):g}"] if numbers and len(numbers) == len(counts) else []
    return list(dict.fromkeys([*replies, *middle, *CONSTANTS]))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _earned(
    suite: EnvironmentSuite, reply: str, tasks: Sequence[Task], solved: Sequence[Rollout[Any, Any]]
) -> Earned:
    """Score *reply* on *tasks*; its share lies between the least that anything earned and what the
    solutions of *solved* earn.
    """
    played = suite.play(ScriptedEngine(replies=reply), tasks=tasks, concurrency=suite.episodes)
    scored = [r for r in played if r.valid and r.outcome is not None]
    if not scored:
        return replace(NOTHING, reply=reply)
    rewards = [r.outcome.total for r in scored if r.outcome]
    full = [r.outcome.total for r in solved if r.valid and r.outcome]
    declared = suite.build().reward.range
    known = declared is not None and math.isfinite(declared[0])
    lowest = declared[0] if declared is not None and known else min([0.0, *rewards, *full])
    highest = fmean(full) if full else 1.0
    right = fmean(map(reaches, rewards))
    if highest <= lowest:
        return replace(NOTHING, reply=reply, right=right)
    return Earned(reply=reply, share=(fmean(rewards) - lowest) / (highest - lowest), right=right)


def repeated_shaping(suite: EnvironmentSuite) -> str:
    """Return that the shaping says the same as the outcome, on replies that are right, wrong and
    nearly right; empty if it adds something.
    """
    environment = suite.build()
    if environment.shaping is None:
        pytest.skip("it has no shaping")
    if environment.reward.group or environment.shaping.group:
        pytest.skip("a reward compares the samples of a group")
    tasks = spaced(suite.tasks(suite.splits[0]), 8)
    solved = suite.play(ControlEngine(environment, "oracle"), tasks=tasks)
    texts = [r.reply for r in solved if r.valid and len(r.turns) == 1]
    if len(texts) < len(tasks):
        pytest.skip("its solutions take several turns")
    played = list(solved)
    for shift in range(1, len(tasks)):  # the solutions of other tasks: well-formed, and wrong
        others = {task.id: texts[(i + shift) % len(texts)] for i, task in enumerate(tasks)}
        played += [
            one
            for task in tasks
            for one in suite.play(ScriptedEngine(replies=others[task.id]), tasks=[task])
        ]
    for spoiled in ("{}", "{} or so", "It is {}.", "{}{}", "", "0"):
        for task, text in zip(tasks, texts, strict=True):
            for half in (text, text[: len(text) // 2]):
                reply = spoiled.replace("{}", half)
                played += suite.play(ScriptedEngine(replies=reply), tasks=[task])
    shaping_of: defaultdict[float, list[float]] = defaultdict(list)
    for r in played:
        if r.valid and r.outcome is not None and r.shaping is not None:
            shaping_of[r.outcome.total].append(r.shaping.total)
    means = [fmean(values) for _, values in sorted(shaping_of.items())]
    rises = len(means) > 1 and all(b > a for a, b in pairwise(means))
    if not rises or not all(are_equal(values) for values in shaping_of.values()):
        return ""
    count = sum(map(len, shaping_of.values()))
    return (
        f"the shaping {environment.shaping.name!r} repeats the outcome on all {count} replies tried: "
        "it tells the policy nothing new and makes the reward look larger; leave it out, or let it "
        "score what the outcome does not"
    )
