"""Calls of judge models: cached, recorded, bounded in number and rate, retried, and paid from a
budget.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from quintain import InfrastructureError, Sampling
from quintain.errors import Interrupted, StorageError, UsageError
from quintain_engines.openai.retries import LONGEST_WAIT, wait_before_retry

from .backends import TRUNCATION, Backend, Outage, TransientFailure
from .cache import AnswerCache, JudgeAnswer, Recording, Spending
from .prompts import Prompt
from .verdicts import UnreadableVerdict

FORMAT = 2
"""Of the key of an answer; a change of it empties every cache."""
LONGEST_PROBE = 5.0
"""Seconds between two tries of a server that is down, at most."""
LONG_OUTAGE = 1.0
"""Seconds from which on an outage is worth a line; a server that turns down single requests would
fill the screen.
"""
_log = logging.getLogger(__name__)
FINISH_SECONDS = 5.0


class BudgetSpent(Interrupted):
    """The judge's budget is spent. The run stops as after Ctrl-C and can be resumed with a larger
    budget.
    """


class Budget(BaseModel):
    """What a run may spend on judges; 0 is no limit. Requests in flight are paid to their end.

    Attributes:
        calls: requests, retries included; answers from the cache are free.
        tokens: of prompts and replies, as the servers count them.
        money: in the currency of `prices`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    calls: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    money: float = Field(default=0.0, ge=0)

    def spent(self, total: Spending) -> str:
        """Return which limit *total* has reached; empty if none."""
        for name in ("calls", "tokens", "money"):
            limit = getattr(self, name)
            # a sum of prices has rounding errors
            if limit and getattr(total, name) >= limit * (1 - 1e-9):
                return f"{name} = {limit:,}"
        return ""


@dataclass(kw_only=True)
class CallSettings:
    """How calls are made: settings of a judge service.

    Attributes:
        concurrency: requests in flight.
        rate: requests per second; 0 is no limit.
        retries: after the first try of a verdict.
        backoff: seconds before the first retry; doubles each time, with jitter.
        outage: seconds for which a server that cannot be reached is waited for, before tries count.
        timeout: seconds for one try.
        max_tokens: of a verdict.
        temperature: of the judge; 0, unless verdicts are voted on.
        sampling: further settings of the samples of the judge: ``top_p``, ``top_k`` and ``min_p``.
        seed: of delimiters, jitter and votes.
        budget: calls, tokens and money that the run may spend; then it stops and can be resumed.
    """

    concurrency: int = 32
    rate: float = 0.0
    retries: int = 3
    backoff: float = 0.5
    outage: float = 120.0
    timeout: float = 60.0
    max_tokens: int = 512
    temperature: float = 0.0
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    budget: Budget = field(default_factory=Budget)

    def check(self) -> None:
        """Raise a `UsageError` if a setting is out of range."""
        least = {
            "concurrency": 1,
            "rate": 0,
            "retries": 0,
            "backoff": 0,
            "outage": 0,
            "max_tokens": 1,
            "temperature": 0,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(
                    f"judge: {name} is {getattr(self, name)}; expected at least {bound}"
                )
        if unknown := sorted(set(self.sampling) - set(TRUNCATION)):
            raise UsageError(
                f"judge: sampling.{unknown[0]}: expected {', '.join(TRUNCATION)}; temperature, "
                "max_tokens and seed are settings of the judge, and other fields of a request "
                "belong into extra"
            )
        try:
            Sampling(**self.sampling)
        except (TypeError, ValueError) as e:
            raise UsageError(f"judge: {e}") from e


class Caller:
    """Makes the calls of one judge service.

    Attributes:
        counts: since the start: ``calls`` (sent), ``cached``, ``joined`` (an equal call was in
            flight), ``replayed``, ``retries``, ``outages`` (tries of a server that was down),
            ``unreadable``, ``failures`` (given up).
        total: what the ledger has spent, over all processes of the run.
        ledger: name of the run's spending in the cache.
    """

    def __init__(
        self,
        settings: CallSettings,
        cache: AnswerCache,
        *,
        record: Path | None = None,
        replay: Path | None = None,
    ) -> None:
        if record and replay:
            raise UsageError("judge: record and replay exclude each other")
        settings.check()
        self.settings, self._cache = settings, cache
        recording = record or replay
        self._recording = Recording(recording, write=bool(record)) if recording else None
        self._replays = replay is not None
        self._semaphore = asyncio.Semaphore(settings.concurrency)
        self._in_flight: dict[str, asyncio.Task[tuple[Any, str]]] = {}
        self._next_slot = 0.0
        self._stopping = False
        self._down_since: dict[str, float] = {}
        self._reported_down: set[str] = set()
        self._ledger_file: Path | None = None
        self.ledger = uuid4().hex
        self.total = Spending()
        self.counts: Counter[str] = Counter()

    def resume(self, ledger: str, total: Spending) -> None:
        """Continue the spending of an earlier process: what the cache says of *ledger*, at least
        *total*.
        """
        written = self._cache.spent(ledger)
        self.ledger = ledger
        self.total = max((written, total, self.total), key=lambda s: s.calls)

    def keep_ledger(self, path: Path) -> None:
        """Write name and spending of the ledger through to the file *path*, and continue what it
        has already.

        A run that stops before its first checkpoint has no other memory of what it has paid.

        Raises:
            StorageError: the file cannot be read or written.
        """
        if path.is_file():
            try:
                row = json.loads(path.read_text(encoding="utf-8"))
                self.resume(row.pop("ledger"), Spending(**row))
            except (OSError, ValueError, TypeError, KeyError) as e:
                raise StorageError(
                    f"{path} is no ledger ({e}); delete it, and the budget begins at 0"
                ) from e
        self._ledger_file = path
        self._add(Spending())

    def flush(self) -> None:
        """Write what is pending in the cache."""
        self._cache.flush()

    def close(self) -> None:
        """Close cache and recording."""
        if self.total.calls:
            self._cache.write(self.ledger, self.total)
        self._cache.close()
        if self._recording is not None:
            self._recording.close()

    def key(self, judge: str, prompt: Prompt, vote: int) -> str:
        """Return the key of an answer: a hash of all that decides it. *judge*: its identity, or its
        number in a recording.
        """
        s = self.settings
        parts = [FORMAT, judge, prompt.digest, s.max_tokens, s.temperature, s.seed, vote]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    async def call(
        self, backend: Backend, prompt: Prompt, vote: int = 0, *, fresh: bool = False
    ) -> tuple[Any, str]:
        """Return the verdict of *backend* on *prompt* in the form of the prompt, and the reason.

        Args:
            vote: number of the sample, for self-consistency.
            fresh: ask even if the cache has the answer, for probes of the model itself.

        Raises:
            InfrastructureError: no readable verdict after the last retry.
            BudgetSpent: the budget is spent.
        """
        if self._recording is not None:
            key = self.key(f"judge {backend.number}", prompt, vote)
            if (answer := self._recording.get(key)) is not None:
                self.counts["replayed"] += 1
                return prompt.form.read(answer.text)
            if self._replays:
                raise InfrastructureError(
                    f"{self._recording.path} has no answer to this prompt ({key[:12]}); record it "
                    "again with the judge's setting record"
                )
        if not backend.identity:
            return await self._asked(backend, prompt, vote, "")
        key = self.key(backend.identity, prompt, vote)
        if not fresh and (answer := self._cache.get(key)) is not None:
            self.counts["cached"] += 1
            self._record(backend, prompt, vote, answer)
            return self._readable(key, prompt, answer)
        if key in self._in_flight:
            self.counts["joined"] += 1
            return await asyncio.shield(self._in_flight[key])
        task = self._in_flight[key] = asyncio.ensure_future(self._asked(backend, prompt, vote, key))
        task.add_done_callback(lambda done: self._settle(key, done))
        # An answer that is paid for reaches the cache, although whoever asked may have been
        # cancelled.
        return await asyncio.shield(task)

    def _settle(self, key: str, done: asyncio.Task[Any]) -> None:
        self._in_flight.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen, also if all that waited were cancelled

    async def stop(self) -> None:
        """Begin no request, wait `FINISH_SECONDS` for those in flight, which are paid for, and
        cancel the rest.
        """
        self._stopping = True
        tasks = set(self._in_flight.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=FINISH_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _record(self, backend: Backend, prompt: Prompt, vote: int, answer: JudgeAnswer) -> None:
        if self._recording is not None:
            question = {"instruction": prompt.instruction, "texts": dict(prompt.texts)}
            self._recording.put(self.key(f"judge {backend.number}", prompt, vote), answer, question)

    def _readable(self, key: str, prompt: Prompt, answer: JudgeAnswer) -> tuple[Any, str]:
        try:
            return prompt.form.read(answer.text)
        except UnreadableVerdict:  # such as a line cut by a full disk: it must not fail each time
            self._cache.forget(key)
            raise

    async def _asked(
        self, backend: Backend, prompt: Prompt, vote: int, key: str
    ) -> tuple[Any, str]:
        """Ask until a verdict can be read; keep its answer under *key*, unless that is empty."""
        settings, digest = self.settings, prompt.digest
        failure: InfrastructureError | None = None
        attempt = waits = 0
        while attempt <= settings.retries:
            if failure is not None:
                self.counts["retries"] += 1
                await self._pause(failure, waits, f"{settings.seed}/{digest}/{vote}/{attempt}")
                waits += 1
            sampling = Sampling(
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                seed=int(digest[:12], 16) + 1000 * vote + attempt,
                **settings.sampling,
            )
            # Another delimiter each time: at temperature 0 an equal prompt would get an equal
            # answer.
            request = backend.request(prompt, prompt.messages(settings.seed, attempt), sampling)
            try:
                async with self._semaphore:
                    self._begin()
                    await self._wait_for_rate()
                    async with asyncio.timeout(settings.timeout):
                        response = await backend.send(request)
                answer = backend.answer(response)
                self._add(_price((answer.prompt_tokens, answer.new_tokens), backend.prices))
                self._answers_again(backend)
                verdict = prompt.form.read(answer.text)
            except Outage as e:
                if not self._note_outage(backend, e):
                    attempt += 1
                failure = e
            except (TransientFailure, UnreadableVerdict) as e:
                self.counts["unreadable"] += isinstance(e, UnreadableVerdict)
                self._add(_price(e.tokens, backend.prices))
                attempt += 1
                failure = e
            except TimeoutError:
                attempt += 1
                failure = TransientFailure(
                    f"{backend.name} did not answer within {settings.timeout:g} s"
                )
            else:
                self._cache.write(self.ledger, self.total, key, answer)
                self._record(backend, prompt, vote, answer)
                return verdict
        assert failure is not None
        self.counts["failures"] += 1
        self._cache.write(self.ledger, self.total)
        tries = settings.retries + 1
        if isinstance(failure, UnreadableVerdict):
            raise type(failure)(f"{failure} ({tries} tries)") from failure
        raise InfrastructureError(f"the judge failed {tries} times; last: {failure}") from failure

    async def _pause(self, failure: InfrastructureError, waits: int, name: str) -> None:
        """Wait before the next try: as long as the server asks for, or twice as long as before,
        with jitter.
        """
        await asyncio.sleep(
            wait_before_retry(
                self.settings.backoff,
                waits,
                Random(f"{name}/{waits}"),
                asked=failure.wait if isinstance(failure, TransientFailure) else 0.0,
                longest=LONGEST_PROBE if isinstance(failure, Outage) else LONGEST_WAIT,
            )
        )

    def _note_outage(self, backend: Backend, failure: Outage) -> bool:
        """Take back the call that the server of *backend*, which is down, did not get, and return
        whether it is still waited for, so that this try does not count.
        """
        self.counts["calls"] -= 1
        self.counts["outages"] += 1
        self._add(Spending(calls=-1))
        now = time.monotonic()
        seconds = now - self._down_since.setdefault(backend.name, now)
        waits = seconds < self.settings.outage
        if waits and seconds >= LONG_OUTAGE and backend.name not in self._reported_down:
            self._reported_down.add(backend.name)
            _log.warning("%s; waiting for it for up to %g s", failure, self.settings.outage)
        return waits

    def _answers_again(self, backend: Backend) -> None:
        since = self._down_since.pop(backend.name, None)
        if since is not None and backend.name in self._reported_down:
            self._reported_down.remove(backend.name)
            _log.warning("%s answers again, after %.0f s", backend.name, time.monotonic() - since)

    def _begin(self) -> None:
        """Count a request that is about to be sent.

        Raises:
            BudgetSpent: a limit of the budget has been reached.
            InfrastructureError: the service stops.
        """
        if self._stopping:
            raise InfrastructureError("the judge has been stopped")
        if limit := self.settings.budget.spent(self.total):
            raise BudgetSpent(
                f"the judge's budget is spent ({limit}); {self.total.calls:,} calls, "
                f"{self.total.tokens:,} tokens, money {self.total.money:.2f}. Verdicts so far are "
                "cached: raise services.judge.args.budget in the recipe of the run and continue "
                "with --resume and --force"
            )
        self.counts["calls"] += 1
        self._add(Spending(calls=1))

    def _add(self, amount: Spending) -> None:
        total = self.total
        self.total = Spending(
            calls=total.calls + amount.calls,
            tokens=total.tokens + amount.tokens,
            money=total.money + amount.money,
        )
        if (file := self._ledger_file) is not None:
            try:
                written = file.with_suffix(".tmp")
                written.write_text(
                    json.dumps({"ledger": self.ledger, **asdict(self.total)}), encoding="utf-8"
                )
                written.replace(file)
            except OSError as e:
                raise StorageError(
                    f"the judge's ledger {file} cannot be written ({e}); free the disk"
                ) from e

    async def _wait_for_rate(self) -> None:
        """Wait for the next slot of the rate."""
        if not self.settings.rate:
            return
        now = time.monotonic()
        self._next_slot = max(self._next_slot, now) + 1 / self.settings.rate
        await asyncio.sleep(self._next_slot - 1 / self.settings.rate - now)

    def state(self) -> Mapping[str, Any]:
        """Return ledger and spending for a checkpoint."""
        return {"ledger": self.ledger, "spent": asdict(self.total)}


def _price(tokens: tuple[int, int], prices: tuple[float, float]) -> Spending:
    money = (tokens[0] * prices[0] + tokens[1] * prices[1]) / 1e6
    return Spending(tokens=sum(tokens), money=money)
