"""Weights that the ranks alone hold: read from files, given to engines and written by ranks, the same
numbers as with a run that has them.
"""

from __future__ import annotations

import copy
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quintain.cli import main
from quintain.errors import RunError, UsageError
from quintain.learning import ALGORITHMS, Learner
from quintain.models import HFTokenizer, load_model
from quintain.models.probe import plain_log_probs
from quintain.store import RunFolder
from quintain.store.checkpoint import Checkpoint, CheckpointManager
from quintain_engines.vllm.canary import forward_log_probs, tolerance_of
from quintain_learners.fsdp import Fsdp, FsdpLearner, held
from quintain_learners.fsdp.team import Team

from ....core.models.tiny import byte_tokenizer, save_tiny
from ....small_run import small_recipe
from .test_exact import batch
from .test_run import SUMS

GRPO = ALGORITHMS["grpo"]
SETTINGS: dict[str, Any] = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model, whose embeddings are its output layer or not."""
    folder = tmp_path_factory.mktemp("model")
    return save_tiny(folder, tie_word_embeddings=request.param)


def module(saved: Path, device: str = "cpu") -> Any:
    """Return the model in *saved*; on the device ``meta`` it has no weights."""
    return load_model(saved, device=device).module


def held_by_ranks(team: Team, saved: Path, **settings: Any) -> FsdpLearner:
    settings = {"ranks": 2, "checkpoint": "sharded", **SETTINGS, **settings}
    return FsdpLearner(module(saved, "meta"), GRPO, team=team, **settings)


@pytest.mark.more
@pytest.mark.parametrize("sharding", ["sharded", "replicated"])
def test_an_update_is_that_of_ranks_whose_run_has_the_weights(
    sharding: Any, team: Team, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with a reference model. The run gets tensors in buckets, and has none itself."""
    usual = FsdpLearner(module(saved), GRPO, team=team, ranks=2, sharding=sharding, **SETTINGS)
    expected = [usual.step(batch()) for _ in range(2)]
    tensors = {name: t.clone() for name, t in usual.module.named_parameters()}
    alone = Learner(module(saved), GRPO, **SETTINGS)
    alone.step(batch())

    learner = held_by_ranks(team, saved, sharding=sharding)
    actual = [learner.step(batch()) for _ in range(2)]
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine | {"seconds": 0} == theirs | {"seconds": 0}
    assert all(p.is_meta for p in learner.module.parameters())
    monkeypatch.setattr(held, "BUCKET", 260 * 32 * 4)
    asked: list[int] = []
    call = learner.team.call

    def counted(command: str, *args: Any) -> Any:
        asked.append(len(args[0]))
        return call(command, *args)

    monkeypatch.setattr(learner.team, "call", counted)
    weights = learner.weights()
    given = {name: t.clone() for name, t in weights.tensors().items()}
    assert weights.version == 2
    assert given.keys() == tensors.keys()
    assert all(torch.equal(given[name], tensors[name]) for name in given)
    assert 1 < len(asked) < len(tensors) == sum(asked)


@pytest.mark.more
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_forward_of_the_module_is_that_of_the_ranks(
    precision: str, team: Team, saved: Path
) -> None:
    """What checks of engines compare with. Layers that are gathered in bfloat16 are rounded, which
    the canary knows.
    """
    whole, ids = module(saved), [5, 9, 2, 33, 7, 1]
    learner = held_by_ranks(team, saved, precision=precision)
    expected = forward_log_probs(whole, ids)
    actual = forward_log_probs(learner.module, ids)
    tolerance = tolerance_of(learner.module, ids, actual, "bfloat16")
    if precision == "float32":
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
        assert tolerance == pytest.approx(tolerance_of(whole, ids, expected, "bfloat16"), rel=0.05)
    else:
        assert 1e-5 < float((actual - expected).abs().max()) < tolerance == 0.25
    torch.testing.assert_close(
        plain_log_probs(learner.module, ids).float().log_softmax(-1), actual, rtol=0, atol=1e-6
    )


def manager(folder: RunFolder) -> CheckpointManager:
    return CheckpointManager(folder, tokenizer=HFTokenizer(byte_tokenizer()))


@pytest.mark.more
def test_any_number_of_ranks_continues_what_ranks_have_saved(
    team: Team, saved: Path, tmp_path: Path
) -> None:
    """Weights, moments and reference. The run reads no weights, neither then nor at the start."""
    learner = held_by_ranks(team, saved)
    learner.step(batch())
    with RunFolder.create(tmp_path / "run", small_recipe(SUMS)) as folder:
        path = manager(folder).save(1, learner=learner, state={"step": 1})
    Checkpoint.open(path).verify()
    expected = {name: t.clone() for name, t in learner.weights().tensors().items()}
    files = [load_file(file) for file in sorted((path / "model").glob("*.safetensors"))]
    assert len(files) == 2
    written = {name: t for file in files for name, t in file.items()}
    assert all(torch.equal(written[name], t) for name, t in expected.items())
    after = learner.step(batch())

    loaded = load_model(path / "model", device="meta").module
    settings = {"ranks": 3, "checkpoint": "sharded", **SETTINGS}
    other = FsdpLearner(loaded, GRPO, team=team, **settings)
    assert Checkpoint.open(path).restore(other) == {"step": 1}
    assert all(torch.equal(t, expected[name]) for name, t in other.weights().tensors().items())
    again = other.step(batch())
    for name in after.keys() - {"seconds"}:
        assert again[name] == pytest.approx(after[name], rel=1e-4, abs=1e-5), name


@pytest.mark.more
def test_ranks_start_again_though_the_files_are_gone(saved: Path, tmp_path: Path) -> None:
    """Their copies have all weights, to the same bits."""
    shutil.copytree(saved, tmp_path / "model")
    team = Team(2, silence=300.0)
    learner = held_by_ranks(team, tmp_path / "model", copy_every=1)
    try:
        learner.step(batch())
        shutil.rmtree(tmp_path / "model")
        expected = {name: t.clone() for name, t in learner.weights().tensors().items()}
        os.kill(team.pids[1], signal.SIGKILL)
        assert all(torch.equal(t, expected[n]) for n, t in learner.weights().tensors().items())
    finally:
        learner.close()


@pytest.mark.more
def test_weights_that_are_not_finite_are_not_saved(team: Team, saved: Path, tmp_path: Path) -> None:
    learner = held_by_ranks(team, saved, lr=float("inf"))
    learner.step(batch())
    with (
        RunFolder.create(tmp_path / "run", small_recipe(SUMS)) as folder,
        pytest.raises(RunError, match=r"not finite \(model\.embed_tokens\.weight\)"),
    ):
        manager(folder).save(1, learner=learner, state={"step": 1})


def test_what_needs_the_weights_in_the_run_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'checkpoint = "sharded"'):
        Fsdp(weights="ranks")
    assert Fsdp(weights="ranks", checkpoint="sharded").module_device("auto") == "meta"
    hollow = module(saved, "meta")
    with pytest.raises(UsageError, match=r'checkpoint = "sharded"'):
        FsdpLearner(hollow, GRPO)
    stale = replace(GRPO, plan=replace(GRPO.plan, staleness=1))
    with pytest.raises(UsageError, match="staleness"):
        FsdpLearner(copy.deepcopy(hollow), stale, checkpoint="sharded")
    with pytest.raises(UsageError, match="adapters need the weights"):
        load_model(saved, device="meta", lora={"r": 2})
    shutil.copytree(saved, tmp_path / "model")
    for file in (tmp_path / "model").glob("*.safetensors"):
        file.unlink()
    hollow.config.name_or_path = str(tmp_path / "model")
    with pytest.raises(UsageError, match="ranks do not find"):
        FsdpLearner(hollow, GRPO, checkpoint="sharded")


ENGINE = '''
from quintain.engine import EmbeddedEngine


class Apart(EmbeddedEngine):
    """An engine with memory of its own, as that of a server: weights arrive by `update` alone."""

    sharing = None
'''
TABLES = """
[engine]
use = "apart.py:Apart"
args = {{ model = "model", device = "cpu" }}
[checkpoint]
every = 2
[learner]
use = "fsdp"
lr = 1e-3
args = {{ ranks = 2, checkpoint = "sharded", weights = "{weights}" }}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_run_without_weights_is_the_same_run(
    small_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, checks and checkpoints, bit for bit; also one that is resumed."""
    recipe = small_recipe(SUMS, steps=4, algorithm="sft", tables=TABLES.format(weights="run"))
    folder = small_run(recipe)
    monkeypatch.chdir(folder)
    Path("apart.py").write_text(ENGINE)
    Path("held.toml").write_text(recipe.replace('weights = "run"', 'weights = "ranks"'))
    assert main(["train", "recipe.toml", "-q", "--name", "usual"]) == 0
    assert main(["train", "held.toml", "-q", "--name", "held"]) == 0
    shutil.copytree("runs/held", "runs/half")
    shutil.rmtree("runs/half/checkpoints/step-000004")
    assert main(["train", "--resume", "runs/half", "-q"]) == 0

    def weights(run: str) -> dict[str, Any]:
        files = Path(f"runs/{run}/checkpoints/step-000004/model").glob("*.safetensors")
        return {name: t.tolist() for file in files for name, t in load_file(file).items()}

    assert weights("usual") == weights("held") == weights("half")
