"""Every figure, one after the other, in well over an hour on two quiet cores:
``python -m studies.benchmarks [--quick]``.
"""

from __future__ import annotations

import subprocess
import sys

from .common import ROOT

FIGURES = ("startup", "memory", "engine", "step", "time_to_accuracy")


def main() -> int:
    failed = []
    for name in FIGURES:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", f"studies.benchmarks.{name}", *sys.argv[1:]]
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
