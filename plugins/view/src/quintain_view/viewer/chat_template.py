"""A chat template from the command line, for a model that has none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quintain import Message
from quintain.errors import UsageError

if TYPE_CHECKING:
    from quintain.models import HFTokenizer

PLAIN = "User: YOUR TEXT\n\nAssistant:"
"""The form of prompts for a model without a template."""
_MARK = "\x02reply\x03"


def template_of(value: str) -> str:
    """Return the template in the file *value*, or *value* itself.

    Raises:
        UsageError: it is neither a file nor a template, or has a mistake; with its line.
    """
    from jinja2 import Environment, TemplateSyntaxError

    try:
        text = Path(value).read_text(encoding="utf-8") if "{" not in value else value
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise UsageError(
            f"--template {value}: no template in Jinja, and no file of one ({reason})"
        ) from e
    try:
        Environment().parse(text)
    except TemplateSyntaxError as e:
        raise UsageError(f"--template, line {e.lineno}: {e.message}") from e
    return text


def with_template(tokenizer: HFTokenizer, text: str) -> HFTokenizer:
    """Return *tokenizer* with the chat template *text*.

    A reply ends at the special token that the template puts after one; if there is none, at the
    text between a reply and the next question.

    Raises:
        UsageError: the template cannot be rendered.
    """
    tokenizer.hf.chat_template = text
    try:
        changed = type(tokenizer)(tokenizer.hf, stop_ids=tokenizer.stop_ids)
        shown = changed.apply_template(
            [Message("user", "?"), Message("assistant", _MARK), Message("user", _MARK)]
        )
    except UsageError as e:
        raise UsageError(f"--template: {e}") from e
    parts = shown.split(_MARK)
    between = parts[1] if len(parts) == 3 else ""
    tokens = [token.content for token in changed.hf.added_tokens_decoder.values() if token.special]
    if between.strip() and not any(token in between for token in tokens):
        changed.stops = (between.rstrip(),)
    return changed
