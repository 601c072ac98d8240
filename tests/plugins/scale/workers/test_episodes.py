"""Episodes in processes of their own: the same rollouts as in one process, whatever ends some."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import sys
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintain import (
    Engine,
    InfrastructureError,
    Message,
    Reply,
    Sampled,
    Sampling,
    Service,
    TokenEngine,
    ToolSpec,
    Weights,
)
from quintain.errors import LimitReached, UsageError
from quintain.interfaces import ProcessCluster
from quintain.interfaces.environment import Environment
from quintain.recipe import Recipe, RunPlan
from quintain.rollouts import RolloutContext, RolloutRequest, run_groups
from quintain.types import AnyGroup, AnyRollout
from quintain_scale.workers import EpisodeProcesses
from quintain_scale.workers.venvs import python_with

pytest.importorskip("torch")

from quintain.models.tokenizer import HFTokenizer

from ....core.models.tiny import byte_tokenizer
from ....lanes import mostly_slow
from ....processes import ended

FILE = Path(__file__).parent / "episode_environments.py"


class Draws(TokenEngine):
    """Samples letters, and calls of a tool, that its seed and the length of the prompt decide."""

    name = "draws"
    context = 2000

    def __init__(self) -> None:
        self.tokenizer = HFTokenizer(byte_tokenizer())
        self.tokenizer.use_tool_format("hermes")
        self.asked = self.given_up = 0
        self.hold = False

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        if len(ids) >= self.context:
            raise LimitReached("context", f"{len(ids)} tokens")
        self.asked += 1
        try:
            await asyncio.sleep(0)
            while self.hold:  # noqa: ASYNC110 - tests say it by a flag
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        rng = Random(f"{sampling.seed} {len(ids)}")
        text = "".join(rng.choices("abcdefgh", k=rng.randrange(3, 20)))
        if rng.random() < 0.7:
            text += f'<tool_call>{{"name": "add", "arguments": {{"x": {rng.randrange(99)}}}}}</tool_call>'
        tokens = (*self.tokenizer.encode(text), self.tokenizer.stop_ids[0])
        return Sampled(
            ids=tokens,
            logps=tuple(-rng.random() for _ in tokens),
            versions=tuple(rng.randrange(2) for _ in tokens),
            finish="stop",
            stop=tokens[-1],
        )

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        return [0.0] * (len(ids) - start)

    async def update(self, weights: Weights) -> int:
        raise UsageError("no weights")


class Echo(Engine):
    """Returns text alone."""

    name = "echo"

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        return Reply(text=f"{len(messages)} {messages[-1].content}")


class CountsEpisodes(Service):
    """Has a state."""

    count = 0

    def state(self) -> dict[str, int]:
        return {"count": self.count}


def plan_of(environment: str, slots: Iterable[str] = (), **args: Any) -> RunPlan:
    """The plan of a recipe with an environment of the file, and services that are not started."""
    table = {"use": f"{FILE}:{environment}", "args": args}
    services = {slot: {"use": f"{FILE}:Unused"} for slot in slots}
    return RunPlan.of(Recipe.of({"environments": [table], "services": services}))


class Played:
    """An environment, its plan, an engine and the processes."""

    def __init__(
        self,
        environment: str,
        args: Mapping[str, Any],
        services: Mapping[str, Any],
        **settings: Any,
    ) -> None:
        self.plan = plan_of(environment, services, **args)
        self.engine = Draws()
        self.services = {"policy": self.engine, **services}
        self.environment: Environment[Any, Any] = self.plan.tasks.environments[0].make(
            self.services
        )
        self.processes = EpisodeProcesses(policy=self.engine, **settings)

    def requests(self, groups: int, size: int) -> list[RolloutRequest]:
        """Requests for *groups* tasks."""
        tasks = [*self.environment.tasks("train")][:groups]
        return [
            RolloutRequest(
                environment=self.environment, task=task, group_size=size, name="test", index=index
            )
            for index, task in enumerate(tasks)
        ]

    async def run(
        self, groups: int, size: int, *, here: bool = False, concurrency: int = 64
    ) -> list[AnyGroup]:
        """The rollouts, played in the processes, or *here*."""
        context = RolloutContext(
            engine=self.engine,
            services=self.services,
            run_seed=7,
            concurrency=concurrency,
            play=None if here else self.processes.play,
        )
        return await run_groups(self.requests(groups, size), context)

    @property
    def pids(self) -> list[int]:
        """The processes that play."""
        return [process.pid for team in self.processes.teams for process in team.live]


@asynccontextmanager
async def opened(
    environment: str,
    args: Mapping[str, Any] | None = None,
    services: Mapping[str, Any] | None = None,
    *,
    cluster: ProcessCluster | None = None,
    **settings: Any,
) -> AsyncIterator[Played]:
    """Processes that play *environment*."""
    played = Played(environment, args or {}, services or {}, **{"processes": 2, **settings})
    async with played.processes:
        await played.processes.open(played.plan, [played.environment], played.services, cluster)
        yield played


def without_time(groups: Sequence[AnyGroup]) -> list[AnyRollout]:
    """All rollouts, without their seconds."""
    return [replace(rollout, seconds=0.0) for group in groups for rollout in group.rollouts]


@pytest.mark.parametrize("environment", mostly_slow(["OneTurn", "Adds"], ["Adds"]))
def test_the_rollouts_are_those_of_one_process(environment: str) -> None:
    async def both() -> tuple[list[AnyGroup], list[AnyGroup]]:
        async with opened(environment) as played:
            return await played.run(20, 4), await played.run(20, 4, here=True)

    elsewhere, here = asyncio.run(both())
    assert without_time(elsewhere) == without_time(here)
    rollouts = [rollout for group in here for rollout in group.rollouts]
    assert len({rollout.transcripts[""].branches[0].logps for rollout in rollouts}) == 80
    if environment == "Adds":
        assert sum(len(turn.calls) for r in rollouts for turn in r.turns if not turn.player) > 80
        assert 10 < sum("other" in rollout.transcripts for rollout in rollouts) < 80


@pytest.mark.more
def test_a_start_that_is_given_up_leaves_no_process_and_no_connection() -> None:
    """At whatever point. A connection that stays open fails the test."""

    async def given_up(pauses: int) -> int:
        async with opened("OneTurn", processes=1) as played:
            (team,) = played.processes.teams
            process = team._process(0)
            starting = asyncio.create_task(process.start())
            for _ in range(pauses):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait({starting})
            assert starting.cancelled()
            assert ended(process.pid)
            return process.pid

    pids = [asyncio.run(given_up(pauses)) for pauses in range(2, 8)]
    assert len(set(pids)) == 6
    gc.collect()


@pytest.mark.more
def test_engines_among_the_services_stay_in_the_run() -> None:
    async def both() -> tuple[list[AnyGroup], list[AnyGroup]]:
        async with opened("Rival", services={"rival": Echo()}, processes=1) as played:
            return await played.run(5, 2), await played.run(5, 2, here=True)

    elsewhere, here = asyncio.run(both())
    assert without_time(elsewhere) == without_time(here)
    assert all(r.metrics["heard"] > 2 for g in here for r in g.rollouts)


def test_an_environment_whose_service_has_a_state_stays_in_the_run() -> None:
    counter = CountsEpisodes()

    async def run() -> tuple[Sequence[str], list[AnyGroup]]:
        played = Played("Counts", {}, {"counter": counter}, processes=1)
        async with played.processes:
            notes = await played.processes.open(played.plan, [played.environment], played.services)
            return notes, await played.run(3, 2)

    (note,), groups = asyncio.run(run())
    assert "stay in the process of the run" in note
    assert "the state of its service 'counter'" in note
    assert counter.count == sum(len(g.rollouts) for g in groups) == 6


@pytest.mark.slow
def test_logs_come_to_the_run_and_a_mistake_in_the_recipe_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def says(mistake: bool) -> None:
        async with opened("Says", {"mistake": mistake}) as played:
            await played.run(3, 1)

    with caplog.at_level(logging.WARNING, "says"):
        asyncio.run(says(False))
    assert sorted(r.getMessage() for r in caplog.records) == ["task 0", "task 1", "task 2"]
    with pytest.raises(UsageError, match="^a mistake in the recipe$"):
        asyncio.run(says(True))


def test_an_environment_that_does_not_start_there_is_an_error_before_the_first_episode() -> None:
    async def start() -> None:
        async with opened("Breaks", processes=1):
            pass

    with pytest.raises(UsageError, match="not in an episode process"):
        asyncio.run(start())


@pytest.mark.more
def test_the_versions_of_the_processes_are_those_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "quintain_scale.workers.episodes.versions", lambda: {"quintain": "0.0.1", "python": "3"}
    )

    async def start() -> None:
        async with opened("OneTurn", processes=1):
            pass

    with pytest.raises(InfrastructureError, match=r"has quintain [\d.]+, the run has 0\.0\.1"):
        asyncio.run(start())


@pytest.mark.more
def test_cancelled_episodes_free_the_engine() -> None:
    async def cancel() -> tuple[int, list[AnyGroup]]:
        async with opened("OneTurn", processes=1) as played:
            played.engine.hold = True
            running = asyncio.create_task(played.run(4, 2))
            while played.engine.asked < 8:  # noqa: ASYNC110 - the engine says it by a number
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await asyncio.sleep(0)
            played.engine.hold = False
            return played.engine.given_up, await played.run(4, 2)

    given_up, groups = asyncio.run(cancel())
    assert given_up == 8
    assert all(r.valid for g in groups for r in g.rollouts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "ended with status 3"),
        ("crash", "was ended by SIGSEGV"),
        ("block", "episode_environments.py"),
    ],
)
def test_an_episode_that_always_ends_its_process_is_a_failure_of_its_environment(
    how: str, reason: str, tmp_path: Path
) -> None:
    async def run() -> list[AnyGroup]:
        args = {"folder": str(tmp_path), "kills": 10, "how": how, "always": True}
        async with opened("Deadly", args, stall_seconds=1) as played:
            return await played.run(12, 2)

    groups = asyncio.run(run())
    failed = [r for g in groups for r in g.rollouts if not r.valid]
    assert [(r.group, r.sample) for r in failed] == [(0, 0), (0, 1), (10, 0), (10, 1)]
    for rollout in failed:
        assert rollout.termination.cause == "environment"
        assert rollout.termination.attempts == 2
        assert reason in rollout.termination.reason
        assert rollout.outcome is None
    assert all(r.outcome is not None and r.total == 1 for g in groups for r in g.valid)


@pytest.mark.more
@pytest.mark.parametrize("always", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_episode_whose_process_the_kernel_ends_is_played_again_and_blamed_on_none(
    always: bool, tmp_path: Path, small_memory: Path
) -> None:
    async def run() -> list[AnyGroup]:
        args = {"folder": str(tmp_path), "kills": 10, "how": "memory", "group": str(small_memory)}
        async with opened("Deadly", args | {"always": always}, processes=1) as played:
            return await played.run(12, 1)

    groups = asyncio.run(run())
    assert {r.total for g in groups for r in g.valid} == {1.0}
    failed = [r for g in groups for r in g.rollouts if not r.valid]
    assert [r.group for r in failed] == ([0, 10] if always else [])
    for rollout in failed:
        assert rollout.termination.kind == "infrastructure_error"
        assert rollout.termination.attempts == 2
        assert "SIGKILL, as the kernel does when memory" in rollout.termination.reason
        assert rollout.outcome is None


@pytest.mark.slow
def test_a_process_that_holds_too_much_memory_is_replaced(tmp_path: Path) -> None:
    async def run() -> tuple[list[int], list[int], list[AnyGroup]]:
        args = {"folder": str(tmp_path), "kills": 100, "how": "leak"}
        async with opened("Deadly", args, processes=1, memory=200) as played:
            before = played.pids
            await played.run(1, 1)
            while played.pids == before or len(played.pids) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return before, played.pids, await played.run(20, 1)

    before, after, groups = asyncio.run(run())
    assert before != after
    assert all(r.valid and r.total == 1 for g in groups for r in g.rollouts)


@pytest.mark.slow
def test_processes_that_do_not_start_any_more_are_failures_of_the_infrastructure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> list[AnyGroup]:
        async with opened("OneTurn", processes=1) as played:
            (team,) = played.processes.teams
            team.launch = replace(team.launch, python=["false"])
            os.kill(played.pids[0], signal.SIGKILL)
            return await played.run(2, 1)

    groups = asyncio.run(run())
    for rollout in (r for g in groups for r in g.rollouts):
        assert rollout.termination.kind == "infrastructure_error"
        assert "no episode process starts" in rollout.termination.reason


@pytest.mark.more
@pytest.mark.parametrize(
    ("episodes", "every", "kills"),
    [(400, 150, 2), pytest.param(10_000, 600, 20, marks=pytest.mark.slow)],
)
def test_deaths_lose_no_episode_count_none_twice_and_score_none_zero(
    episodes: int, every: int, kills: int, tmp_path: Path
) -> None:
    """Some episodes end their process the first time that they are played, and processes are killed
    from outside.
    """
    size = 4
    ended: Counter[tuple[int, int]] = Counter()
    rng, killed = random.Random(0), 0

    async def run() -> tuple[list[AnyGroup], int]:
        args = {"many": episodes // size, "folder": str(tmp_path), "kills": every}
        async with opened("Deadly", args) as played:

            def on_rollout(rollout: AnyRollout) -> None:
                nonlocal killed
                ended[rollout.group, rollout.sample] += 1
                due = ended.total() > killed * episodes / (kills + 1)
                if killed < kills and due and (pids := played.pids):
                    with suppress(ProcessLookupError):  # it has ended by itself
                        os.kill(rng.choice(pids), signal.SIGKILL)
                        killed += 1

            context = RolloutContext(
                engine=played.engine, run_seed=7, concurrency=200, play=played.processes.play
            )
            requests = played.requests(episodes // size, size)
            return await run_groups(requests, context, on_rollout), played.processes.deaths

    groups, deaths = asyncio.run(run())
    assert killed == kills
    rollouts = [r for g in groups for r in g.rollouts]
    assert len(rollouts) == len(ended) == ended.total() == episodes
    assert Counter(r.valid for r in rollouts) == {True: episodes}
    assert Counter(r.outcome and r.outcome.total for r in rollouts) == {1.0: episodes}
    assert len([*tmp_path.iterdir()]) == size * len(range(0, episodes // size, every))
    assert deaths > 0


def wheel_of(folder: Path, version: str, value: int) -> Path:
    """A distribution with one module."""
    path = folder / f"oddpackage-{version}-py3-none-any.whl"
    info = f"oddpackage-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("oddpackage.py", f"VALUE = {value}\n")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: oddpackage\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_an_environment_has_packages_that_the_run_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    wheel = wheel_of(tmp_path, "1.0", 41)
    monkeypatch.setitem(sys.modules, "oddpackage", None)  # another test may have imported its own
    monkeypatch.delitem(sys.modules, "oddpackage")

    async def elsewhere(requirements: Mapping[str, tuple[str, ...]]) -> list[AnyGroup]:
        async with opened("Odd", processes=1, requirements=requirements) as played:
            return await played.run(4, 2)

    async def here() -> list[AnyGroup]:
        return await Played("Odd", {}, {}).run(4, 2, here=True)

    missing = asyncio.run(elsewhere({}))
    assert {r.termination.kind for g in missing for r in g.rollouts} == {"environment_error"}
    groups = asyncio.run(elsewhere({"Odd": (str(wheel),)}))
    monkeypatch.syspath_prepend(str(wheel))
    assert without_time(groups) == without_time(asyncio.run(here()))
    assert all(r.result.text.endswith(" 41") for g in groups for r in g.rollouts)
    made = [*(tmp_path / "environments").glob("*/bin/python")]
    assert made == [python_with([str(wheel)])]
    assert python_with([str(wheel_of(tmp_path, "1.0", 42))]) not in made


@pytest.mark.more
def test_packages_that_cannot_be_installed_are_an_error_that_names_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    with pytest.raises(InfrastructureError, match=r"(?s)no-such-file.*workers\.args\.requirements"):
        python_with([str(tmp_path / "no-such-file.whl")])
    with pytest.raises(UsageError, match="there is no environment 'Od'; did you mean 'Odd'"):
        asyncio.run(open_with_requirements_of("Od"))


async def open_with_requirements_of(name: str) -> None:
    """Open the environment `Odd` with requirements of another *name*."""
    async with opened("Odd", requirements={name: ("x",)}):
        pass
