"""Health metrics: each number means what its name says, and nothing is made up."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quintain.console.metrics import (
    BINS,
    confidence,
    evaluation_metrics,
    failure_kind,
    failure_warning,
    failures_in,
    held_out_metrics,
    step_metrics,
)
from quintain.evaluation.evaluation import Evaluation
from quintain.store.storage import plain_data
from quintain.types.rollout import Group, Rollout, Score, Termination, TerminationKind, Turn
from quintain.types.sampling import Sampling
from quintain.types.task import Task
from quintain.types.transcript import Branch, TokenSource, Transcript

from ..run.everything import played, settings

PAGE = Path(__file__).resolve().parents[3] / "docs" / "health.md"


def rollout(outcome: float | None = 1.0, tokens: int = 4, **fields: Any) -> Rollout[Task, None]:
    score = None if outcome is None else Score(value=outcome, parts={"found": outcome})
    return Rollout(
        task=Task(prompt="?"), turns=(Turn(text="x", tokens=tokens),), outcome=score, **fields
    )


def failure(kind: TerminationKind = TerminationKind.TIMEOUT) -> Rollout[Task, None]:
    return rollout(None, termination=Termination(kind, "late", 2))


def group(
    *rollouts: Rollout[Task, None], environment: str = "a", prompt: str = "?"
) -> Group[Task, None]:
    return Group(task=Task(prompt=prompt), rollouts=rollouts, environment=environment)


def evaluation(*groups: Group[Task, None], environment: str = "a") -> Evaluation:
    return Evaluation(
        environment=environment,
        split="dev",
        engine="e",
        groups=groups,
        samples=1,
        sampling=Sampling(temperature=0),
        seed=0,
        seconds=1.0,
        ks=(1,),
    )


def test_the_end_of_a_game_is_not_a_truncated_answer() -> None:
    """A limit on turns is counted apart from the limits on tokens and context, in training and
    evaluation.
    """
    ends = [
        Termination(TerminationKind.TRUNCATED, reason)
        for reason in ("turns", "turns", "tokens", "context")
    ]
    rollouts = [rollout(0.0, 4, termination=end) for end in ends]
    m = step_metrics([group(rollout(1.0, 4), *rollouts)], seconds={})
    assert m["truncated"] == 2 / 5
    assert m["truncated.turns"] == 2 / 5
    assert m["termination.truncated"] == 4
    held = held_out_metrics([evaluation(group(*rollouts[:2]))], [1.0])
    assert held["truncated"] == 0
    assert held["truncated.turns"] == 1


def test_rollouts_in_which_nobody_took_a_turn_are_counted() -> None:
    """Their scores are not the policy's: an agent that never asks it may be right every time."""
    silent = [rollout(1.0).replace(turns=()) for _ in range(3)]
    assert (
        step_metrics([group(rollout(1.0, 4), *silent, failure())], seconds={})["turns.none"]
        == 3 / 4
    )
    assert evaluation(group(*silent, failure())).without_turn == 3


def test_rewards_lengths_and_terminations() -> None:
    cut = Termination(TerminationKind.TRUNCATED, "tokens")
    groups = [
        group(rollout(1.0, 4, metrics={"tries": 2.0}), rollout(0.0, 8, termination=cut)),
        group(rollout(1.0, 6), failure(), failure(TerminationKind.INFRASTRUCTURE_ERROR)),
    ]
    m = step_metrics(groups, seconds={"rollouts": 2.0, "update": 1.0})
    assert m["reward.mean"] == m["reward.outcome.mean"] == m["success"] == pytest.approx(2 / 3)
    assert m["reward.spread"] == pytest.approx((2 / 9) ** 0.5)
    assert m["length.mean"] == 6
    assert m["length.right"] == 5
    assert m["length.wrong"] == 8
    assert m["length.max"] == 8
    assert m["termination.finished"] == 2
    assert m["termination.truncated"] == 1
    assert m["termination.timeout"] == 1
    assert {k: v for k, v in m.items() if k.startswith("cause.")} == {"cause.infrastructure": 2}
    assert m["truncated"] == pytest.approx(1 / 3)
    assert m["failed"] == pytest.approx(2 / 5)
    assert m["retried"] == pytest.approx(2 / 5)
    assert m["metric.tries"] == 2
    assert m["samples"] == 5
    assert m["tokens"] == 26
    assert m["tokens_per_second"] == 13
    assert m["seconds.update"] == 1
    assert "reward.shaping.mean" not in m
    assert "turns.mean" not in m


def test_failures_are_counted_by_cause() -> None:
    """Those of the policy are scored and lower the reward, and are no share of `failed`."""
    stalled = rollout(0.0, termination=Termination(TerminationKind.POLICY_TIMEOUT, "late"))
    fault = rollout(0.0, termination=Termination(TerminationKind.POLICY_FAULT, "illegal"))
    crash = failure(TerminationKind.ENVIRONMENT_ERROR)
    m = step_metrics([group(rollout(1.0), stalled, fault, crash, failure())])
    assert {k: v for k, v in m.items() if k.startswith("cause.")} == {
        "cause.policy": 2,
        "cause.environment": 1,
        "cause.infrastructure": 1,
    }
    assert m["termination.policy_timeout"] == 1
    assert m["reward.mean"] == pytest.approx(1 / 3)
    assert m["failed"] == pytest.approx(2 / 5)


def test_a_failure_never_counts_as_a_zero() -> None:
    with_failures = step_metrics([group(rollout(1.0), failure(), failure())])
    without = step_metrics([group(rollout(1.0))])
    for name in (
        "reward.mean",
        "reward.spread",
        "success",
        "length.mean",
        "zero_variance.all_right",
    ):
        assert with_failures[name] == without[name]


def test_zero_variance_reads_the_outcome_only_and_is_split() -> None:
    shaped = rollout(1.0, shaping=Score(value=0.5))
    groups = [
        group(shaped, rollout(1.0)),
        group(rollout(0.0), rollout(0.0)),
        group(rollout(0.5), rollout(0.5 + 1e-12)),
        group(rollout(0.0), rollout(1.0)),
        group(failure()),
    ]
    m = step_metrics(groups, rejected={"zero variance": 3, "too few valid samples": 1})
    assert m["zero_variance"] == 0.75
    assert m["zero_variance.all_right"] == m["zero_variance.all_wrong"] == 0.25
    assert m["groups"] == 5
    assert m["groups.rejected"] == 4
    assert m["groups.rejected.zero_variance"] == 3


def test_parts_of_rewards() -> None:
    both = Score(value=1.5, parts={"found": 1.0, "tags": 0.5})
    one = Score(value=0.0, parts={"found": 0.0, "tags": 0.0})
    brief = Score(value=0.2, parts={"brevity": 0.2})
    groups = [
        group(
            rollout(None).replace(outcome=both, shaping=brief), rollout(None).replace(outcome=one)
        )
    ]
    m = step_metrics(groups)
    assert m["reward.part.found.mean"] == 0.5
    assert m["reward.part.found.spread"] == 0.5
    assert m["reward.part.tags.mean"] == 0.25
    assert m["reward.part.brevity.mean"] == m["reward.shaping.mean"] == 0.2
    assert m["reward.mean"] == pytest.approx(0.85)


def test_the_learner_speaks_for_itself_without_hiding_our_counts() -> None:
    m = step_metrics(
        [group(rollout(tokens=3))], learned={"entropy": 0.5, "tokens": 99.0, "seconds": 7.0}
    )
    assert m["entropy"] == 0.5
    assert m["tokens"] == 3
    assert m["learner.tokens"] == 99
    assert m["learner.seconds"] == 7


def test_speed_of_the_update_is_that_of_the_tokens_that_train() -> None:
    m = step_metrics(
        [group(rollout(tokens=3))],
        learned={"tokens": 90.0, "seconds": 2.0},
        seconds={"rollouts": 1.0},
    )
    assert m["tokens_per_second"] == 3
    assert m["learner.tokens_per_second"] == 45
    assert "learner.tokens_per_second" not in step_metrics(
        [group(rollout())], learned={"tokens": 90.0}
    )


def said(*logps: float, right: bool = True, prompt: int = 2) -> Rollout[Task, None]:
    """A rollout whose tokens were sampled with *logps*, after a prompt."""
    branch = Branch(
        ids=tuple(range(prompt + len(logps))),
        sources=(int(TokenSource.PROMPT),) * prompt + (int(TokenSource.MODEL),) * len(logps),
        logps=(0.0,) * prompt + logps,
        versions=(-1,) * prompt + (0,) * len(logps),
    )
    return rollout(float(right)).replace(transcripts={"": Transcript(branches=(branch,))})


def test_confidence_is_the_geometric_mean_probability() -> None:
    """Of the answer's own tokens; the entropy estimate weighs all tokens alike."""
    m = confidence(
        [said(math.log(0.5), math.log(0.125)), said(math.log(0.81), right=False), said(), rollout()]
    )
    assert m["calibration.confidence"] == pytest.approx((0.25 + 0.81) / 2)
    assert m["entropy.sampled"] == pytest.approx(-math.log(0.5 * 0.125 * 0.81) / 3)
    assert m["calibration.error"] == pytest.approx(0.75 / 2 + 0.81 / 2)
    assert confidence([said(), rollout()]) == {}


def test_calibration_error_against_its_definition() -> None:
    """Equation 3 of Guo et al., bin by bin; 0 where every bin is right as often as it is sure."""
    draw = random.Random(0)
    sure = [draw.random() for _ in range(300)] + [1.0]
    right = [draw.random() < p * p for p in sure]
    want = 0.0
    for b in range(BINS):
        held = [
            i
            for i, p in enumerate(sure)
            if b / BINS <= p < (b + 1) / BINS or (b == BINS - 1 and p == 1.0)
        ]
        gap = sum(sure[i] for i in held) / len(held) - sum(right[i] for i in held) / len(held)
        want += len(held) / len(sure) * abs(gap)
    answers = [said(math.log(p), right=r) for p, r in zip(sure, right, strict=True)]
    assert confidence(answers)["calibration.error"] == pytest.approx(want, abs=1e-12)
    assert want > 0.1

    perfect = [said(math.log(0.75), right=i < 3) for i in range(4)]
    assert confidence(perfect)["calibration.error"] == pytest.approx(0.0, abs=1e-12)


def test_a_token_of_a_later_branch_counts_once() -> None:
    """Branches share their prefix by reference; what was sampled there is in one of them only."""
    first = said(-1.0, -2.0).transcripts[""].branches[0]
    later = Branch(
        parent=0, fork=3, ids=(7,), sources=(int(TokenSource.MODEL),), logps=(-6.0,), versions=(0,)
    )
    both = rollout().replace(transcripts={"": Transcript(branches=(first, later))})
    assert confidence([both])["entropy.sampled"] == pytest.approx(3.0)


def test_pass_at_k_is_there_where_tasks_were_sampled_several_times() -> None:
    one = [group(rollout(1.0), rollout(0.0)), group(rollout(0.0), rollout(0.0))]
    a = replace(evaluation(*one), samples=2, ks=(1, 2))
    b = replace(
        evaluation(group(rollout(1.0), rollout(1.0)), environment="b"), samples=2, ks=(1, 2)
    )
    alone, both = held_out_metrics([a], [1.0]), held_out_metrics([a, b], [3.0, 1.0])
    assert alone["accuracy"] == 0.25
    assert alone["pass@2"] == 0.5
    assert both["pass@2"] == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert not [
        name for name in held_out_metrics([evaluation(*one)], [1.0]) if name.startswith("pass@")
    ]
    few = replace(evaluation(group(rollout(1.0), failure())), samples=2, ks=(1, 2))
    assert "pass@2" not in held_out_metrics([a, few], [1.0, 1.0])


def test_several_environments_have_metrics_of_their_own() -> None:
    m = step_metrics([group(rollout(1.0)), group(rollout(0.0), environment="b")])
    assert m["environment.a.success"] == 1
    assert m["environment.b.success"] == 0
    assert not any(k.startswith("environment.") for k in step_metrics([group(rollout())]))


@pytest.mark.parametrize("groups", [[], [group(failure())], [group(rollout(None))]])
def test_nothing_is_made_up_where_nothing_ran(groups: list[Group[Task, None]]) -> None:
    m = step_metrics(groups, seconds={"rollouts": 0.0})
    assert "tokens_per_second" not in m
    json.dumps(plain_data(m), allow_nan=False)
    if not groups or not groups[0].valid:
        assert "reward.mean" not in m


def test_held_out_is_the_weighted_mean_with_an_interval() -> None:
    a = evaluation(*(group(rollout(float(i < 3))) for i in range(4)))
    b = evaluation(*(group(rollout(0.0)) for _ in range(2)), environment="b")
    alone = held_out_metrics([a], [7.0])
    assert alone["accuracy"] == 0.75
    assert alone["low"] < 0.75 < alone["high"]
    assert alone["tasks"] == 4
    assert alone["failed"] == 0
    assert alone["length.mean"] == 4
    both = held_out_metrics([a, b], [1.0, 3.0])
    assert both["accuracy"] == pytest.approx(0.75 / 4)
    assert 0 <= both["low"] < both["accuracy"] < both["high"] <= 1
    assert both["a.accuracy"] == 0.75
    assert both["b.accuracy"] == 0
    nothing = held_out_metrics([evaluation(group(failure()))], [1.0])
    assert nothing["accuracy"] is None
    assert nothing["failed"] == 1
    m = step_metrics([], held_out=both)
    assert m["held_out.accuracy"] == both["accuracy"]
    assert m["held_out.a.low"] == both["a.low"]


def test_one_evaluation_as_flat_numbers() -> None:
    m = evaluation_metrics(evaluation(group(rollout(1.0)), group(rollout(0.0))))
    assert m["accuracy"] == m["pass@1"] == m["reward"] == 0.5
    assert m["length.mean"] == 4
    assert all(isinstance(v, (int, float)) for v in m.values())


def documented() -> set[str]:
    """The names in the first column of the tables of the page, without those of runs with a
    schedule.
    """
    text = re.sub(
        r"^Runs with a \[schedule\].*?\n\n(\|.*\n)+",
        "",
        PAGE.read_text(encoding="utf-8"),
        flags=re.M,
    )
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def pattern(name: str) -> re.Pattern[str]:
    """What a documented name stands for: ``<x>`` is anything."""
    return re.compile(re.sub(r"<\w+>", "[^ ]+", name.replace(".", r"\.")))


def test_every_metric_is_documented_and_every_documented_one_is_written(tmp_path: Path) -> None:
    """A run with all there is, held against the page, both ways."""
    records, _, _ = played(tmp_path / "run", settings())
    written = {name for record in records for name in record}
    written |= {*step_metrics([group(*[rollout(0.0)] * 2, prompt=p) for p in "ab"])}  # a collapse
    written.add("mismatch.left_out")  # of a sampler that lies: `test_lying_server` writes it
    # of a mixture: `test_mixture_run` writes them
    written |= {f"experts.{name}" for name in ("max", "entropy", "replayed", "agree")}
    names = documented()
    exact, patterns = {n for n in names if "<" not in n}, {n for n in names if "<" in n}

    assert not exact - written
    assert not {n for n in written - exact if not any(pattern(p).fullmatch(n) for p in patterns)}
    assert not {p for p in patterns if not any(pattern(p).fullmatch(n) for n in written - exact)}


def test_failures_are_counted_by_kind_type_and_place() -> None:
    """Messages that differ between episodes are one kind; two places, or two types, are two."""
    reasons = [
        "reward 'exact' failed: ValueError: cannot read '7 (or so)' (grade.py, line 3)",
        "reward 'exact' failed: ValueError: cannot read 'eight: 8' (grade.py, line 3)",
        "reward 'exact' failed: ValueError: cannot read 'eight' (grade.py, line 4)",
        "reward 'exact' failed: KeyError: 'x' (grade.py, line 3)",
        "reward 'exact' returned <object object at 0x7f01>; expected a number or a Score",
        "reward 'exact' returned <object object at 0x7f02>; expected a number or a Score",
        "over 5.25 s (limits.seconds)",
    ]
    failed = [
        rollout(None, termination=Termination(TerminationKind.REWARD_ERROR, r)) for r in reasons
    ]

    assert list(failures_in([group(*failed)]).values()) == [2, 1, 1, 2, 1]
    assert "reward_error: reward 'exact' failed: ValueError (grade.py, line 3)" in failures_in(
        [group(*failed)]
    )
    assert "reward_error: over ... s (limits.seconds)" in failures_in([group(*failed)])


def test_a_failure_is_named_once_and_with_its_address() -> None:
    """Its kind has no numbers, so that equal ones are counted together; the warning has those of
    the first.
    """
    reason = (
        "the server of vLLM at http://127.0.0.1:35057 does not answer: Connection reset by peer"
    )
    failed = Termination(kind=TerminationKind.INFRASTRUCTURE_ERROR, reason=reason)
    warning = failure_warning(failure_kind(failed), 7, reason)
    assert warning == f"7 episodes failed and were left out: {failed.kind}: {reason} (the first)"
    placed = "reward 'exact' failed: ValueError: bad 'x' (grade.py, line 3)"
    kind = failure_kind(Termination(kind=TerminationKind.REWARD_ERROR, reason=placed))
    assert failure_warning(kind, 1, placed).endswith(
        f"ValueError (grade.py, line 3); the first: {placed}"
    )
