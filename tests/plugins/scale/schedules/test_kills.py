"""Runs whose replicas are killed at random, during turns and during transfers of weights: each task
is trained once, and no token is of a stale replica, by its version and by what the weights say.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain import Sampled, Sampling
from quintain.console.screen import Screen
from quintain.recipe.tables import Recipe
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder
from quintain_scale.schedules import EnginePool

from ....core.models.tiny import save_tiny
from ....integration.kills import check_history
from .process_replica import ProcessReplica
from .replica_server import token

pytestmark = pytest.mark.usefixtures("no_curves")

KIT = f"{ProcessReplica.__module__}:{ProcessReplica.__qualname__}"
WAITING = Path(__file__).parents[3] / "integration" / "waiting.py"
STALENESS = {"sync": 0, "one_step_off": 1, "areal": 4}
OF_A_RUN = 70
"""Kills of a run at most, so that a slow machine tries all schedules, too."""


def told(model: Path, schedule: str, steps: int) -> Recipe:
    return Recipe.of(
        {
            # the log-probs are made up; the weights of the replicas are compared before each update
            "run": {"steps": steps, "max_sample_mismatch": 20.0},
            "model": {"name": str(model), "device": "cpu"},
            "environments": [{"use": f"{WAITING}:TwoTurns", "args": {"size": 7}}],
            "algorithm": {"use": "dr_grpo", "args": {"plan": {}}},
            "schedule": {"use": schedule},
            "engine": {
                "use": "pool",
                "args": {"engine": KIT, "count": 3, "restarts": 10_000, "backoff": 0.0},
            },
            "sampling": {"max_tokens": 8},
            "batch": {"prompts": 3, "group_size": 2},
            "learner": {"lr": 3e-3},
            "evaluation": {"every": 0, "test": {"tasks": 0}},
            "checkpoint": {"every": 10, "keep": 1},
        }
    )


class Killer(threading.Thread):
    """Kills processes of replicas from the first of *turns* on, each other one while it takes
    weights if there is such a one, until it is told to end or has killed *most*: a slow machine
    starts them no faster than they die. *longest* are the seconds between two.
    """

    def __init__(self, seed: int, longest: float, turns: Sized, most: int) -> None:
        super().__init__(daemon=True)
        self.turns, self.most = turns, most
        self.random, self.longest = random.Random(seed), longest
        self.kills, self.in_transfer = list[float](), 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.turns and not self.over.wait(0.001):
            pass
        while len(self.kills) < self.most:
            if self.over.wait(self.random.uniform(0.0, self.longest)):
                return
            transfers = len(self.kills) % 2 == 0
            until = time.monotonic() + self.longest
            while transfers and not ProcessReplica.transfers and time.monotonic() < until:
                if self.over.wait(0.001):
                    return
            of = [*ProcessReplica.transfers] if transfers else []
            running = of or [p for p in [*ProcessReplica.processes] if p.returncode is None]
            if running:
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(self.random.choice(running).pid, signal.SIGKILL)
                    self.kills.append(time.monotonic())
                    self.in_transfer += bool(of)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=256)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, int, Sampled]]]:
    """Every turn that the pool gave: when, the version it had when the turn began, and the reply;
    its tokens are checked at once.
    """
    given: list[tuple[float, int, Sampled]] = []
    wrong: list[str] = []
    sample = EnginePool.sample

    async def checked(self: EnginePool, ids: Any, sampling: Sampling) -> Sampled:
        began = self.version
        reply = await sample(self, ids, sampling)
        new: list[int] = []
        for version in reply.versions:
            content = ProcessReplica.contents[version]
            new.append(token([*ids, *new], sampling.seed or 0, content))
        if new != list(reply.ids):  # an error here would be a failure that is tried again
            wrong.append(f"{reply.ids} of versions {reply.versions}, expected {new}")
        given.append((time.monotonic(), began, reply))
        return reply

    monkeypatch.setattr(EnginePool, "sample", checked)
    ProcessReplica.contents.clear()
    yield given
    assert not wrong, "tokens of other weights than their version says"
    assert not ProcessReplica.processes


def survive(place: Path, recipe: Recipe, killer: Killer, turns: Any) -> None:
    """Run *recipe* with a killer beside it, and check its history and its turns."""
    RunFolder.create(place, recipe.to_toml()).close()
    with RunFolder.open(place) as folder:
        killer.start()
        try:
            run_training(recipe, folder, Screen(quiet=True))
        finally:
            killer.over.set()
            killer.join()
    counted = check_history(place, STALENESS[recipe.schedule.use])
    assert counted["steps"] == recipe.run.steps
    records = RunFolder(place, lock=False).metrics()
    assert sum(record.get("groups.abandoned", 0) for record in records) == 0
    for _, began, reply in turns:
        assert min(reply.versions) >= began, "a stale replica sampled"


@pytest.mark.more
def test_replicas_are_killed_while_a_run_trains(model: Path, tmp_path: Path, turns: Any) -> None:
    killer = Killer(seed=1, longest=0.3, turns=turns, most=20)
    survive(tmp_path / "run", told(model, "areal", steps=2), killer, turns)
    print(f"\n{len(killer.kills)} kills, {killer.in_transfer} of them in a transfer")


@pytest.mark.slow
def test_two_hundred_kills(model: Path, tmp_path: Path, turns: Any) -> None:
    """`KILLS` of them, 200 by default, over schedules; with ``-s`` it says what happened."""
    wanted = int(os.environ.get("KILLS", "200"))
    kills = transfers = runs = steps = 0
    longest = 0.0
    while kills < wanted:
        schedule = [*STALENESS][runs % 3]
        ProcessReplica.contents.clear()
        turns.clear()
        most = min(OF_A_RUN, wanted - kills)
        killer = Killer(seed=runs, longest=0.25, turns=turns, most=most)
        survive(tmp_path / f"run-{runs}", told(model, schedule, steps=60), killer, turns)
        ended = [when for when, _, _ in turns]
        waits = [min((e - k for e in ended if e > k), default=0.0) for k in killer.kills]
        kills += len(killer.kills)
        transfers += killer.in_transfer
        longest = max(longest, *waits, 0.0)
        runs, steps = runs + 1, steps + 60
        print(
            f"\n{kills} kills, {transfers} of them in a transfer, in {runs} runs of {steps} steps; "
            f"the longest wait for the next turn after a kill was {longest:.1f} s",
            flush=True,
        )
