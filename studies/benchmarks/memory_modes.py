"""Memory of a run by way of training, against the estimate of ``--dry-run``: a model of the shape of
Qwen3-0.6B with random weights, loaded from its folder, two steps of sampling and update on the CPU.

Each way runs in a process of its own. Memory is what the process has resident above what it had with
its libraries loaded, read 50 times a second. Weights that do not train may be pages of the model's
file, which count. Memory that torch gives back goes back to the kernel at once (a fixed
``MALLOC_MMAP_THRESHOLD_``): else the C library keeps up to 32 MB of each size, which a GPU's
allocator does not. Prompts have 48 tokens and replies 32, so that a step takes a minute. The estimate
is asked for these.

    python -m studies.benchmarks.memory_modes             needs 14 GiB, one way at a time
    python -m studies.benchmarks.memory_modes --only LoRA
    python -m studies.benchmarks.memory_modes --quick
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from .common import CACHE, RESULTS, Worker, arguments, serve, table, write

AIM = 0.1
LEAN = ["learner.use=lean"]
HOST = "learner.args.optimizer=adamw_host"
LORA = "model.lora={ r = 16, lora_alpha = 32 }"
ADAPTERS = [LORA, *LEAN, "learner.args.optimizer=adamw"]
READ = [*ADAPTERS, "engine.args.merge=false"]
WAYS: dict[str, list[str]] = {
    "LoRA on an nf4 base, read by the engine": [*READ, "learner.args.base=nf4"],
    "LoRA on an int8 base, read by the engine": [*READ, "learner.args.base=int8"],
    "LoRA on a bfloat16 base, read by the engine": READ,
    "LoRA on a bfloat16 base": ADAPTERS,
    "LoRA": [LORA],
    "bfloat16 weights, 8-bit moments": LEAN,
    "8-bit moments": [*LEAN, "learner.args.weights=float32"],
    "bfloat16 weights, AdamW on the host": [*LEAN, HOST],
    "all weights": [],
}
"""Settings of a recipe by the name of the way, the smallest first."""
GROUP, PROMPT, NEW, STEPS = 2, 48, 32, 2
PARTS = ("weights", "gradients", "moments", "copy", "cache", "activations")


def folder_of(size: str) -> Path:
    """Return the folder of a model of *size* with random weights in bfloat16, made on first use."""
    import torch
    from transformers import AutoTokenizer

    from .gpu.work import module_of
    from .shapes import folder

    path = CACHE / f"{size}-bfloat16"
    if not (path / "model.safetensors").exists():
        AutoTokenizer.from_pretrained(folder("0.1M")).save_pretrained(path)
        module = module_of(size, torch.device("cpu"), torch.bfloat16, fused=False)
        module.save_pretrained(path)
    return path


class Curve:
    """Bytes in use above those at the beginning, read in a thread while phases run.

    Attributes:
        points: seconds since the beginning, bytes, phase.
        cpu_seconds: of the process by phase, the last time.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, int, str]] = []
        self.cpu_seconds: dict[str, float] = {}
        self._began, self._start, self._phase = time.perf_counter(), resident(), ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Call the readings inside *name*."""
        self._phase, before = name, time.process_time()
        self._note()
        yield
        self._note()
        self._phase, self.cpu_seconds[name] = "", time.process_time() - before

    def now(self) -> int:
        """Return the bytes in use."""
        return resident() - self._start

    def peaks(self) -> dict[str, int]:
        """Return the most bytes of each phase, all its times."""
        phases = {phase for _, _, phase in self.points if phase}
        return {name: max(n for _, n, phase in self.points if phase == name) for name in phases}

    def end(self) -> None:
        """Stop reading."""
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._ended.wait(0.02):
            self._note()

    def _note(self) -> None:
        self.points.append((time.perf_counter() - self._began, self.now(), self._phase))


def resident() -> int:
    """Return the resident bytes of this process, with the pages of the model's file that it maps."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def file_pages() -> int:
    """Return the resident bytes that are pages of files: a kernel takes them back when it needs
    memory.
    """
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssFile:")[2].split()[0])


def run(way: str, size: str) -> dict[str, Any]:
    """Load, sample and update as a run does; return bytes by phase beside the estimate."""
    import torch

    from quintain.console.screen import Screen
    from quintain.engine.embedded import EmbeddedEngine
    from quintain.learning import Learner
    from quintain.recipe import plan as plans
    from quintain.recipe.memory import memory_of
    from quintain.run.build import engine_for, learner_for, model_for

    from .gpu.memory import CHECKPOINTED, on_paper, plan_of
    from .gpu.work import batch_of, prompts_of, sample, sequence

    path = folder_of(size)
    settings = [f"model.name={path}", CHECKPOINTED, *WAYS[way]]
    plans.PROMPT_TOKENS = PROMPT - NEW  # a sequence is planned for 2 * NEW tokens and these
    budget = PROMPT + GROUP * NEW
    plan = plan_of(
        torch.device("cpu"), groups=1, group_size=GROUP, new=NEW, budget=budget, settings=settings
    )
    estimate = memory_of(plan, on_paper(size, plan), free=None)
    # of the moments of AdamW on the host, its float32 weights exist from the start
    masters = plan.learner.bytes.host // 3 * estimate.trained
    curve, files = Curve(), file_pages()
    with curve.phase("load"):
        model = model_for(plan, None, Screen(quiet=True), lambda text: nullcontext())
        learner = cast(Learner, learner_for(plan, model))
        engine = cast(EmbeddedEngine, engine_for(plan, model))
    after_load = curve.now()
    prompts = prompts_of(model.module, [PROMPT]) * GROUP
    for _ in range(STEPS):
        with curve.phase("sampling"):
            replies = sample(engine, prompts, NEW)
        pairs = zip(prompts, replies, strict=True)
        with curve.phase("update"):
            learner.step(batch_of([sequence(p, r) for p, r in pairs], GROUP))
        with curve.phase("sync"):
            asyncio.run(engine.update(learner.weights()))
    after_update = curve.now()
    curve.end()
    peaks = curve.peaks()
    highest = max(peaks.values())
    return {
        "parameters": estimate.parameters,
        "estimated": {part: getattr(estimate, part) for part in PARTS} | {"sum": estimate.total},
        "after_load": after_load,
        "estimated_after_load": estimate.weights + estimate.copy + masters,
        "after_update": after_update,
        "file_pages": file_pages() - files,
        "estimated_after_update": estimate.total - estimate.activations,
        "peaks": peaks,
        "peak": highest,
        "over_estimate": highest / estimate.total,
        "cpu_seconds": curve.cpu_seconds,
        "curve": thinned(curve.points),
    }


def thinned(points: list[tuple[float, int, str]]) -> list[tuple[float, float, str]]:
    """Return ten readings of each phase in turn and its highest: seconds, gigabytes, phase."""
    found: list[tuple[float, float, str]] = []
    for phase, group in groupby(points, key=lambda point: point[2]):
        part = list(group)
        kept = {*part[:: max(1, len(part) // 10)], max(part, key=lambda point: point[1])}
        found += [(round(t, 1), round(size / 1e9, 2), phase) for t, size, _ in sorted(kept)]
    return found


def gigabytes(size: float) -> str:
    """``2.4``."""
    return f"{size / 1e9:.2f}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", action="append", choices=WAYS, help="one way; may be repeated")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(run, args.threads)
        return
    size = "0.1M" if args.quick else "0.6B"
    kept = (RESULTS / "quick" if args.quick else RESULTS) / "memory_modes.json"
    # Ways that are not measured now keep their figures: not all fit at any time.
    figures: dict[str, Any] = {}
    if args.only and kept.exists():
        figures = json.loads(kept.read_text(encoding="utf-8"))["figures"]
    command = [sys.executable, "-m", "studies.benchmarks.memory_modes", "--serve", "1"]
    for way in args.only or WAYS:
        # the environment of the child, whose C library reads it once
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)
        with Worker(way, [*command, "--threads", str(args.threads)], args.threads) as child:
            figures[way] = child.ask(way=way, size=size)
        shown = {k: v for k, v in figures[way].items() if k != "curve"}
        print(json.dumps({way: shown}), file=sys.stderr, flush=True)
    rows = [
        (
            way,
            *(gigabytes(f[key]) for key in ("after_load", "estimated_after_load")),
            *(gigabytes(f[key]) for key in ("after_update", "estimated_after_update")),
            *(gigabytes(f["peaks"][phase]) for phase in ("load", "sampling", "update", "sync")),
            gigabytes(f["estimated"]["sum"]),
            f"{100 * (f['over_estimate'] - 1):+.0f} %",
        )
        for way, f in figures.items()
    ]
    stages = ("loaded", "estimate", "after updates", "estimate")
    peaks = ("peak of loading", "sampling", "update", "sync")
    print(table(("way", *stages, *peaks, "estimate of all", "peak"), rows))
    about = {"aim": AIM, "prompt": PROMPT, "new": NEW, "samples": GROUP, "threads": args.threads}
    write("memory_modes", figures, quick=args.quick, about=about)


if __name__ == "__main__":
    main()
