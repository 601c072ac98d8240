"""Without the extra `train`, commands that need torch say in one line what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quintain.cli import main


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an empty environment: the modules that import torch have not been imported, and torch
    is not there.
    """
    for name in [
        n for n in sys.modules if n.startswith(("quintain.", "torch")) and n != "quintain.cli"
    ]:
        if name.startswith(
            ("quintain.models.load", "quintain.recipe.check", "quintain.recipe.sources")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.parametrize(
    "words", ["train", "train --dry-run", "train arithmetic", "train --model some/model"]
)
def test_one_line_names_the_extra(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(words.split())

    assert status == 2
    assert capsys.readouterr().err == "error: this needs torch: pip install 'quintain[train]'\n"


def test_a_mistake_in_a_recipe_is_said_before_torch_is_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Importing torch takes seconds."""
    (tmp_path / "bad.toml").write_text("extend = 'quickstart'\n")

    status = main(["train", str(tmp_path / "bad.toml")])

    assert status == 2
    assert "unknown section [extend]; did you mean 'extends'?" in capsys.readouterr().err
