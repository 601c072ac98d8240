"""The environment `nemo_gym`: rows of NeMo-Gym, whose server has the tools and the verifier."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from quintain import (
    Agent,
    Environment,
    Limits,
    Message,
    Rollout,
    Score,
    Task,
    ToolCall,
    ToolSpec,
    Turn,
    control,
    reward,
)
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import (
    InfrastructureError,
    LimitReached,
    RewardFault,
    ToolError,
    UsageError,
)

from .server import GymSession, gym_session

ROLES = {"developer": "system", "system": "system", "user": "user"}
ANSWERS = ("expected_answer", "answer", "ground_truth")
"""Fields of a row that may hold its answer."""
MOST_NUMBERS = 256
"""Numbers beside the reward that a verifier may give."""
LARGEST = 1e30
"""That a number of a verifier may be."""


@dataclass(frozen=True, kw_only=True)
class GymRow(Task):
    """A row: *row* is the JSON object of the file."""

    row: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What the verifier said.

    Attributes:
        reward: ``None`` where it said none.
        numbers: its other numbers.
    """

    reward: float | None
    numbers: Mapping[str, float]


@reward
def verified_reward(rollout: Rollout[GymRow, Verified]) -> Score:
    """The reward of the verifier; its other numbers are parts.

    Raises:
        RewardFault: it gave none.
    """
    result = rollout.result
    if result.reward is None:
        raise RewardFault("the verifier of NeMo-Gym gave no reward")
    return Score(value=result.reward, parts=dict(result.numbers))


class NemoGym(Environment[GymRow, Verified]):
    """Rows of a JSON lines file of NeMo-Gym, played with one of its resources servers.

    Attributes:
        url: of the resources server.
        path: file of the rows, each with ``responses_create_params``.
        seconds: that the server may take for an answer.
    """

    reward, limits = verified_reward, Limits(turns=20)

    url: str = "http://127.0.0.1:8080"
    path: str = ""
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.path:
            raise UsageError("nemo_gym: name the rows: --arg path=FILE.jsonl")

    def tasks(self, split: str) -> Iterable[GymRow]:
        return _rows(self.path).get(split, ())

    async def rollout(self, task: GymRow, agent: Agent) -> Verified:
        given: Mapping[str, Any] = task.row["responses_create_params"]
        specs = [_spec(tool) for tool in given.get("tools") or ()]
        async with gym_session(self.url, task.row, seconds=self.seconds) as server:
            agent.user(task.prompt)
            output: list[Mapping[str, Any]] = []
            try:
                while True:
                    turn = await agent.turn(*specs)
                    calls = [await _called(call, server) for call in turn.calls]
                    output += _items(turn, calls, len(output))
                    if not calls:
                        break
                    agent.user(
                        [
                            Message("tool", c.error or c.result or "", call_id=c.id, name=c.name)
                            for c in calls
                        ]
                    )
            except LimitReached:
                if not output:
                    raise
            response = {
                "id": f"resp_{task.id}",
                "created_at": 0,
                "model": "quintain",
                "object": "response",
                "output": output,
                "parallel_tool_calls": True,
                "tool_choice": "auto",
                "tools": given.get("tools") or [],
            }
            said = await server.asked("verify", {**task.row, "response": response})
        return _verified(said, task.row)

    @control()
    def oracle(self, task: GymRow, messages: Sequence[Message]) -> str:
        """Reply with the row's answer, plain and in a box, where it has one."""
        if task.answer is None:
            raise UsageError("the row has no answer, so no reply is known to be right")
        return f"\\boxed{{{task.answer}}}"


def _verified(said: Mapping[str, Any], row: Mapping[str, Any]) -> Verified:
    """Return what the verifier *said* about *row*.

    Raises:
        InfrastructureError: its reward is none, or it gave more numbers than anybody looks at.
    """
    numbers = {
        name: float(value)
        for name, value in said.items()
        if _is_number(value) and name != "reward" and name not in row
    }
    if len(numbers) > MOST_NUMBERS:
        raise InfrastructureError(
            f"the verifier of NeMo-Gym gave {len(numbers)} numbers; expected at most {MOST_NUMBERS}"
        )
    earned = said.get("reward")
    if earned is not None and not _is_number(earned):
        raise InfrastructureError(f"the verifier of NeMo-Gym gave the reward {earned!r:.60}")
    return Verified(reward=None if earned is None else float(earned), numbers=numbers)


def _is_number(value: Any) -> bool:
    """Return whether *value* is a finite number of JSON; ``true`` is none."""
    return type(value) in (int, float) and abs(value) < LARGEST


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=tool["name"],
        description=tool.get("description") or "",
        parameters=tool.get("parameters") or {"type": "object", "properties": {}},
    )


async def _called(call: ToolCall, server: GymSession) -> ToolCall:
    if call.error:
        return call
    try:
        return replace(call, result=await server.call(call.name, call.arguments))
    except ToolError as e:
        return replace(call, error=f"error: {e}")


def _items(turn: Turn, calls: Sequence[ToolCall], number: int) -> list[Mapping[str, Any]]:
    """Return a turn as items of the Responses API."""
    items: list[Mapping[str, Any]] = []
    if turn.reply:
        content = [{"type": "output_text", "text": turn.reply, "annotations": []}]
        items.append(
            {
                "id": f"msg_{number}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    for call in calls:
        name = {"type": "function_call", "call_id": call.id, "name": call.name}
        items.append({**name, "arguments": json.dumps(dict(call.arguments))})
    items += [
        {"type": "function_call_output", "call_id": c.id, "output": c.error or c.result or ""}
        for c in calls
    ]
    return items


@cache
def _rows(path: str) -> Mapping[str, Sequence[GymRow]]:
    """Return the tasks of a file by split, which a hash of the prompt decides.

    Raises:
        UsageError: with all faults of the file.
    """
    splits: dict[str, list[GymRow]] = {"train": [], "dev": [], "test": []}
    with DataFaults(path, "nemo_gym") as faults:
        for where, line in text_lines(Path(path).expanduser(), faults):
            with faults.row(where):
                task = _task(json_object(line), where)
                digest = hashlib.sha256(str(task.prompt).encode()).digest()
                slot = int.from_bytes(digest[:8], "big") % 10
                splits[{0: "dev", 1: "test"}.get(slot, "train")].append(task)
    return splits


def _task(row: Mapping[str, Any], where: str) -> GymRow:
    given = row.get("responses_create_params")
    if not isinstance(given, Mapping) or "input" not in given:
        raise UsageError(f"nemo_gym: {where} has no responses_create_params with an input")
    told = given["input"]
    items = [{"role": "user", "content": told}] if isinstance(told, str) else told
    messages = []
    for item in items:
        content = item.get("content")
        if item.get("role") not in ROLES or not isinstance(content, (str, list)):
            raise UsageError(
                f"nemo_gym: {where} has an input item {str(item)[:60]}; expected messages of "
                "developer, system or user"
            )
        text = content if isinstance(content, str) else "".join(p.get("text", "") for p in content)
        messages.append(Message(ROLES[item["role"]], text))  # type: ignore[arg-type]
    answer = next((row[name] for name in ANSWERS if name in row), None)
    return GymRow(prompt=tuple(messages), answer=answer, row=row)
