"""Trackers: each logs a run and its resume to the real package, offline; one that fails never ends
the run.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quintain.cli.train import train
from quintain.errors import BindingError, UnknownNameError, UsageError
from quintain.interfaces.events import EvaluationEnd, Event, RunEnd, RunStart, StepEnd
from quintain.recipe import Recipe, check_recipe
from quintain.run.hooks import Hooks
from quintain_view.trackers import TrackedRun, Tracker, flattened, imported
from quintain_view.trackers.mlflow import MLflow
from quintain_view.trackers.tensorboard import TensorBoard
from quintain_view.trackers.wandb import WeightsAndBiases

ARITHMETIC = [{"use": "arithmetic"}]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No connection beyond this machine, no home folder, no settings of the user."""
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1"), (
            f"a connection to {address}"
        )
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    for name in [n for n in os.environ if n.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def events(folder: Path, tracker: str, *, after: int, steps: int, **args: Any) -> Iterator[Event]:
    """The events of a process that continues *after* a step and runs *steps* more."""
    recipe = {
        "run": {"name": "sums"},
        "trackers": [{"use": f"quintain-view/{tracker}", "args": args}],
    }
    yield RunStart(run="sums", folder=str(folder), step=after, recipe=recipe)
    if after == 0:
        yield EvaluationEnd(
            step=0, environment="arithmetic", split="dev", metrics={"accuracy": 0.25, "pass@4": 0.5}
        )
    for step in range(after + 1, after + steps + 1):
        yield StepEnd(
            step=step,
            metrics={"step": step, "reward.mean": step / 10, "alerts": [], "held_out.low": None},
        )
    yield RunEnd(folder=str(folder), step=after + steps, status="finished", error="", summary={})


def track(tracker: Tracker, folder: Path, **args: Any) -> None:
    """Run three steps, then two more in a resumed process."""
    folder.mkdir(exist_ok=True)
    for after, steps in ((0, 3), (3, 2)):
        hooks = Hooks(strict=True)
        hooks.add(type(tracker)(), "tracker")
        for event in events(folder, tracker.label, after=after, steps=steps, **args):
            hooks.emit(event)
        for part in folder.glob("wandb/offline-run-*"):  # wandb names them by the second
            part.rename(part.with_name(f"part-{after}-{part.name}"))


def test_tensorboard_has_one_curve_over_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs quintain-view[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    track(TensorBoard(), tmp_path / "sums")

    events = EventAccumulator(str(tmp_path / "sums" / "tensorboard")).Reload()
    rewards = [(e.step, pytest.approx(e.value)) for e in events.Scalars("reward/mean")]
    assert [(step, step / 10) for step in range(1, 6)] == rewards
    assert [(e.step, e.value) for e in events.Scalars("evaluation/arithmetic/dev/pass@4")] == [
        (0, 0.5)
    ]
    assert "recipe/text_summary" in events.Tags()["tensors"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of sqlalchemy, by mlflow
def test_mlflow_continues_one_run_over_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs quintain-view[mlflow]")
    pytest.importorskip("alembic", reason="needs quintain-view[mlflow]")

    track(MLflow(), tmp_path / "sums")

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("quintain")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    rewards = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(step, step / 10) for step in range(1, 6)] == [(m.step, m.value) for m in rewards]
    assert {"evaluation/arithmetic/dev/pass_4": 0.5}.items() <= run.data.metrics.items()
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "sums"
    assert run.data.params["run.name"] == "sums"


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in the log format of LevelDB, which wandb uses with a header of 7
    bytes.
    """
    whole, at = b"", 7
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # the rest of a block that no header fits into
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a complete record, or the last part of one
            yield whole
            whole = b""


@pytest.mark.slow
def test_wandb_writes_offline_parts_of_one_run(tmp_path: Path) -> None:
    """Without credentials the run is offline; both parts have the same id, so that `wandb sync`
    joins them.
    """
    wandb = pytest.importorskip("wandb", reason="needs quintain-view[wandb]")
    from wandb.proto.wandb_internal_pb2 import Record

    track(WeightsAndBiases(), tmp_path / "sums")
    wandb.teardown()  # ends the process that writes the files

    rows: list[tuple[int, str, str]] = []
    ids = set()
    for file in sorted(glob.glob(str(tmp_path / "sums" / "wandb" / "part-*" / "*.wandb"))):
        ids.add(Path(file).name)
        for data in log_records(Path(file).read_bytes()):
            record = Record()
            record.ParseFromString(data)
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            rows += [
                (record.history.step.num, name, value)
                for name, value in items.items()
                if "/" in name
            ]
    assert len(ids) == 1
    assert {(step, "reward/mean", str(step / 10)) for step in range(1, 6)} <= set(rows)
    assert (0, "evaluation/arithmetic/dev/pass@4", "0.5") in rows


@pytest.mark.slow
def test_trackio_continues_one_run_over_a_resume(tmp_path: Path) -> None:
    """In a process of its own: trackio reads the folder of its database when it is imported."""
    pytest.importorskip("trackio", reason="needs quintain-view[trackio]")
    code = f"""
from pathlib import Path
from quintain_view.trackers.trackio import Trackio
from tests.plugins.view.trackers.test_trackers import track
track(Trackio(), Path({str(tmp_path / "sums")!r}))
"""
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    with closing(sqlite3.connect(tmp_path / "trackio" / "quintain.db")) as database:
        rows = database.execute(
            "select run_name, step, metrics from metrics order by step, id"
        ).fetchall()
    assert len({name for name, _, _ in rows}) == 1
    rewards = [(step, json.loads(text).get("reward/mean")) for _, step, text in rows]
    assert [(0, None), *((step, step / 10) for step in range(1, 6))] == rewards


# ---------------------------------------------------------------- selection
def test_a_run_uses_only_the_trackers_of_its_recipe(tmp_path: Path) -> None:
    """A tracker that the recipe does not name makes nothing, and importing the plugin imports no
    tracking package.
    """
    code = (
        "import sys; from quintain.run.hooks import Hooks, RunStart; hooks = "
        "Hooks.installed(strict=True)\n"
        f"hooks.emit(RunStart(run='a', folder={str(tmp_path)!r}, step=0, recipe={{'trackers': "
        f"[]}}))\n"
        "assert 'quintain-view/wandb' in hooks.plugins\n"
        "print(*{'wandb', 'mlflow', 'trackio', 'tensorboard', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "", done.stderr
    assert [*tmp_path.iterdir()] == []


def test_settings_are_checked_before_the_run() -> None:
    check_recipe(
        Recipe.of(
            {
                "environments": ARITHMETIC,
                "trackers": [{"use": "wandb", "args": {"project": "sums"}}],
            }
        )
    )
    for table, error, message in (
        ({"use": "wanb"}, UnknownNameError, "did you mean 'wandb'"),
        ({"use": "wandb", "args": {"projct": "sums"}}, BindingError, "did you mean 'project'"),
        ({"use": "wandb", "args": {"mode": 3}}, BindingError, "mode"),
        ({"use": "curves"}, UsageError, "observes every run"),
    ):
        with pytest.raises(error, match=message):
            check_recipe(Recipe.of({"environments": ARITHMETIC, "trackers": [table]}))


@pytest.mark.more
def test_the_command_line_selects_trackers(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--tracker tensorboard --tracker mlflow --set trackers.1.args.experiment=sums --dry-run"
    train.main(words.split(), standalone_mode=False)

    recipe = Recipe.parse(capsys.readouterr().out)
    assert [(t.use, t.args) for t in recipe.trackers] == [
        ("tensorboard", {}),
        ("mlflow", {"experiment": "sums"}),
    ]


# ---------------------------------------------------------------- failures
@dataclass(kw_only=True, eq=False)
class Failing(Tracker):
    """Raises in one of its methods."""

    label: ClassVar[str] = "failing"
    where: str = ""

    def _do(self, method: str) -> None:
        print("chatter")
        if method == self.where:
            raise ConnectionError("the server is gone")

    def start(self, run: TrackedRun) -> None:
        self._do("start")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._do("log")

    def finish(self, status: str) -> None:
        self._do("finish")


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_fails_warns_once(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not called again, so there is one failure; what it prints does not reach standard
    output.
    """
    hooks = Hooks(strict=False)
    hooks.add(Failing(), "failing")
    for event in events(tmp_path, "failing", after=0, steps=5, where=where):
        hooks.emit(event)

    assert 1 == len(hooks.failures) == len(caplog.records)
    assert hooks.failures[0].count == 1
    assert "the server is gone" in str(hooks.failures[0])
    assert capsys.readouterr().out == ""


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError, match=r"pip install 'quintain-view\[wandb\]'"):
        imported("package_that_is_not_installed", "wandb")


def test_nested_tables_are_flattened() -> None:
    table = {"run": {"steps": 3}, "environments": [{"use": "a", "args": {}}], "seed": None}

    assert dict(flattened(table)) == {"run.steps": 3, "environments.0.use": "a", "seed": None}
