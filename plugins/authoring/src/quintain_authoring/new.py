"""`quintain new`: write a distribution with one component, which installs and passes its tests."""

from __future__ import annotations

import json
import keyword
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click

from quintain.cli import json_option
from quintain.errors import StorageError, UsageError
from quintain.registry import current

NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
LONGEST = 40
"""Characters of a name."""
RESERVED = {
    "correct",
    "objective",
    "pytest",
    "quintain",
    "replace",
    "reward",
    "rollout",
    "tests",
    "torch",
    "tracker",
}
"""Names that the templates use."""


@dataclass(frozen=True)
class ComponentKind:
    """A kind of component that can be written.

    Attributes:
        prefix: of the distribution's name.
        component: its kind in a manifest.
        group: of entry points.
        target: what the entry point names, with placeholders.
        exports: what the package exports.
        summary: one line of the manifest; of an environment by `EPISODES`.
        requires: the dependency.
        next: commands that use it, after it was installed and tested.
    """

    prefix: str
    component: str
    group: str
    target: str
    exports: str
    summary: str
    requires: str
    next: tuple[str, ...]


KINDS = {
    "environment": ComponentKind(
        prefix="quintain-env-",
        component="environment",
        group="quintain.environments",
        target="{{package}}:{{class}}",
        exports='from .{{module}} import {{class}}, correct\n\n__all__ = ["{{class}}", "correct"]',
        summary="",
        requires="quintain>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain eval {{name}} --controls",
            "quintain train --env {{name}} --steps 60",
        ),
    ),
    "reward": ComponentKind(
        prefix="quintain-",
        component="reward",
        group="quintain.rewards",
        target="{{package}}:{{function}}",
        exports='from .{{module}} import {{function}}\n\n__all__ = ["{{function}}"]',
        summary="1 for a reply of at least one word and at most `words`, else 0.",
        requires="quintain>=0.1",
        next=("quintain check {{name}}", "quintain info {{name}}"),
    ),
    "algorithm": ComponentKind(
        prefix="quintain-",
        component="algorithm",
        group="quintain.algorithms",
        target="{{package}}.{{module}}:{{constant}}",
        exports=(
            'from .{{module}} import {{constant}}, {{function}}_loss\n\n__all__ = ["{{constant}}", '
            '"{{function}}_loss"]'
        ),
        summary="Dr. GRPO with a cap on the ratio instead of the clip.",
        requires="quintain[train]>=0.1",
        next=("quintain check {{name}}", "quintain info {{name}} --against dr_grpo"),
    ),
    "tracker": ComponentKind(
        prefix="quintain-",
        component="hooks",
        group="quintain.plugins",
        target="{{package}}.{{module}}:tracker",
        exports="",
        summary="Writes the metrics of each step to a file of the run folder.",
        requires="quintain-view>=0.1",
        next=("quintain check {{name}}", "quintain train --tracker {{name}} --dry-run"),
    ),
    "hooks": ComponentKind(
        prefix="quintain-",
        component="hooks",
        group="quintain.plugins",
        target="{{package}}.{{module}}",
        exports="",
        summary="Warns of a step from which nothing is learned.",
        requires="quintain[train]>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain train --dry-run",
        ),
    ),
    "service": ComponentKind(
        prefix="quintain-",
        component="service",
        group="quintain.services",
        target="{{package}}:{{class}}",
        exports='from .{{module}} import {{class}}\n\n__all__ = ["{{class}}"]',
        summary="Counts notes of a run, also after a resume.",
        requires="quintain>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain info {{name}}",
        ),
    ),
    "judge": ComponentKind(
        prefix="quintain-",
        component="service",
        group="quintain.services",
        target="{{package}}:{{class}}",
        exports='from .{{module}} import {{class}}\n\n__all__ = ["{{class}}"]',
        summary="Grades a reply by the words of the rubric that it uses.",
        requires="quintain>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain info {{name}}",
        ),
    ),
    "engine": ComponentKind(
        prefix="quintain-",
        component="engine",
        group="quintain.engines",
        target="{{package}}:{{class}}",
        exports='from .{{module}} import {{class}}\n\n__all__ = ["{{class}}"]',
        summary="Replies with the last number of the last message.",
        requires="quintain>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain eval arithmetic --engine {{name}} --tasks 20",
        ),
    ),
    "schedule": ComponentKind(
        prefix="quintain-",
        component="schedule",
        group="quintain.schedules",
        target="{{package}}.{{module}}:{{class}}",
        exports="",
        summary="Samples two batches ahead and waits for slow groups.",
        requires="quintain-scale>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain train --set schedule.use={{name}} --dry-run",
        ),
    ),
    "curriculum": ComponentKind(
        prefix="quintain-",
        component="curriculum",
        group="quintain.curricula",
        target="{{package}}.{{module}}:{{class}}",
        exports="",
        summary="Takes the next task from the environment whose samples were right least often.",
        requires="quintain>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain train --set algorithm.args.plan.curriculum={{name}} --dry-run",
        ),
    ),
    "command": ComponentKind(
        prefix="quintain-",
        component="command",
        group="quintain.commands",
        target="{{package}}.{{module}}:{{function}}",
        exports="",
        summary="Print the step of a run with the highest mean reward.",
        requires="quintain[train]>=0.1",
        next=(
            "quintain check {{name}}",
            "quintain {{name}} --help",
        ),
    ),
}
EPISODES = {
    "single-turn": "Sort the digits of a line.",
    "multi-turn": "Take the digits of a row from the smallest on, a digit a turn.",
    "tools": "Find the lowest price of an item with a tool.",
}
"""Kinds of episodes of a new environment, the default first, with their summaries."""
COMMON = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "src/{{package}}/quintain.toml": "quintain.toml",
}
"""Files of every distribution, with their templates."""


@click.command(epilog="\b\nExample: quintain new environment word-ladder --kind multi-turn")
@click.argument("kind", type=click.Choice([*KINDS]))
@click.argument("name")
@click.option(
    "--kind",
    "episode",
    type=click.Choice([*EPISODES]),
    help=(
        "Episodes of an environment: one turn, several turns, or calls of a tool.  [default: "
        "single-turn]"
    ),
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write.  [default: ./DISTRIBUTION]",
)
@json_option
def new(kind: str, name: str, episode: str | None, folder: Path | None, as_json: bool) -> None:
    """Write a distribution with a KIND of component called NAME: code, manifest, tests and README.

    It installs with pip, and passes its tests and `quintain check`. Then change the code to what
    you need. An existing folder is not overwritten.
    """
    if episode and kind != "environment":
        raise UsageError(f"--kind {episode} is for environments; leave it out for a new {kind}")
    check_name(kind, name)
    distribution = f"{KINDS[kind].prefix}{name.replace('_', '-')}"
    target = folder or Path(distribution)
    commands = next_commands(kind, name, target)
    written = write(target, distribution_files(kind, name, episode or "single-turn"))
    if as_json:
        report = {
            "folder": str(target),
            "distribution": distribution,
            "files": written,
            "commands": commands,
        }
        click.echo(json.dumps(report, indent=2))
        return
    click.echo(
        "\n".join(
            [
                f"{target}:",
                *(f"  {file}" for file in written),
                "next:",
                *(f"  {c}" for c in commands),
            ]
        )
    )


def check_name(kind: str, name: str) -> None:
    """Refuse a name that is none, or that an installed component of this kind has.

    Raises:
        UsageError: the message says what is expected.
    """
    if not NAME.fullmatch(name) or len(name) > LONGEST:
        raise UsageError(
            f"name {name[:100]!r}: expected lower-case letters and digits, in words joined by - or "
            f"_, from a letter on, at most {LONGEST} characters; such as word-ladder"
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in RESERVED:
        raise UsageError(
            f"name {name!r} is a word of Python or Quintain; choose another, such as my-{name}"
        )
    if taken := current().matching(name, KINDS[kind].component):
        raise UsageError(
            f"{kind} {name!r} exists in {taken[0].distribution}; choose another name, such as "
            f"my-{name}"
        )


def next_commands(kind: str, name: str, folder: Path) -> list[str]:
    """Return the commands that install, test and use the distribution in *folder*."""
    return [
        f"cd {shlex.quote(str(folder))}",
        "pip install -e .",
        "python -m pytest",
        *(command.replace("{{name}}", name) for command in KINDS[kind].next),
    ]


def distribution_files(kind: str, name: str, episode: str = "single-turn") -> dict[str, str]:
    """Return the texts of the distribution, by path; *episode* is that of an environment."""
    component_kind, module = KINDS[kind], name.replace("-", "_")
    of_environment = kind == "environment"
    summary, folder = (
        (EPISODES[episode], f"{kind}/{episode}")
        if of_environment
        else (component_kind.summary, kind)
    )
    distribution = f"{component_kind.prefix}{name.replace('_', '-')}"
    values = {
        "kind": kind,
        "name": name,
        "distribution": distribution,
        "package": distribution.replace("-", "_"),
        "module": module,
        "function": module,
        "constant": module.upper(),
        "class": "".join(word.capitalize() for word in module.split("_")),
        "component_kind": component_kind.component,
        "group": component_kind.group,
        "summary": summary,
        "tags": json.dumps(["example", *([episode] if of_environment else [])]),
        "requires": component_kind.requires,
        "target": component_kind.target,
        "source": "src/{{package}}/{{module}}.py",
        "commands": "\n".join(next_commands(kind, name, Path(distribution))[1:]),
    }

    def filled(text: str) -> str:
        for _ in range(2):  # a value may have placeholders
            text = re.sub(r"{{(\w+)}}", lambda match: values[match[1]], text)
        return text

    component_templates = {
        "src/{{package}}/{{module}}.py": f"{folder}/component.py",
        "tests/test_{{module}}.py": f"{folder}/test_component.py",
    }
    templates = files("quintain_authoring") / "templates"
    texts = {
        path: (templates / f"{template}.tmpl").read_text(encoding="utf-8")
        for path, template in (COMMON | component_templates).items()
    }
    head = f'"""{summary}"""\n'
    texts["src/{{package}}/__init__.py"] = head + (
        f"\n{component_kind.exports}\n" if component_kind.exports else ""
    )
    return {filled(path): filled(text) for path, text in sorted(texts.items())}


def write(folder: Path, texts: dict[str, str]) -> list[str]:
    """Write *texts* into *folder*, which must not exist; return their paths.

    Raises:
        UsageError: the folder exists.
        StorageError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except FileExistsError as e:
        raise UsageError(
            f"{str(folder)!r} exists and is not overwritten; choose another --folder, or remove it"
        ) from e
    except OSError as e:
        raise StorageError(f"cannot write {str(folder)!r}: {e.strerror}") from e
    return [*texts]
