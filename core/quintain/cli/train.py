"""`quintain train`: start or resume a run."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ..errors import EnvironmentFault, NoTasksError, PluginError, QuintainError, UsageError
from .options import CommandWithHints, Count, arg_option, quiet_option, set_option

if TYPE_CHECKING:
    from ..console.screen import Screen
    from ..recipe.tables import Recipe
    from ..store.run_folder import RunFolder

REPLACEMENTS = {
    "learning_rate": "--lr {}",
    "num_generations": "--set batch.group_size={}",
    "batch_size": "--set batch.prompts={}",
    "per_device_train_batch_size": "--set learner.token_budget=TOKENS",
    "beta": '--set \'algorithm.args.kl={{ where = "loss", estimator = "k3", coefficient = {} }}\'',
    "max_steps": "--steps {}",
    "epochs": "--steps N (a step takes batch.prompts tasks)",
    "num_train_epochs": "--steps N (a step takes batch.prompts tasks)",
    "output_dir": "--folder {}",
    "max_tokens": "--set sampling.max_tokens={}",
    "max_completion_length": "--set sampling.max_tokens={}",
    "eval_steps": "--set evaluation.every={}",
    "save_steps": "--set checkpoint.every={}",
    "report_to": "--tracker {}",
    "dataset": "dataset --arg path={}",
    "data": "--arg data={0} (the environment dataset: --arg path={0})",
    "path": "--arg path={}",
    "slots": "--set engine.args.slots={}",
    "lora": "--set model.lora.r=16",
    "lora_r": "--set model.lora.r={}",
    "lora_alpha": "--set model.lora.lora_alpha={}",
    "use_peft": "--set model.lora.r=16",
}
"""Options that other trainers have, and the words that do the same here; ``{}`` is the value."""

EPILOG = """
\b
Examples:
  quintain train                                SmolLM2-135M learns to write JSON
  quintain train arithmetic                     the quickstart: a small model, no download
  quintain train code                           Python functions, in a sandbox
  quintain train gsm8k --model Qwen/Qwen3-0.6B  an environment
  quintain train dataset --arg path=qa.jsonl --reward score.py:score
  quintain train recipe.toml --set learner.lr=1e-5 --set batch.prompts=16
  quintain train --dry-run > recipe.toml        the quickstart, to edit
  quintain train --resume arithmetic-1

A recipe that begins with extends = "quickstart" (or "code", "pretrained", a path) lists the keys that differ; other
recipes have the defaults of docs/recipes.md. The default model is first fine-tuned, for one to several minutes,
and cached (that of arithmetic is included); `quintain start` does only that.
"""


@click.command(cls=CommandWithHints, replacements=REPLACEMENTS, epilog=EPILOG)
@click.argument("recipe", required=False)
@click.option(
    "--env", "-e", help="Environment, replaces those of the recipe (`quintain list environments`)."
)
@click.option(
    "--model",
    "-m",
    help='Hugging Face id, folder, run, or "default" (a small model that Quintain trains itself).',
)
@arg_option
@click.option(
    "--reward", metavar="EXPR", help="Outcome reward: FILE:function, a name, or an expression."
)
@click.option("--algorithm", metavar="NAME", help="Algorithm (`quintain list algorithms`).")
@click.option("--lr", type=float, help="Learning rate.")
@set_option
@click.option("--seed", type=Count(0), help="Random seed.")
@click.option("--steps", type=Count(1), help="Training steps: collect rollouts, then update.")
@click.option("--name", help="Run name (default: environment name and a number).")
@click.option("--folder", help="Parent folder of the run folders.  [default: runs]")
@click.option(
    "--tracker",
    "trackers",
    multiple=True,
    metavar="NAME",
    help="Log to tensorboard, wandb, mlflow, trackio.",
)
@click.option("--resume", metavar="RUN", help="Resume this run from its last checkpoint.")
@click.option("--force", is_flag=True, help="With --resume: use a recipe that was edited since.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the recipe and print it with all defaults; train nothing.",
)
@quiet_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary, or what --dry-run says, as one JSON object.",
)
def train(
    recipe: str | None,
    resume: str | None,
    force: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Train a model by reinforcement learning.

    RECIPE is a TOML file, a recipe such as "code", or an environment as for `quintain eval`.
    Alone, or with --seed, --steps, --name and --folder, `quintain train` runs the recipe
    "extraction" and downloads its model once (93 MB); without network the recipe "quickstart".
    Other options without RECIPE change "quickstart", with --model "pretrained".

    Ctrl-C saves a checkpoint and stops; --resume continues the run, also after a crash.
    """
    if choices["model"] is not None:
        from ..models.hf import check_folder
        from ..recipe.resolve import is_model_source

        if not is_model_source(choices["model"]):
            check_folder(choices["model"])  # before torch is imported
    if resume is not None:
        _only_resume(recipe, dry_run, choices)
    elif force:
        raise click.UsageError(
            "--force is for --resume of a run whose recipe was edited; leave it out"
        )
    chosen = any(pair.startswith("environments") for pair in choices["overrides"])
    told = recipe or choices["env"] or resume or chosen or quiet or as_json
    # Where torch is missing, the error below is all that there is to say.
    if choices["model"] is not None and not told and find_spec("torch"):
        from ..recipe.extends import bundled_text
        from ..recipe.resolve import base_recipe
        from ..recipe.tables import Recipe

        base = base_recipe(choices["model"])
        trained = Recipe.parse(bundled_text(base)).environments[0].label
        click.echo(
            f"no environment named: the recipe {base!r} trains on {trained}; --env NAME trains on "
            "another (`quintain list environments`)",
            err=True,
        )
    if recipe is None and resume is None and not _changes_recipe(choices):
        from .starting_recipe import FIRST, recipe_alone

        _recipe(FIRST, **choices)  # options that are refused need no download
        recipe = recipe_alone(quiet=quiet or as_json, bring=not dry_run)
    if dry_run:
        from ..console.screen import Screen
        from ..recipe.check import check_recipe
        from ..recipe.placement import placement_data, placement_of
        from ..recipe.plan import RunPlan
        from ..recipe.sources import ModelRequest, ModelSource

        resolved = _recipe(recipe, **choices)
        notes = check_recipe(resolved)
        notes += ModelSource.of(resolved).remarks(ModelRequest.of(resolved, Screen(quiet=True)))
        if as_json:
            devices = placement_data(placement_of(RunPlan.of(resolved)))
            shown = {"recipe": resolved.model_dump(mode="json"), "notes": notes, "devices": devices}
            click.echo(json.dumps(shown))
            return
        for note in notes:
            click.echo(note, err=True)
        click.echo(resolved.to_toml(), nl=False)
        return
    with _opened(recipe, resume, choices) as folder:
        try:
            _train(folder, quiet or as_json, as_json, force)
        except (UsageError, PluginError, NoTasksError, EnvironmentFault):
            if resume is None:
                _discard(folder)
            raise


OF_THE_RUN = {"seed", "steps", "name", "folder"}
"""Options that choose neither what is trained nor how."""


def _changes_recipe(choices: Mapping[str, Any]) -> bool:
    """Return whether an option says what to train, or how."""
    return any(value not in (None, ()) for name, value in choices.items() if name not in OF_THE_RUN)


def _only_resume(recipe: str | None, dry_run: bool, choices: dict[str, Any]) -> None:
    options = {"overrides": "set", "args": "arg", "trackers": "tracker"}
    refused = [
        f"--{options.get(k, k)}"
        for k, v in choices.items()
        if v not in (None, ()) and k != "folder"
    ]
    refused += [recipe] if recipe is not None else []
    if refused:
        raise click.UsageError(
            f"--resume takes the recipe of the run unchanged; leave out {', '.join(refused)}. A new "
            "run with other settings begins from its weights with --model RUN instead; to change "
            "this one, edit its recipe.toml and add --force"
        )
    if dry_run:
        raise click.UsageError(
            "--resume continues a run whose recipe was checked; leave out --dry-run"
        )


def _discard(folder: RunFolder) -> None:
    """Remove the folder of a run that failed before it saved any result, so that its name is
    free.
    """
    if folder.metrics_path.exists() or any(
        any(f.glob("*")) for f in (folder.checkpoints, folder.rollouts)
    ):
        return
    for file in (folder.recipe_path, folder.provenance_path, folder.path / "run.lock"):
        file.unlink(missing_ok=True)
    for empty in (folder.checkpoints, folder.rollouts, folder.path):
        with suppress(OSError):  # missing, or has files of the user
            empty.rmdir()


def _recipe(
    path: str | None,
    *,
    env: str | None,
    model: str | None,
    args: tuple[str, ...] = (),
    reward: str | None = None,
    overrides: tuple[str, ...],
    trackers: tuple[str, ...] = (),
    algorithm: str | None = None,
    lr: float | None = None,
    **keys: Any,
) -> Recipe:
    from ..recipe.extends import BUNDLED
    from ..recipe.resolve import is_component, is_model_source, with_placement
    from ..recipe.rewards import as_expression
    from ..recipe.tables import Recipe
    from ..store.best import checkpoint_note
    from ..store.runs import model_named
    from .starting_recipe import recipe_for

    file = Path(path or "")
    names_environment = (
        path is not None
        and path not in BUNDLED
        and is_component("environment", path)
        and not file.is_file()
    )
    if env is None and (names_environment or file.suffix == ".py"):
        path, env = None, path
    changes = [f"run.{key}={value}" for key, value in keys.items() if value is not None]
    if algorithm is not None:
        changes.append(f"algorithm.use={json.dumps(algorithm)}")
    if lr is not None:
        changes.append(f"learner.lr={lr!r}")
    if model is not None:
        path_of_model = (
            model
            if is_model_source(model)
            else model_named(model, keys.get("folder") or "runs").path
        )
        changes.append(f"model.name={json.dumps(path_of_model)}")
    if env is not None and path is not None:
        changes.append(f"environments=[{{use={json.dumps(env)}}}]")
    changes += [f"environments.0.args.{pair}" for pair in args]
    if reward is not None:
        changes.append(f"environments.0.reward={json.dumps(as_expression(reward))}")
    if trackers:
        changes.append(
            f"trackers=[{', '.join(f'{{use={json.dumps(name)}}}' for name in trackers)}]"
        )
    all_overrides = [*changes, *overrides]
    recipe = Recipe.load(path, all_overrides) if path else recipe_for(env, all_overrides, model)
    if path in BUNDLED and is_component("environment", path):
        _arguments_of_another(path, recipe.environments[0].use, args)
    # a run folder, as --model takes one
    if os.path.isfile(os.path.join(recipe.model.name, "recipe.toml")):
        recipe = recipe.replace({"model.name": model_named(recipe.model.name).path})
    if note := checkpoint_note(recipe.model.name):
        click.echo(f"{model or recipe.model.name}: {note}", err=True)
    from ..recipe.precision import settled  # imports torch: a mistake above is said at once

    return with_placement(settled(recipe))


def _arguments_of_another(recipe: str, use: str, args: Sequence[str]) -> None:
    """Refuse arguments of the environment that is named like a recipe, where the recipe trains on
    another one, *use*.

    Raises:
        UsageError: with the words that train on the environment.
    """
    from ..registry.lookup import current

    try:
        trained, named = (current().load("environment", name) for name in (use, recipe))
    except QuintainError:
        return  # the run says what is wrong with it
    for key in (pair.partition("=")[0] for pair in args):
        if key in vars(named).get("__dataclass_fields__", ()) and not hasattr(trained, key):
            raise UsageError(
                f"the recipe {recipe!r} trains on {use!r}, which has no argument {key!r}; for the "
                f"environment {recipe!r} write --env {recipe} instead of {recipe}"
            )


def _opened(path: str | None, resume: str | None, choices: dict[str, Any]) -> RunFolder:
    """Return the folder of the run: that of ``--resume``, or a new one once the recipe is checked."""
    from ..store.run_folder import RunFolder
    from ..store.runs import find_run, free_name

    if resume is not None:
        return RunFolder.open(find_run(resume, choices["folder"] or "runs"))
    recipe = _recipe(path, **choices)
    # Imported once the recipe is read: they import torch, and a mistake is said at once.
    from ..recipe.check import check_recipe
    from ..recipe.resolve import pinned_recipe

    if not recipe.run.name:
        stem = Path(
            recipe.environments[0].use.partition(":")[2] or recipe.environments[0].use
        ).name.lower()[:50]
        recipe = recipe.replace({"run.name": free_name(recipe.run.folder, stem)})
    for note in check_recipe(recipe):  # an invalid recipe must not take the name
        if note.startswith("warning: "):
            click.echo(note, err=True)
    return RunFolder.create(
        Path(recipe.run.folder) / recipe.run.name, pinned_recipe(recipe).to_toml()
    )


def _train(folder: RunFolder, quiet: bool, as_json: bool, force: bool) -> None:
    from ..console.screen import for_terminal, program_name
    from ..errors import Interrupted, RunError, StorageError
    from ..recipe.tables import Recipe
    from ..run.build import run_training
    from ..run.provenance import check_unchanged
    from ..store.storage import steps_in

    recipe = Recipe.parse(folder.recipe(), source=str(folder.recipe_path))
    if not force:
        check_unchanged(folder, recipe)
    with for_terminal(quiet=quiet) as screen:
        screen.note(f"run folder: {folder.shown}")
        saved_before = steps_in(folder.checkpoints)
        for name in folder.lost_logs(saved_before[-1][1]) if saved_before else ():
            screen.warn(f"{name} is missing: the run goes on without its lines")
        again = f"{program_name()} train --resume {shlex.quote(str(folder.shown))}"
        try:
            with sigterm_as_ctrl_c():
                summary = None if force else _recorded(folder, screen)
                if summary is None:
                    summary = run_training(recipe, folder, screen)
                else:
                    screen.note("the run has finished: its results as recorded")
        except (Interrupted, KeyboardInterrupt) as e:
            measure = f"{program_name()} eval --like {shlex.quote(str(folder.shown))}"
            raise click.Abort(
                f"{str(e) or 'stopped'}; continue with: {again}; measure what it has learned with: "
                f"{measure}"
            ) from e
        except Exception as e:
            saved = steps_in(folder.checkpoints)
            # A damaged folder says itself what to do: the same command again would fail again.
            if saved and (saved != saved_before or not isinstance(e, (RunError, StorageError))):
                screen.warn(
                    f"the run failed; every step up to {saved[-1][0]} is saved. To continue: "
                    f"{again}"
                )
            raise
    if as_json:
        click.echo(json.dumps(summary))
        return
    if not quiet:
        from .summary import show

        show(summary, folder)


def _recorded(folder: RunFolder, screen: Screen) -> dict[str, Any] | None:
    """Return the summary of a run that has finished; ``None`` before, or if it is damaged.

    Raises:
        RunError: the last checkpoint is damaged.
    """
    from ..errors import RunError
    from ..store.checkpoint import latest

    summary: dict[str, Any] = {}
    try:
        summary = folder.summary() or {}
    except RunError as e:
        screen.warn(f"{e}. The run goes on from its last checkpoint and writes it again")
    if not {"steps", "stopped", "seconds", "held_out"} <= summary.keys():
        return None
    checkpoint = latest(folder)
    if (checkpoint.step if checkpoint else 0) != summary["steps"]:
        return None
    if checkpoint is not None:
        checkpoint.verify()
    return summary


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, until the run installs its own handlers."""

    def as_ctrl_c(number: int, frame: FrameType | None) -> None:
        # A running event loop handles Ctrl-C by cancelling its main task; an exception would end
        # any one of its tasks.
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:  # the shell ignores Ctrl-C for background jobs
            signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGTERM, as_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
