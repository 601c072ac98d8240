"""Learning curves: drawn into the folder of a run that has finished, shaded where an alert was
on.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from quintain.cli.summary import curves
from quintain.console.metrics import held_out_metrics, step_metrics
from quintain.errors import UsageError
from quintain.interfaces.events import RunEnd
from quintain.registry.lookup import isolated
from quintain.run.hooks import Hooks
from quintain.store.run_folder import RunFolder
from quintain.types.rollout import Score
from quintain_view.alerts.conditions import ALERTS
from quintain_view.viewer import add_legend, draw, picture

from ....core.console.test_metrics import evaluation, group, rollout


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_the_hook_draws_the_curves_of_a_finished_run(tmp_path: Path, status: str) -> None:
    """The installed plugin draws at the end of a run, and the summary then names the picture."""
    with RunFolder.create(tmp_path / "run", "x = 1") as folder:
        folder.append({"step": 1, "reward.mean": 0.5})
    with isolated(keep=["quintain-view"]):
        hooks = Hooks.installed(strict=True)
        assert "quintain-view/curves" in hooks.plugins
        hooks.emit(RunEnd(folder=str(folder.path), step=1, status=status, error="", summary={}))
        shown = curves(folder)

    assert shown == (str(folder.path / "curves.png") if status == "finished" else "")
    assert (folder.path / "curves.png").exists() == (status == "finished")


def test_curves_are_drawn_into_the_run_folder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", "x = 1") as folder:
        with pytest.raises(UsageError, match="no metrics"):
            draw(folder)
        for step in range(1, 4):
            out = (
                held_out_metrics([evaluation(group(rollout(1.0)), group(rollout(0.0)))], [1.0])
                if step == 2
                else {}
            )
            groups = [group(rollout(1.0), rollout(0.0, shaping=Score(value=0.1)))]
            folder.append(
                {"step": step, **step_metrics(groups, held_out=out, learned={"entropy": 0.1})}
            )
        path = draw(folder)
        assert path.parent == folder.path
        assert path.read_bytes().startswith(b"\x89PNG")
    assert picture([{"step": 1}]).startswith(b"\x89PNG")
    assert picture(
        [{"step": 0, "held_out.accuracy": 0.2}, {"step": 1, "success": None}]
    ).startswith(b"\x89PNG")


@pytest.mark.more
def test_curves_name_their_split(tmp_path: Path) -> None:
    """The accuracy has the name of the split that the recipe evaluates on."""
    metrics = [{"step": 0, "held_out.accuracy": 0.2}, {"step": 1, "held_out.accuracy": 0.4}]
    with RunFolder.create(tmp_path / "run", '[evaluation]\nsplit = "train"\n') as folder:
        for record in metrics:
            folder.append(record)
        drawn = draw(folder).read_bytes()

    assert picture(metrics, title="run", split="train") == drawn
    assert picture(metrics, title="run") != drawn


@pytest.mark.more
def test_curves_are_shaded() -> None:
    plain_run = [{"step": i, "success": 0.5, "entropy": 0.1, "alerts": []} for i in range(1, 9)]
    rung_run = [
        {**r, "alerts": [*(alert.name for alert in ALERTS), "of a later version"]}
        for r in plain_run
    ]

    assert picture(rung_run) != picture(plain_run)


def test_a_legend_above_a_panel_covers_no_curve() -> None:
    figure = Figure(figsize=(4.8, 2.7), layout="constrained")
    panel = figure.subplots()
    panel.set_title("length (tokens)", loc="left")
    for name, level in (("right", 0.0), ("wrong", 0.5), ("all", 1.0)):
        panel.plot([0, 1], [level, level], label=name)
    add_legend(panel, "above")
    figure.draw_without_rendering()
    legend, axes = panel.get_legend().get_window_extent(), panel.get_window_extent()

    assert legend.y0 >= axes.y1
    assert legend.x0 > panel._left_title.get_window_extent().x1
    assert legend.x1 <= figure.bbox.x1


def test_the_result_is_drawn_in_both_ways_of_decoding() -> None:
    """Also where the run was not evaluated in between. What was not measured is left out."""
    metrics = [{"step": 0}, {"step": 1, "success": 0.5}]
    before = {"accuracy": 0.2, "split": "test", "temperature": 0.7}
    greedy = {"other_decoding": {"accuracy": 0.3, "temperature": 0.0}}
    after = {**before, "accuracy": 0.6}
    without = picture(metrics)
    sampled = picture(metrics, held_out={"before": before, "after": after})
    both = picture(metrics, held_out={"before": before | greedy, "after": after | greedy})

    assert len({without, sampled, both}) == 3
    assert picture(metrics, held_out={"before": None, "after": after}) == without
