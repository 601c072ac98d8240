"""The path of a pretrained model on a GPU, as far as a machine without one can show it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from quintain.cli import main
from quintain.engines.embedded.engine import SLOTS, EmbeddedEngine
from quintain.errors import RunError
from quintain.models.load import cache_bytes
from quintain.training.build import memory_advice, run_training
from quintain.training.provenance import header
from quintain.training.recipe.load import bundled
from quintain.training.recipe.tables import Recipe

from .models import tiny_model


def test_slots_are_counted_in_the_engines_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the bytes, twice the sequences; on a GPU those that half of the free memory holds."""
    module = tiny_model("qwen3", context=4096)
    row = cache_bytes(module, 4096, "bfloat16")
    assert 2 * row == cache_bytes(module, 4096, "float32")
    monkeypatch.setattr("quintain.engines.embedded.engine.CACHE_BYTES", 100 * row)

    assert 100 == EmbeddedEngine.slots_for(module, samples=256, tokens=4096, dtype="bfloat16")
    assert SLOTS == EmbeddedEngine.slots_for(module, samples=256, tokens=4096, dtype="float32")

    on_gpu = SimpleNamespace(
        parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]), config=module.config
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (260 * row, 1000 * row))
    assert 130 == EmbeddedEngine.slots_for(on_gpu, samples=256, tokens=4096, dtype="bfloat16")
    assert 64 == EmbeddedEngine.slots_for(on_gpu, samples=64, tokens=4096, dtype="bfloat16")


def test_out_of_memory_names_the_keys_to_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From anywhere in a run: here while the model is loaded."""

    def full(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."
        )

    monkeypatch.setattr("quintain.training.build.model_for", full)
    recipe = Recipe.parse("[[environments]]\nuse = 'arithmetic'\n")

    with pytest.raises(RunError, match="lower learner.token_budget, engine.args.slots.*CUDA out of memory"):
        run_training(recipe, SimpleNamespace(checkpoints=tmp_path, status=None), SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="other"), memory_advice():
        raise ValueError("other")


def test_header_has_device_parameters_and_memory() -> None:
    module = tiny_model("qwen3", context=64)
    parameters = sum(p.numel() for p in module.parameters())
    recipe = Recipe.parse(bundled("quickstart"))

    line = header(recipe, module)

    assert line.startswith(
        f"{parameters / 1e6:,.1f}M parameters on CPU ({torch.get_num_threads()} threads), engine float32"
    )
    assert "64 x 4 samples a step" in line
    assert "no GPU" not in line


def test_header_warns_of_a_large_model_without_a_gpu() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(20_000, 10_000)

    assert "200.0M parameters" in (line := header(Recipe.parse(bundled("pretrained")), module))
    assert "3.2 GB of weights and optimizer; torch sees no GPU" in line


def test_a_dry_run_lists_all_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Model and data in one go, with a status that scripts see."""
    status = main(["train", "--model", "some/model", "--env", "gsm8k", "--arg", "data=/nope", "--dry-run"])

    shown = capsys.readouterr()
    assert (2, "") == (status, shown.out)
    assert "cannot load model 'some/model'" in shown.err
    assert "gsm8k: there is no file or folder '/nope'" in shown.err


def test_defaults_of_a_pretrained_model() -> None:
    """Those of the table that TRL, verl and prime-rl agree on."""
    recipe = Recipe.parse(bundled("pretrained"))

    assert {"enable_thinking": False} == recipe.model.template
    assert (1024, 3e-6, None, 1) == (
        recipe.sampling.max_tokens,
        recipe.learner.lr,
        recipe.evaluation.test.tasks,
        recipe.checkpoint.keep,
    )
