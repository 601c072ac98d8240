"""The learner `tinker` against a server of this project, through Tinker's own SDK."""

from __future__ import annotations

import asyncio
import copy
import gc
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.errors import RunError, UsageError
from quintain.learning import ALGORITHMS, Batch, Learner, Sample
from quintain.models import TokenSequence
from quintain.models.lora import with_adapters
from quintain.store.checkpoint import CheckpointManager, latest
from quintain.store.run_folder import RunFolder
from quintain_gateway.tinker.server import TinkerServer
from quintain_learners.tinker import Tinker, TinkerLearner
from quintain_learners.tinker.remote import result_of

from ....core.learning.batches import batch, sequence
from ....core.models.tiny import save_tiny, tiny_model
from ....lanes import needs

pytestmark = [
    pytest.mark.ci,
    needs("tinker", "pip install 'quintain-learners[tinker]'"),
    # connections that the SDK leaves to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LORA = {"r": 4, "lora_alpha": 32}
SETTINGS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of a tiny model, in a thread of its own."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    model = save_tiny(tmp_path / "tiny")
    started, ended = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        found["loop"] = asyncio.get_running_loop()
        about: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "max_bytes": 10**6}
        async with TinkerServer(str(model), "tiny", tmp_path / "state", **about) as server:
            found["url"] = server.root_url
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(120)
    yield found["url"]
    with closing(sqlite3.connect(tmp_path / "state" / "journal.sqlite")) as db:
        (left,) = db.execute("SELECT count(*) FROM session WHERE finished = ''").fetchone()
    found["loop"].call_soon_threadsafe(ended.set)
    thread.join(60)
    gc.collect()  # connections of the SDK, while their warnings are ignored
    assert left == 0, "sessions were not ended, and their clients go on to send heartbeats"


@pytest.fixture
def learner(url: str) -> Iterator[Any]:
    """Makes learners on that server."""
    made: list[TinkerLearner] = []

    def make(algorithm: Any = "dr_grpo", lora: Any = None, **settings: Any) -> TinkerLearner:
        module = with_adapters(tiny_model(), lora or LORA)
        if isinstance(algorithm, str):
            algorithm = ALGORITHMS[algorithm]
        kind = Tinker(base_url=url, seed=3)
        made.append(kind(module, algorithm, **{**SETTINGS, **settings}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def local(remote: TinkerLearner, **settings: Any) -> Learner:
    """The default learner of the same model and adapter."""
    module = copy.deepcopy(remote.module)
    return Learner(module, remote.algorithm, **{**SETTINGS, **settings})


def assert_same(remote: TinkerLearner, here: Learner, atol: float = 1e-6) -> None:
    for actual, expected in zip(remote.parameters, here.parameters, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def test_an_update_is_that_of_the_default_learner(learner: Any) -> None:
    """Weights that are no multiples of one another, two minibatches, clipped gradients."""
    algorithm = replace(ALGORITHMS["dapo"], minibatches=2)
    remote = learner(algorithm, max_grad_norm=0.05)
    here = local(remote, max_grad_norm=0.05)
    for seed in range(2):
        told, expected = remote.step(batch(seed=seed)), here.step(batch(seed=seed))
        assert told["loss"] == pytest.approx(expected["loss"], abs=1e-6)
        assert told["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)
        assert told["grad_norm"] > 0.05
        assert "entropy" not in told
    assert_same(remote, here)
    assert remote.version == here.version == 2


def test_a_penalty_towards_the_base_is_computed_from_the_servers_base(learner: Any) -> None:
    algorithm = ALGORITHMS["dr_grpo"]
    algorithm = replace(
        algorithm, kl=replace(algorithm.kl, where="loss", estimator="k3", coefficient=0.1)
    )
    remote = learner(algorithm)
    here = local(remote)
    for _ in range(2):
        told, expected = remote.step(batch()), here.step(batch())
    assert told["kl.ref.k3"] == pytest.approx(expected["kl.ref.k3"], abs=1e-6)
    assert expected["kl.ref.k3"] > 1e-4
    assert_same(remote, here)


def test_a_penalty_is_computed_of_a_reply_that_fills_the_context(learner: Any) -> None:
    """Scored as a prompt it would leave no room for a sample."""
    algorithm = ALGORITHMS["dr_grpo"]
    algorithm = replace(
        algorithm, kl=replace(algorithm.kl, where="loss", estimator="k3", coefficient=0.1)
    )
    remote = learner(algorithm)
    here = local(remote)
    prompt = [3, 5, 7]
    context = remote.module.config.max_position_embeddings
    replies = [[(7 * i + k) % 260 for i in range(context - len(prompt))] for k in range(2)]
    rows = [sequence(prompt, reply) for reply in replies]
    assert {len(row.ids) for row in rows} == {context}
    full = Batch(
        samples=tuple(
            Sample(sequences=(row,), outcome=float(k), group=0) for k, row in enumerate(rows)
        ),
        max_tokens=context,
        temperature=1.0,
    )
    for _ in range(2):
        told, expected = remote.step(full), here.step(full)
    assert expected["kl.ref.k3"] > 0
    assert told["kl.ref.k3"] == pytest.approx(expected["kl.ref.k3"], abs=1e-6)
    assert_same(remote, here, atol=1e-5)


def test_supervised_steps_are_those_of_the_default_learner(learner: Any) -> None:
    remote = learner(None)
    here = local(remote)
    rows = [s for sample in batch().samples for s in sample.sequences]
    for _ in range(2):
        assert remote.supervised_step(rows)["loss"] == pytest.approx(
            here.supervised_step(rows)["loss"], abs=1e-6
        )
    assert_same(remote, here)


def test_a_resumed_learner_continues_bit_for_bit(learner: Any) -> None:
    one = learner()
    one.step(batch())
    state = one.state_dict()
    other = learner()
    other.load_state_dict(state)
    for each in (one, other):
        each.step(batch(seed=1))
    for actual, expected in zip(other.parameters, one.parameters, strict=True):
        assert torch.equal(actual, expected)


def test_states_on_the_server_go_with_their_checkpoints(learner: Any, tmp_path: Path) -> None:
    """The best one has none, since no run resumes from it. Those of a copied run stay."""

    def saved(step: int, *, best: bool = False) -> None:
        one.step(batch(seed=step))
        checkpoints.save(step, learner=one, state={}, best=best)

    def paths(of: Any) -> set[str]:
        listed = result_of(of.remote._rest.list_user_checkpoints()).checkpoints
        return {kept.tinker_path for kept in listed}

    def named(folder: Path) -> set[str]:
        files = (folder / "checkpoints").glob("step-*/learner.pt")
        return {torch.load(file)["learner"]["optimizer"]["path"] for file in files}

    folder = tmp_path / "run"
    checkpoints = CheckpointManager(RunFolder(folder, lock=False), tokenizer=None, keep=2)
    one = learner()
    saved(1, best=True)
    for step in (2, 3, 4):
        saved(step)
    assert len(paths(one)) == 3  # that of step 2 was deleted after this state was kept
    shutil.copytree(folder, tmp_path / "copy")
    latest(RunFolder(folder, lock=False)).restore(one)  # as where a run resumes
    saved(5)
    saved(6)
    one.close()
    other = learner()
    assert paths(other) == named(folder)
    assert len(named(folder)) == 2
    copied = CheckpointManager(RunFolder(tmp_path / "copy", lock=False), tokenizer=None, keep=1)
    other.load_state_dict(torch.load(folder / "checkpoints/step-000006/learner.pt")["learner"])
    other.step(batch(seed=7))
    copied.save(7, learner=other, state={})
    other._forget_deleted()
    assert named(folder) < paths(other)


def test_a_state_that_somebody_else_deleted_is_no_failure(learner: Any) -> None:
    one = learner()
    kept = one.remote.save()
    assert one.remote.forget(kept)
    assert not one.remote.forget(kept)


def test_gradients_that_no_step_followed_are_forgotten(learner: Any) -> None:
    """As where doubtful samples are left out after the backward pass."""
    remote = learner()
    here = local(remote)
    left = TokenSequence([1, 2, 3], range(1, 3))
    remote.scorer.forward.statistics([[left]]).logp.sum().backward()
    remote.parameters[0].grad = None
    remote.step(batch())
    here.step(batch())
    assert_same(remote, here)


def test_what_does_not_fit_the_server_is_refused(learner: Any, url: str) -> None:
    with pytest.raises(UsageError, match="lora_alpha = 32"):
        learner(lora={"r": 4, "lora_alpha": 8})
    with pytest.raises(UsageError, match=r"target_modules = \["):
        learner(lora={**LORA, "target_modules": ["q_proj"]})
    with pytest.raises(UsageError, match="trains adapters alone"):
        Tinker(base_url=url)(tiny_model(), None)
    other = with_adapters(tiny_model(seed=9), LORA)
    with pytest.raises(UsageError, match="be the same model"):
        Tinker(base_url=url)(other, None)
    pruned = replace(ALGORITHMS["dr_grpo"], prune=0.1)
    with pytest.raises(UsageError, match="prunes the vocabulary"):
        learner(pruned)
    with pytest.raises(UsageError, match=r"temperature = 1\.0"):
        learner().step(batch(temperature=0.7))
    with pytest.raises(UsageError, match="learner.args.base_url"):
        Tinker(base_url=url, base_model="another")(with_adapters(tiny_model(), LORA), None)


def test_a_gradient_that_is_not_finite_ends_the_run_and_changes_nothing(learner: Any) -> None:
    remote = learner()
    before = [p.clone() for p in remote.parameters]
    with pytest.raises(RunError, match="the server failed to take a step"):
        remote.step(batch(), advantages=torch.full((batch().tokens,), 1e38))
    assert all(torch.equal(a, b) for a, b in zip(remote.parameters, before, strict=True))
