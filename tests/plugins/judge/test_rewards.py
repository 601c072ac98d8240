"""The judge's rewards in episodes: scores, masked failures, a budget that stops the run, files of a
run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Task
from quintain.errors import StorageError
from quintain.interfaces.events import RunStart, StepEnd, StepMeasured
from quintain.interfaces.reward import Reward
from quintain.rollouts.runner import RolloutContext, RolloutRequest, run_groups
from quintain.store import RunFolder, current_run
from quintain.store.run_folder import as_current_run
from quintain.testing import rollout
from quintain.types.rollout import AnyGroup
from quintain_authoring import RewardSuite, ScriptedEngine
from quintain_judge import JudgeService
from quintain_judge.calls import Budget, BudgetSpent
from quintain_judge.canaries import CanaryReport
from quintain_judge.rewards import judge_match, judge_pairs, judge_ranking, judge_score

from .kit import JudgeServer, judged, scored, texts_of

TASK = Task(prompt="In which year did the bridge open?", answer="1932")
REPLIES = ["It opened in 1932.", "In 1931, I think.", "Who can say?", "Thought process:"]


def by_year(body: Any) -> Any:
    """Prefers replies with the right year, then those with any year."""
    texts = texts_of(body)
    properties = body["response_format"]["json_schema"]["schema"]["properties"]

    def value(text: str) -> int:
        return 2 if "1932" in text else int(any(map(str.isdigit, text)))

    if "score" in properties:
        return scored(value(texts["reply"]))
    if "ranking" in properties:
        labels = properties["ranking"]["items"]["enum"]
        return scored(sorted(labels, key=lambda n: -value(texts[f"reply {n}"])), "ranking")
    if "answer" in texts:
        return scored(
            "A"
            if (value(texts["answer"]) == 2)
            == ("A if the answer is right" in body["messages"][0]["content"])
            else "B",
            "verdict",
        )
    a, b = value(texts["A"]), value(texts["B"])
    return scored("A" if a > b else "B" if b > a else "tie", "verdict")


class Years(Environment[Task, None]):
    """One question."""

    def tasks(self, split: str) -> Iterable[Task]:
        return [TASK]


def group(judge: JudgeService, reward: Reward, retries: int = 0) -> Any:
    """The group of `REPLIES`, scored by *reward*."""
    replies = iter(REPLIES)
    engine = ScriptedEngine(replies=lambda messages: next(replies))
    context = RolloutContext(
        engine=engine, services={"judge": judge}, concurrency=1, retries=retries
    )
    request = RolloutRequest(
        environment=Years().overridden(reward=reward), task=TASK, group_size=len(REPLIES)
    )
    return run_groups([request], context)


def scores(groups: list[AnyGroup]) -> list[float | None]:
    """The outcomes by reply."""
    values = {r.reply: r.outcome.total if r.outcome else None for r in groups[0].rollouts}
    return [values[reply] for reply in REPLIES]


@pytest.mark.parametrize(
    "reward, expected",
    [
        (judge_score(rubric="Names the year."), [1, 0.5, 0, 0]),
        (judge_match, [1, 0, 0, 0]),
        (judge_pairs, [1, 2 / 3, 1 / 3, 0]),
        (judge_ranking, [1, 2 / 3, 1 / 3, 0]),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_rewards_score_a_group(reward: Reward, expected: list[float]) -> None:
    async def use(judge: JudgeService) -> list[AnyGroup]:
        result: list[AnyGroup] = await group(judge, reward)
        return result

    (result,) = judged(by_year, use)
    assert scores([result]) == pytest.approx(expected)
    last = next(r for r in result.rollouts if r.reply == REPLIES[3])
    assert last.outcome.reason == "not judged: an opener without an answer"


def test_one_call_ranks_a_group() -> None:
    """And a second one with the replies in the other order; the gated reply is in neither."""
    server = JudgeServer(by_year)
    judged(server, lambda judge: group(judge, judge_ranking))

    assert len(server.bodies) == 2
    shown = [list(texts_of(body).values())[1:] for body in server.bodies]
    assert shown[0] == shown[1][::-1]
    assert sorted(shown[0]) == sorted(REPLIES[:3])


@pytest.mark.parametrize(
    "reward", [judge_score(rubric="Names the year."), judge_pairs, judge_ranking]
)
@pytest.mark.parametrize(
    "fault", [(500, "down"), (200, '{"choices": []}'), scored(99), scored("A or B", "verdict")]
)
def test_failures_mask_and_never_score(reward: Reward, fault: Any) -> None:
    async def use(judge: JudgeService) -> list[AnyGroup]:
        result: list[AnyGroup] = await group(judge, reward)
        return result

    (result,) = judged(lambda body: fault, use, retries=1)
    judged_ones = [r for r in result.rollouts if r.reply != REPLIES[3] or reward.group]
    assert {r.termination.kind.value for r in judged_ones} == {"infrastructure_error"}
    assert all(r.outcome is None for r in judged_ones)


def test_a_judge_that_comes_back_loses_no_rollout() -> None:
    """The reward is retried as the run says, and verdicts that were read before are not asked for
    again.
    """
    down = 8

    def script(body: Any) -> Any:
        nonlocal down
        down -= 1
        return by_year(body) if down < 0 else (503, "down")

    async def use(judge: JudgeService) -> list[AnyGroup]:
        result: list[AnyGroup] = await group(
            judge, judge_score(rubric="Names the year."), retries=8
        )
        return result

    assert scores(judged(script, use, retries=0)) == [1, 0.5, 0, 0]


def test_a_spent_budget_ends_the_run_and_masks_nothing() -> None:
    async def use(judge: JudgeService) -> None:
        await group(judge, judge_score(rubric="Names the year."))

    with pytest.raises(BudgetSpent):
        judged(by_year, use, budget=Budget(calls=2))


def test_a_run_folder_has_the_counts_and_a_run_the_alert(tmp_path: Path) -> None:
    async def use(judge: JudgeService) -> dict[str, str]:
        judge.quintain_on_run_start(RunStart(run="r", folder=str(tmp_path), step=4, recipe={}))
        assert judge.step == 5
        await group(judge, judge_score(rubric="Names the year."))
        judge.canaries.latest = CanaryReport(
            kinds={"rubric": {"accepted": 0.0, "rejected": 0.0}}, changed=0.05
        )
        alerts: dict[str, str] = {}
        judge.quintain_on_step_measured(StepMeasured(step=5, metrics={}, alerts=alerts))
        judge.quintain_on_step_end(StepEnd(step=5, metrics={}))
        assert judge.step == 6
        return alerts

    alerts = judged(by_year, use)
    assert list(alerts) == ["judge_canaries"]
    assert "5.0% of verdicts changed" in alerts["judge_canaries"]
    (line,) = (tmp_path / "judge.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert {name: value for name, value in row.items() if not name.startswith("canaries.")} == {
        "step": 5, "judge": 0, "replies": 4, "gated": 1, "calls": 3, "spent.calls": 3,
        "spent.tokens": 330,
        "spent.money": 0.0,
    }  # fmt: skip
    assert row["canaries.changed"] == 0.05


def test_judges_that_run_at_once_have_numbers() -> None:
    """The second one's lines and ledger have its own; a judge that stopped has none."""

    async def numbers() -> list[int]:
        async with JudgeService() as first, JudgeService() as second:
            return [first.number, second.number]

    assert [asyncio.run(numbers()) for _ in range(2)] == [[0, 1], [0, 1]]


def test_many_stopped_replies_are_an_alert_of_their_step(tmp_path: Path) -> None:
    """Each reply counts once; below the share, and in the next step, there is none."""

    async def use(judge: JudgeService) -> list[Any]:
        judge.quintain_on_run_start(RunStart(run="r", folder=str(tmp_path), step=0, recipe={}))
        found = []
        for opener in ("Solution", "It opened"):
            replies = (
                [f"In {1900 + n}." for n in range(9)] + [f"Step {n}:" for n in range(2)] + [opener]
            )
            for reply in [*replies, *replies]:
                await judge.grade(TASK.prompt, reply, "Names the year.")
            alerts: dict[str, str] = {}
            judge.quintain_on_step_measured(
                StepMeasured(step=judge.step, metrics={}, alerts=alerts)
            )
            judge.quintain_on_step_end(StepEnd(step=judge.step, metrics={}))
            found.append((alerts, judge.metrics()["gated"]))
        return found

    (first, one), (second, both) = judged(lambda body: scored(1), use)
    assert (
        "25% of 12 replies got the lowest score without being judged: an opener without an"
        in first["judge_gate"]
    )
    assert "an answer (3)" in first["judge_gate"]
    assert one == 3
    assert second == {}
    assert both == 5


def test_a_ledger_survives_a_stop_before_the_first_checkpoint(tmp_path: Path) -> None:
    """A run with a budget of 3 calls that is stopped and begun again pays for 3, whatever the cache
    keeps.

    The judge may be asked before the run has begun, by the warm start of its model.
    """
    server = JudgeServer(lambda body: scored(1))
    folder = RunFolder(tmp_path, lock=False)

    async def use(judge: JudgeService) -> Any:
        grades = [judge.grade(TASK.prompt, f"In {1900 + n}.", "Names the year.") for n in range(5)]
        with pytest.raises(BudgetSpent):
            await asyncio.gather(*grades)
        return judge.metrics()["spent.calls"]

    with as_current_run(folder):
        assert [judged(server, use, budget=Budget(calls=3)) for _ in range(3)] == [3, 3, 3]
        assert len(server.bodies) == 3
        (tmp_path / "judge-ledger-0.json").write_text("torn")
        with pytest.raises(StorageError, match="delete it"):
            judged(server, use, budget=Budget(calls=3))
    assert current_run() is None


class TestJudgeMatch(RewardSuite):
    """With rules: equality alone."""

    reward = judge_match

    @classmethod
    def services(cls) -> Any:
        return {"judge": JudgeService()}

    def gold(self) -> Any:
        texts = [
            ("1932", 1),
            ("Answer: 1932.", 1),
            ("\\boxed{1932}", 1),
            ("1931", 0),
            ("1932 or 1931", 0),
        ]
        return [(rollout(TASK, text), score) for text, score in texts]

    def exploits(self) -> Any:
        return [
            rollout(TASK, text)
            for text in ("", ":", TASK.prompt, "Answer: 1932 Answer: 1931", "1930 1931 1932")
        ]


class TestJudgeScore(RewardSuite):
    """With rules: sentences of the grammar."""

    reward = judge_score(rubric='Mentions "1932".\nHas at most 5 words.')

    @classmethod
    def services(cls) -> Any:
        return {"judge": JudgeService()}

    def gold(self) -> Any:
        return [(rollout(TASK, "It opened in 1932."), 1), (rollout(TASK, "In 1931."), 0.5)]

    def exploits(self) -> Any:
        return [rollout(TASK, text) for text in ("", "Solution:", "{}", "zzzzzzzz")]
