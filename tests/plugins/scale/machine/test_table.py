"""The devices of a machine are divided by the recipe: what each does, what it takes, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.cli import main
from quintain.errors import UsageError
from quintain.recipe import DeviceRow, Recipe, RunPlan, memory_on, with_placement
from quintain.recipe.extends import bundled_text
from quintain.recipe.placement import placement_of, placement_table
from quintain_scale.machine import division
from quintain_scale.machine.division import Division
from quintain_scale.machine.table import rows_of

from ....core.models.tiny import tiny_model
from ....small_run import small_recipe

SERVERS = ["engine.use=pool", "engine.args.engine=vllm-server"]
RANKS = ["cluster.use=machine", "learner.use=fsdp"]
EIGHT = ["cluster.args.devices=8", *RANKS, *SERVERS]


def recipe(*settings: str) -> Recipe:
    return with_placement(Recipe.parse(bundled_text("quickstart"), settings))


def does(rows: Any) -> dict[str, list[str]]:
    """What each device does, by its name."""
    return {row.device: [task.what for task in row.tasks] for row in rows}


def planned(*settings: str, module: Any = None) -> tuple[RunPlan, Any]:
    chosen = recipe(*settings)
    plan = RunPlan.of(chosen)
    return plan, rows_of(chosen.cluster.args, plan, module)


def test_so_many_sample_and_so_many_learn() -> None:
    """Ranks have the first devices. The numbers of ranks and servers follow, and are written into the
    recipe of the run.
    """
    chosen = recipe(*EIGHT, "cluster.args.sample=6", "cluster.args.learn=2")
    assert chosen.learner.args["ranks"] == 2
    assert chosen.engine.args["count"] == 6
    expected = {f"GPU {n}": [f"rank {n} of 2"] for n in (0, 1)}
    expected |= {f"GPU {n + 1}": [f"server {n} of 6"] for n in range(1, 7)}
    assert does(placement_of(RunPlan.of(chosen))) == expected
    assert recipe(*EIGHT, "cluster.args.learn=2").cluster.args["sample"] == 6
    assert recipe(*EIGHT, "cluster.args.sample=6").cluster.args["learn"] == 2
    assert recipe(*EIGHT, "learner.args.ranks=3").cluster.args["sample"] == 5


def test_the_recipe_of_a_run_divides_the_devices_in_the_same_way() -> None:
    once = recipe(*EIGHT, "cluster.args.sample=6")
    assert with_placement(Recipe.parse(once.to_toml())) == once


def test_numbers_say_which_devices() -> None:
    settings = [*EIGHT, "cluster.args.sample=[0, 1, 2, 3]", "cluster.args.learn=[6, 7]"]
    chosen = does(placement_of(RunPlan.of(recipe(*settings))))
    assert chosen["GPU 0"] == ["server 1 of 4"]
    assert chosen["GPU 4"] == []
    assert chosen["GPU 7"] == ["rank 1 of 2"]


def test_a_server_has_as_many_devices_as_its_layers_are_cut_into() -> None:
    options = "engine.args.settings.options.tensor_parallel_size=2"
    _, rows = planned(*EIGHT, options, "cluster.args.learn=4")
    assert does(rows)["GPU 4"] == ["server 1 of 2 (worker 1 of 2)"]
    assert does(rows)["GPU 7"] == ["server 2 of 2 (worker 2 of 2)"]
    one = ["cluster.args={devices=8, learn=4}", *RANKS, "engine.use=vllm-server"]
    assert recipe(*one).engine.args["options"] == {"tensor_parallel_size": 4}


def test_turns_take_all_devices_and_the_servers_sleep() -> None:
    chosen = recipe(*EIGHT, "cluster.args.turns=true")
    assert chosen.learner.args["ranks"] == chosen.engine.args["count"] == 8
    assert chosen.engine.args["settings"]["sleep_mode"] is True
    rows = placement_of(RunPlan.of(chosen))
    assert does(rows)["GPU 3"] == ["server 4 of 8", "rank 3 of 8"]
    assert "GPU 3       server 4 of 8, then rank 3 of 8" in placement_table(rows)[4]
    some = recipe(*EIGHT, "cluster.args.turns=true", "cluster.args.learn=4")
    assert some.engine.args["count"] == 4


def test_the_learner_of_the_run_has_the_first_device() -> None:
    _, rows = planned("cluster.use=machine", "cluster.args.devices=4", *SERVERS)
    assert does(rows)["GPU 0"] == ["learner"]
    assert does(rows)["GPU 3"] == ["server 3 of 3"]


def test_an_engine_in_the_process_of_the_run_is_shown() -> None:
    _, rows = planned(*RANKS, "cluster.args={devices=2, learn=2}")
    assert does(rows)["GPU 0"] == ["rank 0 of 2", "engine in the process of the run"]


def test_memory_by_device_is_that_of_the_plan() -> None:
    """Of ranks on GPUs, whatever this machine has; servers have their weights, or their share."""
    module = tiny_model("qwen3")
    count = sum(p.numel() for p in module.parameters())
    plan, rows = planned(*EIGHT, "cluster.args.learn=2", "cluster.args.memory=1e9", module=module)
    each = memory_on(plan, module, devices=2, free=10**9).each
    assert rows[0].tasks[0].bytes == each
    assert rows[7].tasks[0].bytes == 2 * count
    assert rows[7].memory == 10**9
    _, rows = planned(
        *EIGHT, "cluster.args.turns=true", "cluster.args.memory=1e9", module=tiny_model("qwen3")
    )
    assert rows[7].tasks[0].bytes == 6 * 10**8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["cluster.args.sample=7", "cluster.args.learn=2"], "sample to 6 or less.*turns = true"),
        (["cluster.args.learn=9"], "learn = 9, and there are 8 devices: .* to 8 or less"),
        (["cluster.args={devices=8, sample=[0, 1], learn=[1]}"], "device 1 samples and learns"),
        (
            ["cluster.args={devices=8, sample=[8]}"],
            "has the device 8, and there are 8, from 0 to 7",
        ),
        (["cluster.args={devices=8, learn=[0, 0]}"], "a device twice"),
        ([], "which devices learn"),
        (["cluster.args.learn=8"], "all 8 devices learn.*starts servers"),
        (["cluster.args.learn=2", "learner.args.ranks=4"], r"2 devices learn.*ranks is 4: leave"),
        (["cluster.args.learn=2", "engine.args.count=4"], "take 4 GPUs, and 6 sample: leave"),
        (
            ["cluster.args.learn=2", "engine.args.settings.options.tensor_parallel_size=4"],
            "takes 4 GPUs, and 6 sample: let 4 or 8 sample",
        ),
        (
            [
                "engine.use=vllm-server",
                "engine.args={options={tensor_parallel_size=2}}",
                "cluster.args.sample=6",
            ],
            'takes 2 GPUs by its options, and 6 sample.*engine.use = "pool"',
        ),
        (
            ["cluster.args.turns=true", "engine.args.settings.sleep_mode=false"],
            "sleep_mode = false",
        ),
        (["cluster.args.learn=2", "engine.args.engine=embedded"], "start.* no server"),
        (["cluster.args.turns=true", "schedule.use=areal"], "nothing samples while the learner"),
        (["cluster.args.learn=2", "learner.use=torch"], "2 devices learn.*on one: set learner.use"),
        (["cluster.args={devices=8, leran=2}"], "leran"),
    ],
)
def test_refusals(settings: list[str], message: str) -> None:
    """Before anything starts, with what to change."""
    with pytest.raises(UsageError, match=message):
        planned(*EIGHT, *settings)


def test_a_device_too_small_is_refused() -> None:
    module = tiny_model("qwen3", vocab=26_000)
    with pytest.raises(UsageError, match=r"learner takes .* GB on each of 2 devices of 0.0 GB"):
        planned(*EIGHT, "cluster.args.learn=2", "cluster.args.memory=1e6", module=module)
    whole = ["cluster.args.turns=true", "cluster.args.memory=1e9", "cluster.args.share=1.0"]
    with pytest.raises(
        UsageError, match=r"may take 1 of .*set cluster.args.share = 0\.\d+ or less"
    ):
        planned(*EIGHT, *whole, module=module)


def test_devices_are_those_that_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match=r"no GPU on this machine.*cluster.args.devices"):
        recipe(*RANKS, "cluster.args.learn=2", *SERVERS)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert recipe(*RANKS, "cluster.args.learn=1", *SERVERS).engine.args["count"] == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    assert division.device_ids(None) == ["GPU-a", "GPU-b", "GPU-c"]
    assert division.device_ids(2) == ["GPU-a", "GPU-b"]


def test_a_division_without_a_recipe() -> None:
    found = Division.of(4, sample=None, learn=1, turns=False)
    assert (found.learn, found.sample) == ((0,), (1, 2, 3))
    assert Division.of(4, sample=[0], learn=None, turns=False).learn == (1, 2, 3)


def test_the_dry_run_prints_the_table(
    small_run: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """And with ``--json`` the recipe, the notes and the devices."""
    monkeypatch.setattr("quintain_engines.vllm.server.check_installed", lambda: None)
    tables = """
[learner]
use = "fsdp"
[engine]
use = "pool"
args = { engine = "vllm-server" }
[cluster]
use = "machine"
args = { sample = 3, learn = 1, devices = 4 }
"""
    monkeypatch.chdir(small_run(small_recipe('use = "arithmetic"', tables=tables)))
    assert main(["train", "recipe.toml", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "devices:\n  GPU 0       rank 0 of 1: " in shown.err
    assert Recipe.parse(shown.out).engine.args["count"] == 3
    assert main(["train", "recipe.toml", "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["recipe"]["learner"]["args"] == {"ranks": 1}
    assert "devices:" in data["notes"]
    assert data["devices"][3]["tasks"][0]["what"] == "server 3 of 3"
    assert data["devices"][3].keys() == DeviceRow.__dataclass_fields__.keys()
