"""The process that reads and draws what a policy wrote as SVG, apart from the caller's.

It is run by its path in a bare interpreter, and imports nothing of Quintain. After its imports it
may open no file and no socket, because the kernel gives it no further descriptor.

A request and a reply are frames: four bytes of length, then JSON for a request and a byte with the
kind for a reply, `DRAWN` with a file of PNG or `REFUSED` with the reason.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

LENGTH = struct.Struct(">I")
DRAWN, REFUSED = b"D", b"R"
CHARACTERS, ELEMENTS, DEPTH = 50_000, 1_000, 32
"""Of a drawing, at most."""
LARGEST = 1_000_000.0
"""Width and height of a ``viewBox``, at most."""
SHAPES = ("path", "rect", "circle", "ellipse", "line", "polyline", "polygon")
OTHERS = ("svg", "g", "defs", "linearGradient", "radialGradient", "stop", "clipPath")
WITHOUT_EFFECT = ("title", "desc")
_GEOMETRY = (
    "d points x y width height rx ry cx cy r x1 y1 x2 y2 fx fy fr offset gradientUnits "
    "gradientTransform spreadMethod clipPathUnits transform id"
)
_PAINT = (
    "fill fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-linecap stroke-linejoin "
    "stroke-miterlimit stroke-dasharray stroke-dashoffset opacity color stop-color stop-opacity "
    "clip-path clip-rule display visibility"
)
PAINT = frozenset(_PAINT.split())
ATTRIBUTES = PAINT | frozenset(_GEOMETRY.split())
_INNER = re.compile(r"url\(\s*#[\w.-]+\s*\)", re.ASCII)
_NUMBER = re.compile(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)(px)?\s*", re.ASCII)


class NotDrawn(Exception):
    """A drawing that is not drawn; the message says why."""


def checked(text: str, size: int) -> str:
    """Return the drawing *text* as this module writes it: known elements and attributes alone, which
    refer to nothing outside, on a page of *size* by *size* pixels.

    Raises:
        NotDrawn: it is no XML, has an element that is not known, a declaration, or is over a limit.
    """
    if len(text) > CHARACTERS:
        raise NotDrawn(f"it has {len(text):,} characters; the limit is {CHARACTERS:,}")
    parts: list[str] = []
    stack: list[str] = []
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > ELEMENTS or len(stack) >= DEPTH:
            raise NotDrawn(f"it has more than {ELEMENTS:,} elements, or {DEPTH} within each other")
        if (name == "svg") != (not stack):
            raise NotDrawn("svg is the outermost element, and no other one is")
        if name not in SHAPES + OTHERS + WITHOUT_EFFECT:
            raise NotDrawn(f"<{name[:40]}> is no element that is drawn here")
        stack.append(name)
        if name in WITHOUT_EFFECT or (stack[-2:-1] and stack[-2] in WITHOUT_EFFECT):
            return
        kept = _page(attributes, size) if name == "svg" else {}
        kept |= {k: v for k, v in _styled(attributes).items() if name != "svg" or k in PAINT}
        written = "".join(f" {key}={quoteattr(_inner(value))}" for key, value in kept.items())
        parts.append(f"<{name}{written}>")

    def end(name: str) -> None:
        stack.pop()
        if name not in WITHOUT_EFFECT and not (stack and stack[-1] in WITHOUT_EFFECT):
            parts.append(f"</{name}>")

    def declared(*_: Any) -> None:
        raise NotDrawn("it declares a document type or entities, which a drawing does not need")

    parser = expat.ParserCreate(encoding="utf-8")
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = declared
    try:
        parser.Parse(text.encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise NotDrawn(f"it is no XML: {error}") from error
    return "".join(parts)


def _styled(attributes: dict[str, str]) -> dict[str, str]:
    """Return the known attributes, with those that ``style`` declares."""
    found = {key: value for key, value in attributes.items() if key in ATTRIBUTES}
    for declaration in attributes.get("style", "").split(";"):
        key, _, value = declaration.partition(":")
        if key.strip() in PAINT:
            found[key.strip()] = value.strip()
    return found


def _inner(value: str) -> str:
    """Return *value*, which may refer to an element of the same drawing alone."""
    if "(" in value and "url" in value.lower() and not _INNER.fullmatch(value.strip()):
        raise NotDrawn("a url() names something outside of the drawing")
    if "\\" in value or "@" in value:  # escapes and rules of CSS
        raise NotDrawn("an attribute has an escape or a rule of CSS")
    return value


def _page(attributes: dict[str, str], size: int) -> dict[str, str]:
    sides = [_NUMBER.fullmatch(attributes.get(name, "")) for name in ("width", "height")]
    box = [0.0, 0.0, *(float(side[1]) if side else float(size) for side in sides)]
    if "viewBox" in attributes:
        try:
            box = [float(number) for number in attributes["viewBox"].replace(",", " ").split()]
        except ValueError as error:
            raise NotDrawn(f"viewBox is {attributes['viewBox'][:40]!r}") from error
    if len(box) != 4 or not all(map(math.isfinite, box)) or not min(box[2:]) > 0:
        raise NotDrawn("viewBox, or width and height, are no box")
    if max(map(abs, box)) > LARGEST:
        raise NotDrawn(f"its page is larger than {LARGEST:,.0f}")
    numbers = " ".join(f"{number:.9g}" for number in box)
    return {
        "xmlns": "http://www.w3.org/2000/svg",
        "width": str(size),
        "height": str(size),
        "viewBox": numbers,
    }


def serve(draw: Callable[..., bytes], seconds: float) -> None:
    """Answer requests on standard input and output until its end.

    Args:
        draw: that of the renderer.
        seconds: of CPU time for one drawing, after which the kernel ends this process by SIGPROF.
    """
    while head := _read(LENGTH.size):
        request = json.loads(_read(LENGTH.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            clean = checked(request["svg"], request["size"])
            size = request["size"]
            reply = DRAWN + draw(
                svg_string=clean,
                width=size,
                height=size,
                background="white",
                skip_system_fonts=True,
            )
        except NotDrawn as error:
            reply = REFUSED + str(error).encode()
        except (ValueError, MemoryError, RecursionError) as error:
            reply = REFUSED + f"the renderer refuses it: {error}"[:300].encode()
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # that of Rust, which no module exports
                raise
            reply = REFUSED + f"the renderer fails on it: {error}"[:300].encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        data = LENGTH.pack(len(reply)) + reply
        while data:
            data = data[os.write(1, data) :]


def _read(count: int) -> bytes:
    """Return *count* bytes of standard input; none at its end."""
    data = b""
    while len(data) < count:
        chunk = os.read(0, count - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def main() -> None:
    """Import the renderer from the folder that is the first argument, give up all rights, and serve.

    Further arguments: CPU seconds of a drawing, and MiB of memory of this process.
    """
    folder, seconds, memory = sys.argv[1:4]
    sys.path.append(folder)
    import resvg_py

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for limit, value in (
        (resource.RLIMIT_AS, int(memory) << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    serve(resvg_py.svg_to_bytes, float(seconds))


if __name__ == "__main__":
    main()
