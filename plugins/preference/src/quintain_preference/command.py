"""`quintain preference`: train a model on stored preferences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count
from quintain_sft import print_as_json, training_options

if TYPE_CHECKING:
    from quintain.console import Screen

    from .tuning import PreferenceReport, PreferenceUpdate

EPILOG = """
\b
Lines of ROWS, one JSON object each; a prompt is a text or a list of messages:
  {"prompt": "6*7=?", "chosen": "42", "rejected": "41"}
  {"prompt": "6*7=?", "completion": "42", "label": true}        for --loss kto

\b
Examples:
  quintain reward-model pairs samples.parquet --out pairs.jsonl     pairs from rollouts
  quintain preference pairs.jsonl --model Qwen/Qwen3-0.6B
  quintain preference labels.jsonl --model FOLDER --loss kto --beta 0.2

\b
The same losses on the policy's own samples, ranked by a reward:
  quintain train --set algorithm.use=dpo
"""
LOSSES = {"dpo": "DPO", "dpo_norm": "DPO_NORM", "simpo": "SIMPO", "kto": "KTO"}
"""The algorithm of each loss, by its name in `algorithms`, which imports torch."""
FRESH_LR, PRETRAINED_LR = 1e-4, 1e-6


@click.command(epilog=EPILOG)
@click.argument("rows", type=click.Path(path_type=Path))
@training_options(
    rows="rows", out="preference/ROWS-N", epochs=1, lr="1e-6; 1e-4 for the default model"
)
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
    model: str,
    loss: str,
    beta: float | None,
    out: Path | None,
    epochs: int,
    lr: float | None,
    batch: int,
    held_out: float,
    seed: int,
    overrides: Sequence[str],
    folder: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a model on stored preferences: pairs of a chosen and a rejected reply, or replies with
    a label.

    The reference is the model before training. Ctrl-C saves what is trained so far and stops. The
    result is a folder in Hugging Face format.
    """
    from quintain.console import for_terminal
    from quintain.process import stop_on_signal
    from quintain.store import save_model
    from quintain_sft import base_model, base_recipe, learner_settings, reserved

    from . import algorithms
    from .stored import read_preferences
    from .tuning import tune

    algorithm = getattr(algorithms, LOSSES[loss])
    if beta is not None:
        algorithm = algorithm.replace(objective={"beta": beta})
    lr = lr if lr is not None else FRESH_LR if model == "default" else PRETRAINED_LR
    stored = read_preferences(rows)
    recipe = base_recipe(
        "quintain preference", "none", model, folder=folder, lr=lr, seed=seed, overrides=overrides
    )
    with (
        reserved(out, Path("preference"), rows.name) as place,
        for_terminal(quiet=quiet or as_json) as screen,
        stop_on_signal(
            screen, "stopping after this update and saving; once more to stop at once"
        ) as stop,
    ):
        loaded = base_model(recipe, screen)
        learner, report = tune(
            loaded,
            stored,
            algorithm,
            epochs=epochs,
            lr=recipe.learner.lr,
            batch=batch,
            held_out=held_out,
            seed=seed,
            options=learner_settings(recipe, overrides),
            progress=_shown(screen),
            stop=stop,
        )
        if report.updates:
            screen.phase(f"saving {place}")
            save_model(place, learner, loaded.tokenizer, {"preference": report.to_json()})
    _end(report, place, as_json)


def _shown(screen: Screen) -> Any:
    def progress(update: PreferenceUpdate) -> None:
        if update.number == 1:
            screen.phase("training", total=update.updates)
        screen.update(update.number, update.updates, f"loss {update.loss:.4f}  lr {update.lr:.1e}")

    return progress


def _end(report: PreferenceReport, out: Path, as_json: bool) -> None:
    if print_as_json(report, out, as_json):
        return
    click.echo(
        f"{out}: {report.parameters:,} parameters, {report.updates} updates on {report.rows:,} rows"
    )
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
