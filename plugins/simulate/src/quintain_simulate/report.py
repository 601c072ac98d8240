"""What the commands print: the cluster, its figures and what they assume."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .episodes import Episodes
from .hardware import gpu_named
from .roofline import (
    SIZES,
    all_gpus,
    engine_by_gpu,
    learner_by_gpu,
    learner_gpus,
    sampling_gpus,
)
from .setup import EngineSpeedTable, LearnerSpeedTable
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
    samples = f"{plan.rollouts.groups} x {plan.rollouts.group_size} rollouts a step"
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
            f"{duration(figures['waited'])}, updates {duration(figures['updated'])}, until engines have "
            f"the weights {duration(figures['synced'])}",
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


def assumptions(simulation: Simulation) -> list[str]:
    """Return what *simulation* assumes, one line each."""
    lines = []
    setup, engine, learner = simulation.setup, simulation.costs, simulation.learner
    cluster, assumed = setup.cluster, setup.assumed
    engine_left, learner_left = set[str](), set[str]()
    if simulation.shape is not None:
        engine_left, learner_left = engine_by_gpu(setup), learner_by_gpu(setup)
    if engine_left or learner_left:
        gpu = gpu_named(cluster.gpu)
        lines.append(
            f"{gpu.name}: {gpu.memory / 1e9:g} GB, {gpu.bandwidth / 1e9:,.0f} GB/s, "
            f"{gpu.flops / 1e12:g} TFLOP/s in bfloat16 (data sheet)"
        )
    if engine_left & {"weights", "context"}:
        lines.append(f"decoding reaches {assumed.bandwidth:.0%} of the bandwidth")
    if engine_left & {"compute", "prefill", "prefill_context"}:
        lines.append(f"prompts and large batches reach {assumed.compute:.0%} of the FLOP/s")
    lines.append(f"a step of decoding takes {1e3 * engine.overhead:.1f} ms beside")
    if written := _seconds(setup.engine):
        lines.append(f"the engine's seconds as written or measured: {written}")
    if "token" in learner_left:
        lines.append(f"the learner reaches {assumed.mfu:.0%} of the FLOP/s")
    lines.append(f"an update takes {learner.base:g} s beside its tokens")
    if written := _seconds(setup.learner):
        lines.append(f"the learner's seconds as written or measured: {written}")
    by_network = f", by {assumed.transfer:g} s and their bytes at {cluster.network:g} GB/s a GPU"
    lines.append(
        f"weights take {learner.transfer:.3g} s to the engines"
        + (by_network if "transfer" in learner_left else "")
    )
    if cluster.shared:
        lines.append(
            "engines and learner take turns on the GPUs and each has the whole memory in its turn: "
            "what the other one holds is elsewhere meanwhile"
        )
    lines.append(_episodes_line(simulation.episodes()))
    capacity = f"{engine.capacity:,.0f}" if math.isfinite(engine.capacity) else "any number of"
    lines.append(
        f"an engine decodes {engine.slots} sequences at once, with {capacity} tokens in all"
    )
    if setup.failures.hours:
        lines.append(
            f"an engine fails every {setup.failures.hours:g} h and is away for "
            f"{setup.failures.restart:g} s"
        )
    return lines


def _episodes_line(episodes: Episodes) -> str:
    text = f"prompt {episodes.prompt.text}, start {episodes.start.text} s, {episodes.lost:.1%} lost"
    if episodes.measured:
        drawn = counted(len(episodes.measured), "measured one")
        return f"episodes: {drawn} drawn from, replies of at most {episodes.most:,}, {text}"
    return (
        f"episodes: turns {episodes.turns.text}, reply {episodes.reply.text} and at most "
        f"{episodes.most:,}, tool tokens {episodes.added.text}, waits {episodes.wait.text} s, {text}"
    )


def _seconds(table: EngineSpeedTable | LearnerSpeedTable) -> str:
    """Return the seconds that *table* has, with their names; empty for none."""
    written = table.written()
    return ", ".join(f"{name} {value:g}" for name, value in written.items() if name not in SIZES)
