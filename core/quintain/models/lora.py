"""Adapters of low rank (Hu et al. 2021, 2106.09685) by peft: attached, saved alone with the identity
of the model that they change, and merged into it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError, nearest, suggestion
from ..registry.binding import bind
from ..registry.lookup import current
from .adapters import base_of, named_tensors
from .hf import BASE_FILE, base_named, base_record, is_folder

EXACT = """r lora_alpha rank_pattern alpha_pattern use_rslora target_modules exclude_modules target_parameters
    layers_to_transform layers_pattern fan_in_fan_out task_type""".split()
"""Fields of `peft.LoraConfig` with which the policy is the base model, untouched, plus products
that are merged.
"""


def check_installed() -> None:
    """Check that peft is installed, which `with_adapters` and `merge_adapters` need.

    Raises:
        UsageError: it is not.
    """
    if find_spec("peft") is None:
        raise UsageError("LoRA adapters need peft: pip install 'quintain[lora]'")


def with_adapters(module: Any, settings: Mapping[str, Any]) -> nn.Module:
    """Return *module* with adapters, which alone train; by default on all linear maps but the
    output layer and those that bypass adapters.

    Args:
        settings: fields of `peft.LoraConfig`.

    Raises:
        UsageError: a setting is unknown or keeps the adapters from being merged, or peft is not
            installed.
    """
    check_installed()
    from peft import LoraConfig, get_peft_model

    # The router of Llama 4 is a linear map that returns a pair. Fused kernels of Mamba read the weight
    # of `out_proj` past its adapter, and peft refuses one there.
    parts = list(module.named_modules())
    others = [name for name, part in parts if type(part).__name__ == "Llama4Router"]
    others += [f"{n}.out_proj" for n, p in parts if hasattr(p, "conv1d") and hasattr(p, "D")]
    fields = {
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
        "exclude_modules": others or None,
        **settings,
    }
    for name, value in fields.items():
        plain = (
            not value
            or value in ("none", "gaussian", "orthogonal")
            or (name, value) == ("init_lora_weights", True)
        )
        if name in {*LoraConfig.__dataclass_fields__} - {*EXACT} and not plain:
            raise UsageError(
                f"lora.{name} = {value!r} is not supported: sampler or ref would be wrong; leave "
                f"it out"
            )
    _check_names(fields, [name for name, _ in module.named_parameters()], parts)
    with without_warnings():
        try:
            adapted = get_peft_model(module, LoraConfig(**fields))
        except (TypeError, ValueError, RuntimeError, re.error) as error:
            reason = str(error).partition("\n")[0].partition(". Please")[0]
            fix = 'name the modules to adapt, such as target_modules = ["q_proj", "v_proj"]'
            raise UsageError(f"lora {dict(settings)!r}: {reason}; {fix}") from error
    inputs, outputs = adapted.get_input_embeddings(), adapted.get_output_embeddings()
    if hasattr(inputs, "base_layer") and inputs.weight is outputs.weight:
        raise UsageError(
            "an adapter on embeddings that are the output layer, too, is not supported; exclude "
            "them"
        )
    return adapted


def _check_names(fields: Mapping[str, Any], parameters: list[str], parts: list[Any]) -> None:
    """Check that what is named is there, and can learn: peft leaves out the names that match nothing
    as long as one does.

    Raises:
        UsageError: a name matches no module or parameter, or ``lora_alpha`` is 0.
    """
    if fields.get("lora_alpha") == 0:
        raise UsageError(
            "lora.lora_alpha is 0, so the adapters never change anything; leave it out"
        )
    for field, there in (
        ("target_modules", [name for name, _ in parts]),
        ("target_parameters", parameters),
    ):
        names = fields.get(field)
        for name in names if isinstance(names, (list, tuple)) else ():
            if not any(f".{one}".endswith(f".{name}") for one in there):
                near = nearest(str(name), [one.rpartition(".")[2] for one in there])
                raise UsageError(f"lora.{field}: the model has no {name!r}{suggestion(near)}")


@contextmanager
def without_warnings() -> Iterator[None]:
    """Leave out the warnings of peft that mean nothing here."""
    with warnings.catch_warnings():  # it still asks transformers 5 by an older name
        warnings.filterwarnings(
            "ignore", message=".*is_gradient_checkpointing", category=FutureWarning
        )
        # Its own pattern for the experts of a mixture is applied, but not counted as a match.
        warnings.filterwarnings(
            "ignore", message=".*_pattern keys did not match", category=RuntimeWarning
        )
        # It finds the transposed weights of GPT-2 itself.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set", category=UserWarning)
        yield


def adapter_tensors(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the tensors of the adapters of *module*, under the names of peft's files; they share
    memory with it.
    """
    from peft import get_peft_model_state_dict

    tensors: Mapping[str, Tensor] = get_peft_model_state_dict(module, save_embedding_layers=False)
    return tensors


_NOTED = "quintain_digest"


def note_digest(module: nn.Module) -> None:
    """Let `digest_of` return of *module* what it is now, whatever becomes of the weights under its
    adapters.
    """
    setattr(base_of(module), _NOTED, digest_of(module))


def digest_of(module: nn.Module) -> str:
    """Return the SHA-256 of the weights of *module* in float32, without its adapters: names, shapes
    and values.

    The same model gives the same digest with and without adapters, in each precision that holds its
    saved values.
    """
    if noted := getattr(base_of(module), _NOTED, ""):
        return str(noted)

    def digest(item: tuple[str, Tensor]) -> str:
        name, tensor = item
        values = tensor.detach().to("cpu", torch.float32).contiguous()
        content = hashlib.sha256(values.view(-1).view(torch.uint8).numpy().data).hexdigest()
        return f"{name} {list(values.shape)} {content}\n"

    tensors = [
        (n.replace(".base_layer", ""), t)
        for n, t in named_tensors(base_of(module))
        if ".lora_" not in n
    ]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return hashlib.sha256("".join(sorted(threads.map(digest, tensors))).encode()).hexdigest()


def write_adapters(
    folder: Path, module: Any, base: str, digest: str, learner: Mapping[str, Any] | None = None
) -> None:
    """Write the adapters of *module* to *folder*, with the path or id of the model under them, its
    `digest_of` and its precision.

    Args:
        learner: component and settings of the learner, ``use`` and ``args``, where it gave the
            adapters a base of its own (see `LearnerKind.round_base`).
    """
    from safetensors.torch import save_file

    base = os.path.abspath(os.path.expanduser(base)) if is_folder(base) else base
    config = copy.copy(module.peft_config["default"])
    config.base_model_name_or_path, config.inference_mode = base, True
    if isinstance(config.target_modules, set):
        config.target_modules = sorted(config.target_modules)
    config.save_pretrained(folder)
    tensors = {name: tensor.contiguous() for name, tensor in adapter_tensors(module).items()}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    dtype = str(next(base_of(module).parameters()).dtype).removeprefix("torch.")
    record: dict[str, Any] = {"model": base, "sha256": digest, "dtype": dtype}
    record |= {"learner": dict(learner)} if learner else {}
    (folder / BASE_FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")
    if (generation := getattr(base_of(module), "generation_config", None)) is not None:
        generation.save_pretrained(folder)  # its stop tokens


def check_base(module: nn.Module, folder: Path) -> None:
    """Check that *module* has the base model of the adapters in *folder*, if that is recorded
    there.

    Raises:
        UsageError: it has other weights.
    """
    name, expected = base_named(folder)
    if expected and expected != (actual := digest_of(module)):
        raise UsageError(
            f"the adapters in {folder} were trained on other weights than {name!r} has now: "
            f"SHA-256 {expected[:12]} then, {actual[:12]} now; put those weights back, or name "
            f"their folder in {folder / BASE_FILE}"
        )


def merge_adapters(module: Any, folder: str | Path) -> Any:
    """Add the adapters of *folder*, in the format of peft, to the weights of *module*. A base that
    the learner had rounded is rounded first, so that the policy is the one that was trained. What
    was frozen of *module*, as a vision tower, stays so.

    Raises:
        UsageError: peft or the learner is not installed, or the adapters belong to another model.
    """
    check_installed()
    from peft import PeftModel

    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    try:
        with without_warnings():
            adapted = PeftModel.from_pretrained(module, str(folder))
            if bad := next(
                (n for n, t in adapter_tensors(adapted).items() if not t.isfinite().all()), None
            ):
                raise ValueError(f"{bad} has numbers that are not finite")
            if learner := base_record(Path(folder)).get("learner"):
                kind = current().load("learner", learner["use"])
                settings = bind(kind, learner["args"], who=f"learner {learner['use']!r}")
                adapted = settings.round_base(adapted)
            # peft leaves the weights under adapters frozen. What is merged is a plain model, which
            # may train.
            merged = adapted.merge_and_unload()
            for name, parameter in merged.named_parameters():
                parameter.requires_grad_(name not in frozen)
            return merged
    except (ValueError, RuntimeError, OSError, KeyError) as e:
        reason = str(e).strip().partition("\n")[0]
        raise UsageError(f"{folder}: the adapters do not fit the model ({reason})") from e
