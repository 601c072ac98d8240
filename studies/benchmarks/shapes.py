"""The models and tasks that both sides share, made once and read from a folder.

Qwen3-shaped, random weights, a byte-level BPE tokenizer of 2,048 ids trained on made-up words, a
ChatML template: 4 layers, heads of 32 or 64, tied embeddings.
``python -m studies.benchmarks.shapes NAME`` makes the folder; reading it needs no torch.

``135M`` is a model that has learned language: SmolLM2-135M-Instruct, in the folder that
``quintain model get smollm2-135m`` writes, with 30 layers and a vocabulary of 49,152.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .common import CACHE, ROOT, THREADS, child_environment

VOCABULARY = 2048
PROMPTS = 512
PROMPT_TOKENS = (34, 40)
"""Fewest and most tokens of a rendered prompt; 37 on average."""
PRETRAINED = {"135M": "smollm2-135m"}
"""Models that have learned language, by their name for ``quintain model get``."""
PRETRAINED_TOKENS = (56, 64)
"""Those of a prompt for one of them, whose template begins with a system message; 60 on average."""

SIZES = {
    "0.1M": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "heads": 2,
        "key_heads": 1,
    },
    "1.05M": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "heads": 4,
        "key_heads": 2,
    },
    "4.46M": {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "heads": 4,
        "key_heads": 2,
    },
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "heads": 16,
        "key_heads": 8,
    },
    "1.7B": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "heads": 16,
        "key_heads": 8,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "heads": 32,
        "key_heads": 8,
    },
}
LARGE = {"0.6B", "1.7B", "8B"}
"""Shapes of Qwen3 with its vocabulary, heads of 128 and its context."""
UNTIED = {"8B"}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def folder(size: str) -> Path:
    """Where the model, its tokenizer and the prompts of *size* are; made on first use, by a child
    process.
    """
    path = CACHE / size
    if not (path / "prompts.json").exists():
        subprocess.run(
            [sys.executable, "-m", "studies.benchmarks.shapes", size],
            check=True,
            cwd=ROOT,
            env=child_environment(THREADS),
        )
    return path


def prompts(size_folder: Path | str) -> list[str]:
    """Texts that render to `PROMPT_TOKENS` tokens."""
    texts: list[str] = json.loads((Path(size_folder) / "prompts.json").read_text())
    return texts


def reward(reply: str) -> float:
    """Return the task: the share of vowels. Cheap, never constant over a group, the same function
    on both sides.
    """
    return sum(letter in "aeiou" for letter in reply) / max(1, len(reply))


def lengths(step: int, count: int, low: int, high: int) -> list[int]:
    """New tokens of each sample of a step, uniform in *low* to *high*: the same on both sides."""
    rng = random.Random(f"lengths/{step}")
    return [rng.randint(low, high) for _ in range(count)]


def generate(module: Any, prompts: Sequence[Sequence[int]], new: int) -> int:
    """Sample exactly *new* tokens after each of *prompts*, token ids of one length, with
    ``module.generate``.

    Returns:
        How many tokens were sampled.
    """
    import torch

    ids = torch.tensor(prompts, device=module.device)
    with torch.inference_mode():
        out = module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new,
            min_new_tokens=new,
            pad_token_id=0,
        )
    return int((out.shape[1] - ids.shape[1]) * len(prompts))


def _words(rng: random.Random, count: int) -> list[str]:
    syllables = [c + v + e for c in "bdfgklmnprstvz" for v in "aeiou" for e in ("", "n", "r", "s")]
    return ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(count)]


def _tokenizer(words: Sequence[str]):  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(
        [" ".join(words[i : i + 50]) for i in range(0, len(words), 50)], trainer
    )
    assert core.get_vocab_size() == VOCABULARY, core.get_vocab_size()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def _prompts(  # type: ignore[no-untyped-def]
    tokenizer, rng: random.Random, words: Sequence[str], tokens: tuple[int, int] = PROMPT_TOKENS
) -> list[str]:
    texts: list[str] = []
    while len(texts) < PROMPTS:
        length, text = rng.randint(*tokens), ""
        while True:
            text = f"{text} {rng.choice(words)}".strip()
            messages = [{"role": "user", "content": text}]
            size = len(
                tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_dict=True
                )["input_ids"]
            )
            if size >= length:
                break
        if size == length:
            texts.append(text)
    return texts


def config_of(size: str, **settings: Any) -> Any:
    """Return the Qwen3 configuration of *size*; *settings* are further fields of it."""
    from transformers import Qwen3Config

    shape, large = dict(SIZES[size]), size in LARGE
    heads, key_heads = shape.pop("heads"), shape.pop("key_heads")
    return Qwen3Config(
        **{
            "vocab_size": 151_936 if large else VOCABULARY,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "head_dim": 128 if large else shape["hidden_size"] // heads,
            "max_position_embeddings": 40_960 if large else 4096,
            "tie_word_embeddings": size not in UNTIED,
            "bos_token_id": None,
            **shape,
            **settings,
        }
    )


def make(size: str) -> Path:
    """Write the folder of *size*."""
    if size in PRETRAINED:
        return _make_pretrained(size)
    import torch
    from transformers import Qwen3ForCausalLM

    rng = random.Random(0)
    words = _words(rng, 20_000)
    tokenizer = _tokenizer(words)
    config = config_of(
        size, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    path = CACHE / size
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    (path / "prompts.json").write_text(json.dumps(_prompts(tokenizer, rng, words)))
    print(f"{path}: {sum(p.numel() for p in model.parameters()):,} parameters")
    return path


def _make_pretrained(size: str) -> Path:
    """Write the prompts beside links to the files of the model, which has to be there."""
    from transformers import AutoTokenizer

    from quintain.store.runs import model_named

    source, path = Path(model_named(PRETRAINED[size]).path), CACHE / size
    path.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if not (path / file.name).exists():
            (path / file.name).symlink_to(file)
    rng = random.Random(0)
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = _prompts(tokenizer, rng, _words(rng, 20_000), PRETRAINED_TOKENS)
    (path / "prompts.json").write_text(json.dumps(texts))
    return path


if __name__ == "__main__":
    make(sys.argv[1])
