"""`quintain value`: train a value model on rollouts and what became of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from quintain.cli import Count

EPILOG = """
\b
Examples:
  quintain value arithmetic-1 --model FOLDER --out value        a run's rollouts
  quintain eval arithmetic --model FOLDER --split train --tasks 256 --samples 8 \\
      --temperature 1 --out rollouts.parquet
  quintain value rollouts.parquet --model FOLDER --out value
  quintain eval arithmetic --model FOLDER --engine mcts --engine-arg value=value --temperature 1
"""


@click.command(epilog=EPILOG)
@click.argument("source")
@click.option("--model", "-m", required=True, help="Folder, run or Hugging Face id to begin from.")
@click.option("--out", "-o", type=Path, required=True, help="Folder of the value model; new.")
@click.option("--epochs", type=Count(1), default=1, show_default=True, help="Passes.")
@click.option(
    "--lr",
    type=click.FloatRange(0, min_open=True),
    default=1e-4,
    show_default=True,
    help="Highest learning rate.",
)
@click.option("--batch", type=Count(1), default=32, show_default=True, help="Answers per update.")
@click.option(
    "--success", type=float, default=1.0, show_default=True, help="Least reward of a success."
)
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Seed of the order.")
@click.option("--runs", default="runs", show_default=True, help="Folder of the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def value(
    source: str,
    model: str,
    out: Path,
    epochs: int,
    lr: float,
    batch: int,
    success: float,
    seed: int,
    runs: str,
    as_json: bool,
) -> None:
    """Train a value model on the rollouts of SOURCE: a run, or a file of `quintain eval --out`.

    It says after each token how probable it is that the answer will succeed. The samplers `beam`
    and `mcts` search with it, the algorithm `value_steps` takes its differences as credit, and the
    service `process_reward_model` of quintain-offline takes it as a process reward model.
    """
    from transformers import AutoTokenizer

    from quintain.errors import UsageError
    from quintain.store import model_named

    from .fitting import fit_value, rollouts_of, rows_of

    if out.exists():
        raise UsageError(f"{out} exists; name a new folder with --out")
    path = model_named(model).path
    tokenizer = AutoTokenizer.from_pretrained(path)
    stop = [tokenizer.eos_token_id]
    rows = rows_of(list(rollouts_of(source, folder=runs)), stop, success=success)
    report = fit_value(path, rows, out, epochs=epochs, lr=lr, batch=batch, seed=seed)
    if as_json:
        click.echo(json.dumps(asdict(report) | {"out": str(out)}))
        return
    click.echo(
        f"{out}: {report.rows:,} answers, {report.successes / len(rows):.1%} of them right, "
        f"{report.updates:,} updates in {report.seconds:.0f} s"
    )
    click.echo(
        f"held-out cross-entropy {report.held_out_loss:.4f} nats a token; {report.base_rate_loss:.4f}"
        " for the share of successes alone"
    )
    click.echo(
        f"next: quintain eval ENVIRONMENT --model {model} --engine mcts --engine-arg value={out}"
    )
