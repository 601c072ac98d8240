"""Growing that is broken off goes on where it stood, and ends as if it had not been; what it says meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="growing needs quintain[train]")

from quintain.cli import main
from quintain.cli.train import _recipe, train
from quintain.interfaces.environment import Demonstration, Environment
from quintain.interfaces.reward import reward
from quintain.learning.learner import Learner
from quintain.training import nursery
from quintain.training.nursery import grown
from quintain.training.recipe.tables import Recipe
from quintain.training.resolve import Casting, cast_table
from quintain.training.screen import Screen
from quintain.types.rollout import Rollout
from quintain.types.task import Task

ARGS = """
[[environments]]
use = "saying"
[model.start.args]
model = { hidden = 32, layers = 1, heads = 2, kv_heads = 1, head_dim = 16, intermediate = 64 }
lr = 3e-3
batch = 8
check_every = 5
tasks = 8
max_steps = 60
"""
SETTLES = "target = [0.5, 1.0]\nsettle = 3\n"
JUMPS = "target = [0.4, 0.6]\nlr = 1e-2\n"


@reward(range=(0, 1))
def says_it(rollout: Rollout[Task, None]) -> float:
    return float(rollout.reply == rollout.task.answer)


class Saying(Environment[Task, None]):
    """Say a letter; learned within a few updates."""

    reward = says_it

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(8 if split != "train" else 64):
            yield Task(prompt=f"{split} {i}", answer="a")

    def demonstrations(self, split: str) -> Iterable[Demonstration]:
        for task in self.tasks(split):
            yield Demonstration(prompt=task.prompt, reply="a")


class Watched(Screen):
    """Keeps the lines, and does something at each check."""

    def __init__(self, at_check: Callable[[int], None] = lambda check: None) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._checks, self._at_check = 0, at_check

    def _print(self, text: str) -> None:
        self.lines.append(text)

    def advance(self, piece: object = None) -> None:
        self._checks += 1
        self._at_check(self._checks)

    def said(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))
    monkeypatch.setattr("quintain.training.screen.program", lambda: "quintain")
    return tmp_path / "models"


def grow(screen: Screen, settings: str = SETTLES) -> Path:
    own = {line.partition(" =")[0] for line in settings.splitlines()}
    shared = "".join(line + "\n" for line in ARGS.splitlines() if line.partition(" =")[0] not in own)
    return grown([Casting(name="saying", component=Saying)], Recipe.parse(shared + settings), screen)


def taken(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """What a grown model is, times aside; it leaves the cache."""
    report = json.loads((folder / "grown.json").read_text())
    del report["seconds"]
    weights = (folder / "model.safetensors").read_bytes()
    shutil.rmtree(folder)
    return weights, report


def stop_at(check: int) -> Callable[[int], None]:
    def stop(now: int) -> None:
        if now == check:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("settings", [SETTLES, JUMPS])
def test_stopped_at_any_check_it_ends_the_same(cache: Path, settings: str) -> None:
    """Weights, report and every check are those of undisturbed growing, also after the rate was halved."""
    undisturbed = taken(grow(Watched(), settings))
    assert settings == SETTLES or undisturbed[1]["checks"][-1]["halvings"]
    for check in (2, len(undisturbed[1]["checks"])):
        stopped = Watched(stop_at(check))
        with pytest.raises(KeyboardInterrupt):
            grow(stopped, settings)
        (note,) = stopped.said("growing was stopped")
        again = Watched()
        assert undisturbed == taken(grow(again, settings)), check
        assert "where it stood, after" in note and again.said("going on with growing where it stood, after")
        assert not list(cache.iterdir())


def test_stopped_within_an_update_it_ends_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The updates since the last check are done again, with the same examples."""
    undisturbed = taken(grow(Watched()))
    step, calls = Learner.supervised_step, 0

    def interrupted(self: Learner, sequences: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls in (8, 17):
            raise KeyboardInterrupt
        return step(self, sequences)

    monkeypatch.setattr(Learner, "supervised_step", interrupted)
    for updates in (5, 10):
        screen = Watched()
        with pytest.raises(KeyboardInterrupt):
            grow(screen)
        assert screen.said(f"where it stood, after {updates} updates (check {updates // 5}), is saved")
    assert undisturbed == taken(grow(Watched()))


def test_killed_it_ends_the_same(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on the disk at any moment is enough: no farewell is needed."""
    monkeypatch.setattr(nursery, "SHARE", float("inf"))  # write at every check

    def photograph(check: int) -> None:
        for folder in cache.glob(".*.growing"):
            shutil.copytree(folder, tmp_path / f"photograph-{check}" / folder.name)

    undisturbed = taken(grow(Watched(photograph)))
    for check in (2, 4):
        shutil.copytree(tmp_path / f"photograph-{check}", cache, dirs_exist_ok=True)
        screen = Watched()
        assert undisturbed == taken(grow(screen)), check
        assert screen.said(f"where it stood, after {5 * (check - 1)} updates (check {check - 1})")


def test_stopped_before_the_first_check_nothing_is_left(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "supervised_step", interrupt)
    screen = Watched()
    with pytest.raises(KeyboardInterrupt):
        grow(screen)
    assert screen.said("nothing of it is saved") and not list(cache.iterdir())


def interrupt(*args: Any) -> None:
    raise KeyboardInterrupt


def broken_off(cache: Path) -> Path:
    """The file that growing leaves that is stopped at its third check."""
    with pytest.raises(KeyboardInterrupt):
        grow(Watched(stop_at(3)))
    (folder,) = cache.glob(".*.growing")
    return folder / "growth"


def key(file: Path) -> str:
    return file.parent.name.removeprefix(".").removesuffix(".growing")


def flipped(file: Path) -> bytes:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    return bytes(data)


def foreign(file: Path) -> bytes:
    return nursery._packed(nursery._unpacked(file.read_bytes(), key(file)), "other")


def other_model(file: Path) -> bytes:
    growth = nursery._unpacked(file.read_bytes(), key(file))
    return nursery._packed(replace(growth, learner={**growth.learner, "module": {}}), key(file))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.read_bytes()[:-1], "it is damaged"),
        (lambda file: b"", "it is damaged"),
        (flipped, "it is damaged"),
        (foreign, "belongs to something else"),
        (other_model, "in loading state_dict"),
    ],
    ids=["short", "empty", "flipped", "foreign", "other model"],
)
def test_what_cannot_be_used_is_passed_over_with_a_note(
    cache: Path, damage: Callable[[Path], bytes], words: str
) -> None:
    undisturbed = taken(grow(Watched()))
    file = broken_off(cache)
    file.write_bytes(damage(file))
    screen = Watched()
    assert undisturbed == taken(grow(screen))
    (note,) = screen.said("cannot be used")
    assert str(file) in note and words in note and "growing begins anew" in note
    assert not list(cache.iterdir())


def test_of_two_processes_one_keeps_and_both_end_well(cache: Path) -> None:
    undisturbed = taken(grow(Watched()))
    file = broken_off(cache)
    kept = file.read_bytes()
    screen = Watched()
    with open(file.parent / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another process's
        folder = grow(screen)
        assert file.read_bytes() == kept
        assert screen.said("another process grows this model, too") and not screen.said("going on with growing")
    assert undisturbed == taken(folder)


def test_the_slower_of_two_processes_leaves_the_model_of_the_faster(cache: Path) -> None:
    first = grow(Watched())
    away = first.rename(first.with_name("away"))

    def put_back(check: int) -> None:
        if check == 2:
            away.rename(first)

    (first.parent / "x").mkdir()
    written = (away / "grown.json").stat().st_mtime_ns
    assert first == grow(Watched(put_back))
    assert written == (first / "grown.json").stat().st_mtime_ns
    assert {p.name for p in cache.iterdir()} == {first.name, "x"}


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "file"))
    with pytest.raises(nursery.StorageError, match="name another with QUINTAIN_CACHE"):
        grow(Watched())


def test_what_growing_says(cache: Path) -> None:
    screen = Watched()
    grow(screen, SETTLES)
    assert screen.lines[0] == (
        "growing the default model on worked examples until it gets 50-100 % of dev right in 3 checks in a row; "
        "0 % for the first hundred updates or so is normal; at most 60 updates"
    )
    assert [line.rpartition("  ")[2] for line in screen.lines[-3:]] == [f"in the target {n}/3" for n in (1, 2, 3)]
    screen = Watched()
    grow(screen, JUMPS)
    assert screen.said("above the target: back to the check before, on at half the learning rate")


def test_start_grows_what_train_then_finds(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`quintain start` takes the settings of the quickstart, so that `quintain train` need not grow again."""
    model = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=64}"
    settings = [f"model={model}", "max_steps=2", "check_every=2", "tasks=4", "settle=1", "target=[0.0, 0.5]"]
    words = [word for pair in settings for word in ("--start-arg", pair)]
    assert main(["start", "arithmetic", "--seed", "7", "--arg", "slips=0.5", *words]) == 0
    (_, command), *_ = [
        line.split("next: quintain ") for line in capsys.readouterr().out.splitlines() if "next" in line
    ]
    argv = shlex.split(command.partition(", or: ")[0])
    with train.make_context("train", argv[1:]) as context:
        choices = {k: v for k, v in context.params.items() if k in ("env", "model", "overrides", "seed")}
    recipe = _recipe(None, **choices)
    screen = Watched()
    assert grown([cast_table(table) for table in recipe.environments], recipe, screen).parent == cache
    assert screen.said("is in the cache") and recipe.run.seed == 7 and recipe.learner.lr == 6e-5


@pytest.mark.slow
def test_signals_and_kills_of_real_processes(tmp_path: Path) -> None:
    """`quintain start`, stopped by each signal in turn, then left alone, ends with the weights of one undisturbed."""
    undisturbed = tmp_path / "undisturbed"
    assert started(undisturbed, None)[0] == 0
    disturbed = tmp_path / "disturbed"
    for number, status in ((signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)):
        found, said = started(disturbed, number)
        assert found == status and ("is saved" in said) == (status == 130)
    found, said = started(disturbed, None)
    assert found == 0 and "going on with growing" in said
    (first,), (second,) = ([*(place / "models").glob("*/model.safetensors")] for place in (undisturbed, disturbed))
    assert first.read_bytes() == second.read_bytes()


def started(cache: Path, number: signal.Signals | None) -> tuple[int, str]:
    """Status and words of `quintain start`, sent signal *number* at its second check."""
    model = "{hidden=32, layers=1, heads=2, kv_heads=1, head_dim=16, intermediate=64}"
    settings = [f"model={model}", "max_steps=240", "check_every=4", "tasks=4", "batch=4"]
    words = [word for pair in settings for word in ("--start-arg", pair)]
    run = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    run += "import sys; from quintain.cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", run, "start", "arithmetic", *words]
    env = {**os.environ, "QUINTAIN_CACHE": str(cache)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said, checks = "", 0
        for line in process.stderr:
            said += line
            checks += line.startswith("growing: ")
            if number is not None and checks == 2 and line.startswith("growing: "):
                process.send_signal(number)
    return process.returncode, said
