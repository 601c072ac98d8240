"""`quintain reward`: train a reward model, measure it, and make preference pairs from
rollouts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count, folder_option, json_option, quiet_option

if TYPE_CHECKING:
    from quintain.console import Screen

    from .loss import PairMetrics
    from .pairs import PreferencePair
    from .scoring_model import ScoringModel
    from .training import RewardTraining, TrainingReport, Update

TRAIN_EPILOG = """
\b
Lines of PAIRS, one JSON object each; texts or lists of messages:
  {"prompt": "6*7=?", "chosen": "42", "rejected": "41"}
  {"prompt": [{"role": "user", "content": "6*7=?"}], "chosen": "42", "rejected": "41", "margin": 0.5}
or a ranking of pictures, the best first:
  {"prompt": "a red circle", "pictures": ["a.png", ["b.png", "c.png"], "d.png"]}

\b
Examples:
  quintain reward pairs samples.parquet --out pairs.jsonl
  quintain reward train pairs.jsonl --model Qwen/Qwen3-0.6B --out rm
  quintain reward train pairs.jsonl --model arithmetic-1 --out rm --epochs 3 --lr 1e-4

\b
Then, in a recipe:
  [[environments]]
  use = "..."
  reward = "learned_reward"
  [services.reward_model]
  args = { model = "rm" }
"""


@click.group()
def reward() -> None:
    """Train and measure reward models."""


@reward.command(epilog=TRAIN_EPILOG)
@click.argument("source", metavar="PAIRS")
@click.option(
    "--model",
    "-m",
    required=True,
    help='Language model or reward model to begin with: a folder, a run, a hub id, or "default": '
    "the small model of "
    "quintain-starter, untrained, or a small one that sees, of random weights.",
)
@click.option(
    "--out", "-o", required=True, type=click.Path(path_type=Path), help="Folder to write."
)
@click.option("--split", default="train", show_default=True, help="Split of a data set.")
@click.option(
    "--epochs", type=Count(1), default=1, show_default=True, help="Number of passes over the pairs."
)
@click.option("--lr", type=float, default=1e-5, show_default=True, help="Highest learning rate.")
@click.option("--batch", type=Count(1), default=32, show_default=True, help="Pairs per update.")
@click.option(
    "--micro-batch",
    type=Count(1),
    default=16,
    show_default=True,
    help="Pairs per forward pass: memory, not results.",
)
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.1,
    show_default=True,
    help="Share of the pairs to measure on; all pairs of a prompt are on one side.",
)
@click.option(
    "--margin",
    type=float,
    default=0.0,
    show_default=True,
    help="Difference that each pair must exceed.",
)
@click.option(
    "--centering",
    type=float,
    default=0.01,
    show_default=True,
    help="Factor of (r_chosen + r_rejected)^2, which keeps scores near 0.",
)
@click.option(
    "--max-length",
    type=Count(0),
    default=0,
    help="Longest conversation, in tokens.  [default: the model's context]",
)
@click.option(
    "--seed", type=Count(0), default=0, show_default=True, help="Seed of head, order and split."
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option("--resume", is_flag=True, help="Continue the training that Ctrl-C stopped in --out.")
@folder_option
@quiet_option
@json_option
def train(
    source: str,
    model: str,
    out: Path,
    split: str,
    epochs: int,
    lr: float,
    batch: int,
    micro_batch: int,
    held_out: float,
    margin: float,
    centering: float,
    max_length: int,
    seed: int,
    device: str,
    resume: bool,
    folder: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a reward model on PAIRS: JSON lines, or a data set of the library datasets (a saved
    folder, a hub id).

    The loss is -log sigmoid(r_chosen - r_rejected - margin). The result is a folder in Hugging Face
    format for sequence classification with one label, with the mean and spread of its scores on the
    held-out pairs.

    Ctrl-C saves what is trained so far; the same command with --resume continues it.
    """
    from quintain.console import for_terminal
    from quintain.errors import UsageError
    from quintain.process import stop_on_signal

    from .pairs import read_pairs, split_by_prompt
    from .training import RewardTraining, TrainingSettings

    if not resume and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise UsageError(
            f"--out {str(out)!r} is there already; name a new folder, or continue it with --resume"
        )
    settings = TrainingSettings(
        epochs=epochs,
        lr=lr,
        batch=batch,
        micro_batch=micro_batch,
        margin=margin,
        centering=centering,
        max_length=max_length,
        seed=seed,
    )
    with (
        for_terminal(quiet=quiet or as_json) as screen,
        stop_on_signal(
            screen, "stopping after this update and saving; once more to stop at once"
        ) as stop,
    ):
        screen.phase(f"reading {source}")
        pairs, held_out_pairs = split_by_prompt(read_pairs(source, split=split), held_out, seed)
        screen.note(f"{len(pairs):,} pairs to train, {len(held_out_pairs):,} held out")
        screen.phase(f"loading {out if resume else model}")
        training = RewardTraining(
            model=_to_train(str(out) if resume else model, pairs, seed, device, folder, screen),
            pairs=pairs,
            held_out=held_out_pairs,
            settings=settings,
        )
        if resume:
            training.restore(out)
            screen.note(f"continuing after update {training.done} of {training.updates}")
        if training.left_out:
            screen.warn(
                f"{training.left_out} pairs are longer than the model reads and are left out"
            )
        screen.phase("training", total=training.updates - training.done)
        report = training.run(progress=_shown(screen), stop=stop)
        screen.phase(f"saving {out}")
        training.save(out, report)
    _end(training, report, out, as_json)


def _to_train(
    model: str,
    pairs: Sequence[PreferencePair],
    seed: int,
    device: str,
    folder: str,
    screen: Screen,
) -> ScoringModel:
    from quintain.recipe import ModelRequest, ModelSource, Recipe, is_model_source
    from quintain.run import seed_everything
    from quintain.store import model_named

    from .pairs import has_picture
    from .scoring import new_scoring_model

    if model == "default" and has_picture(pairs[0]):
        from .pictures import new_picture_model

        return new_picture_model(
            [pair.chosen[0].content for pair in pairs], seed=seed, device=device
        )
    if not is_model_source(model):
        return new_scoring_model(model_named(model, folder).path, seed=seed, device=device)
    seed_everything(seed)
    settings = [f"model.name={json.dumps(model)}", f"run.seed={seed}"]
    recipe = Recipe.parse('[[environments]]\nuse = "none"', settings, source="quintain reward")
    base: Any = ModelSource.of(recipe)
    return new_scoring_model(
        model, seed=seed, device=device, base=base.load_base(ModelRequest.of(recipe, screen, ()))
    )


def _shown(screen: Screen) -> Any:
    def progress(update: Update) -> None:
        screen.update(
            update.number,
            update.updates,
            f"epoch {update.epoch}  loss {update.loss:.3f}  ranked right {update.accuracy:.0%}  "
            f"lr {update.lr:.1e}",
        )

    return progress


def _end(training: RewardTraining, report: TrainingReport, out: Path, as_json: bool) -> None:
    from .pairs import has_picture

    if not report.finished:
        done = f"{report.updates} of {training.updates} updates"
        raise click.Abort(f"stopped after {done}; {out} continues with --resume")
    if as_json:
        click.echo(json.dumps({**report.to_json(), "path": str(out)}))
        return
    click.echo(
        f"{out}: {report.parameters:,} parameters, {report.updates} updates on {report.pairs:,} "
        f"pairs"
    )
    losses = ", ".join(f"{loss:.3f}" for loss in report.losses)
    click.echo(f"loss by epoch: {losses} nats a pair; 0.693 is that of scores that say nothing")
    if report.held_out is not None:
        _show("held out", report.held_out)
    click.echo(f"next: quintain reward check {out} OTHER_PAIRS")
    name = "picture_reward" if has_picture(training.pairs[0]) else "learned_reward"
    click.echo(
        f'      reward = "{name}" and [services.reward_model] args = {{ model = "{out}" }} in a recipe'
    )


def _show(what: str, metrics: PairMetrics) -> None:
    click.echo(
        f"{what}: {metrics.accuracy:.1%} of {metrics.pairs:,} pairs ranked right "
        f"[{metrics.low:.1%}, {metrics.high:.1%}], loss {metrics.loss:.3f}"
    )
    click.echo(
        f"calibration error {metrics.calibration_error:.3f}: it is {metrics.confidence:.1%} sure "
        f"on average"
    )


@reward.command()
@click.argument("model")
@click.argument("source", metavar="PAIRS")
@click.option("--split", default="train", show_default=True, help="Split of a data set.")
@click.option(
    "--label", default="", help="Label whose logit is the score, of a model with several."
)
@click.option(
    "--batch", type=Count(1), default=16, show_default=True, help="Conversations per forward pass."
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    help="Of the weights: float32, bfloat16 or float16.",
)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--normalise",
    is_flag=True,
    help="Save mean and spread of these scores beside MODEL, for normalise = true.",
)
@json_option
def check(
    model: str,
    source: str,
    split: str,
    label: str,
    batch: int,
    dtype: str,
    device: str,
    normalise: bool,
    as_json: bool,
) -> None:
    """Measure MODEL, any sequence-classification model of transformers, on PAIRS: accuracy, loss
    and calibration.

    A pair with a conversation that the model cannot read, such as a longer one than it reads, is
    counted and left out.
    """
    import math
    from dataclasses import asdict

    from quintain.console import for_terminal
    from quintain.errors import RewardFault, UsageError

    from .loss import PairMetrics
    from .pairs import read_pairs
    from .scoring import load_scoring_model
    from .scoring_model import ScoreStatistics

    if normalise and not Path(model).is_dir():
        raise UsageError(
            f"--normalise writes into the folder of the model, and {model!r} is none; download it "
            f"first"
        )
    pairs, rows, prompts = read_pairs(source, split=split), [], []
    first = ""
    with for_terminal(quiet=as_json) as screen:
        screen.phase(f"loading {model}")
        loaded = load_scoring_model(model, label=label, dtype=dtype, device=device)
        for pair in pairs:
            try:
                rows += [[loaded.encode(text) for text in (pair.chosen, pair.rejected)]]
                prompts += [pair.key]
            except RewardFault as fault:
                first = first or str(fault)
        if not rows:
            raise UsageError(
                f"{model} can read none of the {len(pairs)} pairs; of the first: {first}"
            )
        if loaded.caution:
            screen.warn(loaded.caution)
        screen.phase("scoring")
        scores = loaded.scores([ids for row in rows for ids in row], batch=batch)
    if broken := sum(not math.isfinite(score) for score in scores):
        raise UsageError(
            f"{model} gives no finite number for {broken:,} of {len(scores):,} conversations: its "
            f"weights are damaged, or they overflow in {dtype} (--dtype float32)"
        )
    differences = [c - r for c, r in zip(scores[::2], scores[1::2], strict=True)]
    metrics = PairMetrics.of(differences, prompts)
    statistics = ScoreStatistics.of(scores, f"{len(rows)} pairs of {source}")
    if normalise:
        statistics.write(Path(model))
    left_out = len(pairs) - len(rows)
    if as_json:
        click.echo(
            json.dumps({**asdict(metrics), "left_out": left_out, "statistics": asdict(statistics)})
        )
        return
    _show(str(model), metrics)
    click.echo(
        f"scores: mean {statistics.mean:.3f}, spread "
        f"{statistics.std:.3f}{', saved' if normalise else ''}"
    )
    if left_out:
        click.echo(f"left out: {left_out} pairs; of the first: {first}")


@reward.command()
@click.argument("source", metavar="ROLLOUTS")
@click.option(
    "--out",
    "-o",
    required=True,
    type=click.Path(path_type=Path),
    help="File of JSON lines to write.",
)
@click.option(
    "--most", type=Count(1), default=1, show_default=True, help="Pairs per prompt at most."
)
@click.option(
    "--seed", type=Count(0), default=0, show_default=True, help="Seed of the choice of pairs."
)
@folder_option
def pairs(source: str, out: Path, most: int, seed: int, folder: str) -> None:
    """Make preference pairs from ROLLOUTS, a file of `quintain eval --out` or a run: replies to the
    same prompt whose outcomes differ.
    """
    from quintain.errors import UsageError
    from quintain.store import storage_errors

    from .pairs import pairs_of_rollouts, write_rows

    if out.exists():
        raise UsageError(f"--out {str(out)!r} is there already; name a new file")
    rows = pairs_of_rollouts(source, most=most, seed=seed, folder=folder)
    with storage_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(out, rows)
    click.echo(f"{out}: {len(rows):,} pairs")
