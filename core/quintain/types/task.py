"""Tasks, messages and tool calls."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One tool call of the policy, with its result once it ran."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    result: str | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. ``reasoning`` is the text that a thinking model wrote before
    its reply.
    """

    role: Role
    content: str
    _: dataclasses.KW_ONLY
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of an environment. Subclass it (a frozen keyword-only dataclass) for typed fields.

    ``level`` is a difficulty for curricula. ``id`` identifies the task in every run; by default it
    is a hash of the content, the same in every process.
    """

    prompt: str | Sequence[Message]
    answer: Any = None
    level: float | None = None
    id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            if not isinstance(self.prompt, Iterable):
                raise TypeError(
                    f"the prompt of a task is {self.prompt!r:.40}; expected text, as in "
                    f"prompt=str(...), or messages"
                )
            object.__setattr__(self, "prompt", tuple(self.prompt))
        if not self.id:
            object.__setattr__(self, "id", content_hash(self))


def content_hash(task: Task) -> str:
    """Return 16 hexadecimal digits of SHA-256 over the fields of *task* except ``id``.

    Raises:
        TypeError: a field has no stable JSON form, so the task would get another id in every
            process.
    """
    # The encoder asks `_plain` about what is no plain data. `dataclasses.asdict` would copy all of
    # it first, which takes longer than the rest, and a run begins with thousands of tasks.
    fields = {f.name: getattr(task, f.name) for f in dataclasses.fields(task) if f.name != "id"}
    text = json.dumps(fields, sort_keys=True, ensure_ascii=False, default=_plain)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=lambda v: json.dumps(v, sort_keys=True, default=_plain))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"a task field holds a {type(value).__name__}, which has no stable form; "
        "use plain data (numbers, text, lists, dicts, dataclasses) or set `id` yourself"
    )


def messages_of(prompt: str | Sequence[Message]) -> list[Message]:
    """Return a prompt as messages; text becomes one user message."""
    return [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)
