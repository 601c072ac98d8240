"""``python -m quintain_env_search``: the search server over the environment's corpus, on stdin and
stdout.
"""

from __future__ import annotations

import click

from quintain_tools.search import build_index, make_server

from .corpus import EnvironmentCorpus


@click.command()
@click.option("--data", default="", help="A SQuAD file in place of the generated corpus.")
@click.option("--pilots", default=2000, show_default=True, help="Of the generated corpus.")
@click.option("--seed", default=0, show_default=True, help="Of the generated facts.")
def main(data: str, pilots: int, seed: int) -> None:
    """Serve the corpus of the environment `search` over MCP, as quintain-search-server serves a
    file.
    """
    make_server(build_index(EnvironmentCorpus(data, pilots, seed))).run("stdio")


if __name__ == "__main__":
    main(prog_name="python -m quintain_env_search")
