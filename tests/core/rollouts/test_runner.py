"""Episodes: limits, terminations, retries, players, tools, seeds, and order that never depends on
arrival.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from quintain import ToolSpec, as_tool
from quintain.errors import (
    BindingError,
    InfrastructureError,
    PolicyFault,
    PolicyTimeout,
    RewardFault,
)
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.engine import Engine, Reply
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import Reward, group_reward, reward
from quintain.interfaces.service import need
from quintain.rollouts.grading_clock import GradingClock
from quintain.rollouts.runner import AT_ONCE, RolloutContext, RolloutRequest, run_groups
from quintain.types.rollout import Group, Rollout, TerminationKind
from quintain.types.sampling import Sampling, derived_seed
from quintain.types.task import Message, Task
from quintain.types.transcript import Sampled

from .engines import Speaker


@reward(range=(0, 1))
def right(rollout: Rollout) -> float:
    return float(rollout.reply == str(rollout.task.answer))


class Base(Environment[Task, Any]):
    reward = right

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt=f"{i}", answer=i) for i in range(4)]


def play(
    environment: Environment, engine: Speaker, group_size: int = 1, tasks: int = 1, **context: Any
) -> list[Group]:
    requests = [
        RolloutRequest(environment=environment, task=t, group_size=group_size, index=i)
        for i, t in enumerate(list(environment.tasks("train"))[:tasks])
    ]
    return asyncio.run(run_groups(requests, RolloutContext(engine=engine, **context)))


def one(environment: Environment, engine: Speaker, **context: Any) -> Rollout:
    return play(environment, engine, **context)[0].rollouts[0]


def echo(prompt: str, sampling: Sampling) -> str:
    return prompt.split("user\n")[-1].split("<|im_end|>")[0]


def test_single_turn_is_the_default() -> None:
    """An environment of tasks and a reward needs nothing else."""
    rollout = one(Base(), Speaker(echo))

    assert rollout.termination.kind == TerminationKind.FINISHED
    assert rollout.outcome.total == 1.0
    assert rollout.reply == "0"
    assert rollout.tokens == 2
    assert [m.role for m in rollout.messages] == ["user", "assistant"]


def test_turn_limit_lets_the_code_after_the_loop_run() -> None:
    """`turns()` stops at the limit, the result arrives, the termination says so."""

    class Talk(Base):
        limits = Limits(turns=3)

        async def rollout(self, task: Task, agent: Agent) -> dict[str, int]:
            agent.user(task.prompt)
            n = 0
            async for _ in agent.turns():
                n += 1
                agent.user("more")
            return {"turns": n}

    rollout = one(Talk(), Speaker(echo))

    assert rollout.termination.kind == TerminationKind.TRUNCATED
    assert rollout.termination.reason == "turns"
    assert rollout.result == {"turns": 3}
    assert rollout.outcome is not None


def test_token_limit_spans_turns() -> None:
    """Tokens are counted over the whole episode and cut the last turn short."""

    class Talk(Base):
        limits = Limits(turns=None, tokens=7)

        async def rollout(self, task: Task, agent: Agent) -> int:
            agent.user(task.prompt)
            async for _ in agent.turns():
                agent.user("go on")
            return 0

    rollout = one(Talk(), Speaker(lambda prompt, sampling: "abc"))

    assert rollout.tokens == 7
    assert rollout.termination.reason == "tokens"


def test_a_limit_that_leaves_the_coroutine_is_an_early_end_scored_as_the_environment_says() -> None:
    """No result: the outcome is `early`, the reward does not run."""

    class Talk(Base):
        early = -0.5

        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.turn()
            await agent.turn()

    rollout = one(Talk(), Speaker(echo))

    assert rollout.termination.kind == TerminationKind.TRUNCATED
    assert rollout.termination.early is True
    assert rollout.outcome.total == -0.5


@pytest.mark.parametrize(
    ("error", "kind", "valid"),
    [
        (PolicyFault("illegal"), TerminationKind.POLICY_FAULT, True),
        (ValueError("bug"), TerminationKind.ENVIRONMENT_ERROR, False),
        (InfrastructureError("down"), TerminationKind.INFRASTRUCTURE_ERROR, False),
    ],
)
def test_what_an_environment_raises_becomes_its_termination(
    error: Exception, kind: TerminationKind, valid: bool
) -> None:
    """Each kind of failure keeps its name; only the policy's are scored."""

    class Bad(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            raise error

    rollout = one(Bad(), Speaker(echo))

    assert kind == rollout.termination.kind
    assert valid == rollout.valid
    assert valid == (rollout.outcome is not None)


def test_our_failures_are_retried_with_the_same_seed_then_masked() -> None:
    """One hiccup is retried; a lasting failure stays a failure, never a zero."""
    fails = iter([InfrastructureError("hiccup")])
    engine = Speaker(lambda prompt, sampling: next(fails, "0"))
    retried = one(Base(), engine, retries=1)
    lasting = one(Base(), Speaker(lambda prompt, sampling: InfrastructureError("down")), retries=2)

    assert retried.outcome.total == 1.0
    assert retried.termination.attempts == 2
    assert engine.seeds[0] == engine.seeds[1]
    assert lasting.termination.kind == TerminationKind.INFRASTRUCTURE_ERROR
    assert lasting.termination.attempts == 3
    assert lasting.outcome is None


def test_a_reward_is_asked_again_alone_and_only_if_its_infrastructure_failed() -> None:
    """The episode is not played again; a reward that raises is not asked again; one of a group is
    asked about the whole group. What still has no reward is left out, never a zero.
    """
    errors: list[Exception] = []
    asked: list[int] = []

    def answer(number_of_rollouts: int) -> float:
        asked.append(number_of_rollouts)
        if errors:
            raise errors.pop()
        return 1.0

    class Alone(Base):
        reward = reward(range=(0, 1))(lambda rollout: answer(1))

    class Grouped(Base):
        reward = group_reward(range=(0, 1))(lambda rollouts: [answer(len(rollouts))] * 2)

    down, bug = InfrastructureError("no judge"), ValueError("bug")
    for environment, failures, questions, kind in (
        (Alone(), [down], [1, 1], TerminationKind.FINISHED),
        (Alone(), [down, down], [1, 1], TerminationKind.INFRASTRUCTURE_ERROR),
        (Alone(), [bug], [1], TerminationKind.REWARD_ERROR),
        (Grouped(), [down], [2, 2], TerminationKind.FINISHED),
        (Grouped(), [bug], [2], TerminationKind.REWARD_ERROR),
    ):
        errors[:], asked[:] = failures, []
        engine, size = Speaker(echo), 2 if isinstance(environment, Grouped) else 1

        (group,) = play(environment, engine, group_size=size, retries=1)

        assert len(engine.prompts) == size
        assert asked == questions
        assert {r.termination.kind for r in group.rollouts} == {kind}
        finished = kind is TerminationKind.FINISHED
        assert [r.outcome and r.outcome.total for r in group.rollouts] == [
            1.0 if finished else None
        ] * size


class Hangs(Speaker):
    """An engine whose second turn never ends."""

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Any:
        if self.prompts:
            await asyncio.sleep(60)
        return await super().sample(ids, sampling)


async def stall() -> str:
    """Wait for ever."""
    await asyncio.sleep(60)
    return ""


CALL = '<tool_call>\n{"name": "stall", "arguments": {}}\n</tool_call>'


class Slow(Base):
    """Takes the time itself, after a turn."""

    limits = Limits(seconds=0.4, turns=9)
    early = -1.0

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user("0")
        with agent.policy_time():
            await agent.turn()
        await asyncio.sleep(60)


class AsksTwice(Slow):
    """Waits for the engine while what the policy chose runs."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user("0")
        with agent.policy_time():
            await agent.turn()
            await agent.turn()


class RunsAProgram(Slow):
    """Waits for a program of the policy."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user("0")
        with agent.policy_time():
            await asyncio.sleep(60)


class RunsTwoPrograms(Slow):
    """Each of two programs takes a quarter of the time, both at once: together one quarter."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user("0")
        with agent.policy_time(), agent.policy_time():
            await asyncio.sleep(0.1)
        await asyncio.sleep(60)


class CallsATool(Slow):
    """Waits for a tool that the policy calls, and makes slow."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user("0")
        await agent.run(as_tool(stall))


class CallsAToolOfOurs(Slow):
    """Waits for a tool that the policy cannot make slow."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user("0")
        await agent.run(replace(as_tool(stall), ours=True))


class CallsAToolThatAsks(Slow):
    """Waits for the turn that a tool asks for."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user("0")
        other = agent.conversation("other")
        other.user("1")

        async def stall() -> str:
            return (await other.turn()).reply

        await agent.run(stall)


@pytest.mark.parametrize(
    "environment, engine",
    [
        (Slow, Speaker),
        (AsksTwice, Hangs),
        (CallsAToolOfOurs, Speaker),
        (CallsAToolThatAsks, Hangs),
        (RunsTwoPrograms, Speaker),
    ],
)
def test_a_time_limit_that_the_policy_did_not_use_up_is_a_failure_and_tried_again(
    environment: type[Slow], engine: type[Speaker]
) -> None:
    """Time in which a turn is sampled is never the policy's."""
    rollout = one(environment(), engine(lambda *_: CALL), retries=1)

    assert rollout.termination.kind == TerminationKind.TIMEOUT
    assert rollout.termination.cause == "infrastructure"
    assert rollout.termination.attempts == 2
    assert "took over 0.4 s (limits.seconds)" in rollout.termination.reason
    assert not rollout.valid
    assert rollout.outcome is None


@pytest.mark.parametrize("environment", [RunsAProgram, CallsATool])
def test_a_time_limit_that_the_policy_used_up_is_scored_as_an_early_end(
    environment: type[Slow],
) -> None:
    """What it chose took more than half of the time."""
    rollout = one(environment(), Speaker(lambda *_: CALL), retries=1)

    assert rollout.termination.kind == TerminationKind.POLICY_TIMEOUT
    assert rollout.termination.cause == "policy"
    assert rollout.termination.attempts == 1
    assert "took over 0.4 s (limits.seconds)" in rollout.termination.reason
    assert rollout.valid
    assert rollout.outcome is not None
    assert rollout.outcome.total == -1.0


def test_environments_and_rewards_name_a_timeout_of_the_policy() -> None:
    """`PolicyTimeout` is scored and counted apart from other faults, whoever raises it."""

    class Says(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            raise PolicyTimeout("its program took over 10 s")

    @reward
    def graded(rollout: Rollout) -> float:
        raise PolicyTimeout("its answer takes over 10 s to check")

    class Graded(Base):
        reward = graded

    for environment in (Says(), Graded()):
        rollout = one(environment, Speaker(echo))
        ended = rollout.termination
        assert ended.kind == "policy_timeout"
        assert ended.early is True
        assert ended.cause == "policy"
        assert rollout.outcome is not None
        assert rollout.outcome.total == 0
        assert "takes" in ended.reason or "took" in ended.reason


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1.0", [1.0]])
def test_a_reward_that_gives_no_finite_number_fails_its_sample_only(value: Any) -> None:
    """NaN, infinity, None and text are typed failures that say what came."""

    @reward
    def odd(rollout: Rollout) -> Any:
        return value if rollout.sample == 0 else 1.0

    class Odd(Base):
        reward = odd

    a, b = play(Odd(), Speaker(echo), group_size=2)[0].rollouts

    assert a.termination.kind == TerminationKind.REWARD_ERROR
    assert a.outcome is None
    assert "odd" in a.termination.reason
    assert b.outcome.total == 1.0


def test_the_time_of_rewards_is_measured_and_overlaps_count_once() -> None:
    """Four rewards that wait for one another take four times as long in sum as by the clock on the
    wall.
    """
    running: list[asyncio.Event] = []

    @reward
    async def waits(rollout: Rollout) -> float:
        running.append(started := asyncio.Event())
        if len(running) == 4:
            await asyncio.sleep(0.05)
            for event in running:
                event.set()
        await started.wait()
        return 1.0

    class Waits(Base):
        reward = waits

    context = RolloutContext(engine=Speaker(echo))
    request = RolloutRequest(environment=Waits(), task=Task(prompt="1"), group_size=4)
    asyncio.run(run_groups([request], context))
    taken = context.grading.take_metrics()
    assert 0.04 < taken["grading.seconds_per_rollout"] <= taken["grading.seconds"]
    assert taken["grading.seconds"] < 4 * taken["grading.seconds_per_rollout"]
    assert context.grading.take_metrics() == {}


def test_a_reward_that_still_runs_counts_up_to_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a schedule trains while episodes go on; no second is counted twice."""
    now = iter([0.0, 1.0, 3.0, 4.0, 10.0]).__next__
    monkeypatch.setattr("time.monotonic", now)
    clock = GradingClock()
    with clock.measure(rollouts=1):  # at 0
        with clock.measure(rollouts=1):  # 1 to 3
            pass
        assert clock.take_metrics() == {
            "grading.seconds": 4.0,
            "grading.seconds_per_rollout": 2.0,
        }  # at 4
    assert clock.take_metrics() == {"grading.seconds": 6.0, "grading.seconds_per_rollout": 10.0}


def test_group_rewards_see_valid_samples_only() -> None:
    """A failed sample is not ranked."""

    @reward
    def picky(rollout: Rollout) -> float:
        if rollout.sample == 1:
            raise RewardFault("broken checker")
        return 1.0

    @group_reward
    def crowd(group: Any) -> list[float]:
        return [float(len(group))] * len(group)

    class Crowd(Base):
        reward = picky
        shaping: Reward = crowd

    group = play(Crowd(), Speaker(echo), group_size=3)[0]

    assert [r.shaping.total if r.shaping else None for r in group.rollouts] == [2.0, None, 2.0]
    assert len(group.valid) == 2


def test_result_must_be_plain_data() -> None:
    """A live handle as result is the environment's error."""

    class Leaky(Base):
        async def rollout(self, task: Task, agent: Agent) -> Any:
            return self.tasks  # a bound method is no plain data

    @dataclass
    class Board:
        open: bool
        moves: list[int]

    class Plain(Base):
        async def rollout(self, task: Task, agent: Agent) -> Board:
            return Board(True, [1])

    leaky = one(Leaky(), Speaker(echo), retries=0)

    assert leaky.termination.kind == TerminationKind.ENVIRONMENT_ERROR
    assert Board(True, [1]) == one(Plain(), Speaker(echo)).result


def test_tools_run_and_their_results_reach_the_policy() -> None:
    """A call, its result as tool tokens, then the reply; arguments that do not fit come back as
    text.
    """

    class Adder(Base):
        limits = Limits(turns=4)

        async def rollout(self, task: Task, agent: Agent) -> str:
            def add(a: int, b: int) -> int:
                """Add two numbers."""
                return a + b

            agent.user("2+3?")
            turn = await agent.run(add)
            return turn.reply

    said = iter(
        [
            '<tool_call>{"name": "add", "arguments": {"a": "x", "b": 3}}</tool_call>',
            '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>',
            "it is 5",
        ]
    )
    rollout = one(Adder(), Speaker(lambda prompt, sampling: next(said)))
    first, second, last = rollout.turns

    assert "it is 5" == rollout.result == last.reply
    assert "wrong arguments" in first.calls[0].error
    assert second.calls[0].result == "5"
    assert (
        "add"
        in Speaker(echo).tokenizer.decode(rollout.transcripts[""].path(0).ids).split("</tools>")[0]
    )


def test_unreadable_calls_use_up_their_chances() -> None:
    """Three unreadable calls in a row are the policy's fault."""

    class Adder(Base):
        limits = Limits(turns=9)

        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user("go")
            await agent.run()

    rollout = one(Adder(), Speaker(lambda prompt, sampling: "<tool_call>{</tool_call>"))
    # no tools were offered: it is just text
    assert rollout.termination.kind == TerminationKind.FINISHED

    class Offered(Adder):
        async def rollout(self, task: Task, agent: Agent) -> None:
            def go(x: int) -> int:
                return x

            agent.user("go")
            await agent.run(go)

    rollout = one(Offered(), Speaker(lambda prompt, sampling: "<tool_call>{</tool_call>"))
    assert rollout.termination.kind == TerminationKind.POLICY_FAULT
    assert len(rollout.turns) == 3


def test_players_talk_separately_and_only_the_policys_train() -> None:
    """Two players of the policy have transcripts of their own; a player with an engine of its own
    has none.
    """

    class Duel(Base):
        limits = Limits(turns=4)

        async def rollout(self, task: Task, agent: Agent) -> str:
            other = agent.player("other")
            judge = agent.player("judge", Speaker(lambda prompt, sampling: "fair"))
            for player in (agent, other, judge):
                player.user("say")
                await player.turn()
            return ""

    rollout = one(Duel(), Speaker(lambda prompt, sampling: f"{sampling.seed}"))

    assert {"", "other"} == set(rollout.transcripts)
    assert [t.player for t in rollout.turns] == ["", "other", "judge"]
    assert rollout.turns[0].text != rollout.turns[1].text
    assert (
        rollout.tokens
        == rollout.turns[0].tokens + rollout.turns[1].tokens
        > rollout.turns[2].tokens
        == 0
    )


def test_tokens_of_a_partner_are_not_the_policys() -> None:
    """A policy without tokens, such as a control, has none where its partner samples some."""

    class Silent(Engine):
        name = "silent"

        async def reply(
            self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
        ) -> Reply:
            return Reply(text="pass")

    class Duel(Base):
        async def rollout(self, task: Task, agent: Agent) -> str:
            rival = agent.player("rival", Speaker(lambda prompt, sampling: "a long answer"))
            for player in (agent, rival):
                player.user("say")
                await player.turn()
            return ""

    assert one(Duel(), Silent()).tokens == 0


def test_seeds_depend_on_run_task_and_sample_alone() -> None:
    """Neither the order of tasks, nor concurrency, nor timing changes a seed or a result."""

    def texts(concurrency: int, jitter: int | None) -> list[list[str]]:
        engine = Speaker(lambda prompt, sampling: str(sampling.seed), jitter=jitter)
        return [
            [r.reply for r in g.rollouts]
            for g in play(Base(), engine, group_size=3, tasks=4, concurrency=concurrency)
        ]

    assert texts(256, None) == texts(2, 1) == texts(5, 2)
    assert derived_seed(0, "a", 1) != derived_seed(0, "a", 2)
    assert derived_seed(0, "a", 1) == 2567054096787269053


def test_concurrency_is_bounded() -> None:
    """No more episodes run at once than asked for."""
    live, most = 0, 0

    class Count(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            nonlocal live, most
            live += 1
            most = max(most, live)
            await asyncio.sleep(0.001)
            live -= 1

    play(Count(), Speaker(echo), group_size=5, tasks=4, concurrency=3)

    assert most == 3


class Holds(Speaker):
    """Answers once a thousand episodes wait."""

    def __init__(self) -> None:
        super().__init__(echo)
        self.all, self.waiting = asyncio.Event(), 0

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.waiting += 1
        if self.waiting == 1000:
            self.all.set()
        await self.all.wait()
        return await super().sample(ids, sampling)


class Registers(Holds):
    """Notes how many episodes are registered when the first one is sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.at_first = 0, 0

    @contextmanager
    def register(self) -> Iterator[None]:
        self.live += 1
        yield

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.at_first = self.at_first or self.live
        return await super().sample(ids, sampling)


def begun_in_one_step(engine: Holds) -> int:
    """The most of 1,000 episodes that begin between two looks of another task."""
    environment, most = Base(), 0

    async def look() -> None:
        nonlocal most
        before = 0
        while before < 1000:
            most = max(most, engine.waiting - before)
            before = engine.waiting
            await asyncio.sleep(0)

    async def run() -> None:
        (task, *_) = environment.tasks("train")
        request = RolloutRequest(environment=environment, task=task, group_size=1000)
        context = RolloutContext(engine=engine, concurrency=1000)
        await asyncio.gather(look(), run_groups([request], context))

    asyncio.run(run())
    return most


@pytest.mark.more
def test_many_episodes_begin_a_few_at_a_time_and_all_are_registered_before_the_first() -> None:
    assert begun_in_one_step(Holds()) <= AT_ONCE
    engine = Registers()
    begun_in_one_step(engine)
    assert engine.at_first == 1000


def test_a_missing_service_stops_everything_with_its_name() -> None:
    """What no retry can fix is raised, not counted."""

    @reward
    def judged(rollout: Rollout, *, judge: Any = need()) -> float:
        return 1.0

    class Judged(Base):
        reward = judged

    with pytest.raises(BindingError, match=r"\[services.judge\]"):
        play(Judged(), Speaker(echo))


def test_a_task_longer_than_the_context_says_what_to_do() -> None:
    """It is no fault of the policy's."""
    rollout = one(Base(), Speaker(echo, context=10))

    assert rollout.termination.kind == TerminationKind.ENVIRONMENT_ERROR
    assert "longer context" in rollout.termination.reason


def test_an_engine_may_differ_by_task_and_by_player() -> None:
    """`for_task` and `for_player` are of the contract; by default both give the engine itself."""
    asked: list[str] = []

    class ByTask(Speaker):
        def for_task(self, task: Task) -> Speaker:
            return Speaker(lambda prompt, sampling: str(task.answer)) if task.answer else self

        def for_player(self, name: str) -> Speaker:
            asked.append(name)
            return self

    plain = Speaker(echo)
    assert plain is plain.for_task(Task(prompt="?")) is plain.for_player("rival")
    groups = play(Base(), ByTask(lambda prompt, sampling: "nothing"), tasks=3)
    assert [g.rollouts[0].reply for g in groups] == ["nothing", "1", "2"]
    assert asked == [""]


def test_a_finished_episode_is_freed_without_the_garbage_collector() -> None:
    """Memory stays flat over many episodes even where the collector never runs: the engine's
    episodes are no cycles.
    """

    class Busy(Base):
        limits = Limits(turns=4)

        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            other = agent.player("other")
            other.user("and you?")
            await other.turn()
            await agent.run(self.double)
            if task.answer == 3:
                raise RuntimeError("broken")
            while True:  # until the limit
                await agent.turn()

        async def double(self, x: int) -> int:
            """Double it."""
            return 2 * x

    def alive() -> Counter[str]:
        return Counter(
            type(x).__name__
            for x in gc.get_objects()
            if str(type(x).__module__).startswith("quintain")
        )

    play(Busy(), Speaker(echo), group_size=2, tasks=4)
    gc.collect()
    before = alive()
    gc.disable()
    try:
        kinds = {
            r.termination.kind
            for g in play(Busy(), Speaker(echo), group_size=2, tasks=4)
            for r in g.rollouts
        }
        left = alive() - before
    finally:
        gc.enable()
    assert {TerminationKind.ENVIRONMENT_ERROR, TerminationKind.TRUNCATED} == kinds
    assert not left
