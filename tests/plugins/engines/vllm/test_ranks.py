"""Several ranks train, and a server of vLLM samples: after every step it has the weights that the
ranks have made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")

from quintain import Sampling
from quintain_engines.vllm import VLLMServer

from ....core.models.tiny import save_tiny
from ....integration.test_run_plan import HERE, metrics, recipe, run
from .kit import Running, adapted, plain_logps

pytestmark = [
    pytest.mark.filterwarnings("default"),  # vLLM's own
    pytest.mark.usefixtures("no_curves"),
]
IDS = [(7 * i) % 256 for i in range(60)]
STEPS = 3


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that takes all weights and adapters, and starts with the weights of `save_tiny`."""
    started = Running(adapted(), VLLMServer, adapters=True)
    yield started.engine._url
    started.close()


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[float]]:
    """The engine's log-probs of one text by version. After each update they, and those of a sample,
    are compared with a plain forward of the learner's module.
    """
    by_version: dict[int, list[float]] = {}
    update = VLLMServer.update

    async def compared(self: VLLMServer, weights: Any) -> int:
        version = await update(self, weights)
        out = await self.sample(IDS, Sampling(seed=1, max_tokens=20))
        assert out.versions == (weights.version,) * len(out.ids)
        expected = plain_logps(weights.module, IDS, out.ids)
        assert list(out.logps) == pytest.approx(expected, abs=1e-4)
        by_version[version] = await self.score(IDS, 1)
        expected = plain_logps(weights.module, IDS[:1], IDS[1:])
        assert by_version[version] == pytest.approx(expected, abs=1e-4)
        return version

    monkeypatch.setattr(VLLMServer, "update", compared)
    return by_version


# The adapters come first: they belong to the weights that the server starts with.
@pytest.mark.parametrize("trains", ["adapters", "all weights"])
def test_the_server_has_the_weights_of_the_ranks(
    trains: str, url: str, scores: dict[int, list[float]], tmp_path: Path
) -> None:
    """The module is that of the run's process. The ranks score each batch with their own weights,
    and say how far the log-probs of the server are from theirs.
    """
    alone = trains == "adapters"
    told = recipe(
        save_tiny(tmp_path / "model", hidden=128),
        {},
        environments=[{"use": f"{HERE}/babble.py:Varied"}],
        run={"steps": STEPS},
        evaluation={"every": 0, "test": {"tasks": 0}},
        learner={"use": "fsdp", "lr": 1e-2, "args": {"ranks": 2}},
        engine={"use": "vllm-server", "args": {"url": url, "slots": 16, "adapters": alone}},
        **({"model__lora": {"r": 5, "lora_alpha": 7}} if alone else {}),
    )
    run(tmp_path / "run", told)
    assert list(scores) == list(range(STEPS + 1))
    for version in range(STEPS):
        pairs = zip(scores[version], scores[version + 1], strict=True)
        assert max(abs(before - after) for before, after in pairs) > 1e-2
    steps = metrics(tmp_path / "run")[1:]
    assert [(m["updates"], m["staleness.max"]) for m in steps] == [(1, 0)] * STEPS
    assert all(0 < m["mismatch.sample"] < 1e-4 for m in steps)
