"""The engine `pool`: several replicas of one engine, used as one."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator

from quintain import Algorithm, InfrastructureError, Sampled, Sampling, Task, TokenEngine, Weights
from quintain.errors import RunError, UsageError, did_you_mean
from quintain.registry import current, signature_of, takes
from quintain.rollouts import Span, cut_where_stopped
from quintain.types import derived_seed

from .routing import PendingTurn, Router

SLOTS = 64
"""Sequences that a replica decodes at once by default."""
Out = TypeVar("Out")


def _known(name: str) -> str:
    current().find("engine", name)
    return name


Name = Annotated[str, AfterValidator(_known)]
Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """What `EnginePool` takes.

    Attributes:
        engine: of the replicas, a `TokenEngine`.
        count: of replicas, where *replicas* lists none.
        replicas: arguments of each replica, such as ``[{url = "http://a:8000"}, {url =
            "http://b:8000"}]``.
        settings: arguments of all replicas.
        slots: sequences that a replica decodes at once.
        segment: tokens after which a turn may move to another replica: it becomes several requests,
            each with a seed of its own. 0 samples a turn by one request, which does not move.
        late: replicas that an update between turns may leave behind; they end their turns, get new
            ones only if all others fail, and take the next update.

    Raises:
        UsageError: a setting is out of range.
    """

    engine: Name = "embedded"
    count: int = 2
    replicas: Sequence[Table] = ()
    settings: Table | None = None
    slots: int = SLOTS
    segment: int = 0
    late: int = 0

    def __post_init__(self) -> None:
        if self.slots < 1 or self.segment < 0 or not 0 <= self.late < len(self.args_by_replica):
            raise UsageError(
                f"a pool of {len(self.args_by_replica)} replicas, {self.late} of them late, with "
                f"{self.slots} slots and segments of {self.segment} tokens; expected at least 1 "
                "replica, fewer late ones, 1 slot, and 0 tokens"
            )

    @property
    def args_by_replica(self) -> Sequence[Table]:
        """The arguments of each replica."""
        return self.replicas or [{}] * self.count


class EnginePool(TokenEngine):
    """Replicas of one engine with the same weights; trainable if the engine is.

    All turns of the episodes of a task go to one replica, which computes their common prefix once;
    a task that is new goes to the least loaded one. A turn that a replica fails
    (`InfrastructureError`) is sampled again, from its last complete segment, on another one; only a
    turn that all have failed fails its episode. An update goes to all replicas; one that cannot be
    reached gets no turns until it has taken a later one.

    Without `in_flight_updates`, a replica takes new weights as soon as its own turns have ended,
    and starts new ones at once. With *segment*, the turns of nearly idle replicas move to others
    before (Laminar, 2510.12633, section 5), so that most replicas need not wait for the longest
    turns.

    Which turns are decoded together depends on time: a run with a pool does not repeat bit for bit.
    """

    name = "pool"

    @takes(PoolSettings)
    def __init__(self, model: str = "", **settings: Any) -> None:
        """Load *model*, a folder or a hub name, into each replica, with `PoolSettings`.

        Raises:
            UsageError: a setting is out of range, or the engine has no such argument.
        """
        chosen = PoolSettings(**settings)
        self._open(chosen, _kind(chosen.engine), {"model": model})

    @classmethod
    @takes(PoolSettings)
    def sharing(
        cls,
        module: Any,
        tokenizer: Any,
        *,
        dtype: str | None = None,
        copy: bool = False,
        **settings: Any,
    ) -> EnginePool:
        """Return a pool for a learner's *module*, with `PoolSettings`.

        Args:
            copy: turns are sampled while the learner updates.

        Raises:
            UsageError: a setting is out of range, or the engine has no such argument.
        """
        pool, chosen = cls.__new__(cls), PoolSettings(**settings)
        kind = _kind(chosen.engine)
        common = {"dtype": dtype, **({"copy": True} if copy else {})}
        make = kind.sharing if hasattr(kind, "sharing") else kind
        first = (module, tokenizer) if make is not kind else ()
        pool._open(chosen, make, common, *first)
        return pool

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check what each replica needs; see `quintain.Service.check_available`."""
        kind = _kind(args.get("engine", "embedded"))
        for replica in args.get("replicas") or [{}]:
            kind.check_available({**(args.get("settings") or {}), **replica})

    @classmethod
    def check_algorithm(cls, algorithm: Algorithm, settings: Mapping[str, Any]) -> str | None:
        """Ask the engine of the replicas; see `TokenEngine`."""
        remark: str | None = _kind(settings.get("engine", "embedded")).check_algorithm(
            algorithm, settings.get("settings") or {}
        )
        return remark

    def _open(
        self, settings: PoolSettings, make: Callable[..., Any], common: Table, *first: Any
    ) -> None:
        known = [field.name for field in signature_of(make).fields]
        common = {
            name: value
            for name, value in {
                "reproducible": False,
                "slots": settings.slots,
                **common,
            }.items()
            if name in known
        }
        self._replicas: list[TokenEngine] = []
        for args in (
            {**(settings.settings or {}), **replica_settings}
            for replica_settings in settings.args_by_replica
        ):
            if unknown := [name for name in args if name not in known]:
                near = did_you_mean(unknown[0], known)
                raise UsageError(
                    f"pool: the engine {settings.engine!r} has no argument {unknown[0]!r}{near}"
                )
            self._replicas.append(make(*first, **{**common, **args}))
        self._settings, self._key = settings, ""
        self._begin()

    def _begin(self) -> None:
        first = self._replicas[0]
        count, moves = len(self._replicas), self._settings.segment > 0
        self._router = Router(count, self._settings.slots, first.version, moves=moves)
        self._updating = asyncio.Lock()
        tokenizer: Any = getattr(first, "tokenizer", None)  # some engines load it when they start
        self.tokenizer = tokenizer
        self.context = min(replica.context for replica in self._replicas)
        self.path = f"a pool of {count} x {getattr(first, 'path', first.name)}"

    @property
    def version(self) -> int:
        return self._router.version

    @version.setter
    def version(self, version: int) -> None:
        self._router.version = version

    @property
    def concurrency(self) -> int | None:
        """The sum over the replicas; ``None`` if one leaves it to the recipe."""
        each = [replica.concurrency for replica in self._replicas]
        return None if None in each else sum(number or 0 for number in each)

    def for_task(self, task: Task) -> EnginePool:
        """Return this pool, for the episodes of *task*."""
        view = copy.copy(self)
        view._key = task.id
        return view

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.TaskGroup() as starting:
                    for replica in self._replicas:
                        starting.create_task(stack.enter_async_context(replica))
            except BaseExceptionGroup as failed:
                raise failed.exceptions[0] from failed
            self._begin()
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._running.aclose()

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Continue *ids*. Cancelling the awaiting task frees the slot.

        Raises:
            LimitReached: *ids* leave no room in the context.
            InfrastructureError: each replica failed.
        """
        room = self.context - len(ids)
        limit = min(sampling.max_tokens or room, room)
        reply: Sampled | None = None

        def continued(replica: TokenEngine) -> Awaitable[Sampled]:
            nonlocal reply
            if (
                reply is not None
                and not self.in_flight_updates
                and replica.version != reply.versions[-1]
            ):
                reply = None  # of older weights, on a replica that failed: the turn starts again
            if not self._settings.segment:
                return replica.sample(ids, sampling)
            done = reply.ids if reply else ()
            part = sampling.replace(
                max_tokens=max(1, min(self._settings.segment, limit - len(done)))
            )
            if done and sampling.seed is not None:  # the same seed would repeat its random numbers
                part = part.replace(seed=derived_seed(sampling.seed, "segment", len(done)))
            return replica.sample([*ids, *done], part)

        async with self._router.turn(self._key or hash(tuple(ids))) as turn:
            while True:
                part = await self._called(turn, continued)
                reply = _joined(self.tokenizer, reply, part, sampling.stop)
                if (
                    not self._settings.segment
                    or reply.finish != "length"
                    or len(reply.ids) >= limit
                ):
                    return reply

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        """Return the log-probs of ``ids[start:]``, each given all before it; *start* is at least 1.

        Raises:
            LimitReached: *ids* are longer than the context.
            InfrastructureError: each replica failed.
        """
        async with self._router.turn(None) as turn:
            return await self._called(turn, lambda replica: replica.score(ids, start, temperature))

    async def _called(
        self, turn: PendingTurn, call: Callable[[TokenEngine], Awaitable[Out]]
    ) -> Out:
        """Return the answer of the replica of *turn*, or of another one if that fails or is
        lost.
        """
        this: Any = asyncio.current_task()
        while True:
            turn.call = asyncio.ensure_future(call(self._replicas[turn.replica]))
            try:
                with Span("replica", replica=turn.replica):
                    answer: Out = await turn.call
            except InfrastructureError as error:
                await self._router.retry(turn, error)
            except asyncio.CancelledError:
                if this.cancelling() or not self._router.is_lost(turn.replica):
                    raise
                await self._router.retry(
                    turn, InfrastructureError("the replica did not take new weights")
                )
            else:
                self._router.succeeded(turn)
                return answer

    async def outdated(self, weights: Weights) -> str:
        """Return what is outdated in the replicas that have this version; see
        `TokenEngine.outdated`.
        """
        for number, replica in enumerate(self._replicas):
            if replica.version == weights.version and (name := await replica.outdated(weights)):
                return f"{name} in replica {number}"
        return ""

    async def update(self, weights: Weights) -> int:
        """Load *weights* into all replicas; returns when each has them, is lost, or is one of the
        late ones.

        Raises:
            RunError: no replica took them, or one has other weights than it was sent.
        """
        each, late = (
            range(len(self._replicas)),
            0 if self.in_flight_updates else self._settings.late,
        )
        outcomes: dict[int, Exception | None] = {}

        def enough() -> bool:
            left = [number for number in each if number not in outcomes]
            tail = len(left) <= late and all(self._router.loads[number] for number in left)
            return not left or (tail and any(outcomes[number] is None for number in outcomes))

        async with self._updating:
            self._router.forget_prefixes()
            if not self.in_flight_updates:
                self._router.close()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._update(number, weights, outcomes))
                        for number in each
                    ]
                    await self._router.until(enough)
                    for number in each:
                        if number not in outcomes:
                            tasks[number].cancel()
                            self._router.open(number, late=True)
            except asyncio.CancelledError:
                for number in each:
                    self._router.open(number)
                raise
        errors = [error for error in outcomes.values() if error is not None]
        if fatal := [error for error in errors if not _unreachable(error)]:
            raise fatal[0]
        if len(errors) == len(outcomes):
            raise RunError(
                f"no replica took weights of version {weights.version}: {errors[0]}"
            ) from errors[0]
        return self.version

    async def _update(
        self, number: int, weights: Weights, outcomes: dict[int, Exception | None]
    ) -> None:
        replica, error = self._replicas[number], None
        replica.follow(in_flight_updates=self.in_flight_updates, recompute_kv=self.recompute_kv)
        if not self.in_flight_updates:
            with Span("drain", replica=number):
                await self._router.until(lambda: self._router.is_empty(number))
        try:
            with Span("transfer", replica=number):
                version = await replica.update(weights)
            self._router.take(number, version)
        except Exception as e:  # noqa: BLE001 -- `update` raises it, once the other replicas have ended theirs
            error = e
            if _unreachable(e):
                self._router.lose(number, e)
        outcomes[number] = error
        self._router.open(number)

    async def sleep(self, level: int | None = None) -> None:
        """Release the memory of all replicas, as `quintain_vllm.VLLMEngine.sleep`; the next call
        wakes the one it needs.

        Raises:
            UsageError: the engine cannot sleep.
        """
        calls = [getattr(replica, "sleep", None) for replica in self._replicas]
        if None in calls:
            raise UsageError(f"the engine {self._replicas[0].name!r} cannot sleep")
        await asyncio.gather(*(call(level) for call in calls if call is not None))


def _kind(name: str) -> Any:
    kind: Any = current().load("engine", name)
    if not (isinstance(kind, type) and issubclass(kind, TokenEngine)) or issubclass(
        kind, EnginePool
    ):
        raise UsageError(
            f"pool: the engine {name!r} is no engine of tokens; use embedded, vllm-server or "
            f"another one"
        )
    return kind


def _unreachable(error: BaseException) -> bool:
    """Return whether a replica cannot be reached; other errors of an update are faults that the run
    must not ignore.
    """
    return isinstance(error, InfrastructureError) or isinstance(
        error.__cause__, InfrastructureError
    )


def _joined(tokenizer: Any, reply: Sampled | None, part: Sampled, stops: Sequence[str]) -> Sampled:
    if reply is None:
        return part
    part = cut_where_stopped(tokenizer, reply, part, stops)
    columns = {
        name: getattr(reply, name) + getattr(part, name) for name in ("ids", "logps", "versions")
    }
    return replace(part, **columns)
