"""Conversations with tools under the chat template of a family, by an engine that says the tokens
it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from quintain import (
    Environment,
    Limits,
    Message,
    Rollout,
    Sampled,
    Sampling,
    Task,
    TokenEngine,
    reward,
)
from quintain.models import HFTokenizer
from quintain.registry import current
from quintain_authoring import run_episode

from .chat_templates import FAMILIES, wear

FORMS = (
    "hermes",
    "qwen3_coder",
    "glm",
    "llama3_json",
    "pythonic",
    "mistral",
    "deepseek",
    "harmony",
    "tags",
)


@cache
def tokenizer_with(name: str, form: str = "auto") -> HFTokenizer:
    """The tokenizer of a family that reads and writes calls in *form*, built once."""
    hf = wear(FAMILIES[name])
    tokenizer = HFTokenizer(
        hf, stop_ids=[hf.convert_tokens_to_ids(t) for t in FAMILIES[name].stops]
    )
    tokenizer.use_tool_format(form)
    return tokenizer


def controls(tokenizer: HFTokenizer) -> dict[int, str]:
    """The ids that no text of a user or a tool may become."""
    return {i: token.content for i, token in tokenizer.hf.added_tokens_decoder.items()}


@reward
def nothing(rollout: Rollout) -> float:
    return 0.0


class Talk(Environment[Task, Any]):
    """Several questions, each answered with two tools; a tool says what *said* has next."""

    reward = nothing
    limits = Limits(turns=12)
    questions: Sequence[str] = ("one",)
    said: Sequence[str] = ("fine",)
    system: str = ""

    def tasks(self, split: str) -> list[Task]:
        return [Task(prompt="?")]

    async def rollout(self, task: Task, agent: Any) -> None:
        results = iter([*self.said, *["nothing more"] * 100])

        async def look(word: str) -> str:
            """Look a word up."""
            return next(results)

        async def now() -> str:
            """The time."""
            return next(results)

        for question in self.questions:
            agent.user(question)
            await agent.run(look, now)


@dataclass
class Teller(TokenEngine):
    """Says the *turns*, then ``ok``; each token with a log-prob of its own. *heard* has the ids of
    each prompt.
    """

    tokenizer: HFTokenizer
    turns: Sequence[Sequence[int]]
    context: int = 1 << 20
    heard: list[tuple[list[int], Sampled]] = field(default_factory=list)

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        stops = set(self.tokenizer.stop_ids)
        at = len(self.heard)
        said = (
            list(self.turns[at])
            if at < len(self.turns)
            else [*self.tokenizer.encode("ok"), self.tokenizer.stop_ids[0]]
        )
        end = next((i + 1 for i, token in enumerate(said) if token in stops), 0)
        said = said[: end or None]
        logps = tuple(-1.0 - (1000 * at + i) / 2**20 for i in range(len(said)))
        sampled = Sampled(
            ids=tuple(said),
            logps=logps,
            versions=(at,) * len(said),
            finish="stop" if end else "length",
            stop=said[-1] if end else None,
        )
        self.heard.append((list(ids), sampled))
        self.version = at
        return sampled

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        raise NotImplementedError

    async def update(self, weights: Any) -> int:
        raise NotImplementedError


def check(rollout: Rollout, heard: Sequence[tuple[list[int], Sampled]]) -> None:
    """Each sampled token trains once, unchanged, with its log-prob and version, after exactly what
    the policy read.
    """
    expected = [
        (tuple(ids) + sampled.ids[:i], sampled.ids[i], sampled.logps[i], sampled.versions[i])
        for ids, sampled in heard
        for i in range(len(sampled.ids))
    ]
    transcript = rollout.transcripts[""]
    rows = transcript.sequences()
    trained = [
        (row.ids[:i], row.ids[i], row.logps[i], row.versions[i])
        for row in rows
        for i, mask in enumerate(row.mask)
        if mask
    ]

    assert sorted(expected) == sorted(trained)
    assert transcript.sampled == len(expected)


def talked(environment: Talk, engine: Teller) -> Rollout:
    """The rollout of an episode, which the policy may end in any way that is its own doing."""
    rollout = run_episode(environment, Task(prompt="?"), engine)
    assert rollout.termination.kind in ("finished", "truncated", "policy_fault"), (
        rollout.termination
    )
    return rollout


def component(name: str) -> Any:
    return current().load("tool_format", name)()


__all__ = [
    "FORMS",
    "Message",
    "Talk",
    "Teller",
    "check",
    "component",
    "controls",
    "talked",
    "tokenizer_with",
]
