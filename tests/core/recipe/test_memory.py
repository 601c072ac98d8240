"""The memory of a run on paper: what ``--dry-run`` says of it, and what it leaves for slots."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from quintain.cli import main
from quintain.errors import RunError
from quintain.learning.learner import Learner
from quintain.models.load import cache_bytes, load_model
from quintain.models.paper import module_on_paper
from quintain.recipe.extends import bundled_text
from quintain.recipe.memory import activations, memory_of, prompt_copies
from quintain.recipe.plan import RunPlan
from quintain.recipe.room import Phase, engine_share, memory_advice, room_for_cache, slots_of
from quintain.recipe.tables import Recipe
from quintain.run.build import engine_for
from quintain.store.storage import size_text
from quintain.types.transcript import TrainingSequence

from ..models.architectures import architecture
from ..models.tiny import save_tiny, tiny_model


def dry_run(*words: str) -> int:
    return main(["train", "arithmetic", *words, "--dry-run"])


def gpu(monkeypatch: pytest.MonkeyPatch, gigabytes: float, free: float | None = None) -> None:
    """A GPU of that size in the place of this machine."""
    room = ("a GPU", int((gigabytes if free is None else free) * 1e9), int(gigabytes * 1e9))
    monkeypatch.setattr("quintain.recipe.room.room_of", lambda device: room)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("quintain.recipe.check.as_device", lambda name: torch.device("cuda"))


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration of Qwen3-0.6B and files that nothing opens."""
    folder = tmp_path_factory.mktemp("shapes")
    QWEN3_06B.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder_of_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny(folder)
    return folder


def parameters_of(folder: Path) -> int:
    return sum(p.numel() for p in module_on_paper(str(folder), None).parameters())


def test_a_dry_run_compares_checkpoints_with_the_free_disk(
    folder_of_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights and two moments in float32 for two checkpoints, weights alone for the best one: 4 * 7
    bytes each.
    """
    words = ("--model", str(folder_of_model), "--folder", str(tmp_path))
    needed = 28 * parameters_of(folder_of_model)

    assert dry_run(*words) == 0
    assert f"checkpoints take up to {size_text(needed)}; " in capsys.readouterr().err
    monkeypatch.setattr("quintain.recipe.room.free_bytes", lambda path: needed - 1)
    assert dry_run(*words) == 2
    assert (
        "make room, or set run.folder, checkpoint.keep=1 or checkpoint.best=false"
        in capsys.readouterr().err
    )
    assert dry_run(*words, "--set", "checkpoint.best=false") == 0
    assert dry_run(*words, "--set", "model.lora={}") == 0
    assert dry_run(*words, "--set", "checkpoint.every=0") == 0


QWEN3_06B = transformers.Qwen3Config(
    vocab_size=151_936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=40_960,
)  # fmt: skip


def test_a_dry_run_shows_the_memory_by_part_with_slots_and_waves(
    shape: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded: the folder has no weights."""
    gpu(monkeypatch, 24)
    assert dry_run("--model", str(shape)) == 0
    said = capsys.readouterr().err
    sizes = {
        name.strip(): float(size)
        for name, size in re.findall(r"^  ([A-Za-z ]+?) +([\d.]+) GB", said, re.M)
    }
    # 24 GB less 18 bytes a parameter, half of it; 2,560 tokens of 57,344 numbers of 2 bytes in each
    # slot.
    slots = int((24e9 - 18 * 596_049_920) / 2 // (2560 * 57_344 * 2))
    expected = {"weights": 2.38, "gradients": 2.38, "moments": 4.77, "engine copy": 1.19}
    assert expected == {name: sizes[name] for name in expected}
    assert (
        f"KV cache{slots * 2560 * 57_344 * 2 / 1e9:>12.2f} GB  {slots} slots of 2,560 tokens"
        in said
    )
    assert f"128 samples in {-(-128 // slots)} waves" in said
    assert "24.0 GB are free on a GPU" in said
    assert (
        abs(sum(sizes[n] for n in (*expected, "KV cache", "activations")) - sizes["together"])
        < 0.05
    )
    assert all(len(line) <= 80 for line in said.splitlines() if line.startswith(("memory", "  ")))

    gpu(monkeypatch, 24, free=12)
    assert dry_run("--model", str(shape), "--set", "sampling.max_tokens=2048") == 0
    assert "warning: that may not fit: lower learner.token_budget" in capsys.readouterr().err


def test_what_cannot_fit_is_refused_before_a_download(
    shape: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(monkeypatch, 8)
    assert dry_run("--model", str(shape)) == 2
    said = capsys.readouterr().err
    assert (
        "that is 10.7 GB, and a GPU has 8.0 GB: train adapters (model.lora={}) or take a smaller "
        "model" in said
    )
    pytest.importorskip("peft")
    assert dry_run("--model", str(shape), "--set", "model.lora={}") == 0


def test_an_engine_with_memory_of_its_own_is_not_counted(
    shape: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(monkeypatch, 24)
    monkeypatch.setattr("quintain_engines.vllm.local.check_installed", lambda: None)
    assert dry_run("--model", str(shape), "--set", "engine.use=vllm") == 0
    said = capsys.readouterr().err
    assert "KV cache" not in said
    assert "copy" not in said


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ((), "the learner leaves"),
        (("engine.args.sleep_mode=true",), "the learner leaves while it rests"),
        (("engine.args.sleep_mode=true", "schedule.use=areal"), "the learner leaves"),
        (("engine.use=vllm-server",), "the learner leaves"),
    ],
    ids=["vllm", "sleeps", "never-sleeps", "server"],
)
def test_vllm_takes_what_the_learner_leaves_of_their_gpu(
    shape: Path,
    words: tuple[str, ...],
    left: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu(monkeypatch, 24)
    for module in ("local", "server"):
        monkeypatch.setattr(f"quintain_engines.vllm.{module}.check_installed", lambda: None)
    settings = [x for word in ("engine.use=vllm", *words) for x in ("--set", word)]
    assert dry_run("--model", str(shape), *settings) == 0
    said = capsys.readouterr().err
    sizes = {n: float(x) for n, x in re.findall(r"^  ([a-z]+) +([\d.]+) GB", said, re.M)}
    in_turns = "rests" in left
    learner = sizes["together"] - in_turns * sizes["activations"]
    share = int(100 * (0.95 * 24 - learner) / 24) / 100
    assert f"  engine      {24 * share:>8.2f} GB  {share:g} of the GPU: what {left}\n" in said
    assert "warning" not in said


@pytest.mark.parametrize(
    "own",
    [
        "engine.args.gpu_share=0.5",
        "engine.args.options.gpu_memory_utilization=0.5",
        "engine.args.options.kv_cache_memory_bytes=1000000000",
    ],
)
def test_a_recipe_that_says_how_much_vllm_takes_is_followed(
    shape: Path, own: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(monkeypatch, 24)
    monkeypatch.setattr("quintain_engines.vllm.local.check_installed", lambda: None)
    words = ("--set", "engine.use=vllm", "--set", own)
    assert dry_run("--model", str(shape), *words) == 0
    assert "what the learner leaves" not in capsys.readouterr().err


def test_a_learner_that_leaves_no_room_for_vllm_is_a_warning(
    shape: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(monkeypatch, 14)
    monkeypatch.setattr("quintain_engines.vllm.local.check_installed", lambda: None)
    assert dry_run("--model", str(shape), "--set", "engine.use=vllm") == 0
    assert (
        "warning: the engine's own weights take 1.2 GB of them: set engine.args.sleep_mode=true, "
        "lower learner.token_budget" in capsys.readouterr().err
    )


def test_a_run_gives_vllm_the_share_of_its_plan(
    folder_of_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process holds already is counted once."""
    gpu(monkeypatch, 24, free=17)
    for name in ("recipe.check", "run.build"):
        monkeypatch.setattr(f"quintain.{name}.as_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("quintain_engines.vllm.local.check_installed", lambda: None)
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: int(3e9))
    plan, model = plan_of("engine.use=vllm"), load_model(str(folder_of_model), device="cpu")
    engine: Any = engine_for(plan, model)
    assert engine.settings.gpu_share == int(100 * 0.95 * 20 / 24) / 100
    platform = SimpleNamespace(is_cpu=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    assert engine._engine_args({})["gpu_memory_utilization"] == 0.79
    assert engine_share(plan, model.module, torch.device("cpu")) == (None, [])


def test_the_engine_gets_half_of_what_a_run_leaves_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is free and what the loaded module has, without weights, gradients, moments and copy."""
    plan = RunPlan.of(Recipe.parse(bundled_text("pretrained")))
    module = tiny_model("qwen3")
    assert room_for_cache(plan, module) is None

    monkeypatch.setattr("quintain.recipe.room.free_beside", lambda module: 10**9)
    numbers = sum(p.numel() for p in module.parameters())
    assert room_for_cache(plan, module) == (10**9 - 18 * numbers) // 2


def plan_of(*changes: str) -> RunPlan:
    return RunPlan.of(Recipe.parse(bundled_text("pretrained"), [*changes]))


def test_slots_are_what_the_room_holds_or_what_the_recipe_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, module = plan_of(), tiny_model("qwen3")
    row = cache_bytes(module, plan.rollouts.sequence_tokens, plan.engine_dtype)
    monkeypatch.setattr("quintain.recipe.room.room_for_cache", lambda plan, module: 20 * row)

    assert slots_of(plan, module) == 20
    assert slots_of(plan_of("engine.args.slots=3"), module) == 3


@pytest.mark.parametrize(
    ("phase", "slots", "first"),
    [
        ("loading", 0, "train adapters with model.lora={}; "),
        ("updating", 7, "lower learner.token_budget (now "),
    ],
)
def test_an_error_of_memory_says_what_to_change(phase: Phase, slots: int, first: str) -> None:
    with pytest.raises(RunError) as caught, memory_advice(phase, plan_of(), slots):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    said = str(caught.value)
    assert said.startswith(f"the GPU is out of memory while {phase}: {first}")
    assert said.endswith("; or take a smaller model (CUDA out of memory)")


@pytest.mark.keeps("True-float32")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_estimated_within_a_quarter(precision: str, checkpointing: bool) -> None:
    """Against what autograd saves for the backward pass of one sequence, the weights apart."""
    tokens, saved = 2048, dict[int, int]()
    module = tiny_model("qwen3", hidden=64, layers=4, context=4096)
    options: Any = {
        "precision": precision,
        "activation_checkpointing": checkpointing,
        "token_budget": tokens,
    }
    learner = Learner(module, None, lr=1e-5, **options)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)  # so that no address is used again
        if (storage := tensor.untyped_storage()).data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    row = TrainingSequence(
        ids=(1,) * tokens,
        mask=(False,) + (True,) * (tokens - 1),
        logps=(0.0,) * tokens,
        versions=(0,) * tokens,
    )
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learner.supervised_step([row])

    def estimate(checkpointing: bool) -> float:
        changes = [f"learner.precision={precision}", f"learner.token_budget={tokens}"]
        changes.append(f"learner.checkpoint_activations={str(checkpointing).lower()}")
        plan = RunPlan.of(Recipe.parse(bundled_text("quickstart"), changes))
        return activations(plan, module)

    # A layer that is computed again in the backward pass is not seen here.
    expected = estimate(True) - estimate(False) / 4 if checkpointing else estimate(False)
    assert 0.75 < expected / sum(saved.values()) < 1.25


LONG_PROMPTS = """
from quintain import Environment, Task, reward

@reward(range=(0, 1))
def varied(rollout):
    return sum(map(ord, rollout.reply)) % 11 / 10

class Long(Environment[Task, None]):
    reward = varied
    length: int = 24

    def tasks(self, split):
        return (Task(prompt=f"{i:02} " + "and " * (self.length // 4), answer="a") for i in range(32))
"""


@pytest.mark.slow
@pytest.mark.parametrize("length", [24, 440])
def test_the_peak_of_a_run_is_that_of_its_plan(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps on this processor with a model of 63M parameters, whose prompts have 60 or 480 tokens:
    the most that the process had resident is the estimate, within 15 %. A batch fills the
    micro-batch of the estimate.
    """
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "long.py").write_text(LONG_PROMPTS)
    save_tiny(tmp_path / "model", hidden=512, layers=12, vocab=49_152, context=2048, spread=0.02)
    settings: dict[str, Any] = {
        "run": {"steps": 2, "folder": str(tmp_path / "runs"), "name": "one"},
        "model": {"name": str(tmp_path / "model"), "device": "cpu"},
        "environments": [{"use": f"{tmp_path}/long.py:Long", "args": {"length": length}}],
        "sampling": {"max_tokens": 24},
        "batch": {"prompts": 4, "group_size": 8},
        "learner": {"token_budget": 1024},
        "evaluation": {"every": 0, "test": {"tasks": 0}},
    }
    recipe = Recipe.of(settings)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    plan = RunPlan.of(recipe)
    planned = memory_of(plan, module_on_paper(str(tmp_path / "model"), None), free=None)

    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_TELL, str(tmp_path / "recipe.toml")],
        capture_output=True,
        text=True,
        check=True,
    )

    peak = int(done.stdout.split()[-1])
    assert 0.85 * peak < planned.total < 1.15 * peak


TRAIN_AND_TELL = """
import pathlib, sys
from quintain.cli import main

assert main(["train", sys.argv[1], "-q"]) == 0
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print(1024 * int(status["VmHWM"].split()[0]))
"""


def test_prompts_that_a_group_shares_are_copied_for_its_replies() -> None:
    """Keys and values of what a reply sees, for each of them; by as many groups as a micro-batch and
    a step have.
    """
    module = tiny_model("qwen3")
    config = module.config
    numbers = 2 * config.num_key_value_heads * config.head_dim

    def copies(*changes: str) -> int:
        keys = ["sampling.max_tokens=64", "batch.prompts=16", "batch.group_size=8", *changes]
        return prompt_copies(RunPlan.of(Recipe.parse(bundled_text("quickstart"), keys)), module)

    # A prompt of 96 tokens, replies of 32: 352 tokens of a group, of which 2048 have 5.
    assert copies() == 4 * numbers * config.num_hidden_layers * 5 * 8 * 128
    assert copies("batch.prompts=2") == 4 * numbers * config.num_hidden_layers * 2 * 8 * 128
    assert copies("learner.checkpoint_activations=true") == 4 * numbers * 5 * 8 * 128
    module = architecture("gpt2")
    assert prompt_copies(RunPlan.of(Recipe.parse(bundled_text("quickstart"), [])), module) == 0


def test_a_plan_of_memory_takes_every_architecture() -> None:
    """And an engine with the precision of the checkpoint, or sizes that differ from layer to
    layer.
    """
    plan = RunPlan.of(Recipe.parse(bundled_text("pretrained"), ["engine.args.dtype=auto"]))
    for module in [architecture(name) for name in ("gpt2", "mixtral", "gemma3", "llama4")]:
        assert memory_of(plan, module, free=10**9).activations > 0
    module = tiny_model("qwen3")
    before = activations(plan, module)
    vars(module.config)["intermediate_size"] = [module.config.intermediate_size, 1]
    assert activations(plan, module) == before
