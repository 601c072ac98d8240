"""The audit of task folders: what a task gives for its solution, for nothing, and for a forgery.

No model takes part. Each task has a record, a line of JSON in a file that `Harbor.audit` reads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from quintain import InfrastructureError
from quintain.errors import EnvironmentFault, UsageError
from quintain_sandbox import BuildContext, BuildError, Containers, context_files

from .config import mode_of
from .environment import FORGERY, graded
from .folder import TaskFolder, UnsupportedTask
from .reward_files import RewardFileError
from .trial import Trial, TrialSettings, VerifierOutcome, opened

TELLING = 64
"""Bytes from which on equal contents are no accident."""
SCANNED = 20_000
"""Most files of an image that are compared."""
TEXT = 600
"""Characters of a reason."""
SCAN = (
    "find / -xdev -type f -size +0 -size -2048k -not -path '/proc/*' -not -path '/sys/*' -not -path "
    "'/dev/*' -not -path '/usr/*' -not -path '/lib*' -not -path '/bin/*' -not -path '/sbin/*' -not "
    "-path '/var/*' -not -path '/etc/*' 2>/dev/null | head -n {most} | tr '\\n' '\\0' | xargs -0 -r "
    "sha256sum 2>/dev/null"
)


@dataclass(kw_only=True)
class AuditRecord:
    """What the audit found of one task.

    Attributes:
        task: its name; *folder* its place, *digest* of its contents.
        status: ``played``, ``unsupported``, ``invalid`` (a file), ``build`` (its image), or
            ``failed`` (the engine, a health check).
        oracle: rewards of the reference solution, one for each run; ``None`` for a run without a
            reward.
        nop: the reward for doing nothing.
        forged: the reward for a program that writes the reward file; ``None`` where the verifier
            runs elsewhere, or nothing was tried.
        offline: the reward of the solution without a network, where the task has one.
        defects: kinds, each with what was seen.
        sound: whether the solution has 1 in every run, and nothing 0; ``None`` without a solution
            where nothing has 0.
        level: difficulty that the task states, as a number.
        seconds: of the build, and of the longest run of the solution and of the verifier.
        memory_mb: most memory of a run of the solution.
    """

    task: str
    folder: str
    digest: str
    status: str = "played"
    reason: str = ""
    oracle: list[float | None] = field(default_factory=list)
    nop: float | None = None
    forged: float | None = None
    offline: float | None = None
    defects: dict[str, str] = field(default_factory=dict)
    sound: bool | None = False
    level: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    memory_mb: float = 0.0
    steps: int = 0

    def found(self, kind: str, seen: str) -> None:
        """Note a defect; the first of a kind counts."""
        self.defects.setdefault(kind, seen[:TEXT])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the audit does with each task.

    Attributes:
        repeats: runs of the solution.
        forge: whether to write the reward file.
        offline: whether to run the solution without a network, too.
        key: of the reward that counts.
    """

    settings: TrialSettings = field(default_factory=TrialSettings)
    repeats: int = 1
    forge: bool = True
    offline: bool = False
    key: str = "reward"


async def audit(
    folders: Iterable[TaskFolder],
    containers: Containers,
    plan: Plan,
    write: Callable[[AuditRecord], None],
    *,
    jobs: int,
    known: Mapping[str, str],
) -> None:
    """Audit all *folders*, several at one time.

    Args:
        write: called with each record, as soon as it is there.
        jobs: tasks at one time.
        known: digests by name of tasks that have a record; these are left out.
    """
    waiting: Iterator[TaskFolder] = iter(folders)

    async def work() -> None:
        for folder in waiting:
            digest = await asyncio.to_thread(digest_of, folder.path)
            if known.get(folder.name) != digest:
                write(await examined(folder, digest, containers, plan))

    await asyncio.gather(*(work() for _ in range(jobs)))


async def examined(
    folder: TaskFolder, digest: str, containers: Containers, plan: Plan
) -> AuditRecord:
    """Return the record of one task.

    Raises:
        UsageError: the service or the settings are at fault, not the task.
    """
    record = AuditRecord(task=folder.name, folder=str(folder.path), digest=digest)
    try:
        folder.check()
        record.level, record.steps = folder.level, len(folder.steps)
        began = time.monotonic()
        await containers.image(folder.image())
        record.seconds["build"] = round(time.monotonic() - began, 2)
        await _nothing(record, folder, containers, plan)
        await _solutions(record, folder, containers, plan)
        await _forgery(record, folder, containers, plan)
    except UnsupportedTask as e:
        record.status, record.reason = "unsupported", _said(e)
    except UsageError as e:
        record.status, record.reason = "invalid", _said(e)
    except BuildError as e:
        record.status, record.reason = "build", _said(e)
    except (EnvironmentFault, InfrastructureError) as e:
        record.status, record.reason = "failed", _said(e)
    judge(record)
    return record


def judge(record: AuditRecord) -> None:
    """Set `AuditRecord.sound`, and note the defects that follow from the rewards."""
    if record.status != "played":
        record.sound = False
        return
    solved = [value for value in record.oracle if value is not None]
    if record.nop is not None and record.nop != 0:
        record.found("nothing is rewarded", f"the reward for doing nothing is {record.nop:g}")
    if not record.oracle:
        record.found("no solution", "there is no solution/solve.sh")
    elif any(value < 1 for value in solved):
        record.found("the solution fails", f"rewards of the solution: {record.oracle}")
    if len(set(record.oracle)) > 1:
        record.found("not repeatable", f"rewards of the solution: {record.oracle}")
    if record.forged is not None and record.forged >= 1 and (record.nop or 0) < 1:
        record.found("the reward can be forged", f"a background program got {record.forged:g}")
    if record.offline is not None and record.offline < 1 and solved and min(solved) >= 1:
        record.found("needs a network", f"the solution has {record.offline:g} without one")
    if record.nop != 0:
        record.sound = False
    elif not record.oracle:
        record.sound = None
    else:
        record.sound = len(solved) == len(record.oracle) and min(solved) >= 1


async def _nothing(
    record: AuditRecord, folder: TaskFolder, containers: Containers, plan: Plan
) -> None:
    async def idle(trial: Trial, number: int) -> None:
        if number == 0:
            await _compare(record, trial)

    verdicts = await _played(record, "nop", folder, containers, plan, idle)
    if verdicts is not None:
        record.nop = _value(record, "nop", folder, verdicts, plan.key)


async def _solutions(
    record: AuditRecord, folder: TaskFolder, containers: Containers, plan: Plan
) -> None:
    if not all(folder.solution(step) for step in folder.parts):
        return

    async def solve(trial: Trial, number: int) -> None:
        step = folder.steps[number] if folder.steps else None
        result = await trial.solve(step)
        longest = max(record.seconds.get("solution", 0.0), round(result.seconds, 2))
        record.seconds["solution"] = longest
        record.memory_mb = max(record.memory_mb, round(trial.container.peak_memory() / 2**20, 1))
        if result.status != "ok":
            ended = result.status if result.exit is None else f"status {result.exit}"
            record.found("the solution ends badly", f"{ended}: {result.text.strip()[-400:]}")

    for _ in range(plan.repeats):
        verdicts = await _played(record, "solution", folder, containers, plan, solve)
        value = None
        if verdicts is not None:
            value = _value(record, "solution", folder, verdicts, plan.key)
            if value is not None and value < 1:
                last = list(verdicts.values())[-1].output.strip()
                record.found("the solution fails", f"{value:g}: {last[-400:]}")
        record.oracle.append(value)
        if value is None:
            break  # it has no reward the next time either
    if plan.offline and plan.settings.network and folder.config.environment.network == "public":
        without = replace(plan, settings=replace(plan.settings, network=False))
        verdicts = await _played(record, "offline", folder, containers, without, solve)
        record.offline = 0.0 if verdicts is None else graded(folder, verdicts, plan.key).reward


async def _forgery(
    record: AuditRecord, folder: TaskFolder, containers: Containers, plan: Plan
) -> None:
    shared = all(mode_of(folder.config, step or folder.config) == "shared" for step in folder.parts)
    if not plan.forge or not shared:
        return

    async def forge(trial: Trial, number: int) -> None:
        await trial.run(FORGERY, trial.user(folder.steps[number] if folder.steps else None))

    verdicts = await _played(record, "forgery", folder, containers, plan, forge)
    if verdicts is not None:
        record.forged = _value(record, "forgery", folder, verdicts, plan.key)


async def _played(
    record: AuditRecord,
    who: str,
    folder: TaskFolder,
    containers: Containers,
    plan: Plan,
    act: Callable[[Trial, int], Awaitable[None]],
) -> dict[str, VerifierOutcome] | None:
    """Return the verdicts of an attempt; ``None`` if there is no reward, which is noted."""
    verdicts: dict[str, VerifierOutcome] = {}
    async with opened(folder, containers, plan.settings) as trial:
        for number, step in enumerate(folder.parts):
            await trial.begin(step)
            await act(trial, number)
            try:
                verdict = await trial.verify(step)
            except RewardFileError as e:
                if who != "offline":
                    record.found(f"no reward ({e.kind}) for {WHO[who]}", _said(e))
                return None
            verdicts[step.name if step else ""] = verdict
            longest = max(record.seconds.get("verifier", 0.0), round(verdict.seconds, 2))
            record.seconds["verifier"] = longest
    return verdicts


WHO = {"nop": "nothing", "solution": "the solution", "forgery": "a forgery"}


def _value(
    record: AuditRecord,
    who: str,
    folder: TaskFolder,
    verdicts: Mapping[str, VerifierOutcome],
    key: str,
) -> float | None:
    try:
        return graded(folder, verdicts, key).reward
    except RewardFileError as e:
        record.found(f"no reward ({e.kind}) for {WHO[who]}", _said(e))
        return None


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


def read_records(file: Path) -> list[AuditRecord]:
    """Return the records of a file, the last one of each task; none if there is no file.

    Raises:
        UsageError: a line is no record, other than a last one that was cut off.
    """
    if not file.exists():
        return []
    found: dict[str, AuditRecord] = {}
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            record = AuditRecord(**json.loads(line))
        except (ValueError, TypeError) as e:
            if number == len(lines):
                continue
            raise UsageError(f"{file}:{number} is no record of an audit: {e}") from e
        found[record.task] = record
    return list(found.values())


def summary(records: Iterable[AuditRecord]) -> dict[str, Any]:
    """Return counts: of states, of tasks with a solution that has 1, of those in which nothing has
    0, of sound ones, and of each kind of defect.
    """
    rows = list(records)
    played = [row for row in rows if row.status == "played"]
    solved = [row for row in played if row.oracle]
    return {
        "tasks": len(rows),
        "status": dict(Counter(row.status for row in rows).most_common()),
        "with_solution": len(solved),
        "oracle_1": sum(all(v is not None and v >= 1 for v in row.oracle) for row in solved),
        "nop_0": sum(row.nop == 0 for row in played),
        "sound": sum(row.sound is True for row in rows),
        "defects": dict(Counter(kind for row in rows for kind in row.defects).most_common()),
    }


def line_of(record: AuditRecord) -> str:
    """Return a record as a line of JSON."""
    return json.dumps(asdict(record), ensure_ascii=False)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:TEXT]


def contexts(folders: Iterable[TaskFolder]) -> Iterator[BuildContext | str]:
    """Yield what the images of tasks are made of; tasks that cannot run are left out."""
    for folder in folders:
        try:
            folder.check()
        except UsageError:
            continue
        yield folder.image()
