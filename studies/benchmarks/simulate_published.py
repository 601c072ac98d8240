"""What `quintain simulate` says of published comparisons, with every assumption printed.

A paper tells its model, its GPUs and one factor. It does not tell lengths of replies, MFU or the
seconds of a transfer to the digit. So each case below states what is from the paper and what is
assumed, and what is compared is order and factor, not seconds.

    python -m studies.benchmarks.simulate_published [--quick] [--only NAME]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quintain.recipe import Recipe, RunPlan
from quintain_simulate import Outcome, Simulation, SimulationSetup

from .common import arguments, table, write

RECIPE = """
run.steps = 100
model.name = "none"
algorithm.use = "dr_grpo"
sampling.max_tokens = {most}
batch = {{ prompts = {prompts}, group_size = {group}, concurrency = 1000000 }}
schedule = {{ use = "{schedule}", args = {{ {args} }} }}
[[environments]]
use = "quintain-env-math/arithmetic"
"""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published factor.

    Attributes:
        source: of the factor.
        published: throughput of *fast* over that of *slow*.
        told, assumed: what the source says of the set-up, and what it does not.
        slow, fast: schedule, its settings, and tables of the setup.
        scale: GPUs of the source for each one that is simulated.
    """

    source: str
    published: float
    told: str
    assumed: str
    prompts: int
    group: int
    most: int
    reply: str
    slow: tuple[str, str, dict[str, Any]]
    fast: tuple[str, str, dict[str, Any]]
    model: str
    scale: int = 1


def cluster(engines: int, each: int, learner: int, *, shared: bool = False) -> dict[str, Any]:
    """Return the cluster of *engines* with *each* GPUs, and of the learner."""
    return {
        "gpu": "h100",
        "engines": engines,
        "gpus_per_engine": each,
        "learner_gpus": learner,
        "shared": shared,
    }


CASES = {
    "AReaL": Comparison(
        source="arXiv 2505.24298, abstract: up to 2.77x over synchronous systems, equal GPUs",
        published=2.77,
        told="fully asynchronous against synchronous, equal numbers of GPUs, staleness up to 8",
        assumed=(
            "8B, 32 of its GPUs, 20 of them sample and 12 learn, replies log-normal with median "
            "6,000, sigma 0.9, at most 27,648 tokens, 32 x 16 a step, H100 for its H800"
        ),
        prompts=32,
        group=16,
        most=27_648,
        reply="lognormal:6000,0.9",
        slow=("sync", "", cluster(32, 1, 1, shared=True)),
        fast=("areal", "max_staleness = 8", cluster(20, 1, 12)),
        model="8b",
    ),
    "PipelineRL": Comparison(
        source="arXiv 2509.19128, abstract: about 2x faster learning on 128 H100",
        published=2.0,
        told="updates in flight against conventional RL, 128 H100, long sequences",
        assumed=(
            "8B (the paper: 7B), a quarter of the GPUs, replies log-normal with median 3,000, "
            "sigma 0.8, at most 16,384 tokens, 64 x 16 a step; learning a token equals"
        ),
        prompts=64,
        group=16,
        most=16_384,
        reply="lognormal:3000,0.8",
        slow=("sync", "", cluster(32, 1, 1, shared=True)),
        fast=("pipeline", "max_staleness = 8", cluster(16, 1, 16)),
        model="8b",
        scale=4,
    ),
    "Laminar": Comparison(
        source="arXiv 2510.12633, abstract: up to 5.48x on 1,024 GPUs",
        published=5.48,
        told="trajectory-level asynchrony against verl and one-step systems, 1,024 GPUs",
        assumed=(
            "32B, a sixteenth of the GPUs, replies log-normal with median 4,000, sigma 1.2, at "
            "most 32,768 tokens, 32 x 16 a step, the synchronous system is the slow one"
        ),
        prompts=32,
        group=16,
        most=32_768,
        reply="lognormal:4000,1.2",
        slow=("sync", "", cluster(16, 4, 1, shared=True)),
        fast=("areal", "max_staleness = 4", cluster(8, 4, 32)),
        model="32b",
        scale=16,
    ),
}
NOT_COMPARED = {
    "verl V1": "12,053 / 18,852 / 18,829 tokens/s: lengths and the division of 4 nodes are not told",
    "NeMo-RL": (
        "1,102 / 1,414 / 1,025 tokens/s a GPU: a model with experts and 3 B active parameters, "
        "whose kernels no data sheet describes; 8 steps off is slower than 1, which no simulation "
        "of the schedule alone gives"
    ),
}


def outcome(case: Comparison, side: tuple[str, str, dict[str, Any]], steps: int) -> Outcome:
    """Return the outcome of one side."""
    schedule, args, tables = side
    text = RECIPE.format(
        most=case.most, prompts=case.prompts, group=case.group, schedule=schedule, args=args
    )
    setup = SimulationSetup.of(
        {"model": case.model, "cluster": tables, "episodes": {"reply": case.reply}}
    )
    return Simulation.of(RunPlan.of(Recipe.parse(text)), setup).run(steps=steps)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", action="append", help="a case (repeatable)")
    args = parser.parse_args()
    chosen = {n: c for n, c in CASES.items() if not args.only or n in args.only}
    # 0: as many as the figures need. In a few steps, the queue of a schedule that runs ahead shows.
    steps = args.rounds or int(args.quick)
    figures: dict[str, Any] = {}
    rows = []
    for name, case in chosen.items():
        slow, fast = (outcome(case, side, steps) for side in (case.slow, case.fast))
        factor = fast.tokens_per_second / slow.tokens_per_second
        figures[name] = {
            "source": case.source,
            "told": case.told,
            "assumed": case.assumed,
            "published": case.published,
            "simulated": factor,
            "slow": slow.figures(),
            "fast": fast.figures(),
        }
        rows.append(
            [name, f"{case.published:g}", f"{factor:.2f}", f"{factor / case.published:.2f}"]
        )
        print(f"{name}: {case.source}\n  told: {case.told}\n  assumed: {case.assumed}", flush=True)
    print(table(["comparison", "published", "simulated", "ratio"], rows))
    for name, why in NOT_COMPARED.items():
        print(f"not compared: {name}, {why}")
    about = {"steps": steps, "not compared": NOT_COMPARED}
    write("simulate_published", figures, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
