"""Ranks that something else has started: on this machine, and in another network namespace."""

from __future__ import annotations

import copy
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from quintain.cli import main
from quintain.errors import UsageError
from quintain.learning import ALGORITHMS, Learner
from quintain.models.load import module_without_weights
from quintain.models.probe import plain_log_probs
from quintain.store.checkpoint import Checkpoint
from quintain.store.run_folder import RunFolder, as_current_run
from quintain_learners.fsdp import FsdpLearner
from quintain_learners.fsdp.remote_team import RemoteTeam
from quintain_learners.fsdp.wire import TOKEN, AuthenticationError, accepted, address_of, connected

from ....core.models.tiny import tiny_model
from ....small_run import small_recipe
from ...scale.workers.test_lost_machine import FOUND, OURS, ip, machine, may_make_namespaces
from .test_checkpoint import RECIPE, manager, plain
from .test_exact import assert_same, batch, model, trained
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
            words += [
                sys.executable,
                "-m",
                "quintain_learners.fsdp.join",
                address,
                "--patience",
                "100",
            ]
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
        assert "lost rank 1" in caplog.text
        assert "no sign of life" in caplog.text
        learner.close()
        assert [process.wait(60) for process in processes] == [0, 0]


@pytest.mark.slow
@pytest.mark.skipif(not may_make_namespaces(), reason="needs root and ip, for network namespaces")
@pytest.mark.usefixtures("secret")
def test_a_machine_that_vanishes_is_found_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody says that it is gone. The same bits as without that."""
    local = sharded()
    expected = state_after(local, 4)
    local.close()
    with machine() as lost:
        address = f"{OURS}:{free_port()}"
        with joined(address, 2, before=[[], lost.words]):
            learner = sharded(rendezvous=address, copy_every=2, patience=100.0)
            learner.step(batch())
            lost.pull_cable()
            began = time.time()
            back = threading.Timer(1.5 * FOUND, lost.put_cable)
            back.start()
            assert_equal(state_after(learner, 3), expected)
            back.join()
            learner.close()
    found = [r.created - began for r in caplog.records if "lost rank 1" in r.getMessage()]
    print(f"\nfound after {found[0]:.1f} s")
    assert found[0] < FOUND


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with the model of these tests."""
    folder = tmp_path / "model"
    model("full").save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("sharding", ["sharded", "replicated"])
def test_ranks_read_their_parts_in_the_files_of_the_model(
    sharding: Any, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """But for a parameter that is another one in the file. Updates are those of one process, so
    model and reference are.
    """
    caplog.set_level(logging.INFO, logger="quintain_learners.fsdp")
    module: Any = AutoModelForCausalLM.from_pretrained(saved)
    with torch.no_grad():
        module.transformer.ln_f.weight += 0.5
    settings: dict[str, Any] = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3}
    expected = trained(Learner(copy.deepcopy(module), GRPO, **settings), "full")
    address = f"127.0.0.1:{free_port()}"
    with joined(address, 2):
        remote = {"rendezvous": address, "patience": 100.0, "sharding": sharding}
        many = FsdpLearner(module, GRPO, **remote, **settings)
        assert f"1 of {len(list(module.parameters()))} tensors came from the run" in caplog.text
        assert_same(trained(many, "full"), expected, "full")
        many.close()


@pytest.mark.slow
@pytest.mark.usefixtures("secret")
def test_ranks_elsewhere_may_have_the_weights_alone(saved: Path, tmp_path: Path) -> None:
    """They read them in a shared folder, give them to the run a tensor at a time, compute the forward
    of its module, and write all of a checkpoint.
    """
    settings: dict[str, Any] = {"layout": "bucketed", "token_budget": 25, "lr": 1e-3}
    one = Learner(AutoModelForCausalLM.from_pretrained(saved), GRPO, **settings)
    one.step(batch())
    expected = dict(one.module.named_parameters())
    address = f"127.0.0.1:{free_port()}"
    with (
        RunFolder.create(tmp_path / "run", RECIPE) as folder,
        as_current_run(folder),
        joined(address, 2),
    ):
        module = module_without_weights(str(saved), torch.float64, None)
        remote: dict[str, Any] = {"rendezvous": address, "patience": 100.0}
        learner = FsdpLearner(module, GRPO, checkpoint="sharded", **remote, **settings)
        learner.step(batch())
        for name, tensor in learner.weights().tensors().items():
            torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=1e-10)
        ids = [5, 9, 2, 7]
        torch.testing.assert_close(
            plain_log_probs(learner.module, ids),
            plain_log_probs(one.module, ids).detach(),
            rtol=0,
            atol=1e-8,
        )
        path = manager(folder).save(1, learner=learner, state={"step": 1})
        written = AutoModelForCausalLM.from_pretrained(path / "model")
        for name, parameter in written.named_parameters():
            torch.testing.assert_close(parameter, expected[name], rtol=0, atol=1e-10)
        learner.close()


def peak(pid: int) -> int:
    """Return the most resident bytes that the process *pid* has had since `forget_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.slow
@pytest.mark.parametrize("folder_is_shared", [True, False])
def test_no_rank_elsewhere_has_the_whole_model_at_its_start(
    folder_is_shared: bool, tmp_path: Path
) -> None:
    """Half of the weights and a few layers, of the files or of the run."""
    module: Any = tiny_model("qwen3", hidden=320, layers=48, intermediate_size=1280)
    whole = sum(p.numel() * 4 for p in module.parameters())
    if folder_is_shared:
        module.save_pretrained(tmp_path)
        module = AutoModelForCausalLM.from_pretrained(tmp_path)
    address = f"127.0.0.1:{free_port()}"
    with joined(address, 2):
        team = RemoteTeam(2, address, SECRET.encode(), silence=60.0, patience=100.0)
        FsdpLearner(tiny_model("qwen3"), restarts=0, team=team)
        for pid in team.pids:
            forget_peak(pid)
        before = [peak(pid) for pid in team.pids]
        FsdpLearner(module, restarts=0, team=team)
        taken = [peak(pid) - least for pid, least in zip(team.pids, before, strict=True)]
        team.close()
    assert whole > 256e6
    assert max(taken) < whole


@pytest.mark.slow
@pytest.mark.usefixtures("secret")
def test_ranks_that_share_a_folder_write_checkpoints_there(tmp_path: Path) -> None:
    """As ranks of this machine: these, and more ranks elsewhere, resume it. ``from_pretrained`` reads
    the model.
    """
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    remote: dict[str, Any] = {"checkpoint": "sharded", "patience": 100.0}
    with RunFolder.create(tmp_path / "run", RECIPE) as folder, as_current_run(folder):
        with joined(first, 2):
            saving = sharded(rendezvous=first, **remote)
            saving.step(batch())
            state = plain(saving.state_dict())
            checkpoints = manager(folder)
            path = checkpoints.begin(1, learner=saving, state={"step": 1})
            saving.step(batch())  # waits until all is written
            assert checkpoints.complete() is not None
            saving.close()
        Checkpoint.open(path).verify()
        assert AutoModelForCausalLM.from_pretrained(path / "model").dtype == torch.float64
        here = sharded()
        assert Checkpoint.open(path).restore(here) == {"step": 1}
        assert plain(here.state_dict()) == state
        here.close()
        with joined(second, 3):
            elsewhere = sharded(rendezvous=second, ranks=3, **remote)
            Checkpoint.open(path).restore(elsewhere)
            assert plain(elsewhere.state_dict()) == state
            elsewhere.close()


def may_mount() -> bool:
    """Return whether this process may make mount namespaces."""
    command = ["unshare", "-m", "true"]
    return bool(
        shutil.which("unshare")
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="needs root and unshare, for mount namespaces")
@pytest.mark.usefixtures("secret")
def test_a_rank_without_the_folder_gets_weights_from_the_run_and_writes_no_checkpoint(
    saved: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal comes before the first step, and says what to do."""
    caplog.set_level(logging.INFO, logger="quintain_learners.fsdp")
    module = AutoModelForCausalLM.from_pretrained(saved)
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(tmp_path)]
    address = f"127.0.0.1:{free_port()}"
    with (
        RunFolder.create(tmp_path / "run", RECIPE) as folder,
        as_current_run(folder),
        joined(address, 2, before=[[], hidden]) as processes,
    ):
        with pytest.raises(
            UsageError,
            match=rf"not seen by rank 1 on .*{folder.path}.*mount one file system .*checkpoint",
        ):
            FsdpLearner(module, GRPO, rendezvous=address, patience=100.0, checkpoint="sharded")
        tensors = len(list(module.parameters()))
        assert f"{tensors} of {tensors} tensors came from the run" in caplog.text
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


@contextmanager
def two_machines() -> Iterator[tuple[list[str], list[str]]]:
    """Make two network namespaces that only have a cable between them, 10.77.0.1 and 10.77.0.2; give
    the words before a command in each.
    """
    names = [f"quintain-{os.getpid()}-{k}" for k in (0, 1)]
    ends = [f"q{os.getpid()}-{k}" for k in (0, 1)]

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
            ip(f"netns del {name}", check=False)


def run_on_two_machines(job: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Run the *job* that `quintain launch` printed into *folder*, which both machines see, to its
    end.
    """
    with two_machines() as machines:
        jobs = [
            subprocess.Popen([*machine, "bash", job, str(k)], cwd=folder, env=environment)
            for k, machine in enumerate(machines)
        ]
        try:
            assert [process.wait(timeout=900) for process in jobs] == [0, 0]
        finally:
            for process in jobs:
                process.kill()
                process.wait()


@pytest.mark.ci
@pytest.mark.skipif(not may_make_namespaces(), reason="needs root and ip, for network namespaces")
def test_two_machines_train_as_one_process(
    small_run: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job that `quintain launch` prints, on two machines that are network namespaces and share
    the folder of the run, into which the ranks write their checkpoints: the bits of two ranks here,
    and the weights of one process.
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
        model = folder / f"runs/{name}/checkpoints/step-000004/model"
        files = [load_file(file) for file in model.glob("*.safetensors")]
        return {key: tensor for file in files for key, tensor in file.items()}

    for name, words in (("one", ""), ("two", "--set learner.use=fsdp --set learner.args.ranks=2")):
        train = [sys.executable, "-m", "quintain", "train", "recipe.toml", "--name", name, "-q"]
        subprocess.run([*train, *words.split()], env=environment, check=True, timeout=600)
    words = "recipe.toml --torchrun --nodes 2 --gpus 1 --host 10.77.0.1 --name machines"
    words += " --set learner.args.silence=60.0 --set learner.args.checkpoint=sharded"
    assert main(["launch", *words.split()]) == 0
    (folder / "job.sh").write_text(capsys.readouterr().out)
    run_on_two_machines("job.sh", folder, environment)
    torch.testing.assert_close(weights("machines"), weights("two"), rtol=0, atol=0)
    torch.testing.assert_close(weights("machines"), weights("one"), rtol=0, atol=2e-5)
