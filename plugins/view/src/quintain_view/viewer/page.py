"""Rollouts as one HTML file: data, style and script inside, opened offline, no text of a model
executed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from .pictures import shared
from .stored import SOURCES, Row

MOST_TOKENS = 400_000
"""Tokens in the page unless all are asked for: about 10 MB."""


def page(
    name: str,
    views: Sequence[Row],
    decode: Callable[[int], str],
    *,
    total: int,
    every_token: bool,
    why: str = "",
) -> str:
    """Return the page of *views*, rollouts of the run *name*.

    Texts are data in a JSON block, in which ``<`` is escaped, and the script shows them as text
    nodes. The content security policy allows the script by its digest, and nothing else: no other
    script, no request.

    Args:
        total: number of rollouts that match, of which *views* are some.
        every_token: keep the token view of all rollouts, above `MOST_TOKENS` too.
        why: why these, if they are not all.
    """
    left = MOST_TOKENS
    views = [
        view
        | {
            "conversations": [dict(other) for other in view["conversations"]],
            "messages": [dict(message) for message in view["messages"]],
        }
        for view in views
    ]
    used: set[int] = set()
    for view in views:
        for part in (view, *view["conversations"]):
            rows = part["tokens"] or []
            left -= len(rows)
            part["tokens"] = [_packed(row) for row in rows] if every_token or left >= 0 else None
            used.update(row[0] for row in rows if part["tokens"] is not None)
    data = {
        "name": name,
        "total": total,
        "why": why,
        "open": instructive(views),
        "sources": SOURCES,
        "pictures": shared(message for view in views for message in view["messages"]),
        "texts": {str(token): decode(token) for token in sorted(used)},
        "rollouts": views,
    }
    style, script = _part("page.css"), _part("page.js")
    parts = {
        "CSP": (
            f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
            f"img-src data:"
        ),
        "TITLE": html.escape(name),
        "STYLE": style,
        "DATA": json_in_html(data),
        "SCRIPT": script,
    }
    text = _part("page.html")
    head, *rest = text.split("{{")
    return head + "".join(
        parts[key] + after for key, _, after in (part.partition("}}") for part in rest)
    )


def instructive(views: Sequence[Row]) -> list[Any] | None:
    """Step, environment and group of the newest group that teaches: some right, some wrong, with an
    advantage.

    ``None`` if there is none: the page then opens on the first group.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for view in views:
        groups.setdefault((view["step"], view["environment"], view["group"]), []).append(view)
    mixed = [
        key
        for key, members in groups.items()
        if {"right", "wrong"} <= {m["result"] for m in members}
        and any(m["advantage"] for m in members)
    ]
    newest = max((step for step, *_ in mixed), default=None)
    return next((list(key) for key in mixed if key[0] == newest), None)


def json_in_html(data: Any) -> str:
    """Return *data* as JSON that no HTML parser takes for the end of its ``<script>`` block."""
    text = json.dumps(data, separators=(",", ":"))  # ASCII only: U+2028 is escaped, too
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _packed(row: tuple[Any, ...]) -> list[Any]:
    """Return a token without trailing empty values, its numbers rounded to what the page shows."""
    token, source, logp, version, advantage = row
    if logp is None:
        return [token, source]
    return [
        token,
        source,
        round(logp, 4),
        version,
        None if advantage is None else round(advantage, 4),
    ]


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the source expression of an inline block in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
