"""The contract of a tokenizer with a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..types.rollout import Turn
from ..types.task import Message
from ..types.transcript import Finish
from .tools import ToolSpec

Offsets = list[tuple[int, int]]

LITERAL = "\ufdd0"
"""Stands in rendered text inside of a control token that content spells, so that it is encoded as
text; this character is encoded to nothing and has no offset. It is no character of Unicode.
"""


class Renderer(Protocol):
    """Renders a conversation with a prompt, as `ChatTokenizer.render` does, again and again."""

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], known: str) -> str:
        """Return all of it as text; *known* begins with what the last call returned."""


class ChatTokenizer(Protocol):
    """A tokenizer with a chat template, whatever library is behind it.

    Attributes:
        name: identifies vocabulary and template, for transcripts and caches.
        stop_ids: ids that end an assistant's turn (there may be several).
        stops: strings that end an assistant's turn, for templates without a token of their own.
        vocab_size: number of ids.
        appends: a conversation goes on with `continuation`, so that its template rewrites nothing.
    """

    name: str
    stop_ids: tuple[int, ...]
    stops: tuple[str, ...]
    vocab_size: int

    @property
    def appends(self) -> bool: ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of *text*. Adds nothing; special tokens spelled in the text become their
        ids.
        """

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        """Return the ids, and for each the half-open span of characters of *text* it stands for."""

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Return the text of *ids*; *special* false leaves special tokens out."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        """Return the conversation as text; with *prompt* it ends where the assistant's turn begins.

        Control tokens that users, tools and arguments of calls spell hold `LITERAL`.
        """

    def renderer(self) -> Renderer:
        """Return what renders one conversation while it grows; it may keep what it rendered."""

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), *, finish: Finish = "stop") -> Turn:
        """Return the turn of a sampled text, split into reasoning, reply and calls of *tools*.
        Raises nothing.
        """

    def continuation(
        self, messages: Sequence[Message], turn: int, tools: Sequence[ToolSpec], last: int
    ) -> str | None:
        """Render what follows ``messages[turn]``, whose sampled tokens end with *last*: messages
        and the next prompt.

        ``None`` where the template does not show it; then all is rendered. Called if `appends` is
        true.
        """
