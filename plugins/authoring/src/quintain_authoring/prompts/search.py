"""The search for better texts: GEPA in a thread, rollouts in the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from quintain import Engine, LimitReached, Sampling
from quintain.errors import UsageError
from quintain.store import write_atomically
from quintain.types import derived_seed

from .adapter import HELD_OUT, TRAIN, EnvironmentAdapter, PairedImprovement, written

SETTINGS, FIRST, LOG = "settings.json", "first.json", "gepa.log"
RESULT = "{name}.txt"
"""File of the best text of a component."""
STATE = "gepa_state.bin"
"""GEPA's own file, from which it resumes."""
STOP_SECONDS = 5.0
"""That GEPA gets to end when a search is stopped."""


@dataclass(frozen=True, kw_only=True)
class PromptReport:
    """What a search found.

    Attributes:
        texts, first: the best texts by component, and those that the search began with.
        score, first_score: their mean rewards on the held-out tasks.
        candidates: number of candidates that were measured on the held-out tasks.
        rollouts: spent by now, as GEPA counts them.
        failures: why rollouts of this call have no score, and how many.
    """

    texts: Mapping[str, str]
    first: Mapping[str, str]
    score: float
    first_score: float
    candidates: int
    rollouts: int
    failures: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class PromptSearch:
    """A search for better texts.

    Attributes:
        folder: state, log and result; one that has a state is resumed.
        budget: rollouts. GEPA ends after the iteration that reaches it.
        minibatch: tasks of a reflection.
        settings: what must be the same when it is resumed, as plain data.
    """

    folder: Path
    budget: int
    minibatch: int
    seed: int
    settings: Mapping[str, Any]

    def check(self) -> bool:
        """Return whether the folder has a state to resume.

        Raises:
            UsageError: it was begun with other settings, or is not a folder of a search.
        """
        place = self.folder / SETTINGS
        if not place.is_file():
            if self.folder.is_dir() and any(self.folder.iterdir()):
                raise UsageError(
                    f"{str(self.folder)!r} has files of something else; take another --out"
                )
            return False
        before = json.loads(place.read_text(encoding="utf-8"))
        now = json.loads(json.dumps(self.settings))
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise UsageError(
                    f"{str(self.folder)!r} was begun with {name} {before.get(name)!r}, not "
                    f"{now.get(name)!r}; take another --out, or the same options"
                )
        return (self.folder / STATE).is_file()

    async def run(self, adapter: EnvironmentAdapter, reflect: Reflecting) -> PromptReport:
        """Search until the budget is spent; a cancelled search can be resumed.

        Raises:
            InfrastructureError: a batch has no rollout with a score, or the reflecting model
                failed. The state before the iteration is saved.
            NoTasksError, UsageError: the texts of a candidate make other tasks.
            UsageError: a reflection is longer than the context of the reflecting model.
        """
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(
            self.folder / SETTINGS, json.dumps(self.settings, indent=2).encode() + b"\n"
        )
        stop = threading.Event()
        ended = asyncio.ensure_future(asyncio.to_thread(self._optimise, adapter, reflect, stop))
        try:
            result = await asyncio.shield(ended)
        except asyncio.CancelledError:
            stop.set()
            reflect.loop.cancel()  # what the thread waits for
            await asyncio.wait([ended], timeout=STOP_SECONDS)
            raise
        best: dict[str, str] = result.best_candidate
        for name, text in best.items():
            write_atomically(self.folder / RESULT.format(name=name), text.encode("utf-8"))
        return PromptReport(
            texts=best,
            first=adapter.first,
            score=result.val_aggregate_scores[result.best_idx],
            first_score=result.val_aggregate_scores[0],
            candidates=result.num_candidates,
            rollouts=result.total_metric_calls,
            failures=dict(adapter.failures.most_common()),
        )

    def _optimise(
        self, adapter: EnvironmentAdapter, reflect: Reflecting, stop: threading.Event
    ) -> Any:
        import gepa

        train, held_out = (adapter.positions(split) for split in (TRAIN, HELD_OUT))
        with open(self.folder / LOG, "a", encoding="utf-8") as log:
            result = gepa.optimize(
                seed_candidate=adapter.first,
                trainset=train,
                valset=held_out,
                adapter=adapter,
                reflection_lm=reflect,
                reflection_minibatch_size=min(self.minibatch, len(train)),
                acceptance_criterion=PairedImprovement(),
                max_metric_calls=self.budget,
                stop_callbacks=lambda state: stop.is_set() or reflect.error is not None,
                skip_perfect_score=False,  # a reward of 1 may be far from the best
                logger=_Log(log),
                run_dir=str(self.folder),
                track_best_outputs=False,
                seed=self.seed,
            )
        if reflect.error is not None:  # GEPA goes on without a proposal
            raise reflect.error
        return result


class Reflecting:
    """The reflecting model as GEPA calls it: a prompt in, a text out.

    Attributes:
        error: with which a call failed.
    """

    def __init__(self, engine: Engine, sampling: Sampling, seed: int, loop: Looped) -> None:
        self._engine, self._sampling, self._seed, self.loop = engine, sampling, seed, loop
        self._calls = count()
        self.error: Exception | None = None

    def __call__(self, prompt: str | Sequence[Mapping[str, Any]]) -> str:
        text = prompt if isinstance(prompt, str) else "\n".join(str(m["content"]) for m in prompt)
        seed = derived_seed(self._seed, text, next(self._calls))
        try:
            answer: str = self.loop(written(self._engine, text, self._sampling.replace(seed=seed)))
        except LimitReached as e:
            self.error = UsageError(
                f"the reflecting model cannot read its prompt: {e}. Take a smaller --minibatch, or "
                "a model with a longer context with --reflect URL --reflect-model NAME"
            )
            raise self.error from e
        except Exception as e:
            self.error = e
            raise
        return answer


class Looped:
    """Runs coroutines in an event loop, for a caller in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: Future[Any] | None = None

    def __call__(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._awaited = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return self._awaited.result()

    def cancel(self) -> None:
        """Cancel what the caller waits for."""
        if self._awaited is not None:
            self._awaited.cancel()


class _Log:
    """Writes what GEPA logs, in place of standard output."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def log(self, message: str) -> None:
        self._file.write(f"{message}\n")
        self._file.flush()
