"""Runs whose ranks and servers the cluster `machine` places, on devices that are claimed."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from quintain.console.screen import Screen
from quintain.recipe import Recipe, with_placement
from quintain.run.build import run_training
from quintain.store.run_folder import RunFolder

from ....core.models.tiny import save_tiny
from ..schedules.process_replica import ProcessReplica
from .claiming import ClaimingReplica
from .claims import FOLDER

WAITING = Path(__file__).parents[3] / "integration" / "waiting.py"


def trained(place: Path, monkeypatch: pytest.MonkeyPatch, **cluster: Any) -> list[str]:
    """Train for two steps on pretended devices; return who had which device, in its order."""
    place.joinpath("devices").mkdir()
    monkeypatch.setenv(FOLDER, str(place / "devices"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    ProcessReplica.contents.clear()
    kit = f"{ClaimingReplica.__module__}:{ClaimingReplica.__qualname__}"
    recipe = Recipe.of(
        {
            "run": {"steps": 2, "max_sample_mismatch": "none"},
            "model": {"name": str(save_tiny(place / "model", context=256)), "device": "cpu"},
            "environments": [{"use": f"{WAITING}:TwoTurns", "args": {"size": 7}}],
            "algorithm": {
                "use": "dr_grpo",
                "args": {"plan": {}, "objective": f"{ClaimingReplica.__module__}:claiming"},
            },
            "cluster": {"use": "machine", "args": cluster},
            "engine": {"use": "pool", "args": {"engine": kit}},
            "learner": {"use": "fsdp", "args": {"silence": 60.0, "patience": 120.0}},
            "sampling": {"max_tokens": 4},
            "batch": {"prompts": 2, "group_size": 2},
            "evaluation": {"every": 0, "test": {"tasks": 0}},
        }
    )
    recipe = with_placement(recipe)
    RunFolder.create(place / "run", recipe.to_toml()).close()
    with RunFolder.open(place / "run") as folder:
        run_training(recipe, folder, Screen(quiet=True))
    return (place / "devices" / "log").read_text().splitlines()


@pytest.mark.slow
def test_servers_and_ranks_have_devices_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight, two learn and six sample: each is claimed by one of them alone."""
    log = trained(tmp_path, monkeypatch, devices=8, sample=6, learn=2)
    servers = [line for line in log if line.startswith("server")]
    assert sorted(servers) == [f"server claims {n}" for n in range(2, 8)]
    ranks = Counter(line for line in log if line.startswith("rank claims"))
    assert sorted(ranks) == ["rank claims 0", "rank claims 1"]


@pytest.mark.slow
def test_servers_and_ranks_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two devices: the servers leave them before the ranks compute, and claim them after."""
    log = trained(tmp_path, monkeypatch, devices=2, turns=True)
    for device in "01":
        whose = [line.removesuffix(f" {device}") for line in log if line.endswith(f" {device}")]
        turns = ["server claims"]
        for line in whose[1:]:
            if line != turns[-1] and not line.startswith("rank leaves"):
                turns.append(line)
        assert turns == ["server claims", *2 * ["server leaves", "rank claims", "server claims"]]
