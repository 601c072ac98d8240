"""Turn a GGUF file into a folder of transformers: float32 weights, tokenizer, chat template."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from quintain.errors import PluginError, UsageError
from quintain.store import storage_errors

NEEDED = "quintain-starter[gguf]"

DIGITS_APART = ("codeshell", "command-r", "exaone", "minerva", "refact", "smollm", "starcoder")
"""Values of ``tokenizer.ggml.pre`` whose text is split before and after each digit, then as that of
GPT-2 (llama.cpp, ``llama_vocab::impl``). transformers does not split it at digits.
"""

WHOLE_PATTERN = ("", "default", "gpt-2", "gpt2", "jais", "mpt", "olmo")
"""Values whose text is split as that of GPT-2, which is what transformers does for any other."""

MORE_STOPS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
"""Keys of further tokens that end a reply."""


def is_installed() -> bool:
    """Return whether the library which reads GGUF files is there."""
    return find_spec("gguf") is not None


def check_installed() -> None:
    """Check that the library which reads GGUF files is there.

    Raises:
        PluginError: it is missing; the message has the command that installs it.
    """
    if not is_installed():
        raise PluginError(f"a GGUF file is read by the library gguf: pip install '{NEEDED}'")


def check_is_gguf(file: Path) -> None:
    """Check that *file* begins like a GGUF file.

    Raises:
        UsageError: it does not, or cannot be read.
    """
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as e:
        raise UsageError(f"cannot read {file}: {e.strerror or e}") from e
    if magic != b"GGUF":
        raise UsageError(f"{file} is no GGUF file: it begins with {magic!r}, not b'GGUF'")


def write_folder(
    file: Path, folder: Path, origin: Mapping[str, Any], texts: Mapping[str, bytes]
) -> str:
    """Write *folder* for ``from_pretrained``, all or nothing: weights of the GGUF *file* in float32,
    tokenizer, chat template, generation config.

    Args:
        folder: replaced if it exists.
        origin: where the file came from, saved as ``source`` in ``quintain.json``.
        texts: further files, by name.

    Returns:
        A remark on the tokenizer; empty if there is none.

    Raises:
        UsageError: it is no GGUF file, or transformers does not read its architecture.
        StorageError: no room, or the folder cannot be written.
    """
    check_installed()
    check_is_gguf(file)
    fields, module, tokenizer = _read(file)
    stops = [fields[key].contents() for key in MORE_STOPS if key in fields]
    pre = str(fields["tokenizer.ggml.pre"].contents()) if "tokenizer.ggml.pre" in fields else ""
    remark = _split_text(tokenizer, pre)
    plain = _without_quantisation(module, stops)
    description = {"source": {**origin, "architecture": module.config.model_type}}
    with all_or_nothing(folder) as beside:
        plain.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        for name, content in texts.items():
            (beside / name).write_bytes(content)
        (beside / "quintain.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    return remark


def _read(file: Path) -> tuple[Mapping[str, Any], Any, Any]:
    """Return fields, module and tokenizer of *file*, the last two as transformers reads them.

    Raises:
        UsageError: it is damaged, or transformers does not read its architecture.
    """
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    place, how = str(file.parent), {"gguf_file": file.name, "local_files_only": True}
    try:
        fields = GGUFReader(str(file)).fields
        config = AutoConfig.from_pretrained(place, **how)
        with _bars_on_a_terminal():
            module = AutoModelForCausalLM.from_pretrained(
                place, config=config, dtype="float32", **how
            )
        return fields, module, AutoTokenizer.from_pretrained(place, **how)
    except MemoryError:
        raise
    except Exception as e:  # gguf, numpy and transformers each raise their own
        raise UsageError(
            f"cannot read {file}: {e or type(e).__name__}. It may be damaged, or of an architecture "
            "that the installed transformers does not read: then convert it to a folder in Hugging "
            "Face format"
        ) from e


def _without_quantisation(module: Any, stops: list[int]) -> Any:
    """Return *module* as if its weights had never been in blocks, so that it can be saved; *stops*
    end a reply, too.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = module.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain: Any = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(module.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = module.generation_config
    first = module.generation_config.eos_token_id
    known = first if isinstance(first, list) else [first] if first is not None else []
    every = list(dict.fromkeys([*known, *stops]))
    plain.generation_config.eos_token_id = every if len(every) > 1 else first
    return plain


def _split_text(tokenizer: Any, pre: str) -> str:
    """Let *tokenizer* split text as the file says with *pre*, its ``tokenizer.ggml.pre``.

    Returns:
        A remark where neither transformers nor this function knows the value.
    """
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    if not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return ""  # transformers has set another split, or the vocabulary is of another kind
    if pre in DIGITS_APART:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        return ""
    if pre in WHOLE_PATTERN:
        return ""
    return (
        f"the tokenizer splits text by rules named {pre!r}, which are not known here: it is split "
        "as for GPT-2, so some tokens may differ from those of the original"
    )


@contextmanager
def _bars_on_a_terminal() -> Iterator[None]:
    """Let transformers draw its bars inside the block where somebody sees them."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def all_or_nothing(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside *folder* that takes its place at the end; remove it on errors."""
    beside = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    with storage_errors(folder):
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            yield beside
            shutil.rmtree(folder, ignore_errors=True)
            beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
