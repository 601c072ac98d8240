"""Write llms.txt: what Quintain is and where its pages are, for language models
(https://llmstxt.org).

A test compares it.

python tools/llms.py
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "llms.txt"

FACTS = """\
- Install from a clone: `make train` (Python 3.11 or newer, Linux, no GPU needed), then `source .venv/bin/activate`.
- Commands: `quintain train`, `eval`, `list`, `info NAME`, `doctor`, `schema`; each has `--help`, most have `--json`.
- A recipe is a TOML file; unknown keys are errors. `quintain train FILE --dry-run` checks it and prints all defaults.
- An environment is a class with `tasks(split)` and a reward; `quintain eval FILE.py:Class --controls` checks it without
  a model.
- A failed reward is not a score of 0: the rollout is left out and counted.
- Code of the policy runs in a sandbox, code of an author does not.
- The training loop on one page: examples/loop.py. Rules for work in the repository: AGENTS.md.
"""


def render() -> str:
    """Return the text.

    Raises:
        KeyError: a page of the index has no title.
    """
    description = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "description"
    ]
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    parts = [
        f"# Quintain\n\n> {description}\n\n{FACTS}\n- [README](README.md): two commands, examples, "
        f"installation"
    ]
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.M | re.S):
        rows = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \| (.+?) \|$", text, re.M)
        name = "Optional" if title == "Contributors" else title  # the name for what may be left out
        parts.append(
            f"## {name}\n\n"
            + "\n".join(f"- [{_title(file)}](docs/{file}): {line}" for file, line in rows)
        )
    return "\n\n".join(parts) + "\n"


def _title(file: str) -> str:
    """Return the first heading of a page or notebook of docs/."""
    text = (ROOT / "docs" / file).read_text(encoding="utf-8")
    if file.endswith(".ipynb"):
        text = "".join(json.loads(text)["cells"][0]["source"])
    return re.findall(r"^# (.+)$", text, re.M)[0]


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
