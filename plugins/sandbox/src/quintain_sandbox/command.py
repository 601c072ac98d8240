"""`quintain build-image`: the image of the sandbox `docker`."""

from __future__ import annotations

import json

import click

from quintain.cli import json_option


@click.command("build-image")
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
@json_option
def build_image(
    packages: tuple[str, ...], name: str | None, url: str, again: bool, as_json: bool
) -> None:
    """Build the image of the provider `docker` from this machine's Python and tools, without a
    registry.

    The tag is made of the contents; the name without a tag is the image built last. `--with pytest`
    adds an installed package and what it requires.
    """
    from . import docker

    report = docker.build_image(
        name or docker.IMAGE,
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
