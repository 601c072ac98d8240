"""examples/loop.py, the loop written out, trains what `quintain train` trains, to the last bit."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import importlib.util
import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from quintain.cli import main
from quintain.learning import Learner
from quintain.recipe.extends import bundled_text
from quintain.recipe.tables import Recipe
from quintain.store.rollout_table import row
from quintain.store.run_folder import RunFolder
from quintain.types.rollout import AnyGroup

SOURCE = Path(__file__).parents[2] / "examples" / "loop.py"
STEPS = 3
TASKS = 4
SEED = 5
MOST_LINES = 150
TRAIN = f"""train quickstart --steps {STEPS} --seed {SEED} --name run --quiet
--set batch.prompts={TASKS} --set checkpoint.every=1 --set checkpoint.keep={STEPS}
--set evaluation.every=0 --set evaluation.test.tasks=0"""


def loop_module() -> Any:
    """The file as a module, which nothing else imports."""
    spec = importlib.util.spec_from_file_location("loop", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Training:
    """What a training did, step by step: the rows of its rollouts, and the weights after it."""

    rows: list[list[dict[str, Any]]] = field(default_factory=list)
    weights: list[dict[str, Tensor]] = field(default_factory=list)

    def column(self, name: str) -> list[list[Any]]:
        """The values of a column of the table of rollouts, by step."""
        return [[rollout[name] for rollout in rollouts] for rollouts in self.rows]


@pytest.fixture(scope="module")
def written_out() -> Training:
    """Three steps of the file, with fewer tasks in each."""
    loop, seen = loop_module(), Training()

    class WatchedLearner(Learner):
        def step(self, *args: Any, **settings: Any) -> dict[str, float]:
            metrics = super().step(*args, **settings)
            tensors = self.weights().tensors()
            seen.weights.append({name: tensor.clone() for name, tensor in tensors.items()})
            return metrics

    def watch(step: int, groups: list[AnyGroup], metrics: dict[str, float]) -> None:
        rows = [row(step, rollout) for group in groups for rollout in group.rollouts]
        seen.rows.append(json.loads(json.dumps(rows)))  # lists in place of tuples, as in a file

    loop.TASKS = loop.HELD_OUT = TASKS
    loop.Learner = WatchedLearner
    loop.report = watch
    with contextlib.redirect_stdout(io.StringIO()):
        asyncio.run(loop.train(loop.arithmetic_starter(), STEPS, SEED))
    return seen


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """Three steps of `quintain train`, with as few tasks."""
    place = tmp_path_factory.mktemp("quickstart")
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(place),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        patch.setenv("QUINTAIN_PLUGINS", "")  # drawing curves would take most of the time
        status = main(TRAIN.split())
    assert status == 0
    folder, seen = RunFolder.open(place / "runs" / "run", lock=False), Training()
    for step in range(1, STEPS + 1):
        seen.rows.append(folder.read_rollouts(step))
        (weights,) = folder.checkpoints.glob(f"step-*{step}/model/model.safetensors")
        seen.weights.append(load_file(weights))
    return seen


@pytest.mark.parametrize(
    "column",
    ["task_id", "seed", "token_ids", "token_logps", "token_versions", "outcome", "shaping"],
)
def test_its_rollouts_are_those_of_a_run(written_out: Training, run: Training, column: str) -> None:
    """The same tasks in the same order, the same tokens and the same rewards, in each step."""
    assert written_out.column(column) == run.column(column)


@pytest.mark.parametrize("step", range(STEPS))
def test_its_weights_are_those_of_a_run(written_out: Training, run: Training, step: int) -> None:
    """Every tensor of the checkpoint, after each step."""
    different = [
        name
        for name, tensor in run.weights[step].items()
        if not tensor.equal(written_out.weights[step][name])
    ]

    assert different == []


def test_each_step_changes_the_weights_and_the_rewards_differ(written_out: Training) -> None:
    """So the comparisons above compare something."""
    name = "model.embed_tokens.weight"
    changed = [
        step
        for step in range(1, STEPS)
        if not written_out.weights[step][name].equal(written_out.weights[step - 1][name])
    ]

    assert changed == [1, 2]
    assert len({reward for step in written_out.column("outcome") for reward in step}) == 2


def test_a_step_has_as_many_tasks_as_in_the_quickstart() -> None:
    """The comparisons above set the number, to save time."""
    batch = Recipe.parse(bundled_text("quickstart")).batch

    assert batch.prompts == loop_module().TASKS


def test_the_command_says_what_a_step_did(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each step, between the accuracy before and after."""
    smaller = SOURCE.read_text(encoding="utf-8").replace("TASKS = 64", "TASKS = 4")
    smaller = smaller.replace("HELD_OUT = 200", "HELD_OUT = 4")
    monkeypatch.setattr("sys.argv", [str(SOURCE), "--steps", "2"])

    exec(compile(smaller, SOURCE, "exec"), {"__name__": "__main__"})

    lines = capsys.readouterr().out.splitlines()
    heads = [re.split(r":|  right", line)[0] for line in lines]
    assert heads == ["before training", "step  1", "step  2", "after training"]
    assert lines[-1].endswith("of 4 tasks right")


def test_it_is_one_page() -> None:
    assert len(SOURCE.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_it_imports_public_names_alone() -> None:
    """Names in the `__all__` of a package of quintain or of a plugin."""
    imports = [
        node
        for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("quintain")
    ]
    private = [
        f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
        if alias.name not in importlib.import_module(str(node.module)).__all__
    ]

    assert imports
    assert private == []
