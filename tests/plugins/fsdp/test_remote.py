"""Ranks that something else has started: on this machine, and in another network namespace."""

from __future__ import annotations

import copy
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from quintain.errors import UsageError
from quintain.learning import ALGORITHMS
from quintain_fsdp import FsdpLearner
from quintain_fsdp.wire import TOKEN, AuthenticationError, accepted, address_of, connected

from .test_exact import batch, model
from .test_learner import assert_equal, sharded, state_after

GRPO = ALGORITHMS["grpo"]
SECRET = "0123456789abcdef"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextmanager
def joined(
    address: str, ranks: int, *, before: Sequence[Sequence[str]] = (), token: str = SECRET
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start ranks that join the run at *address*; ``before[k]`` are words before the command of
    rank k.
    """
    with ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            words = [*before[rank]] if before else []
            words += [sys.executable, "-m", "quintain_fsdp.join", address, "--patience", "100"]
            environment = os.environ | {TOKEN: token, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [*words, "--rank", str(rank), "--ranks", str(ranks)], env=environment
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, SECRET)


@pytest.mark.slow
@pytest.mark.usefixtures("secret")
def test_ranks_that_join_are_ranks_as_others(caplog: pytest.LogCaptureFixture) -> None:
    """The same bits in weights, moments and reference; also after one was killed, another stopped,
    and with a state that is loaded. They end with the run.
    """
    local = sharded()
    expected = state_after(local, 4)
    local.close()
    address = f"127.0.0.1:{free_port()}"
    with joined(address, 2) as processes:
        learner = sharded(rendezvous=address, copy_every=2, silence=15.0, patience=100.0)
        assert_equal(state_after(learner, 4, kills={1: 0, 3: 1}), expected)
        assert caplog.text.count("has ended: its connection is closed") == 2
        learner.step(batch())
        learner.load_state_dict(expected)
        os.kill(learner.team.pids[1], signal.SIGSTOP)
        assert_equal(copy.deepcopy(learner.state_dict()), expected)
        assert "lost rank 1" in caplog.text and "no sign of life" in caplog.text
        learner.close()
        assert [process.wait(60) for process in processes] == [0, 0]


@pytest.mark.usefixtures("secret")
def test_who_does_not_know_the_token_is_refused() -> None:
    """On both sides, before anything is unpickled; and who speaks otherwise."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def tried(token: bytes) -> BaseException | None:
            """What becomes of a peer with *token*."""
            import threading

            faults: list[BaseException | None] = []

            def peer() -> None:
                try:
                    connected(server.getsockname(), token, {"rank": 0})[0].close()
                    faults.append(None)
                except (AuthenticationError, EOFError, OSError) as error:
                    faults.append(error)

            thread = threading.Thread(target=peer)
            thread.start()
            try:
                accepted(server.accept()[0], SECRET.encode(), silence=5.0)[0].close()
            finally:
                thread.join()
            return faults[0]

        assert tried(SECRET.encode()) is None
        with pytest.raises(AuthenticationError):
            tried(b"another token than that")
        with socket.create_connection(server.getsockname()) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            peer.shutdown(socket.SHUT_WR)
            with pytest.raises((AuthenticationError, EOFError, OSError)):
                accepted(server.accept()[0], SECRET.encode(), silence=5.0)


def test_settings_of_ranks_elsewhere_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    for text in ("node0", "node0:", "node0:port", ":29400", "node0:70000"):
        with pytest.raises(UsageError, match="host:port"):
            address_of(text)
    assert address_of("[::1]:29400") == ("::1", 29400)
    module = copy.deepcopy(model("full"))
    with pytest.raises(UsageError, match=f"at least 16 characters.*{TOKEN}"):
        FsdpLearner(module, GRPO, rendezvous="127.0.0.1:29400")
    (tmp_path / "token").write_text("short\n")
    with pytest.raises(UsageError, match="at least 16 characters"):
        FsdpLearner(module, GRPO, rendezvous="127.0.0.1:29400", token_file=str(tmp_path / "token"))
