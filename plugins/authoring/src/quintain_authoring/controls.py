"""Controls: scripted policies of an environment that check it (`quintain eval --engine
@oracle`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain import Engine, Environment, Message, Reply, Sampling, Task, ToolSpec
from quintain.errors import EnvironmentFault, UnknownNameError, UsageError
from quintain.evaluation import Evaluation, TaskResult, evaluate, first_tasks
from quintain.tracebacks import describe_error
from quintain.types import SCORE_TOLERANCE

__all__ = ["ControlCheck", "ControlEngine", "check_controls"]


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
        return self._environment.control_marks()[self.control]

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
            raise EnvironmentFault(f"the control {where} failed: {describe_error(e)}") from e
        if isinstance(answer, (str, Reply)):
            return answer if isinstance(answer, Reply) else Reply(text=answer)
        raise EnvironmentFault(
            f"the control {self.control!r} gave {answer!r}; expected text or a Reply"
        )


@dataclass(frozen=True, kw_only=True)
class ControlCheck:
    """The evaluation of a control: *scores* is its mark, *wrong* says how it missed that (empty: it
    did not).
    """

    name: str
    scores: str
    evaluation: Evaluation
    wrong: str = ""


async def check_controls(
    environment: Environment[Any, Any], *, count: int = 100, **settings: Any
) -> tuple[ControlCheck, ...]:
    """Evaluate every control of *environment* on the first *count* tasks of a split.

    One marked ``"max"`` must succeed on every task. One marked ``"min"`` must succeed on none, nor
    earn more anywhere than `nop`, which says nothing. A rollout that failed through our fault is
    wrong for any of them.

    Args:
        settings: as for `evaluate`.

    Raises:
        As `evaluate` and `first_tasks`.
    """
    split, name = settings.get("split", "test"), settings.get("name") or type(environment).__name__
    settings["tasks"] = first_tasks(environment, split, name, count)
    controls = environment.control_marks()
    played = {
        n: await evaluate(environment, ControlEngine(environment, n), **settings) for n in controls
    }
    floor = [t.reward for t in played["nop"].results]
    return tuple(
        ControlCheck(
            name=n, scores=controls[n], evaluation=e, wrong=_misbehaviour(controls[n], e, floor)
        )
        for n, e in sorted(played.items(), key=lambda item: (controls[item[0]], item[0]))
    )


def _misbehaviour(scores: str, evaluation: Evaluation, floor: Sequence[float]) -> str:
    if reasons := evaluation.reasons:
        reason, count = next(iter(reasons.items()))
        return f"{count} of {len(evaluation.rollouts)} rollouts failed: {reason}"
    results = evaluation.results
    if scores == "max":
        bad = [t for t in results if t.right < t.samples]
        return f"expected to succeed everywhere, but not on {_some(bad)}" if bad else ""
    if scores == "min":
        bad = [
            t
            for t, low in zip(results, floor, strict=True)
            if t.right or t.reward > low + SCORE_TOLERANCE
        ]
        return f"expected nothing, but was rewarded on {_some(bad)}" if bad else ""
    return ""


def _some(results: Sequence[TaskResult]) -> str:
    shown = ", ".join(f"{t.id} ({t.reward:g})" for t in results[:3])
    return (
        f"{len(results)} task{'s' if len(results) > 1 else ''}: "
        f"{shown}{', ...' if len(results) > 3 else ''}"
    )
