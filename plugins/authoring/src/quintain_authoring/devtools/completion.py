"""`quintain completion`: the line that lets a shell complete commands, options, components, runs
and recipes.
"""

from __future__ import annotations

import click

LINES = {
    "bash": 'eval "$(_QUINTAIN_COMPLETE=bash_source quintain)"',
    "zsh": 'eval "$(_QUINTAIN_COMPLETE=zsh_source quintain)"',
    "fish": "_QUINTAIN_COMPLETE=fish_source quintain | source",
}
"""What the start-up file of a shell needs."""


@click.command("completion")
@click.argument("shell", type=click.Choice([*LINES]))
def completion(shell: str) -> None:
    """Print the line that lets SHELL complete commands, options and names; add it to the shell's
    start-up file.
    """
    click.echo(LINES[shell])
