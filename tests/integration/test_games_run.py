"""The recipes of the multi-turn worlds: each trains from prompt to update; three are learned by a
wide margin.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
import torch

from quintain import Sampled, Sampling
from quintain.engine import EmbeddedEngine
from quintain.models import load_model
from quintain.store.run_folder import RunFolder
from quintain_env_games import Frozen

from ..core.models.tiny import save_tiny
from ..lanes import mostly_slow
from .recipes import brief, held_out, recipe_run

pytestmark = pytest.mark.usefixtures("no_curves")

NAMES = ("guess", "maze", "duel", "tools", "returns", "notes")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=2048)


@pytest.mark.more
@pytest.mark.parametrize("name", mostly_slow(NAMES, ["maze", "duel"]))
def test_two_steps_of_each_recipe(name: str, model: Path, tmp_path: Path) -> None:
    """A random model plays, both sides of a game included, is scored, and is updated."""
    _, records = recipe_run(name, tmp_path / "run", brief(model, tokens=3))
    assert [record["step"] for record in records] == [0, 1, 2]
    assert [record["failed"] for record in records[1:]] == [0.0, 0.0]
    assert all(math.isfinite(record["reward.mean"]) for record in records[1:])


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "args", "slot"),
    [
        pytest.param("duel", '{rival = "engine"}', "opponent", marks=pytest.mark.slow),
        pytest.param("returns", "{}", "simulated_user", marks=pytest.mark.slow),
        ("notes", '{mode = "summariser"}', "summariser"),
    ],
)
def test_an_earlier_run_plays_the_other_side(
    name: str, args: str, slot: str, model: Path, tmp_path: Path
) -> None:
    """`use = "frozen"` samples with the run's checkpoint, whose weights stay as they are; it is not
    recorded.

    In `returns` it is the user, a second engine whose words the policy reads and whose tokens do
    not train; in `notes` it writes what the policy goes on from.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    recipe_run(name, first, [*brief(model, tokens=3), "run.steps=1"])
    (checkpoint,) = (first / "checkpoints").iterdir()
    changes = [
        *brief(checkpoint / "model", tokens=3),
        "run.steps=1",
        "learner.lr=0.1",
        f"environments=[{{use='quintain-env-games/{name}', args={args}}}]",
        f"services.{slot}={{use='quintain-env-games/frozen', "
        f"args={{model={json.dumps(str(first))}}}}}",
    ]
    before = load_model(checkpoint / "model").module.state_dict()
    recipe_run(name, second, changes)
    after = load_model(checkpoint / "model").module.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)

    rows = RunFolder(second, lock=False).read_rollouts(1)
    rollouts = [json.loads(row["rollout"]) for row in rows]
    assert all(set(rollout["transcripts"]) == {""} for rollout in rollouts)
    others = [turn for rollout in rollouts for turn in rollout["turns"] if turn["player"]]
    assert all(turn["tokens"] == 0 for turn in others)
    assert others or name == "duel", (
        "an untrained policy makes no legal move, a customer always greets"
    )

    async def replies() -> tuple[Sampled, Sampled]:
        sampling = Sampling(max_tokens=8, seed=3)
        ids = load_model(checkpoint / "model").tokenizer.encode("A 3, B 5")
        async with (
            Frozen(model=str(first)) as frozen,
            EmbeddedEngine(checkpoint / "model", slots=4) as engine,
        ):
            return await frozen.sample(ids, sampling), await engine.sample(ids, sampling)

    frozen, own = asyncio.run(replies())
    assert frozen.ids == own.ids
    assert frozen.logps == own.logps


@pytest.mark.more
def test_a_recipe_compacts_the_contexts_of_any_environment(model: Path, tmp_path: Path) -> None:
    """`guess` scores its turns one by one and knows of no summaries; every rollout trains."""
    changes = [*brief(model, tokens=3), "environments.0.limits.compact_at=0.1"]
    _, records = recipe_run("guess", tmp_path / "run", changes)

    assert [record["failed"] for record in records[1:]] == [0.0, 0.0]
    assert all(record["metric.rewrites"] > 0 for record in records[1:])
    rows = RunFolder(tmp_path / "run", lock=False).read_rollouts(2)
    for rollout in (json.loads(row["rollout"]) for row in rows):
        kinds = [turn["summary"] for turn in rollout["turns"]]
        assert any(kinds)
        assert not kinds[0]
        scores = rollout["shaping"]["turns"]
        assert len(scores) == len(kinds)
        assert not any(score for score, summary in zip(scores, kinds, strict=True) if summary)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guess", "maze", "returns", "notes"])
def test_the_default_model_learns_to_play(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`quintain train NAME`: held-out success rises by at least 15 points over 20 steps."""
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    _, records = recipe_run(name, tmp_path / "run", ["run.steps=20", "evaluation.test.tasks=100"])
    curve = held_out(records)
    assert sum(curve[-2:]) / 2 >= curve[0] + 0.15, curve
