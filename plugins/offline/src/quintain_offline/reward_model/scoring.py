"""Loads models that score conversations, or makes one to train."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from quintain.errors import UsageError
from quintain.models import as_device

from .image_reward import is_image_reward
from .loading import context_of, load_head
from .pictures import load_picture_model
from .scoring_model import ScoreStatistics, ScoringModel


def load_scoring_model(
    name: str, *, dtype: str = "float32", device: str = "auto", label: str = ""
) -> ScoringModel:
    """Load a sequence-classification model: a folder, a run of `quintain reward train`, or a
    hub id; or a folder of `image_reward`, whose conversations have a picture.

    Args:
        label: the label whose logit is the score, for models with several.

    Raises:
        UsageError: it cannot be loaded, has no head for scores, or has several labels and *label*
            names none.
    """
    from transformers import AutoModelForSequenceClassification

    if is_image_reward(name):
        return load_picture_model(name, dtype=dtype, device=device)
    module, tokenizer = load_head(
        AutoModelForSequenceClassification, name, dtype=dtype, device=device
    )
    return ScoringModel(
        module=module,
        tokenizer=tokenizer,
        path=name,
        context=context_of(module, tokenizer),
        label=_label(module.config, label, name),
        statistics=ScoreStatistics.read(name),
    )


def _label(config: Any, label: str, name: str) -> int:
    labels = {str(text): int(index) for index, text in (config.id2label or {}).items()}
    if label:
        if label not in labels:
            raise UsageError(
                f"reward model {name!r} has no label {label!r}; it has {', '.join(labels)}"
            )
        return labels[label]
    if config.num_labels != 1:
        raise UsageError(
            f"reward model {name!r} has {config.num_labels} labels "
            f"({', '.join(list(labels)[:8])}); say with label = "
            '"..." whose logit is the score'
        )
    return 0


def new_scoring_model(
    name: str, *, seed: int, device: str = "auto", base: Any = None
) -> ScoringModel:
    """Return a model to train in float32, whose head has one label: that of *name*, or a new one on
    a language model.

    A new head is drawn from a normal distribution of variance 1 / (hidden + 1) (Stiennon et al.
    2020, 2009.01325).

    Args:
        base: a `quintain.models.LoadedModel` to take instead of loading *name*.

    Raises:
        UsageError: it cannot be loaded.
    """
    from transformers import AutoModelForSequenceClassification

    if base is None and is_image_reward(name):
        return load_scoring_model(name, device=device)
    torch.manual_seed(seed)
    heads = ("score.", "classifier.", "classification_head.", "pooler.", "dense.")
    if base is not None:
        plain = {
            k: v
            for k, v in base.module.config.to_dict().items()
            if k not in ("id2label", "label2id")
        }
        config = type(base.module.config).from_dict({**plain, "num_labels": 1})
        module = AutoModelForSequenceClassification.from_config(config)
        module.base_model.load_state_dict(base.module.base_model.state_dict())
        module, tokenizer, fresh = module.to(as_device(device)).eval(), base.tokenizer.hf, True
    else:
        kind = AutoModelForSequenceClassification
        module, tokenizer = load_head(
            kind, name, dtype="float32", device=device, new=heads, num_labels=1
        )
        fresh = not _has_head(name)
    head = getattr(module, "score", None)
    if fresh and isinstance(head, torch.nn.Linear):
        spread = (head.in_features + 1) ** -0.5
        with torch.no_grad():
            head.weight.copy_(
                torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
                * spread
            )
    module.config.id2label, module.config.label2id = {0: "reward"}, {"reward": 0}
    text_config = module.config.get_text_config()
    pad, ends = tokenizer.pad_token_id, text_config.eos_token_id
    # transformers pools before the padding token: a text that ends in it would be scored one token
    # early.
    text_config.pad_token_id = None if pad in (ends if isinstance(ends, list) else [ends]) else pad
    return ScoringModel(
        module=module, tokenizer=tokenizer, path=name, context=context_of(module, tokenizer)
    )


def _has_head(name: str) -> bool:
    """Return whether the folder *name* holds a model for sequence classification."""
    path = Path(name).expanduser() / "config.json"
    if not path.is_file():
        return False
    kinds: Iterable[str] = json.loads(path.read_text(encoding="utf-8")).get("architectures") or ()
    return any(kind.endswith("ForSequenceClassification") for kind in kinds)
