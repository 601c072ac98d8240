"""Context as an action: an environment or the policy itself rewrites what the policy reads next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quintain.interfaces.agent import SUMMARISE, Agent, Limits
from quintain.interfaces.engine import Reply
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.types.rollout import Rollout, Score, TerminationKind
from quintain.types.task import Message, Task, ToolCall
from quintain.types.transcript import TokenSource, Transcript
from quintain_authoring import ScriptedEngine, run_episode

TASK = Task(prompt="task")


@reward
def nothing(rollout: Rollout) -> float:
    return 0.0


class Base(Environment[Task, Any]):
    reward = nothing
    limits = Limits(turns=8)
    system = "rules"


def context(messages: Sequence[Message]) -> str:
    """What the policy was asked, as its reply."""
    return "|".join(message.content for message in messages)


def trained(transcript: Transcript) -> list[str]:
    """The text of the sampled tokens of each sequence."""
    return [
        bytes(i for i, mask in zip(s.ids, s.mask, strict=True) if mask and i < 256).decode()
        for s in transcript.sequences()
    ]


class Compacts(Base):
    async def rollout(self, task: Task, agent: Agent) -> list[str]:
        agent.user(task.prompt)
        await agent.turn()
        agent.user("fact")
        await agent.turn()
        agent.user("kept")
        summary = await agent.compact("sum up", keep=1)
        agent.user("asked")
        return [summary.reply, (await agent.turn()).reply]


def says(messages: Sequence[Message]) -> Reply:
    """A thought, and the number of messages."""
    return Reply(text=f"{len(messages)}", reasoning="hm")


def test_a_compacted_conversation_has_task_instruction_summary_and_what_is_kept() -> None:
    rollout = run_episode(Compacts(), TASK, context)

    first, rest = "rules|task", "rules|task|rules|task|fact"
    summary = f"{rest}|{rest}|sum up"
    assert rollout.result == [summary, f"rules|task|sum up|{summary}|kept|asked"]
    assert rollout.termination.kind == TerminationKind.FINISHED
    # all messages are recorded, each once, in their order
    assert [m.content for m in rollout.messages] == [
        *("rules", "task", first, "fact", rest, "kept", "sum up", summary, "asked"),
        rollout.result[1],
    ]


def test_each_token_trains_once_and_a_summary_is_a_copy_in_the_next_context() -> None:
    rollout = run_episode(Compacts(), TASK, context)

    transcript = rollout.transcripts[""]
    texts = trained(transcript)
    assert "".join(texts) == "".join(turn.text for turn in rollout.turns)
    assert transcript.sampled == sum(turn.tokens for turn in rollout.turns)
    last = transcript.path(-1)
    copied = bytes(
        i
        for i, source in zip(last.ids, last.sources, strict=True)
        if source == TokenSource.COPY and i < 256
    )
    assert copied.decode() == rollout.result[0]


def test_a_summary_is_continued_without_its_thought() -> None:
    rollout = run_episode(Compacts(), TASK, says)

    assert rollout.turns[2].reasoning == "hm"
    last = bytes(i for i in rollout.transcripts[""].path(-1).ids if i < 256).decode()
    assert last.count("<think>hm") == 1  # that of the last turn alone


def test_a_summary_counts_as_a_turn() -> None:
    class Few(Compacts):
        limits = Limits(turns=2)

    rollout = run_episode(Few(), TASK, context)

    assert rollout.termination.kind == TerminationKind.TRUNCATED
    assert rollout.termination.reason == "turns"


def test_what_does_not_fit_the_context_fits_after_it_was_compacted() -> None:
    class Long(Base):
        limits = Limits(turns=None)
        compacts: bool = True

        async def rollout(self, task: Task, agent: Agent) -> int:
            agent.user(task.prompt)
            for part in range(6):
                agent.user(f"{part}" * 60)
                if self.compacts:
                    await agent.compact("sum up")
                else:
                    await agent.turn()
            return 6

    kept = run_episode(Long(compacts=False), TASK, ScriptedEngine(replies="short", context=300))
    compacted = run_episode(Long(), TASK, ScriptedEngine(replies="short", context=300))

    assert kept.termination.reason == "context"
    assert kept.result is None
    assert compacted.termination.kind == TerminationKind.FINISHED
    assert compacted.result == 6


def test_the_policy_decides_when_by_a_tool() -> None:
    """The call, which holds the summary, stays; the tool's result answers it."""

    class Folds(Base):
        async def rollout(self, task: Task, agent: Agent) -> None:
            def fold(summary: str) -> str:
                """Replace the conversation so far by a summary."""
                agent.rewrite([*agent.messages[:2], agent.messages[-1]])
                return "folded"

            def look() -> str:
                """Look."""
                return "much"

            agent.user(task.prompt)
            await agent.run(look, fold)

    asked: list[list[str]] = []

    def script(messages: Sequence[Message]) -> str | Reply:
        asked.append([m.role for m in messages])
        call = [
            ToolCall(name="look", arguments={}),
            ToolCall(name="fold", arguments={"summary": "it is much"}),
        ]
        return Reply(calls=(call[len(asked) - 1],)) if len(asked) < 3 else "done"

    rollout = run_episode(Folds(), TASK, script)

    assert rollout.termination.kind == TerminationKind.FINISHED, rollout.termination
    # the template of tests writes results as messages of a user
    assert asked[2] == ["system", "user", "assistant", "user"]
    assert rollout.reply == "done"
    assert len(rollout.messages) == 7
    last = bytes(i for i in rollout.transcripts[""].path(-1).ids if i < 256).decode()
    assert "it is much" in last
    assert last.count("much") == 1


@pytest.mark.parametrize("turns", [0, 1])
def test_a_fork_from_before_a_rewrite_is_refused(turns: int) -> None:
    class Forks(Compacts):
        async def rollout(self, task: Task, agent: Agent) -> list[str]:
            agent.user(task.prompt)
            await agent.turn()
            await agent.compact("sum up")
            agent.fork("now")
            agent.fork("early", turns)
            return []

    termination = run_episode(Forks(), TASK, context).termination

    assert termination.kind == TerminationKind.ENVIRONMENT_ERROR
    assert "the conversation has 2, 2 of them before its last rewrite" in termination.reason


# --------------------------------------------------------------------------------- automatic compaction


class Reads(Base):
    """Takes six turns, each about 80 tokens long; the prompt has 40."""

    limits = Limits(turns=None, compact_at=0.6)

    async def rollout(self, task: Task, agent: Agent) -> list[list[str]]:
        agent.user(task.prompt)
        seen, number = [], 0
        async for turn in agent.turns():
            seen.append([turn.reply, *(message.content for message in agent.messages)])
            number += 1
            if number == 6:
                break
            agent.user(f"{number}" * 40)
        return seen


def asked_for(messages: Sequence[Message]) -> str:
    return "sum" if messages[-1].content == SUMMARISE else "read"


def prompts(rollout: Rollout) -> list[int]:
    """Tokens before each turn, in order of time."""
    return [
        sequence.mask.index(True, start)
        for sequence in rollout.transcripts[""].sequences()
        for start in turn_starts(sequence.mask)
    ]


def turn_starts(mask: Sequence[bool]) -> list[int]:
    return [i for i, trains in enumerate(mask) if trains and not mask[i - 1]]


def test_a_context_that_fills_is_compacted_before_the_turn() -> None:
    """What came since the last turn is kept word for word; no prompt is above the share."""
    rollout = run_episode(Reads(), TASK, ScriptedEngine(replies=asked_for, context=500))

    assert rollout.termination.kind == TerminationKind.FINISHED, rollout.termination
    assert [turn.reply for turn in rollout.turns].count("sum") == rollout.metrics["rewrites"] / 2
    assert [turns[0] for turns in rollout.result] == ["read"] * 6
    compacted = next(messages for messages in rollout.result if SUMMARISE in messages)
    assert compacted[1:5] == ["rules", "task", SUMMARISE, "sum"]
    number = rollout.result.index(compacted)
    assert compacted[5:] == [f"{number}" * 40, "read"]
    assert max(prompts(rollout)) <= 0.6 * 500 + len(SUMMARISE) + 40


@pytest.mark.parametrize("compact_at", [None, 1.0])
def test_nothing_is_compacted_below_the_share(compact_at: float | None) -> None:
    class Fits(Reads):
        limits = Limits(turns=None, compact_at=compact_at)

    rollout = run_episode(Fits(), TASK, asked_for)

    assert rollout.termination.kind == TerminationKind.FINISHED
    assert [turn.reply for turn in rollout.turns] == ["read"] * 6
    assert "rewrites" not in rollout.metrics


def test_results_stay_behind_the_calls_that_they_answer() -> None:
    """In `run` the last call and its result survive the compaction; the earlier ones do not."""

    class Looks(Base):
        limits = Limits(turns=None, compact_at=0.5)

        async def rollout(self, task: Task, agent: Agent) -> list[str]:
            def look(place: str) -> str:
                """Look."""
                return place * 100

            agent.user(task.prompt)
            await agent.run(look)
            return [message.content for message in agent.messages]

    places = iter("abc")

    def script(messages: Sequence[Message]) -> str | Reply:
        if messages[-1].content == SUMMARISE:
            return "sum"
        place = next(places, "")
        return (
            Reply(calls=(ToolCall(name="look", arguments={"place": place}),)) if place else "done"
        )

    rollout = run_episode(Looks(), TASK, ScriptedEngine(replies=script, context=1500))

    assert rollout.termination.kind == TerminationKind.FINISHED, rollout.termination
    assert rollout.metrics["rewrites"] > 0
    assert rollout.result == ["rules", "task", SUMMARISE, "sum", "", "c" * 100, "done"]
    calls = [call.arguments["place"] for turn in rollout.turns for call in turn.calls]
    assert calls == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(turns=3, compact_at=0.6), "turns"),
        (Limits(turns=None, tokens=11, compact_at=0.6), "tokens"),
    ],
)
def test_limits_count_over_compactions(limits: Limits, reason: str) -> None:
    """Summaries count as turns and their tokens as tokens; the loop over turns ends as it does
    without them.
    """

    class Few(Reads):
        pass

    Few.limits = limits

    rollout = run_episode(Few(), TASK, ScriptedEngine(replies=asked_for, context=500))

    assert rollout.termination.kind == TerminationKind.TRUNCATED
    assert rollout.termination.reason == reason
    assert sum(turn.tokens for turn in rollout.turns) <= (limits.tokens or 100)
    assert len(rollout.turns) == 3
    assert len(rollout.result) + [turn.reply for turn in rollout.turns].count("sum") == 3


def test_what_is_too_long_after_a_compaction_ends_at_the_limit_of_the_context() -> None:
    class Longer(Base):
        limits = Limits(turns=None, compact_at=0.6)

        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            await agent.turn()
            agent.user("x" * 600)
            await agent.turn()

    rollout = run_episode(Longer(), TASK, ScriptedEngine(replies=asked_for, context=500))

    assert rollout.termination.kind == TerminationKind.TRUNCATED
    assert rollout.termination.reason == "context"
    assert [turn.reply for turn in rollout.turns] == ["read", "sum"]


def test_a_partner_is_never_compacted() -> None:
    """Its conversation is not the policy's, whose limits these are."""

    class Talks(Base):
        limits = Limits(turns=None, compact_at=0.2)

        async def rollout(self, task: Task, agent: Agent) -> None:
            partner = agent.player("partner", ScriptedEngine(replies="yes", context=500))
            for _ in range(3):
                partner.user("y" * 60)
                await partner.turn()

    rollout = run_episode(Talks(), TASK, "never asked")

    assert [turn.reply for turn in rollout.turns] == ["yes"] * 3


def test_each_token_of_compacted_turns_trains_once() -> None:
    rollout = run_episode(Reads(), TASK, ScriptedEngine(replies=asked_for, context=500))

    texts = "".join(trained(rollout.transcripts[""]))
    assert texts == "".join(turn.text for turn in rollout.turns)


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(ValueError, match="limits.compact_at"):
        Limits(compact_at=share)


def scored_turns(scores: tuple[float, ...]) -> Rollout:
    @reward
    def given(rollout: Rollout) -> Score:
        return Score(value=0.5, turns=scores)

    class Scores(Reads):
        pass

    Scores.reward = given
    return run_episode(Scores(), TASK, ScriptedEngine(replies=asked_for, context=400))


def test_scores_of_turns_leave_summaries_out() -> None:
    """The environment scores its own six turns and knows of no others; fewer scores are those of
    the first turns, and as many as there are turns belong to all.
    """
    replies = [turn.reply for turn in scored_turns(()).turns]
    assert [turn.summary for turn in scored_turns(()).turns] == [r == "sum" for r in replies]
    assert len(replies) > 7
    assert scored_turns(()).outcome.turns == ()

    for scores in ((1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (1.0, 2.0, 4.0)):
        rollout = scored_turns(scores)
        given = zip(replies, rollout.outcome.turns, strict=True)
        own = [score for reply, score in given if reply == "read"]
        assert own == [*scores, *[0.0] * (6 - len(scores))]
        assert rollout.outcome.total == 0.5 + sum(scores)
    every = tuple(map(float, range(len(replies))))
    assert scored_turns(every).outcome.turns == every


def test_scores_that_fit_neither_are_a_fault_of_the_reward() -> None:
    rollout = scored_turns((1.0,) * 7)

    assert len(rollout.turns) > 7
    assert rollout.termination.kind == TerminationKind.REWARD_ERROR
    assert "7 turn scores for 6 turns" in rollout.termination.reason
