"""Aggregations: the weight of one token of each sample, fixed for the whole optimizer step before
any micro-batch is formed.

The loss is sum_k c_k term_k. A term weighs what its tokens weigh together: c for a token, T c for a
sample of T tokens, the sum of those for a group. Nothing is averaged afterwards, so a mean of means
cannot arise. Tokens that a correction masks still count here, truncated samples that the algorithm
leaves out (``mask_truncated``) do not.

The batch that an aggregation sees is one minibatch. S is the number of its samples, T_i that of the
trained tokens of sample i, P that of its groups: a task has one for each player that sampled.
Samples with an advantage of 0 count. Samples of rejected groups, failed rollouts and samples that
are left out as doubtful do not, so a filter that draws no others makes the gradient longer by the
share that it leaves out.
"""

from __future__ import annotations

from ...errors import UsageError
from ...interfaces.pieces import aggregation
from ..batch import Batch


@aggregation
def token(batch: Batch) -> list[float]:
    """1 / sum_i T_i: every token weighs the same, as in the code of DAPO's authors and
    in most trainers.

    The equations that define a token mean (DAPO, 2503.14476, equation 8; CISPO, 2506.13585,
    equation 4) divide by the tokens of one group, inside the expectation over prompts: that is
    `prompt`.
    """
    return [1 / max(1, batch.tokens)] * len(batch.samples)


@aggregation
def sequence(batch: Batch) -> list[float]:
    """1 / (S T_i): every sample weighs the same, a token of a long one less (GRPO, 2402.03300,
    equation 3, where S is the group size in the expectation over prompts; here it is that of the
    minibatch, which differs where groups differ in size).
    """
    return [1 / (len(batch.samples) * max(1, sample.tokens)) for sample in batch.samples]


@aggregation
def constant(batch: Batch, *, length: int | None = None) -> list[float]:
    """1 / (S L), L configured, not measured, by default the maximum of new tokens of a turn (Dr.
    GRPO, 2503.20783, section 3.1): the gradient of the expected reward, over L. A sample of several
    turns may be longer.

    Args:
        length: L.

    Raises:
        UsageError: neither is known.
    """
    constant = length or batch.max_tokens
    if not constant:
        raise UsageError(
            "aggregation 'constant' divides by a length: set its `length`, or a maximum of new "
            "tokens in [sampling]"
        )
    return [1 / (len(batch.samples) * constant)] * len(batch.samples)


@aggregation
def prompt(batch: Batch) -> list[float]:
    """1 / (P tokens of the group): every group weighs the same, and every token inside it (ScaleRL,
    2510.13786). With groups of 10 and 100 tokens, a token of the short one weighs 1/20; under
    `token` it weighs 1/110.
    """
    weights = [0.0] * len(batch.samples)
    for indices in batch.groups:
        tokens = sum(batch.samples[i].tokens for i in indices)
        for i in indices:
            weights[i] = 1 / (len(batch.groups) * max(1, tokens))
    return weights
