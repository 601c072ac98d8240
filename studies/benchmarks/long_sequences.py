"""What long sequences cost where a sequence has to fit one rank: the memory of a GPU of the learner
`fsdp` by the estimate of `quintain plan`, the seconds of one sequence by the data sheet of an H100, and
how much longer an update takes than one whose sequences are cut evenly over all ranks.

The batch has 128 sequences of log-normal lengths, whose median is a quarter of the longest. Ranks share
them out by tokens, the longest first. Nothing is measured.

    python -m studies.benchmarks.long_sequences     a minute
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from random import Random
from statistics import mean

from quintain.recipe import Recipe, RunPlan
from quintain.recipe.memory import activations
from quintain_simulate import LearnerCosts, SimulationSetup
from quintain_simulate.planning import ClusterPlanner
from quintain_simulate.roofline import forward_passes, learner_costs

from .common import table

RECIPE = """
model = { name = "none", dtype = "bfloat16" }
algorithm.use = "dr_grpo"
batch = { prompts = 16, group_size = 8 }
learner = { use = "fsdp", precision = "bf16", checkpoint_activations = true, token_budget = 1024 }
[[environments]]
use = "quintain-env-math/arithmetic"
"""
SIZES = ("8B", "14B", "32B", "70B")
LENGTHS = (32_768, 131_072)
PROMPT = 512
"""What a plan adds to twice the longest reply."""
GPUS = (8, 16, 64)
SEQUENCES, DRAWS, SPREAD = 128, 40, 0.8


def planner(size: str, tokens: int) -> ClusterPlanner:
    """Return the planner of a model whose micro-batches are one sequence of *tokens*."""
    recipe = Recipe.parse(RECIPE, [f"sampling.max_tokens={(tokens - PROMPT) // 2}"])
    setup = SimulationSetup.of({"model": size.lower()})
    return ClusterPlanner.of(RunPlan.of(recipe), setup, 8)


def costs_of(found: ClusterPlanner) -> LearnerCosts:
    """Return what an update costs on one GPU."""
    alone = found.with_cluster(engines=1, gpus_per_engine=1, learner_gpus=1)
    passes = forward_passes(found.plan.algorithm, found.plan.rollouts.groups)
    return learner_costs(alone, found.shape, passes)


def seconds(costs: LearnerCosts, lengths: Sequence[float]) -> float:
    """Return the seconds that a rank takes for sequences of *lengths*."""
    return costs.update(list(lengths)) - costs.base


def slowdown(costs: LearnerCosts, longest: int, ranks: int) -> float:
    """Return the seconds of the slowest rank divided by the mean, over several batches."""
    ratios = []
    for draw in range(DRAWS):
        random = Random(draw)
        drawn = (random.lognormvariate(math.log(longest / 4), SPREAD) for _ in range(SEQUENCES))
        shares: list[list[float]] = [[] for _ in range(ranks)]
        for length in sorted((min(longest, PROMPT + x) for x in drawn), reverse=True):
            min(shares, key=sum).append(length)
        taken = [seconds(costs, share) for share in shares]
        ratios.append(max(taken) / mean(taken))
    return mean(ratios)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    head = ["model", "tokens", "inputs of layers, GB", "activations, GB"]
    head += [f"a GPU of {n}, GB" for n in GPUS]
    head += ["one sequence, s", *(f"update, {n} ranks" for n in GPUS)]
    rows = []
    for size in SIZES:
        for tokens in LENGTHS:
            found = planner(size, tokens)
            kept = 4 * found.module.config.hidden_size * found.shape.layers * tokens
            costs = costs_of(found)
            bytes_ = [kept, activations(found.plan, found.module), *map(found.rank_bytes, GPUS)]
            rows.append(
                [size, f"{tokens // 1024}k"]
                + [f"{n / 1e9:.1f}" for n in bytes_]
                + [f"{seconds(costs, [tokens]):.1f}"]
                + [f"{slowdown(costs, tokens, n):.2f}" for n in GPUS]
            )
    print(table(head, rows))


if __name__ == "__main__":
    main()
