"""Whatever an author's code raises or returns is that component's typed failure, and the other
rollouts live.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from quintain.errors import EnvironmentFault, PluginError
from quintain.evaluation.evaluation import tasks_of
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.environment import Environment
from quintain.interfaces.events import RunEnd, StepEnd
from quintain.interfaces.reward import group_reward, reward
from quintain.process.interrupts import run_coroutine
from quintain.registry.discovery import Component
from quintain.registry.lookup import Registry
from quintain.rollouts import own_task
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.run.hooks import Hooks
from quintain.tracebacks import LONGEST_TEXT
from quintain.types.rollout import Group, Rollout, Score, TerminationKind
from quintain.types.sampling import Sampling
from quintain.types.task import Task
from quintain.types.transcript import Sampled

from .engines import Speaker


class Foreign(BaseException):
    """A library's own."""


class Speechless(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


class Unlisted(AttributeError):
    """An `AttributeError` of an object whose `__dir__` fails."""

    def __init__(self) -> None:
        super().__init__("gone", name="gone", obj=Odd())


class Odd:
    """A value that is no number in every possible way."""

    def __float__(self) -> float:
        raise SystemExit(0)

    def __repr__(self) -> str:
        raise Foreign

    def __dir__(self) -> list[str]:
        raise ValueError


FAILURES: list[Callable[[], BaseException]] = [
    lambda: SystemExit(0),
    lambda: SystemExit("bye"),
    lambda: asyncio.CancelledError(),
    lambda: GeneratorExit(),
    lambda: Foreign("foreign"),
    lambda: Speechless(),
    lambda: Unlisted(),
    lambda: TimeoutError("its own"),
    lambda: BaseExceptionGroup("several", [SystemExit(0), Foreign()]),
    lambda: ValueError("x" * 30_000_000),
]
RETURNED: list[Any] = [
    Odd(),
    1e308,
    "1e308",
    -1e16,
    [Odd()],
    Score(turns=(1e308, 1e308)),
    Score(players={"": Odd()}),
]  # type: ignore[dict-item]


def play(
    environment: Environment[Any, Any], group_size: int = 2, run: Any = asyncio.run
) -> Group[Any, Any]:
    request = RolloutRequest(environment=environment, task=Task(prompt="0"), group_size=group_size)
    context = RolloutContext(engine=Speaker(lambda *_: "hello"), retries=0)
    groups: list[Group[Any, Any]] = run(run_groups([request], context))
    return groups[0]


def check(group: Group[Any, Any], kind: TerminationKind) -> None:
    assert [kind] * len(group.rollouts) == [r.termination.kind for r in group.rollouts]
    assert all(0 < len(r.termination.reason) <= LONGEST_TEXT + 100 for r in group.rollouts)
    assert not group.valid


def a_score(rollout: Any) -> float:
    return 1.0


class Plain(Environment[Task, Any]):
    reward = reward(a_score)

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt="0")]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_reward_may_raise_anything(
    failure: Callable[[], BaseException], grouped: bool, awaited: bool
) -> None:
    def raises(rollout: Any) -> float:
        raise failure()

    async def raises_later(rollout: Any) -> float:
        await asyncio.sleep(0)
        raise failure()

    function: Any = raises_later if awaited else raises
    check(
        play(Plain().overridden(reward=(group_reward if grouped else reward)(function))),
        TerminationKind.REWARD_ERROR,
    )


@pytest.mark.parametrize("value", RETURNED)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_reward_may_return_anything(value: Any, grouped: bool) -> None:
    def returns(rollout: Any) -> Any:
        return [value] * len(rollout) if grouped else value

    check(
        play(Plain().overridden(reward=(group_reward if grouped else reward)(returns))),
        TerminationKind.REWARD_ERROR,
    )


@pytest.mark.parametrize("failure", FAILURES)
def test_an_episode_may_raise_anything(failure: Callable[[], BaseException]) -> None:
    class Raises(Plain):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user("go")
            await agent.turn()
            raise failure()

    check(play(Raises()), TerminationKind.ENVIRONMENT_ERROR)


@pytest.mark.parametrize("value", [Odd(), {"odd": Odd()}])
def test_an_episode_may_return_anything(value: Any) -> None:
    class Returns(Plain):
        async def rollout(self, task: Task, agent: Agent) -> Any:
            return value

    check(play(Returns()), TerminationKind.ENVIRONMENT_ERROR)


@pytest.mark.parametrize("failure", FAILURES)
def test_tasks_may_raise_anything(failure: Callable[[], BaseException]) -> None:
    if isinstance(failure(), GeneratorExit):
        pytest.skip("a generator is closed by it")

    class Raises(Plain):
        def tasks(self, split: str) -> list[Task]:
            raise failure()

    with pytest.raises(EnvironmentFault, match=r"failed in tasks\('test'\)") as caught:
        tasks_of(Raises(), "test")
    assert len(str(caught.value)) < LONGEST_TEXT + 200


@pytest.mark.parametrize("failure", FAILURES)
def test_a_hook_may_raise_anything(
    failure: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, however often it happens; the hooks of other plugins are called."""
    seen: list[int] = []

    class Raises:
        def quintain_on_step_end(self, event: StepEnd) -> None:
            raise failure()

    class Counts:
        def quintain_on_step_end(self, event: StepEnd) -> None:
            seen.append(event.step)

    hooks = Hooks(strict=False)
    hooks.add(Counts(), "counts")
    hooks.add(Raises(), "raises")
    for step in (1, 2):
        hooks.emit(StepEnd(step=step, metrics={}))

    assert seen == [1, 2]
    (failure,) = hooks.failures
    line = str(failure)
    assert "plugin 'raises' in quintain_on_step_end" in line
    assert len(line) < LONGEST_TEXT + 200
    assert len(caplog.text.splitlines()) == 1, caplog.text[:2000]


def test_ctrl_c_is_nobodys_failure() -> None:
    class Interrupts:
        def quintain_on_run_end(self, event: RunEnd) -> None:
            raise KeyboardInterrupt

    hooks = Hooks(strict=False)
    hooks.add(Interrupts(), "interrupts")
    with pytest.raises(KeyboardInterrupt):
        hooks.emit(RunEnd(folder="", step=1, status="finished", error="", summary={}))

    def interrupts(rollout: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(Plain().overridden(reward=reward(interrupts)))


@pytest.mark.parametrize(
    "name",
    ["SystemExit(0)", "KeyError", "BaseException('b')", "__import__('asyncio').CancelledError"],
)
def test_a_plugin_may_raise_anything_at_import(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"raises_{abs(hash(name))}"
    (tmp_path / f"{module}.py").write_text(f"raise {name}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    component = Component(kind="hooks", name="odd", target=module, distribution="odd", version="1")
    with pytest.raises(PluginError, match="line 1"):
        Registry([component]).resolve(component)
    hooks = Hooks.installed(registry=Registry([component]), strict=False)
    assert len(hooks.failures) == 1


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_reward_has_a_limit_of_seconds(grouped: bool, persistent: bool) -> None:
    """What takes longer is retried and then left out, not scored 0."""
    calls: list[float] = []

    async def waits(rollout: Any) -> Any:
        calls.append(time.monotonic())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as a bare `except` of a client that tries again does
            await asyncio.sleep(0.3 if persistent else 0)

    environment = Plain().overridden(
        reward=(group_reward if grouped else reward)(waits),
        limits=Limits(turns=1, reward_seconds=0.2),
    )
    request = RolloutRequest(environment=environment, task=Task(prompt="0"), group_size=1)
    context = RolloutContext(engine=Speaker(lambda *_: "hello"), retries=1)
    (group,) = asyncio.run(run_groups([request], context))

    check(group, TerminationKind.INFRASTRUCTURE_ERROR)
    assert (
        group.rollouts[0].termination.reason
        == "reward 'waits' took over 0.2 s (limits.reward_seconds)"
    )
    assert len(calls) == 2


@pytest.mark.parametrize("grouped", [False, True])
def test_a_reward_may_cancel_its_own_task(grouped: bool) -> None:
    async def cancels(rollout: Any) -> Any:
        await cancel_this_task()

    group = play(Plain().overridden(reward=(group_reward if grouped else reward)(cancels)))
    check(group, TerminationKind.REWARD_ERROR)
    assert "CancelledError" in group.rollouts[0].termination.reason


def test_an_episode_may_cancel_its_own_task() -> None:
    class Cancels(Plain):
        async def rollout(self, task: Task, agent: Agent) -> None:
            await agent.turn()
            await cancel_this_task()

    group = play(Cancels())
    check(group, TerminationKind.ENVIRONMENT_ERROR)
    assert group.rollouts[0].termination.reason.startswith(
        "CancelledError (test_author_failures.py, line"
    )


async def cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def fail(error: type[BaseException]) -> None:
    raise error("in a task")


@pytest.mark.parametrize("own", [SystemExit, Foreign, asyncio.CancelledError])
def test_a_task_that_a_reward_starts_may_raise_anything(own: type[BaseException]) -> None:
    """Whoever awaits it gets the exception; commands continue after a `SystemExit`, which ends the
    event loop.
    """

    async def judges(rollout: Any) -> float:
        await asyncio.create_task(fail(own))
        return 1.0

    group = play(Plain().overridden(reward=reward(judges)), run=run_coroutine)
    check(group, TerminationKind.REWARD_ERROR)
    assert own.__name__ in group.rollouts[0].termination.reason
    assert "(test_author_failures.py, line" in group.rollouts[0].termination.reason


@pytest.mark.parametrize("own", [SystemExit, Foreign, asyncio.CancelledError])
def test_a_task_that_an_episode_starts_may_raise_anything(own: type[BaseException]) -> None:
    class Starts(Plain):
        async def rollout(self, task: Task, agent: Agent) -> None:
            await asyncio.create_task(fail(own))

    group = play(Starts(), run=run_coroutine)
    check(group, TerminationKind.ENVIRONMENT_ERROR)
    assert own.__name__ in group.rollouts[0].termination.reason
    assert "(test_author_failures.py, line" in group.rollouts[0].termination.reason


class Silent(Speaker):
    """Never answers."""

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        return await asyncio.Future()


class Persists(Plain):
    """An episode that catches its cancellation."""

    limits = Limits(turns=None, seconds=0.1)


class Raises(Persists):
    async def rollout(self, task: Task, agent: Agent) -> None:
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            raise ValueError from None


class Returns(Persists):
    async def rollout(self, task: Task, agent: Agent) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1e6)


@pytest.fixture
def short_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for an episode that is over for longer than 0.1 s."""
    monkeypatch.setattr(own_task, "CLEANUP_SECONDS", 0.1)


def end_by_the_limit(environment: Persists, over: Callable[[], None] = lambda: None) -> int:
    """Play *environment* until its limit ends it, call *over*, and return how many tasks are left
    then.
    """

    async def ends() -> tuple[Group[Any, Any], int]:
        task = Task(prompt="0", id="the-task")
        request = RolloutRequest(environment=environment, task=task, group_size=1)
        context = RolloutContext(engine=Silent(lambda *_: ""), retries=0)
        (group,) = await run_groups([request], context)
        over()
        for _ in range(5):
            await asyncio.sleep(0)
        return group, len(asyncio.all_tasks()) - 1

    group, left = asyncio.run(ends())
    check(group, TerminationKind.TIMEOUT)
    name = type(environment).__name__
    reason = f"{name}.rollout took over 0.1 s (limits.seconds)"
    assert group.rollouts[0].termination.reason == reason
    return left


STILL_RUNS = "on task 'the-task' catches its cancellation and still runs"


@pytest.mark.usefixtures("short_cleanup")
@pytest.mark.parametrize("environment", [Raises, Returns])
def test_an_episode_that_cleans_up_after_its_cancellation_ends_by_its_limit(
    environment: type[Persists], caplog: pytest.LogCaptureFixture
) -> None:
    assert end_by_the_limit(environment()) == 0
    assert STILL_RUNS not in caplog.text


@pytest.mark.usefixtures("short_cleanup")
def test_an_episode_that_sleeps_on_is_left_alone_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing waits for it for longer than it may clean up."""
    over: list[bool] = []

    class SleepsOn(Persists):
        async def rollout(self, task: Task, agent: Agent) -> None:
            while not over:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1e6)

    assert end_by_the_limit(SleepsOn(), lambda: over.append(True)) == 1
    assert f"SleepsOn.rollout {STILL_RUNS}" in caplog.text


@pytest.mark.usefixtures("short_cleanup")
def test_an_episode_that_asks_on_is_refused_its_next_turn(caplog: pytest.LogCaptureFixture) -> None:
    refused: list[str] = []

    class AsksAgain(Persists):
        async def rollout(self, task: Task, agent: Agent) -> None:
            while True:
                try:
                    await agent.turn()
                except asyncio.CancelledError:
                    continue
                except EnvironmentFault as e:
                    refused.append(str(e))
                    raise

    assert end_by_the_limit(AsksAgain()) == 0
    assert f"AsksAgain.rollout {STILL_RUNS}" in caplog.text
    assert refused == ["the episode is over; its code asked for another turn"]


def test_limits_of_seconds_are_on_by_default() -> None:
    assert Limits().seconds == 600.0
    assert Limits().reward_seconds == 60.0
    assert Plain.limits.seconds == 600.0
    assert Plain.limits.reward_seconds == 60.0


class Duel(Plain):
    """Two players take two turns each."""

    limits = Limits(turns=4)

    async def rollout(self, task: Task, agent: Agent) -> None:
        guest = agent.player("guest")
        for player in (agent, guest, agent, guest):
            player.user("go")
            await player.turn()


def test_scores_of_the_turns_of_other_players_are_refused() -> None:
    """They could not be credited, and would vanish."""

    @reward
    def every_turn(rollout: Rollout) -> Score:
        return Score(turns=tuple(1.0 for _ in rollout.turns))

    @reward
    def own_turns(rollout: Rollout) -> Score:
        return Score(turns=tuple(1.0 for turn in rollout.turns if not turn.player))

    wrong = play(Duel().overridden(reward=every_turn))
    check(wrong, TerminationKind.REWARD_ERROR)
    assert (
        "4 turn scores for 2 turns of the policy (`not turn.player`)"
        in wrong.rollouts[0].termination.reason
    )
    assert [r.total for r in play(Duel().overridden(reward=own_turns)).valid] == [2.0, 2.0]
