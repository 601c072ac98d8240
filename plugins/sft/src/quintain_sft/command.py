"""`quintain sft`: supervised training on demonstrations, rollouts or conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count
from quintain.errors import UsageError

if TYPE_CHECKING:
    from quintain.models import LoadedModel
    from quintain.training import Recipe, Screen

    from .sources import ExampleSource
    from .tuning import EpochUpdate, SFTReport

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

FRESH_LR, PRETRAINED_LR = 1e-3, 1e-5
KEYS = ("learner", "model")
REFUSED = {
    "name": "say --model",
    "dtype": "weights train in float32; learner.precision=bf16 computes in less",
    "start": "this is supervised training itself; `quintain start` trains the default model",
}
"""Keys of [model] that have no use here, and what to do instead."""
NOTES = 20
"""Lines of progress at most, besides the bar."""


@click.command(epilog=EPILOG)
@click.argument("source")
@click.option(
    "--model",
    "-m",
    default="default",
    show_default=True,
    help='Folder, run, Hugging Face id, or "default": the small model that Quintain brings, untrained.',
)
@click.option("--out", "-o", type=click.Path(path_type=Path), help="Folder to write.  [default: sft/SOURCE-N]")
@click.option("--epochs", type=Count(1), default=3, show_default=True, help="Number of passes over the examples.")
@click.option("--lr", type=float, help="Highest learning rate.  [default: 1e-5; 1e-3 for the default model]")
@click.option("--batch", type=Count(1), default=32, show_default=True, help="Examples per update.")
@click.option(
    "--examples",
    type=Count(1),
    default=10_000,
    show_default=True,
    help="Maximum number of examples: the first ones, of a run those of its last steps.",
)
@click.option(
    "--min-reward", type=float, default=1.0, show_default=True, help="Least reward of the rollouts to imitate."
)
@click.option("--truncated", is_flag=True, help="Imitate rollouts that a limit cut off, too.")
@click.option("--dedupe", is_flag=True, help="Leave out copies of an example.")
@click.option(
    "--think",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Share asked with /think that keeps its thought; the rest gets /no_think and an empty one.",
)
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Seed of order, mix and untrained weights.")
@click.option("--arg", "-a", "args", multiple=True, metavar="KEY=VALUE", help="Field of the environment (repeatable).")
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
@click.option(
    "--set",
    "-s",
    "overrides",
    multiple=True,
    metavar="A.B=VALUE",
    help="Key of a recipe's [learner], model.lora, model.template or model.device (repeatable).",
)
@click.option("--folder", default="runs", show_default=True, help="Folder of the run folders.")
@click.option("--quiet", "-q", is_flag=True, help="Show warnings only.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def sft(
    source: str,
    model: str,
    out: Path | None,
    epochs: int,
    lr: float | None,
    batch: int,
    examples: int,
    min_reward: float,
    truncated: bool,
    dedupe: bool,
    think: float | None,
    seed: int,
    args: Sequence[str],
    services: Sequence[str],
    service_args: Sequence[str],
    overrides: Sequence[str],
    folder: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a model on the replies of SOURCE by supervised learning: a warm start for reinforcement learning, or the
    distillation of rollouts.

    SOURCE is an environment (its demonstrations), a run or a file of `quintain eval --out` (the rollouts that reached
    --min-reward, with their own token ids where the tokenizer is the same), or a file of conversations: JSON lines,
    {"messages": [{"role": "user", "content": ...}, ...]} each.

    Ctrl-C saves what is trained so far and stops. The result is a folder in Hugging Face format.
    """
    from quintain.cli import services_of
    from quintain.training import for_terminal, stop_on_signal

    from .sources import Selection, source_of
    from .tuning import save, tune

    lr = lr if lr is not None else FRESH_LR if model == "default" else PRETRAINED_LR
    recipe = _recipe(source, model, folder, lr, seed, args, overrides)
    chosen = services_of(services, service_args)
    selection = Selection(min_reward=min_reward, truncated=truncated, count=examples)
    with (
        _reserved(out, source) as place,
        for_terminal(quiet=quiet or as_json) as screen,
        stop_on_signal(screen, "stopping after this update and saving; once more to stop at once") as stop,
    ):
        screen.phase(f"reading {source}")
        examples_source = source_of(recipe.environments[0], selection, folder=folder, services=chosen)
        if (args or chosen) and examples_source.kind != "demonstrations":
            option = "--arg sets a field" if args else "--service fills a slot"
            raise UsageError(f"{option} of an environment; {source!r} is read as {examples_source.kind}")
        _announce(screen, examples_source, examples)
        loaded = _base_model(recipe, screen)
        learner, report = tune(
            loaded,
            examples_source,
            epochs=epochs,
            lr=recipe.learner.lr,
            batch=batch,
            think=think,
            dedupe=dedupe,
            seed=seed,
            options=_options(recipe, overrides),
            progress=_shown(screen),
            stop=stop,
        )
        if report.updates:
            screen.phase(f"saving {place}")
            saved = save(place, learner, loaded, report)
            if saved != place:
                screen.warn(f"{place} was filled by somebody else meanwhile; the model is in {saved}")
            place = saved
    _end(report, place, as_json)


def _recipe(
    source: str, model: str, folder: str, lr: float, seed: int, args: Sequence[str], overrides: Sequence[str]
) -> Recipe:
    from quintain.training import Recipe, is_model_source, model_named, override

    for pair in overrides:
        key = override(pair)[0]
        if key[0] not in KEYS or len(key) < 2:
            raise UsageError(f"--set {pair!r}: here only keys of learner and model can be set, as in learner.betas")
        if key[0] == "model" and key[1] in REFUSED:
            raise UsageError(f"--set {pair!r}: {REFUSED[key[1]]}")
    path = model if is_model_source(model) else model_named(model, folder)[0]
    settings = [f"environments.0.use={json.dumps(source)}", f"run.seed={seed}"]
    settings += [f"model.name={json.dumps(path)}", f"learner.lr={float(lr)!r}"]
    settings += [f"environments.0.args.{pair}" for pair in args]
    return Recipe.parse("", [*settings, *overrides], source="quintain sft")


def _options(recipe: Recipe, overrides: Sequence[str]) -> dict[str, Any]:
    """What the recipe says to the learner; the warm-up only where it was set."""
    from quintain.training import learner_options, override

    options = learner_options(recipe)
    del options["lr"]
    if ("learner", "warmup_steps") not in {override(pair)[0] for pair in overrides}:
        del options["warmup_steps"]
    return options


@contextmanager
def _reserved(out: Path | None, source: str) -> Iterator[Path]:
    """An empty folder for the model, made now, so that nobody else takes its name; it goes where it stays empty.

    Raises:
        UsageError: there is something at *out*.
        StorageError: it cannot be made.
    """
    from quintain.training import storing

    from .tuning import filled, new_folder

    if out is not None and filled(out):
        raise UsageError(f"--out {str(out)!r} is there already; name a new folder, or remove it")
    name = source.partition(":")[2] or source.rstrip("/")
    place = (Path("sft") if out is None else out).absolute()
    new_folders = [path for path in (place, *place.parents) if not path.exists()]
    with storing(place):
        place.mkdir(parents=True, exist_ok=True)
        if out is None:
            out = new_folder(Path("sft"), Path(name).stem.lower() or "model")
            new_folders.insert(0, out)
    try:
        yield out if out.name not in ("", "..") else out.resolve()
    finally:
        for path in new_folders:
            with suppress(OSError):  # it is filled, or gone
                path.rmdir()


def _announce(screen: Screen, source: ExampleSource, asked: int) -> None:
    from .sources import reasons

    more = "; there may be more, see --examples" if len(source.examples) == asked else ""
    left = f"; left out: {reasons(source.left_out)}" if source.left_out else ""
    screen.note(f"{len(source.examples):,} examples from {source.kind} of {source.name}{more}{left}")


def _base_model(recipe: Recipe, screen: Screen) -> LoadedModel:
    from quintain.training import ModelRequest, model_source, seed_everything

    seed_everything(recipe.run.seed)
    model = model_source(recipe).load_base(ModelRequest.of(recipe, screen, specs=()))
    model.tokenizer.use_tool_format(recipe.model.tool_format)
    model.tokenizer.use_template(recipe.model.template)
    return model


def _shown(screen: Screen) -> Any:
    started = False

    def progress(update: EpochUpdate) -> None:
        nonlocal started
        if not started:
            screen.phase("training", total=update.updates)
            started = True
        screen.advance()
        if update.number * NOTES // update.updates > (update.number - 1) * NOTES // update.updates:
            rate = update.tokens / max(update.seconds, 1e-9)
            screen.note(
                f"update {update.number}/{update.updates}  epoch {update.epoch}/{update.epochs}  "
                f"loss {update.loss:.3f}  lr {update.lr:.1e}  {rate:,.0f} tokens/s"
            )

    return progress


def _end(report: SFTReport, out: Path, as_json: bool) -> None:
    if not report.finished:
        where = f"; the model so far: {out}" if report.updates else "; nothing was trained yet"
        raise click.Abort(f"stopped after {report.updates} updates{where}")
    if as_json:
        click.echo(json.dumps({**report.to_json(), "path": str(out)}))
        return
    from .sources import reasons

    click.echo(f"{out}: {report.parameters:,} parameters, {report.updates} updates on {report.examples:,} examples")
    if report.thinking is not None:
        click.echo(f"with thought: {report.thinking:,}; without: {report.examples - report.thinking:,}")
    if report.left_out:
        click.echo(f"left out: {reasons(report.left_out)}")
    click.echo(f"loss by epoch: {', '.join(f'{loss:.3f}' for loss in report.losses)} nats a token")
    environment = report.environment or "ENVIRONMENT"
    click.echo(f"next: quintain eval {environment} --model {out}")
    click.echo(f"      quintain train --model {out} --env {environment}")
