"""The path of a pretrained model on a GPU, as far as a machine without one can show it."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain.cli import main
from quintain.engines.embedded.engine import SLOTS, EmbeddedEngine
from quintain.errors import RunError
from quintain.models.hf import saved_parameters
from quintain.models.load import cache_bytes
from quintain.training.build import memory_advice, model_for, remarks, run_training
from quintain.training.provenance import header
from quintain.training.recipe.load import bundled
from quintain.training.recipe.tables import Recipe
from quintain.training.resolve import resolve_algorithm
from quintain.training.screen import Screen
from quintain.training.storage import size_text

from .models import save_tiny, tiny_model


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
        f"{parameters / 1e6:,.1f}M parameters on CPU (threads: {torch.get_num_threads()}), engine float32"
    )
    assert "64 x 4 samples a step" in line
    assert "no GPU" not in line


def test_header_warns_of_a_large_model_without_a_gpu() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(20_000, 10_000)

    assert "200.0M parameters" in (line := header(Recipe.parse(bundled("pretrained")), module))
    assert "3.6 GB of weights and optimizer; torch sees no GPU" in line


def test_header_counts_the_engines_copy_and_its_cache() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(20_000, 10_000, bias=False)  # 0.2 billion parameters

    line = header(Recipe.parse(bundled("pretrained")), module, cache=3_000_000_000)

    assert "3.6 GB of weights and optimizer, up to 3 GB of KV cache" in line


@pytest.mark.parametrize(
    ("seconds", "steps", "forecast"),
    [
        (144.0, 80, "about 2.4 min a step: 3:09:36 for the other 79 steps, without evaluations"),
        (0.85, 300, "about 0.85 s a step: 4:14 for the other 299 steps, without evaluations"),
        (0.5, 100, ""),
        (500.0, 1, ""),
    ],
)
def test_the_first_step_tells_the_time_of_a_run(seconds: float, steps: int, forecast: str) -> None:
    """From the seconds of its phases: the evaluation before training is no part of a step."""
    out = io.StringIO()
    screen = Screen(out)
    screen.start(10 + steps, done=10)
    for step in (11, 12):
        screen.step(step, {"seconds.rollouts": seconds - 0.25, "seconds.update": 0.25})

    assert out.getvalue().splitlines()[1:-1] == [forecast] * bool(forecast)


def test_adapters_with_a_rate_for_all_weights_get_a_note() -> None:
    lora, default = Recipe.parse("extends = 'pretrained'\n[model.lora]\n"), Recipe.parse(bundled("pretrained"))

    assert any("adapters usually need 1e-5 to 5e-5" in note for note in remarks(lora, resolve_algorithm(lora), []))
    assert [] == remarks(default, resolve_algorithm(default), [])


def test_a_resume_names_the_checkpoint_that_it_loads(tmp_path: Path) -> None:
    """Not the model of the recipe, which it does not read."""
    save_tiny(tmp_path)
    recipe = Recipe.parse(bundled("pretrained"), ["model.name=nobody/nothing"])
    out = io.StringIO()
    checkpoint: Any = SimpleNamespace(model=tmp_path, step=7, tokenizer="")
    model_for(recipe, [], checkpoint, Screen(out), nullcontext)

    assert out.getvalue().startswith("loading the checkpoint of step 7\n")
    assert "nobody" not in out.getvalue()


# ---------------------------------------------------------------- the dry run
def dry_run(*words: str) -> int:
    return main(["train", "arithmetic", *words, "--dry-run"])


@pytest.fixture(scope="module")
def folder_of_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny(folder)
    return folder


def test_parameters_are_counted_without_loading(folder_of_model: Path, tmp_path: Path) -> None:
    module = tiny_model("qwen3")

    assert saved_parameters(str(folder_of_model)) == sum(p.numel() for p in module.parameters())
    assert 0 == saved_parameters("nobody/nothing")
    for content in (b"", b"\xff" * 100, b"\x02" + b"\0" * 7 + b"[]", b"\x08" + b"\0" * 7 + b'{"a": 1}'):
        (tmp_path / "model.safetensors").write_bytes(content)
        assert 0 == saved_parameters(str(tmp_path))


def test_a_dry_run_compares_checkpoints_with_the_free_disk(
    folder_of_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and two moments in float32 for two checkpoints, weights alone for the best one: 4 * 7 bytes each."""
    words = ("--model", str(folder_of_model), "--folder", str(tmp_path))
    needed = 28 * saved_parameters(str(folder_of_model))

    assert 0 == dry_run(*words)
    assert f"checkpoints take up to {size_text(needed)}; " in capsys.readouterr().err
    monkeypatch.setattr("quintain.training.check.free_bytes", lambda path: needed - 1)
    assert 2 == dry_run(*words)
    assert "make room, or set run.folder, checkpoint.keep=1 or checkpoint.best=false" in capsys.readouterr().err
    assert 0 == dry_run(*words, "--set", "checkpoint.best=false")
    assert 0 == dry_run(*words, "--set", "model.lora={}")
    assert 0 == dry_run(*words, "--set", "checkpoint.every=0")


def test_a_dry_run_names_the_services_of_open_slots(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the recipe names are in the recipe; notes go to stderr, so that the recipe can be saved."""
    assert 0 == main(["train", "code", "--dry-run"])
    assert "service" not in capsys.readouterr().err

    assert 0 == main(["train", "-e", "search", "--dry-run"])
    shown = capsys.readouterr()
    assert "service 'search': quintain-env-search/search (the recipe names none)" in shown.err
    assert Recipe.parse(shown.out).environments[0].use == "search"


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


def test_a_service_that_nothing_needs_is_refused_where_its_name_is_nearly_that_of_a_slot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The installed service would fill the slot, without the settings of the table."""
    assert 2 == main(["train", "-e", "search", "--dry-run", "--set", "services.serach.use=workers"])
    assert "nothing needs [services.serach]; did you mean [services.search]?" in capsys.readouterr().err

    assert 0 == main(["train", "-e", "search", "--dry-run", "--set", "services.notes.use=workers"])
