"""A command of one's own."""

import click


@click.command()
def hello() -> None:
    """Say hello."""
    click.echo("hello from a third party")
