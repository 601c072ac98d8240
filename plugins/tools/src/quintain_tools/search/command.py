"""``quintain-search-server``: serve a corpus over MCP, or ask it from the shell."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import click

from quintain.errors import QuintainError, UsageError

from .corpus import Columns, open_corpus
from .index import SearchIndex, build_index
from .server import EXCERPT_CHARS, MAX_HITS, OPEN_CHARS, make_server, render


@click.command(
    epilog=(
        "Progress and errors go to stderr. Exit status: 0, or 2 with one line that says what to "
        "change."
    )
)
@click.argument("corpus")
@click.option(
    "--http",
    metavar="[HOST:]PORT",
    help="Serve streamable HTTP at /mcp; port 0 takes a free one. [default: stdio]",
)
@click.option(
    "--query",
    "queries",
    multiple=True,
    metavar="TEXT",
    help="Search, print the hits, end (repeatable).",
)
@click.option(
    "--k",
    type=click.IntRange(1, MAX_HITS),
    default=5,
    show_default=True,
    help="Hits of each --query.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the hits of each --query as one line of JSON."
)
@click.option(
    "--id-column",
    default="",
    metavar="NAME",
    help="Column of the ids. [default: id, _id or docid; line number]",
)
@click.option(
    "--title-column",
    default="",
    metavar="NAME",
    help="Column of the titles. [default: title, if there]",
)
@click.option(
    "--text-column",
    default="",
    metavar="NAME",
    help="Column of the texts. [default: text, contents, context]",
)
@click.option(
    "--split", default="train", show_default=True, metavar="NAME", help="Split of a data set."
)
@click.option("--excerpt", type=click.IntRange(1), default=EXCERPT_CHARS, show_default=True,
              help="Maximum characters of a passage in the result of `search`.")  # fmt: skip
@click.option("--opened", type=click.IntRange(1), default=OPEN_CHARS, show_default=True,
              help="Maximum characters of a passage in the result of `open`.")  # fmt: skip
@click.option("--cache", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help=(
                  "Folder of indexes. [default: $QUINTAIN_CACHE/search, else "
                  "~/.cache/quintain/search]"
                  ))  # fmt: skip
def main(
    corpus: str,
    http: str | None,
    queries: tuple[str, ...],
    k: int,
    as_json: bool,
    id_column: str,
    title_column: str,
    text_column: str,
    split: str,
    excerpt: int,
    opened: int,
    cache: Path | None,
) -> None:
    """Serve the tools `search` and `open` over CORPUS to any MCP client, on stdin and stdout unless
    --http is given.

    CORPUS is a file of JSON lines (id, title, text), a folder of text files (.txt, .md, .rst), or a
    data set: its name (or name:configuration) on the hub, or a folder. The index is built at the
    first start, cached by the corpus's content, and read from disk.

    \b
        quintain-search-server corpus.jsonl --query "who discovered radium"
        quintain-search-server corpus.jsonl --http 8765
    """
    try:
        columns = Columns(id=id_column, title=title_column, text=text_column)
        # Bound before the index is built, which may take long: a port in use fails at once.
        with _listener(http) if http else nullcontext() as listener:
            index = build_index(open_corpus(corpus, columns, split), cache, _Progress())
            if queries:
                for query in queries:
                    _print_hits(index, query, k, as_json, excerpt)
            elif listener:
                asyncio.run(_serve(index, excerpt, opened, listener))
            else:
                make_server(index, excerpt, opened).run("stdio")
    except QuintainError as e:
        click.echo(f"error: {e}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


class _Progress:
    """Lines on stderr, at most one in two seconds, and the last of a build."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        if line.startswith("indexed all") or now - self._last > 2:
            self._last = now
            click.echo(line, err=True)


def _print_hits(index: SearchIndex, query: str, k: int, as_json: bool, excerpt: int) -> None:
    hits = index.search(query, k)
    if as_json:
        rows = [
            {"id": h.passage.id, "title": h.passage.title, "score": h.score, "text": h.passage.text}
            for h in hits
        ]
        click.echo(json.dumps({"query": query, "hits": rows}))
        return
    for hit in hits:
        click.echo(f"{hit.score:6.2f}  {render(hit.passage, excerpt)}\n")
    if not hits:
        click.echo(f"no passage has a word of {query!r}", err=True)


def _listener(address: str) -> socket.socket:
    """Bind before the index is built, so that a port that is taken is an error at once."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    try:
        if not 0 <= (number := int(port)) < 65_536:  # a resolver would take it modulo 65,536
            raise ValueError(f"{number} is no port")
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(place)
        except OSError:
            listener.close()
            raise
    except (ValueError, OverflowError, OSError) as e:
        raise UsageError(
            f"--http {address}: {e}; expected PORT or HOST:PORT of this machine, such as 8765"
        ) from e
    if not str(place[0]).startswith("127.") and place[0] != "::1":
        click.echo(f"warning: {host} is open to other machines, without a password", err=True)
    return listener


async def _serve(index: SearchIndex, excerpt: int, opened: int, listener: socket.socket) -> None:
    import uvicorn

    host, port = listener.getsockname()[:2]
    # Stateless: the tools keep nothing between calls, so a client that vanishes leaves nothing
    # behind.
    app = make_server(index, excerpt, opened).streamable_http_app(
        stateless_http=True, json_response=True, host=host
    )
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
    listener.listen(128)  # whoever reads the address may connect before uvicorn is up
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"serving {index.passages:,} passages at http://{shown}:{port}/mcp", err=True)
    await uvicorn.Server(config).serve(sockets=[listener])
