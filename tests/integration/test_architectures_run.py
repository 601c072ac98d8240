"""Every architecture of docs/models.md starts with the recipe of `--model`, in every precision of the
engine, with all weights, adapters and the learner `lean`, and makes one step.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ..core.models.architectures import architecture
from ..core.models.tiny import byte_tokenizer
from ..docs.pages import page
from ..lanes import mostly_slow
from .recipes import brief, recipe_run

pytest.importorskip("peft", reason="adapters need quintain[lora]")
pytestmark = [
    pytest.mark.usefixtures("no_curves"),
    # peft asks transformers
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

SUPPORTED = re.findall(
    r"^\| `([\w.-]+)` \|",
    page("docs/models.md").text.partition("<!-- end supported -->")[0],
    re.MULTILINE,
)
BABBLE = Path(__file__).parent / "babble.py"
DTYPES = ("float32", "bfloat16", "float16")
WAYS = {"all weights": [], "LoRA": ["model.lora={}"], "lean": ["learner.use=lean"]}
FAST = {"gpt2, float32, all weights", "mamba2, bfloat16, LoRA", "gemma4, float16, lean"}
CASES = mostly_slow(map(", ".join, product(SUPPORTED, DTYPES, WAYS)), FAST)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the models so far."""
    return {}


def folder_of(name: str, saved: dict[str, Path], tmp_path_factory: Any) -> Path:
    """Return the folder of the model *name* with words for bytes, saved on first use."""
    if name not in saved:
        size = {"vocab_size": 260, "eos_token_id": 257, "pad_token_id": 259}
        if name == "gemma4":
            size["vocab_size_per_layer_input"] = 260
        # Weights of this spread say different things with one prompt.
        module = architecture(name, spread=0.05, max_position_embeddings=256, **size)
        saved[name] = tmp_path_factory.mktemp(name)
        module.save_pretrained(saved[name])
        byte_tokenizer().save_pretrained(saved[name])
    return saved[name]


@pytest.mark.keeps("gpt2, float32, all weights")
@pytest.mark.parametrize("case", CASES)
def test_the_recipe_of_model_makes_a_step(
    case: str,
    saved: dict[str, Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """One update with a gradient, and sampler and learner agree."""
    name, dtype, way = case.split(", ")
    changes = [
        *brief(folder_of(name, saved, tmp_path_factory), 4),
        f"environments=[{{use='{BABBLE}:Varied'}}]",
        "run.steps=1",
        "evaluation={every=0, test={tasks=0}}",
        "checkpoint.every=0",
        f"model.dtype={dtype}",
        *WAYS[way],
    ]
    _, records = recipe_run("pretrained", tmp_path / "run", changes)
    last = records[-1]
    assert last["updates"] == 1
    assert last["grad_norm"] > 0
    assert last["mismatch.sample"] < 0.05
