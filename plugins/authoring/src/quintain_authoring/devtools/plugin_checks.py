"""Import checks of components, one interpreter per distribution.

``python -m quintain_authoring.devtools.plugin_checks RESULTS KIND:ID ...`` is such an interpreter: it imports
components and appends one line of JSON for each to the file RESULTS (not to standard output, where
plugins may print).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Literal

from quintain.errors import PluginError
from quintain.registry import Component, Registry, current, signature_of
from quintain.run import Hooks

from .host import usable_cpus
from .listing import clash

MOST_INTERPRETERS = 4
"""Interpreters at a time: each imports torch, in several hundred MB."""

Status = Literal["ok", "extra", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one check. *extra*: the component is sound, but its optional libraries are not
    installed.
    """

    kind: str
    id: str
    seconds: float
    status: Status
    message: str = ""


def examine(components: Iterable[Component], *, timeout: float) -> list[Finding]:
    """Check all *components*, a few distributions at a time; *timeout* is in seconds, per
    interpreter.
    """
    ordered = sorted(components, key=lambda c: c.distribution)
    groups = [list(group) for _, group in groupby(ordered, key=lambda c: c.distribution)]
    with ThreadPoolExecutor(min(MOST_INTERPRETERS, usable_cpus())) as pool:
        return list(chain.from_iterable(pool.map(_apart, groups, repeat(timeout))))


def _apart(components: list[Component], timeout: float) -> list[Finding]:
    """Check *components* in an interpreter; if it dies, its current component fails and a new one
    checks the rest.
    """
    findings: list[Finding] = []
    while len(findings) < len(components):
        rest = components[len(findings) :]
        tried, end = _one_interpreter(rest, timeout)
        findings += tried
        if len(tried) < len(rest):
            culprit = rest[len(tried)]
            findings.append(
                Finding(kind=culprit.kind, id=culprit.id, seconds=0.0, status="error", message=end)
            )
    return findings


def _one_interpreter(components: list[Component], timeout: float) -> tuple[list[Finding], str]:
    """Return the findings of one interpreter, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.jsonl")
        results.touch()
        command = [sys.executable, "-m", __name__, str(results), *map(_address, components)]
        try:
            done = subprocess.run(
                command, timeout=timeout, capture_output=True, text=True, check=False
            )
            end = (
                f"its interpreter ended with status {done.returncode} {done.stderr.strip()[-300:]}"
            ).strip()
        except subprocess.TimeoutExpired:
            end = f"no answer within {timeout:g} s (--timeout)"
        lines = results.read_text(encoding="utf-8").splitlines()
    return [Finding(**json.loads(line)) for line in lines], end


def _address(component: Component) -> str:
    return f"{component.kind}:{component.id}"


def check(component: Component, registry: Registry) -> Finding:
    """Import *component* in this process and compare it with its manifest."""
    begun = time.perf_counter()
    status, message = _tried(component, registry)
    seconds = round(time.perf_counter() - begun, 3)
    return Finding(
        kind=component.kind, id=component.id, seconds=seconds, status=status, message=message
    )


def _tried(component: Component, registry: Registry) -> tuple[Status, str]:
    try:
        entry = registry.entry(component)
    except PluginError as e:
        return "error", str(e)
    try:
        loaded = registry.resolve(component)
        if component.kind == "hooks":
            Hooks(strict=True).add(loaded, component.id)
        elif component.kind != "command":
            signature_of(loaded)
    except PluginError as e:
        cause, package = e.__cause__, component.module.partition(".")[0]
        foreign = (
            isinstance(cause, ModuleNotFoundError)
            and (cause.name or "").partition(".")[0] != package
        )
        return ("extra" if entry is not None and entry.extra and foreign else "error"), str(e)
    if entry is None:
        package = component.module.partition(".")[0]
        return (
            "error",
            f"{component.distribution} ships no quintain.toml beside {package}/__init__.py",
        )
    return "ok", clash(component, registry)


def run(results: Path, components: Iterable[Component], registry: Registry) -> None:
    """Check *components* in order; each result is on disk before the next check."""
    with results.open("a", encoding="utf-8") as file:
        for component in components:
            file.write(json.dumps(asdict(check(component, registry))) + "\n")
            file.flush()


if __name__ == "__main__":
    installed = {_address(c): c for c in current().components()}
    run(Path(sys.argv[1]), [installed[address] for address in sys.argv[2:]], current())
