"""vLLM in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from quintain import InfrastructureError, Weights
from quintain.errors import UsageError
from quintain.models import HFTokenizer

from .base import Answer, SyncedEngine, checkpoint
from .canary import base_of
from .errors import WeightSyncError
from .thread import EngineThread
from .transports import Memory, transport_named

SLOTS = 64
"""Sequences decoded at once by default."""
BLOCK = 16
"""Tokens per block of keys and values; shorter prompts are not shared."""
CACHE_BYTES = 4 * 2**30
"""Largest memory for keys and values on a CPU by default."""
VERSIONS = ((0, 32), (0, 34))
"""Of vLLM: from the first up to, not including, the second."""


class VLLMEngine(SyncedEngine):
    """Samples with vLLM in this process; trainable.

    Log-probs are those of the sampling temperature before any truncation. The same seed on the same logits gives the
    same tokens; the logits may differ in their last bits with what else is in the batch, so runs do not repeat bit for
    bit.
    """

    name = "vllm"

    def __init__(
        self,
        model: str = "",
        *,
        dtype: str = "auto",
        slots: int = SLOTS,
        context: int | None = None,
        recompute_kv: bool = True,
        canary: bool = True,
        canary_tolerance: float | None = None,
        sleep_mode: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Serve *model*, a folder or a hub name; it is loaded when the engine is entered.

        Args:
            dtype: to compute in; ``auto`` is the checkpoint's.
            slots: maximum of sequences decoded at once.
            context: longest sequence, from 2; ``None`` is what the model supports.
            recompute_kv: compute the keys and values of running sequences again after a weight update; otherwise they
                continue over those of the old weights, and their log-probs are of neither version.
            canary: compare engine and learner after every update.
            canary_tolerance: largest accepted difference of a log-prob in nats; ``None`` is 0.001 in float32 and 0.25
                in half precision.
            sleep_mode: let `sleep` free memory of the GPU.
            options: further fields of ``vllm.EngineArgs``, such as ``gpu_memory_utilization``, ``quantization``,
                ``speculative_config`` or ``enforce_eager``.

        Raises:
            UsageError: a setting is out of range, or vLLM is not installed.
        """
        config, tokenizer = checkpoint(model)
        self._set_up(
            model, tokenizer, config, None, dtype, slots, context, recompute_kv, canary, canary_tolerance, sleep_mode,
            options,
        )  # fmt: skip

    @classmethod
    def sharing(
        cls,
        module: Any,
        tokenizer: HFTokenizer,
        *,
        dtype: str | None = None,
        slots: int = SLOTS,
        context: int | None = None,
        recompute_kv: bool = True,
        canary: bool = True,
        canary_tolerance: float | None = None,
        sleep_mode: bool = False,
        adapters: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> VLLMEngine:
        """An engine for a learner's *module*: vLLM has weights of its own, which `update` replaces by the module's.

        Args:
            adapters: of a module with low-rank adapters, update these alone, and let vLLM add them to the frozen
                weights; otherwise the merged weights are transferred.

        Raises:
            UsageError: a setting is out of range, or vLLM is not installed.
        """
        engine = cls.__new__(cls)
        engine._set_up(
            "", tokenizer, base_of(module).config, module, dtype, slots, context, recompute_kv, canary,
            canary_tolerance, sleep_mode, options,
        )  # fmt: skip
        if adapters:
            if not hasattr(module, "peft_config"):
                raise UsageError("adapters is true, but the model has none: set [model.lora] in the recipe")
            engine._adapters = True
            rank = max(config.r for config in module.peft_config.values())
            engine._options = {"enable_lora": True, "max_loras": 1, "max_lora_rank": _rank(rank), **engine._options}
        return engine

    def _set_up(
        self,
        folder: str,
        tokenizer: HFTokenizer,
        config: Any,
        module: Any,
        dtype: str | None,
        slots: int,
        context: int | None,
        recompute_kv: bool,
        canary: bool,
        canary_tolerance: float | None,
        sleep_mode: bool,
        options: Mapping[str, Any] | None,
    ) -> None:
        check_installed()
        if slots < 1:
            raise UsageError(f"slots is {slots}; expected at least 1")
        self._configure(
            folder=folder,
            tokenizer=tokenizer,
            config=config,
            module=module,
            dtype=dtype,
            context=context,
            recompute_kv=recompute_kv,
            canary=canary,
            canary_tolerance=canary_tolerance,
            transport=transport_named("memory", ("memory",), {}),
        )
        self._slots, self._sleep_mode, self._options = slots, sleep_mode, dict(options or {})
        self.path = f"vLLM in this process over {type(config).__name__}"
        self._thread: EngineThread | None = None

    @property
    def _engine(self) -> EngineThread:
        if self._thread is None:
            raise UsageError("the engine vllm is not started: use it inside `async with engine:`")
        return self._thread

    # -- SyncedEngine

    async def _start(self) -> None:
        self._thread = EngineThread(self._make)
        try:
            await asyncio.wrap_future(self._thread.ready)
        except Exception as e:
            if isinstance(e, UsageError):
                raise
            raise UsageError(f"vLLM cannot load the model: {type(e).__name__}: {str(e)[:600]}") from e
        await self._do(lambda engine: engine.set_weight_version(str(self.version)))

    async def _stop(self) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            await asyncio.to_thread(thread.close)

    def _make(self) -> Any:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from . import worker

        assert worker.BACKEND == Memory.backend
        args = engine_args(
            folder=self._folder,
            config=self._config,
            dummy=self.module is not None and not self._adapters,
            dtype=self.dtype,
            slots=self._slots,
            context=self.context,
            backend=self._transport.backend,
        )
        # One process, one worker; scheduling ahead of a step would give its tokens the version of the next weights.
        args |= {"distributed_executor_backend": "uni", "async_scheduling": False, "disable_log_stats": True}
        args["enable_sleep_mode"] = self._sleep_mode
        try:
            made = EngineArgs(**args | self._options)
        except TypeError as e:
            raise UsageError(f"engine.args.options: {e}") from e
        engine = LLMEngine.from_engine_args(made)
        self.dtype = str(engine.model_config.dtype).removeprefix("torch.")
        return engine

    async def _do(self, function: Any) -> Any:
        return await asyncio.wrap_future(self._engine.call(function))

    async def _generate(self, ids: Sequence[int], fields: Mapping[str, Any]) -> Answer:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)
        # The salt keeps the keys and values of each version apart, should some survive the reset.
        prompt = {"prompt_token_ids": list(ids), "cache_salt": f"version {self.version}"}
        thread = self._engine
        request_id, future = thread.submit(prompt, params, **self._adapter_of_requests())
        try:
            output = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            thread.abort(request_id)
            raise
        except Exception as error:
            raise InfrastructureError(f"vLLM failed: {type(error).__name__}: {error}") from error
        return answer_of(output, fields)

    async def _pause(self) -> None:
        await asyncio.wrap_future(self._engine.pause(self._recompute_kv))

    async def _resume(self) -> None:
        await asyncio.wrap_future(self._engine.resume())

    async def _reset_prefix_cache(self) -> None:
        # With running requests on old keys and values, vLLM refuses; the salt keeps others from using those.
        await self._do(lambda engine: engine.reset_prefix_cache(reset_running_requests=self._recompute_kv))

    async def _rpc(self, method: str, *args: Any) -> Any:
        return (await self._do(lambda engine: engine.collective_rpc(method, args=args)))[0]

    def _adapter_of_requests(self) -> dict[str, Any]:
        return {"lora_request": self._adapter_request(replaces=False)} if self._adapters else {}

    def _adapter_request(self, *, replaces: bool) -> Any:
        from vllm.lora.request import LoRARequest

        assert self._temporary is not None
        return LoRARequest("policy", 1, str(self._temporary / "adapter"), load_inplace=replaces)

    async def _send(self, weights: Weights) -> None:
        if not self._adapters:
            await super()._send(weights)
            return
        module = getattr(weights, "module", None)
        if not hasattr(module, "peft_config"):
            raise UsageError("adapters is true, but merged weights were published, as a staleness does; leave it out")
        assert self._temporary is not None
        module.save_pretrained(self._temporary / "adapter")
        request = self._adapter_request(replaces=True)
        if not await self._do(lambda engine: engine.add_lora(request)):
            raise WeightSyncError(f"vLLM did not take the adapters of version {weights.version}")
        await self._do(lambda engine: engine.set_weight_version(str(weights.version)))

    def _control(self) -> VLLMEngine:
        return self

    # -- transports.Control

    async def init_weight_transfer_engine(self, info: Mapping[str, Any]) -> None:
        await self._call("init_weight_transfer_engine", init_info=dict(info))

    async def start_weight_update(self) -> None:
        await self._call("start_weight_update")

    async def update_weights(self, info: Mapping[str, Any]) -> None:
        await self._call("update_weights", update_info=dict(info))

    async def finish_weight_update(self, version: int) -> None:
        await self._call("finish_weight_update")
        await self._do(lambda engine: engine.set_weight_version(str(version)))

    async def world_size(self) -> int:
        return 1

    async def _call(self, method: str, **kwargs: Any) -> None:
        await self._do(lambda engine: engine.collective_rpc(method, kwargs=kwargs))

    # -- sleep

    def _can_sleep(self) -> bool:
        if not self._sleep_mode or self._thread is None:
            return False
        from vllm.platforms import current_platform

        return bool(current_platform.is_sleep_mode_available())

    async def _fall_asleep(self, level: int) -> None:
        await self._pause()
        await self._do(lambda engine: engine.sleep(level, mode="keep"))

    async def _wake_up(self) -> None:
        await self._do(lambda engine: engine.wake_up())
        await self._resume()


ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # by default it pins this process, learner included, to some cores
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def check_installed() -> None:
    """Raise a `UsageError` unless a supported vLLM is installed, under either of its distributions' names."""
    try:
        import vllm
    except ImportError as e:
        raise UsageError(
            "the engine vllm needs vLLM: pip install 'quintain-vllm[gpu]', or, to try it on a CPU, "
            f"bash tools/vllm_env.sh ({e})"
        ) from e
    parts = vllm.__version__.split(".")[:2]
    if not all(part.isdigit() for part in parts):
        return  # built from a checkout
    low, high = VERSIONS
    if not low <= tuple(map(int, parts)) < high:
        span = " <= vllm < ".join(".".join(map(str, v)) for v in VERSIONS)
        raise UsageError(f"vllm {vllm.__version__} is installed; this engine is written for {span}")


def _rank(rank: int) -> int:
    """The smallest rank that vLLM has kernels for."""
    return next((r for r in (8, 16, 32, 64, 128, 256, 320, 512) if r >= rank), rank)


def engine_args(
    *, folder: str, config: Any, dummy: bool, dtype: str, slots: int, context: int, backend: str
) -> dict[str, Any]:
    """The fields of ``vllm.EngineArgs`` that both modes set.

    Args:
        dummy: start with random weights: the learner's are transferred before anything is sampled.
        backend: of the weight transfer.
    """
    args: dict[str, Any] = {
        "model": folder,
        "dtype": dtype,
        "max_model_len": context,
        "max_num_seqs": slots,
        "seed": 0,
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "block_size": BLOCK,
        "load_format": "dummy" if dummy else "auto",
        "worker_extension_cls": "quintain_vllm.worker.WorkerExtension",
        "weight_transfer_config": {"backend": backend},
    }
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        args |= {
            "enforce_eager": True,
            "block_size": 2 * BLOCK,
            "kv_cache_memory_bytes": cache_bytes(config, dtype, slots, context),
            # of a prompt in chunks, vLLM sets the seeded generator back, which generators of a CPU refuse
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(context, slots, 8192),
        }
    return args


def cache_bytes(config: Any, dtype: str, slots: int, context: int) -> int:
    """Memory for the keys and values of *slots* sequences, at most `CACHE_BYTES`: on a CPU vLLM would take a share of
    all memory.
    """
    text = config.get_text_config()
    heads = text.num_attention_heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    width = (getattr(text, "head_dim", None) or text.hidden_size // heads) * key_heads
    per_token = 2 * text.num_hidden_layers * width * (4 if dtype in ("float32", "auto") else 2)
    block = 2 * BLOCK
    tokens = (slots + 1) * block * -(-context // block)
    return int(max(64 * 2**20, min(CACHE_BYTES, per_token * tokens)))


def answer_of(output: Any, fields: Mapping[str, Any]) -> Answer:
    """The answer in a ``RequestOutput``."""
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    rows = completion.logprobs or ()
    asked_ids = fields.get("logprob_token_ids")
    prompt_logps: tuple[float, ...] = ()
    if output.prompt_logprobs:
        pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        prompt_logps = tuple(row[token].logprob for token, row in pairs)
    return Answer(
        ids=ids,
        logps=tuple(row[token].logprob for token, row in zip(ids, rows, strict=True)) if rows else (),
        spans=tuple((s.version, s.start, s.end) for s in completion.weight_versions or ()),
        finish=completion.finish_reason,
        stop=completion.stop_reason,
        prompt_logps=prompt_logps,
        asked=rows[0][asked_ids[0]].logprob if asked_ids and rows else None,
        cached=output.num_cached_tokens or 0,
    )
