"""Milliseconds to `import quintain`, and to `quintain list` with a hundred installed plugins,
against a bare interpreter.

The plugins are real installations as far as metadata goes (dist-info with entry points, a package
with a manifest, two components each), in a folder on the path beside this environment's own
packages. Importing any of them would leave a mark; none may. Commands are run in turns with
``python -c pass``, after one run that writes the bytecode.

    python -m studies.benchmarks.startup           half a minute
    python -m studies.benchmarks.startup --quick
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .common import arguments, shown, spread, table, write

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import quintain": ["-c", "import quintain"],
    "quintain --help": ["-m", "quintain", "--help"],
    "quintain list": ["-m", "quintain", "list"],
}
GATES = {"import quintain": 0.15, "quintain list": 0.3}
"""Seconds asked for: added to the bare interpreter for the import, in all for the listing."""


def install(folder: Path, count: int) -> None:
    """*count* plugins that tell on whoever imports them."""
    for i in range(count):
        package, info = folder / f"fake_{i}", folder / f"fake_{i}-1.{i}.dist-info"
        package.mkdir()
        info.mkdir()
        (package / "__init__.py").write_text(
            f"import pathlib\npathlib.Path({str(folder / 'imported')!r}).touch()\n"
        )
        entries = [("environment", f"fake{i}"), ("reward", f"fake_reward{i}")]
        rows = "".join(
            f'[[components]]\nkind = "{kind}"\nname = "{name}"\nsummary = "Number {i}."\n'
            for kind, name in entries
        )
        (package / "quintain.toml").write_text(f'api = 1\nlicence = "MIT"\n{rows}')
        readme = "A line of the README.\n" * 200
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: fake-{i}\nVersion: 1.{i}\n\n{readme}"
        )
        (info / "RECORD").write_text("")
        points = "".join(f"[quintain.{kind}s]\n{name} = fake_{i}:thing\n" for kind, name in entries)
        (info / "entry_points.txt").write_text(points)


def seconds(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True, env=environment)
    return time.perf_counter() - began


def main() -> None:
    args = arguments(__doc__).parse_args()
    plugins, rounds = 100, args.rounds or (3 if args.quick else 21)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="quintain-benchmark-") as where:
        install(Path(where), plugins)
        environment = {**os.environ, "PYTHONPATH": where, "COLUMNS": "120"}
        for round_ in range(-1, rounds):
            for name, command in COMMANDS.items():
                took = seconds(command, environment)
                if round_ >= 0:
                    times[name].append(took)
        if (Path(where) / "imported").exists():
            raise RuntimeError("a listing imported a plugin")
    bare = times["python -c pass"]
    figures: dict[str, Any] = {
        name: {
            "milliseconds": spread(1000 * x for x in measured),
            "ratio": spread(x / b for x, b in zip(measured, bare, strict=True)),
            "added_milliseconds": spread(
                1000 * (x - b) for x, b in zip(measured, bare, strict=True)
            ),
            "gate_seconds": GATES.get(name),
        }
        for name, measured in times.items()
    }
    rows = [
        (
            name,
            shown(f["milliseconds"]),
            shown(f["added_milliseconds"]),
            shown(f["ratio"], "x"),
            f"< {1000 * f['gate_seconds']:.0f} ms {'added' if 'import' in name else 'in all'}"
            if f["gate_seconds"]
            else "",
        )
        for name, f in figures.items()
    ]
    print(
        table((f"command, {plugins} plugins installed", "ms", "added ms", "ratio", "target"), rows)
    )
    write("startup", figures, quick=args.quick, about={"plugins": plugins})


if __name__ == "__main__":
    main()
