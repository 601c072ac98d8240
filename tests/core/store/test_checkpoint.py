"""Checkpoints: whole or absent, exact, loadable by transformers, kept as told."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quintain.errors import RunError, StorageError
from quintain.learning.algorithms import RLOO
from quintain.learning.batch import Batch, Sample
from quintain.learning.learner import Learner
from quintain.models.load import load_model
from quintain.models.lora import check_base, merge_adapters
from quintain.models.tokenizer import HFTokenizer
from quintain.store.checkpoint import (
    Checkpoint,
    CheckpointManager,
    best,
    latest,
    random_states,
    restore_random_states,
)
from quintain.store.run_folder import RunFolder
from quintain.store.runs import model_named
from quintain.types.transcript import TrainingSequence

from ..learning import batches
from ..models.architectures import VOCABULARY, architecture
from ..models.tiny import byte_tokenizer, tiny_model

RECIPE = '[[environments]]\nuse = "guess"\n'


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", RECIPE) as made:
        yield made


def learner(seed: int = 0, kind: str = "qwen3", **settings: Any) -> Learner:
    return Learner(tiny_model(kind, seed=seed), RLOO, lr=1e-3, **settings)


def checkpoints(folder: RunFolder, **settings: Any) -> CheckpointManager:
    return CheckpointManager(folder, tokenizer=HFTokenizer(byte_tokenizer()), **settings)


def batch(seed: int) -> Batch:
    rng = random.Random(seed)
    samples = []
    for i in range(8):
        ids = tuple(rng.randrange(256) for _ in range(12))
        mask = (False,) * 6 + (True,) * 6
        row = TrainingSequence(
            ids=ids, mask=mask, logps=tuple(-3.0 * m for m in mask), versions=(0,) * 12
        )
        samples.append(Sample(sequences=(row,), outcome=float(rng.random() < 0.5), group=i // 4))
    return Batch(samples=tuple(samples), max_tokens=6)


def weights(trained: Learner) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trained.module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_resuming_equals_never_having_stopped(folder: RunFolder, kind: str) -> None:
    original = learner(kind=kind)
    original.step(batch(1))
    torch.manual_seed(5)
    random.seed(6)
    state = {"curriculum": {"picked": 3}, "seconds": 0.1, "most": math.inf}
    checkpoints(folder).save(1, learner=original, state=state)
    expected = (torch.rand(3), random.random())
    original.step(batch(2))

    resumed = learner(seed=9, kind=kind)
    found = latest(folder)
    assert found is not None
    assert found.restore(resumed) == state
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]
    assert resumed.version == 1
    assert resumed.updates == 1
    resumed.step(batch(2))
    assert same(weights(resumed), weights(original))


def test_transformers_loads_the_model(folder: RunFolder) -> None:
    trained = learner()
    trained.step(batch(1))
    path = checkpoints(folder).save(1, learner=trained, state={})
    found = Checkpoint.open(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(found.model, dtype="auto")
    tokenizer = transformers.AutoTokenizer.from_pretrained(found.model)
    assert same(dict(model.state_dict()), weights(trained))
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False
    ).startswith("<|im_start|>user")
    held = torch.load(path / "learner.pt", weights_only=True)
    assert "module" not in held["learner"], "the weights are stored once"


# peft asks transformers
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_are_kept_exactly_and_merged_for_others(folder: RunFolder, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    options = {"lora": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}}
    trained = learner(**options)
    trained.module.get_base_model().save_pretrained(
        tmp_path / "base", state_dict=tiny_model("qwen3").state_dict()
    )
    trained.step(batch(1))
    path = checkpoints(folder, base=str(tmp_path / "base")).save(1, learner=trained, state={})
    merged = load_model(path / "model", device="cpu").module
    ids = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, trained.module(ids).logits, atol=1e-5)
    whole = Learner(merged, RLOO, lr=1e-2)
    assert whole.step(batch(1))["grad_norm"] > 0
    assert len(whole.parameters) == len([*tiny_model("qwen3").parameters()])
    resumed = learner(**options)
    Checkpoint.open(path).restore(resumed)
    assert same(weights(resumed), weights(trained))
    with pytest.raises(RunError, match="other weights than"):
        Checkpoint.open(path).restore(learner(seed=3, **options))
    with pytest.raises(RunError, match="does not fit the model of the recipe"):
        Checkpoint.open(path).restore(learner(lora={"r": 2, "target_modules": ["k_proj"]}))


# peft asks transformers
@pytest.mark.keeps("mixtral")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("name", ["mixtral", "llama4", "gpt-oss", "deepseek-v3"])
def test_adapters_on_experts_train_and_are_merged_for_others(folder: RunFolder, name: str) -> None:
    """With the default targets; the router of Llama 4 is left out."""
    trained = Learner(architecture(name), RLOO, lr=1e-2, lora={"r": 2})
    assert trained.step(batches.batch(vocab=VOCABULARY))["grad_norm"] > 0
    path = checkpoints(folder).save(1, learner=trained, state={})
    check_base(base := architecture(name), path / "model")
    merged = merge_adapters(base, path / "model")
    ids = torch.arange(12)[None]
    with torch.no_grad():
        plain, adapted = (
            module(input_ids=ids, use_cache=False).logits for module in (merged, trained.module)
        )
    torch.testing.assert_close(plain, adapted, rtol=0, atol=1e-5)


def test_a_checkpoint_of_another_model_is_refused(folder: RunFolder) -> None:
    path = checkpoints(folder).save(1, learner=learner(), state={})
    with pytest.raises(RunError, match="does not fit the model"):
        Checkpoint.open(path).restore(Learner(tiny_model("qwen3", hidden=16), RLOO))


def test_last_ones_and_the_best_are_kept(folder: RunFolder) -> None:
    keep = checkpoints(folder, keep=2)
    model = learner()
    assert latest(folder) is None
    assert best(folder) is None
    for step, mark in enumerate([True, True, False, False, False], 1):
        keep.save(step, learner=model, state={}, best=mark)
        assert keep.has(step)
    assert [c.step for c in keep.all()] == [2, 4, 5]
    champion = best(folder)
    assert champion is not None
    assert champion.step == 2
    plain = checkpoints(folder, keep=1, best=False)
    plain.prune()
    assert [c.step for c in plain.all()] == [5]
    assert not keep.has(2)


def test_the_best_one_is_kept_without_the_optimizer(folder: RunFolder) -> None:
    """Once later ones are kept no resume needs it; the rest is undamaged, and a resume from it is
    refused.
    """
    keep, trained = checkpoints(folder, keep=1), learner()
    trained.step(batch(1))
    keep.save(1, learner=trained, state={}, best=True)
    expected = weights(trained)
    assert (folder.checkpoints / "step-000001" / "learner.pt").exists(), "a resume may need it"
    trained.step(batch(2))
    keep.save(2, learner=trained, state={})

    champion, last = keep.all()
    assert champion.step == 1
    assert last.step == 2
    assert not (champion.path / "learner.pt").exists()
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=champion.path, check=True
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(champion.model, dtype="auto")
    assert same(dict(model.state_dict()), expected)
    last.verify()
    with pytest.raises(RunError, match=r"without the optimizer.*--model .*step-000001/model"):
        champion.verify()
    (last.path / "state.json").write_text("{}")
    with pytest.raises(RunError, match="no earlier checkpoint is undamaged"):
        last.verify()


def test_a_kill_while_the_optimizer_is_removed_is_made_up_for(folder: RunFolder) -> None:
    """Between the removal and the new digests: the next checkpoint completes it."""
    keep, trained = checkpoints(folder, keep=2), learner()
    for step in (1, 2):
        keep.save(step, learner=trained, state={}, best=step == 1)
    keep.keep = 1
    (folder.checkpoints / "step-000001" / "learner.pt").unlink()
    keep.save(3, learner=trained, state={})
    with pytest.raises(RunError, match="without the optimizer"):
        keep.all()[0].verify()


def test_unfinished_and_foreign_folders_are_ignored(folder: RunFolder) -> None:
    keep = checkpoints(folder)
    keep.save(3, learner=learner(), state={})
    for name in (".step-000009.tmp-1", "notes", "step-x"):
        (folder.checkpoints / name).mkdir()
    found = latest(folder)
    assert found is not None
    assert found.step == 3
    assert keep.save(3, learner=learner(1), state={"other": 1}) == found.path
    assert Checkpoint.open(found.path).state == {}, "a saved step stays as it is"


@pytest.mark.parametrize("line", ["", "x", "  model/config.json", "ab  name", "\x00" * 66])
def test_a_damaged_file_of_digests_is_named(line: str, folder: RunFolder) -> None:
    keep = checkpoints(folder)
    path = keep.save(1, learner=learner(), state={})
    sums = path / "SHA256SUMS"
    sums.write_text(sums.read_text() + line + "\n")
    (checkpoint,) = keep.all()
    number = len(sums.read_text().splitlines())

    with pytest.raises(RunError, match=f"line {number} of SHA256SUMS is no digest"):
        checkpoint.verify()


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"step": "x"}', '{"step": 1}'])
def test_a_damaged_description_is_named(text: str, folder: RunFolder) -> None:
    path = checkpoints(folder).save(1, learner=learner(), state={})
    (path / "checkpoint.json").write_text(text)
    with pytest.raises(RunError, match=r"is damaged \(checkpoint.json: "):
        Checkpoint.open(path)


def test_damaged_and_newer_checkpoints_say_so(folder: RunFolder) -> None:
    path = folder.checkpoints / "step-000001"
    path.mkdir(parents=True)
    with pytest.raises(RunError, match="damaged"):
        latest(folder)
    (path / "checkpoint.json").write_text(
        json.dumps({"format": 99, "step": 1, "best": False, "version": "9.0"})
    )
    with pytest.raises(RunError, match=r"made by Quintain 9\.0.*upgrade"):
        latest(folder)


@pytest.mark.keeps(
    "state.json-None",
    "state.json-half",
    "learner.pt-\\x80garbage",
    "checkpoint.json-",
    "model/model.safetensors-None",
)
@pytest.mark.parametrize("content", [None, b"", b"\x80garbage", b"half"])
@pytest.mark.parametrize(
    "name", ["state.json", "learner.pt", "checkpoint.json", "model/model.safetensors"]
)
def test_a_damaged_file_of_a_checkpoint_is_named_with_the_way_out(
    folder: RunFolder, name: str, content: bytes | None
) -> None:
    path = checkpoints(folder).save(1, learner=learner(), state={"seen": 3})
    file = path / name
    if content is None:
        file.unlink()
    else:
        file.write_bytes(
            file.read_bytes()[: file.stat().st_size // 2] if content == b"half" else content
        )
    with pytest.raises(
        RunError,
        match=r"step-000001 is damaged \(.+\); remove the folder to continue from an earlier",
    ):
        Checkpoint.open(path).restore(learner(1))


@pytest.mark.more
def test_every_flipped_bit_is_found_before_a_resume(folder: RunFolder) -> None:
    """Whatever file of a checkpoint has one other bit, is empty or missing, is named with the last
    undamaged one.
    """
    keep = checkpoints(folder)
    trained = learner()
    state = {"published": {"weights": torch.ones(3)}}
    for step in (1, 2, 3):
        trained.step(batch(step))
        keep.save(step, learner=trained, state=state)
    # of two earlier checkpoints only one is undamaged
    (keep.all()[1].path / "state.json").write_text("{}")
    last = keep.all()[2]
    last.verify()
    files = [p for p in sorted(last.path.rglob("*")) if p.is_file()]
    names = {p.relative_to(last.path).as_posix() for p in files}
    assert {
        "SHA256SUMS",
        "state.pt",
        "learner.pt",
        "model/model.safetensors",
        "model/chat_template.jinja",
    } <= names
    draw = random.Random(0)
    for file in files:
        content = file.read_bytes()
        flips = [draw.randrange(8 * len(content)) for _ in range(8)]
        flipped = [
            content[: b // 8] + bytes([content[b // 8] ^ 1 << b % 8]) + content[b // 8 + 1 :]
            for b in flips
        ]
        for damaged in (*flipped, b"", None):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(
                RunError,
                match=r"step-000003 is damaged \(.+\); remove .* continue from step-000001",
            ):
                last.verify()
        file.write_bytes(content)
    (last.path / "model" / "adapter_config.json").write_text("{}")
    with pytest.raises(RunError, match=r"model/adapter_config\.json is not in SHA256SUMS"):
        last.verify()
    shutil.rmtree(keep.all()[0].path)
    with pytest.raises(RunError, match="start the run again; no earlier checkpoint is undamaged"):
        keep.all()[0].verify()


def drop_a_line(lines: list[bytes]) -> list[bytes]:
    return [*lines[:1], *lines[2:]]


def drop_half(lines: list[bytes]) -> list[bytes]:
    return lines[:2]


def change_a_value(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b"0.5", b"0.7"), *lines[1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_a_line, "has other values in the 4 lines that it had"),
        (drop_half, "has 2 of the 4 lines that it had"),
        (change_a_value, "has other values in the 4 lines that it had"),
    ],
)
def test_metrics_that_are_not_those_of_the_checkpoint_are_named(
    change: Any, message: str, folder: RunFolder
) -> None:
    keep, trained = checkpoints(folder), learner()
    for step in (1, 2, 3, 4):
        folder.append({"step": step, "success": 0.5})
    path = keep.save(4, learner=trained, state={})
    folder.append({"step": 5, "success": 0.5})  # after the checkpoint: a resume drops it
    (checkpoint,) = keep.all()
    checkpoint.verify()

    lines = folder.metrics_path.read_bytes().splitlines(keepends=True)
    folder.metrics_path.write_bytes(b"".join(change(lines)))

    match = f"metrics.jsonl {message} at checkpoint {path.name}; put the"
    with pytest.raises(RunError, match=match):
        checkpoint.verify()
    folder.close()
    with pytest.raises(RunError, match=match):
        RunFolder.open(folder.path, lock=False).metrics()
    folder.metrics_path.unlink()  # moved away on purpose
    checkpoint.verify()
    assert folder.lost_logs(path) == ["metrics.jsonl"]
    with pytest.raises(RunError, match=r"metrics.jsonl is missing and had 4 lines"):
        RunFolder.open(folder.path, lock=False).metrics()


def test_a_damaged_model_is_refused_wherever_it_is_named(folder: RunFolder) -> None:
    """As a run, as its checkpoint and as the folder in it."""
    path = checkpoints(folder).save(1, learner=learner(), state={})
    names = (str(folder.path), str(path), str(path / "model"))
    for name in names:
        assert model_named(name).path == str(path / "model")

    weights = path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)

    for name in names:
        with pytest.raises(RunError, match=r"damaged \(model/model.safetensors differs from its"):
            model_named(name)


def test_sha256sum_reads_the_digests(folder: RunFolder) -> None:
    """`sha256sum -c SHA256SUMS` checks a checkpoint without Quintain, and others can read its
    files.
    """
    path = checkpoints(folder).save(1, learner=learner(), state={})
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=path, check=True
    )
    umask = os.umask(0)
    os.umask(umask)
    assert {0o666 & ~umask} == {p.stat().st_mode & 0o777 for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(folder: RunFolder, bad: float) -> None:
    """A diverged model leaves the checkpoint before as the last one."""
    keep, trained = checkpoints(folder), learner()
    keep.save(1, learner=trained, state={})
    with torch.no_grad():
        list(trained.module.parameters())[3].view(-1)[5] = bad
    with pytest.raises(
        RunError, match=r"after step 2 are not finite \(model\.layers\.0\..*lower learner\.lr"
    ):
        keep.save(2, learner=trained, state={})
    assert [c.step for c in keep.all()] == [1]


@pytest.mark.parametrize("held", [[], {}, {"learner": {}}, {"learner": 3, "generators": {}}])
def test_a_checkpoint_that_holds_something_else_is_damaged(folder: RunFolder, held: Any) -> None:
    path = checkpoints(folder).save(1, learner=learner(), state={})
    torch.save(held, path / "learner.pt")
    with pytest.raises(RunError, match="is damaged"):
        Checkpoint.open(path).restore(learner(1))
    (path / "state.json").write_text("[1]")
    with pytest.raises(RunError, match="is damaged"):
        _ = Checkpoint.open(path).state


def test_weights_that_lack_a_tensor_do_not_fit(folder: RunFolder) -> None:
    """A shard that is gone must not leave a part of the model as it was started."""
    path = checkpoints(folder).save(1, learner=learner(), state={})
    file = path / "model" / "model.safetensors"
    held = load_file(file)
    del held["model.norm.weight"]
    save_file(held, file)
    with pytest.raises(RunError, match=r"does not fit.*'model\.norm\.weight'"):
        Checkpoint.open(path).restore(learner(1))


def test_state_that_could_not_be_loaded_again_fails_when_it_is_saved(folder: RunFolder) -> None:
    trained = learner()
    trained._advantage_state = SimpleNamespace(x=1)
    with pytest.raises(RunError, match="plain data"):
        checkpoints(folder).save(1, learner=trained, state={})
    assert list(folder.checkpoints.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of as many kB as the test asks for."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={request.param}k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


# Weights take 132 kB, the optimizer twice that: the disk is full in the model, in learner.pt, and
# in what comes after.
@pytest.mark.parametrize("small_disk", [60, 250, 420], indirect=True)
def test_a_full_disk_is_noticed_before_and_while_writing(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = learner()
    trained.step(batch(1))
    with RunFolder.create(small_disk / "run", RECIPE) as run:
        keep = checkpoints(run)
        with pytest.raises(
            StorageError,
            match="no room to write .*step-000001: it takes 8... kB, [0-9]+ .* are free",
        ):
            keep.save(1, learner=trained, state={})
        assert not run.checkpoints.exists()
        # Now the disk fills after that look at it.
        monkeypatch.setattr("quintain.store.checkpoint.free_bytes", lambda path: 10**12)
        with pytest.raises(StorageError, match="no room to write .*step-000001"):
            keep.save(1, learner=trained, state={})
        assert list(run.checkpoints.iterdir()) == []
        run.append({"step": 1})


SAVE = """
import os, sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from quintain.store.checkpoint import CheckpointManager
from quintain.learning.learner import Learner
from quintain.learning.algorithms import RLOO
from quintain.store.run_folder import RunFolder
from core.models.tiny import byte_tokenizer, tiny_model

tokenizer = SimpleNamespace(tokenizer=byte_tokenizer())
learner = Learner(tiny_model("qwen3"), RLOO)

def save_for_ever():
    checkpoints = CheckpointManager(RunFolder.open(sys.argv[1]), tokenizer=tokenizer, keep=2)
    step = 0
    while True:
        step += 1
        with torch.no_grad():
            for p in learner.module.parameters():
                p.fill_(step)
        os.write(1, f"{os.getpid()} {step}\\n".encode())  # in one piece, also when it is killed
        checkpoints.save(step, learner=learner, state={"step": step}, best=step == 2)

for line in sys.stdin:  # the libraries load once; each round is a process of its own
    child = os.fork()
    if not child:
        save_for_ever()
    os.waitpid(child, 0)
    os.write(1, b"gone\\n")
"""


@pytest.mark.more
@pytest.mark.parametrize("kills", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_whenever_it_is_killed_a_whole_checkpoint_is_left(kills: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    RunFolder.create(run, RECIPE).close()
    rng = random.Random(0)
    command = [sys.executable, "-c", SAVE, str(run), str(Path(__file__).parents[2])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as saver:
        for _ in range(kills):
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
            _check_what_is_left(run, begun=_kill_one(saver, rng))
        saver.terminate()


def _kill_one(saver: subprocess.Popen[str], rng: random.Random) -> int:
    """Let a process save for a while and kill it; the last step it began to save."""
    assert saver.stdin is not None
    assert saver.stdout is not None
    saver.stdin.write("go\n")
    saver.stdin.flush()
    last = rng.randint(2, 6)
    pid, step = 0, 0
    while step < last:
        pid, step = map(int, saver.stdout.readline().split())
    time.sleep(rng.random() * 0.06)
    os.kill(pid, signal.SIGKILL)
    while (line := saver.stdout.readline()) != "gone\n":
        step = int(line.split()[1])
    return step


def _check_what_is_left(run: Path, begun: int) -> None:
    with RunFolder.open(run) as folder:
        found = latest(folder)
        assert found is not None
        assert begun - 1 <= found.step <= begun, "a checkpoint that was complete is lost"
        resumed = learner()
        assert found.restore(resumed) == {"step": found.step}
        assert all(bool((p == found.step).all()) for p in resumed.module.parameters())
        champion = best(folder)
        assert champion is not None
        assert champion.step == (2 if found.step >= 2 else found.step)
        assert not list(folder.checkpoints.glob(".*"))


@pytest.mark.parametrize("present", [0, 1, 2, 3])
def test_generators_of_devices_that_are_here_are_restored(
    monkeypatch: pytest.MonkeyPatch, present: int
) -> None:
    """A checkpoint of two devices is resumed with fewer or more."""
    restored: dict[int, str] = {}

    def set_state(state: str, device: int) -> None:
        assert device < present, "no such device"
        restored[device] = state

    states = random_states() | {"cuda": ["first", "second"]}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: present > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: present)
    monkeypatch.setattr(torch.cuda, "set_rng_state", set_state)
    restore_random_states(states)
    assert restored == dict(enumerate(["first", "second"][:present]))
