"""One simulated engine: it decodes many turns at once, from event to event and not from token to
token.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from quintain import InfrastructureError

from .costs import EngineCosts

NEARLY = 1e-6
"""Tokens by which sums of floats may miss the end of a turn."""
RESERVE = 0.01
"""Share of the memory that a turn leaves free as it begins, as in vLLM."""


@dataclass(eq=False, slots=True)
class SimulatedTurn:
    """A turn to decode.

    Attributes:
        group: whose turns begin with equal tokens, *shared* of them.
        episode: whose earlier turns may be cached.
        prompt: tokens before the turn, the shared ones included.
        tokens: to sample.
        spans: version of the weights and tokens that it has sampled, in order.
        done: gets ``None`` when the turn is over, or the error of the engine.
        sampled: tokens that are in *spans*.
    """

    group: Hashable
    shared: float
    episode: Hashable
    prompt: float
    tokens: int
    done: asyncio.Future[None] | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    sampled: int = 0
    _joined: float = 0.0  # steps of the engine at its last admission
    _noted: float = 0.0  # steps of the engine up to which `spans` has its tokens
    _end: float = 0.0  # steps of the engine at its end
    _own: float = 0.0  # tokens that it holds, without the shared ones
    _order: int = 0  # of its last admission; 0 while it waits

    def add(self, version: int, tokens: int) -> None:
        """Count *tokens* that weights of *version* have sampled."""
        self.sampled += tokens
        if self.spans and self.spans[-1][0] == version:
            tokens += self.spans.pop()[1]
        self.spans.append((version, tokens))

    def settle(self, error: Exception | None = None) -> None:
        """Tell whoever waits that it is over, or failed with *error*."""
        if self.done is not None and not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class SimulatedDecoder:
    """Decodes turns on the clock of the running loop.

    A prompt is computed when its turn begins, and decoding waits for it. What a turn shares with
    its group, or with the earlier turns of its episode, is computed once, as long as it is cached:
    until new weights arrive or others need the room. Where keys and values fill the memory, the
    turn that began last gives way and begins again later.

    Args:
        costs: its seconds.

    Attributes:
        load: turns that it has, the waiting ones included.
        busy, decoding: seconds in which it computed, and in which it decoded.
        tokens, prefilled: sampled, and computed of prompts.
        sequence_seconds: sum of the sequences over the seconds of decoding.
        preempted: how often a turn gave way.
        version: of the weights.
    """

    def __init__(self, costs: EngineCosts) -> None:
        self.costs, self.version = costs, 0
        self.load = self.preempted = self.tokens = 0
        self.busy = self.decoding = self.prefilled = self.sequence_seconds = 0.0
        self._answers = asyncio.Event()
        self._answers.set()
        self._loop = asyncio.get_running_loop()
        self._now = self._ready = self._loop.time()  # prompts are computed until `_ready`
        self._steps = self._context = self._held = 0.0
        self._ends: list[tuple[float, int, SimulatedTurn]] = []
        self._active: dict[SimulatedTurn, None] = {}  # in the order of their admission
        self._waiting: deque[SimulatedTurn] = deque()
        self._shared: dict[Hashable, tuple[int, float]] = {}  # turns and tokens, by group
        self._cached: OrderedDict[Hashable, float] = OrderedDict()  # of no running turn
        self._cached_tokens = 0.0
        self._orders = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._empty: list[asyncio.Future[None]] = []

    # ---------------------------------------------------------------- what callers ask for
    @property
    def down(self) -> bool:
        """Whether it takes no turns, until `restart`."""
        return not self._answers.is_set()

    async def up(self) -> None:
        """Wait until it takes turns."""
        await self._answers.wait()

    def submit(self, turn: SimulatedTurn) -> None:
        """Decode *turn*.

        Raises:
            InfrastructureError: the engine is down.
        """
        if self.down:
            raise InfrastructureError("the simulated engine is down")
        self.load += 1
        self.advance()
        self._waiting.append(turn)
        self._admit()

    def cancel(self, turn: SimulatedTurn) -> None:
        """Forget *turn*, whose caller no longer waits."""
        self.advance()
        if turn in self._active:
            self._release(turn)
        elif turn in self._waiting:
            self._waiting.remove(turn)
        else:
            return
        self._left()
        self._admit()

    async def empty(self) -> None:
        """Wait until it has no turn."""
        if self.load:
            self._empty.append(self._loop.create_future())
            await self._empty[-1]

    async def take(self, version: int, seconds: float, *, recompute: bool) -> None:
        """Take weights of *version*, which arrive during *seconds*. Turns that run go on under
        them, and have their keys and values computed again if *recompute*.

        Raises:
            InfrastructureError: the engine is down.
        """
        if self.down:
            raise InfrastructureError("the simulated engine is down")
        self.advance()
        for turn in self._active:
            self._note(turn)
        self._ready = max(self._ready, self._now) + seconds
        self._forget()
        self._arm()
        await asyncio.sleep(seconds)
        if self.down:
            raise InfrastructureError("the simulated engine went down")
        self.advance()
        for turn in self._active:  # of the old weights, that began meanwhile
            self._note(turn)
        self.version = version
        if recompute:
            for _, shared in self._shared.values():
                self._compute(shared, 0.0)
            for turn in self._active:
                shared = min(turn.shared, turn.prompt)
                self._compute(turn.prompt + turn.sampled - shared, shared)
        self._arm()

    def fail(self) -> None:
        """Go down: all turns fail, and no turn is taken until `restart`."""
        self.advance()
        error = InfrastructureError("the simulated engine went down")
        for turn in [*self._active, *self._waiting]:
            turn.settle(error)
        for turn in [*self._active]:
            self._release(turn)
        self._waiting.clear()
        self._forget()
        self._ready = self._now
        self.load = 0
        self._answers.clear()
        self._left(0)

    def restart(self) -> None:
        """Take turns again."""
        self.advance()
        self._answers.set()

    # ---------------------------------------------------------------- time
    def advance(self) -> None:
        """Decode up to now."""
        now = self._loop.time()
        if now <= self._now:
            return
        start = min(now, max(self._now, self._ready))
        self.busy += start - self._now  # prompts, or the arrival of weights
        if self._active and now > start:
            count = len(self._active)
            steps = self.costs.steps_in(now - start, count, self._context)
            self._steps += steps
            self._context += count * steps
            self._held += count * steps
            self.busy += now - start
            self.decoding += now - start
            self.sequence_seconds += count * (now - start)
        self._now = now

    def _arm(self) -> None:
        """Set the timer to the next event: a turn ends, or the memory is full."""
        while self._ends and self._ends[0][1] != self._ends[0][2]._order:
            heapq.heappop(self._ends)
        if not self._ends:
            return
        count = len(self._active)
        steps = max(0.0, self._ends[0][0] - self._steps)
        if count > 1:
            steps = min(steps, max(0.0, self.costs.capacity - self._held) / count)
        seconds = self.costs.seconds_of(steps, count, self._context)
        due = max(self._now, self._ready) + seconds
        # An earlier timer stays, and finds that nothing is due: cheaper than to cancel it.
        if self._timer is None or due < self._timer.when() - 1e-9:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.advance()
        while self._ends and (
            self._ends[0][1] != self._ends[0][2]._order or self._ends[0][0] <= self._steps + NEARLY
        ):
            _, order, turn = heapq.heappop(self._ends)
            if order == turn._order:
                self._finish(turn)
        while len(self._active) > 1 and self._held >= self.costs.capacity - NEARLY:
            self._preempt()
        self._admit()

    # ---------------------------------------------------------------- turns
    def _admit(self) -> None:
        """Begin waiting turns for which there are slots and memory."""
        while self._waiting and len(self._active) < self.costs.slots:
            turn = self._waiting[0]
            shared = min(turn.shared, turn.prompt)
            own = turn.prompt + turn.sampled - shared
            running, _ = self._shared.get(turn.group, (0, 0.0))
            needed = own + (0.0 if running else shared)
            # Room stays for some steps of all of them; else the turn soon gives way again.
            most = min(self.costs.capacity * (1 - RESERVE), self.costs.capacity - len(self._active))
            if self._active and self._held + needed > most:
                break
            self._waiting.popleft()
            # the episode's earlier turns, if they are still there
            cached = min(own, self._take_cached(("episode", turn.episode)))
            if running or self._take_cached(("group", turn.group)):
                cached += shared
            elif shared:
                cached = 0.0  # a prefix is of use from its beginning only
            self._shared[turn.group] = (running + 1, shared)
            self._held += needed
            self._context += own + shared
            turn._own, turn._order = own, next(self._orders)
            turn._joined = turn._noted = self._steps
            turn._end = self._steps + turn.tokens - turn.sampled
            self._active[turn] = None
            heapq.heappush(self._ends, (turn._end, turn._order, turn))
            self._compute(own + shared - cached, cached)
        self._evict()
        self._arm()

    def _compute(self, tokens: float, cached: float) -> None:
        """Let decoding wait for *tokens* of a prompt."""
        self.prefilled += tokens
        seconds = self.costs.prefill_seconds(tokens, cached)
        self._ready = max(self._ready, self._now) + seconds

    def _note(self, turn: SimulatedTurn) -> None:
        """Record what *turn* has sampled under the present weights."""
        tokens = min(round(self._steps - turn._noted), turn.tokens - turn.sampled)
        if tokens > 0:
            turn.add(self.version, tokens)
        # What rounding has counted too early or too late, the next span counts.
        turn._noted = turn._end - (turn.tokens - turn.sampled)

    def _finish(self, turn: SimulatedTurn) -> None:
        self._note(turn)
        if left := turn.tokens - turn.sampled:  # a rounding
            turn.add(self.version, left)
        self.tokens += turn.tokens
        self._keep(("episode", turn.episode), self._release(turn))
        turn.settle()
        self._left()

    def _release(self, turn: SimulatedTurn) -> float:
        """Take *turn* out of those that run; return the tokens that it held alone."""
        del self._active[turn]
        own = turn._own + self._steps - turn._joined
        turn._order = 0
        self._held -= own
        self._context -= own + min(turn.shared, turn.prompt)
        count, shared = self._shared[turn.group]
        if count > 1:
            self._shared[turn.group] = (count - 1, shared)
        else:
            del self._shared[turn.group]
            self._held -= shared
            self._keep(("group", turn.group), shared)
        return own

    def _preempt(self) -> None:
        turn = next(reversed(self._active))
        self._note(turn)
        self._release(turn)
        self._waiting.appendleft(turn)
        self.preempted += 1

    def _left(self, count: int = 1) -> None:
        """Note that *count* turns are gone."""
        self.load -= count
        if not self.load:
            waiting, self._empty = self._empty, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    # ---------------------------------------------------------------- cached prefixes
    def _keep(self, key: Hashable, tokens: float) -> None:
        self._cached_tokens += tokens - self._cached.pop(key, 0.0)
        self._cached[key] = tokens

    def _take_cached(self, key: Hashable) -> float:
        tokens = self._cached.pop(key, 0.0)
        self._cached_tokens -= tokens
        return tokens

    def _evict(self) -> None:
        while self._cached and self._held + self._cached_tokens > self.costs.capacity:
            self._cached_tokens -= self._cached.popitem(last=False)[1]

    def _forget(self) -> None:
        self._cached.clear()
        self._cached_tokens = 0.0
