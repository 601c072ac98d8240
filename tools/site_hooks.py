"""Hooks of mkdocs.yml: what the pages of docs/ need besides Markdown to be a site.

The sections of docs/README.md are the navigation, the README is the front page, links to files
outside docs/ lead to copies of these files, public names have an API reference, notebooks are
pages, and diagrams are pictures that `tools/diagrams.py` drew, so that the site needs no network.
"""

from __future__ import annotations

import ast
import json
import re
from hashlib import sha256
from inspect import cleandoc
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

API = {
    "quintain": "Environments, rewards and the pieces of algorithms. Needs no torch.",
    "quintain.testing": "Rollouts for the tests of rewards, and a registry of their own.",
    "quintain.types": "Records of an episode, besides those of `quintain`.",
    "quintain.interfaces": "What a plugin implements, besides what `quintain` has.",
    "quintain.registry": "From a name in a recipe to a component.",
    "quintain.rollouts": "Running episodes.",
    "quintain.services": "Starting services.",
    "quintain.tasks": "Which task comes next, for curricula of your own.",
    "quintain.learning": "Algorithms and what their pieces see.",
    "quintain.models": "Loading of models, log-probs, tokenizers.",
    "quintain.evaluation": "Evaluation of an engine on an environment.",
    "quintain.recipe": "Recipes, and the components that they name.",
    "quintain.store": "Run folders and checkpoints.",
    "quintain.run": "Runs and hooks.",
    "quintain.console": "The screen, and the metrics behind it.",
    "quintain.process": "Signals and the watchdog.",
    "quintain.cli": "What plugins with a command use.",
    "quintain.errors": "Error classes.",
}
"""The public modules; plugins import from these only."""

HISTORY = ("benchmarks.md", "decisions/", "files/")
"""Pages that mention everything, by the beginning of their path."""

_FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2", re.M | re.S)
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_MERMAID = re.compile(r"^```mermaid\n(.*?)^```", re.M | re.S)


def sections(index: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Title and (file, description) rows of each section of *index*, the text of docs/README.md."""
    tables = []
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", index, re.M | re.S):
        if rows := re.findall(r"^\| \[[^\]]+\]\(([^)]+)\) \| (.+?) \|$", text, re.M):
            tables.append((title, rows))
    return tables


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Return the navigation."""
    nav: list[Any] = [{"Quintain": "index.md"}]
    for title, rows in sections((DOCS / "README.md").read_text(encoding="utf-8")):
        files: list[Any] = [_markdown(file) for file, _ in rows]
        if title == "Reference":
            files.append({"Python API": [{name: f"api/{name}.md"} for name in API]})
        for index, file in enumerate(files):
            folder, _, name = str(file).rpartition("/")
            if name == "README.md":
                inside = sorted((DOCS / folder).glob("[!R]*.md"))
                pages = [p.relative_to(DOCS).as_posix() for p in inside]
                files[index] = {folder.capitalize(): [file, *pages]}
        nav.append({title: files})
    config.nav = nav
    return config


def _markdown(file: str) -> str:
    return file.removesuffix(".ipynb") + ".md" if file.endswith(".ipynb") else file


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no file of docs/; docs/README.md is the navigation."""
    if (index := files.get_file_from_path("README.md")) is not None:
        files.remove(index)
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    made = {"index.md": re.sub(r"(\]\()docs/(?:README\.md)?", r"\1", front)}
    shown: dict[str, str] = {}
    made |= {f"api/{name}.md": _api(name, description, shown) for name, description in API.items()}
    for notebook in DOCS.glob("notebooks/*.ipynb"):
        made[_markdown(notebook.relative_to(DOCS).as_posix())] = page_of(
            json.loads(notebook.read_text())
        )
    waiting = [
        ((DOCS / f.src_uri).parent, f.content_string) for f in files.documentation_pages()
    ] + [(ROOT, front)]
    while waiting:
        base, text = waiting.pop()
        for file in _outside(text, base):
            if f"files/{file}.md" not in made:
                made[f"files/{file}.md"] = _copy(file)
                waiting += [((ROOT / file).parent, _copy(file))] if file.endswith(".md") else []
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    files.append(
        File.generated(config, "llms.txt", content=(ROOT / "llms.txt").read_text(encoding="utf-8"))
    )
    return files


def _outside(text: str, base: Path) -> set[str]:
    """Files of the repository outside docs/ that *text* links to, relative to the root; *base* is
    its folder.
    """
    paths = set()
    for _, link, _ in _LINK.findall(_FENCE.sub("", text)):
        path = (base / link.partition("#")[0]).resolve()
        inside = path.is_relative_to(DOCS) or path == ROOT / "README.md"
        if "://" not in link and path.is_file() and path.is_relative_to(ROOT) and not inside:
            paths.add(path.relative_to(ROOT).as_posix())
    return paths


def _copy(file: str) -> str:
    """Return a page with the file *file*."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".md"):
        return text
    ticks = "`" * (2 + max(map(len, re.findall(r"`+", text)), default=1))
    return f"# {file}\n\n{ticks}{PurePosixPath(file).suffix[1:] or 'text'}\n{text}{ticks}\n"


def _api(module: str, description: str, shown: dict[str, str]) -> str:
    """Return the page of the public names of *module*; static, as mkdocstrings reads the source.

    Args:
        shown: the page of each name so far, by the name's place; another page links to it.
    """
    source = ROOT / "core" / Path(*module.split("."))
    file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    block = next((n for n in tree.body if isinstance(n, ast.If)), None)
    imported = [n for n in (block.body if block else ()) if isinstance(n, ast.ImportFrom)]
    package = module if source.is_dir() else module.rpartition(".")[0]
    targets = {}
    for node in imported:
        base = ".".join(
            [*package.split(".")[: len(package.split(".")) + 1 - node.level], node.module or ""]
        )
        targets |= {alias.name: f"{base}.{alias.name}" for alias in node.names}
    if not targets:
        targets = {
            n.name: f"{module}.{n.name}"
            for n in tree.body
            if isinstance(n, (ast.ClassDef, ast.FunctionDef)) and n.name[0] != "_"
        }
    parts = [f"# {module}", description]
    if again := sorted(name for name, target in targets.items() if target in shown):
        links = (f"[`{name}`]({shown[targets[name]]}.md#{targets[name]})" for name in again)
        parts.append(f"Also here: {', '.join(links)}.")
    for name in sorted(targets.keys() - set(again), key=str.casefold):
        parts.append(_reference(name, targets[name]))
        shown[targets[name]] = module
    return "\n\n".join(parts) + "\n"


def _reference(name: str, target: str) -> str:
    """Return the section of one name: mkdocstrings', or the text given to the call that made it, as
    in ``f = make("...")``.
    """
    file = ROOT / "core" / Path(*target.split(".")[:-1]).with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        texts = [
            a.value for a in node.value.args if isinstance(a, ast.Constant) and " " in str(a.value)
        ]
        if texts and [name] == [t.id for t in node.targets if isinstance(t, ast.Name)]:
            return f"## {name}\n\n{cleandoc(str(texts[0]))}"
    return f"::: {target}"


def page_of(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: text, code, and the text that the code printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            printed = output.get("text") or output.get("data", {}).get("text/plain", "")
            if printed:
                parts.append(f"```text\n{''.join(printed).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def diagram_file(source: str) -> str:
    """Return the picture of a mermaid diagram, relative to docs/."""
    return f"images/diagrams/{sha256(source.encode()).hexdigest()[:12]}.svg"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/, diagrams, and lists that follow a paragraph without an empty line."""
    source = page.file.src_uri
    folder = str(PurePosixPath(source).parent)
    if source.startswith(HISTORY):
        page.meta["search"] = {"boost": 0.2}  # below the pages for users

    def diagram(match: re.Match[str]) -> str:
        picture = diagram_file(match[1])
        if not (DOCS / picture).exists():
            raise PluginError(
                f"{source}: a diagram has no picture {picture}; run python tools/diagrams.py"
            )
        return f"![Diagram]({relpath(picture, folder)})"

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if "://" in target or not target:
            return match[0]
        if source.startswith("files/"):  # a copy: its links are relative to the file
            path = normpath(f"{PurePosixPath(source).parent}/{target}").removeprefix("files/")
        else:
            path = normpath(target if source == "index.md" else f"docs/{folder}/{target}")
        return f"{match[1]}{relpath(_on_site(path, files), folder)}{'#' + anchor if anchor else ''}{match[3]}"

    markdown = _MERMAID.sub(diagram, markdown)
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_text(_LINK.sub(link, markdown[end : fence.start()])), fence[0]]
        end = fence.end()
    return "".join([*parts, _text(_LINK.sub(link, markdown[end:]))])


def _on_site(path: str, files: Files) -> str:
    """Return the source of the site's page or picture for *path*, relative to the root of the
    repository.
    """
    if path in ("README.md", "docs/README.md", "docs"):
        return "index.md"
    for candidate in (_markdown(path.removeprefix("docs/")), path, f"files/{path}.md"):
        if files.get_file_from_path(candidate) is not None:
            return candidate
    return path


def _text(text: str) -> str:
    # GitHub begins a list after a line of text, Python-Markdown only after an empty line.
    return re.sub(
        r"^(?![ \t]*(?:[-*]|\d+\.) )(\S.*)\n(?=(?:[-*]|\d+\.) )", r"\1\n\n", text, flags=re.M
    )
