"""The program: tasks are tried, tries are scored, scores move the model. Read this first; `Run` holds the limbs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..errors import StorageError
from ..registry.hooks import RunEnd
from . import metrics as health
from .difficulty import probe
from .run import Interrupted, Run


async def train(run: Run) -> dict[str, Any]:
    """One run, from where it stands to its end; its summary, as in ``summary.json``.

    Raises:
        Interrupted: it was asked to stop, and has saved.
        RunError: it cannot go on; the steps that were complete are saved.
    """
    run.begin()
    try:
        if not run.at.before:
            run.at.before = await run.final("before")
            found = health.flat("held_out", await measured(run))
            start = {"step": 0, **found, **await probe(run)}
            run.folder.append(start)
            run.watch.see(start)
        over = run.over()
        while not over:
            over = await one_step(run)
        run.save()
        summary = run.summary(after=await run.final("after"))
        run.folder.write_summary(summary)
        run.hooks.emit(RunEnd(step=run.at.step, status="finished", error="", summary=summary))
        return summary
    except Exception as e:
        with suppress(StorageError):  # the first error is the one to show
            run.save()
        status = "interrupted" if isinstance(e, Interrupted) else "failed"
        run.hooks.emit(RunEnd(step=run.at.step, status=status, error=str(e), summary={}))
        raise
    finally:
        run.report_hooks()


async def one_step(run: Run) -> bool:
    """Pick, play, admit (and pick again where the plan refills), learn, publish, measure, record, save.

    Whether it was the last step of the run: asked once, before measuring, so that the last one is measured.
    """
    step = run.at.step + 1
    clock = run.clock.fork()
    stalls = run.engine.stalls
    with run.undone_unless_complete():
        with clock("rollouts"):
            filled = await run.until_stopped(run.fill(step))
        batch = run.batch(filled.admitted)
    with run.indivisible():
        with clock("update"):
            learned = await run.learn(batch)
        with clock("publish"):
            await run.publish()
        run.count(step, filled.tried)
        last = run.over()
        held_out = await measured(run, last=last)
        metrics = run.about(filled) | health.step_metrics(
            filled.tried, refused=filled.refused, learned=learned, held_out=held_out, seconds=clock.spent
        )
        # An engine that lost patience with an episode stepped without it: this step will not repeat bit for bit.
        metrics["engine.stalls"] = run.engine.stalls - stalls
        run.record(step, filled.tried, metrics)
    if run.due(run.recipe.checkpoint.every):
        run.save()
    return last or run.accurate()


async def measured(run: Run, *, last: bool = False) -> dict[str, Any]:
    """Held-out metrics where they are due: before training, every so many steps, and after the last; else none."""
    table = run.recipe.evaluation
    if not (run.due(table.every) or (last and table.every)):
        return {}
    return await run.hold_out(table.split, table.tasks)
