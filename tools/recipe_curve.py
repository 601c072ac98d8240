"""Draw docs/images/NAME.png: held-out accuracy and reward of runs of a recipe, one line each.

python tools/recipe_curve.py code runs/code-0 runs/code-1 runs/code-2
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from quintain_view.viewer import COLOURS, render_png

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"


def main(name: str, *folders: str) -> None:
    """Read the metrics of *folders* and write the picture *name*."""
    runs = {Path(f).name: (Path(f) / "metrics.jsonl").read_text().splitlines() for f in folders}
    records = {run: [json.loads(line) for line in lines] for run, lines in runs.items()}

    def paint(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for colour, (run, rows) in zip(COLOURS, records.items(), strict=False):
            points = [
                (row["step"], row["held_out.accuracy"])
                for row in rows
                if "held_out.accuracy" in row
            ]
            left.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, label=run)
            reward = [(row["step"], row["reward.mean"]) for row in rows if "reward.mean" in row]
            right.plot(*zip(*reward, strict=True), color=colour)
        left.set_title("held-out accuracy (dev)")
        right.set_title("mean reward of the samples")
        for panel in (left, right):
            panel.set_xlabel("step")
            panel.set_ylim(0, max(1, panel.get_ylim()[1]))
        left.legend()

    place = IMAGES / f"{name}.png"
    place.write_bytes(render_png(paint, size=(8, 3)))
    print(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
