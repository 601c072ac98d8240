"""vLLM in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintain import InfrastructureError
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.registry import takes

from .arguments import ENVIRONMENT, check_installed
from .base import SyncedEngine, VLLMOutput, checkpoint
from .canary import base_of
from .errors import WeightSyncError
from .pictures import SeenPicture, identifier
from .settings import LocalSettings
from .thread import EngineThread
from .transports import Memory


class VLLMEngine(SyncedEngine):
    """Samples with vLLM in this process; trainable.

    Log-probs are those of the sampling temperature before any truncation. The same seed on the same
    logits gives the same tokens; the logits may differ in their last bits with what else is in the
    batch, so runs do not repeat bit for bit.
    """

    name = "vllm"

    @takes(LocalSettings)
    def __init__(self, model: str = "", **settings: Any) -> None:
        """Serve *model*, a folder or a hub name, with `LocalSettings`; it is loaded when the engine
        is entered.

        Raises:
            UsageError: a setting is out of range, or vLLM is not installed.
        """
        config, tokenizer = checkpoint(model)
        self._prepare(LocalSettings(**settings), folder=model, tokenizer=tokenizer, config=config)

    @classmethod
    @takes(LocalSettings)
    def sharing(
        cls, module: Any, tokenizer: HFTokenizer, *, copy: bool = False, **settings: Any
    ) -> VLLMEngine:
        """Create an engine for a learner's *module*: vLLM has weights of its own, which `update`
        replaces by the module's.

        Args:
            copy: turns are sampled while the learner updates.

        Raises:
            UsageError: a setting is out of range, or vLLM is not installed.
        """
        engine, config = cls.__new__(cls), base_of(module).config
        engine._prepare(
            LocalSettings(**settings),
            tokenizer=tokenizer,
            config=config,
            module=module,
            overlaps=copy,
        )
        return engine

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        LocalSettings(**settings)

    @classmethod
    def shares_gpu(cls, settings: Mapping[str, Any]) -> str:
        """Return when vLLM needs memory of the learner's GPU: ``always``, ``in turns``, or never
        (empty).
        """
        return LocalSettings(**settings).shares_gpu

    @classmethod
    def check_available(cls, args: Mapping[str, Any]) -> None:
        """Check that a supported vLLM is installed; see `quintain.Service.check_available`."""
        check_installed()

    def _prepare(self, settings: LocalSettings, **model: Any) -> None:
        check_installed()
        self._configure(settings, Memory(), **model)
        self.path = f"vLLM in this process over {type(self._config).__name__}"
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
            raise UsageError(
                f"vLLM cannot load the model: {type(e).__name__}: {str(e)[:600]}"
            ) from e
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

        assert Memory.backend == worker.BACKEND
        # one process, one worker
        one = {"distributed_executor_backend": "uni", "disable_log_stats": True}
        try:
            made = EngineArgs(**self._engine_args(one))
        except TypeError as e:
            raise UsageError(f"engine.args.options: {e}") from e
        engine = LLMEngine.from_engine_args(made)
        self.dtype = str(engine.model_config.dtype).removeprefix("torch.")
        return engine

    async def _do(self, function: Any) -> Any:
        return await asyncio.wrap_future(self._engine.call(function))

    async def _generate(self, ids: Sequence[int], fields: Mapping[str, Any]) -> VLLMOutput:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)
        # The salt keeps the keys and values of each version apart, should some survive the reset.
        version = self.version
        prompt: dict[str, Any] = {
            "prompt_token_ids": self._plain(ids),
            "cache_salt": f"version {version}",
        }
        if seen := self._seen(ids):
            prompt |= self._multimodal(seen, version)
        thread = self._engine
        adapter = (
            {"lora_request": self._adapter_request(self._adapter)}
            if self._adapter is not None
            else {}
        )
        request_id, future = thread.submit(prompt, params, **adapter)
        try:
            output = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            thread.abort(request_id)
            raise
        except Exception as error:
            raise InfrastructureError(f"vLLM failed: {type(error).__name__}: {error}") from error
        await self._check_features(seen, version)
        return answer_of(output, fields)

    def _multimodal(self, seen: Sequence[SeenPicture], version: int) -> dict[str, Any]:
        """Return the fields of vLLM's ``MultiModalInput`` for the pictures of a prompt."""
        import torch
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        assert self._pictures is not None
        items, ranges = [], []
        for picture in seen:
            items.append(self._pictures.item(picture.digits, self.dtype))
            length, mask = picture.end - picture.start, None
            if not picture.is_whole:
                mask = torch.zeros(length, dtype=torch.bool)
                mask[list(picture.offsets)] = True
            ranges.append(PlaceholderRange(offset=picture.start, length=length, is_embed=mask))
        return {
            "type": "multimodal",
            "mm_kwargs": MultiModalKwargsItems({"image": items}),
            "mm_hashes": {"image": [identifier(picture, version) for picture in seen]},
            "mm_placeholders": {"image": ranges},
        }

    async def _pause(self) -> None:
        await asyncio.wrap_future(self._engine.pause(self.recompute_kv))

    async def _resume(self) -> None:
        await asyncio.wrap_future(self._engine.resume())

    async def _reset_prefix_cache(self) -> None:
        # With running requests on old keys and values, vLLM refuses; the salt keeps others from
        # using those.
        await self._do(
            lambda engine: engine.reset_prefix_cache(reset_running_requests=self.recompute_kv)
        )

    async def _rpc(self, method: str, *args: Any) -> Any:
        return (await self._do(lambda engine: engine.collective_rpc(method, args=args)))[0]

    async def _load_adapter(self, folder: Path, version: int) -> None:
        request = self._adapter_request(folder, replaces=True)
        if not await self._do(lambda engine: engine.add_lora(request)):
            raise WeightSyncError(f"vLLM did not take the adapters of version {version}")
        await self._do(lambda engine: engine.set_weight_version(str(version)))

    def _adapter_request(self, folder: Path, *, replaces: bool = False) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest("policy", 1, str(folder), load_inplace=replaces)

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
        if not self.settings.sleep_mode or self._thread is None:
            return False
        from vllm.platforms import current_platform

        return bool(current_platform.is_sleep_mode_available())

    def _fall_asleep(self, level: int) -> None:
        self._engine.pause(True).result()
        self._engine.call(lambda engine: engine.sleep(level, mode="keep")).result()

    async def _wake_up(self, part: str = "") -> None:
        tags = [part] if part else None
        await self._do(lambda engine: engine.wake_up(tags))


def answer_of(output: Any, fields: Mapping[str, Any]) -> VLLMOutput:
    """Return the answer in a ``RequestOutput``."""
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    rows = completion.logprobs or ()
    asked_ids = fields.get("logprob_token_ids")
    prompt_logps: tuple[float, ...] = ()
    if output.prompt_logprobs:
        pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        prompt_logps = tuple(row[token].logprob for token, row in pairs)
    return VLLMOutput(
        ids=ids,
        logps=tuple(row[token].logprob for token, row in zip(ids, rows, strict=True))
        if rows
        else (),
        spans=tuple((s.version, s.start, s.end) for s in completion.weight_versions or ()),
        finish=completion.finish_reason,
        stop=completion.stop_reason,
        prompt_logps=prompt_logps,
        asked=rows[0][asked_ids[0]].logprob if asked_ids and rows else None,
        cached=output.num_cached_tokens or 0,
    )
