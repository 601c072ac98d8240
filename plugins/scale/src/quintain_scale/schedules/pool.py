"""The engine `pool`: several replicas of one engine, used as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from quintain import Algorithm, InfrastructureError, Sampled, Sampling, TokenEngine, Weights
from quintain.errors import RunError, UsageError, did_you_mean
from quintain.interfaces import ProcessCluster
from quintain.recipe import names_cluster
from quintain.registry import current, signature_of, takes
from quintain.rollouts import Span, cut_where_stopped
from quintain.store import RunFolder
from quintain.types import derived_seed

from ..machine.table import gpus_of_each
from .pool_settings import PoolSettings, Table
from .prefixes import BLOCK, PrefixIndex
from .routing import PendingTurn, Router
from .supervisor import ReplicaSupervisor

Out = TypeVar("Out")


class EnginePool(TokenEngine):
    """Replicas of one engine with the same weights; trainable if the engine is.

    A turn goes to the replica that holds the longest prefix of its prompt, so that the turns of an
    episode, and those of a group, compute it once; a new prompt goes to the least loaded one. A
    turn that a replica fails (`InfrastructureError`) is sampled again, from its last complete
    segment, on another one; only a turn that all have failed fails its episode.

    An update goes to all replicas. One that dies is started again while the pool is entered, and
    gets no turns before it has the weights of now; see `ReplicaSupervisor`. Turns that no other
    replica can take wait for it.

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
        cluster: ProcessCluster | None = None,
        **settings: Any,
    ) -> EnginePool:
        """Return a pool for a learner's *module*, with `PoolSettings`.

        Args:
            copy: turns are sampled while the learner updates.
            cluster: on which replicas start their processes, if their engine starts any.

        Raises:
            UsageError: a setting is out of range, or the engine has no such argument.
        """
        pool, chosen = cls.__new__(cls), PoolSettings(**settings)
        kind = _kind(chosen.engine)
        placed = {} if cluster is None else {"cluster": cluster}
        common = {"dtype": dtype, **({"copy": True} if copy else {}), **placed}
        make = kind.sharing if hasattr(kind, "sharing") else kind
        first = (module, tokenizer) if make is not kind else ()
        pool._open(chosen, make, common, *first)
        return pool

    @classmethod
    def places(cls, settings: Mapping[str, Any]) -> Sequence[int]:
        """Return the GPUs of the processes of all replicas, by their engine; see `TokenEngine`."""
        kind, common = _kind(settings.get("engine", "embedded")), settings.get("settings") or {}
        if not names_cluster(kind):
            return ()
        rows = settings.get("replicas") or [{}] * int(settings.get("count", PoolSettings.count))
        return [gpus for row in rows for gpus in gpus_of_each(kind.places({**common, **row}))]

    @classmethod
    def on_gpus(
        cls, settings: Mapping[str, Any], gpus: int, *, turns: bool = False
    ) -> Mapping[str, Any]:
        """Return *settings* with as many replicas as *gpus* have room for, unless they list them.

        Raises:
            UsageError: the GPUs of a replica do not divide them, or the settings have other replicas.
        """
        kind, common = _kind(settings.get("engine", "embedded")), settings.get("settings") or {}
        if not names_cluster(kind):
            raise UsageError(
                f"the replicas of engine {kind.name!r} start no servers that take GPUs: set "
                'engine.args.engine = "vllm-server"'
            )
        each = sum(gpus_of_each(kind.places(common)))
        if not settings.get("replicas"):
            if gpus % each:
                raise UsageError(
                    f"a server takes {each} GPUs, and {gpus} sample: let {gpus - gpus % each or each} "
                    f"or {gpus - gpus % each + each} sample, or set tensor_parallel_size in "
                    "engine.args.settings.options to a number that divides them"
                )
            settings = {"count": gpus // each, **settings}
        if (asked := sum(cls.places(settings))) != gpus:
            raise UsageError(
                f"the replicas of the pool take {asked} GPUs, and {gpus} sample: leave "
                "engine.args.count out, or list as many engine.args.replicas as have room"
            )
        if turns:
            if not hasattr(kind, "on_gpus"):
                raise UsageError(f"engine {kind.name!r} takes no turns with the learner")
            settings = {**settings, "settings": kind.on_gpus(common, each, turns=True)}
        return settings

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check what each replica needs; see `quintain.Service.check_available`."""
        kind = _kind(args.get("engine", "embedded"))
        for replica in args.get("replicas") or [{}]:
            kind.check_available({**(args.get("settings") or {}), **replica})

    @classmethod
    def check_algorithm(
        cls,
        algorithm: Algorithm,
        settings: Mapping[str, Any],
        *,
        group_size: int,
        concurrency: int | None,
    ) -> str | None:
        """Ask the engine of the replicas; see `TokenEngine`."""
        remark: str | None = _kind(settings.get("engine", "embedded")).check_algorithm(
            algorithm,
            settings.get("settings") or {},
            group_size=group_size,
            concurrency=concurrency,
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
        rows = settings.args_by_replica
        for args in rows:
            every = {**(settings.settings or {}), **args}
            if unknown := [name for name in every if name not in known]:
                near = did_you_mean(unknown[0], known)
                raise UsageError(
                    f"pool: the engine {settings.engine!r} has no argument {unknown[0]!r}{near}"
                )

        def replica_of(number: int) -> TokenEngine:
            own = rows[number] if number < len(rows) else {}
            engine: TokenEngine = make(*first, **{**common, **(settings.settings or {}), **own})
            return engine

        self._settings, self._make = settings, replica_of
        self._begin({number: replica_of(number) for number in range(len(rows))})
        self._describe()

    def _begin(self, replicas: Mapping[int, TokenEngine]) -> None:
        settings, version = self._settings, replicas[0].version
        moves = settings.segment > 0
        self._router = Router(len(replicas), settings.slots, version, moves=moves)
        self._one_update = asyncio.Lock()
        self._supervisor = ReplicaSupervisor(
            self._make,
            self._router,
            replicas,
            policy=settings.restart_policy(),
            bounds=(settings.least, settings.most),
            admits=settings.admission,
        )

    def _describe(self) -> None:
        replicas = self._replicas
        tokenizer: Any = getattr(replicas[0], "tokenizer", None)  # some load it when they start
        self.tokenizer = tokenizer
        self.context = min(replica.context for replica in replicas)
        name = getattr(replicas[0], "path", replicas[0].name)
        self.path = f"a pool of {len(replicas)} x {name}"

    @property
    def _replicas(self) -> list[TokenEngine]:
        return [self._supervisor.replicas[number] for number in self._supervisor.up()]

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

    async def __aenter__(self) -> Self:
        count = len(self._settings.args_by_replica)
        self._begin({number: self._supervisor.replicas[number] for number in range(count)})
        await self._supervisor.start()
        self._describe()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._supervisor.stop()

    def quintain_on_run_start(self, event: Any) -> None:
        """Write what happens to replicas into ``replicas.jsonl`` of the run."""
        self._supervisor.log_to(RunFolder(event.folder, lock=False))

    def quintain_on_step_measured(self, event: Any) -> None:
        """Raise an alert while replicas are given up."""
        if alert := self._supervisor.alert():
            event.alerts["replicas"] = alert

    def resize(self, replicas: int) -> None:
        """Sample with this many *replicas* from now on. Those that are removed end their turns
        first, and those that start get none before they have the weights of now.

        Raises:
            UsageError: the number is out of the bounds, or the pool is not entered.
        """
        self._supervisor.resize(replicas)

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Continue *ids*. Cancelling the awaiting task frees the slot.

        Raises:
            LimitReached: *ids* leave no room in the context.
            InfrastructureError: each replica failed.
        """
        room = self.context - len(ids)
        limit = min(sampling.max_tokens or room, room)
        blocks = self.blocks_of(ids)
        whole = known = blocks[: len(ids) // BLOCK]
        reply: Sampled | None = None

        def continued(replica: TokenEngine) -> Awaitable[Sampled]:
            nonlocal reply, known
            if (
                reply is not None
                and not self.in_flight_updates
                and replica.version != reply.versions[-1]
            ):
                # of older weights, on a replica that failed: the turn starts again
                reply, known = None, whole
            least = self._router.version_of(turn.replica)
            if not self._settings.segment:
                return _fresh(replica, least, ids, sampling)
            done = reply.ids if reply else ()
            part = sampling.replace(
                max_tokens=max(1, min(self._settings.segment, limit - len(done)))
            )
            if done and sampling.seed is not None:  # the same seed would repeat its random numbers
                part = part.replace(seed=derived_seed(sampling.seed, "segment", len(done)))
            return _fresh(replica, least, [*ids, *done], part)

        async with self._router.turn(blocks) as turn:
            while True:
                part = await self._called(turn, continued)
                reply = _joined(self.tokenizer, reply, part, sampling.stop)
                held = self.blocks_of([*ids, *reply.ids], known)
                known = held[: (len(ids) + len(reply.ids)) // BLOCK]
                self._router.succeeded(turn, held)
                if (
                    not self._settings.segment
                    or reply.finish != "length"
                    or len(reply.ids) >= limit
                ):
                    return reply

    def blocks_of(self, ids: Sequence[int], known: Sequence[int] = ()) -> list[int]:
        """Return the names by which a turn finds the replica of its prefix; see
        `PrefixIndex.names`.
        """
        return PrefixIndex.names(ids, known)

    async def score(
        self, ids: Sequence[int], start: int, temperature: float = 1.0
    ) -> Sequence[float]:
        """Return the log-probs of ``ids[start:]``, each given all before it; *start* is at least 1.

        Raises:
            LimitReached: *ids* are longer than the context.
            InfrastructureError: each replica failed.
        """
        async with self._router.turn(None) as turn:
            scores = await self._called(
                turn, lambda replica: replica.score(ids, start, temperature)
            )
            self._router.succeeded(turn)
            return scores

    async def _called(
        self, turn: PendingTurn, call: Callable[[TokenEngine], Awaitable[Out]]
    ) -> Out:
        """Return the answer of the replica of *turn*, or of another one if that fails or is
        lost.
        """
        this: Any = asyncio.current_task()
        while True:
            if self._router.is_lost(turn.replica):  # it was to move there after its segment
                await self._router.retry(turn, InfrastructureError("the replica was lost"))
                continue
            replica = self._supervisor.replicas[turn.replica]
            turn.call = asyncio.ensure_future(call(replica))
            try:
                with Span("replica", replica=turn.replica):
                    answer: Out = await turn.call
            except StaleReplica as error:
                self._supervisor.bury(turn.replica, replica, str(error))
                await self._router.retry(turn, error)
            except InfrastructureError as error:
                await self._supervisor.suspect(turn.replica, replica, error)
                await self._router.retry(turn, error)
            except asyncio.CancelledError:
                if this.cancelling() or not turn.lost:
                    raise
                await self._router.retry(turn, InfrastructureError("the replica was lost"))
            else:
                self._supervisor.health[turn.replica].succeeded("turn")
                return answer

    async def outdated(self, weights: Weights) -> str:
        """Return what is outdated in the replicas that have this version; see
        `TokenEngine.outdated`.
        """
        supervisor = self._supervisor
        for number in sorted(self._router.serving()):
            replica = supervisor.replicas[number]
            # each answer takes its time, in which others may die
            if number not in self._router.serving() or replica.version != weights.version:
                continue
            try:
                name = await replica.outdated(weights)
            except InfrastructureError as error:  # if it is dead, its next life has new weights
                await supervisor.suspect(number, replica, error)
                continue
            if name and supervisor.is_up(number, replica):
                return f"{name} in replica {number}"
        return ""

    async def update(self, weights: Weights) -> int:
        """Load *weights* into all replicas that run; returns when each has them, is lost, or is one
        of the late ones. If all are dead, it returns when the first is back with them. A second
        update begins after that.

        Raises:
            RunError: no replica took them, or one has other weights than it was sent.
        """
        router = self._router
        async with self._one_update:
            outcomes = await self._send(weights)
            errors = [error for error in outcomes if error is not None]
            if fatal := [error for error in errors if not _unreachable(error)]:
                raise fatal[0]
            if len(errors) == len(outcomes):
                await router.until(lambda: router.has(weights.version) or router.is_hopeless)
                if not router.has(weights.version):
                    why = errors[0] if errors else "all are dead"
                    raise RunError(f"no replica took weights of version {weights.version}: {why}")
            return self.version

    async def _send(self, weights: Weights) -> list[Exception | None]:
        """Send *weights* to the replicas that run; return how each of them took them, but those
        that are left behind.
        """
        router, late = self._router, 0 if self.in_flight_updates else self._settings.late
        outcomes: dict[int, Exception | None] = {}

        async with self._supervisor.updating:
            each = self._supervisor.up()
            self._supervisor.publish(weights)

            def enough() -> bool:
                left = [number for number in each if number not in outcomes]
                tail = len(left) <= late and all(router.loads[number] for number in left)
                return not left or (tail and any(outcomes[number] is None for number in outcomes))

            router.prefixes.forget()
            if not self.in_flight_updates:
                router.close()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = {
                        number: group.create_task(self._update(number, weights, outcomes))
                        for number in each
                    }
                    await router.until(enough)
                    for number in each:
                        if number not in outcomes:
                            tasks[number].cancel()
                            router.open(number, late=True)
            finally:
                router.open_all()
        return [*outcomes.values()]

    async def _update(
        self, number: int, weights: Weights, outcomes: dict[int, Exception | None]
    ) -> None:
        supervisor, error = self._supervisor, None
        if not self.in_flight_updates:
            with Span("drain", replica=number):
                await self._router.until(lambda: self._router.is_empty(number))
        replica = supervisor.replicas[number]  # made anew, perhaps, while its turns ended
        replica.follow(in_flight_updates=self.in_flight_updates, recompute_kv=self.recompute_kv)
        try:
            if supervisor.is_up(number, replica):
                with Span("transfer", replica=number):
                    version = await replica.update(weights)
        except Exception as e:  # noqa: BLE001 -- `update` raises it, once the other replicas have ended theirs
            error = e
        if not supervisor.is_up(number, replica):  # whatever a dead one said is no fault of the run
            why = supervisor.health[number].why
            error = InfrastructureError(f"it died while it took new weights: {why}")
        elif error is None:
            supervisor.healthy(number, version)
        elif _unreachable(error):
            supervisor.missed(number, replica, str(error))
        outcomes[number] = error
        self._router.open(number)

    async def sleep(self, level: int | None = None) -> None:
        """Release the memory of all replicas, as `quintain_engines.vllm.VLLMEngine.sleep`; the next call
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


class StaleReplica(InfrastructureError):
    """A replica sampled with older weights than it was given: another process answers for it."""


async def _fresh(
    replica: TokenEngine, given: int, ids: Sequence[int], sampling: Sampling
) -> Sampled:
    """Sample a turn, and check that *replica* did so with the weights of the version *given*, or
    newer ones.

    Raises:
        StaleReplica: a token is of older ones.
    """
    reply = await replica.sample(ids, sampling)
    if reply.versions and min(reply.versions) < given:
        raise StaleReplica(
            f"it sampled with weights of version {min(reply.versions)} and was given {given}: "
            "its process was started again by others"
        )
    return reply


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
