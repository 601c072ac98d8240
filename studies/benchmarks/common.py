"""What every figure needs: two sides in processes of their own, taken in turns; medians, paired
ratios, one JSON file.

Both processes live through the whole measurement and wait for one another: each round times one
unit of work on either side, seconds apart, and the side that begins alternates. A round gives one
ratio; what is reported is the median of the ratios with their quartiles, so a machine that slows
down for a minute moves both sides of a round alike. Needs no torch.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..records import record_lines

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
CACHE = FOLDER / ".cache"
RESULTS = FOLDER / "results"
PEERS = FOLDER / ".peers" / "bin" / "python"
THREADS = min(2, os.cpu_count() or 1)
PARTS = ("core", "environments/math/src", "plugins/engines/src")


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return the options that every command has."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: does it run? Results go to results/quick"
    )
    parser.add_argument("--rounds", type=int, help="timed rounds per case")
    parser.add_argument(
        "--threads",
        type=int,
        default=THREADS,
        help="torch threads on either side (default: %(default)s)",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    return parser


def trial_arguments() -> argparse.ArgumentParser:
    """Return the options of one training run of `time_to_accuracy`, the same for both sides."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--environment", required=True)
    parser.add_argument("--environment-args", type=json.loads, default="{}")
    parser.add_argument("--device", default="cpu")
    for name in (
        "seed",
        "steps",
        "every",
        "tasks",
        "groups",
        "group-size",
        "max-tokens",
        "threads",
    ):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("lr", "target"):
        parser.add_argument(f"--{name}", type=float, required=True)
    return parser


def step_arguments() -> argparse.ArgumentParser:
    """Return the options of a side of `step` that both sides have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--low", type=int, default=64)
    parser.add_argument("--high", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lr", type=float, default=1e-4)
    return parser


def peers_python() -> Path:
    """Return the interpreter of the peers' virtual environment, made if need be."""
    subprocess.run(
        [str(FOLDER / "peers" / "make_env.sh")],
        check=True,
        env={**os.environ, "PYTHON": sys.executable},
    )
    return PEERS


class Worker:
    """One side of a comparison: a child process that answers a JSON line with a JSON line.

    Args:
        name: for tables and errors.
        command: arguments of the child, the interpreter first.
        threads: for OpenMP and torch.
        checkout: of which the child imports the package.

    Raises:
        RuntimeError: the child ended; its last lines of stderr are shown.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        threads: int = THREADS,
        checkout: Path = ROOT,
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        self._child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=child_environment(threads, checkout),
        )
        self.about: dict[str, Any] = self._read()

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send *message*, wait for the answer."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            self._fail()
        return self._read()

    def close(self) -> None:
        """Let the child end; kill it where it does not."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self._fail()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _fail(self) -> None:
        code = self._child.wait()
        self._errors.seek(0)
        tail = self._errors.read().decode("utf-8", "replace")[-4000:]
        raise RuntimeError(f"side {self.name!r} ended with status {code}:\n{tail}")


def child_environment(threads: int, checkout: Path = ROOT) -> dict[str, str]:
    """Both sides see the same one: offline, the same number of threads, the checkout on the
    path.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *(str(checkout / part) for part in PARTS), *_inherited_path()]
        ),
    }


def _inherited_path() -> list[str]:
    """Folders of this process's PYTHONPATH, behind which nothing of a checkout can hide."""
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]


class Door:
    """The child's end of a `Worker`. What libraries print goes to stderr from here on."""

    def __init__(self) -> None:
        self._out: IO[str] = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **answer: Any) -> None:
        """Answer."""
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()

    def hear(self) -> dict[str, Any] | None:
        """Return the next message; ``None`` when the parent is done."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None


def serve(run: Callable[..., Mapping[str, Any]], threads: int) -> None:
    """Answer each message of the `Worker` with what *run* returns of its fields."""
    door = Door()
    import torch

    torch.set_num_threads(threads)
    door.say(ready=True)
    while (message := door.hear()) is not None:
        door.say(**run(**message))


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Timed rounds of two sides.

    Attributes:
        ours, theirs: answers of each round, which carry ``seconds``.
    """

    ours: tuple[Mapping[str, Any], ...]
    theirs: tuple[Mapping[str, Any], ...]

    def ratios(self, key: str = "seconds") -> list[float]:
        """theirs / ours of each round: how many times less of *key* our side needs."""
        return [t[key] / o[key] for o, t in zip(self.ours, self.theirs, strict=True)]

    def summary(self, key: str = "seconds") -> dict[str, Any]:
        """Medians of both sides, and the paired ratio with its quartiles."""
        return {
            "ours": spread(o[key] for o in self.ours),
            "theirs": spread(t[key] for t in self.theirs),
            "ratio": spread(self.ratios(key)),
        }


def alternate(ours: Worker, theirs: Worker, *, rounds: int, warmup: int, **message: Any) -> Paired:
    """Ask both sides in turns; the first *warmup* rounds do not count."""
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    for round_ in range(-warmup, rounds):
        order = [("ours", ours), ("theirs", theirs)]
        for key, side in order if round_ % 2 else reversed(order):
            answer = side.ask(round=round_ + warmup, **message)
            if round_ >= 0:
                results[key].append(answer)
    return Paired(ours=tuple(results["ours"]), theirs=tuple(results["theirs"]))


def spread(values: Iterable[float]) -> dict[str, Any]:
    """Median, quartiles, extremes and count."""
    ordered = sorted(values)
    quartiles = (
        statistics.quantiles(ordered, n=4, method="inclusive")
        if len(ordered) > 1
        else [ordered[0]] * 3
    )
    return {
        "median": quartiles[1],
        "q1": quartiles[0],
        "q3": quartiles[2],
        "min": ordered[0],
        "max": ordered[-1],
        "n": len(ordered),
    }


def shown(summary: Mapping[str, Any], unit: str = "", digits: int = 3) -> str:
    """``1.62 (1.58-1.70)``: median and quartiles."""
    return (
        f"{summary['median']:.{digits}g}{unit} "
        f"({summary['q1']:.{digits}g}-{summary['q3']:.{digits}g})"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, ready for `docs/benchmarks.md`."""
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(str(x).ljust(w) for x, w in zip(row, widths, strict=True)) + " |"

    return "\n".join(
        [line(head), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)]
    )


def machine() -> dict[str, Any]:
    """Processor, cores, memory, versions, load and date, as far as the system tells."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _from("/proc/cpuinfo", "model name")
        or platform.processor()
        or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(
            int((_from("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1
        ),
        "load_before": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("quintain", "torch", "transformers")},
    }


def _from(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def write(name: str, figures: Mapping[str, Any], *, quick: bool, about: Mapping[str, Any]) -> Path:
    """Save *figures* with the machine and how they were measured; CUDA figures beside those of the
    CPU.
    """
    folder = RESULTS / "quick" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    suffix = "-cuda" if about.get("device", "cpu") != "cpu" else ""
    path = folder / f"{name}{suffix}.json"
    program = name.partition("-")[0]
    words = [Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:]]
    command = " ".join(["python", "-m", f"studies.benchmarks.{program}", *words])
    content = {
        "command": command,
        "machine": machine(),
        "about": dict(about),
        "figures": dict(figures),
    }
    path.write_text(record_lines(content))
    print(f"\n{path.relative_to(ROOT)}")
    return path
