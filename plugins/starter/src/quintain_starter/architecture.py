"""The default model before any training: a small Qwen3-shaped network and a tokenizer of its own.

Both are built from this file alone, so nothing is downloaded and every machine builds the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

CONTEXT = 4096
END_OF_TURN, END_OF_TEXT, PAD = "<|im_end|>", "<|endoftext|>", "<|pad|>"
SPECIAL = ("<|im_start|>", END_OF_TURN, END_OF_TEXT, PAD)
TAGS = tuple(
    tag
    for name in ("think", "answer", "tools", "tool_call", "tool_response")
    for tag in (f"<{name}>", f"</{name}>")
)
"""Plain text, but one token each."""

WORDS = """
the of and to in is that it for as with on be at by this from or are an not have you we can will if then each which one
all there what when how out up use used number numbers result answer end make work write give find step steps so
therefore total sum left more than how many much let once first next last after before only two three four five ten
times
expression brackets call function name value list word words letter text question think reason put within final
""".split()
"""Read as one token each after a blank; chosen for prompts of tasks, not for any one of them."""

STARTS = (
    "user",
    "assistant",
    "system",
    "End",
    "Make",
    "The",
    "Work",
    "So",
    "Let",
    "####",
    "```",
    "    ",
)
"""Read as one token each where no blank comes before."""

TOOLS = """\
# Tools

You may call these functions:
<tools>
"""
CALL = """\
</tools>

To call one, write
<tool_call>
{"name": <function name>, "arguments": <object of arguments>}
</tool_call>"""

PHRASES = (
    TOOLS,
    CALL,
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {',
    '"additionalProperties": false, ',
    '"properties": {',
    '": {"title": "',
    '", "type": "string"}',
    '", "type": "integer"}',
    '"required": [',
    '"type": "object"',
    '<tool_call>\n{"name": "',
    '", "arguments": {',
    '"}}\n</tool_call>',
    "}}\n</tool_call>",
    '", "',
    '": "',
    '": ',
)
"""What descriptions and calls of tools have in common, one token each: a tool takes 30 tokens to 60, not 280. With them
the vocabulary fits into as many rows as without."""

TEMPLATE = """\
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' %}
{%- if system or tools %}<|im_start|>system
{{ system }}
{%- if tools %}{{ '\\n\\n' }}@TOOLS@{% for tool in tools %}{{ tool | tojson }}
{% endfor %}@CALL@
{%- endif %}<|im_end|>
{% endif %}
{%- for m in messages if m.role != 'system' %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'tool' %}<tool_response>
{{ m.content }}
</tool_response>
{%- else %}{{ m.content }}
{%- endif %}
{%- for call in m.tool_calls or [] %}{{ '\\n' }}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""".replace("@TOOLS@", TOOLS).replace("@CALL@", CALL)
"""ChatML, tools in the style of Hermes and Qwen; renders as `quintain_authoring.byte_tokenizer.ByteTokenizer` does.

Turns are rendered as they were sampled, so that a conversation never rewrites its own past.
"""


def build_tokenizer(words: Sequence[str] | None = None) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: all bytes, digits one by one, some words whole.

    Args:
        words: to read as one token each, blank before them included, where they stand alone; every other text is read
            byte by byte. By default `WORDS` and `STARTS`, which are also read as parts of longer words.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary, merges = _byte_pairs(words is None)
    for word in words or ():
        vocabulary.setdefault(word.replace(" ", "\u0120"), len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=words is not None)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in (*TAGS, *PHRASES)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        model_max_length=CONTEXT,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _byte_pairs(parts: bool) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocabulary and merges: bytes first, then with *parts* every word, built letter by
    letter from its start.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in (*STARTS, *(f" {w}" for w in WORDS)) if parts else ():
        # how byte-level BPE writes a blank
        for left, right in _merges(word.replace(" ", "\u0120")):
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append((left, right))
    return vocabulary, merges


def _merges(word: str) -> Iterator[tuple[str, str]]:
    """Yield the merges that make *word*: letter by letter, or by doubling where it is one letter repeated."""
    size = 1
    while size < len(word):
        step = size if len(set(word)) == 1 else 1
        yield word[:size], word[size : size + step]
        size += step


def build_model(
    seed: int = 0,
    *,
    vocabulary: int | None = None,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    intermediate: int = 512,
    initializer_range: float = 0.02,
) -> Qwen3ForCausalLM:
    """Return a Qwen3-shaped model with random weights that depend on *seed* and the sizes alone.

    Args:
        vocabulary: ids, rounded up to a multiple of 64; by default those of `build_tokenizer`.
        initializer_range: standard deviation of the initial weights. Narrow networks learn to copy sooner with a
            larger one, about 0.5 / sqrt(hidden).
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = build_tokenizer()
    ends = [tokenizer.convert_tokens_to_ids(t) for t in (END_OF_TURN, END_OF_TEXT)]
    config = Qwen3Config(
        vocab_size=-(-(vocabulary or len(tokenizer)) // 64) * 64,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        max_position_embeddings=CONTEXT,
        initializer_range=initializer_range,
        tie_word_embeddings=True,
        eos_token_id=ends,
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = Qwen3ForCausalLM(config)
    evaluated: Qwen3ForCausalLM = model.float().eval()
    return evaluated
