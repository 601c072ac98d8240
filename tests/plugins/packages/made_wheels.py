"""Wheels that are written file by file, for tests that install them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ENVIRONMENT = '''
from quintain import Environment, Task, reward


@reward(range=(0, 1))
def same(rollout) -> float:
    """1 for the answer."""
    return float(rollout.reply == rollout.task.answer)


class Fruit(Environment[Task, None]):
    """Name the colour of a fruit."""

    reward = same

    def tasks(self, split):
        number = {"train": 1, "dev": 2, "test": 3}[split]
        return [Task(prompt=f"colour of fruit {number}", answer=f"colour {number}")]
'''
MANIFEST = """api = 1
licence = "MIT"
tags = ["example"]

[[components]]
kind = "environment"
name = "fruit"
summary = "Name the colour of a fruit."
"""
POINTS = "[quintain.environments]\nfruit = quintain_orchard:Fruit\n"


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    points: str = "",
) -> Path:
    """Write a wheel with *files*, and return its path."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Summary: Fruit."]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    texts = {
        **files,
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": points,
    }
    rows = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in texts.items()]
    texts[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{plain}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
    return wheel


def orchard(
    folder: Path,
    *,
    version: str = "1.0",
    requires: Sequence[str] = ("quintain>=0.1",),
    code: str = ENVIRONMENT,
    manifest: str = MANIFEST,
    points: str = POINTS,
    more: Mapping[str, str] | None = None,
) -> Path:
    """Write the wheel of a plugin with the environment `fruit`."""
    files = {"quintain_orchard/__init__.py": code, "quintain_orchard/quintain.toml": manifest}
    return make_wheel(
        folder,
        "quintain-orchard",
        {**files, **(more or {})},
        version=version,
        requires=requires,
        points=points,
    )


def record(wheel: Path | None = None, **changes: object) -> str:
    """Return the record of `orchard` in a registry, with the hash of *wheel*."""
    lines = {
        "name": '"quintain-orchard"',
        "api": "1",
        "licence": '"MIT"',
        "check": '"suite"',
        "provides": '["environment:fruit"]',
    }
    if wheel is not None:
        lines["hashes"] = f'["sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"]'
    lines |= {key: str(value) for key, value in changes.items()}
    return "\n".join(["[[plugin]]", *(f"{k} = {v}" for k, v in lines.items() if v)]) + "\n"


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
