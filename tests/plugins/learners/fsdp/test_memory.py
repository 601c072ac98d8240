"""What a rank takes on paper: its parts, and what is whole for a time."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.console.screen import Screen
from quintain.learning import ALGORITHMS
from quintain.models.load import module_without_weights
from quintain.models.lora import with_adapters
from quintain.recipe.extends import bundled_text
from quintain.recipe.memory import activations, logits_bytes, memory_of, memory_table, prompt_copies
from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe
from quintain_learners.fsdp import Fsdp, FsdpLearner
from quintain_learners.fsdp.memory import gathered_bytes
from quintain_learners.fsdp.team import Team

from ....core.learning import batches
from ....core.models.tiny import tiny_model

EMBEDDINGS = 260 * 32
LAYER = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 96 + 2 * 32 + 2 * 8
"""Numbers of `tiny_model`: two layers, heads of size 8; the root has a norm as well."""


def test_the_root_is_whole_three_times() -> None:
    """Its weights, its gradient and what is added up; or the last layers before that."""
    module = tiny_model("qwen3", vocab=26_000, tie_word_embeddings=True)
    root = 4 * (26_000 * 32 + 32)
    assert gathered_bytes(module, gather=4, autocast=False) == 3 * root
    small = tiny_model("qwen3", tie_word_embeddings=True)
    layer = sum(p.numel() for p in small.model.layers[0].parameters())
    root = 4 * (EMBEDDINGS + 32)
    assert layer == LAYER
    assert gathered_bytes(small, gather=4, autocast=False) == 2 * root + 16 * layer


def test_frozen_weights_have_no_gradient() -> None:
    module = with_adapters(tiny_model("qwen3", vocab=26_000, tie_word_embeddings=True), {"r": 1})
    layer = module.get_base_model().model.layers[0]
    numbers = sum(p.numel() for p in layer.parameters())
    trained = sum(p.numel() for p in layer.parameters() if p.requires_grad)
    expected = 4 * (26_000 * 32 + 32) + 8 * numbers + 8 * trained
    assert gathered_bytes(module, gather=4, autocast=False) == expected


def test_layers_in_half_precision_are_half() -> None:
    """With the output layer in half precision, and what a chunk adds to its gradient. Layers in
    float32 are all kept in half precision as well.
    """
    module = tiny_model("qwen3", tie_word_embeddings=True)
    root, head = 4 * (EMBEDDINGS + 32), 4 * EMBEDDINGS
    half = gathered_bytes(module, gather=2, autocast=True)
    assert half == 2 * root + 10 * LAYER + head
    wide = gathered_bytes(module, gather=4, autocast=True)
    assert wide == 2 * root + 16 * LAYER + head + 2 * 2 * LAYER


def plan(*settings: str) -> RunPlan:
    keys = ["algorithm.use=grpo", "learner.use=fsdp", *settings]
    return RunPlan.of(Recipe.parse(bundled_text("quickstart"), keys))


def test_each_rank_has_its_part_and_a_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dry-run` says what one takes; on a CPU all of them are on the machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    module = tiny_model("qwen3")
    numbers = sum(p.numel() for p in module.parameters())
    planned = plan("learner.args.ranks=4")
    memory = memory_of(planned, module, free=None)
    of_update = planned.learner.kind.update_bytes(module, precision="float32")
    batch = activations(planned, module) + of_update + logits_bytes(planned, module, "cpu")
    batch += prompt_copies(planned, module)
    assert memory.activations == 4 * batch
    assert memory.each == pytest.approx((4 + 4 + 8 + 4) * numbers / 4 + batch, abs=4)
    (line,) = [x for x in memory_table(planned, memory, "this machine", 10**9) if "process" in x]
    assert "of 4 of the learner on this machine" in line


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (4 / 4, 4 / 4, 8 / 4, 0)),
        ({"optimizer": "adamw_8bit"}, (1, 1, 2 / 4, 0)),
        ({"optimizer": "adamw_host"}, (1, 1, 0, 12)),
        ({"offload": "all"}, (0, 0, 0, 16)),
        ({"offload": "all", "optimizer": "adamw_8bit"}, (0, 0, 0, 10)),
        ({"sharding": "replicated"}, (4, 4, 8, 0)),
    ],
)
def test_bytes_by_mode_on_gpus(
    settings: dict[str, Any], expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each parameter: weights, gradients and moments of a GPU, and host memory of all ranks. The
    weights of the run are on the host.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = Fsdp(ranks=4, **settings).bytes_per_parameter(adapters=False)
    assert (found.own, found.gradients, found.moments, found.host) == expected
    assert (found.processes, found.module) == (1, "host")


def test_no_gpu_has_the_weights_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in host memory, and an engine in the process of the run has a copy on its GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    module = tiny_model("qwen3")
    numbers = sum(p.numel() for p in module.parameters())
    planned = plan("learner.args.ranks=4")
    assert planned.model.device == "auto"
    assert planned.module_device == planned.model_request(Screen(quiet=True)).device == "cpu"
    memory = memory_of(planned, module, free=10**9)
    assert (memory.weights, memory.host, memory.copy) == (numbers, 4 * numbers, 4 * numbers)
    elsewhere = plan("learner.args.ranks=4", "engine.use=vllm-server")
    assert memory_of(elsewhere, module, free=10**9).copy == 0
    lines = memory_table(planned, memory, "a GPU", 10**9)
    assert any("host memory" in x and "of the run's weights" in x for x in lines)
    on_host = plan("learner.args.ranks=4", "learner.args.device=cpu")
    assert on_host.module_device == "auto"


def resident(pid: int) -> int:
    """Return the bytes of a process without pages of files; of pages that it shares, its part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = (text.partition(name)[2].split()[0] for name in ("Pss_Anon:", "Pss_Shmem:"))
    return 1024 * sum(map(int, sizes))


def kilobytes(pid: int, name: str) -> int:
    """Return a number of the status of a process, as of what is resident, or the most that was."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0])


SAVE = """
import json, sys
from tests.core.models.tiny import tiny_model
tiny_model("qwen3", **json.loads(sys.argv[2])).save_pretrained(sys.argv[1])
"""


@pytest.mark.slow
def test_processes_take_what_is_estimated(tmp_path: Path) -> None:
    """After an update and a delivery of all weights, each rank its part and the run none, whose
    weights are in the ranks alone; above what the same processes take with a tiny model. At the peak
    of the update, a rank takes its part and what is whole for a time. To 15 %.
    """
    sizes = {"hidden": 768, "vocab": 16_384, "layers": 10}
    settings: dict[str, Any] = {"ranks": 2, "checkpoint": "sharded", "restarts": 0}
    team, found, peaks = Team(2, silence=300.0), [], []
    pids = [os.getpid(), *team.pids]
    made = batches.batch(groups=2, group_size=2, vocab=200, longest=7, rewards=[0.0, 1.0])
    for name, small in (("tiny", True), ("large", False)):
        saved = tmp_path / name
        words = [sys.executable, "-c", SAVE, str(saved), json.dumps({} if small else sizes)]
        subprocess.run(words, check=True, cwd=Path(__file__).parents[4])
        module = module_without_weights(str(saved), torch.float32, None)
        learner = FsdpLearner(module, ALGORITHMS["dr_grpo"], team=team, **settings)
        for pid in team.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the most begins anew
        for _ in range(2):  # moments are there from the first on
            learner.step(made)
        peaks.append([1024 * kilobytes(pid, "VmHWM") for pid in team.pids])
        if small:
            lowest = [1024 * kilobytes(pid, "VmRSS") for pid in team.pids]
        read = sum(tensor.nbytes for tensor in learner.weights().tensors().values())
        gc.collect()
        found.append([resident(pid) for pid in pids])
    numbers = sum(p.numel() for p in module.parameters())
    assert read == 4 * numbers
    kind = Fsdp(weights="ranks", checkpoint="sharded")
    size = kind.bytes_per_parameter(adapters=False)
    assert size.module == "nowhere"
    part = (size.own + size.gradients + size.moments) / 2 * numbers  # of two ranks on this CPU
    of_run, *of_ranks = (n - base for base, n in zip(*found, strict=True))
    print(
        f"run {of_run / 1e6:.0f} MB, ranks {[n / 1e6 for n in of_ranks]}, part {part / 1e6:.0f} MB"
    )
    whole = gathered_bytes(module, gather=4, autocast=False)
    for taken, most, low in zip(of_ranks, peaks[1], lowest, strict=True):
        print(f"peak {(most - low) / 1e6:.0f} MB, estimate {(part + whole) / 1e6:.0f} MB")
        assert taken == pytest.approx(part, rel=0.15)
        assert most - low == pytest.approx(part + whole, rel=0.15)
    assert of_run < 0.15 * part
    team.close()
