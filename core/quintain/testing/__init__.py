"""The author's kit: what tests of environments, rewards and plugins need, and no model.

::

    from quintain.testing import rollout

    def test_right_answer():
        assert reward.score(rollout(task, "42")).total == 1

The suites of every environment and reward are those of the plugin with `quintain check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from .. import lazy_names

if TYPE_CHECKING:
    from ..interfaces.engine import Engine
    from ..interfaces.environment import Environment
    from ..registry.discovery import Component
    from ..registry.lookup import Registry
    from ..types.rollout import Rollout
    from ..types.sampling import Sampling
    from ..types.task import Task
    from .scripted import Script
    from .scripted import ScriptedEngine as ScriptedEngine

T = TypeVar("T", bound="Task")

# pytest imports this package at every start, because of the plugin beside it.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".scripted": "ScriptedEngine",
    },
    "isolated_plugins",
    "rollout",
    "run_episode",
)


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


def run_episode(
    environment: Environment[Any, Any],
    task: T,
    engine: Engine | Script = "",
    *,
    seed: int = 0,
    sampling: Sampling | None = None,
    services: Mapping[str, Any] | None = None,
) -> Rollout[T, Any]:
    """Run one episode, tried once, and score it; a failure is the termination of the rollout that
    comes back.

    Args:
        engine: an engine, or the script of one (`ScriptedEngine`): a text for all turns, a list, a
            function.
        seed: of the run.
        services: by slot, started, for the rewards.

    Raises:
        RuntimeError: called inside a running event loop; there await
            `quintain.rollouts.runner.run_groups`.
    """
    import asyncio

    from ..interfaces.engine import Engine
    from ..interfaces.rollout_request import RolloutRequest
    from ..rollouts.runner import RolloutContext, run_groups
    from ..types.sampling import Sampling
    from .scripted import ScriptedEngine

    policy = engine if isinstance(engine, Engine) else ScriptedEngine(replies=engine)
    context = RolloutContext(
        engine=policy,
        sampling=sampling or Sampling(),
        services=services or {},
        run_seed=seed,
        concurrency=1,
        retries=0,
    )
    (group,) = asyncio.run(
        run_groups([RolloutRequest(environment=environment, task=task, group_size=1)], context)
    )
    return group.rollouts[0]


@contextmanager
def isolated_plugins(
    *components: Component, keep: Iterable[str] = ("quintain",)
) -> Iterator[Registry]:
    """Inside the block only *components* are installed, and those of the distributions in *keep*
    (core's by default).

    The registry is given: ``plugins.add("environment", "mine", Mine)`` adds an object of the test.
    """
    from ..registry.lookup import isolated

    with isolated(*components, keep=keep) as registry:
        yield registry
