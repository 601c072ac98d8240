"""The options that commands share that train a model on stored examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count, folder_option, json_option, quiet_option
from quintain.errors import UsageError

from .place import reserved

if TYPE_CHECKING:
    from quintain.console import Screen
    from quintain.recipe import Recipe

    from .supervised import EpochUpdate


KEYS = ("learner", "model")
REFUSED = {
    "name": "say --model",
    "dtype": "weights train in float32; learner.precision=bf16 computes in less",
    "start": "this is supervised training itself; `quintain start` trains the default model",
}
"""Keys of [model] that have no use here, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What the options of `training_options` say.

    Attributes:
        model: folder, run, hub id, or a component that loads models.
        out: the folder to write; ``None`` for the first free one.
        lr: the highest learning rate.
        batch: rows per update.
        overrides: ``a.b=value``, keys of a recipe.
        folder: of the run folders.
    """

    model: str
    out: Path | None
    epochs: int
    lr: float
    batch: int
    overrides: tuple[str, ...]
    folder: str
    quiet: bool
    as_json: bool

    def recipe(self, command: str, source: str, *, seed: int, args: Sequence[str] = ()) -> Recipe:
        """Make the recipe of a *command* that trains the model on *source* without rollouts.

        Args:
            args: ``key=value`` of the environment, where *source* is one.

        Raises:
            UsageError: an override of a key that has no meaning here.
        """
        from quintain.recipe import Recipe, is_model_source, parsed_override, settled
        from quintain.store import checkpoint_note, model_named

        for pair in self.overrides:
            key = parsed_override(pair)[0]
            if key[0] not in KEYS or len(key) < 2:
                raise UsageError(
                    f"--set {pair!r}: here only keys of learner and model can be set, as in "
                    f"learner.betas"
                )
            if key[0] == "model" and key[1] in REFUSED:
                raise UsageError(f"--set {pair!r}: {REFUSED[key[1]]}")
        model = self.model
        path = model if is_model_source(model) else model_named(model, self.folder).path
        if (note := checkpoint_note(path)) and not self.quiet:
            click.echo(f"{model}: {note}", err=True)
        settings = [f"environments.0.use={json.dumps(source)}", f"run.seed={seed}"]
        settings += [f"model.name={json.dumps(path)}", f"learner.lr={float(self.lr)!r}"]
        settings += [f"environments.0.args.{pair}" for pair in args]
        return settled(Recipe.parse("", [*settings, *self.overrides], source=command))

    def settings(self, recipe: Recipe) -> dict[str, Any]:
        """Return the arguments of ``tune`` that these options and the *recipe* set. The warm-up is
        left to the training, unless it was set.
        """
        from quintain.recipe import parsed_override

        options = recipe.learner.options()
        lr = options.pop("lr")
        if ("learner", "warmup_steps") not in {parsed_override(pair)[0] for pair in self.overrides}:
            del options["warmup_steps"]
        return {
            "epochs": self.epochs,
            "lr": lr,
            "batch": self.batch,
            "seed": recipe.run.seed,
            "options": options,
        }

    @contextmanager
    def started(
        self, parent: Path, source: str
    ) -> Iterator[tuple[Path, Screen, Callable[[], bool]]]:
        """Take the folder to write, show a screen and listen to Ctrl-C; they are given back at the
        end.

        Args:
            parent: of ``SOURCE-N``, where no folder was named.

        Returns:
            The folder, the screen, and whether somebody asked to stop.
        """
        from quintain.console import for_terminal
        from quintain.process import stop_on_signal

        with (
            reserved(self.out, parent, source) as place,
            for_terminal(quiet=self.quiet or self.as_json) as screen,
            stop_on_signal(
                screen, "stopping after this update and saving; once more to stop at once"
            ) as stop,
        ):
            yield place, screen, stop


def training_options(
    *, rows: str, out: str, epochs: int, lr: float, fresh_lr: float, model: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options ``--model``, ``--out``, ``--epochs``, ``--lr``, ``--batch``,
    ``--set``, ``--folder``, ``--quiet`` and ``--json``; it gets their values as one argument,
    ``training``, a `TrainingOptions`.

    Args:
        rows: what the model trains on, as in "Rows per update."
        out: the folder that is written by default.
        epochs: passes over the rows by default.
        lr: the learning rate by default.
        fresh_lr: the same for the default model, which is untrained.
        model: the model by default; ``None`` requires ``--model``.
    """
    default: dict[str, Any] = (
        {"required": True} if model is None else {"default": model, "show_default": True}
    )
    rates = f"{_power(lr)}; {_power(fresh_lr)} for the default model"
    options = (
        click.option(
            "--model",
            "-m",
            **default,
            help=(
                'Folder, run, Hugging Face id, or "default": the small model that Quintain brings, '
                "untrained."
            ),
        ),
        click.option(
            "--out",
            "-o",
            type=click.Path(path_type=Path),
            help=f"Folder to write.  [default: {out}]",
        ),
        click.option(
            "--epochs",
            type=Count(1),
            default=epochs,
            show_default=True,
            help=f"Number of passes over the {rows}.",
        ),
        click.option("--lr", type=float, help=f"Highest learning rate.  [default: {rates}]"),
        click.option(
            "--batch",
            type=Count(1),
            default=32,
            show_default=True,
            help=f"{rows.capitalize()} per update.",
        ),
        click.option(
            "--set",
            "-s",
            "overrides",
            multiple=True,
            metavar="A.B=VALUE",
            help=(
                "Key of a recipe's [learner], model.lora, model.template or model.device "
                "(repeatable)."
            ),
        ),
        folder_option,
        quiet_option,
        json_option,
    )

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_training(**values: Any) -> Any:
            training_values = {f.name: values.pop(f.name) for f in fields(TrainingOptions)}
            if training_values["lr"] is None:
                training_values["lr"] = fresh_lr if training_values["model"] == "default" else lr
            return command(training=TrainingOptions(**training_values), **values)

        for option in reversed(options):  # decorators apply from the last one up
            with_training = option(with_training)
        return with_training

    return decorated


def _power(rate: float) -> str:
    return f"{rate:.0e}".replace("e-0", "e-")


def show_update(screen: Screen, update: EpochUpdate, words: str) -> None:
    """Show an update on the screen, with *words* about it."""
    if update.number == 1:
        screen.phase("training", total=update.updates)
    screen.update(update.number, update.updates, words)
