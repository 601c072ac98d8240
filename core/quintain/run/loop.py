"""The training loop on one page: collect rollouts, compute advantages, update the policy, sync
weights, record.

Where the terms of the policy gradient are: the reward is computed in `quintain.rollouts.scoring` as
each episode ends, and punished for length or for leaving ref by the learner where the algorithm
does so in the reward; the advantage in the algorithm's advantage function
(`quintain.learning.pieces.advantages`), the loss in `quintain.learning.loss`. `Run` (run/run.py)
holds the objects that take part and the state of the run.

Four policies have names: mu sampled the tokens, prox is the learner before the updates on a batch,
theta is what these updates change, and ref is the frozen policy of a KL term (docs/glossary.md).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..console.metrics import flat, step_metrics
from ..errors import Interrupted, RunError
from ..interfaces.events import RunEnd
from ..tracebacks import text_of

if TYPE_CHECKING:
    from .run import Run


async def training_loop(run: Run) -> dict[str, Any]:
    """Train *run* from its current step to its last one; return its summary, as in
    ``summary.json``.

    Raises:
        Interrupted: the user asked to stop; every complete step is saved.
        RunError: the run cannot continue. Every complete step is saved if the error came before an
            update; otherwise a resume continues from the last checkpoint.
    """
    run.begin()
    folder = str(run.folder.path.absolute())
    try:
        if not run.state.before:
            await before_training(run)
        finished = run.finished()
        while not finished:
            async with run.next_step():
                finished = await train_step(run)
        stopped = run.stop_reason()  # before the evaluation, which takes time, too
        run.screen.note(f"training ends after step {run.state.step}: {stopped}")
        run.save()
        run.report_saved(wait=True)
        # without a step the model is the one that was measured before training
        after = await run.test_evaluation() if run.state.step else run.state.before
        summary = run.summary(after=after, stopped=stopped)
        run.folder.write_summary(summary)
        run.hooks.emit(
            RunEnd(folder=folder, step=run.state.step, status="finished", error="", summary=summary)
        )
        return summary
    except BaseException as error:
        with suppress(RunError):  # the first error is the one to show
            run.save()
            run.report_saved(wait=True)
        status = "interrupted" if isinstance(error, Interrupted) else "failed"
        run.hooks.emit(
            RunEnd(
                folder=folder, step=run.state.step, status=status, error=text_of(error), summary={}
            )
        )
        raise
    finally:
        run.report_hooks()


async def before_training(run: Run) -> None:
    """Evaluate the initial policy, let the curriculum look at its tasks, and record both as step
    0.
    """
    run.state.before = await run.test_evaluation()
    metrics = {
        "step": 0,
        **flat("held_out", await run.evaluate_if_due()),
        **await run.collector.curriculum.prepare(run),
        **run.collector.rollout_context.grading.take_metrics(),
    }
    run.folder.append(metrics)
    run.raise_alerts(metrics)


async def train_step(run: Run) -> bool:
    """Run one step of the algorithm; return whether it was the last one."""
    step = run.state.step + 1
    clock = run.clock.fork()
    stalls = run.engine.stalls
    with run.restored_on_error():
        with clock("rollouts"):
            # Sample `group_size` episodes per prompt, score each by its environment's reward, and
            # drop the groups that the algorithm's group filter rejects (resampling as its plan
            # says). A failed episode has no reward, never a zero: `batch` leaves it out.
            collected = await run.until_stopped(run.collector.collect(step))
        run.report(step, collected)
        run.report_saved()
        batch = run.learner.batch(collected.accepted, **run.batch_settings())
    with run.indivisible():
        update_metrics: dict[str, float] = {}
        with clock("update"):
            if batch.tokens:
                # Log-probs under ref, and under prox (the learner now) where something reads them
                # before the first pass of the update, which gives them otherwise.
                scored = await run.in_learner_thread(lambda: run.learner.prepare(batch))
                # reward less a baseline, per sample or token
                advantages = await run.learner.compute_advantages(scored)
                # Per micro-batch: log-probs under theta, importance ratio, objective, weighted sum,
                # backward.
                update_metrics = await run.update(scored, advantages, collected.accepted)
        with clock("sync"):
            await run.weight_sync.sync(run.learner.weights())  # the sampler takes the new version
        run.complete(step, collected)
        last = run.finished()
        save = run.asked("checkpoint") or run.due(run.plan.checkpoint.every)
        # Read before the evaluation: its rewards take time, too, which is not the step's.
        collector_metrics = run.collector.metrics(collected)
        metrics = step_metrics(
            collected.tried,
            rejected=collected.rejected,
            learned=update_metrics,
            held_out=await run.evaluate_if_due(last=last),
            seconds=clock.spent,
        )
        metrics |= collector_metrics
        # Times the engine decoded before every registered worker was ready: above 0, the step does
        # not repeat exactly.
        metrics["engine.stalls"] = run.engine.stalls - stalls
        run.record(step, collected.tried, metrics)
    if save:
        run.save()
    return last or run.accurate()
