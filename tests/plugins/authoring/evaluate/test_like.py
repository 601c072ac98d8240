"""`quintain eval --like RUN`: what the run itself evaluates, and options above it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Rollout, Service, Task, need, reward
from quintain.errors import UsageError
from quintain.recipe import EnvironmentSpec, Recipe
from quintain.recipe.plan import RunPlan
from quintain.registry.lookup import isolated
from quintain.store import RunFolder
from quintain_authoring.evaluate import command
from quintain_authoring.evaluate.like import settings_of

from ....core.evaluation.evaluations import called

RECIPE = """
[run]
seed = 7
[[environments]]
use = "lines"
args = { data = "lines.txt", word = "a" }
reward = "same * 1.0"
yardstick = "longer"
system = "Answer."
[environments.limits]
turns = 3
tokens = 9
[services.referee]
use = "arbiter"
args = { level = 2, strict = true }
[services.unused]
use = "arbiter"
[algorithm.args.plan]
thinking_budget = { min_tokens = 2, max_tokens = 4 }
[sampling]
temperature = 0.7
max_tokens = 20
stop = ["END"]
[evaluation]
temperature = "sampling"
samples = 4
max_tokens = 12
test = { tasks = 1, split = "dev" }
"""


@reward
def same(rollout: Rollout) -> float:
    return float(rollout.reply == rollout.task.answer)


@reward
def longer(rollout: Rollout, *, referee: Any = need()) -> float:
    return float(referee.level)


class Arbiter(Service):
    def __init__(self, *, level: int = 1, strict: bool = False) -> None:
        self.level, self.strict = level, strict


class Lines(Environment[Task, None]):
    """The lines of a file, one for each split, or all as test."""

    reward = same
    data: str = ""
    word: str = "b"
    splits: str = "own"

    def tasks(self, split: str) -> Iterable[Task]:
        lines = Path(self.data).read_text().split()
        if self.splits == "own":
            lines = lines[("train", "dev", "test").index(split) :: 3]
        return [Task(prompt=f"{line} {self.word}", answer=line) for line in lines]

    def oracle(self, task: Task, messages: Any) -> Any:
        return task.answer


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """The folder of a run that has not begun: `--like` needs its recipe alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("one two three four five six seven")
    (tmp_path / "others.txt").write_text("eight nine")
    (tmp_path / "runs" / "own").mkdir(parents=True)
    (tmp_path / "runs" / "own" / "recipe.toml").write_text(RECIPE)
    with isolated(keep=["quintain", "quintain-authoring", "quintain-starter"]) as registry:
        registry.add("environment", "lines", Lines)
        registry.add("service", "arbiter", Arbiter)
        registry.add("reward", "same", same)
        registry.add("reward", "longer", longer)
        yield RunFolder("runs/own", lock=False)


def like(capsys: pytest.CaptureFixture[str], *options: str) -> Mapping[str, Any]:
    """What `quintain eval --like own` with the oracle prints."""
    status, out, err = called(capsys, "--like", "own", "--engine", "@oracle", "--json", *options)
    assert status == 0, err
    found: Mapping[str, Any] = json.loads(out)
    return found


def test_the_settings_of_a_run_are_those_of_its_own_evaluation(run: RunFolder) -> None:
    """Environment, rewards, limits, services, tasks, decoding and seed: of its plan, which the run
    reads.
    """
    plan = RunPlan.of(Recipe.parse(RECIPE))
    own, settings = plan.evaluation, settings_of(run)
    services = {"referee": Arbiter()}
    (planned,) = (spec.make(services) for spec in plan.tasks.environments)
    evaluated = EnvironmentSpec.of(settings.environment).make(services)

    assert settings.split == own.test_split
    assert settings.tasks == own.test_tasks
    assert settings.samples == own.samples
    assert settings.sampling == own.sampling
    assert settings.sampling.stop == ("END",)
    assert settings.sampling.thinking_budget == plan.algorithm.plan.thinking_budget is not None
    assert settings.seed == plan.seed == 7
    assert evaluated.limits == planned.limits
    assert evaluated.limits.turns == 3
    assert evaluated.limits.tokens == 9
    assert [r.name for r in (evaluated.reward, evaluated.yardstick) if r] == [
        r.name for r in (planned.reward, planned.yardstick) if r
    ]
    assert evaluated.data == "lines.txt"
    assert evaluated.word == "a"
    assert evaluated.system == "Answer."
    assert settings.services == {"referee": plan.services["referee"]}
    assert settings.model == "runs/own"


@pytest.mark.parametrize(
    ("options", "dtype"), [((), "bfloat16"), (("--engine-arg", "dtype=float32"), "float32")]
)
def test_the_engine_computes_in_the_type_of_the_run(
    run: RunFolder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    dtype: str,
) -> None:
    """In another type some greedy replies differ from those of the run."""
    run.recipe_path.write_text('model.dtype = "bfloat16"\n' + RECIPE)
    asked: list[Sequence[str]] = []

    def without_model(*_: Any) -> tuple[str, str]:
        return "", ""

    def engine_of(name: str, model: str, pairs: Sequence[str]) -> None:
        asked.append(pairs)
        raise UsageError("no model")

    monkeypatch.setattr(command, "folder_of_model", without_model)
    monkeypatch.setattr(command, "engine_of", engine_of)

    assert called(capsys, "--like", "own", *options)[0] == 2
    assert [list(pairs) for pairs in asked] == [[f"dtype={dtype}"]]


def test_a_run_without_a_final_evaluation_has_the_split_of_the_others(run: RunFolder) -> None:
    run.recipe_path.write_text(RECIPE.replace("tasks = 1,", "tasks = 0,"))

    settings = settings_of(run)

    assert settings.split == "dev"
    assert settings.tasks == 200


def test_the_command_measures_what_the_recipe_says(capsys: pytest.CaptureFixture[str]) -> None:
    """A file is cut into splits as in training; the yardstick has the run's service."""
    found = like(capsys)

    assert {name: found[name] for name in ("split", "tasks", "samples", "seed", "yardstick")} == {
        "split": "dev",
        "tasks": 1,
        "samples": 4,
        "seed": 7,
        "yardstick": 2.0,
    }
    assert found["temperature"] == 0.7
    assert found["max_tokens"] == 12
    assert like(capsys, "--split", "train", "--tasks", "7")["tasks"] == 3


def test_options_that_are_given_win(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that have the value of their default; of a service, the other settings stay."""
    found = like(
        capsys,
        *("--split", "test", "--tasks", "2", "--samples", "1", "--seed", "0"),
        *("--temperature", "0", "--service-arg", "referee.strict=false"),
        *("--service-arg", "referee.level=5", "--max-tokens", "6"),
    )

    assert [found[name] for name in ("split", "tasks", "samples", "seed", "yardstick")] == [
        "test", 2, 1, 0, 5.0,
    ]  # fmt: skip
    assert found["temperature"] == 0.0
    assert found["max_tokens"] == 6


def test_a_file_of_the_command_line_is_no_training_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a split all of its rows count, as without --like."""
    run = Path("runs/own/recipe.toml")
    run.write_text(
        RECIPE.replace('test = { tasks = 1, split = "dev" }', 'test = { tasks = "all" }')
    )

    assert like(capsys)["tasks"] == 2, "a third of seven rows"
    assert like(capsys, "--data", "others.txt")["tasks"] == 2, "all rows"
    assert (
        called(capsys, "lines", "--engine", "@oracle", "--data", "lines.txt")[1].count("7 tasks")
        == 1
    )
