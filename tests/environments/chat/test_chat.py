"""The environment chat: rubrics, rules, notes, rows, self-critique."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import InfrastructureError, Service
from quintain.errors import RewardFault, UsageError
from quintain.testing import rollout
from quintain_authoring import EnvironmentSuite, RewardSuite, run_episode
from quintain_env_chat import (
    Chat,
    ChatTask,
    Criterion,
    Critique,
    Level,
    as_asked,
    rubric_score,
    self_critique,
    weighted,
)
from quintain_env_chat.notes import FAULTS, FORMS, SIGNS, beginner, note, notes, written
from quintain_judge import JudgeService, PolicyJudge, check, checkable
from quintain_judge.rules import examples

from ...plugins.judge.kit import JudgeServer, judged, scored, texts_of
from ...plugins.judge.test_calls import Prefers


class TestChat(EnvironmentSuite):
    """The notes, judged by rules."""

    environment = Chat
    sample = 40

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "judge": JudgeService()}


class TestCritique(EnvironmentSuite):
    """Pairs with a known better reply."""

    environment = Critique
    sample = 40


NOTE = note("Thank", "Ada", "tea", "short", "train")


class TestRubricScore(RewardSuite):
    """Four criteria of weight 1, 1, 1 and 2, and three faults of weight 1, 1 and 0.5."""

    reward = rubric_score

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        return {**super().services(), "judge": JudgeService()}

    def gold(self) -> Any:
        cases = [
            ("Thank you for the tea, Ada.", 1.0),
            ("Dear Ada, thank you for the tea.", 0.6),
            ("Thank you, Ada.", 0.8),
            ("ank you for the tea, Ada.", 0.8),
            ("Great idea! Thank you, Ada.", 0.6),
            ("Hello you. Hello you.", 2 / 5 - 0.5 / 5),
        ]
        return [(rollout(NOTE, text), value) for text, value in cases]

    def exploits(self) -> Any:
        return [rollout(NOTE, text) for text in ("", ":", "Solution:", "{}", "zzzzzzzz qqqqqqqq")]


def test_the_formula() -> None:
    """Sum of w s over the sum of the positive weights (equation 1 of RLER, without its divisor of 1
    at least).
    """
    a = Criterion(text="a", weight=2)
    b = Criterion(text="b", weight=3)
    fault = Criterion(text="c", weight=-1)

    assert weighted([a, b, fault], [1, 0.5, 1]) == pytest.approx((2 + 1.5 - 1) / 5)
    assert weighted([fault], [1]) == -1
    assert (
        weighted([Criterion(text="a", weight=0.25), Criterion(text="b", weight=0.25)], [1, 0.5])
        == 0.75
    )


def test_every_rubric_can_be_a_success() -> None:
    """All merits and no fault are exactly 1, whatever the weights sum to: .3 + .2, or a sum with a
    rounding error.
    """
    hundredths = [
        (a, b, 100 - a - b) for a in range(1, 99) for b in range(a, 99 - a) if 100 - a - b >= b
    ]
    for weights in [(0.3, 0.2), (1e-3,), *([w / 100 for w in row] for row in hundredths)]:
        rubric = [Criterion(text="a", weight=w) for w in weights] + [
            Criterion(text="fault", weight=-1)
        ]
        assert weighted(rubric, [1.0] * len(weights) + [0.0]) == 1


def test_what_must_be_met_vetoes_the_merits() -> None:
    """Unmet, the merits count 0 and faults cost as before; half met is met, half a fault is one."""
    must, merit = Criterion(text="Names Ada.", must=True), Criterion(text="Is warm.", weight=3)
    fault = Criterion(text="Is long.", weight=-1)
    veto = Criterion(text="Insults her.", weight=-2, must=True)
    rubric = [must, merit, fault, veto]

    assert weighted(rubric, [1, 1, 0, 0]) == 1
    assert weighted(rubric, [0, 1, 0, 0]) == weighted(rubric, [0.4, 1, 0, 0.4]) + 0.8 / 4 == 0
    assert weighted(rubric, [0, 1, 1, 0]) == -1 / 4
    assert weighted(rubric, [1, 1, 0, 1]) == -2 / 4
    assert weighted(rubric, [0.5, 1, 0, 0]) == 3.5 / 4
    assert weighted(rubric, [1, 1, 0, 0.5]) == -1 / 4


def test_the_reason_names_what_must_be_met_and_what_the_gate_said() -> None:
    """A reply that the gate stops is told so; rules decide its checks, a judge does not see it."""
    task = ChatTask(
        prompt="Rate the inn as JSON.",
        criteria=(
            Criterion(text="Is valid JSON.", check=True, must=True),
            Criterion(text="Is fair."),
            Criterion(text="Is rude.", weight=-1),
        ),
    )
    server = JudgeServer(
        lambda body: scored(2 if "Is fair." in body["messages"][0]["content"] else 0)
    )

    async def use(judge: JudgeService) -> Any:
        texts = [
            '{"score": 3, "why": "slow"}',
            '{"score": 2, "reason": ""}',
            "Three of five.",
            "Thought process:",
        ]
        return [await rubric_score.ascore(rollout(task, text), judge=judge) for text in texts]

    honest, verdict, plain, empty = judged(server, use)
    assert honest.total == 1
    assert honest.reason == ""
    assert verdict.reason == "not judged: a verdict in the form of a judge; Is fair.; Is rude."
    # the check is met
    assert verdict.total == 0
    assert verdict.parts["rubric_score.stopped"] == 1
    assert plain.total == 0
    assert plain.reason == "must: Is valid JSON."
    assert empty.total == -0.5
    assert empty.reason.startswith("not judged: an opener without an answer; must: Is valid")
    assert len(server.bodies) == 4


def test_levels_and_the_answer_as_a_reference_reach_the_judge() -> None:
    task = ChatTask(
        prompt="Console Ada.",
        answer="I am so sorry, Ada.",
        criteria=(
            Criterion(text="Is warm.", levels=("cold", Level(text="polite", score=0.6), "warm")),
        ),
    )
    server = JudgeServer(lambda body: scored(1, "level"))

    async def use(judge: JudgeService) -> Any:
        return [
            (await reward.ascore(rollout(task, "Pity."), judge=judge)).total
            for reward in (rubric_score, rubric_score(reference=True))
        ]

    assert judged(server, use) == [0.6, 0.6]
    assert ["reference" in texts_of(body) for body in server.bodies] == [False, True]
    assert texts_of(server.bodies[1])["reference"] == "I am so sorry, Ada."
    for levels in (("one",), ("a", Level(text="b", score=1.1))):
        with pytest.raises(UsageError, match="levels"):
            Criterion(text="Is warm.", levels=levels)


@given(
    st.lists(
        st.tuples(st.floats(-5, 5).filter(lambda w: abs(w) > 1e-3), st.floats(0, 1)),
        min_size=1,
        max_size=8,
    )
)
def test_the_score_is_at_most_1_and_grows_with_what_is_met(rows: list[tuple[float, float]]) -> None:
    criteria = [Criterion(text=str(i), weight=w) for i, (w, _) in enumerate(rows)]
    scores = [s for _, s in rows]
    best = weighted(criteria, [float(c.weight > 0) for c in criteria])
    worst = weighted(criteria, [float(c.weight < 0) for c in criteria])

    assert worst - 1e-9 <= weighted(criteria, scores) <= best + 1e-9 <= 1 + 2e-9


def test_an_empty_reply_earns_no_more_than_a_poor_one() -> None:
    """With faults in a rubric a 0 for what is not judged would pay: it is scored as if every fault
    were there.
    """
    services = {"judge": JudgeService()}
    empty, poor = (
        run_episode(Chat(), NOTE, text, services=services) for text in (":", "What a great idea!")
    )

    assert empty.outcome
    assert poor.outcome
    assert empty.outcome.total == -2.5 / 5 < poor.outcome.total


def test_a_judge_decides_what_rules_do_not() -> None:
    """Checks cost no call; the others one each; a verdict that fails masks the reply."""
    task = ChatTask(
        prompt="Console Ada.",
        criteria=(
            Criterion(text="Is warm.", weight=2),
            Criterion(text="Has at most 5 words.", check=True),
            Criterion(text="Blames her.", weight=-1),
        ),
    )

    def judge_by(warm: Any, blames: Any) -> Any:
        return lambda body: scored(warm if "Is warm." in str(body["messages"]) else blames)

    async def use(judge: JudgeService) -> Any:
        return await rubric_score.ascore(rollout(task, "I feel for you."), judge=judge)

    server = JudgeServer(judge_by(2, 1))
    score = judged(server, use)
    assert score.total == pytest.approx((2 * 1 + 1 * 1 - 1 * 0.5) / 3)
    assert len(server.bodies) == 2
    assert score.parts == {
        "rubric_score": score.total, "rubric_score.met": 1, "rubric_score.faults": 0.5,
        "rubric_score.stopped": 0
    }  # fmt: skip
    with pytest.raises(InfrastructureError):
        judged(judge_by(2, "much"), use, retries=0)


def test_notes_differ_by_form_and_splits_are_disjoint() -> None:
    """Each form's criterion is met by its own note and by no other, and the answer of a note meets
    its whole rubric.
    """
    for occasion, form, other in product(("Thank", "Invite", "Remind"), FORMS, FORMS):
        assert check(FORMS[form][1], written(occasion, "Ada", "tea", other)) is (form == other)
    splits = {split: {t.id for t in notes(split)} for split in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == 3 * 12 * 12 * 4 == len(set().union(*splits.values()))
    assert min(map(len, splits.values())) > 150
    for fault in FAULTS:
        assert not any(check(fault.text, str(t.answer)) for t in notes("dev"))


def test_a_beginner_has_habits() -> None:
    tasks = list(notes("dev"))
    right = [beginner(t, 0.6) == t.answer for t in tasks]

    assert all(beginner(t, 0) == t.answer for t in tasks)
    assert 0.15 < sum(right) / len(right) < 0.45


@pytest.mark.parametrize(
    "criterion, good, poor",
    [
        ('Mentions "tea".', "Some Tea, please", "Some team"),
        ('Does not mention "tea".', "coffee", "tea"),
        ('Mentions one of "red", "blue".', "a blue hat", "a green hat"),
        ('Mentions "tea" before "cake".', "tea, then cake", "cake, then tea"),
        ('Mentions "tea" before "cake".', "steak, tea, cake", "steak, then cake, then tea"),
        ('Mentions "tea" before "cake".', "Tea and a cake", "a steak and a cake"),
        ('Mentions "茶".', "请喝茶吧", "请喝水吧"),
        ('Mentions "茶" at most 1 times.', "请喝茶", "茶和茶"),
        ("Has exactly 1 sentences.", "It costs 3.50 euros.", "It costs 3. 50 euros."),
        ("Has at most 4 words.", "It costs 3.50 euros", "It costs 3 50 euros"),
        ("Has exactly 2 sentences.", "今天下雨。我在家。", "今天下雨\uff0c我在家。"),
        ("Has at most 6 words.", "今天下雨。", "今天下雨。我在家。"),
        ("Has at least 5 words.", "今天 tea 下雨", "今天下 tea"),
        ('Begins with "Dear".', "Dear, dear Ada", "Dearth of tea"),
        ('Ends with "tea".', "Some tea", "Some steatea"),
        ('Mentions "very" at most 1 times.', "very good", "very very good"),
        ("Has at most 3 words.", "one two three", "one two three four"),
        ("Has at least 2 words.", "one two", "one"),
        ("Has exactly 2 sentences.", "One. Two!", "One. Two. Three."),
        ("Has exactly 2 lines.", "a\n\nb", "a"),
        ("Has exactly 2 list items.", "- a\n- b", "- a"),
        ('Begins with "Dear".', "Dear Ada", "Ada dear"),
        ('Ends with "thanks.".', "Many thanks.", "Thanks for all."),
        ("Is in lower case.", "all small", "Not small"),
        ("Is in upper case.", "ALL TALL", "Not tall"),
        ("Is valid JSON.", '{"a": [1]}', "{a: 1}"),
        ("Repeats no sentence.", "One. Two.", "One. One."),
        ("Repeats a sentence.", "One. One!", "One. Two."),
        ("Does not open with praise.", "It is late.", "What a great question! It is late."),
        ("Opens with praise.", "Great question!", "A question."),
        ("Does not praise itself.", "It is 4.", "This answer is complete and correct."),
        ("Praises itself.", "I have carefully checked it.", "It is 4."),
    ],
)
def test_rules_decide_instructions(criterion: str, good: str, poor: str) -> None:
    assert check(criterion, good) is True
    assert check(criterion, poor) is False


def test_the_grammar_knows_its_own_examples_and_refuses_others() -> None:
    assert all(map(checkable, examples()))
    assert len(examples()) >= 19
    assert check("Is kind.", "hello") is None
    with pytest.raises(UsageError, match="no rule decides"):
        Criterion(text="Is kind.", check=True)


def test_rows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {
            "prompt": "Say hi.",
            "criteria": ["Has at most 3 words."],
            "split": "test",
            "answer": "Hi.",
        },
        {
            "prompt": [{"role": "user", "content": "Bye?"}],
            "criteria": [
                {"text": "Is kind.", "weight": -1, "must": True},
                {"text": "Is fair.", "levels": ["no", {"text": "yes", "score": 1}]},
            ],
            "split": "dev",
        },
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    shared = (Criterion(text="Has at most 9 words.", check=True),)
    (test,), (dev,) = (
        list(Chat(data=str(path), criteria=shared).tasks(s)) for s in ("test", "dev")
    )

    assert [c.text for c in test.criteria] == ["Has at most 3 words.", "Has at most 9 words."]
    assert dev.criteria[1].scale == (("no", 0.0), ("yes", 1.0))
    assert dev.criteria[0].must
    assert dev.criteria[0].weight == -1
    assert dev.prompt[0].content == "Bye?"
    played = run_episode(Chat(data=str(path)), test, "Hi.", services={"judge": JudgeService()})
    assert played.outcome
    assert played.outcome.total == 1


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "not JSON"), ('{"criteria": ["a"]}', "prompt"), ('{"prompt": "a"}', "no criteria"),
        ('{"prompt": "a", "criteria": ["b"], "split": "x"}', "split"),
        ('{"prompt": "a", "split": "dev", "criteria": [{"text": "b", "weight": 0}]}', "not 0"),
        ('{"prompt": "a", "split": "dev", "criteria": [{"text": "kind", "check": true}]}',
        "no rule"),
        ('{"prompt": "a", "criteria": [{"txt": "b"}]}', "criteria"),
    ],
)  # fmt: skip
def test_wrong_rows_name_line_and_key(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(line)
    with pytest.raises(UsageError, match=f"rows.jsonl:1: .*{message}"):
        list(Chat(data=str(tmp_path / "rows.jsonl")).tasks("dev"))


def test_self_critique_with_rules_and_with_the_policy() -> None:
    """Offline the checkable criteria decide; a policy that sees only positions gives every reply
    the same.
    """
    texts = ["Thank you for the tea, Ada.", "Thank you, Ada.", "Great idea! Thanks."]
    group = [rollout(NOTE, text) for text in texts]

    async def use() -> list[list[float]]:
        from quintain.interfaces.reward import RewardContext

        values = []
        for judge in (JudgeService(), PolicyJudge(policy=Prefers(A=-1.0), cache="none")):
            async with judge:
                scores = await self_critique.score_all(
                    group, RewardContext(services={"judge": judge})
                )
                values.append([score.total for score in scores])  # type: ignore[union-attr]
        return values

    assert asyncio.run(use()) == [[1, 0.5, 0], [0.5, 0.5, 0.5]]


def test_critique_asks_what_a_judge_is_asked() -> None:
    """A policy that is trained on `critique` meets the same prompt when it judges itself."""
    task = next(iter(Critique().tasks("dev")))
    texts = texts_of({"messages": [{"content": m.content} for m in task.prompt]})

    assert set(texts) == {"prompt", "A", "B"}
    assert task.answer in "AB"
    better = texts[task.answer]
    played = run_episode(Critique(), task, task.answer)
    assert played.outcome
    assert played.outcome.total == 1
    assert better in {str(t.answer) for t in notes("dev")}


def test_the_yardstick_tells_the_note_that_was_asked_for_from_text_that_meets_the_rubric() -> None:
    """Rubrics pay broken text and notes that nobody asked for; equality with a good note does
    not.
    """
    services = {"judge": JudgeService()}
    two = note("Remind", "Cleo", "book", "two", "test")
    cases = [
        (two, "Cleo, please do remember the book. It is waiting.", 1.0, 1.0),
        (two, "Cleo, please do not forget about the book. It is waiting.", 1.0, 1.0),
        (two, "Cleo, please do remember the book. It.", 1.0, 0.0),
        (two, "Finn book", 0.2, 0.0),
        (NOTE, "Thank you for the tea, Ada.", 1.0, 1.0),
        (NOTE, "Come and share the tea, Ada.", 0.8, 0.0),
    ]
    for task, reply, by_rubric, yardstick in cases:
        played = run_episode(Chat(), task, reply, services=services)
        assert played.outcome
        assert played.yardstick
        assert played.outcome.total == pytest.approx(by_rubric)
        assert played.yardstick.total == yardstick, reply


def test_every_good_note_meets_its_rubric_and_no_other_occasion_does() -> None:
    """The criterion of the occasion tells the occasions apart, and the answer is a good note."""
    for task in notes("test"):
        assert str(task.answer) in task.good
        for text in task.good:
            met = [bool(check(c.text, text)) == (c.weight > 0) for c in task.criteria]
            assert all(met), (task.prompt, text)
    for one, other in permutations(SIGNS, 2):
        for form in FORMS:
            for text in note(one, "Ada", "tea", form, "test").good:
                assert not check(SIGNS[other], text), (other, text)


def test_rows_without_all_good_notes_are_compared_with_their_answer(tmp_path: Path) -> None:
    """F1 of the words; a row without an answer has no yardstick, which masks nothing."""
    task = ChatTask(
        prompt="Console Ada.", answer="I feel for you, Ada.", criteria=(Criterion(text="Is warm."),)
    )

    assert as_asked.score(rollout(task, "i feel for you ada")).total == 1.0
    assert as_asked.score(rollout(task, "I am")).total == pytest.approx(2 / 7)
    assert as_asked.score(rollout(task, "")).total == 0.0
    with pytest.raises(RewardFault, match="has no answer"):
        as_asked.score(rollout(ChatTask(prompt="Hi", criteria=task.criteria), "hello"))
