"""Imitating the winners: which samples of a group are kept, and what their tokens weigh.

Both pieces choose by the batch alone, so that equal options choose equal samples. A sample trains
where both choose it: options given to the aggregation suffice, and the same ones given to the
advantage save the passes of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain import Algorithm, advantage, aggregation
from quintain.errors import UsageError
from quintain.learning import SUCCESS, reaches

if TYPE_CHECKING:
    from quintain.learning import Batch, Sample, Step


def fits(algorithm: Algorithm) -> None:
    """Refuse algorithms under which the choice of winners would not be what it seems.

    Raises:
        UsageError: a KL term or a length punishment in the reward, which no winner is chosen by; or
            a choice made here, before cut answers leave, that the aggregation makes after.
    """
    if algorithm.alters_reward:
        raise UsageError(
            f"algorithm {algorithm.name!r}: {algorithm.advantage!r} chooses by what the "
            "environment gave, so a KL term or a length punishment in the reward does nothing; "
            "set kl.where = 'loss' and overlong = 0"
        )
    if algorithm.mask_truncated and (
        algorithm.advantage.args.get("best") or algorithm.advantage.args.get("dedupe")
    ):
        raise UsageError(
            f"algorithm {algorithm.name!r}: {algorithm.advantage!r} may choose an answer that "
            "mask_truncated then leaves out; give best and dedupe to the aggregation alone"
        )


def _fits_no_reward(algorithm: Algorithm) -> str:
    if algorithm.alters_reward:
        raise UsageError(
            f"algorithm {algorithm.name!r}: {algorithm.advantage!r} reads no reward, so a KL term "
            "or a length punishment in it does nothing; set kl.where = 'loss' and overlong = 0"
        )
    return (
        "every sample counts as an example: on the policy's own samples the expected update is 0; "
        "`rft` follows those that succeed, `quintain sft` learns from a teacher's"
    )


@advantage(fits=_fits_no_reward, imitates=True)
def ones(step: Step) -> list[float]:
    """1: every sample is an example to follow (supervised learning on rollouts)."""
    return [1.0] * len(step.rewards)


@advantage(fits=fits, imitates=True)
def winners(
    step: Step, *, success: float = SUCCESS, best: int | None = None, dedupe: bool = False
) -> list[float]:
    """1 for a sample that succeeded, 0 for the others: rejection-sampling fine-tuning (Yuan et al.
    2023, 2308.01825), the imitation step of expert iteration (Anthony et al. 2017, 1705.08439).

    With rewards of 0 or 1 this is REINFORCE without a baseline, sample for sample, hence in
    expectation. Best-of-n and RAFT (Dong et al. 2023, 2304.06767, algorithm 1) keep the best one
    whatever it got: ``best = 1, success = -inf``.

    Args:
        success: outcome from which on a sample is a winner.
        best: maximum number of winners of a group, those of the highest outcome plus shaping, ties
            in order; all where ``None``. A KL term in the reward does not count.
        dedupe: of winners with the same tokens only the first. (The paper compares lists of
            equations.)

    Raises:
        UsageError: *best* is below 1.
    """
    return [
        float(selected)
        for selected in chosen(step.batch, success=success, best=best, dedupe=dedupe)
    ]


@aggregation(name="winners")
def over_winners(
    batch: Batch, *, success: float = SUCCESS, best: int | None = None, dedupe: bool = False
) -> list[float]:
    """1 / (tokens of the winners) for a token of a winner, 0 for those of the others.

    With `winners` the loss is the mean of -log theta over the winners' tokens, as in supervised
    training on them. Under ``token``, which divides by the tokens of the whole batch, the same
    gradient is shorter by the winners' share of the tokens: that is REINFORCE. A KL term in the
    loss covers the winners alone.

    Args:
        success, best, dedupe: as for the advantage `winners`.
    """
    selected = chosen(batch, success=success, best=best, dedupe=dedupe)
    tokens = sum(
        sample.tokens for sample, keep in zip(batch.samples, selected, strict=True) if keep
    )
    return [keep / max(1, tokens) for keep in selected]


def chosen(batch: Batch, *, success: float, best: int | None, dedupe: bool) -> list[bool]:
    """Return whether each sample is kept."""
    if best is not None and best < 1:
        raise UsageError(
            f"winners: best is {best}; expected at least 1, or nothing for all winners"
        )
    selected = [False] * len(batch.samples)
    for indices in batch.groups:
        successes = [i for i in indices if reaches(batch.samples[i].outcome, success)]
        if dedupe:
            first: dict[object, int] = {}
            for i in successes:
                first.setdefault(_tokens(batch.samples[i]), i)
            successes = list(first.values())
        if best is not None:
            successes = sorted(successes, key=lambda i: -batch.samples[i].total)[:best]
        for i in successes:
            selected[i] = True
    return selected


def _tokens(sample: Sample) -> object:
    return tuple(sequence.ids for sequence in sample.sequences)
