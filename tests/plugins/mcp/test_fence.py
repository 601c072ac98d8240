"""Text of tools: no control token of any model and no end of its fence survives, whatever the tool
writes.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.types import CallToolResult, TextContent

from quintain_mcp.fence import fenced, neutral
from quintain_mcp.result import read_result

from ..tool_formats.chat_templates import FAMILIES, tokenizer_of

W, U = "\uff5c", "\u2581"
SPECIAL = [
    "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>", "<|python_tag|>",
    "<|reserved_special_token_247|>",
    "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<|\"|>", "<unused99>", "[INST]",
    "[/INST]",
    "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[SYSTEM_PROMPT]",
    "[IMG_BREAK]",
    "<<SYS>>", "<</SYS>>", "[gMASK]", "[sMASK]", "<sop>", "<|user|>", "<|observation|>",
    f"<{W}User{W}>",
    f"<{W}tool{U}calls{U}begin{W}>", f"<{W}end{U}of{U}sentence{W}>", "<|channel|>", "<|constrain|>",
    "<|return|>",
    "<tool_call>", "</tool_call>", "<tool_response>", "<think>", "</think>", "<function=search>",
    "<parameter=query>", "<arg_key>", "<seed:bos>", "<seed:cot_budget_reflect>", "<SPECIAL_12>",
    "<|START_OF_TURN_TOKEN|>", "<BOS_TOKEN>", "<fim_prefix>", "<|fim_middle|>", "<extra_id_0>",
    "[CLS]", "[SEP]",
    "[MASK]", "[PAD]", "[UNK]", "[|endofturn|]", "[|assistant|]", "]~b]", "]~!b[", "[e~[",
    ">>TITLE<<",
    ">>ABSTRACT<<", "|||EMAIL_ADDRESS|||", "<mask:1>", "<|vision_start|>", "<image>", "<untrusted>",
    "</untrusted>",
    "</UNTRUSTED >", "<untrusted tool=\"search\">", "\uff1cs\uff1e", "\uff1c|im_end|\uff1e",
]  # fmt: skip
"""Special tokens and marks of some thirty families, and of the fence itself."""
PIECES = st.sampled_from(
    [
        *SPECIAL,
        *"<>[]|/~ \n\u200b\u00ad\ufeff",
        "\u2066",
        "\ud800",
        "User:",
        "text",
        "\n\nAssistant:",
    ]
)
SPEAKERS = re.compile(r"(?:^|\n)\s*(?:System|User|Assistant|Tool|### Response):")


@pytest.mark.parametrize("token", SPECIAL)
def test_no_special_token_survives(token: str) -> None:
    """Neither alone nor next to others, doubled, or with invisible characters inside."""
    hidden = token[:2] + "\u200b" + token[2:]
    for text in (token, f"a{token}b", token * 2, f"{token[:-1]}{token}{token[1:]}", hidden):
        assert token not in neutral(text), text


@given(st.lists(PIECES | st.text(max_size=3)).map("".join))
@settings(max_examples=300, deadline=None)
def test_whatever_is_put_together(text: str) -> None:
    """Nothing of the list arises from parts, the fence stays closed, and a second pass finds
    nothing to do.
    """
    safe = neutral(text)

    assert not [token for token in SPECIAL if token in safe]
    assert not SPEAKERS.search(safe)
    assert safe == neutral(safe)
    assert fenced(safe, "t").lower().count("</untrusted") == 1
    safe.encode()


@given(
    st.text(
        alphabet=st.characters(
            exclude_characters="<>[]|~\uff1c\uff1e\uff3b\uff3d\uff5c:", exclude_categories=["C"]
        )
    )
)
@settings(max_examples=100, deadline=None)
def test_other_text_is_left_alone(text: str) -> None:
    """Text without brackets comes through as it is."""
    assert text == neutral(text)


def test_common_text_stays_readable() -> None:
    """Ids in brackets, comparisons, code and markup with attributes are not touched; a tag gets one
    space.
    """
    for text in (
        "[curie] Marie Curie",
        "a < b and c > d",
        "x[0] |> f(y)",
        '<a href="b">c',
        "key: value\nuser: root",
    ):
        assert text == neutral(text)
    assert neutral("List<String> [TODO]") == "List< String> [ TODO]"
    assert neutral("a\r\nb") == "a\nb"


@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizers_see_no_special_id(family: str) -> None:
    """With the tokens of each family, a result has no id that the text did not have without control
    tokens.
    """
    tokenizer = tokenizer_of(family)
    special = {i for i, token in tokenizer.hf.added_tokens_decoder.items()}
    spelled = "\n".join(token.content for token in tokenizer.hf.added_tokens_decoder.values())
    assert special & set(tokenizer.encode(spelled))

    shown = read(f"found: {spelled}").shown

    assert not special & set(tokenizer.encode(shown))


def read(text: str, limit: int = 20_000, **fields: Any) -> Any:
    return read_result(
        CallToolResult(content=[TextContent(type="text", text=text)], **fields),
        "t",
        limit,
        fence=True,
    )


def test_a_result_is_cut_before_it_is_made_safe() -> None:
    """The cut is marked inside of the fence; a token that the cut leaves half is no token."""
    assert read("x" * 9 + "<s>", 11).text == "x" * 9 + "<s ... (12 characters in all)"
    assert read("x" * 12, 12).text == "x" * 12
    assert read("</s>", 100).shown.splitlines()[1] == "< /s>"


def test_long_hostile_text_takes_linear_time() -> None:
    """A megabyte of each opening character is no problem."""
    for text in (
        "<" * 10**6,
        "[A" * 500_000,
        "<a" * 500_000,
        "|" * 10**6,
        ">" * 10**6,
        " \t" * 500_000,
        "#" * 10**6,
    ):
        neutral(text)
