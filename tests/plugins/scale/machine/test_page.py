"""The recipe for eight GPUs of one machine, and what its page says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.recipe import Recipe, RunPlan, with_placement
from quintain.recipe.placement import placement_table
from quintain_scale.machine.table import rows_of
from quintain_simulate.hardware import module_for

from ....core.models.tiny import save_tiny
from ....docs.pages import ROOT, page

FILE = ROOT / "examples" / "machines" / "eight-gpus.toml"
MEANT = ["cluster.args.devices=8", "cluster.args.memory=80e9"]
"""What is not known without the machine."""


def test_the_page_shows_the_recipe_and_its_table() -> None:
    blocks = [block.text for block in page("docs/distributed.md").blocks]
    assert any(FILE.read_text().strip() in block for block in blocks)
    recipe = with_placement(Recipe.load(str(FILE), MEANT))
    plan = RunPlan.of(recipe)
    rows = rows_of(recipe.cluster.args, plan, module_for(plan, "8b"))
    table = "\n".join(placement_table(rows))
    assert any(table in block for block in blocks)


def test_the_recipe_passes_the_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a small model and sums, in both divisions of the page."""
    save_tiny(tmp_path / "model", context=256)
    (tmp_path / "sums").mkdir()
    for split, first in (("train", 0), ("test", 1000)):
        rows = [
            {"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(first, first + 300)
        ]
        (tmp_path / "sums" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("quintain_engines.vllm.server.check_installed", lambda: None)
    local = ["model.name=model", "environments.0.args.data=sums"]
    turns = ["schedule.use=sync", "cluster.args={turns=true}"]
    for more, what in (([], "GPU 7       server 4 of 4: "), (turns, "GPU 7       server 8 of 8: ")):
        words = [word for pair in (*local, *more, *MEANT) for word in ("--set", pair)]
        assert main(["train", str(FILE), "--dry-run", *words]) == 0
        assert what in capsys.readouterr().err
