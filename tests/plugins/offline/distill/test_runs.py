"""Distillation in whole runs: with a teacher, with the policy as its own teacher, asynchronously,
and what `--dry-run` says of the teacher.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain import Message, Score, Task
from quintain.cli import main
from quintain.errors import UsageError
from quintain.interfaces import every_piece
from quintain.learning import Batch, Learner, Sample, TrainingSequence
from quintain.models import HFTokenizer, LoadedModel, load_model
from quintain.testing import rollout
from quintain_offline.distill import OPD, OPSD, SelfTeacher, TeacherRow

from ....core.models.tiny import save_tiny, with_exact_norms
from ....small_run import make_small_run, small_recipe

pytestmark = pytest.mark.usefixtures("no_curves")

BABBLE = 'use = "babble.py:Babble"'
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


def run_folder(tmp_path: Path, algorithm: str, tables: str = "", steps: int = 2) -> Path:
    """A folder with a policy, a teacher, an environment and a recipe."""
    make_small_run(
        tmp_path,
        small_recipe(
            BABBLE, model=tmp_path / "model", algorithm=algorithm, tables=tables, steps=steps
        ),
    )
    save_tiny(tmp_path / "teacher", seed=5, context=256)
    (tmp_path / "babble.py").write_text(ENVIRONMENT)
    return tmp_path


def trained(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The metrics of the steps of a run."""
    recipe, runs = str(folder / "recipe.toml"), str(folder / "runs")
    assert main(["train", recipe, "--folder", runs, "--name", "run", "--quiet", *words]) == 0
    lines = (folder / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["step"]]


def teacher_table(folder: Path, settings: str = "") -> str:
    return f'[services.teacher]\nargs = {{ model = "{folder / "teacher"}"{settings} }}\nuse = "teacher"'


@pytest.mark.parametrize(
    ("algorithm", "schedule"),
    [
        ("opd", "sync"),
        ("gkd", "areal"),
        pytest.param("opd", "areal", marks=pytest.mark.slow),
        pytest.param("gkd", "sync", marks=pytest.mark.slow),
    ],
)
def test_a_run_has_a_teacher(
    tmp_path: Path, algorithm: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = f'{teacher_table(tmp_path)}\n[schedule]\nuse = "{schedule}"'
    folder = run_folder(tmp_path, algorithm, table, steps=3)
    late_gkd = schedule == "areal" and algorithm == "gkd"  # a divergence has no ratio to a sampler
    words = ("--set", 'algorithm.args.ratio_to="prox"') if late_gkd else ()
    steps = trained(folder, *words)

    assert len(steps) == 3
    for record in steps:
        assert record["teacher.computed"] + record["teacher.reused"] == 4
        assert record["teacher.silent"] == 0
        assert record["updates"] == 1
    if algorithm == "gkd":
        assert all(record["objective.divergence"] > 0 for record in steps)
        assert all(record["objective.covered"] == pytest.approx(1, abs=1e-5) for record in steps)


@pytest.mark.more
def test_a_run_repeats_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    states = []
    for name in ("a", "b"):
        place = tmp_path / name
        place.mkdir()
        monkeypatch.chdir(place)
        trained(run_folder(place, "gkd", teacher_table(place)))
        saved = sorted((place / "runs" / "run" / "checkpoints").glob("*/model"))[-1]
        states.append(load_model(saved).module.state_dict())
    assert all(value.equal(states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("weights", ["now", "start"])
def test_a_run_teaches_itself(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the answer in the prompt. The first batch has one policy for both: the weights are those
    of its start.
    """
    monkeypatch.chdir(tmp_path)
    table = f'[services.teacher]\nuse = "self-teacher"\nargs = {{ weights = "{weights}" }}'
    steps = trained(run_folder(tmp_path, "opsd", table))

    assert [record["teacher.silent"] for record in steps] == [0, 0]
    assert all(record["teacher.kl"] != 0 for record in steps)


def test_dry_run_says_what_a_teacher_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = run_folder(tmp_path, "opd", teacher_table(tmp_path))
    count = sum(p.numel() for p in load_model(tmp_path / "teacher").module.parameters())

    assert main(["train", str(folder / "recipe.toml"), "--dry-run"]) == 0

    said = capsys.readouterr().err
    assert f"takes {4 * count / 1e6:,.0f} MB of weights" in said
    assert f"{2 * count / 1e9:.2g} GFLOP for each token" in said


def test_dry_run_names_a_teacher_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = teacher_table(tmp_path).replace("/teacher", "/nobody")
    folder = run_folder(tmp_path, "opd", table)

    assert main(["train", str(folder / "recipe.toml"), "--dry-run"]) != 0

    assert "nobody" in capsys.readouterr().err


# ---------------------------------------------------------------- hints
class Played:
    """A group of three replies to one task, of which the last two succeed, and one of another."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self.tokenizer = tokenizer
        task, other = Task(prompt="6*7?", answer=42), Task(prompt="What?", answer=None)
        said = [(task, "40", 0.0, 0), (task, "42", 1.0, 0), (task, "so 42", 1.5, 0)]
        said.append((other, "no", 0.0, 1))
        self.rollouts = [
            rollout(one, text, outcome=Score(value=value, reason=f"earns {value:g}"), group=group)
            for one, text, value, group in said
        ]

    def rows(self) -> list[TeacherRow]:
        found = []
        for i, played in enumerate(self.rollouts):
            prompt = self.ids(played.messages[:1])
            reply = (*self.tokenizer.encode(played.reply), self.tokenizer.stop_ids[0])
            places = range(len(prompt), len(prompt) + len(reply))
            found.append(TeacherRow((*prompt, *reply), tuple(places), "babble", i))
        return found

    def ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(self.tokenizer.render(list(messages))))


def hinted(
    folder: Path, rows: list[TeacherRow] | None = None, **settings: Any
) -> tuple[LoadedModel, Played, list[Any]]:
    model = load_model(save_tiny(folder / "model"))
    played = Played(model.tokenizer)

    async def run() -> list[Any]:
        teacher = SelfTeacher(policy=model, learner=model, replay=played, **settings)
        async with teacher:
            return await teacher.score(rows or played.rows())

    return model, played, asyncio.run(run())


HINTS = {
    "answer": ("The answer is 42.", "The answer is 42.", "The answer is 42.", ""),
    "solution": (
        "A correct solution of this task:\nso 42",
        "A correct solution of this task:\nso 42",
        "A correct solution of this task:\n42",
        "",
    ),
    "feedback": tuple(
        f"Feedback on an earlier attempt at this task:\nearns {value}"
        for value in ("0", "1", "1.5", "0")
    ),
}


@pytest.mark.parametrize("hint", HINTS)
def test_a_hint_ends_the_prompt(tmp_path: Path, hint: str) -> None:
    """The reply is scored after the longer prompt, by a plain forward pass; a sample without a hint
    has no teacher.
    """
    model, played, scores = hinted(tmp_path, hint=hint)

    for row, score, text in zip(played.rows(), scores, HINTS[hint], strict=True):
        if not text:
            assert score is None
            continue
        question = played.rollouts[row.sample].task.prompt
        prompt = played.ids([Message("user", f"{question}\n\n{text}")])
        reply = row.ids[row.positions[0] :]
        ids = torch.tensor([[*prompt, *reply]])
        with torch.no_grad():
            table = model.module(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        expected = table.gather(1, torch.tensor(reply)[:, None])[:, 0]
        torch.testing.assert_close(score.logp, expected, rtol=0, atol=2e-5)


def test_a_reply_is_no_solution_for_itself(tmp_path: Path) -> None:
    """Two players of one episode are two samples of one rollout."""
    model = load_model(save_tiny(tmp_path / "model"))
    played = Played(model.tokenizer)
    lost, won = played.rollouts[:2]
    played.rollouts = [won, won, lost]

    async def run() -> list[Any]:
        teacher = SelfTeacher(hint="solution", policy=model, learner=model, replay=played)
        async with teacher:
            return await teacher.score(played.rows())

    assert [score is None for score in asyncio.run(run())] == [True, True, False]


def test_a_prompt_of_other_messages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no place for the hint"):
        hinted(tmp_path, rows=[TeacherRow((5, 6, 7, 8), (3,), "babble", 0)])
    with pytest.raises(UsageError, match="text has no {hint}"):
        SelfTeacher(text="look")
    with pytest.raises(UsageError, match="hint is 'guess'"):
        SelfTeacher(hint="guess")  # type: ignore[arg-type]


# ---------------------------------------------------------------- what is refused
def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="objective = 'divergence' compares"):
        OPD.replace(advantage="teacher_tokens")
    with pytest.raises(UsageError, match="beta is 1"):
        next(p for p in every_piece() if p.name == "divergence").configure(beta=1.0)


@pytest.mark.parametrize(
    ("advantage", "message"),
    [
        ({"discount": 1.5}, "discount is 1.5"),
        ({"reward": 1.0, "task": "ema"}, "task is 'ema'"),
    ],
)
def test_advantages_that_make_no_sense_are_refused(advantage: Any, message: str) -> None:
    from .tables import learner_of, step
    from .test_reference import BATCH

    learner, _ = learner_of(OPD.replace(advantage=advantage))
    with pytest.raises(UsageError, match=message):
        step(learner, BATCH)


# ---------------------------------------------------------------- the update of self-distillation
@pytest.mark.parametrize("hint", HINTS)
def test_the_update_follows_the_policy_with_its_hint(tmp_path: Path, hint: str) -> None:
    """In float64: minus the mean over all sampled tokens of (log q - log mu) times the gradient of
    log theta, q the policy after the hinted prompt, by plain forward passes.
    """
    model = load_model(save_tiny(tmp_path / "model"), dtype="float64")
    with_exact_norms(model.module)  # those of transformers round to float32
    played = Played(model.tokenizer)

    def plain(ids: Sequence[int], first: int) -> torch.Tensor:
        table = model.module(torch.tensor([ids])).logits[0].log_softmax(-1)
        return table[first - 1 : -1].gather(1, torch.tensor(ids[first:])[:, None])[:, 0]

    samples, terms = [], []
    for row, text in zip(played.rows(), HINTS[hint], strict=True):
        first = row.positions[0]
        mu_logp = plain(row.ids, first).detach() - 0.1  # a sampler that is a little behind
        question = played.rollouts[row.sample].task.prompt
        prompt = played.ids([Message("user", f"{question}\n\n{text}")])
        told = plain((*prompt, *row.ids[first:]), len(prompt)).detach() if text else mu_logp
        terms.append(-(told - mu_logp) * plain(row.ids, first))
        sequence = TrainingSequence(
            ids=row.ids,
            mask=tuple(place >= first for place in range(len(row.ids))),
            logps=(*[0.0] * first, *mu_logp.tolist()),
            versions=(*[-1] * first, *[0] * len(mu_logp)),
        )
        group = played.rollouts[row.sample].group
        samples.append(Sample(sequences=(sequence,), outcome=0.0, group=group))
    loss = torch.cat(terms).mean()
    expected = torch.autograd.grad(loss, list(model.module.parameters()))

    learner = Learner(model.module, OPSD, max_grad_norm=0.0)
    found: list[torch.Tensor] = []
    learner._optimizer.register_step_pre_hook(
        lambda *_: found.extend(p.grad.clone() for p in learner.module.parameters())  # type: ignore[union-attr]
    )

    async def stepped() -> None:
        teacher = SelfTeacher(hint=hint, policy=model, learner=learner, replay=played)  # type: ignore[arg-type]
        async with teacher:
            learner.serve({"teacher": teacher})
            prepared = learner.prepare(Batch(samples=tuple(samples)))
            learner.step(prepared, advantages=await learner.compute_advantages(prepared))

    asyncio.run(stepped())
    assert max(float(part.abs().max()) for part in expected) > 1e-3
    for actual, part in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, part, rtol=0, atol=1e-9)
