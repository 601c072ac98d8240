"""The embedded engine: decodes a transformers model in this process, on CPU or GPU.

Requests get rows of one key-value cache; when one ends, the next takes its row at once (continuous
batching). Equal prompts are computed once. A *reproducible* engine steps only when every live
episode waits for it, so that the composition of each batch, and with it the last bits of every
log-prob, depends on the seeds alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random, SystemRandom
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import InfrastructureError, LimitReached, UsageError
from ..interfaces.engine import Pressure, TokenEngine, Weights
from ..interfaces.tokenizer import ChatTokenizer
from ..models.adapters import base_of
from ..models.load import as_device, cache_bytes, context_of, load_model
from ..models.snapshot import Snapshot
from ..models.transfers import on_gpu, room_beside_peak, to_device
from ..rollouts.chat.stop_strings import StopStrings
from ..rollouts.spans import Span
from ..types.sampling import Sampling
from ..types.transcript import Sampled
from .decoding import BatchForward
from .gradients import WithoutGradients
from .probe import choose_forward, recordable
from .sampler import Sampler, decode_burst
from .scoring import ScoreRequest, score_all
from .slots import Request, Slots

PREFILL_TOKENS = 4096
"""Tokens, padding included, of one forward pass over prompts."""

SLOTS = 64
"""Sequences decoded at once by default."""
MOST_SLOTS = 256
CACHE_BYTES = 2**31
"""Memory for keys and values beyond which a batch is decoded in several parts."""

_log = logging.getLogger(__name__)
_EPISODE: ContextVar[object] = ContextVar("quintain-episode", default=None)


class EmbeddedEngine(TokenEngine):
    """Decodes in this process; trainable.

    Attributes:
        path, snapshot: the classes that decode; its copy of the weights, ``None`` where it decodes
            the learner's own.
        sampler: what draws a token from the logits.
        stalls: how often a reproducible engine's patience ended and it stepped without some live
            episode.

    ``logps`` are the log-softmax at the sampling temperature before any truncation; for temperature
    0 (greedy) those of the untempered distribution. The same seed on the same logits gives the same
    token whatever else is in the batch; the logits themselves may differ in their last bits with
    the size of the batch.
    """

    name = "embedded"
    sampler: ClassVar[type[Sampler]] = Sampler

    def __init__(
        self,
        model: str = "",
        *,
        dtype: str = "float32",
        slots: int = SLOTS,
        context: int | None = None,
        device: str = "auto",
        reproducible: bool = True,
        patience: float = 120.0,
        template: Mapping[str, Any] | None = None,
        graphs: bool = True,
        checked: bool = True,
        router_replay: bool | None = None,
    ) -> None:
        """Load *model* (a folder or a hub name).

        Args:
            dtype: to decode in; ``auto`` is what the checkpoint was saved in.
            slots: maximum of sequences decoded at once, from 1; others wait.
            context: longest sequence, from 2, at most what the model supports; ``None`` is this
                maximum.
            device: ``auto`` is the GPU where there is one.
            reproducible: step only when every episode announced by `register` waits here.
            patience: seconds, more than 0, after which a reproducible engine steps without absent
                episodes, with a warning: an episode may itself depend on one that waits here.
            template: arguments of the chat template, such as ``{enable_thinking = false}``.
            graphs: replay the steps of decoding as CUDA graphs, on a GPU in half precision.
            checked: compare the layers that decode with the model's own forward. Without, a loader
                may read the weights alone, in half the time.
            router_replay: record the experts that computed each token, which the learner then takes
                again; ``None`` where the model is a mixture that allows it.

        Raises:
            UsageError: the model cannot be loaded, a setting is out of range, or *router_replay* is
                true and the experts of the model cannot be recorded.
        """
        self._configure(slots, context, reproducible, patience, graphs, router_replay)
        bare = not checked and dtype == "float32"
        loaded = load_model(model, dtype=dtype, device=device, bare=bare)
        loaded.tokenizer.use_template(template or {})
        self._open(loaded.module, loaded.tokenizer, Snapshot(loaded.module))

    def _configure(
        self,
        slots: int,
        context: int | None,
        reproducible: bool,
        patience: float,
        graphs: bool,
        router_replay: bool | None,
    ) -> None:
        if slots < 1:
            raise UsageError(
                f"slots is {slots}; the embedded engine expects a whole number from 1 up"
            )
        if context is not None and context < 2:
            raise UsageError(
                f"context is {context}; the embedded engine expects a whole number from 2 up (a "
                "prompt and a reply), or none for what the model was built for"
            )
        if not patience > 0:
            raise UsageError(
                f"patience is {patience}; the embedded engine expects a number of seconds above 0"
            )
        self._slots = Slots(slots)
        self._longest = context
        self._reproducible = reproducible
        self._patience = patience
        self._graphs = graphs
        self._router_replay = router_replay

    def _open(self, module: Any, tokenizer: ChatTokenizer, snapshot: Snapshot | None) -> None:
        self._module = module
        self.tokenizer = tokenizer
        self.snapshot = snapshot
        supported = context_of(module)
        self.context = min(self._longest or supported, supported)
        self.version = 0
        self.stalls = 0
        routers = recordable(module, self._router_replay)
        self._forward = choose_forward(module, self.context, graphs=self._graphs, routers=routers)
        if on_gpu(self._forward.device) and self._forward.store is not None:
            self._forward.store.least_rows = self.slots
        self.path = f"{type(self._forward).__name__} over {type(module).__name__}"
        self._queue: list[Request] = []
        self._scores: list[ScoreRequest] = []
        self._matchers: dict[tuple[str, ...], StopStrings] = {}
        self._live = 0  # registered episodes
        self._held = False  # an update waits for the sequences that run, so none begins
        self._driver: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._round_over = asyncio.Event()
        self._round_over.set()
        self._overslept = False
        self._gave_back = self._seen_update = False
        self._apart = False  # the learner's memory is that of another device or process

    @classmethod
    def sharing(
        cls,
        module: Any,
        tokenizer: ChatTokenizer,
        *,
        dtype: str | None = None,
        slots: int = SLOTS,
        context: int | None = None,
        reproducible: bool = True,
        patience: float = 120.0,
        copy: bool = False,
        device: str | None = None,
        graphs: bool = True,
        merge: bool = True,
        router_replay: bool | None = None,
    ) -> EmbeddedEngine:
        """Return an engine over a learner's *module*.

        A module without adapters in the same *dtype* is decoded directly, and `update` only sets
        the version: nothing may sample while the learner steps. Otherwise, or with *copy*, the
        engine decodes a copy (cast, adapters merged), which `update` refreshes once per version;
        with *copy* sampling may overlap the learner's steps. Without *merge* a module with adapters
        in the same *dtype* is decoded directly, too: no copy, but more products for each token. With
        a *device*, which is another than that of *module*, it decodes a copy there.

        Raises:
            UsageError: a setting is out of range, a copy is needed without *merge*, *module* has no
                weights, or *router_replay* is true and its experts cannot be recorded.
        """
        engine = cls.__new__(cls)
        engine._configure(slots, context, reproducible, patience, graphs, router_replay)
        if next(module.parameters()).is_meta:
            raise UsageError(
                "engine embedded: it decodes the weights of the run, which has none: they are in the "
                'processes of the learner; set engine.use = "vllm-server", or leave out '
                "learner.args.weights"
            )
        if copy or device is not None:
            place = None if device is None else as_device(device)
            snapshot: Snapshot | None = Snapshot.apart(module, dtype, place)
        else:
            snapshot = Snapshot.needed(module, dtype, merge=merge)
        if snapshot is not None and not merge:
            raise UsageError(
                "engine.args.merge = false: the engine needs a copy, in which adapters are merged; "
                "set model.dtype to the precision of the learner's weights, and no schedule or "
                "staleness that samples during updates"
            )
        engine._open(base_of(module) if snapshot is None else snapshot.module, tokenizer, snapshot)
        engine._apart = device is not None
        return engine

    @staticmethod
    def slots_for(
        module: Any, *, samples: int, tokens: int, dtype: str = "float32", room: int | None = None
    ) -> int:
        """Return the number of slots for a batch of *samples* of up to *tokens* each: all if their
        keys and values in *dtype* fit.

        On a GPU *room* bytes are for them. On a CPU the number depends on the other arguments
        alone, since the last digits depend on what is decoded together.
        """
        least = SLOTS if room is None else 8
        size = CACHE_BYTES if room is None else room
        return max(least, min(samples, MOST_SLOTS, size // cache_bytes(module, tokens, dtype)))

    @property
    def slots(self) -> int:
        """Number of sequences that are decoded at once, at most."""
        return len(self._slots.rows)

    @property
    def shares(self) -> bool:
        """Whether it decodes the learner's own tensors."""
        return self.snapshot is None

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Continue *ids*. Cancelling the awaiting task frees the slot.

        Raises:
            LimitReached: *ids* leave no room in the context.
            InfrastructureError: the forward pass failed, or gave NaN.
        """
        request = self.request(ids, sampling)
        self._queue.append(request)
        self._wake()
        try:
            return await request.future
        except asyncio.CancelledError:
            self._drop(request)
            raise

    async def score(self, ids: Sequence[int], start: int, temperature: float = 1.0) -> list[float]:
        """Return the log-probs of ``ids[start:]``, each given all before it; *start* is at least 1.
        Scores awaited together are batched.

        Raises:
            ValueError: *start* is out of range.
            LimitReached: *ids* are longer than the context.
        """
        self.check_score(ids, start)
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        request = ScoreRequest(ids=tuple(ids), start=start, temperature=temperature, future=future)
        self._scores.append(request)
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            self._scores = [s for s in self._scores if s is not request]
            self._wake()
            raise

    async def update(self, weights: Weights) -> int:
        """Load *weights*. Unfinished sequences continue under them, or end first; see
        `TokenEngine`.

        Raises:
            InfrastructureError: a tensor is missing or has another shape, or a cached prefix is
                still of older weights.
        """
        self._held = not self.in_flight_updates
        try:
            while self._held and self._slots.live:
                await asyncio.wait([request.future for request in self._running()])
            # A round gives other tasks a turn between two passes. Weights that change there would
            # be in one half of its prompts.
            while not self._round_over.is_set():
                await self._round_over.wait()
            with torch.inference_mode():
                if self.snapshot is not None:
                    self.snapshot.refresh(weights)
                self._forward.refresh()
                self.version = weights.version
                self._seen_update |= self._gave_back and not self._apart
                self._slots.forget(stale=not self.recompute_kv)
                self._slots.check_fresh(self.version)
                if self.recompute_kv:
                    self._recompute()
        finally:
            if self._held:
                self._held = False
                self._wake()
        return self.version

    async def outdated(self, weights: Weights) -> str:
        if self.snapshot is None and base_of(getattr(weights, "module", None)) is self._module:
            return ""  # the learner's own tensors
        return (self.snapshot or Snapshot(self._module)).outdated(weights)

    async def pressure(self) -> Pressure:
        """Return its own counters. It drops no keys and values, so that nothing is preempted."""
        running = self._running()
        held = sum(len(request.ids) + len(request.tokens) for request in running)
        return Pressure(
            running=len(running),
            waiting=len(self._queue),
            cache_used=held / (self.slots * self.context),
        )

    @contextmanager
    def register(self) -> Iterator[None]:
        """Announce a live episode, for which a reproducible engine waits."""
        self._live += 1
        token = _EPISODE.set(object())
        try:
            yield
        finally:
            _EPISODE.reset(token)
            self._live -= 1
            self._wake()

    async def __aexit__(self, *exc: object) -> None:
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
        self._driver = None
        for request in [*self._queue, *self._running()]:
            if not request.future.done():
                request.future.set_result(request.sampled("cancelled"))
        for score in self._scores:
            score.future.cancel()
        self._clear()

    def request(self, ids: Sequence[int], sampling: Sampling) -> Request:
        """Return the request to continue *ids*, which no queue has.

        Raises:
            LimitReached: *ids* leave no room in the context.
        """
        room = self.context - len(ids)
        if room < 1:
            raise LimitReached(
                "context",
                f"a prompt of {len(ids)} tokens; the context is {self.context}, replies included",
            )
        if not ids:
            raise ValueError("an empty prompt: there is nothing to continue")
        seed = sampling.seed if sampling.seed is not None else SystemRandom().getrandbits(62)
        # one per set of strings, which remembers the tokens that it has decoded
        if sampling.stop not in self._matchers:
            self._matchers[sampling.stop] = StopStrings(sampling.stop, self.tokenizer)
        return Request(
            ids=tuple(ids),
            sampling=sampling,
            limit=min(sampling.max_tokens or room, room),
            stop_ids=frozenset((*self.tokenizer.stop_ids, *sampling.stop_ids)),
            stops=self._matchers[sampling.stop],
            order=(sampling.seed is None, sampling.seed or 0, tuple(ids)),
            random=Random(seed),  # uses the whole seed; torch's generator keeps 32 bits of it
            future=asyncio.get_running_loop().create_future(),
            episode=_EPISODE.get(),
        )

    def _wake(self) -> None:
        self._changed.set()
        if not (self._queue or self._scores or self._slots.live):
            self._rest()
            return
        loop = asyncio.get_running_loop()
        if self._driver is None or self._driver.done() or self._driver.get_loop() is not loop:
            # Events belong to the loop that waits for them.
            self._changed = asyncio.Event()
            self._round_over = asyncio.Event()
            self._round_over.set()
            self._driver = loop.create_task(self._drive(), name="quintain-engine")

    def _rest(self) -> None:
        """Drop the rows' content when no episode is left: a resumed run starts with an empty cache, too.

        Their memory stays, with the graphs of steps over it: making it anew costs more. On a GPU the
        learner may need it. So it is given back until an update has shown that both have room.
        """
        if self._reproducible and not (self._live or self._queue or self._slots.live):
            self._slots.forget()
            store, device = self._forward.store, self._forward.device
            if store is None or not (store.rows and on_gpu(device)):
                return
            if not (self._seen_update and room_beside_peak(device, store.nbytes)):
                store.release()
                self._gave_back = True

    async def _drive(self) -> None:
        """Run until no request waits; a failure ends the waiting requests, not the engine."""
        try:
            while self._queue or self._scores or self._slots.live:
                # episodes whose turn has ended run first, and may request the next one
                await asyncio.sleep(0)
                if not (self._scores or self._may_step()):
                    await self._wait()
                    continue
                self._round_over.clear()
                await WithoutGradients(self._score() if self._scores else self._round())
                self._round_over.set()
        except Exception as error:  # noqa: BLE001 -- any failure must reach the tasks that wait
            self._fail(error)
        finally:
            self._round_over.set()
            self._rest()

    def _may_step(self) -> bool:
        requests = [*self._queue, *self._running()]
        if not self._reproducible or self._overslept:
            return bool(requests)
        # Every registered episode has to have a request here. Then what is decoded together depends
        # on the episodes and not on which of them is fast. Several requests of one count once.
        episodes = {request.episode for request in requests} - {None}
        return len(requests) >= max(1, self._live) and len(episodes) >= self._live

    async def _wait(self) -> None:
        self._changed.clear()
        try:
            with Span("engine waits"):
                async with asyncio.timeout(self._patience):
                    await self._changed.wait()
        except TimeoutError:
            self.stalls += 1
            self._overslept = True
            absent = self._live - len(self._slots.live) - len(self._queue) - len(self._scores)
            message = "%d of %d live episodes have not come back for %g s; stepping without them "
            message += "(this run will not repeat bit for bit)"
            _log.warning(message, absent, self._live, self._patience)

    async def _round(self) -> None:
        """Accept requests, then decode until one of them ends."""
        self._overslept = False
        # Without rows that begin independently, a batch ends before another one begins.
        may_begin = self._forward.store is not None or not self._slots.live
        if self._queue and not self._held and may_begin:
            await self._admit()
        if self._slots.live:
            self._burst()

    async def _score(self) -> None:
        """Score waiting sequences; a reproducible engine one at a time, since batching would change
        the last bits.
        """
        take = 1 if self._reproducible else len(self._scores)
        batch = self._scores[:take]
        del self._scores[:take]
        await score_all(self._forward, batch)

    async def _admit(self) -> None:
        """Give rows to waiting requests, compute their prompts, and sample their first tokens."""
        if self._forward.store is None:  # a fixed batch reuses no prefix, and takes rows 0 .. n-1
            self._slots.forget()
        admission = self._slots.admit(self._queue)
        running = set(self._running())
        self._queue = [r for r in self._queue if r not in running]
        if isinstance(self._forward, BatchForward):
            live = self._slots.live
            logits = self._forward.extend(
                live, [self._rows_request(i).ids for i in live], [0] * len(live)
            )
            self._first_tokens(live, logits)
            return
        store = self._forward.store
        assert store is not None
        taken = [row for row, _ in admission.extensions]
        taken += [row for _, row, _ in admission.branches]
        taken += [row for _, row in admission.followers]
        longest = max((len(request.ids) for request in running), default=0)
        store.reserve(max(taken, default=0) + 1, longest)
        # Before any pass: a row that another one copies from may be overwritten by its own prompt.
        store.copy(admission.copies)
        behind_copies = [(row, tokens) for _, row, tokens in admission.branches]
        computed = [*admission.extensions, *behind_copies]
        prompts = {row: self._rows_request(row).ids for row, _ in computed}
        logits_by_row = await self._prefill(admission.extensions, prompts)
        store.copy(admission.branches)
        logits_by_row |= await self._prefill(behind_copies, prompts)
        for leader, row in admission.followers:
            logits_by_row[row] = logits_by_row[leader]
        # only now that the prompts of their leaders are computed
        store.copy([(leader, row, len(prompts[leader])) for leader, row in admission.followers])
        # A request may have been cancelled while the prompts of others were computed.
        present = [
            row for row in sorted(logits_by_row) if self._slots.rows[row].request is not None
        ]
        if present:
            self._first_tokens(present, torch.stack([logits_by_row[row] for row in present]))

    async def _prefill(
        self, extensions: Sequence[tuple[int, int]], prompts: Mapping[int, tuple[int, ...]]
    ) -> dict[int, Tensor]:
        """Compute prompts in passes of similar length; other tasks run between two passes.

        Args:
            extensions: rows, and the length of the prefix that they hold. Empty rows get passes of
                their own, since plainly causal attention has the faster kernel.
        """
        logits_by_row: dict[int, Tensor] = {}
        # Whether a row holds a prefix, tokens left, row, tokens that it holds: sorted, so that rows
        # of like length come together and none is padded by much.
        pending = sorted(
            (start > 0, len(prompts[row]) - start, row, start) for row, start in extensions
        )
        while pending:
            # As many as fill the budget with their padding, one at least.
            holds_prefix = pending[0][0]
            width = 0
            take = 0
            for cached, rest, _, _ in pending:
                width = max(width, min(rest, PREFILL_TOKENS))
                if take and (width * (take + 1) > PREFILL_TOKENS or cached != holds_prefix):
                    break
                take += 1
            batch = pending[:take]
            del pending[:take]
            rows = [row for _, _, row, _ in batch]
            starts = [start for _, _, _, start in batch]
            pieces = [prompts[row][start : start + PREFILL_TOKENS] for _, _, row, start in batch]
            logits = self._forward.extend(rows, pieces, starts)
            for (_, rest, row, start), piece, row_logits in zip(batch, pieces, logits, strict=True):
                if len(piece) < rest:
                    # Longer than the budget: its rest goes on behind what it holds now.
                    pending.append((True, rest - len(piece), row, start + len(piece)))
                else:
                    logits_by_row[row] = row_logits
            await asyncio.sleep(0)
        return logits_by_row

    def _first_tokens(self, rows: Sequence[int], logits: Tensor) -> None:
        # The prompt gave the logits already, so the first token takes no step.
        requests = [self._rows_request(row) for row in rows]
        drawn = [r.random.random() for r in requests]
        uniforms = to_device(drawn, logits.device, torch.float64)
        words = self.tokenizer.vocab_size
        sampler = self.sampler([r.sampling for r in requests], logits.device, words)
        ids, logps = sampler.pick(logits, uniforms)
        for row, token, logp in zip(rows, ids.tolist(), logps.tolist(), strict=True):
            self._rows_request(row).append([token], [logp], self.version)
            self._settle(row)

    def _burst(self) -> None:
        """Decode until a request may have ended or the event loop has waited long enough."""
        if self._forward.store is not None:
            self._forward.store.copy(self._slots.compact())
        if isinstance(self._forward, BatchForward):
            rows = range(self._forward.rows)  # also those that have ended
        else:
            rows = range(self._slots.live[-1] + 1)
        requests = [self._slots.rows[row].request for row in rows]
        decoded = decode_burst(self._forward, requests, self.tokenizer.vocab_size, self.sampler)
        for row, request, tokens, logps in zip(rows, requests, *decoded, strict=True):
            if request is not None:
                request.append(tokens, logps, self.version)
                self._settle(row)

    def _settle(self, row: int) -> None:
        """End the request of *row* if its newest token ends it."""
        request = self._rows_request(row)
        if math.isnan(request.logps[-1]):
            raise InfrastructureError(
                "the model gave NaN logits; its weights have diverged or overflow in this dtype"
            )
        finish = request.finish()
        if finish is not None:
            experts = self._forward.experts(row, len(request.cached))
            self._slots.free(row)
            if not request.future.done():
                request.future.set_result(request.sampled(*finish, experts=experts))

    def _rows_request(self, row: int) -> Request:
        request = self._slots.rows[row].request
        assert request is not None, f"row {row} is idle"
        return request

    def _running(self) -> list[Request]:
        return [self._rows_request(row) for row in self._slots.live]

    def _drop(self, request: Request) -> None:
        self._queue = [r for r in self._queue if r is not request]
        for i, row in enumerate(self._slots.rows):
            if row.request is request:
                self._slots.free(i)
        self._wake()

    def _recompute(self) -> None:
        """Compute the cache of running sequences again, under new weights."""
        cached = {row: self._rows_request(row).cached for row in self._slots.live}
        if isinstance(self._forward, BatchForward) and cached:
            rows = range(self._forward.rows)
            self._forward.extend(rows, [cached.get(row, (0,)) for row in rows], [0] * len(rows))
            return
        for _ in self._prefill([(row, 0) for row in cached], cached).__await__():
            pass  # all passes at once: no other task runs between them

    def _fail(self, error: Exception) -> None:
        """Raise *error* in all waiting tasks, as a failure of ours and not of the policy."""
        requests = [*self._queue, *self._running()]
        futures: list[asyncio.Future[Any]] = [request.future for request in requests]
        futures += [score.future for score in self._scores]
        longest = max((request.limit for request in requests), default=0)
        self._clear()
        failure = error
        if not isinstance(error, InfrastructureError):
            kind = type(error).__name__
            reason = str(error)
            if isinstance(error, torch.OutOfMemoryError):
                kind = self._out_of_memory(longest)
                reason = reason.partition(". ")[0]  # the rest is a dump of the allocator
            failure = InfrastructureError(f"the embedded engine failed: {kind}: {reason}")
            failure.__cause__ = error
        for future in futures:
            if not future.done():
                future.set_exception(failure)

    def _out_of_memory(self, longest: int) -> str:
        """Return what to change; replies of *longest* tokens were asked for."""
        reply = f" or sampling.max_tokens (replies now have up to {longest})" if longest else ""
        return (
            f"the GPU is out of memory while sampling: lower engine.args.slots (now "
            f"{self.slots}){reply}"
        )

    def _clear(self) -> None:
        self._queue = []
        self._scores = []
        self._slots = Slots(len(self._slots.rows))
