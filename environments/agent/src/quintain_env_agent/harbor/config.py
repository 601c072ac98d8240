"""The file ``task.toml``: what of it decides how a task runs, and what cannot run here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from quintain.errors import UsageError

NetworkMode = Literal["no-network", "public", "allowlist"]
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*$", re.I)
MEBIBYTES = {"": 1 / (1 << 20), "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


class _Table(BaseModel):
    # Tasks carry keys of many versions and of their authors; those that decide are named here.
    model_config = ConfigDict(extra="ignore")


class Healthcheck(_Table):
    """A command that must succeed before the policy begins."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3


class Phase(_Table):
    """What both phases have: their own network and user."""

    network_mode: NetworkMode | None = None
    user: str | int | None = None
    timeout_sec: float | None = None


class ContainerTable(_Table):
    """The image and the resources of a container."""

    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: float | None = None
    storage_mb: float | None = None
    gpus: int | None = None
    tpu: Any = None
    mcp_servers: list[Any] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    workdir: str | None = None
    network_mode: NetworkMode | None = None
    allow_internet: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, data: Any) -> Any:
        """Read ``memory`` and ``storage``, texts such as ``2G`` of earlier versions."""
        if isinstance(data, dict):
            data = dict(data)
            for old in ("memory", "storage"):
                if isinstance(data.get(old), str) and data.get(f"{old}_mb") is None:
                    data[f"{old}_mb"] = mebibytes(data[old])
        return data

    @property
    def network(self) -> NetworkMode:
        """The network that is asked for; where nothing is said, all of it."""
        if self.network_mode is not None:
            return self.network_mode
        return "no-network" if self.allow_internet is False else "public"


class Collect(_Table):
    """A command after the policy's part, which writes what the verifier needs into files."""

    command: str
    service: str = "main"
    timeout_sec: float = 60.0
    user: str | int | None = None


class VerifierTable(Phase):
    """How the outcome is checked."""

    timeout_sec: float = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] | None = None
    environment: ContainerTable | None = None
    collect: list[Collect] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> VerifierTable:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("a shared verifier has no environment of its own")
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """Whether it runs in the policy's container; ``None`` where nothing says so."""
        implied: Literal["separate"] | None = "separate" if self.environment is not None else None
        return self.environment_mode or implied


class Artifact(_Table):
    """A file or folder that goes from the policy's container to a separate verifier."""

    source: str
    service: str | None = None

    @field_validator("source")
    @classmethod
    def _inside(cls, source: str) -> str:
        if ".." in source.split("/"):
            raise ValueError(f"the artifact {source!r} has '..'")
        return source


class TaskStep(_Table):
    """One of several parts, each with an instruction and a verifier of its own."""

    name: str
    agent: Phase = Field(default_factory=Phase)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[Artifact] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, name: str) -> str:
        if name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise ValueError(f"the step {name!r} is no folder")
        return name

    @field_validator("artifacts", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return _artifacts(value)


class TaskConfig(_Table):
    """All of ``task.toml`` that decides how a task runs."""

    metadata: dict[str, Any] = Field(default_factory=dict)
    task: dict[str, Any] = Field(default_factory=dict)
    agent: Phase = Field(default_factory=Phase)
    verifier: VerifierTable = Field(default_factory=VerifierTable)
    environment: ContainerTable = Field(default_factory=ContainerTable)
    solution: dict[str, Any] = Field(default_factory=dict)
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    steps: list[TaskStep] = Field(default_factory=list)
    artifacts: list[Artifact] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data

    @field_validator("artifacts", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return _artifacts(value)

    @field_validator("steps")
    @classmethod
    def _unique(cls, steps: list[TaskStep]) -> list[TaskStep]:
        if len({step.name.casefold() for step in steps}) < len(steps):
            raise ValueError("two steps have one name")
        return steps


def _artifacts(value: Any) -> Any:
    if isinstance(value, list):
        return [{"source": item} if isinstance(item, str) else item for item in value]
    return value


def read_config(text: str, where: str) -> TaskConfig:
    """Return what ``task.toml`` says.

    Raises:
        UsageError: it is no TOML, or a key that decides has another type; the message begins with
            *where*.
    """
    try:
        return TaskConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{where}: not TOML ({e})") from e
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where}: {place}: {first['msg']}") from e


def mebibytes(text: str) -> float:
    """Return a size such as ``2G``, ``512M`` or ``1048576`` (bytes) in MiB.

    Raises:
        ValueError: it is no size.
    """
    found = SIZE.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no size such as 2G")
    return float(found[1]) * MEBIBYTES[found[2].upper()]


def unsupported(config: TaskConfig) -> list[str]:
    """Return what a task asks for that does not run here; empty if all of it does."""
    environment = config.environment
    verifiers = [config.verifier, *(step.verifier for step in config.steps)]
    environments = [environment, *(v.environment for v in verifiers if v.environment)]
    found = [f"os = {e.os!r}" for e in environments if e.os.lower() != "linux"]
    found += ["a GPU" for e in environments if e.gpus]
    found += ["a TPU" for e in environments if e.tpu is not None]
    found += ["MCP servers" for e in environments if e.mcp_servers]
    phases = [config.agent, *verifiers, *(step.agent for step in config.steps)]
    asked = [*(e.network for e in environments), *(p.network_mode for p in phases)]
    if "allowlist" in asked:
        found.append("a network of listed hosts (network_mode = 'allowlist')")
    parts: list[TaskStep | TaskConfig] = [*config.steps] or [config]
    shared = [part.verifier for part in parts if mode_of(config, part) == "shared"]
    agents = {network_of(config, part.agent) for part in parts}
    if len(agents | {network_of(config, v) for v in shared}) > 1:
        found.append("a network that changes between phases in one container")
    for verifier in verifiers:
        found += [
            f"a collect command in the service {hook.service!r}"
            for hook in verifier.collect
            if hook.service != "main"
        ]
    listed = [*config.artifacts, *(a for step in config.steps for a in step.artifacts)]
    found += [
        f"an artifact of the service {a.service!r}"
        for a in listed
        if a.service not in (None, "main")
    ]
    return list(dict.fromkeys(found))


def mode_of(config: TaskConfig, step: TaskStep | TaskConfig) -> Literal["shared", "separate"]:
    """Return where the verifier of a step runs; *config* itself for a task without steps."""
    return step.verifier.mode or config.verifier.mode or "shared"


def network_of(config: TaskConfig, phase: Phase) -> NetworkMode:
    """Return the network that a phase in the policy's container asks for."""
    return phase.network_mode or config.environment.network


def filled(texts: Mapping[str, str], variables: Mapping[str, str], where: str) -> dict[str, str]:
    """Return environment variables with ``${NAME}`` and ``${NAME:-default}`` replaced.

    Raises:
        UsageError: one has neither a value in *variables* nor a default; the message begins with
            *where*.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in variables:
            return variables[name]
        if default is None:
            raise UsageError(
                f'{where} needs the variable {name}: set variables = {{ {name} = "..." }} of the '
                "environment"
            )
        return default

    return {name: VARIABLE.sub(value, text) for name, text in texts.items()}
