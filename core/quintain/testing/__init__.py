"""What tests of rewards and plugins need in a bare install: rollouts, and a registry of their own.

::

    from quintain.testing import rollout

    def test_right_answer():
        assert reward.score(rollout(task, "42")).total == 1

Episodes without a model, and the suites of every environment and reward, are in the plugin with
`quintain check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..registry.discovery import Component
    from ..registry.lookup import Registry
    from ..types.rollout import Rollout
    from ..types.task import Task

T = TypeVar("T", bound="Task")

# pytest imports this package at every start, because of the plugin beside it.
__all__ = ["isolated_plugins", "rollout"]


def rollout(task: T, *texts: str, result: Any = None, **fields: Any) -> Rollout[T, Any]:
    """Return a rollout in which the policy said *texts*, one per turn: the input of a reward.

    Args:
        texts: as sampled: think tags become the turn's reasoning, tool-call tags its calls.
        result: what `Environment.rollout` would have returned.
        fields: any other field of `Rollout`.
    """
    from ..models.tool_calls import parse
    from ..types.rollout import Rollout
    from ..types.task import Message, messages_of

    turns = tuple(parse(text, tools="<tool_call>" in text) for text in texts)
    replies = [
        Message("assistant", turn.reply, reasoning=turn.reasoning, calls=turn.calls)
        for turn in turns
    ]
    values = {"turns": turns, "messages": (*messages_of(task.prompt), *replies), **fields}
    return Rollout(task=task, result=result, **values)


@contextmanager
def isolated_plugins(
    *components: Component, keep: Iterable[str] = ("quintain",)
) -> Iterator[Registry]:
    """Install only *components* inside the block, and those of the distributions in *keep* (core's
    by default).

    The registry is given: ``plugins.add("environment", "mine", Mine)`` adds an object of the test.
    """
    from ..registry.lookup import isolated

    with isolated(*components, keep=keep) as registry:
        yield registry
