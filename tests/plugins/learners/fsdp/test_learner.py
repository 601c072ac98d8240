"""The learner `fsdp`: two ranks, what it refuses, and what becomes of ranks that end or stop."""

from __future__ import annotations

import copy
import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from threading import Timer
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from quintain import objective
from quintain.errors import RunError, UsageError
from quintain.learning import ALGORITHMS, Learner, SamplerMismatch
from quintain.models.head import chunk_of
from quintain_engines.vllm.sleep import LearnerHook
from quintain_learners.fsdp import Fsdp, FsdpLearner, RanksLost
from quintain_learners.fsdp.rank import serve
from quintain_learners.fsdp.setup import Setup
from quintain_learners.fsdp.spares import Folder, Spare
from quintain_learners.fsdp.team import Team

from ....core.learning.algorithms import INSTALLED
from ....core.models.tiny import tiny_model
from ....processes import ended, within
from .test_exact import assert_same, batch, check, model, trained

GRPO = ALGORITHMS["grpo"]
EVERY_SHARDING = pytest.mark.parametrize(
    ("ranks", "sharding"),
    [(2, "sharded")]
    + [
        pytest.param(n, sharding, marks=pytest.mark.slow)
        for n in (1, 2, 3, 4)
        for sharding in ("sharded", "hybrid", "replicated")
        if (n, sharding) != (2, "sharded")
    ],
)


@pytest.fixture(scope="module")
def pair() -> Iterator[Team]:
    """Two processes."""
    team = Team(2, silence=300.0)
    yield team
    team.close()


def sharded(team: Team | None = None, **settings: Any) -> FsdpLearner:
    module = copy.deepcopy(model("full"))
    return FsdpLearner(
        module, GRPO, team=team, layout="bucketed", token_budget=25, lr=1e-3, **settings
    )


def train_on(learner: FsdpLearner) -> None:
    while True:
        learner.step(batch())


def test_two_ranks_make_the_update_of_one_process(pair: Team) -> None:
    """Gradients, metrics and weights of a sharded model over two minibatches and epochs."""
    check(pair, GRPO, "full", "several", [(2, "sharded")])


SCHEDULES = {"lr": {"cosine": (1.0, 0.1, 3)}, "kl.coefficient": {"ramp": (1.0, 9.0, 2)}}


@pytest.mark.parametrize("schedules", [{}, SCHEDULES], ids=["constant", "scheduled"])
def test_state_is_that_of_one_process(pair: Team, schedules: Mapping[str, Any]) -> None:
    """It is whole: another learner loads it, and this one that of another; both go on alike."""
    many = sharded(pair, schedules=schedules)
    settings = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3, "schedules": schedules}
    one = Learner(copy.deepcopy(model("full")), GRPO, **settings)  # type: ignore[arg-type]
    many.step(batch())
    one.load_state_dict(copy.deepcopy(many.state_dict()))
    one.step(batch())
    before = copy.deepcopy(one.state_dict())
    many.step(batch())
    many.step(batch())
    many.load_state_dict(before)
    for learner in (one, many):
        learner.step(batch())
    assert (one.version, one.updates) == (many.version, many.updates) == (3, 3)
    for expected, actual in zip(one.module.parameters(), many.module.parameters(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("trains", ["full", "lora"])
def test_an_engine_gets_the_weights_that_one_process_gives(pair: Team, trains: str) -> None:
    """Under their names and merged, as any engine takes them, of which vLLM a bucket at a time; and
    in the module itself, which the embedded engine decodes. Of adapters alone the rest stays.
    """
    settings: dict[str, Any] = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3}
    one = Learner(copy.deepcopy(model(trains)), GRPO, **settings)
    many = FsdpLearner(copy.deepcopy(model(trains)), GRPO, team=pair, **settings)
    before = {name: p.detach().clone() for name, p in many.module.named_parameters()}
    for learner in (one, many):
        learner.step(batch(trains))
    expected, actual = one.weights().tensors(), many.weights().tensors()
    assert list(actual) == list(expected)
    for name, want in expected.items():
        torch.testing.assert_close(actual[name], want, rtol=0, atol=1e-10)
    moved = {n for n, p in many.module.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {n for n, p in many.module.named_parameters() if p.requires_grad}


def test_an_engine_sleeps_before_the_ranks_compute(pair: Team) -> None:
    """It takes turns with the learner, and hears of it by the module of this process. The ranks give
    back what torch keeps of the update, before it wakes.
    """
    events: list[str] = []
    learner = sharded(pair, cluster=SimpleNamespace(turns=True))
    hook = LearnerHook(learner.module, lambda: events.append("sleeps"))
    hook.start()
    call = learner.team.call

    def recorded(name: str, *args: Any) -> Any:
        events.append(name)
        return call(name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner.team, "call", recorded)
        learner.step(batch())
        hook.stop()
    assert events == ["sleeps", "prepare", "step", "forget"]


@pytest.mark.more
def test_ranks_start_again_beside_an_engine_that_sleeps() -> None:
    """The hook of an engine is on the module of the run, and is not sent to them."""
    learner = FsdpLearner(copy.deepcopy(model("full")), GRPO, silence=300.0, layout="bucketed")
    hook = LearnerHook(learner.module, lambda: None)
    hook.start()
    try:
        os.kill(learner.team.pids[1], signal.SIGKILL)
        assert learner.step(batch())["loss"]
    finally:
        hook.stop()
        learner.close()


@pytest.mark.more
def test_ranks_notice_a_sampler_that_differs(pair: Team) -> None:
    """Log-probs of the engine that are not those of the weights end the step before an update."""
    settings: dict[str, Any] = {"layout": "bucketed", "max_sample_mismatch": 0.01}
    learner = FsdpLearner(copy.deepcopy(model("full")), GRPO, team=pair, **settings)
    found = batch()
    rows = [sample.sequences[0] for sample in found.samples]
    shifted = [
        replace(r, logps=tuple(x - 0.5 * m for x, m in zip(r.logps, r.mask, strict=True)))
        for r in rows
    ]
    wrong = replace(
        found,
        samples=tuple(
            replace(sample, sequences=(row,))
            for sample, row in zip(found.samples, shifted, strict=True)
        ),
    )
    before = [p.detach().clone() for p in learner.module.parameters()]
    with pytest.raises(SamplerMismatch, match="differ by"):
        learner.step(wrong)
    for expected, actual in zip(before, learner.module.parameters(), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.more
@EVERY_SHARDING
def test_packed_rows_of_any_length(ranks: int, sharding: Any) -> None:
    """Rows one after the other in one row, without padding: the update of one process."""
    settings: dict[str, Any] = {"layout": "packed", "token_budget": 25, "lr": 1e-3}
    one = Learner(copy.deepcopy(model("full")), GRPO, **settings)
    assert one.forward.layout == "packed"
    expected = trained(one, "full")
    module = copy.deepcopy(model("full"))
    many = FsdpLearner(module, GRPO, ranks=ranks, sharding=sharding, silence=300.0, **settings)
    try:
        assert_same(trained(many, "full"), expected, "full")
    finally:
        many.close()


@pytest.mark.slow
def test_chunks_of_logits(pair: Team) -> None:
    """A vocabulary so large that the log-probs of a micro-batch are computed in several chunks."""
    module = tiny_model("gpt2", vocab=2**20, hidden=4, dtype=torch.float64, pad_token_id=None)
    tokens = batch().tokens
    assert chunk_of(module.get_output_embeddings().weight) < tokens
    settings: dict[str, Any] = {"layout": "bucketed", "token_budget": 10**6, "lr": 1e-3}
    one = Learner(copy.deepcopy(module), GRPO, **settings)
    expected = one.step(batch())
    many = FsdpLearner(module, GRPO, team=pair, **settings)
    actual = many.step(batch())
    del expected["seconds"], actual["seconds"]
    assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)
    for want, got in zip(one.module.parameters(), many.module.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_an_error_on_all_ranks_is_the_error(pair: Team) -> None:
    """What a learner raises, this one raises, and its ranks live on."""
    learner = sharded(pair)
    with pytest.raises(RunError, match="advantage that is not finite"):
        learner.step(batch(), advantages=[float("nan")] * len(batch().samples))
    assert learner.step(batch())["updates"] == 1


def test_a_killed_rank_is_named_and_no_process_stays(pair: Team) -> None:
    learner = sharded(pair, restarts=0)
    pids = pair.pids
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(RanksLost, match=r"lost rank 1 \(process \d+\), which was ended by SIGKILL"):
        learner.step(batch())
    assert all(within(10, lambda pid=pid: ended(pid)) for pid in pids)
    with pytest.raises(RunError, match="have ended"):
        learner.step(batch())
    pair.open()


def state_after(
    learner: FsdpLearner, steps: int, kills: Mapping[int, int] = MappingProxyType({})
) -> Any:
    """Return the state after *steps* steps; before step k, rank ``kills[k]`` is killed."""
    for step in range(steps):
        if step in kills:
            os.kill(learner.team.pids[kills[step]], signal.SIGKILL)
        learner.step(batch())
    return copy.deepcopy(learner.state_dict())


def assert_equal(actual: Any, expected: Any) -> None:
    """Bit for bit."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_killed_ranks_start_again_where_they_were(
    pair: Team, caplog: pytest.LogCaptureFixture
) -> None:
    """From a copy and from the start: with every bit of weights, moments and reference."""
    expected = state_after(sharded(pair), 4)
    assert_equal(state_after(sharded(pair, copy_every=2), 4, kills={1: 0, 3: 1}), expected)
    lines = [record.getMessage() for record in caplog.records if "lost rank" in record.message]
    assert [re.findall(r"lost rank (\d)|repeat (\d)", line) for line in lines] == [
        [("0", ""), ("", "1")],
        [("1", ""), ("", "1")],
    ]


@pytest.mark.more
def test_what_was_loaded_is_what_killed_ranks_have(pair: Team) -> None:
    """No state from before comes back."""
    learner = sharded(pair)
    learner.step(batch())
    before = copy.deepcopy(learner.state_dict())
    learner.step(batch())
    learner.load_state_dict(before)
    os.kill(pair.pids[0], signal.SIGKILL)
    assert_equal(learner.state_dict(), before)


@pytest.mark.more
@pytest.mark.parametrize("updates", [1, 2])
def test_ranks_that_are_lost_while_they_copy_what_was_loaded_load_it_again(
    pair: Team, updates: int
) -> None:
    """The half of a copy that they leave is not read, in whichever of the two files it is."""
    learner = sharded(pair, copy_every=1)
    before = copy.deepcopy(learner.state_dict())
    for _ in range(updates):
        learner.step(batch())
    torn: list[Any] = []
    call = pair.call

    def called(command: str, *arguments: Any) -> Any:
        if command == "copy" and not torn:
            torn.extend((arguments[0], "reference"))
            for key in torn:
                file = pair._spares[1][key]
                file.write(b"half")
                file.truncate()
                file.flush()
            os.kill(pair.pids[1], signal.SIGKILL)
        return call(command, *arguments)

    pair.call = called  # type: ignore[method-assign]
    try:
        learner.load_state_dict(before)
    finally:
        del pair.call  # type: ignore[method-assign]
    assert torn
    assert_equal(learner.state_dict(), before)
    os.kill(pair.pids[0], signal.SIGKILL)
    assert_equal(learner.state_dict(), before)


@pytest.mark.more
def test_ranks_without_a_state_do_nothing_more(pair: Team) -> None:
    """They started again while they loaded what then could not be loaded."""
    learner = sharded(pair, copy_every=1)
    learner.step(batch())
    state = copy.deepcopy(learner.state_dict())
    call, calls = pair.call, []

    def called(command: str, *arguments: Any) -> Any:
        if command == "load":
            calls.append(command)
            if len(calls) == 2:
                raise OSError("the file is gone")
            os.kill(pair.pids[1], signal.SIGKILL)
        return call(command, *arguments)

    pair.call = called  # type: ignore[method-assign]
    try:
        with pytest.raises(OSError, match="the file is gone"):
            learner.load_state_dict(state)
    finally:
        del pair.call  # type: ignore[method-assign]
    try:
        with pytest.raises(RunError, match="have ended"):
            learner.step(batch())
    finally:
        pair.open()


@pytest.mark.more
def test_ranks_that_are_lost_again_and_again_end_the_run(pair: Team) -> None:
    learner = sharded(pair, restarts=2)
    start = pair.start

    def started(setup: Setup) -> None:
        start(setup)
        os.kill(pair.pids[1], signal.SIGKILL)

    pair.start = started  # type: ignore[method-assign]
    try:
        os.kill(pair.pids[1], signal.SIGKILL)
        with pytest.raises(RanksLost, match=r"may start again 2 times .*--resume"):
            learner.step(batch())
    finally:
        del pair.start  # type: ignore[method-assign]
        pair.open()


def test_without_copies_lost_ranks_end_the_run(pair: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take more than there is; no batches are kept, then, which ranks could repeat."""
    monkeypatch.setattr(Folder, "here", lambda: Folder(Path("/scratch"), 1000, False))
    try:
        learner = sharded(pair)
        with pytest.raises(RanksLost, match="no copy of their state"):
            state_after(learner, 2, kills={1: 1})
        assert not learner.team._since
    finally:
        pair.open()


def test_a_copy_takes_what_the_settings_say(pair: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, two moments and a reference model, here in float64, once in a group of ranks."""
    sizes: list[int] = []
    monkeypatch.setattr(
        "quintain_learners.fsdp.learner.updates_between", lambda every, size: sizes.append(size)
    )
    learner = sharded(pair)
    numbers = sum(p.numel() for p in learner.parameters)
    assert sizes == [4 * 8 * numbers]


@pytest.mark.more
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_costs_the_copies_alone(pair: Team, caplog: pytest.LogCaptureFixture) -> None:
    """The learner goes on and says what it means."""
    kept = pair._spares
    files = [Path("/dev/full").open("w+b") for _ in range(3)]  # noqa: SIM115 - `Spare` closes them
    spare = Spare(dict(zip((0, 1, "reference"), files, strict=True)))
    pair._spares = [spare, kept[1]]
    pair.open()
    try:
        with pytest.raises(RanksLost, match="no copy of their state"):
            state_after(sharded(pair, copy_every=1), 2, kills={1: 1})
        assert "No space left on device" in caplog.text
        assert "ends the run" in caplog.text
    finally:
        spare.close()
        pair._spares = kept
        pair.open()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.5])
def test_a_rank_killed_inside_a_step_is_named(delay: float) -> None:
    """In a collective too, where the other ranks would wait for it."""
    learner = sharded(silence=300.0, restarts=0)
    pids = learner.team.pids
    learner.step(batch())
    Timer(delay, os.kill, (pids[1], signal.SIGKILL)).start()
    with pytest.raises(RanksLost, match="lost rank 1 .* SIGKILL"):
        train_on(learner)
    assert all(within(10, lambda pid=pid: ended(pid)) for pid in pids)


@pytest.mark.slow
def test_a_stopped_rank_is_given_up() -> None:
    learner = sharded(silence=10.0, restarts=0)
    pids = learner.team.pids
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(RanksLost, match="rank 1 .* no sign of life"):
        learner.step(batch())
    assert all(within(10, lambda pid=pid: ended(pid)) for pid in pids)


@objective(idle=True)
def hangs(t: Any) -> Any:
    """An objective that never ends on rank 1."""
    if dist.get_rank() == 1:
        time.sleep(10_000)
    return t.ratio() * t.advantage


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_where() -> None:
    """It lives, and the other waits for it in a collective."""
    learner = FsdpLearner(
        copy.deepcopy(model("full")),
        GRPO.replace(objective=hangs),
        layout="bucketed",
        silence=10.0,
        restarts=0,
    )
    with pytest.raises(
        RanksLost, match=r"lost rank 1 .* done nothing .*test_learner.py:\d+ in hangs"
    ):
        learner.step(batch())


DRIVER = """
from tests.plugins.learners.fsdp.test_learner import batch, sharded
if __name__ == "__main__":
    learner = sharded(silence=300.0)
    print(*learner.team.pids, flush=True)
    while True:
        learner.step(batch())
"""


@pytest.mark.slow
def test_ranks_end_with_a_killed_driver(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    root = str(Path(__file__).parents[4])
    driver = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    # neither does one that is stopped stay, nor what has forked them
    os.kill(pids[1], signal.SIGSTOP)
    pids.append(int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1]))
    driver.kill()
    driver.communicate()
    assert len({*pids}) == 3
    assert all(within(30, lambda pid=pid: ended(pid)) for pid in pids)


@pytest.mark.more
@pytest.mark.parametrize(
    ("kind", "ranks", "sharding", "checkpointing"),
    [("qwen3", 2, "sharded", False)]
    + [
        pytest.param(kind, ranks, sharding, checkpointing, marks=pytest.mark.slow)
        for kind, checkpointing in (("qwen3", True), ("llama", False))
        for ranks, sharding in ((2, "sharded"), (3, "sharded"), (4, "hybrid"), (2, "replicated"))
    ],
)
def test_common_prompts_are_computed_once(
    kind: str, ranks: int, sharding: Any, checkpointing: bool
) -> None:
    """As one process does, also where weights are gathered layer by layer; with untied embeddings.
    The update is that of one process.
    """
    module = tiny_model(kind, vocab=24, hidden=16, dtype=torch.float64, tie_word_embeddings=False)
    settings: dict[str, Any] = {"token_budget": 40, "lr": 1e-3}
    settings["activation_checkpointing"] = checkpointing
    one = Learner(copy.deepcopy(module), GRPO, **settings)
    many = FsdpLearner(module, GRPO, ranks=ranks, sharding=sharding, silence=300.0, **settings)
    try:
        assert one.forward.layout == many.team.call("layout") == "shared"
        for _ in range(2):
            expected, actual = one.step(batch()), many.step(batch())
            del expected["seconds"], actual["seconds"]
            assert actual == pytest.approx(expected, rel=1e-10, abs=1e-10)
            assert actual["grad_norm"] > 0.01
        for want, got in zip(one.module.parameters(), many.module.parameters(), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    finally:
        many.close()


def test_an_adaptive_schedule_is_refused() -> None:
    with pytest.raises(UsageError, match="use ramp or cosine"):
        sharded(schedules={"kl.coefficient": {"adaptive": (0.1, 10.0)}})


def test_refusals() -> None:
    """What the ranks cannot do is refused before a process starts, and what to set instead."""
    module = tiny_model("gpt2", vocab=24, hidden=16)
    with pytest.raises(UsageError, match='precision = "bf16"'):
        FsdpLearner(module, GRPO, precision="fp16")
    for settings, message in (
        ({"ranks": 0}, "at least 1 rank"),
        ({"group": 2}, "needs 'hybrid'"),
        ({"ranks": 4, "sharding": "hybrid", "group": 3}, "divide the ranks"),
    ):
        with pytest.raises(UsageError, match=message):
            Fsdp(**settings)


def test_an_update_of_whole_weights_needs_them() -> None:
    """TRPO's step is refused where a rank has a part of the weights."""
    classic = pytest.importorskip("quintain_algorithms.classic")
    with pytest.raises(UsageError, match='learner.args.sharding = "replicated"'):
        FsdpLearner(tiny_model("gpt2", vocab=24, hidden=16), classic.TRPO, sharding="sharded")


def test_installed_algorithms_can_be_sent() -> None:
    """Pieces go by the place of their function, with their arguments."""
    import pickle

    from quintain_learners.fsdp.setup import packed

    for algorithm in INSTALLED.values():
        restored = pickle.loads(packed(algorithm))
        assert restored == algorithm


def with_critic(learner: Learner) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Train policy and critic in three steps; return metrics, and all weights."""
    classic = pytest.importorskip("quintain_algorithms.classic")
    critic = classic.Critic(learner=learner, lr=1e-3, epochs=2, minibatches=2)
    assert learner.algorithm is not None
    learner.serve(dict.fromkeys(learner.algorithm.advantage.needs.values(), critic))
    metrics = []
    for _ in range(3):
        values = learner.step(batch())
        metrics.append({name: value for name, value in values.items() if name != "seconds"})
    weights = {name: p.detach().clone() for name, p in learner.module.named_parameters()}
    return metrics, weights | {f"critic/{k}": v for k, v in critic.state()["weights"].items()}


@pytest.mark.more
@EVERY_SHARDING
def test_a_critic_and_its_policy_train_as_in_one_process(ranks: int, sharding: Any) -> None:
    """The critic is in the process of the run, and reads what the ranks made of the policy."""
    classic = pytest.importorskip("quintain_algorithms.classic")
    settings: dict[str, Any] = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3}
    expected, wanted = with_critic(Learner(copy.deepcopy(model("full")), classic.PPO, **settings))
    assert "critic.loss" in "".join(expected[0])
    module = copy.deepcopy(model("full"))
    many = FsdpLearner(
        module, classic.PPO, ranks=ranks, sharding=sharding, silence=300.0, **settings
    )
    try:
        metrics, weights = with_critic(many)
        for got, want in zip(metrics, expected, strict=True):
            assert got == pytest.approx(want, rel=1e-10, abs=1e-12)
        for name, value in wanted.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-10)
    finally:
        many.close()


@pytest.fixture
def own_log_level() -> Iterator[None]:
    """A rank silences the warnings of its process, which is here that of other tests."""
    log = logging.getLogger("quintain")
    before = log.level
    with warnings.catch_warnings():
        yield
    log.setLevel(before)


@pytest.mark.usefixtures("own_log_level")
def test_a_rank_whose_driver_left_an_answer_unread_ends_without_a_traceback() -> None:
    """The system then says that the connection was reset, not that it ended."""
    ours, theirs = Pipe()
    theirs.send(("done", None))
    ours.close()
    spare = Spare()
    serve(0, theirs, spare)
    spare.close()
    theirs.close()
