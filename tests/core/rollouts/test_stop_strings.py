"""Which token completes a stop string, where special tokens are among the text."""

from __future__ import annotations

import pytest

from quintain.rollouts.chat.stop_strings import StopStrings
from quintain_authoring.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (("END",), "the END of", ("END", "the END")),
        (("e", "Z"), "a<|endoftext|>bZ", ("Z", "a<|endoftext|>bZ")),
        (("e",), "a<|endoftext|>be", ("e", "a<|endoftext|>be")),
        (("end",), "<|im_end|><|im_end|>x", None),
        (("|>",), "ab<|pad|>c", None),
        (("|>",), "ab<|pad|>|>", ("|>", "ab<|pad|>|>")),
        (("|>\n",), "<|im_end|>\n", None),
        (("x<|",), "x<|im_start|>y", None),
        (("<|im_end|>",), "yes<|im_end|>no", ("<|im_end|>", "yes<|im_end|>")),
        (("<|im_end|>\n", "\n"), "a<|im_end|>\nb", ("<|im_end|>\n", "a<|im_end|>\n")),
        (("end", "<|im_end|>"), "a<|im_end|>b", ("<|im_end|>", "a<|im_end|>")),
        (("pad",), "a <|pad tells", ("pad", "a <|pad")),
    ],
)
def test_a_special_token_is_matched_as_a_whole(
    stops: tuple[str, ...], text: str, expected: tuple[str, str] | None
) -> None:
    strings = StopStrings(stops, TOKENIZER)
    tokens = TOKENIZER.encode(text)
    actual = None
    for count in range(1, len(tokens) + 1):
        stop = strings.found(tokens[:count])
        if stop is not None:
            actual = (stop, TOKENIZER.decode(tokens[:count]))
            break

    assert actual == expected
