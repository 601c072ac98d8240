"""The check of `quintain check` that demonstrations score what they should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import pytest

from quintain import Engine, Message, Reply, Rollout, Sampling, Task, ToolSpec
from quintain.errors import UsageError
from quintain.interfaces import yielded
from quintain.tracebacks import defined_at
from quintain.types import messages_of, reaches

from .controls import ControlEngine
from .scripted import ScriptedEngine
from .suites import EnvironmentSuite

DEMONSTRATOR = "demonstrator"
"""The control whose episodes are demonstrations."""

SHOWN = 3
"""Wrong demonstrations that a message names."""


class Shown(Engine):
    """Answers each task with the reply that is shown for it.

    Attributes:
        replies: by task id.
    """

    name = "demonstrations"

    def __init__(self, replies: Mapping[str, str]) -> None:
        self.replies = replies

    def for_task(self, task: Task) -> Engine:
        """Return the engine of one episode."""
        return ScriptedEngine(replies=self.replies[task.id])

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        raise UsageError("demonstrations answer single tasks: bind them with for_task(task)")


def demonstrations(suite: EnvironmentSuite) -> str:
    """Return which demonstrations do not score full reward; empty if all do.

    Those that the environment writes down are played on the task with their prompt. A demonstrator
    may lose some games; that none of its episodes is right is remarked.
    """
    environment, split = suite.build(), suite.splits[0]
    tasks: dict[str, list[Task]] = {}
    for task in suite.tasks(split):
        tasks.setdefault(str(messages_of(task.prompt)), []).append(task)
    replies: dict[str, str] = {}
    chosen: list[Task] = []
    written = islice(yielded(environment, "demonstrations", split), suite.sample)
    for shown in written:
        found = tasks.get(str(messages_of(shown.prompt)), [])
        if len(found) == 1 and found[0].id not in replies:  # else its task is not known
            replies[found[0].id] = shown.reply
            chosen.append(found[0])
    if chosen:
        played = suite.play(
            Shown(replies), tasks=chosen[: suite.episodes], concurrency=suite.episodes
        )
        # with more turns the reply alone is not what is imitated
        played = [r for r in played if len(r.turns) == 1]
        wrong = [r for r in played if not is_right(r)]
        place = defined_at(type(environment).demonstrations)
    elif DEMONSTRATOR in environment.controls():
        played = suite.play(ControlEngine(environment, DEMONSTRATOR), concurrency=suite.episodes)
        wrong = [] if any(is_right(r) for r in played) else played
        place = defined_at(getattr(environment, DEMONSTRATOR))
    else:
        pytest.skip("it has no demonstrator, and no demonstration with the prompt of one task")
    if not wrong:
        return ""
    lines = [
        f"task {r.task.id} ({r.task.prompt!r:.200}) with the reply {r.reply!r:.200} {ending(r)}"
        for r in wrong[:SHOWN]
    ]
    head = (
        f"{len(wrong)} of {len(played)} demonstrations ({place}) do not score full reward; correct "
        "them, unless their errors are there for reinforcement learning to remove"
    )
    return "\n".join([head, *lines])


def is_right(played: Rollout[Any, Any]) -> bool:
    """Return whether an episode has full reward; one without a score has not."""
    return played.outcome is not None and reaches(played.outcome.of_player(""))


def ending(played: Rollout[Any, Any]) -> str:
    """Return what an episode scored, or why it has no result: a failure is no zero."""
    ended = played.termination
    if played.outcome is None or ended.early:
        return f"ended with {ended.kind}: {ended.reason}"
    return f"scored {played.outcome.of_player(''):g}; expected 1"
