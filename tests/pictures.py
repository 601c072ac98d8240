"""Pictures for tests."""

from __future__ import annotations

import io


def png(colour: str = "red", size: tuple[int, int] = (5, 3)) -> bytes:
    """A file of PNG with one colour."""
    from PIL import Image  # here: not every test environment has it

    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()
