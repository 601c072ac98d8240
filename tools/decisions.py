"""Write the index of the decisions, docs/decisions/README.md. A test compares it.

python tools/decisions.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "decisions"
INDEX = FOLDER / "README.md"

HEAD = """\
# Decisions

Each file says what was chosen, why, and what was rejected. To add one, take the next number:

```text
docs/decisions/0123-a-short-name.md

# The decision, as a sentence

2026-11-23, sandboxes

## Decision and why

What holds from now on, and the reason.

## Rejected

- *another option*: the reason against it.
```

After the date stands the room that the decision belongs to, one of the headings below. Then run
`make registry`, which writes this index. A decision that no longer holds keeps its file, and says
under its date which one replaced it.
"""

GOVERNING = (6, 10, 58, 127, 142, 224, 225, 226, 227, 228)
"""Numbers of the decisions that the others follow from; a reader begins with them."""

ROOMS = (
    "workspace",
    "plugins",
    "recipes",
    "tasks",
    "rollouts",
    "learning",
    "algorithms",
    "offline training",
    "models",
    "engine",
    "engines of others",
    "run",
    "scaling out",
    "simulation",
    "rewards",
    "judges",
    "agents and tools",
    "sandboxes",
    "environments",
    "other ecosystems",
    "viewing",
    "authoring",
    "tests and pages",
)
"""Where a decision belongs, in the order of the index."""

_TABLE = "| number | date | decision |\n|---|---|---|\n"

_FORM = re.compile(
    r"# (?P<title>[^\n]+)\n\n(?P<date>\d{4}-\d\d-\d\d), (?P<room>[^\n]+)\n\n"
    r".*?## Decision and why\n\n\S.*",
    re.S,
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the index shows of a file."""

    path: Path
    title: str
    date: str
    room: str

    @property
    def number(self) -> int:
        """The digits that the name of the file begins with."""
        return int(self.path.name[:4])

    @property
    def row(self) -> str:
        """The line of a table."""
        return f"| {self.number:04} | {self.date} | [{self.title}]({self.path.name}) |\n"


def decisions() -> list[Decision]:
    """All decisions, oldest first.

    Raises:
        ValueError: a file does not have the form that the index shows, or names no room.
    """
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        text = _FORM.fullmatch(path.read_text(encoding="utf-8"))
        if text is None:
            raise ValueError(f"{path.name} does not have the form that {INDEX} shows")
        if text["room"] not in ROOMS:
            raise ValueError(f"{path.name}: no room {text['room']!r}; there are {', '.join(ROOMS)}")
        rows.append(Decision(path=path, title=text["title"], date=text["date"], room=text["room"]))
    return rows


def render() -> str:
    """Return the text of the index: what governs, then each room, newest decision first."""
    newest_first = decisions()[::-1]
    governing = [d for d in newest_first if d.number in GOVERNING]
    parts = [HEAD, "\n## What governs\n\n", _TABLE]
    parts += [d.row for d in governing]
    for room in ROOMS:
        parts += [f"\n## {room[0].upper()}{room[1:]}\n\n", _TABLE]
        parts += [d.row for d in newest_first if d.room == room]
    return "".join(parts)


if __name__ == "__main__":
    INDEX.write_text(render(), encoding="utf-8")
