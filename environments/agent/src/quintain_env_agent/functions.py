"""Agents that are Python functions: where they are, and how they run beside the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from quintain.errors import UsageError


def load(name: str) -> Callable[..., Any]:
    """The function *name*: ``module:function`` or ``path/to/file.py:function``.

    Raises:
        UsageError: there is none, or its module fails.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon or not where:
        raise UsageError(f"function is {name!r}; expected module:function or file.py:function")
    try:
        module = _file(os.path.abspath(where)) if where.endswith(".py") else importlib.import_module(where)
    except Exception as e:
        raise UsageError(f"function {name!r}: {where} cannot be imported: {type(e).__name__}: {e}") from e
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f"function {name!r}: {where} has no function {attribute!r}")
    return function  # type: ignore[no-any-return]


@cache
def _file(path: str) -> ModuleType:
    # Not its own name, which a package that it imports may have; the same in every process, for caches.
    name = f"quintain_agent_{Path(path).stem}_{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """What *function* returns: awaited, or called in a thread of its own.

    A pool of threads would be too small: an engine that waits for all episodes would wait for those in its queue. A
    thread cannot be ended: one that outlives its episode runs until its next request, which is refused.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is None:
            outcome.set_result(result)
        else:
            # A future refuses StopIteration.
            outcome.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function, *args)
        except BaseException as e:  # noqa: BLE001 - also a SystemExit of a library
            error = e
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="quintain-agent", daemon=True).start()
    result = await outcome
    return await result if inspect.isawaitable(result) else result
