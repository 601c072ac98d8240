"""The built-in byte tokenizer and the plain template."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quintain.interfaces.tools import ToolSpec
from quintain.models.tokenizer import PLAIN_STOPS, render_plain
from quintain.types.task import Message, ToolCall
from quintain_authoring.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
SPECIAL = st.sampled_from(ByteTokenizer.SPECIAL)
TEXT = st.lists(
    st.one_of(st.text(st.characters(codec="utf-8"), max_size=8), SPECIAL), max_size=6
).map("".join)
MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(["user", "assistant", "tool"]),
        st.text(st.characters(codec="utf-8"), max_size=8),
    ),
    max_size=4,
)


def test_golden_ids() -> None:
    assert TOKENIZER.encode("a\u00e9<|im_end|>\n") == [97, 195, 169, 257, 10]
    assert TOKENIZER.stop_ids == (257, 258)
    assert TOKENIZER.vocab_size == 260
    assert TOKENIZER.decode([256, 97, 257]) == "<|im_start|>a<|im_end|>"
    assert TOKENIZER.decode([256, 97, 257], special=False) == "a"


@given(TEXT)
def test_text_survives(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert all(0 <= i < TOKENIZER.vocab_size for i in ids)


@given(TEXT)
def test_offsets_cover_the_text_in_order(text: str) -> None:
    ids, spans = TOKENIZER.encode_with_offsets(text)
    assert len(ids) == len(spans)
    at = 0
    for start, end in spans:
        # the bytes of one character share a span
        assert start in (at, at - 1)
        assert end > start
        at = end
    assert at == len(text)
    for (start, end), token in zip(spans, ids, strict=True):
        assert token in TOKENIZER.encode(text[start:end])


@given(st.lists(st.integers(0, 259), max_size=12))
def test_any_ids_decode(ids: list[int]) -> None:
    text = TOKENIZER.decode(ids)
    assert TOKENIZER.decode([i for i in ids if i < 256]) == TOKENIZER.decode(
        [i for i in ids if i < 256], special=False
    )
    assert text.count("<|pad|>") >= ids.count(259)


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_encoding_is_additive(a: str, b: str) -> None:
    """A new turn is encoded by itself and appended; the ids must be those of the whole."""
    if TOKENIZER.encode(a + b) != TOKENIZER.encode(a) + TOKENIZER.encode(b):
        assert any(s in a + b and s not in a and s not in b for s in TOKENIZER.SPECIAL)


@given(MESSAGES, st.text(st.characters(codec="utf-8"), max_size=8))
def test_history_continues_where_the_prompt_stopped(messages: list[Message], said: str) -> None:
    """What makes transcripts linear: prompt + what was said is how the next prompt begins."""
    spoken = [*messages, Message("assistant", said)]
    assert (
        TOKENIZER.render(spoken, prompt=False) == TOKENIZER.render(messages) + said + "<|im_end|>\n"
    )
    plain = [m for m in messages if m.content]
    assert TOKENIZER.render([*spoken, Message("user", "?")]).startswith(
        TOKENIZER.render(spoken, prompt=False)
    )
    assert render_plain(plain).startswith(render_plain(plain, prompt=False))


def test_golden_template() -> None:
    tool = ToolSpec(
        name="add",
        description="Add.",
        parameters={"type": "object", "properties": {"x": {"type": "integer"}}},
    )
    calls: Any = (ToolCall(name="add", arguments={"x": 1}),)
    text = TOKENIZER.render(
        [
            Message("system", "Be brief."),
            Message("user", "1?"),
            Message("assistant", "Hm.", calls=calls),
            Message("tool", "2"),
        ],
        [tool],
    )
    assert text == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call these functions:\n<tools>\n"
        '{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": '
        '{"type": "object", "properties": {"x": {"type": "integer"}}}}}\n</tools>\n\nTo call one, '
        "write\n<tool_call>\n"
        '{"name": <function name>, "arguments": <object of arguments>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n1?<|im_end|>\n"
        '<|im_start|>assistant\nHm.\n<tool_call>\n{"name": "add", "arguments": {"x": '
        "1}}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_golden_plain_template() -> None:
    messages = [
        Message("system", "Be brief."),
        Message("user", " 1? "),
        Message("assistant", "2"),
        Message("user", "3?"),
    ]
    assert (
        render_plain(messages) == "Be brief.\n\nUser: 1?\n\nAssistant: 2\n\nUser: 3?\n\nAssistant:"
    )
    assert all(
        s in render_plain([*messages, Message("user", ""), Message("tool", "")])
        for s in PLAIN_STOPS
    )
