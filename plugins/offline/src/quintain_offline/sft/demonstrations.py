"""The demonstrations of an environment: those that it writes down, and episodes that its control
`demonstrator` plays.

A reply to a prompt is written down by `Environment.demonstrations`. A conversation of several
turns, with tools or with several players, is played instead: the control `demonstrator`, a method
``(task, messages) -> str | Reply``, takes the policy's turns in `Environment.rollout`, so that each
of its replies has exactly the context that the policy will have.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from quintain import Engine, Environment, Message, Reply, Rollout, Sampling, Task, ToolSpec, reward
from quintain.errors import EnvironmentFault, UsageError
from quintain.evaluation import evaluate
from quintain.interfaces import yielded
from quintain.types import messages_of

from .example import Example
from .supervised import join_thought

DEMONSTRATOR = "demonstrator"
"""The control whose episodes are demonstrations."""

EPISODES = 64
"""Demonstrations that are played at once."""


def plays(environment: Environment[Any, Any]) -> bool:
    """Return whether the demonstrations of *environment* are episodes of its `demonstrator`."""
    return DEMONSTRATOR in environment.controls()


async def demonstrations_of(
    environment: Environment[Any, Any],
    split: str = "train",
    *,
    services: Mapping[str, Any] | None = None,
) -> AsyncIterator[Example]:
    """Yield the demonstrations that *environment* writes down, then what its `demonstrator` says,
    per task and player.

    Args:
        services: by slot, started; for episodes that need some.

    Raises:
        EnvironmentFault: the environment's own code failed.
        UsageError: an episode of the demonstrator failed.
    """
    for prompt, reply in written_demonstrations(environment, split):
        yield Example(messages=(*prompt, Message("assistant", reply)), replies=(len(prompt),))
    if not plays(environment):
        return
    tasks = yielded(environment, "tasks", split)
    while some := list(islice(tasks, EPISODES)):
        for example in await _played(environment, some, services or {}):
            yield example


def written_demonstrations(
    environment: Environment[Any, Any], split: str = "train"
) -> Iterator[tuple[tuple[Message, ...], str]]:
    """Yield prompt and reply of each of `Environment.demonstrations`, the system message among
    those of the prompt.

    Raises:
        EnvironmentFault: the environment's own code failed.
    """
    for demonstration in yielded(environment, "demonstrations", split):
        messages = messages_of(demonstration.prompt)
        system = demonstration.system or environment.system
        if system and not any(m.role == "system" for m in messages):
            messages.insert(0, Message("system", system))
        yield tuple(messages), demonstration.reply


@reward
def _unscored(rollout: Rollout[Task, Any]) -> float:
    """Give no score: a demonstration is imitated whatever it would score."""
    return 0.0


async def _played(
    environment: Environment[Any, Any], tasks: Sequence[Task], services: Mapping[str, Any]
) -> list[Example]:
    """Return the conversations of one episode per task, those of a task's players one after the
    other.
    """
    engine = DemonstratorEngine(environment)
    evaluation = await evaluate(
        environment.overridden(reward=_unscored, shaping=_unscored, yardstick=_unscored),
        engine,
        tasks=tasks,
        sampling=Sampling(temperature=0.0),
        services=services,
        concurrency=EPISODES,
        retries=2,
    )
    for reason, count in evaluation.reasons.items():
        name = type(environment).__name__
        raise UsageError(f"{count} of {len(tasks)} demonstrations of {name} failed: {reason}")
    return [
        example
        for task in tasks
        for record in engine.records[task.id].values()
        for example in record.examples()
    ]


@dataclass
class PlayerRecord:
    """What one player of one episode said.

    Attributes:
        messages: up to its last reply, which is the last of them.
        replies: positions of its replies.
        tools: those that it was offered.
        context: what the environment had as messages after the last reply.
        before: the conversation up to each place where the context was rewritten.
    """

    messages: list[Message] = field(default_factory=list)
    replies: list[int] = field(default_factory=list)
    tools: tuple[ToolSpec, ...] = ()
    context: list[Message] = field(default_factory=list)
    before: list[Example] = field(default_factory=list)

    def add(self, messages: Sequence[Message], tools: Sequence[ToolSpec], reply: Reply) -> None:
        """Append the messages since the last reply, and *reply*. Where the context was rewritten
        another example begins, whose earlier replies are context.
        """
        if list(messages[: len(self.context)]) != self.context:
            self.before = list(self.examples())
            self.messages, self.replies = [], []
        self.messages.extend(messages[len(self.messages) :])
        self.replies.append(len(self.messages))
        text = join_thought(reply.reasoning, reply.text) if reply.reasoning else reply.text
        self.messages.append(Message("assistant", text, calls=reply.calls))
        # a turn without tools keeps those that the conversation has shown
        self.tools = tuple(tools) or self.tools
        last_turn = Message("assistant", reply.text, reasoning=reply.reasoning, calls=reply.calls)
        self.context = [*messages, last_turn]

    def examples(self) -> Iterator[Example]:
        """Yield the conversation as an example, or several where its context was rewritten; none
        where the player said nothing.
        """
        yield from self.before
        if self.replies:
            yield Example(
                messages=tuple(self.messages), replies=tuple(self.replies), tools=self.tools
            )


class DemonstratorEngine(Engine):
    """Answers as the control `demonstrator` of *environment* does, and keeps what it says.

    Attributes:
        records: by task id and player, of the last episode of the task.
    """

    name = f"@{DEMONSTRATOR}"

    def __init__(self, environment: Environment[Any, Any]) -> None:
        self.records: dict[str, dict[str, PlayerRecord]] = {}
        self._environment = environment

    def for_task(self, task: Task) -> Engine:
        """Return the engine of one episode."""
        return _Episode(self._environment, task, self.records)

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        raise UsageError(f"{self.name} answers single tasks: bind it with for_task(task)")


class _Episode(Engine):
    """The demonstrator of one episode; `for_player` gives the one of each player."""

    name = DemonstratorEngine.name

    def __init__(
        self,
        environment: Environment[Any, Any],
        task: Task,
        records: dict[str, dict[str, PlayerRecord]],
    ) -> None:
        self._environment, self._task = environment, task
        self._players = records[task.id] = {}

    def for_player(self, name: str) -> Engine:
        self._players[name] = PlayerRecord()
        return _Player(self._environment, self._task, self._players[name])

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        raise UsageError(f"{self.name} answers single players: bind it with for_player(name)")


class _Player(Engine):
    """The demonstrator as one player of one episode."""

    name = DemonstratorEngine.name

    def __init__(
        self, environment: Environment[Any, Any], task: Task, record: PlayerRecord
    ) -> None:
        self._environment, self._task, self._record = environment, task, record

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        answer = getattr(self._environment, DEMONSTRATOR)(self._task, messages)
        if inspect.isawaitable(answer):
            answer = await answer
        reply = Reply(text=answer) if isinstance(answer, str) else answer
        if not isinstance(reply, Reply):
            raise EnvironmentFault(
                f"the control {DEMONSTRATOR!r} gave {answer!r}; expected text or a Reply"
            )
        self._record.add(messages, tools, reply)
        return reply
