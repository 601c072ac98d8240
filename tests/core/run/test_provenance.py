"""A recipe cannot change unnoticed between processes of a run, and each of them records versions
and commit.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

import torch

from quintain.cli import main
from quintain.run.provenance import commit
from quintain.store.run_folder import RunFolder

from ...small_run import make_small_run, small_recipe

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of two steps."""
    place = tmp_path_factory.mktemp("place")
    recipe = small_recipe(
        'use = "arithmetic"', steps=2, model=place / "model", tables="[learner]\nlr = 1e-4"
    )
    make_small_run(place, recipe)
    assert (
        main(
            [
                "train",
                str(place / "recipe.toml"),
                "--folder",
                str(place / "runs"),
                "--name",
                "a",
                "--quiet",
            ]
        )
        == 0
    )
    return place


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    """A copy of the runs."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path / "runs"


def edit(runs: Path, old: str, new: str) -> None:
    path = runs / "a" / "recipe.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def resume(runs: Path, *words: str) -> int:
    return main(["train", "--resume", "a", "--folder", str(runs), "--quiet", *words])


def test_an_edited_recipe_is_shown_and_needs_force(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The changed keys are listed as `was -> is`; with --force the run continues with them, and
    they are known then.
    """
    edit(runs, "steps = 2", "steps = 3")
    edit(runs, "lr = 0.0001", "lr = 0.001")
    before = (runs / "a" / "metrics.jsonl").read_bytes()

    assert resume(runs) == 2
    error = capsys.readouterr().err
    assert "recipe.toml was edited since the run last used it:\n" in error
    assert (
        "\n  learner.lr: 0.0001 -> 0.001\n  run.steps: 2 -> 3\nUndo that, or add --force" in error
    )
    assert before == (runs / "a" / "metrics.jsonl").read_bytes()

    assert resume(runs, "--force") == 0
    run = RunFolder(runs / "a", lock=False)
    assert run.metrics()[-1]["step"] == 3
    assert [process["recipe"]["learner"]["lr"] for process in run.processes()] == [1e-4, 1e-3]
    assert resume(runs) == 0, capsys.readouterr().err


def test_a_seed_cannot_be_changed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What does not combine with the checkpoint is refused also with --force."""
    edit(runs, "seed = 0", "seed = 1")
    edit(runs, "steps = 2", "steps = 3")

    assert resume(runs) == 2
    assert "run.seed: 0 -> 1" in capsys.readouterr().err
    assert resume(runs, "--force") == 1
    assert "no longer yield the tasks" in capsys.readouterr().err
    assert resume(runs) == 2, "a refused recipe is not the run's"


@pytest.mark.parametrize("table", ["run", "sampling", "learner"])
def test_a_cut_recipe_counts_as_edited(
    runs: Path, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recipe of which a part is gone but which is still TOML is an edited one."""
    path = runs / "a" / "recipe.toml"
    kept, header, _ = path.read_text().partition(f"\n[{table}]")
    assert header
    path.write_text(kept)

    assert resume(runs) == 2
    assert "was edited" in capsys.readouterr().err


def test_comments_and_spaces_are_no_change(runs: Path) -> None:
    """Only what the recipe says counts."""
    edit(runs, "[learner]", "# a note\n\n[ learner ]")

    assert resume(runs) == 0


def test_a_process_records_what_it_runs_on(trained: Path) -> None:
    """Python, torch, every plugin, device and recipe stand in the run folder."""
    (process,) = RunFolder(trained / "runs" / "a", lock=False).processes()

    assert platform.python_version() == process["versions"]["python"]
    # a wheel for CUDA may name it in one of the two only
    public = torch.__version__.partition("+")[0]
    assert public == process["versions"]["torch"].partition("+")[0]
    assert {"quintain", "quintain-env-math", "quintain-view"} <= set(process["versions"])
    assert process["device"].startswith("cpu")
    assert process["recipe"]["environments"][0]["use"] == "quintain-env-math/arithmetic"


def test_the_commit_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of the working directory, marked if files differ; empty outside a repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() == ""

    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(
            ["git", *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init")
    Path("mine.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    git("tag", "v1")
    assert git("rev-parse", "HEAD") == commit()
    Path("mine.py").write_text("a = 2\n")
    assert git("rev-parse", "HEAD") + "-dirty" == commit()


def test_rollouts_of_a_resumed_run_name_the_same_tokenizer(runs: Path) -> None:
    """The tokenizer of a checkpoint keeps the name of the model that the run began with."""
    edit(runs, "steps = 2", "steps = 3")
    assert resume(runs, "--force") == 0

    run = RunFolder(runs / "a", lock=False)
    rollouts = [json.loads(run.read_rollouts(step)[0]["rollout"]) for step in (1, 3)]
    first, resumed = ([t["tokenizer"] for t in r["transcripts"].values()] for r in rollouts)
    assert first == resumed


def test_force_is_for_edited_recipes_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--force without --resume does nothing, so it is refused; a damaged record is named with its
    line.
    """
    assert main(["train", "--force"]) == 2
    assert "--force is for --resume" in capsys.readouterr().err
    (runs / "a" / "provenance.jsonl").write_text("5\n")
    assert resume(runs) == 1
    assert "provenance.jsonl has other values in the" in capsys.readouterr().err
    json.loads((runs / "a" / "summary.json").read_text())


FILES = (
    "recipe.toml", "metrics.jsonl", "provenance.jsonl", "summary.json",
    "rollouts/step-000002.parquet",
    "checkpoints/step-000002/state.json", "checkpoints/step-000002/learner.pt",
    "checkpoints/step-000002/SHA256SUMS",
    "checkpoints/step-000002/model/model.safetensors", "checkpoints/step-000002",
)  # fmt: skip
ODD = (
    b"",
    b"{}",
    b"null",
    b"[5]\n",
    b'{"step": 1, "alerts": 5}\n',
    b"\xff\xfe",
    b"[" * 20_000 + b"\n",
    None,
)


@pytest.mark.keeps("recipe.toml", "summary.json", "checkpoints/step-000002/learner.pt")
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_run_resumes_or_fails_with_one_line(
    runs: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a file of a run has become, also a folder, --resume works or ends with a typed
    error.
    """
    path = runs / "a" / file
    kept = runs.parent / "kept"
    shutil.copytree(runs / "a", kept)
    for content in ODD if "/" not in file and file[0] in "mr" else (b"[5]\n", b"\xff\xfe", None):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.mkdir() if content is None else path.write_bytes(content)
        status = resume(runs)
        error = capsys.readouterr().err
        assert status == 0 or "error: " in error, (content, error)
        warned = error.count("warning: ")
        assert error.count("\n") <= 1 + warned or file == "recipe.toml", (content, error)
        if file.startswith("checkpoints"):
            assert status == 1, content
        shutil.rmtree(runs / "a")
        shutil.copytree(kept, runs / "a")
