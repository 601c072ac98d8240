"""Episode processes that a cluster starts: watchers that come to the run over TCP, each with a
process of its own. Here the cluster is this machine; `tests/plugins/scale/ray` has a real one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quintain import InfrastructureError
from quintain.interfaces import ProcessRequest
from quintain.rollouts import RolloutContext, run_groups
from quintain.types import AnyGroup, AnyRollout
from quintain_scale.workers.frames import TOKEN
from quintain_scale.workers.venvs import python_with

from ....lanes import mostly_slow
from ....processes import ended
from .test_episodes import Played, opened, wheel_of, without_time


class Here:
    """A cluster of this machine alone, which starts killed processes again when it is asked.

    Args:
        lingers: its processes outlive the run for a while, as where a cluster ends them in its own time.

    Attributes:
        before: words before the commands of the next processes.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        folder: Path,
        *,
        room: bool = True,
        python: str = sys.executable,
        lingers: bool = False,
    ) -> None:
        self.folder, self.room, self.python, self.lingers = folder, room, python, lingers
        self.placed: list[Placed] = []
        self.before: list[Sequence[str]] = []

    def start(self, requests: Sequence[ProcessRequest]) -> Sequence[Placed]:
        placed = [Placed(self, request) for request in requests]
        self.placed += placed
        return placed

    def close(self) -> None:
        self.lingers = False
        for placed in self.placed:
            placed.end()


class Placed:
    """A process of the cluster."""

    def __init__(self, cluster: Here, request: ProcessRequest) -> None:
        assert request.role == "worker"
        self._cluster, self.request = cluster, request
        self.process: subprocess.Popen[bytes] | None = None
        self.over = False
        self._before = cluster.before.pop() if cluster.before else ()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as it
        self._start()

    def _start(self) -> None:
        if self._cluster.room:
            self.process = subprocess.Popen(
                [*self._before, self._cluster.python, *self.request.words],
                env=os.environ | dict(self.request.environment),
                cwd=self._cluster.folder,
                stdout=self._output,
                stderr=self._output,
            )

    @property
    def host(self) -> str:
        return "127.0.0.1" if self._cluster.room else ""

    @property
    def ended(self) -> str | None:
        status = self.process.poll() if self.process else None
        if status is None:
            return None
        if status < 0 and not self.over:
            self._start()
            return None
        return f"exit code {status}: {os.pread(self._output.fileno(), 1000, 0).decode()}"

    def end(self) -> None:
        self.over = True
        if self._cluster.lingers:
            time.sleep(1.0)
            return
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._output.close()


def watchers(cluster: Here) -> list[int]:
    return [p.process.pid for p in cluster.placed if p.process is not None]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - processes of the system tell nobody
        await asyncio.sleep(0.02)


@pytest.mark.more
@pytest.mark.parametrize("environment", mostly_slow(["OneTurn", "Adds"], ["Adds"]))
def test_the_rollouts_are_those_of_one_process_and_none_is_left(
    environment: str, tmp_path: Path
) -> None:
    cluster = Here(tmp_path)

    async def both() -> tuple[list[AnyGroup], list[AnyGroup], list[int]]:
        async with opened(environment, cluster=cluster) as played:
            pids = [*played.pids, *watchers(cluster)]
            assert len(set(pids)) == 4
            return await played.run(20, 4), await played.run(20, 4, here=True), pids

    elsewhere, here, pids = asyncio.run(both())
    assert without_time(elsewhere) == without_time(here)
    assert all(map(ended, pids))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "ended with status 3"),
        ("crash", "was ended by SIGSEGV"),
        ("block", "episode_environments.py"),
    ],
)
def test_the_watcher_says_whose_code_ended_a_process(how: str, reason: str, tmp_path: Path) -> None:
    """As of a process of this machine: that episode alone is a failure of its environment."""
    cluster = Here(tmp_path)

    async def run() -> list[AnyGroup]:
        args = {"folder": str(tmp_path), "kills": 10, "how": how, "always": True}
        async with opened("Deadly", args, cluster=cluster, stall_seconds=1) as played:
            return await played.run(12, 2)

    groups = asyncio.run(run())
    failed = [r for g in groups for r in g.rollouts if not r.valid]
    assert [(r.group, r.sample) for r in failed] == [(0, 0), (0, 1), (10, 0), (10, 1)]
    for rollout in failed:
        assert rollout.termination.cause == "environment"
        assert reason in rollout.termination.reason
    assert all(r.outcome is not None and r.total == 1 for g in groups for r in g.valid)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{"memory": 200}, {"recycle": 1}])
def test_a_process_is_replaced_under_its_watcher(
    setting: Mapping[str, Any], tmp_path: Path
) -> None:
    cluster = Here(tmp_path)

    async def run() -> tuple[list[int], list[int], list[AnyGroup]]:
        args = {"folder": str(tmp_path), "kills": 100, "how": "leak"}
        async with opened("Deadly", args, cluster=cluster, processes=1, **setting) as played:
            before, watching = played.pids, watchers(cluster)
            await played.run(1, 1)
            await until(lambda: played.pids != before and len(played.pids) == 1)
            after = played.pids
            assert watchers(cluster) == watching
            return before, after, await played.run(20, 1)

    before, after, groups = asyncio.run(run())
    assert before != after
    assert all(map(ended, before))
    assert all(r.valid and r.total == 1 for g in groups for r in g.rollouts)


@pytest.mark.slow
def test_deaths_of_processes_and_watchers_lose_no_episode(tmp_path: Path) -> None:
    """None is counted twice, and none is scored zero."""
    episodes, every, kills, size = 4_000, 600, 12, 4
    cluster = Here(tmp_path)
    counted: Counter[tuple[int, int]] = Counter()
    rng, killed = random.Random(0), 0

    async def run() -> tuple[list[AnyGroup], int]:
        args = {"many": episodes // size, "folder": str(tmp_path), "kills": every}
        async with opened("Deadly", args, cluster=cluster) as played:

            def on_rollout(rollout: AnyRollout) -> None:
                nonlocal killed
                counted[rollout.group, rollout.sample] += 1
                due = counted.total() > killed * episodes / (kills + 1)
                pids = watchers(cluster) if killed % 2 else played.pids
                if killed < kills and due and pids:
                    with suppress(ProcessLookupError):  # it has ended by itself
                        os.kill(rng.choice(pids), signal.SIGKILL)
                        killed += 1

            context = RolloutContext(
                engine=played.engine, run_seed=7, concurrency=100, play=played.processes.play
            )
            requests = played.requests(episodes // size, size)
            return await run_groups(requests, context, on_rollout), played.processes.deaths

    groups, deaths = asyncio.run(run())
    assert killed == kills
    rollouts = [r for g in groups for r in g.rollouts]
    assert len(rollouts) == len(counted) == counted.total() == episodes
    assert Counter(r.valid for r in rollouts) == {True: episodes}
    assert Counter(r.outcome and r.outcome.total for r in rollouts) == {1.0: episodes}
    assert deaths > 0


@pytest.mark.slow
def test_an_episode_whose_machines_are_lost_is_blamed_on_none(tmp_path: Path) -> None:
    """It is played again ten times, whatever its code did when they were lost."""
    cluster = Here(tmp_path)

    async def run() -> tuple[AnyRollout, int]:
        async with opened("OneTurn", cluster=cluster, processes=1) as played:
            played.engine.hold = True
            running = asyncio.create_task(played.run(1, 1))
            for lost in range(1, 3):
                await until(lambda lost=lost: played.engine.asked == lost)  # type: ignore[misc]
                os.kill(watchers(cluster)[0], signal.SIGKILL)
            await until(lambda: played.engine.asked == 3)
            played.engine.hold = False
            os.kill(watchers(cluster)[0], signal.SIGKILL)
            ((rollout,),) = [group.rollouts for group in await running]
            return rollout, played.processes.deaths

    rollout, deaths = asyncio.run(run())
    assert rollout.valid
    assert deaths == 3


@pytest.mark.slow
def test_the_machine_makes_the_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    wheel = wheel_of(tmp_path, "1.0", 43)
    monkeypatch.setitem(sys.modules, "oddpackage", None)  # another test may have imported its own
    monkeypatch.delitem(sys.modules, "oddpackage")
    cluster = Here(tmp_path)

    async def elsewhere(requirement: str) -> list[AnyGroup]:
        wanted = {"Odd": (requirement,)}
        async with opened("Odd", processes=1, requirements=wanted, cluster=cluster) as played:
            return await played.run(4, 2)

    groups = asyncio.run(elsewhere(str(wheel)))
    monkeypatch.syspath_prepend(str(wheel))
    here = asyncio.run(Played("Odd", {}, {}).run(4, 2, here=True))
    assert without_time(groups) == without_time(here)
    assert [*(tmp_path / "environments").glob("*/bin/python")] == [python_with([str(wheel)])]
    with pytest.raises(InfrastructureError, match=r"(?s)no-such-file.*workers\.args\.requirements"):
        asyncio.run(elsewhere(str(tmp_path / "no-such-file.whl")))


def test_what_does_not_come_from_the_cluster_is_an_error(tmp_path: Path) -> None:
    """A machine without the package, and a cluster without room."""

    async def start(cluster: Here) -> None:
        async with opened("OneTurn", processes=1, cluster=cluster, start_seconds=1):
            pass

    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho No module named quintain_scale.workers\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(
        InfrastructureError, match=r"ended on the cluster before.*1: No module named quintain"
    ):
        asyncio.run(start(Here(tmp_path, python=str(broken))))
    with pytest.raises(
        InfrastructureError, match=r"which has no room for it.*within 1 s.*start_seconds"
    ):
        asyncio.run(start(Here(tmp_path, room=False)))


@pytest.mark.more
def test_a_watcher_that_comes_back_while_the_run_ends_finds_no_place(tmp_path: Path) -> None:
    """It comes whenever its connection is lost. A connection that stays open fails the test."""

    cluster = Here(tmp_path, lingers=True)

    async def run() -> None:
        async with opened("OneTurn", processes=1, cluster=cluster):
            pass

    asyncio.run(run())
    cluster.close()
    gc.collect()


@pytest.mark.slow
def test_who_does_not_know_the_token_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is read, and the episodes go on."""
    cluster = Here(tmp_path)

    async def run() -> tuple[str, list[AnyGroup]]:
        async with opened("OneTurn", processes=1, cluster=cluster) as played:
            words = cluster.placed[0].request.words
            environment = {**os.environ, TOKEN: "another token than that"}
            command = [sys.executable, *words]
            stranger = await asyncio.to_thread(
                subprocess.run, command, env=environment, stderr=subprocess.PIPE, text=True
            )
            assert stranger.returncode == 2
            host, port = words[2].split(":")
            with socket.create_connection((host, int(port))) as peer:
                peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
                peer.shutdown(socket.SHUT_WR)
                await asyncio.to_thread(peer.recv, 1000)
            return stranger.stderr, await played.run(4, 2)

    with caplog.at_level(logging.WARNING, "quintain.workers"):
        said, groups = asyncio.run(run())
    assert f"another token than {TOKEN}" in said
    assert caplog.text.count("refused a connection from 127.0.0.1") == 2
    assert all(r.valid for g in groups for r in g.rollouts)
