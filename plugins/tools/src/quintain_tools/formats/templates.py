"""What a chat template does to the tokens of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quintain import Message, Sampled, ToolSpec
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.rollouts import Conversation

from .adapter import SYSTEM, opens_thought
from .own_call import CALLS, PROBE
from .tool_format import template_text

DATES = ("strftime_now", "date_string")


@dataclass(frozen=True, kw_only=True)
class TemplateCase:
    """What happened to one conversation.

    Attributes:
        name: ``dialogue``, ``thought`` (the assistant thinks before each reply), ``tool_block`` (a
            dialogue with tools that are not called) or ``tools`` (a call and its result).
        outcome: the template ``appends`` to what is recorded, ``rewrites`` it, or ``refuses`` the
            messages.
        messages: indices of the messages in which a rewrite begins.
        detail: of a refusal, the template's words.
    """

    name: str
    outcome: Literal["appends", "rewrites", "refuses"]
    messages: tuple[int, ...] = ()
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class TemplateReport:
    """What `examine_template` found.

    ``why`` says why calls are read in ``tool_format``. ``calls`` and ``results`` are
    `Treatment.sampled` and `Treatment.results`; ``system`` says where the text of a system message
    goes.
    """

    tokenizer: str
    template: bool
    tool_format: str
    why: str
    tools_listed: bool
    calls: Literal["text", "data"]
    results: Literal["tool", "user"]
    stops: tuple[tuple[int, str], ...]
    system: Literal["own", "merged", "dropped", "refused"]
    opens_thought: bool
    date_line: bool
    cases: tuple[TemplateCase, ...]

    @property
    def append_only(self) -> bool:
        """Whether every conversation that the template accepts is one branch."""
        return all(case.outcome != "rewrites" for case in self.cases)


def examine_template(tokenizer: HFTokenizer) -> TemplateReport:
    """Hold short conversations with the token bridge and look what the template makes of them;
    samples no model.
    """
    template, form = tokenizer.hf.chat_template, tokenizer.tool_format
    opens = opens_thought(tokenizer, form.form.THOUGHT)
    call = CALLS[0]
    called = form.form.render_calls([call], [PROBE])
    thought = "A-THOUGHT</think>\n\n" if opens else "<think>\nA-THOUGHT\n</think>\n\n"
    result = Message("tool", "RESULT-1", call_id=call.id, name=call.name)
    question = [Message("user", f"QUESTION-{i}") for i in (1, 2, 3)]
    cases = (
        _case("dialogue", tokenizer, [question[0], "REPLY-1", question[1], "REPLY-2", question[2]]),
        _case(
            "thought",
            tokenizer,
            [question[0], f"{thought}REPLY-1", question[1], f"{thought}REPLY-2", question[2]],
        ),
        _case("tool_block", tokenizer, [question[0], "REPLY-1", question[1]], [PROBE]),
        _case("tools", tokenizer, [question[0], called, result, "REPLY-1", question[1]], [PROBE]),
    )
    return TemplateReport(
        tokenizer=tokenizer.name,
        template=tokenizer.has_template,
        tool_format=form.name,
        why=form.why,
        tools_listed=form.treatment.lists_tools,
        calls=form.treatment.sampled,
        results=form.treatment.results,
        stops=tuple((i, tokenizer.decode([i])) for i in tokenizer.stop_ids),
        system=_system(tokenizer),
        opens_thought=opens,
        date_line=any(word in template_text(template) for word in DATES),
        cases=cases,
    )


def _system(tokenizer: HFTokenizer) -> Literal["own", "merged", "dropped", "refused"]:
    user = Message("user", "QUESTION-1")
    try:
        text = tokenizer.render([Message("system", SYSTEM), user])
    except UsageError:
        return "refused"
    if SYSTEM not in text:
        return "dropped"
    # A message of its own leaves something of the template between its text and the user's.
    between = text[text.index(SYSTEM) + len(SYSTEM) : text.index("QUESTION-1")]
    return "own" if between.strip() else "merged"


def _case(
    name: str,
    tokenizer: HFTokenizer,
    turns: Sequence[Message | str],
    tools: Sequence[ToolSpec] = (),
) -> TemplateCase:
    """Hold a conversation; text stands for a turn that the policy sampled."""
    conversation = Conversation(tokenizer, tools)
    messages: list[Message] = []
    expected: list[int] = []
    begins: list[int] = []
    try:
        for turn in turns:
            if isinstance(turn, Message):
                conversation.add(turn)
                messages.append(turn)
                if turn is not turns[-1]:
                    continue
            ids = list(conversation.prompt_ids())
            if expected and ids[: len(expected)] != expected:
                begins.append(_message_at(tokenizer, expected, ids, messages))
            if isinstance(turn, str):
                turn_ids = tokenizer.encode(turn)
                if turn_ids[-1] not in tokenizer.stop_ids:  # as the last token of a call may be
                    turn_ids += _end_of_turn(tokenizer)
                conversation.add_sampled(_sampled(turn_ids, turn_ids[-1:]))
                messages.append(Message("assistant", turn))
                expected = [*ids, *turn_ids]
    except UsageError as e:
        return TemplateCase(name=name, outcome="refuses", detail=str(e))
    return TemplateCase(
        name=name, outcome="rewrites" if begins else "appends", messages=tuple(begins)
    )


def _end_of_turn(tokenizer: HFTokenizer) -> list[int]:
    """Return the id that the template writes after a reply, if it is a stop."""
    text = tokenizer.apply_template(
        [Message("user", "QUESTION-1"), Message("assistant", "REPLY-1")], prompt=False
    )
    written = [i for i in tokenizer.stop_ids if f"REPLY-1{tokenizer.decode([i])}" in text]
    return written[:1] or list(tokenizer.stop_ids[-1:])


def _sampled(ids: Sequence[int], stop: Sequence[int]) -> Sampled:
    zeros = (0,) * len(ids)
    return Sampled(
        ids=tuple(ids),
        logps=(0.0,) * len(ids),
        versions=zeros,
        finish="stop",
        stop=stop[0] if stop else None,
    )


def _message_at(
    tokenizer: HFTokenizer, old: Sequence[int], new: Sequence[int], messages: Sequence[Message]
) -> int:
    """Return the index of the message in which *new* leaves *old*: the first whose text both do not
    share.
    """
    shared = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    before, offset = tokenizer.decode(new[:shared]), 0
    for i, message in enumerate(messages):
        text = message.content.rpartition("</think>")[2].strip()
        place = before.find(text, offset)
        if place < 0:
            return i
        offset = place + len(text)
    return len(messages) - 1
