"""The server of `quintain watch`: what it answers, and to whom."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import main
from quintain.errors import UsageError
from quintain.store import RunFolder
from quintain_view.watch.replicas import replicas_of
from quintain_view.watch.server import WatchServer, page_text
from quintain_view.watch.state import workers_of
from quintain_view.watch.steering import waiting_orders

from .stored import make_stored


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_stored(place)
    return place


@pytest.fixture
def server(runs: Path) -> Iterator[WatchServer]:
    server = WatchServer(runs, price=2.0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join()


def call(
    server: WatchServer,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    **headers: str | None,
) -> tuple[int, Any, Mapping[str, str]]:
    """Send a request with the token, and headers changed (``None`` leaves one out)."""
    names = {"host": f"127.0.0.1:{server.port}", "authorization": f"Bearer {server.token}"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in (names | headers).items():
        if value is not None:
            connection.putheader(name, value)
    if body is not None:
        connection.putheader("content-length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    html = answer.headers["Content-Type"].startswith("text/html")
    return answer.status, text.decode() if html else json.loads(text), answer.headers


def test_it_listens_at_this_machine_alone(server: WatchServer) -> None:
    """No other address of the machine leads here."""
    assert server._server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example:{port}", "127.0.0.1", "0.0.0.0:{port}", "", None])
@pytest.mark.parametrize("path", ["/", "/api/runs"])
def test_a_name_that_leads_here_gets_nothing(
    server: WatchServer, path: str, host: str | None
) -> None:
    """DNS rebinding: the token does not help a page whose address is another one."""
    host = host and host.format(port=server.port)

    status, answer, _ = call(server, path, host=host)

    assert status == 403
    assert list(answer) == ["error"]


def test_the_page_of_another_site_gets_nothing(server: WatchServer) -> None:
    """A request that says that it comes from elsewhere is refused, also with the right host."""
    assert call(server, "/api/runs", origin="https://evil.example")[0] == 403
    assert call(server, "/api/runs", origin=f"http://127.0.0.1:{server.port}")[0] == 200
    assert call(server, "/api/runs", host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("authorization", [None, "", "Bearer ", "Bearer wrong", "Bearer ü"])
@pytest.mark.parametrize("path", ["/api/runs", "/api/runs/sums", "/api/runs/sums/rollouts"])
def test_data_needs_the_token(server: WatchServer, path: str, authorization: str | None) -> None:
    """Another program of this machine gets no data, and no order is taken from it."""
    assert call(server, path, authorization=authorization)[0] == 401
    order = b'{"action": "stop"}'
    posted = call(
        server, "/api/runs/sums/steer", method="POST", body=order, authorization=authorization
    )
    assert posted[0] == 401


def test_the_page_may_load_nothing(server: WatchServer) -> None:
    """Its policy allows its own script and style by digest, and requests to this server."""
    status, text, headers = call(server, "/", authorization=None)

    policy = headers["Content-Security-Policy"]
    assert status == 200
    assert server.token not in text
    assert policy == page_text()[1]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "https://" not in text
    assert "@import" not in text
    assert "url(" not in text


def test_the_state_of_a_replica_is_that_of_now(tmp_path: Path) -> None:
    """What the run wrote last about each; half a line is left out."""
    records = [
        (0, "dead", "killed"),
        (1, "dead", "x"),
        (2, "leaving", "removed"),
        (1, "healthy", ""),
    ]
    records += [(2, "removed", "removed"), (0, "given up", "no memory")]
    lines = [
        json.dumps({"time": "t", "replica": number, "state": state, "why": why})
        for number, state, why in records
    ]
    (tmp_path / "replicas.jsonl").write_text("\n".join([*lines, '{"replica": 0, "st']))

    found = {w["name"]: w["state"] for w in workers_of(tmp_path, 1)}
    assert found == {"replica 0": "given up: no memory"}
    assert [(r["replica"], r["state"]) for r in replicas_of(tmp_path)] == [
        (0, "given up"),
        (1, "healthy"),
        (2, "removed"),
    ]


def test_a_run_is_answered_in_parts(server: WatchServer) -> None:
    """Its state with new metrics only, its rollouts by page, one rollout, and one step."""
    status, state, _ = call(server, "/api/runs/sums?after=14")
    assert status == 200
    assert [m["step"] for m in state["metrics"]] == [15, 16]
    (alert,) = [a for a in state["alerts"] if a["name"] == "entropy_collapse"]
    assert alert["first"] == 13
    assert alert["on"] is True
    assert alert["metrics"] == ["entropy.sampled", "success"]
    assert state["cost"]["money"] == pytest.approx(2.0 * 48 / 3600)
    assert {w["name"]: w["state"] for w in state["workers"]} == {
        "replica 0": "works",
        "replica 1": "works",
    }
    assert state["steering"][0]["steering"] == {"concurrency": 8}

    _, page, _ = call(server, "/api/runs/sums/rollouts?result=wrong&order=oldest&limit=3")
    assert page["total"] == 48
    assert [row["step"] for row in page["rows"]] == [1, 1, 1]
    row = page["rows"][0]
    _, view, _ = call(server, f"/api/runs/sums/rollouts/{row['step']}/{row['row']}")
    assert view["result"] == "wrong"
    _, step, _ = call(server, "/api/runs/sums/timeline/16")
    assert step["waits"][0]["label"] == "tool search"
    assert step["seconds"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/none", 400),
        ("/api/runs/..%2F..%2Fetc", 400),
        ("/api/runs/..", 400),
        ("/api/runs/sums/rollouts?order=random", 400),
        ("/api/runs/sums/rollouts?low=abc", 400),
        ("/api/runs/sums/timeline/3", 400),
        ("/api/runs/sums/rollouts/1/999", 404),
        ("/api/other", 404),
        ("/favicon.ico", 404),
    ],
)
def test_what_is_not_there_is_an_error(server: WatchServer, path: str, status: int) -> None:
    """Nothing outside of the folder of runs is read, and a mistake has a message."""
    found, answer, _ = call(server, path)

    assert found == status
    assert list(answer) == ["error"]


def test_orders_reach_a_run_that_runs(tmp_path: Path) -> None:
    """An order becomes a file of the run; a run that has ended takes none."""
    folder = make_stored(tmp_path, steps=1)
    server = WatchServer(tmp_path)
    order = b'{"action": "concurrency", "value": 5}'
    with pytest.raises(UsageError, match="does not run"):
        server.steer("sums", order)

    with RunFolder.open(folder):
        assert server.steer("sums", order) == {"given": "concurrency"}
        numbers = (b"1.5", b"NaN", b"Infinity", b"true", b"0", b'"5"', b"[1]")
        wrong_numbers = (b'{"action": "concurrency", "value": %b}' % n for n in numbers)
        others = (b"", b"[]", b'{"action": "rm"}', b'{"action": "stop", "value": 3}', b"[" * 9000)
        for wrong in (*others, *wrong_numbers):
            with pytest.raises(UsageError):
                server.steer("sums", wrong)
    server._server.server_close()

    ((_, given),) = waiting_orders(folder)
    assert given.action == "concurrency"
    assert given.value == 5


def test_a_large_body_is_refused(server: WatchServer) -> None:
    """Nobody fills the memory through the page."""
    status, answer, _ = call(server, "/api/runs/sums/steer", method="POST", body=b"x" * 10_001)

    assert status == 413
    assert answer["error"] == "an order has at most 10000 bytes"


@pytest.mark.parametrize("path", ["timeline/{}", "rollouts/{}/0", "rollouts/1/{}"])
def test_a_step_of_5000_digits_is_nowhere(path: str, server: WatchServer) -> None:
    status, _, _ = call(server, f"/api/runs/sums/{path.format('9' * 5000)}")
    assert status == 404


def test_a_length_of_5000_digits_is_refused(server: WatchServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = f"POST /api/runs/sums/steer HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        head += f"Authorization: Bearer {server.token}\r\nContent-Length: {'9' * 5000}\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(1000).splitlines()[0]


def test_the_command_prints_its_address_and_ends(runs: Path) -> None:
    """The address that it prints answers with data, and Ctrl-C ends it without a traceback."""
    words = [sys.executable, "-m", "quintain", "watch", "sums", "--folder", str(runs)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = process.stderr.readline().strip()
        base, _, token = address.partition("/#token=")
        request = urllib.request.Request(
            f"{base}/api/runs", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            found = json.load(answer)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert base.startswith("http://127.0.0.1:")
    assert found["first"] == ["sums"]
    assert found["runs"][0]["name"] == "sums"
    assert process.returncode == 0
    assert rest.strip() == "Ctrl-C ends it"


def test_runs_of_two_folders_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page shows one folder."""
    folders = [make_stored(tmp_path / place, "sums", steps=1) for place in ("a", "b")]

    assert main(["watch", *map(str, folders)]) == 2
    assert "the runs of a page lie in one folder" in capsys.readouterr().err


def test_a_taken_port_is_named(server: WatchServer, runs: Path) -> None:
    """The message says what to do."""
    with pytest.raises(UsageError, match=f"port {server.port} of 127.0.0.1"):
        WatchServer(runs, port=server.port)
