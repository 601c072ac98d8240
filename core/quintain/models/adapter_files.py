"""Folders with the adapters of a run alone, in the format of peft, and the identity of the model
that they change.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..registry.binding import bind
from ..registry.lookup import current
from .hf import BASE_FILE, base_named, base_record, is_folder
from .lora import base_of, named_tensors, without_warnings


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
    the learner had rounded is rounded first, so that the policy is the one that was trained.

    Raises:
        UsageError: peft or the learner is not installed, or the adapters belong to another model.
    """
    try:
        from peft import PeftModel
    except ImportError as missing:
        raise UsageError(
            f"{folder} has LoRA adapters, which need peft: pip install 'quintain[lora]'"
        ) from missing
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
            return adapted.merge_and_unload()
    except (ValueError, RuntimeError, OSError, KeyError) as e:
        reason = str(e).strip().partition("\n")[0]
        raise UsageError(f"{folder}: the adapters do not fit the model ({reason})") from e
