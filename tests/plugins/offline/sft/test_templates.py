"""A conversation trains as its chat template writes it, behind the prompt that the policy sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.models.tiny import CHATML, byte_tokenizer

from quintain import Message
from quintain.models import HFTokenizer
from quintain_offline.sft import encode_conversation

TURNS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ HEAD }}REPLY{% else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ PROMPT }}{% endif %}"
)
THOUGHT = "m.reasoning_content or ''"
SPLIT = (
    "{% set t = m.reasoning_content or '' %}{% set c = m.content %}{% if '</think>' in c %}"
    "{% set t = c.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
)


def chat(head: str, reply: str, prompt: str) -> str:
    """A template in turns: what stands before a reply, the reply, and what a prompt ends with."""
    text = TURNS.replace("{{ HEAD }}REPLY", SPLIT + f"{{{{ '{head}' }}}}" + reply)
    return text.replace("{{ PROMPT }}", f"{{{{ '{prompt}' }}}}").replace("\n", "\\n")


TURN = "<|im_start|>assistant\n"
ALWAYS = "{{ '<think>\n' + t + '\n</think>\n\n' + c + '<|im_end|>\n' }}"
WHERE_THERE = (
    "{% if t %}{{ '<think>\n' + t + '\n</think>\n\n' }}{% endif %}{{ c + '<|im_end|>\n' }}"
)
SHORT = "{{ '<think>' + t + '</think>' + c + '<|im_end|>\n' }}"
HARMONY = (
    "{% if t %}{{ '<|channel|>analysis<|message|>' + t + '<|im_end|><|im_start|>assistant' }}"
    "{% endif %}{{ '<|channel|>final<|message|>' + c + '<|im_end|>\n' }}"
)

KINDS = {
    "no thoughts": (CHATML, "4<|im_end|>", "<think>\nadd\n</think>\n\n4<|im_end|>"),
    "a thought where there is one": (
        chat(TURN, WHERE_THERE, TURN),
        "4<|im_end|>",
        "<think>\nadd\n</think>\n\n4<|im_end|>",
    ),
    "always a thought": (
        chat(TURN, ALWAYS, TURN),
        "<think>\n\n</think>\n\n4<|im_end|>",
        "<think>\nadd\n</think>\n\n4<|im_end|>",
    ),
    "the prompt opens the thought": (
        chat(TURN, ALWAYS, TURN + "<think>\n"),
        "\n</think>\n\n4<|im_end|>",
        "add\n</think>\n\n4<|im_end|>",
    ),
    "the prompt has an empty thought": (
        chat(TURN, ALWAYS, TURN + "<think>\n\n</think>\n\n"),
        "4<|im_end|>",
        "add\n</think>\n\n4<|im_end|>",
    ),
    "the prompt opens a line that no reply has": (
        chat(TURN, SHORT, TURN + "<think>\n"),
        "</think>4<|im_end|>",
        "add</think>4<|im_end|>",
    ),
    "the prompt opens a thought that is left out": (
        chat(TURN, WHERE_THERE, TURN + "<think>"),
        "4<|im_end|>",
        "\nadd\n</think>\n\n4<|im_end|>",
    ),
    "channels": (
        chat("<|im_start|>assistant", HARMONY, "<|im_start|>assistant"),
        "<|channel|>final<|message|>4<|im_end|>",
        "<|channel|>analysis<|message|>add<|im_end|><|im_start|>assistant"
        "<|channel|>final<|message|>4<|im_end|>",
    ),
    "a line before a short thought": (
        chat("<|im_start|>assistant", "{{ '\n' }}" + SHORT, "<|im_start|>assistant"),
        "\n<think></think>4<|im_end|>",
        "\n<think>add</think>4<|im_end|>",
    ),
    "a blank behind the colon": (
        chat("Assistant:", "{{ ' ' + m.content + '<|im_end|>' }}", "Assistant:"),
        " 4<|im_end|>",
        " <think>\nadd\n</think>\n\n4<|im_end|>",
    ),
    "blanks around": (
        chat("[/INST]", "{{ ' ' + m.content | trim + ' <|im_end|>' }}", "[/INST]"),
        " 4 <|im_end|>",
        " <think>\nadd\n</think>\n\n4 <|im_end|>",
    ),
    "thoughts are left out": (
        chat(TURN, "{{ c + '<|im_end|>\n' }}", TURN + "<think>\n"),
        "4<|im_end|>",
        "add\n</think>\n\n4<|im_end|>",
    ),
    "no template": (None, " 4<|im_end|>", " <think>\nadd\n</think>\n\n4<|im_end|>"),
}
QUESTION = Message("user", "3+1?")
END = 257


def trained(tokenizer: HFTokenizer, *messages: Message) -> list[str]:
    """What trains of the last message, one text for each sequence with such tokens."""
    found = encode_conversation(messages, [len(messages) - 1], tokenizer, END)
    return [
        tokenizer.decode([i for i, own in zip(row.ids, row.mask, strict=True) if own])
        for row in found
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("written", ["no thought", "in the text", "apart"])
def test_a_reply_trains_as_the_template_writes_it(kind: str, written: str) -> None:
    template, plain, thoughtful = KINDS[kind]
    tokenizer = HFTokenizer(byte_tokenizer(template))
    reply = {
        "no thought": Message("assistant", "4"),
        "in the text": Message("assistant", "<think>\nadd\n</think>\n\n4"),
        "apart": Message("assistant", "4", reasoning="add"),
    }[written]
    expected = plain if written == "no thought" else thoughtful
    assert trained(tokenizer, QUESTION, reply) == [expected]


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_sequence_is_the_templates_text(kind: str) -> None:
    tokenizer = HFTokenizer(byte_tokenizer(KINDS[kind][0]))
    reply = Message("assistant", "4", reasoning="" if kind == "no template" else "add")
    (row,) = encode_conversation([QUESTION, reply], [1], tokenizer, END)
    text = tokenizer.decode(row.ids)
    thought_in_text = replace(reply, content="<think>\nadd\n</think>\n\n4", reasoning="")
    renderings = [tokenizer.render([QUESTION, m], prompt=False) for m in (reply, thought_in_text)]
    if kind == "thoughts are left out":
        assert text == tokenizer.render([QUESTION]) + "add\n</think>\n\n4<|im_end|>"
    elif kind == "no template":
        assert text == "User: 3+1?\n\nAssistant: 4<|im_end|>"
    else:
        assert any(rendering.startswith(text) for rendering in renderings)


@pytest.mark.parametrize("kind", KINDS)
def test_two_replies_train_in_their_own_contexts(kind: str) -> None:
    template, plain, _ = KINDS[kind]
    tokenizer = HFTokenizer(byte_tokenizer(template))
    messages = [QUESTION, Message("assistant", "4"), QUESTION, Message("assistant", "4")]
    rows = encode_conversation(messages, [1, 3], tokenizer, END)
    own = [
        tokenizer.decode([i for i, trains in zip(row.ids, row.mask, strict=True) if trains])
        for row in rows
    ]
    assert "".join(own) == plain * 2


@pytest.mark.parametrize("kind", ["a blank behind the colon", "blanks around", "no thoughts"])
def test_the_history_has_a_reply_as_the_template_writes_it(kind: str) -> None:
    """The template writes the blank before a reply, and the reply itself has none."""
    tokenizer = HFTokenizer(byte_tokenizer(KINDS[kind][0]))
    messages = [QUESTION, Message("assistant", "4"), QUESTION, Message("assistant", "8")]
    (row,) = encode_conversation(messages, [1, 3], tokenizer, END)
    text = tokenizer.decode(row.ids)
    assert text == tokenizer.render(messages, prompt=False)[: len(text)]


@pytest.mark.parametrize("content", ["4<|im_end|>", "4<|im_end|>\n", "4<|im_end|><|im_end|>"])
def test_an_end_of_turn_in_the_data_trains_once(content: str) -> None:
    tokenizer = HFTokenizer(byte_tokenizer())
    assert trained(tokenizer, QUESTION, Message("assistant", content)) == ["4<|im_end|>"]
