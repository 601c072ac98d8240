"""Write docs/recipes.md: every key of a recipe, with the meanings below; and these meanings for
`quintain schema`.

A test compares them.

python tools/recipes.py
"""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from quintain.recipe.tables import Recipe

sys.path.insert(0, str(Path(__file__).parent))
from wrap_docs import wrapped

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "recipes.md"
AUTHORING = ROOT / "plugins" / "authoring" / "src" / "quintain_authoring"
MEANT = AUTHORING / "devtools" / "recipe_keys.json"

COUNT_OR_WORDS = {
    "environments.limits.turns": 'whole number >= 1, or `"none"`',
    "environments.limits.tokens": 'whole number >= 1, or `"none"`',
    "environments.limits.seconds": 'number > 0, or `"none"`',
    "environments.limits.reward_seconds": 'number > 0, or `"none"`',
    "environments.limits.compact_at": 'number > 0, <= 1, or `"none"`',
    "evaluation.tasks": 'whole number >= 1, or `"all"`',
    "evaluation.temperature": 'number >= 0, <= 100, or `"sampling"`',
    "evaluation.test.tasks": 'whole number >= 0, or `"all"`',
    "evaluation.test.other_decoding": 'true or false, or `"auto"`',
    "evaluation.environments.tasks": 'whole number >= 1, or `"all"`',
    "rollouts.keep": 'whole number >= 1, `"all"` or `"none"`',
    "model.lora.target_modules": 'list of text, or `"all-linear"`',
    "run.max_sample_mismatch": 'number > 0, or `"none"`',
    "learner.betas": "list of two numbers >= 0, < 1",
    "learner.schedules": "table of tables",
}
"""Values that validators accept beyond the annotations."""

UNSET = {
    "run.max_sample_mismatch": "0.01 in float32, else 0.1, with adapters 0.2",
    "model.lora": "no adapters",
    "environments.reward": "the environment's",
    "environments.shaping": "the environment's",
    "environments.yardstick": "the environment's",
    "environments.system": "the environment's",
    "environments.limits.turns": "the environment's",
    "environments.limits.tokens": "the environment's",
    "environments.limits.seconds": "the environment's",
    "environments.limits.reward_seconds": "the environment's",
    "environments.limits.compact_at": "the environment's",
    "batch.min_group_size": "set by the algorithm",
    "batch.concurrency": "chosen by the engine",
    "learner.token_budget": "chosen by the learner",
    "evaluation.max_tokens": "as in `sampling`",
    "evaluation.environments.name": "name of the environment",
    "evaluation.environments.split": "as in `evaluation`",
    "evaluation.environments.tasks": "as in `evaluation`",
    "stop.accuracy": "never",
    "stop.minutes": "never",
    "stop.samples": "never",
    "stop.tokens": "never",
    "stop.seconds": "never",
    "run.name": "name of the first environment, and a number",
    "cluster.use": "this machine",
}
"""Meaning of a key that is not set."""

OF_EVALUATED = "evaluation.environments"
"""A section with the keys of `environments`, and some of its own."""

SECTIONS = {
    "run": "The run as a whole.",
    "model": "The model to train. The learner's master weights are always float32.",
    "model.lora": (
        "Low-rank adapters (Hu et al. 2021, arXiv:2106.09685); names as in peft, from "
        "`quintain[lora]`."
    ),
    "model.start": (
        "Settings of a model source; those of `default` are of its warm start (`quintain info "
        "default`)."
    ),
    "engine": "The engine that samples. Training needs one that returns exact tokens.",
    "schedule": (
        "How far sampling runs ahead of the learner: a schedule by name, and changes to it: "
        '`use = "areal"`, `args = { max_staleness = 2 }`; see [schedules](schedules.md).'
    ),
    "environments": "At least one table `[[environments]]`; the fields of the environment go under `args`.",
    "environments.limits": 'Limits of one episode; `"none"` removes a limit.',
    "algorithm": (
        "An algorithm by name, and changes to it: `args = { objective = { high = 0.28 }, epochs = "
        "2 }`. `quintain info grpo` shows the settings of one."
    ),
    "sampling": (
        "Sampling in training. Truncated sampling is an error: the learner would optimise a "
        "different policy."
    ),
    "batch": "The batch of one step.",
    "learner": "The optimizer, AdamW.",
    "evaluation": "Held-out accuracy during training, by greedy decoding unless changed.",
    "evaluation.test": "The evaluation before and after training, as reported in `summary.json`.",
    "evaluation.environments": (
        "What the evaluations measure instead of `[[environments]]`: other environments, arguments "
        "or splits. Each is a table `[[evaluation.environments]]` with the keys of "
        "`[[environments]]` and these. With several, `held_out.accuracy` is their weighted mean, "
        "and `held_out.NAME.accuracy` that of each."
    ),
    "checkpoint": "Model folders in Hugging Face format, with the state that a resumed run needs.",
    "rollouts": "The Parquet files of the run folder.",
    "stop": "Conditions that end the run before `run.steps`; the first that holds.",
    "workers": "Episodes in processes of their own ([workers.md](workers.md)).",
    "cluster": "What starts the ranks of the learner and the servers of the engine: on GPUs of this "
    "machine that are divided between them ([`machine`](distributed.md#one-machine-with-eight-gpus)), "
    "or on several machines ([`ray`](distributed.md#with-ray)).",
    "services": (
        "One table per service: `[services.workers]`. For a name without a table, the installed "
        "service of that name is used, if there is one. A service starts once per run, and all "
        "environments share it: environments that need different settings of one service train in "
        "separate runs."
    ),
    "trackers": (
        'Experiment trackers, one table each: `[[trackers]]` with `use = "wandb"` '
        "([hooks.md](hooks.md#trackers)). "
        "`quintain train --tracker wandb` adds one with its defaults."
    ),
}

MEANINGS = {
    "run.name": "name of the run's folder",
    "run.seed": "random seed",
    "run.steps": "optimizer steps",
    "run.folder": "parent folder of the run folders",
    "run.max_sample_mismatch": "largest `mismatch.sample` in nats at which a run continues "
    "([health.md](health.md)); "
    '`"none"` switches the check off',
    "model.name": (
        '`"default"` (the small model that Quintain trains itself), a Hugging Face id, a folder, '
        "or a source"
    ),
    "model.dtype": "precision of the engine; `bf16` and `fp16` are short names; `auto` as for `learner.precision`",
    "model.device": '`"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"`',
    "model.tool_format": "how tool calls are written (`quintain list tool_format`, "
    "[tools.md](tools.md)); "
    '`"auto"`: as in the model\'s chat template',
    "model.template": (
        "arguments of the chat template, such as `{ enable_thinking = false }`; saved with the "
        "model"
    ),
    "model.history": '`"append"`: later messages are added to a conversation, whatever the '
    "template rewrites; "
    "saved with the model ([tools.md](tools.md))",
    "model.lora.r": "rank",
    "model.lora.lora_alpha": "scale of the adapters is `lora_alpha / r`",
    "model.lora.target_modules": "modules with adapters",
    "model.start.args": "settings such as `{ target = [0.2, 0.35] }`; ignored for a Hugging Face id or a folder",
    "engine.use": "name of an engine (`quintain list engines`)",
    "engine.args": "settings of the engine",
    "schedule.use": "name of a schedule (`quintain list schedules`)",
    "schedule.args": "settings of the schedule",
    "environments.use": "installed name, `distribution/name`, `module:Class` or `file.py:Class`",
    "environments.args": "fields of the environment",
    "environments.weight": "share of the groups of a batch",
    "environments.reward": "expression that replaces its outcome reward",
    "environments.shaping": "expression that replaces its shaping",
    "environments.yardstick": "expression that replaces its yardstick, which is reported and never trains",
    "environments.system": "replaces its system message",
    "environments.limits.turns": "turns of the policy, over all its players",
    "environments.limits.tokens": "sampled tokens of the episode",
    "environments.limits.seconds": "wall-clock time, normally 600; an episode above it is retried, then left out",
    "environments.limits.reward_seconds": "wall-clock time of one call of a reward, normally 60; as `seconds`",
    "environments.limits.compact_at": "share of the context a prompt may fill before it is compacted; normally none",
    "algorithm.use": "name of an algorithm (`quintain list algorithms`)",
    "algorithm.args": "changes to its settings and pieces",
    "sampling.temperature": "part of the policy: the learner uses the same temperature",
    "sampling.max_tokens": "new tokens of one turn",
    "sampling.stop": "strings that end a turn",
    "sampling.top_p": "must be 1",
    "sampling.top_k": "must be 0",
    "sampling.min_p": "must be 0",
    "sampling.schedules": "factor of `temperature` by step ([above](#schedules))",
    "batch.prompts": "tasks per step",
    "batch.group_size": "rollouts per task",
    "batch.min_group_size": "groups with fewer valid rollouts are rejected and counted",
    "batch.retries": "retries of an episode that failed for reasons other than the policy",
    "batch.concurrency": "concurrent episodes",
    "learner.use": "name of a learner; `torch` trains in this process",
    "learner.lr": "learning rate, constant after the warm-up but for a schedule",
    "learner.warmup_steps": "steps of linear warm-up to `lr`",
    "learner.schedules": "factors of `lr` and of numbers of the algorithm by step ([above](#schedules))",
    "learner.weight_decay": "decoupled weight decay",
    "learner.betas": "betas of AdamW",
    "learner.max_grad_norm": "maximum norm of the gradient; larger gradients are clipped, 0 clips none",
    "learner.precision": "`bf16` is autocast over float32 master weights; `bfloat16` and `float16` are other names; "
    "`auto` is bfloat16 on a GPU, and on a CPU whose products in it are 1.3 times as fast, else float32",
    "learner.float32_head": "compute logits in float32 also with a lower `precision`; an algorithm can require it",
    "learner.token_budget": "maximum tokens of a micro-batch; the gradient does not depend on it",
    "learner.checkpoint_activations": "activation checkpointing: less memory, more computation",
    "learner.args": "settings of the learner, such as those of `lean` "
    "([one-card.md](one-card.md#ways-to-train))",
    "evaluation.every": "steps between evaluations; 0 disables them",
    "evaluation.split": "split evaluated during training",
    "evaluation.tasks": "tasks per environment",
    "evaluation.samples": "rollouts per task",
    "evaluation.temperature": '0 is greedy; `"sampling"` is the temperature of `[sampling]`',
    "evaluation.max_tokens": "new tokens of one turn",
    "evaluation.environments.weight": "share of the accuracy; 0 reports without counting",
    "evaluation.environments.name": "of its metrics",
    "evaluation.environments.split": "split evaluated during training",
    "evaluation.environments.tasks": "tasks evaluated during training",
    "evaluation.test.split": "split evaluated before and after training",
    "evaluation.test.tasks": "tasks per environment; 0 disables this evaluation",
    "evaluation.test.other_decoding": "also on the first 200 tasks: greedy beside a sampled "
    "accuracy, or at "
    "`sampling.temperature` beside a greedy one. "
    '`"auto"`: not with a service `judge`, or one that needs the network or keys, whose calls may '
    "cost money",
    "checkpoint.every": "steps between checkpoints; 0 means only at the end",
    "checkpoint.keep": "number of last checkpoints to keep",
    "checkpoint.best": "also keep the [best checkpoint](start.md#which-checkpoint-is-the-best), without the optimizer",
    "rollouts.keep": "files to keep: of all steps, of none, or of the last N steps",
    "stop.accuracy": "held-out accuracy of at least this value",
    "stop.minutes": "minutes of training with evaluations, over all resumed parts of the run; "
    "preparing the model, such as a warm start, does not count",
    "stop.samples": "training rollouts",
    "stop.tokens": "tokens sampled for training",
    "stop.seconds": "seconds of rollouts and updates, without evaluation",
    "workers.use": "name of the service that plays the episodes",
    "workers.episodes": "number of processes; 0 is the process of the run",
    "workers.args": "settings of the service (`quintain info episodes`)",
    "cluster.use": "name of a cluster (`quintain list cluster`)",
    "cluster.args": "settings of the cluster",
    "services.use": "name of a service (`quintain list services`)",
    "services.args": "settings of the service",
    "trackers.use": (
        "`tensorboard`, `wandb`, `mlflow`, `trackio` (plugin `quintain-view`), or of another plugin"
    ),
    "trackers.args": "settings of the tracker",
}

HEAD = """# All keys of a recipe

A recipe is a TOML file. Unknown keys and wrong types are errors that name the file, the line and the nearest key. Every
key has a default except `use` of an environment. `--set section.key=value` changes a key (lists count from 0:
`environments.0.weight=2`), `--dry-run` prints the complete recipe, and the run folder contains the resolved recipe.

`quintain train` alone uses `core/quintain/recipes/extraction.toml`, or `quickstart.toml` where the model cannot be
had (a line says why). Only `--seed`, `--steps`, `--name` and `--folder` may stand beside it. With any other option,
but no recipe, that option changes `quickstart.toml`, with `--model` the file `pretrained.toml` in the same folder
(without a GPU [with other values](hardware.md#without-a-gpu)). `quintain train code` uses `code.toml`. Their values
differ from the defaults below. A file of your own has the defaults below unless it [extends](#extends) one of them.

The smallest recipe:

```toml
[[environments]]
use = "arithmetic"
```

## extends

The first line of a recipe can name a base recipe: `"quickstart"`, `"code"`, `"pretrained"`, or a path relative to the
file.

```toml
extends = "quickstart"

[learner]
lr = 1e-5
```

Keys of the recipe override those of the base, and `--set` overrides both. Tables are merged key by key; lists (also
`[[environments]]`) are replaced as a whole. A table with a different `use` drops the inherited `args`. A base can
extend another recipe, but not in a circle. Errors name the file with the key. The resolved recipe in the run folder has
all keys and no `extends`.

## Schedules

A schedule multiplies a setting of the learner, or the temperature of sampling, by a factor that depends on the step.
The setting keeps its own key, so that `--lr` and a schedule of `lr` go together.

```toml
extends = "quickstart"

[algorithm]
use = "grpo"

[learner]
lr = 1e-5

[learner.schedules]
lr = { cosine = [1, 0.1, 200] }
"kl.coefficient" = { ramp = [1, 0, 100] }

[sampling.schedules]
temperature = { ramp = [1.2, 1, 50] }
```

| factor | value |
|---|---|
| `{ ramp = [start, stop, steps] }` | goes from `start` to `stop` in a line, then stays |
| `{ cosine = [start, stop, steps] }` | the same along half a cosine |
| `{ adaptive = [nats, steps] }` | of `kl.coefficient` alone: follows the divergence from ref |

An adaptive factor begins at 1. It rises by at most 0.2 / `steps` after a step where the divergence (k3) is above `nats`
a token, and falls as fast below it (1909.08593, section 2.2).

Keys are `lr`, `kl.coefficient`, and the numbers of the update's own pieces: `objective.low` is the clip of `grpo`, and
an [objective of yours](write-an-algorithm.md) may take the coefficient of an entropy bonus.
`quintain train --dry-run` prints the values, each step logs them as `schedule.lr`, and a continued run goes on with
them.

The temperature of `[sampling.schedules]` is that of the samples of a step, and of the policy that the step trains.
Evaluations keep `sampling.temperature`. Schedules that sample ahead refuse it, since a batch has one temperature.

## In an editor

`quintain schema` (plugin `quintain-authoring`) prints the JSON Schema of recipes. Editors with
[taplo](https://taplo.tamasfe.dev), such as VS Code with Even Better TOML, read it: they complete keys and the names of
installed components, show the meanings below, and underline mistakes.

```bash
quintain schema
```

Save the output as `recipe.schema.json` beside the recipe, and name it in the first line of the recipe:

```toml
#:schema ./recipe.schema.json
extends = "quickstart"

[learner]
lr = 1e-5
```

Arguments of components, reward expressions and relations between keys are checked by
`quintain train FILE --dry-run` only.

`tools/recipes.py` writes this page; a test compares it with the code.
"""

COLUMNS = "| key | value | default | meaning |\n|---|---|---|---|"


def tables(
    model: type[BaseModel] = Recipe, prefix: str = ""
) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of a recipe by its dotted name, in order."""
    for name, field in model.model_fields.items():
        inner = table_of(field.annotation)
        if inner is not None and prefix != f"{OF_EVALUATED}.":
            yield prefix + name, inner
            yield from tables(inner, f"{prefix}{name}.")


def table_of(annotation: Any) -> type[BaseModel] | None:
    """Return the table inside an annotation, also inside a list, a dict or an optional."""
    if (
        isinstance(annotation, type)
        and issubclass(annotation, BaseModel)
        and get_origin(annotation) is None
    ):
        return annotation
    return next((model for a in get_args(annotation) if (model := table_of(a)) is not None), None)


def keys(section: str, table: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the keys of a table that are not tables themselves, by dotted name."""
    fields = {f"{section}.{name}": field for name, field in table.model_fields.items()}
    chosen = {name: field for name, field in fields.items() if table_of(field.annotation) is None}
    if section == OF_EVALUATED:
        return {
            name: field
            for name, field in chosen.items()
            if name.rpartition(".")[2] in vars(table)["__annotations__"]
        }
    return chosen


def expected(name: str, field: FieldInfo) -> str:
    """Type and range of a key, in words."""
    if name in COUNT_OR_WORDS:
        return COUNT_OR_WORDS[name]
    return kind(field.annotation) + bounds(field.metadata)


def kind(annotation: Any) -> str:
    """Return what TOML has to hold."""
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{json.dumps(word)}`" for word in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return kind(next(a for a in get_args(annotation) if a is not type(None)))
    if get_origin(annotation) is Annotated:
        return kind(get_args(annotation)[0])
    origin = get_origin(annotation) or annotation
    if origin is tuple:
        return f"list of {kind(get_args(annotation)[0])}"
    return {
        str: "text",
        bool: "true or false",
        int: "whole number",
        float: "number",
        dict: "table",
    }[origin]


def bounds(metadata: list[Any]) -> str:
    """Return the range that *metadata* sets; what 64 bits hold is no news."""
    signs = {Ge: ">= {0.ge:g}", Gt: "> {0.gt:g}", Lt: "< {0.lt:g}", Le: "<= {0.le:g}"}
    limits = [
        signs[type(m)].format(m)
        for m in metadata
        if type(m) in signs and getattr(m, "lt", 0) != 2**63
    ]
    return " " + ", ".join(limits) if limits else ""


def default(name: str, field: FieldInfo) -> str:
    """Return the default of a key."""
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
    """Return the section as a recipe spells it."""
    if section.endswith(("environments", "trackers")):
        return f"[[{section}]]"
    return {"services": "[services.SLOT]"}.get(section, f"[{section}]")


def render() -> str:
    """Return the page.

    Raises:
        KeyError: a key or a section has no meaning above.
    """
    parts = [HEAD]
    for section, table in tables():
        parts.append(
            f"## {heading(section)}\n\n{SECTIONS[section]}\n\n| key | value | default | meaning "
            f"|\n|---|---|---|---|"
        )
        for name, field in keys(section, table).items():
            shown = name.removeprefix(f"{section}.")
            parts[-1] += (
                f"\n| `{shown}` | {expected(name, field)} | {default(name, field)} | "
                f"{MEANINGS[name]} |"
            )
        parts[-1] += "\n"
    return wrapped("\n".join(parts))


def meanings() -> str:
    """Return the meanings of tables and keys as `quintain schema` reads them: JSON without
    Markdown.
    """
    texts = {
        name: re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("`", "")
        for name, text in (SECTIONS | MEANINGS).items()
    }
    return json.dumps(texts, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    MEANT.write_text(meanings(), encoding="utf-8")
    PAGE.write_text(render(), encoding="utf-8")
