# ruff: noqa: E501 - programs as text
"""Warm interpreters of the provider `bubblewrap`: what programs see in them is what they see in new ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import InfrastructureError, UsageError
from quintain_sandbox import AXES, Bubblewrap, Guarantee, ProgramLimits, ProgramResult
from quintain_sandbox.program import Program
from quintain_sandbox.warm import WarmInterpreters, serves

from ...lanes import mostly_slow
from .programs import ATTACKS, PRELUDE
from .programs_honest import FILES, HONEST
from .service import left_behind

LIMITS = ProgramLimits(
    seconds=30.0, cpu_seconds=20.0, memory=256 << 20, processes=48, output=200_000
)
RUN = ["python3", "-I", "main.py"]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Bubblewrap]:
    """A service whose runs wait for a warm interpreter where one serves them."""
    service = Bubblewrap(slots=2, warm=2, enforce=())
    try:
        asyncio.run(service.__aenter__())
    except InfrastructureError as e:
        pytest.skip(f"bubblewrap does not work here: {e}")
    pool(service).patient = True
    yield service
    asyncio.run(service.__aexit__())
    assert left_behind(None) == []


def pool(service: Bubblewrap) -> WarmInterpreters:
    assert service._warm is not None
    return service._warm


@contextlib.contextmanager
def cold(service: Bubblewrap) -> Iterator[None]:
    """New interpreters only."""
    warm, service._warm = service._warm, None
    try:
        yield
    finally:
        service._warm = warm


def both(
    service: Bubblewrap,
    files: Mapping[str, bytes],
    argv: list[str],
    stdin: bytes = b"",
    limits: ProgramLimits = LIMITS,
) -> tuple[ProgramResult, ProgramResult]:
    """The results of a warm and of a new interpreter."""
    assert serves(Program(argv=argv, files=files, limits=limits))
    warm = asyncio.run(service.run(files, argv, stdin, limits))
    with cold(service):
        return warm, asyncio.run(service.run(files, argv, stdin, limits))


def seen(result: ProgramResult) -> tuple[Any, ...]:
    return result.status, result.exit, result.stdout, result.stderr, result.truncated


FIRST = """
arguments|names of main|flags and paths|the environment|descriptors|resource limits|signals|streams|input
|text before an error|a traceback|an error of the syntax|exit with a number|a crash|an end without clean-up
|a thread that outlives main|clean-up at exit|its own source|spawned processes|imports of files|hashes differ by run
""".replace("\n", "").split("|")
"""Of the programs below one for each thing that a new interpreter prepares: these are in each test
run.
"""
SAME = {
    "arguments": "import sys; print(sys.argv, __file__, __name__, sys.orig_argv)",
    "names of main": "print(sorted(globals())); print(__doc__, __spec__, __package__, __cached__, __annotations__)",
    "loader of main": "print(type(__loader__), __loader__.name, __loader__.path, __builtins__)",
    "the docstring": "'''text'''\nprint(__doc__)",
    "main as a module": "import __main__, sys\nprint(vars(__main__) is globals(), sys.modules['__main__'] is __main__)",
    "annotations": "x: int = 3\nprint(__annotations__)",
    "flags and paths": "import sys; print(sys.flags, sys.path, sys.prefix, sys.executable, sys.dont_write_bytecode)",
    "settings": "import gc, sys; print(sys.getrecursionlimit(), gc.isenabled(), gc.get_threshold(), sys.warnoptions)",
    "the environment": "import os; print(dict(os.environ), os.getcwd(), os.listdir(), os.getpid(), os.umask(0))",
    "owner and mode of files": "import os\ns = os.stat('main.py'), os.stat('d/x')\nprint([(f.st_mode, f.st_uid, f.st_size) for f in s])",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "resource limits": "import resource as r\nprint([r.getrlimit(getattr(r, n)) for n in dir(r) if n.startswith('RLIMIT') and n != 'RLIMIT_CPU'])",
    "signals": "import signal\nprint({s: signal.getsignal(s) for s in signal.valid_signals()})",
    "streams": "import sys\nprint([(s.encoding, s.errors, s.line_buffering, s.name, s.mode) for s in (sys.stdin, sys.stdout, sys.stderr)])",
    "input": "import sys; print(input(), sys.stdin.read(), sys.stdin.read())",
    "input as bytes": "import os, sys; print(os.read(0, 3), sys.stdin.buffer.read())",
    "nothing read": "print('never reads')",
    "text before an error": "print('a'); 1 / 0",
    "a traceback": "def f(x):\n    return 1 / x\n\ndef g():\n    f(0)\ng()",
    "a chain of errors": "try:\n    {}[1]\nexcept KeyError as e:\n    raise ValueError('x') from e",
    "a context of errors": "try:\n    {}[1]\nexcept KeyError:\n    raise ValueError('x')",
    "a group of errors": "raise ExceptionGroup('a', [ValueError(1), TypeError(2)])",
    "an error of the syntax": "x = = 3\n",
    "an error of the indentation": "if 1:\nx = 3\n",
    "a mark of the byte order": "\ufeffprint('hi')",
    "lines of other systems": "print('a')\r\nx = '''b\r\nc'''\r\nprint(repr(x))\r\n",
    "a warning": "import warnings; warnings.warn('x', DeprecationWarning); print('\\d')",
    "an empty file": "",
    "exit": "raise SystemExit",
    "exit with a number": "raise SystemExit(7)",
    "exit with a large number": "import sys; sys.exit(1 << 40)",
    "exit with text": "import sys; sys.exit('text')",
    "exit with an object": "import sys; sys.exit([1, 2])",
    "exit with zero in a function": "def f(): exit(0)\nf()",
    "an interrupt": "raise KeyboardInterrupt",
    "a signal to itself": "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('after')",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "an end without clean-up": "import os; print('lost'); os._exit(5)",
    "an exit in a thread": "import threading; t = threading.Thread(target=lambda: 1 / 0, name='t'); t.start(); t.join(); print('on')",
    "a thread that outlives main": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()\nprint('end')",
    "clean-up at exit": "import atexit; atexit.register(print, 'bye'); 1 / 0",
    "deletion at the end": "class A:\n    def __del__(self): print('deleted')\na = A()",
    "a hook for errors": "import sys\nsys.excepthook = lambda *a: print('hook', a[0], a[1])\n1 / 0",
    "the last error": "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_traceback.tb_lineno))\n\n1 / 0",
    "a future statement": "from __future__ import annotations\ndef f(x: y): pass\nprint(f.__annotations__)",
    "no future statement": "try:\n    def f(x: y): pass\nexcept NameError as e: print(e)",
    "its own source": "import inspect, sys\ndef f(): pass\nprint(inspect.getsource(f), open(__file__).read() == inspect.getsource(sys.modules['__main__']))",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))), pickle.dumps(A))",
    "subprocess": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(2)'], capture_output=True))",
    "spawned processes": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]))",
    "forked processes": "import os\nif os.fork() == 0:\n    print('child', flush=True); os._exit(3)\nprint(os.wait()[1])",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0); return 4\nprint(asyncio.run(f()))",
    "imports of files": "import sys\nsys.path.insert(0, 'd')\nimport other\nprint(other.x, other.__file__)",
    "no imports of files": "import other",
    "a name like a module": "import random, json\nprint(random.__file__.endswith('random.py'), json.__name__)",
    "hashes differ by run": "print(hash('a') == hash('a'))",
    "deletion of what a module holds": "import json\nclass A:\n    def __del__(self): print('deleted')\nx = [A()]\nx.append(x)",
    "a debugger": "breakpoint()",
    "deep recursion": "def f(n): return n and f(n - 1)\nprint(f(980))\ntry: f(10000)\nexcept RecursionError as e: print(e)",
}


def same_text(result: ProgramResult) -> tuple[Any, ...]:
    """Addresses differ from run to run."""
    import re

    status, code, *streams, truncated = seen(result)
    return (
        status,
        code,
        *(re.sub(rb"0x[0-9a-f]{6,}", b"0x", stream) for stream in streams),
        truncated,
    )


@pytest.mark.parametrize("name", mostly_slow(SAME, FIRST))
def test_a_program_sees_the_same_in_a_warm_interpreter(sandbox: Bubblewrap, name: str) -> None:
    """Status, exit status and both streams are equal, byte for byte, for a script."""
    files = {"main.py": SAME[name].encode(), "d/x": b"x", "d/other.py": b"x = 5"}
    warm, new = both(sandbox, files, [*RUN, "a", "-b"], b"one\ntwo\nthree")
    assert same_text(new) == same_text(warm)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.argv, sys.orig_argv[:3], sorted(globals()))",
        "1 / 0",
        "x = =",
        "print(__loader__)",
    ],
)
def test_a_command_sees_the_same_in_a_warm_interpreter(sandbox: Bubblewrap, code: str) -> None:
    """The same for ``-c``."""
    warm, new = both(sandbox, {}, ["python3", "-I", "-c", code, "a"])
    assert seen(new) == seen(warm)


def test_honest_programs_pass_in_warm_interpreters(sandbox: Bubblewrap) -> None:
    """What ordinary programs do works in them, too."""
    for code, expected in list(HONEST.values())[::8]:
        files = FILES | {"main.py": code.encode()}
        result = asyncio.run(sandbox.run(files, RUN, b"1\n2\n3\n", LIMITS))
        isolated = asyncio.run(
            sandbox.run(files, ["python3", "-I", "./main.py"], b"1\n2\n3\n", LIMITS)
        )
        assert isolated.status == result.status, result.stderr
        assert isolated.stdout == result.stdout, result.stderr
        if result.status == "ok":
            assert expected == result.stdout.decode("utf-8", "replace").strip()


@pytest.mark.slow
def test_attacks_are_held_in_warm_interpreters(sandbox: Bubblewrap, tmp_path: Path) -> None:
    """Every attack has the safe outcome that it has in a new interpreter."""
    canary = tmp_path / "canary"
    canary.write_text("SECRET 7261\n")
    host = {"$FILE": str(canary), "$PORT": "9", "$ABSTRACT": str(canary), "$PID": str(os.getpid())}
    for attack in ATTACKS:
        if any(sandbox.guarantees[axis] is not Guarantee.ENFORCED for axis in attack.needs.split()):
            continue
        code = PRELUDE + attack.code
        for name, value in host.items():
            code = code.replace(name, value)
        limits = ProgramLimits(
            seconds=1.5 if "timeout" in attack.statuses.split() else 30.0,
            cpu_seconds=20.0, memory=256 << 20, processes=48, disk=16 << 20, output=100_000,
        )  # fmt: skip
        argv = ["python3", "-I", "attack.py"]
        assert serves(Program(argv=argv, files={"attack.py": code.encode()}, limits=limits)), (
            attack.name
        )
        result = asyncio.run(sandbox.run({"attack.py": code.encode()}, argv, limits=limits))
        assert result.status in attack.statuses.split(), (attack.name, result)
        assert b"BREACH" not in result.stdout, (attack.name, result)
        assert b"held" in result.stdout or not attack.exact, (attack.name, result)
        assert result.usage.memory <= limits.memory


def test_limits_hold_in_a_warm_interpreter(sandbox: Bubblewrap) -> None:
    """Those of the run and not those of the pool, from its release on; waiting does not count."""
    time.sleep(1.0)
    limits = ProgramLimits(
        seconds=0.5, output=1000, memory=64 << 20, processes=9, open_files=32, cpu_seconds=2.0
    )
    for code, status in (
        ("print('a', flush=True)\nwhile True: pass", "timeout"),
        ("print('a', flush=True)\nwhile True: print('x' * 99)", "output"),
        ("print('a', flush=True)\nb = bytearray(b'x') * (1 << 28)", "memory"),
    ):
        if status == "memory" and sandbox.guarantees["memory"] is not Guarantee.ENFORCED:
            continue
        asked = (
            limits if status == "timeout" else ProgramLimits(**(vars(limits) | {"seconds": 20.0}))
        )
        result = asyncio.run(sandbox.run({"main.py": code.encode()}, RUN, limits=asked))
        assert status == result.status
        assert (None if status != "memory" else 137) == result.exit
        assert result.stdout[:2] == b"a\n"
        if status == "timeout":
            assert 0.5 <= result.usage.seconds < 5
            assert result.usage.cpu_seconds < 2.0
    busy = ProgramLimits(**(vars(limits) | {"seconds": 120.0, "cpu_seconds": 1.0}))
    result = asyncio.run(sandbox.run({"main.py": b"while True: pass"}, RUN, limits=busy))
    assert result.status == "timeout"
    assert result.exit == 137
    assert result.usage.memory < 64 << 20
    code = b"import os\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: os.execvp('sleep', ['sleep', '9'])\n        n += 1\nexcept OSError: print(n)"
    if sandbox.guarantees["forks"] is Guarantee.ENFORCED:
        few = ProgramLimits(**(vars(limits) | {"seconds": 30.0}))
        result = asyncio.run(sandbox.run({"main.py": code}, RUN, limits=few))
        assert 0 < int(result.stdout) <= 9
        assert result.usage.refused_forks > 0


def test_each_interpreter_runs_one_program(sandbox: Bubblewrap) -> None:
    """Nothing of a run is there for the next one, and results never mix, many at one time."""
    code = b"import os, sys, json\njson.mark = sys.argv[1]\nopen('/tmp/mark', 'x').write('x')\nprint(sys.argv[1], input())"

    async def together() -> list[ProgramResult]:
        runs = (
            sandbox.run({"main.py": code}, [*RUN, str(n)], f"in{n}\n".encode(), LIMITS)
            for n in range(12)
        )
        return await asyncio.gather(*runs)

    assert [f"{n} in{n}\n".encode() for n in range(12)] == [
        result.stdout for result in asyncio.run(together())
    ]


def test_an_interactive_program_is_served(sandbox: Bubblewrap) -> None:
    """Lines go to the program and not to what waited in its place; large files travel before them."""

    async def talk() -> None:
        files = {
            "main.py": b"while True: print(input().upper(), flush=True)",
            "large": bytes(1 << 20),
        }
        async with sandbox.start(files, RUN, LIMITS) as program:
            for word in ("one", "two"):
                await program.write(f"{word}\n".encode())
                assert f"{word.upper()}\n".encode() == await program.read_line(seconds=20)
            result = await program.close()
            assert result.status == "closed"
            assert result.stdout == b""
            assert result.stderr == b""

    asyncio.run(talk())


def test_what_a_warm_interpreter_cannot_run_gets_a_new_one(sandbox: Bubblewrap) -> None:
    """Other commands, other flags, files with NUL, archives, paths that are not plain, limits above the pool's."""
    for argv in (
        ["python3", "main.py"],
        ["python3", "-I", "./main.py"],
        ["python3", "-I"],
        ["cat", "main.py"],
        RUN[1:],
    ):
        assert not serves(Program(argv=argv, files={"main.py": b""}))
    for name, data in (
        ("main.py", b"\0"),
        ("main.txt", b""),
        ("main.py", b"x = 'PK\x05\x06'"),
        ("-m.py", b""),
        ("main.py", b"\n # -*- coding: x"),
    ):
        assert not serves(Program(argv=["python3", "-I", name], files={name: data}))
    assert not serves(Program(argv=RUN))
    assert not serves(
        Program(argv=RUN, files={"main.py": b""}, limits=ProgramLimits(open_files=10_000))
    )
    full = {f"{n}": bytes(1) for n in range(200)} | {"main.py": b"print(1)"}
    assert not serves(Program(argv=RUN, files=full, limits=ProgramLimits(disk=1 << 20)))
    latin = asyncio.run(
        sandbox.run({"main.py": "# coding: latin-1\nprint(ascii('\u00e9'))".encode("latin-1")}, RUN)
    )
    assert latin.status == "ok"
    assert latin.stdout == b"'\\xe9'\n"
    small = ProgramLimits(**(vars(LIMITS) | {"memory": 3 << 20}))
    assert asyncio.run(sandbox.run({"main.py": b"print(1)"}, RUN, limits=small)).status in (
        "ok",
        "memory",
        "failed",
    )


def test_dead_and_old_interpreters_are_replaced(
    sandbox: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of those that wait, or their age, costs no run; the size of temporary files follows the callers."""
    pool(sandbox).wait_until_full()
    before = {box for _, _, box in pool(sandbox)._waiting}
    for name in left_behind(None):
        if name.endswith(" bwrap"):
            os.kill(int(name.split()[1]), signal.SIGKILL)
    time.sleep(0.5)
    assert asyncio.run(sandbox.run({"main.py": b"print(1)"}, RUN, limits=LIMITS)).status == "ok"
    pool(sandbox).wait_until_full()
    assert before.isdisjoint(box for _, _, box in pool(sandbox)._waiting)
    monkeypatch.setattr("quintain_sandbox.warm.RETIRED", 0.5)
    time.sleep(0.6)
    old = {box for _, _, box in pool(sandbox)._waiting}
    taken = pool(sandbox).take(Program(argv=RUN, files={"main.py": b""}))
    assert taken is not None
    assert taken not in old
    taken.close()
    limits = ProgramLimits(**(vars(LIMITS) | {"disk": 4 << 20}))
    code = b"import os; s = os.statvfs('/tmp'); print(s.f_blocks * s.f_bsize)"
    warm, new = both(sandbox, {"main.py": code}, RUN, limits=limits)
    assert b"%d\n" % (4 << 20) == warm.stdout == new.stdout


def test_the_guarantees_are_those_of_both_kinds(sandbox: Bubblewrap) -> None:
    """The probe runs in warm interpreters, too, and the weaker of the two levels counts."""
    with contextlib.contextmanager(lambda: iter_cold(sandbox))() as guarantees:
        assert {axis: guarantees[axis] for axis in AXES if axis != "time"} == {
            axis: sandbox.guarantees[axis] for axis in AXES if axis != "time"
        }


def iter_cold(sandbox: Bubblewrap) -> Iterator[Mapping[str, Guarantee]]:
    from quintain_sandbox.probe import measure

    with cold(sandbox):
        yield asyncio.run(measure(sandbox.run))


def test_settings_of_the_pool_are_checked() -> None:
    """A module that does not exist, and numbers out of range, are errors of the start."""
    with pytest.raises(UsageError, match=r"bubblewrap\.warm is 99; expected 0 to"):
        Bubblewrap(warm=99)

    async def start() -> None:
        async with Bubblewrap(slots=1, warm=1, imports=["json", "no_such_module"], enforce=()):
            pass

    with pytest.raises(
        InfrastructureError, match=r"(?s)warm interpreter did not start.*no_such_module"
    ):
        asyncio.run(start())


def test_modules_are_imported_ahead(sandbox: Bubblewrap) -> None:
    """The setting is what the program finds in `sys.modules`."""
    code = b"import sys; print('fractions' in sys.modules, 'turtle' in sys.modules)"
    warm, new = both(sandbox, {"main.py": code}, RUN)
    assert warm.stdout == b"True False\n"
    assert new.stdout == b"False False\n"
