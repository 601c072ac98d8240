"""What a tool-call format is, which ones there are, and which one a chat template writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintain.models import HFTokenizer
from quintain.registry import current

from .adapter import TokenizerFormat, opens_thought
from .text_format import TextFormat

AUTO = "auto"

FALLBACK = "tags"
"""The format for templates without tools, and for tokenizers without a template."""


class ToolFormat(TextFormat):
    """One way to write tool calls; subclass it, and declare in `MARKS` what shows it in a chat
    template.

    Attributes:
        thought_open: the template's generation prompt already opened the thought, so that the
            sampled text only closes it.
    """

    @classmethod
    def of(cls, tokenizer: HFTokenizer) -> TokenizerFormat:
        """Return this format for the model of *tokenizer*, whatever its chat template writes."""
        native = formats().get(detect(tokenizer.hf.chat_template)) is cls
        return TokenizerFormat(cls(thought_open=opens_thought(tokenizer)), tokenizer, native=native)


def template_text(chat_template: str | Mapping[str, str] | None) -> str:
    """Return the text of a tokenizer's ``chat_template``, which may be several by name."""
    if isinstance(chat_template, Mapping):
        return "\n".join(map(str, chat_template.values()))
    return chat_template or ""


def detect(chat_template: str | Mapping[str, str] | None) -> str:
    """Return the name of the installed format whose marks fill most of *chat_template*; `FALLBACK`
    if none occurs.

    ``<tool_call>`` alone is Hermes; with ``<function=`` beside it, the longer evidence decides for
    Qwen3-Coder.

    Raises:
        PluginError: an installed format cannot be imported.
    """
    template = template_text(chat_template)
    scores = {name: kind.evidence(template) for name, kind in formats().items()}
    best = max(scores, key=lambda name: scores[name], default=FALLBACK)
    return best if scores.get(best) else FALLBACK


def formats() -> dict[str, type[ToolFormat]]:
    """Return every installed format by name.

    Raises:
        PluginError: one cannot be imported.
    """
    return {
        c.name: current().resolve(c) for c in current().components("tool_format") if c.name != AUTO
    }


class Auto:
    """The format that the chat template of a tokenizer writes."""

    @staticmethod
    def of(tokenizer: HFTokenizer) -> TokenizerFormat:
        """Return `ToolFormat.of` of the detected format."""
        return formats()[detect(tokenizer.hf.chat_template)].of(tokenizer)


def tool_format(name: str = AUTO, *, chat_template: Any = None, **settings: Any) -> ToolFormat:
    """Return the format called *name* with its *settings*; ``auto`` is that of *chat_template*.

    Raises:
        UnknownNameError: no format has the name.
        PluginError: it cannot be imported.
    """
    kind: type[ToolFormat] = current().load(
        "tool_format", detect(chat_template) if name == AUTO else name
    )
    return kind(**settings)
