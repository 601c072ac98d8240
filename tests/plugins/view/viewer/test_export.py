"""`quintain export`: the same model for transformers, with its prompts as in training and a model
card.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from quintain import Message
from quintain.cli import main
from quintain.learning import Learner
from quintain.learning.algorithms import RLOO
from quintain.models import HFTokenizer
from quintain.recipe import Recipe
from quintain.recipe.plan import RunPlan
from quintain.run.provenance import provenance
from quintain.store import RunFolder
from quintain.store.checkpoint import CheckpointManager
from quintain_view.viewer.export import literal, with_defaults

from ....core.models.tiny import CHATML, byte_tokenizer, save_tiny, tiny_model

RECIPE = """
[run]
name = "curious"
steps = 4
[model]
name = "someone/base"
[[environments]]
use = "arithmetic"
system = "Be brief."
[algorithm]
use = "rloo"
"""
THINKING = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<x>{% endif %}"
IDS = torch.arange(12)[None]


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_folder(tokenizer: HFTokenizer | None = None) -> Path:
    """A finished run whose best checkpoint is not the last one."""
    recipe = Recipe.parse(RECIPE)
    with RunFolder.create("runs/curious", recipe.to_toml()) as folder:
        learner = Learner(tiny_model("qwen3", context=64), RLOO)
        folder.append(provenance(RunPlan.of(recipe), learner.module), folder.provenance_path)
        saved = CheckpointManager(folder, tokenizer=tokenizer or HFTokenizer(byte_tokenizer()))
        for step in (2, 4):
            with torch.no_grad():
                next(learner.module.parameters()).add_(0.5)
            saved.save(step, learner=learner, state={}, best=step == 2)
            folder.append({"step": step, "held_out.accuracy": step / 10})
        before, after = {"accuracy": 0.1, "low": 0.05, "high": 0.2, "tasks": 50}, {"accuracy": 0.4}
        after |= {"temperature": 0.7, "other_decoding": {"accuracy": 0.5, "temperature": 0.0}}
        folder.write_summary({"steps": 4, "held_out": {"before": before, "after": after}})
        return folder.checkpoints


def logits(folder: Path, **options: Any) -> torch.Tensor:
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    with torch.no_grad():
        return torch.as_tensor(module(IDS).logits)


def test_a_run_becomes_a_folder_for_transformers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The weights of the best checkpoint, to the bit; its tokenizer; files that others can read."""
    checkpoints = run_folder()

    assert main(["export", "curious", "out", "--json"]) == 0

    about = json.loads(capsys.readouterr().out)
    assert about["folder"] == "out"
    assert about["dtype"] == "float32"
    assert about["adapters"] is None
    assert about["parameters"] == sum(
        p.numel() for p in tiny_model("qwen3", context=64).parameters()
    )
    assert torch.equal(logits(tmp_path / "out"), logits(checkpoints / "step-000002" / "model"))
    assert "model.history" not in Path("out/README.md").read_text()
    assert not torch.equal(logits(tmp_path / "out"), logits(checkpoints / "step-000004" / "model"))
    tokenizer = transformers.AutoTokenizer.from_pretrained("out")
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False
    ).startswith("<|im_start|>")
    modes = {stat.S_IMODE(file.stat().st_mode) for file in Path("out").iterdir()}
    assert len(modes) == 1, "weights are readable as the rest is"


def test_half_precision_is_that_of_transformers(tmp_path: Path) -> None:
    checkpoints = run_folder()

    assert main(["export", "runs/curious/checkpoints/step-000004", "out", "--dtype", "bf16"]) == 0

    exported = logits(tmp_path / "out", dtype="auto")
    assert exported.dtype == torch.bfloat16
    assert torch.equal(
        exported, logits(checkpoints / "step-000004" / "model", dtype=torch.bfloat16)
    )


def test_the_card_says_what_the_model_is() -> None:
    """Base, checkpoint, accuracy before and after, recipe, versions; the example on it works."""
    run_folder()
    main(["export", "curious", "out", "--dtype", "float16"])
    text = Path("out/README.md").read_text()

    for words in (
        "base_model: someone/base\n",
        "- rloo\n",
        "`someone/base`, trained by reinforcement learning with `rloo` on `arithmetic`: the "
        "checkpoint after step 2",
        "| test, before training |  | 10.0% (95 % interval 5.0% to 20.0%, 50 tasks) |",
        "| dev, this checkpoint |  | 20.0% |",
        "| test, after step 4 | sampled at T 0.7 | 40.0% |",
        "| test, after step 4 | greedy | 50.0% |",
        '{"role": "system", "content": "Be brief."}',
        f"| torch | {torch.__version__.partition('+')[0]}",
        "quintain-view 0.1.0",
    ):
        assert words in text
    (recipe,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert Recipe.parse(recipe) == Recipe.parse(RECIPE)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code.replace("max_new_tokens=256", "max_new_tokens=2"), {})


def test_the_card_does_not_name_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    save_tiny(tmp_path / "base")

    assert main(["export", str(tmp_path / "base"), "out"]) == 0

    text = Path("out/README.md").read_text()
    assert "`~/base`. " in text
    assert str(tmp_path) not in text
    assert "base_model" not in text


def test_arguments_of_the_template_become_its_defaults() -> None:
    """Other programs render prompts as in training; who passes another value gets that."""
    tokenizer = HFTokenizer(byte_tokenizer(THINKING))
    tokenizer.use_template({"enable_thinking": False})
    run_folder(tokenizer)
    prompt = tokenizer.render([Message("user", "hi")])
    assert prompt.endswith("<x>")

    main(["export", "curious", "out"])

    exported = transformers.AutoTokenizer.from_pretrained("out")
    messages = [{"role": "user", "content": "hi"}]
    shown = {"add_generation_prompt": True, "tokenize": False}
    assert prompt == exported.apply_chat_template(messages, **shown)
    assert prompt.removesuffix("<x>") == exported.apply_chat_template(
        messages, enable_thinking=True, **shown
    )
    assert prompt == HFTokenizer(exported).render([Message("user", "hi")])
    assert (
        "the chat template has the defaults `enable_thinking=false`"
        in Path("out/README.md").read_text()
    )


def test_the_card_names_the_model_that_a_folder_was_made_of(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "base")
    source = {"source": {"package": "llm-tiny==1.0", "model": "someone/tiny"}}
    (folder / "quintain.json").write_text(json.dumps(source))

    assert main(["export", str(folder), "out"]) == 0

    text = Path("out/README.md").read_text()
    assert "base_model: someone/tiny\n" in text
    assert "`someone/tiny`. " in text


def test_the_card_says_that_conversations_were_appended_to() -> None:
    """Other programs render such a model by its template, which may rewrite earlier turns."""
    tokenizer = HFTokenizer(byte_tokenizer())
    tokenizer.use_history("append")
    run_folder(tokenizer)

    main(["export", "curious", "out"])

    assert '`model.history = "append"`' in Path("out/README.md").read_text()


def test_defaults_are_written_as_jinja_reads_them() -> None:
    from jinja2 import Environment

    values = {"a": None, "b": True, "c": {"d": [1, 2.5, "x\"'y"]}}
    text = with_defaults("{{ a }}|{{ b }}|{{ c.d }}", values)

    assert f"None|True|{[1, 2.5, values['c']['d'][2]]}" == Environment().from_string(text).render()  # type: ignore[index]
    assert Environment().from_string(text).render(a=5, b=False, c={}) == "5|False|"
    assert literal(None) == "none"


def test_a_temperature_without_sampling_is_exported_as_it_is(tmp_path: Path) -> None:
    """Many published models have one, which transformers does not save once the config is changed."""
    save_tiny(tmp_path / "base")
    file = tmp_path / "base/generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"temperature": 0.6}))

    assert main(["export", "base", "out"]) == 0

    assert transformers.GenerationConfig.from_pretrained("out").temperature == 0.6


def test_a_base_model_stops_where_its_replies_end(tmp_path: Path) -> None:
    """Without a template: the strings that end a reply are in the generation config, and the card
    shows the form.
    """
    save_tiny(tmp_path / "base", template=None)

    assert main(["export", "base", "out"]) == 0

    assert transformers.GenerationConfig.from_pretrained("out").stop_strings == [
        "\n\nUser:",
        "\n\nTool:",
    ]
    text = Path("out/README.md").read_text()
    assert "The model has no chat template" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code.replace("max_new_tokens=256", "max_new_tokens=2"), {})


# peft asks transformers
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    peft = pytest.importorskip("peft")
    save_tiny(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained("base"), config)
    adapted.save_pretrained("adapters")
    with torch.no_grad():
        expected = adapted(IDS).logits

    assert main(["export", "base", "out", "--merge", "adapters"]) == 0
    torch.testing.assert_close(logits(tmp_path / "out"), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(logits(tmp_path / "base"), expected, atol=1e-3)
    assert main(["export", "adapters", "by-name"]) == 0  # they name their base model
    torch.testing.assert_close(logits(tmp_path / "by-name"), expected, rtol=0, atol=1e-5)
    Path("adapters/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": None}))
    assert main(["export", "adapters", "other"]) == 2
    assert "quintain export BASE_MODEL DIR --merge adapters" in capsys.readouterr().err
    config.save_pretrained("adapters")
    save_tiny(tmp_path / "wide", hidden=16)
    assert main(["export", "wide", "other", "--merge", "adapters"]) == 2
    assert "the adapters do not fit the model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["base", "base"], "base exists; name a new folder"),
        (
            ["base", "out", "--merge", "base"],
            "there is no base/adapter_config.json; name a folder of peft",
        ),
        (["base", "out", "--push", "alone"], "expected OWNER/NAME"),
        (["base", "out", "--push", "a/b/c"], "--push a/b/c: "),
        (["bse", "out"], "no run 'bse'"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "base")

    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    save_tiny(tmp_path / "base")
    monkeypatch.setattr(
        "quintain_view.viewer.export.shutil.disk_usage", lambda path: SimpleNamespace(free=1000)
    )

    assert main(["export", "base", "out"]) == 1
    assert "no room to write out: it takes " in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


def test_without_the_hub_the_folder_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reason has the command that uploads the folder later."""
    save_tiny(tmp_path / "base")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["export", "base", "one", "--push", "me/model"]) == 1
    later = "is written; upload it later with: hf upload me/model one"
    assert f"cannot push to me/model: HF_HUB_OFFLINE is set. one {later}" in capsys.readouterr().err
    assert (tmp_path / "one" / "README.md").is_file()

    monkeypatch.setattr("quintain.models.unreachable", lambda: "", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert main(["export", "base", "two", "--push", "me/model"]) == 1
    assert "nobody is logged in; run `hf auth login`. two is written" in capsys.readouterr().err

    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    assert main(["export", "base", "three", "--push", "me/model"]) == 1
    assert "cannot push to me/model: " in capsys.readouterr().err
    assert (tmp_path / "three" / "model.safetensors").is_file()
