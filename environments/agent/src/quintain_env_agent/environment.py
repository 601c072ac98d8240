"""The environment `agent`: tasks, one run of the agent per episode, its answer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from quintain import (
    Demonstration,
    Environment,
    Limits,
    Message,
    PolicyFault,
    Reply,
    Rollout,
    Task,
    control,
    need,
    reward,
)
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import EnvironmentFault, QuintainError, UsageError
from quintain.registry import current
from quintain.types import messages_of
from quintain_gateway import Endpoint, Gateway

from . import functions, processes

DEMONSTRATOR = "demonstrator"
"""The control of a source whose replies, in episodes of the agent, are demonstrations."""

_SHARES = {"dev": (80, 90), "test": (90, 100), "train": (0, 80)}


@dataclass(frozen=True, kw_only=True)
class AgentOutput:
    """What an agent leaves.

    Attributes:
        answer: what its function returned, or the file or standard output of its program, without
            blanks at the ends.
        stdout, stderr: of a program.
    """

    answer: str = ""
    stdout: str = ""
    stderr: str = ""


@reward(range=(0, 1))
def right_answer(rollout: Rollout[Task, AgentOutput]) -> float:
    """Return 1 if the agent's answer is the task's, as text without blanks at the ends, else 0."""
    return float(rollout.result.answer == str(rollout.task.answer).strip())


class AgentProgram(Environment[Task, AgentOutput]):
    """Runs an agent per task, unchanged: the policy answers what it asks of its OpenAI-compatible
    endpoint.

    A function is called with the prompt and the endpoint (``base_url``, ``api_key``); one that is
    not async runs in a thread. A program gets the prompt on standard input and for ``{prompt}`` in
    *argv*, and finds the endpoint in ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, or
    ``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY``; it runs with the rights of the trainer, in a
    folder of its own.

    Attributes:
        function: ``module:function`` or ``file.py:function``.
        argv: the program, in place of a function. Words that name a file, such as a script, are
            made absolute.
        source: environment whose tasks, demonstrations and controls these are.
        source_args: its arguments.
        data: JSON lines with ``prompt``, ``answer`` and perhaps ``id``, ``level``, ``split``, in
            place of *source*.
        result_file: path in the program's folder of its answer; empty takes standard output.
        variables: further environment variables of a program.
        crash: whose failure it is if the agent raises, or exits with a status other than 0.
            ``cause``: the policy's, which is scored, right after a turn that is not what the agent
            had asked for, such as a call of a tool that there is not (`Endpoint.fault`); else the
            environment's, which masks the episode. ``policy``: the policy's after any turn.
            ``environment``: always the environment's, as is then the time that the agent takes
            after a turn, which else counts as the policy's (`Agent.policy_time`).
        max_output: bytes of each stream of a program that are kept.
    """

    reward, limits = right_answer, Limits(turns=32)

    gateway: Gateway = need()
    function: str = ""
    argv: tuple[str, ...] = ()
    source: str = ""
    source_args: Mapping[str, Any] | None = None
    data: str = ""
    result_file: str = ""
    variables: Mapping[str, str] | None = None
    crash: Literal["cause", "environment", "policy"] = "cause"
    max_output: int = 1_000_000
    # Fields, so that the cache of warm starts depends on their code.
    _function: Callable[..., Any] | None = field(default=None, init=False, repr=False)
    _source: Environment[Any, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if bool(self.function) == bool(self.argv):
            raise UsageError(
                "agent: set either function (module:function or file.py:function) or argv (a "
                "program)"
            )
        if bool(self.source) == bool(self.data):
            raise UsageError(
                "agent: set either source (an environment that has the tasks) or data (JSON lines)"
            )
        object.__setattr__(
            self, "_function", functions.load(self.function) if self.function else None
        )
        source = self._made() if self.source else None
        object.__setattr__(self, "_source", source)
        if source and DEMONSTRATOR in source.controls():
            # Of this instance alone: a source without it has written demonstrations, or none.
            object.__setattr__(self, DEMONSTRATOR, getattr(source, DEMONSTRATOR))
            object.__setattr__(self, "controls", self._with_demonstrator)

    def tasks(self, split: str) -> Iterable[Task]:
        return self._source.tasks(split) if self._source else _rows(self.data, split)

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        return self._source.demonstrations(split) if self._source else ()

    @control(scores="max")
    def oracle(self, task: Task, messages: Sequence[Message]) -> str | Reply:
        """Reply as the oracle of the source does; without a source, with the answer."""
        return self._source.oracle(task, messages) if self._source else str(task.answer)

    def _with_demonstrator(self) -> Mapping[str, str]:
        return {**type(self).controls(), DEMONSTRATOR: ""}

    async def rollout(self, task: Task, agent: Any) -> AgentOutput:
        acts = self.crash != "environment"
        async with self.gateway.endpoint(agent, acts=acts) as endpoint:
            if self._function:
                return await self._called(self._function, task, endpoint)
            return await self._run(task, endpoint)

    async def _called(
        self, function: Callable[..., Any], task: Task, endpoint: Endpoint
    ) -> AgentOutput:
        functions.bypass_proxy(endpoint.base_url)
        try:
            value = await functions.call(function, _text(task), endpoint)
        except QuintainError:
            raise
        except Exception as e:
            raise self._fault(f"the agent raised {type(e).__name__}: {e}", endpoint) from e
        return AgentOutput(
            answer=(value if isinstance(value, str) else json.dumps(value, default=str)).strip()
        )

    async def _run(self, task: Task, endpoint: Endpoint) -> AgentOutput:
        prompt = _text(task)
        argv = [word.replace("{prompt}", prompt.replace("\0", "")) for word in self.argv]
        ended = await self._program(argv, prompt.encode("utf-8", "replace"), endpoint)
        if ended.status != 0:
            error_lines = ended.stderr.strip().splitlines()[-1:] or [
                "it wrote nothing to standard error"
            ]
            raise self._fault(
                f"the agent's program exited with status {ended.status}: {error_lines[0][:300]}",
                endpoint,
            )
        answer = ended.file if self.result_file else ended.stdout
        return AgentOutput(answer=answer.strip(), stdout=ended.stdout, stderr=ended.stderr)

    async def _program(
        self, argv: Sequence[str], stdin: bytes, endpoint: Endpoint
    ) -> processes.Ended:
        variables = {**(self.variables or {}), **endpoint.environment}
        argv = [self._located(i, word) for i, word in enumerate(argv)]
        return await processes.run(
            argv, stdin, variables, most=self.max_output, result_file=self.result_file
        )

    def _located(self, place: int, word: str) -> str:
        """Return a word of *argv*, absolute if it names a file as seen from here, for the program
        runs in another folder.

        The name of a program is looked up in ``PATH``, and no text of a task counts.
        """
        named = word == self.argv[place] and (place > 0 or os.sep in word) and os.path.isfile(word)
        return os.path.abspath(word) if named else word

    def _fault(self, message: str, endpoint: Endpoint) -> Exception:
        if self.crash == "cause" and endpoint.fault:
            return PolicyFault(f"{endpoint.fault}, and {message}")
        return (
            PolicyFault(message)
            if self.crash == "policy" and endpoint.turns
            else EnvironmentFault(message)
        )

    def _made(self) -> Environment[Any, Any]:
        component = current().load("environment", self.source)
        if not (isinstance(component, type) and issubclass(component, Environment)):
            raise UsageError(f"agent: source {self.source!r} is no environment")
        try:
            environment: Environment[Any, Any] = component(**dict(self.source_args or {}))
        except TypeError as e:
            raise UsageError(f"agent: source_args do not fit {self.source!r}: {e}") from e
        return environment


def _text(task: Task) -> str:
    return "\n\n".join(m.content for m in messages_of(task.prompt))


def _rows(path: str, split: str) -> list[Task]:
    """Return the tasks of a file in *split*; a row without one falls to train, dev or test (80, 10,
    10 %) by its content.
    """
    tasks: list[tuple[str, Task]] = []
    first: dict[str, str] = {}
    with DataFaults(path, "agent") as faults:
        for where, line in text_lines(Path(path), faults):
            with faults.row(where):
                row = json_object(line)
                if not isinstance(row.get("prompt"), str) or "answer" not in row:
                    raise UsageError("expected an object with a text prompt and an answer")
                given = ("prompt", "answer", "id", "level")
                task = Task(**{k: row[k] for k in given if row.get(k) is not None})
                if "id" in row:
                    faults.repeated(first, task.id, where)
                tasks.append((row.get("split") or _split(task), task))
    return [task for part, task in tasks if part == split]


def _split(task: Task) -> str:
    share = int(hashlib.sha256(str(task.prompt).encode()).hexdigest()[:8], 16) % 100
    return next(name for name, (low, high) in _SHARES.items() if low <= share < high)
