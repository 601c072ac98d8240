"""Pictures in a column of the environment `dataset`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quintain import Message
from quintain.errors import UsageError
from quintain_env_dataset import Dataset
from quintain_env_dataset import environment as dataset_environment
from quintain_env_dataset.pictures import with_pictures
from quintain_env_dataset.readers import Record, _of_hub
from quintain_vision import picture

from ...pictures import png

COLOURS = ["red", "green", "blue", "white"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


def saved(place: Path, rows: list[dict[str, Any]]) -> str:
    """A table with *rows*, beside files of all colours in its folder ``images``."""
    (place / "images").mkdir()
    for colour in COLOURS:
        (place / "images" / f"{colour}.png").write_bytes(png(colour))
    file = place / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def prompts(**fields: Any) -> dict[str, Any]:
    """The prompt of each row by its answer."""
    tasks = Dataset(image="image", **fields)
    rows = [row for split in ("train", "dev", "test") for row in tasks.tasks(split)]
    return {str(row.answer): row.prompt for row in rows}


def rows(value: Any = lambda colour: f"images/{colour}.png", text: str = "Which colour?") -> Any:
    return [{"question": text, "answer": c, "image": value(c)} for c in COLOURS]


@pytest.mark.parametrize("kind", ["path", "url", "list"])
def test_a_column_has_pictures(kind: str, tmp_path: Path) -> None:
    values = {
        "path": lambda c: f"images/{c}.png",
        "url": lambda c: f"data:image/png;base64,{b64encode(png(c)).decode()}",
        "list": lambda c: [f"images/{c}.png"],
    }
    path = saved(tmp_path, rows(values[kind]))
    assert prompts(path=path) == {c: f"{picture(png(c))}\nWhich colour?" for c in COLOURS}


@pytest.mark.parametrize("form", ["bytes", "both", "path"])
def test_parquet_has_bytes(form: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    saved(tmp_path, [])

    def value(colour: str) -> Any:
        if form == "bytes":
            return png(colour)
        return {"bytes": png(colour) if form == "both" else None, "path": f"images/{colour}.png"}

    file = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(rows(value)), file)
    assert prompts(path=str(file)) == {c: f"{picture(png(c))}\nWhich colour?" for c in COLOURS}


def test_pictures_stand_where_the_prompt_has_them(tmp_path: Path) -> None:
    two = lambda c: ["images/red.png", f"images/{c}.png"]  # noqa: E731
    path = saved(tmp_path, rows(two, "Is <image> like <image>?"))
    red = picture(png("red"))
    assert prompts(path=path)["blue"] == f"Is {red} like {picture(png('blue'))}?"
    talk = [
        {"role": "system", "content": "<image>"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    table = tmp_path / "talk.jsonl"
    table.write_text(
        "".join(
            json.dumps({"prompt": talk, "answer": c, "image": f"images/{c}.png"}) + "\n"
            for c in COLOURS
        )
    )
    assert prompts(path=str(table))["red"] == (
        Message("system", "<image>"),
        Message("user", f"{red}\none"),
        Message("assistant", "two"),
        Message("user", "three"),
    )


def test_rows_differ_by_their_pixels_and_rows_on_disk_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, rows())
    in_memory = [list(Dataset(path=path, image="image").tasks(s)) for s in ("train", "dev", "test")]
    assert len({task.id for split in in_memory for task in split}) == 4
    monkeypatch.setattr(dataset_environment, "IN_MEMORY", 0)
    monkeypatch.setattr(dataset_environment, "LARGE", 0)
    dataset_environment._loaded.cache_clear()
    on_disk = [list(Dataset(path=path, image="image").tasks(s)) for s in ("train", "dev", "test")]
    assert on_disk == in_memory
    (tmp_path / "images" / "red.png").write_bytes(png("black"))  # the table is what it was
    dataset_environment._loaded.cache_clear()
    assert prompts(path=path)["red"] == f"{picture(png('black'))}\nWhich colour?"


@pytest.mark.parametrize(
    ("value", "text", "reason"),
    [
        ("images/no.png", "?", "no.png' is no file"),
        ("", "?", "has no picture"),
        (None, "?", "has no picture"),
        ([], "?", "has no picture"),
        ("rows.jsonl", "?", "no PNG, JPEG or WebP"),
        ("https://example.org/a.png", "?", "fetches nothing"),
        (3, "?", "bytes, a path or a data URL"),
        ("images/red.png", "<image> or <image>?", "2 times <image> for 1 pictures"),
    ],
)
def test_faults_name_line_and_column(value: Any, text: str, reason: str, tmp_path: Path) -> None:
    given = [*rows(), {"question": text, "answer": "x", "image": value}]
    with pytest.raises(UsageError, match=rf"rows\.jsonl:5, column '.*{reason}"):
        prompts(path=saved(tmp_path, given))


def test_a_column_is_no_picture_unless_it_is_named(tmp_path: Path) -> None:
    """Text needs no Pillow: a process that reads such a table has not imported it."""
    path = saved(tmp_path, rows())
    code = (
        "import sys; from quintain_env_dataset import Dataset\n"
        f"rows = Dataset(path={path!r})\n"
        "print({t.prompt for s in ('train', 'dev', 'test') for t in rows.tasks(s)})\n"
        "assert not {'PIL', 'quintain_vision'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'Which colour?'}\n"
    with pytest.raises(UsageError, match="has no column 'picture'"):
        Dataset(path=path, image="picture").tasks("train")


@pytest.mark.parametrize("way", ["absolute", "up", "home", "link", "loop", "of_datasets"])
def test_a_path_stays_in_the_folder_of_the_table(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes a table must not read pictures elsewhere on the machine of who uses it."""
    outside, folder = tmp_path / "outside", tmp_path / "table"
    outside.mkdir()
    folder.mkdir()
    (outside / "a.png").write_bytes(png("red"))
    monkeypatch.setenv("HOME", str(outside))
    (folder / "link.png").symlink_to(outside / "a.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    value = {
        "absolute": str(outside / "a.png"),
        "up": "../outside/a.png",
        "home": "~/a.png",
        "link": "link.png",
        "loop": "loop.png",
        "of_datasets": {"bytes": None, "path": str(outside / "a.png")},
    }[way]
    given = [*rows(), {"question": "?", "answer": "x", "image": value}]
    reason = {"home": "is no file", "loop": "cannot be read"}.get(way, "is outside of")
    with pytest.raises(UsageError, match=rf"rows\.jsonl:5, column 'image': .*{reason}"):
        prompts(path=saved(folder, given))


def hub(folder: Path, values: list[Any], *, several: bool = False) -> list[Record]:
    """The rows of a repository with a column of images."""
    datasets = pytest.importorskip("datasets")
    parquet = pytest.importorskip("pyarrow.parquet")
    (folder / "owner" / "name").mkdir(parents=True)
    kind = datasets.List(datasets.Image()) if several else datasets.Image()
    made = datasets.Dataset.from_dict({"image": values}, datasets.Features({"image": kind}))
    # Its own `to_parquet` would read the files.
    parquet.write_table(made.data.table, folder / "owner" / "name" / "train.parquet")
    return list(_of_hub("owner/name", ""))


@pytest.mark.parametrize("several", [False, True])
def test_images_of_the_hub_are_their_bytes(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths in them name no file of this machine, and `datasets` opens none."""
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "secret.png"
    secret.write_bytes(png("red"))
    given = [{"bytes": png("red"), "path": "a.png"}, {"bytes": None, "path": str(secret)}]
    good, bad = hub(tmp_path, [[one] if several else one for one in given], several=several)
    assert with_pictures(good, "image").values["image"] == picture(png("red"))
    with pytest.raises(UsageError, match=r"owner/name train\[1\], column 'image': .*and no paths"):
        with_pictures(bad, "image")


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        ("CMYK", "JPEG", ""),
        ("YCbCr", "JPEG", ""),
        ("CMYK", "TIFF", "no PNG, JPEG or WebP"),
        ("F", "TIFF", "no PNG, JPEG or WebP"),
        ("LAB", "TIFF", "no PNG, JPEG or WebP"),
    ],
)
def test_other_colours_of_the_hub(
    mode: str, kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A photograph is read, and another format is refused with its row."""
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    Image.new(mode, (4, 2)).save(file, kind)
    (record,) = hub(tmp_path, [{"bytes": file.getvalue(), "path": None}])
    if not reason:
        assert with_pictures(record, "image").values["image"] == picture(file.getvalue())
        return
    with pytest.raises(UsageError, match=rf"train\[0\], column 'image': .*{reason}"):
        with_pictures(record, "image")


@pytest.mark.parametrize("mode", ["RGB", "F", "HSV"])
def test_an_image_of_pillow_is_a_fault_with_its_row(mode: str) -> None:
    with pytest.raises(UsageError, match="row 1, column 'image': a picture is bytes"):
        with_pictures(Record("row 1", {"image": Image.new(mode, (4, 2))}), "image")


def test_bytes_that_are_text_by_chance_are_bytes() -> None:
    with pytest.raises(UsageError, match="no PNG, JPEG or WebP"):
        with_pictures(Record("row 1", {"image": "RIFF\0\0\0\0WEBP"}), "image")
