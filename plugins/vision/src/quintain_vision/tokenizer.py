"""A tokenizer whose prompts hold pictures."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from PIL import Image

from quintain import Message, ToolCall, ToolSpec, Turn
from quintain.errors import UsageError
from quintain.interfaces import LITERAL, Offsets, Renderer
from quintain.models import PICTURE, PICTURE_PLACES, PICTURE_TOKENS, HFTokenizer
from quintain.types import Finish

from .messages import REFERENCE, parts, picture, references
from .processor import PictureProcessor
from .store import stored
from .tokens import digits_of, ids_of, key_of, runs

_UNMARKED = re.compile(f"{PICTURE}(?!{LITERAL})")
GONE = "\ufffd"
"""What stands for the mark of a picture that the policy wrote."""
_PROBE = "\x02text\x03"


class PictureTokenizer(HFTokenizer):
    """Renders pictures where the chat template has its placeholder, and encodes each as the ids of
    its tokens.

    The rendered text holds the reference of a picture in place of the placeholder. So a conversation
    that grows compares references, and only what is new is encoded.

    Attributes:
        processor: of the model.
        placeholder: what the chat template writes for a picture.
        placeholder_id: the id that stands for each token of a picture outside of Quintain.
    """

    def __init__(
        self, tokenizer: Any, processor: PictureProcessor, *, stop_ids: Sequence[int]
    ) -> None:
        if not tokenizer.chat_template and processor.chat_template:
            tokenizer.chat_template = processor.chat_template
        self.processor = processor
        self.placeholder = processor.placeholder
        self._lists = bool(tokenizer.chat_template) and not _reads_text(tokenizer)
        super().__init__(tokenizer, stop_ids=stop_ids)
        token = tokenizer.convert_tokens_to_ids(processor.token)
        if not isinstance(token, int) or token == tokenizer.unk_token_id:
            raise UsageError(
                f"the tokenizer of the model has no token {processor.token!r}; save it again with "
                "the processor of the model"
            )
        self.placeholder_id = token

    def literal(self, value: Any) -> Any:
        """Return *value* as the tokenizer of text does, with `LITERAL` in each picture that its texts
        spell, too.
        """
        found = super().literal(value)
        return self._spelled_out(found) if isinstance(found, str) else found

    def marked(self, message: Message) -> Message:
        """Return *message* with `LITERAL` in what a user or a tool spells; its pictures stay."""
        if message.role not in ("user", "tool"):
            return message
        pieces: list[str] = []
        end = 0
        for found in references(message):
            pieces += (self.literal(message.content[end : found.start()]), found[0])
            end = found.end()
        pieces.append(self.literal(message.content[end:]))
        name, call_id = map(self.literal, (message.name, message.call_id))
        return replace(message, content="".join(pieces), name=name, call_id=call_id)

    def template_message(self, message: Message) -> dict[str, Any]:
        fields = super().template_message(message)
        for name in ("thinking", "reasoning_content"):
            if name in fields:
                fields[name] = self._spelled_out(fields[name])
        for call in fields.get("tool_calls", ()):
            call["id"] = self._spelled_out(call["id"])
        if message.role == "assistant":
            # What the policy writes is text, whatever it spells.
            text = self._spelled_out(message.content)
            pieces: list[dict[str, Any]] = [{"type": "text", "text": text}]
        else:
            pieces = [
                {"type": "image"} if part["type"] == "image" else dict(part)
                for part in parts(message.content)
            ]
        pictures = any(piece["type"] == "image" for piece in pieces)
        fields["content"] = (
            pieces if pictures or self._lists else "".join(piece["text"] for piece in pieces)
        )
        return fields

    def apply_template(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True
    ) -> str:
        text = super().apply_template(messages, tools, prompt=prompt)
        return self.with_references(text, messages) if self.has_template else text

    def renderer(self) -> Renderer:
        inner = super().renderer()

        def render(messages: Sequence[Message], tools: Sequence[ToolSpec], known: str) -> str:
            text = inner(messages, tools, REFERENCE.sub(self._placeholder_again, known))
            # It renders anew, with references, what it cannot render as it grows.
            return text if REFERENCE.search(text) else self.with_references(text, messages)

        return render

    def with_references(self, text: str, messages: Sequence[Message]) -> str:
        """Return *text* with the references of the pictures of *messages* in place of the
        placeholders.

        Raises:
            UsageError: the chat template has written more or fewer placeholders than pictures.
        """
        found = [reference[0] for message in messages for reference in references(message)]
        pieces = text.split(self.placeholder)
        if len(pieces) - 1 != len(found):
            raise UsageError(
                f"the chat template of {self.name} has written {len(pieces) - 1} times "
                f"{self.placeholder!r} for {len(found)} pictures; a role of it may take no "
                "pictures: put them into messages of the user"
            )
        return "".join(
            piece + reference for piece, reference in zip(pieces, [*found, ""], strict=True)
        )

    def encode_with_offsets(self, text: str) -> tuple[list[int], Offsets]:
        if not REFERENCE.search(text):
            return super().encode_with_offsets(text)
        expanded, regions, tokens = self._expanded(text)
        ids, spans = super().encode_with_offsets(expanded)
        places = [i for i, token in enumerate(ids) if token == self.placeholder_id]
        if len(places) != len(tokens):
            raise UsageError(
                f"a prompt has {len(places)} tokens {self.processor.token!r} for {len(tokens)} tokens of "
                "pictures: the tokenizer does not read it as one token"
            )
        for place, token in zip(places, tokens, strict=True):
            ids[place] = token
        return ids, list(_moved(spans, regions))

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Return the text of *ids*, with ``[image 64x48]`` for the tokens of a picture."""
        pieces = []
        for key, run in runs(ids):
            if key:
                image = stored(digits_of(key))
                pieces.append(f"[image {image.width}x{image.height}]")
            else:
                pieces.append(super().decode(run, special=special))
        return "".join(pieces)

    def parse(self, text: str, tools: Sequence[ToolSpec] = (), *, finish: Finish = "stop") -> Turn:
        """Return the turn of a sampled text as the tokenizer of text does. Reply, thought and calls
        have no marks of pictures: an environment may repeat them in a message of the user.
        """
        turn = super().parse(text.replace(PICTURE, GONE), tools, finish=finish)
        calls = tuple(map(_without_pictures, turn.calls))
        return replace(turn, text=text, calls=calls)

    def pictures(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Return the pictures in *ids* in their order: the first digits of the digest, and the places of
        the tokens.

        Raises:
            ValueError: a picture is not whole.
        """
        found: list[tuple[str, list[int]]] = []
        for place, token in enumerate(ids):
            if token >= PICTURE_TOKENS:
                if token % PICTURE_PLACES == 0:
                    found.append((digits_of(key_of(token)), []))
                found[-1][1].append(place)
        for digits, places in found:
            if len(places) != self.processor.tokens(digits):
                raise ValueError(f"{len(places)} tokens of picture {digits} are not all of it")
        return found

    def noise(self, width: int, height: int) -> list[int]:
        """Return the ids of a picture of noise, the same in each process, which is stored."""
        pixels = Random("quintain noise").randbytes(3 * width * height)
        file = io.BytesIO()
        Image.frombytes("RGB", (width, height), pixels).save(file, "PNG")
        return self.encode(picture(file.getvalue()))

    def unseen_pictures(self, ids: Sequence[int]) -> str:
        """Return why this model does not see the pictures in *ids* as the model sees them for whose
        tokenizer they are; empty if it does.
        """
        counts: dict[int, int] = {}
        for token in ids:
            if token >= PICTURE_TOKENS:
                key, place = divmod(token, PICTURE_PLACES)
                counts[key] = max(counts.get(key, 0), place + 1)
        for key, count in counts.items():
            own = self.processor.tokens(digits_of(key))
            if own != count:
                return f"its processor makes {own} tokens of one that is {count} tokens there"
        return ""

    def _expanded(self, text: str) -> tuple[str, list[tuple[int, int, int]], list[int]]:
        """Return *text* as the model reads it; where each picture begins and ends in it, without
        `LITERAL`, with the length of its reference; and the ids of its tokens.
        """
        pieces: list[str] = []
        regions: list[tuple[int, int, int]] = []
        tokens: list[int] = []
        end = length = 0
        for found in REFERENCE.finditer(text):
            before = text[end : found.start()]
            written = self.processor.text(found[3])
            pieces += (before, written)
            length += len(before.replace(LITERAL, ""))
            regions.append((length, length + len(written), len(found[0])))
            length += len(written)
            tokens += ids_of(found[3], self.processor.tokens(found[3]))
            end = found.end()
        return "".join((*pieces, text[end:])), regions, tokens

    def _placeholder_again(self, reference: re.Match[str]) -> str:
        return self.placeholder

    def _spelled_out(self, text: str) -> str:
        """Return *text* with `LITERAL` in each placeholder, token of a picture and picture that it
        spells.
        """
        text = _UNMARKED.sub(PICTURE + LITERAL, text)  # a text may be marked twice
        for name in {self.placeholder, self.processor.token}:
            text = text.replace(name, name[0] + LITERAL + name[1:])
        return text


def _without_pictures(call: ToolCall) -> ToolCall:
    """Return *call* without the marks of pictures, which JSON may have escaped."""
    try:
        return replace(call, name=_plain(call.name), arguments=_plain(dict(call.arguments)))
    except RecursionError:
        return replace(call, arguments={}, error="the arguments are nested too deep")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(PICTURE, GONE)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return [*map(_plain, value)] if isinstance(value, (list, tuple)) else value


def _reads_text(tokenizer: Any) -> bool:
    """Return whether the chat template of *tokenizer* writes a content that is no list of parts."""
    messages = [{"role": "user", "content": _PROBE}]
    try:
        return _PROBE in str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception:  # noqa: BLE001 - a template raises its own refusals and any error of Python's
        return False


def _moved(spans: Offsets, regions: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield *spans* of the expanded text as spans of the text with references; a token of a picture
    stands for all of its reference.
    """
    index = gone = 0  # characters more than in the text with references
    for start, end in spans:
        while index < len(regions) and start >= regions[index][1]:
            begin, until, size = regions[index]
            gone += until - begin - size
            index += 1
        if index < len(regions) and end > regions[index][0]:
            begin, _, size = regions[index]
            yield min(start, begin) - gone, begin - gone + size
        else:
            yield start - gone, end - gone
