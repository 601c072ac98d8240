"""The solution's side: imports what the policy wrote and does what the tests ask for. Nothing here
is trusted.

The first line of standard input is the job; each further line is a request, answered by one line.
What the solution prints goes nowhere. Objects that are not plain data stay here, and the tests hold
references to them.
"""

from __future__ import annotations

import importlib
import json
import operator
import os
import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds to import
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from quintain_values import (  # type: ignore[import-not-found]  # noqa: E402
    BUILTINS,
    Codec,
    NotPlainError,
    lift_digits,
    take_streams,
    write_all,
)

OPERATIONS = {name: getattr(operator, name) for name in dir(operator) if not name.startswith("_")}
OPERATIONS |= {
    f.__name__: f for f in (iter, next, str, repr, hash, format, len, int, float, isinstance, bool)
}
OPERATIONS |= {
    "enter": lambda x: type(x).__enter__(x),
    "exit": lambda x: type(x).__exit__(x, None, None, None),
}
OPERATIONS |= {"setattr": setattr, "delattr": delattr, "getattr": getattr}
MUTABLE = (list, dict, set, bytearray)


class Callback:
    """A function of the tests, which they pass as an argument."""

    def __init__(self, server: SolutionServer, number: int) -> None:
        self._server, self._number = server, number

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._server.ask(["callback", self._number, list(args), keywords])


class SolutionServer:
    """Answers requests about the solution's modules."""

    def __init__(self, source: Any, sink: int, *, in_place: bool) -> None:
        self._source, self._sink, self._in_place = source, sink, in_place
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._codec = Codec(
            self._refer, {"ref": self._objects.__getitem__, "callback": self._callback}
        )

    def _callback(self, number: int) -> Callback:
        return Callback(self, number)

    def _refer(self, value: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self._codec.plain(value.item())
        if isinstance(value, Callback):
            raise NotPlainError("a function of the tests comes back")
        return {"ref": [self._number(value), type(value).__name__, self._lineage(value)]}

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _lineage(self, value: Any) -> Any:
        """Return, for an exception class, its own classes, nearest first, and the name of the
        built-in one behind them; for anything else nothing.
        """
        if not (isinstance(value, type) and issubclass(value, BaseException)):
            return None
        own_classes: list[Any] = []
        for kind in value.__mro__:
            if BUILTINS.get(kind.__name__) is kind or kind in (SystemExit, BaseException):
                return [own_classes, kind.__name__]
            own_classes.append([self._number(kind), kind.__name__])
        return None

    def serve(self) -> None:
        while (request := self._read()) is not None:
            self._handle(request)

    def ask(self, question: list[Any]) -> Any:
        """Ask the tests, and answer them until the reply comes."""
        self._send(question)
        while (request := self._read()) is not None:
            if request[0] == "return":
                return request[1]
            if request[0] == "throw":
                raise BUILTINS.get(request[1], Exception)(request[2])
            self._handle(request)
        raise SystemExit

    def _read(self) -> Any:
        line = self._source.readline()
        return self._codec.read(line.decode("ascii")) if line else None

    def _send(self, message: list[Any]) -> None:
        write_all(self._sink, self._codec.write(message).encode("ascii") + b"\n")

    def _handle(self, request: list[Any]) -> None:
        kind, number, *rest = request
        try:
            reply = [*getattr(self, f"_do_{kind}")(*rest)]
        except NotPlainError as e:
            reply = ["refuse", number, str(e)]
        except StopIteration:
            is_next = kind == "op" and rest[0] == "next"
            reply = ["stop", number] if is_next else ["raise", number, [[], "RuntimeError"], [], {}]
        except BaseException as e:  # noqa: BLE001 - whatever the solution raises is the tests' to judge
            reply = ["raise", number, self._lineage(type(e)), *self._about(e)]
        else:
            reply = ["value", number, *reply]
        try:
            self._send(reply)
        except (NotPlainError, RecursionError) as e:
            self._send(["refuse", number, str(e)])

    def _about(self, error: BaseException) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments and attributes of an exception if they are plain; otherwise the name of
        its class and no attributes.
        """
        try:
            description = list(error.args), {k: v for k, v in vars(error).items() if type(k) is str}
            Codec().write(description)
        except Exception:  # noqa: BLE001 - an author's `__str__` may raise anything
            return [str(type(error).__name__)], {}
        return description

    def _do_get(self, module: str, name: str) -> tuple[Any, ...]:
        loaded = importlib.import_module(module)
        return (getattr(loaded, name),) if name else (None,)

    def _do_names(self, module: str, names: list[str]) -> tuple[Any, ...]:
        loaded = importlib.import_module(module)
        return ({name: getattr(loaded, name) for name in names if hasattr(loaded, name)},)

    def _do_call(self, function: Any, args: list[Any], keywords: dict[str, Any]) -> tuple[Any, ...]:
        given = [*args, *keywords.values()]
        before = self._texts(given)
        value = function(*args, **keywords)
        after = self._texts(given)
        return value, [[i, given[i]] for i in range(len(before)) if before[i] != after[i]]

    def _texts(self, values: list[Any]) -> list[Any]:
        if not self._in_place:
            return []
        return [self._codec.write(value) if type(value) in MUTABLE else None for value in values]

    def _do_op(self, name: str, *operands: Any) -> tuple[Any, ...]:
        return (OPERATIONS[name](*operands),)


def main() -> None:
    source, sink = take_streams()
    job = json.loads(source.readline())
    lift_digits()
    random.seed(0)  # the same solution gets the same score
    sys.argv[:] = ["solution"]
    SolutionServer(source, sink, in_place=job["in_place"]).serve()
    os._exit(0)


main()
