"""`quintain runs`: states, dates, accuracy before and after, and runs side by side."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from quintain.cli import main
from quintain.store import RunFolder
from quintain_view.viewer.runs import change, listed, model_label, run_info

RECIPE = """
environments = [{ use = "quintain-env-math/arithmetic" }]
[run]
name = "NAME"
steps = 20
seed = SEED
[model]
name = "quintain-starter/default"
[algorithm]
use = "quintain/dr_grpo"
[evaluation]
split = "dev"
[evaluation.test]
split = "test"
"""


def make(folder: Path, name: str, *, seed: int = 0, finished: bool = False) -> RunFolder:
    """A run of two steps whose held-out accuracy rises from 30 % to 60 %; its test accuracy from 25
    % to 75 %.
    """
    run = RunFolder.create(folder / name, RECIPE.replace("NAME", name).replace("SEED", str(seed)))
    run.append({"step": 0, "held_out.accuracy": 0.3})
    run.append({"step": 1, "reward.mean": 0.5})
    run.append({"step": 2, "reward.mean": 1.25, "held_out.accuracy": 0.6})
    run.append({"time": "2026-11-22T21:32:07Z"}, run.provenance_path)
    if finished:
        held_out = {"before": {"accuracy": 0.25}, "after": {"accuracy": 0.75}}
        run.write_summary(
            {"held_out": held_out, "samples": 12_800, "tokens": 428_314, "seconds": {"total": 95.0}}
        )
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One run that finished, one that was stopped, one whose process was killed."""
    make(tmp_path, "done", finished=True).close()
    make(tmp_path, "ended", seed=7).close()
    killed = make(tmp_path, "killed")
    owner = (killed.path / "run.lock").read_text()
    killed.close()
    (killed.path / "run.lock").write_text(owner)  # the process had no time to empty it
    return tmp_path


def test_states_dates_and_accuracies(folder: Path) -> None:
    infos = {name: run_info(folder / name) for name in ("done", "ended", "killed")}

    assert [infos[n].state for n in ("done", "ended", "killed")] == [
        "finished",
        "stopped",
        "crashed",
    ]
    assert infos["done"].before == 0.25
    assert infos["done"].after == 0.75
    assert infos["done"].split == "test"
    assert infos["ended"].before == 0.3
    assert infos["ended"].after == 0.6
    assert infos["ended"].split == "dev"
    assert {1795383127.0} == {info.started for info in infos.values()}
    assert infos["done"].algorithm == "dr_grpo"
    assert infos["done"].model == "default"
    assert infos["done"].environments == ("arithmetic",)


@pytest.mark.parametrize(
    ("name", "shown"),
    {
        "default": "default",
        "Qwen/Qwen3-0.6B": "Qwen3-0.6B",
        "/data/models/tiny": "tiny",
        "runs/duo-1/checkpoints/step-000010/model": "duo-1",
        "checkpoints/a": "a",
        "": "",
    }.items(),
)
def test_the_model_of_a_run_that_began_from_another_run(name: str, shown: str) -> None:
    """Its checkpoint's folder is called `model` in every run."""
    assert shown == model_label(name)


def test_a_pipe_is_not_truncated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "a-run-with-a-name-that-is-longer-than-any-column-of-a-terminal-of-eighty-characters"
    make(folder, long).close()
    with patch.dict(os.environ, COLUMNS="80"):
        assert main(["runs", "--folder", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 5
    assert lines[0].split("  ")[0] == "run"
    assert any(line.startswith(long) and "30.0% -> 60.0% dev" in line for line in lines)
    assert any(
        "done" in line and "finished" in line and "25.0% -> 75.0% test" in line for line in lines
    )


def test_narrow_terminals_have_fewer_columns(folder: Path) -> None:
    """The columns that are wide or known from the name go first; a list of short rows keeps all."""
    order = ("model", "tokens/s", "environments", "algorithm", "started")
    for name in ("done", "arithmetic-with-a-schedule-2"):
        make(folder, name, finished=True).close() if name != "done" else None
        infos = [run_info(folder / name)]
        for width in (140, 120, 100, 80):
            titles, (row,) = listed(infos, width)
            missing = [title for title in order if title not in titles]

            assert missing == list(order[: len(missing)])
            assert (
                width >= sum(max(len(t), len(c)) + 2 for t, c in zip(titles, row, strict=True)) - 2
            )
            assert width < 140 or not missing


def test_the_speed_of_sampling(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all steps: 400 tokens in 2 s and 200 in 1 s and 900 in 7 s are 150 a second, whatever
    the learner waited.
    """
    with make(folder, "timed") as run:
        for step, tokens, seconds in ((3, 400, 2.0), (4, 200, 1.0), (5, 900, 7.0)):
            run.append(
                {
                    "step": step,
                    "tokens": tokens,
                    "tokens_per_second": tokens / seconds,
                    "seconds.rollouts": 1e-3,
                }
            )
    assert run_info(folder / "timed").tokens_per_second == 150
    assert run_info(folder / "done").tokens_per_second is None
    assert main(["runs", "timed", "done", "--folder", str(folder)]) == 0
    assert "tokens/s" in capsys.readouterr().out


def test_names_of_keys_are_not_broken(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """On a terminal of 80 columns a key of the recipe can be searched for and copied."""
    for name, value in {"COLUMNS": "80", "TTY_COMPATIBLE": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    recipe = folder / "done" / "recipe.toml"
    recipe.write_text(
        recipe.read_text() + '[model.start.args]\ncheck_every_updates = "abcdefghi"\n'
    )
    assert main(["runs", "done", "ended", "killed", "--folder", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()

    assert any(line.startswith("model.start.args.check_every_updates ") for line in lines)
    assert max(map(len, lines)) <= 80


def test_runs_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results first, then the keys of the recipes that differ, and only those."""
    assert main(["runs", "done", "ended", "--folder", str(folder)]) == 0
    rows = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}

    assert (rows["held-out accuracy"]) == [
        "held-out",
        "accuracy",
        "25.0%",
        "->",
        "75.0%",
        "test",
        "30.0%",
        "->",
        "60.0%",
        "dev",
    ]
    assert rows["run.seed"] == ["run.seed", "0", "7"]
    assert rows["time"] == ["time", "1:35"]
    assert not {"run.name", "run.steps", "evaluation.split"} & rows.keys()
    assert main(["runs", "done", "endet", "--folder", str(folder)]) == 2
    assert "did you mean 'ended'" in capsys.readouterr().err


def test_json_has_the_settings_of_named_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        assert main(["runs", *words, "--folder", str(folder), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    (row,) = rows("ended")
    assert row["settings"]["run.seed"] == 7
    assert row["state"] == "stopped"
    assert row["reward"] == 1.25
    assert len(rows()) == 3
    assert "settings" not in rows()[0]


def test_a_damaged_run_is_a_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ended" / "metrics.jsonl").write_text("x\n{}\n")
    (folder / "done" / "recipe.toml").write_text("[run")
    assert main(["runs", "--folder", str(folder)]) == 0
    out = capsys.readouterr().out

    assert "is damaged" in out
    assert "TOMLDecodeError" in out
    assert "killed" in out


def test_runs_are_removed_after_a_question(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if the answer is no, nor while one of them is written, nor a folder that no run has
    made.
    """
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert main(["runs", "rm", "done", "--folder", str(folder)]) == 130
    assert "remove 1 runs, 0.0 MB?" in capsys.readouterr().out
    assert run_info(folder / "done").state == "finished"
    with make(folder, "busy"):
        assert main(["runs", "rm", "done", "busy", "--yes", "--folder", str(folder)]) == 1
        assert "run 'busy' is being written by process" in capsys.readouterr().err
    assert (folder / "done").is_dir()
    assert run_info(folder / "ended").state == "stopped"
    (folder / "mine").mkdir()
    (folder / "mine" / "recipe.toml").write_text(RECIPE)
    assert main(["runs", "rm", "mine", "--yes", "--folder", str(folder)]) == 2
    assert main(["runs", "rm", "--folder", str(folder)]) == 2
    assert main(["runs", "rm", "dune", "--folder", str(folder)]) == 2
    assert "did you mean 'done'" in capsys.readouterr().err

    (folder / "done" / "checkpoints").mkdir()
    (folder / "done" / "checkpoints" / "big").write_bytes(b"x" * 2_500_000)
    assert main(["runs", "rm", "done", "ended", "--yes", "--folder", str(folder)]) == 0
    assert capsys.readouterr().out.endswith("removed 2 runs, 2.5 MB\n")
    assert {"busy", "killed", "mine"} == {path.name for path in folder.iterdir()}


def test_a_run_with_one_evaluation_has_no_change(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create(folder / "young", RECIPE.replace("NAME", "young").replace("SEED", "0"))
    run.append({"step": 0, "held_out.accuracy": 0.63, "held_out.temperature": 0.7})
    run.close()

    assert change(run_info(run.path)) == "63.0% dev (start) T 0.7"


def test_accuracies_say_how_they_were_decoded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sampled and greedy, side by side; a run that does not say is shown without."""
    beside = [{"accuracy": value, "temperature": 0.0} for value in (0.43, 0.98)]
    held_out = [{"accuracy": value, "temperature": 0.7} for value in (0.635, 0.96)]
    before, after = (
        measured | {"other_decoding": other}
        for measured, other in zip(held_out, beside, strict=True)
    )
    run = make(folder, "both")
    run.write_summary({"held_out": {"before": before, "after": after}, "seconds": {"total": 1.0}})
    run.close()

    assert change(run_info(run.path)) == "63.5% -> 96.0% test T 0.7"
    assert change(run_info(folder / "done")) == "25.0% -> 75.0% test"
    assert main(["runs", "both", "done", "--folder", str(folder)]) == 0
    assert "43.0% -> 98.0% test greedy" in capsys.readouterr().out
