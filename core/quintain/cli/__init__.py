"""The command line: a table of commands, each imported when it is run, and one policy for
errors.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import __version__, lazy_names
from ..errors import PluginError, QuintainError, UnknownNameError, UsageError
from ..tracebacks import describe_error

if TYPE_CHECKING:
    from ..registry.manifest import Entry
    from .options import CommandWithHints as CommandWithHints
    from .options import Count as Count
    from .options import arg_option as arg_option
    from .options import folder_option as folder_option
    from .options import json_option as json_option
    from .options import quiet_option as quiet_option
    from .options import set_option as set_option
    from .starting_recipe import recipe_for as recipe_for
    from .train import sigterm_as_ctrl_c as sigterm_as_ctrl_c

COMMANDS = {
    "train": ("quintain.cli.train:train", "Train a model with a recipe, or resume a run."),
}
"""Location and one-line help of each command, by name; a row imports nothing."""

EXTRA = {"datasets", "numpy", "pyarrow", "safetensors", "tomli_w", "torch", "transformers"}
"""Modules that the extra `train` brings."""

TORCH = "torch"
"""Tag of a plugin's command that imports torch, for seconds, before it has anything to say."""

INTERRUPTED = 130
CLOSED_PIPE = 141  # 128 + SIGPIPE, as a shell has it for `cat FILE | head`

# Helpers that plugin commands share; `quintain --help` imports none of them.
__getattr__, __dir__ = lazy_names(__name__, "main")


class Commands(click.Group):
    """The commands of the table, then those of plugins (group ``quintain.commands``)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in _plugin_commands() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            module, _, attribute = COMMANDS[name][0].partition(":")
            command: click.Command = getattr(import_module(module), attribute)
            return _completed(command)

        from ..registry.known import known_plugins
        from ..registry.lookup import current

        try:
            loaded = current().load("command", name)
        except UnknownNameError as e:
            if ("command", name) in known_plugins():
                raise  # the error names the distribution to install
            raise UnknownNameError.of(
                "command", name, self.list_commands(ctx), "`quintain --help` shows all"
            ) from e
        if not isinstance(loaded, click.Command):
            raise PluginError(
                f"command {name!r} is a {type(loaded).__name__}; expected a click command"
            )
        return _completed(loaded)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the rows of each section; click would import every command to read its help."""
        from ..registry.manifest import SECTIONS

        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        rows["start"] = [(name, summary) for name, (_, summary) in COMMANDS.items()]
        others: list[tuple[str, str]] = []
        for name, entry in _plugin_commands().items():
            if name not in COMMANDS:
                rows.get(entry.section, others).append((name, entry.summary))
        for section, title in SECTIONS.items():
            _write_section(formatter, title, rows[section])
        _write_section(formatter, "Other plugins", others)


def _write_section(
    formatter: click.HelpFormatter, title: str, rows: Sequence[tuple[str, str]]
) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def _completed(command: click.Command) -> click.Command:
    """Return *command*, whose parameters complete names if a shell asks for words."""
    if "_QUINTAIN_COMPLETE" in os.environ:
        from .completion import complete_names

        complete_names(command)
    return command


def _imports_torch(name: str) -> bool:
    """Return whether the command *name* imports torch before it has anything to say."""

    from ..registry.lookup import current

    if name in COMMANDS:
        return True
    try:
        entries = [current().entry(c) for c in current().matching(name, "command")]
    except PluginError:
        return False  # running the command shows what is wrong with the manifest
    return any(TORCH in entry.tags for entry in entries if entry)


def _plugin_commands() -> dict[str, Entry]:
    """Return what the manifest says of each plugin command, by name."""

    from ..registry.lookup import current
    from ..registry.manifest import Entry

    entries: dict[str, Entry] = {}
    for component in current().components("command"):
        try:
            entry = current().entry(component)
        except PluginError:
            entry = None  # `quintain list commands` shows what is wrong with the manifest
        origin = f"From {component.distribution} {component.version}."
        entries[component.name] = entry or Entry(
            kind="command", name=component.name, summary=origin
        )
    return entries


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="quintain", message="%(prog)s %(version)s")
def root() -> None:
    """Reinforcement learning for language models, with plugins."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0: success; 1: failure, or a call of ``sys.exit``; 2: error in the command line or the recipe
    (no traceback); 130: Ctrl-C; 141: nothing reads the output. With ``--json``, an error or
    interruption is also a JSON object on stdout.
    """
    if sys.platform == "win32":
        return _fail(
            "Quintain runs on Linux; on Windows, use WSL", "UsageError", 2, "--json" in sys.argv
        )
    words = list(sys.argv[1:] if argv is None else argv)
    quiet = {"--json", "--help", "-h"} & {*words}
    if words and not quiet and sys.stderr.isatty() and _imports_torch(words[0]):
        click.echo("quintain: loading ...", err=True)
    from ..process.threads import set_threads
    from ..process.watchdog import Watchdog, end_without_threads, seconds_of, warn

    set_threads()
    with Watchdog(warn, seconds_of("QUINTAIN_STALL_SECONDS", 30.0)):
        try:
            status = _run(words, "--json" in words)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # takes what Python flushes when it exits
            status = CLOSED_PIPE
    if argv is None:
        end_without_threads(status)
    return status


def _run(words: list[str], as_json: bool) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    elif words == ["version"]:
        words = ["--version"]
    try:
        status: Any = root.main(args=words, prog_name="quintain", standalone_mode=False)
    except click.ClickException as e:
        text, context = e.format_message().rstrip("."), getattr(e, "ctx", None)
        if type(e).__name__ == "NoArgsIsHelpError" and not as_json:  # the message is the help
            click.echo(text, err=True)
            return e.exit_code
        hint = f" (`{context.command_path} --help` shows the options)" if context else ""
        if isinstance(e, click.MissingParameter) and text.endswith("'RUN'"):
            runs = [p.parent for p in Path("runs").glob("*/recipe.toml")]
            if runs:
                hint = f"; the newest is {max(runs, key=os.path.getmtime)}{hint}"
        return _fail(f"{text[:1].lower()}{text[1:]}{hint}", type(e).__name__, e.exit_code, as_json)
    except QuintainError as e:
        return _fail(str(e), type(e).__name__, 2 if isinstance(e, UsageError) else 1, as_json)
    except ModuleNotFoundError as e:
        if e.name not in EXTRA:
            raise
        return _fail(
            f"this needs {e.name}: pip install 'quintain[train]'", "UsageError", 2, as_json
        )
    except (click.Abort, KeyboardInterrupt) as e:
        return _fail(str(e) or "interrupted", "Interrupted", INTERRUPTED, as_json)
    except SystemExit as e:
        # of an author's code, such as a library that calls sys.exit(0): the work is not done
        if "_QUINTAIN_COMPLETE" in os.environ:  # click has completed the line of a shell
            raise
        # rich and click exit on a closed pipe
        if isinstance(e.__context__, BrokenPipeError) or not _is_read():
            raise BrokenPipeError from e
        message = (
            f"the command was ended by {describe_error(e)}; code that Quintain calls must return or "
            f"raise an exception"
        )
        return _fail(message, "SystemExit", 1, as_json)
    return status if isinstance(status, int) else 0


def _is_read() -> bool:
    """Return whether standard output is open and, if it is a pipe, something reads it."""
    stdout = select.poll()
    stdout.register(1, 0)  # 0: errors only
    return not stdout.poll(0)


def _fail(message: str, kind: str, status: int, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"error": {"type": kind, "message": message}}))
    else:
        from ..console.screen import printable

        click.echo(f"{'error: ' * (status != INTERRUPTED)}{printable(message)}", err=True)
    return status
