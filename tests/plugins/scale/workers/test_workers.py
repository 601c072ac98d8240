"""Killable worker processes, with real processes."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from quintain import Environment, Rollout, Task, reward
from quintain.errors import InfrastructureError, UsageError
from quintain.interfaces.reward import RewardContext
from quintain.interfaces.service import Workers
from quintain.rollouts.scoring import score_rollout
from quintain_scale.workers import WorkerPool

MODULE = """
import os, subprocess, sys, time

calls = 0

class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")  # pickles, but does not come back

class Unsendable(Exception):
    def __init__(self):
        super().__init__(lambda: 0)

def count():
    global calls
    calls += 1
    return calls, os.getpid()

def odd():
    raise Odd(1, 2)

def unsendable():
    raise Unsendable

def own_timeout():
    raise TimeoutError("mine")

def spin():
    while True:
        pass

def stuck_in_c():
    return 9 ** (9 ** 9)  # holds the interpreter's lock for minutes

def chatty():
    print("this is not the protocol")
    os.write(1, b"neither is this")
    subprocess.run([sys.executable, "-c", "print('nor this')"])
    return "fine"

def reads_input():
    return sys.stdin.read()

def leaves_child(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(path, "w") as file:
        file.write(str(child.pid))
    time.sleep(60)

def eats(megabytes):
    return len(bytearray(megabytes << 20))

def eats_in(group, megabytes):
    if group:
        with open(group, "w") as file:
            file.write(str(os.getpid()))
    return eats(megabytes)

def last_words():
    print("it was the grader", file=sys.stderr, flush=True)
    os._exit(7)

class Runs:
    def __reduce__(self):
        return os.system, ("touch runs-in-the-parent",)

def hostile(kind):
    if kind == "value":
        return [Runs()]
    if kind == "error":
        raise ValueError(Runs())
    if kind == "text":
        class Speechless(Exception):
            def __str__(self):
                raise SystemExit
        raise Speechless
    channel = next(int(n) for n in os.listdir("/proc/self/fd") if int(n) > 2 and os.path.islink(f"/proc/self/fd/{n}")
                   and os.readlink(f"/proc/self/fd/{n}").startswith("socket:"))
    import pickle, struct
    frame = pickle.dumps(Runs())
    os.write(channel, struct.pack(">Q", len(frame)) + frame)

def leaves_session(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    with open(path, "w") as file:
        file.write(str(child.pid))
    time.sleep(60)

def order_of_a_set():
    return list({"a", "b", "c", "d", "e", "f"})

def lambda_result():
    return lambda: 0

class Box:
    def __init__(self, value):
        self.value = value
    def plus(self, n):
        return self.value + n
    class Inner:
        @staticmethod
        def name():
            return "inner"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"checkers_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def gone(pid: int) -> bool:
    """Whether the process ended (a zombie that waits for its reaper counts) within two seconds."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_values_and_exceptions_come_back(module: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=2) as pool:
            assert isinstance(pool, Workers)
            assert await pool.call("operator:add", 2, 3) == 5
            assert await pool.call(os.path.join, "a", "b") == "a/b"
            assert await pool.call(functools.partial(int, base=2), "101") == 5
            assert await pool.call(f"{module}:Box.Inner.name") == "inner"
            big = os.urandom(3 << 20)
            assert await pool.call(bytes, big) == big
            with pytest.raises(ZeroDivisionError) as caught:
                await pool.call("operator:truediv", 1, 0)
            assert "in a worker" in caught.value.__notes__[0]
            with pytest.raises(RuntimeError, match="Odd: 1 and 2"):
                await pool.call(f"{module}:odd")
            with pytest.raises(RuntimeError, match="Unsendable"):
                await pool.call(f"{module}:unsendable")
            with pytest.raises(RuntimeError, match="SystemExit: 3"):
                await pool.call("sys:exit", 3)
            with pytest.raises(
                TypeError, match="returned a builtins.function; a worker returns plain data"
            ):
                await pool.call(f"{module}:lambda_result")
            with pytest.raises(
                UsageError, match="nowhere:f cannot be loaded in a worker: ModuleNotFoundError"
            ):
                await pool.call("nowhere:f")
            assert await pool.call("operator:add", 2, 3) == 5

    asyncio.run(main())


def test_functions_that_no_fresh_interpreter_finds_are_refused_at_once() -> None:
    pool = WorkerPool()
    for function in (lambda: 0, "no_colon", ":f"):
        with pytest.raises(UsageError):
            asyncio.run(pool.call(function))
    with pytest.raises(UsageError, match="arguments"):
        asyncio.run(pool.call("operator:add", lambda: 0, 1))
    assert not pool._all, "nothing was started for a call that could not run"


@pytest.mark.parametrize("function", ["spin", "stuck_in_c"])
def test_a_call_past_its_time_is_killed_and_neighbours_live(module: str, function: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=2) as pool:
            await asyncio.gather(*(pool.call("time:sleep", 0.1) for _ in range(2)))
            slow = asyncio.create_task(pool.call("time:sleep", 1.0, timeout=30))
            start = time.monotonic()
            with pytest.raises(TimeoutError, match=rf"{function} took longer than 0.3 s"):
                await pool.call(f"{module}:{function}", timeout=0.3)
            assert time.monotonic() - start < 3
            assert await pool.healthy()
            assert await slow is None

    asyncio.run(main())


def test_a_time_out_kills_what_the_function_started(module: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            with pytest.raises(TimeoutError):
                await pool.call(f"{module}:leaves_child", str(tmp_path / "pid"), timeout=4.0)

    asyncio.run(main())
    assert gone(int((tmp_path / "pid").read_text()))


def test_the_functions_own_timeout_error_kills_nothing(module: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            before = await pool.call(f"{module}:count")
            with pytest.raises(TimeoutError, match="mine"):
                await pool.call(f"{module}:own_timeout")
            assert await pool.call(f"{module}:count") == (2, before[1])

    asyncio.run(main())


@pytest.mark.parametrize(
    "function, arguments, said",
    [
        ("os:_exit", (3,), "ended with status 3"),
        ("os:abort", (), "SIGABRT"),
        ("ctypes:string_at", (0,), "SIGSEGV"),
    ],
)
def test_a_worker_that_dies_is_our_failure_and_is_replaced(
    function: str, arguments: tuple[int, ...], said: str
) -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            with pytest.raises(InfrastructureError, match=said):
                await pool.call(function, *arguments)
            assert await pool.call("operator:add", 1, 1) == 2

    asyncio.run(main())


def test_last_words_of_a_dead_worker_are_shown(module: str) -> None:
    with pytest.raises(InfrastructureError, match="it was the grader"):
        asyncio.run(_once(f"{module}:last_words"))


def test_a_worker_killed_while_idle_is_replaced_unseen(module: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            _, pid = await pool.call(f"{module}:count")
            os.kill(pid, signal.SIGKILL)
            assert gone(pid)
            count, other = await pool.call(f"{module}:count")
            assert count == 1
            assert other != pid

    asyncio.run(main())


def test_output_and_input_of_a_function_do_not_touch_the_protocol(
    module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asyncio.run(_once(f"{module}:chatty")) == "fine"
    assert asyncio.run(_once(f"{module}:reads_input")) == ""
    assert "protocol" not in "".join(capfd.readouterr())


def test_memory_limit(module: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=1, memory=512) as pool:
            assert await pool.call(f"{module}:eats", 16) == 16 << 20
            with pytest.raises(InfrastructureError, match="ran out of memory .* 512 MiB"):
                await pool.call(f"{module}:eats", 4096)
            assert await pool.call(f"{module}:eats", 16) == 16 << 20


def test_a_reward_whose_worker_the_kernel_ends_is_asked_again_and_never_zero(
    module: str, small_memory: Path
) -> None:
    """The first call of each task has too little memory; the task that never has enough keeps no
    score.
    """

    @reward(range=(0, 1))
    async def graded(rollout: Rollout[Any, Any]) -> float:
        first = rollout.task.id not in asked
        asked.add(rollout.task.id)
        little = str(small_memory) if first or rollout.task.id == "never" else ""
        eaten: int = await pool.call(f"{module}:eats_in", little, 300, timeout=60)
        return eaten / (300 << 20)

    class Graded(Environment[Task, None]):
        reward = graded

    async def main() -> None:
        async with pool:
            for name in ("once", "never"):
                rollout = Rollout(task=Task(id=name, prompt="?"), result=None)
                scored[name] = await score_rollout(Graded(), rollout, RewardContext(), retries=1)

    asked: set[str] = set()
    scored: dict[str, Rollout[Any, Any]] = {}
    pool = WorkerPool(size=1)
    asyncio.run(main())
    assert scored["once"].total == 1
    assert scored["never"].outcome is None
    assert scored["never"].termination.kind == "infrastructure_error"
    assert "SIGKILL, as the kernel does when memory" in scored["never"].termination.reason

    asyncio.run(main())


def test_workers_are_replaced_after_a_number_of_calls(module: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=1, recycle=2) as pool:
            counts = [(await pool.call(f"{module}:count"))[0] for _ in range(5)]
        # the probe at the start was the first call of the first process
        assert counts == [1, 1, 2, 1, 2]

    asyncio.run(main())


def test_waiting_in_line_does_not_count_and_the_line_is_fair() -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            done: list[int] = []

            async def one(i: int) -> None:
                await pool.call("time:sleep", 0.1, timeout=0.5)
                done.append(i)

            # 0.8 s in all, more than any call's time
            await asyncio.gather(*(one(i) for i in range(8)))
            assert done == sorted(done)

    asyncio.run(main())


@pytest.mark.more
def test_a_busy_parent_does_not_turn_an_answer_into_a_time_out() -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            call = asyncio.create_task(pool.call("time:sleep", 0.05, timeout=0.8))
            await asyncio.sleep(0.01)
            time.sleep(1.2)  # noqa: ASYNC251  (a learner's step in the same process)
            await call

            late = asyncio.create_task(pool.call("time:sleep", 0.5, timeout=0.2))
            await asyncio.sleep(0.01)
            time.sleep(0.8)  # noqa: ASYNC251
            # the answer is here, but the worker says it came too late
            with pytest.raises(TimeoutError):
                await late

    asyncio.run(main())


def test_cancelling_frees_the_worker_and_the_line(module: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            _, pid = await pool.call(f"{module}:count")
            running = asyncio.create_task(pool.call(f"{module}:spin", timeout=60))
            waiting = [asyncio.create_task(pool.call("operator:add", i, 0)) for i in range(3)]
            await asyncio.sleep(0.05)
            waiting[0].cancel()
            running.cancel()
            assert await waiting[1] == 1
            assert await waiting[2] == 2
            assert gone(pid)
            for task in (running, waiting[0]):
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert pool._line.busy == 0

    asyncio.run(main())


def test_leaving_kills_all_and_the_pool_works_across_loops_without_entering(module: str) -> None:
    pool = WorkerPool(size=2)
    first, second = (asyncio.run(pool.call(f"{module}:count")) for _ in range(2))
    assert second == (first[0] + 1, first[1])
    pool.close()
    assert gone(first[1])


@pytest.mark.more
def test_workers_die_with_their_parent(module: str, tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        from quintain_scale.workers import WorkerPool
        async def main():
            pool = WorkerPool(size=2)
            _, pid = await pool.call("{module}:count")
            print(pid, flush=True)
            await pool.call("{module}:stuck_in_c", timeout=60)
        asyncio.run(main())
    """)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        parent.kill()
    assert gone(pid)


@pytest.mark.more
def test_hash_seed_is_fixed(module: str) -> None:
    one, two = (asyncio.run(_once(f"{module}:order_of_a_set")) for _ in range(2))
    assert one == two


def test_healthy_tells_a_bad_answer_from_a_bad_checker(module: str) -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            assert await pool.healthy()
            assert await pool.healthy("operator:truediv", 4, 2)
            assert not await pool.healthy(f"{module}:spin", timeout=0.2)
            assert not await pool.healthy("os:_exit", 1)

    asyncio.run(main())


def test_a_pool_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def main() -> None:
        async with WorkerPool():
            pass

    with pytest.raises(InfrastructureError, match="/bin/false"):
        asyncio.run(main())


@pytest.mark.more
def test_trivial_calls_are_fast() -> None:
    async def main() -> float:
        async with WorkerPool(size=2) as pool:
            start = time.monotonic()
            assert await asyncio.gather(
                *(pool.call("operator:add", i, 1) for i in range(1000))
            ) == list(range(1, 1001))
            return time.monotonic() - start

    assert asyncio.run(main()) < 5  # 0.2 s alone on two cores; the machine may be busy


@pytest.mark.parametrize("wrong", [{"size": 0}, {"recycle": 0}, {"memory": -1}])
def test_settings_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        WorkerPool(**wrong)


PLAIN: list[Any] = [
    {"a": [1, 2.5, "x", b"y", None, True], (1, 2): {3}},
    frozenset({1}),
    1j,
    bytearray(b"z"),
    Fraction(1, 3),
    Decimal("0.1"),
    -(10**40),
    float("inf"),
]


@pytest.mark.parametrize("value", PLAIN)
def test_plain_data_crosses(value: Any) -> None:
    assert asyncio.run(_once("copy:copy", value)) == value


@pytest.mark.more
@pytest.mark.parametrize("kind", ["value", "error", "text", "frame"])
def test_nothing_of_a_worker_runs_in_this_process(
    kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a value nor an exception nor a frame that the function writes itself."""
    monkeypatch.chdir(tmp_path)
    expected = {
        "value": TypeError,
        "error": RuntimeError,
        "text": RuntimeError,
        "frame": InfrastructureError,
    }
    with pytest.raises(expected[kind]):
        asyncio.run(_once(f"{module}:hostile", kind))
    assert not (tmp_path / "runs-in-the-parent").exists()


def test_exceptions_keep_their_class_where_this_process_has_it() -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            with pytest.raises(FileNotFoundError) as missing:
                await pool.call("os:stat", "/nowhere")
            assert missing.value.errno == 2
            assert missing.value.strerror == "No such file or directory"
            with pytest.raises(json.JSONDecodeError):
                await pool.call("json:loads", "{")
            with pytest.raises(UnicodeDecodeError, match="invalid start byte"):
                await pool.call("codecs:decode", b"\xff", "utf-8")

    asyncio.run(main())


def test_a_loop_closed_under_its_calls_does_not_keep_the_pool() -> None:
    """The next loop gets the whole pool."""
    pool = WorkerPool(size=1)
    loop = asyncio.new_event_loop()
    forgotten = [loop.create_task(pool.call("time:sleep", 60, timeout=60)) for _ in range(2)]
    loop.run_until_complete(asyncio.sleep(0.5))
    loop.close()
    for _ in range(2):
        assert asyncio.run(asyncio.wait_for(pool.call("operator:add", 1, 2, timeout=30), 60)) == 3
    for task in forgotten:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it never ends, as this test wants
    pool.close()


def test_two_loops_at_once_are_refused() -> None:
    pool = WorkerPool(size=1)
    errors: list[BaseException] = []

    async def main() -> None:
        running = asyncio.create_task(pool.call("time:sleep", 1.0, timeout=30))
        await asyncio.sleep(0.2)

        def other() -> None:
            try:
                asyncio.run(pool.call("operator:add", 1, 2))
            except UsageError as e:
                errors.append(e)

        await asyncio.to_thread(other)
        await running

    asyncio.run(main())
    pool.close()
    assert "another event loop" in str(errors[0])


def test_sending_the_arguments_is_within_the_limit(module: str) -> None:
    """A worker that is stopped takes no more than a socket's buffer."""

    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            _, pid = await pool.call(f"{module}:count")
            await pool.call("operator:length_hint", b"")  # loaded
            os.kill(pid, signal.SIGSTOP)
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                await pool.call("operator:length_hint", bytes(5 << 20), timeout=0.5)
            assert time.monotonic() - start < 10
            assert await pool.call("operator:add", 1, 2, timeout=30) == 3

    asyncio.run(main())


@pytest.mark.more
def test_a_time_out_kills_what_left_its_session(module: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with WorkerPool(size=1) as pool:
            with pytest.raises(TimeoutError):
                await pool.call(f"{module}:leaves_session", str(tmp_path / "pid"), timeout=1.5)

    asyncio.run(main())
    assert gone(int((tmp_path / "pid").read_text()))


async def _once(function: str, *arguments: Any) -> object:
    async with WorkerPool(size=1) as pool:
        return await pool.call(function, *arguments)
