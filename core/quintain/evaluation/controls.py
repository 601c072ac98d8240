"""Controls: scripted policies of an environment that check it (`quintain eval --engine
@oracle`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from ..errors import EnvironmentFault, UnknownNameError, UsageError
from ..interfaces.engine import Engine, Reply
from ..interfaces.environment import Environment
from ..interfaces.tools import ToolSpec
from ..tracebacks import said_by
from ..types.sampling import Sampling
from ..types.task import Message, Task


class ControlEngine(Engine):
    """Answers as the control *name* of *environment* does; episodes bind it to their task with
    `for_task`.

    Raises:
        UnknownNameError: the environment has no such control.
    """

    def __init__(self, environment: Environment[Any, Any], name: str) -> None:
        self.control = name.removeprefix("@")
        self.name = f"@{self.control}"
        self._environment = environment
        self._task: Task | None = None
        self._player: dict[str, str] = {}  # keyword arguments of a control that knows the player
        controls = environment.controls()
        if self.control not in controls:
            hint = f"{type(environment).__name__} has: {', '.join(controls)}"
            raise UnknownNameError.of("control", self.control, controls, hint)

    @property
    def scores(self) -> str:
        """What it is expected to score: ``"max"``, ``"min"``, or nothing in particular."""
        return self._environment.controls()[self.control]

    def for_task(self, task: Task) -> ControlEngine:
        """Return the engine of one episode."""
        bound = copy.copy(self)
        bound._task = task
        return bound.for_player("")

    def for_player(self, name: str) -> ControlEngine:
        """Return the engine of one player; a control with the parameter `player` gets its name."""
        bound = copy.copy(self)
        method = getattr(self._environment, self.control)
        bound._player = {"player": name} if "player" in inspect.signature(method).parameters else {}
        return bound

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Reply:
        if self._task is None:
            raise UsageError(f"{self.name} answers single tasks: bind it with for_task(task)")
        try:
            answer = getattr(self._environment, self.control)(self._task, messages, **self._player)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as e:
            where = f"{type(self._environment).__name__}.{self.control}"
            raise EnvironmentFault(f"the control {where} failed: {said_by(e)}") from e
        if isinstance(answer, (str, Reply)):
            return answer if isinstance(answer, Reply) else Reply(text=answer)
        raise EnvironmentFault(
            f"the control {self.control!r} gave {answer!r}; expected text or a Reply"
        )
