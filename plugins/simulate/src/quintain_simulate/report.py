"""The tables that the commands print."""

from __future__ import annotations

from collections.abc import Sequence

from .roofline import all_gpus, learner_gpus, sampling_gpus
from .simulation import Outcome, Simulation


def duration(seconds: float) -> str:
    """Return *seconds* for people."""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:,.1f} min" if seconds >= 600 else f"{seconds:,.2f} s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def cluster_line(simulation: Simulation) -> str:
    """Return what the cluster is, in one line."""
    cluster, plan = simulation.setup.cluster, simulation.plan
    schedule = type(plan.schedule).__name__
    samples = f"{plan.groups} x {plan.group_size} rollouts a step"
    model = f"{simulation.shape.name}, " if simulation.shape else ""
    if cluster.shared:
        gpus = f"{counted(all_gpus(simulation.setup), 'GPU')} sample and learn in turns"
    else:
        gpus = (
            f"{counted(sampling_gpus(simulation.setup), 'GPU')} for sampling in "
            f"{counted(cluster.engines, 'engine')}, {learner_gpus(simulation.setup)} for learning"
        )
    return f"{model}{schedule}, {samples}; {gpus}"


def outcome_lines(outcome: Outcome) -> list[str]:
    """Return the figures of a simulation as lines."""
    figures = outcome.figures()
    ages = ", ".join(f"{age}: {share:.1%}" for age, share in outcome.staleness.items())
    gpu_rows = [
        ("trained tokens/s", f"{figures['tokens_per_second']:,.0f}"),
        (
            "a step",
            f"{duration(figures['step_seconds'])} (median "
            f"{duration(figures['step_seconds_median'])}, longest "
            f"{duration(figures['step_seconds_longest'])}): waits "
            f"{duration(figures['waited'])}, updates {duration(figures['updated'])}, sends weights "
            f"{duration(figures['synced'])}",
        ),
        ("learner idle", f"{figures['learner_idle']:.1%}"),
        (
            "engines idle",
            f"{figures['engines_idle']:.1%}, {figures['batch']:,.1f} sequences a step of decoding",
        ),
        ("staleness", f"{ages} of the tokens"),
    ]
    counts = [
        ("lost rollouts", f"{figures['lost']:.2%}" if figures["lost"] else ""),
        ("left out", f"{figures['dropped_groups']} groups" if figures["dropped_groups"] else ""),
        (
            "gave way",
            f"{outcome.preempted:,} turns, to others, as memory was full"
            if outcome.preempted
            else "",
        ),
        ("engines failed", f"{outcome.failed}" if outcome.failed else ""),
        (
            "simulated",
            f"{len(outcome.steps)} steps of {duration(outcome.seconds)}, the first {outcome.warm} "
            f"not counted, in {outcome.cpu_seconds:.1f} s of CPU time",
        ),
    ]
    return aligned([row for row in (*gpu_rows, *counts) if row[1]])


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return *rows* with their names in one column."""
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {text}" for name, text in rows]
