"""A thread that owns an engine of vLLM and steps it; everything else asks it to."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

T = TypeVar("T")


class EngineThread:
    """Steps a ``vllm.v1.engine.llm_engine.LLMEngine`` while it has requests.

    vLLM's engine is not thread-safe and a step takes as long as a forward pass: here neither blocks
    the event loop, and calls run between two steps.

    Args:
        make: returns the engine; called in the thread.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._calls: deque[tuple[Future[Any], Callable[[Any], Any]]] = deque()
        self._changed = threading.Condition()
        self._waiting: dict[str, Future[Any]] = {}
        self._paused = self._closing = False
        self._count = 0
        self.ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="quintain-engines", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Any], T]) -> Future[T]:
        """Run *function* with the engine, between two steps."""
        future: Future[T] = Future()
        with self._changed:
            if self._closing:
                future.set_exception(RuntimeError("the vLLM engine is closed"))
                return future
            self._calls.append((future, function))
            self._changed.notify()
        return future

    def submit(
        self, prompt: Mapping[str, Any], params: Any, **more: Any
    ) -> tuple[str, Future[Any]]:
        """Add a request; its id, and its ``RequestOutput`` once it has ended."""
        self._count += 1
        request_id, answer = str(self._count), Future[Any]()

        def add(engine: Any) -> None:
            self._waiting[request_id] = answer
            try:
                engine.add_request(request_id, prompt, params, **more)
            except Exception as error:  # noqa: BLE001 -- the one who asked raises it
                self._waiting.pop(request_id)
                _settle(answer, error=error)

        def fail(call: Future[Any]) -> None:
            if call.exception():
                _settle(answer, error=call.exception())

        self.call(add).add_done_callback(fail)
        return request_id, answer

    def abort(self, request_id: str) -> None:
        """End a request whose answer nobody awaits."""

        def drop(engine: Any) -> None:
            if self._waiting.pop(request_id, None) is not None:
                engine.abort_request([request_id])

        self.call(drop)

    def pause(self, recompute_kv: bool) -> Future[None]:
        """Stop stepping; with *recompute_kv*, drop the keys and values of running requests."""

        def pause(engine: Any) -> None:
            engine.engine_core.engine_core.pause_scheduler("keep", clear_cache=recompute_kv)
            self._paused = True

        return self.call(pause)

    def resume(self) -> Future[None]:
        def resume(engine: Any) -> None:
            engine.engine_core.engine_core.resume_scheduler()
            self._paused = False

        return self.call(resume)

    def close(self) -> None:
        """End the thread after its present step; answers that are still awaited fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            with _global_random_state():
                engine = self._make()
        except BaseException as error:  # noqa: BLE001 -- the one who started the thread raises it
            _settle(self.ready, error=error)
            return
        _settle(self.ready)
        try:
            while self._do_calls(engine):
                if not self._paused and engine.has_unfinished_requests():
                    self._step(engine)
        finally:
            self._fail(RuntimeError("the vLLM engine was closed"))
            engine.engine_core.shutdown()

    def _do_calls(self, engine: Any) -> bool:
        """Run waiting calls; wait for one where there is nothing else to do. Whether to
        continue.
        """
        with self._changed:
            while (
                not self._calls
                and not self._closing
                and (self._paused or not engine.has_unfinished_requests())
            ):
                self._changed.wait()
            calls, self._calls = self._calls, deque()
            closing = self._closing
        for future, function in calls:
            try:
                result = function(engine)
            except Exception as error:  # noqa: BLE001 -- the caller raises it
                _settle(future, error=error)
            else:
                _settle(future, result=result)
        return not closing

    def _step(self, engine: Any) -> None:
        try:
            outputs = engine.step()
        except Exception as error:  # noqa: BLE001 -- every request waits for this step
            waiting = list(self._waiting)
            self._fail(error)
            engine.abort_request(waiting)
            return
        for output in outputs:
            if (
                output.finished
                and (answer := self._waiting.pop(output.request_id, None)) is not None
            ):
                _settle(answer, result=output)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            _settle(answer, error=error)
        with self._changed:
            calls, self._calls = self._calls, deque()
            if self._closing:
                for future, _ in calls:
                    _settle(future, error=error)
            else:
                self._calls = calls


def _settle(future: Future[Any], *, result: Any = None, error: BaseException | None = None) -> None:
    if future.cancelled():
        return
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
    except InvalidStateError:
        pass  # the one who asked was cancelled meanwhile


class _global_random_state:
    """Keeps the process's generators as they are: vLLM seeds them when it loads, and the learner
    draws from them.
    """

    def __enter__(self) -> None:
        import numpy
        import torch

        self._states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()

    def __exit__(self, *exc: object) -> None:
        import numpy
        import torch

        python, arrays, tensors = self._states
        random.setstate(python)
        numpy.random.set_state(arrays)
        torch.set_rng_state(tensors)
