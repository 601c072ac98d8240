"""`quintain traffic`: one round of training on the ratings of a server's replies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quintain.cli import Count, json_option, quiet_option
from quintain.errors import UsageError

if TYPE_CHECKING:
    from quintain.console import Screen

    from .guard import RewardGuard
    from .records import Traffic, TrainingRows
    from .rounds import Rounds, ServedWeights

EPILOG = """
\b
Examples:
  quintain serve MODEL --record traffic --follow      keeps replies and ratings, serves new weights
  quintain traffic traffic --model MODEL --guard arithmetic
  quintain traffic traffic --model MODEL --guard arithmetic --dry-run
"""


@click.command(epilog=EPILOG)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--model", "-m", required=True, help="What the server began with: version 0.")
@click.option("--guard", metavar="ENV", help="Environment whose reward must not fall.")
@click.option("--guard-arg", "guard_args", multiple=True, metavar="KEY=VALUE", help="Its field.")
@click.option("--guard-tasks", type=Count(1), default=64, show_default=True, help="Of split dev.")
@click.option(
    "--allowed-fall",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Of the mean reward of the guard.",
)
@click.option("--no-guard", is_flag=True, help="Serve new weights unmeasured.")
@click.option(
    "--least", type=Count(1), default=32, show_default=True, help="Rated replies of a round."
)
@click.option(
    "--staleness",
    type=Count(0),
    default=2,
    show_default=True,
    help="Versions by which a reply may be behind the weights.",
)
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="Largest share of one key or user; twice an equal share where that is more.",
)
@click.option("--lr", type=float, default=1e-5, show_default=True, help="Learning rate.")
@click.option("--batch", type=Count(1), default=32, show_default=True, help="Replies per update.")
@click.option(
    "--max-tokens", type=Count(1), default=256, show_default=True, help="Per turn, of the guard."
)
@click.option(
    "--set", "-s", "overrides", multiple=True, metavar="A.B=VALUE", help="learner, model."
)
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Of the order.")
@click.option("--dry-run", is_flag=True, help="Count what would train; train nothing.")
@quiet_option
@json_option
def traffic(folder: Path, dry_run: bool, quiet: bool, as_json: bool, **options: Any) -> None:
    """Train one round on the rated replies in FOLDER, which `quintain serve --record FOLDER` wrote.

    New weights are measured on the guard before they are served. If its reward falls, the old ones
    stay. If the replies of the served weights are rated lower than those of the weights before, by
    two standard errors, the weights before are served again. `quintain serve --follow` takes what
    is decided while it runs.
    """
    from quintain.console import for_terminal
    from quintain.store import take_lock

    from .records import read_traffic, select
    from .rounds import Rounds

    guard = _guard(options)
    found = read_traffic(folder)
    if (lock := take_lock(folder / "rounds.lock")) is None:
        raise UsageError(f"another round is trained in {str(folder)!r}; wait for its end")
    with lock, for_terminal(quiet=quiet or as_json) as screen:
        rounds = Rounds(folder, _base(options["model"]))
        served = rounds.served
        chosen = select(
            found.rated,
            lineage=rounds.lineage(served),
            staleness=options["staleness"],
            share=options["share"],
            used=rounds.used,
        )
        about = _about(found, chosen, served)
        if dry_run:
            line = {"decision": "dry run"}
        elif (back := _taken_back(rounds, found, served, options["share"])) is not None:
            line = back
        elif len(chosen.rows) < options["least"]:
            line = {"decision": "waiting", "least": options["least"]}
        else:
            line = _round(rounds, served, chosen, guard, options, screen)
    _show(about | line, as_json)


def _base(model: str) -> str:
    from quintain.store import model_named

    path = Path(model_named(model).path)
    return str(path.absolute()) if path.exists() else str(path)  # a server may run elsewhere


def _guard(options: dict[str, Any]) -> RewardGuard | None:
    """Return the guard that the options describe.

    Raises:
        UsageError: neither a guard nor its absence was chosen.
    """
    from quintain.recipe import EnvironmentSpec, EnvironmentTable, parsed_override

    from .guard import RewardGuard

    if bool(options["guard"]) == options["no_guard"]:
        raise UsageError(
            "name an environment whose reward must not fall with --guard ENV, or say --no-guard to "
            "serve new weights unmeasured"
        )
    if options["no_guard"]:
        return None
    args = {}
    for pair in options["guard_args"]:
        key, value, _ = parsed_override(pair)
        args[".".join(key)] = value
    table = EnvironmentTable.model_construct(use=options["guard"], args=args)
    return RewardGuard(
        spec=EnvironmentSpec.of(table),
        tasks=options["guard_tasks"],
        max_tokens=options["max_tokens"],
        allowed=options["allowed_fall"],
    )


def _about(found: Traffic, chosen: TrainingRows, served: ServedWeights) -> dict[str, Any]:
    return {
        "replies": found.replies,
        "rated": len(found.rated),
        "unreadable": found.unreadable,
        "unmatched": found.unmatched,
        "served_version": served.version,
        "rows": len(chosen.rows),
        "left_out": dict(chosen.left_out),
    }


def _taken_back(
    rounds: Rounds, found: Traffic, served: ServedWeights, share: float
) -> dict[str, Any] | None:
    """Serve the weights before *served* again if replies of *served* are rated lower."""
    from .records import select
    from .rounds import worse

    before = rounds.parent(served)
    if before is None:
        return None
    # the cap on one user, so that none can take weights back alone
    rated = [
        row
        for version in (served.version, before.version)
        for row in select(
            [r for r in found.rated if set(r.versions) == {version}],
            lineage=(version,),
            staleness=0,
            share=share,
            used=(),
        ).rows
    ]
    means = worse(rated, served, before)
    if means is None:
        return None
    return rounds.write(
        "taken back", before, taken_back=served.version, score=means[0], score_before=means[1]
    )


def _round(
    rounds: Rounds,
    served: ServedWeights,
    chosen: TrainingRows,
    guard: RewardGuard | None,
    options: dict[str, Any],
    screen: Screen,
) -> dict[str, Any]:
    from dataclasses import asdict

    from quintain.store import save_model

    from ..sft import TrainingOptions, base_model
    from .rounds import ServedWeights
    from .training import train

    training = TrainingOptions(
        model=served.model,
        out=None,
        epochs=1,
        lr=options["lr"],
        batch=options["batch"],
        overrides=options["overrides"],
        folder="runs",
        quiet=True,
        as_json=False,
    )
    recipe = training.recipe("quintain traffic", "none", seed=options["seed"])
    settings = training.settings(recipe)
    loaded = base_model(recipe, screen)
    screen.phase("training on rated replies")
    learner, trained = train(
        loaded,
        chosen.rows,
        version=served.version,
        lr=settings["lr"],
        batch=settings["batch"],
        seed=settings["seed"],
        options=settings["options"],
        progress=screen.update,
    )
    version = rounds.new_version()
    place = rounds.place(version)
    save_model(place, learner, loaded.tokenizer, {"traffic": {"version": version}})
    new = ServedWeights(version=version, model=str(place), parent=served.version)
    measured = _measured(guard, served, new, screen)
    holds = guard is None or guard.holds(measured["reward_before"], measured["reward_after"])
    line = rounds.write(
        "accepted" if holds else "rejected",
        new if holds else served,
        trained_from=served.version,
        version=version,
        left_out=dict(chosen.left_out),
        used=[row.name for row in chosen.rows],
        **measured,
        **asdict(trained),
    )
    if not holds:
        rounds.place(version)  # which removes what no round serves
    return line


def _measured(
    guard: RewardGuard | None, served: ServedWeights, new: ServedWeights, screen: Screen
) -> dict[str, float]:
    if guard is None:
        return {}
    rewards = []
    for one in (served, new):
        screen.phase(f"guard {guard.spec.name}: version {one.version}", guard.tasks)
        rewards.append(asyncio.run(guard.rewards(one.model, screen.advance)))
    before, after, tasks = guard.means(*rewards)
    return {"reward_before": before, "reward_after": after, "guard_tasks": tasks}


def _show(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({k: v for k, v in told.items() if k != "used"}))
        return
    click.echo(f"{told['replies']:,} replies, {told['rated']:,} rated; {told['rows']:,} can train")
    left_out: list[tuple[str, int]] = [*told["left_out"].items()]
    left_out += [(k, told[k]) for k in ("unreadable", "unmatched") if told[k]]
    for reason, number in left_out:
        click.echo(f"left out: {number:,} {reason}")
    match told["decision"]:
        case "waiting":
            click.echo(f"fewer than --least {told['least']}: nothing was trained")
        case "taken back":
            click.echo(
                f"version {told['taken_back']} was rated {told['score']:.3f}, version "
                f"{told['serve']} {told['score_before']:.3f}: version {told['serve']} is served "
                "again"
            )
        case "accepted" | "rejected":
            click.echo(
                f"version {told['version']}: {told['updates']} updates on {told['scored']} scores "
                f"and {told['edited']} edited answers"
            )
            if "reward_after" in told:
                change = f"{told['reward_before']:.4g} -> {told['reward_after']:.4g}"
                click.echo(f"guard: {change} on {told['guard_tasks']} tasks")
            stays = "" if told["decision"] == "accepted" else f"; version {told['serve']} stays"
            click.echo(f"{told['decision']}{stays}")
