"""``quintain tokens``: what the chat template of a model does."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import json_option
from quintain.errors import UsageError

if TYPE_CHECKING:
    from .templates import TemplateCase, TemplateReport


@click.command("tokens")
@click.argument("model")
@json_option
def tokens(model: str, as_json: bool) -> None:
    """Show what the chat template of MODEL (a run, a folder, a name on the hub) does to the tokens
    of a conversation.

    Only the tokenizer is read. A template that rewrites earlier text makes the transcript branch:
    every sampled token still trains once, in the context that it was sampled in, but each branch is
    a further sequence.
    """
    from .templates import examine_template

    report = examine_template(_tokenizer(model))
    if as_json:
        click.echo(json.dumps({**asdict(report), "append_only": report.append_only}, indent=2))
        return
    for name, value in _lines(report):
        click.echo(f"{name:<18}{value}")


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer, GenerationConfig

    from quintain.models import HFTokenizer, quiet
    from quintain.store import model_named

    path = model_named(str(Path(model).expanduser())).path
    local = Path(path).is_dir()
    try:
        with quiet():
            hf = AutoTokenizer.from_pretrained(path, local_files_only=local)
    except (OSError, ValueError) as e:
        line = str(e).strip().partition("\n")[0]
        raise UsageError(
            f"{model}: no tokenizer can be read ({line}); name a folder with tokenizer.json"
        ) from e
    try:
        with quiet():
            ends = GenerationConfig.from_pretrained(path, local_files_only=local).eos_token_id
    except OSError:
        ends = None
    return HFTokenizer(hf, stop_ids=[ends] if isinstance(ends, int) else ends or ())


def _lines(report: TemplateReport) -> list[tuple[str, str]]:
    return [
        (
            "tokenizer",
            report.tokenizer
            + ("" if report.template else ", without a template: the plain one is used"),
        ),
        (
            "tool format",
            report.tool_format + ("" if report.tools_listed else "; a message describes the tools"),
        ),
        ("chosen because", report.why),
        (
            "calls",
            f"the template gets them as {report.calls}, and results as messages of the role "
            f"{report.results}",
        ),
        ("stops", ", ".join(f"{i} {text!r}" for i, text in report.stops) or "none"),
        ("system message", report.system),
        ("prompt", "opens a thought" if report.opens_thought else "opens no thought"),
        (
            "date line",
            "yes: a run that crosses midnight renders other tokens" if report.date_line else "no",
        ),
        *((case.name, _outcome(case)) for case in report.cases),
        (
            "append-only",
            "yes" if report.append_only else 'no; with model.history = "append" each is one branch',
        ),
    ]


def _outcome(case: TemplateCase) -> str:
    places = ", ".join(map(str, case.messages))
    return (
        f"rewrites from message {places}"
        if places
        else f"refuses: {case.detail}"
        if case.detail
        else case.outcome
    )
