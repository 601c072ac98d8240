"""Evaluation: what is counted, what is left out, and `quintain eval` from the outside."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import itertools
import json
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.cli import main
from quintain.errors import EnvironmentFault, NoTasksError, PolicyFault, UsageError
from quintain.evaluation.answers import final_answer
from quintain.evaluation.controls import ControlEngine
from quintain.evaluation.estimates import cons_at_k, pass_at_k, wilson
from quintain.evaluation.evaluation import Evaluation, check_controls, evaluate, frozen_heap, tasks_of
from quintain.interfaces.agent import Agent
from quintain.interfaces.environment import Environment, control
from quintain.interfaces.reward import group_reward, reward
from quintain.interfaces.service import Service, need
from quintain.registry.lookup import isolated
from quintain.testing.scripted import ScriptedEngine
from quintain.training.screen import LiveScreen, Screen
from quintain.types.rollout import Rollout, Score
from quintain.types.sampling import Sampling
from quintain.types.task import Message, Task


@reward(range=(0, 1))
def equal(rollout: Rollout[Task, None]) -> float:
    return float(rollout.reply == str(rollout.task.answer))


class Doubling(Environment[Task, None]):
    """What is twice n?"""

    reward = equal
    size: int = 6
    label: str = "x"

    def tasks(self, split: str) -> Iterable[Task]:
        start = {"train": 0, "dev": 100, "test": 200}[split]
        return (Task(prompt=f"{n} + {n} = ?", answer=2 * n) for n in range(start, start + self.size))


class Endless(Environment[Task, None]):
    reward = equal

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"say {n}", answer=n) for n in itertools.count())


class OnlyTrain(Doubling):
    def tasks(self, split: str) -> Iterable[Task]:
        return super().tasks(split) if split == "train" else []


class Undefined(Environment[Task, None]):
    reward = equal


def sometimes_right(messages: Sequence[Message], rng: Random) -> str:
    """Right in about half of the cases, depending on the seed of the turn alone."""
    n = int(messages[-1].content.split()[0])
    return str(2 * n + rng.choice([0, 0, 1, 2]))


def measured(environment: Environment[Any, Any], engine: Any = None, **settings: Any) -> Evaluation:
    async def run() -> Evaluation:
        async with engine or ScriptedEngine(replies=sometimes_right) as started:
            return await evaluate(environment, started, **settings)

    return asyncio.run(run())


def test_estimates_are_those_of_the_rollouts() -> None:
    e = measured(Doubling(), samples=8, ks=(1, 4, 8), seed=3)
    right = [sum(r.reply == str(g.task.answer) for r in g.rollouts) for g in e.groups]
    assert 0 < sum(right) < 48
    assert [t.right for t in e.results] == right
    assert e.accuracy is not None and e.accuracy.value == pytest.approx(sum(right) / 48)
    at_4 = e.pass_at(4)
    assert at_4 is not None and at_4.value == pytest.approx(sum(pass_at_k(8, c, 4) for c in right) / 6)
    cons = e.cons_at(8)
    expected = [cons_at_k([(r.reply, r.reply == str(g.task.answer)) for r in g.rollouts], 8) for g in e.groups]
    assert cons is not None and cons.value == pytest.approx(sum(expected) / 6)
    assert list(e.estimates()) == ["pass@1", "pass@4", "pass@8", "cons@4", "cons@8"]
    assert e.terminations == {"finished": 48} and e.failed == 0
    assert e.tokens == pytest.approx(sum(len(r.reply) + 1 for r in e.rollouts) / 48)


def test_parts_of_the_reward_are_reported_where_there_are_several() -> None:
    """They are means over rollouts; the only part of a reward is its total and is not repeated."""

    @reward(range=(0, 1))
    def split(rollout: Rollout[Task, None]) -> Score:
        right = rollout.reply == str(rollout.task.answer)
        return Score(value=float(right), parts={"wrong": float(not right)})

    class Parted(Doubling):
        reward = split

    parted, plain = measured(Parted(), samples=8, seed=3), measured(Doubling(), samples=8, seed=3)
    assert plain.accuracy is not None
    share = plain.accuracy.value
    assert 0 < share < 1
    assert {} == plain.metrics
    assert {"split": share, "split.wrong": 1 - share} == pytest.approx(parted.metrics)


def test_the_same_seed_gives_the_same_evaluation_whatever_runs_beside_it() -> None:
    def replies(**settings: Any) -> list[str]:
        return [r.reply for r in measured(Doubling(), samples=4, **settings).rollouts]

    one = replies(seed=1, concurrency=1)
    assert one == replies(seed=1, concurrency=24)
    assert one == replies(seed=1, concurrency=24, progress=lambda _: None)
    assert one != replies(seed=2)


def test_greedy_is_the_default_for_one_sample() -> None:
    assert measured(Doubling()).sampling == Sampling(temperature=0.0)
    assert measured(Doubling(), samples=2).sampling == Sampling(temperature=1.0)


def test_failures_are_left_out_and_counted() -> None:
    engine = ScriptedEngine(replies=sometimes_right, fail_on=range(1, 10))
    e = measured(Doubling(), engine, samples=4, retries=0, concurrency=1, ks=(1, 4))
    clean = measured(Doubling(), samples=4, retries=0, concurrency=1)
    assert [t.samples for t in e.results] == [0, 0, 3, 4, 4, 4]
    assert [t.failed for t in e.results] == [4, 4, 1, 0, 0, 0]
    assert e.failed == 9 / 24
    assert e.terminations == {"finished": 15, "infrastructure_error": 9}
    # What is left is what the same rollouts say without the failures; the two lost tasks count nowhere.
    expected = [t.right / 4 for t in clean.results[3:]]
    third = sum(r.reply == str(r.task.answer) for r in clean.groups[2].rollouts[1:]) / 3
    assert e.accuracy is not None and e.accuracy.value == pytest.approx((third + sum(expected)) / 4)
    at_4 = e.pass_at(4)
    assert at_4 is not None and at_4.tasks == 3
    assert sum(e.reasons.values()) == 9 and all("scripted failure" in r for r in e.reasons)


def test_failures_are_tried_again() -> None:
    engine = ScriptedEngine(replies=sometimes_right, fail_on=(1, 3))
    e = measured(Doubling(), engine, retries=1, concurrency=1)
    clean = measured(Doubling())
    assert e.failed == 0
    assert [r.reply for r in e.rollouts] == [r.reply for r in clean.rollouts]


def test_where_everything_fails_nothing_is_claimed() -> None:
    e = measured(Doubling(), ScriptedEngine(replies="", fail_on=range(1, 100)), retries=0)
    assert e.accuracy is None and e.reward is None and e.failed == 1.0
    assert e.to_json()["pass@1"] is None
    json.dumps(e.to_json())


def test_faults_of_the_policy_do_count() -> None:
    class Strict(Doubling):
        async def rollout(self, task: Task, agent: Agent) -> None:
            agent.user(task.prompt)
            if (await agent.turn()).reply != str(task.answer):
                raise PolicyFault("wrong, and that is forbidden")

    e = measured(Strict(), samples=2)
    right = sum(r.reply == str(r.task.answer) for r in e.rollouts)
    assert e.terminations == {"finished": right, "policy_fault": 12 - right}
    assert e.accuracy is not None and e.accuracy.value == pytest.approx(right / 12)


def test_one_sample_per_task_has_wilsons_interval() -> None:
    e = measured(Doubling(size=40))
    assert e.accuracy is not None
    assert (e.accuracy.low, e.accuracy.high) == pytest.approx(wilson(e.accuracy.value, 40))


def test_tasks_listed_twice_draw_different_samples() -> None:
    task = Task(prompt="5 + 5 = ?", answer=10)
    e = measured(Doubling(), tasks=[task] * 12)
    assert len({r.seed for r in e.rollouts}) == 12


def test_success_has_a_threshold() -> None:
    @reward
    def half(rollout: Rollout[Task, None]) -> float:
        return 0.5

    @reward
    def nearly(rollout: Rollout[Task, None]) -> float:
        return 0.7 + 0.2 + 0.1  # 0.9999999999999999

    e = measured(Doubling().overridden(reward=half))
    assert e.accuracy is not None and e.accuracy.value == 0
    assert e.reward is not None and e.reward.value == 0.5
    lenient = measured(Doubling().overridden(reward=half), success=0.5).accuracy
    assert lenient is not None and lenient.value == 1
    rounded = measured(Doubling().overridden(reward=nearly)).accuracy
    assert rounded is not None and rounded.value == 1


def test_tasks_of_a_split() -> None:
    assert len(tasks_of(Doubling(), "dev")) == 6
    assert [t.answer for t in tasks_of(Endless(), "test", 3)] == [0, 1, 2]
    assert len(tasks_of(Doubling(), "dev", 100)) == 6


def test_what_cannot_be_evaluated_says_why() -> None:
    with pytest.raises(UsageError, match=r"no end: say how many with --tasks N"):
        tasks_of(Endless(), "test")
    with pytest.raises(NoTasksError, match=r"no tasks for the split 'test'; it has some for train"):
        tasks_of(OnlyTrain(), "test")
    with pytest.raises(NoTasksError, match=r"define tasks\(self, split\)"):
        tasks_of(Undefined(), "test")
    with pytest.raises(UsageError, match=r"unknown split 'tset'; did you mean 'test'"):
        tasks_of(Doubling(), "tset")
    with pytest.raises(UsageError, match="expected at least 1"):
        tasks_of(Doubling(), "test", 0)
    with pytest.raises(UsageError, match="k = 8 with 4 samples"):
        measured(Doubling(), samples=4, ks=(1, 8))

    class Broken(Doubling):
        def tasks(self, split: str) -> Iterable[Task]:
            yield Task(prompt="a")
            raise RuntimeError("file is gone")

    class Wrong(Doubling):
        def tasks(self, split: str) -> Iterable[Any]:
            return ["a"]

    class Unjudged(Environment[Task, None]):
        def tasks(self, split: str) -> Iterable[Task]:
            return [Task(prompt="a")]

    with pytest.raises(EnvironmentFault, match="RuntimeError: file is gone"):
        tasks_of(Broken(), "test")
    with pytest.raises(EnvironmentFault, match="yields a str as a task"):
        tasks_of(Wrong(), "test")
    with pytest.raises(UsageError, match="has no reward"):
        measured(Unjudged())


class Hackable(Doubling):
    """Its reward can be fooled."""

    @control(scores="min")
    def shouting(self, task: Task, messages: Sequence[Message]) -> str:
        return f"{task.answer}"

    @control(scores="max")
    def careless(self, task: Task, messages: Sequence[Message]) -> str:
        return str(task.answer if task.answer < 404 else 0)

    @control()
    def idle(self, task: Task, messages: Sequence[Message]) -> str:
        return "7"

    @control()
    def crashing(self, task: Task, messages: Sequence[Message]) -> str:
        raise RuntimeError("oops")


def test_controls_are_checked() -> None:
    good = asyncio.run(check_controls(Doubling()))
    assert [(c.name, c.wrong) for c in good] == [("oracle", ""), ("nop", "")]
    found = {c.name: c.wrong for c in asyncio.run(check_controls(Hackable(), count=4))}
    assert found["oracle"] == found["nop"] == found["idle"] == ""
    assert "rewarded on 4 tasks" in found["shouting"]
    assert "not on 2 tasks" in found["careless"]
    assert "RuntimeError: oops" in found["crashing"]


def test_a_hack_that_beats_silence_is_found_below_success() -> None:
    @reward
    def lenient(rollout: Rollout[Task, None]) -> float:
        return 1.0 if rollout.reply == str(rollout.task.answer) else 0.1 * bool(rollout.reply)

    class Generous(Doubling):
        reward = lenient

        @control(scores="min")
        def babble(self, task: Task, messages: Sequence[Message]) -> str:
            return "so"

    found = {c.name: c.wrong for c in asyncio.run(check_controls(Generous()))}
    assert found["oracle"] == found["nop"] == ""
    assert "(0.1)" in found["babble"]


@pytest.mark.parametrize(
    "reply, answer",
    [
        ("so \\boxed{12} and \\boxed{\\frac{1}{2}} done", "\\frac{1}{2}"),
        ("<think>3</think><answer> 1,250.0 </answer> ok", "1250"),
        ("step 3\n#### 1,250", "1250"),
        ("We add.\nThe answer is $42.", "42"),
        ("-3.50", "-3.5"),
        ("Paris.", "paris"),
        ("first\n\nLondon  town\n", "london town"),
        ("\\boxed{unclosed", "\\boxed{unclosed"),
        ("1/2", "1/2"),
        ("", None),
        ("  \n ", None),
        ("\\boxed{}", None),
    ],
)
def test_final_answer(reply: str, answer: str | None) -> None:
    assert final_answer(reply) == answer


@given(st.text(alphabet="ab1,.{}<>/$# \n\\boxedanswer", max_size=60))
def test_any_reply_has_an_answer_or_none(reply: str) -> None:
    answer = final_answer(reply)
    assert answer is None or answer == answer.strip() != ""


# ---- the command


class Even(Service):
    def __init__(self, *, word: str = "yes") -> None:
        self.word = word


class Refereed(Doubling):
    """What is right is what its referee says."""

    referee: Even = need("referee")

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt="?", answer=self.referee.word)]

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return "5"


@pytest.fixture
def plugins() -> Iterator[None]:
    with isolated(keep=["quintain"]) as registry:
        for component in (Doubling, Endless, OnlyTrain, Hackable):
            registry.add("environment", component.__name__.lower(), component)
        registry.add("environment", "refereed", Refereed)
        registry.add("service", "even", Even)
        yield


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["eval", *argv])
    out = capsys.readouterr()
    return status, out.out, out.err


@pytest.mark.usefixtures("plugins")
def test_eval_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = called(
        capsys, "doubling", "-e", "@oracle", "--json", "--samples", "4", "--k", "1,4", "--arg", "size=5"
    )
    found = json.loads(out)
    assert status == 0
    assert (found["pass@1"], found["pass@4"], found["cons@4"]) == (1, 1, 1)
    assert found["interval"] == pytest.approx(wilson(1, 5))
    assert (found["environment"], found["split"], found["engine"]) == ("doubling", "test", "@oracle")
    assert (found["tasks"], found["rollouts"], found["failed"]) == (5, 20, 0)
    assert found["terminations"] == {"finished": 20}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d doubling test \.\.\.\n", err), "one line before it begins"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The clock of the screen: its attribute ``now``, in seconds."""
    clock = SimpleNamespace(now=0.0)
    with monkeypatch.context() as patch:
        patch.setattr("quintain.training.screen.time.monotonic", lambda: clock.now)
        yield clock


def test_progress_without_a_terminal_is_sparse(capsys: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    """A line per tenth of the work, but none within ten seconds of the last; the bar's own clock runs here."""
    with Screen() as screen:
        screen.phase("sums test", 40)
        for done in range(1, 41):
            clock.now = done * (1.0 if done <= 20 else 60.0)  # slow, then slower
            screen.advance()
    lines = [f"sums test: {done} of 40" for done in (10, 20, 24, 28, 32, 36, 40)]
    assert capsys.readouterr().err.splitlines() == ["sums test ...", *lines]


def test_a_phase_is_announced_the_first_time_and_while_it_takes_long(
    capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    with Screen() as screen:
        for step, seconds in enumerate((3, 12, 2, 1)):
            screen.phase(f"step {step}: rollouts", 40)
            clock.now += seconds
    assert capsys.readouterr().err.splitlines() == ["step 0: rollouts ...", "step 2: rollouts ..."]


def test_the_line_of_a_step_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Length and entropy are in the metrics; a log has them all."""
    metrics = {"success": 0.65, "reward.mean": 1.57, "held_out.accuracy": 0.4, "length.mean": 21.0}
    metrics |= {"entropy": 0.04, "tokens_per_second": 12457.0}
    for columns, left_out in (("80", ("entropy", "length")), ("100", ("entropy",)), ("120", ())):
        monkeypatch.setenv("COLUMNS", columns)
        screen = LiveScreen(sys.stderr)
        screen.start(200, 90, "dev")
        screen.step(100, metrics)
        (line,) = [text for text in capsys.readouterr().err.splitlines() if "step 100/200" in text]
        assert len(line) <= int(columns) and line.rstrip().rpartition("left")[2] and "tokens/s" in line
        assert [name for name in ("entropy", "length") if name not in line] == list(left_out)
    Screen().step(100, metrics)
    assert "entropy 0.04" in capsys.readouterr().err


@pytest.mark.usefixtures("plugins")
def test_eval_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = called(capsys, "doubling", "-e", "@nop")
    assert status == 0
    assert "pass@1" in out and "0.0%" in out and "6 finished" in out


@pytest.mark.usefixtures("plugins")
def test_eval_reads_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "from __future__ import annotations\n"
        "from quintain.interfaces.environment import Environment\n"
        "from quintain.interfaces.reward import reward\n"
        "from quintain.types.rollout import Rollout\n"
        "from quintain.types.task import Task\n"
        "class Mine(Environment[Task, None]):\n"
        "    reward = reward(lambda rollout: float(rollout.reply == 'yes'))\n"
        "    word: str = 'no'\n"
        "    def tasks(self, split: str):\n"
        "        return [Task(prompt='?', answer=self.word)]\n"
    )
    status, out, _ = called(capsys, f"{source}:Mine", "-e", "@oracle", "--json", "--arg", "word=yes")
    assert status == 0 and json.loads(out)["pass@1"] == 1
    assert called(capsys, f"{source}:Mine", "-e", "@oracle", "--json", "--arg", "word=5")[0] == 0
    status, _, err = called(capsys, f"{tmp_path}/absent.py:Mine", "-e", "@oracle")
    assert status == 2 and "there is no file" in err


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    "argv, message",
    [
        (["doubling", "-e", "@oracel"], "did you mean 'oracle'"),
        (["doubling", "-e", "oracle"], "'oracle' is a control of 'doubling' and no engine: --engine @oracle"),
        (["doublin", "-e", "@oracle"], "did you mean 'doubling'"),
        (["doubling", "-e", "@oracle", "--arg", "siez=5"], "did you mean 'size'"),
        (["doubling", "-e", "@oracle", "--arg", "size=big"], "size is 'big'; expected int"),
        (["doubling", "-e", "@oracle", "--k", "1,x"], "whole numbers with commas"),
        (["doubling", "-e", "@oracle", "--k", "2"], "more with --samples"),
        (["doubling", "-e", "@oracle", "--out", "x.csv"], "ends in .jsonl or .parquet"),
        (["doubling", "-e", "@oracle", "--out", "nowhere/x.jsonl"], "there is no folder"),
        (["doubling", "-e", "@oracle", "--split", "tests"], "did you mean 'test'"),
        (["doubling", "-e", "@oracle", "-t", "-1"], "sampling.temperature is -1"),
        (["doubling", "-e", "scripted", "-m", "x"], "takes no model"),
        (["doubling"], "needs a model: --model"),
        (["endless", "-e", "@oracle"], "--tasks N"),
        (["doubling", "-e", "@oracle", "--reward", "nothing_such"], "nothing_such"),
        (["doubling", "--controls", "-e", "@oracle", "--out", "x.jsonl"], "leave out --engine, --out"),
        (["refereed", "-e", "@oracle"], "say what fills it with --service referee=NAME"),
        (["refereed", "-e", "@oracle", "--service", "referee"], "expected SLOT=NAME"),
        (["refereed", "-e", "@oracle", "--service", "referee=even", "--service-arg", "low=1"], "SLOT.KEY=VALUE"),
        (["refereed", "-e", "@oracle", "--service", "referee=evn"], "did you mean 'even'"),
    ],
)
def test_eval_says_what_to_mend(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    status, out, err = called(capsys, *argv)
    assert (status, out) == (2, "")
    assert message in err and "Traceback" not in err


@pytest.mark.usefixtures("plugins")
def test_eval_takes_services(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["refereed", "--json", "--service", "referee=even"]
    status, out, _ = called(capsys, *argv, "-e", "@oracle")
    assert status == 0 and json.loads(out)["pass@1"] == 0
    status, out, _ = called(capsys, *argv, "-e", "@oracle", "--service-arg", "referee.word=5")
    assert status == 0 and json.loads(out)["pass@1"] == 1
    assert called(capsys, *argv, "--controls", "--service-arg", "referee.word=5")[0] == 0


@pytest.mark.usefixtures("plugins")
def test_eval_that_is_interrupted_says_so_in_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Doubling, split: str) -> Iterable[Task]:
        signal.raise_signal(signal.SIGINT)
        return []

    monkeypatch.setattr(Doubling, "tasks", stop)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with it ignored
    try:
        status, out, _ = called(capsys, "doubling", "-e", "@oracle", "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 130
    assert json.loads(out)["error"]["type"] == "Interrupted"


def interrupted(environment: Environment[Any, Any], after: int, **settings: Any) -> Evaluation:
    """An evaluation of one episode at a time whose task is cancelled when *after* rollouts are scored."""

    async def run() -> Evaluation:
        task = asyncio.current_task()
        scored: list[Any] = []

        def progress(rollout: Any) -> None:
            scored.append(rollout)
            if len(scored) == after:
                assert task is not None
                task.cancel()

        async with ScriptedEngine(replies=sometimes_right) as engine:
            return await evaluate(environment, engine, concurrency=1, progress=progress, **settings)

    return asyncio.run(run())


def test_an_interrupted_evaluation_has_the_rollouts_that_are_scored() -> None:
    whole = measured(Doubling(), samples=4, seed=3)
    part = interrupted(Doubling(), 10, samples=4, seed=3, partial=True)
    replies = {(r.group, r.sample): r.reply for r in whole.rollouts}
    assert 10 <= len(part.rollouts) < 24 == part.planned and part.interrupted
    assert all(r.reply == replies[r.group, r.sample] for r in part.rollouts)
    assert part.accuracy is not None and part.accuracy.tasks == len(part.groups)
    assert (whole.planned, whole.interrupted) == (24, False)
    with pytest.raises(asyncio.CancelledError):
        interrupted(Doubling(), 10, samples=4)


def test_rewards_that_compare_samples_score_complete_groups_of_an_interrupted_evaluation() -> None:
    @group_reward
    def longest(rollouts: Sequence[Rollout[Task, None]]) -> list[float]:
        most = max(len(r.reply) for r in rollouts)
        return [float(len(r.reply) == most) for r in rollouts]

    class Compared(Doubling):
        reward = longest

    part = interrupted(Compared(), 10, samples=4, partial=True)
    assert part.interrupted and [len(g.rollouts) for g in part.groups] == [4] * len(part.groups)
    assert all(r.outcome is not None for r in part.rollouts) and part.accuracy is not None
    with pytest.raises(asyncio.CancelledError):  # no group is complete
        interrupted(Compared(), 2, samples=4, partial=True)


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_eval_shows_and_writes_what_is_finished_when_it_is_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    async def rollout(self: Doubling, task: Task, agent: Agent) -> None:
        if task.answer == 406:
            signal.raise_signal(number)
            await asyncio.Event().wait()
        agent.user(task.prompt)
        await agent.turn()

    monkeypatch.setattr(Doubling, "rollout", rollout)
    out = tmp_path / "some.jsonl"
    argv = ["doubling", "-e", "@oracle", "--samples", "2", "--concurrency", "1", "--out", str(out)]
    status, text, _ = called(capsys, *argv)
    answers = [json.loads(line)["task"]["answer"] for line in out.read_text().splitlines()]
    assert status == 130 and set(answers) <= {400, 402, 404} and 1 <= len(answers) <= 6
    assert f"interrupted: {len(answers)} of 12 rollouts" in text and "100.0%" in text
    status, text, _ = called(capsys, *argv, "--json")
    found = json.loads(text)
    assert status == 130 and found["interrupted"] and (found["rollouts"], found["planned"]) == (len(answers), 12)


@pytest.mark.usefixtures("plugins")
def test_eval_without_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = called(capsys, "onlytrain", "-e", "@oracle")
    assert status == 1 and "it has some for train" in err


@pytest.mark.usefixtures("plugins")
def test_eval_fails_where_too_much_failed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = called(capsys, "hackable", "-e", "@crashing", "--json")
    assert status == 1 and json.loads(out)["pass@1"] is None
    assert "100.0% of the rollouts failed" in err
    flaky = ["doubling", "-e", "scripted", "--engine-arg", "fail_on=[1]", "--retries", "0", "--json"]
    assert called(capsys, *flaky)[0] == 1  # 1 of 6
    assert called(capsys, *flaky, "--max-failures", "0.2")[0] == 0


@pytest.mark.usefixtures("plugins")
def test_eval_checks_controls(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = called(capsys, "doubling", "--controls")
    assert status == 0 and "@oracle" in out and "@nop" in out
    status, out, _ = called(capsys, "hackable", "--controls", "--json")
    found = json.loads(out)
    assert status == 1 and found["ok"] is False
    assert {c["control"] for c in found["controls"] if not c["ok"]} == {"shouting", "careless", "crashing"}
    assert called(capsys, "endless", "--controls", "-n", "3")[0] == 0


@pytest.mark.usefixtures("plugins")
def test_eval_writes_rollouts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines, table = tmp_path / "r.jsonl", tmp_path / "r.parquet"
    assert called(capsys, "doubling", "-e", "@oracle", "-n", "3", "--out", str(lines))[0] == 0
    rollouts = [Rollout.from_json(json.loads(line)) for line in lines.read_text().splitlines()]
    assert [r.reply for r in rollouts] == ["400", "402", "404"]
    assert all(r.outcome is not None and r.outcome.total == 1 for r in rollouts)
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs quintain[train]")
    assert called(capsys, "doubling", "-e", "@oracle", "-n", "3", "--out", str(table))[0] == 0
    assert parquet.read_table(table)["reply"].to_pylist() == ["400", "402", "404"]


@pytest.mark.usefixtures("plugins")
def test_an_engine_of_a_plugin_that_is_not_installed_brings_its_pip_line(capsys: pytest.CaptureFixture[str]) -> None:
    for engine in ("openai", "http://127.0.0.1:1"):
        status, out, err = called(capsys, "doubling", "--engine", engine)
        assert (status, out) == (2, "") and "pip install quintain-openai" in err


@pytest.mark.usefixtures("plugins")
def test_eval_of_a_model_folder_and_of_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="the embedded engine needs quintain[train]")
    spec = importlib.util.spec_from_file_location("tiny_models", Path(__file__).with_name("models.py"))
    assert spec is not None and spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "mine"
    steps = [run / "checkpoints" / name / "model" for name in ("step-000002", "step-000010")]
    for seed, step in enumerate(steps):
        models.save_tiny(step, seed=seed)
        about = {"format": 1, "step": 2 + 8 * seed, "best": False}
        (step.parent / "checkpoint.json").write_text(json.dumps(about))
    (run / "recipe.toml").write_text('[[environments]]\nuse = "doubling"\nsystem = "Be right."\n')
    capsys.readouterr()
    rows = []
    for i, options in enumerate((["mine"], [str(steps[1]), "--system", "Be right."], [str(steps[1])], [str(steps[0])])):
        out = tmp_path / f"{i}.jsonl"
        argv = ["--max-tokens", "8", "-n", "2", "--json", "--out", str(out), "-m", *options]
        status, printed, _ = called(capsys, "doubling", *argv)
        assert status == 0 and json.loads(printed)["failed"] == 0
        rows.append([json.loads(line)["turns"] for line in out.read_text().splitlines()])
    assert rows[0] == rows[1]  # the last checkpoint, asked as it was trained
    assert rows[1] != rows[2] != rows[3]


class Cyclic(Doubling):
    """Each episode leaves 25 objects that only the garbage collector frees."""

    async def rollout(self, task: Task, agent: Agent) -> None:
        agent.user(task.prompt)
        for _ in range(25):
            loop = Loop()
            loop.self = loop
        await agent.turn()


class Loop:
    self: Any = None


def test_memory_stays_flat_over_many_evaluations() -> None:
    """Collections are fewer while episodes run, but what these leave behind is freed; Python's settings return."""
    gc.collect()
    settings = (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled())
    left = []
    for _ in range(5):
        asyncio.run(evaluate(Cyclic(size=800), ControlEngine(Cyclic(), "nop")))
        left.append(sum(type(x) is Loop for x in gc.get_objects()))
    assert settings == (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled())
    assert max(left) < 40_000  # of 100,000


@pytest.mark.parametrize("own", [(0, 10, 10), (100_000, 5, 5)])
def test_the_callers_own_settings_of_the_collector_stay(own: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(*own)
        with frozen_heap():
            assert own == gc.get_threshold()
        gc.set_threshold(*before)
        gc.freeze()
        with frozen_heap():
            assert before == gc.get_threshold()
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
