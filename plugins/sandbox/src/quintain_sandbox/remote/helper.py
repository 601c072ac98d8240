"""The process that has harbor: calls go to it as lines of JSON, from any thread."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

from quintain.errors import InfrastructureError, UsageError

SIDE = Path(__file__).with_name("side.py")
END_SECONDS = 150.0
"""That the process may take to end its sandboxes."""
CHECK_SECONDS = 120.0
"""That it may take to import harbor and read the settings."""
LINES = 20
"""Lines of its standard error that an error shows."""


class Helper:
    """A process of another interpreter. It ends all sandboxes when this process ends, however it
    ends.

    Args:
        python: the interpreter, which has harbor.
        settings: what `side.Side` reads.

    Raises:
        UsageError: the interpreter lacks harbor, or harbor refuses the settings.
        InfrastructureError: the process failed.
    """

    def __init__(self, python: str, settings: Mapping[str, Any]) -> None:
        self._python = python
        self._numbers = count()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._said: deque[str] = deque(maxlen=LINES)
        try:
            self._process = subprocess.Popen(
                [python, "-I", str(SIDE), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # an interrupt from the terminal is for the trainer
            )
        except OSError as e:
            raise UsageError(f"remote.python is {python!r}, which does not start: {e}") from e
        self._threads = [
            threading.Thread(target=work, name="remote helper", daemon=True)
            for work in (self._read, self._listen)
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.facts = self.call("check", seconds=CHECK_SECONDS)
        except BaseException:
            self.close()
            raise

    def call(self, do: str, *, seconds: float, **words: Any) -> dict[str, Any]:
        """Ask, and wait for the answer.

        Raises:
            UsageError: harbor refuses what is asked for.
            InfrastructureError: it failed, or did not answer within *seconds*.
        """
        answer = self.ask(do, **words)
        try:
            return answer.result(timeout=seconds)
        except TimeoutError as e:
            raise InfrastructureError(
                f"remote: harbor did not answer {do!r} within {seconds:g} s"
            ) from e

    def ask(self, do: str, **words: Any) -> Future[dict[str, Any]]:
        """Ask without waiting; the answer raises as `call`."""
        answer: Future[dict[str, Any]] = Future()
        number = next(self._numbers)
        line = json.dumps({"id": number, "do": do, **words}).encode() + b"\n"
        with self._lock:
            self._waiting[number] = answer
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except (OSError, ValueError):  # it has ended, or was closed
                self._waiting.pop(number, None)
                answer.set_exception(self._ended())
        return answer

    def close(self) -> None:
        """Let it end all sandboxes, and end it.

        Raises:
            InfrastructureError: it could not end some.
        """
        with self._lock, contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        late = False
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            late = True
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        left = [line for line in self._said if "sandbox may be left" in line]
        if left or late:
            raise InfrastructureError(
                f"remote: {' | '.join(left) or 'harbor did not end its sandboxes in time'}; look "
                "for sandboxes named quintain-* with the tools of the service"
            )

    def _read(self) -> None:
        """Hand out answers until the process ends."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                answer = json.loads(line)
                with self._lock:
                    waiting = self._waiting.pop(answer.pop("id"))
                if "error" not in answer:
                    waiting.set_result(answer)
                elif answer["refused"]:
                    waiting.set_exception(UsageError(answer["error"]))
                else:
                    waiting.set_exception(InfrastructureError(f"remote: {answer['error']}"))
        self._threads[1].join()
        with self._lock:
            for waiting in self._waiting.values():
                waiting.set_exception(self._ended())
            self._waiting.clear()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line.decode("utf-8", "replace").rstrip()[:1000])

    def _ended(self) -> UsageError | InfrastructureError:
        """Return why nothing is answered."""
        said = self._said[-1] if self._said else "it said nothing"
        if "No module named 'harbor" in said:
            return UsageError(
                f"remote.python is {self._python!r}, which has no harbor: {self._python} -m pip "
                "install 'harbor[modal]' (Python 3.12 or newer; [daytona], [e2b], [gke], ... for "
                "the other services)"
            )
        return InfrastructureError(f"remote: the process of harbor ended: {said}")
