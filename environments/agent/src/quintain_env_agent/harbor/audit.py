"""The audit of task folders: what a task gives for its solution, for nothing, and for shortcuts.

No model takes part. Each task has an `AuditRecord`, a line of JSON in a file that `Harbor.audit`
reads.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from quintain import InfrastructureError
from quintain.errors import EnvironmentFault, UsageError
from quintain_sandbox import BuildError, Containers, context_files

from .audit_record import SHORTCUTS, TEXT, AuditRecord
from .config import mode_of
from .environment import FORGERY, graded
from .folder import TaskFolder, UnsupportedTask
from .reward_files import RewardFileError
from .shortcuts import CONSTANT, answering, planting
from .trial import Trial, TrialSettings, VerifierOutcome, opened

TELLING = 64
"""Bytes from which on equal contents are no accident."""
SCANNED = 20_000
"""Most files of an image that are compared."""
SCAN = (
    "find / -xdev -type f -size +0 -size -2048k -not -path '/proc/*' -not -path '/sys/*' -not -path "
    "'/dev/*' -not -path '/usr/*' -not -path '/lib*' -not -path '/bin/*' -not -path '/sbin/*' -not "
    "-path '/var/*' -not -path '/etc/*' 2>/dev/null | head -n {most} | tr '\\n' '\\0' | xargs -0 -r "
    "sha256sum 2>/dev/null"
)
WHO = {"nop": "nothing", "solution": "the solution"}
Act = Callable[[Trial, int], Awaitable[None]]
"""What is done in the policy's place in a step, which is counted from 0."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the audit does with each task.

    Attributes:
        repeats: runs of the solution.
        shortcuts: those of `SHORTCUTS` that are tried.
        offline: whether to run the solution without a network, too, where the task has one, and
            with one where it declares none and the solution fails.
        key: of the reward that counts.
    """

    settings: TrialSettings = field(default_factory=TrialSettings)
    repeats: int = 1
    shortcuts: frozenset[str] = frozenset(SHORTCUTS)
    offline: bool = False
    key: str = "reward"

    @property
    def tried(self) -> list[str]:
        """What is done, as `AuditRecord.tried` has it."""
        repeated = [f"solution x {self.repeats}"] if self.repeats > 1 else []
        offline = ["offline"] if self.offline else []
        return ["nothing", "solution", *repeated, *sorted(self.shortcuts), *offline]


async def audit(
    folders: Iterable[TaskFolder],
    containers: Containers,
    plan: Plan,
    write: Callable[[AuditRecord], None],
    *,
    jobs: int,
    known: Mapping[str, AuditRecord],
) -> None:
    """Audit all *folders*, several at one time.

    Args:
        write: called with each record, as soon as it is there.
        jobs: tasks at one time.
        known: records by name of tasks. Those that have not changed, that were tried with the same
            settings, and of which all was tried, are left out.
    """
    waiting = _pairs(folders)

    async def work() -> None:
        for folder, other in waiting:
            digest = await asyncio.to_thread(digest_with, folder, containers, plan)
            before = known.get(folder.name)
            if before is None or before.digest != digest or set(plan.tried) - set(before.tried):
                write(await examined(folder, digest, containers, plan, other))

    await asyncio.gather(*(work() for _ in range(jobs)))


def _pairs(folders: Iterable[TaskFolder]) -> Iterator[tuple[TaskFolder, TaskFolder | None]]:
    """Yield each folder with the following one, and the last with the one before."""
    before: TaskFolder | None = None
    folder: TaskFolder | None = None
    for following in folders:
        if folder is not None:
            yield folder, following
        before, folder = folder, following
    if folder is not None:
        yield folder, before


async def examined(
    folder: TaskFolder,
    digest: str,
    containers: Containers,
    plan: Plan,
    other: TaskFolder | None = None,
) -> AuditRecord:
    """Return the record of one task.

    Args:
        other: a task whose solution is tried on this one, too.

    Raises:
        UsageError: the service or the settings are at fault, not the task.
    """
    record = AuditRecord(task=folder.name, folder=str(folder.path), digest=digest, tried=plan.tried)
    try:
        folder.check()
        record.level, record.steps = folder.level, len(folder.steps)
        _limits(record, folder, plan.settings)
        began = time.monotonic()
        await containers.image(folder.image())
        record.seconds["build"] = round(time.monotonic() - began, 2)
        attempts = Attempts(record, folder, containers, plan)
        await attempts.nothing()
        await attempts.solutions()
        await attempts.shortcuts(other)
    except UnsupportedTask as e:
        record.status, record.reason = "unsupported", _said(e)
    except UsageError as e:
        record.status, record.reason = "invalid", _said(e)
    except BuildError as e:
        record.status, record.reason = "build", _said(e)
    except (EnvironmentFault, InfrastructureError) as e:
        record.status, record.reason = "failed", _said(e)
    record.judge()
    return record


def _limits(record: AuditRecord, folder: TaskFolder, settings: TrialSettings) -> None:
    config = folder.config
    step = folder.steps[0] if folder.steps else None
    agent = step.agent.timeout_sec if step else None
    if (seconds := agent or config.agent.timeout_sec) is not None:
        record.limits["solution"] = seconds
    verifier = step.verifier if step and "timeout_sec" in step.verifier.model_fields_set else None
    record.limits["verifier"] = (verifier or config.verifier).timeout_sec
    record.limits["memory"] = config.environment.memory_mb or settings.memory_mb


class Attempts:
    """Attempts at one task, each in a container of its own; the rewards go into its record."""

    def __init__(
        self, record: AuditRecord, folder: TaskFolder, containers: Containers, plan: Plan
    ) -> None:
        self.record, self.folder = record, folder
        self.containers, self.plan = containers, plan

    async def nothing(self) -> None:
        """Do nothing, and compare the files of the container with those of the task."""

        async def idle(trial: Trial, number: int) -> None:
            if number == 0:
                await _compare(self.record, trial)

        self.record.nop = await self._reward("nop", idle)

    async def solutions(self) -> None:
        """Run the reference solution as often as the plan says."""
        folder, record, plan = self.folder, self.record, self.plan
        if not all(folder.solution(step) for step in folder.parts):
            return
        for _ in range(plan.repeats):
            value = await self._reward("solution", self._solve)
            record.oracle.append(value)
            if value is None:
                break  # it has no reward the next time either
        if not (plan.offline and plan.settings.network):
            return
        public = folder.config.environment.network == "public"
        if public:
            record.offline = await self._elsewhere(replace(plan.settings, network=False))
        elif any(value is None or value < 1 for value in record.oracle):
            record.online = await self._elsewhere(replace(plan.settings, undeclared_network=True))

    async def shortcuts(self, other: TaskFolder | None) -> None:
        """Try the ways to a reward without work; say of each that does not apply why."""
        folder, record = self.folder, self.record
        if record.nop is None and not any(value is not None for value in record.oracle):
            record.skipped |= dict.fromkeys(self.plan.shortcuts, "the verifier gives no reward")
            return
        if record.nop is not None and record.nop >= 1:
            record.skipped |= dict.fromkeys(self.plan.shortcuts, "nothing is rewarded as it is")
            return
        shared = all(
            mode_of(folder.config, step or folder.config) == "shared" for step in folder.parts
        )
        apart = "" if shared else "the verifier has a container of its own"
        acts: dict[str, tuple[str, Act | None]] = {
            "forgery": (apart, self._command(FORGERY)),
            "planted": (apart, self._command(planting())),
        }
        for way, answer in (
            ("echo", folder.instruction(folder.parts[0])),
            ("constant", CONSTANT),
        ):
            written = answering(folder, answer) if shared else ""
            acts[way] = (
                apart or ("" if written else "no file that the instruction and the tests name"),
                self._command(written),
            )
        acts["other"] = _with_solution_of(other, folder)
        record.other_task = other.name if other is not None and not acts["other"][0] else ""
        for way in sorted(self.plan.shortcuts):
            reason, act = acts[way]
            if reason or act is None:
                record.skipped[way] = reason
            else:
                setattr(record, SHORTCUTS[way][0], await self._reward(way, act))

    def _command(self, command: str) -> Act:
        async def act(trial: Trial, number: int) -> None:
            step = self.folder.steps[number] if self.folder.steps else None
            await trial.run(command, trial.user(step))

        return act

    async def _solve(self, trial: Trial, number: int) -> None:
        record = self.record
        step = self.folder.steps[number] if self.folder.steps else None
        result = await trial.solve(step)
        longest = max(record.seconds.get("solution", 0.0), round(result.seconds, 2))
        record.seconds["solution"] = longest
        record.memory_mb = max(record.memory_mb, round(trial.container.peak_memory() / 2**20, 1))
        if killed := trial.container.memory_kills():
            limit = f"the limit is {record.limits['memory']:g} MiB"
            record.found("too little memory", f"{killed} processes were ended; {limit}")
        if result.status != "ok":
            ended = result.status if result.exit is None else f"status {result.exit}"
            record.found("the solution ends badly", f"{ended}: {result.text.strip()[-400:]}")

    async def _elsewhere(self, settings: TrialSettings) -> float:
        """Return the reward of the solution under other settings; 0 where it has none."""
        # What is found there is no fault of the task as it is.
        record = replace(self.record, defects={}, seconds={}, oracle=[])
        plan = replace(self.plan, settings=settings)
        there = Attempts(record, self.folder, self.containers, plan)
        return await there._reward("offline", there._solve) or 0.0

    async def _reward(self, who: str, act: Act) -> float | None:
        """Return the reward of an attempt; ``None`` if there is none, which is noted."""
        record, folder = self.record, self.folder
        verdicts: dict[str, VerifierOutcome] = {}
        try:
            async with opened(folder, self.containers, self.plan.settings) as trial:
                for number, step in enumerate(folder.parts):
                    await trial.begin(step)
                    await act(trial, number)
                    verdict = await trial.verify(step)
                    verdicts[step.name if step else ""] = verdict
                    longest = max(record.seconds.get("verifier", 0.0), round(verdict.seconds, 2))
                    record.seconds["verifier"] = longest
            value = graded(folder, verdicts, self.plan.key).reward
        except RewardFileError as e:
            # A shortcut that breaks the verifier has no reward, which is as it should be.
            if who in WHO:
                record.found(f"no reward ({e.kind}) for {WHO[who]}", _said(e))
            return None
        if who == "solution" and value < 1:
            last = list(verdicts.values())[-1].output.strip()
            record.found("the solution fails", f"{value:g}: {last[-400:]}")
        return value


def _with_solution_of(other: TaskFolder | None, folder: TaskFolder) -> tuple[str, Act | None]:
    """Return how the solution of *other* is run, or why it is not."""
    if other is None:
        return "there is no other task", None
    if other.steps:
        return f"{other.name} has several steps", None
    try:
        solution = other.solution()
    except UsageError as e:
        return _said(e), None
    own = folder.solution(folder.parts[0])
    if solution is None or (own is not None and digest_of(own) == digest_of(solution)):
        return f"{other.name} has no solution that differs", None

    async def act(trial: Trial, number: int) -> None:
        step = folder.steps[number] if folder.steps else None
        await trial.solve(step, solution)

    return "", act


async def _compare(record: AuditRecord, trial: Trial) -> None:
    """Note files of the solution and of the tests that are in the policy's container."""
    folder = trial.folder
    ours: dict[str, tuple[str, str]] = {}
    for step in folder.parts:
        places = [("the tests are", place) for place in folder.tests(step)]
        if (solution := folder.solution(step)) is not None:
            places.append(("the solution is", solution))
        for kind, place in places:
            for path, file in context_files(place):
                if file.is_file() and file.stat().st_size >= TELLING:
                    digest = hashlib.sha256(file.read_bytes()).hexdigest()
                    ours[digest] = (kind, path)
    result = await trial.run(SCAN.format(most=SCANNED), "0", 120.0, 8 << 20)
    for line in result.text.splitlines():
        digest, _, where = line.partition("  ")
        if digest in ours:
            kind, path = ours[digest]
            record.found(f"{kind} in the image", f"{where} is {path}")


def digest_of(folder: Path) -> str:
    """Return a hash of all contents of a folder."""
    total = hashlib.sha256()
    for path, place in context_files(folder):
        content = place.read_bytes() if place.is_file() else b""
        total.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def digest_with(folder: TaskFolder, containers: Containers, plan: Plan) -> str:
    """Return a hash of the contents of a folder and of what the task is tried with: its local
    images, networks, settings, and the reward that counts.
    """
    try:
        sources = [folder.image(), *(folder.verifier_image(step)[0] for step in folder.parts)]
    except UsageError:  # which `examined` says
        sources = []
    images = [name for source in sources for name in containers.base_images(source)]
    networks = (containers.network, containers.build_network, containers.pull)
    settings = asdict(plan.settings)
    settings["variables"] = sorted(settings["variables"].items())
    made_with = f"{images} {networks} {sorted(settings.items())} {plan.key}"
    return hashlib.sha256(f"{digest_of(folder.path)} {made_with}".encode()).hexdigest()[:16]


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:TEXT]
