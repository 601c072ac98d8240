"""`quintain publish`: build a distribution, check it, and print what a registry says about it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from quintain import InfrastructureError
from quintain.errors import PluginError, UsageError

from .records import PluginRecord, record_lines
from .wheel_file import WheelFile, faults


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the files.  [default: FOLDER/dist]",
)
@click.option(
    "--no-isolation", is_flag=True, help="Build with what is installed here, without a download."
)
@click.option("--url", default="", help="Address of the wheel, if it is in no index of pip.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def publish(folder: Path, out: Path | None, no_isolation: bool, url: str, as_json: bool) -> int:
    """Build the distribution in FOLDER, check it, and print its record for a registry and the
    commands that upload it. Nothing is uploaded.

    The wheel is built from the source archive, so that both are complete. `quintain check` runs on
    each component as the wheel has it. What the distribution needs has to be installed here.

    Exit status: 0 ready, 1 it cannot be built or a check fails, 2 FOLDER is no distribution.

    \b
    quintain new reward brevity && quintain publish quintain-brevity
    """
    if not (folder / "pyproject.toml").is_file():
        raise UsageError(f"there is no {folder / 'pyproject.toml'}; `quintain new` writes one")
    wheel, archive = built(folder, out or folder / "dist", no_isolation)
    own = wheel.own_record()
    if wrong := [*faults(wheel, own), *incomplete(wheel)]:
        said = "".join(f"\n- {fault}" for fault in wrong)
        raise PluginError(f"{wheel.path.name} is not ready:{said}")
    failed = False
    checks = []
    for row in checked(wheel):
        checks.append(row)
        failed |= not row["ok"]
        if not as_json:
            click.echo("\n".join(_told(row)))
    record = replace(
        own,
        source=wheel.homepage(),
        check="suite",
        url=url,
        hashes=(wheel.sha256, f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"),
    )
    uploads = commands(wheel.path, archive)
    if as_json:
        text = "\n".join(record_lines(record)) if not failed else ""
        files = [str(wheel.path), str(archive)]
        report = {"ok": not failed, "files": files, "checks": checks, "record": text}
        click.echo(json.dumps({**report, "commands": uploads}))
    elif failed:
        click.echo("a check fails, so there is no record", err=True)
    else:
        click.echo("\n".join(["", *_record(record), *uploads]))
    return 1 if failed else 0


def built(folder: Path, out: Path, no_isolation: bool) -> tuple[WheelFile, Path]:
    """Build a source archive, and a wheel from it.

    Raises:
        InfrastructureError: it cannot be built; the message has the last lines.
    """
    with tempfile.TemporaryDirectory(prefix="quintain-publish-") as scratch:
        words = [sys.executable, "-m", "build", "--outdir", scratch, str(folder)]
        words += ["--no-isolation"] if no_isolation else []
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
            raise InfrastructureError(f"{folder} cannot be built:\n{said}")
        (wheel,), (archive,) = Path(scratch).glob("*.whl"), Path(scratch).glob("*.tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        for path in (wheel, archive):
            (out / path.name).write_bytes(path.read_bytes())
    return WheelFile(out / wheel.name), out / archive.name


def incomplete(wheel: WheelFile) -> list[str]:
    """Return what users of a wheel miss."""
    found = []
    if not wheel.manifest.licence:
        found.append("its manifest has no `licence`")
    if not wheel.header("Summary"):
        found.append("pyproject.toml has no `description`")
    if not wheel.components:
        found.append("it declares no component")
    if not any(r.startswith("quintain") for r in wheel.requires):
        found.append("pyproject.toml has no dependency on quintain, such as quintain>=0.1")
    return found


def checked(wheel: WheelFile) -> Iterator[Mapping[str, Any]]:
    """Run `quintain check` on each component of a wheel, unpacked and first on the path.

    Yields:
        A row for each: ``kind``, ``name``, ``ok`` and the ``checks`` that did not pass.
    """
    with tempfile.TemporaryDirectory(prefix="quintain-publish-") as scratch:
        with zipfile.ZipFile(wheel.path) as archive:
            archive.extractall(scratch)
        path = os.pathsep.join(p for p in (scratch, os.environ.get("PYTHONPATH")) if p)
        for kind, name in sorted(wheel.components):
            words = ["check", f"{wheel.name}/{name}", "--kind", kind, "--json"]
            done = subprocess.run(
                [sys.executable, "-P", "-m", "quintain", *words],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
            )
            yield {"kind": kind, "name": name, **_outcome(done)}


def _outcome(done: subprocess.CompletedProcess[str]) -> Mapping[str, Any]:
    try:
        report = json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        report = {"error": {"message": said}}
    if "error" in report:
        said = report["error"]["message"]
        return {"ok": False, "passed": 0, "checks": [{"name": "check", "message": said}]}
    left = [c for c in report["checks"] if c["status"] in ("failed", "warning")]
    passed = sum(c["status"] == "ok" for c in report["checks"])
    return {"ok": report["ok"], "passed": passed, "checks": left}


def _told(row: Mapping[str, Any]) -> list[str]:
    state = "passes" if row["ok"] else "fails"
    lines = [f"{row['kind']} {row['name']} {state} `quintain check` ({row['passed']} ok)"]
    return lines + [f"  {check['name']}: {check['message']}" for check in row["checks"]]


def _record(record: PluginRecord) -> list[str]:
    head = "# A record for registry.toml. Whoever adds it vouches for the files with these hashes."
    return [head, *record_lines(record), ""]


def commands(wheel: Path, archive: Path) -> list[str]:
    """Return the commands that upload the files, which nothing here runs."""
    files = f"{shlex.quote(str(wheel))} {shlex.quote(str(archive))}"
    return [
        f"python -m twine check {files}",
        f"python -m twine upload {files}",
    ]
