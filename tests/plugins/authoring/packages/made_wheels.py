"""Wheels that are written file by file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

MANIFEST = """api = 1
licence = "MIT"
tags = ["example"]

[[components]]
kind = "environment"
name = "fruit"
summary = "Name the colour of a fruit."
"""
POINTS = "[quintain.environments]\nfruit = quintain_orchard:Fruit\n"


def orchard(
    folder: Path,
    *,
    manifest: str = MANIFEST,
    points: str = POINTS,
    more: Mapping[str, str] | None = None,
) -> Path:
    """Write the wheel of a plugin with the environment `fruit`, and return its path."""
    info = "quintain_orchard-1.0.dist-info"
    texts = {
        "quintain_orchard/__init__.py": "",
        "quintain_orchard/quintain.toml": manifest,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: quintain-orchard\nVersion: 1.0\n"
        "Summary: Fruit.\n",
        f"{info}/entry_points.txt": points,
        **(more or {}),
    }
    wheel = folder / "quintain_orchard-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
    return wheel
