"""Rankings of painted pictures: the right colour is better than a wrong one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

COLOURS = {"red": (214, 39, 40), "green": (44, 160, 44), "blue": (31, 60, 200)}
MANNERS = ("plain", "nice", "clear")
KINDS = ("circle", "square", "bar", "ring")


def painted(random: Random, colour: str, kind: str) -> bytes:
    """A PNG of 32 by 32 pixels."""
    image = Image.new("RGB", (32, 32), "white")
    pencil = ImageDraw.Draw(image)
    left, top = random.randint(0, 12), random.randint(0, 12)
    box = (left, top, left + 18, top + (6 if kind == "bar" else 18))
    if kind in ("circle", "ring"):
        fill = COLOURS[colour] if kind == "circle" else None
        pencil.ellipse(box, fill=fill, outline=COLOURS[colour], width=5)
    else:
        pencil.rectangle(box, fill=COLOURS[colour])
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def rankings(folder: Path, count: int, seed: int = 0) -> Path:
    """Write pictures and a file of *count* rankings of the right colour before two wrong ones, which
    are equally bad."""
    random = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        kind, colour = random.choice(KINDS), random.choice([*COLOURS])
        files = []
        for place, drawn in enumerate([colour, *(c for c in COLOURS if c != colour)]):
            name = f"{number}-{place}.png"
            (folder / name).write_bytes(painted(random, drawn, kind))
            files.append(name)
        row = {
            "prompt": f"a {random.choice(MANNERS)} {colour} {kind}",
            "pictures": [files[0], files[1:]],
        }
        lines.append(json.dumps(row) + "\n")
    path = folder / "rankings.jsonl"
    path.write_text("".join(lines))
    return path
