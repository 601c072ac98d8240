"""Renders one conversation again and again while it grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, Protocol

from ..interfaces.tools import ToolSpec
from ..types.task import Message
from .template_loops import Rendering, observable


class TemplateTokenizer(Protocol):
    """What `GrowingText` asks of `models.tokenizer.HFTokenizer`, whose docstrings say the rest."""

    @property
    def tool_format(self) -> Any: ...

    def marked(self, message: Message) -> Message: ...

    def template_message(self, message: Message) -> dict[str, Any]: ...

    def template_source(self, tools: Sequence[ToolSpec]) -> str: ...

    def template_variables(self, tools: Sequence[ToolSpec]) -> dict[str, Any]: ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str: ...


class GrowingText:
    """Returns what `HFTokenizer.render` does, and keeps what the next call needs again: each
    message in the form of the template, and the passes of the template's loops.

    """

    def __init__(self, tokenizer: TemplateTokenizer) -> None:
        self._tokenizer = tokenizer
        self._given: list[Message] = []
        self._marked: list[Message] = []
        self._prepared: Sequence[Message] = ()
        self._data: list[dict[str, Any]] = []
        self._tools: tuple[ToolSpec, ...] = ()
        self._rendering: Rendering | None = None
        self._source = ""

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], known: str) -> str:
        """Return the conversation as text that ends where the assistant is to speak.

        Args:
            known: a text that begins with the last one that was returned.

        Raises:
            UsageError: as `HFTokenizer.render`.
        """
        tokenizer = self._tokenizer
        try:
            prepared, offered = tokenizer.tool_format.messages(self._with_literals(messages), tools)
            rendering = self._of(offered)
            if rendering is not None:
                return rendering.render(self._as_data(prepared), known)
        except Exception:  # noqa: BLE001 - of the template: it refuses the messages, or a list would do
            self._rendering = None
        return tokenizer.render(messages, tools)

    def _with_literals(self, messages: Sequence[Message]) -> list[Message]:
        """Return *messages* as text of users and tools is marked for the template."""
        kept = len(self._given)
        if kept > len(messages) or not all(map(is_, messages, self._given)):
            kept = 0
        self._marked = self._marked[:kept] + [self._tokenizer.marked(m) for m in messages[kept:]]
        self._given = list(messages)
        return self._marked

    def _as_data(self, prepared: Sequence[Message]) -> list[dict[str, Any]]:
        """Return *prepared* as the template reads it; what was the same message is the same
        object.
        """
        data = [
            old if _identical(message, before) else self._tokenizer.template_message(message)
            for message, before, old in zip(prepared, self._prepared, self._data, strict=False)
        ]
        data += [self._tokenizer.template_message(m) for m in prepared[len(data) :]]
        self._prepared, self._data = list(prepared), data
        return data

    def _of(self, tools: Sequence[ToolSpec]) -> Rendering | None:
        """Return the rendering under way if it offers *tools*, else a new one; ``None`` if the
        template cannot be observed.
        """
        source = self._tokenizer.template_source(tools)
        same_tools = len(tools) == len(self._tools) and all(
            map(_identical_tools, tools, self._tools)
        )
        if self._rendering is None or source != self._source or not same_tools:
            template = observable(source) if source else None
            variables: Mapping[str, Any] = self._tokenizer.template_variables(tools)
            self._rendering = Rendering(template, variables) if template else None
            self._source, self._tools = source, tuple(tools)
        return self._rendering


def _identical(a: Message, b: Message) -> bool:
    """Return whether no template can tell two messages apart; ``True == 1``, so calls are compared
    as text.
    """
    return a is b or (a == b and (not a.calls or repr(a.calls) == repr(b.calls)))


def _identical_tools(a: ToolSpec, b: ToolSpec) -> bool:
    return a is b or (a == b and repr(a) == repr(b))
