"""GGUF files as models: the same weights, tokens and ends of replies, read once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from quintain.cli import main
from quintain.errors import PluginError, StorageError, UsageError
from quintain.models import load_model
from quintain.recipe import is_model_source
from quintain.store import model_named
from quintain_starter import folders, gguf_folder
from quintain_starter.gguf_folder import write_folder

from .small_gguf import TEMPLATE, write_gguf

needs_gguf = pytest.mark.skipif(
    not gguf_folder.is_installed(), reason="the library gguf is missing: pip install gguf"
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@needs_gguf
@pytest.mark.parametrize("quantised", [False, True], ids=["float32", "Q4_1"])
def test_a_file_is_the_model_that_it_was_made_of(tmp_path: Path, quantised: bool) -> None:
    original = write_gguf(tmp_path / "tiny.gguf", quantised=quantised)

    loaded = load_model(model_named("tiny.gguf").path)

    ids = torch.arange(20)[None]
    assert torch.equal(loaded.module(ids).logits, original(ids).logits)
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}


@needs_gguf
def test_a_folder_has_template_ends_and_origin(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")

    folder = Path(model_named("tiny.gguf").path)

    assert json.loads((folder / "quintain.json").read_text())["source"] == {
        "file": str(tmp_path / "tiny.gguf"),
        "architecture": "llama",
    }
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert load_model(folder).tokenizer.hf.chat_template == TEMPLATE


@needs_gguf
@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["a", "ĠĠ", "3", "0"]),
        ("starcoder", ["a", "ĠĠ", "3", "0"]),
        ("gpt-2", ["a", "Ġ", "Ġ", "3", "0"]),
    ],
)
def test_text_is_split_as_the_file_says(tmp_path: Path, pre: str, expected: list[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre=pre)

    tokenizer = load_model(model_named("tiny.gguf").path).tokenizer.hf

    assert tokenizer.tokenize("a  30") == expected


@needs_gguf
def test_an_unknown_split_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf", pre="somebodys")

    model_named("tiny.gguf")

    assert "splits text by rules named 'somebodys'" in capsys.readouterr().err


@needs_gguf
def test_a_file_is_read_once_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    first = model_named("tiny.gguf").path
    with monkeypatch.context() as patch:
        patch.setattr(folders, "write_folder", lambda *args: pytest.fail("it was read again"))
        assert model_named("./tiny.gguf").path == first

    write_gguf(tmp_path / "tiny.gguf", pre="gpt-2")

    assert model_named("tiny.gguf").path != first


@needs_gguf
def test_a_reading_that_is_stopped_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    place = tmp_path / "folder"
    with pytest.raises(StorageError):
        write_folder(tmp_path / "tiny.gguf", place, {}, {"no/such/folder": b""})

    assert list(tmp_path.glob("*folder*")) == []


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"PK\x03\x04")

    with pytest.raises(UsageError, match=r"tiny.gguf is no GGUF file: it begins with b'PK"):
        model_named("tiny.gguf")


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(gguf_folder, "is_installed", lambda: False)

    with pytest.raises(PluginError, match=r"pip install 'quintain-starter\[gguf\]'"):
        model_named("tiny.gguf")


@needs_gguf
def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "whole.gguf")
    whole = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(UsageError, match=r"cannot read .*tiny\.gguf"):
        model_named("tiny.gguf")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny.gguf", True),
        ("./tiny.gguf", True),
        ("missing.gguf", False),
        ("folder.gguf", False),
        ("notes.txt", False),
        ("owner/model.gguf", False),
        ("smollm2-135m", True),
        ("quintain-starter/smollm2-135m", True),
        ("owner/smollm2-135m", False),
    ],
)
def test_files_and_names_with_a_source(tmp_path: Path, name: str, expected: bool) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("GGUF")
    (tmp_path / "folder.gguf").mkdir()

    assert is_model_source(name) == expected


@needs_gguf
def test_a_run_trains_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gguf(tmp_path / "tiny.gguf")

    code = main(
        [
            *("train", "extraction", "--model", "tiny.gguf", "--steps", "1", "--quiet", "--json"),
            *("--set", "batch.prompts=1", "--set", "batch.group_size=2"),
            *("--set", "sampling.max_tokens=4", "--set", "evaluation.every=0"),
            *("--set", "evaluation.test.tasks=0", "--name", "tiny"),
        ]
    )

    assert code == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 1
