"""Checkpoints that the ranks write: on as many ranks, on more or fewer, damaged, and cut short."""

from __future__ import annotations

import copy
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quintain.errors import RunError, StorageError
from quintain.learning import ALGORITHMS, Learner
from quintain.models import HFTokenizer
from quintain.store.checkpoint import Checkpoint, CheckpointManager, latest
from quintain.store.run_folder import RunFolder
from quintain_learners.fsdp import FsdpLearner
from quintain_learners.fsdp.model_files import is_full, model_files
from quintain_learners.fsdp.setup import Modes
from quintain_learners.fsdp.team import Team

from ....core.models.tiny import byte_tokenizer, tiny_model
from .test_exact import batch, model
from .test_modes import wide

GRPO = ALGORITHMS["grpo"]
RECIPE = '[[environments]]\nuse = "guess"\n'
KINDS = [(n, sharding) for n in (1, 2, 3, 4) for sharding in ("sharded", "replicated", "hybrid")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", RECIPE) as made:
        yield made


def manager(folder: RunFolder) -> CheckpointManager:
    return CheckpointManager(folder, tokenizer=HFTokenizer(byte_tokenizer()))


def learner(team: Team, module: Any = None, **settings: Any) -> FsdpLearner:
    module = copy.deepcopy(model("full") if module is None else module)
    usual = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3, "checkpoint": "sharded"}
    return FsdpLearner(module, GRPO, team=team, **(usual | settings))


def plain(value: Any) -> Any:
    """Return nested plain data, to compare."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def check_resumes(
    team: Team, folder: RunFolder, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Save with the settings *before* and restore with those *after*: the same state."""
    saving = learner(team, **before)
    saving.step(batch())
    path = manager(folder).save(1, learner=saving, state={"step": 1})
    expected = plain(saving.state_dict())
    Checkpoint.open(path).verify()
    other = learner(team, **after)
    assert Checkpoint.open(path).restore(other) == {"step": 1}
    assert plain(other.state_dict()) == expected
    other.step(batch())


@pytest.mark.more
def test_two_ranks_save_and_three_resume(team: Team, folder: RunFolder) -> None:
    check_resumes(team, folder, {"ranks": 2}, {"ranks": 3})


@pytest.mark.more
def test_ranks_that_write_none_read_one(team: Team, folder: RunFolder) -> None:
    check_resumes(team, folder, {"ranks": 2}, {"ranks": 2, "checkpoint": "whole"})


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "sharding"), KINDS)
@pytest.mark.parametrize("others", [1, 2, 3, 4])
def test_any_number_of_ranks_resumes(
    ranks: int, sharding: str, others: int, team: Team, folder: RunFolder
) -> None:
    """Moments, reference and weights bit for bit."""
    shardings = {"replicated": "sharded", "sharded": "hybrid", "hybrid": "replicated"}
    after = {"ranks": others, "sharding": shardings[sharding]}
    check_resumes(team, folder, {"ranks": ranks, "sharding": sharding}, after)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw_8bit", "adamw_host"])
def test_other_moments_resume_too(optimizer: Any, team: Team, folder: RunFolder) -> None:
    modes = {"module": wide(), "modes": Modes(optimizer=optimizer)}
    check_resumes(team, folder, {"ranks": 2, **modes}, {"ranks": 4, **modes})


@pytest.mark.more
def test_the_model_is_in_the_format_of_transformers(team: Team, folder: RunFolder) -> None:
    """A file of each rank and an index, which ``from_pretrained`` reads."""
    saving = learner(team, ranks=2)
    saving.step(batch())
    path = manager(folder).save(1, learner=saving, state={})
    files = sorted(file.name for file in (path / "model").glob("*.safetensors"))
    assert files == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    loaded = AutoModelForCausalLM.from_pretrained(path / "model")
    assert loaded.dtype == torch.float64
    for expected, actual in zip(saving.module.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.more
def test_a_save_is_of_the_state_at_its_beginning(team: Team, folder: RunFolder) -> None:
    """Ranks score while they write; an update waits. A checkpoint has its name once it is whole."""
    saving = learner(team, ranks=2)
    saving.step(batch())
    expected = plain(saving.state_dict())
    checkpoints = manager(folder)
    path = checkpoints.begin(1, learner=saving, state={})
    assert not path.exists()
    saving.step(saving.prepare(batch()))
    saved = checkpoints.complete(wait=True)
    assert saved is not None
    assert saved.path == path
    assert checkpoints.complete(wait=True) is None
    saved.restore(saving)
    assert plain(saving.state_dict()) == expected


def test_a_damaged_part_is_found(team: Team, folder: RunFolder) -> None:
    saving = learner(team, ranks=2)
    saving.step(batch())
    path = manager(folder).save(1, learner=saving, state={})
    (part, *_) = sorted((path / "parts").glob("*.distcp"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(RunError, match=f"damaged.*parts/{part.name} differs"):
        Checkpoint.open(path).verify()


def test_another_learner_says_which_it_needs(team: Team, folder: RunFolder) -> None:
    saving = learner(team, ranks=2)
    saving.step(batch())
    path = manager(folder).save(1, learner=saving, state={})
    one = Learner(copy.deepcopy(model("full")), GRPO)
    with pytest.raises(RunError, match="learner of several processes"):
        Checkpoint.open(path).restore(one)


@pytest.mark.more
def test_a_full_disk_leaves_what_was_saved(team: Team, folder: RunFolder) -> None:
    """The error is one of storage; later saves work."""
    saving = learner(team, ranks=2)
    saving.step(batch())
    checkpoints = manager(folder)
    first = checkpoints.save(1, learner=saving, state={})
    limits = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in team.pids]
    for pid, (_, hard) in zip(team.pids, limits, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(StorageError):
            checkpoints.save(2, learner=saving, state={})
    finally:
        for pid, limit in zip(team.pids, limits, strict=True):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    assert [path.name for path in folder.checkpoints.iterdir()] == [first.name]
    Checkpoint.open(first).verify()
    assert checkpoints.save(2, learner=saving, state={}).exists()


@pytest.mark.parametrize("fault", ["[Errno 28] No space left on device", "I/O error (os error 27)"])
def test_a_full_disk_is_known_by_its_words(fault: str) -> None:
    assert is_full(fault)
    assert not is_full("[Errno 5] Input/output error")


def test_files_of_a_model_are_shared_out(tmp_path: Path) -> None:
    """Each tensor once, about as many bytes for each rank; not those of adapters."""
    module = tiny_model("qwen3", tie_word_embeddings=True)
    files = model_files(module, tmp_path / "model", 3)
    names = [name for _, part in files.values() for name in part]
    assert sorted(names) == sorted(set(module.state_dict()) - {"lm_head.weight"})
    sizes = [sum(module.state_dict()[n].numel() for n in part) for _, part in files.values()]
    assert max(sizes) < 2 * min(sizes)


SAVE = """
import sys
from pathlib import Path
if __name__ == "__main__":
    from tests.plugins.learners.fsdp.test_checkpoint import RunFolder, Team, batch, learner, manager
    checkpoints = manager(RunFolder.open(Path(sys.argv[1])))
    saving = learner(Team(2, silence=300.0), ranks=2)
    print(*saving.team.pids, flush=True)
    step = 0
    while True:
        step += 1
        saving.step(batch())
        checkpoints.begin(step, learner=saving, state={"step": step})
        print(step, flush=True)
        saving.prepare(batch())
        checkpoints.complete(wait=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["driver", "rank"])
def test_a_save_that_is_killed_leaves_whole_checkpoints(killed: str, tmp_path: Path) -> None:
    """Of the driver, or of a rank: what has a name is whole, and the last one is there."""
    draw = random.Random(0)
    root = str(Path(__file__).parents[4])
    for trial in range(4):
        run = tmp_path / f"run{trial}"
        RunFolder.create(run, RECIPE).close()
        script = tmp_path / "save.py"
        script.write_text(SAVE)
        with subprocess.Popen(
            [sys.executable, str(script), str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": root},
        ) as saver:
            assert saver.stdout is not None
            pids = [int(pid) for pid in saver.stdout.readline().split()]
            while saver.stdout.readline() != "3\n":
                assert saver.poll() is None
            time.sleep(draw.random() * 0.05)
            if killed == "driver":
                os.kill(saver.pid, signal.SIGKILL)
            else:
                os.kill(pids[-1], signal.SIGKILL)
                time.sleep(2.0)
                saver.kill()
            saver.wait(120)
        with RunFolder.open(run) as opened:
            last = latest(opened)
            assert last is not None
            assert last.step >= 2
            last.verify()
