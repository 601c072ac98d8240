"""What a server of vLLM on a cluster answers and takes, and which settings reach it. Needs no vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.recipe.extends import bundled_text
from quintain.recipe.plan import RunPlan
from quintain.recipe.tables import Recipe
from quintain_engines.placed import SERVER_FOLDER, SERVER_TOKEN, pack_folder
from quintain_engines.vllm.guard import FILE, FOLDER, RunOnly
from quintain_engines.vllm.server import VLLMServer, gpus_of
from quintain_engines.vllm.settings import ServerSettings
from quintain_scale.schedules import EnginePool

from ....docs.pages import page

HEADERS = [(b"authorization", b"Bearer secret")]


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> RunOnly:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    monkeypatch.setenv(SERVER_TOKEN, "secret")
    return RunOnly(app)


def asked(
    guard: RunOnly, path: str, *parts: Mapping[str, Any], method: str = "PUT", **scope: Any
) -> list[Any]:
    coming, sent = list(parts), []

    async def receive() -> Any:
        return coming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message.get("status", message.get("body")))

    whole = {"type": "http", "path": path, "method": method, "headers": HEADERS, **scope}
    asyncio.run(guard(whole, receive, send))
    return sent


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize("path", [FILE, FOLDER, "/health", "/update_weights"])
@pytest.mark.parametrize("headers", [[], [(b"authorization", b"Bearer guessed")]])
def test_who_has_no_token_is_refused(guard: RunOnly, path: str, headers: Any) -> None:
    assert asked(guard, path, headers=headers)[0] == 401
    assert asked(guard, path, headers=headers, type="websocket")[0] == 401


def test_other_routes_are_those_of_vllm(guard: RunOnly) -> None:
    assert asked(guard, "/health") == [204]
    assert asked(guard, "", type="lifespan", headers=None) == [204]


def test_a_file_has_what_came_until_the_next(guard: RunOnly) -> None:
    before = len(os.listdir("/proc/self/fd"))
    status, answer = asked(guard, FILE, part(b"first ", more=True), part(b"half", more=False))
    path = answer.decode().split('"')[3]
    with open(path, "rb") as file:
        assert status == 200
        assert file.read() == b"first half"
    assert asked(guard, FILE, method="DELETE") == [200, b'{"path": ""}']
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_last_two_folders_stay(
    guard: RunOnly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the files that came. Of the archive nothing stays."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    monkeypatch.setenv(SERVER_FOLDER, str(tmp_path / "theirs"))
    before, folders = len(os.listdir("/proc/self/fd")), []
    for version in range(3):
        (tmp_path / "ours" / "adapter").write_text(str(version))
        archive = pack_folder(tmp_path / "ours")
        _, answer = asked(
            guard, FOLDER, part(archive[:99], more=True), part(archive[99:], more=False)
        )
        folders.append(Path(json.loads(answer)["path"]))
        assert (folders[-1] / "adapter").read_text() == str(version)
    assert {*(tmp_path / "theirs").iterdir()} == {*folders[1:]}
    assert len(os.listdir("/proc/self/fd")) == before


def test_of_half_a_file_nothing_stays(guard: RunOnly) -> None:
    before = len(os.listdir("/proc/self/fd"))
    gone = {"type": "http.disconnect"}
    assert asked(guard, FILE, part(b"first ", more=True), gone) == [200, b'{"path": ""}']
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"transport": "ipc"}, "reaches the GPU of the learner alone"),
        ({"transport_args": {"folder": "/mnt"}}, "leave transport_args out"),
    ],
)
def test_weights_that_would_not_arrive_are_refused(settings: Any, why: str) -> None:
    """Before anything starts, also in a pool; a server at a URL is none of the cluster's."""
    with pytest.raises(UsageError, match=why):
        VLLMServer.places(settings)
    with pytest.raises(UsageError, match=why):
        EnginePool.places({"engine": "vllm-server", "settings": settings})
    assert not VLLMServer.places({"url": "http://a:8000", **settings})
    assert VLLMServer.places({"transport": "nccl", "transport_args": {"address": "10.0.0.1"}})
    assert VLLMServer.places({"adapters": True})


@pytest.mark.parametrize(
    ("options", "on_cpu", "gpus"),
    [
        ({}, False, 1),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, False, 8),
        ({"tensor_parallel_size": 4}, True, 0),
    ],
)
def test_a_server_asks_for_a_gpu_for_each_worker(
    monkeypatch: pytest.MonkeyPatch, options: Any, on_cpu: bool, gpus: int
) -> None:
    platform = SimpleNamespace(is_cpu=lambda: on_cpu)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    platforms = SimpleNamespace(current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    assert gpus_of(ServerSettings(options=options)) == gpus


def test_what_starts_no_server_gets_no_cluster() -> None:
    def plan(*settings: str) -> RunPlan:
        return RunPlan.of(Recipe.parse(bundled_text("quickstart"), ["cluster.use=ray", *settings]))

    pytest.importorskip("quintain_scale.ray")
    nothing = r"\[cluster\].*learner 'quintain/torch' starts none there, nor does engine"
    at_url = 'engine.args={engine = "vllm-server", replicas = [{url = "http://a:8000"}]}'
    for settings in (["engine.use=pool"], ["engine.use=pool", at_url]):
        with pytest.raises(UsageError, match=nothing):
            plan(*settings)
    servers = 'engine.args={engine = "vllm-server"}'
    assert plan("engine.use=vllm-server").cluster is not None
    assert plan("engine.use=pool", servers).cluster is not None


def test_the_recipe_of_the_page_is_planned() -> None:
    """docs/vllm.md, "Servers on a cluster"."""
    pytest.importorskip("quintain_scale.ray")
    (block,) = [b for b in page("docs/vllm.md").blocks if "[cluster]" in b.text]
    plan = RunPlan.of(Recipe.parse(f'extends = "quickstart"\n{block.text}'))
    assert plan.cluster is not None
    assert plan.engine.kind.places(plan.engine.args)
