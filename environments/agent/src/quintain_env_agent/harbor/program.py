"""The environment `harbor-agent`: any agent program works in the containers of `harbor`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from quintain import Agent, need
from quintain.errors import EnvironmentFault, UsageError
from quintain_gateway import Gateway

from .. import run_program
from .config import TaskStep
from .environment import Harbor
from .trial import Trial

OUTPUT = 1_000_000
"""Bytes of each stream of a program that are kept."""


class HarborAgent(Harbor):
    """Runs an agent program per task, unchanged, on this machine: the policy answers what it asks of
    its endpoint, and it works in the task's container with ``docker exec``.

    The program has your rights and the engine; what the policy has it run is in the container, if
    the program runs all of it there. It finds the endpoint as a program of `agent` does, the
    container in ``QUINTAIN_CONTAINER`` and the engine in ``DOCKER_HOST``. In *argv*, ``{prompt}``
    is the instruction, ``{container}`` the container and ``{workdir}`` its working directory.

    Attributes:
        argv: the program.
        agent_variables: further environment variables of it.
    """

    gateway: Gateway = need()
    argv: tuple[str, ...] = ()
    agent_variables: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.argv:
            raise UsageError("harbor-agent: set argv, the agent's program")
        if self.pictures:
            raise UsageError("harbor-agent: pictures is for harbor; the program sends its images")

    async def attempt(self, trial: Trial, step: TaskStep | None, agent: Agent) -> int:
        """Run the program; how many turns it took. One that fails after a turn is graded by what it
        left in the container, as Harbor does.

        Raises:
            EnvironmentFault: it failed before the policy's first turn.
        """
        prompt = trial.folder.instruction(step)
        words = {
            "{prompt}": prompt.replace("\0", ""),
            "{container}": trial.container.id,
            "{workdir}": trial.container.workdir,
        }
        argv = [self._located(place, word) for place, word in enumerate(self.argv)]
        for key, value in words.items():
            argv = [word.replace(key, value) for word in argv]
        async with self.gateway.endpoint(agent) as endpoint:
            variables = {
                **(self.agent_variables or {}),
                **endpoint.environment,
                "QUINTAIN_CONTAINER": trial.container.id,
                "DOCKER_HOST": self.containers.address,
            }
            ended = await run_program(argv, prompt.encode(), variables, most=OUTPUT)
            turns = endpoint.turns
        if ended.status != 0 and not turns:
            said = ended.stderr.strip()[-300:]
            raise EnvironmentFault(
                f"the agent's program exited with status {ended.status} before a turn: {said}"
            )
        return int(turns)

    def _located(self, place: int, word: str) -> str:
        """Return a word of *argv*, absolute if it names a file: the program runs elsewhere."""
        named = (place > 0 or os.sep in word) and os.path.isfile(word)
        return os.path.abspath(word) if named else word
