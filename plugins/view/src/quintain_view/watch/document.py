"""A document of few kinds of blocks, written as HTML or as Markdown; every text in it is untrusted."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Block", "Figure", "Grid", "Heading", "Paragraph", "Verbatim", "as_html", "as_markdown"]

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid #8886; padding: 3px 14px 3px 0; text-align: left; vertical-align: top; }
pre { background: #8881; border-radius: 8px; padding: 10px 12px; white-space: pre-wrap; overflow-wrap: anywhere; }
img { max-width: 100%; background: #fff; }
"""


@dataclass(frozen=True)
class Heading:
    """A title of *level* 1 to 3."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Verbatim:
    """Text that is shown as it is."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Grid:
    """A table."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A PNG, with what it shows; *file* is its name beside a Markdown file."""

    png: bytes
    alt: str
    file: str


Block = Heading | Paragraph | Verbatim | Grid | Figure


def as_html(title: str, blocks: Iterable[Block]) -> str:
    """Return the document as one file, which loads nothing and runs no script."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:"
    body = "\n".join(map(_html, blocks))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Verbatim(text):
            return f"<pre>{html.escape(text)}</pre>"
        case Grid(titles, rows):
            # A table without titles gets no header row. Markdown cannot leave it out.
            lines = [_html_row("th", titles)] if any(titles) else []
            lines += [_html_row("td", row) for row in rows]
            return f"<table>{''.join(lines)}</table>"
        case Figure(png, alt):
            data = base64.b64encode(png).decode()
            return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def as_markdown(blocks: Iterable[Block]) -> str:
    """Return the document as Markdown, in which texts neither format nor are HTML."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Verbatim(text, language):
            longest = max((len(run) for run in re.findall("`+", text)), default=0)
            fence = "`" * max(3, longest + 1)
            return f"{fence}{language}\n{text}\n{fence}"
        case Grid(titles, rows):
            width = len(titles)
            lines = [titles, ["---"] * width, *rows]
            cells = [[cell if cell == "---" else _plain(cell) for cell in line] for line in lines]
            return "\n".join(f"| {' | '.join(line)} |" for line in cells)
        case Figure(_, alt, file):
            return f"![{_plain(alt)}]({file})"


def _plain(text: str) -> str:
    """Return *text* as Markdown that shows it, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", " ".join(text.split()))
