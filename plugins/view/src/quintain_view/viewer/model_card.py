"""The model card of an exported model: what it is, how well it does, how to prompt it, the recipe
and the versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain.errors import QuintainError
from quintain.recipe import Recipe, is_model_source
from quintain.registry import short_name
from quintain.store import RunFolder, model_named
from quintain.types import decoding

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
LIBRARIES = ("python", "torch", "transformers", "quintain")
PLAIN = """\
The model has no chat template. Its prompts are paragraphs, and the next `User:` ends a reply:

```text
User: QUESTION

Assistant:
```
"""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a model comes from.

    Attributes:
        base: its path, or name on the hub; for a run that of the model it began with.
        system: the system message of training.
        step: of the checkpoint; 0 for a model that is of no run.
        recipe: of the run.
        text: the file of the recipe.
        summary: of the finished run, else empty.
        records: metrics of its steps.
        process: the provenance of the last process.
    """

    base: str
    system: str = ""
    step: int = 0
    recipe: Recipe | None = None
    text: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[Mapping[str, Any], ...] = ()
    process: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str, system: str = "") -> Origin:
        """Return the origin of the model at *path*: a run, if it is in a checkpoint of one.

        Raises:
            QuintainError: a file of the run is damaged.
        """
        checkpoint = Path(path).absolute().parent
        step = re.fullmatch(r"step-(\d+)", checkpoint.name)
        run = checkpoint.parent.parent
        if not step or not (run / "recipe.toml").is_file():
            return cls(base=path, system=system)
        folder = RunFolder(run, lock=False)
        recipe = Recipe.parse(folder.recipe(), source=str(folder.recipe_path))
        systems = {table.system for table in recipe.environments if table.system}
        processes = folder.processes()
        return cls(
            base=recipe.model.name,
            system=system or (systems.pop() if len(systems) == 1 else ""),
            step=int(step[1]),
            recipe=recipe,
            text=folder.recipe(),
            summary=folder.summary() or {},
            records=tuple(folder.metrics()),
            process=processes[-1] if processes else {},
        )


def card(
    name: str,
    report: Mapping[str, Any],
    origin: Origin,
    *,
    template: bool,
    arguments: Mapping[str, Any],
    history: str,
) -> str:
    """Return the text of ``README.md``.

    Args:
        name: of the exported folder.
        report: what was written: dtype, parameters, adapters.
        template: whether the model has a chat template.
        arguments: defaults that the export gave it.
        history: `model.history`, as saved with the model; empty if it was never set.
    """
    tags = ["quintain"]
    if origin.recipe is not None:
        tags += ["reinforcement-learning", origin.recipe.algorithm.label]
    head = ["library_name: transformers", "pipeline_tag: text-generation"]
    if published := published_name(origin.base):
        head.append(f"base_model: {published}")
    head += ["tags:", *(f"- {tag}" for tag in tags)]
    parts = [
        "\n".join(["---", *head, "---"]),
        f"# {name}\n\n{summary_of(report, origin)}",
        *results(origin),
        usage(name, origin, template, arguments, history),
        *recipe_of(origin),
        *versions(origin),
    ]
    return without_home("\n\n".join(part.rstrip() for part in parts) + "\n")


def is_default(origin: Origin) -> bool:
    """Return whether the run began with the default model."""
    try:
        return short_name(origin.base) == "default" and is_model_source(origin.base)
    except QuintainError:
        return False


def published_name(base: str) -> str:
    """Return the name on the hub of the model *base*, or of the one that it was made of, as its folder
    says; empty if it has none.
    """
    try:
        folder = Path(model_named(base).path if is_model_source(base) else base)
    except QuintainError:
        return ""  # it depends on an environment, or is not here any more
    if (record := folder / "quintain.json").is_file():
        source = json.loads(record.read_text(encoding="utf-8")).get("source", {})
        return str(source.get("model", ""))
    return base if HUB_NAME.fullmatch(base) and not folder.exists() else ""


def summary_of(report: Mapping[str, Any], origin: Origin) -> str:
    """Return what the model is, in two sentences."""
    named = published_name(origin.base) or origin.base
    base = "Quintain's default model" if is_default(origin) else f"`{named}`"
    size = f"{report['parameters']:,} parameters in {report['dtype']}."
    adapters = f", with the adapters `{report['adapters']}`" if report["adapters"] else ""
    if origin.recipe is None:
        return f"{base}{adapters}. {size}"
    environments = ", ".join(f"`{table.label}`" for table in origin.recipe.environments)
    text = (
        f"{base}, trained by reinforcement learning with `{origin.recipe.algorithm.label}` on "
        f"{environments}"
    )
    return (
        f"{text}: the checkpoint after step {origin.step} of the run "
        f"`{origin.recipe.run.name}`{adapters}. {size}"
    )


def results(origin: Origin) -> Iterator[str]:
    """Yield the table of held-out accuracies, and nothing for a model of no run."""
    if origin.recipe is None:
        return
    evaluation = origin.recipe.evaluation
    held_out = origin.summary.get("held_out", {})
    before, after = held_out.get("before", {}), held_out.get("after", {})
    rows = [
        *(
            (f"{evaluation.test.split}, before training", values)
            for values in (before, before.get("other_decoding", {}))
        ),
        (f"{evaluation.split}, this checkpoint", flat(origin.records, origin.step)),
        *(
            (f"{evaluation.test.split}, after step {origin.summary.get('steps')}", values)
            for values in (after, after.get("other_decoding", {}))
        ),
    ]
    if not held_out:  # the run is not finished
        rows = [(f"{evaluation.split}, before training", flat(origin.records, 0)), rows[2]]
    lines = [
        f"| {label} | {decoding(values['temperature']) if 'temperature' in values else ''} | "
        f"{estimate(values)} |"
        for label, values in rows
        if values.get("accuracy") is not None
    ]
    if lines:
        yield "\n".join(
            ["## Results", "", "| held-out tasks | decoding | right |", "|---|---|---|", *lines]
        )


def flat(records: tuple[Mapping[str, Any], ...], step: int) -> dict[str, Any]:
    """Return the metrics ``held_out.*`` of *step*, without that prefix."""
    record: Mapping[str, Any] = next((r for r in reversed(records) if r.get("step") == step), {})
    return {
        key.removeprefix("held_out."): value
        for key, value in record.items()
        if key.startswith("held_out.")
    }


def estimate(values: Mapping[str, Any]) -> str:
    """Return an accuracy with its interval and number of tasks."""
    text = f"{values['accuracy']:.1%}"
    if values.get("low") is None or values.get("high") is None:
        return text
    tasks = f", {values['tasks']} tasks" if "tasks" in values else ""
    return f"{text} (95 % interval {values['low']:.1%} to {values['high']:.1%}{tasks})"


def usage(
    name: str, origin: Origin, template: bool, arguments: Mapping[str, Any], history: str
) -> str:
    """Return how to load and prompt the model."""
    messages: list[dict[str, str]] = [{"role": "user", "content": "..."}]
    if origin.system:
        messages.insert(0, {"role": "system", "content": origin.system})
    code = [
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f'model = AutoModelForCausalLM.from_pretrained("{name}", dtype="auto")',
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
    ]
    if template:
        code += [
            f"messages = {json.dumps(messages, ensure_ascii=False)}",
            "inputs = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
        ]
    else:
        code += [
            'inputs = tokenizer("User: ...\\n\\nAssistant:", add_special_tokens=False, '
            'return_tensors="pt")'
        ]
    code += [
        "output = model.generate(**inputs, max_new_tokens=256, tokenizer=tokenizer)",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], '
        "skip_special_tokens=True))",
    ]
    lines = ["## Use", "", "```python", *code, "```"]
    if not template:
        lines += ["", PLAIN]
    if arguments:
        defaults = ", ".join(f"`{key}={json.dumps(value)}`" for key, value in arguments.items())
        lines += ["", f"As in training, the chat template has the defaults {defaults}."]
    if history == "append":
        lines += [
            "",
            'Training had `model.history = "append"`: each further message was added to the text '
            "before it. Other "
            "programs render the whole conversation by the chat template, so its earlier turns may "
            "look different.",
        ]
    return "\n".join(lines)


def recipe_of(origin: Origin) -> Iterator[str]:
    """Yield the recipe, whole."""
    if origin.text:
        yield (
            "## Recipe\n\n`quintain train recipe.toml` with this file:\n\n```toml\n"
            f"{origin.text.strip()}\n```"
        )


def versions(origin: Origin) -> Iterator[str]:
    """Yield versions, device and commit of the last process of the run."""
    if installed := origin.process.get("versions"):
        plugins = ", ".join(
            f"{name} {version}" for name, version in installed.items() if name not in LIBRARIES
        )
        rows = [(name, installed[name]) for name in LIBRARIES if name in installed]
        rows += [
            (key, str(origin.process[key]))
            for key in ("device", "commit", "time")
            if origin.process.get(key)
        ]
        lines = [f"| {name} | {value} |" for name, value in [*rows, ("plugins", plugins)]]
        yield "\n".join(["## Versions", "", "| | |", "|---|---|", *lines])


def without_home(text: str) -> str:
    """Return *text* with ``~`` for the home folder, which names the user."""
    home = str(Path.home())
    return text.replace(home, "~") if len(home) > 1 else text
