"""The environment `harbor`: each task is a folder, each episode a container of its own image."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Literal

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    PolicyFault,
    Reply,
    Rollout,
    Task,
    ToolCall,
    control,
    need,
    reward,
)
from quintain.errors import LimitReached, UsageError
from quintain.store import cache_folder
from quintain_sandbox import Containers

from .archives import ARCHIVE, task_folders
from .audit_record import record_file
from .config import TaskStep
from .folder import TaskFolder
from .reward_files import FOLDER, TEXT, RewardFileError, chosen
from .tools import Shell
from .trial import Trial, TrialSettings, VerifierOutcome, opened

log = logging.getLogger("quintain.harbor")
PIECE = 60_000
"""Characters of one command of the oracle: what an engine takes as a word is bounded."""
SHORT = 4000
"""Most characters of a solution that is demonstrated as it is."""
SYSTEM = (
    "You work in a container. Use the tools to do what you are asked. Answer without a tool call "
    "when you are done."
)


@dataclass(frozen=True, kw_only=True)
class HarborTask(Task):
    """A task folder; the prompt is its instruction, or that of its first step."""

    folder: str
    name: str


@dataclass(frozen=True, kw_only=True)
class HarborResult:
    """What came of an episode.

    Attributes:
        reward: the one that counts.
        rewards: by name, of each step.
        output: the end of what the last verifier printed.
    """

    reward: float
    rewards: Mapping[str, Mapping[str, float]]
    output: str


@reward
def verified(rollout: Rollout[HarborTask, HarborResult]) -> float:
    """Return the reward that the task's verifier wrote."""
    return rollout.result.reward


class Harbor(Environment[HarborTask, HarborResult]):
    """Task folders of Harbor and of the first Terminal-Bench, with a shell and tools for files.

    Each episode has a container of the task's own image, in which the verifier runs afterwards,
    unless the task has a container of its own for it.

    Attributes:
        data: a task folder, a tree of them, an archive of one, or a Parquet file with archives.
        column: of a Parquet file, with the archives.
        splits: ``train``, ``dev`` or ``test`` for all tasks; empty for a tenth each in ``dev`` and
            ``test``, by a hash of the name.
        key: of the reward that counts, where a verifier writes several.
        network: whether tasks that ask for a network get one. Harbor's tasks ask for it unless they
            say otherwise.
        variables: values for ``${NAME}`` in task files.
        audit: a file of `quintain tasks audit`; tasks that it does not call sound are left out.
        seconds: of one command of the policy at most; the task's own limit bounds the sum.
        characters: of an answer of a tool.
        ahead: how many of the following tasks have their images built while episodes run.
        broken: what it is if a verifier leaves no reward. ``failure`` leaves the episode out.
            ``policy`` scores 0 after a tool call, for tasks that are known to be sound, in which a
            policy could otherwise hide a bad end by breaking the verifier.
        keep_processes: whether what the policy left running goes on beside a verifier in the same
            container. Needed for tasks whose result is a running program; a program that is left
            can then write the reward.
        pictures: whether the policy has a tool that shows images of the container
            (`pip install 'quintain-env-agent[pictures]'`). A model of text reads their size alone.
        memory_mb, cpus: of a task that says none.
        cache: folder of unpacked and converted tasks; empty for ``harbor`` in `$QUINTAIN_CACHE`.
    """

    reward = verified
    # Commands, builds and verifiers have limits of their own, which the task's file sets.
    limits = Limits(turns=64, seconds=None)
    system = SYSTEM

    containers: Containers = need()
    data: str = ""
    column: str = ARCHIVE
    splits: Literal["", "train", "dev", "test"] = ""
    key: str = "reward"
    network: bool = False
    variables: Mapping[str, str] | None = None
    audit: str = ""
    seconds: float = 120.0
    characters: int = 10_000
    ahead: int = 4
    broken: Literal["failure", "policy"] = "failure"
    keep_processes: bool = False
    pictures: bool = False
    memory_mb: float = 2048.0
    cpus: float = 1.0
    cache: str = ""
    _found: dict[str, TaskFolder] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.data:
            raise UsageError("harbor: set data to a task folder, a tree of them, or a Parquet file")
        if not self.seconds > 0 or self.characters < 100 or self.ahead < 0:
            raise UsageError(
                f"harbor: seconds {self.seconds}, characters {self.characters}, ahead {self.ahead}; "
                "expected more than 0, at least 100, and at least 0"
            )
        if self.pictures and find_spec("quintain_vision") is None:
            raise UsageError("harbor: pictures needs pip install 'quintain-env-agent[pictures]'")

    def tasks(self, split: str) -> Iterable[HarborTask]:
        found = [f for f in self._folders().values() if self._split(f) == split]
        if not found and split != "train":
            return []
        return [
            HarborTask(
                prompt=folder.instruction(folder.steps[0] if folder.steps else None),
                folder=str(folder.path),
                name=folder.name,
                level=folder.level,
                id=hashlib.sha256(folder.name.encode()).hexdigest()[:16],
            )
            for folder in found
        ]

    def _folders(self) -> dict[str, TaskFolder]:
        """Return the tasks by their folders; they are read once."""
        if not self._found:
            sound = _sound(self.audit) if self.audit else None
            place = Path(self.data).expanduser()
            faults: list[str] = []
            for folder in task_folders(place, tasks_folder(self.cache), self.column):
                if sound is not None and folder.name not in sound:
                    continue
                try:
                    folder.check()
                except UsageError as e:
                    faults.append(str(e))
                    continue
                self._found[str(folder.path)] = folder
            if not self._found:
                why = faults[0] if faults else f"{self.audit} calls none of its tasks sound"
                raise UsageError(f"harbor: no task of {self.data} can be used: {why}")
            if faults:
                log.warning(
                    "harbor: %d tasks of %s cannot be used; the first: %s",
                    len(faults),
                    self.data,
                    faults[0],
                )
            remark = without_network(self._found.values(), self.network)
            if remark:
                log.warning("harbor: %s", remark)
        return self._found

    def _split(self, folder: TaskFolder) -> str:
        if self.splits:
            return self.splits
        share = int(hashlib.sha256(folder.name.encode()).hexdigest()[:8], 16) % 10
        return {0: "dev", 1: "test"}.get(share, "train")

    def folder_of(self, task: HarborTask) -> TaskFolder:
        """Return the folder of a task."""
        return self._folders().get(task.folder) or TaskFolder(Path(task.folder), task.name)

    def _build_ahead(self, folder: TaskFolder) -> None:
        if not self.ahead:
            return
        names = iter(self._folders())
        for name in names:
            if name == str(folder.path):
                break
        following = [self._found[name] for name in islice(names, self.ahead)]
        self.containers.build_ahead([other.image() for other in following])

    @property
    def settings(self) -> TrialSettings:
        """What holds for all tasks."""
        return TrialSettings(
            self.network,
            self.variables or {},
            self.memory_mb,
            self.cpus,
            self.keep_processes,
        )

    async def rollout(self, task: HarborTask, agent: Agent) -> HarborResult:
        folder = self.folder_of(task)
        self._build_ahead(folder)
        async with opened(folder, self.containers, self.settings) as trial:
            verdicts: dict[str, VerifierOutcome] = {}
            calls = 0
            for step in folder.parts:
                await trial.begin(step)
                try:
                    calls += await self.attempt(trial, step, agent)
                except LimitReached:
                    if not verdicts:
                        raise
                    break  # no turn is left for this step; those before count
                try:
                    verdicts[step.name if step else ""] = await trial.verify(step)
                except RewardFileError as e:
                    if self.broken == "policy" and calls:
                        raise PolicyFault(str(e)) from e
                    raise
                if step and not _goes_on(step, verdicts[step.name].rewards):
                    break
            agent.metric(commands=calls)
            return graded(folder, verdicts, self.key)

    async def attempt(self, trial: Trial, step: TaskStep | None, agent: Agent) -> int:
        """Let the policy work at a step; return how often it used a tool."""
        agent.user(trial.folder.instruction(step))
        shell = Shell(
            trial,
            trial.user(step),
            trial.seconds(step),
            self.seconds,
            self.characters,
            pictures=self.pictures,
        )
        await agent.run(*shell.tools)
        return shell.calls

    @control(scores="max")
    def oracle(self, task: HarborTask, messages: Sequence[Message]) -> str | Reply:
        """Run the reference solution through the shell."""
        folder = self.folder_of(task)
        step, done = _place(folder, messages)
        solution = folder.solution(step)
        commands = [] if solution is None else _solving(solution)
        if done >= len(commands):
            return "Done."
        return _call(commands[done])

    @control()
    def demonstrator(self, task: HarborTask, messages: Sequence[Message]) -> str | Reply:
        """Do what the oracle does; the warm start imitates it."""
        return self.oracle(task, messages)

    @control(scores="min")
    def forger(self, task: HarborTask, messages: Sequence[Message]) -> str | Reply:
        """Write the reward, and leave a program that does so again and again."""
        _, done = _place(self.folder_of(task), messages)
        if done:
            return "Done."
        return _call(FORGERY)


_FETCHING = re.compile(
    r"\b(?:curl|wget|apt(?:-get)? +(?:-\S+ +)*(?:install|update)|apk +add|uvx|uv +(?:add|pip|sync|tool|run)|"
    r"pip3? +install|npm +(?:i|install|ci)|npx|git +clone)\b"
)
FORGERY = (
    f"mkdir -p {FOLDER}; (while :; do echo 1 > {FOLDER}/.forged; mv -f {FOLDER}/.forged "
    f"{FOLDER}/{TEXT}; sleep 0.02; done >/dev/null 2>&1 &)"
)
"""A command that forges the reward of a verifier that runs in the same container."""


def graded(folder: TaskFolder, verdicts: Mapping[str, VerifierOutcome], key: str) -> HarborResult:
    """Return the result of an episode: of several steps, their mean or the last one's."""
    values = [chosen(dict(verdict.rewards), key) for verdict in verdicts.values()]
    last = folder.config.multi_step_reward_strategy == "final"
    total = len(folder.steps) or 1
    # Steps that were not reached count as 0, or an early end would be worth more.
    value = (values[-1] if len(values) == total else 0.0) if last else sum(values) / total
    return HarborResult(
        reward=value,
        rewards={name: dict(verdict.rewards) for name, verdict in verdicts.items()},
        output=list(verdicts.values())[-1].output,
    )


def without_network(folders: Iterable[TaskFolder], network: bool) -> str:
    """Return how many of *folders* ask for a network that they do not get, and how many of these
    have a verifier that fetches its tools; empty if all get what they ask for.
    """
    if network:
        return ""
    total = fetching = 0
    asking: list[str] = []
    for folder in folders:
        total += 1
        if folder.config.environment.network == "public":
            asking.append(folder.name)
            places = [place for step in folder.parts for place in folder.tests(step)]
            fetching += any(map(_fetches, places))
    if not asking:
        return ""
    return (
        f"{len(asking)} of {total} tasks ask for a network and get none (network = false); the tests "
        f"of {fetching} fetch tools, and fail to. The first: {asking[0]}"
    )


def _fetches(tests: Path) -> bool:
    script = tests / "test.sh"
    scripts = [p for p in (script, tests / "run-tests.sh") if p.is_file()]
    texts = (p.read_text(encoding="utf-8", errors="replace") for p in scripts)
    return any(_FETCHING.search(text) for text in texts)


def _goes_on(step: TaskStep, rewards: Mapping[str, float]) -> bool:
    least = step.min_reward
    if least is None:
        return True
    asked = least if isinstance(least, dict) else {"reward": least}
    return all(rewards.get(name, float("-inf")) >= value for name, value in asked.items())


def tasks_folder(given: str) -> Path:
    """Return the folder of unpacked and converted tasks."""
    return Path(given).expanduser() if given else cache_folder() / "harbor"


def _sound(file: str) -> set[str]:
    """Return the names of the tasks that a file of the audit calls sound."""
    path = Path(file)
    if not path.exists():
        raise UsageError(f"harbor: there is no file {file} of quintain tasks audit")
    return {name for name, record in record_file(path).read().items() if record.sound}


def _place(folder: TaskFolder, messages: Sequence[Message]) -> tuple[TaskStep | None, int]:
    """Return the step that *messages* have come to, and how many replies they have in it."""
    users = [i for i, m in enumerate(messages) if m.role == "user"]
    step = folder.steps[len(users) - 1] if folder.steps and users else None
    last = users[-1] if users else 0
    return step, sum(m.role == "assistant" for m in messages[last:])


def _solving(solution: Path) -> list[str]:
    """Return the commands of a solution: its script, if that is short and all there is, else those
    that bring the folder into the container and run it there.
    """
    script = (solution / "solve.sh").read_text(encoding="utf-8", errors="replace")
    alone = [path.name for path in solution.iterdir()] == ["solve.sh"]
    if alone and len(script) <= SHORT and "/solution" not in script and "$0" not in script:
        return [script.partition("\n")[2].strip() if script.startswith("#!") else script.strip()]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(solution, arcname=".")
    text = base64.b64encode(archive.getvalue()).decode()
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    write = [f"printf %s {piece} >> /tmp/.solution" for piece in pieces]
    run = (
        "mkdir -p /solution && base64 -d /tmp/.solution | gzip -d | tar -x -C /solution && rm "
        "/tmp/.solution && chmod +x /solution/solve.sh && DEBIAN_FRONTEND=noninteractive "
        "/solution/solve.sh"
    )
    return [*write, run] if len(write) > 1 else [f"{write[0]}; {run}"]


def _call(command: str) -> Reply:
    return Reply(text="", calls=(ToolCall(name="shell", arguments={"command": command}),))
