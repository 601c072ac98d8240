"""The tokenizer of the truth as files of Hugging Face, for layers that render prompts themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .tokenizer import MARKERS, WORDS, MergingTokenizer

__all__ = ["CHAT_TEMPLATE", "save_tokenizer"]

CHAT_TEMPLATE = (
    "{%- set first = messages[0].role == 'system' -%}"
    "{%- if tools or first -%}<|im_start|>system\n{{ messages[0].content if first else '' }}"
    "{%- if tools -%}{{ '\n\n# Tools\n\nYou may call these functions:\n<tools>\n' }}"
    "{%- for t in tools -%}{{ t | tojson }}{{ '' if loop.last else '\n' }}{%- endfor -%}"
    "{{ '\n</tools>\n\nTo call one, write\n<tool_call>\n"
    '{"name": <function name>, "arguments": <object of arguments>}\n'
    "</tool_call>' }}{%- endif -%}<|im_end|>{{ '\n' }}{%- endif -%}"
    "{%- for m in messages -%}{%- if not (loop.first and first) -%}"
    "<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}{{ '\n' }}"
    "{%- if m.role == 'tool' -%}"
    "{{ '<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- else -%}{{ m.content or '' }}{%- endif -%}"
    "{%- for c in m.tool_calls or [] -%}{%- set a = c.function.arguments -%}"
    "{{ '\n<tool_call>\n' }}"
    '{"name": {{ c.function.name | tojson }}, "arguments": '
    "{{ a if a is string else a | tojson }}}{{ '\n</tool_call>' }}{%- endfor -%}"
    "<|im_end|>{{ '\n' }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\n' }}{%- endif -%}"
)
"""The template of `MergingTokenizer`."""


def save_tokenizer(folder: Path, chat_template: str = CHAT_TEMPLATE) -> Path:
    """Write ``tokenizer.json`` and its configuration with the ids of `MergingTokenizer` to *folder*,
    and return it. Text encodes to a word where it stands alone, and to bytes elsewhere.
    """
    tokenizer = MergingTokenizer()
    letters = _letters()
    vocabulary = {letters[i]: i for i in range(256)}
    vocabulary |= {text: 256 + i for i, text in enumerate(tokenizer.SPECIAL)}
    first = 256 + len(tokenizer.SPECIAL)
    for i, word in enumerate(WORDS):
        text = word.decode() if word in MARKERS else "".join(letters[b] for b in word)
        vocabulary[text] = first + i
    added = [*((text, True) for text in tokenizer.SPECIAL), *((m.decode(), False) for m in MARKERS)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    files: dict[str, Any] = {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [_added(text, vocabulary[text], special) for text, special in added],
            "normalizer": None,
            "pre_tokenizer": byte_level | {"use_regex": True},
            "post_processor": None,
            "decoder": byte_level | {"use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": True,
                "vocab": vocabulary,
                "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|pad|>",
            "model_max_length": 65536,
            "clean_up_tokenization_spaces": False,
            "chat_template": chat_template,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def _added(text: str, token: int, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": text, **flags, "special": special}


def _letters() -> list[str]:
    """Return the letter that stands for each byte in the vocabulary of a byte-level BPE: itself if
    it can be printed, else one from 256 on, in the order of the bytes.
    """
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    letters, free = [], 256
    for byte in range(256):
        letters.append(chr(byte) if byte in printed else chr(free))
        free += byte not in printed
    return letters
