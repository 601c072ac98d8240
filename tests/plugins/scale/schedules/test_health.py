"""The states of a replica: no way from dead to healthy but by new weights."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quintain.errors import UsageError
from quintain_scale.schedules.health import (
    COMING,
    ENDED,
    ReplicaHealth,
    ReplicaState,
    RestartPolicy,
)

S = ReplicaState


def test_a_dead_replica_comes_back_by_new_weights_alone() -> None:
    health = ReplicaHealth(policy=RestartPolicy())
    health.died(10.0, "killed")
    seen = [(health.state, health.why)]
    with pytest.raises(RuntimeError, match="a replica is dead; expected stale or healthy"):
        health.took_weights()
    for step in (health.restarting, health.came_up, health.took_weights):
        step()
        seen.append((health.state, health.why))

    assert seen == [
        (S.DEAD, "killed"),
        (S.RESTARTING, "killed"),
        (S.STALE, "killed"),
        (S.HEALTHY, ""),
    ]


def test_restarts_wait_twice_as_long_and_end() -> None:
    """Deaths of long ago do not count."""
    health = ReplicaHealth(policy=RestartPolicy(restarts=4, backoff=1.0, longest=6.0, window=100.0))
    waits = []
    for now in (0.0, 90.0, 91.0, 92.0, 101.0):
        health.died(now, "killed")
        waits.append((health.state, health.retry_at - now))
    health.died(102.0, "again")

    assert waits == [(S.DEAD, wait) for wait in (1.0, 2.0, 4.0, 6.0, 6.0)]
    assert health.state == S.GIVEN_UP
    assert health.why == "again"


def test_failures_in_a_row_are_death_and_probes_do_not_excuse_turns() -> None:
    health = ReplicaHealth(policy=RestartPolicy(failures=2))
    first = health.failed(0.0, "turn", "NaN")
    health.succeeded("probe")
    assert first is False
    assert health.failed(1.0, "turn", "NaN") is True
    assert health.state == S.DEAD
    other = ReplicaHealth(policy=RestartPolicy(failures=2))
    for _ in range(5):
        assert not other.failed(0.0, "turn", "NaN")
        other.succeeded("turn")
    assert other.state == S.HEALTHY


def test_a_leaving_replica_that_dies_is_gone() -> None:
    health = ReplicaHealth(policy=RestartPolicy())
    health.leaves()
    assert health.state == S.LEAVING
    health.died(0.0, "killed")
    assert health.state == S.REMOVED


def test_a_leaving_replica_that_hangs_is_found() -> None:
    health = ReplicaHealth(policy=RestartPolicy(failures=2))
    health.leaves()
    seen = [(health.failed(0.0, "probe", "no answer"), health.state) for _ in range(3)]
    assert seen == [(False, S.LEAVING), (True, S.REMOVED), (False, S.REMOVED)]


@pytest.mark.parametrize(
    "wrong", [{"restarts": -1}, {"backoff": -1.0}, {"failures": 0}], ids=lambda w: next(iter(w))
)
def test_policies_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="expected 0 or more restarts"):
        RestartPolicy(**wrong)  # type: ignore[arg-type]


class Lives(RuleBasedStateMachine):
    """Whatever happens in whatever order: `healthy` is reached from `stale` alone, and what ended
    stays so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.health = ReplicaHealth(policy=RestartPolicy(restarts=3, window=50.0, failures=2))
        self.now, self.deaths = 0.0, list[float]()

    def change(self, allowed: set[ReplicaState]) -> None:
        now = self.health.state
        assert now == self.before or now in allowed, (self.before, now)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def die(self) -> None:
        self.before = self.health.state
        if self.before not in (*ENDED, S.LEAVING):
            self.deaths.append(self.now)
        self.health.died(self.now, "killed")
        recent = [at for at in self.deaths if at > self.now - 50.0]
        expected = S.GIVEN_UP if len(recent) > 3 else S.DEAD
        if self.before == S.LEAVING:
            expected = S.REMOVED
        assert self.health.state == (self.before if self.before in ENDED else expected)
        if self.health.state == S.DEAD:
            assert self.now + 1.0 <= self.health.retry_at <= self.now + 60.0

    @rule(source=st.sampled_from(["turn", "probe"]))
    def fail(self, source: str) -> None:
        self.before = self.health.state
        died = self.health.failed(self.now, source, "no answer")
        if self.before == S.LEAVING:
            self.change({S.REMOVED} if died else set())
            return
        if died:
            self.deaths.append(self.now)
        self.change({S.DEAD, S.GIVEN_UP} if died else set())

    @rule(source=st.sampled_from(["turn", "probe"]))
    def succeed(self, source: str) -> None:
        self.before = self.health.state
        self.health.succeeded(source)
        self.change(set())

    @precondition(lambda self: self.health.state == S.DEAD)
    @rule()
    def restart(self) -> None:
        self.health.restarting()
        assert self.health.state == S.RESTARTING

    @precondition(lambda self: self.health.state == S.RESTARTING)
    @rule()
    def come_up(self) -> None:
        self.health.came_up()
        assert self.health.state == S.STALE

    @precondition(lambda self: self.health.state in (S.STALE, S.HEALTHY, S.LEAVING))
    @rule()
    def take_weights(self) -> None:
        self.before = self.health.state
        self.health.took_weights()
        assert self.health.state == (S.LEAVING if self.before == S.LEAVING else S.HEALTHY)

    @precondition(lambda self: self.health.state not in (*ENDED, S.LEAVING))
    @rule()
    def remove(self) -> None:
        self.before = self.health.state
        self.health.leaves()
        assert self.health.state == (S.LEAVING if self.before == S.HEALTHY else S.REMOVED)

    @invariant()
    def every_state_is_one_kind(self) -> None:
        kinds = [
            self.health.state in COMING,
            self.health.state in ENDED,
            self.health.state in (S.HEALTHY, S.LEAVING),
        ]
        assert sum(kinds) == 1
        assert self.health.state != S.HEALTHY or not self.health.why


TestLives = Lives.TestCase
