"""The tests' side: runs them, with the names of the solution bound to proxies, and counts what
passed.

The first line of standard input is the job. Afterwards each line that is written is a request to
the solution (``C``) or the verdict (``D``), and each line that is read is a reply (``R``) or the
news that the solution has ended (``X``). Replies are rebuilt by `Codec`, so that no code of the
solution runs here.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import types
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds to import
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from quintain_values import (  # type: ignore[import-not-found]  # noqa: E402
    BUILTINS,
    Codec,
    MalformedError,
    NotPlainError,
    lift_digits,
    take_streams,
    write_all,
)

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
RAISED: dict[str, Any] = {
    n: v for n, v in BUILTINS.items() if isinstance(v, type) and issubclass(v, Exception)
}
RAISED["SystemExit"] = SystemExit
for _name in ("StopIteration", "StopAsyncIteration"):  # either would end a loop of the tests early
    del RAISED[_name]


class SolutionError(Exception):
    """The solution raised something that is no ordinary exception."""


class LostError(BaseException):
    """The solution has ended, or does not keep to the protocol. No test passes any more."""


class Link:
    """Requests to the solution, one at a time.

    Attributes:
        fault: outcome and reason that fail the current test, even if it catches the exception.
        lost: outcome and reason that fail all further tests.
        test: the id of the current test of a suite.
        used: how often each test applied each operation to an object of the solution.
    """

    def __init__(self, source: Any, sink: int, job: dict[str, Any]) -> None:
        self._source, self._sink, self._in_place = source, sink, job["in_place"]
        self._allowed: dict[str, dict[str, int]] | None = job["allowed"]
        self.test = ""
        self.used: dict[str, dict[str, int]] = {}
        self._number = 0
        self._functions: list[Any] = []
        self._proxies: weakref.WeakValueDictionary[int, Proxy] = weakref.WeakValueDictionary()
        self._errors: dict[int, type[Exception]] = {}
        self._codec = Codec(self._refer, {"ref": self._resolve})
        self.fault: tuple[str, str] | None = None
        self.lost: tuple[str, str] | None = None

    def _refer(self, value: Any) -> Any:
        if isinstance(value, Proxy):
            return {"ref": object.__getattribute__(value, "_q_number")}
        if isinstance(value, type) and "_q_number" in vars(value):
            return {"ref": vars(value)["_q_number"]}
        if isinstance(value, FUNCTIONS):
            self._functions.append(value)
            return {"callback": len(self._functions) - 1}
        raise NotPlainError(f"the tests pass a {type(value).__name__} to the solution")

    def _resolve(self, content: Any) -> Any:
        number, name, lineage = content
        if type(number) is not int or type(name) is not str:
            raise ValueError("no reference")
        if lineage is not None:
            return self._error(lineage)
        if (proxy := self._proxies.get(number)) is None:
            proxy = self._proxies[number] = Proxy(self, number, name)
        return proxy

    def _error(self, lineage: Any) -> type[BaseException]:
        """Return the class that stands for an exception class of the solution."""
        own_classes, name = lineage
        kind: Any = RAISED.get(name, SolutionError)
        for number, own_name in reversed(own_classes):
            if number not in self._errors:
                self._errors[int(number)] = type(str(own_name), (kind,), {"_q_number": number})
            kind = self._errors[number]
        return kind  # type: ignore[no-any-return]

    def permit(self, operation: str, name: str) -> None:
        """Count an operation that hands a value of the tests to an object of the solution, or
        decides by one.

        Only as many as the reference needs are allowed, so that no object takes the place of plain
        data: its methods would see what the tests expect.
        """
        used = self.used.setdefault(self.test, {})
        used[operation] = used.get(operation, 0) + 1
        if self._allowed is not None and used[operation] > self._allowed.get(self.test, {}).get(
            operation, 0
        ):
            raise self.taint(
                "unsupported",
                f"{operation!r} of a {name} of the solution, where plain data is expected",
            )

    def taint(self, outcome: str, reason: str) -> NotPlainError:
        """Set the fault of the current test, unless it has one, and return the error to raise."""
        self.fault = self.fault or (outcome, reason)
        return NotPlainError(reason)

    def _lose(self, outcome: str, reason: str) -> LostError:
        self.lost = self.lost or (outcome, reason)
        return LostError(reason)

    def _send(self, message: list[Any]) -> None:
        try:
            data = b"C" + self._codec.write(message).encode("ascii") + b"\n"
        except NotPlainError as e:
            raise self.taint("unsupported", str(e)) from None
        write_all(self._sink, data)

    def ask(self, kind: str, *rest: Any) -> Any:
        """Return what the solution replies: a value, or its exception."""
        if self.lost:
            raise LostError(self.lost[1])
        self._number += 1
        number = self._number
        self._send([kind, number, *rest])
        while True:
            line = self._source.readline().decode("ascii", "replace")
            if not line or line[0] == "X":
                raise self._lose(
                    *(json.loads(line[1:]) if line else ("crashed", "the solution has ended"))
                )
            try:
                reply = self._codec.read(line[1:])
                if reply[0] != "callback":
                    status, replied, *content = reply
                    if replied != number:
                        raise MalformedError("a reply to another request")
                    value = self._answer(status, content, kind, rest)
                    break
                function, args, keywords = self._functions[reply[1]], [*reply[2]], {**reply[3]}
            except (MalformedError, ValueError, TypeError, LookupError) as e:
                raise self._lose("error", f"the solution replies {line[1:80]!r}: {e}") from None
            self._send(self._called(function, args, keywords))
        if status != "value":
            raise value
        return value

    def _called(self, function: Any, args: Any, keywords: Any) -> list[Any]:
        try:
            return ["return", function(*args, **keywords)]
        except Exception as e:  # noqa: BLE001 - the solution gets what its caller's function raises
            return ["throw", type(e).__name__, str(e)]

    def _change(self, args: list[Any], changes: list[Any]) -> None:
        """Give arguments of the tests the contents that the solution left in them."""
        if not self._in_place:
            raise MalformedError("an argument changes")
        for index, new in changes:
            _replace(args[index], new)

    def _answer(self, status: str, content: list[Any], kind: str, rest: Any) -> Any:
        """Return the value of a reply, or the exception that it stands for."""
        if status == "value":
            value, *changed = content
            if changed and changed[0]:
                self._change([*rest[1], *rest[2].values()], changed[0])
            return value
        if status == "refuse":
            return self.taint("unsupported", str(content[0]))
        if status == "stop" and kind == "op" and rest[0] == "next":
            return StopIteration()
        if status != "raise":
            raise MalformedError(f"the status {status!r}")
        lineage, args, attributes = content
        error: Any = SolutionError(*args) if lineage is None else self._error(lineage)(*args)
        if hasattr(type(error), "_q_number"):
            vars(error).update(
                {k: v for k, v in attributes.items() if type(k) is str and not k.startswith("_")}
            )
        return error


def _replace(old: Any, new: Any) -> None:
    if type(old) is not type(new):
        raise MalformedError("an argument changes its type")
    if isinstance(old, (list, bytearray)):
        old[:] = new
    else:
        old.clear()
        old.update(new)


class Proxy:
    """An object that lives with the solution."""

    __slots__ = ("__weakref__", "_q_link", "_q_name", "_q_number")

    def __init__(self, link: Link, number: int, name: str) -> None:
        object.__setattr__(self, "_q_link", link)
        object.__setattr__(self, "_q_number", number)
        object.__setattr__(self, "_q_name", name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._q_link.ask("call", self, list(args), keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._q_link.ask("op", "getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._q_link.ask("op", "setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._q_link.ask("op", "delattr", self, name)

    def __eq__(self, other: object) -> Any:
        return False if other is None else self._compared("eq", other)

    def __ne__(self, other: object) -> Any:
        return True if other is None else self._compared("ne", other)

    def _compared(self, name: str, other: object) -> Any:
        self._q_link.permit(name, self._q_name)
        return self._q_link.ask("op", name, self, other)

    def __instancecheck__(self, value: Any) -> bool:
        return (
            isinstance(value, Proxy) and self._q_link.ask("op", "isinstance", value, self) is True
        )

    def __repr__(self) -> str:
        return (
            self._q_link.ask("op", "repr", self)
            if not self._q_link.lost
            else f"<{self._q_name} of the solution>"
        )


def _operation(name: str, *, guarded: bool = True, reflected: bool = False) -> Any:
    def method(self: Any, *operands: Any) -> Any:
        link = object.__getattribute__(self, "_q_link")
        if guarded:
            link.permit(name, self._q_name)
        return (
            link.ask("op", name, *operands, self)
            if reflected
            else link.ask("op", name, self, *operands)
        )

    return method


for _name in "str format len iter next getitem setitem delitem enter".split():
    setattr(Proxy, f"__{_name}__", _operation(_name, guarded=False))
for (
    _name
) in "int float index lt le gt ge neg pos invert abs contains bool hash iadd isub imul".split():
    setattr(Proxy, f"__{_name}__", _operation(_name))
for _name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split():
    _function = {"and": "and_", "or": "or_"}.get(_name, _name)
    setattr(Proxy, f"__{_name}__", _operation(_function))
    setattr(Proxy, f"__r{_name}__", _operation(_function, reflected=True))
Proxy.__exit__ = lambda self, *exc: self._q_link.ask("op", "exit", self) and False  # type: ignore[attr-defined]


class Module(types.ModuleType):
    """A module of the solution, in the tests."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.__spec__.loader.link.ask("get", self.__name__, name)  # type: ignore[union-attr]


class Finder:
    """Finds the solution's modules, and nothing else, on the other side."""

    def __init__(self, link: Link, modules: list[str]) -> None:
        self.link = link
        self._modules = set(modules)
        self._packages = {name.rpartition(".")[0] for name in modules} - {""}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._modules | self._packages:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=name in self._packages)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Module:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ in self._modules:
            self.link.ask("get", module.__name__, "")


def run_tests(link: Link, job: dict[str, Any]) -> list[list[str]]:
    """Run the tests of a function; outcome and reason of each."""
    space: dict[str, Any] = {"__name__": "tests"}
    start = _attempt(link, lambda: _bind(link, job, space))
    if start[0] == "passed":
        start = _attempt(link, lambda: exec(compile(job["setup"], "<setup>", "exec"), space))
    results = []
    for number, test in enumerate(job["tests"], 1):
        code = compile(test, f"<test {number}>", "exec")
        results.append(
            _attempt(link, functools.partial(exec, code, space)) if start[0] == "passed" else start
        )
    return results


def _bind(link: Link, job: dict[str, Any], space: dict[str, Any]) -> None:
    """Put the solution's names into *space*: those that were asked for, whatever else it offers."""
    offered = link.ask("names", job["module"], job["names"])
    space.update((name, offered[name]) for name in job["names"] if name in offered)


def _attempt(link: Link, function: Any) -> list[str]:
    link.fault = None
    try:
        function()
        outcome = ("passed", "")
    except AssertionError as e:
        outcome = ("failed", f"assertion failed: {e}"[:200])
    except BaseException as e:  # noqa: BLE001 - whatever a test raises, it has not passed
        outcome = ("error", f"{type(e).__name__}: {e}"[:200])
    return list(link.lost or link.fault or outcome)


class Counter:
    """A pytest plugin that notes each test's outcome: passed only if set-up, call and tear-down
    passed.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._bad: set[str] = set()
        self.outcomes: dict[str, list[str]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._link.fault = None
        self._link.test = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        known = self.outcomes.setdefault(
            report.nodeid, ["error", "the test did not run to its end"]
        )
        passed = report.outcome == "passed" and not hasattr(report, "wasxfail")
        bad = (
            self._link.lost
            or self._link.fault
            or (None if passed else ("failed", _last_line(report)))
        )
        if bad and report.nodeid not in self._bad:
            self._bad.add(report.nodeid)
            known[:] = bad
        elif report.when == "call" and not bad and report.nodeid not in self._bad:
            known[:] = ("passed", "")

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome != "passed" or self._link.fault:
            bad = self._link.lost or self._link.fault or ("error", _last_line(report))
            self.outcomes[f"{report.nodeid} (collection)"] = list(bad)


def _last_line(report: Any) -> str:
    return str([report.outcome, *str(report.longrepr or "").strip().splitlines()][-1])[:200]


def run_suite(link: Link, job: dict[str, Any]) -> dict[str, list[str]]:
    """Run the suite with pytest; outcome and reason by test."""
    sys.path.append(os.path.join(HERE, job["pytest"]))
    sys.meta_path.insert(0, Finder(link, job["modules"]))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = True
    import pytest

    folder = os.path.join(HERE, "suite")
    counter = Counter(link)
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--assert=plain",
        "--tb=line",
        "--import-mode=importlib",
    ]
    # Without --confcutdir pytest reads the conftest.py of every folder from that of the
    # configuration file down.
    options += ["-c", os.devnull, "--rootdir", folder, "--confcutdir", folder]
    pytest.main([*options, folder], plugins=[counter])
    return counter.outcomes


def main() -> None:
    source, sink = take_streams()
    lift_digits()
    job = json.loads(source.readline())
    link = Link(source, sink, job)
    verdict: dict[str, Any] = {"nonce": job["nonce"]}
    try:
        verdict["results"] = (
            run_tests(link, job) if job["kind"] == "function" else run_suite(link, job)
        )
    except BaseException as e:  # noqa: BLE001 - nobody reads standard error
        verdict["fault"] = f"{type(e).__name__}: {e}"[:500]
    verdict["used"] = link.used
    write_all(sink, b"D" + json.dumps(verdict).encode("ascii") + b"\n")
    os._exit(0)


main()
