"""Draw docs/images/games.png: held-out success of runs of the multi-turn worlds, a panel per world,
a line per seed.

python tools/games_curve.py runs/guess-0 runs/guess-1 runs/guess-2 runs/maze-0 ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from quintain_view.viewer import COLOURS, render_png

PLACE = Path(__file__).resolve().parent.parent / "docs" / "images" / "games.png"


def main(folders: list[str]) -> None:
    """Read the metrics of *folders*, which are called WORLD-SEED, and write the picture."""
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for folder in map(Path, folders):
        world, _, seed = folder.name.rpartition("-")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        held_out = [
            (row["step"], row["held_out.accuracy"]) for row in rows if "held_out.accuracy" in row
        ]
        curves.setdefault(world, {})[seed] = held_out

    def paint(figure: Any) -> None:
        for panel, (world, seeds) in zip(
            figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True
        ):
            for colour, (seed, points) in zip(COLOURS, sorted(seeds.items()), strict=False):
                panel.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    marker="o",
                    markersize=3,
                    label=f"seed {seed}",
                )
            panel.set_title(world)
            panel.set_xlabel("step")
            panel.set_ylim(0, 1)
        figure.axes[0].set_ylabel("held-out success (dev)")
        figure.axes[0].legend()

    PLACE.write_bytes(render_png(paint, size=(2.4 * len(curves), 2.6)))
    print(PLACE)


if __name__ == "__main__":
    main(sys.argv[1:])
