"""Runs with a judge: the bundled recipe, evolving rubrics, a judge with faults, a spent budget and
its resume.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main

from ..core.models.tiny import save_tiny
from ..plugins.engines.openai.http_kit import in_thread
from ..plugins.judge.kit import JudgeServer, scored, texts_of
from .recipes import brief, held_out, metrics_of, recipe_run

pytestmark = pytest.mark.usefixtures("no_curves")

RECIPE = """
run = {{ steps = 3, name = "{name}", folder = "runs" }}
model = {{ name = "model", device = "cpu" }}
environments = [{{ use = "chat", reward = "rubric_score" }}]
algorithm = {{ use = "grpo" }}
sampling.max_tokens = 6
batch = {{ prompts = 2, group_size = 3, retries = 2 }}
learner.lr = 1e-3
evaluation = {{ every = 0, test = {{ tasks = 0 }} }}
checkpoint.every = 1
[services.judge]
use = "judge"
[services.judge.args]
base_url = "{url}"
cache = "{name}.sqlite"
backoff = 0.001
gate = false
budget = {{ calls = {calls} }}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), context=8192)


def by_hash(body: Any) -> Any:
    """A score that depends on the texts and the criterion alone."""
    content = json.dumps([texts_of(body), body["messages"][0]["content"].split("\n")[1]])
    return scored(int(hashlib.sha256(content.encode()).hexdigest(), 16) % 3)


def measures(name: str) -> list[tuple[float, ...]]:
    """What the steps of a run have in common with those of another one that learns the same."""
    records = metrics_of(Path("runs", name))
    return [
        tuple(r[k] for k in ("step", "reward.mean", "reward.spread", "grad_norm", "failed"))
        for r in records[1:]
    ]


@pytest.mark.slow
def test_a_spent_budget_and_a_faulty_judge_change_nothing_that_is_learned(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three runs, equal to the last digit: undisturbed; every third request fails; a budget ends
    it.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model)
    requests = 0

    def faulty(body: Any) -> Any:
        nonlocal requests
        requests += 1
        faults = {
            0: (503, "down"),
            3: scored(7),
            6: (200, '{"choices": [{"message": {"refusal": "no"}}]}'),
            9: (200, "?"),
        }
        return by_hash(body) if requests % 3 else faults.get(requests % 12, (429, ""))

    def train(name: str, url: str, calls: int = 0, *options: str) -> int:
        (tmp_path / f"{name}.toml").write_text(RECIPE.format(name=name, url=url, calls=calls))
        return main(["train", f"{name}.toml", *options])

    calm, broken = JudgeServer(by_hash), JudgeServer(faulty)
    with in_thread(calm.up()) as url, in_thread(broken.up()) as broken_url:
        assert train("calm", url, 0, "--quiet") == 0
        paid = len(calm.bodies)
        assert train("faulty", broken_url, 0, "--quiet") == 0
        assert train("stopped", url, calls=paid // 2) == 130
        said = " ".join("".join(capsys.readouterr()).split())
        assert "the judge's budget is spent" in said
        assert "train --resume runs/stopped" in said
        recipe = tmp_path / "runs" / "stopped" / "recipe.toml"
        recipe.write_text(recipe.read_text().replace(f"calls = {paid // 2}", f"calls = {paid}"))
        before = len(calm.bodies)
        assert main(["train", "--resume", "runs/stopped", "--force", "--quiet"]) == 0
    assert len(calm.bodies) - before == paid - paid // 2  # what was paid for is not paid for again
    assert measures("calm") == measures("faulty") == measures("stopped")
    assert [m[0] for m in measures("calm")] == [1, 2, 3]
    assert all(m[-1] == 0 and m[2] > 0 for m in measures("calm"))
    last = json.loads((tmp_path / "runs" / "faulty" / "judge.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 3
    assert last["retries"] > 0
    assert "failures" not in last


@pytest.mark.more
def test_the_recipe_trains_with_evolving_rubrics(model: Path, tmp_path: Path) -> None:
    """Two steps of the bundled recipe with a random model; the history of the rubrics is in the run
    folder.
    """
    changes = ['environments.0.shaping="evolving_rubric - rubric_score"', "batch.group_size=6"]
    _, records = recipe_run("chat", tmp_path / "run", [*brief(model, tokens=48), *changes])
    assert [record["failed"] for record in records[1:]] == [0.0, 0.0]
    assert all(math.isfinite(record["reward.mean"]) for record in records[1:])
    history = [
        json.loads(line) for line in (tmp_path / "run" / "rubrics.jsonl").read_text().splitlines()
    ]
    assert {row["event"] for row in history} >= {"added"}
    assert {row["step"] for row in history} <= {
        1,
        2,
    }


@pytest.mark.more
def test_the_policy_judges_itself_while_it_trains_on_verifiable_pairs(
    model: Path, tmp_path: Path
) -> None:
    """A step of self-critique with the embedded engine: every verdict is read, and no rollout
    fails.
    """
    changes = [
        "run.steps=1",
        'environments=[{use="chat", shaping="0.5 * self_critique"}, {use="critique"}]',
        'services.judge={use="judge-policy", args={gate=false}}',
        "evaluation={every=0, test={tasks=0}}",
    ]
    _, records = recipe_run("chat", tmp_path / "run", [*brief(model, tokens=4), *changes])
    assert [record["failed"] for record in records[1:]] == [0.0]
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "judge.jsonl").read_text().splitlines()
    ]
    assert lines[-1]["calls"] > 0
    assert "unreadable" not in lines[-1]
    assert "cached" not in lines[-1]


SMALL = (
    'model.dtype="float64"',
    "model.start.args.model={hidden=96, layers=2, heads=4, kv_heads=4, head_dim=32, "
    "intermediate=192, initializer_range=0.1}",
    "model.start.args.lr=4e-3",
    "learner.lr=3e-4",
    "evaluation={every=20, tasks=100, test={tasks=0}}",
)
"""265,000 parameters instead of the million of the default model, whose warm start in float32 ended
at 17 % on one machine and at 31 % on another: the order of sums decides which check is the first
inside its target. The run from 31 % came to 41 % in 25 steps. In float64 the order of sums is in the
sixteenth digit, not the eighth.
"""


@pytest.mark.slow
def test_a_model_learns_to_write_the_notes_by_their_rubrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe `chat`: held-out success rises by at least 20 points over 40 steps, through rules
    alone, and so does the yardstick, which does not train.
    """
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    _, records = recipe_run("chat", tmp_path / "run", SMALL)
    curve = held_out(records)
    yardstick = [r["held_out.yardstick"] for r in records if "held_out.yardstick" in r]
    assert len(curve) == len(yardstick) == 3
    assert curve[-1] >= curve[0] + 0.2, (curve, yardstick)
    assert yardstick[-1] >= yardstick[0] + 0.2, (curve, yardstick)
