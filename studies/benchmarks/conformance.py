"""The table of docs/conformance.md: every case through Quintain's layers and through peers.

Each layer runs as ``python -m studies.conformance --json`` in a process of its own, peers in the environment
of ``peers/conformance_env.sh``. Results are kept in ``results/conformance.json``; a layer that is
not run keeps its last ones.

    python -m studies.benchmarks.conformance                    Quintain's layers, a minute
    python -m studies.benchmarks.conformance --peers            verifiers, TRL and ART, too
    python -m studies.benchmarks.conformance --table            write the table again, run nothing
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from ..records import record_lines
from .common import FOLDER, RESULTS, ROOT

PAGE = ROOT / "docs" / "conformance.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"
OURS = ("gateway", "serve")
PEERS = {
    "verifiers": ("verifiers", "", "conformance_verifiers:VerifiersLayer"),
    "TRL": ("trl", "", "conformance_trl:TRLLayer"),
    "ART": ("openpipe-art", "art", "conformance_art:ARTLayer"),
}
"""Distribution, environment (an argument of ``conformance_env.sh``) and layer."""
FILE = RESULTS / "conformance.json"


def run(python: str, layer: str) -> list[dict[str, Any]]:
    """Return the results of *layer*, one for each case and API."""
    command = [python, "-m", "studies.conformance", "--json", "--layer", layer]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if not rows:
        raise SystemExit(f"{' '.join(command)} printed nothing")
    return rows


def version_of(python: str, distribution: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    return subprocess.check_output([python, "-c", code], text=True).strip()


def measured(name: str, python: str, layer: str, distribution: str) -> dict[str, Any]:
    """Return what is kept of a layer."""
    rows = run(python, layer)
    cases: dict[str, dict[str, str]] = {}
    for row in rows:
        outcome = row["outcome"] if row["outcome"] != "fail" else ", ".join(row["columns"])
        cases.setdefault(row["case"], {})[row["dialect"]] = outcome
    ran = [row for row in rows if row["outcome"] != "not offered"]
    return {
        "layer": name,
        "version": version_of(python, distribution),
        "date": datetime.date.today().isoformat(),
        "runs": len(ran),
        "passed": sum(row["outcome"] == "pass" for row in ran),
        "not_offered": len(rows) - len(ran),
        "cases": cases,
    }


def cell(outcomes: dict[str, str]) -> str:
    """Return one cell of the table: over all APIs of the case that the layer offers."""
    ran = [outcome for outcome in outcomes.values() if outcome != "not offered"]
    wrong = sorted({outcome for outcome in ran if outcome != "pass"})
    return f"**{'; '.join(wrong)}**" if wrong else "pass" if ran else "-"


def table(layers: Iterable[dict[str, Any]]) -> str:
    """Return the page's part between its marks."""
    cases = importlib.import_module("studies.conformance").CASES
    columns = [*layers]
    heads = [f"{one['layer']} {one['version']}" for one in columns]
    lines = [
        f"| case | {' | '.join(heads)} | what happens |",
        f"|---|{'---|' * len(heads)}---|",
    ]
    for name, case in cases.items():
        cells = [cell(one["cases"].get(name, {})) for one in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {case.summary} |")
    lines += [
        "",
        "| layer | date | runs | pass | fail | not offered |",
        "|---|---|---|---|---|---|",
    ]
    for head, one in zip(heads, columns, strict=True):
        failed = one["runs"] - one["passed"]
        counts = [one["runs"], one["passed"], failed, one["not_offered"]]
        lines.append(f"| {head} | {one['date']} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action="store_true", help="run verifiers, TRL and ART, too")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    layers = {one["layer"]: one for one in kept}
    if not options.table:
        for name in OURS:
            layers[name] = measured(name, sys.executable, name, "quintain-gateway")
    if options.peers:
        for name, (distribution, environment, layer) in PEERS.items():
            script = str(FOLDER / "peers" / "conformance_env.sh")
            subprocess.run(["sh", script, *filter(None, [environment])], check=True)
            folder = FOLDER / "-".join(filter(None, [".peers-conformance", environment]))
            python = str(folder / "bin" / "python")
            target = f"studies.benchmarks.peers.{layer}"
            layers[name] = measured(name, python, target, distribution)
    FILE.write_text(record_lines([*layers.values()]), encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(layers.values())}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
