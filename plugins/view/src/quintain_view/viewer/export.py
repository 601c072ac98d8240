"""`quintain export`: a model folder for `transformers` and other programs, with a model card, from
a run or a model.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from quintain.cli import folder_option, json_option
from quintain.errors import InfrastructureError, StorageError, UsageError
from quintain.store import checkpoint_note, model_named, storage_errors

from .model_card import Origin, card

TEMPLATE = "quintain_template"
"""Key of ``tokenizer_config.json`` with the arguments of the chat template in training."""
HISTORY = "quintain_history"
"""Key of the same file with `model.history`."""
DTYPES = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "bf16": "bfloat16",
    "fp16": "float16",
}
"""Names of precisions, as in a recipe, to PyTorch's."""


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("out", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice([*DTYPES]),
    help="Precision of the weights.  [default: as they are]",
)
@click.option(
    "--merge", metavar="ADAPTERS", help="Merge a folder of LoRA adapters (peft) into the weights."
)
@click.option(
    "--push",
    metavar="OWNER/NAME",
    help="Upload the folder to this repository of the Hugging Face hub.",
)
@click.option(
    "--public",
    is_flag=True,
    help="With --push: a new repository is public; by default it is private.",
)
@folder_option
@json_option
def export(
    run: str,
    out: Path,
    dtype: str | None,
    merge: str | None,
    push: str | None,
    public: bool,
    folder: str,
    as_json: bool,
) -> None:
    """Write the model of RUN to DIR, for transformers, vLLM and other programs.

    RUN is a run (its best checkpoint), a checkpoint, a folder with a model, or a Hugging Face id.
    DIR has weights, tokenizer, chat template and a model card (README.md) with the recipe, the
    accuracy before and after, and versions. Arguments of the chat template in training become its
    defaults.

    \b
    quintain export arithmetic-1 exported --dtype bfloat16
    quintain export runs/arithmetic-1/checkpoints/step-000020 exported
    quintain export Qwen/Qwen3-0.6B exported --merge adapters --push OWNER/NAME
    """
    import torch  # noqa: F401 - a base installation ends here, with the name of the extra

    check_out(out)
    if push is not None:
        check_repository(push)
    if merge is not None:
        check_adapters(merge)
    path, system = model_named(run, folder)
    if note := checkpoint_note(path):
        click.echo(f"{run}: {note}", err=True)
    report = write(
        path,
        out,
        dtype=DTYPES[dtype] if dtype else None,
        merge=merge,
        origin=Origin.of(path, system),
    )
    if push is not None:
        report["url"] = upload(out, push, private=not public)
    if as_json:
        click.echo(json.dumps(report))
        return
    size = (
        f"{report['parameters'] / 1e6:,.1f}M parameters, {report['dtype']}, "
        f"{report['bytes'] / 1e6:,.0f} MB"
    )
    click.echo(f"wrote {out}: {size}; README.md is its model card")
    if push is not None:
        click.echo(f"uploaded to {report['url']}")


def check_out(out: Path) -> None:
    """Check that a folder can be written at *out*.

    Raises:
        UsageError: there is something.
    """
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"{out} exists; name a new folder, or remove it first")


def check_repository(name: str) -> None:
    """Check that *name* can be a repository of the hub.

    Raises:
        UsageError: it cannot.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as e:
        raise UsageError(f"--push {name}: {e}") from e
    if "/" not in name:
        raise UsageError(
            f"--push {name}: expected OWNER/NAME, with a user or an organisation of the hub as "
            f"owner"
        )


def check_adapters(name: str) -> None:
    """Check that *name* is a folder of adapters and peft is installed.

    Raises:
        UsageError: it is not.
    """
    from importlib.util import find_spec

    if not (Path(name) / "adapter_config.json").is_file():
        raise UsageError(
            f"--merge {name}: there is no {Path(name) / 'adapter_config.json'}; name a folder of "
            f"peft"
        )
    if find_spec("peft") is None:
        raise UsageError("--merge needs peft: pip install 'quintain[lora]'")


def write(
    path: str, out: Path, *, dtype: str | None, merge: str | None, origin: Origin
) -> dict[str, Any]:
    """Write the model *path* to *out*, all or nothing; what was written, as plain data.

    Raises:
        UsageError: the model cannot be loaded, or the adapters do not fit it.
        StorageError: no room, or the folder cannot be written.
    """
    import torch

    from quintain.models import load_model, merge_adapters, name_stops

    model = load_model(path, dtype="float32" if merge else dtype or "auto", device="cpu")
    module: Any = model.module
    if merge is not None:
        module = merge_adapters(module, merge).to(getattr(torch, dtype or "float32"))
    parameters = list(module.parameters())
    needed = sum(p.numel() * p.element_size() for p in parameters)
    report = {
        "folder": str(out),
        "parameters": model.parameters,
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "bytes": needed,
        "adapters": merge,
    }
    tokenizer = model.tokenizer.hf
    arguments = tokenizer.init_kwargs.get(TEMPLATE, {})
    if arguments and isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = with_defaults(tokenizer.chat_template, arguments)
    # the strings are those of the form without a template
    name_stops(module, model.tokenizer.stop_ids, model.tokenizer.stops)
    text = card(
        out.absolute().name,
        report,
        origin,
        template=model.tokenizer.has_template,
        arguments=arguments,
        history=tokenizer.init_kwargs.get(HISTORY, ""),
    )
    beside = out.with_name(f".{out.absolute().name}.tmp-{os.getpid()}")
    with storage_errors(out, needed):
        out.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(out.parent).free) < needed:
            raise StorageError(
                f"no room to write {out}: it takes {needed:,} bytes, {free:,} are free"
            )
        try:
            save(module, tokenizer, beside)
            (beside / "README.md").write_text(text, encoding="utf-8")
            os.replace(beside, out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return report


def save(module: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights and tokenizer, readable as the umask says."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        if bars:
            logging.enable_progress_bar()
    for file in folder.glob("*.safetensors"):  # written for their owner alone
        file.chmod(0o666 & folder.stat().st_mode)


def with_defaults(template: str, arguments: Mapping[str, Any]) -> str:
    """Return a chat template in which *arguments* are set unless the caller sets them."""
    lines = (
        f"{{%- if {name} is not defined %}}{{%- set {name} = {literal(value)} %}}{{%- endif %}}"
        for name, value in arguments.items()
    )
    return "".join(lines) + template


def literal(value: Any) -> str:
    """Return a plain value in the notation of Jinja."""
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(literal, value))}]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Send *folder* to the hub's repository *name*, which is made if it does not exist; return its
    address.

    Raises:
        InfrastructureError: the hub cannot be reached or refuses; the message has the command for
            later.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    from quintain.models import unreachable

    later = f"{folder} is written; upload it later with: hf upload {name} {folder}"
    if reason := unreachable():
        raise InfrastructureError(f"cannot push to {name}: {reason}. {later}")
    if get_token() is None:
        raise InfrastructureError(
            f"cannot push to {name}: nobody is logged in; run `hf auth login`. {later}"
        )
    api = HfApi()
    # the HTTP library depends on the version of huggingface_hub
    errors: Any = (OSError, *HfHubHTTPError.__bases__)
    try:
        address = str(api.create_repo(name, private=private, exist_ok=True))
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Model exported by Quintain"
        )
    except errors as e:
        raise InfrastructureError(
            f"cannot push to {name}: {str(e).strip().splitlines()[0]}. {later}"
        ) from e
    return address
