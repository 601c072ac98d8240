"""What is read of a picture: the right pixels, or an error with a type."""

from __future__ import annotations

import base64
import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quintain import Message, Task
from quintain.console import printable
from quintain_vision import (
    PictureError,
    PictureLimits,
    message,
    picture,
    shown,
    store,
    tool_picture,
)
from quintain_vision.files import Picture, read
from quintain_vision.messages import REFERENCE, references
from quintain_vision.store import folder, put, stored

LIMITS = PictureLimits()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels(data: bytes) -> Image.Image:
    """The pixels as a model gets them, through the store."""
    text = picture(data)
    found = REFERENCE.fullmatch(text)
    assert found
    return stored(found[3])


def two_colours(mode: str = "RGB") -> Image.Image:
    """Red on the left, blue on the right, 4 x 2."""
    image = Image.new("RGB", (4, 2), "red")
    image.paste((0, 0, 255), (2, 0, 4, 2))
    return image.convert(mode)


def corner(image: Image.Image, x: int = 0, y: int = 0) -> Any:
    return image.getpixel((x, y))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_bytes_a_file_and_a_data_url_are_one_picture(kind: str, tmp_path: Path) -> None:
    data = saved(two_colours(), kind)
    file = tmp_path / "picture"
    file.write_bytes(data)
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"
    assert len({picture(data), picture(file), picture(str(file)), picture(url)}) == 1
    assert len([path for path in folder().rglob("*") if path.is_file()]) == 1


def test_the_digest_is_of_the_pixels_and_not_of_the_file() -> None:
    small, large = (saved(two_colours(), compress_level=level) for level in (9, 0))
    other = two_colours()
    other.putpixel((0, 0), (254, 0, 0))
    assert small != large
    assert picture(small) == picture(large)
    assert picture(small) != picture(saved(other))


def test_colours_of_paper_become_those_of_a_screen() -> None:
    image = Image.new("CMYK", (2, 2), (0, 255, 255, 0))
    red, green, blue = corner(pixels(saved(image, "JPEG", quality=100)))
    assert red > 240
    assert max(green, blue) < 15


def test_sixteen_bits_keep_their_upper_eight() -> None:
    rows = b"".join(b"\0" + struct.pack(">HH", 0x8000, 0x01FF) for _ in range(2))
    grey = pixels(png_of(2, 2, 16, 0, rows))
    assert (corner(grey), corner(grey, 1)) == ((128,) * 3, (1,) * 3)
    rows = b"".join(b"\0" + struct.pack(">HHH", 0x8000, 0xFFFF, 0x01FF) for _ in range(2))
    assert corner(pixels(png_of(1, 2, 16, 2, rows))) == (128, 255, 1)


def png_of(width: int, height: int, bits: int, colours: int, rows: bytes) -> bytes:
    """A PNG, written by hand."""
    head = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for name, content in ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        data += struct.pack(">I", len(content)) + name + content
        data += struct.pack(">I", zlib.crc32(name + content))
    return data


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    if mode == "P":
        image = image.convert("P")
        data = saved(image, transparency=corner(image))
    else:
        data = saved(image.convert(mode))
    assert corner(pixels(data)) == (255, 255, 255)
    assert corner(pixels(data), 1) == (0, 0, 0)


@pytest.mark.parametrize(("orientation", "size"), [(6, (2, 4)), (3, (4, 2)), (1, (4, 2))])
def test_a_photograph_stands_upright(orientation: int, size: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = pixels(saved(two_colours(), "PNG", exif=exif))
    assert found.size == size
    red_first = orientation != 3
    assert corner(found) == ((255, 0, 0) if red_first else (0, 0, 255))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_an_animation_is_refused(kind: str) -> None:
    frames = [two_colours(), Image.new("RGB", (4, 2), "green")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(PictureError, match="animated"):
        picture(data)


def test_limits_are_asked_before_anything_is_decoded() -> None:
    bomb = png_of(100_000, 100_000, 8, 2, b"")  # 30 GB, in 70 bytes
    with pytest.raises(PictureError, match="pixels"):
        picture(bomb)
    with pytest.raises(PictureError, match=r"^the picture has 4 x 2 = 8 pixels; the limit is 7"):
        picture(saved(two_colours()), limits=PictureLimits(pixels=7))
    with pytest.raises(PictureError, match="the limit is 10"):
        picture(saved(two_colours()), limits=PictureLimits(bytes=10))


@pytest.mark.parametrize("size", [(1, 201), (201, 1)])
def test_a_thin_picture_is_refused(size: tuple[int, int]) -> None:
    """CLIP enlarges its shorter side to 336 pixels: one of 1 x 40,000 would need 14 GB."""
    data = saved(Image.new("RGB", size))
    with pytest.raises(PictureError, match="sides differ more than 200 times"):
        picture(data)
    assert picture(data, limits=PictureLimits(ratio=201))
    assert picture(saved(Image.new("RGB", (1, 200))))


def test_a_large_limit_does_not_switch_the_bomb_of_pillow_off() -> None:
    with pytest.raises(PictureError, match="too many pixels"):
        picture(png_of(100_000, 100_000, 8, 2, b""), limits=PictureLimits(pixels=10**12))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_a_broken_file_is_refused(kind: str, share: float) -> None:
    image = Image.effect_noise((64, 64), 90).convert("RGB")
    data = saved(image, kind)
    with pytest.raises(PictureError):
        picture(data[: int(share * len(data))])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"", "empty"),
        (b"GIF89a" + b"\0" * 40, "no PNG, JPEG or WebP"),
        (b"<svg></svg>", "no PNG, JPEG or WebP"),
        ("https://example.org/a.png", "fetches nothing"),
        ("file:///a.png", "fetches nothing"),
        ("data:image/png,abc", "no data URL in base64"),
        ("data:image/png;base64,!!!", "broken"),
        ("no-such-file.png", "cannot be read"),
        ("a\0b", "cannot be read"),
        (17, "bytes, a path or a data URL"),
    ],
)
def test_what_is_no_picture_is_refused(source: Any, reason: str) -> None:
    with pytest.raises(PictureError, match=reason):
        picture(source)


def test_a_message_holds_text_and_pictures_in_their_order() -> None:
    data = saved(two_colours())
    found = message(
        "user",
        [
            {"type": "text", "text": "Before "},
            {"type": "image", "image": data},
            {"type": "text", "text": " after"},
        ],
    )
    assert found == Message("user", f"Before {picture(data)} after")
    assert shown(found.content) == printable(found.content) == "Before [image 4x2] after"
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    as_of_openai = message("user", [{"type": "image_url", "image_url": {"url": url}}])
    assert as_of_openai.content == picture(data)


def test_the_id_of_a_task_depends_on_the_pixels() -> None:
    red, blue = (saved(Image.new("RGB", (2, 2), name)) for name in ("red", "blue"))
    tasks = [Task(prompt=picture(data) + "What colour?", answer="?") for data in (red, red, blue)]
    assert tasks[0].id == tasks[1].id
    assert tasks[0].id != tasks[2].id


@pytest.mark.parametrize(
    "part", [{"type": "video"}, {"type": "text"}, {"type": "image"}, {"type": "image_url"}, {}]
)
def test_another_part_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(PictureError, match="a part of a message"):
        message("user", [part])


def test_the_number_of_pictures_has_a_limit() -> None:
    parts = [{"type": "image", "image": saved(two_colours())}] * 3
    with pytest.raises(PictureError, match="3 pictures; the limit is 2"):
        message("user", parts, limits=PictureLimits(count=2))
    assert not [path for path in folder().rglob("*") if path.is_file()], "none is decoded"


@pytest.mark.parametrize("part", ["url", "image_url"])
def test_a_url_names_no_file(part: str, tmp_path: Path) -> None:
    """Who sends a message must not read files of the host."""
    file = tmp_path / "picture.png"
    file.write_bytes(saved(two_colours()))
    for url in (str(file), f"file://{file}", "~/picture.png", None):
        told = (
            {"type": "image", "url": url} if part == "url" else {"type": part, part: {"url": url}}
        )
        with pytest.raises(PictureError, match="expected a data: URL"):
            message("user", [told])
    with pytest.raises(PictureError, match="is no file"):
        picture("/dev/zero")


def test_a_lost_or_changed_file_is_named() -> None:
    found: Picture = read(saved(two_colours()), LIMITS)
    with pytest.raises(PictureError, match="there is no picture"):
        stored(found.digest)
    picture(found.data)
    (file,) = (path for path in folder().rglob("*") if path.is_file())
    file.write_bytes(saved(Image.new("RGB", (4, 2))))
    with pytest.raises(PictureError, match="not the picture that was stored"):
        stored(found.digest)


def test_pictures_whose_tokens_would_have_the_same_ids_are_refused() -> None:
    found = read(saved(two_colours()), LIMITS)
    twin = found.digest[:12] + "0" * 20
    place = folder() / twin[:2]
    place.mkdir(parents=True)
    (place / f"{twin}.png").write_bytes(b"")
    with pytest.raises(PictureError, match="begin with"):
        picture(found.data)


def test_another_process_may_store_the_twin_of_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look first and write then: the one that sees both takes its own back."""
    found = read(saved(two_colours()), LIMITS)
    twin = found.digest[:12] + "0" * 20
    replaced = store.os.replace

    def late(source: str, target: Path) -> None:
        target.with_name(f"{twin}.png").write_bytes(b"")
        replaced(source, target)

    monkeypatch.setattr(store.os, "replace", late)
    with pytest.raises(PictureError, match="begin with"):
        put(found)
    assert [path.stem for path in folder().rglob("*") if path.is_file()] == [twin]


def test_a_tool_has_the_pictures_that_were_made_for_it() -> None:
    data = saved(two_colours())
    told = message("tool", [{"type": "text", "text": "a "}, {"type": "image", "image": data}])
    assert told.content == f"a {tool_picture(data)}"
    assert shown(told.content) == printable(told.content) == "a [image 4x2]"
    (found,) = references(told)
    assert stored(found[3][:12]).size == (4, 2)
    other = tool_picture(saved(Image.new("RGB", (4, 2))))
    for forged in (
        picture(data),  # whoever knows the pixels knows this digest
        found[0].replace("4x2", "2x4"),
        found[0].replace(found[3][12:], other[-21:-1]),  # the signature of another one
        found[0].replace(found[3][12:], "0" * 20),
    ):
        assert not references(Message("tool", forged))
        assert references(Message("user", forged))
    assert not references(Message("assistant", found[0]))
    with pytest.raises(PictureError, match="assistant holds no picture"):
        message("assistant", [{"type": "image", "image": data}])


def test_the_secret_is_that_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes have it, other stores another, and other users cannot read it."""
    data = saved(two_colours())
    here = tool_picture(data)
    assert (folder() / "secret").stat().st_mode & 0o077 == 0
    code = "import sys, quintain_vision as v; print(v.tool_picture(sys.argv[1]).encode())"
    (tmp_path / "a.png").write_bytes(data)
    there = subprocess.check_output([sys.executable, "-c", code, tmp_path / "a.png"], text=True)
    assert there.strip() == repr(here.encode())
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "other"))
    assert tool_picture(data) != here
    assert picture(data)[:-21] == tool_picture(data)[:-21]
