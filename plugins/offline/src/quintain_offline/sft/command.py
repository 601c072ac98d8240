"""`quintain sft`: supervised training on demonstrations, rollouts or conversations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quintain.cli import Count, arg_option
from quintain.errors import UsageError

from .options import TrainingOptions, show_update, training_options

if TYPE_CHECKING:
    from quintain.console import Screen

    from .sources import ExampleSource
    from .supervised import EpochUpdate
    from .tuning import SFTReport

EPILOG = """
\b
Examples:
  quintain sft arithmetic                                 worked examples
  quintain sft arithmetic-1 --model arithmetic-1          its right answers
  quintain eval gsm8k --engine http://127.0.0.1:8000 --model NAME \\
      --split train --samples 4 --out teacher.parquet     a teacher's answers,
  quintain sft teacher.parquet --model Qwen/Qwen3-0.6B    for a student
  quintain sft talks.jsonl --think 0.5 --model FOLDER     half without thought

Then: quintain train --model FOLDER --env ENVIRONMENT, or quintain eval ENVIRONMENT --model FOLDER
"""


@click.command(epilog=EPILOG)
@click.argument("source")
@training_options(
    rows="examples",
    out="sft/SOURCE-N",
    epochs=3,
    lr=1e-5,
    fresh_lr=1e-3,
    model="default",
)
@click.option(
    "--examples",
    type=Count(1),
    default=10_000,
    show_default=True,
    help="Maximum number of examples: the first ones, of a run those of its last steps.",
)
@click.option(
    "--min-reward",
    type=float,
    default=1.0,
    show_default=True,
    help="Least reward of the rollouts to imitate.",
)
@click.option("--truncated", is_flag=True, help="Imitate rollouts that a limit cut off, too.")
@click.option("--dedupe", is_flag=True, help="Leave out copies of an example.")
@click.option(
    "--think",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Share asked with /think that keeps its thought; the rest gets /no_think and an empty one.",
)
@click.option(
    "--seed",
    type=Count(0),
    default=0,
    show_default=True,
    help="Seed of order, mix and untrained weights.",
)
@arg_option
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="SLOT=NAME",
    help="Component that fills a service slot (repeatable).",
)
@click.option(
    "--service-arg",
    "service_args",
    multiple=True,
    metavar="SLOT.KEY=VALUE",
    help="Setting of the service in a slot (repeatable).",
)
def sft(
    source: str,
    training: TrainingOptions,
    examples: int,
    min_reward: float,
    truncated: bool,
    dedupe: bool,
    think: float | None,
    seed: int,
    args: Sequence[str],
    services: Sequence[str],
    service_args: Sequence[str],
) -> None:
    """Train a model on the replies of SOURCE by supervised learning: a warm start for reinforcement
    learning, or the distillation of rollouts.

    SOURCE is an environment (its demonstrations), a run or a file of `quintain eval --out` (the
    rollouts that reached --min-reward, with their own token ids where the tokenizer is the same),
    or a file of conversations: JSON lines, {"messages": [{"role": "user", "content": ...}, ...]}
    each.

    Ctrl-C saves what is trained so far and stops. The result is a folder in Hugging Face format.
    """
    from quintain_authoring import services_of

    from .base import base_model
    from .place import save
    from .sources import Selection, source_of
    from .tuning import tune

    recipe = training.recipe("quintain sft", source, seed=seed, args=args)
    chosen = services_of(services, service_args)
    selection = Selection(min_reward=min_reward, truncated=truncated, count=examples)
    with training.started(Path("sft"), source) as (place, screen, stop):
        screen.phase(f"reading {source}")
        examples_source = source_of(
            recipe.environments[0], selection, folder=training.folder, services=chosen
        )
        if (args or chosen) and examples_source.kind != "demonstrations":
            option = "--arg sets a field" if args else "--service fills a slot"
            raise UsageError(
                f"{option} of an environment; {source!r} is read as {examples_source.kind}"
            )
        _announce(screen, examples_source, examples)
        loaded = base_model(recipe, screen)
        learner, report = tune(
            loaded,
            examples_source,
            **training.settings(recipe),
            think=think,
            dedupe=dedupe,
            progress=lambda update: _show(screen, update),
            stop=stop,
        )
        if report.updates:
            place = save(place, learner, loaded, "sft", report, screen)
    _end(report, place, training.as_json)


def _announce(screen: Screen, source: ExampleSource, requested: int) -> None:
    from .sources import reasons

    endless = source.kind == "demonstrations" and len(source.examples) == requested
    more = "; there may be more, see --examples" if endless else ""
    left = f"; left out: {reasons(source.left_out)}" if source.left_out else ""
    screen.note(
        f"{len(source.examples):,} examples from {source.kind} of {source.name}{more}{left}"
    )


def _show(screen: Screen, update: EpochUpdate) -> None:
    rate = update.tokens / max(update.seconds, 1e-9)
    show_update(
        screen,
        update,
        f"epoch {update.epoch}/{update.epochs}  loss {update.loss:.3f}  lr {update.lr:.1e}  "
        f"{rate:,.{0 if rate >= 10 else 1}f} tokens/s",
    )


def _end(report: SFTReport, out: Path, as_json: bool) -> None:
    if report.print_as_json(out, as_json):
        return
    from .sources import reasons

    report.print_size(out, f"{report.examples:,} examples")
    if report.thinking is not None:
        click.echo(
            f"with thought: {report.thinking:,}; without: {report.examples - report.thinking:,}"
        )
    if report.left_out:
        click.echo(f"left out: {reasons(report.left_out)}")
    click.echo(f"loss by epoch: {', '.join(f'{loss:.3f}' for loss in report.losses)} nats a token")
    environment = report.environment or "ENVIRONMENT"
    click.echo(f"next: quintain eval {environment} --model {out}")
    click.echo(f"      quintain train --model {out} --env {environment}")
