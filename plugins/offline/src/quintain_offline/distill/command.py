"""`quintain distill`: train a model on a teacher's distributions over stored tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count

from ..sft import TrainingOptions, show_update, training_options

if TYPE_CHECKING:
    from .stored import DistillReport

EPILOG = """
\b
Examples:
  quintain distill arithmetic-1 --teacher arithmetic-1 --model FOLDER     a run's rollouts
  quintain eval gsm8k --model TEACHER --split train --out teacher.parquet
  quintain distill teacher.parquet --teacher TEACHER --model STUDENT      the teacher's own
  quintain distill talks.jsonl --teacher http://127.0.0.1:8000/v1 --top 20 --model STUDENT

\b
On the policy's own samples, while it trains:
  quintain train --algorithm gkd --set services.teacher.use=teacher \\
      --set services.teacher.args.model=TEACHER
"""


@click.command(epilog=EPILOG)
@click.argument("source")
@training_options(rows="rows", out="distill/SOURCE-N", epochs=1, lr=1e-5, fresh_lr=1e-3)
@click.option(
    "--teacher",
    "teachers",
    multiple=True,
    required=True,
    metavar="MODEL",
    help="Folder, run, Hugging Face id or URL of a server; several are an ensemble (repeatable).",
)
@click.option(
    "--kind",
    type=click.Choice(["forward", "reverse", "jensen_shannon"]),
    default="forward",
    show_default=True,
    help="Divergence of the distributions.",
)
@click.option(
    "--beta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    help="The teacher's share of the mean distribution, for jensen_shannon.",
)
@click.option(
    "--top",
    type=Count(0),
    default=0,
    show_default=True,
    help="The teacher's likeliest tokens to compare over; 0 is the whole vocabulary.",
)
@click.option(
    "--examples",
    type=Count(1),
    default=10_000,
    show_default=True,
    help="Maximum number of examples.",
)
@click.option(
    "--min-reward",
    type=float,
    default=float("-inf"),
    help="Least reward of rollouts.  [default: all]",
)
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Seed of the order.")
def distill(
    source: str,
    training: TrainingOptions,
    teachers: tuple[str, ...],
    kind: str,
    beta: float,
    top: int,
    examples: int,
    min_reward: float,
    seed: int,
) -> None:
    """Train a model on a teacher's next-token distributions over the replies of SOURCE, as
    `quintain sft` reads it: a run, a file of `quintain eval --out`, a file of conversations, or an
    environment (its demonstrations).

    Nothing is sampled. Ctrl-C saves what is trained so far and stops. The result is a folder in
    Hugging Face format.
    """
    from ..sft import Selection, base_model, save, source_of
    from .algorithms import GKD
    from .models import ModelTeacher
    from .stored import tune

    recipe = training.recipe("quintain distill", source, seed=seed)
    algorithm = GKD.replace(objective={"kind": kind, "beta": beta}, advantage={"top": top})
    selection = Selection(min_reward=min_reward, truncated=True, count=examples)
    with training.started(Path("distill"), source) as (place, screen, stop):
        screen.phase(f"reading {source}")
        stored = source_of(recipe.environments[0], selection, folder=training.folder)
        loaded = base_model(recipe, screen)
        named: Any = list(teachers) if len(teachers) > 1 else teachers[0]
        teacher = ModelTeacher(
            model=named, device=recipe.model.device, policy=loaded, learner=loaded
        )
        learner, report = tune(
            loaded,
            stored,
            teacher,
            algorithm=algorithm,
            **training.settings(recipe),
            progress=lambda update: show_update(
                screen, update, f"divergence {update.loss:.4f}  lr {update.lr:.1e}"
            ),
            stop=stop,
        )
        if report.updates:
            place = save(place, learner, loaded, "distill", report, screen)
    _end(report, place, training.as_json)


def _end(report: DistillReport, out: Path, as_json: bool) -> None:
    if report.print_as_json(out, as_json):
        return
    report.print_size(out, f"{report.rows:,} rows")
    click.echo(
        f"the teacher scored {report.computed:,} rows in {report.teacher_seconds:.1f} s, "
        f"{report.reused:,} from its cache"
    )
    click.echo(f"divergence by epoch: {', '.join(f'{x:.4f}' for x in report.losses)} nats a token")
    click.echo(f"next: quintain eval ENVIRONMENT --model {out}")
