"""The verifier: from a reference and a reply to a verdict. Cheap rules in the caller, everything
else in workers.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

from quintain.errors import InfrastructureError, UsageError

from .extract import final_answers
from .gates import LONGEST, too_large
from .literals import based, rational
from .normalise import normalise
from .pool import ForkedPool, Overrun
from .verdict import Verdict, VerdictKind

_ALL: weakref.WeakSet[Verifier] = weakref.WeakSet()
PLAIN = ("7283.25",)
"""An answer that costs nothing: if a comparison with it exceeds a limit, that is the reference's
doing.
"""
BUSY_SHARE = 0.2
"""A worker that got less than this share of its limit as CPU time was starved: the answer did not
exhaust it.
"""


class Verifier:
    """Compares answers with references as mathematics. Safe in threads, in event loops and after a
    fork.

    It installs no signal handlers and no alarms. Text of a model is compared as strings and as
    literal numbers in the caller; the rest runs in worker processes with limits on time and address
    space.

    Args:
        processes: workers at most; they start when first needed.
        memory: limit on the address space of each worker, MiB.
        cache: number of verdicts that are kept; the least recently used is dropped first.

    Raises:
        UsageError: *processes* or *memory* is below 1.
    """

    def __init__(self, *, processes: int = 2, memory: int = 2048, cache: int = 100_000) -> None:
        for name, value in (("processes", processes), ("memory", memory)):
            if value < 1:
                raise UsageError(f"math_equal: {name} is {value}; expected at least 1")
        self.processes, self.memory, self.size = processes, memory, cache
        self._fresh()
        _ALL.add(self)

    def _fresh(self) -> None:
        self._pool = ForkedPool(size=self.processes, memory=self.memory)
        self._cache: OrderedDict[tuple[str, tuple[str, ...]], Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def verify(
        self, gold: str, reply: str, *, timeout: float = 5.0, boxed_only: bool = False
    ) -> Verdict:
        """Return the verdict on *reply*, against the reference *gold*. A failure of a worker is one
        of the kinds.

        Args:
            timeout: seconds from the moment a worker gets the answer.
            boxed_only: take no answer but a ``\\boxed{}``.

        Raises:
            UsageError: *gold* cannot be read as mathematics, or exceeds a limit itself.
        """
        prepared = self._prepare(gold, reply, boxed_only)
        if isinstance(prepared, Verdict):
            return prepared
        return self._compute(*prepared, timeout)

    async def averify(
        self, gold: str, reply: str, *, timeout: float = 5.0, boxed_only: bool = False
    ) -> Verdict:
        """Return the verdict as `verify` does, without blocking the event loop."""
        prepared = self._prepare(gold, reply, boxed_only)
        if isinstance(prepared, Verdict):
            return prepared
        # threads that end with the loop
        return await asyncio.to_thread(self._compute, *prepared, timeout)

    def unreadable(self, golds: Iterable[str], *, timeout: float = 5.0) -> list[tuple[int, str]]:
        """Return the index and the reason of each reference that no answer could be compared with,
        for use when data is loaded.

        Raises:
            InfrastructureError: a worker died, or the workers do not start.
        """
        rows = list(golds)
        reasons: dict[str, str] = {}
        hard = []
        for gold in dict.fromkeys(rows):
            text = _reference(gold)
            if not text:
                reasons[gold] = "it is empty"
            elif reason := "" if rational(text) is not None else too_large(text):
                reasons[gold] = reason
            elif rational(text) is None and based(text) is None:
                hard.append((gold, text))
        with ThreadPoolExecutor(self.processes) as threads:
            outcomes = list(threads.map(lambda pair: self._unreadable(pair[1], timeout), hard))
        reasons |= {
            gold: reason for (gold, _), reason in zip(hard, outcomes, strict=True) if reason
        }
        return [(i, reasons[gold]) for i, gold in enumerate(rows) if gold in reasons]

    def _unreadable(self, gold: str, timeout: float) -> str:
        try:
            reply = self._pool.ask({"gold": gold}, timeout)
        except Overrun:
            return f"it is not read within {timeout:g} s"
        return "" if reply.get("kind") == "readable" else str(reply.get("reason", ""))

    def close(self) -> None:
        """Stop the workers and forget the verdicts; a later call starts new ones."""
        self._pool.close()
        self._fresh()

    def _prepare(
        self, gold: str, reply: str, boxed_only: bool
    ) -> Verdict | tuple[str, tuple[str, ...]]:
        """Return the verdict if strings, literals, gates or the cache give it, else what the worker
        gets.
        """
        reference = _reference(gold)
        if not reference:
            raise UsageError(f"the reference answer {gold[:80]!r} is empty")
        candidates = final_answers(reply, boxed_only=boxed_only)
        if not candidates:
            return Verdict(kind=VerdictKind.NO_ANSWER, reason="no answer found")
        shown = "; ".join(candidates)[:200]
        if candidates == [gold.strip()] and not _meaningless(reference):
            return Verdict(kind=VerdictKind.CORRECT, answer=shown)
        if any(len(a) > 2 * LONGEST for a in candidates):
            return Verdict(
                kind=VerdictKind.TOO_LARGE,
                answer=shown,
                reason=f"more than {2 * LONGEST} characters",
            )
        answers = tuple(filter(None, map(_normalised, candidates)))
        if not answers:
            return Verdict(kind=VerdictKind.NO_ANSWER, answer=shown, reason="the answer is empty")
        key = (reference, answers)
        with self._lock:
            cached = self._cache.get(key)
            if cached is not None:
                self._cache.move_to_end(key)
                return cached
        verdict = _cheap(reference, answers, shown)
        if verdict is not None:
            self._keep(key, verdict)
            return verdict
        return key

    def _compute(self, gold: str, answers: tuple[str, ...], timeout: float) -> Verdict:
        shown = "; ".join(answers)[:200]
        try:
            reply = self._pool.ask({"gold": gold, "answers": list(answers)}, timeout)
        except Overrun as e:
            starved = e.cpu is not None and e.cpu < BUSY_SHARE * timeout
            reason = f"no verdict within {timeout:g} s" + (
                f", of which {e.cpu:.1f} s of CPU time" if starved else ""
            )
            verdict = Verdict(
                kind=VerdictKind.TIMEOUT, answer=shown, reason=reason, starved=starved
            )
        except InfrastructureError as e:
            verdict = Verdict(kind=VerdictKind.ERROR, answer=shown, reason=str(e), starved=True)
        else:
            kind = reply.get("kind")
            reason = str(reply.get("reason", ""))[:200]
            if kind == "unreadable":
                raise UsageError(f"the reference answer {gold[:80]!r} cannot be compared: {reason}")
            if kind not in ("correct", "wrong", "too_large", "error"):
                kind, reason = "error", "a reply of a worker that is no verdict"
            if kind == "wrong" and not reason:
                reason = f"{shown[:80]} is not {gold[:80]}"
            verdict = Verdict(kind=VerdictKind(kind), answer=shown, reason=reason)
        beyond = verdict.kind in (VerdictKind.TIMEOUT, VerdictKind.TOO_LARGE)
        if beyond and not verdict.starved:
            starved = self._check_cost(gold, answers, verdict.reason, timeout)
            verdict = replace(verdict, starved=starved)
        if not verdict.starved:
            self._keep((gold, answers), verdict)
        return verdict

    def _check_cost(self, gold: str, answers: tuple[str, ...], reason: str, timeout: float) -> bool:
        """Check the reference alone, so that it is blamed, and not the answers, where it exceeds a
        limit by itself. Return whether this check was starved, so that the fault is nobody's yet.

        Raises:
            UsageError: it does.
        """
        if answers == PLAIN:
            raise UsageError(f"the reference answer {gold[:80]!r} cannot be compared: {reason}")
        with self._lock:
            known = (gold, PLAIN) in self._cache
        if not known and rational(gold) is None:
            return self._compute(gold, PLAIN, timeout).starved
        return False

    def _keep(self, key: tuple[str, tuple[str, ...]], verdict: Verdict) -> None:
        with self._lock:
            self._cache[key] = verdict
            while len(self._cache) > self.size:
                self._cache.popitem(last=False)


def _cheap(gold: str, answers: tuple[str, ...], shown: str) -> Verdict | None:
    """Return the verdict of strings, literal numbers and size gates.

    Raises:
        UsageError: *gold* does not pass the gates.
    """
    if len(answers) == 1:
        (answer,) = answers
        a, b = rational(gold), rational(answer)
        if answer == gold or (a is not None and a == b):
            if _meaningless(gold):
                return Verdict(kind=VerdictKind.WRONG, answer=shown, reason="it has no value")
            return Verdict(kind=VerdictKind.CORRECT, answer=shown)
        if a is not None and b is not None:
            return Verdict(
                kind=VerdictKind.WRONG, answer=shown, reason=f"{answer[:80]} is not {gold[:80]}"
            )
    if rational(gold) is None and (reason := too_large(gold)):
        raise UsageError(f"the reference answer {gold[:80]!r} cannot be compared: {reason}")
    reason = too_large(answers[0] if len(answers) == 1 else ";".join(answers))
    return Verdict(kind=VerdictKind.TOO_LARGE, answer=shown, reason=reason) if reason else None


def _meaningless(gold: str) -> bool:
    return gold in ("nan", r"\text{nan}")


@lru_cache(maxsize=65536)
def _reference(gold: str) -> str:
    """Return a reference answer, normalised: LaTeX or plain, in a box or not, in dollar signs or
    not.
    """
    text = gold.strip()
    boxed = final_answers(text, boxed_only=True) if "box" in text else []
    return _normalised(";".join(boxed) if boxed else text)


@lru_cache(maxsize=16384)
def _normalised(answer: str) -> str:
    return normalise(answer)


@lru_cache(maxsize=8)
def shared_verifier(processes: int = 2, memory: int = 2048) -> Verifier:
    """Return the verifier of this process with these settings, started when first used and stopped
    at exit.
    """
    return Verifier(processes=processes, memory=memory)


def _after_fork() -> None:
    """Reset the verifiers of a forked process, which shares no workers, threads or locks with its
    parent.
    """
    for verifier in list(_ALL):
        verifier._pool.abandon()
        verifier._fresh()


def _at_exit() -> None:
    for verifier in list(_ALL):
        verifier._pool.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
