"""A pool whose replicas die, come back with old weights, are added and removed: no turn is lost, and
none is sampled by old weights.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import InfrastructureError, Sampled, Sampling
from quintain.errors import RunError, UsageError
from quintain.interfaces import Pressure
from quintain.store import RunFolder
from quintain_scale.schedules import EnginePool
from quintain_scale.schedules.health import ReplicaState
from quintain_scale.schedules.routing import MOST_DEATHS

from ....lanes import examples
from .pool_kit import PIECE, Mortal, Published
from .test_pool import expected, rounds, within_rounds

KIT = f"{Mortal.__module__}:{Mortal.__qualname__}"
HEALTHY = ReplicaState.HEALTHY
Out = TypeVar("Out")


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    Mortal.made.clear()
    yield
    Mortal.stillborn = 0


def pool_of(count: int, **options: Any) -> EnginePool:
    """A pool that starts dead replicas at once."""
    return EnginePool(engine=KIT, count=count, **{"slots": 2, "backoff": 0.0, **options})


def run(pool: EnginePool, work: Callable[[], Coroutine[Any, Any, Out]]) -> Out:
    async def main() -> Out:
        async with pool:
            task = asyncio.create_task(work())
            await within_rounds(task)
            return task.result()

    outcome = asyncio.run(main())
    assert [replica.open for replica in Mortal.made] == [0] * len(Mortal.made)
    return outcome


def states(pool: EnginePool) -> list[str]:
    return [str(health.state) for health in pool._supervisor.health]


async def until(pool: EnginePool, *wanted: str) -> None:
    while states(pool) != list(wanted):  # noqa: ASYNC110 -- rounds of the loop are the clock here
        await asyncio.sleep(0)


def replica(pool: EnginePool, number: int) -> Mortal:
    found = pool._supervisor.replicas[number]
    assert isinstance(found, Mortal)
    return found


def long(seed: int) -> Sampling:
    return Sampling(max_tokens=20, seed=seed)


def is_exact(reply: Sampled, ids: list[int], seed: int, version: int) -> bool:
    return list(reply.ids) == expected(ids, seed, [version] * 20) and set(reply.versions) == {
        version
    }


def test_turns_of_a_dead_replica_are_sampled_elsewhere_and_it_comes_back_with_new_weights() -> None:
    pool = pool_of(2)

    async def go() -> list[Sampled]:
        await pool.update(Published(3))
        turns = [asyncio.create_task(pool.sample([k], long(k))) for k in range(4)]
        await rounds(4)
        replica(pool, 0).kill()
        replies = await asyncio.gather(*turns)
        await until(pool, HEALTHY, HEALTHY)
        assert [r.served for r in Mortal.made] == [3, 3, 3]  # the first one took it before it died
        again = await asyncio.gather(*(pool.sample([k], long(k)) for k in range(4)))
        assert replica(pool, 0) is Mortal.made[2]
        assert [r.awaits_weights for r in Mortal.made] == [False, False, True]
        assert len(Mortal.made[2].started) == 2
        return [*replies, *again]

    replies = run(pool, go)
    assert [is_exact(reply, [k % 4], k % 4, 3) for k, reply in enumerate(replies)] == [True] * 8


def test_turns_wait_where_all_replicas_are_dead() -> None:
    pool = pool_of(2)

    async def go() -> Sampled:
        await pool.update(Published(1))
        turn = asyncio.create_task(pool.sample([5], long(5)))
        await rounds(4)
        for number in range(2):
            replica(pool, number).kill()
        return await turn

    assert is_exact(run(pool, go), [5], 5, 1)


def test_weights_that_the_learner_has_changed_are_not_sent() -> None:
    """A replica that comes back meanwhile is stale, gets no turn, and takes the next update."""
    pool = pool_of(2)
    parameter = SimpleNamespace(_version=1)
    live = Published(1)
    live.module = SimpleNamespace(parameters=lambda: [parameter])  # type: ignore[attr-defined]

    async def go() -> list[Sampled]:
        await pool.update(live)
        parameter._version += 1
        replica(pool, 0).kill()
        replies = [await pool.sample([k], long(k)) for k in range(2)]
        await until(pool, "stale", HEALTHY)
        await rounds(50)
        replies += [await pool.sample([k], long(k)) for k in range(2, 4)]
        assert states(pool) == ["stale", HEALTHY]
        assert replica(pool, 0).started == []
        await pool.update(Published(2))
        assert states(pool) == [HEALTHY, HEALTHY]
        return replies

    assert [is_exact(r, [k], k, 1) for k, r in enumerate(run(pool, go))] == [True] * 4


def test_weights_that_change_while_they_are_sent_do_not_count() -> None:
    pool = pool_of(2)
    parameter = SimpleNamespace(_version=1)
    live = Published(1)
    live.module = SimpleNamespace(parameters=lambda: [parameter])  # type: ignore[attr-defined]

    async def go() -> None:
        await pool.update(live)
        Mortal.made[0].kill()
        with pytest.MonkeyPatch.context() as patch:
            update = Mortal.update

            async def torn(self: Mortal, weights: Any) -> int:
                parameter._version += 1
                return await update(self, weights)

            patch.setattr(Mortal, "update", torn)
            await pool.sample([0], long(0))
            await until(pool, "stale", HEALTHY)
            await rounds(50)
            assert states(pool) == ["stale", HEALTHY]

    run(pool, go)


@pytest.mark.parametrize("client", [2, 0], ids=["client-believes", "client-is-new"])
def test_a_process_that_others_started_again_gives_no_token(client: int) -> None:
    """Its client may believe that it has the weights of now; its tokens say otherwise."""
    pool = pool_of(2)

    async def go() -> list[Sampled]:
        await pool.update(Published(2))
        for each in Mortal.made[:2]:
            each.served, each.version = 0, client
        return await asyncio.gather(*(pool.sample([k], long(k)) for k in range(4)))

    assert [is_exact(reply, [k], k, 2) for k, reply in enumerate(run(pool, go))] == [True] * 4
    assert len(Mortal.made) == 4


def test_an_update_waits_for_the_first_replica_that_comes_back() -> None:
    pool = pool_of(2)

    async def go() -> tuple[int, list[int]]:
        await pool.update(Published(1))
        for each in Mortal.made[:2]:
            each.kill()
        version = await pool.update(Published(2))
        assert HEALTHY in states(pool)
        await until(pool, HEALTHY, HEALTHY)
        return version, [each.served for each in Mortal.made]

    assert run(pool, go) == (2, [1, 1, 2, 2])


def test_an_update_that_waits_for_a_replica_is_not_overtaken() -> None:
    """It would wait without end for weights that a later one has replaced."""
    pool = pool_of(1)

    async def go() -> list[int]:
        await pool.update(Published(1))
        replica(pool, 0).kill()
        return await asyncio.gather(*(pool.update(Published(version)) for version in (2, 3)))

    assert run(pool, go) == [2, 3]


def test_a_replica_that_dies_too_often_is_given_up_with_the_reason(tmp_path: Path) -> None:
    """The others go on; a person reads why in the alerts and in a file, and may try again."""
    pool = pool_of(2, restarts=2)

    async def go() -> dict[str, str]:
        pool.quintain_on_run_start(SimpleNamespace(folder=str(tmp_path)))
        await pool.update(Published(1))
        Mortal.stillborn = 2
        replica(pool, 0).kill()
        assert is_exact(await pool.sample([5], long(5)), [5], 5, 1)
        await until(pool, "given up", HEALTHY)
        alerts: dict[str, str] = {}
        pool.quintain_on_step_measured(SimpleNamespace(alerts=alerts))
        await pool.update(Published(2))
        pool.resize(2)
        await until(pool, HEALTHY, HEALTHY)
        pool.quintain_on_step_measured(SimpleNamespace(alerts=(none := {})))
        assert none == {}
        return alerts

    assert run(pool, go) == {
        "replicas": "replicas: 1 given up after 2 restarts in 10 minutes, 1 work. replica 0: it "
        "does not start: no memory. Mend the cause, then set their number again: quintain steer "
        "RUN replicas 2"
    }
    lines = [json.loads(line) for line in (tmp_path / "replicas.jsonl").read_text().splitlines()]
    assert [(line["replica"], line["state"], line["why"]) for line in lines] == [
        (0, "healthy", ""),
        (1, "healthy", ""),
        (0, "dead", "killed"),
        (0, "restarting", "killed"),
        (0, "dead", "it does not start: no memory"),
        (0, "restarting", "it does not start: no memory"),
        (0, "given up", "it does not start: no memory"),
        (0, "dead", "added"),
        (0, "restarting", "added"),
        (0, "stale", "added"),
        (0, "healthy", ""),
    ]


def test_without_a_replica_left_turns_and_updates_fail() -> None:
    pool = pool_of(2, restarts=0)

    async def go() -> None:
        await pool.update(Published(1))
        for each in Mortal.made:
            each.kill()
        with pytest.raises(InfrastructureError, match="killed"):
            await pool.sample([5], long(5))
        with pytest.raises(RunError, match="no replica took weights of version 2: all are dead"):
            await pool.update(Published(2))

    run(pool, go)


def test_a_turn_that_kills_replicas_ends_as_a_failure_of_the_engine() -> None:
    """After four of them; the replicas come back for others."""
    pool = pool_of(3, restarts=9)

    async def go() -> None:
        await pool.update(Published(1))
        poison = asyncio.create_task(pool.sample([66], long(6)))
        while not poison.done():
            for each in Mortal.made:
                if (66,) in each.running:
                    each.kill()
            await asyncio.sleep(0)
        with pytest.raises(InfrastructureError, match="killed"):
            await poison
        assert is_exact(await pool.sample([5], long(5)), [5], 5, 1)

    run(pool, go)
    assert sum(each.fault is not None for each in Mortal.made) == 4


def test_replicas_are_added_and_removed_within_bounds() -> None:
    """A removed one ends its turns; an added one takes none before it has the weights of now."""
    pool = pool_of(2, least=1, most=3)

    async def go() -> list[Sampled]:
        await pool.update(Published(1))
        turns = [asyncio.create_task(pool.sample([k], long(k))) for k in range(4)]
        await rounds(4)
        pool.resize(1)
        assert states(pool) == [HEALTHY, "leaving"]
        turns += [asyncio.create_task(pool.sample([k], long(k))) for k in range(4, 6)]
        replies = await asyncio.gather(*turns)
        await until(pool, HEALTHY, "removed")
        assert [len(each.started) for each in Mortal.made] == [4, 2]
        pool.resize(3)
        await until(pool, HEALTHY, HEALTHY, HEALTHY)
        assert [each.served for each in Mortal.made] == [1, 1, 1, 1]
        await pool.update(Published(2))
        assert [each.served for each in Mortal.made] == [2, 1, 2, 2]
        for wrong in (0, 4):
            with pytest.raises(UsageError, match=rf"{wrong} replicas; the recipe allows 1 to 3"):
                pool.resize(wrong)
        return replies

    assert [is_exact(reply, [k], k, 1) for k, reply in enumerate(run(pool, go))] == [True] * 6


def test_a_dead_replica_is_the_first_to_be_removed() -> None:
    pool = pool_of(3, backoff=60.0)

    async def go() -> list[str]:
        await pool.update(Published(1))
        replica(pool, 1).kill()
        await pool._supervisor.suspect(1, replica(pool, 1), InfrastructureError("killed"))
        pool.resize(2)
        await rounds(5)
        return states(pool)

    assert run(pool, go) == [HEALTHY, "removed", HEALTHY]


def test_the_engine_s_pressure_limits_the_turns_of_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others wait in the pool, in their order, and all are sampled."""
    monkeypatch.setattr("quintain_scale.schedules.supervisor.LOOK_SECONDS", 0.0)
    pool = pool_of(1, slots=16, admission=True)

    async def go() -> list[Sampled]:
        own = replica(pool, 0)
        turns = [asyncio.create_task(pool.sample([k], long(k))) for k in range(12)]
        most = 0
        while not all(turn.done() for turn in turns):
            # those that are about to begin take their part of the cache
            given = pool._router.loads[0]
            own.pressed = Pressure(running=given, cache_used=given / 4)
            most = max(most, len(own.running))
            await asyncio.sleep(0)
        assert most == 4  # it was found by doubling from 2; with more the cache would be full
        return await asyncio.gather(*turns)

    assert [is_exact(reply, [k], k, 0) for k, reply in enumerate(run(pool, go))] == [True] * 12
    assert [prompt[0] for prompt in Mortal.made[0].started] == list(range(12))


def test_an_engine_that_says_nothing_of_itself_has_no_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quintain_scale.schedules.supervisor.LOOK_SECONDS", 0.0)
    pool = pool_of(1, slots=16, admission=True)

    async def go() -> int:
        turns = [asyncio.create_task(pool.sample([k], long(k))) for k in range(12)]
        most = 0
        while not all(turn.done() for turn in turns):
            most = max(most, len(replica(pool, 0).running))
            await asyncio.sleep(0)
        return most

    assert run(pool, go) == 12


def test_pressure_that_cannot_be_read_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintain_scale.schedules.supervisor.LOOK_SECONDS", 0.0)
    asked = 0

    async def pressure(self: Mortal) -> Pressure:
        nonlocal asked
        asked += 1
        raise InfrastructureError("no metrics")

    monkeypatch.setattr(Mortal, "pressure", pressure)
    pool = pool_of(1, admission=True)

    async def go() -> list[str]:
        await rounds(50)
        return states(pool)

    assert run(pool, go) == [HEALTHY]
    assert asked > 10
    assert len(Mortal.made) == 1


def test_a_replica_that_answers_slowly_does_not_hold_the_looks_at_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quintain_scale.schedules.supervisor.LOOK_SECONDS", 0.0)
    probe = Mortal.probe

    async def slow(self: Mortal) -> None:
        if self is Mortal.made[0]:
            await asyncio.Event().wait()
        await probe(self)

    monkeypatch.setattr(Mortal, "probe", slow)
    pool = pool_of(2)

    async def go() -> None:
        await pool.update(Published(1))
        await rounds(5)
        replica(pool, 1).kill()
        await until(pool, HEALTHY, "dead")
        await until(pool, HEALTHY, HEALTHY)

    run(pool, go)
    assert len(Mortal.made) == 3


def test_a_check_of_weights_survives_a_death_that_nobody_has_noticed() -> None:
    pool = pool_of(2)

    async def go() -> tuple[str, str]:
        await pool.update(Published(1))
        replica(pool, 0).kill()
        whole = await pool.outdated(Published(1))
        await until(pool, HEALTHY, HEALTHY)
        assert replica(pool, 0) is Mortal.made[2]
        replica(pool, 1).served = 0
        return whole, await pool.outdated(Published(1))

    assert run(pool, go) == ("", "a tensor in replica 1")


def test_a_replica_that_dies_before_the_first_update_starts_as_the_others_did() -> None:
    """Nobody would send it weights."""
    pool = pool_of(2)

    async def go() -> Sampled:
        replica(pool, 0).kill()
        await pool.sample([5], long(5))
        await until(pool, HEALTHY, HEALTHY)
        replica(pool, 1).kill()
        return await pool.sample([6], long(6))

    assert is_exact(run(pool, go), [6], 6, 0)
    assert [each.awaits_weights for each in Mortal.made[:3]] == [False] * 3


def test_a_stale_replica_that_is_removed_while_it_takes_weights_is_closed() -> None:
    pool = pool_of(2)
    update, arrived = Mortal.update, asyncio.Event()

    async def slow(self: Mortal, weights: Any) -> int:
        if self not in Mortal.made[:2]:
            await arrived.wait()
        return await update(self, weights)

    async def go() -> list[str]:
        await pool.update(Published(1))
        replica(pool, 0).kill()
        await pool.sample([5], long(5))
        await until(pool, "stale", HEALTHY)
        await rounds(5)
        pool.resize(1)
        arrived.set()
        await rounds(20)
        assert [each.open for each in Mortal.made] == [0, 1, 0]
        return states(pool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mortal, "update", slow)
        assert run(pool, go) == ["removed", HEALTHY]


def test_the_end_of_a_turn_does_not_move_to_a_stale_replica() -> None:
    """It was to be sampled there when the replica died."""
    pool = pool_of(2, segment=PIECE)
    parameter = SimpleNamespace(_version=1)
    live = Published(1)
    live.module = SimpleNamespace(parameters=lambda: [parameter])  # type: ignore[attr-defined]

    async def go() -> Sampled:
        await pool.update(live)
        parameter._version += 1
        turn = asyncio.create_task(pool.sample([5], long(5)))
        await rounds(3)
        (pending,) = pool._router._turns
        assert pending.replica == 0
        pool._supervisor.bury(1, replica(pool, 1), "killed")
        await until(pool, HEALTHY, "stale")
        pool._router._retarget(pending, 1)
        return await turn

    reply = run(pool, go)
    assert list(reply.ids) == expected([5], 5, [1] * 20, PIECE)
    assert Mortal.made[2].started == []


def test_a_dead_engine_that_refuses_weights_says_nothing_of_its_successor() -> None:
    pool = pool_of(2)
    update = Mortal.update

    async def go() -> int:
        await pool.update(Published(1))
        first = Mortal.made[0]

        async def late(self: Mortal, weights: Any) -> int:
            if self is not first:
                return await update(self, weights)
            await until(pool, "stale", HEALTHY)
            raise InfrastructureError("killed")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Mortal, "update", late)
            updating = asyncio.create_task(pool.update(Published(2)))
            await rounds(3)
            first.kill()
            await pool.sample([5], long(5))
            version = await updating
            await until(pool, HEALTHY, HEALTHY)
        return version

    assert run(pool, go) == 2
    assert [each.served for each in Mortal.made] == [1, 2, 2]


def test_a_start_that_is_cancelled_closes_what_has_started() -> None:
    pool = pool_of(2)
    start = Mortal.__aenter__

    async def slow(self: Mortal) -> Mortal:
        if self is Mortal.made[1]:
            await asyncio.Event().wait()
        return await start(self)

    async def main() -> list[int]:
        starting = asyncio.create_task(pool.__aenter__())
        await rounds(5)
        began = [each.open for each in Mortal.made]
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return began

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mortal, "__aenter__", slow)
        assert asyncio.run(main()) == [1, 0]
    assert [each.open for each in Mortal.made] == [0, 0]


def test_a_pool_that_ends_while_a_removed_replica_closes_waits_for_it() -> None:
    pool = pool_of(2)
    close = Mortal.__aexit__

    async def slow(self: Mortal, *exc: object) -> None:
        await rounds(10)
        await close(self, *exc)

    async def go() -> list[str]:
        await pool.update(Published(1))
        pool.resize(1)
        await until(pool, HEALTHY, "removed")
        await rounds(3)
        assert Mortal.made[1].open == 1
        return states(pool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mortal, "__aexit__", slow)
        assert run(pool, go) == [HEALTHY, "removed"]  # which finds all closed


def test_a_removed_replica_waits_for_no_restart() -> None:
    """Its number is free at once, and it is not among the replicas meanwhile."""
    pool = pool_of(2, backoff=60.0)

    async def go() -> list[str]:
        await pool.update(Published(1))
        pool._supervisor.bury(1, replica(pool, 1), "killed")
        assert pool._replicas == [replica(pool, 0)]
        pool.resize(1)
        await rounds(5)
        pool.resize(2)
        await rounds(5)
        return states(pool)

    assert run(pool, go) == [HEALTHY, HEALTHY]


def test_the_alert_counts_replicas_that_are_coming() -> None:
    pool = pool_of(3, restarts=1, backoff=60.0)

    async def go() -> str:
        await pool.update(Published(1))
        for number in (0, 1):
            pool._supervisor.bury(number, replica(pool, number), "killed")
        health = pool._supervisor.health[0]
        health.died(asyncio.get_running_loop().time(), "again")
        return pool._supervisor.alert()

    assert run(pool, go) == (
        "replicas: 1 given up after 1 restarts in 10 minutes, 1 work. replica 0: again. Mend the "
        "cause, then set their number again: quintain steer RUN replicas 3"
    )


def test_a_log_that_cannot_be_written_ends_nothing_and_is_made_up_for(tmp_path: Path) -> None:
    pool = pool_of(2)
    path = tmp_path / "replicas.jsonl"

    async def go() -> None:
        path.mkdir()
        pool.quintain_on_run_start(SimpleNamespace(folder=str(tmp_path)))
        await pool.update(Published(1))
        replica(pool, 0).kill()
        await pool.sample([5], long(5))
        await until(pool, HEALTHY, HEALTHY)
        path.rmdir()
        pool.resize(1)
        await until(pool, HEALTHY, "removed")

    run(pool, go)
    assert [(r["replica"], r["state"]) for r in RunFolder(tmp_path, lock=False).replicas()] == [
        (0, "healthy"),
        (1, "healthy"),
        (0, "dead"),
        (0, "restarting"),
        (0, "stale"),
        (0, "healthy"),
        (1, "leaving"),
        (1, "removed"),
    ]


def test_after_a_resume_the_log_tells_of_the_replicas_of_now(tmp_path: Path) -> None:
    before = RunFolder(tmp_path, lock=False)
    for number, state in enumerate(["dead", "given up", "stale"]):
        record = {"time": "2026-11-26T00:00:00Z", "replica": number, "state": state, "why": "old"}
        before.append(record, before.replicas_path)
    pool = pool_of(2)

    async def go() -> None:
        pool.quintain_on_run_start(SimpleNamespace(folder=str(tmp_path)))

    run(pool, go)
    last = {record["replica"]: record for record in before.replicas()}
    assert [(record["state"], record["why"]) for record in last.values()] == [
        ("healthy", ""),
        ("healthy", ""),
        ("removed", "the run was started again"),
    ]


@examples(80)
@given(
    count=st.integers(1, 3),
    segment=st.sampled_from([0, PIECE]),
    in_flight=st.booleans(),
    events=st.lists(
        st.tuples(
            st.integers(0, 12),
            st.sampled_from(["sample", "sample", "update", "kill", "kill", "steal", "resize"]),
            st.integers(0, 5),
        ),
        max_size=30,
    ),
)
def test_no_turn_is_lost_or_stale_whatever_dies(
    count: int, segment: int, in_flight: bool, events: list[tuple[int, str, int]]
) -> None:
    """Kills, replacements behind the pool's back, updates and other numbers of replicas in any
    order: each turn ends once, with the tokens of weights that were current since it began. It
    fails only if four replicas died on the way.
    """
    Mortal.made.clear()
    pool = pool_of(count, restarts=1000, segment=segment)
    pool.in_flight_updates = in_flight
    begun: list[int] = []
    gone: list[set[Mortal]] = []  # by turn: known to be dead when it began
    dead: set[Mortal] = set()

    async def go() -> list[Any]:
        turns: list[asyncio.Task[Any]] = []
        updates: list[asyncio.Task[Any]] = []
        await pool.update(Published(1))
        for pause, kind, which in events:
            await rounds(pause)
            up = [r for r in pool._replicas if isinstance(r, Mortal) and r.fault is None]
            if kind == "sample":
                begun.append(1 + sum(task.done() for task in updates))
                gone.append({r for r in dead if r not in pool._replicas})
                turns.append(
                    asyncio.create_task(pool.sample([which, len(turns)], long(len(turns))))
                )
            elif kind == "update":
                updates.append(asyncio.create_task(pool.update(Published(len(updates) + 2))))
            elif kind == "resize":
                pool.resize(1 + which % 3)
            elif up:
                dead.add(chosen := up[which % len(up)])
                if kind == "kill":
                    chosen.kill()
                else:
                    chosen.served = 0
        await within_rounds(*turns, *updates)
        assert [await task for task in updates] == list(range(2, len(updates) + 2))
        return await asyncio.gather(*turns, return_exceptions=True)

    replies = run(pool, go)
    prompts = [which for _, kind, which in events if kind == "sample"]
    for seed, (which, reply, least) in enumerate(zip(prompts, replies, begun, strict=True)):
        if isinstance(reply, InfrastructureError):
            assert len(dead - gone[seed]) >= MOST_DEATHS
            continue  # typed, and tried again by the run
        assert list(reply.ids) == expected([which, seed], seed, reply.versions, segment)
        assert len(reply.ids) == 20
        assert min(reply.versions) >= least
        if not in_flight:
            assert len({*reply.versions}) == 1
