"""`quintain watch`: follow runs on a page of this machine, or in the terminal."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from quintain.cli import folder_option
from quintain.errors import UsageError
from quintain.store import find_run

from ..viewer.runs import list_runs
from .server import WatchServer


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port (default: a free one)."
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--terminal", is_flag=True, help="Show the first RUN in the terminal instead.")
@click.option("--once", is_flag=True, help="With --terminal: show the state and end.")
@click.option(
    "--report",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a report of the first RUN to this HTML file instead, and Markdown beside it.",
)
@click.option("--price", type=float, help="Price of an hour of the machine, for the cost.")
@folder_option
def watch(
    names: Sequence[str],
    port: int,
    opens: bool,
    terminal: bool,
    once: bool,
    page: Path | None,
    price: float | None,
    folder: str,
) -> None:
    """Follow each RUN (default: the newest), running or finished, on a page of this machine.

    The page shows curves, rollouts as they finish, what runs now, alerts, cost, and the timeline of
    a step. Several runs stand beside each other. Open the address that the command prints. It has a
    token, without which nobody gets data. On another machine, forward the port with ssh -L.

    A report is for an appendix: results and curves with intervals, data, samples chosen by rule,
    failures by cause, hardware, cost, versions, recipe, and the command that repeats the run.

    \b
    quintain watch
    quintain watch arithmetic-1 arithmetic-2 --open
    quintain watch arithmetic-1 --terminal
    quintain watch arithmetic-1 --report appendix.html --price 2.5
    """
    paths = [find_run(name, folder) for name in names]
    known = [path.name for path in paths]
    if len(places := {path.parent.resolve() for path in paths} or {Path(folder)}) > 1:
        raise UsageError("the runs of a page lie in one folder; open a page for each folder")
    (place,) = places
    if once and not terminal:
        raise click.UsageError("--once is for --terminal; leave it out")
    if terminal or page:
        newest = paths or [run.path for run in list_runs(folder)[:1]]
        if not newest:
            raise UsageError(f"no runs in {folder!r}")
        if page:
            from .report import write_report

            write_report(newest[0], page, price=price)
            click.echo(f"wrote {page} and {page.with_suffix('.md')}")
            return
        from .terminal import follow

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
