"""Settings of the engines: ``[engine] args`` of a recipe, and the keywords of the constructors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quintain.errors import UsageError

SLOTS = 64
"""Sequences decoded at once by default."""
OWN_OPTIONS = (
    "async_scheduling",
    "logprobs_mode",
    "weight_transfer_config",
    "worker_extension_cls",
)
"""Fields of ``vllm.EngineArgs`` on which log-probs, versions and weight updates depend."""
MEMORY_OPTIONS = ("gpu_memory_utilization", "kv_cache_memory_bytes")
"""Fields that say how much memory vLLM takes."""
SEVERAL_WORKERS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What both engines take.

    Attributes:
        dtype: to compute in; by default the learner's, without a learner the checkpoint's.
        slots: maximum of sequences decoded at once.
        context: longest sequence, from 2; ``None`` is what the model supports.
        canary: compare engine and learner after every update.
        canary_tolerance: largest accepted difference of a log-prob in nats; ``None`` is 0.001 in
            float32, and in half precision six times what rounding changes in the learner.
        adapters: of a module with low-rank adapters, transfer these alone, and let vLLM add them to
            the frozen weights; otherwise the merged weights are transferred.
        sleep_mode: free the engine's memory on the GPU while the learner updates; see
            `SyncedEngine.sleep`.
        sleep_level: 1 moves the weights to the host meanwhile, 2 drops them.
        gpu_share: of the memory of its GPU that vLLM takes, weights included. A run whose learner has
            the same GPU sets it to what that leaves. Fields of *options* come first.
        options: further fields of ``vllm.EngineArgs``, such as ``gpu_memory_utilization``,
            ``quantization``, ``speculative_config`` or ``enforce_eager``, behind a server also
            ``tensor_parallel_size``; not those of `OWN_OPTIONS`.

    Raises:
        UsageError: a setting is out of range.
    """

    dtype: str | None = None
    slots: int = SLOTS
    context: int | None = None
    canary: bool = True
    canary_tolerance: float | None = None
    adapters: bool = False
    sleep_mode: bool = False
    sleep_level: Literal[1, 2] = 1
    gpu_share: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise UsageError(f"slots is {self.slots}; expected at least 1")
        if self.gpu_share is not None and not 0 <= self.gpu_share <= 1:
            raise UsageError(
                f"gpu_share is {self.gpu_share:g}; expected a share of the memory, 0 to 1"
            )
        if reserved := sorted({*OWN_OPTIONS} & {*self.options}):
            raise UsageError(
                f"options.{reserved[0]} is set by the engine: log-probs or versions would be "
                f"wrong; leave it out"
            )
        if self.adapters and self.sleep_level == 2:
            raise UsageError(
                "sleep_level is 2, which drops the frozen weights, and adapters is true: set it to "
                "1"
            )

    @property
    def shares_gpu(self) -> Literal["always", "in turns", ""]:
        """When vLLM needs memory of a GPU that the learner has, too; nothing where it is said how
        much.
        """
        if self.gpu_share is not None or {*MEMORY_OPTIONS} & {*self.options}:
            return ""
        return "in turns" if self.sleep_mode else "always"


@dataclass(frozen=True, kw_only=True)
class LocalSettings(Settings):
    """What `VLLMEngine` takes: it has one worker, in this process.

    Raises:
        UsageError: options ask for several workers, for which vLLM would wait for ever.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in SEVERAL_WORKERS:
            if (count := self.options.get(name, 1)) != 1:
                raise UsageError(
                    f"options.{name} is {count!r}, and the engine vllm has one worker, in this "
                    f"process: set "
                    f'engine.use = "vllm-server", which takes options = {{ {name} = {count} }}'
                )


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Settings):
    """What `VLLMServer` takes besides.

    Attributes:
        url: of a server that runs already, such as ``http://host:8000``; none is started.
            docs/vllm.md shows how to start one that can be trained with.
        transport: ``file`` (shared memory, or a folder that both see), ``ipc`` (same GPU) or
            ``nccl``.
        transport_args: of the transport: ``folder`` of a file, ``address`` and ``port`` of NCCL.
        api_key: sent as a bearer token.
        start_timeout: seconds until the server must answer.
        timeout: seconds for which a server may stand still: without an answer to a call of a weight
            update, or without one more token while turns wait. The call then fails, and with it the
            turn or the update.
    """

    url: str = ""
    transport: str = "file"
    transport_args: Mapping[str, Any] = field(default_factory=dict)
    api_key: str = ""
    start_timeout: float = 600.0
    timeout: float = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.timeout > 0:
            raise UsageError(f"timeout is {self.timeout:g}; expected seconds, more than 0")

    @property
    def workers(self) -> int:
        """How many it has, each with a GPU of its own."""
        return math.prod(int(self.options.get(name, 1)) for name in SEVERAL_WORKERS)
