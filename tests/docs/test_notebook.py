"""The notebook of the documentation: its stored outputs are whole, and it runs from top to
bottom.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_was_run_in_order_without_an_error(path: Path) -> None:
    """A reader without a kernel sees results; no output has a path of the machine, or a picture,
    which is large.
    """
    counts = [cell["execution_count"] for cell in cells(path, "code")]
    outputs = [output for cell in cells(path, "code") for output in cell["outputs"]]

    assert list(range(1, len(counts) + 1)) == counts
    assert {"stream", "execute_result"} >= {output["output_type"] for output in outputs}
    assert outputs
    assert not re.search(r"/(home|work|tmp|root)/", path.read_text())
    assert path.stat().st_size < 200_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_its_links_resolve(path: Path) -> None:
    """Links of its text are files of docs/."""
    links = [
        link
        for cell in cells(path, "markdown")
        for link in re.findall(r"\]\(([^)#]+)", "".join(cell["source"]))
    ]

    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.ci
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell, with a cold cache; the model is better afterwards."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()

    text = "".join(o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", ()))
    before, after = (
        float(re.search(rf"{when} +([\d.]+)%", text)[1]) for when in ("before", "after")
    )  # type: ignore[index]
    assert after > before + 10
