"""The environment `agent-sandboxed`: each agent is a program in a box that has no network."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from quintain import PolicyFault, PolicyTimeout, need
from quintain.errors import EnvironmentFault, UsageError, did_you_mean
from quintain_gateway import Endpoint
from quintain_sandbox import ProbedSandbox, ProgramLimits

from . import relay
from .environment import AgentProgram
from .processes import Ended

ENFORCE = ("filesystem", "network", "processes", "memory", "forks", "disk", "output", "time")
NEEDED = ("network", "processes")
"""Without these the relay itself is not safe: it listens on what must be the box's own loopback
device, and kills all processes that it may.
"""
BOX = ProgramLimits(
    seconds=600.0, cpu_seconds=600.0, memory=1 << 30, processes=128, disk=256 << 20, open_files=1024
)
"""The default limits of an agent."""
GRACE = 60.0
"""Seconds that a box may take longer than its episode."""
log = logging.getLogger("quintain.agent")


@dataclass
class _Load:
    """How many agents run or wait for a slot."""

    agents: int = 0
    warned: bool = False


class SandboxedAgent(AgentProgram):
    """Runs a program per task in a sandbox, unchanged: its only way out is the endpoint, at an
    address in the box.

    The program is as in `AgentProgram`. Its working directory is empty but for *files*; its
    programs and libraries are those of the box.

    Attributes:
        files: files and folders of this machine that are copied into the working directory, each by
            its own name.
        box: limits of the program in place of `BOX`, such as ``{memory = 2_000_000_000}``
            (`ProgramLimits`); without ``seconds`` the time limit of the episode holds, or 600 s
            where it has none.
        enforce: axes that the sandbox must enforce, else nothing runs (see
            `quintain_sandbox.AXES`); ``network`` and ``processes`` always.
    """

    function: ClassVar[str] = ""  # type: ignore[misc]  # a function runs in the trainer

    sandbox: ProbedSandbox = need()
    files: tuple[str, ...] = ()
    box: Mapping[str, float] | None = None
    enforce: tuple[str, ...] = ENFORCE

    def __post_init__(self) -> None:
        if not self.argv:
            raise UsageError(
                "agent-sandboxed: set argv, a program of the box, such as ['python3', 'agent.py']"
            )
        super().__post_init__()
        self.sandbox.require(dict.fromkeys((*self.enforce, *NEEDED)))
        if not self.sandbox.loopback:
            raise UsageError(
                f"agent-sandboxed: {self.sandbox.name} has no loopback device of its own for each "
                "box, at which an agent could find its endpoint; use docker or bubblewrap"
            )
        self._box_limits()
        object.__setattr__(self, "_files", _contents(self.files))
        object.__setattr__(self, "_load", _Load())

    def _box_limits(self) -> ProgramLimits:
        known = [f.name for f in fields(ProgramLimits)]
        given = dict(self.box or {})
        for name in given:
            if name not in known:
                raise UsageError(f"agent-sandboxed: box has {name!r}{did_you_mean(name, known)}")
        limits = {name: getattr(BOX, name) for name in known}
        if self.limits.seconds is not None:
            limits["seconds"] = self.limits.seconds + GRACE  # the episode's own limit comes first
        limits |= given
        return ProgramLimits(
            **{n: v if isinstance(getattr(BOX, n), float) else int(v) for n, v in limits.items()}
        )

    async def _program(self, argv: Sequence[str], stdin: bytes, endpoint: Endpoint) -> Ended:
        load: _Load = self._load  # type: ignore[attr-defined]
        load.agents += 1
        if load.agents > self.sandbox.slots and not load.warned:
            load.warned = True
            log.warning(
                "agent-sandboxed: more agents at one time than the sandbox has slots (%d); the "
                "engine waits for those that wait for a slot: set slots of the sandbox and "
                "batch.concurrency to the same number",
                self.sandbox.slots,
            )
        try:
            return await relay.run(
                self.sandbox,
                endpoint,
                argv,
                stdin,
                self.variables or {},
                files=self._files,  # type: ignore[attr-defined]
                limits=self._box_limits(),
                most=self.max_output,
                most_body=self.gateway.max_bytes,
                result_file=self.result_file,
            )
        except relay.Stopped as e:
            # The programs that the policy has the agent run share its limits.
            if self.crash == "environment" or not endpoint.turns:
                raise EnvironmentFault(str(e)) from e
            raise (PolicyTimeout if e.late else PolicyFault)(str(e)) from e
        finally:
            load.agents -= 1


def _contents(paths: Sequence[str]) -> dict[str, bytes]:
    """Read the files at *paths*, and those below folders, by their path in the box."""
    contents = {}
    for path in paths:
        place = Path(path).resolve()
        if not place.exists():
            raise UsageError(f"agent-sandboxed: files has {path!r}, which does not exist")
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file() and "__pycache__" not in file.parts:
                contents[str(file.relative_to(place.parent))] = file.read_bytes()
    return contents
