"""`quintain eval` from the outside: options, exit status, output, files."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.evaluation.estimates import wilson
from quintain.interfaces.agent import Agent
from quintain.interfaces.service import Service, need
from quintain.models import LoadedModel
from quintain.recipe import ModelRequest, ModelSource
from quintain.registry.lookup import Registry, isolated
from quintain.store import model_named
from quintain.store.digests import SUMS, digests
from quintain.types.rollout import Rollout
from quintain.types.task import Message, Task

from ....core.evaluation.evaluations import Doubling, Endless, Hackable, OnlyTrain, called


class Even(Service):
    def __init__(self, *, word: str = "yes") -> None:
        self.word = word


class Refereed(Doubling):
    """What is right is what its referee says."""

    referee: Even = need("referee")

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt="?", answer=self.referee.word)]

    def oracle(self, task: Task, messages: Sequence[Message]) -> str:
        return "5"


@pytest.fixture
def plugins() -> Iterator[Registry]:
    with isolated(keep=["quintain", "quintain-authoring", "quintain-authoring"]) as registry:
        for component in (Doubling, Endless, OnlyTrain, Hackable):
            registry.add("environment", component.__name__.lower(), component)
        registry.add("environment", "refereed", Refereed)
        registry.add("service", "even", Even)
        yield registry


@pytest.mark.usefixtures("plugins")
def test_eval_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = called(
        capsys,
        "doubling",
        "--engine",
        "@oracle",
        "--json",
        "--samples",
        "4",
        "--k",
        "1,4",
        "--arg",
        "size=5",
    )
    found = json.loads(out)
    assert status == 0
    assert found["pass@1"] == 1
    assert found["pass@4"] == 1
    assert found["cons@4"] == 1
    assert found["interval"] == pytest.approx(wilson(1, 5))
    assert found["environment"] == "doubling"
    assert found["split"] == "test"
    assert found["engine"] == "@oracle"
    assert found["tasks"] == 5
    assert found["rollouts"] == 20
    assert found["failed"] == 0
    assert found["terminations"] == {"finished": 20}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d doubling test \.\.\.\n", err), (
        "one line before it begins"
    )


@pytest.mark.usefixtures("plugins")
def test_eval_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = called(capsys, "doubling", "--engine", "@nop")
    assert status == 0
    assert "pass@1" in out
    assert "0.0%" in out
    assert "6 finished" in out


@pytest.mark.usefixtures("plugins")
def test_eval_reads_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "from __future__ import annotations\n"
        "from quintain.interfaces.environment import Environment\n"
        "from quintain.interfaces.reward import reward\n"
        "from quintain.types.rollout import Rollout\n"
        "from quintain.types.task import Task\n"
        "class Mine(Environment[Task, None]):\n"
        "    reward = reward(lambda rollout: float(rollout.reply == 'yes'))\n"
        "    word: str = 'no'\n"
        "    def tasks(self, split: str):\n"
        "        return [Task(prompt='?', answer=self.word)]\n"
    )
    status, out, _ = called(
        capsys, f"{source}:Mine", "--engine", "@oracle", "--json", "--arg", "word=yes"
    )
    assert status == 0
    assert json.loads(out)["pass@1"] == 1
    assert (
        called(capsys, f"{source}:Mine", "--engine", "@oracle", "--json", "--arg", "word=5")[0] == 0
    )
    status, _, err = called(capsys, f"{tmp_path}/absent.py:Mine", "--engine", "@oracle")
    assert status == 2
    assert "there is no file" in err


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    "argv, message",
    [
        (["doubling", "--engine", "@oracel"], "did you mean 'oracle'"),
        (
            ["doubling", "--engine", "oracle"],
            "'oracle' is a control of 'doubling' and no engine: --engine @oracle",
        ),
        (["doublin", "--engine", "@oracle"], "did you mean 'doubling'"),
        (["doubling", "--engine", "@oracle", "--arg", "siez=5"], "did you mean 'size'"),
        (["doubling", "--engine", "@oracle", "--arg", "size=big"], "size is 'big'; expected int"),
        (["doubling", "--engine", "@oracle", "--k", "1,x"], "whole numbers with commas"),
        (["doubling", "--engine", "@oracle", "--k", "2"], "more with --samples"),
        (["doubling", "--engine", "@oracle", "--out", "x.csv"], "ends in .jsonl or .parquet"),
        (["doubling", "--engine", "@oracle", "--out", "nowhere/x.jsonl"], "there is no folder"),
        (["doubling", "--engine", "@oracle", "--split", "tests"], "did you mean 'test'"),
        (["doubling", "--engine", "@oracle", "-t", "-1"], "sampling.temperature is -1"),
        (["doubling", "--engine", "scripted", "-m", "x"], "takes no model"),
        (["doubling"], "needs a model: --model"),
        (["endless", "--engine", "@oracle"], "--tasks N"),
        (["doubling", "--engine", "@oracle", "--reward", "nothing_such"], "nothing_such"),
        (
            ["doubling", "--controls", "--engine", "@oracle", "--out", "x.jsonl"],
            "leave out --engine, --out",
        ),
        (["refereed", "--engine", "@oracle"], "say what fills it with --service referee=NAME"),
        (["refereed", "--engine", "@oracle", "--service", "referee"], "expected SLOT=NAME"),
        (
            [
                "refereed",
                "--engine",
                "@oracle",
                "--service",
                "referee=even",
                "--service-arg",
                "low=1",
            ],
            "SLOT.KEY=VALUE",
        ),
        (["refereed", "--engine", "@oracle", "--service", "referee=evn"], "did you mean 'even'"),
    ],
)
def test_eval_says_what_to_fix(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    status, out, err = called(capsys, *argv)
    assert status == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("plugins")
def test_eval_takes_services(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["refereed", "--json", "--service", "referee=even"]
    status, out, _ = called(capsys, *argv, "--engine", "@oracle")
    assert status == 0
    assert json.loads(out)["pass@1"] == 0
    status, out, _ = called(capsys, *argv, "--engine", "@oracle", "--service-arg", "referee.word=5")
    assert status == 0
    assert json.loads(out)["pass@1"] == 1
    assert called(capsys, *argv, "--controls", "--service-arg", "referee.word=5")[0] == 0


@pytest.mark.usefixtures("plugins")
def test_eval_that_is_interrupted_says_so_in_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Doubling, split: str) -> Iterable[Task]:
        signal.raise_signal(signal.SIGINT)
        return []

    monkeypatch.setattr(Doubling, "tasks", stop)
    # a job in the background starts with it ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status, out, _ = called(capsys, "doubling", "--engine", "@oracle", "--json")
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 130
    assert json.loads(out)["error"]["type"] == "Interrupted"


@pytest.mark.usefixtures("plugins")
def test_eval_that_is_stopped_before_its_first_rollout_ended_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rollout(self: Doubling, task: Task, agent: Agent) -> None:
        if task.answer == 400:
            signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(Doubling, "rollout", rollout)
    status, text, err = called(capsys, "doubling", "--engine", "@oracle", "--concurrency", "1")
    assert status == 130
    assert text == ""
    assert (
        err.splitlines()[-1] == "interrupted before the first rollout ended: nothing was evaluated"
    )


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_eval_shows_and_writes_what_is_finished_when_it_is_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    async def rollout(self: Doubling, task: Task, agent: Agent) -> None:
        if task.answer == 406:
            signal.raise_signal(number)
            await asyncio.Event().wait()
        agent.user(task.prompt)
        await agent.turn()

    monkeypatch.setattr(Doubling, "rollout", rollout)
    out = tmp_path / "some.jsonl"
    argv = [
        "doubling",
        "--engine",
        "@oracle",
        "--samples",
        "2",
        "--concurrency",
        "1",
        "--out",
        str(out),
    ]
    status, text, _ = called(capsys, *argv)
    answers = [json.loads(line)["task"]["answer"] for line in out.read_text().splitlines()]
    assert status == 130
    assert set(answers) <= {400, 402, 404}
    assert 1 <= len(answers) <= 6
    assert f"interrupted: {len(answers)} of 12 rollouts" in text
    assert "100.0%" in text
    status, text, _ = called(capsys, *argv, "--json")
    found = json.loads(text)
    assert status == 130
    assert found["interrupted"]
    assert found["rollouts"] == len(answers)
    assert found["planned"] == 12


@pytest.mark.usefixtures("plugins")
def test_eval_without_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = called(capsys, "onlytrain", "--engine", "@oracle")
    assert status == 1
    assert "it has some for train" in err


@pytest.mark.usefixtures("plugins")
def test_eval_fails_where_too_much_failed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = called(capsys, "hackable", "--engine", "@crashing", "--json")
    assert status == 1
    assert json.loads(out)["pass@1"] is None
    assert err.splitlines()[-1] == "error: all 6 rollouts failed: there is nothing to estimate"
    err = called(capsys, "hackable", "--engine", "@crashing", "--max-failures", "1")[2]
    assert err.count("rollouts failed") == 1
    assert "may" not in err
    flaky = [
        "doubling",
        "--engine",
        "scripted",
        "--engine-arg",
        "fail_on=[1]",
        "--retries",
        "0",
        "--json",
    ]
    status, _, err = called(capsys, *flaky)
    assert status == 1
    assert err.endswith("error: 1 of 6 rollouts (16.7%) failed; --max-failures allows 10.0%\n")
    assert called(capsys, *flaky, "--max-failures", "0.2")[0] == 0


@pytest.mark.usefixtures("plugins")
def test_eval_checks_controls(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = called(capsys, "doubling", "--controls")
    assert status == 0
    assert "@oracle" in out
    assert "@nop" in out
    status, out, _ = called(capsys, "hackable", "--controls", "--json")
    found = json.loads(out)
    assert status == 1
    assert found["ok"] is False
    assert {c["control"] for c in found["controls"] if not c["ok"]} == {
        "shouting",
        "careless",
        "crashing",
    }
    assert called(capsys, "endless", "--controls", "--tasks", "3")[0] == 0


@pytest.mark.usefixtures("plugins")
def test_eval_writes_rollouts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines, table = tmp_path / "r.jsonl", tmp_path / "r.parquet"
    assert (
        called(capsys, "doubling", "--engine", "@oracle", "--tasks", "3", "--out", str(lines))[0]
        == 0
    )
    rollouts = [Rollout.from_json(json.loads(line)) for line in lines.read_text().splitlines()]
    assert [r.reply for r in rollouts] == ["400", "402", "404"]
    assert all(r.outcome is not None and r.outcome.total == 1 for r in rollouts)
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs quintain[train]")
    assert (
        called(capsys, "doubling", "--engine", "@oracle", "--tasks", "3", "--out", str(table))[0]
        == 0
    )
    assert parquet.read_table(table)["reply"].to_pylist() == ["400", "402", "404"]


@pytest.mark.usefixtures("plugins")
def test_an_engine_of_a_plugin_that_is_not_installed_brings_its_pip_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for engine in ("openai", "http://127.0.0.1:1"):
        status, out, err = called(capsys, "doubling", "--engine", engine)
        assert status == 2
        assert out == ""
        assert "pip install quintain-engines" in err


def tiny_models() -> Any:
    """Return the module of tiny models, which needs torch."""
    pytest.importorskip("torch", reason="the embedded engine needs quintain[train]")
    spec = importlib.util.spec_from_file_location(
        "tiny_models", Path(__file__).parents[3] / "core" / "models" / "tiny.py"
    )
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    return models


def test_eval_of_a_model_source_measures_what_training_would_begin_with(
    plugins: Registry, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Under the name that `quintain train` prints; the model may depend on the environment."""
    models = tiny_models()
    asked: list[tuple[str, Any]] = []

    class Made(ModelSource):
        def load(self, request: ModelRequest) -> LoadedModel:
            raise NotImplementedError

        def folder(self, request: ModelRequest) -> Path:
            (spec,) = request.specs
            asked.append((spec.name, spec.args))
            models.save_tiny(tmp_path / "model")
            return tmp_path / "model"

    plugins.add("model", "made", Made)
    argv = ["--arg", "size=3", "--max-tokens", "8", "--tasks", "2", "--json", "--model", "made"]
    status, printed, _ = called(capsys, "doubling", *argv)

    assert status == 0
    assert json.loads(printed)["failed"] == 0
    assert asked == [("doubling", {"size": 3})]
    with pytest.raises(UsageError, match="`quintain eval ENVIRONMENT --model made` measures it"):
        model_named("made")


@pytest.mark.usefixtures("plugins")
def test_eval_of_a_model_folder_and_of_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tiny_models()
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "mine"
    steps = [run / "checkpoints" / name / "model" for name in ("step-000002", "step-000010")]
    for seed, step in enumerate(steps):
        models.save_tiny(step, seed=seed)
        about = {"format": 1, "step": 2 + 8 * seed, "best": False}
        (step.parent / "checkpoint.json").write_text(json.dumps(about))
        sums = digests(step.parent).items()
        (step.parent / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums))
    (run / "recipe.toml").write_text('[[environments]]\nuse = "doubling"\nsystem = "Be right."\n')
    capsys.readouterr()
    rows = []
    for i, options in enumerate(
        (["mine"], [str(steps[1]), "--system", "Be right."], [str(steps[1])], [str(steps[0])])
    ):
        out = tmp_path / f"{i}.jsonl"
        argv = ["--max-tokens", "8", "--tasks", "2", "--json", "--out", str(out), "-m", *options]
        status, printed, _ = called(capsys, "doubling", *argv)
        assert status == 0
        assert json.loads(printed)["failed"] == 0
        rows.append([json.loads(line)["turns"] for line in out.read_text().splitlines()])
    assert rows[0] == rows[1]  # the last checkpoint, asked as it was trained
    assert rows[1] != rows[2] != rows[3]
