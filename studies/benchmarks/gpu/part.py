"""One part of the kit: steps within a time limit, each recorded as soon as it ends."""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..common import machine
from . import card


class NeedsCuda(Exception):
    """A step has nothing to measure on this device."""


class Part:
    """Runs steps and keeps ``NUMBER-NAME.json`` up to date.

    Attributes:
        device: of the run.
        rehearse: tiny sizes, to see that everything runs.
        record: what the file has.

    Args:
        seconds: limit; a step that is expected to take longer than what is left is not begun.
        out: folder of the file.
    """

    def __init__(
        self, name: str, *, device: torch.device, rehearse: bool, seconds: float, out: Path
    ) -> None:
        self.device, self.rehearse = device, rehearse
        self.ends = time.monotonic() + seconds
        self.path = out / f"{name}.json"
        self.failed = False
        out.mkdir(parents=True, exist_ok=True)
        self.record: dict[str, Any] = {
            "part": name,
            "command": shlex.join(["python", "-m", *_module(), *sys.argv[1:]]),
            "rehearsal": rehearse,
            "limit_seconds": seconds,
            "machine": machine(),
            "card": card.described(device),
            "steps": {},
        }
        self.save()

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return self.ends - time.monotonic()

    def save(self) -> None:
        """Write the file; a process that dies meanwhile leaves the earlier one."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self.record, indent=1) + "\n")
        os.replace(draft, self.path)

    def measure(
        self, name: str, function: Callable[[], dict[str, Any]], *, expected: float = 0.0
    ) -> dict[str, Any] | None:
        """Run *function*, which returns figures, as step *name*; return them, or ``None``. Figures
        with ``ok`` false fail the part.

        The record says what a step met instead: that no time was left for the *expected* seconds,
        that memory did not suffice, that it needs CUDA, or its error, after which the next step
        runs.
        """
        steps = self.record["steps"]
        if self.left < (0 if self.rehearse else expected):
            steps[name] = {
                "not_reached": f"{max(0, self.left):.0f} s left, {expected:.0f} expected"
            }
            return self._ended(name, None)
        steps[name] = {"running": True}
        self.save()
        began, figures = time.monotonic(), None
        try:
            figures = function()
            steps[name] = dict(figures)
            self.failed |= figures.get("ok") is False
        except NeedsCuda as error:
            steps[name] = {"needs_cuda": str(error)}
        except Exception as error:  # noqa: BLE001  # the next step may well work
            steps[name] = self._failure(error)
        steps[name]["step_seconds"] = round(time.monotonic() - began, 2)
        return self._ended(name, figures)

    def _failure(self, error: BaseException) -> dict[str, Any]:
        cause: BaseException | None = error
        while cause is not None:  # the engine wraps what its device raises
            if isinstance(cause, torch.OutOfMemoryError):
                return {"out_of_memory": str(cause).partition(". ")[0]}
            cause = cause.__cause__
        self.failed = True
        lines = traceback.format_exc().splitlines()
        return {"error": f"{type(error).__name__}: {error}", "trace": lines[-12:]}

    def _ended(self, name: str, figures: dict[str, Any] | None) -> dict[str, Any] | None:
        gc.collect()
        card.reset_peak(self.device)
        self.record["card_after"] = card.clock() if self.device.type == "cuda" else {}
        self.save()
        print(f"{self.path.stem} {name}: {_short(self.record['steps'][name])}", flush=True)
        return figures

    def compute_peaks(self) -> dict[str, float]:
        """Return `card.measured`, measured in this part if it was not yet; empty if it failed."""
        if "card" not in self.record["steps"]:
            self.measure("card", lambda: card.measured(self.device, small=self.rehearse))
        figures: dict[str, float] = self.record["steps"]["card"]
        return figures if "flops" in figures else {}


def start(run: Callable[[Part], None], doc: str | None, name: str) -> None:
    """Run a part as a program of its own; exit with 1 if a step failed."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--seconds", type=float, default=500.0, help="limit (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --rehearse runs on the CPU")
    part = Part(
        name, device=device, rehearse=args.rehearse, seconds=args.seconds, out=args.out.resolve()
    )
    run(part)
    part.record["complete"] = True
    part.save()
    sys.exit(part.failed)


def _module() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return [spec.name] if spec else []


def _short(figures: dict[str, Any]) -> str:
    plain = {k: v for k, v in figures.items() if isinstance(v, int | float | str)}
    return ", ".join(
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in plain.items()
    )
