"""A run whose messages hold pictures: sampled, learned from, stored, and continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from quintain.cli import main
from quintain.models import PICTURE_TOKENS
from quintain.store import read_table

from ...small_run import small_recipe
from . import tiny


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def quintain(*words: str) -> str:
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


ENVIRONMENT = 'use = "counting"\nargs = { size = 32, train = 8, held_out = 4 }'


def test_a_run_with_pictures_is_stored_and_resumed(tmp_path: Path, no_curves: Any) -> None:
    tiny.save(tmp_path / "model", "smolvlm")
    recipe = small_recipe(ENVIRONMENT, steps=2, tables="[checkpoint]\nevery = 1")
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    quintain("train", "recipe.toml", "--out", "run")
    for step in (1, 2):
        table = read_table(tmp_path / "run" / "rollouts" / f"step-{step:06d}.parquet")
        ids = table["token_ids"].to_pylist()
        assert all(any(i >= PICTURE_TOKENS for i in row) for row in ids)
