"""Complete groups that wait for their batch, against a plain list of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quintain import Group, Rollout, Task, Termination
from quintain.types import TerminationKind
from quintain_scale.schedules.complete import CompleteGroup, CompleteGroups

NOBODY: Any = None
REASONS = ["", "", "", "stale", "filter"]


def complete(index: int, reason: str, oldest: int | None, *, valid: bool) -> CompleteGroup:
    task = Task(prompt="")
    kind = TerminationKind.FINISHED if valid else TerminationKind.INFRASTRUCTURE_ERROR
    rollout = Rollout(task=task, result=None, termination=Termination(kind), transcripts={})
    group = Group(task=task, rollouts=(rollout,), environment="one", index=index)
    return CompleteGroup(request=NOBODY, group=group, reason=reason, oldest=oldest)


added = st.tuples(
    st.just("add"), st.sampled_from(REASONS), st.none() | st.integers(0, 5), st.booleans()
)
refused = st.tuples(st.just("refuse"), st.integers(0, 6))
taken = st.tuples(st.just("take"), st.sets(st.integers(0, 12)), st.sets(st.sampled_from(REASONS)))


@given(actions=st.lists(added | refused | taken, max_size=30), indices=st.permutations(range(30)))
def test_counts_are_those_of_a_plain_list(actions: Sequence[Any], indices: Sequence[int]) -> None:
    """Also of groups that are added after others were refused or taken."""
    groups, plain = CompleteGroups(), list[CompleteGroup]()
    for (action, *values), index in zip(actions, indices, strict=False):
        if action == "add":
            reason, oldest, valid = values
            plain.append(complete(index, reason, oldest, valid=valid))
            groups.add(plain[-1])
        elif action == "refuse":
            old = [
                c for c in plain if not c.reason and c.oldest is not None and c.oldest < values[0]
            ]
            plain = [replace(c, reason="stale") if c in old else c for c in plain]
            assert groups.refuse_older(values[0]) == [replace(c, reason="stale") for c in old]
        else:
            wanted = [c for c in plain if c.group.index in values[0] or c.reason in values[1]]
            plain = [c for c in plain if c not in wanted]
            assert groups.take(*values) == sorted(wanted, key=lambda c: c.group.index)
        assert [*groups] == plain
        assert groups.valid == sum(bool(c.group.valid) for c in plain)
        assert groups.reasons() == {c.reason for c in plain} - {""}
        for rejected in (False, True):
            usable = [c for c in plain if c.reason != "stale" and (rejected or not c.reason)]
            assert groups.usable(rejected=rejected) == sorted(usable, key=lambda c: c.group.index)
            assert groups.count(rejected=rejected) == len(usable)
