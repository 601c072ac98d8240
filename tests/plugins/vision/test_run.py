"""A run whose messages hold pictures: sampled, learned from, stored, and continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from quintain.models import PICTURE_TOKENS
from quintain.store import read_table
from quintain_scale.workers.frames import packed_ids, unpacked_ids
from quintain_view.viewer.stored import TokenText

from ...small_run import small_recipe
from . import tiny


def main(words: list[str]) -> int:
    from quintain.cli import main

    return int(main(words))


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def step(run: Path, number: int) -> dict[str, Any]:
    """The metrics of a step that do not depend on the clock."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    (*_, row) = (row for row in rows if row.get("step") == number)
    return {k: v for k, v in row.items() if "second" not in k and "time" not in k}


ENVIRONMENT = 'use = "counting"\nargs = { size = 32, train = 8, held_out = 4 }'


@pytest.mark.more
def test_a_run_with_pictures_is_stored_and_resumed(tmp_path: Path, no_curves: Any) -> None:
    tiny.save(tmp_path / "model", "smolvlm")
    recipe = small_recipe(ENVIRONMENT, steps=2, tables="[checkpoint]\nevery = 1")
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    assert main(["train", "recipe.toml", "--name", "whole", "--quiet"]) == 0
    whole, cut = tmp_path / "runs" / "whole", tmp_path / "runs" / "cut"
    for number in (1, 2):
        table = read_table(whole / "rollouts" / f"step-{number:06d}.parquet")
        ids = table["token_ids"].to_pylist()
        assert all(any(i >= PICTURE_TOKENS for i in row) for row in ids)
        assert "[image]" in TokenText(whole).text(ids[0])
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / "step-000002")
    assert main(["train", "--resume", str(cut), "--quiet"]) == 0
    assert step(cut, 2) == step(whole, 2)


def test_demonstrations_with_pictures_train(tmp_path: Path) -> None:
    from quintain.types import TrainingSequence
    from quintain_offline.sft.example import Tokens

    row = TrainingSequence(
        ids=(1, PICTURE_TOKENS + 5, 2),
        mask=(False, False, True),
        logps=(0.0,) * 3,
        versions=(-1,) * 3,
    )
    assert Tokens.of(row).sequence() == row


@pytest.mark.parametrize("ids", [[], [1, 2, 3], [1, PICTURE_TOKENS + 7, 2**63 - 1]])
def test_ids_of_pictures_pass_between_processes(ids: list[int]) -> None:
    assert list(unpacked_ids(packed_ids(ids))) == ids
