"""The endpoint of one episode: its threads, its requests in flight, its failures."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from operator import eq, is_
from typing import Any

from quintain import InfrastructureError, LimitReached, Message, TokenEngine, ToolCall, Turn
from quintain.errors import EnvironmentFault, UsageError
from quintain.rollouts import Conversation
from quintain.types import split_thought

from .errors import ApiError
from .faults import turn_fault
from .fields import texts_alone
from .recent import Recent
from .request import Policy, PolicyTurn, TurnRequest
from .responses import ResponseHistory
from .threads import Thread, Threads
from .traffic import TrafficJournal, user_of

_LIMITS = {
    "context": (
        "context_length_exceeded",
        "the conversation is longer than the context of the model",
    ),
    "turns": ("turn_limit_reached", "the episode may take no more turns"),
    "tokens": ("token_limit_reached", "the episode may sample no more tokens"),
}


class Endpoint:
    """What an agent talks to.

    Attributes:
        base_url: of the API, up to and including ``/v1``.
        api_key: 128 random bits; valid until the endpoint ends.
        failure: an error of ours that some request met and no later one repaired.
        limit: the limit that a request met first.
        fault: why the last turn of a conversation was not what its agent had asked for
            (`turn_fault`); empty if it was. A request that arrives while none is in flight shows
            that the agent went on, and clears it.
        requests, turns: requests so far; turns that the policy took.
        models: names by which it was asked, in the order of their first requests.
        traffic: where replies and their ratings are written; ``None`` refuses ratings.
    """

    def __init__(
        self,
        policy: Policy,
        base_url: str,
        api_key: str,
        *,
        concurrency: int,
        queue: int,
        policy_time: Callable[[], AbstractContextManager[None]] = nullcontext,
        names: Collection[str] = (),
        other: Callable[[str], Policy] | None = None,
    ) -> None:
        """Open an endpoint of *policy*.

        Args:
            names: those of the policy; empty means any.
            other: returns what answers to another name, which without it is refused.
        """
        self.base_url, self.api_key = base_url, api_key
        self.limit: LimitReached | None = None
        self.requests = self.turns = 0
        self.closed = False
        self.traffic: TrafficJournal | None = None
        self.last_used = asyncio.get_running_loop().time()
        self.histories: dict[str, ResponseHistory] = {}  # by the id of a response (Responses API)
        self.read = Recent(eq, texts_alone)  # messages of requests (chat API), as sent and as read
        self._known = Recent(is_)
        self._policy, self._threads = policy, Threads(policy)
        self.models: dict[str, None] = {}
        self._names, self._other = names, other
        self._threads_of_others: dict[str, Threads] = {}
        self._failures: dict[Thread | None, BaseException] = {}
        self._faults: dict[Thread, str] = {}
        self._room = asyncio.Semaphore(concurrency)
        self._waiting, self._queue = 0, queue
        # Entered while the agent acts on a turn of the policy: no request is in flight.
        self._policy_time, self._acting = policy_time, ExitStack()
        self._tasks: set[asyncio.Task[list[PolicyTurn]]] = set()
        self._calls: dict[str, str] = {}  # ids as the agent knows them -> as the conversation does
        # A reproducible engine tells live episodes apart by a variable of this context.
        self._context = contextvars.copy_context()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the clients of OpenAI and Anthropic, and most frameworks, read."""
        return {
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
        }

    def answered(
        self, response_id: str, body: Mapping[str, Any], answers: Sequence[PolicyTurn]
    ) -> None:
        """Write the replies to the request *body*, if this endpoint records."""
        if self.traffic is not None:
            self.traffic.answered(response_id, self.api_key, user_of(body), answers)

    def rated(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write a rating and return what its sender is told.

        Raises:
            ApiError: 400 for a rating that is none, 404 for an unknown response or without a
                record.
        """
        if self.traffic is None:
            raise ApiError(
                404, "no_record", "ratings need a record: start the server with --record FOLDER"
            )
        return self.traffic.rated(body, self.api_key)

    @property
    def failure(self) -> BaseException | None:
        return next(iter(self._failures.values()), None)

    @property
    def fault(self) -> str:
        return next(filter(None, self._faults.values()), "")

    @property
    def threads(self) -> int:
        """Number of separate conversations so far."""
        return self._threads.count

    @property
    def rewritten(self) -> int:
        """Number of conversations that began with a history that no other has (`Threads`)."""
        return self._threads.rewritten

    @property
    def foreign(self) -> int:
        """1 if the first request of all had turns that the policy did not take, else 0."""
        return self._threads.foreign

    @property
    def busy(self) -> bool:
        """Whether requests are in flight."""
        return bool(self._tasks)

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the tokens of the prompt of a request, without sampling.

        Raises:
            ApiError: the episode is over, its engine keeps no tokens, or its model refuses the
                messages.
        """
        if self.closed:
            raise over()
        engine = self._policy.engine
        if not isinstance(engine, TokenEngine):
            raise ApiError(400, "no_tokens", "the engine of this episode returns text alone")
        conversation = Conversation(engine.tokenizer, request.tools)
        conversation.add(*request.messages)
        try:
            return len(conversation.prompt_ids())
        except UsageError as e:
            raise ApiError(400, "unsupported_messages", str(e), param="messages") from e

    def not_read(self, error: InfrastructureError) -> ApiError:
        """Note that *error* of ours kept a request from being read, which no later one repairs, and
        return what the agent is told: nothing of this machine.
        """
        self._failures.setdefault(None, error)
        logging.getLogger(__name__).error("a request was not read: %s", error)
        return ApiError(500, "internal_error", "the gateway cannot store the images of the request")

    async def submit(self, request: TurnRequest) -> list[PolicyTurn]:
        """Return the ``request.n`` answers to a request. Cancelling the call cancels their
        sampling.

        Raises:
            ApiError: what the agent is told instead.
        """
        if self.closed:
            raise over()
        threads = self._threads_of(request.model)
        if self._waiting >= self._queue:
            message = (
                f"{self._waiting} requests of this episode are in flight; expected at most "
                f"{self._queue}"
            )
            raise ApiError(429, "too_many_requests", message, retry=True)
        loop = asyncio.get_running_loop()
        if not self._tasks:
            self._faults.clear()
            self._acting.close()
        self.requests += 1
        self._waiting += 1
        task = loop.create_task(self._answers(request, threads), context=self._context.copy())
        self._tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.closed and not _cancelled_itself():
                raise over() from None
            raise
        finally:
            self._tasks.discard(task)
            if self.turns and not self._tasks and not self.closed:
                self._acting.enter_context(self._policy_time())
            self._waiting -= 1
            self.last_used = loop.time()

    async def close(self) -> None:
        """Cancel the requests in flight and refuse later ones."""
        self.closed = True
        self._acting.close()
        tasks = [t for t in self._tasks if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _threads_of(self, model: str) -> Threads:
        """Return the conversations with *model*, as a request names it."""
        self.models[model] = None
        if not self._names or model in self._names:
            return self._threads
        if self._other is None:
            known = ", ".join(self._names)
            message = f"no model {model!r} here; the policy is {known} (`models` of the gateway)"
            raise ApiError(404, "model_not_found", message, param="model")
        if model not in self._threads_of_others:
            self._threads_of_others[model] = Threads(self._other(model))
        return self._threads_of_others[model]

    async def _answers(self, request: TurnRequest, known_threads: Threads) -> list[PolicyTurn]:
        # Threads are chosen before anything waits, in the order in which requests arrive.
        messages = self._known.made(
            request.messages, lambda known, new: [self._as_known(m) for m in new]
        )
        threads: list[Thread] = []
        try:
            threads += [known_threads.take(messages) for _ in range(request.n)]
            if request.n == 1:
                return [await self._answer(threads[0], request, known_threads)]
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._answer(thread, request.of_reply(i), known_threads))
                    for i, thread in enumerate(threads)
                ]
            return [t.result() for t in tasks]
        except BaseExceptionGroup as failed:
            raise next(
                (e for e in failed.exceptions if isinstance(e, ApiError)), failed.exceptions[0]
            ) from failed
        finally:
            for thread in threads:
                known_threads.release(thread)

    async def _answer(self, thread: Thread, request: TurnRequest, threads: Threads) -> PolicyTurn:
        """Take one turn of *thread*; whatever fails becomes an answer to the agent, and is
        remembered if it is ours.
        """
        try:
            async with self._room:
                answer = await thread.conversation.turn(request)
        except LimitReached as e:
            self.limit = self.limit or e
            code, message = _LIMITS.get(e.limit, (f"{e.limit}_limit_reached", "a limit is reached"))
            raise ApiError(
                400, code, f"{message} ({e})", param="messages" if e.limit == "context" else None
            ) from e
        except UsageError as e:
            # the template refuses the agent's messages: not an error of the recipe
            raise ApiError(400, "unsupported_messages", str(e), param="messages") from e
        except InfrastructureError as e:
            self._failures[thread] = e
            raise ApiError(503, "engine_failure", f"the engine failed: {e}", retry=True) from e
        except EnvironmentFault as e:
            self._failures[thread] = e
            raise ApiError(400, "episode_fault", str(e)) from e
        except Exception as e:
            self._failures[thread] = e
            logging.getLogger(__name__).exception("a turn failed")
            raise ApiError(500, "internal_error", f"{type(e).__name__}: {e}") from e
        self._failures.pop(thread, None)
        self._faults[thread] = turn_fault(request, answer.turn)
        self.turns += 1
        seen = self._with_ids(answer, thread, request)
        errors = _errors(answer.turn.calls, one=request.one_call) if seen.turn.calls else ()
        threads.answered(thread, Message("assistant", seen.text, calls=seen.turn.calls), errors)
        return seen

    def _with_ids(self, answer: PolicyTurn, thread: Thread, request: TurnRequest) -> PolicyTurn:
        """Return the answer as the agent sees it: readable calls with ids that are unique in the
        episode.

        Calls of a turn that has no readable one, or that were not allowed, stay text: the agent
        sees what the policy wrote. Beside a readable call, the conversation itself has the error of
        one that is not (`_errors`).
        """
        turn = answer.turn
        if not turn.calls:
            return answer
        calls = (
            tuple(c for c in turn.calls if not c.error and c.name) if request.calls_allowed else ()
        )
        if not calls:
            return replace(answer, turn=replace(turn, calls=(), reply=self._without_thought(turn)))
        if request.one_call:
            calls = calls[:1]
        renamed = []
        for i, call in enumerate(calls):
            name = f"call_{thread.name}_{thread.turns + 1}_{i}"
            self._calls[name] = call.id
            renamed.append(replace(call, id=name))
        return replace(answer, turn=replace(turn, calls=tuple(renamed)))

    def _without_thought(self, turn: Turn) -> str:
        """Return the text of a turn, whose calls are text, without its thought."""
        if not turn.reasoning:
            return turn.text.strip()
        engine = self._policy.engine
        if isinstance(engine, TokenEngine):
            return engine.tokenizer.parse(turn.text).reply  # without tools a call is text
        return split_thought(turn.text)[1].strip()

    def _as_known(self, message: Message) -> Message:
        """Return *message* with the ids that the conversation has."""
        known: Mapping[str, str] = self._calls
        if not known:
            return message
        if message.call_id in known:
            return replace(message, call_id=known[message.call_id])
        if any(c.id in known for c in message.calls):
            return replace(
                message, calls=tuple(replace(c, id=known.get(c.id, c.id)) for c in message.calls)
            )
        return message


def _errors(calls: Sequence[ToolCall], *, one: bool) -> tuple[tuple[int, Message], ...]:
    """Return results that say why calls were not run, each with its place among the results; no
    agent can answer them.

    Args:
        one: the agent runs the first readable call alone.
    """
    rows: list[tuple[int, Message]] = []
    ran = False
    for i, call in enumerate(calls):
        readable = call.name and not call.error
        if readable and not (one and ran):
            ran = True
            continue
        reason = "one call at a time, this one was not run" if readable else call.error or "no name"
        rows.append((i, Message("tool", f"error: {reason}", call_id=call.id, name=call.name)))
    return tuple(rows)


def over() -> ApiError:
    """Return the error 410: the episode has ended."""
    return ApiError(410, "episode_over", "the episode that this key belongs to has ended")


def _cancelled_itself() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
