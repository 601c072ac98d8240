"""Write docs/recipes.md: every key of a recipe, from `quintain.recipe` and the meanings below. A test compares them.

python tools/recipes.py
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quintain.training.recipe.tables import Recipe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "recipes.md"

COUNT_OR_WORDS = {
    "environments.limits.turns": 'whole number >= 1, or `"none"`',
    "environments.limits.tokens": 'whole number >= 1, or `"none"`',
    "evaluation.tasks": 'whole number >= 1, or `"all"`',
    "evaluation.test.tasks": 'whole number >= 0, or `"all"`',
    "rollouts.keep": 'whole number >= 1, `"all"` or `"none"`',
    "model.lora.target_modules": 'list of text, or `"all-linear"`',
    "learner.betas": "list of two numbers >= 0, < 1",
}
"""What validators take that annotations do not say."""

UNSET = {
    "model.lora": "no adapters",
    "model.start.enabled": "for `default` alone",
    "environments.reward": "the environment's",
    "environments.shaping": "the environment's",
    "environments.system": "the environment's",
    "environments.limits.turns": "the environment's",
    "environments.limits.tokens": "the environment's",
    "environments.limits.seconds": "the environment's",
    "batch.concurrency": "what the engine says",
    "learner.token_budget": "the learner chooses",
    "evaluation.max_tokens": "as in `sampling`",
    "stop.accuracy": "never",
    "stop.minutes": "never",
    "stop.samples": "never",
    "stop.tokens": "never",
    "stop.seconds": "never",
    "run.name": "first environment, numbered",
}
"""What a key means while nothing is set."""

SECTIONS = {
    "run": "The run as a whole.",
    "model": "What is trained. The learner's master weights are float32 always.",
    "model.lora": "Low-rank adapters (Hu et al. 2021, arXiv:2106.09685); names as in peft, from `quintain[lora]`.",
    "model.start": "The supervised start of the default model, on the environments' demonstrations.",
    "engine": "What samples. Training needs one that gives exact tokens.",
    "environments": "One table each: `[[environments]]`. At least one. Settings of its own go under `args`.",
    "environments.limits": 'What one episode may use up; `"none"` lifts a limit.',
    "algorithm": (
        "A row of the preset table, and changes to it: `args = { objective = { high = 0.28 }, epochs = 2 }`. "
        "`quintain info grpo` shows a row's settings."
    ),
    "sampling": "Of training. Truncation is refused: the learner would train another policy than the one that sampled.",
    "batch": "What one step tries.",
    "learner": "AdamW.",
    "evaluation": "Held-out accuracy while training, greedy unless told otherwise.",
    "evaluation.test": "Measured once before and once after training; the figures of `summary.json`.",
    "checkpoint": "In Hugging Face format, with all that a resumed run needs.",
    "rollouts": "The Parquet files of the run folder.",
    "stop": "Ends the run before `run.steps`; whichever comes first.",
    "services": (
        "One table per slot: `[services.judge]`. A slot left out is filled by the installed service of that name, "
        "if there is one."
    ),
}

MEANINGS = {
    "run.name": "name of the run's folder",
    "run.seed": "of everything that is drawn",
    "run.steps": "optimizer steps",
    "run.folder": "where run folders are",
    "model.name": '`"default"` (the model that Quintain grows itself), a Hugging Face id or a folder',
    "model.dtype": "what the engine decodes in",
    "model.device": '`"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"`',
    "model.lora.r": "rank",
    "model.lora.lora_alpha": "the adapters are scaled by `lora_alpha / r`",
    "model.lora.target_modules": "which modules get adapters",
    "model.start.enabled": "whether a supervised start comes first",
    "model.start.args": "settings of the start, such as `{ target = [0.2, 0.35] }`",
    "engine.use": "an engine (`quintain list engines`)",
    "engine.args": "its settings",
    "environments.use": "installed name, `distribution/name`, `module:Class` or `file.py:Class`",
    "environments.args": "the environment's own fields",
    "environments.weight": "its share of the groups of a batch",
    "environments.reward": "an expression in place of its verdict",
    "environments.shaping": "an expression in place of its shaping",
    "environments.system": "a system message in place of its own",
    "environments.limits.turns": "turns of the policy, over all its seats",
    "environments.limits.tokens": "tokens it samples in the whole episode",
    "environments.limits.seconds": "wall clock; ending by it is our failure, not the policy's",
    "algorithm.use": "a row (`quintain list algorithms`)",
    "algorithm.args": "its settings and pieces",
    "sampling.temperature": "part of the policy: the learner scores at the same one",
    "sampling.max_tokens": "new tokens of one turn",
    "sampling.stop": "strings that end a turn",
    "sampling.top_p": "1 only",
    "sampling.top_k": "0 only",
    "sampling.min_p": "0 only",
    "batch.groups": "tasks a step",
    "batch.members": "rollouts per task",
    "batch.min_members": "a group with fewer valid members is dropped and counted; left out, the algorithm says",
    "batch.retries": "more tries for an episode that failed through our fault",
    "batch.concurrency": "episodes at once",
    "learner.use": "learner component; `torch` trains in this process",
    "learner.lr": "learning rate, constant after the warm-up",
    "learner.warmup_steps": "steps from 0 to `lr`",
    "learner.weight_decay": "decoupled",
    "learner.betas": "of AdamW",
    "learner.max_grad_norm": "the gradient is clipped to it",
    "learner.precision": "`bf16` is autocast over float32 master weights",
    "learner.float32_head": "logits in float32 also under a lower `precision`; a row may ask for it too",
    "learner.token_budget": "tokens of a micro-batch; the gradient does not depend on it",
    "learner.checkpoint_activations": "compute activations twice to save memory",
    "evaluation.every": "steps between two measurements; 0 is never",
    "evaluation.split": "measured while training",
    "evaluation.tasks": "of each environment",
    "evaluation.samples": "rollouts per task",
    "evaluation.temperature": "0 is greedy",
    "evaluation.max_tokens": "new tokens of one turn",
    "evaluation.test.split": "measured before and after",
    "evaluation.test.tasks": "0 leaves it out",
    "checkpoint.every": "steps between two; 0 is at the end only",
    "checkpoint.keep": "how many of the last stay",
    "checkpoint.best": "the one with the best held-out accuracy stays, too",
    "rollouts.keep": "files of all steps, of none, or of so many last ones",
    "stop.accuracy": "held-out accuracy",
    "stop.minutes": "of all processes of the run together",
    "stop.samples": "rollouts of training",
    "stop.tokens": "tokens sampled in training",
    "stop.seconds": "of rollouts and updates, without measuring",
    "services.use": "a service (`quintain list services`)",
    "services.args": "its settings",
}

HEAD = """# Every key of a recipe

A recipe is one TOML file, strict: an unknown key or a wrong type is an error that names file, line and the nearest key.
Everything has a default except `use` of an environment. `--set section.key=value` changes a key (lists count from 0:
`environments.0.weight=2`), `--dry-run` prints the whole, and the resolved recipe is saved in the run folder.
`quintain train` without a file starts from `core/quintain/recipes/quickstart.toml`, with `--model` from
`pretrained.toml` beside it; those set other values than the defaults below, and a file of your own has the defaults
unless it [extends](#extends) one of them.

The smallest:

```toml
[[environments]]
use = "arithmetic"
```

## extends

The first line of a recipe may name another one, `"quickstart"`, `"pretrained"`, or a path from where the file lies:

```toml
extends = "quickstart"

[learner]
lr = 1e-5
```

What the recipe says goes over what the other says, and `--set` over both. Tables are merged key by key, lists (also
`[[environments]]`) replaced as a whole. A table that takes another `use` leaves behind the `args` that were for the
former. The other may extend a third, but not in a circle. Errors name the file that holds the key, and the resolved
recipe in the run folder holds all of it, without `extends`.

This page is written by `tools/recipes.py`; a test compares it with the code.
"""

COLUMNS = "| key | value | default | meaning |\n|---|---|---|---|"


def tables(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of a recipe by its dotted name, in order."""
    for name, field in model.model_fields.items():
        inner = table_of(field.annotation)
        if inner is not None:
            yield prefix + name, inner
            yield from tables(inner, f"{prefix}{name}.")


def table_of(annotation: Any) -> type[BaseModel] | None:
    """The table inside an annotation, also inside a list, a dict or an optional."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and get_origin(annotation) is None:
        return annotation
    return next((found for a in get_args(annotation) if (found := table_of(a)) is not None), None)


def keys(section: str, table: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a table that are not tables themselves, by dotted name."""
    found = {f"{section}.{name}": field for name, field in table.model_fields.items()}
    return {name: field for name, field in found.items() if table_of(field.annotation) is None}


def expected(name: str, field: FieldInfo) -> str:
    """Type and range of a key, in words."""
    if name in COUNT_OR_WORDS:
        return COUNT_OR_WORDS[name]
    return kind(field.annotation) + bounds(field.metadata)


def kind(annotation: Any) -> str:
    """What TOML has to hold."""
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{json.dumps(word)}`" for word in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return kind(next(a for a in get_args(annotation) if a is not type(None)))
    if get_origin(annotation) is Annotated:
        return kind(get_args(annotation)[0])
    origin = get_origin(annotation) or annotation
    if origin is tuple:
        return f"list of {kind(get_args(annotation)[0])}"
    return {str: "text", bool: "true or false", int: "whole number", float: "number", dict: "table"}[origin]


def bounds(metadata: list[Any]) -> str:
    """The range that *metadata* sets; what 64 bits hold is no news."""
    signs = {Ge: ">= {0.ge:g}", Gt: "> {0.gt:g}", Lt: "< {0.lt:g}", Le: "<= {0.le:g}"}
    said = [signs[type(m)].format(m) for m in metadata if type(m) in signs and getattr(m, "lt", 0) != 2**63]
    return " " + ", ".join(said) if said else ""


def default(name: str, field: FieldInfo) -> str:
    """The default of a key."""
    if field.is_required():
        return "required"
    value = field.get_default()
    if name in UNSET and (value is None or value == ""):
        return UNSET[name]
    if value == {}:
        return "`{}`"
    if value is None:
        return '`"all"`'
    if value == ("all-linear",):
        return '`"all-linear"`'
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def heading(section: str) -> str:
    """The section as a recipe spells it."""
    return {"environments": "[[environments]]", "services": "[services.SLOT]"}.get(section, f"[{section}]")


def render() -> str:
    """The page.

    Raises:
        KeyError: a key or a section has no meaning above.
    """
    parts = [HEAD]
    for section, table in tables():
        parts.append(
            f"## {heading(section)}\n\n{SECTIONS[section]}\n\n| key | value | default | meaning |\n|---|---|---|---|"
        )
        for name, field in keys(section, table).items():
            shown = name.removeprefix(f"{section}.")
            parts[-1] += f"\n| `{shown}` | {expected(name, field)} | {default(name, field)} | {MEANINGS[name]} |"
        parts[-1] += "\n"
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
