"""Runs episodes: one, or many groups concurrently, with retries and reproducible sampling."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..errors import (
    EnvironmentFault,
    InfrastructureError,
    LimitReached,
    PolicyFault,
    PolicyTimeout,
    UsageError,
)
from ..interfaces.engine import Engine
from ..interfaces.environment import Environment
from ..interfaces.reward import RewardContext
from ..interfaces.rollout_request import RolloutRequest
from ..tracebacks import describe_error, is_failure, text_of
from ..types.rollout import (
    AnyGroup,
    AnyRollout,
    Group,
    Rollout,
    Termination,
    TerminationKind,
    type_adapter,
)
from ..types.sampling import Sampling, derived_seed
from ..types.task import Task
from ..types.transcript import Transcript
from .grading_clock import GradingClock
from .loop_share import take_turn
from .own_task import TimeLimitExceeded, in_own_task
from .scoring import score_group, score_rollout, termination_of
from .session import EpisodeState, Session
from .spans import Span

Play = Callable[[RolloutRequest, int, "RolloutContext", int], Awaitable[AnyRollout]]
"""Plays one attempt at an episode wherever it likes, with the arguments and the result of
`run_episode`.
"""


@dataclass(frozen=True, kw_only=True)
class RolloutContext:
    """The settings that all episodes of a batch share, and the clock of their rewards.

    *waits*: a reproducible engine waits for each of them. *play* plays each; without one
    `run_episode` does, in this process.
    """

    engine: Engine
    sampling: Sampling = field(default_factory=Sampling)
    services: Mapping[str, Any] = field(default_factory=dict)
    run_seed: int = 0
    step: int = 0
    concurrency: int = 256
    retries: int = 1
    waits: bool = True
    play: Play | None = None
    grading: GradingClock = field(default_factory=GradingClock, compare=False)


async def run_episode(
    request: RolloutRequest, sample: int, context: RolloutContext, attempt: int = 1
) -> AnyRollout:
    """Run one attempt at one episode, without scoring it. A failure becomes its termination.

    Raises:
        UsageError: an error in the recipe or the user's code, which no other episode would escape.
    """
    environment = request.environment
    task = request.task
    # Of the task and not of the order in which tasks come, so that a resumed run draws the same.
    seed = derived_seed(context.run_seed, task.id, request.visit, sample)
    if request.seed is not None:
        seed = request.seed
    engine = (request.engine or context.engine).for_task(task)
    episode = EpisodeState(engine, context.sampling, environment.limits, seed, first=request.first)
    session = Session(episode)
    system = request.system or environment.system
    # A task that brings a system message of its own keeps it.
    prompt = [] if isinstance(task.prompt, str) else task.prompt
    if system and not any(message.role == "system" for message in prompt):
        session.system(system)
    start = time.monotonic()
    with Span("episode", request=request, sample=sample, attempt=attempt) as span:
        result, termination = await _result_of(environment, task, session, episode)
        span.attributes["ended"] = termination.kind
    transcripts: dict[str, Transcript] = {}
    for name, conversation in episode.sessions.items():
        transcript = conversation.transcript() if conversation.trains else None
        if transcript is not None:
            transcripts[name] = transcript
    # Sessions and the episode hold each other. Cut, so that they are freed now and not when the
    # garbage collector looks; and a turn that is asked for from now on is refused.
    episode.sessions.clear()
    return Rollout(
        task=task,
        result=result,
        termination=replace(termination, attempts=attempt),
        metrics=dict(episode.metrics),
        turns=tuple(episode.turns),
        messages=session.record(),
        transcripts=transcripts,
        environment=request.name,
        group=request.index,
        sample=sample,
        seed=seed,
        seconds=time.monotonic() - start,
    )


async def _result_of(
    environment: Environment[Any, Any], task: Task, session: Session, episode: EpisodeState
) -> tuple[Any, Termination]:
    # What the policy can have caused is scored. All other failures are left out and counted: a slow
    # engine or a bug must not be learnt from.
    limits = environment.limits

    def out_of_time(message: str) -> Exception:
        # Read when time is up: later, the clean-up of cancelled code would count, too.
        seconds = episode.clock.seconds()
        if limits.seconds is None or seconds <= limits.seconds / 2:
            return TimeLimitExceeded(message)
        return PolicyTimeout(f"{message}, {seconds:.3g} s of it in what the policy chose to run")

    try:
        play = partial(environment.rollout, task, session)
        code_name = f"{type(environment).__name__}.rollout"
        result = await in_own_task(play, limits, "seconds", code_name, task, out_of_time)
        _check_result(result)
    except LimitReached as e:
        return None, Termination(TerminationKind.TRUNCATED, e.limit, early=True)
    except PolicyFault as e:
        return None, termination_of(e)
    except TimeLimitExceeded as e:
        return None, Termination(TerminationKind.TIMEOUT, text_of(e))
    except InfrastructureError as e:
        return None, Termination(TerminationKind.INFRASTRUCTURE_ERROR, text_of(e))
    except BaseException as e:  # an author's code may raise anything; it becomes the termination
        # a mistake in the recipe is the same in every episode
        if isinstance(e, UsageError) or not is_failure(e):
            raise
        reason = text_of(e) if isinstance(e, EnvironmentFault) else describe_error(e)
        return None, Termination(TerminationKind.ENVIRONMENT_ERROR, reason)
    # The environment handled the limit and returned a result, which is scored.
    if episode.limit_hit:
        return result, Termination(TerminationKind.TRUNCATED, episode.limit_hit)
    return result, Termination()


def _check_result(result: Any) -> None:
    """Refuse a result that is not equal after a round trip through JSON: rewards score stored
    rollouts again.
    """
    if result is None or isinstance(result, (str, int, bool)):
        return
    try:
        kind: Any = type(result)
        adapter = type_adapter(kind)
        back = adapter.validate_json(adapter.dump_json(result))
    except Exception as e:
        raise EnvironmentFault(
            f"the result ({type(result).__name__}) is not plain data: {e}"
        ) from e
    if back != result:
        raise EnvironmentFault(
            f"the result ({type(result).__name__}) changes when stored: {result!r} became {back!r}"
        )


AT_ONCE = 64
"""Episodes that begin in one step of the event loop, so that it goes on to answer."""
NextRequests = Callable[[AnyGroup], Sequence[RolloutRequest]]
OnRollout = Callable[[AnyRollout], None]
ChooseNext = Callable[[Sequence[tuple[RolloutRequest, int, int]]], int]


async def run_groups(
    requests: Sequence[RolloutRequest],
    context: RolloutContext,
    on_rollout: OnRollout | None = None,
    more: NextRequests | None = None,
) -> list[AnyGroup]:
    """Run and score all groups; return them in the order of *requests*, whichever finish first.

    ``context.concurrency`` workers take the episodes in order. A worker is registered with the
    engine until no episode is queued, and rewards run in other tasks, so that which sequences are
    decoded together never depends on the duration of a tool or a reward.

    Args:
        on_rollout: called with every rollout once it is scored.
        more: called with every group once it is complete and scored; the requests that it returns
            are queued. Workers then score an episode before they take the next one: a reproducible
            engine samples nothing meanwhile.

    Raises:
        UsageError: an error that no retry can repair, such as a reward without its service.
    """
    return await RolloutRunner(context, on_rollout, more).run(requests)


class RolloutRunner:
    """Runs the episodes of one call of `run_groups`, or of all requests that `add` gets until `run`
    is cancelled. *order* gets the waiting episodes (request, sample, number of the request) and
    returns the position of the next. *places* returns how many may run now, without it as many as
    *context* says.
    """

    def __init__(
        self,
        context: RolloutContext,
        on_rollout: OnRollout | None,
        more: NextRequests | None,
        order: ChooseNext | None = None,
        places: Callable[[], int] | None = None,
    ):
        self._rollout_context = context
        self._on_rollout = on_rollout
        self._more = more
        self._order = order
        self._places = places or (lambda: context.concurrency)
        self._endless = False
        self._added = 0  # requests
        # by number of the request, then by the index within the group
        self._scored: dict[int, dict[int, AnyRollout]] = {}
        self._groups: dict[int, AnyGroup] = {}  # the complete ones
        self._queue: deque[tuple[RolloutRequest, int, int]] = deque()  # the queued episodes
        self._workers = 0

    async def run(
        self, requests: Sequence[RolloutRequest], *, endless: bool = False
    ) -> list[AnyGroup]:
        """Run *requests* and those that follow; *endless*: until cancelled, without keeping the
        groups.
        """
        self._endless = endless
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self.add(requests)
                if endless:
                    await asyncio.Event().wait()
        except BaseExceptionGroup as failed:
            error: BaseException = failed
            # callers handle the error itself, not a group of errors
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from failed
        return [self._groups[number] for number in range(self._added)]

    def add(self, requests: Sequence[RolloutRequest], reserved: int = 0) -> None:
        """Queue *requests*, and start workers for the waiting episodes, except for as many as a
        running worker has *reserved*.
        """
        for request in requests:
            number = self._added
            self._added += 1
            self._queue.extend((request, index, number) for index in range(request.group_size))
            self._scored[number] = {}
        self._start_workers(reserved)

    def _start_workers(self, reserved: int = 0) -> None:
        context = self._rollout_context
        wanted = min(len(self._queue) - reserved, self._places() - self._workers)
        # All that a reproducible engine waits for are registered before it samples anything.
        waits = context.waits and type(context.engine).register is not Engine.register
        count = wanted if waits else min(wanted, AT_ONCE)
        if count < wanted:
            asyncio.get_running_loop().call_soon(self._start_workers)
        for _ in range(count):
            self._workers += 1
            work = self._work()
            try:
                self._tasks.create_task(work)
            except RuntimeError:
                # The group of tasks is ending because of an error, which `run` raises. A coroutine
                # that never starts would warn unless it is closed.
                work.close()

    async def _work(self) -> None:
        context = self._rollout_context
        play = context.play or run_episode
        # A worker stays registered with the engine between two of its episodes. Otherwise the engine
        # could step without the one that is about to begin, and the speed of the machine would
        # decide which sequences are decoded together, hence what is sampled.
        with context.engine.register() if context.waits else nullcontext():
            while self._queue:
                position = self._order(self._queue) if self._order else 0
                request, index, number = self._queue[position]
                del self._queue[position]
                for attempt in range(1, context.retries + 2):
                    await take_turn()
                    rollout = await play(request, index, context, attempt)
                    if rollout.valid:
                        break
                if self._more is None or not context.waits:
                    # In a task of its own, so that a slow reward delays no episode.
                    self._tasks.create_task(self._score(request, number, rollout, reserved=0))
                else:
                    # Awaited, because the score decides what is queued next. If it queues more,
                    # this worker takes one of the episodes itself, and no worker starts for it.
                    await self._score(request, number, rollout, reserved=1)
            self._workers -= 1

    async def _score(
        self, request: RolloutRequest, number: int, rollout: AnyRollout, reserved: int
    ) -> None:
        """Score *rollout* of request *number*, then its group if it is complete, and hand that to
        *more*.
        """
        environment = request.environment
        settings = self._rollout_context
        context = RewardContext(step=request.step or settings.step, services=settings.services)
        with settings.grading.measure(rollouts=1), Span("score") as span:
            rollout = await score_rollout(environment, rollout, context, settings.retries)
            span.attributes["rollout"] = rollout
        scored = self._scored[number]
        scored[rollout.sample] = rollout
        if self._on_rollout is not None:
            self._on_rollout(rollout)
        if len(scored) < request.group_size:
            return
        group = Group(
            task=request.task,
            rollouts=tuple(scored[index] for index in range(request.group_size)),
            environment=request.name,
            index=request.index,
        )
        # The rollouts were counted above, so that the time per rollout is that of both scores.
        with settings.grading.measure(rollouts=0), Span("score", group=group.index):
            group = await score_group(environment, group, context, settings.retries)
        del self._scored[number]
        if not self._endless:
            self._groups[number] = group
        requests = self._more(group) if self._more is not None else ()
        if requests:
            self.add(requests, reserved)
            # the new workers register before this one asks the engine for anything
            await asyncio.sleep(0)
