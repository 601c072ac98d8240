"""The call that a chat template writes itself, and whether a format reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from quintain import Message, ToolCall, ToolSpec
from quintain.errors import UsageError
from quintain.models import HFTokenizer

from .text_format import TextFormat, to_json

PROBE = ToolSpec(
    name="probe_tool",
    description="Look a word up.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
)
CALLS = tuple(
    ToolCall(name=PROBE.name, arguments={"word": word}, id=f"call0000{i}")
    for i, word in enumerate(("three", "seven"))
)
QUESTION, REPLY = Message("user", "QUESTION-1"), Message("assistant", "REPLY-1")

HALF_A_MARK = re.compile(r"[<\[][^\s<>\[\]]{0,64}\Z")


def own_call(tokenizer: HFTokenizer) -> str:
    """Return the turn with a call of `PROBE` as the chat template writes it, from the end of the
    prompt to the end of the turn; empty if it writes no call.
    """
    (call,) = CALLS[:1]
    as_text = cast(Mapping[str, Any], to_json(dict(call.arguments)))
    for arguments in (call.arguments, as_text):
        turn = Message("assistant", "", calls=(replace(call, arguments=arguments),))
        try:
            text = written_turn(tokenizer.apply_template, turn, [PROBE])
        except UsageError:
            continue
        # an object that is written as Python writes it was meant to be text
        if "three" in text and PROBE.name in text and "': 'three'" not in text:
            return text
    return ""


def written_turn(
    render: Callable[..., str], turn: Message, tools: Sequence[ToolSpec], opening: str = ""
) -> str:
    """Return *turn* as *render* writes it after a question, from the end of the prompt to the end
    of the turn.

    Args:
        opening: of a thought; where the prompt has an empty thought and the turn another one, the
            turn begins with it.

    Raises:
        UsageError: the chat template refuses the messages.
    """

    def after(*messages: Message, prompt: bool = False) -> str:
        return render([QUESTION, *messages], tools, prompt=prompt).rpartition(QUESTION.content)[2]

    text, prompt = after(turn), after(prompt=True)
    ending = after(REPLY).rpartition(REPLY.content)[2]
    pairs = zip(text, prompt, strict=False)
    shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(prompt)))
    half = HALF_A_MARK.search(text[:shared])
    if half:  # both go on with a mark, but not with the same one
        shared = half.start()
    thought = text.rfind(opening, 0, shared) if opening and shared < len(prompt) else -1
    if thought >= 0:
        shared = thought
    return text[shared:].removesuffix(ending) if ending else text[shared:]


def reads(form: TextFormat, text: str) -> bool:
    """Return whether *form* finds the one call of `own_call` in *text*."""
    calls = form.parse(text, tools=[PROBE]).calls
    return [(c.name, c.arguments, c.error) for c in calls] == [(PROBE.name, CALLS[0].arguments, "")]
