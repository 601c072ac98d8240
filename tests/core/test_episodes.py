"""Episodes: limits, endings, retries, seats, tools, seeds, and order that never depends on arrival."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from quintain.errors import BindingError, InfrastructureError, PolicyFault, RewardFault
from quintain.interfaces.agent import Agent, Limits
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import Reward, group_reward, reward
from quintain.interfaces.service import need
from quintain.rollouts.runner import Job, Setting, run_groups
from quintain.types.rollout import EndingKind, Group, Rollout
from quintain.types.sampling import Sampling, derived_seed
from quintain.types.task import Task

from .engines import Speaker


@reward(range=(0, 1))
def right(rollout: Rollout) -> float:
    return float(rollout.reply == str(rollout.task.answer))


class Base(Environment[Task, Any]):
    reward = right

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt=f"{i}", answer=i) for i in range(4)]


def play(environment: Environment, engine: Speaker, members: int = 1, tasks: int = 1, **setting: Any) -> list[Group]:
    jobs = [
        Job(environment=environment, task=t, members=members, index=i)
        for i, t in enumerate(list(environment.tasks("train"))[:tasks])
    ]
    return asyncio.run(run_groups(jobs, Setting(engine=engine, **setting)))


def one(environment: Environment, engine: Speaker, **setting: Any) -> Rollout:
    return play(environment, engine, **setting)[0].rollouts[0]


def echo(prompt: str, how: Sampling) -> str:
    return prompt.split("user\n")[-1].split("<|im_end|>")[0]


def test_single_turn_is_the_default() -> None:
    """An environment of tasks and a reward needs nothing else."""
    rollout = one(Base(), Speaker(echo))

    assert (EndingKind.FINISHED, 1.0, "0") == (rollout.ending.kind, rollout.verdict.total, rollout.reply)
    assert 2 == rollout.tokens
    assert ["user", "assistant"] == [m.role for m in rollout.messages]


def test_turn_limit_lets_the_code_after_the_loop_run() -> None:
    """`turns()` stops at the limit, the evidence arrives, the ending says so."""

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

    assert (EndingKind.TRUNCATED, "turns", {"turns": 3}) == (
        rollout.ending.kind,
        rollout.ending.reason,
        rollout.evidence,
    )
    assert rollout.verdict is not None


def test_token_limit_spans_turns() -> None:
    """Tokens are counted over the whole episode and cut the last turn short."""

    class Talk(Base):
        limits = Limits(turns=None, tokens=7)

        async def rollout(self, task: Task, agent: Agent) -> int:
            agent.user(task.prompt)
            async for _ in agent.turns():
                agent.user("go on")
            return 0

    rollout = one(Talk(), Speaker(lambda prompt, how: "abc"))

    assert (7, "tokens") == (rollout.tokens, rollout.ending.reason)


def test_a_limit_that_leaves_the_coroutine_is_an_early_end_scored_as_the_environment_says() -> None:
    """No evidence: the verdict is `early`, the reward does not run."""

    class Talk(Base):
        early = -0.5

        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.turn()
            await agent.turn()

    rollout = one(Talk(), Speaker(echo))

    assert (EndingKind.TRUNCATED, True, -0.5) == (rollout.ending.kind, rollout.ending.early, rollout.verdict.total)


@pytest.mark.parametrize(
    ("error", "kind", "valid"),
    [
        (PolicyFault("illegal"), EndingKind.POLICY_FAULT, True),
        (ValueError("bug"), EndingKind.ENVIRONMENT_ERROR, False),
        (InfrastructureError("down"), EndingKind.INFRASTRUCTURE_ERROR, False),
    ],
)
def test_what_an_environment_raises_becomes_its_ending(error: Exception, kind: EndingKind, valid: bool) -> None:
    """Each kind of failure keeps its name; only the policy's are scored."""

    class Bad(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            raise error

    rollout = one(Bad(), Speaker(echo))

    assert (kind, valid) == (rollout.ending.kind, rollout.valid)
    assert valid == (rollout.verdict is not None)


def test_our_failures_are_retried_with_the_same_seed_then_masked() -> None:
    """One hiccup is mended; a lasting failure stays a failure, never a zero."""
    fails = iter([InfrastructureError("hiccup")])
    engine = Speaker(lambda prompt, how: next(fails, "0"))
    mended = one(Base(), engine, retries=1)
    lasting = one(Base(), Speaker(lambda prompt, how: InfrastructureError("down")), retries=2)

    assert (1.0, 2) == (mended.verdict.total, mended.ending.attempts)
    assert engine.seeds[0] == engine.seeds[1]
    assert (EndingKind.INFRASTRUCTURE_ERROR, 3, None) == (lasting.ending.kind, lasting.ending.attempts, lasting.verdict)


def test_time_limit_is_ours() -> None:
    """The wall clock of an episode is never the policy's fault."""

    class Slow(Base):
        limits = Limits(seconds=0.05)

        async def rollout(self, task: Task, agent: Agent) -> None:
            await asyncio.sleep(60)

    rollout = one(Slow(), Speaker(echo), retries=0)

    assert (EndingKind.TIMEOUT, False) == (rollout.ending.kind, rollout.valid)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1.0", [1.0]])
def test_a_reward_that_gives_no_finite_number_fails_its_member_only(value: Any) -> None:
    """NaN, infinity, None and text are typed failures that say what came."""

    @reward
    def odd(rollout: Rollout) -> Any:
        return value if rollout.member == 0 else 1.0

    class Odd(Base):
        reward = odd

    a, b = play(Odd(), Speaker(echo), members=2)[0].rollouts

    assert (EndingKind.REWARD_ERROR, None) == (a.ending.kind, a.verdict)
    assert "odd" in a.ending.reason
    assert 1.0 == b.verdict.total


def test_group_rewards_see_valid_members_only() -> None:
    """A failed member is not ranked."""

    @reward
    def picky(rollout: Rollout) -> float:
        if rollout.member == 1:
            raise RewardFault("broken checker")
        return 1.0

    @group_reward
    def crowd(group: Any) -> list[float]:
        return [float(len(group))] * len(group)

    class Crowd(Base):
        reward = picky
        shaping: Reward = crowd

    group = play(Crowd(), Speaker(echo), members=3)[0]

    assert [2.0, None, 2.0] == [r.shaping.total if r.shaping else None for r in group.rollouts]
    assert 2 == len(group.valid)


def test_evidence_must_be_plain_data() -> None:
    """A live handle as evidence is the environment's error."""

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

    assert EndingKind.ENVIRONMENT_ERROR == leaky.ending.kind
    assert Board(True, [1]) == one(Plain(), Speaker(echo)).evidence


def test_tools_run_and_their_results_reach_the_policy() -> None:
    """A call, its result as tool tokens, then the reply; arguments that do not fit come back as text."""

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
    rollout = one(Adder(), Speaker(lambda prompt, how: next(said)))
    first, second, last = rollout.turns

    assert "it is 5" == rollout.evidence == last.reply
    assert "wrong arguments" in (first.calls[0].result or "")
    assert "5" == second.calls[0].result
    assert "add" in Speaker(echo).codec.decode(rollout.transcripts[""].path(0).ids).split("</tools>")[0]


def test_unreadable_calls_use_up_their_chances() -> None:
    """Three unreadable calls in a row are the policy's fault."""

    class Adder(Base):
        limits = Limits(turns=9)

        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user("go")
            await agent.run()

    rollout = one(Adder(), Speaker(lambda prompt, how: "<tool_call>{</tool_call>"))
    assert EndingKind.FINISHED == rollout.ending.kind  # no tools were offered: it is just text

    class Offered(Adder):
        async def rollout(self, task: Task, agent: Agent) -> None:
            def go(x: int) -> int:
                return x

            agent.user("go")
            await agent.run(go)

    rollout = one(Offered(), Speaker(lambda prompt, how: "<tool_call>{</tool_call>"))
    assert (EndingKind.POLICY_FAULT, 3) == (rollout.ending.kind, len(rollout.turns))


def test_seats_talk_separately_and_only_the_policys_train() -> None:
    """Two seats of the policy have transcripts of their own; a seat with an engine of its own has none."""

    class Duel(Base):
        limits = Limits(turns=4)

        async def rollout(self, task: Task, agent: Agent) -> str:
            other, judge = agent.seat("other"), agent.seat("judge", Speaker(lambda prompt, how: "fair"))
            for seat in (agent, other, judge):
                seat.user("say")
                await seat.turn()
            return ""

    rollout = one(Duel(), Speaker(lambda prompt, how: f"{how.seed}"))

    assert {"", "other"} == set(rollout.transcripts)
    assert ["", "other", "judge"] == [t.seat for t in rollout.turns]
    assert rollout.turns[0].text != rollout.turns[1].text


def test_seeds_depend_on_run_task_and_member_alone() -> None:
    """Neither the order of tasks, nor concurrency, nor timing changes a seed or a result."""

    def texts(concurrency: int, jitter: int | None) -> list[list[str]]:
        engine = Speaker(lambda prompt, how: str(how.seed), jitter=jitter)
        return [
            [r.reply for r in g.rollouts] for g in play(Base(), engine, members=3, tasks=4, concurrency=concurrency)
        ]

    assert texts(256, None) == texts(2, 1) == texts(5, 2)
    assert derived_seed(0, "a", 1) != derived_seed(0, "a", 2)
    assert 2567054096787269053 == derived_seed(0, "a", 1)


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

    play(Count(), Speaker(echo), members=5, tasks=4, concurrency=3)

    assert 3 == most


def test_a_missing_service_stops_everything_with_its_name() -> None:
    """What no retry can mend is raised, not counted."""

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

    assert EndingKind.ENVIRONMENT_ERROR == rollout.ending.kind
    assert "longer context" in rollout.ending.reason


def test_an_engine_may_differ_by_task_and_by_seat() -> None:
    """`for_task` and `for_seat` are of the contract; by default both give the engine itself."""
    asked: list[str] = []

    class ByTask(Speaker):
        def for_task(self, task: Task) -> Speaker:
            return Speaker(lambda prompt, how: str(task.answer)) if task.answer else self

        def for_seat(self, name: str) -> Speaker:
            asked.append(name)
            return self

    plain = Speaker(echo)
    assert plain is plain.for_task(Task(prompt="?")) is plain.for_seat("rival")
    groups = play(Base(), ByTask(lambda prompt, how: "nothing"), tasks=3)
    assert ["nothing", "1", "2"] == [g.rollouts[0].reply for g in groups]
    assert [""] == asked
