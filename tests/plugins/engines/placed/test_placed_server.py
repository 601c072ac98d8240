"""A server that a cluster starts: it says where it listens, has its files and its token, and ends
with the run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import RunError
from quintain_engines.placed import SERVER_TOKEN, PlacedServer

from ....local_cluster import LocalCluster, LocalProcess

ECHO = """
import json, os, socket, sys
host, port, folder, token = sys.argv[1], int(sys.argv[2]), sys.argv[3], os.environ[sys.argv[4]]
with socket.create_server((host, port)) as listening:
    while True:
        peer, _ = listening.accept()
        told = {name: open(f"{folder}/{name}").read() for name in sorted(os.listdir(folder))}
        peer.sendall(json.dumps({"files": told, "token": token, "folder": folder}).encode())
        peer.close()
"""
WORDS = ["-c", ECHO, "{host}", "{port}", "{folder}", SERVER_TOKEN]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    started = LocalCluster()
    yield started
    started.close()


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 60))


async def asked(server: PlacedServer) -> Any:
    while True:
        try:
            reader, writer = await asyncio.open_connection(server.host, server.port)
        except ConnectionRefusedError:  # it has not begun to listen
            await asyncio.sleep(0.01)
            continue
        answer = await reader.read()
        writer.close()
        return json.loads(answer)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(wanted: Callable[[], bool]) -> None:
    while not wanted():  # noqa: ASYNC110 -- another process is waited for
        await asyncio.sleep(0.01)


def test_it_says_where_it_listens_and_has_its_files(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    async def work() -> None:
        server = await PlacedServer(cluster).start(WORDS, folder=tmp_path, patience=30)
        told = await asked(server)
        assert told["files"] == {"config.json": "{}"}
        assert told["token"] == server.token
        assert server.address == f"127.0.0.1:{server.port}"
        (placed,) = cluster.placed
        assert placed.request.role == "replica"
        assert placed.request.restarts is False
        assert server.token not in " ".join(placed.request.words)
        assert server.token not in repr(placed.request)
        await server.close()
        assert not lives(server.pid)
        assert os.path.basename(told["folder"]) not in os.listdir(os.path.dirname(told["folder"]))
        assert cluster.running == []

    run(work)


@pytest.mark.parametrize("whom", ["server", "keeper"])
def test_whoever_is_killed_it_is_gone_and_nothing_stays(cluster: LocalCluster, whom: str) -> None:
    async def work() -> None:
        server = await PlacedServer(cluster).start(WORDS, patience=30)
        await asked(server)
        placed = cluster.placed[0]
        assert isinstance(placed, LocalProcess)
        os.kill(server.pid if whom == "server" else placed.process.pid, signal.SIGKILL)
        await until(lambda: server.is_gone and not lives(server.pid))
        said = await server.last_words()
        assert said.startswith("exit code 137" if whom == "server" else "exit code -9")
        await server.close()

    run(work)


def test_a_keeper_that_is_told_to_end_ends_what_the_server_has_started(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """As by the machine of a run that was killed."""
    file = tmp_path / "child"
    code = (
        "import subprocess\n"
        f"open({str(file)!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid) + '.')\n"
    )

    async def work() -> None:
        server = await PlacedServer(cluster).start(["-c", code + ECHO, *WORDS[2:]], patience=30)
        await asked(server)
        await until(lambda: file.exists() and file.read_text().endswith("."))
        placed = cluster.placed[0]
        assert isinstance(placed, LocalProcess)
        placed.process.terminate()
        await until(lambda: not lives(server.pid) and not lives(int(file.read_text()[:-1])))
        await server.close()

    run(work)


def test_one_that_does_not_start_says_why(cluster: LocalCluster) -> None:
    async def work() -> None:
        words = ["-c", "import sys; sys.exit('no GPU here')"]
        server = await PlacedServer(cluster).start(words, patience=30)  # it had a port
        await until(lambda: server.is_gone)
        assert "no GPU here" in await server.last_words()
        await server.close()

    run(work)


def test_a_process_that_ends_before_it_has_a_port_ends_the_start(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="ended before it had a port: exit code 1"):
        run(lambda: PlacedServer(cluster).start(WORDS, patience=30))


def test_without_room_it_says_so(cluster: LocalCluster) -> None:
    cluster.room = 0
    with pytest.raises(RunError, match="no server within 0.1 s, for which it has no room"):
        run(lambda: PlacedServer(cluster).start(WORDS, patience=0.1))


def test_a_peer_without_the_token_is_no_server() -> None:
    """And does not keep the server from coming."""

    class Late(LocalCluster):
        def start(self, requests: Any) -> Any:
            (request,) = requests
            host, port = request.words[2].split(":")
            impostor = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "quintain_engines.placed.keeper",
                    f"{host}:{port}",
                    "-c",
                    "",
                ],
                env=os.environ | {SERVER_TOKEN: "guessed"},
                capture_output=True,
                text=True,
                timeout=30,
            )
            assert "does not know this server" in impostor.stderr
            return super().start(requests)

    cluster = Late()

    async def work() -> None:
        server = await PlacedServer(cluster).start(WORDS, patience=30)
        assert (await asked(server))["token"] == server.token
        await server.close()

    run(work)
    cluster.close()


def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    class Slow(LocalCluster):
        def start(self, requests: Any) -> Any:
            time.sleep(0.2)
            return super().start(requests)

    slow = Slow()

    async def work() -> None:
        starting = asyncio.create_task(PlacedServer(slow).start(WORDS, patience=30))
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert [type(placed) for placed in slow.placed] == [LocalProcess]
        assert slow.running == []

    run(work)
    slow.close()


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    """Also when that is killed."""
    script = tmp_path / "run.py"
    script.write_text(
        "import asyncio\n"
        "from quintain_engines.placed import PlacedServer\n"
        "from tests.plugins.engines.placed.test_placed_server import WORDS, asked\n"
        "from tests.local_cluster import LocalCluster\n"
        "async def main():\n"
        "    server = await PlacedServer(LocalCluster()).start(WORDS, patience=30)\n"
        "    await asked(server)\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[4]
    environment = os.environ | {"PYTHONPATH": str(root)}
    owner = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert lives(pid)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    run(lambda: until(lambda: not lives(pid)))
