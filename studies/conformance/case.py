"""A case: what an agent does, what the policy says, and what a layer needs for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from .client import AgentClient
from .dialects import DIALECTS, DialectName
from .truth import Script, TruthEngine

__all__ = ["CASES", "FEATURES", "CaptureCase", "Feature", "case"]

Feature = Literal[
    "stream",
    "n",
    "stop",
    "max_tokens",
    "token_ids",
    "logprobs",
    "previous_response_id",
    "prefill",
    "tool_choice",
    "versions",
    "temperature",
    "budget",
]
FEATURES: dict[Feature, str] = {
    "stream": "replies as server-sent events",
    "n": "several replies to one request",
    "stop": "stop strings of a request",
    "max_tokens": "a token limit of a request",
    "token_ids": "`return_token_ids` of vLLM",
    "logprobs": "`logprobs` of chat completions",
    "previous_response_id": "the responses API with `previous_response_id`",
    "prefill": "a last message of the assistant",
    "tool_choice": '`tool_choice = "none"`',
    "versions": "the weight version of each token",
    "temperature": "a temperature of the layer's own, other than 1",
    "budget": "a limit on the tokens of an episode",
}
"""What a layer may offer or not, each with what it is. A case that needs one which the layer does
not name is not run.
"""

Program = Callable[[AgentClient], Awaitable[None]]
P = TypeVar("P", bound=Program)


@dataclass(frozen=True, kw_only=True)
class CaptureCase:
    """One row of the table.

    Attributes:
        name, summary: of the row.
        group: heading of the row.
        program: the agent.
        script: of the policy.
        dialects: in which it can be asked.
        streams: whether it asks for streams.
        needs: features of the layer.
        temperature: of the policy; a layer passes it to the engine.
        budget: tokens that the policy may sample in the whole run; a layer sees to it.
        engine: further arguments of `TruthEngine`.
        shown: compare what the client read; not where APIs may show a text in other words, such as
            a call that cannot be read.
    """

    name: str
    summary: str
    group: str
    program: Program
    script: Script
    dialects: tuple[DialectName, ...] = tuple(DIALECTS)
    streams: bool = False
    needs: frozenset[Feature] = frozenset()
    temperature: float = 1.0
    budget: int | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    shown: bool = True

    def truth(self) -> TruthEngine:
        """Return a new engine for one run."""
        return TruthEngine(self.script, **self.engine)


CASES: dict[str, CaptureCase] = {}
"""All cases, in the order of the table."""


def case(
    group: str, script: Script, *, needs: Sequence[Feature] = (), **fields: Any
) -> Callable[[P], P]:
    """Register a program as a case: its name is the function's, its summary the docstring's."""

    def registered(program: P) -> P:
        name = program.__name__.replace("_", "-")
        summary = " ".join((program.__doc__ or "").split()).rstrip(".")
        if name in CASES or not summary:
            raise ValueError(f"the case {name} needs a name of its own and a docstring")
        asked: set[Feature] = {*needs}
        if fields.get("streams"):
            asked.add("stream")
        if fields.get("temperature", 1.0) != 1.0:
            asked.add("temperature")
        if fields.get("budget"):
            asked.add("budget")
        CASES[name] = CaptureCase(
            name=name,
            summary=summary,
            group=group,
            program=program,
            script=script,
            needs=frozenset(asked),
            **fields,
        )
        return program

    return registered
