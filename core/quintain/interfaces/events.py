"""The events of a run that hook plugins and services observe: frozen records of plain values.

`docs/hooks.md` lists them all. Each names the function that is called with it, ``quintain_on_*``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(kw_only=True)
class Steering:
    """What plugins ask of a run while it runs. A plugin sets a field at any time, in the thread that
    calls its hooks; the run does it between two steps and notes it in ``provenance.jsonl``.

    Attributes:
        paused: no step begins while it is true.
        evaluate, checkpoint: at the end of this step.
        stop: why the run finishes with this step, as by a limit of ``[stop]``; empty if it goes on.
        max_staleness, concurrency, replicas: from the next step on, in place of what the recipe
            says.
    """

    paused: bool = False
    evaluate: bool = False
    checkpoint: bool = False
    stop: str = ""
    max_staleness: int | None = None
    concurrency: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Before step 1, or before the first step after a resume; services and engine are up::

        def quintain_on_run_start(event):
            tracker.start(name=event.run, config=event.recipe)

    Attributes:
        run: name of the run.
        folder: absolute path of its folder.
        step: the last step done; 0 for a new run.
        recipe: the resolved recipe, as plain data.
        steering: of the run, for plugins that steer it.
    """

    hook: ClassVar[str] = "quintain_on_run_start"
    run: str
    folder: str
    step: int
    recipe: Mapping[str, Any]
    steering: Steering = field(default_factory=Steering)


@dataclass(frozen=True, kw_only=True)
class StepMeasured:
    """After each training step, before its metrics are on disk: the plugin may raise alerts::

        def quintain_on_step_measured(event):
            if event.metrics.get("grad_norm", 0) > 100:
                event.alerts["gradient"] = "gradient: its norm is above 100. Lower learner.lr."

    Attributes:
        step: counts from 1; 0 is the evaluation before training.
        metrics: the line of the run's metrics file without its alerts: numbers by name.
        alerts: to be filled: the message of each alert that is active in this step, by its name. A
            run prints the message of an alert that was not active in the step before.
    """

    hook: ClassVar[str] = "quintain_on_step_measured"
    step: int
    metrics: Mapping[str, Any]
    alerts: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class StepEnd:
    """After each training step, once its metrics are on disk; it delays the next step, so hand
    slow work to a thread::

        def quintain_on_step_end(event):
            tracker.log(event.metrics, step=event.step)

    Attributes:
        step: counts from 1.
        metrics: the line of the run's metrics file: numbers by name, and under ``alerts`` the list
            of the names of the alerts that are on.
    """

    hook: ClassVar[str] = "quintain_on_step_end"
    step: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class EvaluationEnd:
    """After each evaluation of one environment, also the one before training::

        def quintain_on_evaluation_end(event):
            tracker.log({f"{event.environment}/{k}": v for k, v in event.metrics.items()}, step=event.step)

    Attributes:
        step: the step whose weights were evaluated; 0 is before training.
        environment: its name in the recipe.
        split: ``dev`` or ``test``.
        metrics: ``accuracy``, ``pass@k`` and so on.
        temperature: 0 is greedy.
        other_decoding: whether it decoded in the other way than ``evaluation.temperature`` says
            (``evaluation.test.other_decoding``).
    """

    hook: ClassVar[str] = "quintain_on_evaluation_end"
    step: int
    environment: str
    split: str
    metrics: Mapping[str, float]
    temperature: float = 0.0
    other_decoding: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved:
    """After a checkpoint is complete in its folder; it may be deleted later (keep-last-n), so copy
    what you need::

        def quintain_on_checkpoint_saved(event):
            if event.best:
                tracker.upload(f"{event.path}/model")

    Attributes:
        step: the step it holds.
        path: absolute path of its folder; ``model/`` in it is in Hugging Face format.
        best: whether it is the best so far.
    """

    hook: ClassVar[str] = "quintain_on_checkpoint_saved"
    step: int
    path: str
    best: bool


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """Last of all, also after Ctrl-C or a failure; not after ``kill -9``::

        def quintain_on_run_end(event):
            tracker.finish(ok=event.status == "finished")

    Attributes:
        folder: absolute path of its folder.
        step: the last step done.
        status: ``finished``, ``interrupted`` (it can be resumed) or ``failed``.
        error: one line, where it failed.
        summary: what ``summary.json`` holds, as plain data.
    """

    hook: ClassVar[str] = "quintain_on_run_end"
    folder: str
    step: int
    status: str
    error: str
    summary: Mapping[str, Any]


Event = RunStart | StepMeasured | StepEnd | EvaluationEnd | CheckpointSaved | RunEnd
EVENTS: tuple[type[Event], ...] = (
    RunStart,
    StepMeasured,
    StepEnd,
    EvaluationEnd,
    CheckpointSaved,
    RunEnd,
)
