"""A format together with a tokenizer: what its chat template does with calls, and messages prepared
for it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, cast

from quintain import Message, ToolCall, ToolSpec, Turn
from quintain.errors import UsageError
from quintain.models import HFTokenizer

from .own_call import CALLS, PROBE, QUESTION, REPLY
from .text_format import TextFormat, to_json
from .values import unknown_types

RESULTS = tuple(
    Message("tool", f"RESULT-{i + 1}", call_id=c.id, name=c.name) for i, c in enumerate(CALLS)
)
SYSTEM, BROKEN = "SYSTEM-PROBE", "BROKEN-CALL"
LATER = (REPLY, Message("user", "QUESTION-2"))

NO_CALLS = "the chat template writes no calls"
NO_TEMPLATE = "there is no chat template"
"""Reasons for a choice (`TokenizerFormat.why`)."""

UNREADABLE = "unreadable"
"""Name of a call that has none, where a template takes calls as data."""


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """What a chat template does with tools, found by rendering short conversations.

    Attributes:
        lists_tools: it writes the tools that are offered.
        sampled: a sampled turn is given to it as the ``text`` that the policy wrote, or as
            ``data``: reply, thought and calls.
        given: the same for calls of a message that the policy did not sample.
        results: the role of the messages with results of tools.
        arguments: those of a call that is data are an ``object`` or its JSON as ``text``.
        faults: arguments may be text that is no JSON.
        parallel: a message that is data may have several calls.
        system: there may be a system message.
        alternates: two messages of the user in a row are refused.
    """

    lists_tools: bool = False
    sampled: Literal["text", "data"] = "text"
    given: Literal["text", "data"] = "text"
    results: Literal["tool", "user"] = "tool"
    arguments: Literal["object", "text"] = "object"
    faults: bool = True
    parallel: bool = True
    system: bool = True
    alternates: bool = False


class TokenizerFormat:
    """Reads the calls of a tokenizer's model, and prepares messages for its chat template.

    Recorded tokens are never touched: prepared messages are only rendered, and where the rendering
    differs from what was sampled, the token bridge branches.
    """

    def __init__(
        self,
        form: TextFormat,
        tokenizer: HFTokenizer,
        *,
        native: bool,
        name: str = "",
        why: str = "",
    ) -> None:
        """Use the format *form*; with *native*, the chat template writes calls in it, too.

        Args:
            name: of the component.
            why: the reason for the choice, as users read it.
        """
        self.form, self.native, self._tokenizer = form, native, tokenizer
        self.name, self.why = name or type(form).__name__, why
        self._told = set[str]()

    @property
    def note(self) -> str:
        """`summary` as a run prints it; empty where the chat template knows no tools."""
        return f"tool calls: {self.summary}" if self.why not in (NO_CALLS, NO_TEMPLATE) else ""

    @property
    def summary(self) -> str:
        """One line that says in which format calls are read, and why."""
        described = "" if self.treatment.lists_tools else "; a message describes the tools"
        return f"{self.name}{described}: {self.why}"

    def parse(self, text: str, *, tools: Sequence[ToolSpec] = (), **turn_fields: Any) -> Turn:
        """Parse *text* as `TextFormat.parse` does."""
        return self.form.parse(text, tools=tools, **turn_fields)

    def messages(
        self, given: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Sequence[Message], Sequence[ToolSpec]]:
        """Return what the chat template gets. Contents of users and tools are marked as text
        already (`LITERAL`).

        Where the template does not list the tools in this format, the system message describes
        them.
        """
        self._tell(tools)
        treatment, prepared, i = self.treatment, list[Message](), 0
        described = bool(tools) and not treatment.lists_tools
        plain = (
            treatment.sampled == "text" and treatment.results == "tool" and not treatment.alternates
        )
        if plain and not described and not any(m.calls for m in given):
            return given, tools
        while i < len(given):
            message, end = given[i], i + 1
            while end < len(given) and given[end].role == "tool":
                end += 1
            if message.role == "assistant":
                prepared.extend(
                    self._exchange(message, given[i + 1 : end], tools, open_end=end == len(given))
                )
            elif message.role == "tool":
                prepared.extend(self._results(given[i:end], has_calls=treatment.sampled == "text"))
            else:
                prepared.append(message)
                end = i + 1
            i = end
        if described:
            self._describe(prepared, tools)
        return _merged(prepared) if treatment.alternates else prepared, () if described else tools

    def _tell(self, tools: Sequence[ToolSpec]) -> None:
        """Log once for each schema what its author has to mend, before the policy writes a call."""
        for tool in tools:
            if tool.name in self._told:
                continue
            self._told.add(tool.name)
            for fault in unknown_types(tool.parameters):
                logging.getLogger(__name__).warning(
                    "tool %s: %s; every value is accepted there", tool.name, fault
                )

    def _exchange(
        self,
        message: Message,
        results: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        open_end: bool,
    ) -> Iterator[Message]:
        """Yield a turn of the assistant and the results of its calls."""
        treatment = self.treatment
        if treatment.sampled == "data" and not message.calls:
            message = self._as_data(message, tools, answered=bool(results) or open_end)
        elif message.calls and treatment.given == "text":
            literal = self._tokenizer.literal
            calls = tuple(
                replace(call, arguments=literal(dict(call.arguments))) for call in message.calls
            )
            text = "\n".join(filter(None, [message.content, self.form.render_calls(calls, tools)]))
            message = replace(message, content=text, calls=())
        calls = tuple(self._call(call) for call in message.calls)
        has_calls = treatment.sampled == "text" or bool(calls)
        rows = list(self._results(results, has_calls=has_calls))
        if len(calls) < 2 or treatment.parallel:
            yield replace(message, calls=calls)
            yield from rows
            return
        for call, row in zip_longest(calls, rows[: len(calls)]):
            yield replace(message, calls=(call,))
            message = Message("assistant", "")
            yield from [row] if row else []
        yield from rows[len(calls) :]

    def _as_data(self, message: Message, tools: Sequence[ToolSpec], *, answered: bool) -> Message:
        """Return a sampled turn as reply, thought and calls; calls that nothing answers stay text,
        for roles to alternate.
        """
        turn, sources = self.form.read(message.content, tools=tools)
        literal = self._tokenizer.literal
        content = literal(message.content)
        if (turn.calls and not answered) or (
            content == message.content and turn.reply == content.strip()
        ):
            return replace(message, content=content)
        calls = [
            replace(c, arguments=self._fault(source)) if c.error else c
            for c, source in zip(turn.calls, sources, strict=True)
        ]
        return Message(
            "assistant", literal(turn.reply), reasoning=literal(turn.reasoning), calls=tuple(calls)
        )

    def _fault(self, source: str) -> Any:
        """Return the arguments of a call that cannot be read, whose text is *source*."""
        return source if self.treatment.faults else {"text": source}

    def _call(self, call: ToolCall) -> ToolCall:
        arguments: Any = call.arguments
        if self.treatment.arguments == "text" and not isinstance(arguments, str):
            arguments = to_json(dict(arguments))
        return replace(
            call, name=call.name or UNREADABLE, id=self._id(call.id), arguments=arguments
        )

    def _id(self, text: str) -> str:
        """Return *text* if the format has such ids, or nine letters and digits that stand for
        it.
        """
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return text if self.form.ID.fullmatch(text) else digest[:9]

    def _results(self, results: Sequence[Message], *, has_calls: bool) -> Iterator[Message]:
        """Yield *results* as the template takes them; of the user unless *has_calls*."""
        marked = not self.treatment.lists_tools
        for m in results:
            call = ToolCall(name=m.name or UNREADABLE, id=self._id(m.call_id))
            as_user = self.treatment.results == "user" or not has_calls
            content = self.form.render_result(call, m.content) if marked or as_user else m.content
            yield replace(
                m,
                role="user" if as_user else "tool",
                content=content,
                call_id=call.id,
                name=call.name,
            )

    def _describe(self, prepared: list[Message], tools: Sequence[ToolSpec]) -> None:
        """Write *tools* into the system message, or before the first message of the user where
        there may be none.
        """
        literal = self._tokenizer.literal
        safe = [
            replace(t, description=literal(t.description), parameters=literal(dict(t.parameters)))
            for t in tools
        ]
        description = self.form.describe(safe)
        role: Literal["system", "user"] = "system" if self.treatment.system else "user"
        index = next((i for i, m in enumerate(prepared) if m.role == role), -1)
        if index < 0:
            prepared.insert(0, Message(role, description))
        elif role == "system":
            prepared[index] = replace(
                prepared[index], content=f"{prepared[index].content}\n\n{description}"
            )
        else:
            prepared[index] = replace(
                prepared[index], content=f"{description}\n\n{prepared[index].content}"
            )

    def continuation(
        self, messages: Sequence[Message], turn: int, tools: Sequence[ToolSpec], last: int
    ) -> str | None:
        """Return what the chat template writes after ``messages[turn]``: later messages and the
        next generation prompt.

        A turn that ends with a mark stands in the place of the sampled one; it has calls of the
        same tools where the template gets calls as data and results follow. What the template
        writes behind the mark, it writes behind every turn. *last*, the last sampled token, stands
        for the token that ends a turn in the template.
        """
        later = messages[turn + 1 :]
        mark = (
            "END"
            + hashlib.sha256(
                repr([m.content for m in messages]).encode("utf-8", "surrogatepass")
            ).hexdigest()
        )
        marked, calls = Message("assistant", mark), tuple[ToolCall, ...]()
        if self.treatment.sampled == "data" and later and later[0].role == "tool":
            calls = self.form.read(messages[turn].content, tools=tools)[0].calls
            if len(calls) > 1 and not self.treatment.parallel:
                return None  # each call stands before its own result
            marked_calls = tuple(replace(c, arguments={"mark": mark}, error="") for c in calls)
            marked = Message("assistant", "", calls=marked_calls) if calls else marked
        given = [*messages[:turn], marked]
        closed = self._tokenizer.render(given, tools, prompt=False).rpartition(mark)
        opened = self._tokenizer.render([*given, *later], tools).rpartition(mark)
        return self._behind(closed[2], opened[2], last) if closed[1] and opened[1] else None

    def _behind(self, closed: str, opened: str, last: int) -> str:
        """Return *opened*, the text behind a turn that others follow, without the end of the turn,
        which *last* may be.

        Args:
            closed: the text behind the same turn where nothing follows.
        """
        tokenizer = self._tokenizer
        stops, ends = tokenizer.stop_ids, 0
        ids, spans = tokenizer.encode_with_offsets(opened)
        closing = tokenizer.encode(closed)
        shared = next(
            (i for i, (a, b) in enumerate(zip(ids, closing, strict=False)) if a != b),
            min(len(ids), len(closing)),
        )
        ends = next((i + 1 for i, token in enumerate(ids[:shared]) if token in stops), 0)
        if not ends and closing[shared : shared + 1] and closing[shared] in stops:
            # the last turn of a conversation ends with another token than an earlier one
            ends = shared + 1
        if ends:
            start = ends if last in stops else ends - 1
        else:  # the next message begins with the token that ends the turn
            start = shared + (ids[shared : shared + 1] == [last])
        return opened[spans[start][0] :] if start < len(ids) else ""

    @cached_property
    def treatment(self) -> Treatment:
        """What the chat template does, found once."""
        return (
            _probed(self._tokenizer, self.form, native=self.native)
            if self._tokenizer.has_template
            else Treatment()
        )


def _probed(tokenizer: HFTokenizer, form: TextFormat, *, native: bool) -> Treatment:
    def shows(messages: Sequence[Message], *texts: str, never: str = "") -> bool:
        """Return whether the template writes *texts*, in this order."""
        try:
            rendered = tokenizer.apply_template(messages, [PROBE] if native else ())
        except Exception:  # noqa: BLE001 - a template raises its own refusals and any error of Python's
            return False
        offset = 0
        for text in texts:
            offset = rendered.find(text, offset)
            if offset < 0:
                return False
            offset += len(text)
        return not never or never not in rendered

    def follows(turn: Message) -> bool:
        """Return whether the call stands right behind the prompt where *turn* has it."""
        prompt = tokenizer.apply_template([QUESTION], [PROBE])
        return shows([QUESTION, turn, *LATER], f"{prompt}{called}")

    def data(calls: Sequence[ToolCall], results: Sequence[Message]) -> list[Message]:
        return [QUESTION, Message("assistant", "", calls=tuple(calls)), *results, *LATER]

    called = form.render_calls(CALLS[:1], [PROBE])
    text = Message("assistant", called)
    (call,), (result,) = CALLS[:1], RESULTS[:1]
    forms: dict[Literal["object", "text"], Any] = {
        "object": call.arguments,
        "text": to_json(dict(call.arguments)),
    }
    arguments = next(
        (  # an object that is written as Python writes it was meant to be text
            name
            for name, value in forms.items()
            if native
            and shows(
                data([replace(call, arguments=value)], [result]),
                "three",
                result.content,
                never="': 'three'",
            )
        ),
        None,
    )
    as_text = shows([QUESTION, text, result, *LATER], called, result.content)
    if arguments is not None and not follows(text):
        data_call = replace(call, arguments=forms[arguments])
        as_text = as_text and not follows(Message("assistant", "", calls=(data_call,)))
    form_of_arguments = arguments or "object"
    pair = (
        [replace(c, arguments=cast(Any, to_json(dict(c.arguments)))) for c in CALLS]
        if arguments == "text"
        else CALLS
    )
    return Treatment(
        lists_tools=native and shows([QUESTION], PROBE.name),
        sampled="text" if as_text or arguments is None else "data",
        given="text" if arguments is None else "data",
        results="tool" if as_text or arguments else "user",
        arguments=form_of_arguments,
        faults=shows(
            data([replace(call, arguments=cast(Mapping[str, Any], BROKEN))], [result]),
            BROKEN,
            result.content,
        ),
        parallel=shows(data(pair, RESULTS), "three", "seven", *(r.content for r in RESULTS)),
        system=shows([Message("system", SYSTEM), QUESTION], SYSTEM),
        alternates=not shows([QUESTION, QUESTION]),
    )


def opens_thought(tokenizer: HFTokenizer, thought: tuple[str, str]) -> bool:
    """Return whether the generation prompt of the chat template opens a *thought*, given by what
    opens and closes one, which the policy then only closes.
    """
    try:
        prompt = tokenizer.apply_template([QUESTION])
    except UsageError:  # a template for conversations with tools alone
        prompt = tokenizer.apply_template([QUESTION], [PROBE])
    _, _, after = prompt.rpartition(QUESTION.content)
    opening, closing = thought
    return after.rfind(opening.rstrip()) > after.rfind(closing)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Return *messages* with those of the user joined that follow each other."""
    merged: list[Message] = []
    for m in messages:
        if merged and m.role == merged[-1].role == "user":
            merged[-1] = replace(merged[-1], content=f"{merged[-1].content}\n\n{m.content}")
        else:
            merged.append(m)
    return merged
