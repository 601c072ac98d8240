"""`quintain preference`: train a model on stored preferences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from quintain.cli import Count

from ..sft import TrainingOptions, show_update, training_options

if TYPE_CHECKING:
    from .tuning import PreferenceReport

EPILOG = """
\b
Lines of ROWS, one JSON object each; a prompt is a text or a list of messages:
  {"prompt": "6*7=?", "chosen": "42", "rejected": "41"}
  {"prompt": "6*7=?", "completion": "42", "label": true}        for --loss kto

\b
Examples:
  quintain reward pairs samples.parquet --out pairs.jsonl     pairs from rollouts
  quintain preference pairs.jsonl --model Qwen/Qwen3-0.6B
  quintain preference labels.jsonl --model FOLDER --loss kto --beta 0.2

\b
The same losses on the policy's own samples, ranked by a reward:
  quintain train --set algorithm.use=dpo
"""
LOSSES = {"dpo": "DPO", "dpo_norm": "DPO_NORM", "simpo": "SIMPO", "kto": "KTO"}
"""The algorithm of each loss, by its name in `algorithms`, which imports torch."""


@click.command(epilog=EPILOG)
@click.argument("rows", type=click.Path(path_type=Path))
@training_options(rows="rows", out="preference/ROWS-N", epochs=1, lr=1e-6, fresh_lr=1e-4)
@click.option(
    "--loss",
    type=click.Choice(list(LOSSES)),
    default="dpo",
    show_default=True,
    help="What is minimised.",
)
@click.option(
    "--beta",
    type=click.FloatRange(min=0, min_open=True),
    help="Of the loss.  [default: the loss's own]",
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 0.9),
    default=0.1,
    show_default=True,
    help="Share of the prompts whose rows measure and do not train.",
)
@click.option(
    "--seed",
    type=Count(0),
    default=0,
    show_default=True,
    help="Seed of the order and of untrained weights.",
)
def preference(
    rows: Path,
    training: TrainingOptions,
    loss: str,
    beta: float | None,
    held_out: float,
    seed: int,
) -> None:
    """Train a model on stored preferences: pairs of a chosen and a rejected reply, or replies with
    a label.

    The reference is the model before training. Ctrl-C saves what is trained so far and stops. The
    result is a folder in Hugging Face format.
    """
    from ..sft import base_model, save
    from . import algorithms
    from .stored import read_preferences
    from .tuning import tune

    algorithm = getattr(algorithms, LOSSES[loss])
    if beta is not None:
        algorithm = algorithm.replace(objective={"beta": beta})
    stored = read_preferences(rows)
    recipe = training.recipe("quintain preference", "none", seed=seed)
    with training.started(Path("preference"), rows.name) as (place, screen, stop):
        loaded = base_model(recipe, screen)
        learner, report = tune(
            loaded,
            stored,
            algorithm,
            **training.settings(recipe),
            held_out=held_out,
            progress=lambda update: show_update(
                screen, update, f"loss {update.loss:.4f}  lr {update.lr:.1e}"
            ),
            stop=stop,
        )
        if report.updates:
            place = save(place, learner, loaded, "preference", report, screen)
    _end(report, place, training.as_json)


def _end(report: PreferenceReport, out: Path, as_json: bool) -> None:
    if report.print_as_json(out, as_json):
        return
    report.print_size(out, f"{report.rows:,} rows")
    if report.left_out:
        click.echo(f"left out: {report.left_out:,} rows longer than the model's context")
    click.echo(f"loss by epoch: {', '.join(f'{loss:.4f}' for loss in report.losses)}")
    if report.accuracy:
        share, low, high = report.accuracy
        click.echo(
            f"held out, {report.held_out:,} rows: the chosen reply has more "
            f"{report.measure.partition(',')[0]} in {share:.1%} (95 % interval over prompts "
            f"{low:.1%} to {high:.1%})"
        )
    if report.separation is not None:
        click.echo(
            f"held out: wanted less unwanted replies {report.separation:.3g} ({report.measure})"
        )
    click.echo(f"next: quintain eval ENVIRONMENT --model {out}")
