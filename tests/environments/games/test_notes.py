"""The environment `notes`: what the context holds in each mode, what notes are worth, and the most
that truncation can reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, islice
from statistics import fmean
from typing import Any

import pytest

from quintain import Agent, Environment, Limits, Message, Reply, Task, reward
from quintain.errors import UsageError
from quintain.types.rollout import AnyRollout
from quintain.types.transcript import TokenSource
from quintain_authoring import ScriptedEngine, run_episode
from quintain_authoring.controls import ControlEngine
from quintain_env_games import Notes, Summariser, compact_tool
from quintain_env_games.notes import NOTES, RULES, Diary
from quintain_env_games.tools import call

MODES = ("compact", "tool", "summariser", "truncate")
DIARY = Diary(
    prompt=RULES,
    answer="123456",
    pages=("A1,a9", "b9,B2", "C3,c9", "d9,D4", "E5,e9", "f9,F6"),
    asked=("A", "F"),
)


def notes(mode: str = "compact", **fields: Any) -> Any:
    return Notes(mode=mode, summariser=Summariser(), **fields)  # type: ignore[arg-type]


def success(mode: str, control: str, count: int = 100, **fields: Any) -> float:
    """Mean outcome of a control over tasks of `train`."""
    environment = notes(mode, **fields)
    engine = ControlEngine(environment, control)
    return fmean(
        run_episode(environment, task, engine.for_task(task)).outcome.total
        for task in islice(environment.tasks("train"), count)
    )


def text_of(ids: Sequence[int]) -> str:
    """The text of *ids* of the byte tokenizer, without its markers."""
    return bytes(i for i in ids if i < 256).decode()


@reward
def share_of_one(rollout: AnyRollout) -> float:
    return 1.0


def says(*, keeps: str = "A1,B2") -> Any:
    """A policy whose notes are *keeps*, and which answers by its context."""

    def reply(messages: Sequence[Message]) -> str:
        text = messages[-1].content
        if text == NOTES:
            return keeps
        fact = DIARY.fact(text[0]) if text[1:] == "?" else ""
        return fact if fact and any(fact in m.content for m in messages) else "ok"

    return reply


# ------------------------------------------------------------------------------------------- modes


def contexts(mode: str, replies: Any) -> list[list[str]]:
    """What each turn of the policy was asked with."""
    asked: list[list[str]] = []

    def reply(messages: Sequence[Message]) -> str:
        asked.append([m.content for m in messages])
        answer: str = replies(messages)
        return answer

    run_episode(notes(mode), DIARY, ScriptedEngine(replies=reply))
    return asked


def test_the_policy_goes_on_from_its_notes() -> None:
    asked = contexts("compact", says())

    assert asked[2] == [RULES, "A1,a9", "ok", "b9,B2", "ok", NOTES]
    assert asked[3] == [RULES, NOTES, "A1,B2", "C3,c9"]
    assert asked[-2] == [RULES, NOTES, "A1,B2", "E5,e9", "ok", "f9,F6", "ok", "A?"]


def test_truncation_drops_the_oldest_page() -> None:
    asked = contexts("truncate", says())

    assert [context[1::2] for context in asked[:4]] == [
        ["A1,a9"],
        ["A1,a9", "b9,B2"],
        ["b9,B2", "C3,c9"],
        ["C3,c9", "d9,D4"],
    ]
    assert asked[-1] == [RULES, "E5,e9", "ok", "f9,F6", "ok", "A?", "ok", "F?"]


def test_a_summariser_reads_what_the_policy_would_and_its_tokens_do_not_train() -> None:
    environment = Notes(mode="summariser", summariser=ScriptedEngine(replies=says(keeps="A1")))
    rollout = run_episode(environment, DIARY, says(keeps="never asked"))

    assert rollout.result.notes == ("A1", "A1")
    assert rollout.outcome.total == 1
    assert set(rollout.transcripts) == {""}
    transcript = rollout.transcripts[""]
    last = transcript.path(-1)
    sampled = sum(turn.tokens for turn in rollout.turns if not turn.player)
    assert transcript.sampled == sampled
    # the notes are the only text in the last context that nobody sampled there, but for its "ok"
    copied = zip(last.ids, last.sources, strict=True)
    assert "A1" in text_of([i for i, source in copied if source == TokenSource.COPY])


def test_notes_are_cut_where_there_is_no_room() -> None:
    rollout = run_episode(notes(room=5), DIARY, says(keeps="B2,A1,C3"))

    assert rollout.result.notes == ("B2,A1", "B2,A1")
    asked = run_episode(notes(room=4), DIARY, says(keeps="B2,A1"))
    assert asked.result.notes == ("B2,A", "B2,A")
    assert asked.outcome.total == 0


@pytest.mark.parametrize("mode", ["compact", "truncate", "summariser"])
def test_a_system_message_stays(mode: str) -> None:
    environment = notes(mode).overridden(system="Be brief.")
    beginnings = set()

    def reply(messages: Sequence[Message]) -> str:
        beginnings.add(tuple(m.content for m in messages[:2]))
        return "ok"

    assert run_episode(environment, DIARY, reply).valid
    assert beginnings == {("Be brief.", RULES)}


def test_a_full_context_shows_no_page_until_it_is_compacted() -> None:
    """The policy may compact earlier; a summary that is too long changes nothing."""
    script = iter(
        [
            Reply(calls=(call("read"),)),
            Reply(calls=(call("compact", summary="A1"),)),
            *[Reply(calls=(call("read"),))] * 3,
            Reply(calls=(call("compact", summary="A1,B2,C3 and more"),)),
            Reply(calls=(call("read"),)),
            "enough",
            "A1",
            "F6",
        ]
    )
    rollout = run_episode(notes("tool"), DIARY, lambda messages: next(script))

    results = [m.content for m in rollout.messages if m.role == "tool"]
    assert results[:5] == ["A1,a9", "compacted", "b9,B2", "C3,c9", "full: compact first"]
    assert "at most 14 characters" in results[5]
    assert results[6] == "full: compact first"
    assert rollout.result.notes == ("A1",)
    assert rollout.outcome.total == 1


@pytest.mark.parametrize(("window", "end"), [(2, ("finished", "")), (5, ("truncated", "context"))])
def test_notes_fit_a_context_that_the_diary_does_not(window: int, end: tuple[str, str]) -> None:
    """Notes every two pages leave at most 159 tokens, every five pages 193."""
    engine = ScriptedEngine(replies=says(), context=170)

    termination = run_episode(notes(window=window), DIARY, engine).termination

    assert (termination.kind.value, termination.reason) == end


def test_the_tool_keeps_task_call_and_the_results_of_its_turn() -> None:
    """System message included; the tokens of the call are copies, and each token trains once."""

    class Looks(Environment[Task, list[str]]):
        reward, limits, system = share_of_one, Limits(turns=None), "rules"

        async def rollout(self, task: Task, agent: Agent) -> list[str]:
            def look(place: str) -> str:
                """Look."""
                return place * 3

            agent.user(task.prompt)
            await agent.run(look, compact_tool(agent))
            return [m.content for m in agent.messages]

    turns = iter(
        [
            Reply(calls=(call("look", place="a"),)),
            Reply(calls=(call("compact", summary="it is a"), call("look", place="b"))),
            "done",
        ]
    )
    played = run_episode(Looks(), Task(prompt="task"), lambda messages: next(turns))

    assert played.result == ["rules", "task", "", "compacted", "bbb", "done"]
    first, second = played.transcripts[""].sequences()
    assert "aaa" in text_of(first.ids)
    assert "aaa" not in text_of(second.ids)
    assert text_of(second.ids).count("it is a") == 1
    sampled = [
        text_of([i for i, m in zip(s.ids, s.mask, strict=True) if m]) for s in (first, second)
    ]
    assert "".join(sampled) == "".join(turn.text for turn in played.turns)


# ---------------------------------------------------------------------------------------- controls


@pytest.mark.more
def test_controls_are_ordered_by_what_they_keep() -> None:
    by_control = {
        name: success("compact", name)
        for name in (
            "note_taker",
            "demonstrator",
            "last_pages",
            "everything",
            "rumours",
            "no_notes",
        )
    }

    assert by_control["note_taker"] == 1
    for better, worse in (
        ("note_taker", "demonstrator"),
        ("demonstrator", "rumours"),
        ("note_taker", "everything"),
        ("note_taker", "last_pages"),
        ("last_pages", "no_notes"),
        ("everything", "no_notes"),
    ):
        assert by_control[better] > by_control[worse] + 0.1, by_control
    assert by_control["rumours"] == by_control["no_notes"]


@pytest.mark.more
@pytest.mark.parametrize("mode", MODES)
def test_perfect_notes_answer_everything_and_truncation_does_not(mode: str) -> None:
    expected = 1.0 if mode != "truncate" else pytest.approx(1 / 15, abs=0.06)

    assert success(mode, "note_taker") == expected
    assert success(mode, "oracle") == 1


def test_truncation_reaches_at_most_12_percent() -> None:
    """Whoever knows the last two of six days, guesses one digit of ten for the others, and is asked
    for two: 1 of 15 pairs of days is seen, 8 have one day that is seen, 6 none.
    """
    chances = [0.1 ** sum(day < 4 for day in pair) for pair in combinations(range(6), 2)]

    assert fmean(chances) == pytest.approx((1 + 8 * 0.1 + 6 * 0.01) / 15) == pytest.approx(0.124)


def test_perfect_demonstrations_are_right_and_slips_lose_what_comes_second() -> None:
    assert success("compact", "demonstrator", slips=0.0) == 1
    # a code of four days is kept where its page has it first: in half of them
    expected = (1 + 8 * 0.5 + 6 * 0.25) / 15
    assert success("compact", "demonstrator", count=300, slips=1.0) == pytest.approx(
        expected, abs=0.1
    )


def test_codes_and_rumours_say_nothing_about_each_other() -> None:
    """Each digit is as likely as the others, also given the rumour of its day."""
    tasks = list(islice(notes().tasks("train"), 2000))
    same = fmean(
        page.split(",")[0][1] == page.split(",")[1][1] for task in tasks for page in task.pages
    )

    assert same == pytest.approx(0.1, abs=0.015)
    assert {day for task in tasks for day in task.asked} == set("ABCDEF")


@pytest.mark.parametrize(
    "fields",
    [{"days": ()}, {"days": (10,)}, {"window": 6}, {"questions": 7}, {"room": 0}, {"slips": 2}],
)
def test_wrong_fields_are_named(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        notes(**fields)
