"""The table of docs/one-card.md says what the formula of the program says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers

from quintain.models.lora import with_adapters
from quintain.recipe.extends import bundled_text
from quintain.recipe.memory import memory_of
from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe

from ..lanes import mostly_slow
from .pages import page

SHAPES = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, True),
    "Qwen3-4B": (2560, 9728, 36, 32, True),
    "Qwen3-8B": (4096, 12_288, 36, 32, False),
}
"""Hidden and intermediate size, layers, heads, and whether embeddings and output layer are tied."""
SIZES = (16, 24, 48, 80)
LEAN, LORA = "learner.use=lean", "model.lora={}"
ADAMW = "learner.args.optimizer=adamw"
READ = [LORA, LEAN, ADAMW, "engine.args.merge=false"]
WAYS: dict[str, list[str]] = {
    "default": [],
    "8-bit moments": [LEAN, "learner.args.weights=float32"],
    "bfloat16 weights": [LEAN],
    "AdamW on the host": [LEAN, "learner.args.optimizer=adamw_host"],
    "LoRA": [LORA],
    "LoRA, bfloat16 base": [LORA, LEAN, ADAMW],
    "LoRA, no merged copy": READ,
    "LoRA, int8 base": [*READ, "learner.args.base=int8"],
    "LoRA, nf4 base": [*READ, "learner.args.base=nf4"],
}
"""Settings of a recipe by the name of the way in the table."""


def module_of(name: str) -> Any:
    """The module of that shape, without weights."""
    hidden, inner, layers, heads, tied = SHAPES[name]
    config = transformers.Qwen3Config(
        vocab_size=151_936, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=tied,
        max_position_embeddings=40_960,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def row_of(name: str, module: Any, way: str) -> str:
    """A line of the table: the parts that every run has, and for each GPU the slots, or `no` where
    it cannot fit.
    """
    plan = RunPlan.of(Recipe.parse(bundled_text("pretrained"), WAYS[way]))
    plans = [memory_of(plan, module, free=int(size * 1e9)) for size in SIZES]
    cells = [
        str(p.slots) if p.total <= size * 1e9 else "no"
        for p, size in zip(plans, SIZES, strict=True)
    ]
    first = plans[0]
    host = f"{first.host / 1e9:.1f}" if first.host else "0"
    return (
        f"| {name} | {way} | {first.fixed / 1e9:.1f} | {first.activations / 1e9:.1f} | {host} | "
        f"{' | '.join(cells)} |"
    )


@pytest.mark.keeps("Qwen3-0.6B")
@pytest.mark.parametrize("name", mostly_slow(SHAPES, ["Qwen3-0.6B", "Qwen3-8B"]))
def test_the_table_of_gpus_is_what_the_formula_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the recipe that `--model` starts from; adapters of rank 16."""
    pytest.importorskip("peft")
    # the formula asks for no kernel of it
    monkeypatch.setattr("quintain_learners.lean.learner.bitsandbytes", lambda: None)
    text, module = page("docs/one-card.md").text, module_of(name)
    for way, settings in WAYS.items():
        if LORA not in settings:
            assert row_of(name, module, way) in text
    adapted = with_adapters(module, {"r": 16})
    for way, settings in WAYS.items():
        if LORA in settings:
            assert row_of(name, adapted, way) in text


def test_the_learning_rates_of_adapters_agree() -> None:
    """On the page, in the recipe and in its page."""
    rates = [
        re.findall(r"lora.*?\nlr = (\S+)", page(p).text, re.S)
        for p in ("docs/hardware.md", "docs/worked-recipes.md")
    ]

    assert [found[:1] for found in rates] == [["2e-5"], ["2e-5"]]
    assert Recipe.load("examples/gsm8k-lora.toml").learner.lr == 2e-5
