"""`quintain simulate`: the loop of a recipe on a simulated cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from quintain.cli import Count, folder_option, json_option
from quintain.recipe import Recipe, RunPlan

from .options import setup_options


@click.command()
@click.argument("recipe", metavar="RECIPE")
@setup_options
@click.option(
    "--like",
    multiple=True,
    metavar="RUN",
    help="Take seconds and episodes from this run, which has timelines (repeatable).",
)
@click.option("--steps", type=Count(1), help="Steps to simulate (default: as many as are needed).")
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    help="Hours of the cluster to simulate, instead of steps.",
)
@click.option("--seed", type=Count(0), help="Random seed (default: that of the recipe).")
@folder_option
@json_option
def simulate(
    recipe: str,
    overrides: Sequence[str],
    setup: Path | None,
    changes: Sequence[str],
    like: Sequence[str],
    steps: int | None,
    hours: float | None,
    seed: int | None,
    folder: str,
    as_json: bool,
) -> None:
    """Run the loop of RECIPE on a simulated cluster, and say what it reaches.

    Schedule, collector, runner and pool are the code that trains. Engines, learner and episodes are
    simulated: their seconds come from the data sheet of a GPU, from the setup, or from a run. No
    model is loaded. Two calls print equal figures.

    \b
    quintain simulate recipe.toml -w model=8b -w cluster.engines=8 -w cluster.learner_gpus=8
    quintain simulate recipe.toml -w model=8b --setup cluster.toml -s schedule.use=areal
    quintain simulate arithmetic-1/recipe.toml --like arithmetic-1 -s batch.prompts=128
    """
    from .fit import setup_like
    from .report import assumptions, cluster_line, outcome_lines
    from .setup import SimulationSetup
    from .simulation import Simulation

    if steps and hours:
        raise click.UsageError("--steps and --hours both say how much to simulate; leave one out")
    plan = RunPlan.of(Recipe.load(recipe, list(overrides)))
    measured, written = setup_like(like, folder) if like else ((), {})
    chosen = SimulationSetup.load(setup, changes, base=written)
    simulation = Simulation.of(plan, chosen, measured=measured)
    outcome = simulation.run(steps=steps or 0, hours=hours or 0.0, seed=seed)
    assumed = assumptions(simulation)
    if like:
        assumed.append(
            f"episodes, and seconds that the setup does not name, are of {', '.join(like)}"
        )
    if as_json:
        click.echo(
            json.dumps(
                {
                    "cluster": cluster_line(simulation),
                    "assumptions": assumed,
                    "figures": outcome.figures(),
                    "setup": chosen.plain(),
                }
            )
        )
        return
    click.echo(cluster_line(simulation))
    click.echo("\n".join(outcome_lines(outcome)))
    click.echo("assumed:\n" + "\n".join(f"  {line}" for line in assumed))
