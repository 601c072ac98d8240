"""What the engine in this process and the one behind a server share: model folder, scoring, weight updates, canary."""

from __future__ import annotations

import asyncio
import copy
import logging
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from quintain import InfrastructureError, LimitReached, Sampled, Sampling, TokenEngine, Weights
from quintain.errors import UsageError
from quintain.learning import ModuleWeights
from quintain.models import HFTokenizer

from .canary import HALF_TOLERANCE, TOLERANCE, Reference, base_of, canary_ids, first_difference, forward_log_probs
from .canary import layer_outputs as learner_outputs
from .errors import CanaryError, SleepUnsupportedError, WeightSyncError
from .requests import room_for, sampled, sampling_fields
from .transports import Transport

_log = logging.getLogger(__name__)
_NO_LIMIT = 10**7


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What vLLM answered to one request.

    Attributes:
        spans: version, first token and end of each run of new tokens that were sampled under one version.
        prompt_logps: of the prompt's tokens from the second on; empty where they were not asked for.
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
        dtype: that vLLM computes in.
        differences: of the canary after each update, in nats.
    """

    module: Any = None
    path: str
    _adapters = False

    def _configure(
        self,
        *,
        folder: str,
        tokenizer: HFTokenizer,
        config: Any,
        module: Any,
        dtype: str | None,
        context: int | None,
        recompute_kv: bool,
        canary: bool,
        canary_tolerance: float | None,
        transport: Transport,
    ) -> None:
        supported = _context_of(config)
        if context is not None and not 2 <= context <= supported:
            raise UsageError(f"context is {context}; this model takes 2 to {supported}, or none for {supported}")
        self.tokenizer, self.context = tokenizer, context or supported
        if module is not None and dtype in (None, "auto"):
            dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
        self.module, self.dtype = module, str(dtype)
        self._folder, self._config, self._vocabulary = folder, config, config.get_text_config().vocab_size
        self._recompute_kv, self._checks, self._tolerance = recompute_kv, canary, canary_tolerance
        self._transport, self._transport_open = transport, False
        self._reference = Reference(module, folder)
        self.version, self.stalls = 0, 0
        self.differences: list[float] = []
        self._temporary: Path | None = None
        self._published: Weights | None = None
        self._asleep = 0

    # -- what a mode provides

    @abstractmethod
    async def _start(self) -> None:
        """Load the model; its version is `version`."""

    @abstractmethod
    async def _stop(self) -> None: ...

    @abstractmethod
    async def _generate(self, ids: Sequence[int], fields: Mapping[str, Any]) -> Answer:
        """Run one request; a cancelled await aborts it."""

    @abstractmethod
    async def _pause(self) -> None:
        """Freeze running requests. With `_recompute_kv` their keys and values are dropped, and computed again after."""

    @abstractmethod
    async def _resume(self) -> None: ...

    @abstractmethod
    async def _reset_prefix_cache(self) -> None: ...

    @abstractmethod
    async def _rpc(self, method: str, *args: Any) -> Any:
        """Call a method of `WorkerExtension` on all workers; the first one's answer."""

    # -- the engine

    async def __aenter__(self) -> Self:
        self._syncing = asyncio.Lock()
        if self.module is not None and not self._folder:
            self._temporary = Path(tempfile.mkdtemp(prefix="quintain-vllm-"))
            _write_shape(self.module, self.tokenizer, self._temporary, weights=self._adapters)
            self._folder = str(self._temporary)
        try:
            await self._start()
            if self.module is not None:
                await self.update(ModuleWeights(self.module, self.version))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._transport_open:
            self._transport.close()
            self._transport_open = False
        await self._stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Continue *ids*. Cancelling the awaiting task aborts the request.

        Raises:
            LimitReached: *ids* leave no room in the context.
            InfrastructureError: vLLM failed, or gave NaN.
        """
        await self._awake()
        stop_ids = [i for i in (*self.tokenizer.stop_ids, *sampling.stop_ids) if i < self._vocabulary]
        fields = sampling_fields(sampling, stop_ids=stop_ids, room=room_for(ids, self.context))
        answer = await self._generate(ids, fields)
        logps: Sequence[float] = answer.logps
        if sampling.truncates and sampling.temperature > 0:
            # vLLM's are those of the truncated distribution
            logps = await self.score([*ids, *answer.ids], len(ids), sampling.temperature)
        return sampled(answer.ids, logps, answer.spans, answer.finish, answer.stop)

    async def score(self, ids: Sequence[int], start: int, temperature: float = 1.0) -> list[float]:
        """Log-probs of ``ids[start:]``, each given all before it; *start* is at least 1.

        vLLM gives log-probs of a prompt at temperature 1. At another temperature each token is a request of its own,
        which shares the keys and values of its prefix.

        Raises:
            ValueError: *start* is out of range.
            LimitReached: *ids* are longer than the context.
        """
        if not 1 <= start <= len(ids):
            raise ValueError(f"start is {start}; expected 1 to {len(ids)}")
        if len(ids) > self.context:
            raise LimitReached("context", f"{len(ids)} tokens to score; the context is {self.context}")
        if start == len(ids):
            return []
        await self._awake()
        temperature = temperature or 1.0
        if temperature != 1 and start < len(ids) - 1:
            ends = range(start, len(ids))
            return list(await asyncio.gather(*(self._next_logp(ids[:end], ids[end], temperature) for end in ends)))
        if start == len(ids) - 1:
            return [await self._next_logp(ids[:-1], ids[-1], temperature)]
        answer = await self._generate(ids[:-1], {**_ONE, "prompt_logprobs": 0, "logprob_token_ids": [ids[-1]]})
        if answer.asked is None or len(answer.prompt_logps) != len(ids) - 2:
            raise InfrastructureError(f"{self.name} gave no log-probs of the prompt")
        return [*answer.prompt_logps[start - 1 :], answer.asked]

    async def _next_logp(self, ids: Sequence[int], token: int, temperature: float) -> float:
        fields = {**_ONE, "temperature": temperature, "logprob_token_ids": [token]}
        asked = (await self._generate(ids, fields)).asked
        if asked is None:
            raise InfrastructureError(f"{self.name} gave no log-prob of token {token}")
        return asked

    # -- weights

    async def update(self, weights: Weights) -> int:
        """Load *weights*: pause, transfer, reset the prefix cache, resume, and compare with the learner.

        Unfinished sequences continue under the new weights; each token carries the version that sampled it.

        Raises:
            WeightSyncError: the transfer failed, and left the engine without usable weights.
            CanaryError: the engine scores the canary otherwise than the learner.
        """
        async with self._syncing:
            if self._asleep:
                await self._wake()
            await self._transfer(weights)
            if self._checks:
                await self._check(weights)
        return self.version

    async def _transfer(self, weights: Weights) -> None:
        await self._pause()
        try:
            if not self._transport_open:
                await self._transport.open(self._control())
                self._transport_open = True
            await self._send(weights)
            await self._reset_prefix_cache()
        except (UsageError, WeightSyncError):
            raise
        except Exception as error:
            raise WeightSyncError(
                f"{self.name} did not take weights of version {weights.version}: {type(error).__name__}: {error}"
            ) from error
        self.version, self._published = weights.version, weights
        await self._resume()

    async def _send(self, weights: Weights) -> None:
        await self._transport.transfer(self._control(), weights.tensors(), weights.version)

    @abstractmethod
    def _control(self) -> Any:
        """The engine as a `transports.Control`."""

    async def _check(self, weights: Weights) -> None:
        """Score the canary, and the token after it, which is sampled over cached keys and values."""
        ids = canary_ids(self._vocabulary, self.context)
        module = self._reference.module(weights)
        expected = forward_log_probs(module, ids)
        difference = 0.0
        for _ in range(2):
            following = await self._generate(ids, {**_ONE, "logprobs": 0})
            difference = max(difference, abs(following.logps[0] - float(expected[-1, following.ids[0]])))
        logps = await self.score(ids, 1)
        pairs = zip(logps, expected[range(len(ids) - 1), list(ids[1:])].tolist(), strict=True)
        difference = max(difference, *(abs(a - b) for a, b in pairs))
        self.differences.append(difference)
        tolerance = self._tolerance or TOLERANCE.get(self.dtype, HALF_TOLERANCE)
        if not difference <= tolerance:
            layer = await self._differing_layer(module, ids)
            raise CanaryError(difference, tolerance, weights.version, layer)

    async def _differing_layer(self, module: Any, ids: Sequence[int]) -> str:
        from safetensors.torch import load_file

        path = Path(tempfile.gettempdir()) / f"quintain-trace-{id(self)}.safetensors"
        try:
            await self._rpc("quintain_trace")
            await self.score(ids, 1)
            classes = await self._rpc("quintain_traced", str(path))
            engine = load_file(path)
        except Exception as error:  # noqa: BLE001 -- the canary's error is the one to show
            _log.warning("the layers of the engine could not be traced: %s: %s", type(error).__name__, error)
            return ""
        finally:
            path.unlink(missing_ok=True)
        in_order = {name: engine[name] for name in classes}
        return first_difference(learner_outputs(module, ids), in_order, classes, TOLERANCE.get(self.dtype, 0.05))

    # -- sleep

    async def sleep(self, level: int = 1) -> None:
        """Free the engine's memory on the GPU for the learner: 1 moves the weights to the host, 2 drops them.

        The next call wakes it. After level 2 the last published weights are transferred again.

        Raises:
            SleepUnsupportedError: there is nothing to free on this platform.
        """
        if level not in (1, 2):
            raise UsageError(f"sleep level is {level}; expected 1 or 2")
        if not self._can_sleep():
            raise SleepUnsupportedError(
                f"{self.name} cannot sleep here: vLLM frees memory of GPUs only, and only with sleep_mode = true"
            )
        async with self._syncing:
            if not self._asleep:
                await self._fall_asleep(level)
                self._asleep = level

    async def _awake(self) -> None:
        if self._asleep:
            async with self._syncing:
                if self._asleep:
                    discarded = await self._wake()
                    if discarded and self._published is not None:
                        await self._transfer(self._published)

    async def _wake(self) -> bool:
        """Wake up; whether the weights must be transferred again."""
        level, self._asleep = self._asleep, 0
        await self._wake_up()
        return level == 2

    @abstractmethod
    def _can_sleep(self) -> bool: ...

    @abstractmethod
    async def _fall_asleep(self, level: int) -> None: ...

    @abstractmethod
    async def _wake_up(self) -> None: ...


_ONE = {"max_tokens": 1, "temperature": 1.0, "seed": 0, "ignore_eos": True, "detokenize": False}
"""Fields of a request that is made for its log-probs."""


def _context_of(config: Any) -> int:
    for field in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(config.get_text_config(), field, None)
        if isinstance(value, int) and 0 < value < _NO_LIMIT:
            return value
    return 2048


def _write_shape(module: Any, tokenizer: HFTokenizer, folder: Path, *, weights: bool) -> None:
    """Config and tokenizer of *module* in the form of a checkpoint; with *weights*, those under its adapters."""
    base = base_of(module)
    if weights:
        from safetensors.torch import save_file

        own = {n.replace(".base_layer", ""): p.detach() for n, p in base.named_parameters() if ".lora_" not in n}
        save_file({n: p.to("cpu").contiguous() for n, p in own.items()}, folder / "model.safetensors", {"format": "pt"})
    config = copy.deepcopy(base.config)
    config.architectures = [type(base).__name__]  # absent from a model that was built from a config
    config.save_pretrained(folder)
    tokenizer.hf.save_pretrained(folder)


def checkpoint(model: str) -> tuple[Any, HFTokenizer]:
    """Config and tokenizer of the folder or hub id *model*.

    Raises:
        UsageError: they cannot be loaded.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    if not model:
        raise UsageError("engine vllm needs a model: engine.args.model, a folder or a Hugging Face id")
    try:
        config = AutoConfig.from_pretrained(model)
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as e:
        raise UsageError(f"model {model!r} cannot be loaded: {str(e).partition(chr(10))[0]}") from e
    try:
        stops = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        stops = None
    return config, HFTokenizer(tokenizer, stop_ids=[stops] if isinstance(stops, int) else stops or ())
