"""Models by name without a network: folders are checked at once, the hub is asked once and
silently.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintain.errors import UsageError
from quintain.models import hf as hub
from quintain.models.load import load_pretrained
from quintain.store.runs import model_named

hub_constants: Any = pytest.importorskip(
    "huggingface_hub.constants", reason="needs quintain[train]"
)


@pytest.fixture
def cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without network, in an empty folder, with an empty cache."""

    def refuse(address: Any, *args: Any, **more: Any) -> None:
        asked.append(address)
        raise socket.gaierror(-2, "Name or service not known")

    asked: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(name: str) -> str:
    with pytest.raises(UsageError) as raised:
        hub.check_folder(name)
    return str(raised.value)


@pytest.mark.parametrize(
    "name", ["./nofolder", "nofolder/", "~/no-such-folder-of-mine", "../no/such/folder"]
)
def test_what_looks_like_a_path_is_a_folder(cut_off: Path, name: str) -> None:
    expected = "expected a folder in Hugging Face format, or a hub name"
    assert told(name) == f"model {name!r} does not exist; {expected}"


def test_the_nearest_folder_is_shown(cut_off: Path) -> None:
    (cut_off / "models" / "arithmetic").mkdir(parents=True)
    (cut_off / "file").write_text("")
    expected = "expected a folder in Hugging Face format, or a hub name"
    assert told("./models/arithmetik") == (
        f"model './models/arithmetik' does not exist; did you mean './models/arithmetic'? "
        f"{expected}"
    )
    assert told("./file") == (
        "model './file' is a file; expected a folder in Hugging Face format, a GGUF file, or a hub "
        "name"
    )
    with pytest.raises(UsageError, match=r"model './no' does not exist"):
        model_named("./no")  # as `chat` and `sft` read their --model
    assert told("models/other") == (
        f"model 'models/other' does not exist; {expected} (there is a folder 'models' here, so it "
        "is taken for a path; if the hub's model is meant, `hf download models/other` fetches it "
        "first)"
    )


def test_names_of_the_hub_pass(cut_off: Path) -> None:
    """So does one that begins like a folder that is here, where the cache has it."""
    hub.check_folder("Qwen/Qwen3-0.6B")
    hub.check_folder("gpt2")
    (cut_off / "Qwen").mkdir()
    cached = cut_off / "cache" / "models--Qwen--Qwen3-0.6B"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "snapshots" / "abc" / "config.json").write_text("{}")
    assert not hub.is_folder("Qwen/Qwen3-0.6B")
    assert hub.is_folder("Qwen/Qwen3-4B")


def test_a_configuration_alone_is_no_tokenizer(cut_off: Path) -> None:
    """`config_folder` fetches the configuration of a model before anything else; transformers then
    makes a tokenizer without tokens of it.
    """
    from transformers import AutoTokenizer, Qwen3Config

    cached = cut_off / "cache" / "models--someone--theirs"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    Qwen3Config().save_pretrained(cached / "snapshots" / "abc")
    with pytest.raises(UsageError, match="cannot load model 'someone/theirs'.*cannot be reached"):
        load_pretrained(AutoTokenizer, "someone/theirs")


def test_why_the_hub_cannot_be_asked(cut_off: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One try; behind a proxy that is the library's to find out."""
    assert hub.unreachable() == "huggingface.co cannot be reached: Name or service not known"
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    assert hub.unreachable() == ""
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    assert hub.unreachable() == "HF_HUB_OFFLINE is set"


def test_a_hub_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that really listens, at the address that the library was given."""
    for name in ("https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(
            hub_constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}"
        )
        monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
        assert hub.unreachable() == ""
    assert hub.unreachable() == "127.0.0.1 cannot be reached: Connection refused"


def test_switches_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    logger = logging.getLogger("huggingface_hub")
    before = logger.level

    def fail() -> None:
        with hub.offline(), hub.quiet():
            assert hub_constants.is_offline_mode()
            assert not logging.getLogger("huggingface_hub.utils._http").isEnabledFor(
                logging.WARNING
            )
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert hub_constants.is_offline_mode() is False
    assert logger.level == before


def test_a_model_that_nobody_can_fetch(cut_off: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One message and no retries of the library's."""
    load_model = pytest.importorskip(
        "quintain.models.load", reason="needs quintain[train]"
    ).load_model
    with pytest.raises(UsageError) as raised:
        load_model("nobody/nothing")
    assert str(raised.value) == (
        "cannot load model 'nobody/nothing': there is no such folder, the hub's cache does not "
        "have it, and huggingface.co cannot be reached: Name or service not known; run `hf "
        "download nobody/nothing` once where there is network, or name a folder in Hugging Face "
        "format"
    )
    assert not caplog.records


@pytest.mark.keeps("eval arithmetic")
@pytest.mark.parametrize("command", ["eval arithmetic", "train --env arithmetic"])
def test_commands_check_a_folder_before_torch_is_imported(tmp_path: Path, command: str) -> None:
    """That alone takes seconds."""
    words = [*command.split(), "--model", "./nofolder"]
    script = (
        "import sys\nfrom quintain.cli import main\n"
        f"status = main({words!r})\nassert 'torch' not in sys.modules\nsys.exit(status)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert (
        ended.stderr
        == "error: model './nofolder' does not exist; expected a folder in Hugging Face format, or a "
        "hub name\n"
    )
