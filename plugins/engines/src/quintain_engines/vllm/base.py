"""What the engine in this process and the one behind a server share: model folder, scoring, weight
updates, canary.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from quintain import InfrastructureError, Sampled, Sampling, TokenEngine, Weights
from quintain.errors import UsageError
from quintain.interfaces import changes_of
from quintain.learning import ModuleWeights
from quintain.models import PICTURE_TOKENS, HFTokenizer, check_whole

from .arguments import engine_args
from .canary import (
    DEVIATIONS,
    DRAWS,
    SAMPLES,
    TOLERANCE,
    Reference,
    base_of,
    canary_ids,
    first_difference,
    forward_log_probs,
    other_adapters,
    sampling_error,
    tolerance_of,
    unties_embeddings,
)
from .canary import layer_outputs as learner_outputs
from .checksums import adapter_factors, differing, frozen_tensors, in_engine_layout
from .errors import CanaryError, SleepUnsupportedError, UndeliveredError, WeightSyncError
from .pictures import SIDES, Pictures, SeenPicture, adapts_tower, identifier, served, served_name
from .requests import room_for, sampled, sampling_fields
from .settings import Settings
from .sleep import LearnerHook, forget_cached_memory
from .transports import Device, Transport

_log = logging.getLogger(__name__)
_NO_LIMIT = 10**7
AFTER_PICTURE = 16
"""Tokens of the canary that follow a picture."""
RELEASE_SECONDS = 10.0
"""For the attempt to resume an engine whose update failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VLLMOutput:
    """What vLLM answered to one request.

    Attributes:
        spans: version, first token and end of each run of new tokens that were sampled under one
            version.
        prompt_logps: of the prompt's tokens from the second on; empty where they were not asked
            for.
        asked: log-prob, at the first new token, of the token id that ``logprob_token_ids`` named.
        cached: tokens of the prompt whose keys and values were computed before.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    spans: tuple[tuple[str, int, int], ...]
    finish: str
    stop: str | int | None = None
    prompt_logps: tuple[float, ...] = ()
    asked: float | None = None
    cached: int = 0


class SyncedEngine(TokenEngine):
    """A vLLM engine whose weights follow a learner's.

    Attributes:
        module: the learner's module, where the engine was made for one.
        settings: of the constructor.
        dtype: that vLLM computes in.
        differences: of the canary after each update, in nats.
    """

    module: Any = None
    settings: Settings
    path: str

    def _configure(
        self,
        settings: Settings,
        transport: Transport,
        *,
        folder: str = "",
        tokenizer: HFTokenizer,
        config: Any,
        module: Any = None,
        overlaps: bool = False,
    ) -> None:
        """Set the engine up.

        Args:
            folder: or hub name of the checkpoint, where there is no *module*.
            overlaps: turns are sampled while the learner updates.

        Raises:
            UsageError: a setting does not fit the model.
        """
        supported, context, dtype = _context_of(config), settings.context, settings.dtype or "auto"
        if context is not None and not 2 <= context <= supported:
            raise UsageError(
                f"context is {context}; this model takes 2 to {supported}, or none for {supported}"
            )
        if settings.adapters and not hasattr(module, "peft_config"):
            raise UsageError(
                "adapters is true, but the model has none: set [model.lora] in the recipe"
            )
        if module is not None and dtype == "auto":
            dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
        self.tokenizer: HFTokenizer = tokenizer
        self.context = context or supported
        self.settings, self.module, self.dtype = settings, module, dtype
        self._folder = folder
        self._config = config
        self._vocabulary = config.get_text_config().vocab_size
        self._transport, self._transport_open = transport, False
        transport.dtype = self.dtype
        if module is not None and isinstance(transport, Device):
            transport.device = next(module.parameters()).device
            if transport.device.type != "cuda":
                raise UsageError(
                    f"transport {transport.backend!r} carries weights from a GPU of the run, which "
                    'has none there; set engine.args.transport = "file"'
                )
        self._reference = Reference(module, folder)
        self._pictures = Pictures.of(tokenizer, config)
        self._counted: set[str] = set()
        if settings.adapters and self._sees and adapts_tower(base_of(module)):
            raise UsageError(
                "adapters is true, and the vision tower or the projector has adapters, which vLLM would "
                "leave out: leave it out, which sends merged weights, or name modules of the language "
                "model alone in model.lora.target_modules"
            )
        self.version, self.stalls = 0, 0
        self.differences: list[float] = []
        self._checked = -1
        self._temporary: Path | None = None
        self._adapter: Path | None = None
        self._published: tuple[Weights, Any] | None = None
        self._turns, self._asleep = 0, 0
        self._new_locks()
        sleeps = settings.sleep_mode and not overlaps
        self._hook = LearnerHook(module, self._rest) if sleeps and module is not None else None

    def _new_locks(self) -> None:
        self._syncing, self._gate, self._idle = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self._gate.set()
        self._idle.set()

    # -- what a mode provides

    @abstractmethod
    async def _start(self) -> None:
        """Load the model; its version is `version`."""

    @abstractmethod
    async def _stop(self) -> None: ...

    @abstractmethod
    async def _generate(self, ids: Sequence[int], fields: Mapping[str, Any]) -> VLLMOutput:
        """Run one request; a cancelled await aborts it."""

    @abstractmethod
    async def _pause(self) -> None:
        """Freeze running requests. With `recompute_kv` their keys and values are dropped, and
        computed again after.
        """

    @abstractmethod
    async def _resume(self) -> None: ...

    @abstractmethod
    async def _reset_prefix_cache(self) -> None: ...

    @abstractmethod
    async def _rpc(self, method: str, *args: Any) -> Any:
        """Call a method of `WorkerExtension` on all workers; the first one's answer."""

    @abstractmethod
    async def _load_adapter(self, folder: Path, version: int) -> None:
        """Put the adapters in *folder*, in peft's format, in the place of those before."""

    # -- the engine

    async def __aenter__(self) -> Self:
        self._new_locks()  # of this event loop
        if self.module is not None and not self._folder:
            self._temporary = Path(tempfile.mkdtemp(prefix="quintain-vllm-"))
            _write_shape(
                self.module, self.tokenizer, self._temporary, weights=self.settings.adapters
            )
            self._folder = str(self._temporary)
        try:
            await self._start()
            if self.module is not None and not self.awaits_weights:
                await self._begin(ModuleWeights(self.module, self.version))
        except BaseException:
            await self.__aexit__()
            raise
        if self._hook is not None:
            self._hook.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._hook is not None:
            self._hook.stop()
        if self._transport_open:
            self._transport.close()
            self._transport_open = False
        await self._stop()
        for folder in filter(None, (self._temporary, self._adapter)):
            shutil.rmtree(folder, ignore_errors=True)

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Continue *ids*. Cancelling the awaiting task aborts the request.

        Raises:
            LimitReached: *ids* leave no room in the context.
            InfrastructureError: vLLM failed, or gave NaN.
        """
        stop_ids = [
            i for i in (*self.tokenizer.stop_ids, *sampling.stop_ids) if i < self._vocabulary
        ]
        fields = sampling_fields(sampling, stop_ids=stop_ids, room=room_for(ids, self.context))
        async with self._turn():
            oldest = self.version
            answer = await self._generate(ids, fields)
            logps: Sequence[float] = answer.logps
            if sampling.truncates and sampling.temperature > 0:
                # vLLM's are those of the truncated distribution
                logps = await self.score([*ids, *answer.ids], len(ids), sampling.temperature)
        sent = range(oldest, self.version + 1)
        return sampled(answer.ids, logps, answer.spans, answer.finish, answer.stop, sent)

    def _seen(self, ids: Sequence[int]) -> list[SeenPicture]:
        """Return the pictures of the prompt *ids*.

        Raises:
            UsageError: the engine does not send them.
        """
        if self._pictures is not None:
            return self._pictures.seen(ids)
        if max(ids, default=0) >= PICTURE_TOKENS:
            raise UsageError(
                f"a prompt holds a picture, and the model of the engine {self.name} sees none; sample "
                "with the model that has made the prompt"
            )
        return []

    def _plain(self, ids: Sequence[int]) -> list[int]:
        return list(ids) if self._pictures is None else self._pictures.plain(ids)

    async def _check_features(self, seen: Sequence[SeenPicture], version: int) -> None:
        """Compare the number of features that vLLM has computed of each picture with that of its tokens,
        when it is sent for the first time. vLLM itself leaves out what is too much.

        Raises:
            UsageError: they differ.
        """
        for picture in seen:
            if picture.digits in self._counted:
                continue
            counts = await self._rpc("quintain_features", identifier(picture, version))
            if not counts:  # left its cache already: counted the next time
                continue
            (count,) = counts
            if count != len(picture.offsets):
                raise UsageError(
                    f"vLLM computes {count} features of picture {picture.digits}, which has "
                    f"{len(picture.offsets)} tokens: its model differs from that of transformers; use "
                    'engine.use = "embedded"'
                )
            self._counted.add(picture.digits)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Let a turn be sampled in the block; none begins while an update waits for the end of
        all.
        """
        await self._awake()
        while not self._gate.is_set():
            await self._gate.wait()
            await self._awake()
        self._turns += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._turns -= 1
            if not self._turns:
                self._idle.set()

    async def score(self, ids: Sequence[int], start: int, temperature: float = 1.0) -> list[float]:
        """Return the log-probs of ``ids[start:]``, each given all before it; *start* is at least 1.

        vLLM gives log-probs of a prompt at temperature 1. At another temperature each token is a
        request of its own, which shares the keys and values of its prefix.

        Raises:
            ValueError: *start* is out of range.
            LimitReached: *ids* are longer than the context.
        """
        self.check_score(ids, start)
        if start == len(ids):
            return []
        await self._awake()
        temperature = temperature or 1.0
        if temperature != 1 and start < len(ids) - 1:
            ends = range(start, len(ids))
            return list(
                await asyncio.gather(
                    *(self._next_logp(ids[:end], ids[end], temperature) for end in ends)
                )
            )
        if start == len(ids) - 1:
            return [await self._next_logp(ids[:-1], ids[-1], temperature)]
        answer = await self._generate(
            ids[:-1], {**_ONE, "prompt_logprobs": 0, "logprob_token_ids": [ids[-1]]}
        )
        if answer.asked is None or len(answer.prompt_logps) != len(ids) - 2:
            raise InfrastructureError(f"{self.name} gave no log-probs of the prompt")
        return [*answer.prompt_logps[start - 1 :], answer.asked]

    async def _next_logp(self, ids: Sequence[int], token: int, temperature: float) -> float:
        fields = {**_ONE, "temperature": temperature, "logprob_token_ids": [token]}
        logp = (await self._generate(ids, fields)).asked
        if logp is None:
            raise InfrastructureError(f"{self.name} gave no log-prob of token {token}")
        return logp

    # -- weights

    async def _begin(self, weights: Weights) -> None:
        """Send the first weights, and check what does not change later: that requests have the
        adapters, by other ones, and that tokens are drawn from the distribution that is reported.
        """
        if self.settings.adapters and self.settings.canary:
            with other_adapters(self.module):
                await self.update(weights)
        await self.update(weights)
        if self.settings.canary:
            await self._check_sampling(weights)

    async def _check_sampling(self, weights: Weights) -> None:
        ids = canary_ids(self._vocabulary, self.context)
        fields = {**_ONE, "temperature": 0.5, "logprobs": 0}
        answers = await asyncio.gather(
            *(self._generate(ids, {**fields, "seed": seed}) for seed in range(SAMPLES))
        )
        log_probs = forward_log_probs(self._reference.module(weights), ids)[-1]
        expected = (log_probs / 0.5).log_softmax(-1)
        drawn = [float(expected[answer.ids[0]]) for answer in answers]
        if not abs(deviation := sampling_error(drawn, expected)) <= DEVIATIONS:
            raise UndeliveredError(
                weights.version, f"temperature ({deviation:.0f} standard errors)"
            )

    async def outdated(self, weights: Weights) -> str:
        """Compare checksums of what vLLM's kernels compute with, and of adapters; see
        `TokenEngine.outdated`. Quantised maps, experts, shards of tensor parallelism and an engine
        that sleeps cannot be told.
        """
        if self._asleep:
            return ""
        module: Any = getattr(weights, "module", None) or self.module
        adapters = self.settings.adapters
        tensors = frozen_tensors(module) if adapters else weights.tensors()
        arranged = tensors.items() if module is None else in_engine_layout(module, tensors)
        arranged = ((served_name(self._config, name), tensor) for name, tensor in arranged)
        if (name := differing(arranged, await self._rpc("quintain_weights"))) or not adapters:
            return name
        loaded = await self._rpc("quintain_adapters")
        factors = adapter_factors(module, self.dtype)
        return next((n for n in factors if n not in loaded), "") or differing(
            factors.items(), loaded
        )

    async def update(self, weights: Weights) -> int:
        """Load *weights*: pause, transfer, reset the prefix cache, resume, and compare with the
        learner.

        Unfinished turns continue under the new weights, and each token carries the version that
        sampled it; without `in_flight_updates` they end first, and none begins meanwhile. With
        `recompute_kv`, vLLM computes the keys and values of unfinished sequences again; else they
        continue over those of the old weights, and log-probs are of neither version.

        Raises:
            WeightSyncError: the transfer failed, and left the engine without usable weights.
            UndeliveredError: the engine computes with another tensor, or offers a cached prefix of
                other weights.
            CanaryError: the engine scores the canary otherwise than the learner.
        """
        async with self._syncing:
            try:
                if not self.in_flight_updates:
                    self._gate.clear()
                    if self._turns:
                        await self._wake()
                    await self._idle.wait()
                await self._transfer(weights)
                if self.settings.canary:
                    await self._check(weights)
            finally:
                self._gate.set()
        return self.version

    async def _transfer(self, weights: Weights) -> None:
        wakes, self._asleep = bool(self._asleep), 0
        if wakes:
            forget_cached_memory(self.module)
            await self._wake_up("weights")
        await self._pause()
        try:
            if not self._transport_open:
                await self._transport.open(self._control())
                self._transport_open = True
            await self._send(weights)
            await self._reset_prefix_cache()
        except (UsageError, WeightSyncError):
            await self._release()
            raise
        except Exception as error:
            await self._release()
            raise WeightSyncError(
                f"{self.name} did not take weights of version {weights.version}, and has neither "
                f"these nor those before: {type(error).__name__}: {error}"
            ) from error
        self.version, self._published = weights.version, (weights, changes_of(weights))
        if wakes:
            await self._wake_up("kv_cache")
        await self._resume()

    async def _release(self) -> None:
        """Let other clients of a server continue after an update that failed; else their requests
        stay paused.
        """
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._resume()
        except Exception as error:  # noqa: BLE001 -- the failure of the update is the one to show
            _log.warning(
                "%s is still paused: %s: %s; start it again", self.name, type(error).__name__, error
            )

    async def _send(self, weights: Weights) -> None:
        if not self.settings.adapters:
            tensors = served(weights.tensors(), self._config)
            await self._transport.transfer(self._control(), tensors, weights.version)
            return
        module: Any = getattr(weights, "module", None)
        if not hasattr(module, "peft_config"):
            raise UsageError(
                "adapters is true, but merged weights were published, as a staleness does; leave "
                "it out"
            )
        before = self._adapter
        # under a new name: vLLM may keep what it computed with adapters of the same path
        self._adapter = Path(
            tempfile.mkdtemp(prefix="quintain-adapter-", dir=self._transport.folder)
        )
        module.save_pretrained(self._adapter)
        await self._load_adapter(self._adapter, weights.version)
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def _engine_args(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of ``vllm.EngineArgs``: what both modes set, *more*, and the user's
        options.
        """
        args = engine_args(
            self.settings,
            folder=self._folder,
            config=self._config,
            module=self.module,
            dtype=self.dtype,
            context=self.context,
            backend=self._transport.backend,
        )
        return {**args, **more, **self.settings.options}

    @abstractmethod
    def _control(self) -> Any:
        """Return the engine as a `transports.Control`."""

    async def _check(self, weights: Weights) -> None:
        """Score the canary, and tokens after it, which are sampled over cached keys and values.

        Where input embeddings have weights of their own, a second sequence draws other tokens for
        each version.
        """
        if tensor := await self.outdated(weights):
            raise UndeliveredError(weights.version, tensor)
        ids = canary_ids(self._vocabulary, self.context)
        module = self._reference.module(weights)
        expected = forward_log_probs(module, ids)
        tolerance = self.settings.canary_tolerance or tolerance_of(
            module, ids, expected, self.dtype
        )
        first = await self._generate(ids, {**_ONE, "temperature": 1.0, "logprobs": 0})
        if first.cached and weights.version != self._checked:
            cached = f"prefix ({first.cached} tokens that were cached before)"
            raise UndeliveredError(weights.version, cached)
        # vLLM may be set to report log-probs before the temperature. Those of one token can be
        # almost the same with and without it.
        half = {**_ONE, "temperature": 0.5, "logprobs": 0}
        others = await asyncio.gather(
            *(self._generate(ids, {**half, "seed": seed}) for seed in range(DRAWS))
        )
        difference = 0.0
        for temperature, following in ((1.0, first), *((0.5, other) for other in others)):
            labels = {version for version, _, _ in following.spans} - {str(weights.version)}
            if labels:
                raise UndeliveredError(weights.version, f"version ({', '.join(labels)})")
            expected_logp = (expected[-1] / temperature).log_softmax(-1)[following.ids[0]]
            difference = max(difference, abs(following.logps[0] - float(expected_logp)))
        self._checked = weights.version
        difference = max(difference, await self._difference(expected, ids))
        if difference <= tolerance and unties_embeddings(module):
            ids = canary_ids(self._vocabulary, self.context, weights.version)
            difference = max(
                difference, await self._difference(forward_log_probs(module, ids), ids)
            )
        if difference <= tolerance and self._sees:
            ids, start = self._canary_with_picture()
            expected = forward_log_probs(module, ids)
            tolerance = max(
                tolerance,
                self.settings.canary_tolerance
                or tolerance_of(module, ids, expected, self.dtype, start=start),
            )
            difference = max(difference, await self._difference(expected, ids, start))
        self.differences.append(difference)
        if not difference <= tolerance:
            layer = await self._differing_layer(module, ids)
            raise CanaryError(difference, tolerance, weights.version, layer)

    @property
    def _sees(self) -> bool:
        """Whether the engine takes pictures."""
        return self._pictures is not None and not self._pictures.refusal

    def _canary_with_picture(self) -> tuple[tuple[int, ...], int]:
        """Return a fixed sequence with a picture, and where the text behind it begins.

        Raises:
            UsageError: the context is too short.
        """
        assert self._pictures is not None
        picture = self._pictures.canary()
        text = canary_ids(self._vocabulary, self.context)[:AFTER_PICTURE]
        start = len(picture) + 1
        if start + len(text) >= self.context:
            raise UsageError(
                f"context is {self.context}, and a picture of {SIDES[0]} x {SIDES[1]} pixels takes "
                f"{len(picture)} tokens of it: raise engine.args.context, or let the processor of the "
                "model make fewer tokens"
            )
        return (*picture, *text), start

    async def _difference(self, expected: Any, ids: Sequence[int], start: int = 1) -> float:
        """Return the largest difference between the engine's scores of *ids* from *start* on and those
        in *expected*, in nats.
        """
        logps = await self.score(ids, start)
        places = range(start - 1, len(ids) - 1)
        pairs = zip(logps, expected[places, list(ids[start:])].tolist(), strict=True)
        largest: float = max(abs(a - b) for a, b in pairs)
        return largest

    async def _differing_layer(self, module: Any, ids: Sequence[int]) -> str:
        from safetensors.torch import load_file

        path = Path(tempfile.gettempdir()) / f"quintain-trace-{id(self)}.safetensors"
        try:
            await self._rpc("quintain_trace")
            await self.score(ids, 1)
            classes = await self._rpc("quintain_traced", str(path))
            engine = load_file(path)
        except Exception as error:  # noqa: BLE001 -- the canary's error is the one to show
            _log.warning(
                "the layers of the engine could not be traced: %s: %s", type(error).__name__, error
            )
            return ""
        finally:
            path.unlink(missing_ok=True)
        in_order = {name: engine[name] for name in classes}
        learner = {
            served_name(self._config, f"{name}.")[:-1]: output
            for name, output in learner_outputs(module, ids).items()
        }
        return first_difference(learner, in_order, classes, TOLERANCE.get(self.dtype, 0.05))

    # -- sleep

    async def sleep(self, level: int | None = None) -> None:
        """Release the engine's memory on the GPU for the learner: 1 moves the weights to the host,
        2 drops them.

        The next call wakes it; after level 2 with the last published weights, which are transferred
        again. With ``sleep_mode`` and a synchronous schedule, an engine of a learner sleeps by
        itself when the learner begins to compute.

        Raises:
            SleepUnsupportedError: there is nothing to free on this platform.
            UsageError: there is no such level, or it would drop the frozen weights under adapters.
        """
        level = level or self.settings.sleep_level
        if level not in (1, 2) or (level == 2 and self.settings.adapters):
            raise UsageError(f"sleep level is {level}; expected 1 or 2, with adapters 1")
        if not self._can_sleep():
            raise SleepUnsupportedError(
                f"{self.name} cannot sleep here: vLLM frees memory of GPUs only, and only with "
                f"sleep_mode = true"
            )
        async with self._syncing:
            if not self._asleep:
                self._asleep = level
                await asyncio.to_thread(self._fall_asleep, level)

    def _rest(self) -> None:
        """Let the engine sleep, if nothing is being sampled: the learner, in whose thread this is
        called, needs the memory.
        """
        if (
            not self._asleep
            and not self._turns
            and not self._syncing.locked()
            and self._can_sleep()
        ):
            self._asleep = self.settings.sleep_level
            self._fall_asleep(self._asleep)

    async def _awake(self) -> None:
        if self._asleep:
            async with self._syncing:
                await self._wake()

    async def _wake(self) -> None:
        """Wake up, if asleep; what level 2 dropped is transferred again."""
        if self._asleep == 1:
            self._asleep = 0
            forget_cached_memory(self.module)
            await self._wake_up()
            await self._resume()
        if not self._asleep:
            return
        if self._published is None:
            raise WeightSyncError(
                f"{self.name} dropped its weights in its sleep, and was given none: call update()"
            )
        weights, state = self._published
        if changes_of(weights) != state:
            raise WeightSyncError(
                f"{self.name} dropped weights of version {weights.version} in its sleep, and the "
                "learner's are newer: call update(), or set engine.args.sleep_level to 1"
            )
        await self._transfer(weights)

    @abstractmethod
    def _can_sleep(self) -> bool: ...

    @abstractmethod
    def _fall_asleep(self, level: int) -> None:
        """Pause and free the memory; returns when it is free. May be called in the thread of the
        event loop.
        """

    @abstractmethod
    async def _wake_up(self, part: str = "") -> None:
        """Take the memory again: of the ``weights``, of the ``kv_cache``, or all."""


_ONE = {"max_tokens": 1, "temperature": 1.0, "seed": 0, "ignore_eos": True, "detokenize": False}
"""Fields of a request that is made for its log-probs."""


def _context_of(config: Any) -> int:
    for field in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config.get_text_config(), field, None)
        if isinstance(value, int) and 0 < value < _NO_LIMIT:
            return value
    return 2048


def _write_shape(module: Any, tokenizer: HFTokenizer, folder: Path, *, weights: bool) -> None:
    """Write the config and the tokenizer of *module* in the form of a checkpoint; with *weights*,
    those under its adapters, too.
    """
    base = base_of(module)
    if weights:
        from safetensors.torch import save_file

        parameters = {
            n.replace(".base_layer", ""): p.detach()
            for n, p in base.named_parameters()
            if ".lora_" not in n
        }
        save_file(
            {n: p.to("cpu").contiguous() for n, p in served(parameters, base.config).items()},
            folder / "model.safetensors",
            {"format": "pt"},
        )
    config = copy.deepcopy(base.config)
    config.architectures = [type(base).__name__]  # absent from a model that was built from a config
    config.save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)
    if (processor := getattr(tokenizer, "processor", None)) is not None:
        processor.save(folder)


def checkpoint(model: str) -> tuple[Any, HFTokenizer]:
    """Load the config and the tokenizer of the folder or hub id *model*.

    Raises:
        UsageError: they cannot be loaded.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    if not model:
        raise UsageError(
            "engine vllm needs a model: engine.args.model, a folder or a Hugging Face id"
        )
    check_whole(model)
    try:
        config = AutoConfig.from_pretrained(model)
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as e:
        raise UsageError(f"model {model!r} cannot be loaded: {str(e).partition(chr(10))[0]}") from e
    try:
        stops = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        stops = None
    return config, HFTokenizer(
        tokenizer, stop_ids=[stops] if isinstance(stops, int) else stops or ()
    )
