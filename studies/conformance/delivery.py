"""Compares what the client sent and read with what the engine got and said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from quintain import Message

from .client import Exchange
from .comparison import TokenDifference
from .tokenizer import MergingTokenizer
from .truth import SampledTurn, said

__all__ = ["delivered"]


def delivered(
    tokenizer: MergingTokenizer,
    log: Sequence[SampledTurn],
    read: Sequence[Exchange],
    *,
    unread: set[int],
    shown: bool = True,
) -> list[TokenDifference]:
    """Return replies that no turn of *log* said, turns that no client read, and replies to another
    prompt than the client sent. A layer may answer a repeated request with the same turn.

    Args:
        unread: numbers of turns that need not be read.
        shown: compare texts, calls and stop reasons; else the prompts alone.
    """
    differences = []
    for exchange in read:
        content = exchange.reply.content
        turns = [turn for turn in log if _same(turn, exchange) or not shown]
        if not turns:
            text = f"the client read {content!r:.300}, which no turn said"
            differences.append(TokenDifference("replies", text))
            continue
        wrong = [prompt_mismatch(tokenizer, turn.context, exchange.messages) for turn in turns]
        if all(wrong):
            differences.append(TokenDifference("prompts", f"{wrong[-1]}; reply {content!r:.200}"))
    for number, turn in enumerate(log if shown else ()):
        if number not in unread and not any(_same(turn, exchange) for exchange in read):
            text = f"turn {number + 1}, {turn.received.content!r:.300}, was not read"
            differences.append(TokenDifference("replies", text))
    return differences


def _same(turn: SampledTurn, exchange: Exchange) -> bool:
    expected, actual = turn.received.content, exchange.reply.content
    return expected == actual if exchange.reply.stop else expected[:-1] == actual[:-1]


def prompt_mismatch(
    tokenizer: MergingTokenizer, context: Sequence[int], messages: Sequence[Message]
) -> str:
    """Return what of *messages* the tokens before a turn do not say, or say too much; empty if
    nothing. Blanks are not compared.
    """
    conversation = said(tokenizer, context)
    users = [m.content for m in conversation if m.role == "user"]
    got = _solid("".join(text for text in users if not text.startswith("<tool_response>")))
    sent = _solid("".join(m.content for m in messages if m.role == "user"))
    if got != sent:
        return f"the user said {sent[-200:]!r}, the engine got {got[-200:]!r}"
    turns = [sum(m.role == "assistant" for m in part) for part in (messages, conversation)]
    if turns[0] != turns[1]:
        return f"the client sent {turns[0]} turns of the assistant, the engine got {turns[1]}"
    text, at = _solid(tokenizer.decode(context)), 0
    for m in messages:
        before = at
        # a client reads a turn without the calls that stood within its text
        for part in m.content.split() if m.role == "assistant" else [m.content]:
            if (found := text.find(_solid(part), at)) < 0:
                return f"the engine did not get {part[:200]!r} of the {m.role}"
            at = found
        for value in _values(m):
            if not any(_solid(form) in text[before:] for form in _forms(value)):
                return f"the engine did not get the argument {value!r}"
    return ""


def _values(message: Message) -> Iterator[object]:
    for call in message.calls:
        yield from (v for v in call.arguments.values() if isinstance(v, str | int | float))


def _forms(value: object) -> tuple[str, ...]:
    """Return how a template may write an argument."""
    return str(value), json.dumps(value), json.dumps(value, ensure_ascii=False)


def _solid(text: str) -> str:
    return "".join(text.split())
