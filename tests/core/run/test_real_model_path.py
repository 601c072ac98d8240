"""The path of a pretrained model on a GPU, as far as a machine without one can show it."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quintain.cli import main
from quintain.console.screen import Screen
from quintain.engine.embedded import SLOTS, EmbeddedEngine
from quintain.learning.learner import Learner
from quintain.models.load import cache_bytes
from quintain.models.paper import module_on_paper
from quintain.recipe.extends import bundled_text
from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe
from quintain.run.build import model_for
from quintain.run.provenance import header

from ..models.tiny import save_tiny, tiny_model


def test_slots_are_counted_in_the_engines_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the bytes, twice the sequences; on a GPU those that half of the free memory holds."""
    module = tiny_model("qwen3", context=4096)
    row = cache_bytes(module, 4096, "bfloat16")
    assert 2 * row == cache_bytes(module, 4096, "float32")
    monkeypatch.setattr("quintain.engine.embedded.CACHE_BYTES", 100 * row)

    assert EmbeddedEngine.slots_for(module, samples=256, tokens=4096, dtype="bfloat16") == 100
    assert EmbeddedEngine.slots_for(module, samples=256, tokens=4096, dtype="float32") == SLOTS

    assert (
        EmbeddedEngine.slots_for(module, samples=256, tokens=4096, dtype="bfloat16", room=130 * row)
        == 130
    )
    assert (
        EmbeddedEngine.slots_for(module, samples=64, tokens=4096, dtype="bfloat16", room=130 * row)
        == 64
    )
    assert EmbeddedEngine.slots_for(module, samples=64, tokens=4096, dtype="bfloat16", room=0) == 8


def out_of_memory(*args: object, **options: object) -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of ..."
    )


def failed_run(model: Path, folder: Path, capsys: pytest.CaptureFixture[str], *changes: str) -> str:
    """The error of a run on *model* that ends early."""
    small = [
        f"model.name={model}",
        "model.device=cpu",
        "sampling.max_tokens=9",
        "batch={prompts=2, group_size=2}",
    ]
    off = [
        "evaluation.every=0",
        "evaluation.test.tasks=0",
        "checkpoint.every=1",
        f"run.folder={folder}",
    ]
    words = [word for change in (*small, *off, *changes) for word in ("--set", change)]
    babble = Path(__file__).parents[2] / "integration" / "babble.py:Babble"
    assert (
        main(
            [
                "train",
                "--env",
                str(babble),
                "--model",
                str(model),
                "--name",
                "one",
                "--steps",
                "3",
                *words,
            ]
        )
        == 1
    )
    return capsys.readouterr().err


def test_out_of_memory_while_loading_names_what_to_change(
    folder_of_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adapters, where all weights train; else the precision of the engine, where it is wide."""
    monkeypatch.setattr("quintain.recipe.sources.load_model", out_of_memory)
    said = failed_run(folder_of_model, tmp_path / "a", capsys)
    assert (
        "out of memory while loading: train adapters with model.lora={}; or take a smaller model "
        "(CUDA" in said
    )
    said = failed_run(
        folder_of_model, tmp_path / "b", capsys, "model.lora={}", "model.dtype=float32"
    )
    assert (
        "while loading: set model.dtype=bfloat16 (now float32); or take a smaller model (CUDA out "
        "of mem" in said
    )


@pytest.mark.usefixtures("no_curves")
def test_out_of_memory_while_updating_names_the_values_of_now(
    folder_of_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checkpointing only where it is off; a failed run names the command that continues it."""
    on = ("learner.checkpoint_activations=true", "learner.precision=bf16")
    said = failed_run_in_step_2(
        folder_of_model, tmp_path / "a", capsys, monkeypatch, "learner.token_budget=777", *on
    )
    assert (
        "while updating: lower learner.token_budget (now 777); lower sampling.max_tokens (now 9); "
        "lower" in said
    )
    assert re.search(r"engine.args.slots \(now \d+\)", said)
    assert "checkpoint_activations" not in said
    assert re.search(
        r"the run failed; every step up to 1 is saved. To continue: .* train --resume .*/a/one",
        said,
    )
    off = ("learner.checkpoint_activations=false", "learner.precision=float32")
    said = failed_run_in_step_2(folder_of_model, tmp_path / "b", capsys, monkeypatch, *off)
    assert (
        "(now 2048); set learner.checkpoint_activations=true; set learner.precision=bf16 (now "
        "float32); " in said
    )


def failed_run_in_step_2(
    model: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *changes: str,
) -> str:
    step = Learner.step

    def fails_later(self: Learner, *args: Any, **options: Any) -> Any:
        return out_of_memory() if self.version else step(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", fails_later)
        return failed_run(model, folder, capsys, *changes)


@pytest.mark.usefixtures("no_curves")
def test_out_of_memory_while_sampling_names_slots_and_tokens(
    folder_of_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quintain.engine.embedded.decode_burst", out_of_memory)
    said = failed_run(folder_of_model, tmp_path, capsys, "engine.args.slots=3")
    expected = (
        "while sampling: lower engine.args.slots (now 3) or sampling.max_tokens (replies now have "
        "up to 8): CUDA"
    )
    assert expected in said  # the limit of the environment
    assert "total capacity" not in said


def test_header_has_device_parameters_and_memory() -> None:
    module = tiny_model("qwen3", context=64)
    parameters = sum(p.numel() for p in module.parameters())
    recipe = Recipe.parse(bundled_text("quickstart"))

    line = header(RunPlan.of(recipe), module)

    assert line.startswith(
        f"{parameters / 1e6:,.1f}M parameters on CPU (threads: {torch.get_num_threads()}), engine "
        f"float32"
    )
    assert "64 tasks x 4 samples a step" in line
    assert "no GPU" not in line


def test_header_warns_of_a_large_model_without_a_gpu() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(20_000, 10_000)

    assert "200.0M parameters" in (
        line := header(RunPlan.of(Recipe.parse(bundled_text("pretrained"))), module)
    )
    assert "3.6 GB of weights and optimizer; no GPU: products of " in line
    assert re.search(r"a step is estimated at \d+ (s|min|h)\b", line)


def test_header_counts_the_engines_copy_and_its_cache() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(20_000, 10_000, bias=False)  # 0.2 billion parameters

    line = header(RunPlan.of(Recipe.parse(bundled_text("pretrained"))), module, cache=3_000_000_000)

    assert "3.6 GB of weights and optimizer, up to 3 GB of KV cache" in line


@pytest.mark.parametrize(
    ("seconds", "steps", "forecast"),
    [
        (144.0, 80, "2.4 min a step: about 3 h 10 min for the other 79 steps, without evaluations"),
        (0.85, 300, "0.85 s a step: about 5 min for the other 299 steps, without evaluations"),
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
    lora = Recipe.parse("extends = 'pretrained'\n[model.lora]\n")
    default = Recipe.parse(bundled_text("pretrained"))

    assert any("adapters usually need 1e-5 to 5e-5" in note for note in RunPlan.of(lora).notes)
    assert RunPlan.of(default).notes == ()


def test_a_resume_names_the_checkpoint_that_it_loads(tmp_path: Path) -> None:
    """Not the model of the recipe, which it does not read."""
    save_tiny(tmp_path)
    recipe = Recipe.parse(bundled_text("pretrained"), ["model.name=nobody/nothing"])
    out = io.StringIO()
    checkpoint: Any = SimpleNamespace(model=tmp_path, step=7, tokenizer="")
    model_for(RunPlan.of(recipe), checkpoint, Screen(out), nullcontext)

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
    """By the configuration alone; with adapters those that train."""
    count = sum(p.numel() for p in tiny_model("qwen3").parameters())
    assert count == parameters_of(folder_of_model)
    pytest.importorskip("peft")
    adapted = module_on_paper(str(folder_of_model), {"r": 2})
    assert 0 < sum(p.numel() for p in adapted.parameters() if p.requires_grad) < count / 5

    assert module_on_paper("nobody/nothing", None) is None
    for content in ("", "[]", '{"model_type": "unheard"}'):
        (tmp_path / "config.json").write_text(content)
        assert module_on_paper(str(tmp_path), None) is None


def parameters_of(folder: Path) -> int:
    return sum(p.numel() for p in module_on_paper(str(folder), None).parameters())


@pytest.mark.more
def test_a_dry_run_names_the_services_of_open_slots(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the recipe names are in the recipe; notes go to stderr, so that the recipe can be
    saved.
    """
    assert main(["train", "search", "--dry-run"]) == 0
    assert "service" not in capsys.readouterr().err

    assert main(["train", "-e", "search", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "service 'retriever': quintain-env-search/retriever (the recipe names none)" in shown.err
    assert Recipe.parse(shown.out).environments[0].use == "search"


def test_a_dry_run_lists_all_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Model and data in one go, with a status that scripts see."""
    status = main(
        ["train", "--model", "some/model", "--env", "gsm8k", "--arg", "data=/nope", "--dry-run"]
    )

    shown = capsys.readouterr()
    assert status == 2
    assert shown.out == ""
    assert "cannot load model 'some/model'" in shown.err
    assert "gsm8k: there is no file or folder '/nope'" in shown.err


def test_defaults_of_a_pretrained_model() -> None:
    """Those of the table that TRL, verl and prime-rl agree on."""
    recipe = Recipe.parse(bundled_text("pretrained"))

    assert recipe.model.template == {"enable_thinking": False}
    assert recipe.sampling.max_tokens == 1024
    assert recipe.learner.lr == 3e-6
    assert recipe.evaluation.test.tasks is None
    assert recipe.checkpoint.keep == 1


def test_a_service_that_nothing_needs_is_refused_where_its_name_is_nearly_that_of_a_slot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The installed service would fill the slot, without the settings of the table."""
    assert (
        main(["train", "-e", "search", "--dry-run", "--set", "services.retreiver.use=workers"]) == 2
    )
    assert (
        "nothing needs [services.retreiver]; did you mean [services.retriever]?"
        in capsys.readouterr().err
    )

    assert main(["train", "-e", "search", "--dry-run", "--set", "services.notes.use=workers"]) == 0
