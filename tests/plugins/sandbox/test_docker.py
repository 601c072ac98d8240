"""The provider `docker` without an engine: its parser, script, pool, profile, labels and errors."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import (
    BestSandbox,
    Bubblewrap,
    Docker,
    Landlock,
    ProbedSandbox,
    Program,
    ProgramLimits,
    bpf,
    container,
    syscalls,
)
from quintain_sandbox import docker as docker_provider
from quintain_sandbox.cgroups import Counters
from quintain_sandbox.container import STDERR, STDOUT, Frames, Waiting
from quintain_sandbox.pool import ContainerPool, Shape
from quintain_sandbox.program import HOME

from ...lanes import examples

MARKER = b"0123456789abcdef"
REPORT = b"7\n0m0.010s 0m0.000s\n1m0.250s 0m0.500s\n"
SHAPE, OTHER = Shape.of(ProgramLimits()), Shape.of(ProgramLimits(memory=1 << 20))


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">B3xL", kind, len(data)) + data


def parsed(*pieces: bytes) -> tuple[Frames, dict[int, bytes]]:
    """What a connection's bytes give, each of *pieces* received alone."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames, output = Frames(ours, MARKER), {STDOUT: b"", STDERR: b""}

        def send() -> None:
            for piece in pieces:
                theirs.sendall(piece)
                time.sleep(0.001)
            theirs.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        for kind, data in frames:
            output[kind] += data
        sender.join()
        return frames, output


NEAR_MARKS = st.lists(
    st.sampled_from([b"x", b"\n", MARKER[:3], MARKER[:-1], MARKER[1:]]), max_size=6
).map(b"".join)


@examples(30)
@given(
    out=NEAR_MARKS,
    err=NEAR_MARKS,
    cuts=st.lists(st.integers(0, 200), max_size=4),
    late=st.booleans(),
)
def test_output_ends_at_the_marks_wherever_pieces_are_cut(
    out: bytes, err: bytes, cuts: list[int], late: bool
) -> None:
    """The program's bytes come whole, without the shell's, in any division into frames and
    pieces.
    """
    ends = [frame(STDERR, MARKER + REPORT), frame(STDOUT, MARKER)]
    data = frame(STDOUT, out) + frame(STDERR, err) + b"".join(ends if late else reversed(ends))
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    frames, output = parsed(*(data[a:b] for a, b in itertools.pairwise(bounds) if a < b))
    assert {STDOUT: out, STDERR: err} == output
    assert frames.exit_code == 7
    assert frames.cpu_seconds == 60.75


def test_a_connection_that_ends_early_gives_its_output_and_no_status() -> None:
    """Without the marks nothing is known of the program, and no byte of it is lost."""
    frames, output = parsed(frame(STDOUT, b"half" + MARKER[:5]), frame(STDERR, b"e")[:-1])
    assert {STDOUT: b"half" + MARKER[:5], STDERR: b""} == output
    assert frames.exit_code is None


def test_a_forged_report_is_bounded() -> None:
    """A program that found the mark cannot make the trainer store what follows it."""
    frames, output = parsed(
        *[frame(STDERR, MARKER + bytes(1000)), frame(STDERR, bytes(5000))], frame(STDOUT, MARKER)
    )
    assert output == {STDOUT: b"", STDERR: b""}
    assert frames.exit_code is None


def run_script(program: Program, folder: Path) -> tuple[bytes, bytes]:
    """Standard output and error of the container's shell on *program*, here and without a
    container.
    """
    marker = MARKER.decode()
    with subprocess.Popen(
        ["/bin/sh", "-c", container.WAITER[2].replace(HOME, str(folder / "box"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    ) as shell:  # fmt: skip
        assert shell.stdin
        assert shell.stdout
        assert shell.stderr
        shell.stdin.write(container.script(program, marker))
        shell.stdin.write(program.stdin)
        shell.stdin.close()
        out, err = bytearray(), bytearray()
        while not (
            MARKER in out and err.count(MARKER) == 2 and err.count(b"\n", err.rfind(MARKER)) == 3
        ):
            ready, _, _ = select.select([shell.stdout, shell.stderr], [], [], 20)
            assert ready, (out, err)
            for stream in ready:
                sink = out if stream is shell.stdout else err
                sink += os.read(stream.fileno(), 1 << 16)
        shell.kill()
    return bytes(out.partition(MARKER)[0]), bytes(err)


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=10, deadline=None)
@given(words=st.lists(WORDS, max_size=4), content=st.binary(max_size=4000), name=WORDS)
def test_any_argument_and_any_file_reaches_the_program(
    words: list[str], content: bytes, name: str
) -> None:
    """Quotes, newlines, dollars, bytes that are no text; the program gets exactly what was asked,
    and its input.
    """
    code = (
        "import sys; w = sys.argv[2:]; print(w, open(sys.argv[1], 'rb').read() + "
        "sys.stdin.buffer.read())"
    )
    file = f"folder with '/{name.replace('/', '_').strip('.') or 'x'}"[:200]
    argv = [sys.executable, "-I", "-c", code, file, *words]
    program = Program(argv=argv, files={file: content, "empty": b""}, stdin=b"\ninput")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(container, "PIECE", 1000)  # several pieces and a rest
        out, err = run_script(program, Path(folder))
    assert f"{words} {content + program.stdin!r}\n".encode() == out, err
    assert err.startswith(MARKER + b"+" + MARKER + b"0\n")


def test_the_status_of_the_program_is_reported(tmp_path: Path) -> None:
    """Signals as 128 + n, with what was written before, but without the shell's words about
    them.
    """
    out, err = run_script(
        Program(argv=["sh", "-c", "echo out; echo err >&2; kill -9 $$"]), tmp_path
    )
    assert out == b"out\n"
    assert err.startswith(MARKER + b"+err\n" + MARKER + b"137\n")


def waiting(number: int) -> tuple[Waiting, socket.socket]:
    ours, theirs = socket.socketpair()
    return Waiting(str(number), number, ours), theirs


class Harbour:
    """Makes and removes what a pool keeps, and remembers it."""

    def __init__(self) -> None:
        self.made: list[Shape] = []
        self.ends: dict[str, socket.socket] = {}
        self.removed: list[str] = []
        self.fails = False
        self.lock = threading.Lock()

    def make(self, shape: Shape) -> Waiting:
        with self.lock:
            if self.fails:
                raise InfrastructureError("no engine")
            one, self.ends[str(len(self.made))] = waiting(len(self.made))
            self.made.append(shape)
            return one

    def remove(self, one: Waiting) -> None:
        with self.lock:
            one.close()
            self.ends.pop(one.id).close()
            self.removed.append(one.id)


@pytest.fixture
def harbour() -> Iterator[Harbour]:
    harbour = Harbour()
    yield harbour
    assert harbour.ends == {}, "not all were removed"


def soon(condition: object) -> None:
    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_pool_is_filled_and_refilled(harbour: Harbour) -> None:
    """As many as asked for, of the first shape; one that is taken is replaced; all are removed at
    the end.
    """
    pool = ContainerPool(3, harbour.make, harbour.remove)
    taken = pool.take(SHAPE)
    assert len(harbour.made) == 1, "nothing is started ahead before `fill`"
    pool.fill(SHAPE)
    soon(lambda: pool.ready() == 3)
    harbour.remove(taken)
    taken = pool.take(SHAPE)
    assert taken.id in {"1", "2", "3"}
    soon(lambda: pool.ready() == 3)
    harbour.remove(taken)
    pool.close()
    assert {SHAPE} == set(harbour.made)
    with pytest.raises(UsageError, match="not started"):
        pool.take(SHAPE)


def test_shapes_that_are_asked_for_share_a_pool(harbour: Harbour) -> None:
    """A new shape gets its share, and one that nobody asks for any more loses it."""
    pool = ContainerPool(4, harbour.make, harbour.remove)
    pool.fill(SHAPE)
    soon(lambda: pool.ready() == 4)
    harbour.remove(pool.take(OTHER))
    soon(
        lambda: {shape: len(ready) for shape, ready in pool._ready.items()} == {SHAPE: 2, OTHER: 2}
    )
    for memory in (1, 2, 3):
        harbour.remove(pool.take(Shape(memory, 1, 1, 1)))
    soon(lambda: sum(len(r) for s, r in pool._ready.items() if s in (SHAPE, OTHER)) == 0)
    assert pool.ready() <= 4
    pool.close()


def test_containers_that_ended_are_not_handed_out(harbour: Harbour) -> None:
    """Those of an engine that was restarted are removed, and a new one serves."""
    pool = ContainerPool(2, harbour.make, harbour.remove)
    pool.fill(SHAPE)
    soon(lambda: pool.ready() == 2)
    for end in harbour.ends.values():
        end.shutdown(socket.SHUT_RDWR)
    taken = pool.take(SHAPE)
    assert taken.alive
    assert {"0", "1"} == set(harbour.removed)
    harbour.remove(taken)
    pool.close()


def test_a_pool_outlives_an_engine_that_fails(
    harbour: Harbour, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What starts containers ahead warns and tries again; who needs one gets the error."""
    monkeypatch.setattr("quintain_sandbox.pool.PAUSE", 0.01)
    harbour.fails = True
    pool = ContainerPool(2, harbour.make, harbour.remove)
    pool.fill(SHAPE)
    with pytest.raises(InfrastructureError, match="no engine"):
        pool.take(SHAPE)
    soon(lambda: "no container was started ahead: no engine" in caplog.text)
    harbour.fails = False
    soon(lambda: pool.ready() == 2)
    pool.close()


def test_the_profile_allows_nothing_that_the_other_filter_refuses() -> None:
    """Both providers refuse the same calls; an argument decides only where both say so."""
    profile = syscalls.seccomp_profile("x86_64")
    always = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" and not rule["args"]
              for name in rule["names"]}  # fmt: skip
    # its requests need a terminal, which is not there
    table = (bpf.X86_64.keys() | bpf.AARCH64.keys()) - {"ioctl"}
    assert set() == always & table
    assert profile["architectures"] == ["SCMP_ARCH_X86_64"]
    sockets = [
        (r["args"][0]["op"], r["args"][0]["value"], r.get("errnoRet"))
        for r in profile["syscalls"]
        if "socket" in r["names"]
    ]
    assert {1, 2, 10} == {value for _, value, refused in sockets if refused is None}
    assert {*range(11)} == {value for op, value, _ in sockets if op == "SCMP_CMP_EQ"}
    assert len(always) > 300


def test_labels_tell_the_dead_trainers_of_this_machine() -> None:
    """Containers of this process, of another machine and of others are kept; those of a dead
    process are stale.
    """
    engine = pytest.importorskip("quintain_sandbox.engine")
    own = engine.own_labels()
    boot, pid, started = own[engine.PROCESS].split()
    assert not engine.is_stale(own)
    assert not engine.is_stale(
        {**own, engine.MACHINE: "another", engine.PROCESS: f"{boot} 4194305 1"}
    )
    assert not engine.is_stale({})
    assert engine.is_stale({**own, engine.PROCESS: f"{boot} {pid} {int(started) - 1}"})
    assert engine.is_stale({**own, engine.PROCESS: f"{boot} 4194305 {started}"})
    assert engine.is_stale({**own, engine.PROCESS: f"earlier {pid} {started}"})
    assert own[engine.LABEL] != engine.own_labels()[engine.LABEL]


def test_counters_of_both_versions_of_control_groups(tmp_path: Path) -> None:
    """What the kernel writes into a group's files, and zeros where a file is missing."""
    files = {
        "memory.events": "oom 1\noom_kill 2\n", "pids.events": "max 4\n", "memory.peak": "123\n",
        "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
        "memory.oom_control": "under_oom 0\noom_kill 1\n", "memory.max_usage_in_bytes": "77",
        "cpuacct.usage": "2000000000",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    second = Counters(tmp_path, tmp_path, tmp_path, 2)
    first = Counters(tmp_path, tmp_path, tmp_path, 1)
    assert second.out_of_memory() is True
    assert second.refused_forks() == 4
    assert second.peak() == 123
    assert second.cpu_seconds() == 1.5
    assert first.out_of_memory() is True
    assert first.refused_forks() == 4
    assert first.peak() == 77
    assert first.cpu_seconds() == 2.0
    none = Counters(tmp_path / "x", None, None)
    assert none.out_of_memory() is False
    assert none.refused_forks() == 0
    assert none.peak() == 0
    assert none.cpu_seconds() == 0.0


def start(**arguments: object) -> None:
    async def started() -> None:
        async with Docker(**arguments):  # type: ignore[arg-type]
            pass

    asyncio.run(started())


def test_a_machine_without_an_engine_names_the_fix(tmp_path: Path) -> None:
    """The error says where it looked and how to get an engine."""
    pytest.importorskip("docker")
    with pytest.raises(
        InfrastructureError,
        match=rf"no container engine answers at unix://{tmp_path}/no; .*docker\.io",
    ):
        start(url=f"unix://{tmp_path}/no")


def test_a_machine_without_the_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional, and its error is one line."""
    monkeypatch.setitem(sys.modules, "docker", None)
    monkeypatch.delitem(sys.modules, "quintain_sandbox.engine", raising=False)
    with pytest.raises(InfrastructureError, match=r"pip install 'quintain-sandbox\[docker\]'"):
        start()


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"warm": -1}, {"slots": 60, "warm": 60}, {"cpus": 0.0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    """Each names the setting."""
    with pytest.raises(UsageError, match=r"docker\."):
        Docker(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("service", [Docker(), Bubblewrap(), Landlock(), BestSandbox()])
def test_a_service_that_is_not_started_runs_nothing(service: ProbedSandbox) -> None:
    """One error, whichever provider and whichever way to a program."""
    with pytest.raises(UsageError, match=f"{service.name} is not started; use 'async with"):
        asyncio.run(service.run({}, ["true"]))
    with pytest.raises(UsageError, match=f"{service.name} is not started; use 'async with"):
        service.open_box(Program(argv=["true"]))


def test_a_runtime_that_the_engine_does_not_list_is_a_mistake_of_the_recipe() -> None:
    """The error lists what there is; no retry can help."""
    with pytest.raises(UsageError, match=r"docker\.runtime is 'kata'; the engine lists crun, runc"):
        docker_provider._runtime("kata", {"Runtimes": {"runc": {}, "crun": {}}}, False)


def test_without_its_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use says what to install; the import of the plugin needs nothing of it."""
    monkeypatch.delitem(sys.modules, "quintain_sandbox.engine", raising=False)
    monkeypatch.setitem(sys.modules, "docker", None)

    with pytest.raises(
        InfrastructureError,
        match=r"needs the package 'docker'; pip install 'quintain-sandbox\[docker\]'",
    ):
        asyncio.run(Docker(slots=1).__aenter__())
