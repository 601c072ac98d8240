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

from ..errors import UsageError
from ..training.screen import for_terminal, printable
from .options import Count

if TYPE_CHECKING:
    from ..evaluation.evaluation import ControlCheck, Evaluation
    from ..interfaces.engine import Engine
    from ..registry.binding import Signature
    from ..services.manager import Choice
    from ..training.resolve import EnvironmentSpec
    from ..training.screen import Screen

FORMATS = (".jsonl", ".parquet")
CONTROL_TASKS = 100


@click.command("eval")
@click.argument("environment")
@click.option(
    "--engine", "-e", default="quintain/embedded", show_default=True, help="Engine, @CONTROL or URL (OpenAI API)."
)
@click.option("--model", "-m", default="", help="Folder, Hugging Face id, run, or the server's name of the model.")
@click.option("--split", "-s", default="test", show_default=True, help="train, dev or test.")
@click.option("--tasks", "-n", type=Count(1), help="Evaluate the first N tasks (default: all of a finite split).")
@click.option("--samples", type=Count(1), default=1, show_default=True, help="Rollouts per task.")
@click.option(
    "--k", "ks", default="", metavar="K,K,...", help="Values of k for pass@k and cons@k (default: 1, 2, 4, ...)."
)
@click.option("--temperature", "-t", type=float, help="Temperature (default: 0, greedy, for one sample, else 1).")
@click.option("--max-tokens", type=Count(1), default=1024, show_default=True, help="New tokens per turn.")
@click.option("--concurrency", type=Count(1), help="Concurrent episodes (default: chosen by the engine).")
@click.option("--arg", "-a", "args", multiple=True, metavar="KEY=VALUE", help="Field of the environment (repeatable).")
@click.option("--data", metavar="FILE", help="Rows of the environment's tasks: its field `data`.")
@click.option("--engine-arg", "engine_args", multiple=True, metavar="KEY=VALUE", help="Engine setting (repeatable).")
@click.option("--service", "services", multiple=True, metavar="SLOT=NAME", help="Service of a slot (repeatable).")
@click.option("--service-arg", "service_args", multiple=True, metavar="SLOT.KEY=VALUE", help="Setting of a service.")
@click.option(
    "--reward", metavar="EXPR", help='FILE:function, a name or "math_equal * format_tags" (default: its own).'
)
@click.option("--system", metavar="TEXT", help="System message (default: that of the environment or the run).")
@click.option("--seed", type=Count(0), default=0, show_default=True, help="Random seed.")
@click.option("--retries", type=Count(0), default=1, show_default=True, help="Retries of an episode that fails.")
@click.option(
    "--max-failures",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Largest share that may fail.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the rollouts to FILE.parquet or FILE.jsonl.")
@click.option("--controls", is_flag=True, help="Check that the environment's control policies score as declared.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    environment: str,
    engine: str,
    model: str,
    split: str,
    tasks: int | None,
    samples: int,
    ks: str,
    temperature: float | None,
    max_tokens: int,
    concurrency: int | None,
    args: Sequence[str],
    data: str | None,
    engine_args: Sequence[str],
    services: Sequence[str],
    service_args: Sequence[str],
    reward: str | None,
    system: str | None,
    seed: int,
    retries: int,
    max_failures: float,
    out: Path | None,
    controls: bool,
    as_json: bool,
) -> int:
    """Evaluate a policy on ENVIRONMENT: pass@1 with a 95 % interval, pass@k, cons@k.

    ENVIRONMENT is the name of an installed environment, module:Class or path/to/file.py:Class. Rollouts that failed
    for reasons other than the policy are excluded from every estimate and reported separately. Ctrl-C and SIGTERM show
    and write the rollouts that are finished; the exit status is then 130.

    \b
    quintain eval arithmetic --engine @oracle --tasks 100
    quintain eval gsm8k --engine http://127.0.0.1:8000 --samples 8 --k 1,4,8
    quintain eval ./mine.py:Mine --controls
    """
    from ..models.hf import check_folder
    from ..registry.binding import check_args, signature_of
    from ..registry.lookup import current
    from ..training.interrupts import run_stoppable
    from ..training.recipe.rewards import as_expression
    from ..training.resolve import resolve_environment
    from ..training.rollout_table import to_parquet
    from ..training.runs import model_named
    from ..training.storage import write_atomically
    from ..types.sampling import Sampling

    if controls:
        _alone("--controls", "engine", "model", "engine_args", "out")
    _check_out(out)
    if model and not _serves(engine):
        check_folder(model)  # before torch is imported
        if not engine.startswith("@") and _takes_model(signature_of(current().load("engine", engine))):
            # By default the model of a run gets the system message that it was trained with.
            model, trained_with = model_named(model)
            system = trained_with or None if system is None else system
    spec = resolve_environment(environment, {}, reward=reward and as_expression(reward), system=system)
    spec = replace(spec, args=_fields([*args, *([f"data={data}"] if data else [])], spec.component, "--arg"))
    chosen = services_of(services, service_args)
    if engine in spec.component.controls():
        raise UsageError(f"{engine!r} is a control of {spec.name!r} and no engine: --engine @{engine}")
    check_args(spec.component, spec.args, who=f"environment {spec.name!r}")  # before services start
    default = float(samples > 1)
    try:
        sampling = Sampling(temperature=default if temperature is None else temperature, max_tokens=max_tokens)
    except ValueError as e:
        raise UsageError(str(e)) from e
    settings: dict[str, Any] = {"name": environment, "split": split, "samples": samples, "sampling": sampling}
    settings |= {"ks": _ks(ks), "concurrency": concurrency, "retries": retries, "seed": seed}
    if controls:
        return _show_controls(
            run_stoppable(_controls(spec, chosen, settings | {"count": tasks or CONTROL_TASKS})), as_json
        )
    client = None if engine.startswith("@") else _engine(engine, model, engine_args)
    try:
        with for_terminal() as screen:
            result = run_stoppable(_evaluated(spec, chosen, client, engine, tasks, settings, screen), screen)
    except KeyboardInterrupt as e:
        raise click.Abort("interrupted before the first rollout ended: nothing was evaluated") from e
    if out is not None:
        lines = (json.dumps(r.to_json()) + "\n" for r in result.rollouts)
        write_atomically(out, to_parquet(0, result.rollouts) if out.suffix == ".parquet" else "".join(lines).encode())
    _show(result, as_json, out)
    return 130 if result.interrupted else _verdict(result, max_failures)


async def _evaluated(
    spec: EnvironmentSpec,
    choices: Mapping[str, Choice],
    client: Engine | None,
    control: str,
    tasks: int | None,
    settings: dict[str, Any],
    screen: Screen,
) -> Evaluation:
    from ..evaluation.controls import ControlEngine
    from ..evaluation.evaluation import evaluate as measure
    from ..evaluation.evaluation import tasks_of
    from ..services.manager import BY_OPTION, opened

    async with opened(choices, spec.slots, {}, fix=BY_OPTION) as services:
        environment = spec.make(services)
        chosen = tasks_of(environment, settings["split"], tasks, name=spec.name)
        engine = client or ControlEngine(environment, control)
        async with engine:
            screen.phase(f"{spec.name} {settings['split']}", len(chosen) * settings["samples"])
            settings |= {"tasks": chosen, "services": services, "progress": screen.advance, "partial": True}
            return await measure(environment, engine, **settings)


async def _controls(
    spec: EnvironmentSpec, choices: Mapping[str, Choice], settings: Mapping[str, Any]
) -> tuple[ControlCheck, ...]:
    from ..evaluation.evaluation import check_controls
    from ..services.manager import BY_OPTION, opened

    async with opened(choices, spec.slots, {}, fix=BY_OPTION) as services:
        return await check_controls(spec.make(services), services=services, **settings)


def _alone(option: str, *others: str) -> None:
    """Refuse the options *others*, which *option* would ignore."""
    context = click.get_current_context()
    option_names = {p.name: p.opts[0] for p in context.command.params}
    refused = [
        option_names[name] for name in others if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    ]
    if refused:
        raise click.UsageError(f"{option} runs the environment's own controls; leave out {', '.join(refused)}")


def services_of(pairs: Sequence[str], args: Sequence[str]) -> dict[str, Choice]:
    """The service of each slot in ``--service`` and ``--service-arg``; by default the service named like the slot."""
    from ..registry.lookup import current
    from ..services.manager import find_service
    from ..training.recipe.tables import override
    from ..training.resolve import with_model

    names: dict[str, str] = {}
    for pair in pairs:
        slot, _, name = (part.strip() for part in pair.partition("="))
        if not slot or not name:
            raise UsageError(f"--service {pair!r}: expected SLOT=NAME, as in judge=llm")
        names[slot] = name
    settings: dict[str, list[str]] = {}
    for pair in args:
        path = override(pair)[0]
        if len(path) != 2:
            raise UsageError(f"--service-arg {pair!r}: expected SLOT.KEY=VALUE, as in judge.base_url=http://...")
        settings.setdefault(path[0], []).append(pair.partition(".")[2])
    choices: dict[str, Choice] = {}
    for slot in [*names, *(s for s in settings if s not in names)]:
        use = names.get(slot, slot)
        component = current().resolve(find_service(use))
        choices[slot] = with_model(use, _fields(settings.get(slot, ()), component, "--service-arg"))
    return choices


def _fields(pairs: Sequence[str], component: Any, option: str) -> dict[str, Any]:
    """Parse ``key=value`` options; a value is TOML, or plain text if the field is text."""
    from ..registry.binding import signature_of
    from ..training.recipe.tables import override

    fields = {f.name: f for f in signature_of(component).fields}
    values: dict[str, Any] = {}
    for pair in pairs:
        (key, *rest), value, written = override(pair)
        if rest:
            raise UsageError(f"{option} {pair!r}: expected KEY=VALUE without a dot in the key")
        text = key in fields and fields[key].type is str and not isinstance(value, str)
        values[key] = written if text else value
    return values


def _ks(text: str) -> tuple[int, ...]:
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not all(p.isdecimal() and len(p) < 10 for p in parts):
        raise UsageError(f"--k {text[:100]!r}: expected whole numbers with commas, such as 1,4,8")
    return tuple(map(int, parts))


def _serves(engine: str) -> bool:
    """Whether *engine* is a server, which has its own names of models."""
    return engine == "openai" or engine.startswith(("http://", "https://"))


def _takes_model(signature: Signature) -> bool:
    return "model" in {field.name for field in signature.fields}


def _engine(name: str, model: str, pairs: Sequence[str]) -> Engine:
    """The engine *name*, not started."""
    from ..interfaces.engine import Engine
    from ..registry.binding import bind, signature_of
    from ..registry.lookup import current
    from ..training.recipe.load import label

    url = name if name.startswith(("http://", "https://")) else ""
    component = current().load("engine", "quintain-openai/openai" if url else name)
    args = _fields(pairs, component, "--engine-arg")
    if url:
        path = url.partition("//")[2].partition("/")[2]
        args["base_url"] = url if path.strip("/") else url.rstrip("/") + "/v1"
    takes_model = _takes_model(signature_of(component))
    if model and not takes_model:
        raise UsageError(f"the engine {name!r} takes no model")
    if model:
        args["model"] = model
    elif takes_model and not _serves(name) and "model" not in args:
        raise UsageError(f"the engine {label(name)!r} needs a model: --model FOLDER, RUN or a Hugging Face id")
    shown = "openai" if url else label(name)  # a URL may have a password
    client = bind(component, args, {}, who=f"engine {shown!r}")
    if not isinstance(client, Engine):
        raise UsageError(f"{shown!r} is a {type(client).__name__}; expected an engine (`quintain list engines`)")
    return client


def _show(result: Evaluation, as_json: bool, out: Path | None) -> None:
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
        return
    console = Console()
    title = f"{result.environment} {result.split}: {result.engine}, {len(result.groups)} tasks x {result.samples}"
    console.print(Text(printable(f"{title}, temperature {result.sampling.temperature:g}"), style="bold"))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("measure", "value", "95 % interval", "tasks"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name, e in result.estimates().items():
        cells = (f"{e.value:.1%}", f"{e.low:.1%} - {e.high:.1%}", str(e.tasks)) if e else ("none", "", "0")
        table.add_row(Text(name, style="cyan"), *cells)
    if (r := result.reward) and result.accuracy and abs(r.value - result.accuracy.value) > 1e-9:
        table.add_row(Text("reward", style="cyan"), f"{r.value:.4g}", f"{r.low:.4g} - {r.high:.4g}", str(r.tasks))
    console.print(table)
    if result.interrupted:
        about = f"{len(result.rollouts)} of {result.planned} rollouts; short episodes end first and weigh too much"
        console.print(f"interrupted: {about}", highlight=False)
    terminations = ", ".join(f"{n} {kind}" for kind, n in result.terminations.items())
    console.print(
        f"terminations: {terminations}; {result.tokens:.1f} tokens per rollout; {result.seconds:.1f} s", highlight=False
    )
    for name, value in result.metrics.items():
        console.print(Text(printable(f"{name}: {value:.4g}")))
    for reason, n in list(result.reasons.items())[:5]:
        console.print(Text(printable(f"failed, left out of the estimates: {n} x {reason}"), style="red"))
    if out is not None:
        console.print(Text(printable(f"rollouts: {out}")))


def _show_controls(checks: Sequence[ControlCheck], as_json: bool) -> int:
    wrong = [c for c in checks if c.wrong]
    if as_json:
        rows = [
            {"control": c.name, "expected": c.scores, "ok": not c.wrong, "wrong": c.wrong, **c.evaluation.to_json()}
            for c in checks
        ]
        click.echo(json.dumps({"ok": not wrong, "controls": rows}, indent=2))
        return 1 if wrong else 0
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("control", "expected", "success", "reward", "status"):
        table.add_column(name, overflow="fold")
    for c in checks:
        accuracy, reward = c.evaluation.accuracy, c.evaluation.reward
        values = (f"{accuracy.value:.1%}" if accuracy else "none", f"{reward.value:.4g}" if reward else "none")
        status = Text(printable(c.wrong), style="red") if c.wrong else Text("ok", style="green")
        table.add_row(Text(f"@{c.name}", style="cyan"), c.scores or "anything", *values, status)
    Console().print(table)
    return 1 if wrong else 0


def _verdict(result: Evaluation, most: float) -> int:
    """The exit status: 1 if too many rollouts failed for the estimates to be representative."""
    if result.accuracy is not None and result.failed <= most:
        return 0
    reason = printable(next(iter(result.reasons), ""))
    allowed = f"at most {most:.1%} may, see --max-failures"
    click.echo(f"error: {result.failed:.1%} of the rollouts failed ({allowed}), most with {reason}", err=True)
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
        raise UsageError("--out FILE.parquet needs pyarrow: pip install 'quintain[train]', or write FILE.jsonl")
