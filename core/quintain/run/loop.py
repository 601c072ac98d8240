"""The training loop on one page: collect rollouts, compute advantages, update the policy, sync
weights, record.

Where the terms of the policy gradient are: the reward is computed in `quintain.rollouts.scoring` as
each episode ends, and punished for length or for leaving ref by the learner where the algorithm
does so in the reward; the advantage in the algorithm's advantage function
(`quintain.learning.pieces.advantages`), the loss in `quintain.learning.loss`. `Run` (run/run.py)
has one object for each of its concerns.

Four policies have names: mu sampled the tokens, prox is the learner before the updates on a batch,
theta is what these updates change, and ref is the frozen policy of a KL term (docs/glossary.md).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..console.metrics import flat, step_metrics
from ..errors import RunError
from ..rollouts.spans import Span

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
    try:
        if not run.held_out.before:
            await before_training(run)
        finished = await end_step(run) if run.record.open else run.stopping.finished()
        while not finished:
            await run.steering.before_step()
            with Span("step", step=run.progress.step + 1):
                finished = await train_step(run)
        stopped = run.stopping.reason()  # before the evaluation, which takes time, too
        run.screen.note(f"training ends after step {run.progress.step}: {stopped}")
        run.saving.save(wait=True)
        # without a step the model is the one that was measured before training
        after = await run.held_out.test() if run.progress.step else run.held_out.before
        summary = run.summary(after=after, stopped=stopped)
        run.folder.write_summary(summary)
        run.end(summary=summary)
        return summary
    except BaseException as error:
        with suppress(RunError):  # the first error is the one to show
            run.saving.save(wait=True)
        run.end(error)
        raise
    finally:
        run.close()


async def before_training(run: Run) -> None:
    """Evaluate the initial policy, let the curriculum look at its tasks, and record both as step
    0.
    """
    run.held_out.before = await run.held_out.test()
    metrics = {
        **await held_out_metrics(run),
        **await run.collector.curriculum.prepare(run),
        **run.collector.rollout_context.grading.take_metrics(),
    }
    run.record.start(metrics)


async def train_step(run: Run) -> bool:
    """Run one step of the algorithm; return whether it was the last one."""
    step = run.progress.step + 1
    clock = run.progress.clock.fork()
    stalls = run.engine.stalls
    with run.saving.restored_on_error():
        with clock("rollouts"):
            # Sample `group_size` episodes per prompt, score each by its environment's reward, and
            # drop the groups that the algorithm's group filter rejects (resampling as its plan
            # says). A failed episode has no reward, never a zero: `batch` leaves it out.
            collected = await run.interruption.until_stopped(run.collector.collect(step))
        run.record.collected(step, collected, run.collector.curriculum.notices())
        run.screen.phase(f"step {step}: update")
        run.saving.announce()
        sampling = run.collector.rollout_context.sampling
        batch = run.learner.batch(
            collected.accepted, temperature=sampling.temperature, max_tokens=sampling.max_tokens
        )
    with run.saving.indivisible():
        update_metrics: dict[str, float] = {}
        with clock("update"):
            if batch.tokens:
                # Log-probs under ref, and under prox (the learner now) where something reads them
                # before the first pass of the update, which gives them otherwise.
                scored = await run.update.prepare(batch)
                # reward less a baseline, per sample or token
                advantages = await run.learner.compute_advantages(scored)
                # Per micro-batch: log-probs under theta, importance ratio, objective, weighted sum,
                # backward.
                update_metrics = await run.update.step(scored, advantages, collected.accepted)
        with clock("sync"):
            await run.weight_sync.sync(run.learner.weights())  # the sampler takes the new version
        run.complete(step, collected)
        metrics = step_metrics(
            collected.tried,
            rejected=collected.rejected,
            learned=update_metrics,
            seconds=clock.spent,
        )
        # Read before the evaluation: its rewards take time, too, which is not the step's.
        metrics |= run.collector.metrics(collected)
        # Times the engine decoded before every registered worker was ready: above 0, the step does
        # not repeat exactly.
        metrics["engine.stalls"] = run.engine.stalls - stalls
        run.record.trained(collected.tried, metrics, run.update.advantages)
    return await end_step(run)


async def end_step(run: Run) -> bool:
    """Evaluate the policy and save it, if that is due, and record the step; return whether it was
    the last one. A run that was stopped here is saved, and does this first when it is resumed.
    """
    last = run.stopping.finished()
    save = run.steering.take("checkpoint") or run.progress.due(run.plan.saving.every)
    measured = await held_out_metrics(run, last=last)
    # The evaluation may have reached a limit, so that this step turns out to be the last.
    run.record.step(measured, last=run.stopping.finished())
    if save:
        run.saving.save()
    return last or run.stopping.accurate()


async def held_out_metrics(run: Run, *, last: bool = False) -> dict[str, Any]:
    """Return the held-out metrics before training, every ``evaluation.every`` steps, after the last
    step and where a plugin asks for them; else empty.
    """
    every = run.plan.evaluation.every
    asked = run.steering.take("evaluate")
    if asked or run.progress.due(every) or (last and every):
        with run.saving.restored_on_error():
            return flat("held_out", await run.held_out.evaluate())
    return {}
