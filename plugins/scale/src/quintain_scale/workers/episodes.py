"""The service `episodes`: plays the episodes of a run in processes of their own."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from quintain import (
    Engine,
    Environment,
    InfrastructureError,
    Rollout,
    Service,
    Termination,
    TokenEngine,
    need,
)
from quintain.errors import UsageError, did_you_mean
from quintain.interfaces import ProcessCluster
from quintain.recipe import EnvironmentSpec, EnvironmentTable, RunPlan
from quintain.registry import signature_of
from quintain.rollouts import RolloutContext, RolloutRequest, Span, run_episode
from quintain.store import current_run
from quintain.types import AnyRollout, TerminationKind, derived_seed

from .child import ChildProcess
from .episode_process import Death, EpisodeProcess, Launch
from .episode_worker import Opening
from .frames import versions
from .remote import TOKENIZER_FIELDS, EngineFacts
from .seats import Door, Seat
from .venvs import own_names, python_with

DEATHS = 10
"""Deaths of processes that an episode survives without being to blame for one."""
KNOWN = 4
"""Episodes less to play for which a process gets an episode whose task it does not know yet."""
STARTS = 3
"""Starts in a row that may fail before no more are tried."""
BACKOFF = 30.0
"""The longest pause before a start, seconds."""
WARNINGS = 20
"""Deaths that are told one by one; further ones are counted at the end."""
_log = logging.getLogger("quintain.workers")


class EpisodeProcesses(Service):
    """Plays the episodes of a run in processes of their own, which ask the engine of the run.

    ``[workers] episodes = N`` in a recipe makes one. With a synchronous schedule everything is
    sampled, scored and trained as without, bit for bit. Environments, tools, chat templates and
    tokenization then run outside of the process of the run. Rewards stay in it.

    A process that ends, or that does not answer, is replaced. Its episodes are played again in
    others. The episode whose code ended it ends as ``environment_error``.

    Args:
        processes: number of processes.
        recycle: episodes after which a process is replaced, once those that it plays have ended.
        memory: MiB above which a process is replaced in the same way; ``None`` is no limit.
        requirements: by the name of an environment (of ``file.py:Class`` the class), what it needs
            beside Quintain, as pip takes it: its processes run in a virtual environment of their
            own, made once and cached.
        stall_seconds: how long a process may not answer before it is killed.
        start_seconds: how long a process may take to start.
    """

    def __init__(
        self,
        *,
        processes: int = 2,
        recycle: int = 100_000,
        memory: int | None = None,
        requirements: Mapping[str, tuple[str, ...]] | None = None,
        stall_seconds: float = 60.0,
        start_seconds: float = 120.0,
        policy: TokenEngine = need(),
    ) -> None:
        for name, value in (
            ("processes", processes),
            ("recycle", recycle),
            ("memory", memory or 1),
            ("stall_seconds", stall_seconds),
            ("start_seconds", start_seconds),
        ):
            if not value > 0:
                raise UsageError(f"workers.args.{name} is {value}; expected more than 0")
        self.count = processes
        self.recycle = recycle
        self.memory = memory
        self.stall_seconds = stall_seconds
        self.start_seconds = start_seconds
        self.requirements = {name: tuple(r) for name, r in (requirements or {}).items()}
        self.deaths = 0
        self._policy = policy
        self._places: dict[int, int] = {}  # of environments, by their id
        self._teams: dict[int, ProcessTeam] = {}  # by place
        self._environments: list[Environment[Any, Any]] = []  # holds them, so that ids stay theirs
        self._numbers = count(1)
        self._door: Door | None = None  # where those of the cluster come to

    @property
    def teams(self) -> list[ProcessTeam]:
        """The processes, by their interpreter."""
        return [*{id(team): team for team in self._teams.values()}.values()]

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> str | None:
        """Return the line of ``--dry-run`` about the processes."""
        number = args.get("processes", 2)
        own = args.get("requirements") or {}
        return (
            f"{number} process{'es' * (number > 1)} of their own play the episodes; the engine, "
            "rewards and updates stay in the process of the run"
        ) + "".join(
            f"; {name!r} has as many with a virtual environment of {', '.join(wanted)}"
            for name, wanted in own.items()
        )

    async def __aexit__(self, *exc: object) -> None:
        for team in self.teams:
            await team.close()
        if self._door is not None:
            await self._door.close()
        if self.deaths > WARNINGS:
            _log.warning("%d episode processes ended before their episodes did", self.deaths)

    async def open(
        self,
        plan: RunPlan,
        environments: Sequence[Environment[Any, Any]],
        services: Mapping[str, Any],
        cluster: ProcessCluster | None = None,
    ) -> Sequence[str]:
        """Start the processes, with *environments*: those of the plan, then those of its
        evaluations. Without a *cluster* they are on this machine.

        Returns:
            Notes on environments whose episodes stay in the process of the run.

        Raises:
            InfrastructureError: a process does not start, or has other versions.
            UsageError: an environment or a service does not start in it.
        """
        specs = (*plan.tasks.environments, *plan.evaluation.specs)
        names = [spec.name.rpartition(":")[2] for spec in specs]
        for name in self.requirements:
            if name not in names:
                near = did_you_mean(name, names)
                raise UsageError(
                    f"workers.args.requirements: there is no environment {name!r}{near}"
                )
        notes: list[str] = []
        tables: dict[tuple[str, ...], dict[int, EnvironmentTable]] = {}  # by requirements
        engines: dict[str, Engine] = {"": self._policy}
        for place, (spec, environment) in enumerate(zip(specs, environments, strict=True)):
            of_spec, reason = _engines_of(spec, services)
            if spec.table is None or reason:
                notes.append(
                    f"episodes of {spec.name!r} stay in the process of the run, since {reason}"
                )
                continue
            wanted = self.requirements.get(names[place], ())
            tables.setdefault(wanted, {})[place] = spec.table
            engines |= of_spec
            self._environments.append(environment)
            self._places[id(environment)] = place
        if cluster is not None:
            self._door = Door(cluster.host)
        for wanted, of_wanted in tables.items():
            launch = await self._launch(plan, engines, wanted, of_wanted)
            team = ProcessTeam(self, launch, engines, self._seats(cluster))
            self._teams |= dict.fromkeys(of_wanted, team)
            await team.start()
        return notes

    def _seats(self, cluster: ProcessCluster | None) -> Sequence[Seat]:
        """Return places for the processes of a team; none where they are on this machine."""
        if cluster is None or self._door is None:
            return ()
        return [Seat(cluster, self._door, _name(seat)) for seat in range(self.count)]

    async def _launch(
        self,
        plan: RunPlan,
        engines: Mapping[str, Engine],
        requirements: tuple[str, ...],
        tables: Mapping[int, EnvironmentTable],
    ) -> Launch:
        """Return how a process starts that has *requirements*; without any, in this interpreter."""
        opening = Opening(
            environments=tables,
            services=plan.services,
            engines={slot: facts_of(e, sent=not requirements) for slot, e in engines.items()},
            run=str(current_run() or ""),
        )
        expected = versions()
        python = [sys.executable]
        if requirements:
            own = own_names(requirements)
            expected = {name: text for name, text in expected.items() if name not in own}
            if self._door is None:  # else it is made where the process runs
                python = [str(await asyncio.to_thread(python_with, requirements)), "-I"]
        return Launch(
            python=python,
            path=None if requirements else sys.path,
            requirements=requirements,
            opening=pickle.dumps(opening),
            versions=expected,
            start_seconds=self.start_seconds,
        )

    async def play(
        self, request: RolloutRequest, sample: int, context: RolloutContext, attempt: int
    ) -> AnyRollout:
        """Play one attempt at an episode, as `run_episode` does, in one of the processes.

        An episode with an engine or an environment that they do not know is played here.
        """
        place = self._places.get(id(request.environment))
        if place is None or request.engine is not None or context.engine is not self._policy:
            return await run_episode(request, sample, context, attempt)
        names = {"environment": request.name, "group": request.index, "sample": sample}
        step = request.step or context.step
        with Span("episode", **names, step=step, attempt=attempt) as span:
            rollout = await self._played(place, request, sample, context, attempt)
            span.attributes["ended"] = str(rollout.termination.kind)
        return rollout

    async def _played(
        self,
        place: int,
        request: RolloutRequest,
        sample: int,
        context: RolloutContext,
        attempt: int,
    ) -> AnyRollout:
        """Return the rollout of an episode, whatever ends the processes that play it."""
        deaths = 0
        accused = 0
        while True:
            try:
                process = await self._teams[place].process_for(request)
                return await process.play(
                    place, request, sample, context, attempt, next(self._numbers)
                )
            except Death as death:
                deaths += 1
                accused += death.own
                if death.own and not death.ours:
                    return _failed(
                        request, sample, context, attempt, "environment_error",
                        f"the code of the episode ended its process, which {death.how}",
                    )  # fmt: skip
                if accused > 1 or deaths >= DEATHS:
                    return _failed(
                        request, sample, context, attempt, "infrastructure_error",
                        f"{deaths} processes ended while they played it; the last {death.how}",
                    )  # fmt: skip
            except InfrastructureError as e:  # no process starts
                return _failed(request, sample, context, attempt, "infrastructure_error", str(e))


def facts_of(engine: Engine, *, sent: bool = True) -> EngineFacts:
    """Return what an episode process has to know of *engine*. Its tokenizer is *sent*, or asked in
    the run where the process may not have its packages.

    Raises:
        UsageError: its tokenizer cannot be sent.
    """
    if not isinstance(engine, TokenEngine):
        return EngineFacts(name=engine.name)
    if not sent:
        fields = {name: getattr(engine.tokenizer, name) for name in TOKENIZER_FIELDS}
        return EngineFacts(name=engine.name, context=engine.context, tokenizer=fields)
    try:
        tokenizer = pickle.dumps(engine.tokenizer, pickle.HIGHEST_PROTOCOL)
    except Exception as e:
        raise UsageError(
            f"the tokenizer of the engine {engine.name!r} cannot be sent to an episode process: {e}"
            ". Fix: workers.episodes = 0"
        ) from e
    return EngineFacts(name=engine.name, context=engine.context, tokenizer=tokenizer)


def _engines_of(
    spec: EnvironmentSpec, services: Mapping[str, Any]
) -> tuple[dict[str, Engine], str]:
    """Return the engines among the services of *spec*, which stay in the run, and why its episodes
    cannot leave it; empty if they can.
    """
    engines: dict[str, Engine] = {}
    types = {wanted.slot: wanted.type for wanted in signature_of(spec.component).needs}
    if spec.table is None:
        return {}, "no recipe names the environment"
    for slot in spec.own_slots:
        service = services[slot]
        if isinstance(service, Engine) and types[slot] in (Engine, TokenEngine, Any):
            if slot != "policy":
                engines[slot] = service
        elif not isinstance(service, Service):
            return {}, f"its service {slot!r} is an object of the run"
        elif type(service).state is not Service.state:
            return {}, f"the state of its service {slot!r} is part of checkpoints"
    return engines, ""


def _failed(
    request: RolloutRequest,
    sample: int,
    context: RolloutContext,
    attempt: int,
    kind: str,
    reason: str,
) -> AnyRollout:
    """Return the rollout of an episode that no process could end."""
    seed = request.seed
    if seed is None:
        seed = derived_seed(context.run_seed, request.task.id, request.visit, sample)
    return Rollout(
        task=request.task,
        termination=Termination(TerminationKind(kind), reason, attempt),
        environment=request.name,
        group=request.index,
        sample=sample,
        seed=seed,
    )


def _name(seat: int) -> str:
    """Return the name of the process of a *seat*, for people."""
    return f"episode process {seat + 1}"


class ProcessTeam:
    """The processes of one interpreter: keeps their number, whatever ends some of them.

    Attributes:
        launch: how each starts.
        live: those that run.
    """

    def __init__(
        self,
        service: EpisodeProcesses,
        launch: Launch,
        engines: Mapping[str, Engine],
        seats: Sequence[Seat],
    ) -> None:
        self._service = service
        self.launch = launch
        self._engines = engines
        self._seats = seats
        self.live: list[EpisodeProcess] = []
        self._failures = [0] * service.count  # to start, in a row, by seat
        self._keepers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all processes; raises as `EpisodeProcesses.open`."""
        first = [self._process(seat) for seat in range(self._service.count)]
        try:
            async with asyncio.TaskGroup() as starting:
                for process in first:
                    starting.create_task(process.start())
        except BaseExceptionGroup as failed:
            for process in first:
                process.kill()
            await asyncio.gather(*(process.dead.wait() for process in first))
            await self._leave()
            raise failed.exceptions[0] from None
        self.live = first
        loop = asyncio.get_running_loop()
        self._keepers = [
            loop.create_task(self._keep(seat, process)) for seat, process in enumerate(first)
        ]
        self._keepers.append(loop.create_task(self._watch()))

    async def close(self) -> None:
        """End all processes."""
        tasks = [*self._keepers, *self._retiring]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in self.live:
            process.kill("was ended with the run")
        await asyncio.gather(*(process.dead.wait() for process in self.live))
        await self._leave()

    async def _leave(self) -> None:
        """Give the places on a cluster back."""
        await asyncio.gather(*(seat.end() for seat in self._seats))

    def _process(self, seat: int) -> EpisodeProcess:
        child = (
            self._seats[seat].process(self.launch)
            if self._seats
            else ChildProcess(self.launch.python, self.launch.path)
        )
        return EpisodeProcess(self.launch, self._engines, _name(seat), child)

    async def process_for(self, request: RolloutRequest) -> EpisodeProcess:
        """Return the process with the fewest episodes, by preference one that knows the task.

        Raises:
            InfrastructureError: no process starts any more.
        """
        while True:
            open_ones = [p for p in self.live if not p.draining and not p.dead.is_set()]
            if open_ones:
                return min(open_ones, key=lambda p: p.load - KNOWN * p.knows(request))
            if self._failure is not None:
                raise InfrastructureError(f"no episode process starts: {self._failure}")
            self._changed.clear()
            await self._changed.wait()

    async def _keep(self, seat: int, process: EpisodeProcess) -> None:
        """Replace the process of a *seat* when it ends, or when it is to be replaced."""
        failures = self._failures
        while True:
            ended = asyncio.ensure_future(process.dead.wait())
            while not ended.done() and not process.spent:
                await asyncio.wait({ended}, timeout=1.0)
            ended.cancel()
            if process.dead.is_set():
                self.live.remove(process)
                self._report(process)
                failures[seat] += not process.played
            while True:
                pause = min(BACKOFF, 0.5 * 2 ** failures[seat]) if failures[seat] else 0
                await asyncio.sleep(pause)
                following = self._process(seat)
                try:
                    await following.start()
                    break
                except Exception as e:  # noqa: BLE001 - said to the episodes that wait
                    failures[seat] += 1
                    if min(failures) >= STARTS:
                        self._failure = e
                        self._changed.set()
            self._failure = None
            process.draining = True
            if process in self.live and process.dead.is_set():
                self.live.remove(process)
            elif process in self.live:
                retired = asyncio.get_running_loop().create_task(self._retire(process))
                self._retiring.add(retired)
                retired.add_done_callback(self._retiring.discard)
            failures[seat] = 0
            process = following
            self.live.append(process)
            self._changed.set()

    async def _retire(self, process: EpisodeProcess) -> None:
        """End a process that was replaced once its episodes have ended."""
        await process.drained()
        process.kill("was replaced")
        await process.dead.wait()
        self.live.remove(process)

    def _report(self, process: EpisodeProcess) -> None:
        self._service.deaths += 1
        if self._service.deaths <= WARNINGS:
            _log.warning("%s %s; its episodes are played again", process.name, process.how)

    async def _watch(self) -> None:
        """Look at each process now and then: whether it answers, and what memory it holds."""
        service = self._service
        pause = min(1.0, service.stall_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            for process in [*self.live]:
                if process.dead.is_set():
                    continue
                if process.blocked(pause) > service.stall_seconds:
                    await process.end_blocked(service.stall_seconds)
                elif process.played >= service.recycle or (
                    service.memory and process.resident_bytes() > service.memory << 20
                ):
                    process.spent = True
