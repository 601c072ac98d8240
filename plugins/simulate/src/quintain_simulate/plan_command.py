"""`quintain plan`: what a recipe takes on given GPUs, and what to buy next."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import click

from quintain.cli import Count, json_option
from quintain.recipe import Recipe, RunPlan

from .options import setup_options


class Gpus(click.ParamType[tuple[int, str]]):
    """A number and a kind, as in ``8:h100``."""

    name = "n:kind"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, str]:
        found = re.fullmatch(r"(\d+):([\w-]+)", str(value))
        if found is None:
            self.fail(f"expected a number and a kind, as in 8:h100, got {value!r}", param, ctx)
        return int(found[1]), found[2]


@click.command()
@click.argument("recipe", metavar="RECIPE")
@click.option("--gpus", "-g", type=Gpus(), required=True, help="GPUs, as in 8:h100.")
@setup_options
@click.option("--steps", type=Count(1), help="Steps of the run (default: run.steps).")
@click.option("--price", type=float, help="Price of a GPU for an hour, for the cost of the run.")
@click.option(
    "--simulate-steps",
    type=Count(1),
    help="Steps of each simulation (default: as many as are needed).",
)
@json_option
def plan(
    recipe: str,
    gpus: tuple[int, str],
    overrides: Sequence[str],
    setup: Path | None,
    changes: Sequence[str],
    steps: int | None,
    price: float | None,
    simulate_steps: int | None,
    as_json: bool,
) -> None:
    """Say what RECIPE takes on GPUs: memory, tokens a second, idle shares, hours and money.

    The GPUs are divided between sampling and learning so that a step takes least, by the simulator.
    Then each neighbour is tried: one engine more, as many GPUs more for the learner, a move between
    the two, another staleness. The last lines say which change helps most.

    \b
    quintain plan recipe.toml --gpus 8:h100 -w model=8b
    quintain plan recipe.toml --gpus 64:h100 -w model=70b -s schedule.use=areal --price 2.5
    """
    from .planning import NOTABLE, ClusterPlanner
    from .report import aligned, assumptions, cluster_line, duration, outcome_lines
    from .setup import SimulationSetup

    resolved = RunPlan.of(Recipe.load(recipe, list(overrides)))
    count, kind = gpus
    chosen_setup = SimulationSetup.load(setup, [*changes, f"cluster.gpu={kind}"])
    planner = ClusterPlanner.of(resolved, chosen_setup, count, simulate_steps or 0)
    answer = planner.answer()
    chosen, memory = answer.chosen, answer.memory
    outcome = chosen.outcome
    total = steps or resolved.stop.steps
    seconds = total * outcome.step_seconds
    gpu_hours = seconds / 3600 * chosen.gpus
    cost = None if price is None else price * gpu_hours
    simulation = chosen.simulation
    assumed = assumptions(simulation)
    if as_json:
        record = {
            "cluster": cluster_line(simulation),
            "memory": vars(memory),
            "figures": outcome.figures(),
            "steps": total,
            "seconds": seconds,
            "gpu_hours": gpu_hours,
            "cost": cost,
            "changes": [
                {
                    "change": option.text,
                    "gpus": option.gpus,
                    "gain": answer.gain(option),
                    "figures": option.outcome.figures(),
                }
                for option in answer.neighbours
            ],
            "assumptions": assumed,
            "setup": simulation.setup.plain(),
        }
        click.echo(json.dumps(record))
        return
    click.echo(cluster_line(simulation))
    room = (
        f"{memory.engine / 1e9:,.1f} GB of weights, {memory.room / 1e9:,.1f} GB for keys and values"
    )
    money = "" if cost is None else f", {cost:,.0f} at {price:g} a GPU-hour"
    rows = [
        ("a learner's GPU", f"{memory.rank / 1e9:,.1f} GB of {planner.gpu.memory / 1e9:g} GB"),
        *([("host memory", f"{memory.host / 1e9:,.1f} GB")] if memory.host else []),
        ("an engine's GPU", room),
        (f"{total:,} steps", f"{duration(seconds)}, {gpu_hours:,.1f} GPU-hours{money}"),
    ]
    click.echo("\n".join([*aligned(rows), *outcome_lines(outcome), "one change:"]))
    lines = [
        (
            f"{answer.gain(option):+.1%}",
            f"{option.text} ({option.gpus} GPUs, {option.outcome.tokens_per_second:,.0f} tokens/s)",
        )
        for option in answer.neighbours
    ]
    click.echo("\n".join(aligned(lines)))
    best = answer.neighbours[0]
    helps = f"{best.text} helps most" if answer.gain(best) > NOTABLE else "none helps notably"
    click.echo(f"  {helps}")
    click.echo("assumed:\n" + "\n".join(f"  {line}" for line in assumed))
