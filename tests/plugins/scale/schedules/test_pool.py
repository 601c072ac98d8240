"""Several replicas behave as one engine: the same tokens, each of one version, none lost or sampled
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import InfrastructureError, LimitReached, Sampled, Sampling, Task
from quintain.errors import BindingError, QuintainError, RunError, UsageError
from quintain.registry.binding import bind
from quintain.types import derived_seed
from quintain_scale.schedules import EnginePool

from ....lanes import examples
from .pool_kit import PIECE, Decoder, Published, token

KIT = f"{Decoder.__module__}:{Decoder.__qualname__}"
MOST_ROUNDS = 50_000
Out = TypeVar("Out")


def pool_of(count: int, **options: Any) -> tuple[EnginePool, list[Decoder]]:
    pool = EnginePool(engine=KIT, count=count, **{"slots": 2, **options})
    return pool, pool._replicas  # type: ignore[return-value]


async def rounds(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def within_rounds(*tasks: asyncio.Task[Any]) -> None:
    """Wait for *tasks*; a pool that waits without end fails the test at once, whatever the
    machine's speed.
    """
    for _ in range(MOST_ROUNDS):
        if all(task.done() for task in tasks):
            return
        await asyncio.sleep(0)
    pytest.fail(f"no end after {MOST_ROUNDS} rounds: {[task for task in tasks if not task.done()]}")


def run(work: Coroutine[Any, Any, Out]) -> Out:
    async def main() -> Out:
        task = asyncio.create_task(work)
        await within_rounds(task)
        return task.result()

    return asyncio.run(main())


def expected(
    prompt: Sequence[int], seed: int, versions: Sequence[int], segment: int = 0
) -> list[int]:
    """The tokens of a turn whose n-th token is of the n-th of *versions*."""
    new: list[int] = []
    for at, version in enumerate(versions):
        start = at - at % segment if segment else 0
        own = derived_seed(seed, "segment", start) if start else seed
        new.append(token([*prompt, *new], own, version))
    return new


# ---------------------------------------------------------------- routing
def test_a_group_is_on_one_replica_and_the_next_on_the_least_loaded() -> None:
    """Also a later turn of an episode, until its replica is full and another is not."""
    pool, replicas = pool_of(3, slots=3)

    async def go() -> list[list[tuple[int, ...]]]:
        groups = [pool.for_task(Task(prompt=name, id=name)) for name in "abc"]
        wait = [
            asyncio.create_task(g.sample([k], Sampling(max_tokens=5)))
            for k, g in enumerate(groups)
            for _ in "12"
        ]
        await rounds(2)
        again = [
            asyncio.create_task(groups[0].sample([0, 9], Sampling(max_tokens=5))) for _ in range(3)
        ]
        await asyncio.gather(*wait, *again)
        return [replica.started for replica in replicas]

    assert run(go()) == [[(k,), (k,), (0, 9)] for k in range(3)]


def test_equal_prompts_without_a_task_share_a_replica_until_new_weights() -> None:
    pool, replicas = pool_of(2)

    async def go() -> None:
        for _ in range(3):
            await pool.sample([1], Sampling(max_tokens=1))
        # takes replica 0, the first of equals
        other = asyncio.create_task(pool.sample([2], Sampling(max_tokens=30)))
        await rounds(2)
        await pool.update(Published(1))
        await pool.sample([1], Sampling(max_tokens=1))
        await other

    run(go())
    assert replicas[0].started == [(1,)] * 3 + [(2,)]
    assert replicas[1].started == [(1,)]


def test_a_cancelled_turn_frees_its_place() -> None:
    pool, replicas = pool_of(1)

    async def go() -> None:
        turn = asyncio.create_task(pool.sample([1], Sampling(max_tokens=40)))
        await rounds(5)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn

    run(go())
    assert pool._router.loads == [0]
    assert replicas[0].running == []


def test_scores_limits_and_settings_are_the_engine_s() -> None:
    pool, replicas = pool_of(
        2, replicas=[{"label": "a"}, {"label": "b", "context": 32}], settings={"context": 48}
    )

    assert [(r.label, r.context, r.slots) for r in replicas] == [("a", 48, 2), ("b", 32, 2)]
    assert pool.context == 32
    assert run(pool.score([7, 8, 9], 1)) == [-8.0, -9.0]
    replicas[0].fault = InfrastructureError("gone")
    assert run(pool.score([7, 8, 9], 2)) == [-9.0]
    replicas[1].fault = LimitReached("context", "too long")
    with pytest.raises(LimitReached):
        run(pool.score([7, 8, 9], 2))
    with pytest.raises(UsageError, match="cannot sleep"):
        run(pool.sleep())


# ---------------------------------------------------------------- segments
def test_segments_do_not_depend_on_the_replicas() -> None:
    """Nor does a turn that is shorter than one."""
    calls = [([k], Sampling(max_tokens=3 + 5 * k, seed=k)) for k in range(4)]

    async def all_of(pool: EnginePool) -> list[Sampled]:
        return await asyncio.gather(*(pool.sample(ids, sampling) for ids, sampling in calls))

    one, three = (run(all_of(pool_of(count, segment=PIECE)[0])) for count in (1, 3))
    whole = run(all_of(pool_of(3)[0]))

    assert one == three
    assert one[0] == whole[0]
    for (ids, sampling), segments, single in zip(calls, one, whole, strict=True):
        assert list(segments.ids) == expected(ids, sampling.seed or 0, segments.versions, PIECE)
        assert list(single.ids) == expected(ids, sampling.seed or 0, single.versions)
        assert sampling.max_tokens == len(segments.ids)


def test_a_turn_in_segments_fills_the_context() -> None:
    pool, _ = pool_of(2, segment=7, settings={"context": 20})

    assert len(run(pool.sample([1] * 5, Sampling(seed=3))).ids) == 15


# ---------------------------------------------------------------- weights
def test_an_emptied_replica_takes_new_weights_while_the_tail_runs() -> None:
    """The short turn of replica 0 moves to replica 1 after its segment, and 0 samples with version
    1 at once; without segments it ends where it is.
    """

    async def go(segment: int) -> tuple[list[Sampled], list[int]]:
        pool, replicas = pool_of(2, segment=segment)
        pool.in_flight_updates = False
        tail = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=32, seed=k))) for k in range(2)
        ]
        await rounds(6)
        update = asyncio.create_task(pool.update(Published(1)))
        await rounds(8)
        new = asyncio.create_task(pool.sample([9], Sampling(max_tokens=3, seed=9)))
        await rounds(6)
        versions = [replica.version for replica in replicas]
        assert await update == 1
        return [*await asyncio.gather(*tail), await new], versions

    (*tail, new), versions = run(go(PIECE))
    assert sorted(versions) == [0, 1]
    assert [set(reply.versions) for reply in (*tail, new)] == [{0}, {0}, {1}]
    (*still, late), unmoved = run(go(0))
    assert unmoved == [0, 0]
    assert [set(reply.versions) for reply in (*still, late)] == [{0}, {0}, {1}]


def test_a_replica_waits_for_the_turns_that_move_to_it() -> None:
    """Its own turn ends before; with new weights it could not continue them."""
    pool, replicas = pool_of(2, segment=PIECE)
    pool.in_flight_updates = False

    async def go() -> list[Sampled]:
        turns = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=20 - 14 * k, seed=k)))
            for k in range(2)
        ]
        while any(len(replica.started) < 2 for replica in replicas):  # noqa: ASYNC110 -- the pool has no event for it
            await asyncio.sleep(0)
        await pool.update(Published(1))
        return await asyncio.gather(*turns)

    assert [reply.versions for reply in run(go())] == [(0,) * 20, (0,) * 6]
    # segments; the first of replica 0 moved after two
    assert [len(replica.started) for replica in replicas] == [2, 5]


def test_nothing_moves_while_turns_wait_for_a_slot() -> None:
    pool, replicas = pool_of(2, segment=PIECE, slots=1)
    pool.in_flight_updates = False

    async def go() -> list[Sampled]:
        turns = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=12, seed=k))) for k in range(3)
        ]
        await rounds(6)
        assert await pool.update(Published(1)) == 1
        return await asyncio.gather(*turns)

    assert [reply.versions for reply in run(go())] == [(0,) * 12] * 3
    assert [len(replica.started) for replica in replicas] == [6, 3]


def test_turns_move_once_others_have_ended() -> None:
    pool, replicas = pool_of(2, segment=PIECE)
    pool.in_flight_updates = False

    async def go() -> list[Sampled]:
        turns = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=n, seed=0)))
            for k, n in enumerate((40, 40, 6, 6))
        ]
        await rounds(2)
        assert await pool.update(Published(1)) == 1
        return await asyncio.gather(*turns)

    assert [(0,) * n for n in (40, 40, 6, 6)] == [reply.versions for reply in run(go())]
    assert {0, 1, 3} == {prompt[0] for prompt in replicas[1].started}


def test_late_replicas_end_their_turns_and_take_the_next_update() -> None:
    """The update leaves one of three behind; what begins then has its version, also while the old
    turns run.
    """
    pool, replicas = pool_of(3, segment=PIECE, late=1)
    pool.in_flight_updates = False

    async def go() -> list[Sampled]:
        tail = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=60, seed=k))) for k in range(2)
        ]
        await rounds(6)
        assert 1 == await pool.update(Published(1)) == pool.version
        assert not any(turn.done() for turn in tail)
        assert sorted(replica.version for replica in replicas) == [0, 1, 1]
        new = [await pool.sample([9], Sampling(max_tokens=3, seed=9)) for _ in range(3)]
        assert not any(turn.done() for turn in tail)
        await asyncio.gather(*tail)
        await pool.update(Published(2))
        return [*new, *(task.result() for task in tail)]

    assert [{1}, {1}, {1}, {0}, {0}] == [set(reply.versions) for reply in run(go())]
    assert [replica.version for replica in replicas] == [2, 2, 2]


def test_a_late_replica_samples_what_no_other_can() -> None:
    """Its tokens have its version; a score of older weights would be wrong, and fails."""
    pool, replicas = pool_of(2, late=1)
    pool.in_flight_updates = False

    async def go() -> list[Sampled]:
        tail = asyncio.create_task(pool.sample([0], Sampling(max_tokens=60, seed=0)))
        await rounds(4)
        await pool.update(Published(1))
        new = [await pool.sample([1], Sampling(max_tokens=4, seed=1))]
        replicas[1].fault = InfrastructureError("gone")
        new.append(await pool.sample([1], Sampling(max_tokens=4, seed=1)))
        with pytest.raises(InfrastructureError, match="gone"):
            await pool.score([1, 2], 1)
        await tail
        return new

    assert [reply.versions for reply in run(go())] == [(1,) * 4, (0,) * 4]


def test_a_cancelled_update_leaves_the_pool_usable() -> None:
    pool, _ = pool_of(2)
    pool.in_flight_updates = False

    async def go() -> Sampled:
        turn = asyncio.create_task(pool.sample([1], Sampling(max_tokens=40)))
        await rounds(4)
        update = asyncio.create_task(pool.update(Published(1)))
        await rounds(2)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        await pool.sample([2], Sampling(max_tokens=2))
        return await turn

    assert run(go()).versions == (0,) * 40


def test_a_replica_may_fail_a_turn_once_per_segment() -> None:
    pool, replicas = pool_of(2, segment=PIECE)

    async def go() -> Sampled:
        replicas[0].fault = InfrastructureError("gone")
        turn = asyncio.create_task(pool.sample([3], Sampling(max_tokens=20, seed=3)))
        await rounds(12)
        replicas[0].fault, replicas[1].fault = None, InfrastructureError("gone, too")
        return await turn

    reply = run(go())
    assert list(reply.ids) == expected([3], 3, (0,) * 20, PIECE)
    assert replicas[0].started[1][:4] == (3, *reply.ids[:3])  # complete segments stay


def test_updates_in_flight_go_to_all_replicas_within_turns() -> None:
    pool, replicas = pool_of(2)

    async def go() -> list[Sampled]:
        turns = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=20, seed=k))) for k in range(2)
        ]
        await rounds(6)
        assert await pool.update(Published(1)) == 1
        return await asyncio.gather(*turns)

    for k, reply in enumerate(run(go())):
        assert {0, 1} == set(reply.versions)
        assert list(reply.ids) == expected([k], k, reply.versions)
    assert [replica.version for replica in replicas] == [1, 1]


def test_a_replica_that_missed_an_update_samples_nothing_until_it_took_one() -> None:
    """Its turns, which may never end, are sampled on others."""
    pool, replicas = pool_of(2)

    async def go() -> list[Sampled]:
        turns = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=20, seed=k))) for k in range(2)
        ]
        await rounds(6)
        replicas[0].blocked, replicas[0].update_fault = True, RunError("half of the weights")
        replicas[0].update_fault.__cause__ = InfrastructureError("no answer")
        assert await pool.update(Published(1)) == 1
        replies = [*await asyncio.gather(*turns), await pool.sample([5], Sampling(max_tokens=1))]
        assert len(replicas[0].started) == 1
        replicas[0].blocked, replicas[0].update_fault = False, None
        await pool.update(Published(2))
        return [*replies, await pool.sample([6], Sampling(max_tokens=1))]

    replies = run(go())
    assert [{1}, {0, 1}, {1}, {2}] == [set(reply.versions) for reply in replies]
    assert list(replies[0].ids) == expected([0], 0, replies[0].versions)
    assert replicas[0].started[-1] == (6,)


def test_a_turn_goes_back_to_its_start_rather_than_to_another_version() -> None:
    """Without updates in flight, segments of an older version are not continued by another
    replica's.
    """
    pool, replicas = pool_of(2, segment=PIECE, slots=1)
    pool.in_flight_updates = False

    async def go() -> Sampled:
        turns = [
            asyncio.create_task(pool.sample([k], Sampling(max_tokens=20 - 10 * k, seed=k)))
            for k in range(2)
        ]
        await rounds(7)
        update = asyncio.create_task(pool.update(Published(1)))
        await turns[1]
        await rounds(5)
        replicas[0].fault = InfrastructureError("gone")
        await update
        return await turns[0]

    reply = run(go())
    assert reply.versions == (1,) * 20
    assert list(reply.ids) == expected([0], 0, reply.versions, PIECE)


def test_faults_of_an_update_that_may_not_be_ignored_end_the_run() -> None:
    """Other weights than those that were sent; and no replica left."""
    pool, replicas = pool_of(2)
    replicas[0].update_fault = RunError("the canary differs")
    with pytest.raises(RunError, match="canary"):
        run(pool.update(Published(1)))
    for replica in replicas:
        replica.update_fault = InfrastructureError("gone")
    with pytest.raises(RunError, match="no replica took weights of version 2: gone"):
        run(pool.update(Published(2)))
    with pytest.raises(
        InfrastructureError, match="no replica of the pool has the present weights: replica 0: gone"
    ):
        run(pool.sample([1], Sampling(max_tokens=1)))


def test_a_turn_that_every_replica_fails_fails() -> None:
    """As an engine does, and each replica is asked once; then the pool goes on."""
    pool, replicas = pool_of(2)
    for at, replica in enumerate(replicas):
        replica.fault = InfrastructureError(f"fault {at}")
    with pytest.raises(InfrastructureError, match="fault 1"):
        run(pool.sample([1], Sampling(max_tokens=2)))
    assert [len(replica.started) for replica in replicas] == [1, 1]
    replicas[1].fault = None
    assert len(run(pool.sample([1], Sampling(max_tokens=2))).ids) == 2


# ---------------------------------------------------------------- start and end
def test_a_replica_that_does_not_start_closes_the_others() -> None:
    pool, replicas = pool_of(3, replicas=[{}, {"label": "broken"}, {}])

    async def start() -> None:
        async with pool:
            pytest.fail("it has started")

    with pytest.raises(InfrastructureError, match="a broken replica"):
        run(start())
    assert [replica.open for replica in replicas] == [0, 0, 0]


def test_it_starts_and_closes_all() -> None:
    pool, replicas = pool_of(3)

    async def go() -> list[int]:
        async with pool:
            return [replica.open for replica in replicas]

    assert run(go()) == [1, 1, 1]
    assert [replica.open for replica in replicas] == [0, 0, 0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"engine": "embeded"}, "did you mean 'embedded'"),
        ({"engine": "quintain-engines/openai"}, "no engine of tokens"),
        ({"engine": "pool"}, "no engine of tokens"),
        ({"engine": KIT, "settings": {"slot": 2}}, "has no argument 'slot'; did you mean 'slots'"),
        ({"engine": KIT, "count": 0}, "0 replicas"),
        ({"engine": KIT, "late": 2}, "2 of them late"),
        ({"engine": KIT, "segment": -1}, "segments of -1"),
        ({"engine": KIT, "replica": [{}]}, "did you mean 'replicas'"),
    ],
)
def test_refusals_name_the_argument(args: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, BindingError), match=message):
        bind(EnginePool, args)


# ---------------------------------------------------------------- everything at once
EVENTS = st.one_of(
    *[st.tuples(st.just("sample"), st.integers(0, 2), st.integers(1, 30))] * 3,
    st.tuples(st.just("fail"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("heal"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("update"), st.just(0), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
)


@examples(60)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([0, PIECE]),
    st.integers(0, 2),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 6), EVENTS), max_size=30),
)
def test_no_turn_is_lost_or_sampled_twice(
    count: int,
    slots: int,
    segment: int,
    late: int,
    in_flight: bool,
    events: list[tuple[int, tuple[str, int, int]]],
) -> None:
    """Whatever fails, moves or is updated meanwhile: a turn ends once, with the tokens of its seed
    and its versions.
    """
    late = min(late, count - 1)
    pool, replicas = pool_of(count, segment=segment, slots=slots, late=late)
    pool.in_flight_updates = in_flight
    calls: list[tuple[list[int], Sampling]] = []

    async def go() -> tuple[list[Any], list[Any]]:
        turns: list[asyncio.Task[Any]] = []
        updates: list[asyncio.Task[Any]] = []
        for pause, (kind, which, tokens) in events:
            await rounds(pause)
            if kind == "sample":
                calls.append(([which, len(calls)], Sampling(max_tokens=tokens, seed=len(calls))))
                engine = pool.for_task(Task(prompt="", id=str(which)))
                turns.append(asyncio.create_task(engine.sample(*calls[-1])))
            elif kind == "update":
                updates.append(asyncio.create_task(pool.update(Published(len(updates) + 1))))
            elif kind == "cancel" and turns:
                turns[which % len(turns)].cancel()
            elif kind in ("fail", "heal"):
                replicas[which % count].fault = (
                    InfrastructureError("gone") if kind == "fail" else None
                )
        await within_rounds(*turns, *updates)
        return [await asyncio.gather(*tasks, return_exceptions=True) for tasks in (turns, updates)]  # type: ignore[return-value]

    replies, updates = asyncio.run(go())

    failed = any(kind == "fail" for _, (kind, _, _) in events)
    cancelled = any(kind == "cancel" for _, (kind, _, _) in events)
    for (ids, sampling), reply in zip(calls, replies, strict=True):
        if isinstance(reply, BaseException):
            assert cancelled if isinstance(reply, asyncio.CancelledError) else failed, reply
            assert isinstance(reply, (asyncio.CancelledError, InfrastructureError))
            continue
        assert sampling.max_tokens == len(reply.ids)
        assert list(reply.versions) == sorted(reply.versions)
        assert in_flight or len(set(reply.versions)) == 1
        assert list(reply.ids) == expected(ids, sampling.seed or 0, reply.versions, segment)
    for version, outcome in enumerate(updates, 1):
        assert outcome == version or (failed and isinstance(outcome, QuintainError)), outcome
    assert [0] * count == pool._router.loads
    assert not any(replica.running for replica in replicas)
    if not failed:
        older = sum(replica.version < len(updates) for replica in replicas)
        assert older <= (0 if in_flight else late)
        whole = sum(len(reply.ids) for reply in replies if isinstance(reply, Sampled))
        if not cancelled and not segment:
            assert len(calls) == sum(len(replica.started) for replica in replicas)
            assert whole == sum(sampling.max_tokens or 0 for _, sampling in calls)
