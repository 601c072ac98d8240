"""`quintain rescore`: stored rollouts under another reward."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import typing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from quintain import Environment, Group, Rollout, Task
from quintain.cli import Count, folder_option, json_option
from quintain.data import DataFaults, json_object, text_lines
from quintain.errors import RunError, UsageError

from .options import service_options, services_of

if typing.TYPE_CHECKING:
    from rich.console import Console

FILE_FUNCTION = re.compile(r"[^\s()\"*+]+\.py:\w+")
SHOWN = 5
"""Rollouts with the largest changes that are listed."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A rollout under both rewards."""

    step: int
    task: str
    reply: str
    old: float
    new: float


@dataclass(kw_only=True)
class RewardComparison:
    """Scores of the same rollouts under two outcome rewards.

    Attributes:
        rollouts, groups: that both rewards scored.
        failed: rollouts that the new reward does not score, by reason.
        old, new: mean of each reward; *old_right*, *new_right* are the shares that reach 1.
        changed: rollouts whose score differs.
        gained, lost: rollouts that only the new reward, or only the old one, calls right.
        pairs: of rollouts of one group; *flips* are those whose order is the opposite,
            *ties_broken* those that only the new reward tells apart, *ties_made* those that only
            the old one does.
        best_changed: groups in which no best rollout of the old reward is a best one of the new.
        silent_old, silent_new: groups of several rollouts that all have one score, from which
            nothing is learned.
        largest: the rollouts that change most.
    """

    rollouts: int = 0
    groups: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    old: float = 0.0
    new: float = 0.0
    old_right: float = 0.0
    new_right: float = 0.0
    changed: int = 0
    gained: int = 0
    lost: int = 0
    pairs: int = 0
    flips: int = 0
    ties_broken: int = 0
    ties_made: int = 0
    best_changed: int = 0
    silent_old: int = 0
    silent_new: int = 0
    largest: list[Change] = field(default_factory=list)


@click.command()
@click.argument("run")
@click.option(
    "--reward",
    required=True,
    metavar="EXPR",
    help="Expression, as in a recipe, or FILE.py:function.",
)
@click.option(
    "--env", "-e", help="Environment of the rollouts, where RUN is a file of `quintain eval --out`."
)
@click.option(
    "--arg",
    "-a",
    "args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Field of that environment (repeatable).",
)
@service_options
@click.option("--last", type=Count(1), metavar="N", help="Rollouts of the last N steps only.")
@folder_option
@json_option
def rescore(
    run: str,
    reward: str,
    env: str | None,
    args: Sequence[str],
    services: Sequence[str],
    service_args: Sequence[str],
    last: int | None,
    folder: str,
    as_json: bool,
) -> int:
    """Score the stored rollouts of RUN, or of a file of `quintain eval --out`, by another outcome
    reward.

    Shows the means, what becomes right or wrong, how many pairs of one group change their order,
    since that is what a group-based advantage learns from, and the rollouts that change most.
    Nothing is written.

    \b
    quintain rescore arithmetic-1 --reward "math_equal * format_tags"
    quintain rescore arithmetic-1 --reward mine.py:shorter --last 10
    quintain rescore rollouts.jsonl --env arithmetic --reward math_equal
    """
    expression = f'use("{reward}")' if FILE_FUNCTION.fullmatch(reward) else reward
    if Path(run).suffix in (".jsonl", ".parquet"):
        if env is None:
            raise UsageError(f"{run} names no environment: add --env ENVIRONMENT")
        from quintain.recipe import EnvironmentTable

        from .check import fields

        chosen: dict[str, Any] = {}
        tables = [EnvironmentTable(use=env, args=fields(args))]
        rows = list(rows_of_file(Path(run)))
    else:
        if env is not None or args:
            raise UsageError("--env and --arg are for files; a run has its own environments")
        tables, chosen, rows = of_run(run, folder, last)
    result = asyncio.run(
        compared(tables, {**chosen, **services_of(services, service_args)}, expression, rows)
    )
    if as_json:
        click.echo(json.dumps({"run": run, "reward": expression, **asdict(result)}, indent=2))
    else:
        show(run, expression, result)
    return 0 if result.rollouts else 1


def of_run(
    name: str, folder: str, last: int | None
) -> tuple[list[Any], dict[str, Any], list[tuple[int, Any]]]:
    """Return environments, services and stored rollouts of a run.

    Raises:
        RunError: it has no stored rollouts.
    """
    from quintain.recipe import Recipe
    from quintain.store import RunFolder, find_run, steps_in

    stored = RunFolder(find_run(name, folder), lock=False)
    recipe = Recipe.parse(stored.recipe(), source=str(stored.recipe_path))
    steps = [step for step, _ in steps_in(stored.rollouts)][-(last or 0) :]
    rows = [
        (step, json.loads(row["rollout"])) for step in steps for row in stored.read_rollouts(step)
    ]
    if not rows:
        raise RunError(
            f"run {name!r} has no stored rollouts; [rollouts] keep in its recipe says how many are "
            f"kept"
        )
    return list(recipe.environments), dict(recipe.services), rows


def rows_of_file(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the rollouts of a file of `quintain eval --out`.

    Raises:
        UsageError: it cannot be read.
    """
    if path.suffix == ".jsonl":
        with DataFaults(path) as faults:
            for where, line in text_lines(path, faults):
                with faults.row(where):
                    yield 0, json_object(line, "a rollout of `quintain eval --out`")
        return
    try:
        from quintain.store import read_table

        rows = read_table(path, ["rollout"])["rollout"].to_pylist()
        yield from ((0, json.loads(text)) for text in rows)
    except (RunError, ValueError) as e:
        raise UsageError(f"cannot read rollouts from {str(path)!r}: {e}") from e


async def compared(
    tables: Sequence[Any],
    services: Mapping[str, Any],
    expression: str,
    rows: Iterable[tuple[int, Any]],
) -> RewardComparison:
    """Score *rows* (step, rollout as JSON) by *expression* instead of the outcome rewards of their
    environments.
    """
    from quintain.console import distinct_names
    from quintain.recipe import EnvironmentSpec, opened_environments
    from quintain.services import BY_OPTION

    from .episodes import rescore as score_again

    specs = [
        replace(EnvironmentSpec.of(t.model_copy(update={"reward": expression}))) for t in tables
    ]
    names = distinct_names(t.label for t in tables)
    result = RewardComparison()
    async with opened_environments(specs, services, fix=BY_OPTION) as (environments, running):
        known = {name: (e, *types_of(e)) for name, e in zip(names, environments, strict=True)}
        only = next(iter(known.values())) if len(known) == 1 else None
        groups: dict[tuple[int, int], list[Rollout[Any, Any]]] = defaultdict(list)
        for step, data in rows:
            entry = known.get(data["environment"]) or only
            if entry is None:
                raise RunError(
                    f"the recipe has no environment {data['environment']!r}, but a stored rollout "
                    f"is of it"
                )
            groups[step, data["group"]].append(restored(data, *entry[1:]))
        for (step, _), rollouts in groups.items():
            valid = [r for r in rollouts if r.outcome is not None]
            if not valid:
                continue
            entry = known.get(valid[0].environment) or only
            assert entry is not None, "its rollouts were restored by it"
            environment = entry[0]
            for slot in ("shaping", "yardstick"):  # of this copy: the outcome alone is compared
                object.__setattr__(environment, slot, None)
            group = Group(
                task=valid[0].task, rollouts=tuple(valid), environment=valid[0].environment
            )
            again = (await score_again(environment, group, running, step)).rollouts
            add(result, step, valid, again)
    finish(result)
    return result


def restored(data: Mapping[str, Any], task: Any, result: Any) -> Rollout[Any, Any]:
    """Return a stored rollout.

    Raises:
        RunError: its task or result is not of the types that the environment has now.
    """
    try:
        return Rollout.from_json(data, task, result)
    except ValueError as e:
        where, *reasons = (line.strip() for line in str(e).splitlines()[1:])
        raise RunError(
            f"a rollout of {data['environment']!r} was stored with another task or result than the "
            f"environment has: {where}: {'; '.join(reasons[:1])}; use the code that the run had"
        ) from e


def types_of(environment: Environment[Any, Any]) -> tuple[Any, Any]:
    """Return the types of task and result, from a first task and the annotations of `rollout`,
    which `from_json` restores.
    """
    task: Any = type(next(iter(environment.tasks("train")), Task(prompt="")))
    try:
        result = typing.get_type_hints(type(environment).rollout).get("return", Any)
    except NameError:
        result = Any
    return task, Any if isinstance(result, typing.TypeVar) else result


def add(result: RewardComparison, step: int, before: Sequence[Any], after: Sequence[Any]) -> None:
    """Count a group."""
    pairs = []
    for old, new in zip(before, after, strict=True):
        if new.outcome is None:
            reason = f"{new.termination.kind.value}: {new.termination.reason}"
            result.failed[reason] = result.failed.get(reason, 0) + 1
        else:
            pairs.append((old, old.outcome.total, new.outcome.total))
    if not pairs:
        return
    result.groups += 1
    for rollout, old, new in pairs:
        result.rollouts += 1
        result.old += old
        result.new += new
        right = (reached(old), reached(new))
        result.old_right += right[0]
        result.new_right += right[1]
        result.gained += right == (False, True)
        result.lost += right == (True, False)
        if differs(old, new):
            result.changed += 1
            change = Change(step=step, task=rollout.task.id, reply=rollout.reply, old=old, new=new)
            result.largest = sorted([*result.largest, change], key=lambda c: -abs(c.new - c.old))[
                :SHOWN
            ]
    for (_, a, x), (_, b, y) in itertools.combinations(pairs, 2):
        result.pairs += 1
        apart = (differs(a, b), differs(x, y))
        result.flips += all(apart) and (a > b) != (x > y)
        result.ties_broken += apart == (False, True)
        result.ties_made += apart == (True, False)
    if len(pairs) > 1:
        olds, news = [old for _, old, _ in pairs], [new for _, _, new in pairs]
        result.silent_old += not differs(max(olds), min(olds))
        result.silent_new += not differs(max(news), min(news))
        best = {i for i, old in enumerate(olds) if not differs(old, max(olds))}
        result.best_changed += not best & {
            i for i, new in enumerate(news) if not differs(new, max(news))
        }


def finish(result: RewardComparison) -> None:
    """Turn the sums into means."""
    for name in ("old", "new", "old_right", "new_right"):
        setattr(result, name, getattr(result, name) / max(1, result.rollouts))


def reached(value: float) -> bool:
    """Return whether the score counts as right."""
    from quintain.types import reaches

    return reaches(value)


def differs(a: float, b: float) -> bool:
    """Return whether two scores differ by more than a rounding error."""
    from quintain.types import SCORE_TOLERANCE

    return abs(a - b) > SCORE_TOLERANCE


def show(run: str, expression: str, result: RewardComparison) -> None:
    """Print the comparison."""
    from rich.console import Console
    from rich.text import Text

    from quintain.console import printable

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        Text(printable(f"{run}: {result.rollouts} rollouts, {result.groups} groups"), style="bold")
    )
    console.print(Text(printable(f"new reward: {expression}"), style="dim"))
    if result.rollouts:
        show_scores(console, result)
    else:
        console.print(Text("no rollout has a score under this reward", style="red"))
    for reason, count in result.failed.items():
        console.print(Text(printable(f"not scored: {count} x {reason}"), style="red"))


def show_scores(console: Console, result: RewardComparison) -> None:
    """Print what differs between the scores of the two rewards."""
    from rich.table import Table
    from rich.text import Text

    from quintain.console import printable

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("measure", "before", "after"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    table.add_row("mean reward", f"{result.old:.4g}", f"{result.new:.4g}")
    table.add_row("right (at least 1)", f"{result.old_right:.1%}", f"{result.new_right:.1%}")
    table.add_row("groups with one score", str(result.silent_old), str(result.silent_new))
    console.print(table)
    console.print(
        f"{result.changed} scores change: {result.gained} become right, {result.lost} become wrong"
    )
    if result.pairs:
        console.print(
            f"{result.pairs} pairs within groups: {result.flips} change their order "
            f"({result.flips / result.pairs:.1%}), {result.ties_broken} ties are broken, "
            f"{result.ties_made} made"
        )
        console.print(f"the best sample changes in {result.best_changed} groups")
    for change in result.largest:
        reply = printable(" ".join(change.reply.split()))[:80]
        console.print(
            Text(
                f"  step {change.step}, {change.task}: {change.old:.4g} -> {change.new:.4g}  "
                f"{reply!r}"
            )
        )
