"""What a tool-call format is, which ones there are, and which one a chat template writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintain.models import HFTokenizer
from quintain.registry import current

from .adapter import NO_CALLS, NO_TEMPLATE, TokenizerFormat, opens_thought
from .own_call import own_call, reads
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
        """Return this format for the model of *tokenizer*, whatever its chat template writes.

        It is the template's own if it reads the call that the template writes. A template that
        writes none is believed by its marks.
        """
        form = cls(thought_open=opens_thought(tokenizer, cls.THOUGHT))
        written = own_call(tokenizer) if tokenizer.has_template else ""
        template = tokenizer.hf.chat_template
        if written:
            native = reads(cls(), written)
            why = "it reads the call that the chat template writes"
        else:
            native = bool(cls.MARKS) and formats().get(detect(template)) is cls
            why = "the chat template writes no call, but has its marks"
        if not native:
            quoted = ascii(written.strip()[:60])
            why = f"the chat template writes calls otherwise: {quoted}" if written else NO_CALLS
        if not tokenizer.has_template:
            why = NO_TEMPLATE
        name = next((name for name, kind in formats().items() if kind is cls), "")
        return TokenizerFormat(form, tokenizer, native=native, name=name, why=why)


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
        """Return the format with the best evidence of those that read the call which the template
        writes; `FALLBACK` if none reads it, and what `detect` finds if it writes none.
        """
        template, known = tokenizer.hf.chat_template, formats()
        written = own_call(tokenizer) if tokenizer.has_template else ""
        if not written:
            return known[detect(template)].of(tokenizer)
        text = template_text(template)
        ranked = sorted(known, key=lambda name: -known[name].evidence(text))
        name = next((name for name in ranked if reads(known[name](), written)), FALLBACK)
        return known[name].of(tokenizer)


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
