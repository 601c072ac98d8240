"""`quintain watch`: follow runs on a page of this machine, or in the terminal."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from quintain.errors import UsageError
from quintain.store import find_run
from quintain_viewer.runs import list_runs

from .server import WatchServer


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port (default: a free one)."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--terminal", "-t", is_flag=True, help="Show the first RUN in the terminal instead.")
@click.option("--once", is_flag=True, help="With --terminal: show the state and end.")
@click.option("--price", type=float, help="Price of an hour of the machine, for the cost.")
@click.option(
    "--folder", default="runs", show_default=True, help="Parent folder of the run folders."
)
def watch(
    names: Sequence[str],
    port: int,
    opens: bool,
    terminal: bool,
    once: bool,
    price: float | None,
    folder: str,
) -> None:
    """Follow each RUN (default: the newest), running or finished, on a page of this machine.

    The page shows curves, rollouts as they finish, what runs now, alerts, cost, and the timeline of
    a step. Several runs stand beside each other. Open the address that the command prints. It has a
    token, without which nobody gets data. On another machine, forward the port with ssh -L.

    \b
    quintain watch
    quintain watch arithmetic-1 arithmetic-2 --open
    quintain watch arithmetic-1 --terminal
    """
    paths = [find_run(name, folder) for name in names]
    known = [path.name for path in paths]
    if len(places := {path.parent.resolve() for path in paths} or {Path(folder)}) > 1:
        raise UsageError("the runs of a page lie in one folder; open a page for each folder")
    (place,) = places
    if once and not terminal:
        raise click.UsageError("--once is for --terminal; leave it out")
    if terminal:
        from .terminal import follow

        newest = paths or [run.path for run in list_runs(folder)[:1]]
        if not newest:
            raise UsageError(f"no runs in {folder!r}")
        with suppress(KeyboardInterrupt):
            follow(newest[0], once=once, price=price)
        return
    server = WatchServer(place, known, port=port, price=price)
    click.echo(f"{server.url}\nCtrl-C ends it", err=True)
    if opens:
        webbrowser.open(server.url)
    try:
        server.serve()
    except KeyboardInterrupt:
        time.sleep(0)  # the address is free when the process ends
