"""``quintain eval``: evaluate a model, a server or a control policy on an environment."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quintain.cli import CommandWithHints, Count, arg_option, json_option
from quintain.console import for_terminal, printable
from quintain.errors import UsageError

from .. import arguments_of, service_options, services_of
from .engines import engine_of, folder_of_model
from .report import metrics_of, terminations_of, to_json

if TYPE_CHECKING:
    from quintain import Engine
    from quintain.console import Screen
    from quintain.evaluation import Evaluation
    from quintain.recipe import EnvironmentSpec, EnvironmentTable
    from quintain.services import Choice

    from ..controls import ControlCheck
    from .like import EvaluationSettings

EMBEDDED = "quintain/embedded"
FORMATS = (".jsonl", ".parquet")
REPLACEMENTS = {"path": "--arg path={}", "env": "{} without --env"}
"""Options that people try, and the words that do the same; ``{}`` is the value."""
CONTROL_TASKS = 100


@click.command("eval", cls=CommandWithHints, replacements=REPLACEMENTS)
@click.argument("environment", required=False)
@click.option(
    "--like", metavar="RUN", help="Evaluate RUN on its first environment, as its recipe says."
)
@click.option(
    "--engine",
    default=EMBEDDED,
    show_default=True,
    help="Engine, @CONTROL or URL (OpenAI API).",
)
@click.option(
    "--model",
    "-m",
    default="",
    help='Folder, Hugging Face id, run, "default", or the server\'s name of the model.',
)
@click.option(
    "--split",
    default="test",
    show_default=True,
    help="train, dev or test; without it all rows of a --data file.",
)
@click.option(
    "--tasks",
    type=Count(1),
    help="Evaluate the first N tasks (default: all of a finite split).",
)
@click.option("--samples", type=Count(1), default=1, show_default=True, help="Rollouts per task.")
@click.option(
    "--k",
    "ks",
    default="",
    metavar="K,K,...",
    help="Values of k for pass@k and cons@k (default: 1, 2, 4, ...).",
)
@click.option(
    "--temperature",
    "-t",
    type=float,
    help="Temperature (default: 0, greedy, for one sample, else 1).",
)
@click.option(
    "--max-tokens", type=Count(1), default=1024, show_default=True, help="New tokens per turn."
)
@click.option(
    "--concurrency", type=Count(1), help="Concurrent episodes (default: chosen by the engine)."
)
@arg_option
@click.option("--data", metavar="FILE", help="Rows of the environment's tasks: its field `data`.")
@click.option(
    "--engine-arg",
    "engine_args",
    multiple=True,
    metavar="KEY=VALUE",
    help="Engine setting (repeatable).",
)
@service_options
@click.option(
    "--reward",
    metavar="EXPR",
    help='FILE:function, a name or "math_equal * format_tags" (default: its own).',
)
@click.option(
    "--system", metavar="TEXT", help="System message (default: that of the environment or the run)."
)
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--retries",
    type=Count(0),
    default=1,
    show_default=True,
    help="Retries of an episode that fails.",
)
@click.option(
    "--max-failures",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Largest share that may fail.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the rollouts to FILE.parquet or FILE.jsonl.",
)
@click.option(
    "--controls",
    is_flag=True,
    help="Check that the environment's control policies score as declared, on 100 tasks unless "
    "--tasks says another number.",
)
@json_option
def evaluate(
    environment: str | None,
    like: str | None,
    engine: str,
    model: str,
    engine_args: Sequence[str],
    controls: bool,
    max_failures: float,
    out: Path | None,
    as_json: bool,
    **measured: Any,
) -> int:
    """Evaluate a policy on ENVIRONMENT: pass@1 with a 95 % interval, pass@k, cons@k.

    ENVIRONMENT is the name of an installed environment, module:Class or path/to/file.py:Class.
    Rollouts that failed for reasons other than the policy are left out from every estimate and
    reported separately. Ctrl-C and SIGTERM show and write the rollouts that are finished; the exit
    status is then 130.

    --like takes model, environment with its arguments and limits, services, split, tasks, samples,
    decoding and seed of a run; other options override them.

    \b
    quintain eval --like arithmetic-1
    quintain eval arithmetic --engine @oracle --tasks 100
    quintain eval gsm8k --engine http://127.0.0.1:8000 --samples 8 --k 1,4,8
    quintain eval ./mine.py:Mine --controls
    """
    from quintain.process import run_stoppable
    from quintain.registry import check_args, short_name
    from quintain.store import to_parquet, write_atomically

    if like is not None and environment is not None:
        raise click.UsageError("--like names the environment of the run; leave out ENVIRONMENT")
    if like is None and environment is None:
        raise click.UsageError(
            "name an ENVIRONMENT (`quintain list environment`), or a run with --like RUN"
        )
    if controls:
        _alone("--controls", "engine", "model", "engine_args", "out")
    _check_out(out)
    settings = _settings(environment, like, measured)
    if not (model or controls or engine.startswith("@")):
        model = settings.model
    model, trained_with = folder_of_model(
        engine, model, settings.environment.use, measured["args"], like
    )
    # By default the model of a run gets the system message that it was trained with.
    if settings.environment.system is None:
        settings = settings.with_environment(system=trained_with or None)
    spec = _spec(settings.environment, measured, whole_file=like is None)
    services = services_of(measured["services"], measured["service_args"], settings.services)
    if engine in spec.component.controls():
        raise UsageError(
            f"{engine!r} is a control of {spec.name!r} and no engine: --engine @{engine}"
        )
    check_args(spec.component, spec.args, who=f"environment {spec.name!r}")  # before services start
    how: dict[str, Any] = {
        "name": settings.environment.use,
        "split": settings.split,
        "samples": settings.samples,
        "sampling": settings.sampling,
        "seed": settings.seed,
        "ks": _ks(measured["ks"]),
        "concurrency": measured["concurrency"],
        "retries": measured["retries"],
    }
    if controls:
        how["count"] = settings.tasks or CONTROL_TASKS
        return _show_controls(run_stoppable(_controls(spec, services, how)), as_json)
    chosen = any(pair.startswith("dtype=") for pair in engine_args)
    if settings.dtype and short_name(engine) == short_name(EMBEDDED) and not chosen:
        # another type rounds otherwise, and some tasks end otherwise than in the run
        engine_args = [*engine_args, f"dtype={settings.dtype}"]
    client = None if engine.startswith("@") else engine_of(engine, model, engine_args)
    try:
        with for_terminal() as screen:
            result = run_stoppable(
                _evaluated(spec, services, client, engine, settings.tasks, how, screen), screen
            )
    except KeyboardInterrupt as e:
        raise click.Abort(
            "interrupted before the first rollout ended: nothing was evaluated"
        ) from e
    if out is not None:
        lines = (json.dumps(r.to_json()) + "\n" for r in result.rollouts)
        write_atomically(
            out,
            to_parquet(0, result.rollouts) if out.suffix == ".parquet" else "".join(lines).encode(),
        )
    _show(result, as_json, out)
    return 130 if result.interrupted else _verdict(result, max_failures)


def _settings(
    environment: str | None, like: str | None, options: Mapping[str, Any]
) -> EvaluationSettings:
    """Return the settings of the run *like*, changed by the options that were given; without one,
    those of *environment* and all *options*.
    """
    from quintain import Sampling
    from quintain.recipe import EnvironmentTable, as_expression
    from quintain.store import RunFolder, find_run

    from .like import EvaluationSettings, settings_of

    if like is None:
        settings = EvaluationSettings(
            environment=EnvironmentTable.model_construct(use=environment),  # any text: no recipe
            services={},
            split=options["split"],
            tasks=options["tasks"],
            samples=options["samples"],
            sampling=Sampling(
                temperature=float(options["samples"] > 1), max_tokens=options["max_tokens"]
            ),
            seed=options["seed"],
        )
    else:
        settings = settings_of(RunFolder(find_run(like), lock=False))
    context = click.get_current_context()
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    texts = {name: given[name] for name in ("reward", "system") if name in given}
    if texts.get("reward"):
        texts["reward"] = as_expression(texts["reward"])
    try:
        sampling = settings.sampling.replace(
            **{name: given[name] for name in ("temperature", "max_tokens") if name in given}
        )
    except ValueError as e:
        raise UsageError(str(e)) from e
    numbers = {name: given[name] for name in ("split", "tasks", "samples", "seed") if name in given}
    return replace(settings.with_environment(**texts), sampling=sampling, **numbers)


def _spec(
    table: EnvironmentTable, options: Mapping[str, Any], *, whole_file: bool
) -> EnvironmentSpec:
    """Return the environment of *table* with the arguments of the command line.

    Args:
        whole_file: the data file of *table* is only evaluated, so all its rows are the split
            ``test`` unless one is chosen. A file that the command line names is always evaluated
            so.
    """
    from quintain.recipe import EnvironmentSpec

    spec = EnvironmentSpec.of(table)
    data = options["data"]
    changes = arguments_of(
        [*options["args"], *([f"data={data}"] if data else [])], spec.component, "--arg"
    )
    spec = replace(spec, args={**spec.args, **changes})
    return replace(spec, args=_of_whole_file(spec)) if whole_file or "data" in changes else spec


async def _evaluated(
    spec: EnvironmentSpec,
    choices: Mapping[str, Choice],
    client: Engine | None,
    control: str,
    tasks: int | None,
    how: dict[str, Any],
    screen: Screen,
) -> Evaluation:
    from quintain.evaluation import evaluate as measure
    from quintain.evaluation import tasks_of
    from quintain.services import BY_OPTION, started_services

    from .. import ControlEngine

    async with started_services(choices, spec.slots, {}, fix=BY_OPTION) as services:
        environment = spec.make(services)
        chosen = tasks_of(environment, how["split"], tasks, name=spec.name)
        engine = client or ControlEngine(environment, control)
        async with engine:
            screen.phase(f"{spec.name} {how['split']}", len(chosen) * how["samples"])
            how |= {
                "tasks": chosen,
                "services": services,
                "progress": screen.advance,
                "partial": True,
            }
            return await measure(environment, engine, **how)


async def _controls(
    spec: EnvironmentSpec, choices: Mapping[str, Choice], how: Mapping[str, Any]
) -> tuple[ControlCheck, ...]:
    from quintain.services import BY_OPTION, started_services

    from ..controls import check_controls

    async with started_services(choices, spec.slots, {}, fix=BY_OPTION) as services:
        return await check_controls(spec.make(services), services=services, **how)


def _of_whole_file(spec: EnvironmentSpec) -> Mapping[str, Any]:
    """Return the arguments of the environment that make all rows of a file the split ``test``,
    unless the user chose a split.

    Environments that cut a file into splits have the field ``splits`` for it. Only training needs
    the cut.
    """
    from quintain.registry import signature_of

    chosen = (
        click.get_current_context().get_parameter_source("split") is not ParameterSource.DEFAULT
    )
    cuts = any(field.name == "splits" for field in signature_of(spec.component).fields)
    if (
        chosen
        or not cuts
        or "splits" in spec.args
        or not Path(str(spec.args.get("data", ""))).is_file()
    ):
        return spec.args
    return {**spec.args, "splits": "test"}


def _alone(option: str, *others: str) -> None:
    """Refuse the options *others*, which *option* would ignore."""
    context = click.get_current_context()
    option_names = {p.name: p.opts[0] for p in context.command.params}
    refused = [
        option_names[name]
        for name in others
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    if refused:
        raise click.UsageError(
            f"{option} runs the environment's own controls; leave out {', '.join(refused)}"
        )


def _ks(text: str) -> tuple[int, ...]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not all(p.isdecimal() and len(p) < 10 for p in parts):
        raise UsageError(f"--k {text[:100]!r}: expected whole numbers with commas, such as 1,4,8")
    return tuple(map(int, parts))


def _show(result: Evaluation, as_json: bool, out: Path | None) -> None:
    if as_json:
        click.echo(json.dumps(to_json(result), indent=2))
        return
    console = Console()
    title = (
        f"{result.environment} {result.split}: {result.engine}, {len(result.groups)} tasks x "
        f"{result.samples}"
    )
    console.print(
        Text(printable(f"{title}, temperature {result.sampling.temperature:g}"), style="bold")
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("measure", "value", "95 % interval", "tasks"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name, e in result.estimates().items():
        cells = (
            (f"{e.value:.1%}", f"{e.low:.1%} - {e.high:.1%}", str(e.tasks))
            if e
            else ("none", "", "0")
        )
        table.add_row(Text(name, style="cyan"), *cells)
    if (r := result.reward) and result.accuracy and abs(r.value - result.accuracy.value) > 1e-9:
        table.add_row(
            Text("reward", style="cyan"),
            f"{r.value:.4g}",
            f"{r.low:.4g} - {r.high:.4g}",
            str(r.tasks),
        )
    if y := result.yardstick:
        table.add_row(
            Text("yardstick", style="cyan"),
            f"{y.value:.4g}",
            f"{y.low:.4g} - {y.high:.4g}",
            str(y.tasks),
        )
    console.print(table)
    if result.interrupted:
        progress = (
            f"{len(result.rollouts)} of {result.planned} rollouts; short episodes end first and "
            f"weigh too much"
        )
        console.print(f"interrupted: {progress}", highlight=False)
    terminations = ", ".join(f"{n} {kind}" for kind, n in terminations_of(result).items())
    console.print(
        f"terminations: {terminations}; {result.tokens:.1f} tokens per rollout; "
        f"{result.seconds:.1f} s",
        highlight=False,
    )
    for name, value in metrics_of(result).items():
        console.print(Text(printable(f"{name}: {value:.4g}")))
    for reason, n in list(result.reasons.items())[:5]:
        console.print(
            Text(printable(f"failed, left out of the estimates: {n} x {reason}"), style="red")
        )
    if out is not None:
        console.print(Text(printable(f"rollouts: {out}")))


def _show_controls(checks: Sequence[ControlCheck], as_json: bool) -> int:
    wrong = [c for c in checks if c.wrong]
    if as_json:
        rows = [
            {
                "control": c.name,
                "expected": c.scores,
                "ok": not c.wrong,
                "wrong": c.wrong,
                **to_json(c.evaluation),
            }
            for c in checks
        ]
        click.echo(json.dumps({"ok": not wrong, "controls": rows}, indent=2))
        return 1 if wrong else 0
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("control", "expected", "success", "reward", "status"):
        table.add_column(name, overflow="fold")
    for c in checks:
        accuracy, reward = c.evaluation.accuracy, c.evaluation.reward
        values = (
            f"{accuracy.value:.1%}" if accuracy else "none",
            f"{reward.value:.4g}" if reward else "none",
        )
        status = Text(printable(c.wrong), style="red") if c.wrong else Text("ok", style="green")
        table.add_row(Text(f"@{c.name}", style="cyan"), c.scores or "anything", *values, status)
    Console().print(table)
    return 1 if wrong else 0


def _verdict(result: Evaluation, allowed: float) -> int:
    """Return the exit status: 1 if too many rollouts failed for the estimates to be
    representative.
    """
    if result.accuracy is not None and result.failed <= allowed:
        return 0
    if result.accuracy is None:
        text = f"all {len(result.rollouts):,} rollouts failed: there is nothing to estimate"
    else:
        failed = sum(not rollout.valid for rollout in result.rollouts)
        counts = f"{failed:,} of {len(result.rollouts):,} rollouts ({result.failed:.1%})"
        text = f"{counts} failed; --max-failures allows {allowed:.1%}"
    click.echo(f"error: {text}", err=True)
    return 1


def _check_out(out: Path | None) -> None:
    """Refuse, before the evaluation, a file that cannot be written after it."""
    if out is None:
        return
    if out.suffix not in FORMATS:
        raise UsageError(f"--out {str(out)!r}: expected a file that ends in {' or '.join(FORMATS)}")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {str(out)!r}: there is no folder {str(out.absolute().parent)!r}")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(
            "--out FILE.parquet needs pyarrow: pip install 'quintain[train]', or write FILE.jsonl"
        )
