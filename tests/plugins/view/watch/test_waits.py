"""What a step waited for: on made timelines whose answer is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain_view.watch.waits import resources_of, waits_of

from .kit import Spans


def named(spans: Spans) -> dict[str, float]:
    waits = waits_of(spans.timeline())
    found = {wait.label: round(wait.seconds, 6) for wait in waits.waits}
    assert sum(found.values()) == pytest.approx(waits.seconds, abs=1e-4)
    return found


def test_the_chain_follows_the_episode_that_ended_last() -> None:
    """Phases after each other, and of two episodes the one that the batch waited for."""
    spans = Spans()
    step = spans.add("step", 0, 10, step=1)
    rollouts = spans.add("rollouts", 0, 7, step)
    slow = spans.episode(0, 6, rollouts, sample=1)
    spans.turn(0, 1, slow)
    spans.tool(1, 5, slow)
    spans.turn(5, 6, slow)
    quick = spans.episode(0, 2, rollouts)
    spans.turn(0, 2, quick)
    score = spans.add("score", 6, 7, rollouts, step=1)
    spans.add("grade", 6, 7, score, reward="exact", rollouts=1)
    spans.add("update", 7, 9.5, step)

    assert named(spans) == {
        "tool look": 4.0,
        "update of the policy": 2.5,
        "sampling (embedded)": 2.0,
        "grading by exact": 1.0,
        "the step, outside of its phases": 0.5,
    }


def test_the_longest_part_names_its_episode() -> None:
    """A line leads to the rollout in which it was."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 6, spans.add("step", 0, 6, step=1))
    spans.tool(0, 6, spans.episode(0, 6, rollouts, group=3, sample=1))

    (wait,) = waits_of(spans.timeline()).waits

    assert wait.label == "tool look"
    assert wait.share == 1.0
    assert wait.example == "sums/3/1"


def test_a_slot_is_waited_for_by_what_was_in_it() -> None:
    """An episode that began when another ended puts that one on the chain, too."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 5, spans.add("step", 0, 5, step=1))
    spans.tool(0, 3, spans.episode(0, 3, rollouts), "first")
    spans.tool(3, 5, spans.episode(3, 5, rollouts, sample=1), "second")

    assert named(spans) == {"tool first": 3.0, "tool second": 2.0}


def test_a_reproducible_engine_waits_for_the_tool_of_another_episode() -> None:
    """The turn that ends last did not take long itself: the engine stood still for a tool."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 6, spans.add("step", 0, 6, step=1))
    held = spans.episode(0, 6, rollouts)
    spans.turn(0, 6, held)
    other = spans.episode(0, 5.5, rollouts, sample=1)
    spans.turn(0, 0.5, other)
    spans.tool(0.5, 5, other)
    spans.turn(5, 5.5, other)
    spans.add("engine waits", 0.5, 5)

    assert named(spans) == {"tool look": 4.5, "sampling (embedded)": 1.5}


def test_a_tool_that_blocks_the_process_takes_the_time_of_turns() -> None:
    """Without a wait of the engine, what blocked the event loop says so."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 6, spans.add("step", 0, 6, step=1))
    spans.turn(0, 6, spans.episode(0, 6, rollouts))
    other = spans.episode(0, 4, rollouts, sample=1)
    spans.turn(0, 1, other)
    spans.tool(1, 4, other)

    assert named(spans) == {"sampling (embedded)": 6.0}
    spans.add("blocked", 1.0, 4.0)
    assert named(spans) == {"sampling (embedded)": 3.0, "tool look": 3.0}


def test_what_waits_behind_a_blocking_tool_gets_none_of_its_time() -> None:
    """A reward that began while a tool blocked the process took no time itself."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 4, spans.add("step", 0, 4, step=1))
    spans.tool(0, 1, spans.episode(0, 1, rollouts))
    spans.tool(1, 4, spans.episode(0, 4, rollouts, sample=1), "other")
    score = spans.add("score", 1, 4, rollouts, step=1)
    spans.add("grade", 1, 4, score, reward="exact", rollouts=1)
    spans.add("blocked", 0, 4)
    spans.tool(1.5, 3.5, spans.episode(1.2, 4, rollouts, sample=2), "blocking")

    assert named(spans)["tool blocking"] == 2.0
    assert named(spans)["tool look"] == 1.0


def test_an_awaited_tool_does_not_block() -> None:
    """A span that is longer than the time for which the loop was blocked let others run."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 6, spans.add("step", 0, 6, step=1))
    spans.turn(0, 6, spans.episode(0, 6, rollouts))
    spans.tool(1, 4, spans.episode(1, 4, rollouts, sample=1))
    spans.add("blocked", 1.0, 1.2)

    assert named(spans) == {"sampling (embedded)": 6.0}


def test_code_of_an_environment_between_turns_has_a_name() -> None:
    """What is neither a turn nor a tool is the environment's own."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 4, spans.add("step", 0, 4, step=1))
    spans.turn(3, 4, spans.episode(0, 4, rollouts))

    assert named(spans) == {
        "environment sums, outside of turns and tools": 3.0,
        "sampling (embedded)": 1.0,
    }


def test_replicas_are_told_apart() -> None:
    """Sampling and new weights carry the number of the replica, and speeds stand side by side."""
    spans = Spans()
    step = spans.add("step", 0, 9, step=1)
    rollouts = spans.add("rollouts", 0, 6, step)
    for replica, seconds in ((0, 1.0), (1, 6.0)):
        episode = spans.episode(0, seconds, rollouts, sample=replica)
        turn = spans.turn(0, seconds, episode, tokens=100)
        spans.add("replica", 0, seconds, turn, replica=replica)
    sync = spans.add("sync", 6, 9, step)
    spans.add("transfer", 6, 6.5, sync, replica=0)
    spans.add("drain", 6, 7, sync, replica=1)
    spans.add("transfer", 7, 9, sync, replica=1)

    assert named(spans) == {
        "sampling on replica 1": 6.0,
        "weights to replica 1": 2.0,
        "replica 1 ends its turns before it takes weights": 1.0,
    }
    units = {r.label: r.unit for r in resources_of(spans.timeline())}
    assert units["sampling on replica 0"] == pytest.approx(0.01)
    assert units["sampling on replica 1"] == pytest.approx(0.06)


def test_the_last_rank_is_named() -> None:
    """An update of several ranks says which one the others waited for."""
    spans = Spans()
    update = spans.add("update", 0, 4, spans.add("step", 0, 4, step=1))
    spans.add("ranks", 0, 4, update, command="step", seconds={"0": 1.0, "1": 3.9})

    assert named(spans) == {"ranks, step (rank 1 was last)": 4.0}


def test_episodes_beside_the_update_count_where_the_learner_waits() -> None:
    """A schedule that overlaps: the episode began in an earlier step and held up this one's batch."""
    spans = Spans()
    step = spans.add("step", 0, 6, step=2)
    spans.add("rollouts", 0, 4, step)
    episode = spans.episode(-3, 4, None)
    spans.turn(-3, 1, episode)
    spans.tool(1, 4, episode)
    running = spans.episode(-1, 5.5, None, sample=1)
    spans.turn(-1, 5.5, running)
    spans.add("update", 4, 6, step)

    assert named(spans) == {
        "tool look": 3.0,
        "update of the policy": 2.0,
        "sampling (embedded)": 1.0,
    }


def test_a_turn_of_an_episode_that_goes_on_is_no_phase() -> None:
    """It ended last of all, and the step did not wait for it."""
    spans = Spans()
    step = spans.add("step", 0, 4, step=2)
    spans.add("rollouts", 0, 1, step)
    spans.add("update", 1, 4, step)
    spans.add("turn", 0, 3.9, None, player="", engine="embedded", tokens=1, finish="stop")

    assert named(spans) == {"update of the policy": 3.0, "rollouts, outside of episodes": 1.0}


def test_an_evaluation_keeps_its_own_lines() -> None:
    """What the evaluation of a step waits for is not mixed with training."""
    spans = Spans()
    evaluation = spans.add("evaluation", 0, 5, spans.add("step", 0, 5, step=1))
    episode = spans.episode(0, 5, evaluation)
    spans.tool(0, 5, episode)

    assert named(spans) == {"evaluation: tool look": 5.0}


pieces = st.lists(
    st.tuples(
        st.sampled_from(["turn", "tool", "score", "engine waits", "blocked"]),
        st.integers(0, 20),
        st.integers(1, 20),
    ),
    max_size=25,
)


@given(pieces)
def test_the_waits_add_up_to_the_step(found: list[tuple[str, int, int]]) -> None:
    """No moment is counted twice or left out, however spans overlap."""
    spans = Spans()
    rollouts = spans.add("rollouts", 0, 20, spans.add("step", 0, 25, step=1))
    for sample, (kind, first, length) in enumerate(found):
        last = min(20, first + length)
        if kind in ("turn", "tool"):
            episode = spans.episode(first, last, rollouts, sample=sample)
            getattr(spans, kind)(first, last, episode)
        else:
            spans.add(kind, first, last, rollouts if kind == "score" else None, step=1)

    waits = waits_of(spans.timeline())

    assert sum(wait.seconds for wait in waits.waits) == pytest.approx(25)
    assert all(a.ended == pytest.approx(b.began) for a, b in pairwise(waits.pieces))
