"""Whole runs: trees with their algorithms, imitation of what a search finds, a value model as
credit.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.cli import main
from quintain.learning import Learner
from quintain.models import load_model
from quintain_algorithms.tree_search import SearchEngine

from ....core.models.tiny import save_tiny, with_exact_norms
from ....small_run import make_small_run, small_recipe

pytestmark = pytest.mark.usefixtures("no_curves")

ENVIRONMENT = """
from quintain import Environment, Task, reward

@reward(range=(0, 1))
def letters(rollout):
    return min(1, sum(c.isalpha() for c in rollout.reply) / 4)

class Babble(Environment):
    reward = letters
    def tasks(self, split):
        return [Task(prompt=f"say {n}", answer=str(n)) for n in range(40)]
"""


def trained(folder: Path, algorithm: str, engine: str, *words: str) -> list[dict[str, Any]]:
    """The metrics of the two steps of a run."""
    make_small_run(
        folder,
        small_recipe(
            'use = "babble.py:Babble"',
            model=folder / "model",
            algorithm=algorithm,
            tables=engine and f"[engine]\n{engine}",
            steps=2,
        ),
    )
    (folder / "babble.py").write_text(ENVIRONMENT)
    recipe, runs = str(folder / "recipe.toml"), str(folder / "runs")
    assert main(["train", recipe, "--folder", runs, "--name", "run", "--quiet", *words]) == 0
    lines = (folder / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["step"]]


TREE = 'use = "tree"\nargs = { depth = 2, by = "tokens", size = 2 }'


@pytest.mark.keeps("tree_rl")
@pytest.mark.parametrize("algorithm", ["tree_credit", "tree_rl"])
def test_a_run_learns_from_trees(
    tmp_path: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = trained(tmp_path, algorithm, TREE, "--set", "batch.group_size=4")
    assert len(steps) == 2
    for record in steps:
        # two prompts; each tree has at most 2 + 4 steps of two tokens
        assert 4 <= record["tree.steps"] <= 12
        assert record["tree.tokens"] <= 24
        assert record["updates"] == 1


@pytest.mark.more
def test_a_run_with_trees_repeats_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for name in ("a", "b"):
        place = tmp_path / name
        place.mkdir()
        monkeypatch.chdir(place)
        trained(place, "tree_credit", TREE, "--set", "batch.group_size=4")
        saved = sorted((place / "runs" / "run" / "checkpoints").glob("*/model"))[-1]
        states.append(load_model(saved).module.state_dict())
    assert all(value.equal(states[1][name]) for name, value in states[0].items())


@pytest.mark.keeps("beam")
@pytest.mark.parametrize("engine", ["beam", "mcts"])
def test_what_a_search_finds_is_imitated(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = f'use = "{engine}"\nargs = {{ by = "tokens", size = 2 }}'
    steps = trained(tmp_path, "sft", table)
    assert [record["updates"] for record in steps] == [1, 1]


@pytest.mark.more
@pytest.mark.parametrize("engine", ["beam", "mcts", "tree"])
def test_what_trains_is_what_the_search_returned(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, with log-probs that are those of the model by float64, at its temperature."""
    monkeypatch.chdir(tmp_path)
    returned: Counter[Any] = Counter()
    batches: list[Any] = []
    sample, step = SearchEngine.sample, Learner.step

    async def sampled(self: Any, ids: Any, sampling: Any) -> Any:
        found = await sample(self, ids, sampling)
        returned[(*ids,), found.ids, found.logps] += 1
        return found

    def stepped(self: Any, batch: Any, **more: Any) -> Any:
        batches.append(batch.step.batch)
        return step(self, batch, **more)

    monkeypatch.setattr(SearchEngine, "sample", sampled)
    monkeypatch.setattr(Learner, "step", stepped)
    table = f'use = "{engine}"\nargs = {{ by = "tokens", size = 2 }}'
    trained(tmp_path, "sft", table, "--set", "sampling.temperature=0.7")

    first = batches[0]
    module = with_exact_norms(load_model("model", device="cpu", dtype="float64").module)
    trains: Counter[Any] = Counter()
    for batch in batches:
        for (row,) in (sample.sequences for sample in batch.samples):
            start = row.mask.index(True)
            assert all(row.mask[start:])
            trains[row.ids[:start], row.ids[start:], row.logps[start:]] += 1
            if batch is first:
                with torch.no_grad():
                    logits = module(torch.tensor([row.ids])).logits[0, start - 1 : -1] / 0.7
                own = logits.log_softmax(-1).gather(1, torch.tensor(row.ids[start:])[:, None])
                assert list(row.logps[start:]) == pytest.approx(own[:, 0].tolist(), abs=2e-5)
    assert trains == returned


@pytest.mark.more
def test_a_value_model_gives_credit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quintain_algorithms.tree_search import ScoredRow, fit_value

    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "policy", seed=3, context=256)
    rows = [ScoredRow(ids=(5, 6, i % 9), first=1, success=i % 2 == 0) for i in range(40)]
    fit_value(str(tmp_path / "policy"), rows, tmp_path / "value")
    words = ("--set", 'services.value.use="value-model"')
    words += ("--set", f'services.value.args.model="{tmp_path / "value"}"')
    steps = trained(tmp_path, "value_steps", "", *words)
    assert all(0 < record["value.prompt"] < 1 for record in steps)
    assert all(0 <= record["value.error"] <= 1 for record in steps)


def test_the_algorithm_needs_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        trained(tmp_path, "tree_credit", "")
    assert "samples no trees; set engine.use = 'tree'" in capsys.readouterr().err


def test_a_missing_value_model_is_said_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        trained(tmp_path, "sft", 'use = "mcts"\nargs = { value = "nobody" }', "--dry-run")
    assert "nobody" in capsys.readouterr().err
