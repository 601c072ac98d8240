"""Tables of what the parts measured, for `docs/benchmarks.md`.

python -m studies.benchmarks.gpu.report FOLDER        of the JSON files in it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..common import table

Show = Callable[[Any], str]
Column = tuple[str, str, Show]
"""Head, path of the figure with dots, and how it is written."""


def number(digits: int) -> Show:
    """Return what writes a number with *digits* significant ones."""
    return lambda value: f"{value:,.{digits}g}" if isinstance(value, int | float) else str(value)


def whole(value: Any) -> str:
    return f"{value:,.0f}"


def share(value: Any) -> str:
    return f"{100 * value:.1f} %"


def gigabytes(value: Any) -> str:
    return f"{value / 1e9:.2f} GB"


def per_second(unit: str, size: float) -> Show:
    """Return what writes a rate in *unit*, which is *size* of it."""
    return lambda value: f"{value / size:,.1f} {unit}"


def yes(value: Any) -> str:
    return "yes" if value else "no"


def text(value: Any) -> str:
    return str(value)


def seconds_of_each(value: Any) -> str:
    return ", ".join(f"{seconds:.3g}" for seconds in value)


def names(value: Any) -> str:
    """Write the keys of a dictionary, most first."""
    return ", ".join(value) or "none"


COLUMNS: Mapping[str, Sequence[Column]] = {
    "1-correctness": (
        ("sampled - plain (nats)", "sampled_from_plain", number(2)),
        ("sampled - float32", "sampled_from_float32", number(2)),
        ("plain - float32", "plain_from_float32", number(2)),
        ("gradient, relative", "relative_error", number(2)),
        ("healthy", "healthy", number(2)),
        ("planted", "planted", number(2)),
        ("stepped", "stepped", text),
        ("failed", "failed", names),
        ("attention in bf16", "bf16", text),
        ("graphs replayed", "replays_on", text),
        ("within its limit", "ok", yes),
    ),
    "2-training": (
        ("s/step", "seconds", number(3)),
        ("tokens/s", "tokens_per_second", whole),
        ("useful TFLOP/s", "flops_per_second", per_second("", 1e12)),
        ("of a plain product", "mfu", share),
        ("of the data sheet", "mfu_nominal", share),
        ("aim", "aim", share),
        ("attention", "kernels.calls", names),
        ("waits of the host", "host_waits", text),
        ("peak memory", "peak.allocated", gigabytes),
    ),
    "3-decoding": (
        ("tokens/s", "tokens_per_second", whole),
        ("ms/step", "step_ms", number(3)),
        ("GB/s that it must read", "bytes_per_second", per_second("", 1e9)),
        ("of a plain read", "bandwidth", share),
        ("of the data sheet", "bandwidth_nominal", share),
        ("aim", "aim", share),
        ("whole tokens/s", "whole_tokens_per_second", whole),
    ),
    "4-loop": (
        ("seconds", "seconds", number(3)),
        ("parts (s)", "parts_seconds", number(3)),
        ("loop (s)", "loop_seconds", number(3)),
        ("loop / parts", "ratio", number(3)),
        ("aim", "aim", number(3)),
        ("temperature", "after_temperature", number(2)),
        ("sampled before", "before_sampled", share),
        ("sampled after", "after_sampled", share),
        ("greedy before", "before_greedy", share),
        ("greedy after", "after_greedy", share),
        ("two runs equal", "two_runs_equal", yes),
        ("resumed equal", "resumed_equal", yes),
        ("samples", "samples", whole),
        ("largest mismatch (nats)", "mismatch", number(2)),
        ("plan of the engine", "plan", names),
    ),
    "5-memory": (
        ("peak", "peak", gigabytes),
        ("estimate", "estimated", gigabytes),
        ("peak / estimate", "over_estimate", number(3)),
        ("reserved", "reserved", gigabytes),
        ("slots", "slots", text),
        ("sampling (s)", "sampling_seconds", number(3)),
        ("update (s)", "update_seconds", number(3)),
    ),
    "6-lora": (
        ("fits", "fits", yes),
        ("peak", "peak", gigabytes),
        ("estimate", "estimated", gigabytes),
        ("slots", "slots", text),
        ("sampling (s)", "sampling_seconds", number(3)),
        ("update (s)", "update_seconds", number(3)),
        ("sync (s)", "sync_seconds", number(3)),
        ("s/step", "step_seconds_median", number(3)),
    ),
    "7-ranks": (
        ("s/step", "seconds", number(3)),
        ("tokens/s", "tokens_per_second", whole),
        ("loss and gradient, relative", "relative_error", number(2)),
        ("weights / change", "weights_over_change", number(2)),
        ("within its limit", "ok", yes),
    ),
    "8-overlap": (
        ("graphs recorded in each step", "records_with", text),
        ("sampling (s)", "sampling_seconds_with", seconds_of_each),
        ("without graphs (s)", "sampling_seconds_without", seconds_of_each),
        ("tokens equal", "tokens_equal", yes),
        ("recorded beside updates", "records_beside", text),
        ("bits of other bursts", "bursts_equal", yes),
        ("bits in more room", "room_equal", yes),
        ("pinned (s)", "pinned_seconds", number(3)),
        ("plain (s)", "plain_seconds", number(3)),
        ("weights equal", "weights_equal", yes),
        ("peak", "now_peak", gigabytes),
        ("peak before", "before_peak", gigabytes),
        ("s/update", "now_seconds", number(3)),
        ("s/update before", "before_seconds", number(3)),
        ("waits of the host for a token", "waits_for_a_token", number(3)),
        ("an update repeats", "repeats", yes),
        ("refused", "refused", text),
        ("within its limit", "ok", yes),
    ),
}
INSTEAD = ("not_reached", "out_of_memory", "needs_cuda", "skipped", "cut", "error")
"""Keys that say why a step has no figures."""


def found(figures: Mapping[str, Any], path: str) -> Any:
    """Return the figure at *path*, or ``None``."""
    value: Any = figures
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def instead(figures: Mapping[str, Any]) -> str:
    """Return why a step has no figures; empty where it has."""
    if figures.get("running"):
        return "cut while it was running"
    return next((f"{k.replace('_', ' ')}: {figures[k]}" for k in INSTEAD if k in figures), "")


def part_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the head, the table and the notes of one part."""
    card, machine, name = record["card"], record["machine"], record["part"]
    steps = {k: v for k, v in record["steps"].items() if k != "card"}
    rows = {k: v for k, v in steps.items() if not instead(v)}
    columns = [
        column
        for column in COLUMNS.get(name, ())
        if any(found(figures, column[1]) is not None for figures in rows.values())
    ]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    now = card.get("now", {})
    driver = f", driver {now['driver_version']}" if "driver_version" in now else ""
    after = record.get("card_after", {})
    clock = f", clock {after['clocks.sm']} at the end" if "clocks.sm" in after else ""
    lines = [
        f"## Part {name}" + (" (a rehearsal: no figures)" if record["rehearsal"] else ""),
        "",
        f"{machine['date']}, {card['name']}{driver}{clock}; Python {machine['python']}, "
        f"{versions}. "
        f"`{record['command']}`",
        "",
    ]
    if measured := record["steps"].get("card", {}):
        lines += (
            [
                "In the same run a plain bfloat16 product reached "
                f"{measured['flops'] / 1e12:,.1f} TFLOP/s, a copy "
                f"{measured['copy'] / 1e9:,.0f} GB/s, a read "
                f"{measured['read'] / 1e9:,.0f} GB/s.",
                "",
            ]
            if "flops" in measured
            else []
        )
    body = [
        [step, *(_cell(figures, path, show) for _, path, show in columns)]
        for step, figures in rows.items()
    ]
    if body:
        lines += [table(["step", *(head for head, _, _ in columns)], body), ""]
    lines += [f"- {step}: {why}" for step, v in steps.items() if (why := instead(v))]
    if not record.get("complete"):
        lines.append("- This part did not reach its end.")
    return lines


def _cell(figures: Mapping[str, Any], path: str, show: Show) -> str:
    value = found(figures, path)
    return "" if value is None else show(value)


def report(folder: Path) -> str:
    """Return the tables of all parts in *folder*, as Markdown."""
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("[0-9]-*.json"))]
    return "\n".join(line for record in records for line in [*part_lines(record), ""])


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
