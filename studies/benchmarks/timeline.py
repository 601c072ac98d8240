"""What the timeline of a run costs: CPU seconds of a step with and without it, and of each span.

Two sides are processes of their own that run the same step of `quintain train` in turns; one
records its spans and writes their file, the other has them off. The paired ratio is of CPU time,
which waits for the disk and other programs disturb less. A difference below a percent is hard to
see so, hence the second table: the CPU time of one span, on and off, times the spans of the step,
over the CPU time of the step.

    python -m studies.benchmarks.timeline            about four minutes on two quiet cores
    python -m studies.benchmarks.timeline --quick
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quintain.rollouts import Span, record_spans
from quintain_view.watch.recorder import TimelineRecorder

from .common import Paired, Worker, alternate, arguments, shown, table, write
from .shapes import folder

CASES = {"quickstart: 1.05M, 64 x 4, 8-48 tokens": ("1.05M", 64, 4, 8, 48)}
QUICK = {"0.1M, 4 x 4, 2-16 tokens": ("0.1M", 4, 4, 2, 16)}
PER_ROLLOUT = 4
"""Spans: episode, turn, score, grade. Those of a step are 10 more."""
AIMS = {"on": 0.01, "off": 0.001}
TIMES = 20_000
"""Rollouts whose spans are timed, five times."""


def rollout_spans(number: int) -> None:
    """Open the spans of one rollout of one turn."""
    request = SimpleNamespace(name="sums", index=number)
    with Span("episode", request=request, sample=0, attempt=1) as episode:
        with Span("turn") as turn:
            turn.attributes.update(player="", tokens=24, finish="stop", engine="embedded")
        episode.attributes["ended"] = "finished"
    with Span("score"), Span("grade", reward="exact", rollouts=1):
        pass


def seconds_per_span(*, recorded: bool) -> float:
    """Return the CPU time of a span: the median of five, with its share of the file if
    *recorded*.
    """

    def once() -> float:
        with tempfile.TemporaryDirectory() as place:
            if recorded:
                record_spans(TimelineRecorder(Path(place), kept=1))
            began = time.process_time()
            with Span("step", step=1):
                for number in range(TIMES):
                    rollout_spans(number)
            return (time.process_time() - began) / (TIMES * PER_ROLLOUT)

    return statistics.median(Context().run(once) for _ in range(5))


def measure(
    size: str, groups: int, group_size: int, low: int, high: int, args: Any
) -> dict[str, Any]:
    """Both sides in turns; medians of the CPU time, the paired ratio, and the share by spans."""
    words = [str(folder(size)), "--groups", str(groups), "--group-size", str(group_size)]
    words += ["--low", str(low), "--high", str(high), "--threads", str(args.threads)]

    def side(setting: str) -> Worker:
        python = [sys.executable, "-m", "studies.benchmarks.quintain_step"]
        return Worker(
            setting, ["env", f"QUINTAIN_TIMELINE={setting}", *python, *words], args.threads
        )

    with side("off") as off, side("10") as on:
        rounds = args.rounds or (2 if args.quick else 41)
        alternate(off, on, rounds=0, warmup=1 if args.quick else 3)
        began = time.monotonic()
        paired = alternate(off, on, rounds=2, warmup=0)  # each side begins one
        while len(paired.ours) < rounds and time.monotonic() - began < args.seconds:
            more = alternate(off, on, rounds=2, warmup=0)
            paired = Paired(ours=paired.ours + more.ours, theirs=paired.theirs + more.theirs)
    summary = paired.summary("cpu")
    spans = groups * group_size * PER_ROLLOUT + 10
    step = summary["ours"]["median"]
    shares = {
        name: seconds_per_span(recorded=name == "on") * spans / step for name in ("on", "off")
    }
    return {
        "off": summary["ours"],
        "on": summary["theirs"],
        "ratio": summary["ratio"],
        "spans": spans,
        "share": shares,
        "aims": AIMS,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=200.0,
        help="begin no further round after these, on a busy machine (default: %(default)s)",
    )
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, case in (QUICK if args.quick else CASES).items():
        figures[name] = measure(*case, args)
    rows = [
        [
            name,
            *(shown(f[key], digits=4) for key in ("off", "on", "ratio")),
            str(f["spans"]),
            *(f"{f['share'][key]:.3%}" for key in ("on", "off")),
        ]
        for name, f in figures.items()
    ]
    head = ["step", "off (CPU s)", "on (CPU s)", "on / off", "spans", "share on", "share off"]
    print(table(head, rows))
    write("timeline", figures, quick=args.quick, about={"threads": args.threads})


if __name__ == "__main__":
    main()
