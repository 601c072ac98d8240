"""Ranks that something else has started: on this machine, and in another network namespace."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quintain.cli import main
from quintain.errors import UsageError
from quintain.learning import ALGORITHMS
from quintain_fsdp import FsdpLearner
from quintain_fsdp.wire import TOKEN, AuthenticationError, accepted, address_of, connected

from ...small_run import small_recipe
from .test_exact import batch, model
from .test_learner import assert_equal, sharded, state_after
from .test_run import SUMS

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


def may_make_namespaces() -> bool:
    """Return whether this process may make network namespaces."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"quintain-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    subprocess.run(["ip", "netns", "del", name], check=True)
    return True


@contextmanager
def two_machines() -> Iterator[tuple[list[str], list[str]]]:
    """Make two network namespaces that only have a cable between them, 10.77.0.1 and 10.77.0.2; give
    the words before a command in each.
    """
    names = [f"quintain-{os.getpid()}-{k}" for k in (0, 1)]
    ends = [f"q{os.getpid()}-{k}" for k in (0, 1)]

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True)

    try:
        for name in names:
            ip(f"netns add {name}")
        ip(f"link add {ends[0]} type veth peer name {ends[1]}")
        for k, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip(f"link set {end} netns {name}")
            ip(f"-n {name} address add 10.77.0.{k + 1}/24 dev {end}")
            ip(f"-n {name} link set {end} up")
            ip(f"-n {name} link set lo up")
        yield tuple(["ip", "netns", "exec", name] for name in names)  # type: ignore[misc]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.ci
@pytest.mark.skipif(not may_make_namespaces(), reason="needs root and ip, for network namespaces")
def test_two_machines_train_as_one_process(
    small_run: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job that `quintain launch` prints, on two machines that are network namespaces: the bits of
    two ranks here, and the weights of one process.
    """
    recipe = small_recipe(SUMS, steps=4, algorithm="sft", tables="[learner]\nlr = 1e-3")
    folder = small_run(recipe)
    monkeypatch.chdir(folder)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        TOKEN: SECRET,
        "OMP_NUM_THREADS": "1",
        "QUINTAIN_PLUGINS": "",
    }

    def weights(name: str) -> dict[str, Any]:
        return load_file(folder / f"runs/{name}/checkpoints/step-000004/model/model.safetensors")

    for name, words in (("one", ""), ("two", "--set learner.use=fsdp --set learner.args.ranks=2")):
        train = [sys.executable, "-m", "quintain", "train", "recipe.toml", "--name", name, "-q"]
        subprocess.run([*train, *words.split()], env=environment, check=True, timeout=600)
    words = "recipe.toml --torchrun --nodes 2 --gpus 1 --host 10.77.0.1 --name machines"
    assert main(["launch", *words.split(), "--set", "learner.args.silence=60.0"]) == 0
    (folder / "job.sh").write_text(capsys.readouterr().out)
    with two_machines() as machines:
        jobs = [
            subprocess.Popen([*machine, "bash", "job.sh", str(k)], env=environment)
            for k, machine in enumerate(machines)
        ]
        try:
            assert [job.wait(timeout=900) for job in jobs] == [0, 0]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
    torch.testing.assert_close(weights("machines"), weights("two"), rtol=0, atol=0)
    torch.testing.assert_close(weights("machines"), weights("one"), rtol=0, atol=2e-5)
