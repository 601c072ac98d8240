"""The run folder: locked, durable, readable after a kill, honest about a full disk."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import QuintainError, RunError, RunLockedError, StorageError, UnknownNameError
from quintain.store.checkpoint import latest
from quintain.store.digests import digests
from quintain.store.run_folder import RunFolder
from quintain.store.runs import find_run, free_name, model_named
from quintain.store.storage import plain_data, write_atomically
from quintain.types.rollout import Group, Rollout, Score, Termination, TerminationKind, Turn
from quintain.types.task import Message, Task
from quintain.types.transcript import Branch, TokenSource, Transcript
from quintain_view.viewer.runs import list_runs, runs

from ...lanes import examples

RECIPE = '[run]\nsteps = 9\n[model]\nname = "m"\n[[environments]]\nuse = "guess"\n'


@dataclass(frozen=True, kw_only=True)
class Guess(Task):
    top: int = 10


@dataclass(frozen=True, kw_only=True)
class Board:
    tries: int
    open: bool = False


def rollout(sample: int = 0, text: str = "7", **fields: Any) -> Rollout[Guess, Board]:
    tokens = Branch(
        ids=(1, 2, 3),
        sources=(TokenSource.PROMPT, TokenSource.MODEL, TokenSource.MODEL),
        logps=(0.0, -0.1, -1 / 3),
        versions=(-1, 4, 4),
    )
    given: dict[str, Any] = {
        "task": Guess(prompt="guess", answer=7, level=2.0),
        "result": Board(tries=2, open=True),
        "turns": (Turn(text=text, reply=text, tokens=2),),
        "messages": (Message("user", "guess"), Message("assistant", text)),
        "transcripts": {"": Transcript(branches=(tokens,), tokenizer="bytes")},
        "outcome": Score(value=1.0, parts={"found": 1.0}),
        "shaping": Score(value=0.25),
        "environment": "guess",
        "group": 5,
        "sample": sample,
        "seed": 2**63 - 1,
        "metrics": {"tries": 2.0},
    }
    return Rollout(**(given | fields))


def group(*rollouts: Rollout[Any, Any]) -> Group[Any, Any]:
    return Group(task=rollouts[0].task, rollouts=rollouts, environment="guess")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "runs" / "first", RECIPE) as made:
        yield made


def test_create_open_and_refuse_to_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "a" / "run"
    with RunFolder.create(path, RECIPE) as made:
        assert made.recipe() == RECIPE
        assert made.name == "run"
    with pytest.raises(RunError, match="--resume run"):
        RunFolder.create(path, RECIPE)
    with RunFolder.open(path) as again:
        assert again.metrics() == []
        assert again.summary() is None
    with pytest.raises(UnknownNameError, match="did you mean 'run'"):
        RunFolder.open(tmp_path / "a" / "rnu")


def test_a_folder_without_a_recipe_is_free(tmp_path: Path) -> None:
    # a process was killed between making the folder and saving the recipe
    (tmp_path / "run").mkdir()
    RunFolder.create(tmp_path / "run", RECIPE).close()


def test_metrics_are_lines_of_strict_json(folder: RunFolder) -> None:
    folder.append({"step": 1, "loss": math.nan, "reward.mean": 0.5, "deep": {"x": math.inf}})
    folder.append({"step": 2, "loss": 0.25})
    assert folder.metrics() == [
        {"step": 1, "loss": None, "reward.mean": 0.5, "deep": {"x": None}},
        {"step": 2, "loss": 0.25},
    ]
    for line in folder.metrics_path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))


def test_a_line_cut_off_by_a_kill_is_dropped(folder: RunFolder) -> None:
    folder.append({"step": 1})
    with open(folder.metrics_path, "ab") as file:
        file.write(b'{"step": 2, "lo')
    assert folder.metrics() == [{"step": 1}]
    folder.close()
    with RunFolder.open(folder.path) as again:
        again.append({"step": 2})
        assert again.metrics() == [{"step": 1}, {"step": 2}]


def test_a_damaged_line_in_the_middle_is_an_error(folder: RunFolder) -> None:
    folder.metrics_path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(RunError, match="line 2"):
        folder.metrics()


@examples(30)
@given(st.integers(0, 60))
def test_wherever_the_last_line_is_cut_the_lines_before_survive(cut: int) -> None:
    lines = [{"step": 1, "x": 0.1}, {"step": 2, "x": 0.2}, {"step": 3, "x": 0.3}]
    text = "".join(json.dumps(x) + "\n" for x in lines)[:cut]
    with _scratch() as path:
        (path / "recipe.toml").write_text(RECIPE)
        (path / "metrics.jsonl").write_text(text)
        with RunFolder.open(path) as run:
            whole = text.count("\n")
            assert run.metrics() == lines[:whole]
            run.append({"step": 9})
            assert run.metrics() == [*lines[:whole], {"step": 9}]


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_rollouts_come_back_whole(folder: RunFolder) -> None:
    failed = rollout(
        1,
        result=None,
        termination=Termination(TerminationKind.TIMEOUT, "over 3 s", 2),
        outcome=None,
        shaping=None,
    )
    odd = rollout(2, text="half \ud83d of a pair, 🙂, \0 and \u2028")
    originals = [rollout(), failed, odd]
    path = folder.write_rollouts(12, [group(*originals)])
    assert path.name == "step-000012.parquet"
    rows = folder.read_rollouts(12)
    for row, original in zip(rows, originals, strict=True):
        back = Rollout.from_json(json.loads(row["rollout"]), Guess, Board | None)
        assert back == original
    first = rows[0]
    assert first["step"] == 12
    assert first["group"] == 5
    assert first["sample"] == 0
    assert first["seed"] == 2**63 - 1
    assert first["outcome"] == 1.0
    assert first["shaping"] == 0.25
    assert first["termination"] == "finished"
    assert first["level"] == 2.0
    assert first["token_ids"] == [1, 2, 3]
    assert first["token_logps"] == [0.0, -0.1, -1 / 3]
    assert first["token_versions"] == [-1, 4, 4]
    assert first["token_sources"] == [1, 2, 2]
    assert json.loads(first["messages"])[1]["content"] == "7"
    assert json.loads(first["task"])["answer"] == 7
    assert rows[1]["outcome"] is None
    assert rows[1]["termination"] == "timeout"
    assert rows[1]["reason"] == "over 3 s"
    assert rows[1]["attempts"] == 2
    with pytest.raises(RunError, match="no rollouts of step 13"):
        folder.read_rollouts(13)


def test_datasets_reads_rollouts(folder: RunFolder, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for step in (1, 2):
        folder.write_rollouts(step, [group(rollout(), rollout(1))])
    files = [str(p) for p in sorted(folder.rollouts.iterdir())]
    table = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert table["step"][:] == [1, 1, 2, 2]
    assert table[3]["token_ids"] == [1, 2, 3]


def test_resume_forgets_what_came_after_the_checkpoint(folder: RunFolder) -> None:
    for step in range(1, 7):
        folder.append({"step": step})
        folder.write_rollouts(step, [group(rollout())])
        (folder.checkpoints / f"step-{step:06d}").mkdir(parents=True)
    folder.write_summary({"x": 1})
    folder.truncate_after(4)
    assert [m["step"] for m in folder.metrics()] == [1, 2, 3, 4]
    assert sorted(p.name for p in folder.rollouts.iterdir()) == [
        f"step-{i:06d}.parquet" for i in range(1, 5)
    ]
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == [
        f"step-{i:06d}" for i in range(1, 5)
    ]
    assert folder.summary() is None
    folder.truncate_after(-1)
    assert folder.metrics() == []


@pytest.mark.parametrize("keep, left", [("all", 6), ("none", 0), (2, 2)])
def test_rollouts_are_kept_as_the_recipe_says(folder: RunFolder, keep: Any, left: int) -> None:
    for step in range(1, 7):
        folder.write_rollouts(step, [group(rollout())])
        folder.retain(keep, step)
    assert sorted(p.name for p in folder.rollouts.iterdir()) == [
        f"step-{i:06d}.parquet" for i in range(7 - left, 7)
    ]


def test_summary(folder: RunFolder) -> None:
    import torch

    folder.write_summary(
        {"held_out": {"before": {"accuracy": torch.tensor(0.25)}}, "seconds": {"total": 1.5}}
    )
    assert folder.summary() == {
        "held_out": {"before": {"accuracy": 0.25}},
        "seconds": {"total": 1.5},
    }
    with pytest.raises(TypeError, match="JSON"):
        plain_data({"x": object()})


HOLD = """
import sys, time
from quintain.store.run_folder import RunFolder
run = RunFolder.open(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(folder: RunFolder) -> None:
    with pytest.raises(RunLockedError, match=f"process {os.getpid()} "):
        RunFolder.open(folder.path)
    folder.close()
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    try:
        with pytest.raises(RunLockedError, match=f"process {other.pid} .*--name"):
            RunFolder.open(folder.path)
        assert list_runs(folder.path.parent)[0].state == "running"
        with RunFolder.open(folder.path, lock=False) as reader:
            assert reader.recipe() == RECIPE
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        other.stdout.close()
    assert list_runs(folder.path.parent)[0].state == "crashed"
    RunFolder.open(folder.path).close()
    assert list_runs(folder.path.parent)[0].state == "stopped"
    RunFolder.open(folder.path).close()


def test_what_a_killed_process_was_writing_is_cleared_away(folder: RunFolder) -> None:
    folder.rollouts.mkdir()
    left = [folder.path / ".summary.json.tmp-1", folder.rollouts / ".step-000001.parquet.tmp-1"]
    for path in left:
        path.write_text("half")
    (folder.checkpoints / ".step-000001.tmp-1" / "model").mkdir(parents=True)
    folder.close()
    RunFolder.open(folder.path).close()
    assert not any(p.exists() for p in left)
    assert list(folder.checkpoints.iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
from quintain.errors import StorageError
from quintain.store.run_folder import RunFolder, write_atomically
run = RunFolder.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
for write in (
    lambda: run.append({"step": 2, "x": "y" * 1000}),
    lambda: write_atomically(run.summary_path, b"z" * 1000),
):
    try:
        write()
    except StorageError as e:
        print(e)
run.append({"step": 2, "x": 1})
"""


def test_a_write_that_fails_half_way_leaves_everything_as_it_was(folder: RunFolder) -> None:
    folder.append({"step": 1})
    folder.write_summary({"old": True})
    folder.close()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert "metrics.jsonl: it takes 1021 bytes" in lines[0]
    assert "summary.json: it takes 1000 bytes" in lines[1]
    assert all(
        "quota or a size limit" in line and "--resume" in line and "intact" in line
        for line in lines
    )
    with RunFolder.open(folder.path) as again:
        assert again.metrics() == [{"step": 1}, {"step": 2, "x": 1}]
        assert again.summary() == {"old": True}
        assert not list(folder.path.glob(".*"))


def test_a_full_disk(small_disk: Path) -> None:
    with RunFolder.create(small_disk / "run", RECIPE) as run:
        run.append({"step": 1})
        noise = os.urandom(400_000).hex()
        with pytest.raises(
            StorageError,
            match=r"no room to write .*step-000001\.parquet: it takes \d+ kB.*are free",
        ):
            run.write_rollouts(1, [group(rollout(text=noise))])
        assert run.metrics() == [{"step": 1}]
        assert list(run.rollouts.iterdir()) == []
        run.append({"step": 2})


@pytest.mark.parametrize("small_disk", ["nr_inodes=12"], indirect=True)
def test_a_disk_without_inodes(small_disk: Path) -> None:
    """A disk with room that can hold no other file says so."""
    with RunFolder.create(small_disk / "run", RECIPE) as run:
        run.append({"step": 1})
        with contextlib.suppress(OSError):
            for i in range(20):
                (small_disk / f"file-{i}").touch()
        with pytest.raises(
            StorageError, match=r"summary\.json: its file system has no inode left.*Delete files"
        ):
            run.write_summary({})
        run.append({"step": 2})


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 256 kB, or with other options of tmpfs."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", getattr(request, "param", "size=256k"), "none", str(path)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the run folder"):
        RunFolder.create(tmp_path / "file" / "run", RECIPE)
    with pytest.raises(StorageError, match="cannot write"):
        write_atomically(tmp_path / "file" / "x", b"")


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replace_by_another_run(path: Path) -> None:
    shutil.rmtree(path)
    RunFolder.create(path, RECIPE).close()


@pytest.mark.parametrize(
    "lose, message",
    [
        (move, "was moved to .*elsewhere "),
        (shutil.rmtree, "was deleted or replaced"),
        (replace_by_another_run, "was deleted or replaced"),
    ],
)
def test_a_run_whose_folder_is_gone_writes_no_half_folder(
    folder: RunFolder, lose: Callable[[Path], None], message: str
) -> None:
    """Moved, deleted or replaced while it is open for writing, a folder is an error that says
    which, and stays so.
    """
    folder.append({"step": 1})
    lose(folder.path)
    there = sorted(p.name for p in folder.path.glob("*"))
    writes: list[Callable[[], object]] = [
        lambda: folder.append({"step": 2}),
        lambda: folder.write_rollouts(2, [group(rollout())]),
        lambda: folder.write_summary({}),
        lambda: folder.retain(1, 2),
        lambda: folder.truncate_after(0),
    ]
    for write in writes:
        with pytest.raises(RunError, match=message):
            write()
    assert there == sorted(p.name for p in folder.path.glob("*"))


def test_author_code_that_changes_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run writes to the folder that its relative path meant at its start; messages keep the path
    as typed.
    """
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with RunFolder.create("runs/first", RECIPE) as run:
        os.chdir(tmp_path / "there")
        run.append({"step": 1})
        run.write_summary({})
        assert str(run.shown) == "runs/first"
    assert not list((tmp_path / "there").iterdir())
    assert len(RunFolder(tmp_path / "here" / "runs" / "first", lock=False).metrics()) == 1


SAVED = {
    "run.lock": b"process 1\n",
    "recipe.toml": RECIPE.encode(),
    "metrics.jsonl": b'{"step": 0, "held_out.accuracy": 0.5}\n{"step": 1, "held_out.accuracy": 0.75}\n',
    "summary.json": b"{}",
    "checkpoints/step-000001/checkpoint.json": b'{"format": 1, "step": 1, "best": false}',
    "rollouts/step-000001.parquet": b"",
}
ODD = (
    b"", b"{}", b"5", b"null", b"[]", b'"x"', b"\xff\xfe", b'{"step": null}', b'{"step": -1}',
    b'{"step": 1e400}',
    b'{"step": true}', b'{"step": 1, "held_out.accuracy": "x"}',
    b'{"step": 1, "held_out.accuracy": []}',
    b"[" * 20_000, b"{" + b'"a":{' * 9_000, b"9" * 5_000, b"environments = 5", b"run = 3",
    b"model = []",
    b"[run]\nsteps = [1]", b"a." * 3_000 + b"a = 1", b"\x00",
)  # fmt: skip


@given(
    st.sampled_from(sorted(SAVED)),
    st.sampled_from(ODD),
    st.sampled_from(["", "\n", "append", "folder", "link"]),
)
@examples(120)
def test_one_damaged_run_is_one_row_with_its_fault(name: str, content: bytes, how: str) -> None:
    """Whatever a file of a run has become, `quintain runs` lists all runs; opening and reading it
    is a typed error.
    """
    with tempfile.TemporaryDirectory() as place:
        for run in ("damaged", "[bold]sound"):
            for file, saved in SAVED.items():
                Path(place, run, file).parent.mkdir(parents=True, exist_ok=True)
                Path(place, run, file).write_bytes(saved)
        file = Path(place, "damaged", name)
        if how in ("folder", "link"):
            file.unlink()
            file.mkdir() if how == "folder" else file.symlink_to("nowhere")
        else:
            file.write_bytes(
                (SAVED[name] if how == "append" else b"")
                + content
                + how.removeprefix("append").encode()
            )
        rows = {r.name: r for r in list_runs(place)}
        assert rows["[bold]sound"].accuracy == 0.75
        assert all("\n" not in row.fault for row in rows.values())
        shown = CliRunner().invoke(runs, ["--folder", place])
        assert shown.exit_code == 0, shown.output
        assert "[bold]sound" in shown.output
        assert json.loads(
            CliRunner().invoke(runs, ["--folder", place, "--json"]).output.splitlines()[0]
        )
        with contextlib.suppress(QuintainError), RunFolder.open(Path(place, "damaged")) as folder:
            folder.recipe()
            folder.summary()
            latest(folder)
            folder.truncate_after(0)


def test_a_pipe_gets_whole_names(tmp_path: Path) -> None:
    """`quintain runs` cuts nothing if its output is not a terminal."""
    name = "a-run-with-a-name-of-" + "many-" * 20 + "words"
    RunFolder.create(
        tmp_path / name, RECIPE.replace("guess", "envs/of/mine.py:" + "Guess" * 12)
    ).close()
    output = CliRunner().invoke(runs, ["--folder", str(tmp_path)]).output
    assert name in output
    assert "Guess" * 12 in output


def test_listing_and_naming_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "none") == []
    assert free_name(tmp_path, "guess") == "guess-1"
    for i, name in enumerate(("guess-1", "guess-3", "broken")):
        with RunFolder.create(tmp_path / name, RECIPE) as run:
            run.append({"step": i, "held_out.accuracy": 0.5})
            run.append({"step": i + 1})
    with RunFolder.open(tmp_path / "guess-3") as run:
        run.write_summary({})
    (tmp_path / "broken" / "metrics.jsonl").write_text("x\n{}\n")
    (tmp_path / "other").mkdir()
    rows = {r.name: r for r in list_runs(tmp_path)}
    assert sorted(rows) == ["broken", "guess-1", "guess-3"]
    assert rows["guess-1"].state == "stopped"
    assert rows["guess-3"].state == "finished"
    assert rows["guess-3"].step == 2
    assert rows["guess-3"].steps == 9
    assert rows["guess-3"].accuracy == 0.5
    assert rows["guess-1"].model == "m"
    assert rows["guess-1"].environments == ("guess",)
    assert "line 1" in rows["broken"].fault
    assert free_name(tmp_path, "guess") == "guess-2"
    assert find_run("guess-1", tmp_path) == tmp_path / "guess-1"
    assert find_run(tmp_path / "guess-1") == tmp_path / "guess-1"
    with pytest.raises(UnknownNameError, match="did you mean 'guess-"):
        find_run("gues-1", tmp_path)


def test_the_model_that_a_name_means(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", RECIPE + 'system = "Think."\n') as run:
        with pytest.raises(RunError, match="no checkpoint"):
            model_named("run", tmp_path)
        for step, best in ((1, True), (2, False)):
            path = run.checkpoints / f"step-{step:06d}"
            (path / "model").mkdir(parents=True)
            (path / "model" / "config.json").write_text("{}")
            (path / "checkpoint.json").write_text(
                json.dumps({"format": 1, "step": step, "best": best})
            )
            sums = [f"{digest}  {name}" for name, digest in digests(path).items()]
            (path / "SHA256SUMS").write_text("\n".join(sums))
    first = tmp_path / "run" / "checkpoints" / "step-000001"
    assert model_named("run", tmp_path) == (str(first / "model"), "Think.")
    assert model_named(str(first), tmp_path) == (str(first / "model"), "")
    assert model_named("Qwen/Qwen3-0.6B", tmp_path) == ("Qwen/Qwen3-0.6B", "")
    for damaged in ("[[", "environments = 1", "environments = [1]", "x = " + "[" * 1000):
        (tmp_path / "run" / "recipe.toml").write_text(damaged)
        with pytest.raises(RunError, match="recipe of run 'run' is damaged"):
            model_named("run", tmp_path)
