"""On the learner's GPU the engine sleeps while the learner computes. vLLM frees no memory of a CPU:
here the engine forgets its weights in earnest at level 2, and the rest of the calls to vLLM is
recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")

import torch

from quintain import Sampling
from quintain.errors import UsageError
from quintain.learning import ModuleWeights
from quintain_engines.vllm import VLLMEngine, WeightSyncError
from quintain_engines.vllm.base import SyncedEngine
from quintain_engines.vllm.transports import Memory

from ....core.models.tiny import save_tiny, tiny_model
from ....integration.test_run_plan import metrics, recipe, run
from .kit import TOKENIZER, Running, plain_logps

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own
IDS = [(7 * i) % 256 for i in range(60)]
NAP = {1: ["sleep 1", "wake all"], 2: ["sleep 2", "wake weights", "send 0", "wake kv_cache"]}
UPDATED = ["wake weights", "send 1", "wake kv_cache"]


def forget(engine: Any) -> None:
    """Overwrite the weights, as a sleep of level 2 drops them."""
    worker = engine.engine_core.engine_core.model_executor.driver_worker.worker
    with torch.no_grad():
        for parameter in worker.model_runner.get_model().parameters():
            parameter.normal_()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to sleep, to wake up and to transfer weights, of engines that are made in the
    test.
    """
    made: list[str] = []
    args, transfer = SyncedEngine._engine_args, Memory.transfer

    def fall_asleep(self: VLLMEngine, level: int) -> None:
        made.append(f"sleep {level}")
        self._engine.pause(True).result()
        if level == 2:
            self._engine.call(forget).result()

    async def wake_up(self: VLLMEngine, part: str = "") -> None:
        made.append(f"wake {part or 'all'}")

    async def recorded(self: Memory, control: Any, tensors: Any, version: int) -> None:
        made.append(f"send {version}")
        await transfer(self, control, tensors, version)

    monkeypatch.setattr(VLLMEngine, "_can_sleep", lambda self: self.settings.sleep_mode)
    monkeypatch.setattr(
        VLLMEngine,
        "_engine_args",
        lambda self, more: {**args(self, more), "enable_sleep_mode": False},
    )
    monkeypatch.setattr(VLLMEngine, "_fall_asleep", fall_asleep)
    monkeypatch.setattr(VLLMEngine, "_wake_up", wake_up)
    monkeypatch.setattr(Memory, "transfer", recorded)
    return made


def compute(model: Any) -> None:
    """A forward pass of the learner: the body of the model, as log-probs are computed in
    training.
    """
    with torch.no_grad():
        model.base_model(torch.tensor([IDS]))


def change(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)


def exact(running: Running, version: int) -> None:
    """The engine samples with the present weights of the module, whose own forward would be the
    learner's.
    """
    (out,) = running.sample((IDS, Sampling(seed=1, max_tokens=10)))
    model = tiny_model(hidden=128)
    model.load_state_dict(running.model.state_dict())
    assert out.versions == (version,) * len(out.ids)
    assert list(out.logps) == pytest.approx(plain_logps(model, IDS, out.ids), abs=1e-4)


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_while_the_learner_computes(calls: list[str], level: int) -> None:
    """From the first forward pass of a step up to the update; a call wakes it before. The canary is
    no learner.
    """
    running = Running(tiny_model(hidden=128), sleep_mode=True, sleep_level=level)
    try:
        assert calls == ["send 0"]
        exact(running, 0)
        compute(running.model)
        compute(running.model)
        assert calls[1:] == NAP[level][:1]
        exact(running, 0)  # such as a baseline that is sampled before the step
        assert calls[1:] == NAP[level]
        compute(running.model)
        change(running.model)
        if level == 2:
            with pytest.raises(WeightSyncError, match="the learner's are newer"):
                running.sample((IDS, Sampling(max_tokens=1)))
        running.do(running.engine.update(ModuleWeights(running.model, 1)))
        assert calls[1:] == [*NAP[level], f"sleep {level}", *UPDATED]
        exact(running, 1)
    finally:
        running.close()
    compute(running.model)
    assert calls[-1] == "wake kv_cache"


def test_level_2_keeps_no_frozen_weights() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        tiny_model(), peft.LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with pytest.raises(UsageError, match="drops the frozen weights"):
        VLLMEngine.sharing(model, TOKENIZER, adapters=True, sleep_level=2)


@pytest.mark.parametrize("schedule", ["sync", "one_step_off"])
def test_a_run_sleeps_if_nothing_is_sampled_meanwhile(
    calls: list[str], tmp_path: Path, schedule: str
) -> None:
    """In the synchronous schedule, once per step; with others the engine has turns to sample."""
    model = save_tiny(tmp_path / "model", hidden=128)
    engine = {"use": "vllm", "args": {"sleep_mode": True, "slots": 16}}
    run(
        tmp_path / "run",
        recipe(model, {}, run={"steps": 2}, engine=engine, schedule={"use": schedule}),
    )
    records = metrics(tmp_path / "run")
    assert [record["step"] for record in records] == [0, 1, 2]
    if schedule == "sync":  # else no sample may be of the present version
        assert all(record["mismatch.sample"] < 1e-3 for record in records[1:])
    steps = [
        call for v in (1, 2) for call in ("sleep 1", "wake weights", f"send {v}", "wake kv_cache")
    ]
    assert calls == ["send 0", "send 0", *(steps if schedule == "sync" else ["send 1", "send 2"])]
