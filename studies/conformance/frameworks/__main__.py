"""`python -m studies.conformance.frameworks`: agents of well-known frameworks, unmodified, against
the gateway, each in a virtual environment of its own.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import venv
from pathlib import Path

import click

from . import FRAMEWORKS, Framework, Played, played

HEAD = ("framework", "version", "API", "right", "tokens kept", "conversations", "remarks")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*FRAMEWORKS]))
@click.option(
    "--envs",
    default="build/frameworks",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the virtual environments; those that are there are used again.",
)
@click.option("--here", is_flag=True, help="This interpreter, in place of virtual environments.")
@click.pass_context
def frameworks(ctx: click.Context, names: tuple[str, ...], envs: Path, here: bool) -> None:
    """Play agents of frameworks against the gateway and print a table of what was kept.

    Exit status: 0 if each framework is installed, answers right and keeps each token, else 1.
    """
    logging.getLogger("quintain.gateway").setLevel(logging.ERROR)  # it warns of rewritten histories
    click.echo(_line(HEAD) + "\n|" + "---|" * len(HEAD))
    failed = False
    for name in names or FRAMEWORKS:
        framework = FRAMEWORKS[name]
        python = (
            sys.executable if here else str(envs.resolve() / framework.package / "bin" / "python")
        )
        reason = "" if here else _installed(envs / framework.package, framework)
        if reason:
            failed = True
            click.echo(_line((framework.package, "-", "-", "-", "-", "-", reason)))
            continue
        for api in framework.apis:
            found = asyncio.run(played(python, name, api))
            failed = failed or not found.passed
            click.echo(_line(_cells(framework, _version(python, framework), api, found)))
    ctx.exit(failed)


def _cells(framework: Framework, version: str, api: str, found: Played) -> tuple[str, ...]:
    return (
        framework.package,
        version,
        api,
        f"{found.right} of {found.episodes}",
        f"{found.trained} of {found.sampled}",
        " or ".join(map(str, sorted(found.conversations))),
        ". ".join([framework.remark(api), *dict.fromkeys(found.faults)]),
    )


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _installed(folder: Path, framework: Framework) -> str:
    """Make the virtual environment of a framework unless it is there, and return why that failed;
    empty if it did not.
    """
    python = str(folder.resolve() / "bin" / "python")
    if Path(python).exists() and _version(python, framework):
        return ""
    venv.create(folder, with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-input", "--upgrade"]
    done = subprocess.run(
        [*pip, framework.package, *framework.more], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def _version(python: str, framework: Framework) -> str:
    """Return the installed version of a framework; empty for none."""
    code = "import sys, importlib.metadata as m; print(m.version(sys.argv[1]))"
    command = [python, "-c", code, framework.package]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    frameworks(prog_name="python -m studies.conformance.frameworks")
