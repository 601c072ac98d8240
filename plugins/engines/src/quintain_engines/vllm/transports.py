"""Ways to carry weights into vLLM; each drives vLLM's calls init, start, update and finish."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from quintain.errors import UsageError

from .handover import handed

BUCKET = 2**30
"""Bytes of a file of weights, or those of the largest tensor."""
BACKEND = "quintain"  # of `worker`, which only a process with vLLM imports


class Control(Protocol):
    """vLLM's weight-update calls, to an engine in this process or over HTTP."""

    async def init_weight_transfer_engine(self, info: Mapping[str, Any]) -> None: ...

    async def start_weight_update(self) -> None: ...

    async def update_weights(self, info: Mapping[str, Any]) -> None: ...

    async def finish_weight_update(self, version: int) -> None: ...

    async def world_size(self) -> int: ...


class Transport(ABC):
    """Carries a set of tensors.

    Attributes:
        backend: of vLLM's ``weight_transfer_config``.
        folder: that both sides see, for adapters; ``None`` is the one for temporary files.
        dtype: that the engine computes in; matrices go over the wire in it, half the bytes of
            float32.
    """

    backend: ClassVar[str] = BACKEND
    folder: Path | None = None
    dtype: str = "auto"

    def wire_type(self, tensor: Any) -> Any:
        """Return the type that *tensor* is sent in. Vectors stay as they are: vLLM keeps some of
        them, such as biases of routers, in float32.
        """
        import torch

        narrows = (
            self.dtype in ("bfloat16", "float16") and tensor.ndim > 1 and tensor.is_floating_point()
        )
        return getattr(torch, self.dtype) if narrows else tensor.dtype

    async def open(self, control: Control) -> None:
        """Agree with vLLM on the way; once, before the first transfer."""
        await control.init_weight_transfer_engine({})

    async def transfer(self, control: Control, tensors: Mapping[str, Any], version: int) -> None:
        """Replace the engine's weights by *tensors*, under the names of a Hugging Face
        checkpoint.
        """
        await control.start_weight_update()
        await self.send(control, tensors)
        await control.finish_weight_update(version)

    @abstractmethod
    async def send(self, control: Control, tensors: Mapping[str, Any]) -> None:
        """Move the tensors, between start and finish."""

    def close(self) -> None:  # noqa: B027 -- most hold nothing
        """Release what `open` took."""


class Memory(Transport):
    """The tensors themselves, to an engine in this process."""

    async def send(self, control: Control, tensors: Mapping[str, Any]) -> None:
        # vLLM reads them in a thread of its own, whose work is not in the order of the learner's.
        if isinstance(tensors, dict):  # others are made when they are asked for
            _wait_for_gpu(tensors.values())
        key = secrets.token_hex(8)
        handed[key] = tensors
        try:
            await control.update_weights({"key": key})
        finally:
            del handed[key]


class File(Transport):
    """Files of safetensors that both sides see, one after the other, in shared memory where the
    machine has it: so much of the weights is there at once.

    Args:
        folder: where to write; a folder of several machines serves a server elsewhere.
    """

    folder: Path

    def __init__(self, folder: str = "") -> None:
        shared = Path("/dev/shm")
        self.folder = (
            Path(folder)
            if folder
            else shared
            if os.access(shared, os.W_OK)
            else Path(tempfile.gettempdir())
        )

    async def send(self, control: Control, tensors: Mapping[str, Any]) -> None:
        path = self.folder / f"quintain-weights-{secrets.token_hex(8)}.safetensors"
        buckets = in_buckets(tensors)
        try:
            # in a thread: those that other processes have arrive as they are asked for
            while bucket := await asyncio.to_thread(next, buckets, None):
                aliases = await asyncio.to_thread(_save, bucket, path, self.wire_type)
                async with self._offered(path) as seen:
                    await control.update_weights({"path": seen, "aliases": aliases})
        finally:
            path.unlink(missing_ok=True)

    @asynccontextmanager
    async def _offered(self, path: Path) -> AsyncIterator[str]:
        """Return where the other side finds the file at *path*, inside the block."""
        yield str(path)


class Upload(File):
    """A safetensors file that goes to the machine of the server, which keeps it in memory.

    Args:
        put: sends the file at a path, and returns where it is there; without one, the last is
            forgotten.
    """

    def __init__(self, put: Callable[[Path | None], Awaitable[str]]) -> None:
        super().__init__()
        self._put = put

    @asynccontextmanager
    async def _offered(self, path: Path) -> AsyncIterator[str]:
        yield await self._put(path)
        await self._put(None)


def in_buckets(tensors: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield *tensors* in their order, in parts of `BUCKET` bytes or of a larger tensor; tied ones are
    in the part of the first.
    """
    items = iter(tensors.items())
    if isinstance(tensors, dict):  # others make them when they are asked for, and none twice
        first: dict[Any, int] = {}
        for number, tensor in enumerate(tensors.values()):
            first.setdefault(_memory_of(tensor), number)
        items = iter(sorted(tensors.items(), key=lambda item: first[_memory_of(item[1])]))
    bucket: dict[str, Any] = {}
    seen: dict[Any, int] = {}
    for name, tensor in items:
        memory = _memory_of(tensor)
        if bucket and memory not in seen and sum(seen.values()) + tensor.nbytes > BUCKET:
            yield bucket
            bucket, seen = {}, {}
        seen[memory] = tensor.nbytes
        bucket[name] = tensor
    if bucket:
        yield bucket


def _memory_of(tensor: Any) -> tuple[Any, ...]:
    """Return what tied tensors have in common."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _save(
    tensors: Mapping[str, Any], path: Path, wire_type: Callable[[Any], Any]
) -> dict[str, str]:
    """Write each tensor once; names of tied tensors to the name that is written."""
    from safetensors.torch import save_file

    first: dict[tuple[int, Any, Any], str] = {}
    aliases: dict[str, str] = {}
    stored: dict[str, Any] = {}
    for name, tensor in tensors.items():
        key = _memory_of(tensor)
        if key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            stored[name] = _begin_to_host(tensor.detach(), wire_type(tensor))
    _wait_for_gpu(tensors.values())
    save_file(stored, path)
    return aliases


def _begin_to_host(tensor: Any, dtype: Any) -> Any:
    """Return *tensor* in *dtype* on the host, contiguous; from a GPU in pinned memory, which torch
    keeps for the next one, and only after `_wait_for_gpu`.
    """
    import torch

    if not tensor.is_cuda:
        return tensor.to("cpu", dtype).contiguous()
    there = torch.empty(tensor.shape, dtype=dtype, pin_memory=True)
    return there.copy_(tensor, non_blocking=True)


def _wait_for_gpu(tensors: Iterable[Any]) -> None:
    """Wait until the GPUs of *tensors* have done what this thread has asked of them."""
    import torch

    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


class _Source:
    """vLLM's `WeightSource` over the tensors of the transfer under way, each converted when it is
    its turn.
    """

    def __init__(self, wire_type: Callable[[Any], Any]) -> None:
        self.tensors: Mapping[str, Any] = {}
        self._wire_type = wire_type

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [
            ParamMeta(name, self._wire_type(t), tuple(t.shape)) for name, t in self.tensors.items()
        ]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, tensor.to(self._wire_type(tensor))) for name, tensor in self.tensors.items())


class _Client:
    """vLLM's synchronous calls, run in the event loop of the engine; used from a thread."""

    def __init__(self, control: Control, loop: asyncio.AbstractEventLoop) -> None:
        self._control, self._loop = control, loop
        self.version = 0

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._run(self._control.init_weight_transfer_engine(init_info))

    def start_weight_update(self) -> None:
        self._run(self._control.start_weight_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._run(self._control.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._run(self._control.finish_weight_update(self.version))


class Device(Transport):
    """Between GPUs, by vLLM's own trainer side. The learner's tensors must be on a GPU.

    Attributes:
        device: the learner's; set by the engine.
    """

    device: Any = None

    async def open(self, control: Control) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        self._client = _Client(control, asyncio.get_running_loop())
        self._source = _Source(self.wire_type)
        info = self._init_info(1 + await control.world_size())
        make: Any = WeightTransferTrainerFactory.trainer_init
        self._engine: Any = await self._in_thread(
            make, info, client=self._client, source=self._source
        )

    async def _in_thread(self, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run *work* in a thread whose current device is the learner's: that of a new thread is
        always the first.
        """

        def run() -> Any:
            import torch

            with torch.cuda.device(self.device):
                return work(*args, **named)

        return await asyncio.to_thread(run)

    @abstractmethod
    def _init_info(self, world_size: int) -> Any: ...

    async def transfer(self, control: Control, tensors: Mapping[str, Any], version: int) -> None:
        if devices := sorted({t.device.type for t in tensors.values()} - {"cuda"}):
            raise UsageError(
                f"transport {self.backend!r} carries tensors of a GPU, not of {', '.join(devices)}"
            )
        self._client.version, self._source.tensors = version, tensors
        try:
            await self._in_thread(self._engine.send_weights)
        finally:
            self._source.tensors = {}

    async def send(self, control: Control, tensors: Mapping[str, Any]) -> None:
        raise NotImplementedError("vLLM's trainer side starts and finishes the update itself")

    def close(self) -> None:
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.shutdown()


class IPC(Device):
    """Handles of CUDA memory, to a server on the same GPU."""

    backend = "ipc"

    def _init_info(self, world_size: int) -> Any:
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0, packed=True)


class NCCL(Device):
    """A broadcast from the learner's GPU to those of the workers.

    Args:
        address, port: of the rendezvous, as the workers reach it; port 0 takes a free one.
    """

    backend = "nccl"

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        self._address, self._port = address, port

    def _init_info(self, world_size: int) -> Any:
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        port = self._port
        if not port:
            with socket.socket() as free:
                free.bind((self._address, 0))
                port = free.getsockname()[1]
        return NCCLTrainerInitInfo(
            rank=0, master_address=self._address, master_port=port, world_size=world_size
        )


TRANSPORTS: dict[str, type[Transport]] = {"memory": Memory, "file": File, "ipc": IPC, "nccl": NCCL}


def transport_named(name: str, allowed: tuple[str, ...], args: Mapping[str, Any]) -> Transport:
    """Return the transport *name*, configured by *args*.

    Raises:
        UsageError: the engine has no such transport.
    """
    if name not in allowed:
        raise UsageError(f"transport is {name!r}; this engine takes {', '.join(allowed)}")
    try:
        return TRANSPORTS[name](**args)
    except TypeError as e:
        raise UsageError(f"transport_args of {name!r}: {e}") from e
