"""The suites for authors: they pass on the good, and catch what they promise to catch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pytest

from quintain.interfaces.agent import Agent
from quintain.interfaces.environment import control
from quintain.interfaces.reward import Reward, reward
from quintain.testing import rollout
from quintain.types.rollout import Rollout
from quintain.types.task import Message
from quintain_authoring import EnvironmentSuite, RewardSuite
from quintain_authoring.suites import difference

from .guess import Board, Controlled, Guess, Secret, found


class TestGuess(EnvironmentSuite):
    environment = Controlled
    args: ClassVar[dict[str, Any]] = {"top": 300}


class TestGuessInstance(EnvironmentSuite):
    environment = Guess(top=90)


class TestFound(RewardSuite):
    reward = found

    def case(self, hit: bool) -> Rollout[Any, Any]:
        return rollout(Secret(prompt="?"), "7", result=Board(guesses=("7",), found=hit, luck=0.5))

    def gold(self) -> Sequence[tuple[Rollout[Any, Any], float]]:
        return [(self.case(True), 1.0), (self.case(False), 0.0)]

    def exploits(self) -> Sequence[Rollout[Any, Any]]:
        return [self.case(False)]


class Drifting(Guess):
    def tasks(self, split: str) -> Iterable[Secret]:
        yield Secret(prompt=str(random.random()), answer="1")


class Repeating(Guess):
    def tasks(self, split: str) -> Iterable[Secret]:
        yield from [Secret(prompt=split, answer="1")] * 2


class Leaking(Guess):
    def tasks(self, split: str) -> Iterable[Secret]:
        yield Secret(prompt="the same in all splits", answer="1", id=split)


class Empty(Guess):
    def tasks(self, split: str) -> Iterable[Secret]:
        return super().tasks(split) if split == "train" else ()


class Unstorable(Guess):
    def tasks(self, split: str) -> Iterable[Secret]:
        yield Secret(prompt=split, answer=(1, 2))


class Hackable(Guess):
    @control(scores="min")
    def hack(self, task: Secret, messages: Sequence[Message]) -> str:
        return str(task.answer)


class Unsolvable(Guess):
    def oracle(self, task: Secret, messages: Sequence[Message]) -> str:
        return "no idea"


class Unseeded(Guess):
    async def rollout(self, task: Secret, agent: Agent) -> Board:
        board = await super().rollout(task, agent)
        return Board(guesses=board.guesses, found=board.found, luck=random.random())


class Shared(Guess):
    heard: ClassVar[list[str]] = []

    async def rollout(self, task: Secret, agent: Agent) -> Board:
        self.heard.clear()
        agent.user(task.prompt)
        self.heard.append(task.id)
        await agent.turn()
        return Board(guesses=tuple(self.heard), found=False, luck=0.0)


class Fragile(Guess):
    async def rollout(self, task: Secret, agent: Agent) -> Board:
        agent.user(task.prompt)
        guess = int((await agent.turn()).reply or 0)
        return Board(guesses=(str(guess),), found=str(guess) == task.answer, luck=0.0)


calls = itertools.count()


class Moody(Guess):
    @reward
    def moody(r: Rollout[Secret, Board]) -> float:
        return float(next(calls))

    reward = moody


@pytest.mark.parametrize(
    "bad, test",
    [
        (Empty, "test_every_split_has_tasks"),
        (Drifting, "test_tasks_are_the_same_each_time"),
        (Repeating, "test_task_ids_are_unique"),
        (Leaking, "test_splits_are_disjoint"),
        (Unstorable, "test_tasks_survive_storage"),
        (Hackable, "test_controls_score_as_marked"),
        (Unsolvable, "test_controls_score_as_marked"),
        (Unseeded, "test_episodes_are_reproducible"),
        (Shared, "test_concurrent_episodes_do_not_mix"),
        (Fragile, "test_odd_replies_break_nothing"),
        (Moody, "test_stored_rollouts_score_the_same"),
    ],
)
def test_the_environment_suite_catches(bad: type[Guess], test: str) -> None:
    suite = type(
        "Suite", (EnvironmentSuite,), {"environment": bad, "services": classmethod(lambda cls: {})}
    )
    suite.setup_class()
    try:
        with pytest.raises(AssertionError):
            getattr(suite(), test)()
    finally:
        suite.teardown_class()


def test_the_place_where_a_task_changes_is_named() -> None:
    """Not two long values side by side."""
    before = Secret(prompt="?", answer={"difficulty": {"sizes": [1, (2, 3)]}})
    after = Secret(prompt="?", answer={"difficulty": {"sizes": [1, [2, 3]]}})

    assert (
        difference(before, after, "task")
        == "task.answer.difficulty.sizes[1] is (2, 3), then [2, 3]"
    )
    assert difference(before, before, "task") == ""
    assert (
        difference(before, Secret(prompt="?", answer={"difficulty": {}}), "task")
        == "task.answer.difficulty is {'sizes': [1, (2, 3)]}, then {}"
    )
    suite = type(
        "Suite",
        (EnvironmentSuite,),
        {"environment": Unstorable, "services": classmethod(lambda cls: {})},
    )
    suite.setup_class()
    try:
        with pytest.raises(
            AssertionError, match=r"task \w+ changes when .* task.answer is \(1, 2\), then \[1, 2\]"
        ):
            suite().test_tasks_survive_storage()
        with pytest.raises(AssertionError, match=r"task \w+ or its result changes when stored"):
            suite().test_stored_rollouts_score_the_same()
    finally:
        suite.teardown_class()


def test_the_environment_suite_catches_tasks_that_hang_on_the_process(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hash_ordered.py").write_text(
        "from quintain.interfaces.environment import Environment\n"
        "from quintain.interfaces.reward import constant\n"
        "from quintain.types.task import Task\n"
        "class HashOrdered(Environment):\n"
        "    reward = constant(0)\n"
        "    def tasks(self, split):\n"
        "        return [Task(prompt=split + w) for w in {'w' * n for n in range(40)}]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import hash_ordered  # type: ignore[import-not-found]

    suite = type("Suite", (EnvironmentSuite,), {"environment": hash_ordered.HashOrdered})
    suite.setup_class()
    try:
        with pytest.raises(AssertionError, match="another process"):
            suite().test_tasks_are_the_same_in_another_process()
    finally:
        suite.teardown_class()


def _suite_of(
    r: Reward, cases: list[tuple[Rollout[Any, Any], float]], hacks: list[Rollout[Any, Any]]
) -> Any:
    given = {"reward": r, "gold": lambda self: cases, "exploits": lambda self: hacks}
    return type("Suite", (RewardSuite,), {**given, "services": classmethod(lambda cls: {})})


def test_the_reward_suite_catches() -> None:
    good, bad = TestFound().case(True), TestFound().case(False)
    for suite, test in (
        (_suite_of(found, [(good, 0.5)], []), "test_gold_cases"),
        (_suite_of(found, [], [good]), "test_exploits_score_the_minimum"),
        (_suite_of(Moody.reward, [(bad, 0.0)], []), "test_scores_repeat"),
    ):
        suite.setup_class()
        try:
            with pytest.raises(AssertionError):
                getattr(suite(), test)()
        finally:
            suite.teardown_class()
