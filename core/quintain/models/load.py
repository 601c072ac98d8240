"""Load a causal language model and its tokenizer, from a folder or the hub's cache."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any, Protocol

import torch
from torch import nn

from ..errors import UsageError
from ..registry.lookup import current
from .adapters import named_tensors
from .bare import bare_model
from .hf import (
    base_named,
    base_record,
    check_base_available,
    check_files,
    check_folder,
    check_reachable,
    config_folder,
    has_adapters_alone,
    has_tokenizer_files,
    is_folder,
    quiet,
)
from .layers import cache_shape, fuse_storage, steady_length
from .lora import check_base, check_installed, merge_adapters, with_adapters
from .tokenizer import HFTokenizer

_log = logging.getLogger(__name__)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

_NO_LIMIT = 1_000_000

_CAUSES = {
    "custom code": "it needs Python code of its own, which Quintain never runs; see docs/models.md",
    "weights only": (
        "its weights are a pickle of more than tensors, not opened; name a folder with "
        "model.safetensors"
    ),
    "not recognize this architecture": "the installed transformers does not have its model_type; upgrade transformers",
    "unrecognized configuration": (
        "its architecture is not a causal language model; see docs/models.md, or for one that sees "
        "pictures docs/pictures.md, which says what to install"
    ),
    "attention implementation|flashattention": "it does not have the attention asked for; leave attn out",
}
"""Words of the library's errors, as patterns, and what they mean here."""


class ModelFamily(Protocol):
    """How a plugin reads a model that is more than a language model."""

    kind: Any
    """What has ``from_pretrained`` and ``from_config``, in place of ``AutoModelForCausalLM``."""

    def tokenizer(self, hf: Any, stop_ids: Sequence[int]) -> HFTokenizer:
        """Return the tokenizer of the model, over that of transformers."""

    def adapters(self, module: nn.Module, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of `peft.LoraConfig` for *module*: *settings*, and what they leave out."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to decode or to train.

    Attributes:
        module: the transformers module, in evaluation mode and without dropout (a peft module where
            adapters were asked for).
        tokenizer: its tokenizer and chat template.
        path: the name or folder it came from.
        context: longest sequence that the architecture allows.
        fused: whether its projections are joined in memory (see `fuse_storage`).
    """

    module: nn.Module
    tokenizer: HFTokenizer
    path: str
    context: int
    fused: bool

    @property
    def parameters(self) -> int:
        """Number of parameters, adapters included."""
        return sum(p.numel() for p in self.module.parameters())


def load_model(
    name_or_path: str | Path,
    *,
    dtype: str = "float32",
    device: str = "auto",
    attn: str | None = None,
    lora: Mapping[str, Any] | None = None,
    bare: bool = False,
) -> LoadedModel:
    """Load *name_or_path*: a folder in Hugging Face format, or a name on the hub; adapters are
    merged into their base.

    Args:
        dtype: ``float32``, ``bfloat16``, ``float16``, ``float64``, or ``auto`` for what the
            checkpoint was saved in.
        device: ``auto`` is the GPU where there is one, else the CPU; ``meta`` reads no weights.
        attn: attention implementation of the module's own forward (``sdpa``, ``eager``,
            ``flash_attention_2``); by default ``sdpa`` where the architecture has it, else
            ``eager``; always ``eager`` in place of ``sdpa`` where attention has a soft cap.
        lora: fields of `peft.LoraConfig`; the adapters are then what trains. Their dropout must be
            0.
        bare: load the weights without the forward of transformers where `bare_model` can; other
            models as always.

    Raises:
        UsageError: no such model, no tokenizer, no weights, or a wrong argument; the message names
            what to do.
    """
    path = str(name_or_path)
    if is_folder(path):
        check_folder(path)
        path = os.path.expanduser(path)
        check_files(Path(path))
    has_tokenizer = not has_adapters_alone(path) or has_tokenizer_files(Path(path))
    module: Any = bare_model(Path(path)) if bare else None
    if module is None:
        from transformers import AutoTokenizer as Tokenizer
    else:  # the other would import the classes of models
        from transformers import PreTrainedTokenizerFast as Tokenizer
    tokenizer = load_pretrained(Tokenizer, path if has_tokenizer else base_named(path)[0])
    hollow, family = device == "meta", family_of(path)
    if hollow:
        if family:
            raise UsageError(
                f"model {path!r} sees pictures, and its weights cannot be left out; remove "
                "learner.args.weights"
            )
        if lora is not None or has_adapters_alone(path):
            raise UsageError(
                f"model {path!r}: adapters need the weights under them; they cannot be left out"
            )
        module = module_without_weights(path, as_dtype(dtype), attn)
    if module is None:
        module = _module_of(path, "auto" if dtype == "auto" else as_dtype(dtype), attn, family)
    stops = _generation_stops(module)
    wrap = family.tokenizer if family else HFTokenizer
    tokenizer = wrap(tokenizer, stop_ids=stops)
    if set(tokenizer.stop_ids) > set(stops):
        name_stops(module, tokenizer.stop_ids)
    embeddings = module.get_input_embeddings().weight.shape[0]
    if tokenizer.vocab_size > embeddings:
        raise UsageError(
            f"model {path!r} has embeddings for {embeddings} ids but its tokenizer has "
            f"{tokenizer.vocab_size}; use the tokenizer it was trained with, or "
            "`model.resize_token_embeddings(len(tokenizer))` and save again"
        )
    without_dropout(module)
    if not hollow:
        module.to(as_device(device))
    if lora is not None:
        module = with_adapters(module, family.adapters(module, lora) if family else lora)
    module.eval()
    fused = lora is None and not hollow and fuse_storage(module)
    return LoadedModel(
        module=module,
        tokenizer=tokenizer,
        path=path,
        context=context_of(module, tokenizer),
        fused=fused,
    )


def family_of(path: str) -> ModelFamily | None:
    """Return how to read model *path* if it sees pictures and an installed plugin knows its family;
    ``None`` for a language model.
    """
    plugin = current().matching("pictures", "model")
    if not plugin or not (folder := config_folder(path)):
        return None
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # what loads it says what is wrong
    if not isinstance(config, dict) or "vision_config" not in config:
        return None
    name = base_named(path)[0] if has_adapters_alone(path) else path
    find = current().resolve(plugin[0]).family
    family: ModelFamily | None = find(os.path.expanduser(name), config)
    return family


def _module_of(
    path: str, dtype: torch.dtype | str, attn: str | None, family: ModelFamily | None
) -> Any:
    """Return the transformers module of *path*; that of adapters is their base with them, in the
    precision that they were trained on and added in float32 at least.

    Raises:
        UsageError: weights are missing, or the base is not the one that the adapters were trained
            on.
    """
    from transformers import AutoModelForCausalLM

    if has_adapters_alone(path):
        check_base_available(path)
        check_installed()
        wide = dtype if dtype == torch.float64 else torch.float32
        trained = DTYPES.get(base_record(Path(path)).get("dtype", ""), wide)
        module = _module_of(os.path.expanduser(base_named(path)[0]), trained, attn, family)
        check_base(module, Path(path))
        module = merge_adapters(module.to(wide), path)
        exact = getattr(module, "_keep_in_fp32_modules_strict", None) or ()
        for name, tensor in named_tensors(module) if isinstance(dtype, torch.dtype) else ():
            if tensor.is_floating_point() and not any(part in name for part in exact):
                tensor.data = tensor.data.to(dtype)
        return module
    options = {"dtype": dtype, "attn_implementation": attn, "output_loading_info": True}
    kind = family.kind if family else AutoModelForCausalLM
    module, report = load_pretrained(kind, path, **options)
    _keep_soft_cap(module, attn)
    if missing := sorted(report["missing_keys"]):
        raise UsageError(
            f"model {path!r} has no weights for {len(missing)} of the tensors of "
            f"{type(module).__name__}, first {missing[0]!r}, which would be random; save or "
            "download it again, or name a causal language model"
        )
    saved_as = (getattr(module.config, "architectures", None) or [""])[0]
    if saved_as.endswith("Classification"):
        # Where embeddings and output layer are one tensor, nothing is missing.
        _log.warning(
            "model %r gives scores (%s), so it was not trained to write: its output layer is that of "
            "the model that it was trained from",
            path,
            saved_as,
        )
    return module


def _keep_soft_cap(module: Any, attn: str | None) -> None:
    """Compute attention with a soft cap without ``sdpa``, whose kernels leave it out: earlier
    transformers (5.17) choose that for Gemma 2.
    """
    capped = getattr(module.config.get_text_config(), "attn_logit_softcapping", None)
    if capped and attn in (None, "sdpa"):
        module.set_attn_implementation("eager")


def module_without_weights(path: str, dtype: torch.dtype, attn: str | None) -> Any:
    """Return the transformers module of *path* as it is loaded, with its parameters on the device
    ``meta``: for processes that read their parts of the weights themselves.

    Raises:
        UsageError: there is no such model, or it has tables beside its parameters that its class
            does not compute.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = load_pretrained(AutoConfig, path)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn)
    _keep_soft_cap(module, attn)
    files_have = module.state_dict().keys()
    for prefix, part in module.named_modules():
        names = [name for name, _ in part.named_buffers(recurse=False)]
        for name in names:
            empty = torch.empty_like(getattr(part, name), device="cpu")
            setattr(part, name, empty.fill_(float("nan")) if empty.is_floating_point() else empty)
        if names:
            module._init_weights(part)  # its parameters, too, which have no numbers
        for name in names:
            table = getattr(part, name)
            full_name = f"{prefix}.{name}" if prefix else name
            computed = table.is_floating_point() and bool(table.isfinite().all())
            if full_name in files_have or not computed:
                raise UsageError(
                    f"model {path!r} cannot be loaded without its weights: {type(part).__name__} has "
                    f"a table of its own ({full_name})"
                )
    try:
        module.generation_config = GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:  # transformers makes one of the configuration, too
        module.generation_config = GenerationConfig.from_model_config(module.config)
    return module


def as_dtype(name: str) -> torch.dtype:
    """Return the type of torch of this name, such as `torch.bfloat16` for ``"bfloat16"``.

    Raises:
        UsageError: another name.
    """
    if name not in DTYPES:
        raise UsageError(f"dtype {name!r}: expected auto or one of {', '.join(DTYPES)}")
    return DTYPES[name]


def as_device(name: str) -> torch.device:
    """Return the device of this name; ``auto`` is the GPU where there is one, else the CPU.

    Raises:
        UsageError: a device that this torch does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device {name!r}: expected auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported: expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= (gpus := torch.cuda.device_count()):
        raise UsageError(
            f"device {name!r}: this torch sees {gpus} GPUs; use device = 'auto' or 'cpu'"
        )
    return device


def context_of(module: Any, tokenizer: HFTokenizer | None = None) -> int:
    """Return the longest sequence of *module*: its `steady_length`, else by config, tokenizer, or
    2,048 tokens.
    """
    config = module.config.get_text_config()
    if steady := steady_length(config):
        return steady
    for field in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config, field, None)
        if isinstance(value, int) and 0 < value < _NO_LIMIT:
            return value
    limit = getattr(tokenizer.hf, "model_max_length", 0) if tokenizer else 0
    return int(limit) if 0 < limit < _NO_LIMIT else 2048


def cache_bytes(module: Any, tokens: int, dtype: str) -> int:
    """Return the bytes of the keys and values of *tokens* in *dtype*, or of the context if that is
    shorter.
    """
    shape = cache_shape(module.config.get_text_config())
    numbers = 2 * math.prod(shape) * min(tokens, context_of(module))
    return numbers * DTYPES.get(dtype, torch.float32).itemsize


def trainable(
    module: nn.Module, lora: Mapping[str, Any] | None, *, widen: bool = True
) -> nn.Module:
    """Return *module* without dropout, with adapters where *lora* has settings, and in float32 at
    least if *widen*.
    """
    if widen and any(p.dtype in (torch.float16, torch.bfloat16) for p in module.parameters()):
        module.float()
    if lora is not None:
        module = with_adapters(module, lora)
    without_dropout(module)
    return module


def without_dropout(module: nn.Module) -> None:
    """Switch off all dropout of *module*, in training mode too: the trained policy must be the
    sampled one.
    """
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    for owner in (getattr(module, "config", None), *module.modules()):
        for field, value in list(vars(owner).items()) if owner is not None else ():
            # attention_dropout, resid_pdrop, layerdrop, ...
            if "drop" in field and isinstance(value, float):
                setattr(owner, field, 0.0)


def load_pretrained(kind: Any, path: str, **options: Any) -> Any:
    """Call ``kind.from_pretrained`` without remote code and raise one error for the library's many.

    A model in the hub's cache is used without a request, so that a machine without network does not
    wait; for others the hub must be reachable.

    Args:
        kind: a class of transformers, such as ``AutoTokenizer``.
        path: a folder, or a name on the hub.

    Raises:
        UsageError: there is no such model, it cannot be fetched, or it is damaged.
    """
    from transformers.utils import logging as transformers_logging

    chatty = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        return _cached_or_fetched(kind, path, trust_remote_code=False, **options)
    except (MemoryError, UsageError):
        raise
    except Exception as error:
        # torch, safetensors and tokenizers each raise their own; tokenizers plain `Exception`
        if cause := next(
            (text for words, text in _CAUSES.items() if re.search(words, str(error).lower())), ""
        ):
            raise UsageError(f"cannot load model {path!r}: {cause}") from error
        reason = shorten(str(error), 240, placeholder=" ...") or type(error).__name__
        where = (
            "the folder is damaged or of an unknown kind; save or download the model again, or "
            "name another folder"
            if os.path.exists(path)
            else (
                "no such folder, and the hub's cache does not have it; download it once with `hf "
                f"download {path}`, or name a folder in Hugging Face format"
            )
        )
        raise UsageError(f"cannot load model {path!r}: {where} ({reason})") from error
    finally:
        if chatty:
            transformers_logging.enable_progress_bar()


def _cached_or_fetched(kind: Any, path: str, **options: Any) -> Any:
    try:
        loaded = kind.from_pretrained(path, local_files_only=True, **options)
        if os.path.exists(path) or _has_vocabulary(loaded, path):
            return loaded
    except OSError:
        if os.path.exists(path):
            raise
    check_reachable(path)
    from huggingface_hub.utils.tqdm import enable_progress_bars

    enable_progress_bars()
    with quiet():
        return kind.from_pretrained(path, **options)


def _has_vocabulary(loaded: Any, name: str) -> bool:
    """Return whether the hub's cache has a vocabulary for *loaded*, if it is a tokenizer that needs
    one.

    Where only the configuration of model *name* is in the cache, transformers returns a tokenizer
    without tokens instead of raising.
    """
    from transformers.utils import has_file

    files = getattr(loaded, "vocab_files_names", {}).values()
    return not files or any(has_file(name, file, local_files_only=True) for file in files)


def name_stops(module: Any, stop_ids: Sequence[int], strings: Sequence[str] = ()) -> None:
    """Let the generation config, which checkpoints and exports hold, name all *stop_ids* and stop
    *strings*: of a base model it has only the end of a document, and not that of a turn.
    """
    generation = getattr(module, "generation_config", None)
    if generation is None:
        return
    generation.eos_token_id = stop_ids[0] if len(stop_ids) == 1 else [*stop_ids] or None
    if strings:
        generation.stop_strings = [*strings]
    if not hasattr(generation, "to_json_file"):
        return  # of a bare model, which is never saved
    # transformers saves what it read, but refuses a changed one that has settings of another mode,
    # such as the temperature without do_sample of many published models. So this one is read, too.
    with TemporaryDirectory() as folder:
        generation.to_json_file(Path(folder) / "generation_config.json")
        module.generation_config = type(generation).from_pretrained(folder)


def _generation_stops(module: Any) -> tuple[int, ...]:
    eos = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
