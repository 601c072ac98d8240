"""`quintain steer`, and the hooks that hand its orders to the run.

An order is a file in the folder ``steering`` of the run, which the run removes as it takes it. What
the run did then stands in ``provenance.jsonl``, with the step, from which another run can repeat it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from quintain.cli import Count, folder_option
from quintain.console import program_name
from quintain.errors import RunError, UsageError
from quintain.interfaces import Steering
from quintain.store import RunFolder, find_run, lock_owner, write_atomically

from .replicas import replicas_of

__all__ = ["SteeringOrder", "give", "is_running", "waiting_orders"]

FOLDER = "steering"
POLL = 0.25
"""Seconds between two looks for orders."""
TAKEN = 5.0
"""Seconds that the command waits until a run takes an order."""
NUMBERS = ("max_staleness", "concurrency", "replicas")
ACTIONS = ("pause", "resume", "evaluate", "checkpoint", "stop", *NUMBERS)
STOP_REASON = "quintain steer"


@dataclass(frozen=True, kw_only=True)
class SteeringOrder:
    """What somebody asks of a run.

    Attributes:
        action: one of `ACTIONS`.
        value: of `NUMBERS`.
        step: that it concerns: the run evaluates, saves or stops at its end, and has the setting
            from its begin on. 0 is the step that runs, or the next one for a setting.

    Raises:
        UsageError: there is no such action, or it has no or an unexpected value.
    """

    action: str
    value: int | None = None
    step: int = 0

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise UsageError(f"no action {self.action!r}; there are {', '.join(ACTIONS)}")
        if (self.value is not None) != (self.action in NUMBERS):
            needs = "needs a number" if self.action in NUMBERS else "takes no number"
            raise UsageError(f"{self.action} {needs}")
        # JSON has fractions, NaN and true where a whole number is expected.
        if self.value is not None and (type(self.value) is not int or self.value < 1):
            raise UsageError(f"{self.action} is {self.value}; expected a whole number from 1 up")
        if type(self.step) is not int or self.step < 0:
            raise UsageError(f"step is {self.step}; expected a whole number from 0 up")


def give(folder: Path, order: SteeringOrder) -> Path:
    """Leave *order* for the run in *folder*; return its file, which vanishes when it is taken."""
    content = {"action": order.action, "value": order.value, "step": order.step}
    file = folder / FOLDER / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.json"
    write_atomically(file, json.dumps(content).encode())
    return file


def waiting_orders(folder: Path) -> list[tuple[Path, SteeringOrder]]:
    """Return the orders that the run in *folder* has not taken, oldest first. A file that is no
    order is left out.
    """
    orders = []
    for file in sorted((folder / FOLDER).glob("*.json")):
        try:
            content = json.loads(file.read_bytes())
            fields = {key: content[key] for key in ("action", "value", "step")}
            orders.append((file, SteeringOrder(**fields)))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, UsageError):
            continue
    return orders


def is_running(folder: Path) -> bool:
    """Return whether a process trains the run in *folder*."""
    return bool(lock_owner(folder / "run.lock"))


def repeated(records: Iterable[Mapping[str, Any]]) -> list[SteeringOrder]:
    """Return the orders that repeat what the *records* of another run say it did; pauses change
    nothing and are left out.

    Of a step that a resumed run did again, the last records count.
    """
    by_step: dict[int, list[SteeringOrder]] = {}
    last = -1
    for record in records:
        step = record["step"]
        if step < last:  # resumed from a checkpoint before
            by_step = {known: orders for known, orders in by_step.items() if known <= step}
        last = step
        for action, value in record["steering"].items():
            if action in NUMBERS:
                order = SteeringOrder(action=action, value=value, step=step + 1)
            elif action in ("evaluate", "checkpoint", "stop"):
                order = SteeringOrder(action=action, step=step)
            else:
                continue
            by_step.setdefault(step, []).append(order)
    return [order for orders in by_step.values() for order in orders]


class OrderReader:
    """Takes the orders of a run, each in its step.

    Args:
        folder: of the run.
        steering: what the run looks at.
        step: the last complete step.
        orders: beside those that come as files.
    """

    def __init__(
        self, folder: Path, steering: Steering, step: int, orders: Iterable[SteeringOrder] = ()
    ) -> None:
        self._folder, self._steering, self._step = folder, steering, step
        self._orders = list(orders)
        self._timer: asyncio.TimerHandle | None = None

    def poll(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look for orders now and every `POLL` seconds until `stop`."""
        self.read()
        self._timer = loop.call_later(POLL, self.poll, loop)

    def read(self) -> None:
        """Take the orders that have come."""
        if not (self._folder / FOLDER).is_dir():
            return
        for file, order in waiting_orders(self._folder):
            self._orders.append(order)
            file.unlink(missing_ok=True)
        self._follow()

    def ended(self, step: int) -> None:
        """Note that *step* is complete, and ask for what concerns the next one."""
        self._step = step
        self._follow()

    def stop(self) -> None:
        """Take no further order."""
        if self._timer is not None:
            self._timer.cancel()

    def _follow(self) -> None:
        later = []
        for order in self._orders:
            if order.step > self._step + 1:
                later.append(order)
            elif order.action in ("pause", "resume"):
                self._steering.paused = order.action == "pause"
            elif order.action == "stop":
                self._steering.stop = STOP_REASON
            else:
                value = True if order.value is None else order.value
                setattr(self._steering, order.action, value)
        self._orders = later


_reader: OrderReader | None = None


def quintain_on_run_start(event: Any) -> None:
    """Take orders from now on; those of the run that ``QUINTAIN_STEERING`` names come first."""
    global _reader
    folder = Path(event.folder)
    for file, _ in waiting_orders(folder):  # of a process that has ended
        file.unlink(missing_ok=True)
    orders: list[SteeringOrder] = []
    if other := os.environ.get("QUINTAIN_STEERING"):
        source = RunFolder(find_run(other, folder.parent), lock=False)
        orders = [o for o in repeated(source.steering()) if o.step > event.step]
    _reader = OrderReader(folder, event.steering, event.step, orders)
    _reader.ended(event.step)
    _reader.poll(asyncio.get_running_loop())


def quintain_on_step_end(event: Any) -> None:
    """Ask for what concerns the next step."""
    if _reader is not None:
        _reader.ended(event.step)


def quintain_on_run_end(event: Any) -> None:
    """Take no further order."""
    global _reader
    reader, _reader = _reader, None
    if reader is not None:
        reader.stop()


@click.command()
@click.argument("run", metavar="RUN")
@click.argument("action", required=False, type=click.Choice(ACTIONS))
@click.argument("value", required=False, type=Count(1))
@click.option("--step", type=Count(1), help="The step that it concerns (default: as it comes).")
@folder_option
def steer(run: str, action: str | None, value: int | None, step: int | None, folder: str) -> None:
    """Steer RUN while it trains; without ACTION list what was done.

    `pause` begins no further step until `resume`. `evaluate` and `checkpoint` happen at the end of
    the step that runs, and `stop` finishes the run there. `max_staleness N`, `concurrency N` and
    `replicas N`, of the engine pool, hold from the next step on, also after a resume.

    What a run did stands in its provenance.jsonl. With QUINTAIN_STEERING=RUN another run of the
    same recipe does the same in the same steps.

    \b
    quintain steer arithmetic-1 pause
    quintain steer arithmetic-1 concurrency 32
    quintain steer arithmetic-1 replicas 4
    quintain steer arithmetic-1 checkpoint --step 20
    """
    path = find_run(run, folder)
    if action is None:
        _list_done(RunFolder(path, lock=False))
        return
    order = SteeringOrder(action=action, value=value, step=step or 0)
    if not is_running(path):
        raise UsageError(
            f"run {path.name!r} does not run, so nothing takes orders; continue it with: "
            f"{program_name()} train --resume {path.name}"
        )
    file = give(path, order)
    until = time.monotonic() + TAKEN
    while file.exists() and time.monotonic() < until:
        time.sleep(0.05)
    if file.exists():
        click.echo(f"left for the run, which is busy: it takes {action} when its event loop runs")
    else:
        click.echo(f"the run has it: {action}; `{program_name()} steer {run}` lists what was done")


def _list_done(folder: RunFolder) -> None:
    try:
        records = folder.steering()
    except RunError as e:
        raise UsageError(str(e)) from e
    try:
        replicas = replicas_of(folder.path)
    except RunError as e:
        click.echo(f"replicas: {e}", err=True)
        replicas = []
    for record in records:
        done = ", ".join(f"{name} = {value}" for name, value in record["steering"].items())
        click.echo(f"{record['time']}  step {record['step']}  {done}")
    for _, order in waiting_orders(folder.path):
        value = "" if order.value is None else f" {order.value}"
        click.echo(f"waits to be taken: {order.action}{value}")
    for record in replicas:
        why = record["why"] and f": {record['why']}"
        click.echo(f"{record['time']}  replica {record['replica']} is {record['state']}{why}")
    if not records:
        click.echo(f"nobody has steered run {folder.name!r}")
