"""Copies of the ranks' state are made where the folder of temporary files has room for two."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.errors import UsageError
from quintain_learners.fsdp import spares
from quintain_learners.fsdp.spares import Folder, is_in_memory, updates_between

GB = 10**9


def folder(monkeypatch: pytest.MonkeyPatch, free: int, *, in_memory: bool = False) -> None:
    found = Folder(Path("/scratch"), free, in_memory)
    monkeypatch.setattr(spares.Folder, "here", lambda: found)


@pytest.mark.parametrize(("every", "free"), [(None, 40), (3, 20)])
def test_copies_are_made_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    every: int | None,
    free: int,
) -> None:
    """By default at most half of it is taken."""
    folder(monkeypatch, free * GB)
    assert updates_between(every, 10 * GB) == (every or 10)
    assert not caplog.records


def test_without_room_no_copies_are_made_by_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder(monkeypatch, 195 * GB, in_memory=True)
    assert updates_between(None, 98 * GB) is None
    assert (
        "2 copies of the ranks' weights and moments take 196.0 GB, and 195.0 GB are free in "
        "/scratch, which is host memory (tmpfs). No copies are made" in caplog.text
    )


def test_copies_that_the_recipe_asks_for_need_room(monkeypatch: pytest.MonkeyPatch) -> None:
    folder(monkeypatch, 19 * GB)
    with pytest.raises(UsageError, match=r"19.0 GB are free in /scratch: set TMPDIR to a folder"):
        updates_between(10, 10 * GB)


def test_the_file_system_of_a_folder_is_the_nearest_mount() -> None:
    mounts = "overlay / overlay rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/sda1 /tmp/disk ext4 rw 0 0\n"
    found = [is_in_memory(Path(p), mounts) for p in ("/tmp/a", "/tmp/disk/a", "/var/a")]
    assert found == [True, False, False]


def test_this_machine_says_what_is_free() -> None:
    assert Folder.here().free > 0
