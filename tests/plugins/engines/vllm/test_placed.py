"""Servers of vLLM that a cluster starts: here one of processes of this machine."""

from __future__ import annotations

import os
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: bash tools/vllm_env.sh")

from quintain import Sampling
from quintain_engines.placed import SERVER_FOLDER
from quintain_engines.vllm.guard import FILE
from quintain_engines.vllm.server import VLLMServer
from quintain_scale.schedules import EnginePool

from ....core.models.tiny import save_tiny, tiny_model
from ....integration.test_run_plan import HERE, metrics, recipe, run
from ....local_cluster import LocalCluster
from .kit import TOKENIZER, Running, adapted, adapters_arrive, prompts
from .test_pool import is_exact
from .test_sync import Other

pytestmark = [pytest.mark.filterwarnings("default")]  # vLLM's own
CALLS = [(ids, Sampling(seed=i, max_tokens=20)) for i, ids in enumerate(prompts(4))]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    cluster = LocalCluster()
    started = Running(
        tiny_model(hidden=128),
        EnginePool,
        engine="vllm-server",
        count=1,
        backoff=0.0,
        cluster=cluster,
    )
    yield started
    started.close()
    assert cluster.running == []
    cluster.close()


def server(running: Running) -> VLLMServer:
    (replica,) = running.engine._replicas
    assert isinstance(replica, VLLMServer)
    return replica


def test_its_tokens_are_exact_after_an_update(running: Running) -> None:
    model = tiny_model(hidden=128, seed=1)
    running.do(running.engine.update(Other(model, 1)))
    for out, (ids, _) in zip(running.sample(*CALLS), CALLS, strict=True):
        assert is_exact(out, model, ids, 1)


def test_nobody_else_is_answered(running: Running) -> None:
    """On no route: not those of vLLM that take weights, nor the one that takes a file."""
    url = server(running)._url
    for method, path in (("GET", "/health"), ("POST", "/update_weights"), ("PUT", FILE)):
        request = urllib.request.Request(f"{url}{path}", method=method, data=b"{}")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=30)


def test_a_file_stays_in_memory_until_the_next_call(running: Running, tmp_path: Any) -> None:
    (tmp_path / "weights").write_bytes(b"x" * 3_000_000)
    there = running.do(server(running)._put(tmp_path / "weights"))
    with open(there, "rb") as file:
        assert file.read() == b"x" * 3_000_000
    running.do(server(running)._put(None))
    assert not os.path.exists(there)


def test_a_server_that_is_killed_comes_back_with_the_weights_of_now(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At another port, and no turn is lost: all wait for it."""
    monkeypatch.setattr(TOKENIZER, "stop_ids", ())
    model = tiny_model(hidden=128, seed=2)
    running.do(running.engine.update(Other(model, 2)))
    first = server(running)
    assert first._placed is not None
    os.kill(first._placed.pid, signal.SIGKILL)
    for out, (ids, _) in zip(running.sample(*CALLS), CALLS, strict=True):
        assert is_exact(out, model, ids, 2)
    assert server(running) is not first


def test_adapters_alone_reach_it() -> None:
    """In the place of those before, of which the last ones stay. Nothing is left of them at the end."""
    cluster = LocalCluster()
    options = {"engine": "vllm-server", "count": 1, "settings": {"adapters": True}}
    alone = Running(adapted(), EnginePool, **options, cluster=cluster)
    try:
        for version in range(1, 4):
            adapters_arrive(alone, CALLS[0][0], version)
        placed = server(alone)._placed
        assert placed is not None
        variables = Path(f"/proc/{placed.pid}/environ").read_text().split("\0")
        (folder,) = (
            Path(text.partition("=")[2]) for text in variables if text.startswith(SERVER_FOLDER)
        )
        assert len([one for one in folder.iterdir() if one.is_dir()]) == 2
    finally:
        alone.close()
        cluster.close()
    assert not folder.exists()


def test_ray_starts_it_again_when_its_actor_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Ray of its own. Its server has the weights of now before it takes a turn."""
    pytest.importorskip("ray", reason="needs Ray: pip install ray")
    from quintain_scale.ray import Ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    place = tempfile.TemporaryDirectory(prefix="q-", dir="/tmp")  # the path of a socket is short
    monkeypatch.setenv("RAY_TMPDIR", place.name)
    cluster = Ray()
    model = tiny_model(hidden=128)
    options = {"engine": "vllm-server", "count": 1, "backoff": 0.0, "cluster": cluster}
    try:
        running = Running(model, EnginePool, **options)
        try:
            other = tiny_model(hidden=128, seed=3)
            running.do(running.engine.update(Other(other, 1)))
            first = server(running)
            assert first._placed is not None
            stat = Path(f"/proc/{first._placed.pid}/stat").read_text()
            keeper = Path(f"/proc/{stat.rpartition(')')[2].split()[1]}/stat").read_text()
            os.kill(int(keeper.rpartition(")")[2].split()[1]), signal.SIGKILL)
            for out, (ids, _) in zip(running.sample(*CALLS), CALLS, strict=True):
                assert is_exact(out, other, ids, 1)
            assert server(running) is not first
        finally:
            running.close()
    finally:
        cluster.close()
        place.cleanup()


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_ray_places_a_whole_run_on_several_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks, servers of vLLM and episode processes; a server is killed in the second step. Every
    turn is by the weights of its step, as the log-probs of the ranks say.
    """
    ray = pytest.importorskip("ray", reason="needs Ray: pip install ray")
    from ray.cluster_utils import Cluster

    from ...scale.ray.test_ranks import NODE, node_of

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **NODE})
    placed: dict[str, set[str]] = {}
    update = EnginePool.update

    async def then_lose(self: EnginePool, weights: Any) -> int:
        version = await update(self, weights)
        pids = [replica._placed.pid for replica in self._replicas if replica._placed is not None]
        placed.setdefault("replica", set()).update(node_of(pid) for pid in pids)
        if version == 1:
            os.kill(pids[0], signal.SIGKILL)
        return version

    monkeypatch.setattr(EnginePool, "update", then_lose)
    pool = {"engine": "vllm-server", "count": 2, "backoff": 0.0, "slots": 16}
    told = recipe(
        save_tiny(tmp_path / "model", hidden=128),
        {},
        environments=[{"use": f"{HERE}/babble.py:Varied"}],
        run={"steps": 3},
        evaluation={"every": 0, "test": {"tasks": 0}},
        learner={"use": "fsdp", "lr": 1e-2, "args": {"ranks": 2}},
        engine={"use": "pool", "args": pool},
        workers={"episodes": 2},
        cluster={"use": "ray", "args": {"address": nodes.address, "strategy": "SPREAD"}},
    )
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=4, **NODE)
        run(tmp_path / "run", told)
    finally:
        ray.shutdown()
        nodes.shutdown()
    steps = metrics(tmp_path / "run")[1:]
    assert [(m["updates"], m["staleness.max"]) for m in steps] == [(1, 0)] * 3
    assert all(0 < m["mismatch.sample"] < 1e-4 for m in steps)
    assert len(placed["replica"]) == 2
