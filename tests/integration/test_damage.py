"""Each file of a run, damaged in each way, read by each command that reads it: the file is named, as
an error or beside what is shown without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.errors import RunError
from quintain.store import read_table

from ..small_run import make_small_run, small_recipe

HERE = Path(__file__).parent
LAST = "checkpoints/step-000004"
COMMANDS = {
    "resume": "train --resume run --quiet",
    "eval": "eval --like run --tasks 2",
    "chat": "chat run",
    "export": "export run exported",
    "rescore": f"rescore run --reward {HERE}/letters.py:share_of_a",
    "rollouts": "rollouts run -n 1",
    "pass-rates": "pass-rates runs/run",
    "sft": "sft run --model model --examples 4 --epochs 1 --min-reward 0 --truncated --out tuned",
    "runs": "runs",
    "watch": "watch run --terminal --once",
    "timeline": "timeline run --step 3",
}
MODEL = ("resume", "eval", "chat", "export")
RECIPE = ("resume", "eval", "chat", "export", "rescore", "runs", "watch")
READERS = {
    "recipe.toml": RECIPE,
    "provenance.jsonl": RECIPE,
    "metrics.jsonl": ("resume", "export", "runs", "watch"),
    "summary.json": ("resume", "eval", "export", "runs", "watch"),
    "rollouts/step-000003.parquet": ("rollouts", "pass-rates", "rescore", "sft"),
    "timeline/step-000003.json": ("timeline",),
    f"{LAST}/checkpoint.json": (*MODEL, "runs", "watch"),
    f"{LAST}/SHA256SUMS": MODEL,
    f"{LAST}/state.json": ("resume",),
    f"{LAST}/learner.pt": ("resume",),
    f"{LAST}/model/config.json": MODEL,
    f"{LAST}/model/model.safetensors": MODEL,
    f"{LAST}/model/tokenizer.json": (*MODEL, "rollouts"),
    f"{LAST}/model/tokenizer_config.json": MODEL,
    f"{LAST}/model/chat_template.jinja": MODEL,
}
"""The commands that read each file."""
FOREIGN = {
    "recipe.toml": "later = 1\n",
    "metrics.jsonl": '{"time": 1}\n',
    "provenance.jsonl": '{"steering": 1}\n',
    "summary.json": "[]",
    f"{LAST}/checkpoint.json": '{"format": 99, "step": 4, "best": true, "version": "99.0"}',
}
"""What another version, or another program, may have written there."""
WITHOUT = {("metrics.jsonl", "resume"), ("provenance.jsonl", "resume"), ("summary.json", "resume")}
"""Files that a resume does without, and says so: a summary is written again, and a missing log is
one that was moved away.
"""


SHOW = ("runs", "watch")
"""What shows a run with its fault."""


def flipped(data: bytes) -> bytes:
    """One other bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def zeroed(data: bytes) -> bytes:
    """Nothing but zeros from the middle on."""
    return data[: len(data) // 2].ljust(len(data), b"\0")


def with_garbage(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    middle = len(lines) // 2
    return b"".join([*lines[:middle], b"\x91 garbage\n", *lines[middle:]])


def with_first_line_twice(data: bytes) -> bytes:
    first = next(line for line in data.splitlines(keepends=True) if line.strip())
    return first + data


def without_a_line(data: bytes) -> bytes:
    lines = [line for line in data.splitlines(keepends=True) if line.strip()]
    return b"".join([*lines[:-2], *lines[-1:]])


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "flipped": flipped,
    "zeros": zeroed,
    "garbage": with_garbage,
    "line twice": with_first_line_twice,
    "line lost": without_a_line,
}
ROLLOUTS = "rollouts/step-000003.parquet"
LINES = {
    "garbage": tuple(file for file in READERS if file != ROLLOUTS),
    "flipped": tuple(file for file in READERS if file != ROLLOUTS),
    "line twice": ("recipe.toml", "metrics.jsonl"),
    "line lost": ("metrics.jsonl", f"{LAST}/SHA256SUMS"),
}
"""Files of which a line more or less says something else."""
CASES = [
    (file, damage)
    for file in READERS
    for damage in (*CHANGES, "missing", "folder", "unreadable", "foreign")
    if file in LINES.get(damage, READERS) and (damage != "foreign" or file in FOREIGN)
    if (file, damage) not in {("rollouts/step-000003.parquet", "missing")}  # below
    if (file, damage) not in {("timeline/step-000003.json", "missing")}  # it keeps the last ones
    if (file, damage) not in {("summary.json", "missing")}  # as before the end of a run
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a finished run, and a copy of it as ``sound``."""
    folder = tmp_path_factory.mktemp("damage")
    recipe = small_recipe(
        'use = "letters:Letters"',
        steps=4,
        evaluation="every = 2\ntasks = 2\ntest = { tasks = 2 }",
        tables="[checkpoint]\nevery = 2",
    )
    make_small_run(folder, recipe)
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.syspath_prepend(HERE)
        assert main(["train", "recipe.toml", "--name", "run", "--quiet"]) == 0
        shutil.copytree("runs", "sound")
        yield folder


@pytest.fixture
def run(place: Path) -> Iterator[Path]:
    """The run as it was."""
    with contextlib.chdir(place):
        shutil.rmtree("runs")
        shutil.copytree("sound", "runs")
        yield place / "runs" / "run"


class _Head(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("rest", ctypes.c_uint32 * 5))


@contextlib.contextmanager
def without_the_rights_of_root() -> Iterator[None]:
    """Let permissions of files hold for root, too: no CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
    libc, head, sets = ctypes.CDLL(None), _Head(0x20080522, 0), _Sets()
    assert libc.capget(ctypes.byref(head), ctypes.byref(sets)) == 0
    before = sets.effective
    sets.effective &= ~0b110
    assert libc.capset(ctypes.byref(head), ctypes.byref(sets)) == 0
    try:
        yield
    finally:
        sets.effective = before
        libc.capset(ctypes.byref(head), ctypes.byref(sets))


def said(name: str) -> tuple[int, str]:
    """Status and all output of a command, whose input is empty."""
    for folder in ("exported", "tuned"):
        shutil.rmtree(folder, ignore_errors=True)
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", io.StringIO())
        status = main(COMMANDS[name].split())
    return status, out.getvalue()


def damage_file(path: Path, damage: str, foreign: str | None = None) -> None:
    if damage in CHANGES:
        path.write_bytes(CHANGES[damage](path.read_bytes()))
    elif damage == "unreadable":
        path.chmod(0)
        os.utime(path)  # what a process has read before it reads again
    elif foreign is not None:
        path.write_text(foreign)
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()


def faults(run: Path, file: str, damage: str) -> list[str]:
    """What is wrong with what the readers of *file* say after the *damage*."""
    found = []
    for name in READERS[file]:
        shutil.rmtree(run)
        shutil.copytree(run.parent.parent / "sound" / "run", run)
        damage_file(run / file, damage, FOREIGN.get(file) if damage == "foreign" else None)
        held = without_the_rights_of_root() if damage == "unreadable" else contextlib.nullcontext()
        with held:
            status, text = said(name)
        named = Path(file).name in text or "99.0" in text
        goes_on = (file, name) in WITHOUT and "warning: " in text
        if "Traceback" in text or not named or not (status or goes_on or name in SHOW):
            found.append(f"{name}: status {status}: {text[-300:]}")
    return found


@pytest.mark.keeps(
    "metrics.jsonl-half", "rollouts/step-000003.parquet-zeros", f"{LAST}/model/config.json-flipped"
)
@pytest.mark.parametrize(("file", "damage"), CASES, ids=[f"{f}-{d}" for f, d in CASES])
def test_a_damaged_file_is_named_by_each_command_that_reads_it(
    run: Path, file: str, damage: str
) -> None:
    assert faults(run, file, damage) == []


def test_no_flipped_bit_of_rollouts_changes_what_is_read(run: Path) -> None:
    """A flipped one is named, or lies in a header that no value depends on."""
    path, draw = run / ROLLOUTS, random.Random(0)
    data, rows = path.read_bytes(), read_table(run / ROLLOUTS).to_pylist()
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    named = 0
    for place in [draw.randrange(4, end) for _ in range(60)]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            assert read_table(path).to_pylist() == rows
        except RunError:
            named += 1
    assert named > 15


@pytest.mark.more
def test_a_sound_run_is_read_by_all_of_them(run: Path) -> None:
    """The commands of this file work, and name no file of it."""
    for name in COMMANDS:
        status, text = said(name)
        assert status == 0, text
        assert "damaged" not in text
        assert "is missing" not in text


def test_a_missing_file_of_rollouts_is_named(run: Path) -> None:
    (run / "rollouts" / "step-000003.parquet").unlink()
    status, text = said("rollouts")
    assert status == 0
    assert "the file of step 3 is missing" in text


def test_rollouts_of_another_step_are_named(run: Path) -> None:
    """A file that has the name of another one."""
    shutil.copy(run / "rollouts" / "step-000002.parquet", run / "rollouts" / "step-000003.parquet")
    status, text = said("rollouts")
    assert status == 1
    assert "step-000003.parquet has rollouts of step 2" in text


def test_an_older_checkpoint_under_the_name_of_the_last_one_is_named(run: Path) -> None:
    shutil.rmtree(run / LAST)
    shutil.copytree(run / "checkpoints" / "step-000002", run / LAST)
    for name in MODEL:
        status, text = said(name)
        assert status == 1
        assert "step-000004 is damaged (checkpoint.json: it is of step 2)" in text


def test_a_run_without_its_recipe_is_not_begun_anew(run: Path) -> None:
    """A new run of the name would go on from the checkpoints of the old one."""
    (run / "recipe.toml").unlink()
    out = io.StringIO()
    with contextlib.redirect_stderr(out):
        assert main(["train", "recipe.toml", "--name", "run", "--quiet"]) == 2
    assert "has the files of a run without recipe.toml" in out.getvalue()
