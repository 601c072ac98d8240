"""From bytes to the pixels that a model may see: limits first, then one way to decode."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from quintain.errors import InfrastructureError, UsageError

FORMATS = ("PNG", "JPEG", "WEBP")
"""What is read."""
ENDINGS = {"PNG": ".png", "JPEG": ".jpg", "MPO": ".jpg", "WEBP": ".webp"}
"""Of file names, by the format that Pillow finds; MPO is the JPEG of some cameras."""
_DATA_URL = re.compile(r"data:(?P<kind>[\w.+-]+/[\w.+-]+)?(?P<options>(;[\w.=+-]+)*),", re.ASCII)
_BROKEN = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    OverflowError,
    SyntaxError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
)
"""What Pillow raises for damaged files."""


class PictureError(UsageError):
    """A picture that is refused, broken or lost; the message says why and what to do."""


class StoreError(PictureError, InfrastructureError):
    """The folder of the pictures cannot be written: no fault of a picture, nor of who sent it."""


@dataclass(frozen=True, kw_only=True)
class PictureLimits:
    """What a picture may be.

    Attributes:
        bytes: of its file.
        pixels: of its width times its height, asked before anything is decoded.
        ratio: of the longer side to the shorter one, as in the processors of Qwen-VL. Models enlarge
            the shorter side before they crop, so a thin picture of a few bytes would need gigabytes.
        count: pictures of a message.
    """

    bytes: int = 20_000_000
    pixels: int = 40_000_000
    ratio: int = 200
    count: int = 16


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture as it is stored.

    Attributes:
        digest: the first 32 hexadecimal digits of SHA-256 over width, height and pixels.
        width, height: in pixels, once it stands upright.
        data: its file, as it came.
        ending: of the name of its file.
    """

    digest: str
    width: int
    height: int
    data: bytes
    ending: str


_FOUND: dict[tuple[bytes, PictureLimits], tuple[str, int, int, str]] = {}
MOST_FOUND = 65_536
"""Files of which a process remembers what they hold: an agent sends all pictures with every turn."""


def read(
    source: bytes | str | Path,
    limits: PictureLimits,
    decoding: Callable[[int], None] | None = None,
) -> Picture:
    """Return the picture in *source*: bytes, the path of a file, or a ``data:`` URL in base64.

    Args:
        decoding: called with the pixels of a picture that has to be decoded, before it is.

    Raises:
        PictureError: *source* is none of these, or is over a limit, broken or animated.
    """
    data, name = _bytes_of(source, limits)
    if not data:
        raise PictureError(f"{name} is empty; expected a file of PNG, JPEG or WebP")
    if len(data) > limits.bytes:
        raise PictureError(_too_large(name, len(data), limits))
    key = (hashlib.sha256(data).digest(), limits)
    if key not in _FOUND:
        image, ending = decode(data, name, limits, decoding)
        if len(_FOUND) >= MOST_FOUND:
            del _FOUND[next(iter(_FOUND))]
        _FOUND[key] = (digest_of(image), image.width, image.height, ending)
    digest, width, height, ending = _FOUND[key]
    return Picture(digest=digest, width=width, height=height, data=data, ending=ending)


def digest_of(image: Image.Image) -> str:
    """Return the digest of the pixels of *image*, which is RGB."""
    size = f"{image.width}x{image.height}:".encode()
    return hashlib.sha256(size + image.tobytes()).hexdigest()[:32]


def decode(
    data: bytes,
    name: str,
    limits: PictureLimits | None = None,
    decoding: Callable[[int], None] | None = None,
) -> tuple[Image.Image, str]:
    """Return the picture in *data*, upright, in RGB with 8 bits, on white where it is transparent;
    and the ending of its file.

    Raises:
        PictureError: it is over a limit, broken or animated.
    """
    try:
        with warnings.catch_warnings():
            # Its own limit is checked here for a size that Pillow would decode.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check_size(image, name, limits)
            if decoding is not None:
                decoding(image.width * image.height)
            image.load()
            return _upright_rgb(image), ENDINGS[str(image.format)]
    except PictureError:  # a limit, and a ValueError, too
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise PictureError(f"{name} has too many pixels: {error}; make it smaller") from error
    except UnidentifiedImageError as error:
        raise PictureError(
            f"{name} is no PNG, JPEG or WebP ({len(data):,} bytes); convert it"
        ) from error
    except _BROKEN as error:
        raise PictureError(f"{name} is broken: {error}; save it again") from error


def _check_size(image: Image.Image, name: str, limits: PictureLimits | None) -> None:
    pixels = image.width * image.height
    if limits is not None and pixels > limits.pixels:
        raise PictureError(
            f"{name} has {image.width} x {image.height} = {pixels:,} pixels; the limit is "
            f"{limits.pixels:,}. Make it smaller, or raise PictureLimits.pixels"
        )
    if limits is not None and max(image.size) > limits.ratio * min(image.size):
        raise PictureError(
            f"{name} has {image.width} x {image.height} pixels, and its sides differ more than "
            f"{limits.ratio} times; cut it, or raise PictureLimits.ratio"
        )
    # The further frames of an MPO are previews and the other eye.
    if image.format in ("PNG", "WEBP") and getattr(image, "n_frames", 1) > 1:
        raise PictureError(
            f"{name} is animated ({getattr(image, 'n_frames', 0)} frames), and models see one; save "
            "the frame that you mean"
        )


def _upright_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits: the upper 8, as Pillow keeps of 16-bit colours
        # A plain conversion would clip all above 255 to white.
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image)
    return image.convert("RGB")


def _bytes_of(source: bytes | str | Path, limits: PictureLimits) -> tuple[bytes, str]:
    """Return the content of *source*, and what errors call it."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), "the picture"
    if isinstance(source, str) and source.startswith("data:"):
        return _of_data_url(source, limits), "the picture of the data URL"
    if isinstance(source, str) and re.match(r"\w+://", source):
        raise PictureError(
            f"{source:.80} is an address, and Quintain fetches nothing; download it and give the file"
        )
    if not isinstance(source, (str, Path)):
        raise PictureError(
            f"a picture is bytes, a path or a data URL, and not {type(source).__name__}; of an "
            "image of Pillow, save it to bytes"
        )
    path = Path(source).expanduser()
    try:
        if not path.is_file():
            raise PictureError(f"picture {str(path)!r:.200} is no file")
        size = path.stat().st_size
        if size > limits.bytes:
            raise PictureError(_too_large(str(path), size, limits))
        return path.read_bytes(), str(path)
    except (OSError, ValueError) as error:
        raise PictureError(f"picture {str(path)!r:.200} cannot be read: {error}") from error


def of_row(value: str, folder: Path | None) -> str | Path:
    """Return what `read` takes for *value*, a text in a row of a table: a ``data:`` URL, an address,
    which is refused there, or a file within *folder*, that of the table.

    Whoever writes a table must not read other files of the machine on which it is used.

    Raises:
        PictureError: it is a file outside of *folder*, also by a link, or there is no *folder*.
    """
    if value.startswith("data:") or "://" in value:
        return value
    if folder is None:
        raise PictureError(
            f"{value!r:.80} is a path; such data has bytes or data: URLs, and no paths"
        )
    try:
        path = (folder / value).resolve()
        inside = path.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # of pathlib for a loop of links
        raise PictureError(f"picture {value!r:.200} cannot be read: {error}") from error
    if not inside:
        raise PictureError(
            f"picture {value!r:.200} is outside of {folder}, the folder of the table; copy it there"
        )
    return path


def _of_data_url(url: str, limits: PictureLimits) -> bytes:
    head = _DATA_URL.match(url)
    if head is None or not head["options"].endswith(";base64"):
        raise PictureError(
            f"{url[:40]!r} is no data URL in base64; expected data:image/png;base64,..."
        )
    text = url[head.end() :]
    if len(text) * 3 // 4 > limits.bytes + 2:
        raise PictureError(_too_large("the picture of the data URL", len(text) * 3 // 4, limits))
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError(f"the data URL is broken: {error}; encode the picture again") from error


def _too_large(name: str, size: int, limits: PictureLimits) -> str:
    return (
        f"{name} has {size:,} bytes; the limit is {limits.bytes:,}. Make it smaller, or raise "
        "PictureLimits.bytes"
    )
