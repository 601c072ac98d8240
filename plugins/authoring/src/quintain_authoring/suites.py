"""Conformance: what every environment and every reward must do, as pytest classes to subclass."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any, ClassVar, TypeVar

import pytest

from quintain import (
    Demonstration,
    Engine,
    Environment,
    Group,
    Message,
    Reward,
    Rollout,
    Sampling,
    Score,
    Service,
    Task,
    Workers,
)
from quintain.errors import EpisodeError, UsageError
from quintain.interfaces import SPLITS, RewardContext, yielded
from quintain.registry import bind, current, known_plugins
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain.types import SCORE_TOLERANCE, content_hash, reaches

from .controls import ControlEngine
from .episodes import rescore
from .scripted import ScriptedEngine

__all__ = ["EnvironmentSuite", "RewardSuite"]

R = TypeVar("R")

ODD_REPLIES = (
    "",
    " \n\t",
    "nan",
    "-1e999",
    "9" * 400,
    "a\x00b\ufffd\U0001f600",
    "<think>never closed",
    "</think></answer><answer>",
    "<tool_call>\n{not json\n</tool_call>",
    "\\boxed{\\frac{1}{0}}",
    "word " * 500,
    '\n<tool_call>\n{"name": "no_such_tool", "arguments": {"x": [1, null]}}\n</tool_call>',
)
"""What a policy may say on a bad day; none of it may break an environment."""


@asynccontextmanager
async def _opened(services: Mapping[str, Service]) -> AsyncIterator[Mapping[str, Any]]:
    async with AsyncExitStack() as stack:
        yield {slot: await stack.enter_async_context(one) for slot, one in services.items()}


class _Suite:
    """One event loop and one set of started services per test class."""

    started: ClassVar[Mapping[str, Any]]
    """The services by slot, while the tests of the class run."""
    _runner: ClassVar[asyncio.Runner]
    _stack: ClassVar[AsyncExitStack]

    @classmethod
    def services(cls) -> Mapping[str, Service]:
        """Return the services by slot, for the environment's fields and its rewards; started once
        per class.
        """
        installed = current().matching("workers", "service")
        return {"workers": current().load("service", "workers")()} if installed else {}

    @classmethod
    def opened_services(cls) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """Start `services` and stop them at the end; override it to start others in another way."""
        return _opened(cls.services())

    @classmethod
    def setup_class(cls) -> None:
        cls._runner = asyncio.Runner()
        cls._stack = AsyncExitStack()
        cls.started = cls.run(cls._stack.enter_async_context(cls.opened_services()))

    @classmethod
    def teardown_class(cls) -> None:
        with cls._runner:
            cls._runner.run(cls._stack.aclose())

    @classmethod
    def run(cls, coroutine: Awaitable[R]) -> R:
        """Run *coroutine* in the loop of the class."""

        async def wait() -> R:
            return await coroutine

        return cls._runner.run(wait())


class EnvironmentSuite(_Suite):
    """Subclass it and set `environment`; each test says what a trainer relies on.

    Attributes:
        environment: a class, an instance, or the name of an installed one.
        args: configuration, where `environment` is a class or a name.
        splits: those that must have tasks.
        sample: tasks of each split that are looked at.
        episodes: tasks that are played in each test that plays.
        highest, lowest: outcome of controls marked ``"max"`` (at least) and ``"min"`` (at most).
    """

    environment: ClassVar[Any]
    args: ClassVar[Mapping[str, Any]] = {}
    splits: ClassVar[Sequence[str]] = SPLITS
    sample: ClassVar[int] = 100
    episodes: ClassVar[int] = 8
    highest: ClassVar[float] = 1.0
    lowest: ClassVar[float] = 0.0
    _empty: ClassVar[Sequence[str]] = ()
    """Splits that were found without tasks, which other tests need not say again."""

    def build(self) -> Environment[Any, Any]:
        """Return a fresh instance, configured and with its services."""
        environment = self.environment
        if isinstance(environment, Environment):
            return environment
        environment = (
            current().load("environment", environment)
            if isinstance(environment, str)
            else environment
        )
        built: Environment[Any, Any] = bind(
            environment, self.args, self.started, who="the environment"
        )
        return built

    def tasks(self, split: str, n: int | None = None) -> list[Task]:
        """Return the first *n* tasks of *split* (by default `sample`)."""
        return list(itertools.islice(yielded(self.build(), "tasks", split), n or self.sample))

    def play(
        self,
        engine: Engine,
        *,
        group_size: int = 1,
        concurrency: int = 1,
        tasks: Sequence[Task] | None = None,
        environment: Environment[Any, Any] | None = None,
    ) -> list[Rollout[Any, Any]]:
        """Return scored rollouts of the first `episodes` tasks of the first split (or of *tasks*),
        in new instances (or in *environment*).
        """
        chosen = self.tasks(self.splits[0], self.episodes) if tasks is None else tasks
        requests = [
            RolloutRequest(
                environment=environment or self.build(), task=t, group_size=group_size, index=i
            )
            for i, t in enumerate(chosen)
        ]
        sampling = Sampling(max_tokens=4096)
        context = RolloutContext(
            engine=engine,
            sampling=sampling,
            services=self.started,
            concurrency=concurrency,
            retries=0,
        )
        return [r for g in self.run(run_groups(requests, context)) for r in g.rollouts]

    def test_every_split_has_tasks(self) -> None:
        type(self)._empty = [split for split in self.splits if not self.tasks(split, 1)]
        names = ", ".join(map(repr, self._empty))
        assert not names, f"no tasks in the split {names}; return a list of tasks, or `yield` them"

    def test_tasks_are_the_same_each_time(self) -> None:
        for split in [name for name in self.splits if name not in self._empty]:
            again = self.build()
            first, second = (
                list(itertools.islice(yielded(again, "tasks", split), self.sample))
                for _ in range(2)
            )
            assert first, (
                f"{split!r} has no tasks when it is asked again: return a list, or a new generator "
                f"each time"
            )
            assert first == second, (
                f"{split!r} changes when asked twice: tasks must depend on (fields, split) alone"
            )
            assert first == self.tasks(split), f"{split!r} differs between equal instances"

    def test_tasks_are_the_same_in_another_process(self) -> None:
        """Compare the tasks with those of another process: a set's order and ``hash()`` of text
        change with the process, and so would the tasks made with them.
        """
        workers = self.started.get("workers")
        if not isinstance(workers, Workers):
            plugin = known_plugins()["service", "workers"]
            pytest.skip(f"no service `workers` is installed: pip install {plugin}")
        for split in self.splits:
            try:
                packed = pickle.dumps(self.build())
                elsewhere = self.run(
                    workers.call(_task_ids, packed, split, self.sample, timeout=120)
                )
            except (ImportError, AttributeError, UsageError, pickle.PicklingError, TypeError) as e:
                pytest.skip(f"a fresh interpreter cannot load the environment ({e})")
            ids_here = [t.id for t in self.tasks(split)]
            assert ids_here == elsewhere, (
                f"{split!r} has other tasks in another process: a set's order, or hash() of text?"
            )

    def test_task_ids_are_unique(self) -> None:
        for split in self.splits:
            ids = [t.id for t in self.tasks(split)]
            twice = sorted({i for i in ids if ids.count(i) > 1})
            assert not twice, f"{split!r} repeats the tasks {twice[:5]}; yield each once"

    def test_splits_are_disjoint(self) -> None:
        content = {
            s: {content_hash(t): t for t in self.tasks(s, 10 * self.sample)} for s in self.splits
        }
        for a, b in itertools.combinations(self.splits, 2):
            both = content[a].keys() & content[b].keys()
            assert not both, (
                f"{len(both)} tasks are in {a!r} and {b!r}: {content[a][min(both)]}; choose the split "
                "of a task by a hash of its prompt"
                if both
                else ""
            )

    def test_tasks_survive_storage(self) -> None:
        for split in self.splits:
            for task in self.tasks(split):
                back = Rollout.from_json(Rollout(task=task).to_json(), type(task)).task
                where = "" if back == task else difference(task, back, "task")
                assert back == task, f"task {task.id} changes when stored as JSON: {where}"

    def test_controls_score_as_marked(self) -> None:
        for name, scores in self.build().control_marks().items():
            for r in self.play(ControlEngine(self.build(), name), concurrency=self.episodes):
                where = f"control {name!r} on task {r.task.id} ({r.task.prompt!r:.200})"
                assert r.valid, f"{where} ended with {r.termination.kind}: {r.termination.reason}"
                assert r.outcome is not None
                got = r.outcome.total
                message = f"scored {r.outcome.total} with {r.reply!r:.200}; expected"
                assert scores != "max" or reaches(got, self.highest), (
                    f"{where} {message} {self.highest}; mend the reward, or the control (`oracle` "
                    "replies task.answer: override it where an episode needs calls)"
                )
                assert scores != "min" or got <= self.lowest + SCORE_TOLERANCE, (
                    f"{where} {message} {self.lowest}"
                )

    def test_odd_replies_break_nothing(self) -> None:
        tasks = self.tasks(self.splits[0], 2)
        for text in ODD_REPLIES:
            for r in self.play(ScriptedEngine(replies=text), tasks=tasks):
                assert r.valid, (
                    f"the reply {text!r:.80} broke it: {r.termination.kind}: {r.termination.reason}"
                )
                assert math.isfinite(r.total)

    def test_stored_rollouts_score_the_same(self) -> None:
        """Send result and task through JSON and score again; the rewards see nothing else."""
        environment = self.build()
        for r in [*self.play(ControlEngine(environment, "oracle")), *self.play(_babbler())]:
            back = Rollout.from_json(r.to_json(), type(r.task), type(r.result))
            assert (back.task, back.result) == (r.task, r.result), (
                f"task {r.task.id} or its result changes when stored"
            )
            assert back.to_json() == r.to_json(), (
                f"the rollout of task {r.task.id} changes when stored"
            )
            group = Group(task=back.task, rollouts=(back,), environment=back.environment)
            again = self.run(rescore(environment, group, self.started)).rollouts[0]
            assert (again.outcome, again.shaping) == (r.outcome, r.shaping), (
                "a stored rollout scores differently"
            )

    def test_episodes_are_reproducible(self) -> None:
        first, second = (self.play(_babbler(), group_size=2) for _ in range(2))
        for a, b in zip(first, second, strict=True):
            _assert_same(a, b, "one seed gave two episodes", "use agent.rng")

    def test_concurrent_episodes_do_not_mix(self) -> None:
        alone = self.play(_babbler(), group_size=2)
        together = self.play(_babbler(delay=0.002), group_size=2, concurrency=2 * self.episodes)
        for a, b in zip(alone, together, strict=True):
            _assert_same(
                a,
                b,
                "it goes otherwise beside others",
                "keep state in locals, report none of a service",
            )

    def test_demonstrations_are_usable(self) -> None:
        for shown in itertools.islice(self.build().demonstrations(self.splits[0]), self.sample):
            assert isinstance(shown, Demonstration)
            assert shown.prompt, "a demonstration without a prompt"
            assert shown.reply, "a demonstration without a reply"


class RewardSuite(_Suite):
    """Subclass it, set `reward`, and give cases.

    Attributes:
        reward: what is tested, configured.
        lowest: what an exploit may score at most.
        repeatable: false for a reward that keeps a state on purpose, whose scores change from call
            to call.
    """

    reward: ClassVar[Reward]
    repeatable: ClassVar[bool] = True
    lowest: ClassVar[float] = 0.0

    def gold(self) -> Sequence[tuple[Rollout[Any, Any], float]]:
        """Return rollouts and the score each must get."""
        return ()

    def exploits(self) -> Sequence[Rollout[Any, Any]]:
        """Return rollouts of known hacks: they must score the minimum."""
        return ()

    def scores(self, rollouts: Sequence[Rollout[Any, Any]]) -> list[Score]:
        """Return each rollout's score, judged on its own."""

        async def judge(r: Rollout[Any, Any]) -> Score:
            (scored,) = await self.reward.score_all([r], RewardContext(services=self.started))
            if isinstance(scored, EpisodeError):
                raise scored
            return scored

        return [self.run(judge(r)) for r in rollouts]

    def test_gold_cases(self) -> None:
        for (r, expected), score in zip(
            self.gold(), self.scores([r for r, _ in self.gold()]), strict=True
        ):
            assert score.total == pytest.approx(expected), (
                f"{r.reply!r:.200} scored {score.total}, expected {expected}"
            )

    def test_exploits_score_the_minimum(self) -> None:
        for r, score in zip(self.exploits(), self.scores(self.exploits()), strict=True):
            assert score.total <= self.lowest + SCORE_TOLERANCE, (
                f"the exploit {r.reply!r:.200} scored {score.total}"
            )

    def test_scores_repeat(self) -> None:
        """Assert the same score twice, from storage too, and in company."""
        if not self.repeatable:
            pytest.skip("the reward keeps a state on purpose: repeatable = False")
        cases = self.cases()
        first = self.scores(cases)
        assert self.scores(cases) == first, (
            "a second call scores differently; repeatable = False allows a state"
        )
        stored = [Rollout.from_json(r.to_json(), type(r.task), type(r.result)) for r in cases]
        assert self.scores(stored) == first, "a rollout that was stored scores differently"
        if not self.reward.group:
            together = self.run(self.reward.score_all(cases, RewardContext(services=self.started)))
            assert together == first, "a rollout scores differently beside others"

    def test_scores_stay_in_the_declared_range(self) -> None:
        if self.reward.range is None:
            pytest.skip("the reward declares no range")
        low, high = self.reward.range
        outside = [s.total for s in self.scores(self.cases()) if not low <= s.total <= high]
        assert not outside, (
            f"scores of {outside[:5]} are outside the declared range of {low} to {high}"
        )

    def cases(self) -> list[Rollout[Any, Any]]:
        """Return the rollouts that any reward can be asked about: those of `gold` and of
        `exploits`.
        """
        cases = [*(r for r, _ in self.gold()), *self.exploits()]
        assert cases, "give gold() or exploits()"
        return cases


def difference(before: Any, after: Any, path: str) -> str:
    """Return the first place where two values differ, and how: ``task.metadata.sizes is (1, 2),
    then [1, 2]``.
    """
    if is_dataclass(before) and type(before) is type(after):
        before, after = (
            {f.name: getattr(value, f.name) for f in fields(value)} for value in (before, after)
        )
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        return next(
            (d for key in before if (d := difference(before[key], after[key], f"{path}.{key}"))), ""
        )
    if (
        isinstance(before, (list, tuple))
        and type(before) is type(after)
        and len(before) == len(after)
    ):
        pairs = zip(before, after, strict=True)
        return next(
            (d for i, (a, b) in enumerate(pairs) if (d := difference(a, b, f"{path}[{i}]"))), ""
        )
    return "" if before == after else f"{path} is {before!r:.80}, then {after!r:.80}"


def _babbler(delay: float = 0.0) -> ScriptedEngine:
    """Return a policy that says short seeded nonsense, now and then something that looks like an
    answer.
    """

    def babble(messages: Sequence[Message], rng: Random) -> str:
        form = rng.choice(
            ("{}", "I guess {}", "<think>hm</think><answer>{}</answer>", "\\boxed{{{}}}")
        )
        return form.format(rng.randrange(100))

    return ScriptedEngine(replies=babble, delay=delay)


def _assert_same(a: Rollout[Any, Any], b: Rollout[Any, Any], fault: str, fix: str) -> None:
    where = difference(a.replace(seconds=0.0), b.replace(seconds=0.0), "rollout")
    assert not where, f"task {a.task.id}: {fault}: {where}; {fix}"


def _task_ids(packed: bytes, split: str, n: int) -> list[str]:
    """Return the ids of the first *n* tasks of a pickled environment; a worker runs it."""
    environment: Environment[Any, Any] = pickle.loads(packed)
    return [t.id for t in itertools.islice(environment.tasks(split), n)]
