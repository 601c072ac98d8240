"""Write docs/gallery.md: a card for each environment of this repository. A test compares it.

The summary and what it needs are from the manifest, settings and controls from the class; curves
and pages are named here.

python tools/gallery.py
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from quintain.registry import current
from quintain_authoring.devtools.docstrings import plain
from quintain_authoring.devtools.info import Details, details_of

sys.path.insert(0, str(Path(__file__).parent))
from wrap_docs import wrapped

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gallery.md"

PAGES = {
    "agent": "agents.md",
    "agent-sandboxed": "agents.md",
    "arithmetic": "start.md",
    "aime": "math-verification.md",
    "chat": "judged-rewards.md",
    "code": "code.md",
    "code-procedural": "code.md",
    "critique": "judged-rewards.md",
    "duel": "games.md",
    "extraction": "models.md",
    "gsm8k": "math-verification.md",
    "guess": "games.md",
    "gymnasium": "other-ecosystems.md",
    "harbor": "harbor.md",
    "harbor-agent": "harbor.md",
    "instructions": "instructions.md",
    "math": "math-verification.md",
    "maze": "games.md",
    "nemo_gym": "other-ecosystems.md",
    "notes": "games.md",
    "openenv": "other-ecosystems.md",
    "peer_tasks": "other-ecosystems.md",
    "verifiers_server": "other-ecosystems.md",
    "reasoning_gym": "other-ecosystems.md",
    "returns": "games.md",
    "search": "search-environment.md",
    "story": "story.md",
    "textarena": "other-ecosystems.md",
    "tools": "games.md",
}
"""The page of an environment in docs/."""

CURVES = {
    "agent": "images/agent.png",
    "arithmetic": "images/curves.png",
    "chat": "experiments/chat_rubrics.png",
    "code-procedural": "images/code.png",
    "extraction": "images/extraction.png",
    "notes": "experiments/context_compaction.png",
    "search": "images/search.png",
    "story": "experiments/story.png",
}
"""The learning curve of the bundled recipe, relative to docs/; the five games share one picture."""

GAMES = "images/games.png"

RECIPES = {"arithmetic": "quickstart", "code-procedural": "code"}
"""Bundled recipes that are not called like their environment."""

HEAD = """# Gallery of environments

What this repository has, from `quintain list environments`. *Controls* are scripted policies: each scores the maximum
(`max`), the minimum (`min`), or something between; `quintain eval NAME --controls` plays them, without a model. A
*curve* is that of the default model (of `extraction`, of SmolLM2-135M), trained on two CPU cores; the page of the
environment has its command and date.

To add one of your own: [write-an-environment.md](write-an-environment.md).

| environment | what it asks | needs |
|---|---|---|
"""


def render() -> str:
    """Return the page.

    Raises:
        AssertionError: an environment cannot be imported.
    """
    registry = current()
    members = (*ROOT.glob("environments/*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml"))
    distributions = {project(member) for member in members}
    environments = [
        c for c in registry.components("environment") if c.distribution in distributions
    ]
    cards = {c.name: details_of(c, registry) for c in sorted(environments, key=lambda c: c.name)}
    rows = [
        f"| [{name}](#{name}) | {d.line.summary} | {', '.join(d.line.needs)} |"
        for name, d in cards.items()
    ]
    sections = "\n".join(card(name, d) for name, d in cards.items())
    return wrapped(HEAD + "\n".join(rows) + "\n\n" + sections)


def project(file: Path) -> str:
    """Return the name of a distribution."""
    return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"])


def card(name: str, details: Details) -> str:
    """Return the section of one environment."""
    assert not details.line.error, details.line.error
    marks = current().load("environment", details.line.id).controls()
    controls = ", ".join(
        f"`{control}`" + (f" ({mark})" if mark else "") for control, mark in sorted(marks.items())
    )
    parts = [f"## {name}", details.line.summary]
    facts = [f"`pip install {details.line.distribution}`"]
    recipe = RECIPES.get(name, name)
    if (ROOT / "core" / "quintain" / "recipes" / f"{recipe}.toml").exists():
        facts.append("`quintain train" + (f" {recipe}`" if recipe != "quickstart" else f" {name}`"))
    facts += [f"[more]({PAGES[name]})"] if name in PAGES else []
    facts += [f"needs {', '.join(details.line.needs)}"] if details.line.needs else []
    parts += [" · ".join(facts), f"Controls: {controls}"]
    settings = [(f["name"], f.get("shown", "required"), plain(f["doc"])) for f in details.fields]
    settings += [(s["parameter"], f"[services.{s['slot']}]", "a service") for s in details.services]
    if settings:
        lines = [f"| `{name}` | `{default}` | {cell(text)} |" for name, default, text in settings]
        parts.append("\n".join(["| setting | default | meaning |", "|---|---|---|", *lines]))
    if picture := CURVES.get(name) or (
        GAMES if details.line.distribution == "quintain-env-games" else None
    ):
        parts.append(f"![Learning curve of {name}]({picture})")
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    """*text* in a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
