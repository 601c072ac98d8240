"""One attempt at a task: its container, the reference solution, and the verifier."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quintain.errors import EnvironmentFault
from quintain_sandbox import CommandResult, Containers, TaskContainer, TaskLimits

from .config import ContainerTable, Healthcheck, TaskStep, filled, mode_of, network_of
from .folder import TaskFolder, UnsupportedTask
from .reward_files import FOLDER, JSON, MOST, TEXT, RewardFileError, not_fetched, rewards_of

LOGS = ("/logs/agent", FOLDER, "/logs/artifacts")
ARTIFACTS = "/logs/artifacts"
"""Goes to a separate verifier, whatever `TaskConfig.artifacts` lists."""
TAIL = 4000
"""Characters of a verifier's output that are kept."""
ARTIFACT_BYTES = 512 << 20
SHORT = 60.0
"""Seconds for commands of ours, such as making a folder."""


class VerifierTimeout(RewardFileError):
    """A verifier took longer than its limit, so there is no reward."""

    def __init__(self, seconds: float) -> None:
        super().__init__("timeout", f"the verifier took more than {seconds:g} s")


@dataclass(frozen=True)
class TrialSettings:
    """What a recipe decides for all tasks.

    Attributes:
        network: whether a task that asks for a network gets one.
        variables: values for ``${NAME}`` in task files.
        memory_mb, cpus: of a task that says none.
        keep_processes: whether what the policy left running goes on beside a verifier in the same
            container. It may be what is to be verified, such as a server; and it can write the
            reward.
        undeclared_network: whether tasks that declare no network get one, too. The audit alone asks
            for it.
    """

    network: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_mb: float = 2048.0
    cpus: float = 1.0
    keep_processes: bool = False
    undeclared_network: bool = False


@dataclass(frozen=True, kw_only=True)
class VerifierOutcome:
    """What a verifier said: rewards by name, the end of its output, and how long it took."""

    rewards: Mapping[str, float]
    output: str
    seconds: float


class Trial:
    """A task in its container. Made by `opened`."""

    def __init__(
        self,
        folder: TaskFolder,
        container: TaskContainer,
        containers: Containers,
        settings: TrialSettings,
    ) -> None:
        self.folder, self.container = folder, container
        self._containers, self._settings = containers, settings
        self._graded = False

    async def begin(self, step: TaskStep | None) -> None:
        """Prepare a step: its files, its ``setup.sh`` and its health check.

        Raises:
            EnvironmentFault: one of them fails.
        """
        if step is None:
            return
        if self._graded:  # what the verifier of the step before left is not for the policy
            await self._root(f"rm -rf /tests {FOLDER} && mkdir -p {FOLDER} && chmod 777 {FOLDER}")
        files = self.folder.part("workdir", step)
        if files.is_dir():
            await self.container.put(self.container.workdir, {".": files})
        if (files / "setup.sh").is_file():
            result = await self.run("bash setup.sh", self.user(step), SHORT * 10)
            if result.status != "ok":
                raise EnvironmentFault(f"{self.folder.path}: setup.sh: {result.text[-500:]}")
        if step.healthcheck is not None:
            await self.healthy(step.healthcheck)

    async def healthy(self, check: Healthcheck) -> None:
        """Wait until a health check succeeds.

        Raises:
            EnvironmentFault: it fails as often as its retries allow.
        """
        began, failures = time.monotonic(), 0
        while True:
            result = await self.run(check.command, "", check.timeout_sec)
            if result.status == "ok":
                return
            early = time.monotonic() - began < check.start_period_sec
            failures += not early
            if failures >= check.retries:
                raise EnvironmentFault(
                    f"{self.folder.path}: the health check fails: {result.text[-300:]}"
                )
            await asyncio.sleep(check.start_interval_sec if early else check.interval_sec)

    def user(self, step: TaskStep | None) -> str:
        """Return the user of the policy's commands; empty for that of the image."""
        own = step.agent.user if step else None
        return _user(own if own is not None else self.folder.config.agent.user)

    def seconds(self, step: TaskStep | None) -> float | None:
        """Return how long the policy's commands may take in all; ``None`` without a limit."""
        own = step.agent.timeout_sec if step else None
        return own if own is not None else self.folder.config.agent.timeout_sec

    async def run(
        self, command: str, user: str = "", seconds: float = SHORT, output: int = 1 << 20
    ) -> CommandResult:
        """Run a shell command in the working directory."""
        shell = ["sh", "-c", 'if command -v bash >/dev/null; then exec bash -c "$0"; fi; eval "$0"']
        return await self.container.run(
            [*shell, command], seconds=seconds, user=user, output=output
        )

    async def solve(self, step: TaskStep | None, solution: Path | None = None) -> CommandResult:
        """Run the reference solution, or another one: a folder with ``solve.sh``.

        Raises:
            UnsupportedTask: there is none.
        """
        solution = solution or self.folder.solution(step)
        if solution is None:
            raise UnsupportedTask(f"{self.folder.path} has no solution/solve.sh")
        await self.container.put("/solution", {".": solution}, "solve.sh")
        variables = filled(
            _texts(self.folder.config.solution.get("env")), self._settings.variables,
            str(self.folder.path),
        )  # fmt: skip
        return await self.container.run(
            ["sh", "-c", "/solution/solve.sh"],
            seconds=self.seconds(step) or 3600.0,
            user=self.user(step),
            variables={"DEBIAN_FRONTEND": "noninteractive"} | variables,
        )

    async def verify(self, step: TaskStep | None) -> VerifierOutcome:
        """Run the verifier, in this container or its own, and read its reward.

        Raises:
            RewardFileError: it left none.
            InfrastructureError: the engine failed.
        """
        config = self.folder.config
        self._graded = True
        for hook in (step.verifier if step else config.verifier).collect or config.verifier.collect:
            await self.run(hook.command, _user(hook.user), hook.timeout_sec)
        if mode_of(config, step or config) == "shared":
            if not self._settings.keep_processes:
                await self.container.end_processes()
            return await self._verified(self.container, step, self.folder.tests(step))
        image, bundled = self.folder.verifier_image(step)
        table = (step.verifier.environment if step else None) or config.verifier.environment
        table = table or config.environment
        sources = [a.source for a in (*config.artifacts, *(step.artifacts if step else ()))]
        taken = {}
        for source in dict.fromkeys([ARTIFACTS, *sources]):
            taken[source] = await self.container.get(source, ARTIFACT_BYTES)
        # They have no more say, and their memory is free for the verifier.
        await self.container.end_processes()
        name = await self._containers.image(image)
        async with started(self._containers, name, table, self._settings, beside=True) as other:
            for source, files in taken.items():
                if files:
                    await other.put(str(Path(source).parent), files)
            return await self._verified(other, step, [] if bundled else self.folder.tests(step))

    async def _verified(
        self, container: TaskContainer, step: TaskStep | None, tests: list[Path]
    ) -> VerifierOutcome:
        config, own = self.folder.config, step.verifier if step else None
        # Files that the policy put beside the tests, such as a conftest.py, would count with them.
        planted = " /tests" if tests else ""
        await _as_root(container, f"rm -rf {FOLDER}/{TEXT} {FOLDER}/{JSON}{planted}")
        for place in tests:
            await container.put("/tests", {".": place}, "test.sh")
        if not tests:  # they are in the image, with the modes that its build context has
            await _as_root(container, "[ ! -f /tests/test.sh ] || chmod +x /tests/test.sh")
        user = own.user if own and own.user is not None else config.verifier.user
        texts = config.verifier.env | (own.env if own else {})
        seconds = config.verifier.timeout_sec
        if own and "timeout_sec" in own.model_fields_set:
            seconds = own.timeout_sec
        result = await container.run(
            ["sh", "-c", "/tests/test.sh"],
            seconds=seconds,
            user=_user(user),
            variables=filled(texts, self._settings.variables, str(self.folder.path)),
            output=1 << 20,
        )
        if result.status == "timeout":
            raise VerifierTimeout(seconds)
        try:
            rewards = rewards_of(
                await container.read(f"{FOLDER}/{TEXT}", MOST),
                await container.read(f"{FOLDER}/{JSON}", MOST),
            )
        except RewardFileError as e:
            said = result.text[-600:].strip()
            kind = "set-up" if e.kind == "missing" and not_fetched(result.text) else e.kind
            raise RewardFileError(kind, f"{self.folder.path}: {e}; it said: {said}") from e
        line = not_fetched(result.text)
        if line and max(rewards.values()) <= 0:  # its 0 says nothing of the policy's work
            raise RewardFileError(
                "set-up",
                f"{self.folder.path}: the verifier could not fetch its tools: {line}; give it a "
                "network (network = true), or an image that has them",
            )
        return VerifierOutcome(rewards=rewards, output=result.text[-TAIL:], seconds=result.seconds)

    async def _root(self, command: str) -> None:
        await _as_root(self.container, command)


@contextlib.asynccontextmanager
async def opened(
    folder: TaskFolder, containers: Containers, settings: TrialSettings
) -> AsyncIterator[Trial]:
    """Build the image of a task if need be, start its container, and wait until it is healthy.

    Raises:
        UnsupportedTask: the task asks for something that does not run here.
        BuildError: its image cannot be built.
        EnvironmentFault: its health check fails.
        InfrastructureError: the engine failed.
    """
    folder.check()
    config = folder.config
    name = await containers.image(folder.image())
    first = config.steps[0].agent if config.steps else config.agent
    network = network_of(config, first) == "public" or settings.undeclared_network
    async with started(
        containers, name, config.environment, settings, network=network
    ) as container:
        trial = Trial(folder, container, containers, settings)
        if config.environment.healthcheck is not None:
            await trial.healthy(config.environment.healthcheck)
            await container.settle()
        yield trial


@contextlib.asynccontextmanager
async def started(
    containers: Containers,
    image: str,
    table: ContainerTable,
    settings: TrialSettings,
    *,
    network: bool | None = None,
    beside: bool = False,
) -> AsyncIterator[TaskContainer]:
    """Start a container with the resources of *table*, and the folders for logs."""
    memory = table.memory_mb or settings.memory_mb
    limits = TaskLimits(
        memory=max(64 << 20, int(memory * (1 << 20))),
        cpus=table.cpus or settings.cpus,
        processes=containers.processes,
    )
    asked = table.network == "public" if network is None else network
    async with containers.container(
        image,
        limits=limits,
        network=asked and settings.network,
        workdir=table.workdir or "",
        variables=filled(table.env, settings.variables, image),
        beside=beside,
    ) as container:
        await _as_root(container, f"mkdir -p {' '.join(LOGS)} && chmod 777 {' '.join(LOGS)}")
        yield container


async def _as_root(container: TaskContainer, command: str) -> None:
    result = await container.run(["sh", "-c", command], seconds=SHORT, user="0", workdir="/")
    if result.status != "ok":
        raise EnvironmentFault(
            f"{shlex.quote(command)} failed in a container of {container.image}: "
            f"{result.text[-300:]}"
        )


def _user(user: str | int | None) -> str:
    return "" if user is None else str(user)


def _texts(value: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
