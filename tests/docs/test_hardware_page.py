"""The table of docs/hardware.md says what the formula of the program says."""

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

from .pages import page

SHAPES = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, True),
    "Qwen3-4B": (2560, 9728, 36, 32, True),
    "Qwen3-8B": (4096, 12_288, 36, 32, False),
}
"""Hidden and intermediate size, layers, heads, and whether embeddings and output layer are tied."""
SIZES = (16, 24, 48, 80)


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


def row_of(name: str, module: Any, recipe: Recipe, way: str) -> str:
    """A line of the table: the parts that every run has, and for each GPU the slots, or `no` where
    it cannot fit.
    """
    plan = RunPlan.of(recipe)
    plans = [memory_of(plan, module, free=int(size * 1e9)) for size in SIZES]
    cells = [
        str(p.slots) if p.total <= size * 1e9 else "no"
        for p, size in zip(plans, SIZES, strict=True)
    ]
    first = plans[0]
    return (
        f"| {name}, {way} | {first.fixed / 1e9:.1f} | {first.activations / 1e9:.1f} | "
        f"{' | '.join(cells)} |"
    )


@pytest.mark.parametrize("name", SHAPES)
def test_the_table_of_gpus_is_what_the_formula_gives(name: str) -> None:
    """With the recipe that `--model` starts from; adapters of rank 16."""
    pytest.importorskip("peft")
    recipe, module = Recipe.parse(bundled_text("pretrained")), module_of(name)
    lora = Recipe.parse("extends = 'pretrained'\n[model.lora]\n")
    text = page("docs/hardware.md").text

    assert row_of(name, module, recipe, "all weights") in text
    assert row_of(name, with_adapters(module, {"r": 16}), lora, "LoRA") in text


def test_the_learning_rates_of_adapters_agree() -> None:
    """On the page, in the recipe and in its page."""
    rates = [
        re.findall(r"lora.*?\nlr = (\S+)", page(p).text, re.S)
        for p in ("docs/hardware.md", "docs/worked-recipes.md")
    ]

    assert [found[:1] for found in rates] == [["2e-5"], ["2e-5"]]
    assert Recipe.load("examples/gsm8k-lora.toml").learner.lr == 2e-5
