"""Loading models and tokenizers; what is missing is said in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification

from quintain.errors import UsageError
from quintain.interfaces.tools import ToolSpec
from quintain.models.load import load_model, trainable, without_dropout
from quintain.models.tokenizer import PLAIN_STOPS, HFTokenizer
from quintain.types.task import Message, ToolCall
from quintain_authoring.byte_tokenizer import ByteTokenizer

from .architectures import ARCHITECTURES, architecture
from .tiny import CHATML, byte_tokenizer, save_tiny, tiny_model

TOKENIZER = HFTokenizer(byte_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), "qwen3")


def test_a_folder_loads_and_saves(folder: Path, tmp_path: Path) -> None:
    loaded = load_model(folder)
    assert loaded.context == 512
    assert loaded.fused is True
    assert loaded.module.training is False
    assert loaded.parameters == sum(p.numel() for p in tiny_model("qwen3").parameters())
    loaded.module.save_pretrained(tmp_path)
    loaded.tokenizer.hf.save_pretrained(tmp_path)
    again = load_model(tmp_path, dtype="bfloat16")
    assert next(again.module.parameters()).dtype == torch.bfloat16
    assert again.tokenizer.encode("hello") == loaded.tokenizer.encode("hello")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_adapters(folder: Path) -> None:
    loaded = load_model(folder, lora={"r": 2, "target_modules": ["q_proj"]})
    assert not loaded.fused
    assert {n.split(".")[-3] for n, p in loaded.module.named_parameters() if p.requires_grad} == {
        "lora_A",
        "lora_B",
    }
    with pytest.raises(UsageError, match="lora_dropout"):
        load_model(folder, lora={"r": 2, "lora_dropout": 0.1})
    with pytest.raises(UsageError, match="rank"):
        load_model(folder, lora={"rank": 2})
    for name, value in {
        "use_dora": True,
        "lora_bias": True,
        "bias": "all",
        "init_lora_weights": "pissa",
    }.items():
        with pytest.raises(UsageError, match=f"lora.{name} = .* is not supported"):
            load_model(folder, lora={"r": 2, "target_modules": ["q_proj"], name: value})
    # the output layer would train and not be published
    with pytest.raises(UsageError, match="modules_to_save"):
        load_model(folder, lora={"r": 2, "modules_to_save": ["lm_head"]})
    with pytest.raises(UsageError, match="embeddings that are the output layer, too"):
        load_model(folder, lora={"r": 2, "target_modules": ["q_proj", "embed_tokens"]})
    fix = (
        r"is incompatible with Mamba-based models .*; name the modules to adapt, such as "
        r"target_modules = \["
    )
    with pytest.raises(UsageError, match=fix):
        trainable(architecture("mamba"), {"r": 2, "exclude_modules": ["x_proj"]})
    adapted = trainable(architecture("mamba"), {"r": 2})
    assert any("in_proj.lora_A" in name for name, _ in adapted.named_parameters())
    assert not any("out_proj.lora_A" in name for name, _ in adapted.named_parameters())


@pytest.mark.parametrize(
    "missing, words",
    [
        ("config.json", "no config.json"),
        ("tokenizer*", "no tokenizer"),
        ("*.safetensors", "no weights"),
    ],
)
def test_incomplete_folders_name_what_to_do(tmp_path: Path, missing: str, words: str) -> None:
    save_tiny(tmp_path, "llama")
    for path in tmp_path.glob(missing):
        path.unlink()
    with pytest.raises(UsageError, match=f"{words}.*save"):
        load_model(tmp_path)


def test_other_bad_input(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="dtype 'float8'"):
        load_model(folder, dtype="float8")
    with pytest.raises(UsageError, match="device 'gpu'"):
        load_model(folder, device="gpu")
    tiny_model("llama", vocab=200).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="200 ids but its tokenizer has 260"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"half"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    """Whatever library trips over it; a weight file may also be cut off in the middle."""
    path = save_tiny(tmp_path, "llama") / name
    path.write_bytes(
        path.read_bytes()[: path.stat().st_size // 2] if content == b"half" else content
    )
    with pytest.raises(UsageError, match=r"cannot load model .*damaged.*save or download"):
        load_model(tmp_path)


def edited(folder: Path, name: str, **fields: object) -> None:
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | fields))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_a_folder_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not even for somebody at a terminal who would say yes; nobody is asked."""
    folder = save_tiny(tmp_path / "model", "llama")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    classes = {
        "AutoConfig": "own.C",
        "AutoModelForCausalLM": "own.M",
        "AutoTokenizer": ["own.T", None],
    }
    edited(folder, name, auto_map=classes, model_type="own", tokenizer_class="T")
    monkeypatch.setattr("builtins.input", lambda _prompt: "y")
    with pytest.raises(
        UsageError, match=r"needs Python code of its own, which Quintain never runs"
    ):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


class Opens:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return open, (str(self.path), "w")


def test_other_reasons_are_not_called_damage(tmp_path: Path) -> None:
    """The sentence names the reason and no advice to switch a safeguard off."""
    folder = save_tiny(tmp_path / "model", "llama")
    with pytest.raises(UsageError, match="does not have the attention.*leave attn out"):
        load_model(folder, attn="flash_attention_2")
    edited(folder, "config.json", num_attention_heads=3)
    with pytest.raises(UsageError, match="damaged.*attention heads"):
        load_model(folder)
    edited(folder, "config.json", num_attention_heads=4)
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Opens(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(
        UsageError, match=r"pickle of more than tensors.*name a folder with model.safetensors$"
    ):
        load_model(folder)
    assert not (tmp_path / "ran").exists()
    edited(folder, "config.json", model_type="t5")
    with pytest.raises(UsageError, match="not a causal language model"):
        load_model(folder)
    edited(folder, "config.json", model_type="of-next-year")
    with pytest.raises(UsageError, match="upgrade transformers"):
        load_model(folder)


@pytest.mark.keeps("llama", "gpt2", "qwen3")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_dropout_of_any_name_is_left(name: str) -> None:
    """Attention, residual, activation or layer dropout: training mode computes what evaluation mode
    computes.
    """
    fields = vars(architecture(name).config)
    dropping = {
        field: 0.3
        for field, value in fields.items()
        if "drop" in field and isinstance(value, (int, float))
    }
    module = trainable(architecture(name, **dropping), None)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        plain = module.eval()(input_ids=ids, use_cache=False).logits
        assert torch.equal(plain, module.train()(input_ids=ids, use_cache=False).logits)


@pytest.mark.keeps("gpt-oss")
@pytest.mark.parametrize("name", ["gemma2", "gpt-oss", "mamba", "bloom"])
def test_architectures_without_sdpa_load(tmp_path: Path, name: str) -> None:
    architecture(name, vocab_size=260, eos_token_id=258, pad_token_id=259).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.module.config._attn_implementation == "eager"


def test_a_soft_cap_of_attention_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers 5.17 says that Gemma 2 has ``sdpa``, whose kernels leave the soft cap out without
    a word.
    """
    from transformers import Gemma2PreTrainedModel

    ids = torch.arange(3, 30)[None]
    capped = architecture(
        "gemma2", vocab_size=260, attn_logit_softcapping=0.01, initializer_range=1.0
    )
    capped.eval().set_attn_implementation("eager")
    capped.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    with torch.no_grad():
        expected = capped(input_ids=ids, use_cache=False).logits
        loaded = load_model(tmp_path).module(input_ids=ids, use_cache=False).logits
        capped.config.attn_logit_softcapping = None
        for layer in capped.model.layers:
            layer.self_attn.attn_logit_softcapping = None
        without = capped(input_ids=ids, use_cache=False).logits

    torch.testing.assert_close(loaded, expected, atol=1e-5, rtol=0)
    assert float((without - expected).abs().max()) > 0.01, "the cap shows"


def test_a_tensor_without_weights_is_not_random(tmp_path: Path) -> None:
    """Such as the output layer of a checkpoint that was saved without one."""
    path = save_tiny(tmp_path, "llama") / "model.safetensors"
    tensors = load_file(path)
    del tensors["lm_head.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(
        UsageError,
        match=r"no weights for 1 of the tensors of LlamaForCausalLM, first 'lm_head.weight'",
    ):
        load_model(tmp_path)


def test_dropout_is_off_in_training_mode_too() -> None:
    model = tiny_model("gpt2", attn_pdrop=0.3, embd_pdrop=0.3, resid_pdrop=0.3)
    without_dropout(model)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model.train()(ids).logits, model.eval()(ids).logits)


@pytest.mark.more
@given(st.text())
def test_every_text_survives_the_tokenizer(text: str) -> None:
    ids, spans = TOKENIZER.encode_with_offsets(text)
    assert ids == TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    covered = 0
    for start, end in spans:
        assert start <= covered <= end
        covered = max(covered, end)
    assert covered == len(text)


def test_special_tokens_in_text_become_ids() -> None:
    assert TOKENIZER.encode("a<|im_end|>")[-1] == 257
    assert TOKENIZER.decode([257, TOKENIZER.encode("b")[0]], special=False) == "b"


def test_stop_ids_are_of_tokenizer_generation_config_and_template() -> None:
    assert HFTokenizer(byte_tokenizer(), stop_ids=(5, 258)).stop_ids == (258, 5, 257)
    assert TOKENIZER.stops == ()
    plain = HFTokenizer(byte_tokenizer(None))
    assert plain.stop_ids == (258,)
    assert plain.stops == PLAIN_STOPS
    assert plain.render([Message("user", "hi")]) == "User: hi\n\nAssistant:"


def with_bos(template: str | None) -> HFTokenizer:
    """A tokenizer whose own call begins each text with a token, as those of Llama and Gemma do."""
    hf = byte_tokenizer(template)
    hf.bos_token = "<|im_start|>"
    begun = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 256)])
    hf.backend_tokenizer.post_processor = begun
    return HFTokenizer(hf)


def test_a_base_model_reads_the_token_that_begins_its_texts() -> None:
    base = with_bos(None)
    ids = base.encode(base.render([Message("user", "hi")]))
    assert ids == base.hf("User: hi\n\nAssistant:")["input_ids"]
    assert ids.count(256) == 1


def test_a_chat_template_writes_its_own_beginning() -> None:
    messages = [Message("user", "hi")]
    assert with_bos(CHATML).render(messages) == TOKENIZER.render(messages)


def test_saved_models_name_all_stop_tokens(folder: Path, tmp_path: Path) -> None:
    """The config of the model ends with a document, and the template's turn with another token."""
    loaded = load_model(folder)
    loaded.module.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved["eos_token_id"] == [258, 257]
    assert loaded.tokenizer.stop_ids == (258, 257)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_reward_model_was_not_trained_to_write(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of qwen3 no weight is missing, as its output layer is its embeddings: training goes on from
    it, with a warning.
    """
    save_tiny(tmp_path / "base", kind)
    scores = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=1)
    scores.save_pretrained(tmp_path / "scores")
    byte_tokenizer().save_pretrained(tmp_path / "scores")
    if kind == "qwen3":
        load_model(tmp_path / "scores")
        assert "gives scores" in caplog.text
    else:
        with pytest.raises(UsageError, match="has no weights for"):
            load_model(tmp_path / "scores")


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.9, "top_p": 0.6}, {"length_penalty": 0.5}, {"pad_token_id": -1}],
)
def test_a_generation_config_that_transformers_refuses_once_changed_is_saved(
    folder: Path, tmp_path: Path, settings: dict[str, float]
) -> None:
    """Many published models have a temperature without do_sample."""
    shutil.copytree(folder, tmp_path / "published")
    file = tmp_path / "published/generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    load_model(tmp_path / "published").module.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/generation_config.json").read_text())
    assert saved["eos_token_id"] == [258, 257]
    assert {key: saved[key] for key in settings} == settings


def test_the_name_depends_on_vocabulary_and_template() -> None:
    assert (
        TOKENIZER.name
        == HFTokenizer(byte_tokenizer()).name
        != HFTokenizer(byte_tokenizer(None)).name
    )


def test_tools_and_calls_reach_the_template() -> None:
    template = (
        "{% for t in tools or [] %}[{{ t.function.name }}:{{ t.function.parameters.type }}]{% "
        "endfor %}{% for m in messages %}{{ m.role }}|{{ m.content }}|{{ m.reasoning_content }}{% "
        "for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>"
        "{% endfor %};{% endfor %}"
    )
    tokenizer = HFTokenizer(byte_tokenizer(template))
    call = ToolCall(name="add", arguments={"x": 2}, id="c1")
    messages = [
        Message("assistant", "ok", reasoning="hm", calls=(call,)),
        Message("tool", "3", call_id="c1", name="add"),
    ]
    assert (
        tokenizer.render(messages, [ToolSpec(name="add")])
        == '[add:object]assistant|ok|hm<tool_call>{"name": "add", "arguments": {"x": 2}}</tool_call>;'
        "tool|3|;"
    )


def test_a_template_that_refuses_is_quoted() -> None:
    tokenizer = HFTokenizer(
        byte_tokenizer(
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}x"
        )
    )
    with pytest.raises(UsageError, match="no system"):
        tokenizer.render([Message("system", "s")])


def test_a_vocabulary_is_required_to_be_fast() -> None:
    with pytest.raises(UsageError, match="not a fast one"):
        HFTokenizer(type("Slow", (), {"is_fast": False, "name_or_path": "x"})())
    assert ByteTokenizer().vocab_size == TOKENIZER.vocab_size
