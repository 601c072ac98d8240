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

2026-11-23

## Decision and why

What holds from now on, and the reason.

## Rejected

- *another option*: the reason against it.
```

Then run `make registry`, which writes this index. A decision that no longer holds keeps its file,
and says under its date which one replaced it.

| number | date | decision |
|---|---|---|
"""

_FORM = re.compile(
    r"# (?P<title>[^\n]+)\n\n(?P<date>\d{4}-\d\d-\d\d)\n\n.*?## Decision and why\n\n\S.*", re.S
)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the index shows of a file."""

    path: Path
    title: str
    date: str

    @property
    def number(self) -> str:
        """The four digits that the name of the file begins with."""
        return self.path.name[:4]


def decisions() -> list[Decision]:
    """All decisions, oldest first.

    Raises:
        ValueError: a file does not have the form that the index shows.
    """
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        text = _FORM.fullmatch(path.read_text(encoding="utf-8"))
        if text is None:
            raise ValueError(f"{path.name} does not have the form that {INDEX} shows")
        rows.append(Decision(path=path, title=text["title"], date=text["date"]))
    return rows


def render() -> str:
    """Return the text of the index, newest decision first."""
    rows = (f"| {d.number} | {d.date} | [{d.title}]({d.path.name}) |\n" for d in decisions()[::-1])
    return HEAD + "".join(rows)


if __name__ == "__main__":
    INDEX.write_text(render(), encoding="utf-8")
