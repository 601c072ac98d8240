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
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from quintain.errors import UsageError

CLEANUP_SECONDS = 1.0
"""How long an agent that awaits may take to end after its cancellation; one that blocks does not
notice it.
"""


def load(name: str) -> Callable[..., Any]:
    """Return the function *name*: ``module:function`` or ``path/to/file.py:function``.

    Raises:
        UsageError: there is none, or its module fails.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon or not where:
        raise UsageError(f"function is {name!r}; expected module:function or file.py:function")
    try:
        module = (
            _file(os.path.abspath(where))
            if where.endswith(".py")
            else importlib.import_module(where)
        )
    except Exception as e:
        raise UsageError(
            f"function {name!r}: {where} cannot be imported: {type(e).__name__}: {e}"
        ) from e
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UsageError(f"function {name!r}: {where} has no function {attribute!r}")
    return function  # type: ignore[no-any-return]


@cache
def _file(path: str) -> ModuleType:
    # Not its own name, which a package that it imports may have; the same in every process, for
    # caches.
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


def bypass_proxy(url: str) -> None:
    """Let clients of this process reach the host of *url*, which is on this machine, without the
    proxy that environment variables name: it would look for the host on its own machine.
    """
    host = urlsplit(url).hostname or ""
    # Clients read either name. Where both are set, most read the small one.
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    hosts = [part.strip() for part in given.split(",") if part.strip()]
    if host not in hosts and "*" not in hosts:
        hosts.append(host)
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """Return what *function* returns, called in a thread of its own; what can be awaited, in an
    event loop of that thread.

    So an agent that blocks delays nobody else, async or not. A pool of threads would be too small:
    an engine that waits for all episodes would wait for those in its queue. A thread cannot be
    ended: one that outlives its episode runs until its next request, which is refused. A
    cancellation of this call reaches what the thread awaits.
    """
    run = _Call(function, args)
    threading.Thread(target=run.work, name="quintain-agent", daemon=True).start()
    try:
        await asyncio.wait([run.outcome])  # which a cancellation leaves as it is
    except asyncio.CancelledError:
        run.cancel()
        await asyncio.wait([run.outcome], timeout=CLEANUP_SECONDS)
        if run.outcome.done():
            run.outcome.exception()  # has been seen
        raise
    return run.outcome.result()


class _Call:
    """One call of a function, begun in the thread of the trainer's event loop and worked off in
    another.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        self._function, self._args = function, args
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self._lock, self._cancelled = threading.Lock(), False
        self._agent: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None] | None = None
        self.outcome: asyncio.Future[Any] = self._loop.create_future()

    def work(self) -> None:
        """Call the function in this thread and tell the trainer's event loop what came of it."""
        try:
            result = self._context.run(self._function, *self._args)
            if not inspect.isawaitable(result):
                return self._tell(result, None)
        except BaseException as e:  # noqa: BLE001 - also a SystemExit of a library
            return self._tell(None, e)
        with asyncio.Runner() as runner:  # its end cancels what the agent left running
            try:
                self._tell(runner.run(self._awaited(result), context=self._context), None)
            except BaseException as e:  # noqa: BLE001
                self._tell(None, e)

    def cancel(self) -> None:
        """Cancel what the thread awaits, now or as soon as it does."""
        with self._lock:
            self._cancelled = True
            if self._agent is not None:
                loop, task = self._agent
                if task is not None and not loop.is_closed():
                    loop.call_soon_threadsafe(task.cancel)

    async def _awaited(self, result: Awaitable[Any]) -> Any:
        with self._lock:
            self._agent = asyncio.get_running_loop(), asyncio.current_task()
            if self._cancelled:
                raise asyncio.CancelledError
        try:
            return await result
        finally:
            with self._lock:
                self._agent = None

    def _tell(self, result: Any, error: BaseException | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            self.outcome.set_result(result)
        else:
            # A future refuses StopIteration.
            self.outcome.set_exception(
                RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            )
