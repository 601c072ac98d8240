"""`quintain sandbox`: what the providers of sandboxes need on a machine."""

from __future__ import annotations

import json

import click


@click.group()
def sandbox() -> None:
    """Prepare the sandboxes of this machine."""


@sandbox.command()
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Installed package to add (repeatable).",
)
@click.option(
    "--name", default=None, metavar="NAME", help="Name of the image.  [default: quintain-sandbox]"
)
@click.option(
    "--url",
    default="",
    help="Where the engine listens; else DOCKER_HOST, else Docker's own socket.",
)
@click.option("--again", is_flag=True, help="Import the image also if the engine has it.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def build(
    packages: tuple[str, ...], name: str | None, url: str, again: bool, as_json: bool
) -> None:
    """Build the image of the provider `docker` from this machine's Python and tools, without a
    registry.

    The tag is made of the contents; the name without a tag is the image built last. `--with pytest`
    adds an installed package and what it requires.
    """
    from .docker import IMAGE, build_image

    report = build_image(
        name or IMAGE,
        packages,
        url,
        again=again,
        progress=lambda line: click.echo(f"{line} ...", err=True),
    )
    if as_json:
        click.echo(json.dumps(report))
        return
    words = "built" if report["built"] else "is there already"
    click.echo(
        f"{report['image']} {words}: {report['bytes'] / 1e6:.0f} MB, {report['files']} files"
    )
