"""A transformers tokenizer as a `ChatTokenizer`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from operator import le
from typing import TYPE_CHECKING, Any

from ..errors import UsageError, nearest, suggestion
from ..interfaces.tokenizer import LITERAL, Offsets
from ..registry.known import known_plugins
from ..registry.lookup import current
from ..types.rollout import Turn
from ..types.task import Message
from ..types.transcript import Finish
from . import tool_calls

if TYPE_CHECKING:
    from ..interfaces.tokenizer import Renderer
    from ..interfaces.tools import ToolSpec


def render_plain(messages: Sequence[Message], *, prompt: bool = True) -> str:
    """Return the template for base models without one: named paragraphs.

    A paragraph of another speaker ends the assistant's turn, hence `PLAIN_STOPS`.
    """
    names = {"system": "", "user": "User: ", "assistant": "Assistant: ", "tool": "Tool: "}
    text = "".join(f"{names[m.role]}{m.content.strip()}\n\n" for m in messages)
    return text + "Assistant:" if prompt else text


PLAIN_STOPS = ("\n\nUser:", "\n\nTool:")

PICTURE = "\ufdd1"
"""Begins and ends the reference to a picture in the text of a message. It is no character of
Unicode.
"""

_LABELS = re.compile(f"{PICTURE}image ([0-9]+x[0-9]+) [0-9a-f]{{32}}{PICTURE}")

PICTURE_TOKENS = 1 << 62
"""The least id of a token of a picture, which is in no vocabulary."""
PICTURE_PLACES = 1 << 14
"""Number of ids of a picture: those of its tokens are a multiple of it and what follows."""

_MARK = "\x02end\x03"

_SAVED_FORMAT = "quintain_tool_format"
"""Key of ``tokenizer_config.json``. A name there with a colon, which means code outside of plugins,
is left alone.
"""

_SAVED_TEMPLATE = "quintain_template"

_SAVED_HISTORY = "quintain_history"

_TAG = r"[<\[][^\s<>\[\]]{1,128}[>\]]"
"""The shape of nearly all control tokens. A pattern with all 6,000 of a tokenizer takes seconds for
a megabyte.
"""


class HFTokenizer:
    """Text to ids and back with a fast tokenizer, and its chat template; without a template, the
    plain one.

    Attributes:
        hf: the transformers tokenizer; save it beside a checkpoint.
        stop_ids: the tokenizer's end of sequence, those of the generation config, and the token
            that the chat template puts after an assistant's reply, in this order.
    """

    def __init__(self, tokenizer: Any, *, stop_ids: Iterable[int] = ()) -> None:
        """Wrap *tokenizer*; *stop_ids* are those that the model's generation config names.

        Raises:
            UsageError: a slow tokenizer; it cannot say which characters a token stands for.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise UsageError(
                f"tokenizer {tokenizer.name_or_path!r} ({type(tokenizer).__name__}) is not a fast "
                "one; convert it once: AutoTokenizer.from_pretrained(..., "
                "use_fast=True).save_pretrained(FOLDER)"
            )
        self.hf = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self.vocab_size: int = len(tokenizer)
        self.has_template = bool(tokenizer.chat_template)
        self.name = _fingerprint(tokenizer)
        self.stops: tuple[str, ...] = () if self.has_template else PLAIN_STOPS
        eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        added = tokenizer.added_tokens_decoder.values()
        self._control = {
            t.content
            for t in added
            if len(t.content) > 1 and (t.special or re.fullmatch(_TAG, t.content))
        }
        others = sorted(
            (text for text in self._control if not re.fullmatch(_TAG, text)), key=len, reverse=True
        )
        self._spelled = re.compile("|".join([*map(re.escape, others), _TAG]))
        self._format: Any = None
        self.stop_ids = tuple(dict.fromkeys((*eos, *stop_ids, *self._end_of_turn())))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the format of tool calls, which may be a module: its name is saved."""
        return {**vars(self), "_format": None}

    def use_tool_format(self, name: str) -> None:
        """Read and write tool calls as the component *name* does, also when saved and loaded;
        ``auto`` changes nothing.

        Raises:
            UnknownNameError, PluginError: no such component, or it cannot be imported.
        """
        if name != "auto":
            self._format = current().load("tool_format", name).of(self)
            self.hf.init_kwargs[_SAVED_FORMAT] = name

    def use_template(self, arguments: Mapping[str, Any]) -> None:
        """Render the chat template with *arguments*, such as ``enable_thinking``, also when saved
        and loaded.

        Raises:
            UsageError: a name is misspelled; one that the template does not have at all changes
                nothing.
        """
        from jinja2 import Environment, meta

        if not arguments or arguments == self.hf.init_kwargs.get(_SAVED_TEMPLATE):
            return
        known = meta.find_undeclared_variables(
            Environment().parse(str(self.hf.chat_template or ""))
        )
        for name in set(arguments) - known:
            if hint := suggestion(nearest(name, known)):
                raise UsageError(
                    f"model.template: the chat template of {self.name} has no variable "
                    f"{name!r}{hint}"
                )
        self.hf.init_kwargs[_SAVED_TEMPLATE] = dict(arguments)
        self.name = _fingerprint(self.hf)

    def use_history(self, how: str) -> None:
        """Render each further message as a suffix (``append``) or all messages anew (``template``),
        also when saved and loaded; ``auto`` changes nothing.

        Raises:
            UsageError: the tool format in use cannot append.
        """
        if how == "append" and not hasattr(self.tool_format, "continuation"):
            plugin = known_plugins()["tool_format", "auto"]
            raise UsageError(
                f'model.history = "append" needs the formats of tool calls: pip install {plugin}'
            )
        if how not in ("auto", self.hf.init_kwargs.get(_SAVED_HISTORY, "template")):
            self.hf.init_kwargs[_SAVED_HISTORY] = how
            self.name = _fingerprint(self.hf)

    @property
    def appends(self) -> bool:
        """Whether `continuation` extends conversations, whatever the chat template makes of earlier
        turns.
        """
        saved = self.has_template and self.hf.init_kwargs.get(_SAVED_HISTORY) == "append"
        return saved and hasattr(self.tool_format, "continuation")

    def continuation(
        self, messages: Sequence[Message], turn: int, tools: Sequence[ToolSpec], last: int
    ) -> str | None:
        """Render what the template writes after a turn, its end of turn left out where *last* is
        one.
        """
        text: str | None = self.tool_format.continuation(messages, turn, tools, last)
        return text

    @property
    def tool_format(self) -> Any:
        """The format of tool calls: that of the chat template by default; without plugins, that of
        Hermes.
        """
        if self._format is None:
            name = str(self.hf.init_kwargs.get(_SAVED_FORMAT, "auto"))
            known = ":" not in name and (name != "auto" or current().matching(name, "tool_format"))
            self._format = current().load("tool_format", name).of(self) if known else tool_calls
        return self._format

    @property
    def tool_note(self) -> str:
        """One line that says how calls of tools are read, and why; empty where the chat template
        knows no tools.
        """
        return str(getattr(self.tool_format, "note", ""))

    def encode(self, text: str) -> list[int]:
        """Return the ids of *text*. Adds nothing; special tokens spelled in the text become their
        ids.
        """
        return self.encode_with_offsets(text)[0]

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        """Return the ids, and for each the half-open span of characters of *text* it stands for.

        Characters that a tokenizer leaves out of every span (trimmed blanks) count to the token
        after them.
        """
        ids: list[int] = []
        spans: Offsets = []
        offset = reached = 0
        for part in text.split(LITERAL):
            encoding = self._backend.encode(part, add_special_tokens=False)
            if len(part) == len(text) and _touching(encoding.offsets):
                return encoding.ids, encoding.offsets
            ids += encoding.ids
            for start, end in encoding.offsets:
                spans.append((min(offset + start, reached), offset + end))
                reached = max(reached, offset + end)
            offset += len(part)
        return ids, spans

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Return the text of *ids*, with or without *special* tokens."""
        return str(self._backend.decode(list(ids), skip_special_tokens=not special))

    def literal(self, value: Any) -> Any:
        """Return *value*, plain data, with `LITERAL` in each control token that its texts spell."""
        if isinstance(value, str):
            return self._spelled.sub(
                lambda m: m[0][0] + LITERAL + m[0][1:] if m[0] in self._control else m[0], value
            )
        if isinstance(value, dict):
            return {self.literal(key): self.literal(item) for key, item in value.items()}
        return [*map(self.literal, value)] if isinstance(value, (list, tuple)) else value

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        """Return the conversation as text; with *prompt* it ends where the assistant is to speak.

        Raises:
            UsageError: the template refuses these messages; its own words are quoted.
        """
        data = [self.marked(m) for m in messages]
        return self.apply_template(*self.tool_format.messages(data, tools), prompt=prompt)

    def renderer(self) -> Renderer:
        """Return what renders one conversation with a prompt, as `render` does, while it grows."""
        from .growing_text import GrowingText  # jinja2, without which ids can be had

        return GrowingText(self)

    def marked(self, message: Message) -> Message:
        """Return *message* with `LITERAL` in the control tokens that a user or a tool spells, and
        ``[image 64x48]`` for a picture of a tool.

        Raises:
            UsageError: it holds a picture of another role, which a model of text cannot see.
        """
        # A policy may have a tool write anything, which must not end the run.
        if message.role not in ("assistant", "tool") and _LABELS.search(message.content):
            raise UsageError(
                f"a message of the {message.role} holds a picture, but {self.name} is the tokenizer "
                "of a model of text; name a vision-language model of a family in docs/pictures.md"
            )
        if message.role not in ("user", "tool"):
            return message
        texts = (message.content, message.name, message.call_id)
        seen = (_LABELS.sub(r"[image \1]", texts[0]), *texts[1:])
        content, name, call_id = map(self.literal, seen)
        if (content, name, call_id) == texts:
            return message
        return replace(message, content=content, name=name, call_id=call_id)

    def apply_template(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        """Return the text of `render` without the format of tool calls."""
        if not self.has_template:
            return self._opening() + render_plain(messages, prompt=prompt)
        from jinja2 import TemplateError

        try:
            return str(
                self.hf.apply_chat_template(
                    [self.template_message(m) for m in messages],
                    tools=self._template_tools(tools),
                    add_generation_prompt=prompt,
                    tokenize=False,
                    **self.hf.init_kwargs.get(_SAVED_TEMPLATE, {}),
                )
            )
        except Exception as error:  # a template raises its own refusals and any error of Python's
            # What the policy says must not end a run: where a template refuses its control tokens,
            # they are text.
            spelled = [
                replace(m, content=self.literal(m.content)) if m.role == "assistant" else m
                for m in messages
            ]
            if spelled != list(messages):
                return self.apply_template(spelled, tools, prompt=prompt)
            roles = ", ".join(m.role for m in messages)
            reason = str(error) if isinstance(error, TemplateError) else repr(error)
            raise UsageError(
                f"the chat template of {self.name} refuses the messages ({roles}): {reason}"
            ) from error

    def _opening(self) -> str:
        """Return the token with which the tokenizer itself begins each text, as base models of some
        families saw it in training; empty without one. A chat template writes its own.
        """
        bos = self.hf.bos_token_id
        first = self._backend.encode("a").ids[:1]
        return str(self.hf.bos_token) if bos is not None and first == [bos] else ""

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), *, finish: Finish = "stop") -> Turn:
        """Return the turn of a sampled text, split into reasoning, reply and calls of *tools*.
        Raises nothing.
        """
        turn: Turn = self.tool_format.parse(text, tools=tools, finish=finish)
        return turn

    def _end_of_turn(self) -> tuple[int, ...]:
        """Return the special token that the template puts right after an assistant's reply, if
        any.
        """
        if not self.has_template:
            return ()
        turns = [Message("user", "?"), Message("assistant", _MARK)]
        try:
            text = self.apply_template(turns, prompt=False)
        except UsageError:  # a template for conversations with tools alone
            from ..interfaces.tools import ToolSpec

            text = self.apply_template(turns, [ToolSpec(name="tool")], prompt=False)
        _, mark, after = text.rpartition(_MARK)
        ids = self.encode(after.lstrip()) if mark else []
        special = {i for i, token in self.hf.added_tokens_decoder.items() if token.special}
        return (ids[0],) if ids and ids[0] in special else ()

    def template_source(self, tools: Sequence[ToolSpec]) -> str:
        """Return the chat template in use with *tools*; empty without one."""
        return str(self.hf.get_chat_template(None, [*tools] or None)) if self.has_template else ""

    def template_variables(self, tools: Sequence[ToolSpec]) -> dict[str, Any]:
        """Return what the template reads beside the messages, with a prompt at the end."""
        return {
            "tools": self._template_tools(tools),
            "documents": None,
            "add_generation_prompt": True,
            **self.hf.special_tokens_map,
            **self.hf.init_kwargs.get(_SAVED_TEMPLATE, {}),
        }

    def _template_tools(self, tools: Sequence[ToolSpec]) -> list[Any] | None:
        return [self.literal(tool.to_json()) for tool in tools] or None

    def template_message(self, message: Message) -> dict[str, Any]:
        """Return *message* as the template reads it."""
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:  # in the order of transformers
            thought = message.reasoning
            fields = {"thinking": thought, **fields, "reasoning_content": thought}
        if message.calls:
            functions = [
                (c.id, self.literal({"name": c.name, "arguments": c.arguments}))
                for c in message.calls
            ]
            fields["tool_calls"] = [
                {"type": "function", "id": id_, "function": f} for id_, f in functions
            ]
        if message.role == "tool":
            fields |= {"tool_call_id": message.call_id, "name": message.name}
        return fields


def _touching(offsets: Offsets) -> bool:
    """Return whether each span begins at or before the end of the one before it, and no end comes
    before an earlier one.
    """
    starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
    return all(map(le, starts, [0, *ends])) and all(map(le, ends, islice(ends, 1, None)))


def _fingerprint(tokenizer: Any) -> str:
    """Return the folder name and a hash of vocabulary and template: the same text gives the same
    ids and rendering.
    """
    digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    arguments = tokenizer.init_kwargs.get(_SAVED_TEMPLATE, "")
    history = tokenizer.init_kwargs.get(_SAVED_HISTORY, "template").removeprefix("template")
    digest.update(f"{tokenizer.chat_template or ''}{arguments}{history}".encode())
    base = str(tokenizer.name_or_path or "tokenizer").rstrip("/").rpartition("/")[2]
    return f"{base}-{digest.hexdigest()[:12]}"
