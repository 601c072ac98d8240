"""Pictures in samples of Inspect, played by Inspect itself (QUINTAIN_INSPECT_PYTHON)."""

from __future__ import annotations

import io
import shutil
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quintain.errors import UsageError
from quintain_bridges.peers import Peer
from quintain_bridges.pictures import message_of
from quintain_vision import picture, shown

from .test_peers import HERE, played, python_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


def png(colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), colour).save(buffer, "PNG")
    return buffer.getvalue()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


def tasks_in(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(HERE / "inspect_tasks.py", folder / "inspect_tasks.py"))


def seen(folder: Path, *images: str, **more: Any) -> Peer:
    """The peer of a task with a sample for each of *images*, whose file lies in *folder*."""
    args = {"images": list(images), **more.pop("args", {})}
    target = f"{tasks_in(folder)}:seen"
    return Peer(kind="inspect", python=python_of("inspect"), target=target, args=args, **more)


def asked(peer: Peer, number: int = 0) -> str:
    rollout, *_ = played(peer, "red", number)
    assert rollout.outcome is not None, rollout.termination
    assert rollout.outcome.total == 1.0
    assert rollout.messages[0].content == "Be brief."
    return rollout.messages[1].content


def test_the_policy_sees_the_picture_of_a_sample(tmp_path: Path) -> None:
    """A data URL, a path beside the tasks, and an absolute one; each where it stands."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "blue.png").write_bytes(png("blue"))
    peer = seen(folder, data_url(png()), "blue.png", str(folder / "blue.png"))
    assert peer.tasks()[0]["prompt"] == "Look:[image]What colour\nis it?"
    colours = ["red", "blue", "blue"]
    expected = [f"Look:{picture(png(c))}What colour\nis it?" for c in colours]
    assert [asked(peer, number) for number in range(3)] == expected
    assert shown(expected[0]) == "Look:[image 6x4]What colour\nis it?"


def test_files_elsewhere_need_a_word_of_the_user(tmp_path: Path) -> None:
    """A row of a data set may name any file; also by a link, and by the way up."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "tasks"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "red.png").write_bytes(png())
    (folder / "link.png").symlink_to(elsewhere / "red.png")
    path = str(elsewhere / "red.png")
    for image in (path, "../elsewhere/red.png", "link.png", "none.png"):
        with pytest.raises(UsageError, match=r"is no file in .*peer\.pictures"):
            seen(folder, image).tasks()
    named = seen(folder, path, "link.png", "red.png", pictures=str(elsewhere))
    assert [asked(named, n) for n in range(3)] == [f"Look:{picture(png())}What colour\nis it?"] * 3


@pytest.mark.parametrize("image", ["http://127.0.0.1:9/red.png", "file:///red.png", "s3://b/red"])
def test_an_address_is_refused_before_an_episode(image: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is an address, and nothing is fetched"):
        seen(tmp_path, image).tasks()


def test_what_is_not_shown_is_refused(tmp_path: Path) -> None:
    """Sounds, videos and documents; they were left out of the message in silence."""
    with pytest.raises(UsageError, match="messages with document, which is not played"):
        seen(tmp_path, data_url(png()), args={"document": "a.pdf"}).tasks()


def test_a_broken_picture_is_no_score(tmp_path: Path) -> None:
    """A broken file, which its author can mend, ends the run. Broken data may be the policy's."""
    (tmp_path / "broken.png").write_bytes(b"no picture")
    peer = seen(tmp_path, "broken.png", data_url(b"no picture"))
    with pytest.raises(UsageError, match=r"broken\.png is no PNG, JPEG or WebP"):
        played(peer, "red", 0)
    rollout, *_ = played(peer, "red", 1)
    assert rollout.outcome is None
    assert rollout.termination.kind.value == "environment_error"


def echoed(reply: str) -> Any:
    peer = Peer(
        kind="inspect", python=python_of("inspect"), target=f"{HERE / 'inspect_tasks.py'}:echo"
    )
    return played(peer, [reply, "x"])[0]


def test_what_the_policy_writes_names_no_file(tmp_path: Path) -> None:
    """A solver that shows a reply as a picture: data is one, a path of this machine is none."""
    (tmp_path / "red.png").write_bytes(png())
    rollout = echoed(str(tmp_path / "red.png"))
    assert rollout.termination.kind.value == "environment_error"
    assert "expected a data: URL" in rollout.termination.reason
    rollout = echoed(data_url(png()))
    assert rollout.messages[2].content.endswith(picture(png()))


def test_a_reference_in_a_text_of_another_side_is_text() -> None:
    """It may repeat what the policy wrote, which is no picture."""
    forged = picture(png())
    for content in (forged, [{"text": forged}]):
        assert forged not in message_of("user", content).content
