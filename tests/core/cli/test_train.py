"""`quintain train` from the outside: what is refused before anything is made, and what a failure
leaves behind.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs quintain[train]")

from quintain.cli import main
from quintain.cli.summary import accuracies, curves
from quintain.console.screen import program_name
from quintain.errors import UsageError
from quintain.interfaces.engine import Engine, Reply, TokenEngine, Weights
from quintain.interfaces.environment import Environment
from quintain.interfaces.reward import reward
from quintain.interfaces.service import Service, need
from quintain.models import LoadedModel
from quintain.recipe.plan import RunPlan
from quintain.recipe.sources import ModelRequest, ModelSource
from quintain.recipe.tables import Recipe
from quintain.registry.lookup import current, isolated
from quintain.run.build import engine_for
from quintain.store.run_folder import RunFolder, current_run
from quintain.types.rollout import Rollout
from quintain.types.sampling import Sampling
from quintain.types.task import Message, Task
from quintain.types.transcript import Sampled
from quintain_authoring.evaluate.like import settings_of
from quintain_view.viewer.runs import list_runs


@reward
def equal(rollout: Rollout[Task, None]) -> float:
    return float(rollout.reply == str(rollout.task.answer))


class Doubling(Environment[Task, None]):
    reward = equal
    size: int = 6

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(prompt=f"{n} + {n} = ?", answer=2 * n) for n in range(self.size))


class OnlyTrain(Doubling):
    def tasks(self, split: str) -> Iterable[Task]:
        return super().tasks(split) if split == "train" else []


class Referee(Service):
    def __init__(self, *, level: int = 1) -> None:
        raise UsageError("a check starts no service")


class Refereed(Doubling):
    referee: Referee = need("referee")


class Asking(Refereed):
    def tasks(self, split: str) -> Iterable[Task]:
        try:
            return [Task(prompt=self.referee.word)]  # type: ignore[attr-defined]
        except AttributeError as e:
            raise RuntimeError("the referee has no word") from e


class Mistaken(Refereed):
    """Its tasks can do without the service, and have a mistake of their own."""

    def tasks(self, split: str) -> Iterable[Task]:
        return [Task(prompt=getattr(self.referee, "word", "two") + 2)]


class Remote(TokenEngine):
    """Takes weights through `update` alone."""

    def __init__(self, *, url: str = "") -> None:
        self.url = url

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        raise NotImplementedError

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        raise NotImplementedError

    async def update(self, weights: Weights) -> int:
        return weights.version


class Textual(Engine):
    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Any], sampling: Sampling
    ) -> Reply:
        return Reply()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    with isolated(keep=["quintain", "quintain-starter"]) as registry:
        for name, component in (
            ("doubling", Doubling),
            ("onlytrain", OnlyTrain),
            ("refereed", Refereed),
        ):
            registry.add("environment", name, component)
        for engine in (Remote, Textual):
            registry.add("engine", engine.__name__.lower(), engine)
        registry.add("service", "referee", Referee)
        yield tmp_path


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["train", *argv])
    out = capsys.readouterr()
    return status, out.out, out.err


MISTAKES = [
    (["--env", "doubling", "--set", "environments.0.args.size=big"], "size is 'big'; expected int"),
    (
        ["--env", "doubling", "--set", "environments.0.args.size=0"],
        "no tasks for the split 'train'",
    ),
    (["--env", "onlytrain"], "--set evaluation.every=0"),
    (["--env", "onlytrain", "--set", "evaluation.every=0"], "--set evaluation.test.tasks=0"),
    (["--env", "doubling", "--set", "engine.args.slotz=3"], "did you mean 'slots'"),
    (
        ["--env", "doubling", "--set", "engine.args.slots=many"],
        "engine 'quintain/embedded': slots is 'many'",
    ),
    (["--env", "doubling", "--set", "engine.use=textual"], "cannot train"),
    (["--env", "doubling", "--set", "engine={use='remote', args={ulr='x'}}"], "did you mean 'url'"),
    (["--env", "doubling", "--set", "model.device=gpu"], "device 'gpu': expected auto, cpu"),
    (
        ["--env", "doubling", "--set", "model.start.args.lrr=1"],
        "[model.start] has no argument 'lrr'",
    ),
    (["--env", "doubling", "--set", "algorithm.args.epochs=1.5"], "epochs is 1.5; expected int"),
    (["--env", "refereed", "--set", "environments.0.args.size=big"], "size is 'big'; expected int"),
    (
        ["--env", "refereed", "--set", "services.referee={use='referee', args={level='x'}}"],
        "level is 'x'",
    ),
]


@pytest.mark.parametrize("argv, message", MISTAKES)
def test_mistakes_are_found_without_a_run(
    capsys: pytest.CaptureFixture[str], place: Path, argv: list[str], message: str
) -> None:
    for more in (["--dry-run"], []):
        status, out, err = called(capsys, *argv, *more)
        assert status in (1, 2)
        assert out == ""
        assert message in err
        assert "Traceback" not in err
    assert not list(place.glob("runs/*"))


def test_what_is_right_passes(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    untested = ["--set", "evaluation.every=0", "--set", "evaluation.test.tasks=0"]
    assert called(capsys, "--env", "onlytrain", "--dry-run", *untested)[0] == 0
    assert called(capsys, "--env", "refereed", "--dry-run")[0] == 0
    status, out, _ = called(
        capsys, "--env", "doubling", "--dry-run", "--set", "engine={use='remote'}"
    )
    assert status == 0
    assert Recipe.parse(out).engine.use == "remote"
    assert not (place / "runs").exists()


def test_tasks_that_ask_a_service_are_left_out_and_their_mistakes_are_not(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    current().add("environment", "asking", Asking)
    current().add("environment", "mistaken", Mistaken)

    assert called(capsys, "--env", "asking", "--dry-run")[0] == 0
    status, _, err = called(capsys, "--env", "mistaken", "--dry-run")
    assert status != 0
    assert "TypeError" in err


def test_an_engine_that_shares_nothing_is_made_of_its_own_arguments() -> None:
    text = "[engine]\nuse = 'remote'\nargs = {url = 'x'}\n[[environments]]\nuse = 'doubling'\n"
    engine = engine_for(RunPlan.of(Recipe.parse(text)), SimpleNamespace())  # type: ignore[arg-type]
    assert isinstance(engine, Remote)
    assert engine.url == "x"


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--seed", "0"], "leave out --seed"),
        (["--set", "run.steps=3"], "leave out --set"),
        (["recipe.toml"], "leave out recipe.toml"),
        (["--dry-run"], "leave out --dry-run"),
    ],
)
def test_resume_takes_no_other_option(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    status, out, err = called(capsys, "--resume", "one", *argv)
    assert status == 2
    assert out == ""
    assert message in err


class Unloadable(ModelSource):
    def __init__(self, *, late: bool = False) -> None:
        self.late = late

    def load(self, request: ModelRequest) -> LoadedModel:
        folder = current_run()
        assert folder is not None
        if self.late:
            (folder / "metrics.jsonl").write_text('{"step": 0}\n')
        raise UsageError("the model cannot be loaded")


def test_a_run_that_never_began_gives_its_name_back(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    current().add("model", "unloadable", Unloadable)
    (place / "runs" / "mine").mkdir(parents=True)
    (place / "runs" / "mine" / "notes.txt").write_text("keep")
    doubling = ["--env", "doubling", "--model", "unloadable"]
    assert called(capsys, *doubling)[0] == 2
    assert called(capsys, *doubling, "--name", "mine")[0] == 2
    assert [str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()] == [
        "runs/mine/notes.txt"
    ]
    assert called(capsys, *doubling, "--set", "model.start.args={late=true}")[0] == 2
    assert (place / "runs" / "doubling-1" / "recipe.toml").exists()
    assert called(capsys, "--resume", "doubling-1")[0] == 2
    assert (place / "runs" / "doubling-1" / "recipe.toml").exists()


class Stopped(ModelSource):
    def load(self, request: ModelRequest) -> LoadedModel:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("SIGTERM is heard while a model loads")


def test_a_stopped_run_prints_one_object(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    current().add("model", "stopped", Stopped)
    before = signal.getsignal(signal.SIGTERM)
    status, out, _ = called(capsys, "--env", "doubling", "--model", "stopped", "--json")
    assert status == 130
    error = json.loads(out)["error"]
    assert error["type"] == "Interrupted"
    assert "quintain train --resume runs/doubling-1" in error["message"]
    assert (place / "runs" / "doubling-1" / "recipe.toml").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", "ten"], "'--steps': expected a whole number of at least 1, got 'ten'"),
        (["--steps", "0"], "'--steps': expected a whole number of at least 1, got '0'"),
        (["--seed", "-1"], "'--seed': expected a whole number of at least 0, got '-1'"),
        (
            ["--env", "doubling", "--set", "batch.group_size=1"],
            "no group of that size (1 of 1 samples valid, 2 needed)",
        ),
        (["--set", "lr=1e-3"], "unknown section [lr]; did you mean learner.lr?"),
        (["min.toml"], "did you mean 'mine.toml'?"),
        (
            ["--env", "doubling", "--folder", "/proc/nowhere"],
            "cannot make the run folder /proc/nowhere/doubling-1: ",
        ),
        (["--env", "doubling", "--folder", "/proc/nowhere"], "with --folder"),
    ],
)
def test_slips_of_the_hand_are_named(
    capsys: pytest.CaptureFixture[str], place: Path, argv: list[str], message: str
) -> None:
    (place / "mine.toml").write_text("")
    status, _, err = called(capsys, *argv)
    assert status in (1, 2)
    assert message in err
    assert "saved before" not in err


def test_an_algorithm_without_groups_takes_groups_of_one(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    words = [
        "--env",
        "doubling",
        "--set",
        "batch.group_size=1",
        "--set",
        "algorithm.use=reinforce",
        "--dry-run",
    ]
    status, out, _ = called(capsys, *words)
    assert status == 0
    assert "group_size = 1" in out


@pytest.mark.parametrize(
    ("algorithm", "prompts", "raised"),
    [
        ("{use='reinforce'}", 1, "batch.prompts or batch.group_size to at least 2"),
        ("{use='reinforce'}", 2, ""),
        ("{use='reinforce', args={advantage='raw'}}", 1, ""),
        ("{use='reinforce', args={advantage='ema'}}", 1, ""),
        ("{use='reinforce', args={advantage='group_mean'}}", 4, "batch.group_size to at least 2"),
        ("{use='reinforce', args={advantage='leave_one_out'}}", 1, "batch.prompts or batch."),
    ],
)
def test_groups_of_one_that_teach_nothing_are_told(
    capsys: pytest.CaptureFixture[str], place: Path, algorithm: str, prompts: int, raised: str
) -> None:
    words = ["--env", "doubling", "--dry-run", "--set", "batch.group_size=1"]
    words += ["--set", f"batch.prompts={prompts}", "--set", f"algorithm={algorithm}"]
    status, out, err = called(capsys, *words)
    told = "no step learns" in out + err
    assert (status, told) == (0, bool(raised))
    assert raised in out + err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "default"], "no environment named: the recipe 'quickstart' trains on arithm"),
        (["--model", "./tiny"], "no environment named: the recipe 'pretrained' trains on gsm8k; "),
        (["--model", "./tiny", "--env", "doubling"], ""),
        (["--model", "./tiny", "--set", "environments=[{use='doubling'}]"], ""),
        (["doubling", "--model", "./tiny"], ""),
        ([], ""),
    ],
)
def test_a_model_alone_says_first_what_it_trains_on(
    capsys: pytest.CaptureFixture[str], place: Path, words: list[str], told: str
) -> None:
    (place / "tiny").mkdir()
    _, _, err = called(capsys, *words, "--dry-run")

    assert err.startswith(told)
    assert bool(told) == ("no environment named" in err)


def test_the_name_of_the_default_model_that_a_run_prints_is_the_default_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the recipe of small models, not with that of pretrained ones."""
    short, whole = (
        called(capsys, "--env", "doubling", "--model", name, "--dry-run")
        for name in ("default", "quintain-starter/default")
    )
    assert short[0] == whole[0] == 0
    assert short[1] == whole[1].replace('"quintain-starter/default"', '"default"')


def test_messages_name_what_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare name where the path has it; else the way to the program beside the interpreter."""
    programs = tmp_path / "my venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "quintain").write_text("#!/bin/sh\n")
    (programs / "quintain").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    assert program_name() == "quintain"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    assert program_name() == "'my venv/bin/quintain'"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert program_name() == f"'{programs}/quintain'"
    (programs / "quintain").unlink()
    assert program_name() == f"'{programs}/python' -m quintain"


def test_runs_says_that_the_model_is_prepared(
    capsys: pytest.CaptureFixture[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Slow(ModelSource):
        def load(self, request: ModelRequest) -> LoadedModel:
            seen.append(list_runs("runs")[0].state)
            raise KeyboardInterrupt

    monkeypatch.setattr(
        "quintain.run.build.seed_everything", lambda seed: seen.append(list_runs("runs")[0].state)
    )
    current().add("model", "slow", Slow)
    status, _, err = called(capsys, "--env", "doubling", "--model", "slow")
    assert status == 130
    assert seen == ["running", "preparing"]
    assert "stopped; continue with: " in err
    assert "quintain train --resume runs/doubling-1" in err
    assert list_runs("runs")[0].state == "stopped"


@pytest.mark.parametrize(("measured", "tasks"), [(50, 50), (6, None), (None, 50)])
def test_an_evaluation_like_a_run_has_no_more_tasks_than_the_split(
    place: Path, measured: int | None, tasks: int | None
) -> None:
    recipe = Recipe.parse('[[environments]]\nuse = "doubling"\n', ["evaluation.test.tasks=50"])
    with RunFolder.create("runs/some", recipe.to_toml()) as folder:
        folder.write_summary({"held_out": {"after": {"accuracy": 1.0, "tasks": measured}}})
        assert settings_of(folder).tasks == tasks


@pytest.mark.parametrize(
    ("greedy", "sampled", "told"),
    [
        ((0.2, 0.6), (0.1, 0.5), ["the intervals before and after overlap"]),
        ((0.2, 0.6), (0.6, 0.9), ["the intervals before and after overlap, greedy"]),
        ((0.6, 0.9), (0.2, 0.6), ["the intervals before and after overlap, sampled at T 1"]),
        ((0.0, 0.1), (0.6, 0.9), []),
    ],
)
def test_the_summary_says_where_intervals_overlap(
    greedy: tuple[float, float], sampled: tuple[float, float], told: list[str]
) -> None:
    """Of either way of decoding, before with an interval from 0.3 to 0.5."""

    def measured(low: float, high: float, temperature: int) -> dict[str, Any]:
        values = {"accuracy": (low + high) / 2, "low": low, "high": high}
        return values | {"tasks": 9, "split": "test", "temperature": temperature}

    before = measured(0.3, 0.5, 0) | {"other_decoding": measured(0.3, 0.5, 1)}
    after = measured(*greedy, 0) | {"other_decoding": measured(*sampled, 1)}

    rows = accuracies(before, after)

    assert [text for name, text in rows if not name] == told
    assert accuracies(None, after)[-1][0] != ""  # no step was made


def test_the_summary_says_what_draws_the_curves(place: Path) -> None:
    """Without the plugin a run has no picture, and one line says how to get one."""
    with RunFolder.create("runs/plain", "") as folder:
        assert curves(folder) == "pip install quintain-view draws the learning curves"
        (folder.path / "curves.png").touch()
        assert curves(folder) == "runs/plain/curves.png"


def test_a_folder_does_not_hide_a_bundled_recipe(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    """A checkout has a folder `tools`, and `quintain train tools` means the recipe; a folder alone
    is no recipe.
    """
    (place / "pretrained").mkdir()
    (place / "own").mkdir()
    status, out, _ = called(
        capsys, "pretrained", "--dry-run", "--env", "doubling", "--model", "default"
    )
    assert status == 0
    assert "[run]" in out
    status, _, err = called(capsys, "own", "--dry-run")
    assert status == 2
    assert "'own' is a folder, and a recipe is a file" in err
