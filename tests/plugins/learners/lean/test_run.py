"""Runs with the learner `lean`: from a recipe, resumed, and on paper."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file

from quintain.cli import main
from quintain.models.lora import with_adapters
from quintain.recipe.extends import bundled_text
from quintain.recipe.memory import MemoryPlan, memory_of
from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe

from ....core.models.tiny import tiny_model
from ....small_run import small_recipe

HALF = ["learner.precision=bf16", "model.dtype=bfloat16", "learner.use=lean"]
SUMS = 'use = "arithmetic"'
READ = ["model.lora={}", "learner.args.optimizer=adamw", "engine.args.merge=false"]


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["learner.args.optimizer=adamw_8bit"], marks=pytest.mark.slow),
        pytest.param(["learner.args.optimizer=adamw_host"], marks=pytest.mark.slow),
        pytest.param(READ, marks=pytest.mark.slow),
        [*READ, "learner.args.base=int8"],
        pytest.param(
            [*READ, "learner.args.base=nf4"],
            marks=pytest.mark.skipif(
                find_spec("bitsandbytes") is None, reason="nf4 needs bitsandbytes"
            ),
        ),
    ],
    ids=["8-bit moments", "AdamW on the host", "adapters read by the engine", "int8", "nf4"],
)
def test_a_resumed_run_equals_one_that_was_not_stopped(
    small_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, changes: list[str]
) -> None:
    """A run that lost its last two steps, as by `kill -9`, ends with the same weights, bit for
    bit.
    """
    folder = small_run(small_recipe(SUMS, steps=4, tables="[checkpoint]\nevery = 2"))
    monkeypatch.chdir(folder)
    settings = [*HALF, *changes, "learner.lr=1e-3"]
    command = ["train", "recipe.toml", "-q", *(w for s in settings for w in ("--set", s))]
    for name in ("whole", "halves"):
        assert main([*command, "--name", name]) == 0
    shutil.rmtree(folder / "runs/halves/checkpoints/step-000004")
    assert main(["train", "--resume", "runs/halves", "-q"]) == 0

    def weights(run: str) -> dict[str, object]:
        (path,) = (folder / "runs" / run / "checkpoints/step-000004/model").glob("*.safetensors")
        return {name: tensor.tolist() for name, tensor in load_file(path).items()}

    assert weights("halves") == weights("whole")


def test_memory_on_paper_follows_the_settings() -> None:
    """`--dry-run` plans 2 + 2 + 2 bytes and no copy of the engine; of adapters, the base alone in
    half precision.
    """
    module = tiny_model("qwen3")
    numbers = sum(p.numel() for p in module.parameters())

    def planned(*settings: str) -> list[int]:
        plan = RunPlan.of(Recipe.parse(bundled_text("pretrained"), [*HALF, *settings]))
        memory = memory_of(plan, module, free=10**9)
        return [
            memory.weights // numbers,
            memory.gradients // numbers,
            memory.moments // numbers,
            memory.copy // numbers,
        ]

    assert planned() == [2, 2, 2, 0]
    assert planned("learner.args.optimizer=adamw_host") == [2, 2, 0, 0]
    assert planned("learner.args.weights=float32") == [4, 4, 2, 2]
    assert planned("learner.use=torch") == [4, 4, 8, 2]
    assert planned("engine.args.dtype=auto") == [2, 2, 2, 0]
    host = ("learner.args.optimizer=adamw_host",)
    plan = RunPlan.of(Recipe.parse(bundled_text("pretrained"), [*HALF, *host]))
    assert memory_of(plan, module, free=10**9).host == 12 * numbers
    on_cpu = memory_of(plan, module, free=None)
    assert on_cpu.host == 0
    assert on_cpu.moments == 12 * numbers
    # of the same size as bfloat16, but another type
    assert planned("model.dtype=float16") == [2, 2, 2, 2]


def test_memory_on_paper_of_adapters() -> None:
    """The engine's copy is planned, except where it reads the adapters itself."""
    module = with_adapters(tiny_model("qwen3"), {"r": 2})

    def copied(*settings: str) -> bool:
        changes = [*HALF, "model.lora={}", "learner.args.optimizer=adamw", *settings]
        plan = RunPlan.of(Recipe.parse(bundled_text("pretrained"), changes))
        return memory_of(plan, module, free=10**9).copy > 0

    assert copied()
    assert not copied("engine.args.merge=false")


@pytest.mark.parametrize(("base", "each"), [("int8", 1.0), ("nf4", 0.515625)])
def test_memory_on_paper_of_a_base_in_few_bits(
    base: str, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maps under adapters take fewer bytes, the rest what it took; all of them are bfloat16 while
    they are loaded, which the whole may not fall below.
    """
    # what is measured on paper asks for no kernel of it
    monkeypatch.setattr("quintain_learners.lean.learner.bitsandbytes", lambda: None)
    module = with_adapters(tiny_model("qwen3"), {"r": 2})
    under = sum(p.numel() for n, p in module.named_parameters() if "base_layer" in n)
    changes = [*HALF, "model.lora={}", "learner.args.optimizer=adamw", "engine.args.merge=false"]

    def planned(*settings: str) -> MemoryPlan:
        plan = RunPlan.of(Recipe.parse(bundled_text("pretrained"), [*changes, *settings]))
        return memory_of(plan, module, free=10**9)

    plain, quantised = planned(), planned(f"learner.args.base={base}")
    assert plain.loading == quantised.loading == plain.weights
    assert plain.weights - quantised.weights == int((2 - each) * under)
    assert replace(quantised, loading=10**12).total == 10**12


def test_settings_are_checked_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt setting, one that is no choice, and settings of a learner without any."""
    for change, message in {
        "learner.args.optimiser=adamw_8bit": "did you mean 'optimizer'",
        "learner.args.optimizer=adam": "'adamw', 'adamw_8bit' or 'adamw_host'",
        "learner.use=torch": "learner 'torch' takes no args",
    }.items():
        command = ["train", "--dry-run", "--set", "learner.use=lean"]
        command += ["--set", "learner.args.weights=bfloat16", "--set", change]
        assert main(command) == 2
        assert message in capsys.readouterr().err
