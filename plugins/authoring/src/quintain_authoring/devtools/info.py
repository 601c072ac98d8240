"""``quintain info``: one component, with its configuration. Imports that component alone; for a
piece, the installed algorithms.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, is_dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

import click

from quintain import Algorithm, Piece
from quintain.cli import json_option
from quintain.errors import PluginError, UnknownNameError, UsageError
from quintain.interfaces import every_piece
from quintain.registry import (
    Component,
    Registry,
    Signature,
    current,
    explain,
    import_algorithms,
    known_plugins,
    signature_of,
    type_name,
)

from .describe import KINDS, differences, kl_words, piece_words, settings, shown
from .docstrings import doc_of, parameter_docs, plain, without_parameters
from .listing import Line, is_kind, kind_of, line_of

RECIPE = {
    "environment": '[[environments]]\nuse = "{use}"',
    "reward": '[[environments]]\nuse = "..."\nreward = "{use}"',
    "engine": '[engine]\nuse = "{use}"',
    "model": '[model]\nname = "{use}"',
    "service": '[services.SLOT]\nuse = "{use}"',
    "algorithm": '[algorithm]\nuse = "{use}"',
    "hooks": '[[trackers]]\nuse = "{use}"',
    "schedule": '[schedule]\nuse = "{use}"',
    "piece": '[algorithm.args.{kind}]\nuse = "{use}"',
}
"""The lines of a recipe that use a component, by kind."""
VALUE_WIDTH = 30
"""Widest column of names and of defaults in a shortened description."""


@dataclass(frozen=True, kw_only=True)
class Details:
    """A component's line in the listing, and what its import shows.

    Attributes:
        fields: settings of a recipe; for an algorithm also the arguments of its pieces, with dotted
            names.
        services: the slots it takes.
        algorithm: the component, if it is a whole algorithm.
        recipe: the lines of a recipe that use it.
        more: further keys of `to_json`.
    """

    line: Line
    doc: str = ""
    fields: tuple[dict[str, Any], ...] = ()
    services: tuple[dict[str, str], ...] = ()
    controls: tuple[str, ...] = ()
    algorithm: Algorithm | None = None
    recipe: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data. ``needs`` is the manifest's (docker, network ...), ``services`` are
        the slots it takes. An algorithm also has its ``settings``, the settings it was
        ``published`` with, and ``notes``.
        """
        line = asdict(self.line)
        return {
            **line,
            "doc": self.doc,
            "fields": [{k: v for k, v in f.items() if k != "shown"} for f in self.fields],
            "services": list(self.services),
            "controls": list(self.controls),
            **self.more,
        }


def details_of(component: Component, registry: Registry) -> Details:
    """Return the details of *component*; if its import fails, its manifest entry and the error."""
    line = line_of(component, registry)
    try:
        # A piece is imported with its algorithm, and no manifest lists it.
        piece = next((p for p in every_piece() if p.origin == component.target), None)
        loaded = piece or registry.resolve(component)
        if component.kind == "command" or inspect.ismodule(loaded):
            return Details(line=line, doc=inspect.getdoc(loaded) or "")
        loaded = type(loaded) if component.kind == "hooks" else loaded  # a tracker is an instance
        signature = signature_of(loaded)
    except PluginError as e:
        return Details(line=replace(line, error="\n".join(filter(None, (line.error, str(e))))))
    if isinstance(loaded, Algorithm):
        # Local code has no manifest: the algorithm itself has its summary and source.
        summary, source = line.summary or loaded.summary, line.source or loaded.source
        line = replace(line, kind="algorithm", summary=summary, source=source)
        return _details_of_algorithm(loaded, line, signature)
    recipe = RECIPE.get(line.kind, "").format(use=line.name)
    if isinstance(loaded, Piece):
        line = replace(line, kind="algorithm")
        use = line.name.removeprefix(f"{loaded.kind}.")
        recipe = RECIPE["piece"].format(kind=loaded.kind, use=use)
    return Details(
        line=line,
        doc=doc_of(loaded),
        fields=tuple(_fields(loaded, signature)),
        services=_slots(signature),
        controls=tuple(loaded.controls())
        if component.kind == "environment" and hasattr(loaded, "controls")
        else (),
        recipe=recipe,
    )


def _details_of_algorithm(algorithm: Algorithm, line: Line, signature: Signature) -> Details:
    services = [slot for piece in algorithm.pieces for slot in _slots(signature_of(piece))]
    return Details(
        line=line,
        doc=doc_of(algorithm),
        fields=tuple(_fields_of_algorithm(algorithm, signature)),
        services=tuple(services),
        algorithm=algorithm,
        recipe=RECIPE["algorithm"].format(use=line.name),
        more={
            "settings": settings(algorithm),
            "published": dict(algorithm.published),
            "notes": list(algorithm.notes()),
        },
    )


def _fields_of_algorithm(algorithm: Algorithm, signature: Signature) -> Iterator[dict[str, Any]]:
    """Yield the algorithm's settings, each piece and table followed by its own settings."""
    for f, row in zip(signature.fields, _fields(algorithm, signature), strict=True):
        value = f.default
        if f.name in KINDS:
            row |= {
                "type": f"{f.name} piece",
                "default": value and value.name,
                "shown": value.name if value else "none",
            }
            if value:
                row["doc"] = " ".join((value.function.__doc__ or "").partition("\n\n")[0].split())
        elif f.name in ("kl", "plan"):
            row |= {
                "default": settings(algorithm)[f.name],
                "shown": kl_words(value) if f.name == "kl" else "",
            }
        yield row
        if value and f.name in (*KINDS, "kl", "plan"):
            yield from (
                g | {"name": f"{f.name}.{g['name']}"} for g in _fields(value, signature_of(value))
            )


def _slots(signature: Signature) -> tuple[dict[str, str], ...]:
    return tuple(
        {"slot": s.slot, "parameter": s.parameter, "type": type_name(s.type)}
        for s in signature.needs
    )


def _fields(component: Any, signature: Signature) -> Iterator[dict[str, Any]]:
    docs = parameter_docs(component)
    parameters = (
        dataclass_fields(component)
        if isinstance(component, type) and is_dataclass(component)
        else ()
    )
    made = {f.name: f.default_factory for f in parameters if f.default_factory is not MISSING}
    for f in signature.fields:
        shown = {
            "name": f.name,
            "type": type_name(f.type),
            "required": f.required,
            "doc": docs.get(f.name, ""),
        }
        if not f.required:
            default = made[f.name]() if f.name in made else f.default
            plain = default is None or isinstance(default, (str, int, float, bool))
            shown |= {"default": default if plain else repr(default), "shown": _notation(default)}
        yield shown


def _notation(value: Any) -> str:
    """Return a default in the notation of a recipe; ``unset`` for ``None``."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_notation, value))}]"
    if isinstance(value, Mapping):
        return (
            f"{{ {', '.join(f'{k} = {_notation(v)}' for k, v in value.items())} }}"
            if value
            else "{}"
        )
    return (
        "unset" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    )


def matching(name: str, registry: Registry) -> list[Component]:
    """Return the components *name*: ``name`` or ``distribution/name``, with an optional prefix
    ``kind:``, or ``module:Attribute``; if no component has the name, the pieces of installed
    algorithms that have it.

    Raises:
        UnknownNameError: no component or piece has the name.
    """
    head, colon, rest = name.partition(":")
    try:
        kind = kind_of(head) if colon else None
    except UnknownNameError:
        return [registry.find("environment", name)]
    if kind and ":" in rest:
        return [registry.find(kind, rest)]
    if name.endswith(".py"):
        return [registry.find("environment", name)]  # its error lists the classes of the file
    bare = rest if kind else name
    components, pieces, failures = registry.matching(bare, kind), Registry([]), list[PluginError]()
    for plugin_kind, plugin in known_plugins() if not components else ():
        if plugin == bare and kind in (None, plugin_kind):
            return [registry.find(plugin_kind, bare)]  # its error names the distribution to install
    if not components and kind in (None, "algorithm"):
        failures = import_algorithms(registry)
        pieces = Registry(installed_pieces(registry))
        components = pieces.matching(bare) or [
            c for c in pieces.components() if c.name.partition(".")[2] == bare
        ]
    if not components:
        explain(kind or "environment", bare)
        if is_kind(bare):
            raise UnknownNameError(
                f"{bare!r} is a kind; `quintain list {bare}` shows its components"
            )
        names = (c.name for c in (*registry.components(kind), *pieces.components()))
        hint = "\n".join(
            (
                "`quintain list` shows all; `quintain info ALGORITHM` shows its pieces",
                *map(str, failures),
            )
        )
        raise UnknownNameError.of(kind or "component", bare, names, hint)
    return components


def installed_pieces(registry: Registry) -> list[Component]:
    """Return the imported pieces of packages with installed algorithms, named ``kind.name``."""
    owners = {c.module.partition(".")[0]: c for c in registry.components("algorithm")}
    return [
        replace(owners[package], name=f"{piece.kind}.{piece.name}", target=piece.origin)
        for piece in every_piece()
        if (package := piece.function.__module__.partition(".")[0]) in owners
    ]


@click.command("info")
@click.argument("name")
@click.option(
    "--against", metavar="NAME", help="Compare the settings with those of another algorithm."
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Print the whole description, also if it is longer than the screen.",
)
@json_option
def info(name: str, against: str | None, every: bool, as_json: bool) -> int:
    """Describe the component NAME and its settings in a recipe.

    NAME is a component (`grpo`), a component of one distribution (`quintain-rewards/format_tags`)
    or of one kind (`reward:math_equal`), a piece of an algorithm (`objective.ppo_clip`), or your
    own code (`module:Attribute`). Only that component is imported; for a piece, all installed
    algorithms. On a terminal, a description that is longer than the screen is shortened: of an
    algorithm its pieces and what differs from the defaults, of others a line per setting. --all
    prints all of it, as does a pipe.
    """
    registry = current()
    if against is not None:
        return compare(algorithm_of(name, registry), algorithm_of(against, registry), as_json)
    details = [details_of(c, registry) for c in matching(name, registry)]
    if as_json:
        click.echo(
            json.dumps({"components": [d.to_json() for d in details]}, indent=2, default=str)
        )
    else:
        print_all(name, details, whole=every)
    return 1 if any(d.line.error for d in details) else 0


def algorithm_of(name: str, registry: Registry) -> Details:
    """Return the details of the algorithm *name*.

    Raises:
        UnknownNameError: nothing has that name.
        UsageError: the component is not a whole algorithm, or the name is ambiguous.
        PluginError: the algorithm cannot be imported.
    """
    details = [details_of(c, registry) for c in matching(name, registry)]
    algorithms = [d for d in details if d.algorithm is not None]
    if len(algorithms) == 1:
        return algorithms[0]
    if algorithms:
        raise UsageError(
            f"{name!r} may be {' or '.join(d.line.id for d in algorithms)}; use one of these"
        )
    broken = next((d.line.error for d in details if d.line.error), "")
    if broken:
        raise PluginError(broken)
    raise UsageError(
        f"--against compares whole algorithms, and {name!r} is none; `quintain list algorithms` "
        f"shows them"
    )


def compare(left: Details, right: Details, as_json: bool) -> int:
    """Print the differences between two algorithms."""
    assert left.algorithm is not None
    assert right.algorithm is not None
    changes = differences(left.algorithm, right.algorithm)
    if as_json:
        report = {
            "left": asdict(left.line),
            "right": asdict(right.line),
            "differences": list(map(asdict, changes)),
        }
        click.echo(json.dumps(report, indent=2, default=str))
        return 0
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for details in (left, right):
        console.print(Text.assemble((details.line.name, "bold cyan"), f"  {details.line.summary}"))
        console.print(Text(f"  {details.line.source}", style="dim"))
    rows = [(d.setting, cell(d.setting, d.left), cell(d.setting, d.right)) for d in changes]
    console.print(
        _table(("setting", left.line.name, right.line.name), rows) if rows else "They do the same."
    )
    return 0


def cell(setting: str, value: Any) -> str:
    """Return a value in the table of differences."""
    if setting == "kl":
        return kl_words(value)
    if setting in KINDS:
        return piece_words(value).replace("`", "") if value else "none"
    return shown(value)


def print_all(name: str, components: Sequence[Details], *, whole: bool) -> None:
    """Print the *components* with that *name*, shortened if they are longer than the terminal,
    unless *whole*.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console()

    lengths = []
    for details in components:
        with console.capture() as text:
            print_details(details, console)
        lengths.append(text.get().count("\n"))
    too_long = console.is_terminal and not whole and sum(lengths) >= console.height
    hidden = 0
    for details, lines in zip(components, lengths, strict=True):
        space = console.height - 3 - sum(lengths) + lines
        if not too_long or details.line.error or not details.fields:
            print_details(details, console)
        else:
            print_short(details, console, space)
            hidden += len(details.fields) + len(details.services)
    if too_long:
        rest = f"all {hidden} settings" if hidden else "the rest"
        console.print(Text(f"\nshortened: `quintain info {name} --all` has {rest}", style="dim"))


def print_details(details: Details, console: Any) -> None:
    """Print all of *details*."""
    from rich.text import Text

    line = details.line
    print_head(details, console)
    for label, text in (
        ("tags", ", ".join(line.tags)),
        ("needs", ", ".join(line.needs)),
        ("licence", line.licence),
        ("controls", ", ".join(details.controls)),
        ("published with", shown(details.more.get("published", {}))),
        *(("note", note) for note in details.more.get("notes", ())),
    ):
        if text:
            console.print(Text(f"{label}: {text}"))
    if line.error:
        console.print(Text(f"error: {line.error}", style="red"))
        return
    rows = _rows(details)
    if rows:
        console.print(_table(("setting", "default", "meaning"), rows))
    doc = plain(without_parameters(details.doc, [row[0] for row in rows]))  # the table has them
    if doc and details.algorithm is None and doc.rstrip(".") != line.summary.rstrip("."):
        console.print(Text("\n" + doc, style="dim"))
    print_recipe(details, console)


def print_short(details: Details, console: Any, height: int) -> None:
    """Print *details* in about *height* lines: a line per setting; of an algorithm those that make
    it what it is.
    """

    print_head(details, console)
    rows = (
        _rows(details)
        if details.algorithm is None
        else _rows_of_algorithm(details, details.algorithm)
    )
    space = max(8, height - 8 - details.recipe.count("\n"))
    if rows:
        console.print(_table(("setting", "default", "meaning"), rows[:space], width=console.width))
    print_recipe(details, console)


def print_head(details: Details, console: Any) -> None:
    """Print name, kind, distribution, summary and source."""
    from rich.text import Text

    line = details.line
    # a file has none
    owner = f" of {line.distribution} {line.version}".rstrip() if line.distribution else ""
    console.print(Text.assemble((line.name, "bold cyan"), f"  {line.kind}{owner} ({line.origin})"))
    for text in (line.summary, line.source and f"source: {line.source}"):
        if text:
            console.print(Text(text))


def print_recipe(details: Details, console: Any) -> None:
    """Print the lines of a recipe that use the component."""
    from rich.text import Text

    if details.recipe:
        console.print(Text("\nIn a recipe:\n" + details.recipe, style="green"))


def _rows(details: Details) -> list[tuple[str, str, str]]:
    rows = [(f["name"], f.get("shown", "required"), _meaning(f)) for f in details.fields]
    return rows + [
        (n["parameter"], f"[services.{n['slot']}]", f"service: {n['type']}")
        for n in details.services
    ]


def _rows_of_algorithm(details: Details, algorithm: Algorithm) -> list[tuple[str, str, str]]:
    """Return the pieces with their arguments, the KL term, and the other settings that are not
    those of an empty algorithm.
    """
    meanings = {f["name"]: plain(f["doc"]) for f in details.fields}
    rows = []
    for f in dataclass_fields(algorithm):
        value = getattr(algorithm, f.name)
        default = f.default_factory() if callable(f.default_factory) else f.default
        if f.name in KINDS:
            rows += (
                [(f.name, piece_words(value).replace("`", ""), meanings[f.name])] if value else []
            )
        elif f.name == "kl":
            rows.append((f.name, kl_words(value), meanings[f.name]))
        elif f.name == "plan":
            for part in dataclass_fields(value):
                setting = f"{f.name}.{part.name}"
                if getattr(value, part.name) != getattr(default, part.name):
                    rows.append((setting, shown(getattr(value, part.name)), meanings[setting]))
        elif f.name in meanings and value != default:
            rows.append((f.name, shown(value), meanings[f.name]))
    return rows


def _meaning(setting: dict[str, Any]) -> str:
    """Return the text of a setting, after its type unless the default shows that."""
    kind, doc = setting["type"], plain(setting["doc"])
    if kind.startswith("Literal[") or kind.endswith(" piece"):
        kind = " | ".join(re.findall(r"'([^']*)'", kind))
    elif not setting["required"] and kind == type(setting["default"]).__name__:
        kind = ""
    return ": ".join(filter(None, (kind, doc)))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, width: int = 0) -> Any:
    """Return a table; with *width* its last column is cut where it would wrap, and the others are
    `VALUE_WIDTH` at most.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, title in enumerate(titles):
        longest = max(len(title), *(len(row[i]) for row in rows))
        last = i == len(titles) - 1
        table.add_column(
            title, overflow="fold", width=min(longest, VALUE_WIDTH) if width and not last else None
        )
    left = width - sum(column.width + 2 for column in table.columns if column.width)
    for first, *rest in rows:
        texts = [Text(text) for text in rest]
        if width:
            texts[-1].truncate(max(left, 20), overflow="ellipsis")
        table.add_row(Text(first, style="cyan"), *texts)
    return table
