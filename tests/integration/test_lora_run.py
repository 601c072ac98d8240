"""A run of adapters: what its checkpoints hold, resumed after a kill, and used by the commands that
take a model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

pytest.importorskip("peft", reason="adapters need quintain[lora]")

from quintain.cli import main
from quintain.errors import RunError, UsageError
from quintain.learning import ModuleWeights
from quintain.models import load_model
from quintain.recipe.tables import Recipe
from quintain.store.checkpoint import Checkpoint, CheckpointManager
from quintain.store.run_folder import RunFolder

from ..core.models.tiny import save_tiny
from .test_run_plan import Killed, Watching, kill, metrics, recipe, run

pytestmark = [
    pytest.mark.usefixtures("no_curves"),
    # peft asks transformers
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
ENVIRONMENT = str(Path(__file__).parent / "babble.py:Babble")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("base") / "tiny", context=256, hidden=64)


@pytest.fixture(scope="module")
def calm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """An undisturbed run; how many rollouts there were when each step ended."""
    place, screen = tmp_path_factory.mktemp("calm") / "run", Watching()
    run(place, lora(model), screen)
    return place, screen.ended


def lora(model: Path) -> Recipe:
    return recipe(
        model, {}, run__steps=4, checkpoint__every=1, model__lora={"r": 2, "lora_alpha": 8}
    )


def last(place: Path) -> Checkpoint:
    return Checkpoint.open(sorted((place / "checkpoints").glob("step-*"))[-1])


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.safetensors"))


@pytest.mark.more
def test_a_checkpoint_has_the_adapters_alone(calm: tuple[Path, list[int]], model: Path) -> None:
    """Nothing of the frozen base, and the optimizer of what trains."""
    checkpoint = last(calm[0])
    adapters = load_file(checkpoint.model / "adapter_model.safetensors")
    trained = sum(tensor.numel() for tensor in adapters.values())
    held = torch.load(checkpoint.path / "learner.pt", weights_only=True)["learner"]
    moments = [
        t for state in held["optimizer"]["state"].values() for t in state.values() if t.numel() > 1
    ]

    assert all("lora_" in name for name in adapters)
    assert trained > 0
    assert not (checkpoint.model / "model.safetensors").exists()
    assert "module" not in held
    assert 2 * trained == sum(t.numel() for t in moments)
    assert 10 * size(checkpoint.model) < size(model)
    about = json.loads((checkpoint.model / "base_model.json").read_text())
    assert str(model) == about["model"]
    assert len(about["sha256"]) == 64


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_run(
    model: Path, calm: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """Metrics, adapters and moments agree bit for bit."""
    undisturbed, ended = calm
    with pytest.raises(Killed):
        run(tmp_path / "run", lora(model), Watching(ended[2] + 5, kill))
    assert last(tmp_path / "run").step == 2
    run(tmp_path / "run")

    assert metrics(undisturbed) == metrics(tmp_path / "run")
    ours, theirs = last(tmp_path / "run"), last(undisturbed)
    assert 4 == ours.step == theirs.step
    for name in ("adapter_model.safetensors", "base_model.json", "adapter_config.json"):
        assert (ours.model / name).read_bytes() == (theirs.model / name).read_bytes()
    optimizers = [
        torch.load(c.path / "learner.pt", weights_only=True)["learner"]["optimizer"]
        for c in (ours, theirs)
    ]
    for state, other in zip(*(o["state"].values() for o in optimizers), strict=True):
        assert all(torch.equal(state[key], other[key]) for key in state)


@pytest.mark.slow
def test_what_is_loaded_is_what_the_engine_sampled_from(
    calm: tuple[Path, list[int]], model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The adapters merged into the base, to the bit; the tokenizer is that of the run."""
    published: dict[str, torch.Tensor] = {}
    begin = CheckpointManager.begin

    def begun(manager: CheckpointManager, step: int, *, learner: Any, **settings: Any) -> None:
        published.update(
            {k: v.clone() for k, v in ModuleWeights(learner.module, step).tensors().items()}
        )
        begin(manager, step, learner=learner, **settings)

    monkeypatch.setattr(CheckpointManager, "begin", begun)
    run(tmp_path / "run", lora(model).replace({"run.steps": 1}))
    folder = last(tmp_path / "run").model
    loaded = load_model(folder, device="cpu")

    assert published
    own = loaded.module.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in published.items())
    assert any(
        not torch.equal(own[n], t)
        for n, t in load_model(model, device="cpu").module.state_dict().items()
    )
    half = load_model(folder, device="cpu", dtype="bfloat16").module.state_dict()
    assert all(
        torch.equal(half[name], tensor.to(torch.bfloat16)) for name, tensor in published.items()
    )
    # peft loads the base that it names
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, loaded.module(ids).logits, rtol=0, atol=1e-5)


def test_programs_that_merge_nothing_name_the_command(calm: tuple[Path, list[int]]) -> None:
    """Of vLLM and reward models, which take the whole model."""
    from quintain_engines.vllm.base import checkpoint
    from quintain_offline.reward_model.scoring import load_scoring_model

    folder = str(last(calm[0]).model)
    for take in (checkpoint, load_scoring_model):
        with pytest.raises(UsageError, match=f"run `quintain export {folder} DIR` once"):
            take(folder)


def test_adapters_that_are_not_finite_are_refused(
    calm: tuple[Path, list[int]], tmp_path: Path
) -> None:
    shutil.copytree(last(calm[0]).model, tmp_path / "bad")
    tensors = load_file(file := tmp_path / "bad" / "adapter_model.safetensors")
    save_file(
        {name: tensor * float("nan") for name, tensor in tensors.items()}, file, {"format": "pt"}
    )
    with pytest.raises(UsageError, match="do not fit the model .*not finite"):
        load_model(tmp_path / "bad", device="cpu")


@pytest.mark.slow
def test_commands_take_the_run(
    calm: tuple[Path, list[int]], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluation, chat and a further run of adapters; export writes the whole model."""
    place = str(calm[0])
    assert (
        main(["eval", ENVIRONMENT, "--model", place, "--tasks", "4", "--max-tokens", "8", "--json"])
        == 0
    )
    direct = json.loads(capsys.readouterr().out)
    once = ["--once", "hello", "--max-tokens", "4", "--temperature", "0", "--raw"]
    assert main(["chat", place, *once]) == 0
    answer = capsys.readouterr().out
    assert main(["export", place, str(tmp_path / "out")]) == 0
    assert size(model) == size(tmp_path / "out")
    capsys.readouterr()
    words = ["--model", str(tmp_path / "out"), "--tasks", "4", "--max-tokens", "8", "--json"]
    assert main(["eval", ENVIRONMENT, *words]) == 0
    assert direct["pass@1"] == json.loads(capsys.readouterr().out)["pass@1"]
    assert main(["chat", str(tmp_path / "out"), *once]) == 0
    assert answer == capsys.readouterr().out
    run(tmp_path / "next", lora(last(calm[0]).model).replace({"run.steps": 1}))
    merged = load_model(last(tmp_path / "next").model, device="cpu").module
    assert all(p.isfinite().all() for p in merged.parameters())


@pytest.mark.slow
def test_another_base_is_refused(
    calm: tuple[Path, list[int]], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its digest, at the resume and at an evaluation; a base that is gone is named with the file
    that names it.
    """
    base, place = tmp_path / "base", tmp_path / "run"
    shutil.copytree(model, base)
    run(place, lora(base).replace({"run.steps": 1}))
    RunFolder(place, lock=False).recipe_path.write_text(
        lora(base).replace({"run.steps": 2}).to_toml()
    )
    save_tiny(base, context=256, hidden=64, seed=5)

    with pytest.raises(
        RunError, match=rf"step-000001 cannot be resumed: .*other weights than '{base}' has now"
    ):
        run(place)
    assert main(["eval", ENVIRONMENT, "--model", str(place), "--tasks", "4"]) == 2
    said = capsys.readouterr().err
    assert "base_model.json" in said
    assert "put those weights back" in said
    shutil.rmtree(base)
    with pytest.raises(
        UsageError,
        match=r"does not exist.*base_model\.json names the model that the adapters change",
    ):
        load_model(last(place).model)
